"""The loaders of a program: what each is given, what it reads, and which loops read it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from turbofix.dataflow.facts import settled, unwrapped
from turbofix.dataflow.provenance import argument_from, bound_arguments
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.tensors import device_meant
from turbofix.domain.trace import Arguments, Event, Passed
from turbofix.domain.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    Opaque,
    Partial,
    Tensor,
    Value,
    flatten,
    join_all,
    members,
)
from turbofix.library.tables import is_plain_loader, loader_parameters, parameters_of
from turbofix.source.names import dotted, loaded, targets, written
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.data.datasets import collating, dataset_of
from turbofix.training.data.shapes import sizes_of
from turbofix.training.model import ABSENT, Argument, Dataset, Evaluation, Loader, Sizes, Step, Transfer

_FEW_BATCHES = 10
"""After so many, an evaluation ends before its loader has brought more than workers fetch ahead."""
_TORCH = "torch.utils.data.DataLoader"


def loader_sites(analysis: Analysis, value: Value | None) -> list[Site]:
    """Where the loaders are made that a value is, or iterates over."""
    found = {analysis.facts.origin_site(each.origin) for each in loaders_in(value)}
    return sorted(site for site in found if site is not None)


def loaders_in(value: Value | None) -> Iterator[Made]:
    """The loaders that a value is, or iterates over: of a call that is reached in several ways, one for each."""
    for each in unwrapped(value):
        member = each.base if isinstance(each, Instance) and each.base is not None else each
        if isinstance(member, Made) and member.kind == "loader":
            yield member
        elif isinstance(member, Iterated) and member.wrapper == "generator":
            for inner in flatten(member.element):
                if isinstance(inner, Tensor) and "batch" in inner.roles and inner.source is not None:
                    yield from loaders_in(inner.source)


def merged(many: Iterable[dict[str, Passed]]) -> dict[str, Passed]:
    """The arguments of one call over all the ways in which it was reached."""
    ways = list(many)
    return {
        name: _joined([each.get(name) for each in ways]) for name in dict.fromkeys(n for each in ways for n in each)
    }


def _joined(ways: list[Passed | None]) -> Passed:
    """The same argument of the same call, reached in several ways, some of which may pass nothing."""
    passed = [each for each in ways if each is not None]
    if len(ways) == 1:
        return passed[0]
    value = join_all(each.value for each in passed)
    assert value is not None
    written = next((each for each in passed if each.node is not None or each.entry is not None), passed[0])
    always = len(passed) == len(ways) and all(each.must for each in passed)
    return replace(written, value=value, must=always)


def loaders(analysis: Analysis) -> list[Loader]:
    """Every loader that is built, without what the loops say of it (see ``with_use``)."""
    by_node: dict[int, list[Event]] = {}
    for event in analysis.facts.of("make"):
        for member in members(event.result):
            if isinstance(member, Made) and member.kind == "loader":
                by_node.setdefault(id(event.node), []).append(event)
                break
    found = [_loader(analysis, events) for events in by_node.values()]
    return sorted(found, key=lambda loader: loader.site)


def _loader(analysis: Analysis, events: list[Event]) -> Loader:
    facts = analysis.facts
    event = events[0]
    node, module = event.node, event.module
    made = next(each for each in members(event.result) if isinstance(each, Made))
    order = parameters_of(made.qualname) or loader_parameters()[:3]
    all_arguments = [each.arguments for each in events if each.arguments is not None]
    bound = [bound_arguments(each, order) for each in all_arguments]
    passed = merged(bound)
    arguments = {name: argument_from(each, module, facts, analysis.reads) for name, each in sorted(passed.items())}
    given = [argument_from(each.get("batch_size"), module, facts, analysis.reads) for each in bound]
    places = {each.edit_at: each for each in given if each.edit_at is not None and len(each.values) == 1}
    if len(places) > 1 and len(arguments["batch_size"].values) == 1:  # one number, written for each of its calls
        written = tuple((each.values[0], site) for site, each in places.items())
        arguments["batch_size"] = replace(arguments["batch_size"], edit_at=None, written=written)
    read = passed["dataset"].node if "dataset" in passed else None
    if isinstance(read, ast.Call) and dotted(read.func) == "range":
        data = Dataset("tensors", on_device=True)  # it hands out indices: the collate function takes whole batches
    else:
        data = dataset_of(analysis, *_datasets(all_arguments, order))
    if not data.on_device and _is_moved(analysis, _datasets(all_arguments, order), event.order):
        data = replace(data, on_device=True)
    if made.qualname.endswith(".splits"):  # it is given several data sets, not one of so many items
        data = replace(data, length=None)
    collate = passed.get("collate_fn")
    collated = collating(analysis, collate.value) if collate is not None else None
    subclass = None if is_plain_loader(made.qualname) else made.qualname
    if subclass is None and isinstance(node, ast.Call) and _is_super(node):
        cls = next((each for each in facts.places.ancestors(node, module) if isinstance(each, ast.ClassDef)), None)
        subclass = cls.name if cls is not None else None
    return Loader(
        site=facts.places.site(node, module),
        arguments=arguments,
        dataset=data,
        role="unused",
        open_mapping=any(each.open or each.star for each in all_arguments),
        unpacks=_unpacks(analysis, node, module),
        mapping_entries=_entries(analysis, all_arguments),
        collate=collate_kind(analysis, collate),  # type: ignore[arg-type]
        collate_on_device=collated is not None and collated.on_device,
        collating=collated,
        batch=_batch(made, collate),  # type: ignore[arg-type]
        built_in_loop=False,
        subclass=subclass,
        name=_name(analysis, events),
        sizes=_sizes(made, passed, arguments, data),
        comments=facts.places.comments_at(node, module),
    )


def _datasets(many: list[Arguments], order: Iterable[str]) -> list[Value | None]:
    """What a loader is given to read, each time that it is built: objects of one class are more than one by then."""
    passed = [bound_arguments(each, order).get("dataset") for each in many]
    return [each.value if each is not None else None for each in passed] or [None]


def _is_moved(analysis: Analysis, given: Iterable[Value | None], before: int) -> bool:
    """Whether what data sets hold was brought to the GPU before a loader was made of them, as graphs."""
    data = [each for value in given for each in flatten(value) if isinstance(each, (Instance, Opaque))]
    attributes = [value for each in data if isinstance(each, Instance) for value in each.attributes.values()]
    held = {id(each) for value in (*data, *attributes) for each in flatten(value, 2) if isinstance(each, Opaque)}
    for event in analysis.facts.of("transfer") if held else ():
        to = event.arguments.get("device", 0) if event.arguments is not None else None
        stays = event.name == "cpu" or (to is not None and device_meant(to.value) == "cpu")
        if event.order < before and not stays and any(id(each) in held for each in members(event.receiver)):
            return True
    return False


def _sizes(made: Made, passed: dict[str, Passed], arguments: Mapping[str, Argument], data: Dataset) -> Sizes:
    """Whether its batches have one size: of torch's own loader, for others put together what they like."""
    if made.qualname != _TORCH or made.arguments.open or made.arguments.star:
        return Sizes()
    read = passed["dataset"].value if "dataset" in passed else None
    return sizes_of(passed, arguments.get("batch_size", ABSENT), data, read)


def _is_super(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"


def _unpacks(analysis: Analysis, node: ast.AST, module: ModuleFile) -> tuple[Site, ...]:
    if not isinstance(node, ast.Call):
        return ()
    return tuple(analysis.facts.places.site(each.value, module) for each in node.keywords if each.arg is None)


def _entries(analysis: Analysis, many: list[Arguments]) -> dict[str, Site]:
    found: dict[str, Site] = {}
    for arguments in many:
        for name, passed in sorted(arguments.keywords.items()):
            if passed.node is None and passed.entry is not None and passed.entry_module is not None:
                found.setdefault(name, analysis.facts.places.site(passed.entry, passed.entry_module))
    return found


def collate_kind(analysis: Analysis, passed: Passed | None) -> str:
    if passed is None:
        return "default"
    kinds = set()
    for member in members(passed.value):
        function = member.function if isinstance(member, (Bound, Partial)) else member
        owner = member.receiver.cls if isinstance(member, Bound) and isinstance(member.receiver, Instance) else None
        if isinstance(member, Const) and member.value is None:
            kinds.add("default")
        elif owner is not None and not any(name.endswith("Dataset") for name in owner.externals()):
            kinds.add("unknown")  # whatever the object holds is sent to the workers, too
        elif isinstance(function, Function):
            if isinstance(function.node, ast.Lambda):
                kinds.add("lambda")
            elif isinstance(analysis.facts.places.scope(function.node, function.module), FUNCTIONS):
                kinds.add("local")
            else:
                kinds.add("function")
        elif isinstance(function, (External, Instance, Made)):
            kinds.add("function")
        else:
            kinds.add("unknown")
    if kinds == {"default"}:
        return "default"
    kinds.discard("default")
    return kinds.pop() if len(kinds) == 1 else "unknown"


def _batch(made: Made, collate: Passed | None) -> str:
    """What a batch is: tensors (in tuples, lists, dicts), or an object with a ``to`` of its own."""
    if made.qualname.startswith(("torch_geometric.", "dgl.")):
        return "object"
    if collate is None:
        return "tensors"
    found = set()
    for member in members(collate.value):
        function = member.function if isinstance(member, (Bound, Partial)) else member
        if isinstance(member, Const) and member.value is None:
            found.add("tensors")
        elif isinstance(function, Made) and function.qualname.startswith("transformers."):
            found.add("object")
        elif isinstance(function, Instance):
            call = function.cls.find("__call__")
            found.add(_returned(call) if isinstance(call, Function) else "unknown")
        elif isinstance(function, Function):
            found.add(_returned(function))
        elif isinstance(function, Class):
            found.add("object")
        else:
            found.add("unknown")
    return found.pop() if len(found) == 1 else "unknown"


def _returned(function: Function) -> str:
    """What a collate function returns, by the shape of its return statements."""
    if isinstance(function.node, ast.Lambda):
        returned: list[ast.expr | None] = [function.node.body]
    else:
        returned = [each.value for each in walk(function.node) if isinstance(each, ast.Return)]
    shapes = (ast.Tuple, ast.Dict, ast.List, ast.DictComp, ast.ListComp)
    calls = ("stack", "cat", "tensor", "pad_sequence", "default_collate", "as_tensor", "FloatTensor", "LongTensor")
    for each in returned:
        node = _definition(each, function) if isinstance(each, ast.Name) else each
        called = (dotted(node.func) or "").rpartition(".")[2] if isinstance(node, ast.Call) else None
        if not isinstance(node, shapes) and called not in (*calls, "dict", "tuple"):
            return "unknown"
    return "tensors" if returned else "unknown"


def _definition(name: ast.Name, function: Function) -> ast.expr:
    """What a function sets a name to first; the name itself where it does not."""
    for node in walk(function.node):
        if isinstance(node, ast.Assign) and any(dotted(target) == name.id for target in node.targets):
            return node.value
    return name


def _name(analysis: Analysis, events: list[Event]) -> str | None:
    """What the code calls the loader; None where a call makes several that have several names."""
    names = {_assigned(analysis, event) for event in events}
    return names.pop() if len(names) == 1 else None


def _assigned(analysis: Analysis, event: Event) -> str | None:
    """The name under which a loader, or what the function that makes it returns, is assigned or handed over."""
    facts = analysis.facts
    frames = facts.frames(event)
    for frame in reversed(frames):
        statement = facts.places.statement(frame.anchor, frame.module)
        holder = facts.places.parent(frame.anchor, frame.module)
        if isinstance(holder, ast.keyword):
            return holder.arg  # of an object that holds it: ``Data(train_loader=DataLoader(...))``
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            return _target_of(statement, frame.anchor, facts.places.parent(frame.anchor, frame.module))
        if not isinstance(statement, ast.Return):
            return None
    return None


def _target_of(statement: ast.Assign | ast.AnnAssign, node: ast.AST, parent: ast.AST | None) -> str | None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(target, (ast.Tuple, ast.List)):
        value = statement.value
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            for each, single in zip(value.elts, target.elts, strict=False):
                if each is node:
                    return dotted(single)
        return None
    if parent is statement or isinstance(parent, (ast.Call, ast.IfExp)):
        return dotted(next(targets(target)))
    return None


def with_use(
    analysis: Analysis,
    found: list[Loader],
    steps: tuple[Step, ...],
    evaluations: tuple[Evaluation, ...],
) -> tuple[Loader, ...]:
    """The loaders with their roles, their copies to the device, and whether they are rebuilt in a loop."""
    result = []
    facts = analysis.facts
    read, run_through, asked, used = _reads(analysis)
    zipped, cycled = _zipped(analysis), _cycled(analysis)
    # one of those that nothing is seen to read is what a step reads that comes from where it is not seen
    unseen = bool(steps) and not any(step.loaders for step in steps)
    moves = {facts.site(event): event for event in facts.of("transfer")}
    transfers = [each for step in steps for each in step.transfers]
    transfers += [each for evaluation in evaluations for each in evaluation.transfers]
    for loader in found:
        made = next(event for event in facts.of("make") if facts.site(event) == loader.site)
        if is_taken_whole(analysis, made):
            result.append(loader)
            continue
        in_steps = [step for step in steps if loader.site in step.loaders]
        in_evaluations = [each for each in evaluations if loader.site in each.loaders]
        if in_steps and in_evaluations:
            role = "both"
        elif in_steps:
            role = "training"
        elif in_evaluations:
            role = "evaluation"
        else:
            role = "unknown" if unseen or loader.site in read or _handed_over(analysis, loader.site) else "unused"
        copies: dict[Site, Transfer] = {}
        moved = [each for step in in_steps for each in step.transfers]
        moved += [each for evaluation in in_evaluations for each in evaluation.transfers]
        # a pass in an expression of a step has no loop that would list its loader
        moved += [each for each in transfers if each.loader == loader.site]
        for transfer in moved:
            likely = transfer.likely == "batch" and transfer.loader is not None
            of_a_batch = transfer.what in ("batch", "object") or likely
            of_a_batch = of_a_batch and transfer.loader in (None, loader.site)
            of_a_batch = of_a_batch and not transfer.again
            if of_a_batch and not transfer.dtype_only and transfer.to.where != "cpu":
                copies.setdefault(transfer.site, transfer)
        to_device = [(moves[copy.site], copy.to) for copy in copies.values() if copy.site in moves]
        result.append(
            replace(
                loader,
                role=role,  # type: ignore[arg-type]
                copies=tuple(copies[site] for site in sorted(copies)),
                goes_to=analysis.devices.beside(made, to_device),
                built_in_loop=_built_in_loop(analysis, loader.site),
                again=_read_again(analysis, loader.site),
                first_only=loader.site in read - run_through,
                asked_again=loader.site in asked,
                unused=loader.site in read - used,
                cycled=loader.site in cycled,
                together=tuple(sorted(zipped.get(loader.site, ()))),
            )
        )
    return tuple(result)


def is_taken_whole(analysis: Analysis, event: Event, data: ast.AST | None = None) -> bool:
    """Whether batches are taken as a whole already: of numbers alone, or by the function that the rewrite puts here."""
    above = analysis.facts.places.parent(event.node, event.module)
    handed = (dotted(above.func) or "") if isinstance(above, ast.Call) else ""
    return handed.startswith("preloaded") or (isinstance(data, ast.Call) and dotted(data.func) == "range")


def _reads(analysis: Analysis) -> tuple[set[Site], ...]:
    """The loaders that are read, those run through, those asked for a first batch in a loop, and those made use of."""
    read, run_through, asked, used = set[Site](), set[Site](), set[Site](), set[Site]()
    for event in analysis.facts.of("iterate", "next"):
        sites = loader_sites(analysis, event.receiver)
        read.update(sites)
        if _stops_early(analysis, event):
            pass
        elif started_anew(event.node) is None:
            run_through.update(sites)
        elif any(frame.loops for frame in analysis.facts.frames(event)):
            asked.update(sites)
        loop = event.node
        if not isinstance(loop, ast.For) or {*written(loop)} & loaded(ast.Module(loop.body, [])):
            used.update(sites)
    return read, run_through, asked, used


def _stops_early(analysis: Analysis, event: Event) -> bool:
    """Whether a loop that does not train ends with one of its first batches: ``if count == 5: break``."""
    facts, loop = analysis.facts, event.node
    for each in loop.body if isinstance(loop, ast.For) else ():
        test = each.test if isinstance(each, ast.If) and isinstance(each.body[-1], ast.Break) else None
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.Gt, ast.GtE)):
            count = settled(facts.evaluate(test.comparators[0], facts.frames(event)))
            few = type(count) is int and count <= _FEW_BATCHES
            return few and not any(inner.kind == "backward" for inner in facts.events_in(loop))
    return False


def _zipped(analysis: Analysis) -> dict[Site, set[Site]]:
    """For each loader the others that ``zip`` reads beside it."""
    found: dict[Site, set[Site]] = {}
    for event in analysis.facts.of("iterate"):
        for each in unwrapped(event.receiver):
            if isinstance(each, Iterated) and each.wrapper == "zip":
                sites = set(loader_sites(analysis, each.source))
                for site in sites:
                    found.setdefault(site, set()).update(sites - {site})
    return found


def _cycled(analysis: Analysis) -> set[Site]:
    """The loaders that a ``while True`` in a generator runs through."""
    found: set[Site] = set()
    for event in analysis.facts.of("iterate"):
        frame = next(reversed(analysis.facts.frames(event)), None)
        endless = [
            loop
            for loop in (frame.loops if frame is not None else ())
            if isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and loop.test.value
        ]
        if any(isinstance(node, ast.Yield) for loop in endless for node in walk(loop)):
            found.update(loader_sites(analysis, event.receiver))
    return found


def started_anew(node: ast.AST) -> ast.Call | None:
    """What starts a loader anew for its first batch: the ``iter(...)`` of ``next(iter(loader))``."""
    if not isinstance(node, ast.Call):
        return None
    asked = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0] if node.args else None
    return asked if isinstance(asked, ast.Call) and dotted(asked.func) == "iter" else None


def _handed_over(analysis: Analysis, site: Site) -> bool:
    """Whether a loader is given to something outside of the program (a trainer, an engine)."""
    given = (
        member
        for event in analysis.facts.of("call", "unknown_call", "make")
        if event.arguments is not None
        for value in event.arguments.values()
        for member in members(value)
    )
    return any(
        isinstance(member, Made) and member.kind == "loader" and analysis.facts.origin_site(member.origin) == site
        for member in given
    )


def _built_in_loop(analysis: Analysis, site: Site) -> bool:
    """Whether the construction runs again in each round of a loop that trains or evaluates."""
    facts = analysis.facts
    training = analysis.once("loops with passes", lambda: _loops_with_passes(analysis))
    for event in facts.of("make"):
        if facts.site(event) == site:
            for record in facts.loops(event):
                if id(record.node) in training:
                    return True
    return False


def _loops_with_passes(analysis: Analysis) -> set[int]:
    facts = analysis.facts
    levels = {event.control: event for event in facts.of("backward", "forward")}
    return {
        id(record.node) for event in levels.values() for record in facts.loops(event) if isinstance(record.node, LOOPS)
    }


def _read_again(analysis: Analysis, site: Site) -> bool:
    """Whether a loader is read in the rounds of a loop that does not hold its construction."""
    facts = analysis.facts
    built = {
        id(record.node) for event in facts.of("make") if facts.site(event) == site for record in facts.loops(event)
    }
    return any(
        site in loader_sites(analysis, event.receiver)
        and any(id(record.node) not in built for record in facts.loops(event))
        for event in facts.of("iterate")
    )
