"""Methods of dicts, lists, namespaces and texts."""

from __future__ import annotations

import ast
import contextlib

from turbofix.domain.tensors import moved, tensors_in
from turbofix.domain.trace import Arguments
from turbofix.domain.values import (
    FROM_FILE,
    NONE,
    NUMBER,
    UNKNOWN,
    Const,
    Entry,
    Iterated,
    Mapping,
    Namespace,
    Option,
    Sequence,
    Value,
    is_hashable,
    join,
    join_all,
    members,
)
from turbofix.interpreter.attributes import write_attribute
from turbofix.interpreter.containers import append, as_mapping, drop_item, element_of, merge, of_option, put, put_entry
from turbofix.interpreter.imports import fill
from turbofix.interpreter.items import read_item
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.unknowns import act_of_unknown, call_method_of_anything, label, target_of
from turbofix.library.tables import NAMES


def call_mapping_method(interp: Interpreter, mapping: Mapping, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = arguments.at(0)
    if name == "update":
        return _update_mapping(interp, mapping, arguments, node)
    if name in ("get", "pop", "setdefault"):
        return _take(interp, mapping, name, arguments, node)
    everything = read_item(interp, mapping, None, node)
    origin = interp.origin(node)
    if name == "items":
        return Iterated(Sequence([UNKNOWN, everything]), mapping, name, origin)
    if name == "values":
        return Iterated(everything, mapping, name, origin)
    if name == "keys":
        return Iterated(iterate(interp, mapping, node), mapping, name, origin)
    if name in ("copy", "__copy__"):
        copied = Mapping(interp.control, mapping.origin)
        merge(interp, copied, mapping, strong=True)
        return copied
    if name in ("to", "cuda", "cpu"):
        place = target_of(name, arguments) or "unknown"
        interp.event("transfer", node, name, mapping, arguments, mapping)
        moved_element = (
            moved(t, place, origin) if (t := next(tensors_in(mapping), None)) is not None else mapping.element
        )
        return Mapping(interp.control, mapping.origin, {}, True, moved_element)
    if name == "clear" and interp.certainty(mapping.made_at) == "strong":
        mapping.entries.clear()
        return NONE
    return act_of_unknown(interp, mapping, name, arguments, node) or UNKNOWN if value is None else UNKNOWN


def _update_mapping(interp: Interpreter, mapping: Mapping, arguments: Arguments, node: ast.AST) -> Value:
    certainty = interp.certainty(mapping.made_at)
    if certainty == "never":
        return NONE
    value = arguments.at(0)
    if value is not None:
        merge(interp, mapping, value, certainty == "strong")
    for key, passed in arguments.keywords.items():
        origin = interp.origin(passed.node) if passed.node is not None else None
        put_entry(mapping, key, Entry(passed.value, passed.must, origin), certainty == "strong")
    mapping.open = mapping.open or arguments.open
    mapping.element = join(mapping.element, arguments.rest)
    return NONE


def _take(interp: Interpreter, mapping: Mapping, name: str, arguments: Arguments, node: ast.AST) -> Value:
    fill(interp, mapping)
    key = arguments.at(0)
    default = arguments.at(1) or NONE
    if not (type(key) is Const and is_hashable(key.value)):
        return read_item(interp, mapping, key, node)
    entry = mapping.entries.get(key.value)
    found: Value | None
    if entry is not None:
        found = entry.value if entry.must else join(entry.value, default)
    else:
        found = join(join(mapping.element or UNKNOWN, default), None) if mapping.open else default
    if name == "setdefault" and not (entry is not None and entry.must):
        place = arguments.positions[1].node if len(arguments.positions) > 1 else None
        put(interp, mapping, key, found or UNKNOWN, place)
    elif name == "pop":
        drop_item(interp, mapping, key)
    return found or UNKNOWN


def call_namespace_method(
    interp: Interpreter, namespace: Namespace, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    value = arguments.at(0)
    if name == "update":
        for member in members(value):
            mapping = as_mapping(member)
            if mapping is not None:
                namespace.open = namespace.open or mapping.open
                for key, entry in mapping.entries.items():
                    if isinstance(key, str):
                        write_attribute(interp, namespace, key, entry.value, node)
        for key, passed in arguments.keywords.items():
            write_attribute(interp, namespace, key, passed.value, node)
        return NONE
    if name in ("get", "pop", "setdefault") and type(value) is Const and isinstance(value.value, str):
        found = namespace.attributes.get(value.value)
        return found if found is not None else arguments.at(1) or (UNKNOWN if namespace.open else NONE)
    if name == "items":
        everything = join_all(namespace.attributes.values()) or UNKNOWN
        return Iterated(Sequence([UNKNOWN, everything]), namespace, name, interp.origin(node))
    if name == "copy":
        return Namespace(interp.control, dict(namespace.attributes), namespace.open)
    if name in ("merge_from_file", "merge_from_list", "load"):
        _open_to_file(namespace)
        return NONE
    return act_of_unknown(interp, namespace, name, arguments, node) or UNKNOWN


def _open_to_file(namespace: Namespace, depth: int = 4) -> None:
    """What a configuration file may override is an option, in the namespaces below too."""
    namespace.open = True
    for key, old in list(namespace.attributes.items()):
        if type(old) is Const:
            namespace.attributes[key] = Option(key, old, old.origin, "file", isinstance(old.value, bool))
        elif type(old) is Namespace and depth:
            _open_to_file(old, depth - 1)


def call_sequence_method(
    interp: Interpreter, sequence: Sequence, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    value = arguments.at(0)
    if name in ("append", "add", "appendleft", "insert"):
        added = arguments.at(1) if name == "insert" else value
        if added is not None:
            append(interp, sequence, added, at_end=name in ("append", "add"))
            interp.event("call", node, label("list", name), sequence, arguments)
        return NONE
    if name in ("extend", "update", "extendleft") and value is not None:
        if type(value) is Sequence and value.items is not None and sequence.items is not None:
            for item in list(value.items):
                append(interp, sequence, item, at_end=True)
        else:
            certainty = interp.certainty(sequence.made_at)
            if certainty != "never":
                sequence.element = join(
                    element_of(sequence) if sequence.items else sequence.element,
                    iterate(interp, value, node),
                )
                sequence.items = None
        return NONE
    if name in ("pop", "popleft"):
        at = value.value if type(value) is Const else 0 if name == "popleft" else None if arguments.positions else -1
        items = sequence.items if interp.certainty(sequence.made_at) == "strong" else None
        if items and type(at) is int and -len(items) <= at < len(items):
            return items.pop(at)
        return element_of(sequence)
    if name == "copy":
        items = list(sequence.items) if sequence.items is not None else None
        return Sequence(items, interp.control, sequence.origin, sequence.kind, sequence.element)
    if name in ("index", "count"):
        return NUMBER
    if name == "clear":
        return NONE
    known = act_of_unknown(interp, sequence, name, arguments, node)
    return known if known is not None else NONE if name in ("sort", "reverse", "remove") else UNKNOWN


def call_text_method(interp: Interpreter, receiver: Const, name: str, arguments: Arguments, node: ast.AST) -> Value:
    text = receiver.value
    if not isinstance(text, str):
        return call_method_of_anything(interp, receiver, name, arguments, node) if text is not None else UNKNOWN
    if name == "format":
        for passed in (*arguments.positions, *arguments.keywords.values()):
            interp.show_tensors(passed.value, passed.node or node, "format")
        return interp.text(text, node)
    given = [passed.value.value if type(passed.value) is Const else None for passed in arguments.positions]
    if name in NAMES["text_methods"] and None not in given and not arguments.keywords:
        with contextlib.suppress(TypeError, ValueError):
            made, origin = getattr(text, name)(*given), interp.origin(node)
            if not isinstance(made, (list, tuple)):
                return Const(made, origin)
            return Sequence([Const(each, origin) for each in made], interp.control, origin, "list")
    joined = arguments.at(0) if name == "join" else None
    if type(joined) is Sequence and joined.items is not None:
        named = [each for each in joined.items if type(each) is Option and each.how == FROM_FILE]
        words = [each.default if type(each) is Option else each for each in joined.items]
        if all(type(each) is Const and isinstance(each.value, str) for each in words) and len(named) in (0, len(words)):
            made = Const(text.join(each.value for each in words), interp.origin(node))  # type: ignore[attr-defined]
            return of_option(named[0], made) if named else made
    if name == "split":
        return Sequence(None, interp.control, interp.origin(node), "list", UNKNOWN)
    return UNKNOWN
