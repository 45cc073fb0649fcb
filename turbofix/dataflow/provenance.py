"""What an argument of a call can be, where a person would change it, and who else reads the value.

A value is carried from the place where it is written to the call: by a name, an attribute, a dict's key, an option, a
parameter. Every other reader of such a carrier is a reason to think twice before the value is changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import field

from turbofix.dataflow.facts import Facts, settled
from turbofix.dataflow.known import ABSENT, Argument
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import (
    FROM_FILE,
    Computed,
    Const,
    Instance,
    ModuleValue,
    Opaque,
    Option,
    Origin,
    Unknown,
    Value,
    members,
)
from turbofix.findings import Evidence
from turbofix.interpreter.definitions import fields_of
from turbofix.library.tables import LOGGING_METHODS, SHOWING_METHODS, words
from turbofix.records import dataclass
from turbofix.source.answers import every, once_per_node
from turbofix.source.datafile import is_data
from turbofix.source.names import dotted, parameters
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site

_LONGEST = 60

_TELLING = SHOWING_METHODS | LOGGING_METHODS | words("print pprint log_param log_params log_hyperparams add_hparams")
_AS_TEXT = ("str", "repr", "int", "float", "format")
_IN_A_LINE = (ast.JoinedStr, ast.FormattedValue, ast.Dict, ast.keyword, ast.Tuple, ast.List, ast.BinOp)

Carrier = tuple[str, object, str]
"""How a value travels: ("name", its scope, the name), ("attribute", None, its name) or ("key", None, the key)."""


@dataclass(frozen=True, eq=False)
class TextReads:
    """What the text of one file reads: names, attributes, and constant keys, each kind in the order of ``walk``."""

    names: dict[str, list[ast.Name]]
    attributes: dict[str, list[ast.Attribute]]
    keys: dict[str, list[ast.expr]]


@once_per_node
def reads_in(tree: ast.Module) -> TextReads:
    """The index of a file's reads."""
    found = TextReads({}, {}, {})
    for name in every(ast.Name, tree):
        if name.ctx.__class__ is ast.Load:
            found.names.setdefault(name.id, []).append(name)
    for attribute in every(ast.Attribute, tree):
        if attribute.ctx.__class__ is ast.Load:
            found.attributes.setdefault(attribute.attr, []).append(attribute)
    for item in every(ast.Subscript, tree):
        key = item.slice.value if isinstance(item.slice, ast.Constant) else None
        if item.ctx.__class__ is ast.Load and isinstance(key, str):
            found.keys.setdefault(key, []).append(item)
    for call in every(ast.Call, tree):
        if (got := _got_key(call)) is not None:
            found.keys.setdefault(got, []).append(call)
    return found


@dataclass(eq=False)
class Reads:
    """Who reads a value that is written in one place."""

    facts: Facts
    _called: dict[int, list[tuple[ast.AST, bool]]] | None = None
    _sayers: dict[str, list[ModuleFile]] = field(default_factory=dict)

    @property
    def _calls(self) -> dict[int, list[tuple[ast.AST, bool]]]:
        """By call: the functions of the project that it executes, and whether each is a method."""
        if self._called is None:
            self._called = {}
            for frame in self.facts.opened():
                if frame.call is None:
                    continue
                known = self._called.setdefault(id(frame.call), [])
                if not any(scope is frame.scope for scope, _ in known):
                    method = frame.function is not None and frame.function.cls is not None
                    known.append((frame.scope, method))
        return self._called

    def other_reads(self, origin: Origin, uses: Iterable[ast.AST]) -> list[tuple[ast.AST, ModuleFile]]:
        """The places that read what is written at ``origin``, other than those on the way to ``uses``."""
        found: list[tuple[ast.AST, ModuleFile]] = []
        self._follow(self.carriers(origin.node, origin.module), list(uses), found, set(), [])
        return found

    def way(self, origin: Origin, uses: Iterable[ast.AST]) -> tuple[Evidence, ...]:
        """The statements that carry what is written at ``origin`` to ``uses``, in this order."""
        trail: list[tuple[ast.AST, ModuleFile]] = []
        self._follow(self.carriers(origin.node, origin.module), list(uses), [], set(), trail)
        places = self.facts.places
        found: dict[Site, Evidence] = {}
        for node, module in reversed(trail):
            statement = places.statement(node, module)
            simple = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return))
            text = " ".join(places.text(statement if simple and statement is not None else node, module).split())
            if len(text) > _LONGEST:
                text = f"{text[: _LONGEST - 3]}..."
            site = places.site(node, module)
            found.setdefault(site, Evidence(f"carried on by `{text}`", site))
        return tuple(found.values())

    def _follow(
        self,
        carriers: Iterable[Carrier],
        uses: list[ast.AST],
        found: list[tuple[ast.AST, ModuleFile]],
        seen: set[Carrier],
        trail: list[tuple[ast.AST, ModuleFile]],
    ) -> bool:
        """Add the reads of the carriers, and of what they fill, to ``found``; whether one of ``uses`` was met.

        Those that lead to ``uses`` are added to ``trail``, the last one first.
        """
        met = False
        for carrier in carriers:
            if carrier in seen:
                continue
            seen.add(carrier)
            for node, module in self._readers(carrier):
                if any(node is part for use in uses for part in walk(use)):  # `int(args.workers)` is the use, too
                    met = True
                    continue
                if self._is_told(node, module):
                    continue
                further = self._passed_on(node, module)
                inner: list[tuple[ast.AST, ModuleFile]] = []
                reached = bool(further) and self._follow(further, uses, inner, seen, trail)
                if reached:
                    trail.append((node, module))
                met = met or reached
                if reached or (further and not self._is_entry(node, module)):
                    found += [each for each in inner if not any(each[0] is other for other, _ in found)]
                elif not any(node is each for each, _ in found):
                    found.append((node, module))
        return met

    def _is_told(self, node: ast.AST, module: ModuleFile) -> bool:
        """Whether a read goes into a line that is printed or logged, or tells of an object, and nowhere else."""
        parent = self.facts.places.parent(node, module)
        if getattr(self.facts.places.scope(node, module), "name", "") in ("__str__", "__repr__"):
            return True
        while isinstance(parent, _IN_A_LINE):
            node, parent = parent, self.facts.places.parent(parent, module)
        if not isinstance(parent, ast.Call) or node is parent.func:
            return False
        name = (dotted(parent.func) or "").rpartition(".")[2]
        if name in _AS_TEXT:
            return self._is_told(parent, module)
        return name in _TELLING and isinstance(self.facts.places.parent(parent, module), ast.Expr)

    def _is_entry(self, node: ast.expr, module: ModuleFile) -> bool:
        """Whether a read fills an entry of a dict: where that goes is not always seen."""
        return isinstance(self.facts.places.parent(node, module), (ast.Dict, ast.keyword))

    def carriers(self, node: ast.AST, module: ModuleFile) -> Iterator[Carrier]:
        """What carries a literal away from where it is written."""
        places = self.facts.places
        parent = places.parent(node, module)
        if is_data(module.path) and isinstance(node, ast.Constant) and node.kind:
            yield ("key", None, node.kind)
            yield ("attribute", None, node.kind)
        elif isinstance(parent, (ast.IfExp, ast.UnaryOp)):
            yield from self.carriers(parent, module)
        elif isinstance(parent, ast.Assign):
            for target in parent.targets:
                yield from self._target(target, module)
        elif isinstance(parent, (ast.AnnAssign, ast.NamedExpr)):
            scope = places.scope(parent, module)
            if isinstance(scope, ast.ClassDef) and isinstance(parent.target, ast.Name):
                yield ("attribute", None, parent.target.id)
            else:
                yield from self._target(parent.target, module)
        elif isinstance(parent, ast.arguments):
            function = places.parent(parent, module)
            if function is not None:
                for name in _defaulted(parent, node):
                    yield ("name", function, name)
        elif isinstance(parent, ast.Dict):
            for key, value in zip(parent.keys, parent.values, strict=False):
                if value is node and isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield ("key", None, key.value)
                    yield ("attribute", None, key.value)
        elif isinstance(parent, ast.keyword):
            call = places.parent(parent, module)
            if isinstance(call, ast.Call):
                yield from self._keyword(parent, call, module)
        elif isinstance(parent, ast.Call):
            yield from self._position(node, parent)

    def _keyword(self, keyword: ast.keyword, call: ast.Call, module: ModuleFile) -> Iterator[Carrier]:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if keyword.arg in ("default", "default_factory") and (name == "add_argument" or name.startswith("DEFINE")):
            yield ("attribute", None, _destination(call))
        elif keyword.arg == "default" and name in ("option", "argument"):
            function = self.facts.places.parent(call, module)
            if isinstance(function, FUNCTIONS):
                yield ("name", function, _destination(call))
        elif keyword.arg == "default" and name == "field":
            parent = self.facts.places.parent(call, module)
            if isinstance(parent, ast.AnnAssign) and isinstance(parent.target, ast.Name):
                yield ("attribute", None, parent.target.id)
        elif keyword.arg is not None:
            scopes = self._calls.get(id(call), [])
            for scope, _ in scopes:
                yield ("name", scope, keyword.arg)
            if not scopes:  # dict(batch_size=4), SimpleNamespace(batch_size=4), Config(batch_size=4)
                yield ("attribute", None, keyword.arg)
                yield ("key", None, keyword.arg)

    def _position(self, node: ast.AST, call: ast.Call) -> Iterator[Carrier]:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "setdefault":
            if len(call.args) == 2 and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str):
                yield ("key", None, call.args[0].value)
            return
        if isinstance(call.func, ast.Name) and call.func.id in ("int", "float"):
            return
        index = next((i for i, argument in enumerate(call.args) if argument is node), len(call.args))
        for scope, method in self._calls.get(id(call), []):
            names = [each.arg for each in parameters(scope)]
            if index < len(call.args) and index + method < len(names):
                yield ("name", scope, names[index + method])
        for name in self._fields(call)[index : index + 1]:
            yield ("attribute", None, name)

    def _fields(self, call: ast.Call) -> list[str]:
        """The fields of the dataclass that a call makes an object of."""
        for event in self.facts.at(call):
            if event.kind == "construct" and isinstance(event.result, Instance):
                return [dotted(each.target) or "" for each, _ in fields_of(event.result.cls)]
        return []

    def _target(self, target: ast.expr, module: ModuleFile) -> Iterator[Carrier]:
        if isinstance(target, ast.Name):
            yield ("name", self.facts.bindings.owner(target.id, target, module), target.id)
        elif isinstance(target, ast.Attribute):
            yield ("attribute", None, target.attr)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            yield ("key", None, str(target.slice.value))

    def _readers(self, carrier: Carrier) -> Iterator[tuple[ast.expr, ModuleFile]]:
        kind, scope, name = carrier
        if kind == "attribute":
            for attribute, module in self._attributes_read(name):
                parent = self.facts.places.parent(attribute, module)
                called = isinstance(parent, ast.Call) and parent.func is attribute
                if not called and not self._is_of_another(attribute, module):
                    yield attribute, module
        elif kind == "key":
            for module in self._modules():
                for entry in reads_in(module.tree).keys.get(name, ()):
                    yield entry, module
        else:
            for node, module in self._names_read(name):
                if self.facts.bindings.owner(name, node, module) is scope:
                    yield node, module
            if isinstance(scope, ast.Module):
                yield from self._imported(scope, name)

    def _is_of_another(self, read: ast.Attribute, module: ModuleFile) -> bool:
        """Whether ``self.workers`` is set by its own class to something else than any ``.workers`` of the program, or
        is a field of what a forward pass is given."""
        if not isinstance(read.value, ast.Name):
            return False
        if read.value.id != "self":
            scope = self.facts.places.scope(read, module)
            passes = isinstance(scope, ast.FunctionDef) and scope.name == "forward"
            return passes and any(each.arg == read.value.id for each in parameters(scope))
        above = self.facts.places.ancestors(read, module)
        cls = next((each for each in above if isinstance(each, ast.ClassDef)), None)
        writes = [write for write, _, where in self.facts.attribute_writes(read.attr) if where is module]
        own = [each for each in writes if cls in self.facts.places.ancestors(each, module)] if cls is not None else []
        values = [each.value for each in own if isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value]
        if not values or any(_has_attribute(each, read.attr) for each in values):
            return False
        return not any(self._passed_on(each, where) for each, where in self._attributes_read(read.attr))

    def _imported(self, tree: ast.Module, name: str) -> Iterator[tuple[ast.expr, ModuleFile]]:
        """Reads of a module's constant in the files that import it."""
        for module in self._modules():
            if module.tree is tree:
                continue
            for alias, statement in _imports_of(module, name):
                source = (statement.module or "").rpartition(".")[2]
                if any(other.tree is tree and other.name.rpartition(".")[2] == source for other in self._modules()):
                    for node in reads_in(module.tree).names.get(alias, ()):
                        yield node, module
        for attribute, module in self._attributes_read(name):
            if isinstance(attribute.value, ast.Name):
                base = module.scope.names.get(attribute.value.id)
                if any(isinstance(each, ModuleValue) and each.module.tree is tree for each in members(base)):
                    yield attribute, module

    def _names_read(self, name: str) -> Iterator[tuple[ast.Name, ModuleFile]]:
        """The reads of a name in the program."""
        for module in self._saying(name):
            for node in reads_in(module.tree).names.get(name, ()):
                yield node, module

    def _attributes_read(self, name: str) -> Iterator[tuple[ast.Attribute, ModuleFile]]:
        """The reads of an attribute in the program."""
        for module in self._saying(name):
            for node in reads_in(module.tree).attributes.get(name, ()):
                yield node, module

    def _saying(self, name: str) -> list[ModuleFile]:
        """The files whose text has a name."""
        found = self._sayers.get(name)
        if found is None:
            found = self._sayers[name] = [module for module in self._modules() if name in module.text]
        return found

    def _modules(self) -> Iterable[ModuleFile]:
        return self.facts.execution.modules.values()

    def _passed_on(self, node: ast.expr, module: ModuleFile) -> list[Carrier]:
        """The carriers that a read only fills: an alias, a parameter of a project function, an entry of a dict."""
        parent = self.facts.places.parent(node, module)
        if isinstance(parent, ast.Dict) and self._is_told(node, module):
            return []
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Dict)):
            return list(self.carriers(node, module))
        if isinstance(parent, ast.keyword):
            call = self.facts.places.parent(parent, module)
            known = isinstance(call, ast.Call) and (id(call) in self._calls or parent.arg in self._fields(call))
            if known or (isinstance(call, ast.Call) and dotted(call.func) == "dict"):
                return list(self.carriers(node, module))
        if isinstance(parent, ast.Call) and parent.func is not node:
            return list(self._position(node, parent))
        return []


def _has_attribute(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == name for each in walk(node))


def _got_key(node: ast.Call) -> str | None:
    """The literal key of ``mapping.get("key")``."""
    first = node.args[0] if node.args else None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and isinstance(first, ast.Constant):
        return first.value if isinstance(first.value, str) else None
    return None


def _imports_of(module: ModuleFile, name: str) -> Iterator[tuple[str, ast.ImportFrom]]:
    for statement in module.tree.body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if alias.name == name:
                    yield alias.asname or name, statement
                elif alias.name == "*":
                    yield name, statement


def _defaulted(arguments: ast.arguments, node: ast.AST) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    for parameter, default in zip(
        positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=False
    ):
        if default is node:
            yield parameter.arg
    for parameter, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=False):
        if keyword_default is node:
            yield parameter.arg


def _destination(call: ast.Call) -> str:
    """The attribute (or parameter) that an option's declaration fills."""
    for keyword in call.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    names = [str(each.value) for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    for name in names:
        if name.startswith("--"):
            return name.lstrip("-").replace("-", "_")
    return names[0].lstrip("-").replace("-", "_") if names else ""


# --- from values to arguments -------------------------------------------------------------------------------------


def argument_from(passed: Passed | None, module: ModuleFile, facts: Facts, reads: Reads) -> Argument:
    """The argument that a call passes; ``module`` is the file of the call."""
    if passed is None:
        return ABSENT
    return argument_of(passed, facts, reads, module)


def argument_of(passed: Passed, facts: Facts, reads: Reads, module: ModuleFile) -> Argument:
    """The argument that a value makes; ``passed.node`` is its expression in ``module``, the file of the call."""
    places = facts.places
    node = passed.node
    site = places.site(node, module) if node is not None else None
    text = places.text(node, module) if node is not None else None
    comment = places.comment(node, module) if node is not None else None
    state, values, origins, option = _classify(passed.value)
    if state in ("value", "option") and not passed.must:
        state = "may"
    edit_at: Site | None = None
    flag: Site | None = None
    others: tuple[Site, ...] = ()
    way: tuple[Evidence, ...] = ()
    if len(origins) == 1 and state in ("value", "option", "may", "computed"):
        origin = origins[0]
        declared = option is not None and isinstance(origin.node, ast.Call)  # an option without a default of its own
        edit_at = places.site(origin.node, origin.module)
        flag, edit_at = (edit_at, None) if declared else (None, edit_at)
        if edit_at != site:
            comment = places.comment(origin.node, origin.module) or comment
            uses = [each for each in (node, passed.entry) if each is not None]
            others = tuple(sorted({places.site(each, where) for each, where in reads.other_reads(origin, uses)}))
            way = reads.way(origin, uses) if edit_at is not None else ()
    literals = [
        (settled(each), each.origin)
        for each in (members(passed.value) if len(origins) > 1 else ())
        if isinstance(each, (Const, Option)) and not getattr(each, "derived", False)
    ]
    written = [(each, origin) for each, origin in literals if origin and not isinstance(origin.node, ast.Call)]
    return Argument(
        state,  # type: ignore[arg-type]
        values,
        state == "may" and not passed.must,
        site,
        text,
        edit_at,
        option,
        others,
        comment,
        way,
        flag,
        written=tuple((each, places.site(origin.node, origin.module)) for each, origin in written),
    )


def _classify(value: Value | None) -> tuple[str, tuple[object, ...], list[Origin], str | None]:
    """The state, the possible literals, where they are written, and the option's name."""
    values: list[object] = []
    origins: list[Origin] = []
    option: str | None = None
    states: set[str] = set()

    def note(each: object, origin: Origin | None) -> None:
        if not any(each is other or (type(each) is type(other) and each == other) for other in values):
            values.append(each)
        if origin is not None and not any(origin.node is other.node for other in origins):
            origins.append(origin)

    for member in members(value):
        if isinstance(member, Const):
            states.add("value")
            note(member.value, member.origin)
        elif isinstance(member, Option):
            option = member.name
            default = member.default
            if member.derived:
                states.add("computed")
                if isinstance(default, Const):
                    note(default.value, None)
            elif isinstance(default, Const):
                states.add("value" if member.how == FROM_FILE else "option")
                note(default.value, member.origin)
            else:
                states.add("computed" if isinstance(default, Computed) else "unknown")
        elif isinstance(member, Unknown):
            states.add("computed" if member.number else "unknown")
        elif isinstance(member, Opaque):
            states.add("unknown")
        else:
            states.add("computed")
    if not states:
        return "unknown", (), [], None
    if "unknown" in states:
        return "unknown", (), [], option
    if "computed" in states:
        return "computed", tuple(values), origins if option else [], option
    if states == {"value"}:
        return ("value" if len(values) == 1 else "may"), tuple(values), origins, option
    if states == {"option"} and len(values) == 1:
        return "option", tuple(values), origins, option
    return "may", tuple(values), origins, option


def bound_arguments(arguments: Arguments, names: Iterable[str]) -> dict[str, Passed]:
    """The arguments by parameter name: keywords as they are, positions by the given order."""
    positions = [] if arguments.star else arguments.positions
    return {**dict(zip(names, positions, strict=False)), **arguments.keywords}
