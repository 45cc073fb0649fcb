"""Under which condition something in a loop runs: in every iteration, every n-th, on one process, or it depends.

Tests are read where they stand: ``if`` statements and expressions around a node, early exits above it, handlers, and
the same for each call on the way in from the loop. What does not change while the loop runs is configuration.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from turbofix.dataflow.facts import Facts, Frame, argument_for, settled, stack_of
from turbofix.dataflow.known import ALWAYS, Guard
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import External, Function, Instance, Made, Opaque, Option, Tensor, members
from turbofix.library.tables import words
from turbofix.records import dataclass
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import dotted, loads, names_of, parameters
from turbofix.source.nodes import walk
from turbofix.source.places import COMPREHENSIONS, FUNCTIONS, LOOPS, SCOPES, blocks

ORDER = ("always", "config", "rank", "step", "every_n", "condition", "except")
_UNCHANGING = words(
    """
    builtins.len builtins.isinstance builtins.issubclass builtins.hasattr builtins.getattr builtins.bool
    builtins.int builtins.str builtins.type builtins.callable torch.cuda.is_available torch.cuda.device_count
    torch.backends.mps.is_available torch.distributed.is_available torch.distributed.is_initialized
    torch.distributed.get_world_size torch.device sys.stdout.isatty
    """
)
_TEXT_METHODS = {"startswith", "endswith", "lower", "upper", "strip", "get", "find", "split"}
_RANK_ATTRIBUTES = words(
    """
    get_rank is_main_process is_local_main_process is_world_process_zero is_global_zero is_master
    get_global_rank get_local_rank
    """
)
_RANK_OPTIONS = {"rank", "local_rank", "local-rank", "global_rank", "node_rank"}
_RANK_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}


@dataclass(frozen=True, eq=False)
class Condition:
    """One test that decides whether a node runs; ``holds``: it runs where that is true. ``test`` None: a handler."""

    test: ast.expr | None
    holds: bool
    node: ast.AST
    frames: tuple[Frame, ...]
    early: bool = False


@dataclass(eq=False)
class Guards:
    """The guards of nodes, with what was found out about names on the way."""

    facts: Facts
    _around: dict[tuple[object, ...], list[Condition]] = field(default_factory=dict)
    _judged: dict[tuple[object, ...], tuple[str, int | None]] = field(default_factory=dict)
    _called: dict[int, set[int]] = field(default_factory=dict)
    _varying: dict[tuple[ast.AST, tuple[Frame, ...], int], bool] = field(default_factory=dict)

    def guard(self, event: Event, loop: ast.AST) -> Guard:
        """The guard of an event inside a loop."""
        return self.judge_all(self.conditions(event, loop), loop)

    def conditions(self, event: Event, loop: ast.AST) -> list[Condition]:
        """The tests between a loop and an event in it, outermost first."""
        return self.conditions_of(event.node, self.facts.frames(event), loop)

    def conditions_of(self, node: ast.AST, frames: tuple[Frame, ...], loop: ast.AST) -> list[Condition]:
        """The tests between a loop and a node in the innermost of the frames, outermost first."""
        start = next((i for i, frame in enumerate(frames) if any(loop is each for each in frame.loops)), None)
        if start is None:
            return []
        found: list[Condition] = []
        for index in range(start, len(frames)):
            frame = frames[index]
            anchor = node if index == len(frames) - 1 else frame.anchor
            stop = loop if index == start else frame.scope
            found += self.tests_around(anchor, stop, frames[: index + 1], returns=index > start)
        return found

    def tests_around(
        self, anchor: ast.AST, stop: ast.AST, frames: tuple[Frame, ...], *, returns: bool
    ) -> list[Condition]:
        """The tests between ``stop`` and ``anchor`` in one file, outermost first.

        ``returns``: a ``return`` above the anchor skips it too (the function is called in every iteration).
        """
        key = anchor, stop, returns, frames[-1].anchor, frames[-1].loops, stack_of(frames)
        known = self._around.get(key)
        if known is None:  # the events below a call stand under the same tests
            known = self._around[key] = self._tests_around(anchor, stop, frames, returns)
        return known

    def _tests_around(
        self, anchor: ast.AST, stop: ast.AST, frames: tuple[Frame, ...], returns: bool
    ) -> list[Condition]:
        places = self.facts.places
        module = frames[-1].module
        found: list[Condition] = []
        child = anchor
        for parent in places.ancestors(anchor, module):
            if isinstance(child, ast.stmt):
                exits: list[Condition] = []
                for block in blocks(parent):
                    if any(child is each for each in block):
                        for sibling in block:
                            if sibling is child:
                                break
                            exits += self._early_exits(sibling, frames, returns)
                found += reversed(exits)
            if parent is stop:
                break
            if isinstance(parent, ast.If):
                if any(child is each for each in parent.body):
                    found.append(Condition(parent.test, True, parent, frames))
                elif any(child is each for each in parent.orelse):
                    found.append(Condition(parent.test, False, parent, frames))
            elif isinstance(parent, ast.IfExp) and child is not parent.test:
                found.append(Condition(parent.test, child is parent.body, parent, frames))
            elif isinstance(parent, ast.BoolOp):
                for value in parent.values:
                    if value is child:
                        break
                    found.append(Condition(value, isinstance(parent.op, ast.And), parent, frames))
            elif isinstance(parent, ast.ExceptHandler):
                found.append(Condition(None, True, parent, frames))
            elif isinstance(parent, ast.match_case):
                match = places.parent(parent, module)
                if isinstance(match, ast.Match):
                    found.append(Condition(match.subject, True, match, frames))
            if isinstance(parent, SCOPES):
                break
            child = parent
        return found[::-1]

    def _early_exits(self, sibling: ast.stmt, frames: tuple[Frame, ...], returns: bool) -> Iterator[Condition]:
        """The tests of a statement above that may skip what follows it."""
        if not isinstance(sibling, ast.If):
            return

        def leaves(block: list[ast.stmt]) -> bool:
            last = block[-1] if block else None
            return isinstance(last, ast.Continue) or (returns and isinstance(last, ast.Return))

        if leaves(sibling.body):
            yield Condition(sibling.test, False, sibling, frames, early=True)
        elif sibling.orelse and leaves(sibling.orelse):
            yield Condition(sibling.test, True, sibling, frames, early=True)
        else:
            for block in (sibling.body, sibling.orelse):
                if any(self._skips(each, returns, continues=True) for each in block):
                    yield Condition(sibling.test, block is sibling.orelse, sibling, frames, early=True)

    def _skips(self, statement: ast.stmt, returns: bool, continues: bool) -> bool:
        if isinstance(statement, ast.Continue):
            return continues
        if isinstance(statement, ast.Return):
            return returns
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            return False
        inner = continues and not isinstance(statement, LOOPS)
        return any(self._skips(each, returns, inner) for block in blocks(statement) for each in block)

    def beside(self, conditions: list[Condition], others: Iterable[Condition], loop: ast.AST) -> Guard:
        """The guard that the tests make together that are none of the ``others``."""
        known = {(each.test or each.node, each.holds) for each in others}
        return self.judge_all([each for each in conditions if (each.test or each.node, each.holds) not in known], loop)

    def in_steps(self, event: Event, loop: ast.AST, steps: list[Condition]) -> Guard:
        """The guard of an event, where a loop's steps happen under the tests ``steps``: ``step`` under no others."""
        conditions = self.conditions(event, loop)
        whole = self.judge_all(conditions, loop)
        rest = self.beside(conditions, steps, loop)
        if rest.kind == whole.kind or rest.kind not in ("always", "config", "rank"):
            return whole if rest.kind == whole.kind else rest
        return replace(whole, kind="step", every=None) if whole.kind not in ("config", "rank") else whole

    # --- judging ------------------------------------------------------------------------------------------------

    def judge_all(self, conditions: list[Condition], loop: ast.AST) -> Guard:
        """The guard that several tests make together: the most restricting kind among them."""
        kind = "always"
        every: int | None = None
        tests = []
        for condition in conditions:
            one, count = self.judge(condition, loop)
            tests.append(self.facts.places.site(condition.test or condition.node, condition.frames[-1].module))
            if one == "every_n" and (kind != "every_n" or every is None):
                every = count
            if ORDER.index(one) > ORDER.index(kind):
                kind = one
        if not tests:
            return ALWAYS
        return Guard(kind, tuple(tests), every if kind == "every_n" else None)  # type: ignore[arg-type]

    def judge(self, condition: Condition, loop: ast.AST) -> tuple[str, int | None]:
        """The kind of one test, and n of "every n"."""
        if condition.test is None:
            return "except", None
        frames = condition.frames
        key = condition.test, condition.holds, loop, frames[-1].loops, stack_of(frames)
        known = self._judged.get(key)
        if known is None:
            known = self._judged[key] = self._judge(condition.test, condition.holds, frames, loop, 4)
        return known

    def _judge(
        self, test: ast.expr, holds: bool, frames: tuple[Frame, ...], loop: ast.AST, depth: int
    ) -> tuple[str, int | None]:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._judge(test.operand, not holds, frames, loop, depth)
        if isinstance(test, ast.BoolOp):
            parts = [self._judge(each, holds, frames, loop, depth) for each in test.values]
            counted = [part for part in parts if part[0] == "every_n"]
            rest = [
                value
                for value, part in zip(test.values, parts, strict=False)
                if part[0] != "every_n" and part[0] != "rank"
            ]
            conjunction = isinstance(test.op, ast.And) == holds
            if counted and (conjunction or all(_is_equality(each) for each in rest)):
                return counted[0]
            if counted:
                return "condition", None
            return max((part[0] for part in parts), key=ORDER.index), None
        modulo = modulo_of(test)
        if modulo is not None and self.varies(modulo[0].left, frames) and not self.varies(modulo[0].right, frames):
            if modulo[1] == holds and self.counts(modulo[0].left, frames, loop):
                count = settled(self.facts.evaluate(modulo[0].right, frames))
                return "every_n", count if isinstance(count, int) else None
            return "condition", None
        if isinstance(test, ast.Name) and depth:
            writes = self.facts.bindings.writes(frames[-1].scope, test.id)
            if len(writes) == 1 and isinstance(writes[0], ast.Assign) and self.varies(test, frames):
                return self._judge(writes[0].value, holds, frames, loop, depth - 1)
            passed = self.passed_for(test, frames)
            if passed is not None:
                return self._judge(passed, holds, frames[:-1], loop, depth - 1)
        if self.is_rank(test, frames):
            return "rank", None
        asked, there = _given(test)
        if asked is not None and there == holds and self._is_computed(asked, frames):
            return "config", None
        return ("condition" if self.varies(test, frames) else "config"), None

    def _is_computed(self, node: ast.expr, frames: tuple[Frame, ...]) -> bool:
        """Whether an expression is a tensor or an object where it is not None, as no write beside it decides."""
        writes = self.facts.bindings.writes(frames[-1].scope, node.id) if isinstance(node, ast.Name) else ()
        values = (getattr(each, "value", None) for each in writes)
        if any(getattr(part, "value", 0) is None for each in values if each is not None for part in walk(each)):
            return False
        held = [each for each in members(self.facts.evaluate(node, frames)) if getattr(each, "value", 0) is not None]
        given = bool(held) and all(isinstance(each, (Tensor, Made, Instance)) for each in held)
        return given or getattr(node, "attr", "") == "grad"

    def passed_for(self, name: ast.Name, frames: tuple[Frame, ...]) -> ast.expr | None:
        """What the call of the innermost frame passes for a name that is a parameter there, and never written."""
        frame = frames[-1]
        if len(frames) < 2 or not isinstance(frame.call, ast.Call) or self.facts.bindings.writes(frame.scope, name.id):
            return None
        if not any(each.arg == name.id for each in parameters(frame.scope)):
            return None
        return argument_for(name.id, frame, frame.call)

    def counts(self, node: ast.expr, frames: tuple[Frame, ...], loop: ast.AST) -> bool:
        """Whether an expression changes from one iteration of this very loop to the next."""
        inside = tuple(Frame(f.scope, f.module, f.anchor, f.call, f.loops, f.function, f.opener) for f in frames)
        start = next((i for i, frame in enumerate(inside) if any(loop is each for each in frame.loops)), None)
        if start is None:  # another way leads through that loop
            return self.varies(node, frames)
        first = inside[start]
        kept = tuple(each for each in first.loops if first.loops.index(each) >= first.loops.index(loop))
        trimmed = Frame(first.scope, first.module, first.anchor, None, kept, first.function, first.opener)
        quiet = tuple(Frame(f.scope, f.module, f.anchor, f.call, (), f.function, f.opener) for f in inside[:start])
        return self.varies(node, (*quiet, trimmed, *inside[start + 1 :]))

    def varies(self, node: ast.AST, frames: tuple[Frame, ...], depth: int = 6) -> bool:
        """Whether an expression may change its value while the loops of the frames run."""
        if depth < 0:
            return True
        key = node, frames, depth
        known = self._varying.get(key)
        if known is None:  # many events stand under the same tests
            known = self._varying[key] = self._varies(node, frames, depth)
        return known

    def _varies(self, node: ast.AST, frames: tuple[Frame, ...], depth: int) -> bool:
        for name in loads(node):
            if self._name_varies(name, frames, depth):
                return True
        for each in walk(node):
            if isinstance(each, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
                return True
            if isinstance(each, ast.Call) and not self._call_is_steady(each, frames):
                return True
        return False

    def _call_is_steady(self, call: ast.Call, frames: tuple[Frame, ...]) -> bool:
        function = self.facts.evaluate(call.func, frames)
        for member in members(function):
            if isinstance(member, External) and member.qualname in _UNCHANGING:
                return True
        name = call.func.id if isinstance(call.func, ast.Name) else None
        if name is not None and f"builtins.{name}" in _UNCHANGING and not members(function):
            return True
        return isinstance(call.func, ast.Attribute) and call.func.attr in _TEXT_METHODS

    def _name_varies(self, node: ast.Name | ast.Attribute, frames: tuple[Frame, ...], depth: int) -> bool:
        name = dotted(node) or ""
        head, *rest = name.split(".")
        frame = frames[-1]
        base: ast.AST = node
        while isinstance(base, ast.Attribute):
            base = base.value
        owner = self.facts.bindings.owner(head, base, frame.module)
        if isinstance(owner, COMPREHENSIONS):
            return True
        if "device" in rest or "is_cuda" in rest:  # where things are stays the same
            return False
        bar = rest and any(
            getattr(each, "kind", "") == "progress" for each in members(self.facts.evaluate(base, frames))
        )
        if bar or self._head_varies(head, owner, frames, depth):
            return True
        parent = self.facts.places.parent(node, frame.module)
        called = isinstance(parent, ast.Call) and parent.func is node
        attributes = rest[:-1] if called else rest
        return any(self._attribute_varies(each, frames) for each in attributes)

    def _head_varies(self, head: str, owner: ast.AST, frames: tuple[Frame, ...], depth: int) -> bool:
        frame = frames[-1]
        bindings = self.facts.bindings
        writes = bindings.writes(owner, head)
        position = next((i for i, each in enumerate(frames) if each.scope is owner), None)
        if position is None:
            # an enclosing function, or a module that is not on the stack
            if isinstance(owner, ast.Module):
                return self._global_varies(head, frame.module)
            return len(writes) > 1
        holder = frames[position]
        for write in writes:
            if any(self.facts.owns_loop(loop, holder.module, write) or write is loop for loop in holder.loops):
                return True
        if isinstance(owner, ast.Module):
            return self._global_varies(head, holder.module)
        if not any(each.loops for each in frames[:position]):
            return False
        # a function that is called in a loop: its locals change as what they are made of does
        outer = frames[: position + 1]
        if any(each.arg == head for each in parameters(owner)) and self._parameter_varies(head, outer, depth):
            return True
        for write in writes:
            value = getattr(write, "value", None)
            if (
                not isinstance(write, (ast.Assign, ast.AnnAssign))
                or value is None
                or self.varies(value, outer, depth - 1)
            ) and not isinstance(write, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)):
                return True
        return False

    def _parameter_varies(self, name: str, frames: tuple[Frame, ...], depth: int) -> bool:
        frame = frames[-1]
        if not isinstance(frame.call, ast.Call) or len(frames) < 2:
            return True
        argument = argument_for(name, frame, frame.call)
        if argument is not None:
            return self.varies(argument, frames[:-1], depth - 1)
        first = parameters(frame.scope)[:1]
        if first and first[0].arg == name and frame.function is not None and frame.function.cls is not None:
            return isinstance(frame.call.func, ast.Attribute) and self.varies(
                frame.call.func.value, frames[:-1], depth - 1
            )
        from turbofix.source.names import default_of

        return default_of(frame.scope, name) is None

    def _global_varies(self, name: str, module: ModuleFile) -> bool:
        """Whether a function declares the module's name global and writes it."""
        return name in globals_written(module.tree)

    def _attribute_varies(self, name: str, frames: tuple[Frame, ...]) -> bool:
        """Whether an attribute of this name may be written while the frames' outermost loop runs."""
        loops = [loop for frame in frames for loop in frame.loops]
        if not loops:
            return False
        outermost = loops[0]
        start = next(i for i, frame in enumerate(frames) if frame.loops)
        called = self._called_in(outermost)
        for node, scope, module in self.facts.attribute_writes(name):
            if scope is frames[start].scope:
                if self.facts.owns_loop(outermost, module, node):
                    return True
            elif any(scope is frame.scope for frame in frames[:start]) or isinstance(scope, ast.Module):
                continue
            elif id(scope) in called or (
                not getattr(scope, "name", "").startswith("__init__") and self._named_in(scope, frames[start:])
            ):
                return True
        return False

    def _called_in(self, loop: ast.AST) -> set[int]:
        """The functions that run in an iteration of a loop, as far as events show."""
        found = self._called.get(id(loop))
        if found is None:
            found = self._called[id(loop)] = {
                id(frame.scope)
                for event in self.facts.events_in(loop)
                for frame in self.facts.frames_within(event, loop)[1:]
            }
        return found

    def _named_in(self, function: ast.AST, frames: tuple[Frame, ...]) -> bool:
        """Whether a function's name is called in the text of a function that the loop runs in."""
        name = getattr(function, "name", None)
        return any(name in _names_called(frame.scope) for frame in frames)

    # --- processes ----------------------------------------------------------------------------------------------

    def is_rank(self, node: ast.AST | None, frames: tuple[Frame, ...], depth: int = 5) -> bool:
        """Whether an expression is made of a process's rank: ``dist.get_rank() == 0``, ``args.local_rank``."""
        for each in walk(node) if node is not None and depth > 0 else ():
            if getattr(each, "attr", "") in _RANK_ATTRIBUTES or getattr(each, "value", None) in _RANK_VARIABLES:
                return True
            if isinstance(each, (ast.Name, ast.Attribute)) and self._names_rank(each, frames, depth):
                return True
        return False

    def _names_rank(self, node: ast.Name | ast.Attribute, frames: tuple[Frame, ...], depth: int) -> bool:
        """An option for it, a name that is set to it, or a small function of the project that returns it."""
        last = (dotted(node) or "").rpartition(".")[2]
        for member in members(self.facts.evaluate(node, frames)):
            parameter = isinstance(member, Opaque) and member.how == "parameter" and last in _RANK_OPTIONS
            if parameter or (isinstance(member, Option) and member.name.lstrip("-") in _RANK_OPTIONS):
                return True
            if isinstance(member, External) and member.qualname.rpartition(".")[2] in _RANK_ATTRIBUTES:
                return True
            if isinstance(member, Function) and isinstance(member.node, ast.FunctionDef) and len(member.node.body) <= 6:
                inner = (Frame(member.node, member.module, member.node, None, (), member),)
                returned = (each.value for each in walk(member.node) if isinstance(each, ast.Return))
                if any(self.is_rank(each, inner, depth - 2) for each in returned):
                    return True
        if not isinstance(node, ast.Name):
            return False
        writes = self.facts.bindings.writes(self.facts.bindings.owner(node.id, node, frames[-1].module), node.id)
        values = (each.value for each in writes if isinstance(each, (ast.Assign, ast.AnnAssign)))
        return any(self.is_rank(each, frames, depth - 1) for each in values)


@once_per_node
def globals_written(tree: ast.Module) -> frozenset[str]:
    """The names that some function of a file declares global (or nonlocal) and writes."""
    found: set[str] = set()
    for scope in (*every(ast.FunctionDef, tree), *every(ast.AsyncFunctionDef, tree)):
        names = names_of(scope)
        found.update(name for name in names.outer if name in names.writes)
    return frozenset(found)


@once_per_node
def _names_called(scope: ast.AST) -> frozenset[str]:
    """The names of functions and methods that are called in the text of a function or file."""
    called = (each.func for each in walk(scope) if isinstance(each, ast.Call))
    return frozenset(
        each.id if isinstance(each, ast.Name) else each.attr
        for each in called
        if isinstance(each, (ast.Name, ast.Attribute))
    )


def none_test(test: ast.expr) -> ast.Compare | None:
    """``x is None``, ``x is not None``."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        return None
    last = test.comparators[0]
    return test if isinstance(last, ast.Constant) and last.value is None else None


def _given(test: ast.expr) -> tuple[ast.expr | None, bool]:
    """What a test asks for whether it is there, or is a tensor, and whether the test then holds."""
    if (compared := none_test(test)) is not None:
        return compared.left, isinstance(compared.ops[0], ast.IsNot)
    called = (dotted(test.func) or "").rpartition(".")[2] if isinstance(test, ast.Call) and test.args else ""
    return (test.args[0] if isinstance(test, ast.Call) and called in ("isinstance", "is_tensor") else None), True


def modulo_of(test: ast.expr) -> tuple[ast.BinOp, bool] | None:
    """The ``x % n`` of a test, and the truth of the test at which one of n iterations passes."""
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod):
        return test, False
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        for side in (test.left, test.comparators[0]):
            if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod):
                if isinstance(test.ops[0], ast.Eq):
                    return side, True
                if isinstance(test.ops[0], (ast.NotEq, ast.Gt)):
                    return side, False
    return None


def _is_equality(node: ast.expr) -> bool:
    """A test that holds at single points (``i == last``)."""
    return isinstance(node, ast.Compare) and all(isinstance(op, ast.Eq) for op in node.ops)
