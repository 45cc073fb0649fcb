"""Lists, tuples and dicts as values: what they hold, and how that changes."""

from __future__ import annotations

import ast
from collections.abc import Collection

from turbofix.domain.trace import Arguments
from turbofix.domain.values import (
    UNKNOWN,
    Const,
    Entry,
    Instance,
    Iterated,
    Mapping,
    Namespace,
    Opaque,
    Option,
    Origin,
    Sequence,
    Tensor,
    Union,
    Value,
    is_hashable,
    join,
    join_all,
    members,
)
from turbofix.interpreter.state import Interpreter
from turbofix.library.tables import NAMES


def element_of(value: Sequence) -> Value:
    """What an unknown item of a list or tuple is."""
    if value.items is None:
        return value.element or UNKNOWN
    return join(value.element, join_all(value.items)) or UNKNOWN


def append(interp: Interpreter, sequence: Sequence, value: Value, at_end: bool) -> None:
    certainty = interp.certainty(sequence.made_at)
    if certainty == "never":
        return
    if sequence.items is not None and certainty == "strong" and at_end:
        sequence.items.append(value)
        return
    sequence.element = join(element_of(sequence) if sequence.items else sequence.element, value)
    sequence.items = None


def put(  # noqa: PLR0913
    interp: Interpreter, mapping: Mapping, key: Value, value: Value, node: ast.expr | None, must: bool = True
) -> None:
    """Set an entry of a dict."""
    certainty = interp.certainty(mapping.made_at)
    if certainty == "never":
        return
    keys = [each.value for each in members(key) if type(each) is Const and is_hashable(each.value)]
    if len(keys) < len(members(key)):
        mapping.element = join(mapping.element, value)
        mapping.open = True
        return
    entry = Entry(value, must and len(keys) == 1, interp.origin(node) if node is not None else None)
    for each in keys:
        put_entry(mapping, each, entry, certainty == "strong")


def put_entry(mapping: Mapping, key: object, entry: Entry, strong: bool) -> None:
    """Set an entry that may be there already; it replaces the old one only if it is certain to be set."""
    old = mapping.entries.get(key)
    if strong and entry.must:
        mapping.entries[key] = entry
    elif old is None:
        mapping.entries[key] = Entry(entry.value, False, entry.origin)
    else:
        mapping.entries[key] = Entry(join(old.value, entry.value) or UNKNOWN, old.must, entry.origin or old.origin)


def drop_item(interp: Interpreter, mapping: Mapping, key: Value) -> None:
    """``del mapping[key]``, or ``pop``."""
    certainty = interp.certainty(mapping.made_at)
    if type(key) is not Const or not is_hashable(key.value) or certainty == "never":
        return
    old = mapping.entries.get(key.value)
    if old is None:
        return
    if certainty == "strong":
        del mapping.entries[key.value]
    else:
        mapping.entries[key.value] = Entry(old.value, False, old.origin)


def place_in(items: Collection[object] | None, key: Value | None) -> int | None:
    """The number of the item that a key names; None where it is not known, or there is none."""
    number = key.value if items is not None and type(key) is Const else None
    return number if isinstance(number, int) and items is not None and -len(items) <= number < len(items) else None


def put_keywords(interp: Interpreter, mapping: Mapping, arguments: Arguments, strong: bool) -> None:
    """Set the entries that are passed by name."""
    for key, passed in arguments.keywords.items():
        origin = interp.origin(passed.node) if passed.node is not None else None
        if origin is None and passed.entry is not None and passed.entry_module is not None:
            origin = Origin(passed.entry, passed.entry_module)
        put_entry(mapping, key, Entry(passed.value, passed.must, origin), strong)
    mapping.open = mapping.open or arguments.open
    mapping.element = join(mapping.element, arguments.rest)


def merge(interp: Interpreter, mapping: Mapping, other: Value, strong: bool) -> None:
    """``mapping.update(other)``."""
    alternatives = [each for member in members(other) if (each := as_mapping(member)) is not None]
    if len(alternatives) == 1 and type(other) is not Union:
        for key, entry in alternatives[0].entries.items():
            put_entry(mapping, key, entry, strong)
    else:
        none_of_it = len(alternatives) < len(members(other))
        for key in dict.fromkeys(key for each in alternatives for key in each.entries):
            entries = [each.entries[key] for each in alternatives if key in each.entries]
            must = len(entries) == len(alternatives) and all(entry.must for entry in entries) and not none_of_it
            value = join_all(entry.value for entry in entries) or UNKNOWN
            put_entry(mapping, key, Entry(value, must, entries[0].origin), strong)
    for each in alternatives:
        mapping.open = mapping.open or each.open
        mapping.element = join(mapping.element, each.element)


def as_mapping(value: Value) -> Mapping | None:
    """A value that is unpacked with ``**`` or given to ``dict()``; None for None."""
    if isinstance(value, Mapping):
        return value
    if type(value) is Const and value.value is None:
        return None
    if type(value) is Namespace:
        entries: dict[object, Entry] = {
            name: Entry(each, True, each.origin if isinstance(each, (Option, Const)) else None)
            for name, each in value.attributes.items()
        }
        return Mapping(value.made_at, None, entries, value.open)
    if type(value) is Tensor:
        return Mapping(None, None, {}, True, value)
    if type(value) is Opaque:
        return Mapping(None, None, {}, True, value)
    if type(value) is Iterated and type(value.element) is Sequence and value.element.items:
        return Mapping(None, None, {}, True, value.element.items[-1])
    if type(value) is Sequence:
        return _of_pairs(value)
    return Mapping(None, None, {}, True)


def _of_pairs(value: Sequence) -> Mapping:
    """What a list of keys and values makes: ``OrderedDict([("conv", nn.Conv2d(3, 8, 3))])``."""
    mapping = Mapping(None, None, {}, value.items is None)
    for pair in value.items if value.items is not None else members(value.element):
        key, held = pair.items if type(pair) is Sequence and pair.items and len(pair.items) == 2 else (None, None)
        if type(key) is Const and is_hashable(key.value) and held is not None and value.items is not None:
            mapping.entries[key.value] = Entry(held, True, None)
        else:
            mapping.open = True
            mapping.element = join(mapping.element, held)
    return mapping


def items_of(instance: Instance) -> Mapping | None:
    """What an object holds whose class derives from ``dict``."""
    if NAMES["dict_classes"].isdisjoint(instance.cls.externals()):
        return None
    held = instance.attributes.setdefault("<items>", Mapping(instance.made_at, instance.origin))
    return held if isinstance(held, Mapping) else None


def of_option(option: Option, value: Value) -> Value:
    """What was computed of an option's default, as what the option decides."""
    if type(value) is Sequence and value.items is not None:
        return Sequence([of_option(option, each) for each in value.items], value.made_at, value.origin, value.kind)
    return option.made(value)


def iterated_parts(part: Value, whole: Value, name: str, origin: Origin) -> Iterated:
    """What ``values``, ``parameters``, ``items``, ``named_modules``, ``keys`` of something run over."""
    paired = name == "items" or name.startswith("named")
    element = Sequence([UNKNOWN, part]) if paired else UNKNOWN if name == "keys" else part
    return Iterated(element, whole, name, origin)
