"""Arithmetic and comparisons of values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from turbofix.domain.tensors import in_precision, is_scalar, joined_hosts, result_of
from turbofix.domain.trace import positional
from turbofix.domain.values import (
    NUMBER,
    UNKNOWN,
    Computed,
    Const,
    Host,
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
    join_all,
    members,
    truth_of,
)
from turbofix.interpreter.attributes import child
from turbofix.interpreter.containers import element_of, merge
from turbofix.interpreter.state import Interpreter

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
