"""Where the host waits for the device, and what becomes of the value that it waited for."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from turbofix.dataflow.accumulators import accumulator_of
from turbofix.dataflow.exports import reads_result
from turbofix.dataflow.facts import Frame
from turbofix.dataflow.guards import Condition, none_test
from turbofix.dataflow.placements import is_none
from turbofix.dataflow.printers import shown_at
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.uses import Use
from turbofix.domain.scopes import Frame as Executed
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.tensors import is_scalar
from turbofix.domain.trace import Event
from turbofix.domain.values import (
    Computed,
    Const,
    Host,
    Made,
    Mapping,
    Option,
    Sequence,
    Tensor,
    Unknown,
    Value,
    flatten,
    is_number,
    join_all,
    members,
)
from turbofix.library.tables import NAMES
from turbofix.source.names import dotted, loaded, targets
from turbofix.source.nodes import walk
from turbofix.source.places import contains
from turbofix.source.site import Site
from turbofix.training.model import ALWAYS, Accumulator, Guard, Holds, Look, Placement, Show, Sync
from turbofix.training.steps.acts import keeps_graph, loss_expression, stepper, wider
from turbofix.training.steps.regions import no_grad, surely_no_grad

_HOWS = ("item", "float", "int", "bool", "cpu", "numpy", "tolist", "print", "format", "data", "metric")
_NUMBERS = ("item", "float", "int")
_KEYS = (ast.In, ast.NotIn)
_SETTLED = ("control",)
_TRACKERS = ("wandb", "mlflow", "neptune", "comet_ml", "swanlab", "trackio")
_ROLES = ("loss", "grad", "param", "output", "prediction", "batch")


# --- shows --------------------------------------------------------------------------------------------------------


def show_kind(event: Event) -> str:
    """What kind of output a show is."""
    name = event.name.rpartition(".")[2]
    kinds = {member.kind for member in members(event.receiver) if isinstance(member, Made)}
    if name in ("print", "pprint", "echo") or event.name in ("sys.stdout.write", "sys.stderr.write"):
        return "print"
    if name.startswith(("set_postfix", "set_description")) or "progress" in kinds or event.name.startswith("tqdm."):
        return "progress"
    if "logger" in kinds or event.name.startswith(("logging.", "loguru.")):
        return "logger"
    if name.startswith("add_"):
        return "writer"
    if event.name.partition(".")[0] in _TRACKERS or name in ("log_metric", "log_metrics", "log_dict"):
        return "tracker"
    if name in ("info", "debug", "warning", "error", "critical", "exception"):
        return "logger"
    if event.name in NAMES["trackers"]:
        return "tracker"
    if "writer" in kinds:
        return "tracker" if name == "log" else "writer"
    return "tracker" if name == "log" else "other"


def shows(analysis: Analysis, events: list[Event], loop: ast.AST, steps: list[Condition]) -> tuple[Show, ...]:
    """The statements in a loop that show values, one for each statement, in the order of the text."""
    places = analysis.facts.places
    reading = [event for event in events if event.kind == "sync"]
    found: dict[Site, Show] = {}
    for event in events:
        if event.kind != "show":
            continue
        node, module = shown_at(analysis.facts, event)
        statement = places.statement(node, module)
        if statement is None:
            continue
        syncs: set[Site] = set()
        for value in event.arguments.values() if event.arguments is not None else ():
            for member in flatten(value):
                if isinstance(member, Host):
                    syncs.update(_site(analysis, origin.node, origin.module) for origin in member.syncs)
        syncs.update(
            _site(analysis, each.node, each.module)
            for each in reading
            if (each.module is module and contains(node, each.node, each.module))
            or (node is not event.node and any(frame.call is node for frame in analysis.facts.frames(each)))
        )
        parent = places.parent(node, module)
        show = Show(
            places.site(statement, module),
            show_kind(event),  # type: ignore[arg-type]
            analysis.guards.in_steps(event, loop, steps),
            tuple(sorted(syncs)),
            isinstance(parent, ast.Expr) or isinstance(node, ast.Assign),
        )
        known = found.get(show.statement)
        if known is not None:
            show = replace(
                known,
                guard=wider(known.guard, show.guard),
                syncs=tuple(sorted({*known.syncs, *show.syncs})),
                alone=known.alone and show.alone,
            )
        found[show.statement] = show
    return tuple(found[site] for site in sorted(found))


# --- syncs --------------------------------------------------------------------------------------------------------


def syncs_and_shows(
    analysis: Analysis, events: list[Event], loop: ast.AST, device: Placement
) -> tuple[tuple[Sync, ...], tuple[Show, ...]]:
    """The places in a loop where the host reads a tensor, and those that show something, in the order of the text."""
    facts = analysis.facts
    steps = _steps(analysis, events, loop)
    known_shows = {show.statement: show for show in shows(analysis, events, loop, steps)}
    tested = _tested(analysis, events, loop)
    nodes = {id(event.node) for event in events if event.kind == "sync"}
    found: dict[Site, Sync] = {}
    shown: dict[Site, set[Site]] = {}  # by sync: the statements that show its value
    blind: set[Site] = set()
    backwards = _backwards(analysis, events)
    for event in events:
        if event.kind != "sync" or _within_another(event.node, nodes) or _asks_only(event.node):
            continue
        if _waits_for_nothing(analysis, event, loop):
            continue
        where = _where(_tensors_read(analysis, event), device)
        if where.where == "cpu" and device.where != "cpu":
            continue
        uses = [
            use
            for use in analysis.flow.uses(event.node, event.control)
            if use.kind != "control" or not _is_seldom(analysis, event, loop, use.frame, use.node)
        ]
        sync = _sync(analysis, event, loop, where, uses, decides=id(event.node) in tested)
        sync = replace(sync, guard=analysis.guards.in_steps(event, loop, steps))
        named = _named(analysis, event, sync.of_text)
        if named and named <= backwards:
            sync = replace(sync, of="loss", plain=False)
        shown.setdefault(sync.site, set()).update(_showing(analysis, uses))
        shown[sync.site].update(look.statement for look in sync.looks if look.kind == "shown")
        known = found.get(sync.site)
        if known is None and is_uncalled(facts.frames(event)):
            blind.add(sync.site)
        if known is not None:
            of, scalar = known.of, known.scalar and sync.scalar
            if is_uncalled(facts.frames(event)):
                scalar = known.scalar
            elif sync.site in blind:  # a caller tells what the parameters of its function hold
                blind.remove(sync.site)
                of, scalar = sync.of, sync.scalar
            sync = replace(
                known,
                of=of,
                scalar=scalar,
                guard=wider(known.guard, sync.guard),
                use=known.use if known.use == sync.use else "other",
                no_grad=known.no_grad and sync.no_grad,
                plain=known.plain or sync.plain,
                loops=tuple(dict.fromkeys((*known.loops, *sync.loops))),
            )
        found[sync.site] = sync
    for place, show in known_shows.items():
        reading = {site for site in show.syncs if site in found} | {
            site for site, statements in shown.items() if place in statements
        }
        known_shows[place] = replace(show, syncs=tuple(sorted(reading)))
    result = []
    for site in sorted(found):
        sync = found[site]
        if sync.use == "shown":
            own = [known_shows[each] for each in sorted(shown.get(site, ())) if each in known_shows]
            own += [show for show in known_shows.values() if site in show.syncs]
            sync = replace(sync, show=own[0] if own else None)
        result.append(sync)
    return tuple(result), tuple(known_shows[site] for site in sorted(known_shows))


def _steps(analysis: Analysis, events: list[Event], loop: ast.AST) -> list[Condition]:
    """The tests under which a loop's steps happen: those of all its backward passes; of an evaluation, those that ask
    whether there is a result at all, and go on with the next batch."""
    conditions = [analysis.guards.conditions(each, loop) for each in events if each.kind == "backward"]
    if conditions:
        keys = [{(each.test, each.holds) for each in one} for one in conditions]
        return [each for each in conditions[0] if all((each.test, each.holds) in one for one in keys)]
    reads = (each for event in events if event.kind == "sync" for each in analysis.guards.conditions(event, loop))
    return [each for each in reads if each.early and each.test is not None and none_test(each.test)]


def _site(analysis: Analysis, node: ast.AST, module: ModuleFile) -> Site:
    """Where a tensor is read: all of ``float(loss.item())``, of ``loss.numpy().item()``."""
    above = analysis.facts.places.parent(node, module)
    call = analysis.facts.places.parent(above, module) if isinstance(above, ast.Attribute) else None
    if isinstance(above, ast.Attribute) and above.attr == "item" and isinstance(call, ast.Call):
        return _site(analysis, call, module)
    if isinstance(above, ast.Call) and dotted(above.func) == "float" and above.args == [node]:
        return _site(analysis, above, module)
    return analysis.facts.places.site(node, module)


def _showing(analysis: Analysis, uses: list[Use]) -> set[Site]:
    """The statements that show a value."""
    places = analysis.facts.places
    shown = [(places.statement(each.node, each.frame.module), each) for each in uses if each.kind == "shown"]
    return {places.site(statement, each.frame.module) for statement, each in shown if statement is not None}


_NamedTensor = tuple[ast.AST, str, ast.AST]
"""A scope, a name in it, and the node where the tensor was made that it holds."""


def _backwards(analysis: Analysis, events: list[Event]) -> set[_NamedTensor]:
    """The names that a backward starts from, which are losses whatever made them."""
    found: set[_NamedTensor] = set()
    for event in events:
        expression = loss_expression(analysis, event) if event.kind == "backward" else None
        if isinstance(expression, ast.Name):
            found |= _named(analysis, event, expression.id)
    return found


def _named(analysis: Analysis, event: Event, name: str) -> set[_NamedTensor]:
    """The tensor that an event is about, as the one that a name of its function holds; nothing where it may be none."""
    found = members(event.receiver)
    scope = analysis.facts.places.scope(event.node, event.module)
    if not name.isidentifier() or not all(isinstance(each, Tensor) and each.origin is not None for each in found):
        return set()
    return {(scope, name, each.origin.node) for each in found if isinstance(each, Tensor) and each.origin is not None}


def is_uncalled(frames: tuple[Frame, ...]) -> bool:
    """Whether a function is executed by itself, with parameters of which nothing is known."""
    return len(frames) == 1 and isinstance(frames[0].scope, (ast.FunctionDef, ast.AsyncFunctionDef))


def _waits_for_nothing(analysis: Analysis, event: Event, loop: ast.AST) -> bool:
    """Whether a read is none of a GPU: of what may not be a tensor at all, or where ``x.is_cuda`` is false."""
    if event.name == "bool" and not all(isinstance(member, Tensor) for member in members(event.receiver)):
        return True
    return any(
        isinstance(condition.test, ast.Attribute) and condition.test.attr == "is_cuda" and not condition.holds
        for condition in analysis.guards.conditions(event, loop)
    )


def _within_another(node: ast.AST, nodes: set[int]) -> bool:
    """Whether the tensor that is read was read already in the same expression (``.cpu().numpy()``)."""
    inner: ast.AST | None = None
    if isinstance(node, ast.Call):
        inner = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0] if node.args else None
    while inner is not None:
        if id(inner) in nodes:
            return True
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            inner = inner.func.value
        elif isinstance(inner, (ast.Attribute, ast.Subscript)):
            inner = inner.value
        else:
            inner = None
    return False


def _asks_only(node: ast.AST) -> bool:
    """``x.is_cuda or x.requires_grad``: attributes of a tensor that the host knows."""
    if isinstance(node, ast.BoolOp):
        return all(_asks_only(each) or isinstance(each, ast.Compare) for each in node.values)
    if isinstance(node, ast.UnaryOp):
        return _asks_only(node.operand)
    return isinstance(node, ast.Attribute) and (
        node.attr.startswith("is_") or node.attr in ("requires_grad", "training")
    )


def _tensors_read(analysis: Analysis, event: Event) -> list[Tensor]:
    """The tensors that a read takes to the host; in ``x.cpu().item()`` those before ``cpu``."""
    node = event.node
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
        moved = [each for each in analysis.facts.at(node) if each.kind == "transfer" and _to_host(each)]
        if moved:
            return [member for each in moved for member in members(each.receiver) if isinstance(member, Tensor)]
    return [member for member in members(event.receiver) if isinstance(member, Tensor)]


def _to_host(event: Event) -> bool:
    """Whether a transfer ends on the host."""
    arrived = [member.device for member in members(event.result) if isinstance(member, Tensor)]
    return event.name == "cpu" or (bool(arrived) and set(arrived) == {"cpu"})


def _where(tensors: list[Tensor], device: Placement) -> Placement:
    found = {tensor.device for tensor in tensors} - {"unknown"}
    if not found or device.where in found or len(found) > 1:
        return device
    one = found.pop()
    if one == "conditional" and device.reaches_cuda:
        return device
    return Placement(one)


def _tested(analysis: Analysis, events: list[Event], loop: ast.AST) -> set[int]:
    """The reads whose values decide a test of each step; what is tested now and then or behind may be read there."""
    found: set[int] = set()
    for event in events:
        values: list[Value | None] = []
        if event.kind == "test":
            values = [event.receiver, event.result]
        elif event.kind == "step" and stepper(event.receiver) == "scheduler" and event.arguments is not None:
            values = list(event.arguments.values())
        members = (member for value in values for member in flatten(value) if isinstance(member, Host))
        reads = {id(origin.node) for member in members for origin in member.syncs}
        if not reads <= found and not (event.kind == "test" and _is_now_and_then(analysis.guards.guard(event, loop))):
            found |= reads
    return found


def _sync(  # noqa: PLR0913
    analysis: Analysis, event: Event, loop: ast.AST, where: Placement, uses: list[Use], decides: bool
) -> Sync:
    facts = analysis.facts
    places = facts.places
    site = _site(analysis, event.node, event.module)
    statement = places.statement(event.node, event.module) or event.node
    use = "control" if decides else _use(uses, event) if event.name != "metric" else "other"
    accumulator = None
    if use == "summed":
        (update,) = {each.node for each in uses if isinstance(each.node, ast.AugAssign)}
        accumulator = accumulator_of(analysis, update, event, loop)
        if accumulator is None:
            use = "other"
    scalar = any(isinstance(each, Tensor) for each in members(event.receiver)) and is_scalar(event.receiver)
    number = event.name in _NUMBERS or (scalar and event.name in ("cpu", "numpy"))
    looks = tuple(_looks(analysis, event, loop)) if number and use not in _SETTLED else ()
    return Sync(
        site=site,
        how=event.name if event.name in _HOWS else "other",  # type: ignore[arg-type]
        of=_of(event),  # type: ignore[arg-type]
        of_text=_of_text(analysis, event),
        statement=places.site(statement, event.module),
        guard=ALWAYS,
        use=use,  # type: ignore[arg-type]
        accumulator=accumulator,
        no_grad=surely_no_grad(event),
        on_device=where,
        loops=tuple(places.site(each.node, each.module) for each in facts.loops(event)),
        scalar=scalar,
        plain=_may_be_plain(event),
        looks=looks,
        shared=any(each.kind == "returned" for each in looks) and _is_shared(analysis, event),
        dropped=bool(looks) and all(each.kind == "returned" for each in looks) and _is_dropped(analysis, event),
        replayed=use in ("stored", "returned") and any(map(_replays, facts.of("compile"))),
    )


def _looks(analysis: Analysis, event: Event, loop: ast.AST) -> Iterator[Look]:
    """What becomes of a number that is read in a loop, up to where it is looked at now and then or after the loop."""
    facts, flow = analysis.facts, analysis.flow
    here = flow.frame_at(event.control)

    def is_seldom(frame: Executed, node: ast.AST) -> bool:
        return _is_seldom(analysis, event, loop, frame, node)

    def is_read(value: Value) -> bool:
        return isinstance(value, Host) and any(origin.node is event.node for origin in value.syncs)

    told = set()
    for use in flow.uses(event.node, event.control, deep=True, until=is_seldom):
        place, module = use.value if use.kind == "seen" else use.node, use.frame.module
        if (use.kind, place) in told:
            continue
        told.add((use.kind, place))
        held = members(use.frame.values.get(place))
        if any(map(is_none, held)) and _is_set(analysis, place, module):
            held = tuple(each for each in held if not is_none(each))
        entries = [each for one in held if isinstance(one, Mapping) for each in one.entries.items()]
        ours: dict[str, Value | None] = {
            str(key): entry.value for key, entry in entries if any(map(is_read, flatten(entry.value)))
        }
        holds: Holds = "other"
        row: tuple[str, ...] = ()
        sure = use.frame is here and all(map(is_read, held))
        if any(map(is_read, held)) and all(type(each) in (Host, Unknown) or is_number(each) for each in held):
            holds = "number"
        elif held and all(isinstance(each, Sequence) and each.kind == "list" for each in held):
            inner = members(join_all(map(_contents, held)))
            holds = "other" if any(isinstance(each, (Mapping, Sequence)) for each in inner) else "list"
            holds, row = _row(inner, is_read) or (holds, ())
        elif any(isinstance(each, Mapping) for each in held) and all(isinstance(e, (Mapping, Unknown)) for e in held):
            sure = all(
                isinstance(each, Mapping) and all(str(key) not in ours or entry.must for key, entry in entries)
                for each in held
            )
            alike = not sure and all(type(each) is Host for _, entry in entries for each in members(entry.value))
            whole = alike or not ours  # under keys that are not known: everything in it has to be a number
            ours = dict.fromkeys(("",), join_all(map(_contents, held))) if whole else ours
            values = [each for value in ours.values() for each in members(value)]
            lists = bool(values) and all(type(each) is Sequence for each in values)
            numbers = members(join_all(map(_contents, values))) if lists else values
            if not whole or all(type(each) is Host or is_number(each) for each in numbers):
                holds = "lists" if lists else "dict"
        elif use.plain and not use.untouched:  # Python computed it
            holds = "number"
        yield Look(
            use.kind,
            facts.places.site(place, module),
            facts.places.site(facts.places.statement(place, module) or place, module),
            holds,
            row or tuple(sorted({*ours} - {""})),
            sure,
            use.plain,
            use.untouched,
            use.grown,
        )


def _row(rows: Iterable[Value], is_read: Callable[[Value], bool]) -> tuple[Holds, tuple[str, ...]] | None:
    """What a list of rows that are all alike holds, and in which of their items numbers that were read are; None where
    that is not known."""
    found: set[tuple[Holds, tuple[str, ...]]] = set()
    for each in rows:
        items = each.items if isinstance(each, Sequence) else None
        kept = {key: entry.value for key, entry in each.entries.items()} if isinstance(each, Mapping) else {}
        ours = [value for value in (*(items or ()), *kept.values()) if any(map(is_read, flatten(value)))]
        if not ours or not all(type(one) is Host or is_number(one) for value in ours for one in members(value)):
            return None
        if isinstance(each, Sequence) and each.kind != "set":
            marks = tuple("float" if any(item is value for value in ours) else "" for item in items or ())
            found.add(("tuples" if each.kind == "tuple" else "rows", marks))
        elif isinstance(each, Mapping) and not each.open and all(entry.must for entry in each.entries.values()):
            names = (str(key) for key, item in kept.items() if any(item is value for value in ours))
            found.add(("dicts", tuple(names)))
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _is_now_and_then(guard: Guard) -> bool:
    return guard.kind in ("condition", "except") or (guard.kind == "every_n" and guard.every != 1)


def _is_seldom(analysis: Analysis, event: Event, loop: ast.AST, frame: Executed, node: ast.AST) -> bool:
    """Whether a node is reached behind a loop, or in it more seldom than a read."""
    facts, guards = analysis.facts, analysis.guards
    frames = facts.frames_at(node, analysis.flow.opener(frame), frame.module)
    if not any(loop is each for one in frames for each in one.loops):
        return True
    tests = [each for each in guards.conditions_of(node, frames, loop) if not _is_kept_either_way(analysis, each)]
    return _is_now_and_then(guards.beside(tests, guards.conditions(event, loop), loop))


def _is_kept_either_way(analysis: Analysis, condition: Condition) -> bool:
    """Whether a test asks ``x is None`` or ``name not in totals``, on both sides of which a number is kept."""
    test = condition.test
    if test is not None and none_test(test) is not None:
        return True
    asked = test.comparators[-1] if isinstance(test, ast.Compare) and isinstance(test.ops[-1], _KEYS) else None
    held = members(analysis.facts.evaluate(asked, condition.frames)) if asked is not None else ()
    return bool(held) and all(isinstance(each, Mapping) for each in held)


def _is_set(analysis: Analysis, node: ast.AST, module: ModuleFile) -> bool:
    """Whether a node stands under a test by which it is not None."""
    text, below = analysis.facts.places.text, node
    for above in analysis.facts.places.ancestors(node, module):
        if isinstance(above, ast.If) and any(below is each for each in above.body):
            both = isinstance(above.test, ast.BoolOp) and isinstance(above.test.op, ast.And)
            for test in above.test.values if both and isinstance(above.test, ast.BoolOp) else [above.test]:
                asks = none_test(test)
                asked = asks.left if asks is not None and isinstance(asks.ops[0], ast.IsNot) else test
                if text(asked, module) == text(node, module):
                    return True
        below = above
    return False


def _contents(held: Value) -> Value | None:
    """All that a dict or list may hold."""
    entries = [each.value for each in held.entries.values()] if isinstance(held, Mapping) else []
    items = (held.items or []) if isinstance(held, Sequence) else []
    return join_all([*entries, *items, getattr(held, "element", None)])


def _is_dropped(analysis: Analysis, event: Event) -> bool:
    """Whether all that calls the function that a number is read in is known, and none of it takes the result."""
    places, frames = analysis.facts.places, analysis.facts.frames(event)
    function = places.scope(event.node, event.module)
    cls = places.scope(function, event.module)
    named = cls.name if isinstance(cls, ast.ClassDef) else None
    return (
        isinstance(function, ast.FunctionDef)
        and len(frames) > 1
        and isinstance(frames[0].scope, ast.Module)
        and not any(reads_result(each.text, function.name, named) for each in analysis.execution.modules.values())
    )


def _is_shared(analysis: Analysis, event: Event) -> bool:
    """Whether another file may call the function that a number is read in, and look at the result: it names it, if it
    is one of the file's own; of others it names the function, and its class, and is not run by the program."""
    places, execution = analysis.facts.places, analysis.execution
    above = [places.scope(event.node, event.module)]
    while not isinstance(above[-1], ast.Module):
        above.append(places.scope(above[-1], event.module))
    names = [each.name for each in above if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    own = bool(names) and names[0].startswith("_") and not names[0].endswith("__")
    named = names[:1] if own else [each for each in names if each != "forward" and not each.startswith("__")]
    words = [re.compile(rf"\b{re.escape(each)}\b") for each in named]
    run = {path.absolute() for path in ((event.module.path,) if own else execution.modules)}
    others = (execution.read(path) for path in execution.beside() if path.absolute() not in run)
    cls = next((each.name for each in above if isinstance(each, ast.ClassDef)), None)
    return bool(words) and any(
        text is not None and all(each.search(text) for each in words) and reads_result(text, names[0], cls)
        for text in others
    )


def _replays(compiling: Event) -> bool:
    """Whether something is compiled with CUDA graphs: by its mode, or perhaps by an unknown one."""
    mode = compiling.arguments.get("mode") if compiling.arguments is not None else None
    options = compiling.arguments.get("options") if compiling.arguments is not None else None
    modes = [each.value if isinstance(each, Const) else "" for each in members(mode.value)] if mode is not None else []
    return options is not None or not {*modes} <= {None, "default", "max-autotune-no-cudagraphs"}


def _may_be_plain(event: Event) -> bool:
    """Whether what ``float()`` reads is a number already on some path: ``penalty(x) if regularize else 0.0``.

    So may be what is taken out of an object that a model gives.
    """
    if event.arguments is None or not event.arguments.positions:
        return False
    return any(
        isinstance(member, (Host, Computed, Option))
        or is_number(member)
        or (isinstance(member, Tensor) and "maybe_output" in member.roles)
        for member in members(event.arguments.positions[0].value)
    )


def _use(uses: list[Use], event: Event) -> str:
    kinds = {each.kind for each in uses}
    if "control" in kinds or (event.name == "bool" and not kinds):
        return "control"
    if event.name in ("print", "format") and not kinds:
        return "shown"
    if any(each.chosen for each in uses) or len({each.node for each in uses if each.kind == "summed"}) > 1:
        return "other"
    if len(kinds) == 2 and kinds & {"summed", "stored"}:
        kinds.discard("shown")  # the statement that shows it lists it too
    found = kinds.pop() if len(kinds) == 1 else "other"
    return found if found != "passed" else "other"


def _of(event: Event) -> str:
    roles = {role for member in members(event.receiver) if isinstance(member, Tensor) for role in member.roles}
    for role in _ROLES:
        if role in roles:
            return "output" if role == "prediction" else role
    if any(isinstance(member, Tensor) for member in members(event.receiver)):
        return "tensor"
    return "unknown"


def _of_text(analysis: Analysis, event: Event) -> str:
    """The source of the tensor in the expression that reads it."""
    node = event.node
    if isinstance(node, ast.FormattedValue):
        node = node.value
    elif isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == event.name and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif called == event.name and node.args:
            node = node.args[0]
    elif isinstance(node, (ast.Subscript, ast.Attribute)) and event.name == "data":
        node = node.value
    return analysis.facts.places.text(node, event.module)


def leaks(analysis: Analysis, events: list[Event], loop: ast.AST) -> tuple[Accumulator, ...]:
    """Sums of losses that keep every step's graph: ``total += loss``, beside the ``loss.backward()`` of the same body.

    That backward frees the graph of what is added, so that no later one can start from the sum: only then can taking
    the sum off the graph change nothing. A sum in another function, from which the loss is put together, is none.
    """
    facts = analysis.facts
    scope = next((facts.places.scope(loop, each.module) for each in events if facts.inside(each, loop)), None)
    freed: set[str] = set()
    for event in events:
        if event.kind != "backward" or scope is None or facts.places.scope(event.node, event.module) is not scope:
            continue
        if not keeps_graph(event):
            expression = loss_expression(analysis, event)
            freed |= loaded(expression) if expression is not None else set()
    freed = _carried_to(freed, loop)
    found: dict[Site, Accumulator] = {}
    for event in events:
        if event.kind != "sum" or not isinstance(event.node, ast.AugAssign) or no_grad(event):
            continue
        added = [member for member in members(event.result) if isinstance(member, Tensor)]
        if not any("loss" in tensor.roles and not tensor.detached for tensor in added):
            continue
        text = dotted(event.node.target)
        if text is None or text in freed or not isinstance(event.node.op, ast.Add):
            continue
        if facts.places.scope(event.node, event.module) is not scope or not loaded(event.node.value) & freed:
            continue
        accumulator = accumulator_of(analysis, event.node, event, loop)
        if accumulator is not None and accumulator.inits:
            found.setdefault(accumulator.update, accumulator)
    return tuple(found[site] for site in sorted(found))


def _carried_to(names: set[str], loop: ast.AST) -> set[str]:
    """The names, and those whose values are carried on to them by assignments in a loop's body."""
    wanted = set(names)
    for _ in range(3):
        for node in walk(loop):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                found = node.targets if isinstance(node, ast.Assign) else [node.target]
                if {dotted(single) for target in found for single in targets(target)} & wanted:
                    wanted |= loaded(node.value)
    return wanted
