"""Expressions: what each can be."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Literal

from turbofix.domain.scopes import Lazy, Scope
from turbofix.domain.values import (
    FROM_FILE,
    NONE,
    UNKNOWN,
    Const,
    External,
    Function,
    Iterated,
    Mapping,
    Option,
    Sequence,
    Tensor,
    Union,
    Value,
    join,
    join_all,
    members,
    truth_of,
    widened,
)
from turbofix.interpreter.attributes import read_attribute, write_attribute
from turbofix.interpreter.calls import evaluate_call
from turbofix.interpreter.containers import merge, put
from turbofix.interpreter.imports import force, settled
from turbofix.interpreter.items import read_item, write_item
from turbofix.interpreter.iteration import iterate, unpack
from turbofix.interpreter.operators import Operators
from turbofix.interpreter.state import handlers_of
from turbofix.library import tables as libraries
from turbofix.source.names import dotted

_LOOKED_INTO = frozenset({Lazy, Union, Const})
"""What a name's value need not be all that the name can be."""


_BUILTINS = frozenset(dir(__builtins__)) if not isinstance(__builtins__, dict) else frozenset(__builtins__)


_DISPLAYS: dict[type[ast.expr], Literal["list", "tuple", "set"]] = {
    ast.Tuple: "tuple",
    ast.List: "list",
    ast.Set: "set",
}


class Evaluator(Operators):
    """Expressions, each by the method that is called as its class of nodes."""

    __slots__ = ()

    def lookup(self, name: str) -> Value:
        """What a name stands for."""
        scope: Scope | None = self.frame.scope
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                if type(value) is Lazy:
                    value = scope.names[name] = force(self, value)
                elif type(value) is Union:
                    if Lazy in map(type, value.values):
                        value = scope.names[name] = settled(self, value)
                elif (
                    type(value) is Const
                    and (scope is not self.frame.scope or self.may_repeat)
                    and name in self.glance.changing_names(scope.module)
                ):
                    return widened(value)
                return value
            scope = scope.parent
        module = self.frame.module
        for library in module.star_imports:
            if name in libraries.star_names().get(library, ()):
                return External(libraries.canonical(f"{library}.{name}"))
        if name in _BUILTINS:
            return External("builtins." + name)
        return self.opaque(name, "free", module.tree)

    def eval(self, node: ast.expr) -> Value:
        """What an expression can be."""
        handler = _HANDLERS.get(type(node))
        value = handler(self, node) if handler is not None else UNKNOWN
        values = self.frame.values
        known = values.get(node)
        values[node] = value if known is None or known is value else join(known, value) or value
        return value

    def eval_name(self, node: ast.Name) -> Value:
        value = self.frame.scope.names.get(node.id)
        if value is not None and type(value) not in _LOOKED_INTO:  # as nearly all are
            return value
        return self.lookup(node.id)

    def eval_attribute(self, node: ast.Attribute) -> Value:
        return read_attribute(self, self.eval(node.value), node.attr, node)

    def eval_call(self, node: ast.Call) -> Value:
        return evaluate_call(self, node)

    def eval_subscript(self, node: ast.Subscript) -> Value:
        container = self.eval(node.value)
        key = self.eval(node.slice)
        return read_item(self, container, key if not isinstance(node.slice, ast.Slice) else None, node)

    def eval_slice(self, node: ast.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.eval(part)
        return UNKNOWN

    def eval_tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Sequence:
        kind = _DISPLAYS[type(node)]
        if ast.Starred not in map(type, node.elts):
            return Sequence([self.eval(each) for each in node.elts], self.control, self.origin(node), kind)
        items: list[Value] = []
        is_known = True
        for each in node.elts:
            value = self.eval(each)
            if isinstance(each, ast.Starred):
                is_known = is_known and type(value) is Sequence and value.items is not None
                unpacked = value.items if type(value) is Sequence else None
                items += unpacked if unpacked is not None else [iterate(self, value, each)]
            else:
                items.append(value)
        element = None if is_known else join_all(items)
        return Sequence(items if is_known else None, self.control, self.origin(node), kind, element)

    eval_list = eval_set = eval_tuple

    def eval_dict(self, node: ast.Dict) -> Mapping:
        mapping = Mapping(self.control, self.origin(node))
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.eval(value_node)
            if key_node is None:
                merge(self, mapping, value, strong=True)
                continue
            put(self, mapping, self.eval(key_node), value, value_node)
        return mapping

    def eval_joinedstr(self, node: ast.JoinedStr) -> Value:
        text: list[str] = []
        option: Option | None = None
        is_known = True
        for part in node.values:
            if not isinstance(part, ast.FormattedValue):
                text += [str(part.value)] if is_known and isinstance(part, ast.Constant) else []
                continue
            value = self.eval(part.value)
            self.show_tensors(value, part.value, "format")
            if type(value) is Option and value.how == FROM_FILE:
                option, value = value, value.default
            is_text = type(value) is Const and isinstance(value.value, (str, int)) and part.format_spec is None
            is_known = is_known and is_text
            text += [str(value.value)] if is_known and type(value) is Const else []
        if not is_known:
            return self.text("".join(text), node)
        whole = Const("".join(text), self.origin(node))
        return option.made(whole) if option is not None else whole

    def eval_namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.assign(node.target, value, node)
        return value

    def eval_ifexp(self, node: ast.IfExp) -> Value:
        truth = truth_of(self.test(node.test))
        up = self.control
        given = _given_in(node) if truth is None else None
        found: Value | None = None
        for side, branch in enumerate((node.body, node.orelse)):
            if truth is None or truth is not bool(side):
                self.enter("if", node, side, decided=truth is not None)
                value = self.eval(branch)
                self.control = up
                found = join(found, without_none(value) if given is branch else value)
        return found or UNKNOWN

    def eval_boolop(self, node: ast.BoolOp) -> Value:
        stops_when = isinstance(node.op, ast.Or)
        joined: Value | None = None
        for each in node.values[:-1]:
            value = self.eval(each)
            truth = truth_of(value)
            if truth is stops_when:
                return join(joined, value) or UNKNOWN
            if truth is None:
                joined = join(joined, join_all(m for m in members(value) if truth_of(m) in (None, stops_when)))
        return join(joined, self.eval(node.values[-1])) or UNKNOWN

    eval_constant = Operators.constant

    def eval_starred(self, node: ast.Starred | ast.Await) -> Value:
        return self.eval(node.value)

    eval_await = eval_starred

    def eval_lambda(self, node: ast.Lambda) -> Function:
        return Function(node, self.frame.module, self.closure())

    def closure(self) -> Scope:
        """The scope that a function defined here sees: a class's names are not among it."""
        scope = self.frame.scope
        return scope.parent if self.frame.in_class and scope.parent is not None else scope

    def assign(self, target: ast.expr, value: Value, statement: ast.AST) -> None:
        """Assign to a name, attribute, item, or to the parts of a tuple."""
        kind = type(target)
        if kind is ast.Name:
            self.bind(target.id, value)  # type: ignore[attr-defined]
        elif isinstance(target, ast.Attribute):
            for member in members(self.eval(target.value)):
                write_attribute(self, member, target.attr, value, statement)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part, each in zip(target.elts, unpack(self, value, target), strict=True):
                self.assign(part.value if isinstance(part, ast.Starred) else part, each, statement)
        elif isinstance(target, ast.Subscript):
            container = self.eval(target.value)
            key = self.eval(target.slice)
            for member in members(container):
                write_item(self, member, key, value, statement, target)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, statement)

    def test(self, node: ast.expr) -> Value:
        """Evaluate what decides over control; reading a tensor for that is a sync."""
        value = self.eval(node)
        if not isinstance(node, ast.Constant):
            if Tensor in map(type, members(value)):
                self.event("sync", node, "bool", value)
            self.event("test", node, "", value)
        return value

    # --- comprehensions and generators ------------------------------------------------------------------------------

    def _comprehend(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, last: Callable[[], Value]
    ) -> tuple[Value, Value | None]:
        """What the last part of a comprehension gives, and what its first loop runs over."""
        scope = self.frame.scope
        before = scope.names
        scope.names = dict(before)
        up = self.control
        source: Value | None = None
        for generator in node.generators:
            iterated = self.eval(generator.iter)
            source = source or iterated
            self.event("iterate", generator.iter, "", iterated)
            element = iterate(self, iterated, generator.iter)
            self.enter("comprehension", node, iterated)
            self.assign(generator.target, element, node)
            for condition in generator.ifs:
                self.test(condition)
        value = last()
        self.control = up
        scope.names = before
        return value, source

    def eval_listcomp(self, node: ast.ListComp | ast.SetComp) -> Sequence:
        element, _ = self._comprehend(node, lambda: self.eval(node.elt))
        kind: Literal["list", "set"] = "list" if isinstance(node, ast.ListComp) else "set"
        return Sequence(None, self.control, self.origin(node), kind, element)

    eval_setcomp = eval_listcomp

    def eval_generatorexp(self, node: ast.GeneratorExp) -> Iterated:
        element, source = self._comprehend(node, lambda: self.eval(node.elt))
        return Iterated(element, source, "generator", self.origin(node))

    def eval_dictcomp(self, node: ast.DictComp) -> Mapping:
        def last() -> Value:
            self.eval(node.key)
            return self.eval(node.value)

        element, _ = self._comprehend(node, last)
        return Mapping(self.control, self.origin(node), {}, True, element)

    def eval_yield(self, node: ast.Yield) -> Value:
        value = self.eval(node.value) if node.value is not None else NONE
        self.frame.yielded = join(self.frame.yielded, value)
        return UNKNOWN

    def eval_yieldfrom(self, node: ast.YieldFrom) -> Value:
        self.frame.yielded = join(self.frame.yielded, iterate(self, self.eval(node.value), node))
        return UNKNOWN


_HANDLERS = handlers_of(Evaluator, "eval_")


def _given_in(node: ast.IfExp) -> ast.expr | None:
    """The branch of ``x if x is not None else y`` that is the tested name itself, which is not None there."""
    test = node.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or dotted(test.left) is None:
        return None
    other = test.comparators[0]
    if not isinstance(other, ast.Constant) or other.value is not None or type(test.ops[0]) not in (ast.Is, ast.IsNot):
        return None
    branch = node.body if isinstance(test.ops[0], ast.IsNot) else node.orelse
    return branch if dotted(branch) == dotted(test.left) else None


def without_none(value: Value) -> Value:
    """The value where it is known not to be None; of an option that is None by default, what the user gave."""
    kept: Value | None = None
    for member in members(value):
        if type(member) is Option and type(member.default) is Const and member.default.value is None:
            kept = join(kept, member.made(UNKNOWN))
        elif not (type(member) is Const and member.value is None):
            kept = join(kept, member)
    return kept or value
