"""Imports: modules of the project are read and executed when a name of theirs is used; all others are libraries."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix.nodes import parse
from turbofix.program import access, libraries
from turbofix.program.answers import kept
from turbofix.program.scopes import Lazy, ModuleFile
from turbofix.program.syntax import changed_members
from turbofix.program.values import (
    UNKNOWN,
    Const,
    External,
    ModuleValue,
    Opaque,
    Origin,
    Union,
    Value,
    join_all,
    members,
)

if TYPE_CHECKING:
    from turbofix.program.interpreter import Interpreter


def search_path(entry: Path, root: Path) -> list[Path]:
    """The folders in which modules are looked for: the script's own, and those above it up to the root."""
    folder = entry.parent
    folders = [folder]
    while folder != root and root in folder.parents:
        folder = folder.parent
        folders.append(folder)
    return folders


def load(interp: Interpreter, path: Path, name: str) -> ModuleFile | None:
    """The module in a file; None where there is no such file, or it does not parse."""
    if path in interp.modules:
        return interp.modules[path]
    text = interp.read(path)
    module: ModuleFile | None = None
    if text is not None:
        try:
            tree = parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = None
        if tree is not None:
            module = ModuleFile(path, name, text, tree)
            interp.changed |= kept(tree, "changed_members", lambda: changed_members(text))
            module.scope.names["__name__"] = Const(name)
            module.scope.names["__file__"] = Opaque("__file__", "free")
    interp.modules[path] = module
    return module


def run(interp: Interpreter, module: ModuleFile) -> None:
    """Execute a module's body, once, under a control stack of its own."""
    if module.executed:
        return
    module.executed = True
    interp.run_module(module)


def find(interp: Interpreter, dotted: str, importer: ModuleFile, level: int = 0) -> ModuleFile | None:
    """The project's module of that name, seen from ``importer``; ``level`` counts the dots of a relative import."""
    parts = dotted.split(".") if dotted else []
    if level:
        folder = importer.folder
        for _ in range(level - 1):
            folder = folder.parent
        folders = [folder]
    else:
        if not parts or parts[0] in libraries.EXTERNAL:
            return None
        folders = [*interp.folders]
        if importer.folder not in folders:
            folders.append(importer.folder)
    file, package = "/".join(parts) + ".py", "/".join([*parts, "__init__.py"])
    for folder in folders:
        if parts:
            module = _load_from(interp, folder, file, dotted)
            if module is not None and module is not importer:
                return module
        module = _load_from(interp, folder, package, dotted or folder.name)
        if module is not None:
            return module
    return None


def _load_from(interp: Interpreter, folder: Path, file: str, name: str) -> ModuleFile | None:
    """``load`` for a file in a folder: a path takes long to make, and many modules ask for the same."""
    key = folder, file
    if key not in interp.sought:
        interp.sought[key] = load(interp, folder / file, name)
    return interp.sought[key]


def import_modules(interp: Interpreter, node: ast.Import) -> None:
    """``import a.b as c``."""
    here = interp.frame.module
    for alias in node.names:
        if alias.asname is not None:
            value = _module_or_library(interp, alias.name, here, node)
            _log(interp, alias.name, value, node)
            interp.bind(alias.asname, value)
            continue
        top, _, rest = alias.name.partition(".")
        value = _module_or_library(interp, top, here, node)
        _log(interp, alias.name, value, node)
        if rest and type(value) is External and top not in libraries.EXTERNAL:
            # a folder without __init__.py, or a library: which one tells the last part
            if find(interp, alias.name, here) is not None:
                value = _folder(interp, alias.name, here, interp.frame.scope.names.get(top))
        elif rest and type(value) is ModuleValue:
            _folder(interp, alias.name, here, value)
        interp.bind(top, value)


def _log(interp: Interpreter, dotted: str, value: Value, node: ast.AST) -> None:
    """Log an import of the project's, or of what no library has any more."""
    if type(value) is ModuleValue or (type(value) is External and libraries.dropped(dotted) is not None):
        interp.event("import", node, dotted, None, None, value)


def _module_or_library(interp: Interpreter, dotted: str, importer: ModuleFile, node: ast.AST) -> Value:
    module = find(interp, dotted, importer)
    return ModuleValue(module) if module is not None else External(libraries.canonical(dotted))


def _folder(interp: Interpreter, dotted: str, importer: ModuleFile, known: Value | None) -> ModuleValue:
    """The package at the beginning of a dotted name, with the modules further down bound in it."""
    parts = dotted.split(".")
    if type(known) is not ModuleValue:
        package = ModuleFile(interp.folders[0] / parts[0], parts[0], "", ast.Module([], []))
        package.executed = True
        known = ModuleValue(package)
    module = known.module
    for count in range(2, len(parts) + 1):
        name = parts[count - 1]
        below = module.scope.names.get(name)
        if type(below) is not ModuleValue:
            found = find(interp, ".".join(parts[:count]), importer)
            if found is None:
                found = ModuleFile(module.path / name, ".".join(parts[:count]), "", ast.Module([], []))
                found.executed = True
            below = ModuleValue(found)
            module.scope.names.setdefault(name, below)
        module = below.module
    return known


def import_names(interp: Interpreter, node: ast.ImportFrom) -> None:
    """``from a import b as c``, ``from a import *``."""
    here = interp.frame.module
    dotted = node.module or ""
    module = find(interp, dotted, here, node.level)
    if module is not None and module is not here:
        _log(interp, dotted, ModuleValue(module), node)
    elif module is None and not node.level:
        _log(interp, dotted, External(dotted), node)
    for alias in node.names:
        if alias.name == "*":
            _import_star(interp, module, dotted, node)
            continue
        value: Value
        if module is not None and module is not here:
            value = Lazy(module, alias.name, node)
        else:
            # a folder without __init__.py has modules, but no names
            below = find(interp, f"{dotted}.{alias.name}" if dotted else alias.name, here, node.level)
            if below is not None:
                value = ModuleValue(below)
            elif node.level:
                value = interp.opaque(alias.name, "import", node)
            else:
                value = External(libraries.canonical(f"{dotted}.{alias.name}"))
                _log(interp, f"{dotted}.{alias.name}", value, node)
                if value.qualname == "absl.flags.FLAGS":
                    value = access.flags(interp)
        interp.bind(alias.asname or alias.name, value)


def _import_star(interp: Interpreter, module: ModuleFile | None, dotted: str, node: ast.ImportFrom) -> None:
    here = interp.frame.module
    if module is None:
        if not node.level and dotted not in here.star_imports:
            here.star_imports.append(dotted)
        return
    run(interp, module)
    listed = _all_of(module)
    for name, value in list(module.scope.names.items()):
        if not name.startswith("_") if listed is None else name in listed:
            interp.bind(name, value)
    for library in module.star_imports:
        if library not in here.star_imports:
            here.star_imports.append(library)


def _all_of(module: ModuleFile) -> frozenset[str] | None:
    for statement in module.tree.body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, (ast.List, ast.Tuple))
            and any(isinstance(target, ast.Name) and target.id == "__all__" for target in statement.targets)
        ):
            return frozenset(
                each.value
                for each in statement.value.elts
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )
    return None


def member(interp: Interpreter, module: ModuleFile, name: str) -> Value | None:
    """A name of a module, which is executed for it; None where it has no such name."""
    value = module.scope.names.get(name)
    if value is None:
        run(interp, module)
        value = module.scope.names.get(name)
    if isinstance(value, (Lazy, Union)):
        value = module.scope.names[name] = settled(interp, value)
    if value is not None:
        return value
    if module.path.name == "__init__.py":
        for path in (module.path.parent / f"{name}.py", module.path.parent / name / "__init__.py"):
            below = load(interp, path, f"{module.name}.{name}")
            if below is not None:
                return ModuleValue(below)
    for library in module.star_imports:
        if name in libraries.STAR_NAMES.get(library, ()):
            return External(libraries.canonical(f"{library}.{name}"))
    return None


def settled(interp: Interpreter, value: Value) -> Value:
    """The value of a name, with what was imported lazily looked up; a test may choose between two imports."""
    if Lazy not in map(type, members(value)):
        return value
    found = (force(interp, each) if type(each) is Lazy else each for each in members(value))
    return join_all(found) or UNKNOWN


def force(interp: Interpreter, lazy: Lazy) -> Value:
    """The value of a name that was imported lazily. Inside a circle of imports it is unknown."""
    unknown = Opaque(f"{lazy.module.name}.{lazy.name}", "import", Origin(lazy.node, lazy.module))
    if lazy.running:
        return unknown
    lazy.running = True
    value = member(interp, lazy.module, lazy.name)
    lazy.running = False
    return value if value is not None else unknown
