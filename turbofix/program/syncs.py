"""Where the host waits for the device, and what becomes of the value that it waited for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from turbofix.findings import Site
from turbofix.program.acts import is_module_class, stepper, wider
from turbofix.program.analysis import Analysis
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame
from turbofix.program.meters import harmful_methods
from turbofix.program.model import Accumulator, Meter, Placement, Read, Show, Sync
from turbofix.program.names import dotted, loaded, reads_of, targets
from turbofix.program.regions import loss_expression, no_grad
from turbofix.program.sites import COMPREHENSIONS, LOOPS, contains
from turbofix.program.values import Host, Instance, Made, Tensor, Value, flatten, members

_PASSING = {
    "float", "int", "round", "abs", "str", "repr", "format", "bool", "sum", "exp", "log", "sqrt", "log2", "log10", "pow",
    "isfinite", "isnan", "isinf", "array", "asarray", "mean", "float32", "float64", "squeeze", "tuple", "list", "dict",
    "average", "detach", "cpu", "numpy", "item", "tolist", "join", "ljust", "rjust", "zip", "argmax", "floor", "ceil",
}  # fmt: skip
_CHOOSING = {"max", "min", "sorted"}
_STORING = {"append", "extend", "add", "insert", "put", "appendleft", "setdefault", "push", "send"}
_HOWS = ("item", "float", "int", "bool", "cpu", "numpy", "tolist", "print", "format", "data")
_TRACKERS = ("wandb", "mlflow", "neptune", "comet_ml", "swanlab", "trackio")
_ROLES = ("loss", "grad", "param", "output", "prediction", "batch")


@dataclass(eq=False)
class Fate:
    """What was seen to become of one value."""

    uses: set[str] = field(default_factory=set)
    update: ast.AugAssign | None = None
    meter: tuple[ast.Call, Instance] | None = None
    shows: list[ast.Call] = field(default_factory=list)
    chosen: bool = False
    seen: set[int] = field(default_factory=set)


# --- shows --------------------------------------------------------------------------------------------------------


def show_kind(event: Event) -> str:
    """What kind of output a show is."""
    name = event.name.rpartition(".")[2]
    kinds = {member.kind for member in members(event.receiver) if isinstance(member, Made)}
    if name in ("print", "pprint", "echo"):
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
    if "writer" in kinds:
        return "tracker" if name == "log" else "writer"
    return "tracker" if name == "log" else "other"


def shows(analysis: Analysis, events: list[Event], loop: ast.AST) -> tuple[Show, ...]:
    """The statements in a loop that show values, one for each statement, in the order of the text."""
    places = analysis.facts.places
    reading = [event for event in events if event.kind == "sync"]
    found: dict[Site, Show] = {}
    for event in events:
        if event.kind != "show":
            continue
        statement = places.statement(event.node, event.module)
        if statement is None:
            continue
        syncs: set[Site] = set()
        for value in event.arguments.values() if event.arguments is not None else ():
            for member in flatten(value):
                if isinstance(member, Host):
                    syncs.update(places.site(origin.node, origin.module) for origin in member.syncs)
        syncs.update(
            places.site(each.node, each.module)
            for each in reading
            if each.module is event.module and contains(event.node, each.node, places, each.module)
        )
        parent = places.parent(event.node, event.module)
        show = Show(
            places.site(statement, event.module),
            show_kind(event),  # type: ignore[arg-type]
            analysis.guards.guard(event, loop),
            tuple(sorted(syncs)),
            isinstance(parent, ast.Expr),
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
    analysis: Analysis, events: list[Event], loop: ast.AST, device: Placement, *, in_evaluation: bool
) -> tuple[tuple[Sync, ...], tuple[Show, ...]]:
    """The places in a loop where the host reads a tensor, and those that show something, in the order of the text."""
    facts = analysis.facts
    known_shows = {show.statement: show for show in shows(analysis, events, loop)}
    tested = _tested(events)
    nodes = {id(event.node) for event in events if event.kind == "sync"}
    found: dict[Site, Sync] = {}
    shown: dict[Site, set[Site]] = {}  # by sync: the statements that show its value
    for event in events:
        if event.kind != "sync" or _within_another(event.node, nodes) or _asks_only(event.node):
            continue
        where = _where(_tensors_read(analysis, event), device)
        if where.where == "cpu" and device.where != "cpu":
            continue
        fate = Fate()
        frames = facts.frames(event)
        follow(analysis, event.node, frames, event.module, fate)
        if id(event.node) in tested:
            fate.uses.add("control")
        sync = _sync(analysis, event, loop, where, fate)
        sync = replace(sync, in_evaluation=in_evaluation)
        for call in fate.shows:
            statement = facts.places.statement(call, event.module)
            if statement is not None:
                shown.setdefault(sync.site, set()).add(facts.places.site(statement, event.module))
        known = found.get(sync.site)
        if known is not None:
            sync = replace(
                known,
                guard=wider(known.guard, sync.guard),
                use=known.use if known.use == sync.use else _either(known.use, sync.use),
                no_grad=known.no_grad and sync.no_grad,
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


def _either(first: str, second: str) -> Literal["control", "other"]:
    return "control" if "control" in (first, second) else "other"


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
        moved = [each for each in analysis.facts.at(node) if each.kind == "transfer"]
        if moved:
            return [member for each in moved for member in members(each.receiver) if isinstance(member, Tensor)]
    return [member for member in members(event.receiver) if isinstance(member, Tensor)]


def _where(tensors: list[Tensor], device: Placement) -> Placement:
    found = {tensor.device for tensor in tensors} - {"unknown"}
    if not found or device.where in found or len(found) > 1:
        return device
    one = found.pop()
    if one == "conditional" and device.reaches_cuda:
        return device
    return Placement(one)


def _tested(events: list[Event]) -> set[int]:
    """The reads whose values decide a test in the loop itself; what is tested after the loop may be read there."""
    found: set[int] = set()
    for event in events:
        values: list[Value | None] = []
        if event.kind == "test":
            values = [event.receiver, event.result]
        elif event.kind == "step" and stepper(event.receiver) == "scheduler" and event.arguments is not None:
            values = list(event.arguments.values())
        for value in values:
            for member in flatten(value):
                if isinstance(member, Host):
                    found.update(id(origin.node) for origin in member.syncs)
    return found


def _sync(analysis: Analysis, event: Event, loop: ast.AST, where: Placement, fate: Fate) -> Sync:
    facts = analysis.facts
    places = facts.places
    site = facts.site(event)
    statement = places.statement(event.node, event.module) or event.node
    use = _use(fate, event)
    accumulator = None
    if use == "summed" and fate.update is not None:
        accumulator = accumulator_of(analysis, fate.update, event, loop)
        if accumulator is None:
            use = "other"
    meter = None
    if use == "meter" and fate.meter is not None:
        call, instance = fate.meter
        harmful = harmful_methods(instance.cls, call)
        meter = Meter(
            places.site(call, event.module),
            places.site(instance.cls.node, instance.cls.module),
            harmful is not None and not harmful & _methods_called(analysis),
            harmful or frozenset(),
        )
    return Sync(
        site=site,
        how=event.name if event.name in _HOWS else "other",  # type: ignore[arg-type]
        of=_of(event),  # type: ignore[arg-type]
        of_text=_of_text(analysis, event),
        statement=places.site(statement, event.module),
        guard=analysis.guards.guard(event, loop),
        use=use,  # type: ignore[arg-type]
        accumulator=accumulator,
        meter=meter,
        no_grad=no_grad(event),
        on_device=where,
    )


def _methods_called(analysis: Analysis) -> set[str]:
    """The names of methods that the program calls, on whatever object."""
    return {
        node.func.attr
        for module in analysis.execution.modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


def _use(fate: Fate, event: Event) -> str:
    uses = set(fate.uses)
    if "control" in uses:
        return "control"
    if event.name in ("print", "format") and not uses:
        return "shown"
    if event.name == "bool" and not uses:
        return "control"
    if fate.chosen:
        return "other"
    return uses.pop() if len(uses) == 1 else "other"


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
    """Sums of losses that keep every step's graph: ``total += loss``, where no backward ever starts from the total."""
    facts = analysis.facts
    differentiated: set[tuple[int, str]] = set()
    for event in facts.of("backward"):
        expression = loss_expression(analysis, event)
        for name in loaded(expression) if expression is not None else ():
            differentiated.add((id(facts.places.scope(event.node, event.module)), name))
    found: dict[Site, Accumulator] = {}
    for event in events:
        if event.kind != "sum" or not isinstance(event.node, ast.AugAssign) or no_grad(event):
            continue
        added = [member for member in members(event.result) if isinstance(member, Tensor)]
        if not any("loss" in tensor.roles and not tensor.detached for tensor in added):
            continue
        text = dotted(event.node.target)
        scope = facts.places.scope(event.node, event.module)
        if text is None or (id(scope), text) in differentiated or not isinstance(event.node.op, ast.Add):
            continue
        if _feeds_backward(text, scope, {name for owner, name in differentiated if owner == id(scope)}):
            continue
        accumulator = accumulator_of(analysis, event.node, event, loop)
        if accumulator is not None and accumulator.inits:
            found.setdefault(accumulator.update, accumulator)
    return tuple(found[site] for site in sorted(found))


def _feeds_backward(text: str, scope: ast.AST, wanted: set[str]) -> bool:
    """Whether some assignment carries a name on to what a backward starts from (or out of the function)."""
    wanted = set(wanted)
    for _ in range(3):
        for node in ast.walk(scope):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                found = node.targets if isinstance(node, ast.Assign) else [node.target]
                if {dotted(single) for target in found for single in targets(target)} & wanted:
                    wanted |= loaded(node.value)
    return text in wanted


# --- what becomes of a value ----------------------------------------------------------------------------------------


def follow(
    analysis: Analysis, node: ast.AST, frames: tuple[Frame, ...], module: ModuleFile, fate: Fate, depth: int = 6
) -> None:
    """Note what becomes of the value of an expression: upwards through its statement, and on through names."""
    places = analysis.facts.places
    current = node
    while True:
        if id(current) in fate.seen:
            return
        fate.seen.add(id(current))
        parent = places.parent(current, module)
        if parent is None:
            fate.uses.add("other")
            return
        if isinstance(parent, ast.Attribute):
            holder = places.parent(parent, module)
            current = holder if isinstance(holder, ast.Call) and holder.func is parent else parent
        elif isinstance(
            parent,
            (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Starred, ast.Tuple, ast.List, ast.Dict, ast.Set,
             ast.FormattedValue, ast.JoinedStr, ast.keyword, ast.Await),
        ):  # fmt: skip
            current = parent
        elif isinstance(parent, ast.IfExp):
            if current is parent.test:
                fate.uses.add("control")
                return
            current = parent
        elif isinstance(parent, ast.Subscript):
            if current is not parent.value:
                fate.uses.add("other")
                return
            current = parent
        elif isinstance(parent, ast.Call):
            if current is parent.func or _called(analysis, parent, frames, fate):
                current = parent
            else:
                return
        elif isinstance(parent, COMPREHENSIONS):
            current = parent
        elif isinstance(parent, ast.comprehension):
            fate.uses.add("control" if current is not parent.iter else "other")
            return
        else:
            _ends(analysis, current, parent, frames, module, fate, depth)
            return


def _called(analysis: Analysis, call: ast.Call, frames: tuple[Frame, ...], fate: Fate) -> bool:
    """Note what a call does with an argument; True where its result stands for the value."""
    events = analysis.facts.at(call)
    if any(event.kind == "show" for event in events):
        fate.uses.add("shown")
        fate.shows.append(call)
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    for event in events:
        if event.kind == "step" and stepper(event.receiver) == "scheduler":
            fate.uses.add("control")
            return False
    if isinstance(call.func, ast.Attribute):
        receiver = _receiver(analysis, call, frames)
        if receiver is not None and not is_module_class(receiver):
            fate.uses.add("meter")
            fate.meter = (call, receiver)
            return False
        if name in _STORING:
            fate.uses.add("stored")
            return False
    if name in _CHOOSING:
        fate.chosen = True
        return True
    if name in _PASSING:
        return True
    fate.uses.add("other")
    return False


def _receiver(analysis: Analysis, call: ast.Call, frames: tuple[Frame, ...]) -> Instance | None:
    """The object of the project whose method a call is."""
    values = [event.receiver for event in analysis.facts.at(call)]
    if isinstance(call.func, ast.Attribute):
        values.append(analysis.facts.evaluate(call.func.value, frames))
    for value in values:
        for member in members(value):
            if isinstance(member, Instance):
                return member
    return None


def _ends(
    analysis: Analysis,
    node: ast.AST,
    statement: ast.AST,
    frames: tuple[Frame, ...],
    module: ModuleFile,
    fate: Fate,
    depth: int,
) -> None:
    """Note what the statement at the end of an expression does with it."""
    if isinstance(statement, (ast.If, ast.While, ast.Assert)):
        fate.uses.add("control")
    elif isinstance(statement, ast.AugAssign):
        simple = isinstance(statement.target, (ast.Name, ast.Attribute)) and dotted(statement.target) is not None
        if isinstance(statement.op, ast.Add) and simple and (fate.update in (None, statement)):
            fate.uses.add("summed")
            fate.update = statement
        else:
            fate.uses.add("other")
    elif isinstance(statement, (ast.Return, ast.Yield, ast.YieldFrom)):
        fate.uses.add("returned")
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        _assigned(analysis, node, statement, frames, module, fate, depth)
    elif isinstance(statement, (ast.Match, ast.Raise)):
        fate.uses.add("control")
    elif isinstance(statement, ast.Expr):
        pass
    else:
        fate.uses.add("other")


def _assigned(
    analysis: Analysis,
    node: ast.AST,
    statement: ast.Assign | ast.AnnAssign | ast.NamedExpr,
    frames: tuple[Frame, ...],
    module: ModuleFile,
    fate: Fate,
    depth: int,
) -> None:
    found = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in found:
        for single in targets(target):
            if isinstance(single, ast.Subscript):
                fate.uses.add("stored")
            elif isinstance(single, ast.Attribute):
                fate.uses.add("other")
            elif isinstance(single, ast.Name):
                if any(each.id == single.id for each in ast.walk(node) if isinstance(each, ast.Name)):
                    fate.uses.add("other")  # total = total + loss.item()
                    continue
                if depth == 0:
                    fate.uses.add("other")
                    continue
                owner = analysis.facts.bindings.owner(single.id, single, module)
                if isinstance(owner, COMPREHENSIONS):
                    fate.uses.add("other")
                    continue
                if single.id in analysis.facts.bindings.captured(owner):
                    fate.uses.add("other")
                for read in _name_reads(analysis, single.id, owner, module):
                    if not contains(statement, read, analysis.facts.places, module):
                        follow(analysis, read, frames, module, fate, depth - 1)
    if isinstance(statement, ast.NamedExpr):
        follow(analysis, statement, frames, module, fate, depth)


def _name_reads(analysis: Analysis, name: str, owner: ast.AST, module: ModuleFile) -> Iterator[ast.AST]:
    for node in reads_of(name, owner):
        base: ast.AST = node
        if analysis.facts.bindings.owner(name.partition(".")[0], base, module) is owner:
            yield node


# --- accumulators ---------------------------------------------------------------------------------------------------


def accumulator_of(analysis: Analysis, update: ast.AugAssign, event: Event, loop: ast.AST) -> Accumulator | None:
    """The variable that an augmented assignment sums into, with every place that sets or reads it."""
    places = analysis.facts.places
    module = event.module
    text = dotted(update.target)
    if text is None:
        return None
    scope = places.scope(update, module)
    holder = _summing_loop(analysis, update, scope, module)
    here = holder if holder is not None else loop
    here_module = module
    if holder is None:
        record = next((each for each in analysis.facts.loops(event) if each.node is loop), None)
        here_module = record.module if record is not None else module
    reasons: list[str] = []
    inits = _inits(analysis, text, scope, holder, module, reasons)
    reads = _reads(analysis, text, scope, holder, update, module, event, reasons)
    head = text.partition(".")[0]
    owner = analysis.facts.bindings.owner(head, update.target, module)
    if owner is not scope:
        reasons.append("it belongs to another scope")
    elif text in analysis.facts.bindings.captured(scope) or (
        "." not in text and head in analysis.facts.bindings.captured(scope)
    ):
        reasons.append("a nested function captures it")
    if holder is None:
        reasons.append("it is summed outside of the function that holds the loop")
    if not inits:
        reasons.append("nothing sets it before the loop in the same function")
    return Accumulator(
        text=places.text(update.target, module),
        update=places.site(update, module),
        inits=tuple(places.site(each, module) for each in inits),
        reads=tuple(reads),
        loop=places.site(here, here_module),
        function=places.function_site(update, module),
        simple=not reasons,
        why_not_simple=reasons[0] if reasons else None,
        integer=_is_count(update.value),
    )


def _summing_loop(analysis: Analysis, update: ast.AugAssign, scope: ast.AST, module: ModuleFile) -> ast.AST | None:
    """The innermost loop around the update, in the same function."""
    for each in analysis.facts.places.ancestors(update, module):
        if isinstance(each, LOOPS):
            return each
        if each is scope:
            return None
    return None


def _inits(
    analysis: Analysis,
    text: str,
    scope: ast.AST,
    loop: ast.AST | None,
    module: ModuleFile,
    reasons: list[str],
) -> list[ast.AST]:
    """The statements that set an accumulator before its loop; notes in ``reasons`` what makes it more than a sum."""
    before: list[ast.AST] = []
    places = analysis.facts.places
    for write in analysis.facts.bindings.writes(scope, text):
        in_loop = loop is not None and contains(loop, write, places, module)
        if isinstance(write, ast.AugAssign):
            if not isinstance(write.op, ast.Add) and in_loop:
                reasons.append("the loop changes it in other ways than by adding to it")
            continue
        if not in_loop:
            after = loop is not None and getattr(write, "lineno", 0) > getattr(loop, "lineno", 0)
            if after and not _around(analysis, loop, write, module):
                continue  # it is set anew after the loop, as in the `total = total / n` that reads it
            if loop is not None and precedes(analysis, write, loop, module):
                before.clear()  # this one always runs later than those above it
            before.append(write)
        if not _is_number(write, text):
            reasons.append("it does not begin as a number")
    if loop is not None:
        settled = [write for write in before if precedes(analysis, write, loop, module)]
        if settled:
            before = [write for write in before if getattr(write, "lineno", 0) >= getattr(settled[-1], "lineno", 0)]
    return before


def _is_number(write: ast.AST, text: str) -> bool:
    """Whether an assignment gives a name a literal number."""
    value = getattr(write, "value", None)
    if isinstance(write, ast.Assign):
        for target in write.targets:
            if isinstance(target, (ast.Tuple, ast.List)):
                if not isinstance(value, (ast.Tuple, ast.List)) or len(value.elts) != len(target.elts):
                    return False
                for single, each in zip(target.elts, value.elts):
                    if dotted(single) == text:
                        value = each
                        break
    elif not isinstance(write, ast.AnnAssign):
        return False
    return isinstance(value, ast.Constant) and isinstance(value.value, (int, float))


def precedes(analysis: Analysis, first: ast.AST, second: ast.AST, module: ModuleFile) -> bool:
    """Whether ``first`` always runs before ``second``: its block holds the second further down, perhaps nested."""
    places = analysis.facts.places
    statement = places.statement(first, module)
    if statement is None:
        return False
    block = places.block(statement, module)
    position = next((i for i, each in enumerate(block) if each is statement), len(block))
    return any(contains(each, second, places, module) for each in block[position + 1 :])


def _around(analysis: Analysis, loop: ast.AST | None, node: ast.AST, module: ModuleFile) -> bool:
    """Whether an outer loop holds both, so that what stands below runs before the next round."""
    if loop is None:
        return False
    places = analysis.facts.places
    outer = [each for each in places.ancestors(loop, module) if isinstance(each, LOOPS)]
    return any(contains(each, node, places, module) for each in outer)


def _reads(
    analysis: Analysis,
    text: str,
    scope: ast.AST,
    loop: ast.AST | None,
    update: ast.AugAssign,
    module: ModuleFile,
    event: Event,
    reasons: list[str],
) -> list[Read]:
    places = analysis.facts.places
    frames = analysis.facts.frames(event)
    found: list[Read] = []
    nodes: list[ast.AST] = list(_name_reads(analysis, text, scope, module))
    for write in analysis.facts.bindings.writes(scope, text):
        if isinstance(write, ast.AugAssign) and write is not update and not isinstance(write.op, ast.Add):
            nodes.append(write.target)
    for node in nodes:
        if loop is not None and not _reached(analysis, text, node, scope, loop, module):
            continue
        statement = places.statement(node, module) or node
        in_loop = loop is not None and contains(loop, node, places, module)
        when = "elsewhere"
        if in_loop and frames and loop is not None:
            if frames[-1].scope is scope and any(loop is each for each in frames[-1].loops):
                guard = analysis.guards.guard_of(node, frames, loop)
                when = {"every_n": "every_n", "condition": "condition", "except": "condition"}.get(
                    guard.kind, "every_step"
                )
            else:
                when = "condition"
            parent = places.parent(node, module)
            if isinstance(statement, ast.Return):
                reasons.append("it is returned inside the loop")
            elif isinstance(parent, (ast.Assign, ast.AnnAssign)) and parent.value is node:
                reasons.append("it is given another name inside the loop")
            elif (
                isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr in _STORING
            ):
                reasons.append("it is stored inside the loop")
        elif loop is not None and getattr(node, "lineno", 0) > getattr(loop, "end_lineno", 0):
            when = "after_loop"
        shown = _shown_by(analysis, node, frames, module)
        found.append(
            Read(places.site(node, module), places.site(statement, module), when, places.text(node, module), shown)  # type: ignore[arg-type]
        )
    if "." in text:
        last = text.rpartition(".")[2]
        for each in ast.walk(module.tree):
            if isinstance(each, ast.Attribute) and each.attr == last and isinstance(each.ctx, ast.Load):
                if not any(places.site(each, module) == read.site for read in found):
                    if places.scope(each, module) is not scope:
                        statement = places.statement(each, module) or each
                        found.append(
                            Read(
                                places.site(each, module),
                                places.site(statement, module),
                                "elsewhere",
                                places.text(each, module),
                            )
                        )
    return sorted(found, key=lambda read: read.site)


def _shown_by(analysis: Analysis, node: ast.AST, frames: tuple[Frame, ...], module: ModuleFile) -> Site | None:
    """The statement that shows what is read at a node, where that is all that becomes of it."""
    fate = Fate()
    follow(analysis, node, frames, module, fate)
    if fate.uses != {"shown"} or fate.chosen:
        return None
    statements = {
        analysis.facts.places.site(statement, module)
        for call in fate.shows
        if (statement := analysis.facts.places.statement(call, module)) is not None
    }
    return statements.pop() if len(statements) == 1 else None


def _reached(analysis: Analysis, text: str, node: ast.AST, scope: ast.AST, loop: ast.AST, module: ModuleFile) -> bool:
    """Whether a read can see what the loop summed: it is not set anew in between, nor does the read come before it."""
    places = analysis.facts.places
    if contains(loop, node, places, module):
        return True
    line, end = getattr(node, "lineno", 0), getattr(loop, "end_lineno", 0)
    if line <= end and not _around(analysis, loop, node, module):
        return False
    for write in analysis.facts.bindings.writes(scope, text):
        if isinstance(write, ast.AugAssign) or contains(loop, write, places, module):
            continue
        at = getattr(write, "lineno", 0)
        new = getattr(write, "value", None)
        if line > end:  # below the loop: set anew between the two
            if (
                at > end
                and precedes(analysis, write, node, module)
                and not (new is not None and contains(new, node, places, module))
            ):
                return False
        elif precedes(analysis, write, node, module):  # above it, in the next round of an outer loop
            outer = [each for each in places.ancestors(loop, module) if isinstance(each, LOOPS)]
            if any(contains(each, write, places, module) for each in outer):
                return False
    return True


def _is_count(value: ast.expr) -> bool:
    """Whether what is added counts something: the sum of a comparison."""
    compares = False
    for node in ast.walk(value):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
            return False
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("mean", "float", "double")
        ):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
            return False
        if isinstance(node, ast.Compare):
            compares = True
        if isinstance(node, ast.Attribute) and node.attr in ("eq", "ne", "gt", "lt", "ge", "le", "count_nonzero"):
            compares = True
    return compares
