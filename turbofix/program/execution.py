"""Abstract execution of a program over its syntax tree, in program order, with its event log."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from turbofix.program import calls, imports
from turbofix.program.events import Arguments, Control, Event, LoopRecord, Passed
from turbofix.program.interpreter import Interpreter, OutOfBudgetError, Settings
from turbofix.program.scopes import Beside, Frame, Lazy, ModuleFile, Reader, Scope, nothing_beside
from turbofix.program.tensors import tensors_in, tensors_passed, with_roles
from turbofix.program.values import Class, Function, Instance, Opaque, Origin, Tensor, Value, join_all, members
from turbofix.records import dataclass

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
    uncalled: tuple[ast.AST, ...] = ()  # functions that nobody called and that were run with opaque parameters
    roots: list[Control] = field(default_factory=list)
    frames: dict[Control, Frame] = field(default_factory=dict)  # of every module and call that was executed
    scopes: dict[Control, Scope] = field(default_factory=dict)  # the names of every such call
    summarized: list[tuple[Frame, ast.AST, ast.AST]] = field(default_factory=list)  # calls that were not: the function
    beside: Beside = nothing_beside  # the project's files, also those that this script does not import
    # configuration files that were read although no path names them; all files where settings were taken for options
    guessed: frozenset[Path] = frozenset()


def execute(
    entry: Path, root: Path, read: Reader, beside: Beside = nothing_beside, settings: Settings | None = None
) -> Execution | None:
    """Execute the script ``entry`` abstractly; None when it has no text or does not parse.

    ``root`` is the folder above which no project module is looked for; ``settings`` are literals taken for options.
    """
    interp = Interpreter(entry, root, read, beside, settings or {})
    module = imports.load(interp, entry, "__main__")
    if module is None:
        return None
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _FRAMES))
    reason: str | None = None
    uncalled: list[ast.AST] = []
    try:
        imports.run(interp, module)
        _run_uncalled(interp, module, uncalled)
    except OutOfBudgetError:
        reason = "it executes more statements than the analysis follows"
    except RecursionError:
        reason = "its expressions or calls nest deeper than the analysis follows"
    except Exception as error:  # whatever is wrong here, a program that was not read to its end is never changed
        reason = f"the analysis failed ({type(error).__name__}: {error})"
    finally:
        sys.setrecursionlimit(limit)
    interp.close()
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
        reason is None,
        reason,
        tuple(uncalled),
        interp.roots,
        interp.frames,
        {level: frame.scope for level, frame in interp.frames.items() if level.kind == "call"},
        interp.summarized,
        beside,
        frozenset(modules if settings else interp.guessed),
    )


def _run_uncalled(interp: Interpreter, module: ModuleFile, uncalled: list[ast.AST]) -> None:
    """Execute what nobody called, in the script itself, if a word of a training step stands in it.

    Functions get unknown parameters (a default becomes an option); methods an object that ``__init__`` made.
    """
    interp.in_order = False
    interp.frame = Frame(None, module.scope, module)
    interp.control = interp.module_controls[module]
    for node, function in list(interp.functions.items()):
        if function.module is not module or node in interp.called or not interp.glance.mentions_training(node, module):
            continue
        uncalled.append(node)
        if function.cls is None:
            calls.invoke(interp, function, Arguments(), None)
        else:
            receiver = _receiver(interp, function.cls)
            calls.invoke(interp, function, Arguments([Passed(receiver)]), None)


def _receiver(interp: Interpreter, cls: Class) -> Instance:
    """An object of a class, for methods that nobody calls."""
    known = interp.instances.get(cls.node)
    if known is not None:
        return known
    instance = calls.new_instance(interp, cls, cls.node)
    interp.instances[cls.node] = instance
    init = cls.find("__init__")
    if type(init) is Function and init.node not in interp.called:
        calls.invoke(interp, init, Arguments([Passed(instance)]), None)
    return instance


def _mark_inputs(events: list[Event]) -> None:
    """Tensors that the program made and gave to a model are its inputs: say so where they are moved."""
    made_by = {event.node: event for event in events if event.kind in ("call", "transfer", "cast")}
    waiting = [each for event in events if event.kind == "forward" for each in _origins(event)]
    fed: set[ast.AST] = set()
    while waiting:
        node = waiting.pop()
        if node not in fed:
            fed.add(node)
            if node in made_by:
                waiting.extend(_origins(made_by[node]))
    for event in events:
        if event.kind == "transfer" and event.node in fed:
            event.receiver = _as_input(event.receiver)


def _origins(event: Event) -> Iterator[ast.AST]:
    tensors = tensors_passed(event.arguments) if event.arguments is not None else []
    if event.kind != "forward":
        tensors += tensors_in(event.receiver)
    for tensor in tensors:
        if tensor.origin is not None and "made" in tensor.roles and not tensor.roles & {"output", "loss", "param"}:
            yield tensor.origin.node


def _as_input(value: Value | None) -> Value | None:
    if type(value) is Tensor and "made" in value.roles and "batch" not in value.roles:
        return with_roles(value, frozenset({"input"}))
    return value


def _settle(module: ModuleFile) -> None:
    """Names that were imported and never used stay unknown."""
    for name, value in module.scope.names.items():
        if Lazy in map(type, members(value)):
            settled = join_all(
                Opaque(f"{each.module.name}.{each.name}", "import", Origin(each.node, module))
                if type(each) is Lazy
                else each
                for each in members(value)
            )
            assert settled is not None
            module.scope.names[name] = settled
