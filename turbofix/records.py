"""``dataclass`` as the standard library's, for classes that are cheap to make.

The standard library generates and compiles the source of five methods for each class: for the hundred records of this
project that was a fifth of the time of a command on one file (CPython 3.11). Here all records share one ``__init__``,
``__eq__``, ``__hash__`` and ``__repr__`` that read the fields' names from the class. To ``dataclasses.replace``,
``fields`` and a type checker they are dataclasses like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  (handed on to whoever imports it from here)
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, slots=False):
        """A class decorator, with the options of the standard library's that are used here."""
        if cls is None:
            return lambda made: dataclass(made, frozen=frozen, eq=eq, slots=slots)
        if slots and (frozen or eq):
            return dataclasses.dataclass(frozen=frozen, eq=eq, slots=slots)(cls)
        return _slotted(cls) if slots else _record(cls, frozen, eq)


def _record(cls: type, frozen: bool, eq: bool) -> type:
    made: dict[str, Any] = {**_described(_fields(cls)), "__init__": _init, "__repr__": _repr}
    if eq:
        made |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
    if frozen:
        made |= {"__setattr__": _frozen, "__delattr__": _frozen}
    for name, value in made.items():
        if name not in cls.__dict__ or name in ("__match_args__", "__hash__"):
            setattr(cls, name, value)
    return cls


def _described(fields: dict[str, dataclasses.Field[Any]]) -> dict[str, Any]:
    """What the standard library and ``match`` ask of a class."""
    return {
        "__dataclass_fields__": fields,
        "__match_args__": tuple(name for name, field in fields.items() if field.init),
    }


class _Needs(NamedTuple):
    """What it takes to make an object of a class: made with the first one."""

    defaults: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]
    number: int
    names: frozenset[str]
    finishes: bool


@cache
def _needs(cls: Any) -> _Needs:
    fields = cls.__dataclass_fields__
    return _Needs(
        {name: field.default for name, field in fields.items() if field.default is not dataclasses.MISSING},
        tuple(
            (name, field.default_factory)
            for name, field in fields.items()
            if field.default_factory is not dataclasses.MISSING
        ),
        sum(field.init for field in fields.values()),
        frozenset(cls.__match_args__),
        hasattr(cls, "__post_init__"),
    )


@cache
def _key(cls: Any) -> Callable[[Any], object]:
    """What objects of a class are compared by."""
    fields = cls.__dataclass_fields__
    return attrgetter(*fields) if fields else type


def _slotted(cls: type) -> type:
    """Objects with slots are made by the ten thousand: their ``__init__`` is compiled, and nothing else."""
    fields = _fields(cls)
    inherited = getattr(cls, "__dataclass_fields__", {})
    body = {name: value for name, value in cls.__dict__.items() if name not in (*fields, "__dict__", "__weakref__")}
    body |= {
        **_described(fields),
        "__slots__": tuple(name for name in fields if name not in inherited),
        "__init__": _init_later(fields, hasattr(cls, "__post_init__"), "self.{name} = {value}"),
    }
    body.setdefault("__repr__", _repr)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


def _compiled_init(fields: dict[str, dataclasses.Field[Any]], finishes: bool, setting: str) -> Any:
    known: dict[str, Any] = {"_made": object(), "_set": object.__setattr__}
    parameters: list[str] = []
    lines: list[str] = []
    for name, field in fields.items():
        if not field.init:
            continue
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
            value = name
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_factory_{name}"] = field.default_factory
            parameters.append(f"{name}=_made")
            value = f"_factory_{name}() if {name} is _made else {name}"
        else:
            parameters.append(name)
            value = name
        lines.append(" " + setting.format(name=name, value=value))
    if finishes:
        lines.append(" self.__post_init__()")
    exec(f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(lines or [" pass"]), known)
    return known["__init__"]


@contextmanager
def compiled_when_needed(library: str) -> Iterator[None]:
    """Let the frozen dataclasses of a library that is loaded meanwhile compile their ``__init__`` when it is called.

    Those of other libraries that it loads are made by the standard library, and its own that ask for more than
    ``frozen`` and plain fields.
    """
    standard = dataclasses.dataclass

    def light(cls: Any = None, /, **options: bool) -> Any:
        if cls is None:
            return lambda made: light(made, **options)
        is_plain = (
            options == {"frozen": True} and cls.__module__.partition(".")[0] == library and _has_plain_fields(cls)
        )
        return _frozen_later(cls) if is_plain else standard(**options)(cls)

    dataclasses.dataclass = light
    try:
        yield
    finally:
        dataclasses.dataclass = standard


def _has_plain_fields(cls: type) -> bool:
    """Whether no field is one of ``__init__`` alone, or for keywords alone."""
    special = any(
        isinstance(each, dataclasses.InitVar)
        or each in (dataclasses.InitVar, dataclasses.KW_ONLY)
        or (isinstance(each, str) and ("InitVar" in each or "KW_ONLY" in each))
        for each in cls.__annotations__.values()
    )
    given = (each for each in vars(cls).values() if isinstance(each, dataclasses.Field))
    return not special and all(each.kw_only in (False, dataclasses.MISSING) for each in given)


@dataclasses.dataclass(frozen=True)
class _Frozen:
    """What the standard library says of a frozen class."""


def _frozen_later(cls: type) -> type:
    fields = _fields(cls)
    made: dict[str, Any] = {
        **_described(fields),
        "__dataclass_params__": _Frozen.__dict__["__dataclass_params__"],
        "__setattr__": _frozen,
        "__delattr__": _frozen,
    }
    own = {
        "__init__": _init_later(fields, hasattr(cls, "__post_init__"), "_set(self, {name!r}, {value})"),
        "__repr__": _repr,
        "__eq__": _eq,
        "__hash__": _hash,
    }
    made |= {name: value for name, value in own.items() if cls.__dict__.get(name) is None}
    for name, value in made.items():
        setattr(cls, name, value)
    return cls


def _init_later(fields: dict[str, dataclasses.Field[Any]], finishes: bool, setting: str) -> Any:
    def __init__(self: object, *values: object, **named: object) -> None:
        compiled = _compiled_init(fields, finishes, setting)
        for cls in type(self).__mro__:
            if cls.__dict__.get("__init__") is __init__:
                cls.__init__ = compiled  # type: ignore[misc]
        compiled(self, *values, **named)

    return __init__


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    fields: dict[str, dataclasses.Field[Any]] = {}
    for base in cls.__mro__[:0:-1]:
        fields |= base.__dict__.get("__dataclass_fields__", {})
    for name, annotation in cls.__annotations__.items():
        if _is_of_the_class(annotation):
            continue
        default = cls.__dict__.get(name, dataclasses.MISSING)
        field = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
        field.name, field.type = name, annotation
        setattr(field, "_field_type", dataclasses._FIELD)  # type: ignore[attr-defined]  # noqa: B010  (fields() asks for it)
        if field is default:
            # As in the standard library: the class has the default, or nothing, where ``field(...)`` stood.
            if field.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, field.default)
        fields[name] = field
    return fields


def _is_of_the_class(annotation: object) -> bool:
    if isinstance(annotation, str):
        return "ClassVar" in annotation
    return annotation is ClassVar or getattr(annotation, "__origin__", None) is ClassVar


def _init(self: Any, *values: object, **named: object) -> None:
    cls: Any = type(self)
    needs = _needs(cls)
    state = self.__dict__
    state.update(needs.defaults)
    if values:
        state.update(zip(cls.__match_args__, values, strict=False))
    if named:
        state.update(named)
    for name, factory in needs.factories:
        if name not in state:
            state[name] = factory()
    if len(state) != needs.number or len(values) > len(cls.__match_args__) or not named.keys() <= needs.names:
        wanted = ", ".join(cls.__match_args__)
        raise TypeError(f"{cls.__name__}({wanted}) cannot be made of {len(values)} values and {sorted(named)}")
    if needs.finishes:
        self.__post_init__()


def _eq(self: Any, other: Any) -> Any:
    key = _key(self.__class__)
    return key(self) == key(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_key(self.__class__)(self))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__dataclass_fields__)
    return f"{type(self).__qualname__}({shown})"


def _frozen(self: Any, name: str, *value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to or delete field {name!r}")
