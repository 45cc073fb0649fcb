"""Where tensors go: the device that an expression names, and the tests that decide whether a GPU is used."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import field, replace
from typing import Literal

from turbofix.dataflow.facts import Facts, Frame, attribute, stack_of
from turbofix.dataflow.guards import Condition, Guards
from turbofix.dataflow.known import Placement
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.tensors import DTYPES, is_chosen_outside
from turbofix.domain.trace import Event
from turbofix.domain.values import (
    Computed,
    Const,
    External,
    Function,
    Made,
    Opaque,
    Option,
    Tensor,
    Unknown,
    Value,
    identity,
    join_all,
    members,
)
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import kept
from turbofix.source.names import dotted, loads, parameters
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, blocks

Where = Literal["cpu", "cuda", "conditional", "unknown"]
Kind = Literal["device", "string", "index", "tensor", "unknown"]

_NAME = regex(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

_MPS = regex(r"\bmps\b")

UNKNOWN_PLACE = Placement("unknown")
OTHERS = frozenset(("mps", "xpu", "npu", "hpu", "mtia", "xla"))
"""Devices that are neither the CPU nor a CUDA GPU."""


def join_where(places: list[str]) -> Where:
    """What several possible devices make together."""
    found = set(places)
    if not found or "unknown" in found:
        return "unknown"
    if found == {"cuda"}:
        return "cuda"
    if found == {"cpu"}:
        return "cpu"
    return "conditional"


def device_of(value: Value | None) -> tuple[Where, Kind]:
    """The device that a value names, and what kind of object names it."""
    where: list[str] = []
    kinds: set[str] = set()
    one: str
    kind: str
    for member in members(value):
        if isinstance(member, Const):
            if member.value is None:
                continue
            one, kind = _device_of_constant(member.value)
        elif isinstance(member, Made) and member.kind == "device":
            one, kind = member.device, "device"
        elif isinstance(member, Option):
            one, kind = _device_of_option(member)
        elif isinstance(member, Tensor):
            one, kind = member.device, "tensor"
        elif isinstance(member, Computed) or (isinstance(member, Unknown) and member.number):
            one, kind = "cuda", "index"
        elif isinstance(member, Opaque):
            one, kind = ("conditional" if is_chosen_outside(value) else "unknown"), "unknown"
        else:
            one, kind = "unknown", "unknown"
        where.append(one)
        kinds.add(kind)
    return join_where(where), (kinds.pop() if len(kinds) == 1 else "unknown")  # type: ignore[return-value]


def may_be_another(value: Value | None) -> bool:
    """Whether a device may be neither the CPU nor a CUDA GPU: ``mps``, what ``torch.accelerator`` finds."""
    for member in members(value):
        if isinstance(member, Opaque) and is_chosen_outside(value):
            return True
        if isinstance(member, Const) and isinstance(member.value, str) and member.value.partition(":")[0] in OTHERS:
            return True
        if isinstance(member, Option) and member.origin is not None and names_another(member.origin.module):
            return True  # the user may say so: `--device`, whose help names it
        if isinstance(member, Made) and member.kind == "device":
            given = list(member.arguments.values())
            if not given or any(map(may_be_another, given)):  # torch.accelerator names none
                return True
    return False


def names_another(module: ModuleFile) -> bool:
    """Whether a file's text names Apple's GPUs."""
    return kept(module.tree, "mps", lambda: _MPS.search(module.text) is not None)


def _device_of_constant(value: object) -> tuple[str, str]:
    if isinstance(value, str):
        name = value.partition(":")[0]
        return ("cpu" if name in OTHERS else name if name in ("cpu", "cuda") else "unknown"), "string"
    if isinstance(value, int) and not isinstance(value, bool):
        return "cuda", "index"
    return "unknown", "unknown"


def _device_of_option(option: Option) -> tuple[str, str]:
    """An option's device is the user's choice, so it is never certain."""
    kinds = set()
    for default in members(option.default):
        text = isinstance(default, Const) and isinstance(default.value, str)
        if text or (isinstance(default, Computed) and default.name.startswith("cuda:")):
            kinds.add("string")
        else:
            kinds.add("index" if isinstance(default, Const) and isinstance(default.value, int) else "unknown")
    return "conditional", (kinds.pop() if len(kinds) == 1 else "unknown")


@dataclass(eq=False)
class Devices:
    """Answers about devices at places of the program."""

    facts: Facts
    guards: Guards
    held: bool = False  # by a literal alone the program stays on the CPU: where it goes is not known then
    _asked: dict[tuple[object, ...], bool] = field(default_factory=dict)

    def of_transfer(self, event: Event) -> Placement:
        """Where a ``.to(...)``, ``.cuda()`` or ``.cpu()`` moves things."""
        if event.kind == "cast":
            return UNKNOWN_PLACE
        if event.name == "cpu":
            return Placement("cpu")
        node = event.node
        arguments = event.arguments
        passed = arguments.get("device", 0) if arguments is not None else None
        if passed is not None and event.name == "to" and is_dtype(passed.value):
            passed = arguments.get("device", 1) if arguments is not None else None
        if event.name == "cuda" or (passed is None and event.name != "to"):
            placement = Placement("cuda")
            if passed is not None and passed.node is not None and not is_none(passed.value):
                text = self.facts.places.text(passed.node, event.module)
                _, kind = device_of(passed.value)
                placement = Placement("cuda", text, kind)
            return self.under_tests(placement, event, node)
        if passed is None:
            return UNKNOWN_PLACE
        where, kind = device_of(passed.value)
        if where == "unknown":
            moved = [member.device for member in members(event.result) if isinstance(member, Tensor)]
            where = join_where([*moved]) if moved else where
        if self.held and where == "cpu" and not isinstance(passed.node, ast.Constant):
            where = "unknown"
        if event.name == "type" or passed.node is None:  # x.type(torch.cuda.FloatTensor) names no device
            return self.under_tests(Placement(where), event, node) if where == "cuda" else Placement(where)
        written = self.facts.places.text(passed.node, event.module)
        placement = Placement(where, written, kind, mps=may_be_another(passed.value))
        return self.under_tests(placement, event, node) if where == "cuda" else placement

    def beside(self, event: Event, moves: Iterable[tuple[Event, Placement]]) -> Placement:
        """Where some transfers go, in words that are valid at another event (where the batches' loader is built).

        Without words (``text``, ``test``) where that place has none for it, or where the device says no more than
        ``torch.cuda.is_available()``.
        """
        placements = [placement for _, placement in moves]
        where = join_where([placement.where for placement in placements])
        if where != "conditional":
            return Placement(where)
        for move, placement in moves:
            device = placement.text if placement.text_kind in ("device", "string") else None
            words = device or placement.test
            if placement.where != "conditional" or words is None or not _NAME.fullmatch(words):
                continue
            there = self._value_of(words, move)
            here = self._value_of(words, event, before=True)
            known = here is not None and not any(isinstance(each, (Unknown, Opaque)) for each in members(here))
            same = {identity(each) for each in members(here)} == {identity(each) for each in members(there)}
            if known and same and (device is None or not self._only_asks_torch(words, event)):
                return replace(placement, where=where)
        return Placement(where)

    def named(self, words: str, event: Event) -> Value | None:
        """What a name (``device``, ``args.device``) stands for at an event."""
        return self._value_of(words, event)

    def _value_of(self, words: str, event: Event, *, before: bool = False) -> Value | None:
        """What a name (``device``, ``args.device``) stands for at an event; None where it may not be set ``before``."""
        head, *rest = words.split(".")
        frames = self.facts.frames(event)
        if not frames or (before and not self.is_set_before(words, event)):
            return None
        frame = frames[-1]
        owner = self.facts.bindings.owner(head, event.node, frame.module)
        named = self.facts.named(head, owner, frame)
        parts = [named]
        for part in rest:
            parts.append(join_all(attribute(each, part) for each in members(parts[-1])))
        return parts[-1]

    def is_set_before(self, words: str, event: Event) -> bool:
        """Whether a name is set by a statement that always runs before an event, and by nothing after it."""
        head = words.partition(".")[0]
        frames = self.facts.frames(event)
        scope, module = frames[-1].scope, frames[-1].module
        owner = self.facts.bindings.owner(head, event.node, module)
        writes = [*self.facts.bindings.writes(owner, head), *self.facts.bindings.writes(owner, words)]
        if owner is scope and not writes:
            return any(each.arg == head for each in parameters(owner))
        anchor = event.node if owner is scope else frames[0].anchor
        if owner is not scope and (owner is not module.tree or frames[0].scope is not owner):
            return False
        earlier: list[ast.stmt] = []
        for first in [anchor, *self.facts.places.ancestors(anchor, module)]:
            parent = self.facts.places.parent(first, module)
            block = next((each for each in blocks(parent) if first in each), []) if parent is not None else []
            earlier += block[: block.index(first)] if first in block else []
        known = {id(each) for each in earlier}
        if any(known.isdisjoint(map(id, (each, *self.facts.places.ancestors(each, module)))) for each in writes):
            return False
        return any(_always_sets(each, words) for each in earlier)

    def _only_asks_torch(self, words: str, event: Event) -> bool:
        """Whether a device is chosen by nothing but ``torch.cuda.is_available()``."""
        frame = self.facts.frames(event)[-1]
        owner = self.facts.bindings.owner(words.partition(".")[0], event.node, frame.module)
        found = self.facts.bindings.writes(owner, words)
        values = [each.value for each in found if isinstance(each, ast.Assign)]
        if not values and isinstance(owner, FUNCTIONS):  # a parameter: by what is passed, where it was made
            made = [each for each in members(self._value_of(words, event)) if isinstance(each, Made)]
            values = [each.origin.node for each in made if each.origin and isinstance(each.origin.node, ast.expr)]
        for value in values:
            asked = [
                inner
                for inner in walk(value)
                if isinstance(inner, ast.Call) and (dotted(inner.func) or "").endswith("cuda.is_available")
            ]
            tests = [inner.test for inner in walk(value) if isinstance(inner, ast.IfExp)]
            if not asked or tests not in ([], asked) or (not tests and value is not asked[0]):
                return False
        return bool(values)

    def under_tests(self, placement: Placement, event: Event, node: ast.AST) -> Placement:
        """A placement on a GPU that stands under a test of the device is conditional; else it stays as it is."""
        frames = self.facts.frames(event)
        for index in range(len(frames) - 1, -1, -1):
            frame = frames[index]
            anchor = node if index == len(frames) - 1 else frame.anchor
            conditions = self.guards.tests_around(anchor, frame.scope, frames[: index + 1], returns=False)
            for condition in reversed(conditions):
                if condition.test is not None and self.is_device_test(condition):
                    site = self.facts.places.site(condition.test, frame.module)
                    here = index == len(frames) - 1 and not self._calls(condition)
                    test = self._test_text(condition, frame) if here else None
                    return replace(placement, where="conditional", test=test, tests=(site,))
        return placement

    def _calls(self, condition: Condition) -> bool:
        """Whether a test calls a function of the program, which may do more than to answer."""
        named = (self.facts.evaluate(each, condition.frames) for each in loads(condition.test or ast.Pass()))
        return any(isinstance(member, Function) for value in named for member in members(value))

    def _test_text(self, condition: Condition, frame: Frame) -> str:
        assert condition.test is not None
        test, holds = condition.test, condition.holds
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and not holds:
            test, holds = test.operand, True
        text = " ".join(self.facts.places.text(test, frame.module).split())
        if holds:
            return text
        simple = isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        return f"not {text}" if simple else f"not ({text})"

    def is_device_test(self, condition: Condition) -> bool:
        """Whether a test asks whether a GPU is there, or wanted."""
        assert condition.test is not None
        return self.asks_device(condition.test, condition.frames)

    def asks_device(self, test: ast.AST, frames: tuple[Frame, ...], depth: int = 3) -> bool:
        """Whether an expression is made of ``torch.cuda.is_available()``, a device's type, or such an option."""
        if depth < 0:
            return False
        key = (test, depth, *stack_of(frames))
        if key not in self._asked:
            self._asked[key] = self._asks(test, frames, depth)
        return self._asked[key]

    def _asks(self, test: ast.AST, frames: tuple[Frame, ...], depth: int) -> bool:
        for each in walk(test):
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("cuda"):
                return True
            if isinstance(each, ast.Compare) and any(map(_is_the_cpu, (each.left, *each.comparators))):
                return True
        for name in loads(test):
            if any(_tells_gpu(member) for member in members(self.facts.evaluate(name, frames))):
                return True
            if any(self.asks_device(each, frames, depth - 1) for each in self._definitions(name, frames[-1])):
                return True
        return False

    def _definitions(self, name: ast.Name | ast.Attribute, frame: Frame) -> list[ast.expr]:
        """What a name is set to; of attributes, what says that a GPU is available."""
        if isinstance(name, ast.Name):
            owner = self.facts.bindings.owner(name.id, name, frame.module)
            writes = self.facts.bindings.writes(owner, name.id)
            return [each.value for each in writes if isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value]
        return [
            write.value
            for write, _, module in self.facts.attribute_writes(name.attr)
            if module is frame.module
            if isinstance(write, (ast.Assign, ast.AnnAssign)) and write.value is not None
            if _says_available(write.value)
        ]


def _tells_gpu(value: Value) -> bool:
    """Whether a value depends on there being a GPU, or on the user's wish for one."""
    if isinstance(value, Computed):
        return value.name.startswith(("torch.cuda.", "torch.accelerator."))
    if isinstance(value, External):
        return value.qualname in (
            "torch.cuda.is_available",
            "torch.cuda.device_count",
            "torch.accelerator.is_available",
        )
    if isinstance(value, Option):
        return any(word in value.name.lower() for word in ("cuda", "gpu", "device"))
    if isinstance(value, Function):
        return _says_available(value.node)
    return isinstance(value, Made) and value.kind == "device"


def _is_the_cpu(node: ast.expr) -> bool:
    """Whether something is compared with ``"cpu"``, or looked for in ``["cpu"]``."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return any(map(_is_the_cpu, node.elts))
    return isinstance(node, ast.Constant) and node.value == "cpu"


def _says_available(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "is_available" for each in walk(node))


def is_dtype(value: Value | None) -> bool:
    """Whether a value is a data type (``torch.long``), or a tensor's (``x.dtype``)."""
    found = members(value)
    return bool(found) and all(
        (isinstance(member, External) and member.qualname in DTYPES)
        or (isinstance(member, Made) and member.kind == "dtype")
        or (isinstance(member, Opaque) and member.name.rpartition(".")[2] == "dtype")
        for member in found
    )


def _always_sets(statement: ast.stmt, words: str) -> bool:
    """Whether a statement sets a name in whichever way it goes."""
    if isinstance(statement, ast.If):
        return all(any(_always_sets(each, words) for each in block) for block in (statement.body, statement.orelse))
    return isinstance(statement, ast.Assign) and any(dotted(target) == words for target in statement.targets)


def is_none(value: Value | None) -> bool:
    """Whether a value is certainly None."""
    found = members(value)
    return bool(found) and all(isinstance(member, Const) and member.value is None for member in found)
