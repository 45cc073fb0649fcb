"""Tensors that torch makes on the host in a step, and that are copied to the device later on.

What is copied is followed back, by its names, through what is computed of it and into the functions that return it, to
the calls that fill memory of the host. Where these and numbers are all that it is made of, it can be made there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial

from turbofix.dataflow.facts import constants
from turbofix.dataflow.placements import device_of
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.dataflow.switches import switch_of
from turbofix.domain.scopes import Frame as Executed
from turbofix.domain.tensors import DTYPES, is_dtype
from turbofix.domain.trace import Arguments, Event, Passed
from turbofix.domain.values import (
    Computed,
    Const,
    External,
    Host,
    Opaque,
    Option,
    Sequence,
    Tensor,
    Value,
    flatten,
    is_number,
    members,
)
from turbofix.library.tables import FROM_HOST, words
from turbofix.records import dataclass
from turbofix.source.names import dotted, parameters
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.training.model import Creation, Guard, Helper, Made, Placement

_FILLED = words("zeros ones full empty eye arange zeros_like ones_like full_like empty_like")
"""Functions of torch that compute what they make without reading memory, and the same on every device."""
_DRAWN = words("rand randn randint randperm normal rand_like randn_like randint_like")
_ROUNDED = words("linspace logspace")
_FACTORIES = _FILLED | _DRAWN | _ROUNDED
_OF_ANY_TYPE = words("zeros ones empty zeros_like ones_like empty_like")
"""Those that make the same numbers in every type as a cast of what they made would."""

_KEEPING = words(
    """
    unsqueeze squeeze view reshape expand repeat t transpose permute flatten contiguous clone detach tril triu
    float double half bfloat16 long int short byte bool zero_ fill_ requires_grad_ expand_as view_as reshape_as
    """
)
"""Methods and functions that give the same numbers on every device."""
_DRAWING = words("normal_ uniform_ random_ bernoulli_ exponential_")
_SAMPLING = words("bernoulli multinomial poisson dropout normal")
_SHAPED_AS = words("expand_as view_as reshape_as")
_LEAVING = words("cpu cuda numpy item tolist backward type_as pin_memory share_memory_ data_ptr apply_ map_")
"""Methods whose result lies elsewhere, or is no tensor."""
_SIZES = words("shape size dim ndim numel dtype device __len__")
"""What is asked of a tensor wherever it lies."""
_AROUND = ("torch.autograd.Variable", "torch.autograd.variable.Variable")
_JOINING = frozenset(
    f"torch.{name}" for name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
)
"""Functions that copy the tensors of a list into one."""

_PASSED = frozenset(("device", "dtype", "non_blocking", "copy"))
_LEGACY = {
    "Tensor": None,
    "FloatTensor": None,
    "DoubleTensor": "torch.double",
    "HalfTensor": "torch.half",
    "LongTensor": "torch.long",
    "IntTensor": "torch.int",
    "ByteTensor": "torch.uint8",
    "BoolTensor": "torch.bool",
}
"""Types of tensors, which take sizes or numbers, and what ``torch.empty`` is told for them."""


_DRAWN_BY_NUMPY = {
    **{f"numpy.random.{name}": name for name in ("randn", "rand", "normal")},
    **dict.fromkeys(words("numpy.random.random numpy.random.random_sample numpy.random.sample"), "rand"),
    "numpy.random.standard_normal": "randn",
}


def creations(analysis: Analysis, events: list[Event], loop: ast.AST | None) -> tuple[Creation, ...]:
    """Such expressions in a loop, one for each place, in the order of the text."""
    found: dict[ast.AST, Creation | None] = {}
    for event in events:
        if (event.kind == "transfer" and event.name in ("to", "cuda")) or event.name == "Tensor.type_as":
            made = _creation(analysis, event, loop)
        elif event.kind == "call" and event.name in ("torch.tensor", "torch.as_tensor"):
            made = _of_a_number(analysis, event, loop)
        else:
            continue
        known = found.get(event.node, made)
        found[event.node] = made if known is None or made is None else _merged(known, made)
    kept = [each for each in found.values() if each is not None]
    return tuple(sorted(kept, key=lambda each: each.site))


_PASSES = frozenset(("forward", "training_step", "compute_loss"))


def in_passes(analysis: Analysis) -> list[Event]:
    """The copies and calls in what a framework's trainer runs for each batch."""
    return [each for each in analysis.facts.of("transfer", "call") if _pass_of(analysis, each) is not None]


def _pass_of(analysis: Analysis, event: Event) -> ast.AST | None:
    """The forward pass, or step of a framework's module, that an event is in."""
    scopes = (frame.scope for frame in analysis.facts.frames(event))
    return next((each for each in scopes if getattr(each, "name", "") in _PASSES), None)


def _guard(analysis: Analysis, event: Event, loop: ast.AST | None) -> Guard:
    """The tests that an event is under in a loop; in no loop, those of its function."""
    if loop is not None:
        return analysis.guards.guard(event, loop)
    frames = analysis.facts.frames(event)
    scope = frames[-1].scope
    return analysis.guards.judge_all(analysis.guards.tests_around(event.node, scope, frames, returns=True), scope)


def _merged(first: Creation, second: Creation) -> Creation:
    """What is known of one place that was passed twice: what may be so on one way is so."""
    return replace(
        first,
        draws=first.draws or second.draws,
        rounds=first.rounds or second.rounds,
        to=first.to if first.to.reaches_cuda else second.to,
        guard=first.guard if first.guard.kind == "always" else second.guard,
        meets=first.meets or second.meets,
        unsure=first.unsure or second.unsure,
        why_not=first.why_not or second.why_not,
    )


def _creation(analysis: Analysis, event: Event, loop: ast.AST | None) -> Creation | None:
    node, facts, frame = event.node, analysis.facts, analysis.flow.frame_at(event.control)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or event.arguments is None:
        return None
    arguments = event.arguments
    on_host = [isinstance(each, Tensor) and each.device == "cpu" for each in members(event.receiver)]
    if frame is None or not on_host or not all(on_host) or arguments.open or arguments.star:
        return None
    passed = arguments.get("other", 0) if event.kind == "call" else _device_passed(arguments)
    if passed is not None and (passed.node is None or not _is_plain(analysis, passed.node)):
        return None
    if (passed is None and event.name != "cuda") or not arguments.keywords.keys() <= _PASSED:
        return None
    making = _Making(analysis, frame, node)
    if not making.follow(node.func.value) or not making.calls:
        return None
    text = facts.places.text(passed.node, event.module) if passed is not None and passed.node is not None else None
    if text is not None and text.endswith(".device") and all(each.is_like(text[:-7]) for each in making.calls):
        return None  # it is there already
    like = passed is not None and any(isinstance(each, Tensor) for each in members(passed.value))
    place = analysis.devices.of_transfer(event)
    if like:  # its type is another one, too
        text = f"{text}.device"
        found = {each.device for each in members(event.result) if isinstance(each, Tensor)}
        place = Placement(found.pop() if len(found) == 1 else "unknown", text, "device")
    dtype = _dtype_passed(event, arguments)
    first = making.calls[0]
    bare = making.bare and not making.names and first.written is None and "dtype" not in first.given.keywords
    told = dtype is not None and bare and first.name in _OF_ANY_TYPE
    stays = like or (dtype is not None and not told)
    unused = making.statement_to_drop() if not stays else None
    why_not = making.why_not(passed, event)
    chosen = making.chosen
    if chosen is not None and (stays or making.spread):
        why_not = why_not or "it is copied only under a condition, beside which it stays on the host"
    if chosen is not None and unused is not None and chosen.body == [unused] and not chosen.orelse:
        unused = chosen
    return Creation(
        site=facts.site(event),
        moved=None if stays else facts.places.site(node.func.value, event.module),
        calls=tuple(each.made(analysis, frame) for each in making.calls),
        to=place,
        device=text,
        dtype=facts.places.text(dtype.node, event.module) if told and dtype is not None and dtype.node else None,
        draws=making.draws,
        rounds=making.computes or any(_rounds(each.name, each.given) for each in making.calls),
        packs=making.spread and not stays,
        guard=_guard(analysis, event, loop),
        switch=switch_of(analysis, event),
        kept=_is_kept(facts.places.statement(node, event.module)),
        meets=making.meets,
        unsure=not like and passed is not None and "unknown" in {device_of(each)[1] for each in members(passed.value)},
        unused=facts.places.site(unused, event.module) if unused is not None else None,
        helpers=tuple(making.helpers.values()),
        only_if=" ".join(facts.places.text(chosen.test, event.module).split()) if chosen is not None else None,
        why_not=why_not,
    )


def _of_a_number(analysis: Analysis, event: Event, loop: ast.AST | None) -> Creation | None:
    """``torch.tensor(0.5, device=device)`` copies the number; ``torch.full((), 0.5, device=device)`` does not."""
    node, frame, arguments = event.node, analysis.flow.frame_at(event.control), event.arguments
    if not isinstance(node, ast.Call) or frame is None or arguments is None or arguments.open or arguments.star:
        return None
    told, making = arguments.keywords.get("device"), _Making(analysis, frame, node)
    if told is None or told.node is None or len(node.args) != 1 or not arguments.keywords.keys() <= {"device", "dtype"}:
        return None
    shape, number = "()", node.args[0]
    if isinstance(number, (ast.List, ast.Tuple)) and len(number.elts) == 1:
        shape, number = "(1,)", number.elts[0]
    if isinstance(number, ast.Starred) or not making.is_number(number):
        return None
    text = partial(analysis.facts.places.text, module=event.module)
    others = [f"{each.arg}={text(each.value)}" for each in node.keywords]
    site = analysis.facts.site(event)
    return Creation(
        site=site,
        moved=None,
        calls=(Made(site, "tensor", f"{{torch.full}}({', '.join((shape, text(number), *others))})"),),
        to=analysis.devices.of_transfer(event),
        guard=_guard(analysis, event, loop),
        switch=switch_of(analysis, event),
        kept=_is_kept(analysis.facts.places.statement(node, event.module)),
        unsure="unknown" in {device_of(each)[1] for each in members(told.value)},
    )


def makes_there(event: Event) -> bool:
    """Whether a call fills memory of the host, and could be told a device."""
    name, given = event.name.rpartition(".")[2], event.arguments
    plain = given is not None and not given.open and not given.keywords.keys() & {"generator", "requires_grad"}
    return event.name == f"torch.{name}" and name in _FACTORIES and plain and _takes_device(name, given)  # type: ignore[arg-type]


def made_there(analysis: Analysis, event: Event, loop: ast.AST | None, to: Placement) -> Creation:
    """Such a call, told where."""
    name, site = event.name.rpartition(".")[2], analysis.facts.site(event)
    return Creation(
        site=site,
        moved=None,
        calls=(Made(site, name),),
        to=to,
        device=to.text,
        draws=name in _DRAWN,
        rounds=event.arguments is not None and _rounds(name, event.arguments),
        guard=_guard(analysis, event, loop),
        switch=switch_of(analysis, event),
    )


@dataclass(eq=False)
class _Call:
    """A call that fills memory of the host; where it cannot be told a device, how torch says it that can."""

    node: ast.Call
    frame: Executed
    name: str
    given: Arguments
    written: str | None = None

    def is_like(self, other: str) -> bool:
        """Whether it lies where another tensor does."""
        return self.name.endswith("_like") and ast.unparse(self.node.args[0] if self.node.args else self.node) == other

    def made(self, analysis: Analysis, own: Executed) -> Made:
        """As the model tells it."""
        site = analysis.facts.places.site(self.node, self.frame.module)
        return Made(site, self.name, self.written, self.frame is not own)


@dataclass(eq=False)
class _Making:
    """What an expression is made of, followed back to the calls that fill memory of the host, and to numbers."""

    analysis: Analysis
    frame: Executed
    copy: ast.Call
    calls: list[_Call] = field(default_factory=list)
    draws: bool = False
    bare: bool = True  # nothing lies between
    computes: bool = False  # something is computed of it, which a GPU may round differently
    meets: bool = False  # what it meets on the way may lie on the host
    leaf: bool = False  # it is told to take gradients on the way
    fresh: bool = False  # what lies outside of this gives its numbers places of their own
    spread: bool = False  # the copy gives its numbers places of their own: of what was expanded, or made once for many
    names: dict[ast.AST, ast.stmt] = field(default_factory=dict)  # what it is named on the way, by definition
    parts: list[ast.AST] = field(default_factory=list)  # statements that write into it
    helpers: dict[ast.AST, Helper] = field(default_factory=dict)  # functions that make it
    reasons: list[str] = field(default_factory=list)
    chosen: ast.If | None = None  # only there is it copied, and it goes on behind it

    def follow(self, node: ast.expr) -> bool:
        """Whether nothing but such calls and numbers makes an expression."""
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Name):
            return self._is_tensor(node) and self._name(node)
        if isinstance(node, ast.Subscript):
            self.bare = False
            return self.follow(node.value) and (_is_cut(node.slice) or self._operands([node.slice]))
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare)) and self._is_tensor(node):
            self.bare, self.computes, self.fresh = False, True, True
            return self._operands([each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)])
        return False

    def _is_tensor(self, node: ast.AST) -> bool:
        """Whether it is a tensor, or several."""
        return any(isinstance(each, Tensor) for each in flatten(self.frame.values.get(node), 1))

    def _events(self, node: ast.AST) -> list[Event]:
        """What happens at a node, be it where the settings do not lead."""
        facts = self.analysis.facts
        return facts.at(node) or [each for each in facts.dead if each.node is node]

    def _operands(self, nodes: list[ast.expr]) -> bool:
        """Whether all are numbers, or made so themselves."""
        return all(self._is_plain(each) or self.follow(each) for each in nodes)

    def _is_plain(self, node: ast.expr) -> bool:
        """Whether it is no tensor: numbers, sizes, settings."""
        parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        if isinstance(node, (ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.Slice)) and not self._is_tensor(node):
            return all(map(self._is_plain, parts))
        if isinstance(node, ast.Call) and dotted(node.func) in ("list", "tuple", "int", "float", "max", "min"):
            return all(map(self._is_plain, node.args))
        if isinstance(node, ast.Subscript) and _is_shape(node.value):
            return True
        held = members(self.frame.values.get(node))
        if isinstance(node, ast.Subscript) and held and all(isinstance(each, Opaque) for each in held):
            self.meets = True  # a number of an array, as far as its place tells
            return isinstance(node.slice, ast.Constant)
        told = (dotted(node.func if isinstance(node, ast.Call) else node) or "").partition(".")[0] in ("math", "len")
        sizes = [each for one in held for each in flatten(one, 1) if not isinstance(each, Sequence)]
        plain = (Const, Option, Host, Computed, External)
        return told or (bool(sizes) and all(isinstance(each, plain) or is_number(each) for each in sizes))

    def is_number(self, node: ast.expr) -> bool:
        """Whether it is one number, whatever it is called with."""
        held = members(self.frame.values.get(node))
        if _is_literal(node) or (isinstance(node, ast.Call) and dotted(node.func) in ("float", "int", "len")):
            return True
        known = all(is_number(each) or type(getattr(each, "value", None)) in (int, float) for each in held)
        return bool(held) and known and not self._is_numpys(node)

    def _is_numpys(self, node: ast.AST, depth: int = 2) -> bool:
        """Whether a number may be of numpy's, with a type of its own: the sum or the largest of what is not known."""
        if isinstance(node, ast.Name) and depth:
            definitions = (each for each, reads in readers(self._scope(node)).items() if node in reads)
            given = (self.analysis.facts.places.statement(each, self.frame.module) for each in definitions)
            values = (getattr(each, "value", None) for each in given if isinstance(each, (ast.Assign, ast.AugAssign)))
            return any(self._is_numpys(each, depth - 1) for each in values if each is not None)
        calls = (each for each in walk(node) if isinstance(each, ast.Call))
        sums = (each for each in calls if dotted(each.func) in ("sum", "max", "min", "pow"))
        values = (self.frame.values.get(one) for each in sums for one in each.args)
        return any(isinstance(one, Opaque) for each in values for one in flatten(each, 1))

    def _scope(self, node: ast.AST) -> ast.AST:
        return self.analysis.facts.places.scope(node, self.frame.module)

    def _call(self, node: ast.Call) -> bool:
        made = [each for each in self._events(node) if each.kind in ("call", "cast", "transfer")]
        names = {each.name for each in made}
        package, _, name = (names.pop() if len(names) == 1 else "").rpartition(".")
        given = made[0].arguments if made else None
        if given is None:
            return self._helper(node)
        if package == "torch" and name in _FACTORIES and _takes_device(name, given):
            self.calls.append(_Call(node, self.frame, name, given))
            self.draws = self.draws or name in _DRAWN
            return True
        if package == "torch" and (anew := self._anew(node, name, given)) is not None:
            self.calls.append(anew)
            return True
        self.bare = False
        whole = f"{package}.{name}"
        if given.open or given.star or any(isinstance(each, ast.Starred) for each in node.args):
            return False
        told = [*node.args, *(each.value for each in node.keywords)]
        if whole in _JOINING or whole in _AROUND:
            takes = given.get("requires_grad", 1)
            self.leaf = self.leaf or (whole in _AROUND and takes is not None and not _is_false(takes.value))
            self.fresh = self.fresh or whole in _JOINING
            parts = node.args[0].elts if node.args and isinstance(node.args[0], (ast.List, ast.Tuple)) else told[:1]
            return self._operands([*parts, *told[1:]])
        if isinstance(node.func, ast.Attribute) and whole == f"Tensor.{node.func.attr}":
            return self._method(node, node.func.value, name, told)
        if package in ("torch", "torch.nn.functional") and name not in FROM_HOST and self._is_tensor(node):
            self._note(name)
            return bool(told) and self._operands(told)
        return False

    def _method(self, node: ast.Call, of: ast.expr, name: str, told: list[ast.expr]) -> bool:
        """``made.method(...)``."""
        if name in ("to", "type"):
            events = [event for event in self._events(node) if event.kind == "cast"]
            values = [value for event in events for value in (event.arguments.values() if event.arguments else ())]
            return bool(values) and len(told) == 1 and all(map(_is_type, values)) and self.follow(of)
        if name in _LEAVING or any(each.arg in (None, "generator") for each in node.keywords):
            return False
        self.leaf = self.leaf or name == "requires_grad_"
        self._note(name)
        return self.follow(of) and (name in _SHAPED_AS or self._operands(told))

    def _note(self, name: str) -> None:
        """What a method or function does to the numbers."""
        self.draws = self.draws or name in _DRAWING or name in _SAMPLING
        same = name in _KEEPING or name in _DRAWING
        self.computes = self.computes or not same
        self.fresh = self.fresh or not same or name in ("contiguous", "clone", "repeat", "tril", "triu")
        self.spread = self.spread or (name in ("expand", "expand_as") and not self.fresh)

    def _name(self, node: ast.Name) -> bool:
        """What a name was given, on each way there; and what is written into it since."""
        facts, module = self.analysis.facts, self.frame.module
        scope = facts.places.scope(node, module)
        found = [each for each, reads in readers(scope).items() if node in reads]
        found.sort(key=lambda each: (getattr(each, "lineno", 0), getattr(each, "col_offset", 0)))
        for each in found:
            if each in self.names:
                continue
            if found[1:] and self.copy in walk(facts.places.statement(each, module) or each):
                continue  # what was copied in the round before
            statement = facts.places.statement(each, module)
            if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
                return False
            several = statement.targets[0].elts if isinstance(statement.targets[0], ast.Tuple) else statement.targets
            if not all(isinstance(one, ast.Name) for one in several) or each not in several:
                return False
            self.names.update(dict.fromkeys(several, statement))
            again = self._loop(statement) is not self._loop(node)  # the copy is another tensor in each round
            self.spread = self.spread or (again and not self.fresh)
            if not self.follow(statement.value):
                return False
            for read in readers(scope)[each]:
                item = facts.places.parent(read, module)
                writes = facts.places.statement(read, module)
                if (
                    isinstance(item, ast.Subscript)
                    and isinstance(writes, ast.Assign)
                    and writes.targets == [item]
                    and self._operands([writes.value])
                ):
                    self.parts.append(writes)
        return bool(found)

    def _loop(self, node: ast.AST) -> ast.AST | None:
        above = self.analysis.facts.places.ancestors(node, self.frame.module)
        return next((each for each in above if isinstance(each, LOOPS)), None)

    def _helper(self, node: ast.Call) -> bool:
        """A function of the project that makes and returns it: it can be told the device."""
        callees = self.analysis.flow.callees(self.frame, node)
        function = callees[0].function.node if len(callees) == 1 and callees[0].function is not None else None
        if not isinstance(function, ast.FunctionDef) or self.frame is callees[0] or self.helpers:
            return False
        returns = [each for each in walk(function) if isinstance(each, (ast.Return, ast.Yield, ast.YieldFrom))]
        value = returns[0].value if len(returns) == 1 and isinstance(returns[0], ast.Return) else None
        site, frame, before = self.analysis.facts.places.site, self.frame, len(self.calls)
        if value is None:
            return False
        self.frame, self.bare = callees[0], False
        made = self.follow(value) and len(self.calls) > before
        reason = self._read_elsewhere(returns[0]) if made else None
        self.frame = frame
        if not made:
            return False
        listed = parameters(function)
        last = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs][-1:]
        taken = any(isinstance(each, ast.Name) and each.id == "device" for each in walk(function))
        if reason is not None or not last or taken or "device" in [each.arg for each in listed]:
            self.reasons.append(reason or f"`{function.name}` makes it: give it a parameter for the device")
        if function.args.vararg or any(dotted(each) != "staticmethod" for each in function.decorator_list):
            self.reasons.append(f"`{function.name}` makes it: give it a parameter for the device")
        if not self.reasons:
            home = callees[0].module
            self.helpers[node] = Helper(site(node, frame.module), site(function, home), last[0].arg)
        self.names.clear()
        self.parts.clear()
        return True

    def _anew(self, node: ast.Call, name: str, given: Arguments) -> _Call | None:
        """A call that copies from the host, or takes no device, and how torch says the same on a device."""
        only = node.args[0] if len(node.args) == 1 else None
        if name not in (*_LEGACY, "tensor", "as_tensor", "from_numpy"):
            return None
        typed = name == "tensor" and [each.arg for each in node.keywords] == ["dtype"]
        if given.open or given.star or (node.keywords and not typed) or not node.args:
            return None
        text = partial(self.analysis.facts.places.text, module=self.frame.module)

        def told(function: str, *arguments: str, dtype: str | None = None) -> _Call:
            more = (f"dtype={{{dtype}}}",) if dtype else ()
            written = f"{{{function}}}({', '.join((*arguments, *more, 'device={device}'))})"
            return _Call(node, self.frame, name, given, written)

        if name in ("tensor", "as_tensor") and only is not None and self.is_number(only):
            return told("torch.full", "()", text(only), *(text(each) for each in node.keywords))
        if typed:
            return None
        listed = only.elts if isinstance(only, (ast.List, ast.Tuple)) else []
        if len(listed) == 1 and _is_literal(listed[0]):
            floats = name in ("Tensor", "FloatTensor") and text(listed[0]).lstrip("-").isdigit()
            return told("torch.full", "(1,)", text(listed[0]) + ".0" * floats, dtype=_LEGACY.get(name))
        if (drawn := self._drawn_by_numpy(only, text)) is not None:
            self.draws = True
            return told(*drawn, dtype=None if name in ("Tensor", "FloatTensor") else _LEGACY.get(name, "torch.double"))
        whole = all(_is_whole(each.value) for each in given.positions)
        if name in _LEGACY and (whole or len(node.args) > 1 or (only is not None and _is_shape(only))):
            return told("torch.empty", *map(text, node.args), dtype=_LEGACY[name])
        return None

    def _drawn_by_numpy(self, node: ast.expr | None, text: Callable[[ast.AST], str]) -> tuple[str, ...] | None:
        """What torch draws in the place of ``np.random.normal(0, 1, (n, 100))``, and with which arguments."""
        names = {event.name for event in self._events(node) if event.kind == "call"} if node is not None else set()
        drawn = _DRAWN_BY_NUMPY.get(names.pop()) if len(names) == 1 else None
        if drawn is None or not isinstance(node, ast.Call):
            return None
        given = [*node.args, *(each.value for each in node.keywords if each.arg == "size")]
        sized = drawn != "normal" or [*map(type, given)][2:] == [ast.Tuple]  # torch's takes no single number
        plain = len(given) == len(node.args) + len(node.keywords) and all(map(self._is_plain, given))
        return (f"torch.{drawn}", *map(text, given)) if given and sized and plain else None

    def statement_to_drop(self) -> ast.stmt | None:
        """``noise = noise.to(device)``, which does nothing else."""
        statement = self.analysis.facts.places.statement(self.copy, self.frame.module)
        assert isinstance(self.copy.func, ast.Attribute)
        name = self.copy.func.value
        if not isinstance(statement, ast.Assign) or statement.value is not self.copy or not isinstance(name, ast.Name):
            return None
        return statement if [dotted(each) for each in statement.targets] == [name.id] else None

    def why_not(self, passed: Passed | None, event: Event) -> str | None:
        """What makes it another program where the tensor is made on the device."""
        for each in self.calls:
            takes = each.given.keywords.get("requires_grad")
            self.leaf = self.leaf or not (takes is None or _is_false(takes.value))
            if "generator" in each.given.keywords:
                return "it is drawn from a generator of the host's, which cannot draw on the GPU"
            if each.given.open:
                return "the call unpacks a mapping that may hold `device` already"
        if self.leaf:
            return "it takes gradients where it is made, on the host, and what is copied from it has none of its own"
        if passed is not None and event.name == "cuda" and None in constants(passed.value):
            return "the device may be None, which is the current GPU here and the host where a tensor is made"
        if self.reasons:
            return self.reasons[0]
        return self._read_elsewhere(self.copy) or self._named_below(passed)

    def _read_elsewhere(self, node: ast.AST) -> str | None:
        """Whether a name on the way is used for anything else, on the host."""
        places, module = self.analysis.facts.places, self.frame.module
        own = {id(each) for one in (node, *self.names.values(), *self.parts) for each in walk(one)}
        end = None
        if node is self.copy and (choice := self._condition()) is not None:
            if not isinstance(choice, ast.If) or not _is_plain(self.analysis, choice.test):
                return "it is copied only under a condition, beside which it stays on the host"
            self.chosen, end = choice, choice.end_lineno
            own |= {id(each) for one in choice.orelse for each in walk(one)}
        for definition in self.names:
            for read in readers(places.scope(definition, module)).get(definition, ()):
                above = places.parent(read, module)
                asks = isinstance(above, ast.Attribute) and above.attr in _SIZES
                asks = asks or (isinstance(above, ast.Call) and dotted(above.func) == "len")
                if not (id(read) in own or asks or (end is not None and read.lineno > end)):
                    return f"line {read.lineno} uses `{read.id}` on the host"
        return None

    def _condition(self) -> ast.AST | None:
        """``if cuda:`` around the copy, below what makes the tensor: it can be made there by the same test."""
        places, module = self.analysis.facts.places, self.frame.module
        around = {id(places.parent(each, module)) for each in self.names.values()}
        found: list[ast.AST] = []
        below: ast.AST = self.copy
        for each in places.ancestors(self.copy, module) if around else ():
            if id(each) in around:
                break
            inside = isinstance(each, ast.If) and below in each.body
            found += [each] if inside else [below] if isinstance(each, (ast.If, ast.IfExp, ast.Try)) else []
            below = each
        return found[0] if len(found) == 1 else self.copy if found else None

    def _named_below(self, passed: Passed | None) -> str | None:
        """Whether what tells the device is not known yet where the tensor is made."""
        here = [each.node for each in self.calls if each.frame is self.frame] or [self.copy]
        first = min(each.lineno for each in here)
        module = self.frame.module
        for each in walk(passed.node) if passed is not None and passed.node is not None else ():
            if not isinstance(each, ast.Name):
                continue
            scope = self.analysis.facts.places.scope(each, module)
            for definition, reads in readers(scope).items():
                given = isinstance(definition, ast.Name) and definition.lineno >= first < self.copy.lineno
                if each in reads and given:
                    return f"`{each.id}`, whose device it goes to, is set below the place where it is made"
        return None


def _is_literal(node: ast.expr) -> bool:
    """``1.0``, ``-1``, ``float("inf")``, ``math.inf``."""
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    if isinstance(node, ast.Call):
        return dotted(node.func) == "float" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant)
    return (isinstance(node, ast.Constant) and isinstance(node.value, (int, float))) or dotted(node) in _INFINITE


_INFINITE = ("math.inf", "np.inf", "torch.inf", "math.nan", "np.nan", "torch.nan", "math.pi", "np.pi")


def _is_shape(node: ast.expr) -> bool:
    """``x.shape``, ``x.size()``, ``(n, 3)``: what a type of tensors takes for sizes, except for the last, numbers."""
    if isinstance(node, ast.Call) and not (node.args or node.keywords):
        node = node.func
        return isinstance(node, ast.Attribute) and node.attr == "size"
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _is_false(value: Value) -> bool:
    return all(isinstance(each, Const) and each.value is False for each in members(value))


def _is_type(value: Value) -> bool:
    """Whether it is a type of numbers, and not one of tensors, which names a device too (``torch.ByteTensor``)."""
    return all(isinstance(each, External) and each.qualname in DTYPES for each in members(value))


def _is_cut(index: ast.expr) -> bool:
    """Whether an index is written with numbers and slices alone."""
    return all(
        isinstance(each, (ast.Slice, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.expr_context))
        or (isinstance(each, ast.Constant) and (each.value is None or each.value is ... or type(each.value) is int))
        or isinstance(each, ast.Name)
        for each in walk(index)
    ) and not isinstance(index, ast.Name)


def _takes_device(name: str, given: Arguments) -> bool:
    """Whether the call can be told a device, and has not been."""
    if given.keywords.keys() & {"device", "out", "layout", "pin_memory", "names"}:
        return False
    return name != "normal" or given.get("size", 2) is not None  # of tensors for mean and deviation it takes none


def _device_passed(arguments: Arguments) -> Passed | None:
    """The device that a copy is told."""
    first = arguments.get("device", 0)
    return arguments.get("device", 1) if first is not None and is_dtype(first.value) else first


def _dtype_passed(event: Event, arguments: Arguments) -> Passed | None:
    """The type that a copy is told, too."""
    if event.name != "to":
        return None
    if "dtype" in arguments.keywords:
        return arguments.keywords["dtype"]
    return next((each for each in arguments.positions[:2] if is_dtype(each.value)), None)


_ASKING = frozenset(("torch.device", "torch.cuda.is_available", "torch.cuda.current_device"))


def _is_plain(analysis: Analysis, node: ast.expr) -> bool:
    """Whether an expression may as well be read where the tensor is made: names, attributes, literals, a choice."""
    return all(
        isinstance(each, (ast.Name, ast.Attribute, ast.Constant, ast.IfExp, ast.expr_context))
        or (isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant))
        or (isinstance(each, ast.Call) and _asks(analysis, each))
        for each in walk(node)
    )


def _asks(analysis: Analysis, call: ast.Call) -> bool:
    """Whether a call only makes or looks up a device."""
    events = analysis.facts.at(call)
    return bool(events) and {event.name for event in events} <= _ASKING


def _rounds(name: str, given: Arguments) -> bool:
    """Whether a device may round what a call counts up: unless it starts at a whole number, and steps by one."""
    ends = given.positions if len(given.positions) > 1 else given.positions[1:]
    return name in _ROUNDED or (name == "arange" and not all(_is_whole(each.value) for each in (*ends[:1], *ends[2:])))


def _is_whole(value: Value) -> bool:
    return all(
        (isinstance(each, Const) and type(each.value) is int)
        or (isinstance(each, Option) and not each.derived and _is_whole(each.default))
        for each in members(value)
    )


def _is_kept(statement: ast.AST | None) -> bool:
    """Whether a statement keeps what it makes beyond the step: in an attribute or a container."""
    if isinstance(statement, ast.Assign):
        return any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in statement.targets)
    return isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Attribute)
