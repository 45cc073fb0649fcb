"""The forward pass as a range of statements: from the first that calls a model to the one that computes the loss.

The range lies in one block of one function: the innermost one that the backward pass and the model's call share. A
project function that calls the model counts as the call of it, so that a ``with`` around the range covers what it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.tensors import tensors_in
from turbofix.domain.trace import Control, Event
from turbofix.domain.values import Const, External, Made, Sequence, Tensor, Value, members
from turbofix.library.tables import is_product, unfit_for_half
from turbofix.records import dataclass
from turbofix.source.names import dotted, loaded, reads_of, stored, walk_here
from turbofix.source.places import LOOPS, blocks, contains, number_in
from turbofix.source.site import Site
from turbofix.training.model import Output, Region
from turbofix.training.steps.acts import is_update, loss_expression

_LOGARITHMS = frozenset(("log", "log2", "log10", "log1p", "logit"))
_MUTATING = {"append", "extend", "insert", "add", "update", "add_", "mul_", "div_", "sub_"}


@dataclass(frozen=True, eq=False)
class Span:
    """Statements ``first`` to ``last`` (indices) of a block of a frame, before they are judged."""

    frames: tuple[Frame, ...]
    block: list[ast.stmt]
    first: int
    last: int
    contributing: frozenset[int] = frozenset()  # those that make the loss

    @property
    def statements(self) -> list[ast.stmt]:
        """The statements of the range."""
        return self.block[self.first : self.last + 1]


def shared_frames(first: tuple[Frame, ...], second: tuple[Frame, ...]) -> int:
    """How many frames, from the outermost, two events have in common."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a.scope is not b.scope or a.call is not b.call:
            break
        count += 1
    return count


def anchors(analysis: Analysis, events: Iterable[Event], frames: tuple[Frame, ...]) -> list[tuple[ast.AST, Event]]:
    """Where each event stands in the innermost of the frames; events that do not pass through it are left out."""
    found: list[tuple[ast.AST, Event]] = []
    through: dict[Control, bool] = {}
    for event in events:
        passes = through.get(event.control)
        if passes is None:
            passes = shared_frames(analysis.facts.frames(event), frames) == len(frames)
            through[event.control] = passes
        if passes:
            found.append((analysis.facts.frames(event)[len(frames) - 1].anchor, event))
    return found


def forward_region(analysis: Analysis, backward: Event, loop: ast.AST, events: list[Event]) -> Region | None:
    """The region of the forward pass that ``backward`` differentiates; ``events`` are those of the step."""
    span = Search(analysis, backward, loop, events).span()
    return judge(analysis, span, events, backward) if span is not None else None


@dataclass(frozen=True, eq=False)
class Search:
    """The search for the forward pass of one backward pass, in a step with these events."""

    analysis: Analysis
    backward: Event
    loop: ast.AST
    events: list[Event]

    def span(self) -> Span | None:
        """The statements of the forward pass; None where no model (and no loss) is called before the backward."""
        frames = self.analysis.facts.frames(self.backward)
        start = next(
            (i for i, frame in enumerate(frames) if any(self.loop is each for each in frame.loops)), len(frames)
        )
        models = [event for event in self.events if event.kind in ("forward", "unknown_call")]
        calls = models or [event for event in self.events if event.kind == "criterion"]
        for count in range(len(frames), start, -1):
            span = self._span_in(frames[:count], calls)
            if span is not None:
                return span
        return None

    def _span_in(self, frames: tuple[Frame, ...], models: list[Event]) -> Span | None:
        """The statements in the innermost of the frames: in the smallest block that holds a call and the backward."""
        places = self.analysis.facts.places
        frame = frames[-1]
        module = frame.module
        calls = [each for each in anchors(self.analysis, models, frames) if each[0] is not frame.anchor]
        calls = [each for each in calls if each[1].kind != "unknown_call"] or calls
        current = places.statement(frame.anchor, module)
        if not calls or current is None:
            return None
        barriers = [
            node
            for node, event in anchors(self.analysis, self.events, frames)
            if event.kind in ("backward", "step") and event.node is not self.backward.node and node is not frame.anchor
        ]
        while current is not None:
            block = places.block(current, module)
            before = block[: next(i for i, each in enumerate(block) if each is current) + 1]
            if any(number_in(before, node, module) is not None for node, _ in calls):
                stops = (number_in(before[:-1], node, module) for node in barriers)
                floor = 1 + max((each for each in stops if each is not None), default=-1)
                span = self._bounds(frames, before, floor, calls)
                if span is not None:
                    return span
            parent = places.parent(current, module)
            if isinstance(parent, ast.ExceptHandler):
                parent = places.parent(parent, module)
            if parent is self.loop or parent is frame.scope or not isinstance(parent, ast.stmt):
                return None
            current = parent
        return None

    def _bounds(
        self, frames: tuple[Frame, ...], before: list[ast.stmt], floor: int, calls: list[tuple[ast.AST, Event]]
    ) -> Span | None:
        """The range in ``before``, whose last member holds the backward, beginning no earlier than ``floor``."""
        module = frames[-1].module
        position = len(before) - 1
        contributing = self._contributing(frames, before, floor)
        firsts = []
        for index in range(floor, position):
            here = [event for node, event in calls if contains(before[index], node, module)]
            if here and (index in contributing or any(not no_grad(event) for event in here)):
                firsts.append(index)
        in_place = any(contains(before[position], node, module) for node, _ in calls)
        if not firsts:
            return Span(frames, before, position, position) if in_place else None
        if in_place and not isinstance(before[position], (*LOOPS, ast.If, ast.With, ast.AsyncWith, ast.Try)):
            return Span(frames, before, firsts[0], position)
        # a forward pass whose result nothing on the way to the loss reads does not begin the region
        feeding = [index for index in firsts if index in contributing] or firsts
        return Span(frames, before, feeding[0], max([*contributing, feeding[-1]]), frozenset(contributing))

    def _contributing(self, frames: tuple[Frame, ...], before: list[ast.stmt], floor: int) -> set[int]:
        """The statements that make what the backward starts from, found backwards through the names that they write."""
        needed = self._names_needed(frames[-1].anchor)
        found: set[int] = set()
        for index in range(len(before) - 2, floor - 1, -1):
            statement = before[index]
            written = stored([statement])
            if written & needed or _mutated(statement) & needed:
                found.add(index)
                if isinstance(statement, ast.Assign):
                    needed -= written
                needed |= loaded(statement)
        return found

    def _names_needed(self, anchor: ast.AST) -> set[str]:
        """The names whose values the backward starts from, as seen at the anchor."""
        if anchor is self.backward.node:
            expression = loss_expression(self.analysis, self.backward)
            return set(loaded(expression if expression is not None else anchor))
        return set(loaded(anchor.args[0] if isinstance(anchor, ast.Call) and anchor.args else anchor))


def _mutated(statement: ast.stmt) -> set[str]:
    """The names that a call statement changes in place (``losses.append(loss)``)."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _MUTATING:
        name = dotted(call.func.value)
        return {name} if name is not None else set()
    return {name for block in blocks(statement) for inner in block for name in _mutated(inner)}


def no_grad(event: Event) -> bool:
    """Whether an event happens where no graph is built."""
    for level in event.control.upwards():
        if level.kind == "no_grad":
            return True
        if level.kind == "with" and isinstance(level.detail, tuple):
            for member in members(level.detail[1]):
                if isinstance(member, Made) and member.kind == "gradmode" and "enable_grad" not in member.qualname:
                    return True
    return False


def surely_no_grad(event: Event) -> bool:
    """The same whatever is decided at run time: ``set_grad_enabled(x)`` counts where ``x`` is known to be false."""
    for level in event.control.upwards():
        if level.kind == "no_grad":
            return True
        if level.kind == "with" and isinstance(level.detail, tuple):
            modes = [each for each in members(level.detail[1]) if isinstance(each, Made) and each.kind == "gradmode"]
            if modes:  # the innermost one counts
                return all(map(_stops_recording, modes))
    return False


def _stops_recording(made: Made) -> bool:
    if made.qualname == "torch.no_grad":
        return True
    mode = made.arguments.get("mode", 0)
    asked = [each.value if isinstance(each, Const) else None for each in members(mode.value)] if mode else []
    if made.qualname == "torch.inference_mode":
        return mode is None or asked == [True]
    return made.qualname == "torch.set_grad_enabled" and asked == [False]


def judge(analysis: Analysis, span: Span, events: list[Event], backward: Event | None) -> Region:
    """The region with the reasons, if any, why it cannot be put under a ``with``."""
    places = analysis.facts.places
    module = span.frames[-1].module
    statements = span.statements
    between: list[str] = []
    if backward is not None and contains(statements[-1], span.frames[-1].anchor, module):
        between.append("the loss is computed in the same statement that calls backward")
    blockers = _leaving(statements)
    quiet: set[int] = set()
    loud: set[int] = set()
    changed: dict[int, Event] = {}  # model -> what changes its weights after a forward pass
    for node, event in anchors(analysis, events, span.frames):
        if backward is not None and event.node is backward.node:
            continue
        if number_in(statements, node, module) is None:
            continue
        if event.kind == "forward":
            called = set(_modules(event.receiver))
            stale = [changed[model] for model in called & changed.keys()]
            if stale and not no_grad(event):
                where = analysis.facts.site(stale[0]).line_from(module.path)
                between.append(
                    f"{where} changes weights between two forward passes; autocast keeps its casts of the old"
                )
            (quiet if no_grad(event) else loud).update(called)
        changed |= {model: event for model in _changed(event) if model in loud}
        if event.kind == "backward":
            between.append("another backward lies between the forward pass and its loss")
        elif event.kind == "step" and is_update(event):
            between.append("an optimizer's step lies between the forward pass and its loss")
        elif event.kind == "autograd_grad":
            reasons = between if _is_apart(analysis, node, event, span) else blockers
            reasons.append("a gradient is taken inside the forward pass (torch.autograd.grad)")
        elif event.kind == "load":
            between.append("state is loaded between the forward pass and its loss")
    if quiet & loud:  # autocast keeps its casts of the weights, made without a graph (pytorch issue 65766)
        between.append("the same model also runs without gradients there, after which older torch loses its gradients")
    region = Region(
        places.site(statements[0], module),
        places.site(statements[-1], module),
        places.function_site(statements[0], module),
        tuple(dict.fromkeys((*between, *blockers))),
        tuple(dict.fromkeys(between)),
    )
    return with_outputs(analysis, region, span, events, backward)


def with_outputs(analysis: Analysis, region: Region, span: Span, events: list[Event], backward: Event | None) -> Region:
    """The region with what its models give, and how precise the loss would be that is made of it under autocast."""
    places = analysis.facts.places
    module = span.frames[-1].module
    statements = span.statements
    last = -1
    outputs: list[Output] = []
    complete, imaginary = True, False
    products: dict[Site, int] = {}
    criteria: list[tuple[str, int]] = []
    logarithms = False
    calling: set[int] = set()
    judging: set[int] = set()
    around = list(anchors(analysis, events, span.frames))
    penalties = {node for node, event in around if _is_apart(analysis, node, event, span)}
    if backward is not None and contains(statements[-1], span.frames[-1].anchor, module):
        judging.add(len(statements) - 1)
    for node, event in around:
        index = number_in(statements, node, module)
        if index is None or (backward is not None and no_grad(event)):
            continue
        if node in penalties:
            judging.add(index)
        if event.kind not in ("call", "criterion", "forward") or node in penalties:
            continue
        inner = in_model(analysis, event, len(span.frames))
        if event.kind == "criterion":
            judging.add(index)
            made = [each.qualname for each in members(event.receiver) if isinstance(each, (Made, External))]
            criteria += [(name, -1 if inner else index) for name in made or [event.name]]
        elif event.kind == "call" and not inner:
            if is_product(event.name) or unfit_for_half(event.name) is not None:
                site = analysis.facts.site(event)
                products[site] = min(index, products.get(site, index))
            logarithms = logarithms or _is_logarithm(event)
        elif event.kind == "forward" and event.result is not None and not inner:
            last = max(last, index)
            calling.add(index)
            found = _output(analysis, event, module) if node is event.node else None
            complete = complete and found is not None
            outputs += [each for each in found or () if each not in outputs]
            given = event.returned if event.returned is not None else event.result
            imaginary |= any("complex" in tensor.roles for tensor in tensors_in(given))
    complete = complete and not (imaginary and outputs)  # `.float()` would drop what is imaginary
    loss = members(backward.receiver) if backward is not None else ()
    return replace(
        region,
        half=logarithms or any(isinstance(member, Tensor) and member.half for member in loss),
        products=tuple(sorted(products)),
        tangled=any(index <= last for index in products.values()),
        criteria_inside=tuple(sorted({name for name, index in criteria if index <= last})),
        criteria_hidden=tuple(sorted({name for name, index in criteria if index < 0})),
        calls_end=places.site(statements[last], module) if last >= 0 else None,
        calling=tuple(places.site(statements[index], module) for index in sorted(calling)),
        mixed=bool(calling & judging),
        outputs=tuple(outputs) if complete else None,
        idle=tuple(
            places.site(statement, module)
            for index, statement in enumerate(statements)
            if index > last and index + span.first not in span.contributing
        ),
    )


def _is_apart(analysis: Analysis, node: ast.AST, event: Event, span: Span) -> bool:
    """Whether a function that the step calls takes a gradient: a penalty, which stays in 32 bits with its own calls."""
    inside = event.kind != "autograd_grad" or in_model(analysis, event, len(span.frames))
    return node is not event.node and not inside


def _is_logarithm(event: Event) -> bool:
    """Whether a logarithm is taken of what came in 16 bits, as of a probability: small differences of it count."""
    if event.name.rpartition(".")[2] not in _LOGARITHMS or event.arguments is None:
        return False
    given = (each for value in (event.receiver, *event.arguments.values()) for each in members(value))
    return any(isinstance(each, Tensor) and each.half for each in given)


def in_model(analysis: Analysis, event: Event, depth: int) -> bool:
    """Whether an event happens inside a model that is called in the last of the first ``depth`` frames, or below."""
    return any(
        frame.call is not None and any(each.kind == "forward" for each in analysis.facts.at(frame.call))
        for frame in analysis.facts.frames(event)[depth:]
    )


def _feeds_models_only(analysis: Analysis, event: Event, statement: ast.stmt) -> bool:
    """Whether what a model's call gives to a name is read as an input of other models alone."""
    if not isinstance(statement, ast.Assign) or statement.value is not event.node:
        return False
    target, scope = statement.targets[0], analysis.facts.places.scope(statement, event.module)
    if not isinstance(target, ast.Name):
        return False
    return all(
        any(
            each.kind == "forward"
            for above in analysis.facts.places.ancestors(read, event.module)
            for each in (analysis.facts.at(above) if isinstance(above, ast.Call) else ())
        )
        for read in reads_of(target.id, scope)
    )


def _output(analysis: Analysis, event: Event, module: ModuleFile) -> list[Output] | None:
    """The tensors of 16 bits that a model's call gives; None where it may give anything else that holds some."""
    places = analysis.facts.places
    statement = places.statement(event.node, module)
    value = event.returned if event.returned is not None else event.result
    if statement is None or value is None:
        return None
    site, around = places.site(event.node, module), places.site(statement, module)
    if isinstance(value, Tensor):
        targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is event.node else []
        if "object" in value.roles or any(isinstance(each, (ast.Tuple, ast.List)) for each in targets):
            return None  # what is unpacked may be no tensor after all
        return [Output(site, around)] if value.half and not _feeds_models_only(analysis, event, statement) else []
    if not isinstance(value, Sequence) or value.items is None or not isinstance(statement, ast.Assign):
        return None
    target = statement.targets[0]
    if statement.value is not event.node or not isinstance(target, (ast.Tuple, ast.List)):
        return None
    names: list[str] = []
    for item, single in zip(value.items, target.elts, strict=False):
        if not isinstance(item, Tensor) or "object" in item.roles or len(value.items) != len(target.elts):
            return None
        if item.half and not (isinstance(single, ast.Name) and single.id != "_"):
            if isinstance(single, ast.Name):
                continue
            return None
        if item.half and isinstance(single, ast.Name):
            names.append(single.id)
    return [Output(site, around, tuple(names))] if names else []


def _modules(value: Value | None, depth: int = 3) -> Iterator[int]:
    """The identities of the modules that a value can be, and of those that they wrap."""
    for member in members(value):
        yield id(member)
        if isinstance(member, Made) and member.kind in ("wrapper", "engine") and depth:
            yield from _modules(member.inner, depth - 1)


def _changed(event: Event) -> Iterator[int]:
    """The models whose weights an event changes in place."""
    in_place = event.kind == "call" and event.name.startswith("Tensor.") and event.name.endswith("_")
    if in_place or event.kind == "sum":
        for member in members(event.receiver):
            if isinstance(member, Tensor) and "param" in member.roles and "grad" not in member.roles:
                yield from _modules(member.source)


def _leaving(statements: list[ast.stmt]) -> list[str]:
    """What hands the autocast of the statements to others before their end; to leave them is no such thing."""
    yielding = (ast.Yield, ast.YieldFrom, ast.Await)
    nodes = (node for statement in statements for node in walk_here(statement))
    return ["it yields from inside the forward pass"] if any(isinstance(each, yielding) for each in nodes) else []


def evaluation_region(analysis: Analysis, loop: ast.AST, events: list[Event]) -> Region | None:
    """The range of statements in a loop that calls models, and their losses, without a backward."""
    places = analysis.facts.places
    calls = [event for event in events if event.kind in ("forward", "criterion")]
    if not calls:
        calls = [event for event in events if event.kind == "unknown_call"]
    if not calls:
        return None
    inner = analysis.facts.frames_within(calls[0], loop)
    frames = analysis.facts.frames(calls[0])
    frames = frames[: len(frames) - len(inner) + 1]
    module = frames[-1].module
    nodes = [node for node, _ in anchors(analysis, calls, frames)]
    statement = places.statement(nodes[0], module)
    while statement is not None and statement is not loop:
        block = places.block(statement, module)
        known = [each for node in nodes if (each := number_in(block, node, module)) is not None]
        if len(known) == len(nodes):
            return judge(analysis, Span(frames, block, min(known), max(known), frozenset(known)), events, None)
        parent = places.parent(statement, module)
        statement = places.statement(parent, module) if parent is not None else None
    return None
