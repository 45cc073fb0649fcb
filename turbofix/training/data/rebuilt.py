"""What a loop builds anew in every round, out of what does not change while it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from turbofix.dataflow.guards import globals_written
from turbofix.dataflow.mutation import change_of
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Made, Sequence, Tensor, members
from turbofix.library.tables import words
from turbofix.records import dataclass
from turbofix.source.names import dotted, loads, names_of, stores
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.source.site import Site
from turbofix.training.data.datasets import IN_MEMORY
from turbofix.training.data.loaders import loader_sites, started_anew
from turbofix.training.model import Rebuilt

_HOLDING = frozenset(
    f"torch.utils.data.{name}"
    for name in words("DataLoader TensorDataset ConcatDataset Subset RandomSampler SequentialSampler")
)
"""What keeps what it is given, and looks at it only when it is read."""
_FIXED = frozenset(f"torchvision.datasets.{name}" for name in IN_MEMORY)
"""Data that nobody changes."""
_COPYING = words("WeightedRandomSampler DistributedSampler SubsetRandomSampler")
"""What copies what it is given, or counts it, when it is made."""
_PLAIN = frozenset(f"torch.{name}" for name in words("tensor as_tensor ones zeros full Tensor FloatTensor device"))
"""What makes the same tensor of the same numbers each time, as class weights are made."""
_KINDS = ("loader", "criterion", "dataset")
_PARTS = (*_KINDS, "sampler", "transform")
_MOVES = ("to", "cuda")


@dataclass(eq=False)
class _Built:
    """One assignment in a loop that makes something of a known kind."""

    event: Event
    made: Made
    statement: ast.Assign
    name: str


def rebuilts(analysis: Analysis) -> tuple[Rebuilt, ...]:
    """What the loops of the program that train or evaluate build anew, in the order of the text."""
    working = {
        id(record.node)
        for event in analysis.facts.of("backward", "forward")
        for record in analysis.facts.loops(event)
        if isinstance(record.node, LOOPS)
    }
    by_loop: dict[ast.For | ast.While, dict[str, _Built]] = {}
    for event in analysis.facts.of("make"):
        built = _built(analysis, event, working)
        if built is not None:
            loop, each = built
            known = by_loop.setdefault(loop, {}).setdefault(each.name, each)
            if known.statement is not each.statement:
                known.name = ""  # two of one name: neither is alone
    found = [_rebuilt(analysis, loop, each, names) for loop, names in by_loop.items() for each in names.values()]
    used = {site for each in found if each is not None for site in each.statements[:-1]}
    kept = [each for each in found if each is not None and each.statements[-1] not in used]
    return tuple(sorted(kept, key=lambda each: each.site))


def first_batches(analysis: Analysis, events: list[Event], loop: ast.AST) -> tuple[tuple[Site, Site], ...]:
    """Where every round of a loop asks a loader for its first batch."""
    found: set[tuple[Site, Site]] = set()
    for event in events:
        start = started_anew(event.node) if event.kind == "next" else None
        sites = loader_sites(analysis, event.receiver) if start is not None else []
        if start is not None and len(sites) == 1 and analysis.guards.guard(event, loop).kind in ("always", "config"):
            found.add((analysis.facts.site(event), sites[0]))
    return tuple(sorted(found))


def _built(analysis: Analysis, event: Event, working: set[int]) -> tuple[ast.For | ast.While, _Built] | None:
    """An assignment straight in the body of a loop, whose value an event makes."""
    frames = analysis.facts.frames(event)
    loop = frames[-1].loops[-1] if frames and frames[-1].loops else None
    if not isinstance(loop, (ast.For, ast.While)) or id(loop) not in working:
        return None
    statement = analysis.facts.places.statement(event.node, event.module)
    if not isinstance(statement, ast.Assign) or not any(statement is each for each in loop.body):
        return None
    made = next((each for each in members(event.result) if isinstance(each, Made) and each.kind in _PARTS), None)
    if made is None or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
        return None
    if _without_moves(statement.value) is not event.node:
        return None
    return loop, _Built(event, made, statement, statement.targets[0].id)


def _without_moves(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES:
        node = node.func.value
    return node


def _rebuilt(analysis: Analysis, loop: ast.For | ast.While, built: _Built, others: dict[str, _Built]) -> Rebuilt | None:
    if built.made.kind not in _KINDS or not built.name or _is_one_round(analysis, loop, built):
        return None
    group = _group(analysis, loop, built, others)
    if group is None:
        return None
    facts, module = analysis.facts, built.event.module
    target = _outermost(analysis, loop, group)
    why_not = next(filter(None, (_why_not(analysis, target, each) for each in group)), None)
    passed = built.made.arguments.get("persistent_workers")
    lasting = passed is not None and not all(
        isinstance(each, Const) and not each.value for each in members(passed.value)
    )
    cheap = built.made.kind == "criterion" and not any(
        isinstance(each, Tensor) for value in built.made.arguments.values() for each in members(value)
    )
    made = (one for each in facts.events_in(loop) if each.kind == "make" for one in members(each.result))
    if cheap and any(isinstance(each, Made) and each.kind == "optimizer" for each in made):
        return None  # each round is a training of its own, beside which it costs nothing
    return Rebuilt(
        site=facts.site(built.event),
        statements=tuple(facts.places.site(each.statement, module) for each in group),
        loop=facts.places.site(loop, module),
        above=facts.places.site(target, module),
        kind=built.made.kind,  # type: ignore[arg-type]
        name=built.name,
        data=any(each.made.kind == "dataset" for each in group) or _holds_data(analysis, built.statement.value),
        lasting=lasting,
        cheap=cheap,
        why_not=why_not,
    )


def _is_one_round(analysis: Analysis, loop: ast.For | ast.While, built: _Built) -> bool:
    """Whether a loop goes through a list of one, or through the product of such."""
    over = loop.iter if isinstance(loop, ast.For) else None
    crossed = isinstance(over, ast.Call) and (dotted(over.func) or "").rpartition(".")[2] == "product"
    lists = [] if over is None else over.args if crossed and isinstance(over, ast.Call) else [over]
    frames = analysis.facts.frames(built.event)

    def is_one(each: ast.expr) -> bool:
        if isinstance(each, (ast.List, ast.Tuple)):
            return len(each.elts) == 1
        values = members(analysis.facts.evaluate(each, frames))
        return bool(values) and all(isinstance(value, Sequence) and len(value.items or ()) == 1 for value in values)

    return bool(lists) and all(map(is_one, lists))


def _holds_data(analysis: Analysis, value: ast.expr) -> bool:
    """Whether data are built in the same expression."""
    made = [event for call in _calls(value) for event in analysis.facts.at(call) if event.kind == "make"]
    return any(isinstance(each, Made) and each.kind == "dataset" for event in made for each in members(event.result))


def _group(
    analysis: Analysis, loop: ast.For | ast.While, built: _Built, others: dict[str, _Built]
) -> list[_Built] | None:
    """The statements that build it, in their order; None where something that they need changes in the loop."""
    group: list[_Built] = []
    waiting = [built]
    while waiting:
        each = waiting.pop()
        if any(each is known for known in group):
            continue
        if not _is_alone(analysis, each) or _is_read_before(loop, each):
            return None
        group.append(each)
        for name in loads(each.statement.value):
            part = others.get(name.id) if isinstance(name, ast.Name) else None
            if part is not None and part.name and part is not each:
                waiting.append(part)
            elif _changes(analysis, name, each, loop):
                return None
    return sorted(group, key=lambda each: each.statement.lineno)


def _is_alone(analysis: Analysis, built: _Built) -> bool:
    """Whether nothing else in its scope sets, changes or deletes what the statement names."""
    target = built.statement.targets[0]
    scope = analysis.facts.bindings.owner(built.name, target, built.event.module)
    if scope is not analysis.facts.places.scope(target, built.event.module):
        return False  # a global or a name of an outer function
    names = names_of(scope)
    if built.name in names.parameters or (isinstance(scope, ast.Module) and built.name in globals_written(scope)):
        return False
    writes = [node for name, found in names.writes.items() if _begins(name, built.name) for node in found]
    return writes == [built.statement]


def _begins(name: str, head: str) -> bool:
    """Whether a dotted name is another one, or an attribute of it."""
    return name == head or name.startswith(f"{head}.")


def _is_read_before(loop: ast.For | ast.While, built: _Built) -> bool:
    """Whether the loop reads the name above the statement, as the last round left it."""
    above = [each for each in loop.body if each.lineno < built.statement.lineno]
    header = [loop.iter] if isinstance(loop, ast.For) else [loop.test]
    return any(
        isinstance(each, ast.Name) and each.id == built.name for node in (*header, *above) for each in walk(node)
    )


def _changes(analysis: Analysis, name: ast.Name | ast.Attribute, built: _Built, loop: ast.AST) -> bool:
    """Whether a name may stand for something else in another round."""
    text = dotted(name) or ""
    if any(_begins(text, each) for each, _ in stores(loop)):
        return True
    return analysis.guards.counts(name, analysis.facts.frames(built.event), loop)


def _outermost(analysis: Analysis, loop: ast.For | ast.While, group: list[_Built]) -> ast.For | ast.While:
    """The outermost of the loops right in each other in which nothing changes that the statements need."""
    own = {each.name for each in group}
    module = group[0].event.module
    while True:
        above = analysis.facts.places.parent(loop, module)
        if not isinstance(above, (ast.For, ast.While)) or not any(loop is each for each in above.body):
            return loop
        names = [(each, name) for each in group for name in loads(each.statement.value)]
        if any((dotted(name) or "") not in own and _changes(analysis, name, each, above) for each, name in names):
            return loop
        loop = above


def _calls(value: ast.expr) -> Iterator[ast.Call]:
    """The calls in an expression, not those in a function that is only passed."""
    waiting: list[ast.AST] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _why_not(analysis: Analysis, loop: ast.For | ast.While, built: _Built) -> str | None:
    """Why a statement cannot be run once, where all the names that it reads stay what they are."""
    value = built.statement.value
    if any(isinstance(each, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)) for each in walk(value)):
        return "its construction does something else, too"
    if analysis.facts.places.comments_at(built.statement, built.event.module):
        return "a comment stands beside it, which may say why"
    for call in _calls(value):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _MOVES and _without_moves(call) is not call:
            continue
        for event in analysis.facts.at(call):
            made = [each for each in members(event.result) if isinstance(each, Made)]
            if event.kind == "make" and made and all(_is_same_each_time(each) for each in made):
                continue
            if event.name in _PLAIN and built.made.kind == "criterion":
                continue
            if event.kind == "make" and made and made[0].qualname.rpartition(".")[2] in _COPYING:
                return f"`{made[0].qualname.rpartition('.')[2]}` counts or copies what it is given, which may change"
            said = dotted(call.func) or "a call"
            return f"what `{said}(...)` gives may be another thing in every round: it may read or draw"
        if not analysis.facts.at(call):
            said = dotted(call.func) or "a call"
            return f"what `{said}(...)` gives may be another thing in every round: it may read or draw"
    if built.made.kind == "loader" and (handed := _handed_on(analysis, loop, built)) is not None:
        return f"`{handed}` may grow while the loop runs, and a loader of nothing cannot be built"
    return _change(analysis, loop, built.statement, loads(value), built.event)


def _handed_on(analysis: Analysis, loop: ast.For | ast.While, built: _Built) -> str | None:
    """The data of a loader, where the loop hands them to anything else than a loader, a sampler or ``len``."""
    passed = built.made.arguments.get("dataset", 0)
    text = dotted(passed.node) if passed is not None and passed.node is not None else None
    for call in walk(loop) if text is not None else ():
        if not isinstance(call, ast.Call) or dotted(call.func) == "len":
            continue
        made = [each for event in analysis.facts.at(call) for each in members(event.result)]
        given = (*call.args, *(each.value for each in call.keywords))
        builds = any(isinstance(each, Made) and each.kind in _PARTS for each in made)
        if text in map(dotted, given) and not builds:
            return text
    return None


def _change(
    analysis: Analysis, loop: ast.AST, own: ast.AST, held: Iterable[ast.Name | ast.Attribute], event: Event
) -> str | None:
    """What may change some names in the rounds of a loop, but for the node itself: in its text, or in functions."""
    frames, module = analysis.facts.frames(event), event.module
    above = {frame.scope for frame in frames}
    inside = {id(each) for each in walk(loop)} - {id(each) for each in walk(own)}

    def counts(node: ast.AST) -> bool:
        scope = analysis.facts.places.scope(node, module)
        elsewhere = scope not in above and getattr(scope, "name", "") != "__init__"
        return id(node) in inside or elsewhere

    return change_of(analysis, held, module, frames, counts)


def _is_same_each_time(made: Made) -> bool:
    """Whether making it again from the same things gives the same, and draws no random numbers."""
    if made.kind == "criterion":
        package, _, name = made.qualname.rpartition(".")
        return package == "torch.nn" and name.endswith("Loss") and not name.startswith("Adaptive")  # which has weights
    if made.kind == "transform":
        return made.qualname.startswith("torchvision.transforms.")
    return made.qualname in _HOLDING or made.qualname in _FIXED
