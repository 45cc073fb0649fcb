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
    Iterated,
    Mapping,
    Namespace,
    Option,
    Sequence,
    Value,
    is_hashable,
    join,
    join_all,
)
from turbofix.interpreter.attributes import write_attribute
from turbofix.interpreter.containers import (
    append,
    drop_item,
    element_of,
    merge,
    of_option,
    put,
    put_keywords,
)
from turbofix.interpreter.imports import fill, text_of
from turbofix.interpreter.items import read_item
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.unknowns import act_of_unknown, call_method_of_anything, target_of
from turbofix.library.tables import NAMES


def call_mapping_method(interp: Interpreter, mapping: Mapping, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A method of a dict."""
    origin = interp.origin(node)
    if name == "update":
        return _update_mapping(interp, mapping, arguments)
    if name in ("get", "pop", "setdefault"):
        return _take(interp, mapping, name, arguments, node)
    if name in ("items", "values", "keys"):
        part = iterate(interp, mapping, node) if name == "keys" else read_item(interp, mapping, None, node)
        element = Sequence([UNKNOWN, part]) if name == "items" else part
        return Iterated(element, mapping, name, origin)
    if name in ("copy", "__copy__"):
        copied = Mapping(interp.control, mapping.origin)
        merge(interp, copied, mapping, strong=True)
        return copied
    if name in ("to", "cuda", "cpu"):
        interp.event("transfer", node, name, mapping, arguments, mapping)
        first = next(tensors_in(mapping), None)
        moved_element = moved(first, target_of(name, arguments) or "unknown", origin) if first else mapping.element
        return Mapping(interp.control, mapping.origin, {}, True, moved_element)
    if name == "clear" and interp.certainty(mapping.made_at) == "strong":
        mapping.entries.clear()
        return NONE
    known = act_of_unknown(interp, mapping, name, arguments, node) if not arguments.positions else None
    return known or UNKNOWN


def _update_mapping(interp: Interpreter, mapping: Mapping, arguments: Arguments) -> Value:
    certainty = interp.certainty(mapping.made_at)
    if certainty != "never":
        value = arguments.at(0)
        if value is not None:
            merge(interp, mapping, value, certainty == "strong")
        put_keywords(interp, mapping, arguments, certainty == "strong")
    return NONE


def _take(interp: Interpreter, mapping: Mapping, name: str, arguments: Arguments, node: ast.AST) -> Value:
    fill(interp, mapping)
    key, default = arguments.at(0), arguments.at(1) or NONE
    if not (type(key) is Const and is_hashable(key.value)):
        return read_item(interp, mapping, key, node)
    entry = mapping.entries.get(key.value)
    if entry is not None:
        found: Value | None = entry.value if entry.must else join(entry.value, default)
    else:
        found = join(mapping.element or UNKNOWN, default) if mapping.open else default
    if name == "setdefault" and not (entry is not None and entry.must):
        place = arguments.positions[1].node if len(arguments.positions) > 1 else None
        put(interp, mapping, key, found or UNKNOWN, place)
    elif name == "pop":
        drop_item(interp, mapping, key)
    return found or UNKNOWN


def call_namespace_method(
    interp: Interpreter, namespace: Namespace, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """A method of parsed options, or of a dict whose keys are attributes."""
    value = arguments.at(0)
    if name == "update":
        given = Mapping(namespace.made_at)
        _update_mapping(interp, given, arguments)
        namespace.open = namespace.open or given.open
        for key, entry in given.entries.items():
            if isinstance(key, str):
                write_attribute(interp, namespace, key, entry.value, node)
        return NONE
    if name in ("get", "pop", "setdefault") and type(value) is Const and isinstance(value.value, str):
        otherwise = arguments.at(1) or (UNKNOWN if namespace.open else NONE)
        return namespace.attributes.get(value.value, otherwise)
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
    """A method of a list, tuple or set."""
    value = arguments.at(0)
    if name in ("append", "add", "appendleft", "insert"):
        added = arguments.at(1) if name == "insert" else value
        if added is not None:
            append(interp, sequence, added, at_end=name in ("append", "add"))
            interp.event("call", node, f"list.{name}", sequence, arguments)
        return NONE
    if name in ("extend", "update", "extendleft") and value is not None:
        if type(value) is Sequence and value.items is not None and sequence.items is not None:
            for item in list(value.items):
                append(interp, sequence, item, at_end=True)
        else:
            append(interp, sequence, iterate(interp, value, node), at_end=False)
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
    known = act_of_unknown(interp, sequence, name, arguments, node) if name != "clear" else NONE
    return known if known is not None else NONE if name in ("sort", "reverse", "remove") else UNKNOWN


def call_text_method(interp: Interpreter, receiver: Const, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A method of a constant: of a text, what it gives."""
    text, origin = receiver.value, interp.origin(node)
    if not isinstance(text, str):
        return call_method_of_anything(interp, receiver, name, arguments, node) if text is not None else UNKNOWN
    if name == "format":
        interp.show_arguments(arguments, node, "format")
        return interp.text(text, node)
    given = [passed.value.value if type(passed.value) is Const else None for passed in arguments.positions]
    if name in NAMES["text_methods"] and None not in given and not arguments.keywords:
        with contextlib.suppress(TypeError, ValueError):
            made = getattr(text, name)(*given)
            if not isinstance(made, (list, tuple)):
                return Const(made, origin)
            return Sequence([Const(each, origin) for each in made], interp.control, origin, "list")
    joined = arguments.at(0) if name == "join" else None
    if type(joined) is Sequence and joined.items is not None:
        named = [each for each in joined.items if type(each) is Option and each.how == FROM_FILE]
        words = [text_of(each) for each in joined.items]
        if len(named) in (0, len(words)) and not any(word is None for word in words):
            whole = Const(text.join(word for word in words if word is not None), origin)
            return of_option(named[0], whole) if named else whole
    return Sequence(None, interp.control, origin, "list", UNKNOWN) if name == "split" else UNKNOWN
