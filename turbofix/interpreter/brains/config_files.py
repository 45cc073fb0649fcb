"""The project's configuration files, YAML and JSON, as values: each is an option.

A file is the one that is named where it is read; else, of those in the project, the one whose sections the script
reads.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Arguments, Passed, positional
from turbofix.domain.values import (
    UNKNOWN,
    Class,
    Const,
    Entry,
    External,
    Function,
    Made,
    Mapping,
    Method,
    ModuleValue,
    Opaque,
    Option,
    Origin,
    Partial,
    Sequence,
    Union,
    Value,
    join,
    join_all,
    members,
)
from turbofix.interpreter.attributes import read_attribute
from turbofix.interpreter.definitions import default_value
from turbofix.interpreter.imports import find, text_of
from turbofix.interpreter.state import Handler, Interpreter
from turbofix.interpreter.unknowns import call_unknown
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.datafile import SUFFIXES
from turbofix.source.nodes import walk

FROM_FILE = "config"
"""How an option is given that stands in a file."""

_LONGEST = 200_000
_MOST = 400
_SHORT, _FEW = 20_000, 12
"""What a file may hold that no path names, in characters; where more JSON than that lies in a project, it is data."""
_NUMBER = regex(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_REFERENCE = regex(r"\$\{([\w.]+)\}")
_GLOBAL = regex(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_MISSING = "???"
"""What a group of a list of defaults is by default where the user has to choose."""


@dataclass(eq=False)
class ConfigFile:
    """One file: its nodes (PyYAML's), and how they stand in it."""

    module: ModuleFile
    loader: Any
    top: Any
    lines: list[str]

    def keys(self) -> list[str]:
        """The names of its sections."""
        return [str(key.value) for key, _ in self.top.value]

    def origin(self, node: Any, name: str = "") -> Origin:
        """Where a node stands, as a constant of a program's text would; its ``kind`` is the key before it."""
        start, end = node.start_mark, node.end_mark
        lines = self.lines
        constant = ast.Constant(node.value if isinstance(node.value, str) else None, name.rpartition(".")[2])
        constant.lineno, constant.end_lineno = start.line + 1, end.line + 1
        constant.col_offset = len(lines[start.line][: start.column].encode()) if start.line < len(lines) else 0
        constant.end_col_offset = len(lines[end.line][: end.column].encode()) if end.line < len(lines) else 0
        return Origin(constant, self.module)


# --- from nodes to values ---------------------------------------------------------------------------------------------


def _value(interp: Interpreter, file: ConfigFile, node: Any, name: str) -> Mapping | Sequence | Option:
    """What a node of a file stands for; ``name`` is the way to it from the top."""
    import yaml

    origin = file.origin(node, name)
    if isinstance(node, yaml.MappingNode):
        mapping = Mapping(interp.control, origin)
        try:
            file.loader.flatten_mapping(node)
        except yaml.YAMLError:
            mapping.open = True
            return mapping
        for key, value in node.value:
            word = _scalar(file, key)
            made = _value(interp, file, value, f"{name}.{word}" if name else str(word))
            mapping.entries[word] = Entry(made, True, made.origin)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items: list[Value] = [_value(interp, file, each, f"{name}[{number}]") for number, each in enumerate(node.value)]
        return Sequence(items, interp.control, origin, "list")
    const = Const(_scalar(file, node), origin)
    return Option(f"{name} in {file.module.name}", const, origin, FROM_FILE, isinstance(const.value, bool))


def _scalar(file: ConfigFile, node: Any) -> Any:
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        return None
    if not node.style and _NUMBER.fullmatch(node.value):
        return float(node.value)  # for YAML 1.1, `3e-4` is a text
    try:
        return file.loader.construct_object(node)
    except (yaml.YAMLError, ValueError):
        return node.value


def _resolved(value: Value, top: Value, depth: int = 4) -> Value:
    """A value with the references in it looked up: ``${model.width}``."""
    if type(value) is Union:
        return join_all(_resolved(each, top, depth) for each in value.values) or UNKNOWN
    if isinstance(value, Mapping):
        for entry in value.entries.values():
            entry.value = _resolved(entry.value, top, depth)
    elif type(value) is Sequence and value.items is not None:
        value.items[:] = [_resolved(each, top, depth) for each in value.items]
    elif type(value) is Option and type(value.default) is Const and isinstance(value.default.value, str):
        text = value.default.value
        reference = _REFERENCE.fullmatch(text)
        if reference is not None and depth:
            found: Value | None = top
            for part in reference[1].split("."):
                below = found.entries.get(part) if isinstance(found, Mapping) else None
                found = below.value if below is not None else None
            if found is not None and found is not value:
                return found if isinstance(found, Mapping) else _resolved(found, top, depth - 1)
        if "${" in text:
            return Option(value.name, UNKNOWN, value.origin, value.how)
    return value


# --- which file -------------------------------------------------------------------------------------------------------


def _parsed(interp: Interpreter, path: Path) -> ConfigFile | None:
    """A file of the project; None for what is none, or no mapping."""
    if path in interp.configs:
        return interp.configs[path]  # type: ignore[no-any-return]
    import yaml

    interp.configs[path] = None
    text = interp.read(path)
    if text is None or len(text) > _LONGEST:
        return None
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text.replace("\t", " "))
        top = loader.get_node() if loader.check_node() else None
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    if isinstance(top, yaml.MappingNode):
        module = ModuleFile(path, path.name, text, ast.Module([], []))
        interp.configs[path] = found = ConfigFile(module, loader, top, text.split("\n"))
        return found
    return None


def _named(interp: Interpreter, value: Value | None, node: ast.AST | None, depth: int = 3) -> Iterator[str]:
    """The names of files in a path, or in what was opened at it."""
    for member in members(value):
        default = member.default if type(member) is Option else member
        if type(default) is Const and isinstance(default.value, (str, Path)):
            yield str(default.value)
        if isinstance(member, Opaque) and depth:
            path = member.children.get("<path>")
            source = path if path is not None else member.source
            yield from _named(interp, source, member.origin.node if member.origin is not None else None, depth - 1)
    if node is not None:
        yield from (each.value for each in walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _chosen(interp: Interpreter, given: Passed | None) -> ConfigFile | None:
    """The file that a path names; where it names none that is there, the one whose sections the program reads."""
    names = list(dict.fromkeys(_named(interp, given.value, given.node))) if given is not None else []
    names = [name for name in names if name.endswith(SUFFIXES)]
    files = interp.config_paths
    here = interp.frame.module.folder
    for name in names:
        for folder in (*interp.folders, here):
            found = _parsed(interp, (folder / name).resolve()) if (folder / name).resolve() in files else None
            if found is not None:
                return found
        tail = [path for path in files if path.parts[-len(Path(name).parts) :] == Path(name).parts]
        if len(tail) == 1:
            return _parsed(interp, tail[0])
    if names:  # one that the user has, or chooses
        parents = {(folder / name).resolve().parent for name in names for folder in (*interp.folders, here)}
        files = [path for path in files if path.suffix != ".json" and parents & {*path.parents}]
    read = (_words_of(module.text) for module in interp.modules.values() if module is not None)
    return _fitting(interp, files, frozenset().union(*read))


@lru_cache(maxsize=256)
def _words_of(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


def _fitting(interp: Interpreter, files: list[Path], words: AbstractSet[str]) -> ConfigFile | None:
    """The file of which the program's text has the most sections; of JSON, which holds data too, nearly all."""
    best: ConfigFile | None = None
    most = (0, -_MOST)
    holding_data = sum(path.suffix == ".json" for path in files) > _FEW
    for path in files:
        is_short = not (holding_data and path.suffix == ".json") and len(interp.read(path) or "") <= _SHORT
        file = _parsed(interp, path) if is_short else None
        keys = file.keys() if file is not None else []
        read = sum(key in words for key in keys)
        fits = (read >= 3 and 4 * read >= 3 * len(keys)) if path.suffix == ".json" else 2 * read >= len(keys)
        if fits and (read, read - len(keys)) > most:
            best, most = file, (read, read - len(keys))
    interp.guessed |= {best.module.path} if best is not None else set()
    return best


def load_file(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``OmegaConf.load(path)``, ``yaml.safe_load(file)``, ``json.load(file)``."""
    file = _chosen(interp, next(iter([*arguments.positions, *arguments.keywords.values()]), None))
    otherwise = call_unknown(interp, qualname, arguments, node)
    return _of_file(interp, file) if file is not None else otherwise


def told_at(interp: Interpreter, given: Passed) -> Value:
    """What the file holds whose path a call is given; what it is given itself, where that names no file."""
    names = any(name.endswith(SUFFIXES) for name in _named(interp, given.value, given.node))
    file = _chosen(interp, given) if names and not any(type(each) is Mapping for each in members(given.value)) else None
    return _of_file(interp, file) if file is not None else given.value


def _of_file(interp: Interpreter, file: ConfigFile) -> Value:
    value = _value(interp, file, file.top, "")
    return _resolved(value, value)


# --- Hydra ------------------------------------------------------------------------------------------------------------


def given_by_hydra(interp: Interpreter, function: Function) -> Arguments:
    """What ``@hydra.main(config_path=..., config_name=...)`` calls a function with."""
    for node in getattr(function.node, "decorator_list", ()):
        callee = default_value(interp, function, node.func) if isinstance(node, ast.Call) else None
        if isinstance(callee, External) and callee.qualname == "hydra.main":
            told = {each.arg: each.value for each in node.keywords if each.arg}
            told |= dict(zip(("config_path", "config_name"), node.args, strict=False))
            path, name = told.get("config_path"), told.get("config_name")
            known = text_of(default_value(interp, function, path)) if path is not None else "."
            text = text_of(default_value(interp, function, name)) if name is not None else None
            value: Value | None = None
            if known is not None:
                folder = function.module.folder / known
                value = _composed(interp, folder, text) or _any_of(interp, folder)
            value = value or _composed_somewhere(interp, text, path)
            return positional(value) if value is not None else Arguments()
    return Arguments()


def _any_of(interp: Interpreter, folder: Path) -> Value | None:
    """The configurations of a folder, of which the user names one: ``python train.py --config-name=large``."""
    found = {path: _composed(interp, folder, path.stem) for path in _choices(interp, folder.resolve())}
    interp.guessed |= found.keys()
    return join_all(each for each in found.values() if each is not None)


def _choices(interp: Interpreter, folder: Path) -> list[Path]:
    """The files of a folder of which the user has to choose one."""
    return [path for path in interp.config_paths if path.parent == folder and path.suffix != ".json"]


def _composed(interp: Interpreter, folder: Path, name: str | None) -> Value | None:
    """The configuration of that name, with those that its list of defaults names."""
    if name is None:
        return None
    merged = Mapping(interp.control)
    _compose(interp, folder.resolve(), name, merged, [], 6)
    return _resolved(merged, merged) if merged.entries else None


def _composed_somewhere(interp: Interpreter, name: str | None, folder: ast.AST | None) -> Value | None:
    """The same, where the folder is put together by the program: the first that is called as it and has the file."""
    for path in interp.config_paths:
        called = {*_named(interp, None, folder)} & {*path.parts[:-1]} or folder is None
        found = _composed(interp, path.parent, name) if called and path.stem == Path(name or "").stem else None
        if found is not None:
            return found
    return None


def _compose(interp: Interpreter, top: Path, name: str, merged: Mapping, package: list[str], depth: int) -> None:  # noqa: PLR0913
    name = name.removesuffix(".yaml")
    file = _parsed(interp, top / f"{name}.yaml") or _parsed(interp, top / f"{name}.yml")
    if file is None or not depth:
        return
    head = _GLOBAL.search(file.module.text[:500])
    if head is not None:
        package = [] if head[1] == "_global_" else head[1].split(".")
    own = _value(interp, file, file.top, ".".join(package))
    assert isinstance(own, Mapping)
    listed = own.entries.pop("defaults", None)
    items = listed.value.items if listed is not None and type(listed.value) is Sequence else None
    group = name.rpartition("/")[0]
    parts = list(_defaults(items or []))
    if (None, "_self_") not in parts:
        parts.append((None, "_self_"))  # since Hydra 1.1
    for key, choice in parts:
        if choice == "_self_" and key is None:
            _merge(interp, merged, own, package)
            continue
        where, _, told = (key or "").partition("@")
        below = f"{where.lstrip('/')}/{choice}" if key else choice.lstrip("/")
        absolute = where.startswith("/") or choice.startswith("/")
        inner = package if key is None else [*([] if absolute else package), *where.strip("/").split("/")]
        if told:
            inner = [] if told == "_global_" else [*package, *told.split(".")]
        below = below if absolute or not group else f"{group}/{below}"
        if choice != _MISSING:
            _compose(interp, top, below, merged, inner, depth - 1)
            continue
        for path in _choices(interp, (top / below).parent):
            one = Mapping(interp.control)
            _compose(interp, top, path.relative_to(top).as_posix(), one, inner, depth - 1)
            _merge(interp, merged, one, [], either=True)
            interp.guessed.add(path)


def _defaults(items: list[Value]) -> Iterator[tuple[str | None, str]]:
    """The groups of a list of defaults, each with what it is by default."""
    for item in items:
        if isinstance(item, Mapping):
            for key, entry in item.entries.items():
                choice = text_of(entry.value)
                if isinstance(key, str) and choice is not None and "${" not in choice:
                    yield key.removeprefix("optional ").removeprefix("override "), choice
        elif (alone := text_of(item)) is not None:
            yield None, alone


def _merge(interp: Interpreter, into: Mapping, other: Mapping, package: list[str], *, either: bool = False) -> None:
    """Put sections under a place, over those that are there, or beside them (``either``)."""
    for word in package:
        entry = into.entries.get(word)
        if entry is None or not isinstance(entry.value, Mapping):
            entry = into.entries[word] = Entry(Mapping(interp.control), True)
        assert isinstance(entry.value, Mapping)
        into = entry.value
    for key, entry in other.entries.items() if either else ():
        known = into.entries.get(key)
        into.entries[key] = Entry(join(known.value if known else None, entry.value) or UNKNOWN, True, entry.origin)
    if not either:
        merged = _overlaid(into, other)
        into.entries, into.origin, into.open = merged.entries, merged.origin, merged.open


def _overlaid(first: Mapping, second: Mapping) -> Mapping:
    """Sections merged as OmegaConf does: those below one name go together."""
    entries = dict(first.entries)
    for key, entry in second.entries.items():
        known = entries.get(key)
        if known is not None and isinstance(known.value, Mapping) and isinstance(entry.value, Mapping):
            entry = Entry(_overlaid(known.value, entry.value), entry.must, entry.origin)  # noqa: PLW2901
        entries[key] = entry
    return Mapping(first.made_at, first.origin or second.origin, entries, first.open or second.open)


def _merge_sections(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``OmegaConf.merge(a, b)``."""
    sections = [passed.value for passed in arguments.positions if isinstance(passed.value, Mapping)]
    merged = reduce(_overlaid, sections, Mapping(interp.control))
    merged.open = len(sections) < len(arguments.positions)
    return merged if sections else arguments.at(0) or UNKNOWN


# --- what a configuration names ---------------------------------------------------------------------------------------


def _lookup(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``hydra.utils.get_class("a.b.C")``: of a text that is known."""
    given = members(next(iter(arguments.values()), None))
    found = join_all(resolve(interp, text) for member in given if (text := text_of(member)))
    return found or call_unknown(interp, qualname, arguments, node)


def resolve(interp: Interpreter, name: str) -> Value:
    """The module, class or function of a dotted name."""
    parts = name.split(".")
    here = interp.frame.module
    for count in range(len(parts), 0, -1) if name.strip(".") else ():
        module = find(interp, ".".join(parts[:count]), here)
        if module is not None:
            value: Value = ModuleValue(module)
            for part in parts[count:]:
                value = read_attribute(interp, value, part, here.tree)
            return value
    return External(libraries.canonical(name))


def _instantiate(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``hydra.utils.instantiate(cfg.model, ...)``: what ``_target_`` names, made of what stands beside it."""
    config = arguments.value("config", 0)
    given = arguments.rest_of()
    given.keywords = {
        name: each for name, each in given.keywords.items() if name not in ("config", *NAMES["config_controls"])
    }
    partial = "_partial_" in arguments.keywords
    found = join_all(_made(interp, member, given, node, partial) for member in members(config))
    return found or call_unknown(interp, qualname, arguments, node)


def _made(  # noqa: PLR0913
    interp: Interpreter, value: Value, given: Arguments, node: ast.AST, partial: bool = False, depth: int = 6
) -> Value | None:
    def inner(each: Value) -> Value:
        return _made(interp, each, Arguments(), node, False, depth - 1) or each

    if type(value) is Sequence and value.items is not None:
        return Sequence([inner(each) for each in value.items], interp.control, None, "list")
    if not isinstance(value, Mapping) or not depth:
        return None
    entries = value.entries
    target = entries.get("_target_") or entries.get("class_path")
    below = entries.get("init_args")
    if below is not None and isinstance(below.value, Mapping):
        entries = below.value.entries
    deep = value.entries.get("_recursive_")
    is_flat = deep is not None and _is_off(deep.value)
    parts = {
        key: entry if is_flat else Entry(inner(entry.value), True, entry.origin)
        for key, entry in entries.items()
        if key not in NAMES["config_controls"]
    }
    if target is None:
        return Mapping(value.made_at, value.origin, parts, value.open, value.element)
    name = text_of(target.value)
    if name is None or (below is not None and libraries.kind_of(name) in ("optimizer", "scheduler")):
        return None  # the module makes it, of its weights
    told = Arguments(given.positions, {**_keywords(parts), **given.keywords}, given.open, given.star, given.rest)
    if partial or "_partial_" in value.entries:
        return Partial(resolve(interp, name), told)
    return interp.call(resolve(interp, name), told, node)


# --- Lightning's command line -----------------------------------------------------------------------------------------


def command_line(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Made:
    """``LightningCLI(Model, Data)``, which makes both and a trainer as a file says, and has it train."""
    made = interp.make(qualname, "command line", arguments, node)
    file = _fitting(
        interp, [each for each in interp.config_paths if each.suffix != ".json"], NAMES["lightning_sections"]
    )
    told = _of_file(interp, file) if file is not None and {"trainer", "model", "fit"} & {*file.keys()} else None
    sections = dict(told.entries) if isinstance(told, Mapping) else {}
    if "fit" in sections and isinstance(sections["fit"].value, Mapping):
        sections |= sections["fit"].value.entries
    objects = {
        "model": _section(interp, sections.get("model"), arguments.value("model_class", 0), node),
        "datamodule": _section(interp, sections.get("data"), arguments.value("datamodule_class", 1), node),
    }
    entries = sections["trainer"].value if "trainer" in sections else None
    given = Arguments([], _keywords(entries.entries) if isinstance(entries, Mapping) else {})
    package = "lightning.pytorch" if qualname.startswith("lightning.") else "pytorch_lightning"
    trainer = interp.make(f"{package}.Trainer", "trainer", given, node)
    made.attributes.update({"trainer": trainer, **objects})
    run = arguments.value("run")
    if run is None or not _is_off(run):
        passed = Arguments([], {name: Passed(value) for name, value in objects.items()})
        interp.call(Method(trainer, "fit"), passed, node)
    return made


def _section(interp: Interpreter, section: Entry | None, cls: Value | None, node: ast.AST) -> Value:
    """The object of a section: of the class that it names, else of the one that the program does."""
    value = section.value if section is not None else None
    told = _made(interp, value, Arguments(), node) if value is not None else None
    if isinstance(value, Mapping) and "class_path" in value.entries:
        return told or UNKNOWN
    keywords = _keywords(told.entries) if isinstance(told, Mapping) else {}
    classes = [each for each in members(cls) if isinstance(each, Class)]
    made = (interp.call(each, Arguments([], keywords, open=True), node) for each in classes)
    return join_all(made) or interp.opaque("<section>", "call", node)


def _keywords(entries: dict[object, Entry]) -> dict[str, Passed]:
    """Arguments that stand in a file."""
    found: dict[str, Passed] = {}
    for key, entry in entries.items():
        if isinstance(key, str) and entry.origin is not None and isinstance(entry.origin.node, ast.expr):
            found[key] = Passed(entry.value, True, None, entry.origin.node, entry.origin.module)
    return found


def _is_off(value: Value) -> bool:
    default = value.default if type(value) is Option else value
    return type(default) is Const and default.value is False


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(NAMES["config_loads"], load_file),
    **dict.fromkeys(NAMES["instantiate"], _instantiate),
    **dict.fromkeys(NAMES["lookups"], _lookup),
    **dict.fromkeys(NAMES["lightning_cli"], command_line),
    "omegaconf.OmegaConf.merge": _merge_sections,
}
