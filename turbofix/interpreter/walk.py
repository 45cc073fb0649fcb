"""The walk: statements and expressions in program order, on abstract values, under a control stack.

Both sides of an undecided test are executed on copies of the local names and joined; a loop's body is executed once,
after every constant that it assigns became unknown; calls of the project's functions are executed where they stand
(calls.py).
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Mapping as PlainMapping
from pathlib import Path
from types import MethodType
from typing import Any, Literal

from turbofix.domain.scopes import Beside, Frame, Lazy, ModuleFile, Reader, Scope
from turbofix.domain.tensors import in_precision, is_scalar, joined_hosts, result_of, tensors_in
from turbofix.domain.trace import Arguments, Control, Event, EventKind, LoopRecord, join_arguments
from turbofix.domain.values import (
    NEVER,
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Class,
    Computed,
    Const,
    Device,
    Entry,
    External,
    Function,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Namespace,
    Opaque,
    Option,
    Origin,
    Partial,
    Sequence,
    Tensor,
    Union,
    Value,
    is_hashable,
    is_number,
    is_object,
    join,
    join_all,
    members,
    truth_of,
    widened,
)
from turbofix.interpreter import access, calls, imports
from turbofix.interpreter.brains import config_files
from turbofix.interpreter.syntax import Glance
from turbofix.library import tables as libraries
from turbofix.source.datafile import SUFFIXES
from turbofix.source.names import dotted
from turbofix.source.nodes import walk

STATEMENTS = 300_000

Settings = PlainMapping[ast.AST, str]
"""Literals that a person changes by hand to have the program do something else, by what they are assigned to."""

_FOLD: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_FEW = 8
"""So many numbers that a name can be are each taken times another one."""

_TENSOR_OPERATIONS: dict[type[ast.operator], str] = {ast.MatMult: "__matmul__", ast.Pow: "__pow__"}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: type(a) is type(b) and a == b,  # equal literals are one object
    ast.IsNot: lambda a, b: type(a) is not type(b) or a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_DATACLASS = libraries.words(
    "dataclasses.dataclass pydantic.dataclasses.dataclass chex.dataclass attr.s attrs.define attr.dataclass"
)
_RECORDS = libraries.words("pydantic.BaseModel pydantic.BaseSettings pydantic_settings.BaseSettings typing.NamedTuple")


_LOOKED_INTO = frozenset({Lazy, Union, Const})
"""What a name's value need not be all that the name can be."""


class OutOfBudgetError(Exception):
    """More statements than the analysis takes on were executed."""


class Interpreter:
    """One abstract execution: its names, its control stack and its event log."""

    # CPython finds the attributes of an object that has more than thirty by looking for them each time, but for slots.
    __slots__ = (
        *("read", "root", "beside", "folders", "modules", "sought", "module_controls", "roots", "loops", "loop_depth"),
        *("call_depth", "counts_of_dead", "closures"),
        *("budget", "glance", "changed", "in_order", "functions", "classes", "called", "frames", "active", "counts"),
        *("counted", "summaries", "instances", "made", "opaques", "flags", "forwarded", "fetched", "default_device"),
        *("_settings", "_constants", "_events", "_order", "_paths", "_interrupted", "_statements", "expressions"),
        *("control", "frame", "summarized", "configs", "guessed", "_config_paths", "handed"),
    )

    def __init__(self, entry: Path, root: Path, read: Reader, beside: Beside, settings: Settings) -> None:
        self.read = read
        self.root = root
        self.beside = beside
        self.configs: dict[Path, config_files.ConfigFile | None] = {}
        self.guessed: set[Path] = set()  # those of them that no path names
        self._config_paths: list[Path] | None = None
        self.folders = imports.search_path(entry, root)
        self.modules: dict[Path, ModuleFile | None] = {}
        self.sought: dict[tuple[Path, str], ModuleFile | None] = {}  # the same by their folder and their path in it
        self.module_controls: dict[ModuleFile, Control] = {}
        self.roots: list[Control] = []
        self.loops: dict[ast.AST, LoopRecord] = {}
        self.loop_depth = 0
        self.call_depth = 0
        self.budget = STATEMENTS
        self.glance = Glance()
        self.changed: dict[str, set[str]] = {}  # attributes and keys that the project changes, and to what
        self.in_order = True  # False while what nobody called is executed
        self.functions: dict[ast.AST, Function] = {}  # every function of the project that was defined, by its node
        self.classes: dict[ast.AST, Class] = {}
        self.called: set[ast.AST] = set()
        self.frames: dict[Control, Frame] = {}  # of every module and call that was executed
        self.summarized: list[tuple[Frame, ast.AST, ast.AST]] = []  # calls of functions that were not executed again
        self.handed: list[tuple[Value, ast.AST, Control, Frame]] = []  # what a call that is not followed may call
        self.active: dict[ast.AST, tuple[tuple[Scope, Arguments], ...]] = {}  # of each function the calls under way
        self.closures: set[tuple[ast.AST, Scope]] = set()  # what was called, by where it was defined
        self.counts: dict[ast.AST, int] = {}  # how often each function was called, each class's object made
        self.counts_of_dead: dict[ast.AST, int] = {}  # the same in branches that never run
        self.counted: list[ast.AST] = []  # these functions and classes as they were called
        self.summaries: dict[ast.AST, Value] = {}
        self.instances: dict[ast.AST, Instance] = {}
        self.made: dict[tuple[ast.AST | None, str, int], Made] = {}
        self.opaques: dict[tuple[ast.AST | None, str], Opaque] = {}
        self.flags: Namespace | None = None  # absl's
        # what models gave for the arguments of a call, and what was counted meanwhile
        self.forwarded: dict[tuple[Value, Arguments], tuple[Value, list[ast.AST]]] = {}
        self.fetched: dict[object, Value] = {}  # what the functions that a loader's workers run gave
        self.default_device: Device = "cpu"
        self._settings = settings
        self._constants: dict[ast.AST, Const | Option] = {}
        self._events: dict[tuple[str, ast.AST, int, str], Event] = {}
        self._order = 0
        self._paths: dict[tuple[int, object], int] = {}
        self._interrupted: list[dict[str, Value]] = []  # the names at the breaks and continues of the innermost loop
        self.control = Control(None, "root", None, None)
        self.frame: Frame
        self._statements: dict[type[ast.AST], Callable[[Any], bool | None]] = {
            ast.Expr: self._expression_statement,
            ast.Assign: self._assign,
            ast.AnnAssign: self._annotated_assign,
            ast.AugAssign: self._augmented_assign,
            ast.If: self._if,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
            ast.Break: self._leave_iteration,
            ast.Continue: self._leave_iteration,
            ast.Return: self._return,
            ast.Raise: self._raise,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.Try: self._try,
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Import: lambda node: imports.import_modules(self, node),
            ast.ImportFrom: lambda node: imports.import_names(self, node),
            ast.Global: self._global,
            ast.Nonlocal: self._nonlocal,
            ast.Delete: self._delete,
            ast.Assert: self._assert,
            ast.Match: self._match,
        }
        if hasattr(ast, "TryStar"):
            self._statements[ast.TryStar] = self._try
        known: dict[type[ast.AST], Callable[[Any], Value]] = {
            ast.Constant: self.constant,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: MethodType(calls.evaluate_call, self),
            ast.Subscript: self._subscript,
            ast.Tuple: self._display,
            ast.List: self._display,
            ast.Set: self._display,
            ast.Dict: self._dict,
            ast.JoinedStr: self._formatted,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.BoolOp: self._boolean,
            ast.Compare: self._compare,
            ast.IfExp: self._conditional,
            ast.Lambda: self._lambda,
            ast.ListComp: self._sequence_comprehension,
            ast.SetComp: self._sequence_comprehension,
            ast.GeneratorExp: self._generator_expression,
            ast.DictComp: self._dict_comprehension,
            ast.NamedExpr: self._named,
            ast.Starred: lambda node: self.eval(node.value),
            ast.Await: lambda node: self.eval(node.value),
            ast.Yield: self._yield,
            ast.YieldFrom: self._yield_from,
            ast.Slice: self._slice,
        }
        self.expressions: defaultdict[type[ast.AST], Callable[[Any], Value]]
        self.expressions = defaultdict(lambda: lambda _: UNKNOWN, known)

    def close(self) -> None:
        """Forget the tables of its own methods, which hold it: else only a search through all objects would free it."""
        self._statements.clear()
        self.expressions.clear()

    def run_module(self, module: ModuleFile) -> None:
        """Execute a module's body under a control stack of its own, whatever is being executed."""
        outer = getattr(self, "frame", None)
        up, loop_depth, interrupted = self.control, self.loop_depth, self._interrupted
        self.control = self.new_root()
        self.loop_depth = 0
        self._interrupted = []
        self.frame = Frame(None, module.scope, module)
        self.module_controls[module] = self.enter("module", module.tree)
        self.frames[self.control] = self.frame
        self.block(module.tree.body)
        self.control, self.loop_depth, self._interrupted = up, loop_depth, interrupted
        if outer is not None:
            self.frame = outer

    @property
    def config_paths(self) -> list[Path]:
        """The project's configuration files."""
        if self._config_paths is None:
            self._config_paths = list(self.beside(*SUFFIXES))
        return self._config_paths

    # --- control and events -----------------------------------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        """The event log, in program order."""
        return list(self._events.values())  # as they were logged

    @property
    def may_repeat(self) -> bool:
        """Whether this runs again, or at another time: what is changed further down may be changed already."""
        return self.loop_depth > 0 or not self.in_order

    def origin(self, node: ast.AST) -> Origin:
        """A node of the module that is being executed."""
        return Origin(node, self.frame.module)

    def enter(self, kind: str, node: ast.AST | None, detail: object = None, decided: bool = False) -> Control:
        """Push a level on the control stack; the caller puts the old one back."""
        up = self.control
        path = up.path
        if kind in ("loop", "call", "comprehension"):
            key = (path, node if node is not None else id(detail))
            path = self._paths.setdefault(key, len(self._paths) + 1)
        self.control = Control(up, kind, node, self.frame.module, detail, up.depth + 1, decided, path)
        return self.control

    def new_root(self, detail: object = None) -> Control:
        """A control stack of its own, for what is not run where it stands."""
        root = Control(None, "root", None, None, detail)
        self.roots.append(root)
        return root

    def event(  # noqa: PLR0913
        self,
        kind: EventKind,
        node: ast.AST,
        name: str = "",
        receiver: Value | None = None,
        arguments: Arguments | None = None,
        result: Value | None = None,
    ) -> Event:
        """Log an act; the same act at the same node, under the same loops and calls, is one event."""
        key = (kind, node, self.control.path, name)
        found = self._events.get(key)
        if found is None:
            self._order += 1
            found = self._events[key] = Event(
                kind, node, self.frame.module, self.control, name, receiver, arguments, result, self._order
            )
            return found
        if receiver is not found.receiver:
            found.receiver = join(found.receiver, receiver)
        if result is not found.result:
            found.result = join(found.result, result)
        if arguments is not None and found.arguments is not arguments:
            found.arguments = join_arguments(found.arguments, arguments) if found.arguments is not None else arguments
        return found

    def forget(self, number: int) -> None:
        """Take the events back that were logged after so many."""
        for key in [*self._events][number:]:
            del self._events[key]

    def absorb(self, node: ast.AST) -> Value | None:
        """``x.cpu().numpy()`` is one read, that of the outer call: take the inner one back, and give what it read."""
        inner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if inner is None and isinstance(node, ast.Call) and node.args:
            inner = node.args[0]
        while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            if inner.func.attr == "cpu":
                event = self._events.pop(("sync", inner, self.control.path, "cpu"), None)
                return event.receiver if event is not None else None
            inner = inner.func.value
        return None

    def certainty(self, made_at: Control | None) -> Literal["strong", "weak", "never"]:
        """How an update made here changes an object that was born at ``made_at``.

        It replaces what was there unless an undecided test, a loop or a ``try`` lies between the birth and now, or a
        function that may have returned before.
        """
        if made_at is None:
            return "weak"
        level: Control | None = self.control
        other: Control | None = made_at
        found: Literal["strong", "weak", "never"] = "strong"
        while level is not None and level is not other:
            if other is not None and other.depth > level.depth:
                other = other.up
                continue
            if level.kind == "if" and level.detail == "dead":
                return "never"
            if level.kind in ("loop", "comprehension", "try") or (level.kind == "if" and not level.decided):
                found = "weak"
            if level.kind == "call" and level.returned:
                found = "weak"
            if other is not None and other.depth == level.depth:
                other = other.up
            level = level.up
        return found

    def is_undecided_since(self, made_at: Control) -> bool:
        """Whether an undecided test or a ``try`` (not a loop) lies between the birth of an object and now."""
        level: Control | None = self.control
        other: Control | None = made_at
        while level is not None and level is not other:
            if other is not None and other.depth > level.depth:
                other = other.up
                continue
            if level.kind == "try" or (level.kind == "if" and (not level.decided or level.detail == "dead")):
                return True
            if other is not None and other.depth == level.depth:
                other = other.up
            level = level.up
        return False

    # --- values that are made once per place ------------------------------------------------------------------------

    def count(self, body: ast.AST) -> int:
        """How often a function was called, or a class's object made, before this time."""
        count = self.counts.get(body, 0)
        self.counts[body] = count + 1
        self.counted.append(body)
        return count

    def make(  # noqa: PLR0913
        self,
        qualname: str,
        kind: str,
        arguments: Arguments,
        node: ast.AST,
        inner: Value | None = None,
        log: bool = True,
    ) -> Made:
        """The object that an external call makes; one object per call in the program and chain of calls to it."""
        key = (node, qualname, self.control.path)
        made = self.made.get(key)
        if made is None:
            made = self.made[key] = Made(qualname, kind, arguments, self.origin(node), self.control, inner)
        else:
            made.arguments = join_arguments(made.arguments, arguments)
            made.inner = join(made.inner, inner)
        if log:
            self.event("make", node, qualname, None, arguments, made)
        return made

    def opaque(self, name: str, how: str, node: ast.AST, source: Value | None = None, depth: int = 0) -> Opaque:
        """The unknown that an expression gives: one object per expression, which remembers how it is used."""
        key = (node, name)
        found = self.opaques.get(key)
        if found is None:
            found = self.opaques[key] = Opaque(name, how, self.origin(node), depth, source)
        return found

    # --- names ------------------------------------------------------------------------------------------------------

    def bind(self, name: str, value: Value) -> None:
        """Give a name of the current scope a value."""
        scope = self.frame.scope
        if name in scope.globals:
            module = scope.module
            names = module.scope.names
            control = self.module_controls.get(module)
            strong = control is not None and self.certainty(control) == "strong"
            names[name] = value if strong or name not in names else join(names[name], value) or value
            return
        if name in scope.nonlocals:
            outer = scope.parent
            while outer is not None and name not in outer.names:
                outer = outer.parent
            if outer is not None:
                outer.names[name] = join(outer.names[name], value) or value
                return
        scope.names[name] = value

    def lookup(self, name: str) -> Value:
        """What a name stands for."""
        scope: Scope | None = self.frame.scope
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                if type(value) is Lazy:
                    value = scope.names[name] = imports.force(self, value)
                elif type(value) is Union:
                    if Lazy in map(type, value.values):
                        value = scope.names[name] = imports.settled(self, value)
                elif (
                    type(value) is Const
                    and (scope is not self.frame.scope or self.may_repeat)
                    and name in self.glance.changing_names(scope.module)
                ):
                    return widened(value)
                return value
            scope = scope.parent
        module = self.frame.module
        for library in module.star_imports:
            if name in libraries.star_names().get(library, ()):
                return External(libraries.canonical(f"{library}.{name}"))
        if name in _BUILTINS:
            return External("builtins." + name)
        return self.opaque(name, "free", module.tree)

    # --- statements -------------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt]) -> bool:
        """Execute statements; whether control comes out at their end."""
        for statement in body:
            self.budget -= 1
            if self.budget < 0:
                raise OutOfBudgetError
            handler = self._statements.get(type(statement))
            if handler is not None and handler(statement) is False:
                return False
        return True

    def _expression_statement(self, node: ast.Expr) -> bool:
        return self.eval(node.value) is not NEVER

    def _assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.assign(target, value, node)

    def _annotated_assign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.eval(node.value), node)

    def _augmented_assign(self, node: ast.AugAssign) -> None:
        old = self.eval(node.target)
        value = self.eval(node.value)
        self.event("sum", node, "", old, None, value)
        self.assign(node.target, self.operate(old, value, node.op, node), node)

    def assign(self, target: ast.expr, value: Value, statement: ast.AST) -> None:
        """Assign to a name, attribute, item, or to the parts of a tuple."""
        kind = type(target)
        if kind is ast.Name:
            self.bind(target.id, value)  # type: ignore[attr-defined]
        elif isinstance(target, ast.Attribute):
            for member in members(self.eval(target.value)):
                access.write_attribute(self, member, target.attr, value, statement)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part, each in zip(target.elts, access.unpack(self, value, target), strict=True):
                self.assign(part.value if isinstance(part, ast.Starred) else part, each, statement)
        elif isinstance(target, ast.Subscript):
            container = self.eval(target.value)
            key = self.eval(target.slice)
            for member in members(container):
                access.write_item(self, member, key, value, statement, target)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, statement)

    def test(self, node: ast.expr) -> Value:
        """Evaluate what decides over control; reading a tensor for that is a sync."""
        value = self.eval(node)
        if not isinstance(node, ast.Constant):
            if Tensor in map(type, members(value)):
                self.event("sync", node, "bool", value)
            self.event("test", node, "", value)
        return value

    def _if(self, node: ast.If) -> bool:
        truth = truth_of(self.test(node.test))
        up = self.control
        scope = self.frame.scope
        if truth is None:
            before = scope.names
            after: list[dict[str, Value]] = []
            for side, body in enumerate((node.body, node.orelse)):
                if not body:
                    after.append(before)
                    continue
                scope.names = dict(before)
                self.enter("if", node, side)
                if self.block(body):
                    after.append(scope.names)
                self.control = up
            scope.names = joined_names(after) if after else before
            return bool(after)
        live, dead = (node.body, node.orelse) if truth else (node.orelse, node.body)
        if dead:
            before = scope.names
            scope.names, counts, self.counts = dict(before), self.counts, self.counts_of_dead
            self.enter("if", node, "dead", decided=True)
            self.block(dead)
            self.control, self.counts = up, counts  # what never happens is no reason to look at what does less often
            scope.names = before
        self.enter("if", node, 0 if truth else 1, decided=True)
        falls_through = self.block(live)
        self.control = up
        return falls_through

    def _for(self, node: ast.For | ast.AsyncFor) -> bool:
        iterated = self.eval(node.iter)
        self.event("iterate", node, "", iterated)
        source = iterated.source if type(iterated) is Iterated and iterated.wrapper == "items" else None
        if _sets_attributes(node.body) and type(source) is Mapping and not source.open and source.element is None:
            for key, entry in list(source.entries.items()):  # `for k, v in kwargs.items(): setattr(self, k, v)`
                self.assign(node.target, Sequence([Const(key), entry.value]), node)
                self.block(node.body)
            return self.block(node.orelse)
        return self._loop(node, iterated, access.iterate(self, iterated, node.iter))

    def _while(self, node: ast.While) -> bool:
        return self._loop(node, None, None)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, iterated: Value | None, element: Value | None) -> bool:
        record = self.loops.get(node)
        if record is None:
            record = self.loops[node] = LoopRecord(node, self.frame.module, iterated)
        else:
            record.iterated = join(record.iterated, iterated)
        scope = self.frame.scope
        before = dict(scope.names)
        self._widen(node, before)
        up = self.control
        interrupted = self._interrupted
        self._interrupted = []
        self.loop_depth += 1
        scope.names = dict(before)
        self.enter("loop", node, record)
        if isinstance(node, ast.While):
            self.test(node.test)
        else:
            self.assign(node.target, element or UNKNOWN, node)
        falls_through = self.block(node.body)
        after = [before, *self._interrupted]
        if falls_through:
            after.append(scope.names)
        scope.names = joined_names(after)
        self._interrupted = interrupted
        self.loop_depth -= 1
        self.control = up
        return self.block(node.orelse) if node.orelse else True

    def _widen(self, loop: ast.AST, names: dict[str, Value]) -> None:
        """Before a loop's body is executed: what it assigns is no longer the constant that it was."""
        assigned, inside = self.glance.assigned(loop)
        for name in assigned:
            value = names.get(name)
            if type(value) is Const or type(value) is Option:
                names[name] = widened(value)
        for name, key, is_key in inside:
            for member in members(names.get(name)):
                if not is_key and isinstance(member, (Instance, Namespace, Made)) and isinstance(key, str):
                    old = member.attributes.get(key)
                    if type(old) is Const:
                        member.attributes[key] = widened(old)
                elif is_key and isinstance(member, Mapping):
                    entry = member.entries.get(key)
                    if entry is not None and type(entry.value) is Const:
                        member.entries[key] = Entry(widened(entry.value), entry.must, entry.origin)

    def _leave_iteration(self, _: ast.Break | ast.Continue) -> bool:
        if not self._is_dead("loop"):
            self._interrupted.append(self.frame.scope.names)
        return False

    def _is_dead(self, until: str) -> bool:
        """Whether this stands in a branch that a decided test excludes, within the innermost level of that kind."""
        level: Control | None = self.control
        while level is not None and level.kind != until:
            if level.kind == "if" and level.detail == "dead":
                return True
            level = level.up
        return False

    def _return(self, node: ast.Return) -> bool:
        value = self.eval(node.value) if node.value is not None else NONE
        if node.value is not None:
            self.event("return", node, "", None, None, value)
        if self._is_dead("call"):
            return False
        self.frame.returned = join(self.frame.returned, value)
        undecided = False
        for level in self.control.upwards():
            if level.kind == "call":
                level.returned = level.returned or undecided
                break
            undecided = undecided or level.kind in ("loop", "try") or (level.kind == "if" and not level.decided)
        return False

    def _raise(self, node: ast.Raise) -> bool:
        if node.exc is not None:
            self.eval(node.exc)
        return False

    def _assert(self, node: ast.Assert) -> None:
        self.test(node.test)

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        up = self.control
        for item in node.items:
            value = self.eval(item.context_expr)
            self.event("enter", item.context_expr, "", value)
            entered = access.enter_context(self, value, item.context_expr)
            self.enter("with", node, (item, value))
            if item.optional_vars is not None:
                self.assign(item.optional_vars, entered, node)
        falls_through = self.block(node.body)
        self.control = up
        return falls_through

    def _try(self, node: ast.Try) -> bool:
        scope = self.frame.scope
        before = dict(scope.names)
        up = self.control
        self.enter("try", node)
        falls_through = self.block(node.body)
        body_names = scope.names
        if falls_through and node.orelse:
            falls_through = self.block(node.orelse)
        after = [scope.names] if falls_through else []
        for handler in node.handlers:
            scope.names = joined_names([before, body_names])
            self.control = up
            self.enter("if", handler, "except")
            if handler.name:
                self.bind(handler.name, self.opaque(handler.name, "call", handler))
            if self.block(handler.body):
                after.append(scope.names)
        self.control = up
        scope.names = joined_names(after) if after else body_names
        ends = self.block(node.finalbody) if node.finalbody else True
        return ends and bool(after)

    def _match(self, node: ast.Match) -> bool:
        subject = self.eval(node.subject)
        self.event("test", node.subject, "", subject)
        scope = self.frame.scope
        before = scope.names
        up = self.control
        after = [before]
        for side, case in enumerate(node.cases):
            scope.names = dict(before)
            self.enter("if", node, side)
            for part in walk(case.pattern):
                name = getattr(part, "name", None)
                if isinstance(name, str):
                    self.bind(name, subject if part is case.pattern else UNKNOWN)
            if case.guard is not None:
                self.test(case.guard)
            if self.block(case.body):
                after.append(scope.names)
            self.control = up
        scope.names = joined_names(after)
        return True

    def _global(self, node: ast.Global) -> None:
        self.frame.scope.globals.update(node.names)

    def _nonlocal(self, node: ast.Nonlocal) -> None:
        self.frame.scope.nonlocals.update(node.names)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.frame.scope.names.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                key = self.eval(target.slice)
                for member in members(self.eval(target.value)):
                    if isinstance(member, Mapping):
                        access.drop_item(self, member, key)

    # --- definitions ------------------------------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorators = tuple(calls.decorator(self, each) for each in node.decorator_list)
        function = Function(node, self.frame.module, self._closure(), None, decorators)
        self.functions[node] = function
        self.bind(node.name, calls.decorate(self, function))

    def _lambda(self, node: ast.Lambda) -> Function:
        return Function(node, self.frame.module, self._closure())

    def _closure(self) -> Scope:
        """The scope that a function defined here sees: a class's names are not among it."""
        scope = self.frame.scope
        return scope.parent if self.frame.in_class and scope.parent is not None else scope

    def _class(self, node: ast.ClassDef) -> None:
        bases = tuple(self.eval(base) for base in node.bases)
        decorators = [calls.decorator(self, each) for each in node.decorator_list]
        outer = self.frame
        scope = Scope(self._closure(), outer.module)
        cls = Class(node, outer.module, bases, scope.names)
        externals = {each.qualname for value in decorators for each in members(value) if type(each) is External}
        cls.is_dataclass = (
            bool(externals & _DATACLASS)
            or any(name in _RECORDS for name in cls.externals())
            or any(type(base) is Class and base.is_dataclass for base in cls.mro()[1:])
        )
        self.classes[node] = cls
        self.frame = Frame(None, scope, outer.module, in_class=True)
        self.block(node.body)
        self.frame = outer
        cls.names = scope.names
        for value in cls.names.values():
            for member in members(value):
                if type(member) is Function and member.cls is None:
                    member.cls = cls
        self.bind(node.name, cls)
        for each in reversed(decorators):  # they put it into a table, perhaps: it is the class all the same
            if isinstance(each, (Function, Bound, Partial)):
                calls.call(self, each, calls.positional(cls), node)

    # --- expressions ------------------------------------------------------------------------------------------------

    def eval(self, node: ast.expr) -> Value:
        """What an expression can be."""
        value = self.expressions[type(node)](node)
        values = self.frame.values
        known = values.get(node)
        values[node] = value if known is None or known is value else join(known, value) or value
        return value

    def constant(self, node: ast.Constant) -> Const | Option:
        """A literal, the same object each time; one that stands for a setting is an option."""
        found = self._constants.get(node)
        if found is None:
            const, name = Const(node.value, self.origin(node)), self._settings.get(node)
            flag = isinstance(node.value, bool)
            found = const if name is None else Option(name, const, const.origin, "setting", flag)
            self._constants[node] = found
        return found

    def _name(self, node: ast.Name) -> Value:
        value = self.frame.scope.names.get(node.id)
        if value is not None and type(value) not in _LOOKED_INTO:  # as nearly all are
            return value
        return self.lookup(node.id)

    def _attribute(self, node: ast.Attribute) -> Value:
        return access.read_attribute(self, self.eval(node.value), node.attr, node)

    def _subscript(self, node: ast.Subscript) -> Value:
        container = self.eval(node.value)
        key = self.eval(node.slice)
        return access.read_item(self, container, key if not isinstance(node.slice, ast.Slice) else None, node)

    def _slice(self, node: ast.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.eval(part)
        return UNKNOWN

    def _display(self, node: ast.Tuple | ast.List | ast.Set) -> Sequence:
        kind: Literal["list", "tuple", "set"] = (
            "tuple" if isinstance(node, ast.Tuple) else "list" if isinstance(node, ast.List) else "set"
        )
        if ast.Starred not in map(type, node.elts):
            return Sequence([self.eval(each) for each in node.elts], self.control, self.origin(node), kind)
        items: list[Value] | None = []
        element: Value | None = None
        for each in node.elts:
            value = self.eval(each)
            if not isinstance(each, ast.Starred):
                element = join(element, value)
                if items is not None:
                    items.append(value)
            elif type(value) is Sequence and value.items is not None:
                element = join(element, join_all(value.items))
                if items is not None:
                    items.extend(value.items)
            else:
                element = join(element, access.iterate(self, value, each))
                items = None
        return Sequence(items, self.control, self.origin(node), kind, None if items is not None else element)

    def _dict(self, node: ast.Dict) -> Mapping:
        mapping = Mapping(self.control, self.origin(node))
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.eval(value_node)
            if key_node is None:
                access.merge(self, mapping, value, strong=True)
                continue
            access.put(self, mapping, self.eval(key_node), value, value_node)
        return mapping

    def _formatted(self, node: ast.JoinedStr) -> Value:
        text: list[str] | None = []
        option: Option | None = None
        for part in node.values:
            if isinstance(part, ast.Constant):
                if text is not None:
                    text.append(str(part.value))
                continue
            if not isinstance(part, ast.FormattedValue):
                continue
            value = self.eval(part.value)
            self.show_tensors(value, part.value, "format")
            if type(value) is Option and value.how == config_files.HOW:
                option, value = value, value.default
            if (
                type(value) is Const
                and isinstance(value.value, (str, int))
                and part.format_spec is None
                and text is not None
            ):
                text.append(str(value.value))
            elif text is not None:
                return self._format_rest(node, part, "".join(text))
        whole = Const("".join(text or ()), self.origin(node))
        if option is None:
            return whole
        return Option(option.name, whole, option.origin, option.how, option.flag, derived=True)

    def _format_rest(self, node: ast.JoinedStr, stopped: ast.FormattedValue, prefix: str) -> Value:
        """The rest of an f-string whose text is not known from ``stopped`` on."""
        for part in node.values[node.values.index(stopped) + 1 :]:
            if isinstance(part, ast.FormattedValue):
                self.show_tensors(self.eval(part.value), part.value, "format")
        return self.text(prefix, node)

    def text(self, prefix: str, node: ast.AST) -> Value:
        """A text of which the beginning is known."""
        return Computed(self.origin(node), "cuda:") if prefix.startswith("cuda:") else UNKNOWN

    def show_tensors(self, value: Value, node: ast.AST, name: str) -> None:
        """Tensors that become text are read on the host."""
        for _ in tensors_in(value, 2):
            self.event("sync", node, name, value)
            return

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.assign(node.target, value, node)
        return value

    def _conditional(self, node: ast.IfExp) -> Value:
        truth = truth_of(self.test(node.test))
        up = self.control
        if truth is not None:
            self.enter("if", node, 0 if truth else 1, decided=True)
            value = self.eval(node.body if truth else node.orelse)
            self.control = up
            return value
        given = _given_in(node)
        self.enter("if", node, 0)
        first = self.eval(node.body)
        self.control = up
        self.enter("if", node, 1)
        second = self.eval(node.orelse)
        self.control = up
        first = without_none(first) if given is node.body else first
        second = without_none(second) if given is node.orelse else second
        return join(first, second) or UNKNOWN

    def _boolean(self, node: ast.BoolOp) -> Value:
        stops_when = isinstance(node.op, ast.Or)
        joined: Value | None = None
        for each in node.values[:-1]:
            value = self.eval(each)
            truth = truth_of(value)
            if truth is stops_when:
                return join(joined, value) or UNKNOWN
            if truth is None:
                joined = join(joined, join_all(m for m in members(value) if truth_of(m) in (None, stops_when)))
        return join(joined, self.eval(node.values[-1])) or UNKNOWN

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Not):
            return join_all(self._negated(member, node) for member in members(value)) or UNKNOWN
        if type(value) is Const and isinstance(value.value, (int, float)):
            if isinstance(node.op, ast.USub):
                return Const(-value.value, self.origin(node))
            return (
                Const(~value.value, self.origin(node))
                if isinstance(value.value, int) and isinstance(node.op, ast.Invert)
                else value
            )
        tensors = [member for member in members(value) if type(member) is Tensor]
        if not tensors:
            return value
        result = result_of(tensors, self.origin(node))
        result.scalar = is_scalar(value)
        return result

    def _negated(self, value: Value, node: ast.AST) -> Value:
        truth = truth_of(value)
        if truth is not None:
            return Const(not truth, self.origin(node))
        if type(value) is Option:
            default = truth_of(value.default)
            return Option(
                value.name,
                Const(not default) if default is not None else UNKNOWN,
                value.origin,
                value.how,
                value.flag,
                derived=True,
            )
        return value if isinstance(value, (Tensor, Host, Computed)) else UNKNOWN

    def _binary(self, node: ast.BinOp) -> Value:
        return self.operate(self.eval(node.left), self.eval(node.right), node.op, node)

    def operate(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value:
        """What an arithmetic operation gives."""
        if type(left) is Const and type(right) is Const:
            return self._fold(left.value, right.value, operation, node)
        both = (*members(left), *members(right))
        tensors = [member for member in both if type(member) is Tensor]
        if type(left) is Const and isinstance(left.value, str) and isinstance(operation, (ast.Mod, ast.Add)):
            if isinstance(operation, ast.Mod):
                for part, value in format_arguments(node, right):
                    self.show_tensors(value, part, "format")
            return self.text(left.value, node)
        if tensors:
            if isinstance(operation, ast.MatMult):
                self.event("call", node, "Tensor.__matmul__", left, calls.positional(right))
            result = result_of(tensors, self.origin(node))
            result.scalar = is_scalar(left) and is_scalar(right)
            return in_precision(result, _TENSOR_OPERATIONS.get(type(operation), ""))
        hosts = [member for member in both if type(member) is Host]
        if hosts:
            return joined_hosts(hosts)
        if type(left) is Option or type(right) is Option:
            several = self._operate_on_several(left, right, operation, node)
            return several or self._operate_on_option(left, right, operation, node)
        if type(left) is Computed or type(right) is Computed:
            return Computed(self.origin(node)) if is_settled(left) and is_settled(right) else NUMBER
        if type(left) is Sequence:
            return self._operate_on_sequence(left, right, operation, node)
        if isinstance(operation, ast.Add) and all(type(each) is Sequence for each in both):
            # a list that a loop has or has not made longer yet
            held = [item for each in both if type(each) is Sequence for item in (*(each.items or ()), each.element)]
            known = [item for item in held if item is not None]
            return Sequence(None, self.control, self.origin(node), "list", join_all(known) if known else None)
        if isinstance(left, Mapping) and isinstance(operation, ast.BitOr):
            merged = Mapping(self.control, self.origin(node))
            access.merge(self, merged, left, strong=True)
            access.merge(self, merged, right, strong=True)
            return merged
        for value in (left, right):
            if type(value) is Opaque:
                return access.child(self, value, f"<{operation.__class__.__name__}>", node)
        if isinstance(operation, (ast.Add, ast.Mod, ast.BitOr)) and not (is_number(left) or is_number(right)):
            return UNKNOWN
        return self._operate_on_several(left, right, operation, node) or NUMBER

    def _operate_on_several(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value | None:
        """What a number with one of a few numbers gives: ``4 * width`` where stages have several widths."""
        one, several = (left, right) if len(members(left)) == 1 else (right, left)
        found = members(several)
        if not 1 < len(found) <= _FEW or not isinstance(operation, ast.Mult):
            return None
        if not all(_is_known_number(each) for each in (one, *found)):
            return None
        return join_all(self.operate(one, each, operation, node) for each in found)

    def _fold(self, left: object, right: object, operation: ast.operator, node: ast.AST) -> Value:
        if isinstance(left, str):
            if isinstance(right, str) and isinstance(operation, ast.Add) and len(left) + len(right) < 500:
                return Const(left + right, self.origin(node))
            return self.text(left, node)
        if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            return UNKNOWN
        try:
            if isinstance(operation, ast.Pow):
                small = abs(right) <= 64 and abs(left) <= 1e6
                return Const(left**right, self.origin(node)) if small else NUMBER
            if isinstance(operation, ast.LShift):
                return (
                    Const(left << right, self.origin(node))
                    if isinstance(left, int) and isinstance(right, int) and 0 <= right < 64
                    else NUMBER
                )
            fold = _FOLD.get(type(operation))
            return Const(fold(left, right), self.origin(node)) if fold is not None else NUMBER
        except (ArithmeticError, TypeError, ValueError):
            return NUMBER

    def _operate_on_option(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value:
        option = left if type(left) is Option else right
        assert type(option) is Option
        if not all(isinstance(value, (Option, Const)) for value in (left, right)):
            return Computed(self.origin(node)) if all(is_settled(value) for value in (left, right)) else NUMBER
        default = self.operate(
            left.default if type(left) is Option else left,
            right.default if type(right) is Option else right,
            operation,
            node,
        )
        return Option(option.name, default, option.origin, option.how, option.flag, derived=True)

    def _operate_on_sequence(self, left: Sequence, right: Value, operation: ast.operator, node: ast.AST) -> Value:
        if isinstance(operation, ast.Add) and type(right) is Sequence:
            if left.items is not None and right.items is not None:
                return Sequence(left.items + right.items, self.control, self.origin(node), left.kind)
            element = join(access.element_of(left), access.element_of(right))
            return Sequence(None, self.control, self.origin(node), left.kind, element)
        if isinstance(operation, ast.Mult):
            if (
                left.items is not None
                and type(right) is Const
                and isinstance(right.value, int)
                and 0 <= right.value * len(left.items) <= 64
            ):
                return Sequence(left.items * right.value, self.control, self.origin(node), left.kind)
            return Sequence(None, self.control, self.origin(node), left.kind, access.element_of(left))
        return UNKNOWN

    def _compare(self, node: ast.Compare) -> Value:
        left = self.eval(node.left)
        if len(node.ops) > 1:
            return self._reading_compare([left, *map(self.eval, node.comparators)], node) or UNKNOWN
        right, operation = self.eval(node.comparators[0]), node.ops[0]
        if type(left) is not Union:
            return self._compare_two(left, right, operation, node)
        return join_all(self._compare_two(each, right, operation, node) for each in left.values) or UNKNOWN

    def _compare_two(self, left: Value, right: Value, operation: ast.cmpop, node: ast.Compare) -> Value:
        if type(left) is Const and type(right) is Const:
            try:
                return Const(bool(_COMPARE[type(operation)](left.value, right.value)), self.origin(node))
            except TypeError:
                return UNKNOWN
        same = isinstance(operation, (ast.Is, ast.IsNot))
        if type(right) is Const and right.value is None and (same or type(left) is Tensor):
            if is_object(left) and not is_part(left):  # (a tensor's `== None` looks at none of its numbers)
                return Const(isinstance(operation, (ast.IsNot, ast.NotEq)), self.origin(node))
        elif isinstance(operation, (ast.In, ast.NotIn)):
            if isinstance(right, Mapping) and type(left) is Const and is_hashable(left.value):
                entry = right.entries.get(left.value)
                if entry is not None and entry.must:
                    return Const(isinstance(operation, ast.In), self.origin(node))
                if entry is None and not right.open and right.element is None:
                    return Const(isinstance(operation, ast.NotIn), self.origin(node))
        elif not same:
            found = self._reading_compare([left, right], node)
            if found is not None:
                return found
        if not (is_settled(left) and is_settled(right)):
            return UNKNOWN
        option = left if type(left) is Option else right
        if type(option) is Option:
            default: Value = UNKNOWN
            sides = [side.default if type(side) is Option else side for side in (left, right)]
            if all(type(side) is Const for side in sides):
                default = self._compare_two(sides[0], sides[1], operation, node)
            return Option(option.name, default, option.origin, option.how, option.flag, derived=True)
        for side in (left, right):
            if type(side) is Computed:
                return Computed(self.origin(node), side.name)
        return UNKNOWN

    def _reading_compare(self, values: list[Value], node: ast.Compare) -> Value | None:
        """A comparison of tensors is a tensor, one of values read from tensors is such a value."""
        found = [member for value in values for member in members(value)]
        tensors = [member for member in found if type(member) is Tensor]
        if tensors:
            return result_of(tensors, self.origin(node))
        hosts = [member for member in found if type(member) is Host]
        return joined_hosts(hosts) if hosts else None

    # --- comprehensions and generators ------------------------------------------------------------------------------

    def _comprehend(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, last: Callable[[], Value]
    ) -> tuple[Value, Value | None]:
        """What the last part of a comprehension gives, and what its first loop runs over."""
        scope = self.frame.scope
        before = scope.names
        scope.names = dict(before)
        up = self.control
        source: Value | None = None
        for generator in node.generators:
            iterated = self.eval(generator.iter)
            source = source or iterated
            self.event("iterate", generator.iter, "", iterated)
            element = access.iterate(self, iterated, generator.iter)
            self.enter("comprehension", node, iterated)
            self.assign(generator.target, element, node)
            for condition in generator.ifs:
                self.test(condition)
        value = last()
        self.control = up
        scope.names = before
        return value, source

    def _sequence_comprehension(self, node: ast.ListComp | ast.SetComp) -> Sequence:
        element, _ = self._comprehend(node, lambda: self.eval(node.elt))
        kind: Literal["list", "set"] = "list" if isinstance(node, ast.ListComp) else "set"
        return Sequence(None, self.control, self.origin(node), kind, element)

    def _generator_expression(self, node: ast.GeneratorExp) -> Iterated:
        element, source = self._comprehend(node, lambda: self.eval(node.elt))
        return Iterated(element, source, "generator", self.origin(node))

    def _dict_comprehension(self, node: ast.DictComp) -> Mapping:
        def last() -> Value:
            self.eval(node.key)
            return self.eval(node.value)

        element, _ = self._comprehend(node, last)
        return Mapping(self.control, self.origin(node), {}, True, element)

    def _yield(self, node: ast.Yield) -> Value:
        value = self.eval(node.value) if node.value is not None else NONE
        self.frame.yielded = join(self.frame.yielded, value)
        return UNKNOWN

    def _yield_from(self, node: ast.YieldFrom) -> Value:
        self.frame.yielded = join(self.frame.yielded, access.iterate(self, self.eval(node.value), node))
        return UNKNOWN


# --- small answers ----------------------------------------------------------------------------------------------------

_BUILTINS = frozenset(dir(__builtins__)) if not isinstance(__builtins__, dict) else frozenset(__builtins__)


def is_part(value: Value) -> bool:
    """Whether a tensor was read from an attribute or item of something (``outputs.loss``): there may be none."""
    return (
        type(value) is Tensor
        and value.origin is not None
        and isinstance(value.origin.node, (ast.Attribute, ast.Subscript))
    )


_SETTLED = frozenset({Const, Option, Computed})


def is_settled(value: Value) -> bool:
    """Whether a value is chosen before the run, or by the machine, the same in every iteration."""
    return _SETTLED.issuperset(map(type, members(value)))


def _is_known_number(value: Value) -> bool:
    """Whether a value is a number, or an option that is one by default."""
    default = value.default if type(value) is Option else value
    return type(default) is Const and type(default.value) in (int, float)


def format_arguments(node: ast.AST, value: Value) -> list[tuple[ast.expr, Value]]:
    """The expressions that ``"..." % ...`` formats, with their values."""
    if not isinstance(node, ast.BinOp):
        return []
    if isinstance(node.right, ast.Tuple) and type(value) is Sequence and value.items is not None:
        return list(zip(node.right.elts, value.items, strict=False))
    return [(node.right, value)]


def _held(value: Value) -> tuple[Value | None, ...]:
    """What a list holds, as far as it is known."""
    return (*(value.items or ()), value.element) if type(value) is Sequence else ()


def joined_names(alternatives: list[dict[str, Value]]) -> dict[str, Value]:
    """The names after several paths met."""
    if len(alternatives) == 1:
        return alternatives[0]
    joined = dict(alternatives[0])
    for names in alternatives[1:]:
        if names == joined:  # values are equal only to themselves
            continue
        for name, value in names.items():
            old = joined.get(name)
            if old is not value:
                joined[name] = join(old, value) or value
    return joined


def _given_in(node: ast.IfExp) -> ast.expr | None:
    """The branch of ``x if x is not None else y`` that is the tested name itself, which is not None there."""
    test = node.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or dotted(test.left) is None:
        return None
    other = test.comparators[0]
    if (
        not isinstance(other, ast.Constant)
        or other.value is not None
        or not isinstance(test.ops[0], (ast.Is, ast.IsNot))
    ):
        return None
    branch = node.body if isinstance(test.ops[0], ast.IsNot) else node.orelse
    return branch if dotted(branch) == dotted(test.left) else None


def without_none(value: Value) -> Value:
    """The value where it is known not to be None; of an option that is None by default, what the user gave."""
    kept: Value | None = None
    for member in members(value):
        if type(member) is Option and type(member.default) is Const and member.default.value is None:
            kept = join(kept, Option(member.name, UNKNOWN, member.origin, member.how, member.flag, derived=True))
        elif not (type(member) is Const and member.value is None):
            kept = join(kept, member)
    return kept or value


def _sets_attributes(body: list[ast.stmt]) -> bool:
    """Whether the body of a loop does nothing but set an attribute by its name."""
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    return isinstance(call, ast.Call) and (dotted(call.func) or "").rpartition(".")[2] in ("setattr", "__setattr__")
