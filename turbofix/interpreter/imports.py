"""Imports: modules of the project are read and executed when a name of theirs is used; all others are libraries."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from turbofix.domain.scopes import Lazy, ModuleFile
from turbofix.domain.trace import Arguments
from turbofix.domain.values import (
    UNKNOWN,
    Const,
    External,
    Mapping,
    ModuleValue,
    Opaque,
    Origin,
    Union,
    Value,
    default_of,
    join_all,
    members,
)
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.syntax import changed_members
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES
from turbofix.regex import regex
from turbofix.source.answers import kept, once_per_node
from turbofix.source.nodes import parse, unreadable
from turbofix.source.searched import added_folders
from turbofix.source.site import STUB
from turbofix.source.wording import Wording

STUBS = Path(libraries.__file__).with_name("stubs")
"""What libraries do that run a loop of the user's objects by themselves: a file for each module, executed as if it were
the project's. Nothing is said of it, and nothing changed in it."""


@cache
def _stubs() -> frozenset[str]:
    return frozenset(path.stem for path in STUBS.glob(f"*{STUB}"))


def library(interp: Interpreter, qualname: str) -> Value:
    """What a library's name stands for: what a stub has under it, or the name alone."""
    if qualname == "absl.flags.FLAGS":
        return interp.absl_flags()
    home, _, name = qualname.rpartition(".")
    module = load(interp, STUBS / f"{home}{STUB}", home) if home in _stubs() else None
    return (member_of(interp, module, name) if module is not None else None) or External(qualname)


def load(interp: Interpreter, path: Path, name: str) -> ModuleFile | None:
    """The module in a file; None where there is no such file, or it does not parse."""
    if path in interp.modules:
        return interp.modules[path]
    text = interp.read(path) if path.suffix != STUB else path.read_text("utf-8")
    module: ModuleFile | None = None
    if text is not None and not unreadable(text):
        module = ModuleFile(path, name, text, parse(text))
        interp.folders += [each for each in added_folders(text, path, interp.root) if each not in interp.folders]
        for member, becomes in kept(module.tree, "changed_members", lambda: changed_members(text)):
            interp.changed.setdefault(member, set()).add(becomes)
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
        if not parts or _is_a_library(interp, parts[0]):
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


def _is_a_library(interp: Interpreter, package: str) -> bool:
    """Whether a name is a library's whatever files there are: not where the script lies in a package of that name,
    unless that is the library itself: what is known of it says more than its code, and takes no time."""
    home = (folder for folder in interp.folders if folder.name == package and folder != interp.root)
    own = package in NAMES["external"] and any(interp.root in folder.parents for folder in home)
    return package in NAMES["external"] and not (own and not _builds(interp, package))


def _builds(interp: Interpreter, package: str) -> bool:
    """Whether the project is built as that package."""
    named = re.compile(rf"\bname\s*=\s*[\"']{package.replace('_', '[-_]')}[\"']")
    return any(named.search(interp.read(interp.root / each) or "") for each in ("setup.py", "pyproject.toml"))


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
            value = _module_or_library(interp, alias.name, here)
            _log(interp, alias.name, value, node)
            interp.bind(alias.asname, value)
            continue
        top, _, rest = alias.name.partition(".")
        value = _module_or_library(interp, top, here)
        _log(interp, alias.name, value, node)
        if rest and type(value) is External and not _is_a_library(interp, top):
            # a folder without __init__.py, or a library: which one tells the last part
            if find(interp, alias.name, here) is not None:
                value = _folder(interp, alias.name, here, interp.frame.scope.names.get(top))
        elif rest and type(value) is ModuleValue:
            _folder(interp, alias.name, here, value)
        interp.bind(top, value)


_REGISTERING = Wording(("regist",), regex(r"^\s*@[\w.]*regist", re.MULTILINE | re.IGNORECASE))


def _log(interp: Interpreter, dotted: str, value: Value, node: ast.AST) -> None:
    """Log an import of the project's, or of what no library has any more; what registers its classes is executed."""
    if type(value) is ModuleValue:
        module = value.module
        alone = module.path.name == "__init__.py" and interp.frame.module.text.count(module.name) == 1
        if alone or _REGISTERING.is_in(module.text):
            run(interp, module)
    elif libraries.dropped(dotted) is None:
        return
    interp.event("import", node, dotted, None, None, value)


def _module_or_library(interp: Interpreter, dotted: str, importer: ModuleFile) -> Value:
    module = find(interp, dotted, importer)
    return ModuleValue(module) if module is not None else External(libraries.canonical(dotted))


def _folder(interp: Interpreter, dotted: str, importer: ModuleFile, known: Value | None) -> ModuleValue:
    """The package at the beginning of a dotted name, with the modules further down bound in it."""
    top, *parts = dotted.split(".")
    value = known if type(known) is ModuleValue else _without_text(interp.folders[0] / top, top)
    module, name = value.module, top
    for part in parts:
        name = f"{name}.{part}"
        below = module.scope.names.get(part)
        if type(below) is not ModuleValue:
            found = find(interp, name, importer)
            below = ModuleValue(found) if found is not None else _without_text(module.path / part, name)
            module.scope.names.setdefault(part, below)
        module = below.module
    return value


def _without_text(folder: Path, name: str) -> ModuleValue:
    """A folder that has no ``__init__.py``."""
    module = ModuleFile(folder, name, "", ast.Module([], []))
    module.executed = True
    return ModuleValue(module)


_SEVERAL = 8
"""So many modules are read where a part of a name is chosen at run time."""


def import_by_name(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``importlib.import_module(name)``, ``__import__``: one of the project's modules, or a library."""
    here = interp.frame.module
    known = [text for member in members(arguments.value("name", 0)) if (text := text_of(member))]
    named = join_all(_named(interp, text, here) for text in known)
    package = named.qualname.partition(".")[0] if type(named) is External else ""
    gone = not _is_a_library(interp, package) and any(package in each.parts for each in interp.beside())
    return named if named is not None and not gone else interp.opaque(qualname + "()", "call", node)


BY_NAME = ("importlib.import_module()", "__import__()", "builtins.__import__()")
"""How a module is called that is chosen at run time."""


def defined(interp: Interpreter, name: str) -> Value | None:
    """What the project's modules define by a name that is read of a module that is chosen at run time."""
    defines = re.compile(rf"^(?:class|def) {re.escape(name)}\b", re.MULTILINE)
    paths = [path for path in interp.beside() if defines.search(interp.read(path) or "")]
    if len(paths) > _SEVERAL:
        return None
    modules = [load(interp, path, path.stem) for path in paths]
    return join_all(
        found for each in modules if each is not None and (found := member_of(interp, each, name)) is not None
    )


def _named(interp: Interpreter, name: str, here: ModuleFile) -> Value:
    """The module, or library, of a dotted name."""
    inner = name.lstrip(".")
    module = find(interp, inner, here, len(name) - len(inner))
    return ModuleValue(module) if module is not None else External(libraries.canonical(name))


def text_of(value: Value | None) -> str | None:
    """The text that a value is, or is by default."""
    default = default_of(value) if value is not None else None
    return default.value if type(default) is Const and isinstance(default.value, str) else None


def fill(interp: Interpreter, table: Mapping) -> None:
    """Before a dict is read that began empty: execute the imported modules that may put what they define into it."""
    node = table.origin.node if table.origin is not None else None
    empty = not node.keys if isinstance(node, ast.Dict) else isinstance(node, ast.Call)
    if not empty or table.made_at is None or sum(level.kind == "call" for level in table.made_at.chain()) > 1:
        return
    known, active = 0, interp.active
    interp.active = {}  # what registers may be what reads the table: it calls itself no more than the modules do
    while known < len(interp.modules):
        known = len(interp.modules)
        for module in [*interp.modules.values()]:
            if module is not None and not module.executed and _defines_for_others(module.tree):
                run(interp, module)
    interp.active = active


@once_per_node
def _defines_for_others(tree: ast.Module) -> bool:
    """Whether a module does something with what it defines, or has others that do: it is a package of modules."""
    for each in tree.body:
        if isinstance(each, (ast.ClassDef, ast.FunctionDef)) and each.decorator_list:
            return True
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            return True
    return all(isinstance(each, (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign)) for each in tree.body)


def import_names(interp: Interpreter, node: ast.ImportFrom) -> None:
    """``from a import b as c``, ``from a import *``."""
    here = interp.frame.module
    dotted = node.module or ""
    module = find(interp, dotted, here, node.level) or _by_its_own_name(interp, node, here)
    if module is not None and module is not here:
        _log(interp, dotted, ModuleValue(module), node)
    elif module is None and not node.level:
        _log(interp, dotted, External(dotted), node)
    for alias in node.names:
        if alias.name == "*":
            _import_star(interp, module, dotted, node)
            continue
        name = f"{dotted}.{alias.name}" if dotted else alias.name
        value: Value
        if module is not None and module is not here:
            value = Lazy(module, alias.name, node)
        elif (below := find(interp, name, here, node.level)) is not None:
            value = ModuleValue(below)  # a folder without __init__.py has modules, but no names
            _log(interp, below.name, value, node)
        elif node.level:
            value = interp.opaque(alias.name, "import", node)
        else:
            value = library(interp, libraries.canonical(name))
            _log(interp, name, value, node)
        interp.bind(alias.asname or alias.name, value)


def _by_its_own_name(interp: Interpreter, node: ast.ImportFrom, here: ModuleFile) -> ModuleFile | None:
    """The module behind ``from package.model import Net`` where the package's folder is called otherwise here.

    So it is where the project is installed under that name. Or behind ``from model import Net`` where one folder has it
    that is put on the path from outside, or other capitals. The module has all that is imported of it then.
    """
    package, _, inner = (node.module or "").partition(".")
    if node.level or not package or _is_a_library(interp, package):
        return None
    names = [alias.name for alias in node.names]
    texts = [interp.read(each) or "" for each in interp.beside() if each.stem == inner.rpartition(".")[2]]
    if texts and not any("import *" in text or all(each in text for each in names) for text in texts):
        return None  # gensim.models beside a models.py of the project's own
    module = find(interp, inner, here) if inner else None
    if module is None:
        sought = f"/{(node.module or '').replace('.', '/')}.py".casefold()
        same = [each for each in interp.beside() if each != here.path and each.as_posix().casefold().endswith(sought)]
        module = load(interp, same[0], package) if len(same) == 1 else None
    return module if module is not None and all(member_of(interp, module, each) is not None for each in names) else None


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
    """What ``__all__`` lists."""
    for each in module.tree.body:
        named = isinstance(each, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in each.targets)
        if named and isinstance(each.value, (ast.List, ast.Tuple)):  # type: ignore[attr-defined]
            return frozenset(str(item.value) for item in each.value.elts if isinstance(item, ast.Constant))  # type: ignore[attr-defined]
    return None


def member_of(interp: Interpreter, module: ModuleFile, name: str) -> Value | None:
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
        if name in libraries.star_names().get(library, ()):
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
    if lazy.running:
        return unseen(lazy)
    lazy.running = True
    value = member_of(interp, lazy.module, lazy.name)
    lazy.running = False
    return value if value is not None else unseen(lazy)


def unseen(lazy: Lazy) -> Opaque:
    """What is not known of a name that is imported."""
    return Opaque(f"{lazy.module.name}.{lazy.name}", "import", Origin(lazy.node, lazy.module))
