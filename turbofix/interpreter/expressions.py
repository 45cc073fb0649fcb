"""Expressions: what each can be."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, Literal

from turbofix.domain.scopes import Lazy, Scope
from turbofix.domain.tensors import in_precision, is_scalar, joined_hosts, result_of
from turbofix.domain.trace import positional
from turbofix.domain.values import (
    FROM_FILE,
    NONE,
    NUMBER,
    UNKNOWN,
    Computed,
    Const,
    External,
    Function,
    Host,
    Iterated,
    Mapping,
    Opaque,
    Option,
    Sequence,
    Tensor,
    Union,
    Value,
    default_of,
    is_hashable,
    is_number,
    is_object,
    join,
    join_all,
    members,
    truth_of,
    widened,
)
from turbofix.interpreter.attributes import child, read_attribute, write_attribute
from turbofix.interpreter.calls import evaluate_call
from turbofix.interpreter.containers import element_of, merge, put
from turbofix.interpreter.elements import iterate, read_item, unpack, write_item
from turbofix.interpreter.imports import force, settled
from turbofix.interpreter.state import Interpreter, handlers_of
from turbofix.library import tables as libraries
from turbofix.source.names import dotted

_FOLD: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}

_FEW = 8
"""So many numbers that a name can be are each taken times another one."""

_TENSOR_OPERATIONS: dict[type[ast.operator], str] = {ast.MatMult: "__matmul__", ast.Pow: "__pow__"}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: type(a) is type(b) and a == b,  # equal literals are one object
    ast.IsNot: lambda a, b: type(a) is not type(b) or a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class Operators(Interpreter):
    """Arithmetic and comparisons."""

    __slots__ = ()

    def eval_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Not):
            return join_all(self._negated(member, node) for member in members(value)) or UNKNOWN
        if type(value) is Const and isinstance(value.value, (int, float)):
            return Const(-value.value, self.origin(node)) if isinstance(node.op, ast.USub) else value
        tensors = [member for member in members(value) if type(member) is Tensor]
        if not tensors:
            return value
        result = result_of(tensors, self.origin(node))
        result.scalar = is_scalar(value)
        return result

    def _negated(self, value: Value, node: ast.AST) -> Value:
        truth = truth_of(value)
        if truth is not None:
            return Const(not truth, self.origin(node))
        if type(value) is Option:
            default = truth_of(value.default)
            return value.made(Const(not default) if default is not None else UNKNOWN)
        return value if isinstance(value, (Tensor, Host, Computed)) else UNKNOWN

    def eval_binop(self, node: ast.BinOp) -> Value:
        return self.operate(self.eval(node.left), self.eval(node.right), node.op, node)

    def operate(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value:
        """What an arithmetic operation gives."""
        if type(left) is Const and type(right) is Const:
            return self._fold(left.value, right.value, operation, node)
        both = (*members(left), *members(right))
        tensors = [member for member in both if type(member) is Tensor]
        if type(left) is Const and isinstance(left.value, str) and isinstance(operation, (ast.Mod, ast.Add)):
            if isinstance(operation, ast.Mod) and isinstance(node, ast.BinOp):
                for part, value in format_arguments(node, right):
                    self.show_tensors(value, part, "format")
            return self.text(left.value, node)
        if tensors:
            if isinstance(operation, ast.MatMult):
                self.event("call", node, "Tensor.__matmul__", left, positional(right))
            result = result_of(tensors, self.origin(node))
            result.scalar = is_scalar(left) and is_scalar(right)
            return in_precision(result, _TENSOR_OPERATIONS.get(type(operation), ""))
        hosts = [member for member in both if type(member) is Host]
        if hosts:
            return joined_hosts(hosts)
        several = self._operate_on_several(left, right, operation, node)
        if several is not None:
            return several
        settled = is_settled(left) and is_settled(right)
        option = left if type(left) is Option else right
        if type(option) is Option and isinstance(left, (Option, Const)) and isinstance(right, (Option, Const)):
            return option.made(self.operate(default_of(left), default_of(right), operation, node))
        if type(option) is Option or type(left) is Computed or type(right) is Computed:
            return Computed(self.origin(node)) if settled else NUMBER
        lists = isinstance(operation, ast.Add) and all(type(each) is Sequence for each in both)
        if lists or (isinstance(operation, (ast.Add, ast.Mult)) and type(left) is Sequence):
            return self._operate_on_sequence(left, right, operation, node)
        if isinstance(left, Mapping) and isinstance(operation, ast.BitOr):
            merged = Mapping(self.control, self.origin(node))
            merge(self, merged, left, strong=True)
            merge(self, merged, right, strong=True)
            return merged
        for value in (left, right):
            if type(value) is Opaque:
                return child(self, value, f"<{operation.__class__.__name__}>", node)
        if isinstance(operation, (ast.Add, ast.Mod, ast.BitOr)) and not (is_number(left) or is_number(right)):
            return UNKNOWN
        return NUMBER

    def _operate_on_several(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value | None:
        """What a number with one of a few numbers gives: ``4 * width`` where stages have several widths."""
        one, several = (left, right) if len(members(left)) == 1 else (right, left)
        found = members(several)
        few = 1 < len(found) <= _FEW and isinstance(operation, ast.Mult)
        if not few or not all(_is_known_number(each) for each in (one, *found)):
            return None
        return join_all(self.operate(one, each, operation, node) for each in found)

    def _fold(self, left: object, right: object, operation: ast.operator, node: ast.AST) -> Value:
        if isinstance(left, str):
            if isinstance(right, str) and isinstance(operation, ast.Add) and len(left) + len(right) < 500:
                return Const(left + right, self.origin(node))
            return self.text(left, node)
        if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            return UNKNOWN
        fold = _FOLD.get(type(operation))
        large = fold is operator.pow and not (abs(right) <= 64 and abs(left) <= 1e6)
        if fold is None or large or (fold is operator.lshift and not 0 <= right < 64):
            return NUMBER
        try:
            return Const(fold(left, right), self.origin(node))
        except (ArithmeticError, TypeError, ValueError):
            return NUMBER

    def _operate_on_sequence(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value:
        origin = self.origin(node)
        if isinstance(operation, ast.Mult):
            if type(left) is not Sequence:
                return NUMBER
            times = right.value if type(right) is Const else None
            if left.items is not None and isinstance(times, int) and 0 <= times * len(left.items) <= 64:
                return Sequence(left.items * times, self.control, origin, left.kind)
            return Sequence(None, self.control, origin, left.kind, element_of(left))
        if type(left) is type(right) is Sequence and left.items is not None and right.items is not None:
            return Sequence(left.items + right.items, self.control, origin, left.kind)
        both = (*members(left), *members(right))  # lists that a loop has or has not made longer yet
        if not all(type(each) is Sequence for each in both):
            return UNKNOWN
        held = [item for each in both if type(each) is Sequence for item in (*(each.items or ()), each.element)]
        kind = left.kind if type(left) is Sequence else "list"
        return Sequence(None, self.control, origin, kind, join_all(held))

    def eval_compare(self, node: ast.Compare) -> Value:
        left = self.eval(node.left)
        if len(node.ops) > 1:
            return self._reading_compare([left, *map(self.eval, node.comparators)], node) or UNKNOWN
        right, operation = self.eval(node.comparators[0]), node.ops[0]
        if type(left) is not Union:
            return self._compare_two(left, right, operation, node)
        return join_all(self._compare_two(each, right, operation, node) for each in left.values) or UNKNOWN

    def _compare_two(self, left: Value, right: Value, operation: ast.cmpop, node: ast.Compare) -> Value:
        if type(left) is Const and type(right) is Const:
            try:
                return Const(bool(_COMPARE[type(operation)](left.value, right.value)), self.origin(node))
            except TypeError:
                return UNKNOWN
        same = isinstance(operation, (ast.Is, ast.IsNot))
        if type(right) is Const and right.value is None and (same or type(left) is Tensor):
            if is_object(left) and not is_part(left):  # (a tensor's `== None` looks at none of its numbers)
                return Const(isinstance(operation, (ast.IsNot, ast.NotEq)), self.origin(node))
        elif isinstance(operation, (ast.In, ast.NotIn)):
            if isinstance(right, Mapping) and type(left) is Const and is_hashable(left.value):
                entry = right.entries.get(left.value)
                if entry is not None and entry.must:
                    return Const(isinstance(operation, ast.In), self.origin(node))
                if entry is None and not right.open and right.element is None:
                    return Const(isinstance(operation, ast.NotIn), self.origin(node))
        elif not same:
            found = self._reading_compare([left, right], node)
            if found is not None:
                return found
        if not (is_settled(left) and is_settled(right)):
            return UNKNOWN
        option = left if type(left) is Option else right
        if type(option) is Option:
            one, two = default_of(left), default_of(right)
            known = type(one) is Const and type(two) is Const
            return option.made(self._compare_two(one, two, operation, node) if known else UNKNOWN)
        computed = next((side for side in (left, right) if type(side) is Computed), None)
        return Computed(self.origin(node), computed.name) if computed is not None else UNKNOWN

    def _reading_compare(self, values: list[Value], node: ast.Compare) -> Value | None:
        """A comparison of tensors is a tensor, one of values read from tensors is such a value."""
        found = [member for value in values for member in members(value)]
        tensors = [member for member in found if type(member) is Tensor]
        if tensors:
            return result_of(tensors, self.origin(node))
        hosts = [member for member in found if type(member) is Host]
        return joined_hosts(hosts) if hosts else None


def is_part(value: Value) -> bool:
    """Whether a tensor was read from an attribute or item of something (``outputs.loss``): there may be none."""
    node = value.origin.node if type(value) is Tensor and value.origin is not None else None
    return isinstance(node, (ast.Attribute, ast.Subscript))


_SETTLED = frozenset({Const, Option, Computed})


def is_settled(value: Value) -> bool:
    """Whether a value is chosen before the run, or by the machine, the same in every iteration."""
    return _SETTLED.issuperset(map(type, members(value)))


def _is_known_number(value: Value) -> bool:
    """Whether a value is a number, or an option that is one by default."""
    default = default_of(value)
    return type(default) is Const and type(default.value) in (int, float)


def format_arguments(node: ast.BinOp, value: Value) -> list[tuple[ast.expr, Value]]:
    """The expressions that ``"..." % ...`` formats, with their values."""
    if isinstance(node.right, ast.Tuple) and type(value) is Sequence and value.items is not None:
        return list(zip(node.right.elts, value.items, strict=False))
    return [(node.right, value)]


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
