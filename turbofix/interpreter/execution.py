"""Abstract execution of a program over its syntax tree, in program order, with its event log."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from pathlib import Path

from turbofix.domain.scopes import Beside, Frame, Lazy, ModuleFile, Reader, Scope, nothing_beside
from turbofix.domain.tensors import tensors_in, tensors_passed, with_roles
from turbofix.domain.trace import Arguments, Control, Event, LoopRecord, Passed
from turbofix.domain.values import (
    Bound,
    Class,
    Function,
    Instance,
    Tensor,
    join_all,
    members,
)
from turbofix.interpreter import imports
from turbofix.interpreter.imports import load, run
from turbofix.interpreter.project_calls import construct
from turbofix.interpreter.state import Interpreter, Settings
from turbofix.interpreter.syntax import own_nodes
from turbofix.interpreter.walk import OutOfBudgetError, Walk
from turbofix.library.tables import TRAINERS_START
from turbofix.records import dataclass
from turbofix.source.nodes import walk
from turbofix.source.wording import Wording

__all__ = ["Beside", "Execution", "ModuleFile", "Reader", "Scope", "execute", "nothing_beside"]

_FRAMES = 3000
"""Python frames that the walk may nest: a call of the program takes about twenty."""


@dataclass(eq=False)
class Execution:
    """What the abstract execution of a script left behind."""

    entry: ModuleFile
    modules: dict[Path, ModuleFile]
    events: list[Event]
    loops: list[LoopRecord]
    root: Path
    read: Reader
    complete: bool
    incomplete_because: str | None = None
    unfollowed: tuple[str, ...] = ()  # where nothing trains: what may, and was not followed
    roots: list[Control] = field(default_factory=list)
    frames: dict[Control, Frame] = field(default_factory=dict)  # of every module and call that was executed
    scopes: dict[Control, Scope] = field(default_factory=dict)  # the names of every such call
    summarized: list[tuple[Frame, ast.AST, ast.AST]] = field(default_factory=list)  # calls that were not: the function
    beside: Beside = nothing_beside  # the project's files, also those that this script does not import
    # configuration files that were read although no path names them; all files where settings were taken for options
    guessed: frozenset[Path] = frozenset()

    @cached_property
    def elsewhere(self) -> list[Path]:
        """The project's files that this script does not import: another one may run them."""
        known = {path.absolute() for path in self.modules}
        return [path for path in map(Path.absolute, self.beside()) if path not in known]


def execute(
    entry: Path, root: Path, read: Reader, beside: Beside = nothing_beside, settings: Settings | None = None
) -> Execution | None:
    """Execute the script ``entry`` abstractly; None when it has no text or does not parse.

    ``root`` is the folder above which no project module is looked for; ``settings`` are literals taken for options.
    """
    interp = Walk(entry, root, read, beside, settings or {})
    module = load(interp, entry, "__main__")
    if module is None:
        return None
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _FRAMES))
    reason: str | None = None
    unsure: str | None = None
    try:
        run(interp, module)
        unsure = _run_handed(interp)
        _run_uncalled(interp, module)
    except OutOfBudgetError:
        reason = "it executes more statements than the analysis follows"
    except RecursionError:
        reason = "its expressions or calls nest deeper than the analysis follows"
    except Exception as error:  # whatever is wrong here, a program that was not read to its end is never changed
        reason = f"the analysis failed ({type(error).__name__}: {error})"
    finally:
        sys.setrecursionlimit(limit)
    _mark_inputs(interp.events)
    modules = {path: each for path, each in interp.modules.items() if each is not None}
    for each in modules.values():
        _settle(each)
    return Execution(
        module,
        modules,
        interp.events,
        list(interp.loops.values()),
        root,
        read,
        (reason or unsure) is None,
        reason or unsure,
        tuple(_unfollowed(interp, module)),
        interp.roots,
        interp.frames,
        {level: frame.scope for level, frame in interp.frames.items() if level.kind == "call"},
        interp.summarized,
        beside,
        frozenset(modules if settings else interp.guessed),
    )


def _run_handed(interp: Interpreter) -> str | None:
    """Where nothing trains, execute what was handed to calls that were not followed, as these may; why it is unsure.

    A function is called where it was handed over, with unknown arguments. Of an object it is the methods that speak of
    training, those first that set its attributes: which of them are called, and when, is not known.
    """
    unsure: str | None = None
    interp.in_order = False
    for value, node, control, frame in interp.handed if not any(map(_trains, interp.events)) else ():  # it may grow
        interp.control, interp.frame = control, frame
        made = interp.call(value, Arguments([], {}, open=True), node) if type(value) is Class else value
        for each in _methods(interp, made) if type(made) is Instance else [made]:
            called = each.function if type(each) is Bound else each
            if type(called) is not Function or called.node in interp.called:
                continue
            mark = len(interp.events)
            interp.call(each, Arguments([], {}, open=True), node)
            if type(each) is Bound and any(event.kind == "backward" for event in interp.events[mark:]):
                place = f"line {getattr(node, 'lineno', 0)} of {frame.module.path.name}"
                unsure = f"what {place} calls runs `{called.name}`, and was not followed"
    return unsure


_PARTS = ("training_step", "train_step", "fit_batch", "compute_loss")
_STEPPING = Wording((".backward(", "def training_step("))
_STARTING = ("train", "fit", "run", "step", "optimize")


def _unfollowed(interp: Interpreter, entry: ModuleFile) -> Iterator[str]:
    """Where nothing trains, in sentences: what looks like a part of a training, calls that were not followed, and files
    that were not come to."""
    if any(map(_trains, interp.events)):
        return
    for node, function in interp.functions.items():
        if node not in interp.called and (function.name in _PARTS or _goes_backward(node)):
            line, file = getattr(node, "lineno", 0), function.module.path.name
            yield f"`{function.name}` (line {line} of {file}) looks like a part of a training: no call of it was seen."
    for value, node, _, frame in interp.handed:
        called = node.func if isinstance(node, ast.Call) else None
        starts = isinstance(called, ast.Attribute) and called.attr.startswith(_STARTING)
        if called is not None and (
            (isinstance(value, Instance) and starts) or (isinstance(value, Function) and _goes_backward(value.node))
        ):
            place = f"line {called.end_lineno} of {frame.module.path.name}"
            yield f"What {place} calls (`{ast.unparse(called)}`) was not followed."
    executed = {each.path for each in interp.modules.values() if each is not None and each.executed}
    for path in interp.beside() if "train" in entry.text else ():
        text = interp.read(path) or "" if path not in executed else ""
        if _STEPPING.is_in(text):
            line = text.count("\n", 0, min(found for each in _STEPPING.words if (found := text.find(each)) >= 0)) + 1
            yield f"A part of a training stands on line {line} of {path.name}: no way to it was seen from here."


def _trains(event: Event) -> bool:
    """Whether an event is a backward pass in a loop, or a call of a trainer."""
    if event.kind == "backward":
        return any(level.kind == "loop" for level in event.control.upwards())
    return event.kind == "call" and event.name in TRAINERS_START


def _methods(interp: Interpreter, made: Instance) -> list[Bound]:
    """The methods of an object that nobody called: those that may set attributes, or call those that go backward, which
    come last."""
    own = [
        value
        for cls in made.cls.mro()
        if type(cls) is Class
        for value in cls.names.values()
        if type(value) is Function and value.node not in interp.called
    ]
    backward = {each.name for each in own if _goes_backward(each.node)}
    found = [
        each
        for each in own
        if interp.glance.mentions_training(each.node, each.module) or _uses_attributes(each.node, backward)
    ]
    return [Bound(made, each) for each in sorted(found, key=lambda each: each.name in backward)]


def _uses_attributes(function: ast.AST, names: set[str]) -> bool:
    """Whether a method sets an attribute, or reads one of that name."""
    attributes = (node for node in walk(function) if type(node) is ast.Attribute)
    return any(type(node.ctx) is ast.Store or node.attr in names for node in attributes)


def _goes_backward(function: ast.AST) -> bool:
    return any(type(node) is ast.Attribute and node.attr == "backward" for node in own_nodes(function))


def _run_uncalled(interp: Interpreter, module: ModuleFile) -> None:
    """Execute what nobody called, in the script itself, if a word of a training step stands in it or, where nothing
    trains, it may be where a command starts: a decorator hands it to a library, or the package's entry points name it.
    Commands of an application may stand in other files.

    Functions get unknown parameters (a default becomes an option); methods an object that ``__init__`` made.
    """
    interp.in_order = False
    interp.frame = Frame(None, module.scope, module)
    interp.control = interp.module_controls[module]
    commands = _entry_points(interp, module)
    for node, function in list(interp.functions.items()):
        if node in interp.called or (function.module is not module and not _is_command(node)):
            continue
        starts = function.decorators or function.name in commands
        handed = starts and function.cls is None and not any(map(_trains, interp.events))
        if handed or interp.glance.mentions_training(node, function.module):
            receiver = [] if function.cls is None else [Passed(_receiver(interp, function.cls))]
            interp.invoke(function, Arguments(receiver), None)
    for cls in list(interp.classes.values()):  # what it inherits from a class of another file
        if cls.module is module and not any(map(_trains, interp.events)):
            for method in _methods(interp, _receiver(interp, cls)):
                if method.function.node not in interp.called:
                    interp.invoke(method.function, Arguments([Passed(method.receiver)]), None)


def _is_command(function: ast.AST) -> bool:
    """Whether a decorator makes it a command of an application, which another file may start (click, Typer)."""
    decorators = getattr(function, "decorator_list", ())
    made = (each.func if isinstance(each, ast.Call) else each for each in decorators)
    return any(isinstance(each, ast.Attribute) and each.attr == "command" for each in made)


_PACKAGING = ("pyproject.toml", "setup.py", "setup.cfg")


def _entry_points(interp: Interpreter, module: ModuleFile) -> set[str]:
    """The functions of a file that its package installs as commands (``name = "package.module:function"``)."""
    texts = (interp.read(interp.root / name) or "" for name in _PACKAGING)
    named = re.compile(rf"\b{re.escape(module.path.stem)}:(\w+)")
    return {found for text in texts for found in named.findall(text)}


def _receiver(interp: Interpreter, cls: Class) -> Instance:
    """An object of a class, for methods that nobody calls."""
    return interp.instances.get(cls.node) or construct(interp, cls, Arguments(), cls.node)


def _mark_inputs(events: list[Event]) -> None:
    """Tensors that the program made and gave to a model are its inputs: say so where they are moved."""
    made_by = {event.node: event for event in events if event.kind in ("call", "transfer", "cast")}
    waiting = [each for event in events if event.kind == "forward" for each in _origins(event)]
    fed: set[ast.AST] = set()
    while waiting:
        node = waiting.pop()
        if node not in fed and node in made_by:
            waiting.extend(_origins(made_by[node]))
        fed.add(node)
    for event in events:
        value = event.receiver
        made = type(value) is Tensor and "made" in value.roles and "batch" not in value.roles
        if made and event.kind == "transfer" and event.node in fed and type(value) is Tensor:
            event.receiver = with_roles(value, frozenset({"input"}))


def _origins(event: Event) -> Iterator[ast.AST]:
    tensors = tensors_passed(event.arguments) if event.arguments is not None else []
    if event.kind != "forward":
        tensors += tensors_in(event.receiver)
    for tensor in tensors:
        if tensor.origin is not None and "made" in tensor.roles and not tensor.roles & {"output", "loss", "param"}:
            yield tensor.origin.node


def _settle(module: ModuleFile) -> None:
    """Names that were imported and never used stay unknown."""
    for name, value in module.scope.names.items():
        if Lazy in map(type, members(value)):
            settled = join_all(imports.unseen(each) if type(each) is Lazy else each for each in members(value))
            module.scope.names[name] = settled or value
