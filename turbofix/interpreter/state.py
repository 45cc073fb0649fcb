"""The state of one abstract execution: its names, its control stack and its event log.

What a call or an expression gives is asked of the ``Interpreter`` that all are handed: whoever knows of calls and
statements imports what knows of values, and never the other way round.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Mapping as PlainMapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from turbofix.domain.scopes import Beside, Frame, ModuleFile, Reader, Scope
from turbofix.domain.tensors import tensors_in
from turbofix.domain.trace import Arguments, Control, Event, EventKind, LoopRecord, join_arguments
from turbofix.domain.values import (
    UNKNOWN,
    Bound,
    Class,
    Computed,
    Const,
    Device,
    Function,
    Instance,
    Made,
    Namespace,
    Opaque,
    Option,
    Origin,
    Value,
    join,
)
from turbofix.interpreter.syntax import Glance
from turbofix.source.datafile import SUFFIXES

STATEMENTS = 300_000

Settings = PlainMapping[ast.AST, str]
"""Literals that a person changes by hand to have the program do something else, by what they are assigned to."""

_Given = TypeVar("_Given", bound=Value)


class Interpreter:
    """One abstract execution."""

    # CPython finds the attributes of an object that has more than thirty by looking for them each time, but for slots.
    __slots__ = (
        *("read", "root", "beside", "folders", "modules", "sought", "module_controls", "roots", "loops", "loop_depth"),
        *("call_depth", "counts_of_dead", "closures"),
        *("budget", "glance", "changed", "in_order", "functions", "classes", "called", "frames", "active", "counts"),
        *("counted", "summaries", "instances", "made", "opaques", "flags", "forwarded", "fetched", "default_device"),
        *("_settings", "_constants", "_events", "_order", "_paths", "_interrupted", "control", "frame", "summarized"),
        *("configs", "guessed", "_config_paths", "handed"),
    )

    def __init__(self, entry: Path, root: Path, read: Reader, beside: Beside, settings: Settings) -> None:
        self.read = read
        self.root = root
        self.beside = beside
        self.configs: dict[Path, Any] = {}
        self.guessed: set[Path] = set()  # those of them that no path names
        self._config_paths: list[Path] | None = None
        self.folders = search_path(entry, root)
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

    # --- what is known further up ---------------------------------------------------------------------------------

    def eval(self, node: ast.expr) -> Value:
        """What an expression can be."""
        raise NotImplementedError

    def call(self, callee: Value, arguments: Arguments, node: ast.AST) -> Value:
        """What calling a value gives."""
        raise NotImplementedError

    def invoke(self, function: Function, arguments: Arguments, node: ast.AST | None) -> Value:
        """What a function of the project gives. ``node`` is the call; None where nobody calls it."""
        raise NotImplementedError

    def operate(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value:
        """What an arithmetic operation gives."""
        raise NotImplementedError

    def block(self, body: list[ast.stmt]) -> bool:
        """Execute statements; whether control comes out at their end."""
        raise NotImplementedError

    # --- control and events -----------------------------------------------------------------------------------------

    @property
    def config_paths(self) -> list[Path]:
        """The project's configuration files."""
        if self._config_paths is None:
            self._config_paths = list(self.beside(*SUFFIXES))
        return self._config_paths

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

    def gives(
        self,
        result: _Given,
        node: ast.AST,
        name: str,
        receiver: Value | None = None,
        arguments: Arguments | None = None,
    ) -> _Given:
        """Log a call, and give its result."""
        self.event("call", node, name, receiver, arguments, result)
        return result

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

    def levels_since(self, made_at: Control) -> list[Control]:
        """The levels of the control stack between the birth of an object and now."""
        levels: list[Control] = []
        level: Control | None = self.control
        other: Control | None = made_at
        while level is not None and level is not other:
            if other is not None and other.depth >= level.depth:
                deeper, other = other.depth > level.depth, other.up
                if deeper:
                    continue
            levels.append(level)
            level = level.up
        return levels

    def certainty(self, made_at: Control | None) -> Literal["strong", "weak", "never"]:
        """How an update made here changes an object that was born at ``made_at``.

        It replaces what was there unless an undecided test, a loop or a ``try`` lies between the birth and now, or a
        function that may have returned before.
        """
        found: Literal["strong", "weak"] = "strong"
        for level in self.levels_since(made_at) if made_at is not None else ():
            if level.is_dead:
                return "never"
            if level.kind == "comprehension" or level.is_unsure or (level.kind == "call" and level.returned):
                found = "weak"
        return found if made_at is not None else "weak"

    def is_undecided_since(self, made_at: Control) -> bool:
        """Whether an undecided test or a ``try`` (not a loop) lies between the birth of an object and now."""
        return any(level.is_dead or (level.is_unsure and level.kind != "loop") for level in self.levels_since(made_at))

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

    def absl_flags(self) -> Namespace:
        """absl's ``FLAGS``."""
        if self.flags is None:
            self.flags = Namespace(None, {}, True)
        return self.flags

    def constant(self, node: ast.Constant) -> Const | Option:
        """A literal, the same object each time; one that stands for a setting is an option."""
        found = self._constants.get(node)
        if found is None:
            const, name = Const(node.value, self.origin(node)), self._settings.get(node)
            flag = isinstance(node.value, bool)
            found = const if name is None else Option(name, const, const.origin, "setting", flag)
            self._constants[node] = found
        return found

    def text(self, prefix: str, node: ast.AST) -> Value:
        """A text of which the beginning is known."""
        return Computed(self.origin(node), "cuda:") if prefix.startswith("cuda:") else UNKNOWN

    def show_arguments(self, arguments: Arguments, node: ast.AST, name: str) -> None:
        """Those among the arguments too."""
        for passed in (*arguments.positions, *arguments.keywords.values()):
            self.show_tensors(passed.value, passed.node or node, name)

    def call_own(self, receiver: Value, name: str, arguments: Arguments, node: ast.AST) -> Value | None:
        """What a method gives that the project defines in an object's class; None where it defines none."""
        method = receiver.cls.find(name) if type(receiver) is Instance else None
        return self.call(Bound(receiver, method), arguments, node) if type(method) is Function else None

    def show_tensors(self, value: Value, node: ast.AST, name: str) -> None:
        """Tensors that become text are read on the host."""
        for _ in tensors_in(value, 2):
            self.event("sync", node, name, value)
            return

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

    def destroy(self) -> None:
        """The constants of the module become what somebody else may choose."""
        names = self.frame.module.scope.names
        for key, value in list(names.items()):
            if type(value) is Const and not key.startswith("__") and value.value is not None:
                names[key] = Option(key, value, value.origin, "exec", isinstance(value.value, bool))


def search_path(entry: Path, root: Path) -> list[Path]:
    """The folders in which modules are looked for: the script's own, those above it up to the root, and their `src`.

    What the program puts on ``sys.path`` comes to it when the file that does so is loaded.
    """
    folder = entry.parent
    folders = [folder]
    while folder != root and root in folder.parents:
        folder = folder.parent
        folders.append(folder)
    return [*folders, *(each / "src" for each in folders)]


def handlers_of(cls: type[Interpreter], prefix: str) -> dict[type[ast.AST], Callable[[Any, Any], Any]]:
    """The methods of a class by the class of nodes that each is called after: ``eval_binop`` is for ``ast.BinOp``."""
    names = {prefix + name.lower(): each for name, each in vars(ast).items() if name[0].isupper()}
    return {names[name]: getattr(cls, name) for name in dir(cls) if name in names}


Handler = Callable[[Interpreter, str, Arguments, ast.AST], Value]
"""What a function of a library or of Python gives: the execution, the function's name, the arguments, the call."""
