"""What all readers of the event log share: live events, call frames, and the value of an expression in its frame."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING, TypeGuard

from turbofix.domain.scopes import Frame as Executed
from turbofix.domain.scopes import Lazy, ModuleFile
from turbofix.domain.trace import Control, Event
from turbofix.domain.values import (
    UNKNOWN,
    Bound,
    Const,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    Mapping,
    ModuleValue,
    Namespace,
    Option,
    Origin,
    Sequence,
    Tensor,
    Value,
    join_all,
    members,
)
from turbofix.interpreter.execution import Execution
from turbofix.library.tables import BARS, canonical
from turbofix.records import dataclass
from turbofix.source.answers import every, once_per_node, parents_in, statements
from turbofix.source.names import ASSIGNING, Bindings, parameters, written
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS, SCOPES, Places, contains
from turbofix.source.site import Site

if TYPE_CHECKING:
    from turbofix.domain.trace import LoopRecord


@dataclass(eq=False, slots=True)  # never changed once made, and made by the ten thousand (see ``values``)
class Frame:
    """One function (or module body) that is being executed, and the node in it that execution stands at.

    ``call`` is the call that opened it, in the frame before; None for a module, or a function that nobody calls.
    ``loops`` are the loops entered in this frame, outermost first.
    """

    scope: ast.AST
    module: ModuleFile
    anchor: ast.AST
    call: ast.AST | None
    loops: tuple[ast.AST, ...]
    function: Function | None = None
    opener: Control | None = None


def stack_of(frames: tuple[Frame, ...]) -> tuple[object, ...]:
    """What the value of an expression in the innermost frame depends on: not on where in it execution stands.

    The calls between the two ends lie above the inner one's opener, so that they need not be named.
    """
    outer, inner = frames[0], frames[-1]
    return len(frames), outer.opener or outer, inner.opener or inner


@dataclass(eq=False)
class Facts:
    """The execution, indexed."""

    execution: Execution
    places: Places = field(default_factory=Places)
    bindings: Bindings = field(init=False)
    events: list[Event] = field(init=False)
    dead: list[Event] = field(init=False)
    _kinds: dict[str, list[Event]] = field(default_factory=dict)
    _frames: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    _entries: dict[Control, tuple[Control | None, tuple[ast.AST, ...]]] = field(default_factory=dict)
    _callers: dict[Control, tuple[Frame, ...]] = field(default_factory=dict)  # by the call or module that they entered
    _loops: dict[Control, tuple[LoopRecord, ...]] = field(default_factory=dict)
    _by_loop: dict[int, set[Control]] | None = None  # the levels in each loop
    _of_kinds: dict[tuple[str, ...], list[Event]] = field(default_factory=dict)
    _in_loops: dict[int, list[Event]] = field(default_factory=dict)
    _in_functions: dict[frozenset[ast.AST], list[Event]] = field(default_factory=dict)
    _openers: dict[Control, Frame] | None = None
    _levels: dict[Control, Event] | None = None
    _first: dict[ast.AST, tuple[Frame, ...]] | None = None
    _nodes: dict[int, list[Event]] | None = None
    _executions: dict[ast.AST, list[Executed]] | None = None  # by the function or file
    _attributes: dict[str, list[tuple[ast.AST, ast.AST, ModuleFile]]] | None = None
    _changes: list[tuple[ast.Call | ast.Attribute, ModuleFile]] | None = None

    def __post_init__(self) -> None:
        self.bindings = Bindings(self.places)
        ordered = sorted(self.execution.events, key=lambda event: event.order)
        dead = dead_levels(event.control for event in ordered)
        self.events = [event for event in ordered if not dead[event.control]]
        self.dead = [event for event in ordered if dead[event.control]]
        for event in self.events:
            self._kinds.setdefault(event.kind, []).append(event)

    def of(self, *kinds: str) -> list[Event]:
        """The live events of these kinds, in program order."""
        if len(kinds) == 1:
            return self._kinds.get(kinds[0], [])
        if kinds not in self._of_kinds:
            found = (each for kind in kinds for each in self._kinds.get(kind, ()))
            self._of_kinds[kinds] = sorted(found, key=attrgetter("order"))
        return self._of_kinds[kinds]

    def at(self, node: ast.AST) -> list[Event]:
        """The live events at a node."""
        if self._nodes is None:
            self._nodes = {}
            for event in self.events:
                self._nodes.setdefault(id(event.node), []).append(event)
        return self._nodes.get(id(node), [])

    def site(self, event: Event) -> Site:
        """Where an event happened."""
        return self.places.site(event.node, event.module)

    def origin_site(self, origin: Origin | None) -> Site | None:
        """Where a value was written."""
        return self.places.site(origin.node, origin.module) if origin is not None else None

    def frames(self, event: Event) -> tuple[Frame, ...]:
        """The frames that an event happened in, outermost first."""
        found = self._frames.get(id(event))
        if found is None:
            opener, loops = self._entered(event.control)
            if opener is None:
                found = ()
            else:
                found = (*self._outer_frames(opener), self._frame(opener, event.node, event.module, loops))
            self._frames[id(event)] = found
        return found

    def _entered(self, control: Control | None) -> tuple[Control | None, tuple[ast.AST, ...]]:
        """The innermost call or module at or above a level, and the loops that were entered in it."""
        if control is None:
            return None, ()
        found = self._entries.get(control)
        if found is None:
            if control.kind in ("call", "module"):
                found = control, ()
            else:
                found = self._entered(control.up)
                if is_loop(control):
                    found = found[0], (*found[1], control.detail.node)  # type: ignore[attr-defined]
            self._entries[control] = found
        return found

    def _outer_frames(self, opener: Control) -> tuple[Frame, ...]:
        """The frames around the one that a call or module opens, outermost first."""
        found = self._callers.get(opener)
        if found is None:
            above, loops = self._entered(opener.up)
            if above is None or opener.node is None:  # a function that nobody calls begins a stack of its own
                found = ()
            else:
                assert opener.module is not None
                found = (*self._outer_frames(above), self._frame(above, opener.node, opener.module, loops))
            self._callers[opener] = found
        return found

    def _frame(self, opener: Control, anchor: ast.AST, module: ModuleFile, loops: tuple[ast.AST, ...]) -> Frame:
        """The frame that ``opener`` opened, while execution stands at ``anchor``."""
        function = opener.detail if isinstance(opener.detail, Function) else None
        if isinstance(opener.detail, Bound):
            function = opener.detail.function
        if function is not None:
            scope: ast.AST = function.node
            module = function.module
        else:
            module = opener.module or module
            scope = module.tree
        return Frame(scope, module, anchor, opener.node if opener.kind == "call" else None, loops, function, opener)

    def frames_at(self, node: ast.AST, opener: Control, module: ModuleFile) -> tuple[Frame, ...]:
        """The frames that a node of what a level opened is evaluated in, outermost first."""
        scope, child = self.places.scope(node, module), node
        around: list[ast.AST] = []
        for each in self.places.ancestors(node, module):
            if each is scope:
                break
            if isinstance(each, LOOPS) and child is not getattr(each, "iter", None) and child not in each.orelse:
                around.append(each)
            child = each
        return (*self._outer_frames(opener), self._frame(opener, node, module, tuple(around[::-1])))

    def opened(self) -> Iterable[Frame]:
        """One frame for each call of a function, and each file, that live events happen in: in program order, outer
        ones before inner ones. Where it stands, and its loops, are those of the first event."""
        return self._opened().values()

    def _opened(self) -> dict[Control, Frame]:
        if self._openers is None:
            self._openers = {}
            for event in self.levels():
                if self._entered(event.control)[0] not in self._openers:
                    for frame in self.frames(event):
                        if frame.opener is not None:
                            self._openers.setdefault(frame.opener, frame)
        return self._openers

    def there(self, origin: Origin) -> tuple[Frame, ...]:
        """The frames in which something that is written is executed, the first time."""
        if self._first is None:
            self._first = {}
            for frames in map(self.frames, self.levels()):
                for index, frame in enumerate(frames):
                    self._first.setdefault(frame.scope, frames[: index + 1])
        return self._first.get(self.places.scope(origin.node, origin.module), ())

    def defined(self, node: ast.AST | None, frames: tuple[Frame, ...]) -> tuple[ast.expr, tuple[Frame, ...]] | None:
        """What the one assignment to a name or an attribute of that name gives it, and the frames of that."""
        written: list[tuple[ast.AST, ModuleFile]] = []
        if isinstance(node, ast.Name) and frames:
            module = frames[-1].module
            writes = self.bindings.writes(self.bindings.owner(node.id, node, module), node.id)
            written = [(each, module) for each in writes]
        elif isinstance(node, ast.Attribute):
            written = [(each, module) for each, _, module in self.attribute_writes(node.attr)]
        for write, module in written if len(written) == 1 else ():
            if isinstance(write, ast.Assign) and isinstance(write.targets[0], (ast.Name, ast.Attribute)):
                return write.value, self.there(Origin(write, module))
        return None

    def inside(self, event: Event, loop: ast.AST) -> bool:
        """Whether an event happens in an iteration of a loop, through calls too."""
        return any(loop is each for frame in self.frames(event) for each in frame.loops)

    def levels(self) -> Iterable[Event]:
        """The first live event of each level, in program order: what its frames tell but for where it stands in the
        last one, they tell of all events of the level."""
        if self._levels is None:
            self._levels = {}
            for event in self.events:
                self._levels.setdefault(event.control, event)
        return self._levels.values()

    def events_in(self, loop: ast.AST) -> list[Event]:
        """The live events that happen in an iteration of a loop, through calls too, in program order."""
        if self._by_loop is None:
            self._by_loop = {}
            for event in self.levels():
                for record in self.loops(event):
                    self._by_loop.setdefault(id(record.node), set()).add(event.control)
        found = self._in_loops.get(id(loop))
        if found is None:
            levels = self._by_loop.get(id(loop), ())
            found = self._in_loops[id(loop)] = [event for event in self.events if event.control in levels]
        return found

    def events_in_functions(self, functions: Iterable[ast.AST]) -> list[Event]:
        """The live events that happen in calls of these functions, or in what they call, in program order."""
        asked = frozenset(functions)
        found = self._in_functions.get(asked)
        if found is None:
            known = {opener: True for opener, frame in self._opened().items() if frame.scope in asked}
            found = []
            if known:
                inside = {each.control for each in self.levels() if self._is_below(each.control, known)}
                found = [event for event in self.events if event.control in inside]
            self._in_functions[asked] = found
        return found

    def _is_below(self, level: Control | None, known: dict[Control, bool]) -> bool:
        """Whether one of some calls is among those that led to a level; ``known`` says it of them and of those met."""
        opener = self._entered(level)[0]
        if opener is None:
            return False
        found = known.get(opener)
        if found is None:  # what nobody calls begins a stack of its own
            found = known[opener] = opener.node is not None and self._is_below(opener.up, known)
        return found

    def frames_within(self, event: Event, loop: ast.AST) -> tuple[Frame, ...]:
        """The event's frames from the one that holds the loop inwards; empty outside it."""
        frames = self.frames(event)
        for index, frame in enumerate(frames):
            if any(loop is each for each in frame.loops):
                return frames[index:]
        return ()

    def loops(self, event: Event) -> tuple[LoopRecord, ...]:
        """The loops that an event happens in, outermost first, through calls."""
        return self._loops_at(event.control)

    def _loops_at(self, control: Control | None) -> tuple[LoopRecord, ...]:
        if control is None:
            return ()
        found = self._loops.get(control)
        if found is None:
            found = self._loops_at(control.up)
            if is_loop(control):
                found = (*found, control.detail)  # type: ignore[arg-type]
            self._loops[control] = found
        return found

    def enclosing_loops(self, loop: ast.AST, event: Event) -> list[LoopRecord]:
        """The loops around a loop that an event happens in, outermost first."""
        found: list[LoopRecord] = []
        for record in self.loops(event):
            if record.node is loop:
                break
            found.append(record)
        return found

    def attribute_writes(self, name: str) -> list[tuple[ast.AST, ast.AST, ModuleFile]]:
        """Every write in the program of an attribute with this (last) name: the writing node, its scope, its file."""
        if self._attributes is None:
            self._attributes = {}
            for module in self.execution.modules.values():
                for written_name, found in attribute_writes_in(module.tree).items():
                    known = self._attributes.setdefault(written_name, [])
                    known += [(node, scope, module) for node, scope in found]
        return self._attributes.get(name, [])

    def changes_in_loops(self) -> list[tuple[ast.Call | ast.Attribute, ModuleFile]]:
        """What may change an object in some loop's text: method calls, and attributes that are assigned to."""
        if self._changes is None:
            found: dict[ast.Call | ast.Attribute, ModuleFile] = {}
            for module in self.execution.modules.values():
                found.update((node, module) for node in changes_in_loops_of(module.tree))
            self._changes = list(found.items())
        return self._changes

    # --- the value of an expression -----------------------------------------------------------------------------

    def executions(self, scope: ast.AST) -> list[Executed]:
        """All that was executed of a function's text, or of a file's."""
        if self._executions is None:
            self._executions = {}
            for each in self.execution.frames.values():
                body = each.function.node if each.function is not None else each.module.tree
                self._executions.setdefault(body, []).append(each)
        return self._executions.get(scope, [])

    def evaluate(self, node: ast.AST | None, frames: tuple[Frame, ...]) -> Value | None:
        """What an expression was in the innermost frame, else whenever it was executed; else what its names end as."""
        if node is None or not frames:
            return None
        frame = frames[-1]
        own = self.execution.frames.get(frame.opener) if frame.opener is not None else None
        found = own.values.get(node) if own is not None else None
        if found is None:
            found = join_all(each.values.get(node) for each in self.executions(frame.scope))
        if found is not None:
            return settled_name(found)
        if isinstance(node, ast.Constant):
            return Const(node.value, Origin(node, frame.module))
        if isinstance(node, ast.Name):
            return self.named(node.id, self.bindings.owner(node.id, node, frame.module), frame)
        if isinstance(node, ast.Attribute):
            return join_all(attribute(each, node.attr) for each in members(self.evaluate(node.value, frames)))
        return None

    def offered(self, node: ast.expr, module: ModuleFile) -> str | None:
        """The qualified name of what Python or a library offers by a name; None for what the program may have made."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return None
        owner = self.bindings.owner(root.id, root, module)
        found = members(self.evaluate(node, (Frame(owner, module, node, None, ()),)))
        if not found and isinstance(node, ast.Name) and not self.bindings.writes(module.tree, node.id):
            return f"builtins.{node.id}" if node.id in vars(builtins) else None
        if len(found) > 1 and node is not root:  # `except ImportError: torch = None`
            there = members(self.evaluate(root, (Frame(owner, module, root, None, ()),)))
            missing = any(isinstance(each, Const) and each.value is None for each in there)
            found = tuple(each for each in found if isinstance(each, External)) if missing else found
        (only,) = found if len(found) == 1 else (None,)
        return canonical(only.qualname) if isinstance(only, External) else None

    def without_bar(self, node: ast.expr, module: ModuleFile) -> ast.expr:
        """What a loop runs over, without the progress bar or the count around it."""
        around = BARS | {"builtins.enumerate"}
        while isinstance(node, ast.Call) and node.args and self.offered(node.func, module) in around:
            node = node.args[0]
        return node

    def named(self, name: str, scope: ast.AST, frame: Frame) -> Value | None:
        """What a name was at the end of the frame's module, of the call that it stands for, or of any call."""
        if isinstance(scope, ast.Module):
            return settled_name(frame.module.scope.names.get(name))
        own = self.execution.frames.get(frame.opener) if frame.opener is not None else None
        calls = [own] if own is not None and scope is frame.scope else self.executions(scope)
        return join_all(settled_name(each.scope.names.get(name)) for each in calls)

    def owns_loop(self, loop: ast.AST, module: ModuleFile, node: ast.AST) -> bool:
        """Whether a node stands in the text of a loop's body."""
        return isinstance(loop, LOOPS) and any(
            contains(statement, node, module) for statement in (*loop.body, *loop.orelse)
        )


_ONE_NAME = [ast.Name]


@once_per_node
def attribute_writes_in(tree: ast.Module) -> dict[str, list[tuple[ast.AST, ast.AST]]]:
    """Every write of an attribute in the functions and on the top level of a file, not right in a class, by its last
    name: the writing node, its scope."""
    found: dict[str, list[tuple[ast.AST, ast.AST]]] = {}
    nodes, by_type, parents = statements(tree)
    # most assignments are to one name
    assigned = [each for each in every(ast.Assign, tree) if [one.__class__ for one in each.targets] != _ONE_NAME]
    opened = [(item, each) for each in nodes if isinstance(each, (ast.With, ast.AsyncWith)) for item in each.items]
    for kind in ASSIGNING:  # but for `:=`, which writes no attributes
        found_here = assigned if kind is ast.Assign else by_type.get(kind, ())
        for node, statement in opened if kind is ast.withitem else zip(found_here, found_here, strict=True):
            names = [name for name in written(node) if "." in name]
            if not names:
                continue
            scope = parents.get(statement)
            while scope is not None and not isinstance(scope, SCOPES):
                scope = parents.get(scope)
            if scope is not None and not isinstance(scope, ast.ClassDef):
                for name in names:
                    found.setdefault(name.rpartition(".")[2], []).append((node, scope))
    return found


@once_per_node
def changes_in_loops_of(tree: ast.Module) -> list[ast.Call | ast.Attribute]:
    """What may change an object in the text of a file's outermost loops."""
    parents = parents_in(tree)

    def is_inner(loop: ast.AST) -> bool:
        above = parents.get(loop)
        while above is not None and not isinstance(above, LOOPS):
            above = parents.get(above)
        return above is not None

    loops = sorted((each for kind in LOOPS for each in every(kind, tree)), key=lambda each: each.lineno)
    outermost = [each for each in loops if not is_inner(each)]
    return list(dict.fromkeys(node for loop in outermost for node in walk(loop) if _may_change(node)))


def _may_change(node: ast.AST) -> TypeGuard[ast.Call | ast.Attribute]:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute)
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def settled_name(value: Value | None) -> Value | None:
    """The value of a name; one that was imported and never used is looked up where it comes from."""
    while isinstance(value, Lazy):
        value = value.module.scope.names.get(value.name)
    return value


def is_loop(level: Control) -> bool:
    """Whether a level of the control stack is a loop."""
    return level.kind == "loop" and level.detail is not None


def dead_levels(levels: Iterable[Control]) -> dict[Control, bool]:
    """Whether each level (and those above it) stands in a branch that a constant test excludes."""
    found: dict[Control, bool] = {}
    for each in levels:
        path: list[Control] = []
        level: Control | None = each
        while level is not None and level not in found:
            path.append(level)
            level = level.up
        dead = found[level] if level is not None else False
        for level in reversed(path):
            dead = dead or (level.kind == "if" and level.detail == "dead")
            found[level] = dead
    return found


def attribute(value: Value, name: str) -> Value | None:
    """The attribute of a value, where it is known without executing anything."""
    if isinstance(value, (Instance, Namespace)):
        found = value.attributes.get(name)
        if found is None and isinstance(value, Instance):
            found = value.cls.find(name)
        return found if found is not None else UNKNOWN
    if isinstance(value, External):
        return External(f"{value.qualname}.{name}")
    if isinstance(value, ModuleValue):
        return settled_name(value.module.scope.names.get(name)) or UNKNOWN
    if isinstance(value, Made):
        return value.attributes.get(name, UNKNOWN)
    return element(value, name) if isinstance(value, Mapping) else UNKNOWN


def element(value: Value, key: object) -> Value | None:
    """What stands under a constant key or index."""
    if isinstance(value, Mapping):
        entry = value.entries.get(key)
        return entry.value if entry is not None else value.element or UNKNOWN
    if isinstance(value, Sequence):
        if value.items is not None and isinstance(key, int) and -len(value.items) <= key < len(value.items):
            return value.items[key]
        return value.element or UNKNOWN
    if isinstance(value, Tensor):
        return value
    return UNKNOWN


def argument_for(name: str, frame: Frame, call: ast.Call) -> ast.expr | None:
    """The expression that a call passes for a parameter of the function it opened; None where it passes none."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    names = [each.arg for each in parameters(frame.scope)]
    starred = getattr(getattr(frame.scope, "args", None), "vararg", None)
    if name not in names or (starred is not None and starred.arg == name):
        return None
    position = names.index(name)
    if frame.function is not None and frame.function.cls is not None and not is_static(frame.scope):
        position -= 1
    if 0 <= position < len(call.args):
        return call.args[position]
    return None


def is_static(function: ast.AST) -> bool:
    """Whether a method is declared static."""
    return any(
        isinstance(each, ast.Name) and each.id == "staticmethod" for each in getattr(function, "decorator_list", ())
    )


def constants(value: Value | None) -> Iterator[object]:
    """The literals that a value can be; an option counts with its default."""
    for member in members(value):
        if isinstance(member, Const):
            yield member.value
        elif isinstance(member, Option):
            yield from constants(member.default)


def settled(value: Value | None) -> object | None:
    """The one literal that a value is, or that its option has as default; None where there is no such."""
    found = list(constants(value))
    return found[0] if len(found) == 1 and len(members(value)) == 1 else None


def qualnames(value: Value | None) -> set[str]:
    """The qualified names of the external objects that a value can be, or was made by."""
    found: set[str] = set()
    for member in members(value):
        if isinstance(member, (External, Made)):
            found.add(member.qualname)
        elif isinstance(member, Instance):
            found.update(member.cls.externals())
    return found


def unwrapped(value: Value | None, depth: int = 6) -> Iterator[Value]:
    """What a value wraps, down to the bottom: the sources of iterators, what is in wrappers and progress bars."""
    for member in members(value):
        yield member
        if depth:
            if isinstance(member, Iterated):
                yield from unwrapped(member.source, depth - 1)
            elif isinstance(member, Made) and member.inner is not None:
                yield from unwrapped(member.inner, depth - 1)
            elif isinstance(member, Sequence):
                for item in member.items or ():
                    yield from unwrapped(item, depth - 1)
                yield from unwrapped(member.element, depth - 1)
