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
    is_hashable,
    is_number,
    is_object,
    join,
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
            if isinstance(node.op, ast.USub):
                return Const(-value.value, self.origin(node))
            return (
                Const(~value.value, self.origin(node))
                if isinstance(value.value, int) and isinstance(node.op, ast.Invert)
                else value
            )
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
            return Option(
                value.name,
                Const(not default) if default is not None else UNKNOWN,
                value.origin,
                value.how,
                value.flag,
                derived=True,
            )
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
            if isinstance(operation, ast.Mod):
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
        if type(left) is Option or type(right) is Option:
            several = self._operate_on_several(left, right, operation, node)
            return several or self._operate_on_option(left, right, operation, node)
        if type(left) is Computed or type(right) is Computed:
            return Computed(self.origin(node)) if is_settled(left) and is_settled(right) else NUMBER
        if type(left) is Sequence:
            return self._operate_on_sequence(left, right, operation, node)
        if isinstance(operation, ast.Add) and all(type(each) is Sequence for each in both):
            # a list that a loop has or has not made longer yet
            held = [item for each in both if type(each) is Sequence for item in (*(each.items or ()), each.element)]
            known = [item for item in held if item is not None]
            return Sequence(None, self.control, self.origin(node), "list", join_all(known) if known else None)
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
        return self._operate_on_several(left, right, operation, node) or NUMBER

    def _operate_on_several(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value | None:
        """What a number with one of a few numbers gives: ``4 * width`` where stages have several widths."""
        one, several = (left, right) if len(members(left)) == 1 else (right, left)
        found = members(several)
        if not 1 < len(found) <= _FEW or not isinstance(operation, ast.Mult):
            return None
        if not all(_is_known_number(each) for each in (one, *found)):
            return None
        return join_all(self.operate(one, each, operation, node) for each in found)

    def _fold(self, left: object, right: object, operation: ast.operator, node: ast.AST) -> Value:
        if isinstance(left, str):
            if isinstance(right, str) and isinstance(operation, ast.Add) and len(left) + len(right) < 500:
                return Const(left + right, self.origin(node))
            return self.text(left, node)
        if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            return UNKNOWN
        try:
            if isinstance(operation, ast.Pow):
                small = abs(right) <= 64 and abs(left) <= 1e6
                return Const(left**right, self.origin(node)) if small else NUMBER
            if isinstance(operation, ast.LShift):
                return (
                    Const(left << right, self.origin(node))
                    if isinstance(left, int) and isinstance(right, int) and 0 <= right < 64
                    else NUMBER
                )
            fold = _FOLD.get(type(operation))
            return Const(fold(left, right), self.origin(node)) if fold is not None else NUMBER
        except (ArithmeticError, TypeError, ValueError):
            return NUMBER

    def _operate_on_option(self, left: Value, right: Value, operation: ast.operator, node: ast.AST) -> Value:
        option = left if type(left) is Option else right
        assert type(option) is Option
        if not all(isinstance(value, (Option, Const)) for value in (left, right)):
            return Computed(self.origin(node)) if all(is_settled(value) for value in (left, right)) else NUMBER
        default = self.operate(
            left.default if type(left) is Option else left,
            right.default if type(right) is Option else right,
            operation,
            node,
        )
        return Option(option.name, default, option.origin, option.how, option.flag, derived=True)

    def _operate_on_sequence(self, left: Sequence, right: Value, operation: ast.operator, node: ast.AST) -> Value:
        if isinstance(operation, ast.Add) and type(right) is Sequence:
            if left.items is not None and right.items is not None:
                return Sequence(left.items + right.items, self.control, self.origin(node), left.kind)
            element = join(element_of(left), element_of(right))
            return Sequence(None, self.control, self.origin(node), left.kind, element)
        if isinstance(operation, ast.Mult):
            if (
                left.items is not None
                and type(right) is Const
                and isinstance(right.value, int)
                and 0 <= right.value * len(left.items) <= 64
            ):
                return Sequence(left.items * right.value, self.control, self.origin(node), left.kind)
            return Sequence(None, self.control, self.origin(node), left.kind, element_of(left))
        return UNKNOWN

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
            default: Value = UNKNOWN
            sides = [side.default if type(side) is Option else side for side in (left, right)]
            if all(type(side) is Const for side in sides):
                default = self._compare_two(sides[0], sides[1], operation, node)
            return Option(option.name, default, option.origin, option.how, option.flag, derived=True)
        for side in (left, right):
            if type(side) is Computed:
                return Computed(self.origin(node), side.name)
        return UNKNOWN

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
    return (
        type(value) is Tensor
        and value.origin is not None
        and isinstance(value.origin.node, (ast.Attribute, ast.Subscript))
    )


_SETTLED = frozenset({Const, Option, Computed})


def is_settled(value: Value) -> bool:
    """Whether a value is chosen before the run, or by the machine, the same in every iteration."""
    return _SETTLED.issuperset(map(type, members(value)))


def _is_known_number(value: Value) -> bool:
    """Whether a value is a number, or an option that is one by default."""
    default = value.default if type(value) is Option else value
    return type(default) is Const and type(default.value) in (int, float)


def format_arguments(node: ast.AST, value: Value) -> list[tuple[ast.expr, Value]]:
    """The expressions that ``"..." % ...`` formats, with their values."""
    if not isinstance(node, ast.BinOp):
        return []
    if isinstance(node.right, ast.Tuple) and type(value) is Sequence and value.items is not None:
        return list(zip(node.right.elts, value.items, strict=False))
    return [(node.right, value)]
