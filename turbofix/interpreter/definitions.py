"""What the classes and functions of the project declare: bases, fields, parameters, defaults, decorators."""

from __future__ import annotations

import ast
from functools import lru_cache

from turbofix.domain.scopes import Frame, Scope
from turbofix.domain.trace import Arguments
from turbofix.domain.values import (
    UNKNOWN,
    Class,
    Const,
    External,
    Function,
    Instance,
    Made,
    Opaque,
    Origin,
    Unknown,
    Value,
    members,
)
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES
from turbofix.regex import regex
from turbofix.source.answers import once_per_node
from turbofix.source.names import dotted

LAYERS = "<layers>"
"""Where an object keeps what it gave the constructor of ``Sequential``."""


def is_module(value: Instance) -> bool:
    """Whether an object of the project is a torch module: by its bases, or a ``forward`` beside a library's base."""
    bases = value.cls.externals()
    if _has_module(bases):
        return True
    return type(value.cls.find("forward")) is Function and any(map(_may_be_module, bases))


@lru_cache(maxsize=1024)
def _has_module(bases: tuple[str, ...]) -> bool:
    kinds = ("module", "criterion", "wrapper")
    return any(name in NAMES["module_bases"] or libraries.kind_of(name) in kinds for name in bases)


def _may_be_module(base: str) -> bool:
    """Whether a class may derive from a module: it is another library's, and nothing else that is known."""
    own = base.startswith(("torch.", "builtins.", "abc.", "typing.", "enum."))
    return not own and libraries.kind_of(base) is None


_OF_LOSSES = regex(r"(Loss(?!Net)|Criterion|CrossEntropy|LabelSmoothing)(?=[A-Z0-9_]|$)")


def is_criterion(value: Instance) -> bool:
    """Whether a module of the project computes a loss, by its bases or the name of its class."""
    if "criterion" in map(libraries.kind_of, value.cls.externals()):
        return True
    name = value.cls.node.name
    return (name.lower().endswith(("loss", "criterion")) or _OF_LOSSES.search(name) is not None) and is_module(value)


def stops_gradients(value: Value) -> bool:
    """Whether a decorator switches gradients off."""
    for member in members(value):
        name = member.qualname if isinstance(member, (External, Made)) else ""
        mode = member.arguments.value("mode", 0) if type(member) is Made else None
        off = name == "torch.set_grad_enabled" and type(mode) is Const and mode.value is False
        if off or name in ("torch.no_grad", "torch.inference_mode"):
            return True
    return False


def is_layer(value: Value) -> bool:
    """Whether a value can be a module, of the project or of a library."""
    made = (each.kind in ("module", "criterion") for each in members(value) if type(each) is Made)
    return any(made) or any(type(each) is Instance and is_module(each) for each in members(value))


def has_decorator(function: Function, *qualnames: str) -> bool:
    """Whether a function has a decorator of these names."""
    return bool(function.decorators) and any(
        type(member) is External and member.qualname in qualnames
        for value in function.decorators
        for member in members(value)
    )


def option_default(value: Value) -> Value:
    """The default inside ``typer.Option(32)``; any other value is itself."""
    inner = type(value) is Made and value.kind == "parameter_default"
    return value.arguments.value("default", 0) or UNKNOWN if inner else value  # type: ignore[attr-defined]


def default_value(interp: Interpreter, function: Function, default: ast.expr) -> Value:
    """A default, evaluated where the function was defined."""
    if isinstance(default, ast.Constant):
        return Const(default.value, Origin(default, function.module))
    return evaluated(interp, default, function.scope)


def evaluated(interp: Interpreter, node: ast.expr, scope: Scope) -> Value:
    """An expression of another place than the one that is being executed."""
    outer = interp.frame
    interp.frame = Frame(None, scope, scope.module)
    value = interp.eval(node)
    interp.frame = outer
    return value


def fields_of(cls: Class) -> list[tuple[ast.AnnAssign, Class]]:
    """The fields of a dataclass, its bases' first; nothing for other classes."""
    return annotated(cls) if cls.is_dataclass else []


def annotated(cls: Class) -> list[tuple[ast.AnnAssign, Class]]:
    """The names that a class and its bases declare with a type, with the class that does."""
    found: dict[str, tuple[ast.AnnAssign, Class]] = {}
    for owner in reversed(cls.mro()):
        for statement in owner.node.body if type(owner) is Class else ():
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = (statement, owner)  # type: ignore[assignment]
    return list(found.values())


def field_default(interp: Interpreter, statement: ast.AnnAssign, owner: Class) -> Value | None:
    """The default of a dataclass field, through ``field(default=...)``."""
    assert isinstance(statement.target, ast.Name)
    value, scope = owner.names.get(statement.target.id), owner.module.scope
    if not isinstance(statement.value, ast.Call):
        return value
    for keyword in statement.value.keywords:
        if keyword.arg in ("default", "default_factory", "factory"):
            told = evaluated(interp, keyword.value, scope)
            return told if keyword.arg == "default" else interp.call(told, Arguments(), statement.value)
    declares = (dotted(statement.value.func) or "").rpartition(".")[2].lower() == "field"
    if declares and statement.value.args and isinstance(statement.value.args[0], ast.Constant):
        return evaluated(interp, statement.value.args[0], scope)  # pydantic's Field(...)
    return None if isinstance(value, (Opaque, Unknown)) else value


@once_per_node
def declared_parameters(declared: ast.arguments) -> tuple[int, list[tuple[str, ast.arg, ast.expr | None]]]:
    """How many parameters may be passed by position; and all that have a name of their own, with their defaults."""
    ordinary = [*declared.posonlyargs, *declared.args]
    defaults = [*[None] * (len(ordinary) - len(declared.defaults)), *declared.defaults, *declared.kw_defaults]
    named = [*ordinary, *declared.kwonlyargs]
    return len(ordinary), [(each.arg, each, default) for each, default in zip(named, defaults, strict=True)]


def parameters_given(function: Function, arguments: Arguments) -> dict[str, list[ast.expr]]:
    """The expressions that are passed for each parameter of a function; none for one out of ``*values``."""
    declared = function.node.args
    ordinary, known = declared_parameters(declared)
    rest, others = getattr(declared.vararg, "arg", None), getattr(declared.kwarg, "arg", None)
    names = {name for name, _, _ in known}
    pairs = [(known[i][0] if i < ordinary else rest, each) for i, each in enumerate(arguments.positions)]
    pairs += [(name if name in names else others, each) for name, each in arguments.keywords.items()]
    given: dict[str, list[ast.expr]] = {name: [] for name, _ in pairs if name is not None}
    for name, passed in pairs:
        if name is not None and passed.node is not None:
            given[name].append(passed.node)
    return given
