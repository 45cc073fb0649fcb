"""What keeps a training from CUDA although its models and batches move by a device: a literal, or an option's default.

A device is followed to the literals that it can be, and a ``"cuda"`` among them to the tests that it stands under: as
the program stands, they hold or not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.placements import OTHERS
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.switches import around, stands
from turbofix.domain.trace import Event
from turbofix.domain.values import Computed, Const, Made, Option, Origin, Value, members
from turbofix.records import dataclass
from turbofix.training.model import Held
from turbofix.training.steps.acts import is_model

_PLAIN = (ast.Assign, ast.AnnAssign, ast.keyword, ast.Call, ast.Dict, ast.arguments, ast.Return)


@dataclass(frozen=True)
class _Root:
    """Where something is written that keeps the CPU: by which option, and what it is compared with."""

    origin: Origin
    option: str | None = None
    wanted: str = "cuda"


class _Unknown(Exception):  # noqa: N818  (an outcome, not an error)
    """A GPU is used, or that cannot be told."""


def held_back(analysis: Analysis) -> tuple[Held, ...]:
    """What to change for a GPU where there is one; nothing where one is used already, or that is not known."""
    search = _Search(analysis)
    roots: dict[int, _Root] = {}
    moved = list(analysis.facts.of("transfer"))
    decide = [event for event in moved if is_model(event.receiver)] or moved
    for event in moved:
        try:
            roots |= {id(root.origin.node): root for root in search.moved(event)}
        except _Unknown:  # tensors follow a model, which may stay
            if event in decide:
                return ()
    return tuple(sorted(filter(None, map(search.held, roots.values())), key=lambda each: each.site))


class _Search:
    """The search through one program."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.facts = analysis, analysis.facts

    def moved(self, event: Event) -> list[_Root]:
        """What keeps a transfer from going to a GPU; nothing where it says nothing of that."""
        passed = event.arguments.get("device", 0) if event.arguments is not None else None
        if event.name == "cuda":
            return self._skipped(event.node, self.facts.frames(event))
        if event.name != "to" or passed is None or isinstance(passed.node, ast.Constant):
            return []
        named = list(_named(passed.value))
        roots = [(name, origin, option) for name, origin, option in filter(None, named)]
        gpus = [origin for name, origin, _ in roots if name not in ("cpu", *OTHERS)]
        if gpus:
            return [root for origin in gpus for root in self._unreached(origin)]
        if None in named:
            return []
        last = "cpu" if any(name == "cpu" for name, _, _ in roots) else "mps"  # Apple's GPU, whatever there is
        return [self._instead(origin, option) for name, origin, option in roots if name == last and origin is not None]

    def _unreached(self, origin: Origin | None) -> list[_Root]:
        """What keeps the program from a literal that names a GPU."""
        frames = self.facts.there(origin) if origin is not None else ()
        if origin is None or not frames:
            raise _Unknown
        return self._skipped(origin.node, frames)

    def _instead(self, origin: Origin, option: str | None) -> _Root:
        """What chooses the CPU: the test of ``"cuda" if use_cuda else "cpu"``, a test that it stands under, else the
        literal."""
        parent, frames = self.facts.places.parent(origin.node, origin.module), self.facts.there(origin)
        off = self._off(parent.test, True, frames) if isinstance(parent, ast.IfExp) else None
        if off is None and frames:
            tests = self.analysis.guards.tests_around(origin.node, frames[-1].scope, frames, returns=False)
            off = next(filter(None, (self._off(each.test, not each.holds, frames) for each in tests)), None)
        return off or _Root(origin, option)

    def _skipped(self, node: ast.AST, frames: tuple[Frame, ...]) -> list[_Root]:
        """What keeps the program from a place."""
        found = (self._off(each.test, each.holds, inner) for each, inner in around(self.analysis, node, frames))
        root = next(filter(None, found), None)
        if root is None:
            raise _Unknown
        return [root]

    def _off(self, test: ast.expr | None, holds: bool, frames: tuple[Frame, ...]) -> _Root | None:
        """What makes a test not hold as the program stands."""
        stand = stands(self.facts, test, frames) if test is not None else None
        if stand is not None and stand.origin is not None and bool(stand.value) is not holds:
            named = stand.wanted if isinstance(stand.wanted, str) and stand.wanted != "cpu" else "cuda"
            return _Root(stand.origin, stand.option, named)
        return None

    def held(self, root: _Root) -> Held | None:
        """The literal, with what is said of it; None for one that does not stand for the CPU."""
        node, module, places = root.origin.node, root.origin.module, self.facts.places
        parent = places.parent(node, module)
        site = places.site(node, module)
        plain = isinstance(parent, _PLAIN) or (isinstance(parent, ast.IfExp) and parent.orelse is node)
        try:
            value = ast.literal_eval(node)
        except ValueError:
            return Held(site, None, root.option)
        if value is not False and value not in ("cpu", "mps", -1, "-1"):
            return None
        wanted = "" if value is False else root.wanted if value in ("cpu", "mps") else "0"
        return Held(site, wanted, root.option, type(value) is str, not plain)


def _named(value: Value | None) -> Iterator[tuple[str, Origin | None, str | None] | None]:
    """The literals that a device can be; None for what is not known."""
    for member in members(value):
        if isinstance(member, Made) and member.kind == "device":
            passed = member.arguments.get("type", 0)
            yield from _named(passed.value) if passed is not None else (None,)
        elif isinstance(member, Computed) and member.name.startswith("cuda:"):
            yield "cuda", member.origin, None
        else:
            option = member.name if isinstance(member, Option) and not member.derived else None
            const = member.default if isinstance(member, Option) and option else member
            origin = member.origin if isinstance(member, (Const, Option)) else None
            yield (str(const.value), origin, option) if isinstance(const, Const) and const.value is not None else None
