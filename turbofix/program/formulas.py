"""Formulas that torch has one kernel for: GELU, SiLU, layer norm, RMS norm, the logarithm of a softmax or sigmoid.

A formula is recognised by what it computes, not by how it is spelled: it is worked out for a few rows of numbers, with
numbers for its parameters that make every difference show (an ``eps`` of about a third, inside or outside of the root),
and compared with torch's definition. What it is worked out from stands in one block, and serves nothing else.
"""

from __future__ import annotations

import ast
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import kept, once_per_node
from turbofix.program.complexes import PARAMETERS
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame
from turbofix.program.model import Formula
from turbofix.program.names import dotted, names_of, parameters, stores, targets
from turbofix.program.sites import LOOPS
from turbofix.program.values import (
    Bound,
    Class,
    Const,
    Function,
    Instance,
    Opaque,
    Option,
    Tensor,
    Unknown,
    Value,
    members,
)
from turbofix.program.wording import Wording
from turbofix.records import dataclass

_MENTIONS = (
    Wording((".04471", ".rsqrt", "softmax", "sigmoid", "exp(-", ".mean(-1", "torch.mean")),
    Wording(("erf",), re.compile(r"erf\b")),
    Wording((".var",), re.compile(r"\.var\b")),
    Wording((".std",), re.compile(r"\.std\b")),
    Wording((".mean(dim",), re.compile(r"\.mean\(dim ?= ?-1")),
)
"""Each is looked for by itself, as a text with such a word is searched for one pattern in a tenth of the time."""
_MODULES = frozenset(("torch", "math", "numpy", "torch.nn.functional", "torch.special"))
_WIDTH = 7
_NEAR = 1e-6
"""How far numbers may be apart, relatively: constants are often written with eight digits (0.79788456)."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


class _OtherError(Exception):
    """It is no such formula."""


@dataclass(frozen=True)
class _Column:
    """One number for each row, its dimension kept."""

    value: float


_Number = float | list[float] | _Column
_Symbols = dict[str, _Number]


_Kinds = dict[tuple[ast.ClassDef, str], "str | None"]
"""What the attributes of classes are: the methods of a class ask for the same ones."""


def formulas(analysis: Analysis) -> tuple[Formula, ...]:
    """The formulas in the functions that the program runs, in order of their places."""
    found: list[Formula] = []
    kinds: _Kinds = {}
    for function, module in _functions(analysis):
        found += _Reader(analysis, function, module, kinds).formulas()
    return tuple(sorted(found, key=lambda each: each.site))


def _functions(analysis: Analysis) -> Iterator[tuple[_Function, ModuleFile]]:
    """The files, the functions that were followed, and the methods of modules that the program makes.

    Only those with a word of a formula.
    """
    known: dict[_Function, ModuleFile] = {}
    for level in analysis.execution.scopes:
        detail = level.detail.function if isinstance(level.detail, Bound) else level.detail
        if isinstance(detail, Function) and isinstance(detail.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            known[detail.node] = detail.module
    for event in analysis.facts.of("construct"):
        for member in members(event.result):
            if isinstance(member, Instance) and "torch.nn.Module" in member.cls.externals():
                for cls in member.cls.mro():
                    if isinstance(cls, Class):
                        known.update((each, cls.module) for each in cls.node.body if isinstance(each, ast.FunctionDef))
    known.update((each.tree, each) for each in analysis.execution.modules.values())
    for function, module in known.items():
        if not _is_compiled(function) and _mentions(analysis, function, module):
            yield function, module


def _mentions(analysis: Analysis, function: _Function, module: ModuleFile) -> bool:
    """Whether a word of a formula stands in a function."""
    text = analysis.facts.places.text
    if not kept(module.tree, "mentions_formula", lambda: _mentions_in(module.text)):
        return False
    return kept(function, "mentions_formula", lambda: _mentions_in(text(function, module)))


def _mentions_in(text: str) -> bool:
    return any(each.is_in(text) for each in _MENTIONS)


def _is_compiled(function: _Function) -> bool:
    """Whether a compiler makes one kernel of a function by itself."""
    decorators = [] if isinstance(function, ast.Module) else function.decorator_list
    names = [dotted(each.func if isinstance(each, ast.Call) else each) or "" for each in decorators]
    return any("jit" in name or "compile" in name for name in names)


def _objects(analysis: Analysis) -> dict[ast.ClassDef, list[Instance]]:
    """The objects of each class of the project, and of those that derive from it, in the order of their making."""
    found: dict[ast.ClassDef, list[Instance]] = {}
    for event in analysis.facts.of("construct"):
        for each in members(event.result):
            if isinstance(each, Instance):
                for cls in {base.node for base in each.cls.mro() if isinstance(base, Class)}:
                    found.setdefault(cls, []).append(each)
    return found


class _Reader:
    """One function."""

    def __init__(self, analysis: Analysis, function: _Function, module: ModuleFile, kinds: _Kinds) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.places = analysis.facts.places
        self.function = function
        self.module = module
        self.kinds = kinds
        self.block: Sequence[ast.stmt] = ()
        self.at = 0
        self.used: dict[int, ast.stmt] = {}

    def formulas(self) -> Iterator[Formula]:
        """The formulas of the function, the largest of those that hold one another."""
        waiting = [self.function.body]
        while waiting:
            block = waiting.pop()
            taken: set[int] = set()
            for index in range(len(block) - 1, -1, -1):
                statement = block[index]
                if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    continue  # they are looked at by themselves
                waiting += [
                    inner for name in ("body", "orelse", "finalbody") if (inner := getattr(statement, name, None))
                ]
                if index in taken or not isinstance(statement, (ast.Assign, ast.Return, ast.Expr)):
                    continue
                if statement.value is None:
                    continue
                looping = any(isinstance(each, LOOPS) for each in self._above(statement))
                for found, used in self._in(statement.value, block, index):
                    if looping and used:
                        continue  # what it takes in may be of the round before
                    taken |= used
                    yield found

    def _above(self, statement: ast.stmt) -> Iterator[ast.AST]:
        for each in self.places.ancestors(statement, self.module):
            if each is self.function:
                return
            yield each

    def _in(self, node: ast.expr, block: Sequence[ast.stmt], index: int) -> Iterator[tuple[Formula, set[int]]]:
        """The formula that an expression is, or those in it."""
        self.block, self.at = block, index
        if isinstance(node, (ast.BinOp, ast.Call)):
            found = self._formula(node)
            if found is not None:
                yield found, set(self.used)
                return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and not isinstance(child, (ast.Lambda, ast.ListComp, ast.GeneratorExp)):
                yield from self._in(child, block, index)
            elif isinstance(child, ast.keyword):
                yield from self._in(child.value, block, index)

    def _formula(self, node: ast.expr) -> Formula | None:
        found = self._log_of(node)
        if found is not None:
            return found
        leaves = self._leaves(node)
        if leaves is None:
            return None
        plain, rows, numbers = leaves
        small = self._small(node)
        if len(small) + len(numbers) > 1:
            return None
        numbers = numbers or small
        for input_ in plain:
            others = [each for each in plain if each != input_]
            if others:
                continue
            found = self._judged(node, input_, rows, numbers)
            if found is not None:
                return found
        return None

    # --- what it is made of -------------------------------------------------------------------------------------------

    def _leaves(self, node: ast.expr) -> tuple[list[str], list[str], list[str]] | None:
        """The tensors, rows of weights and numbers that a formula is made of; notes the statements it takes in."""
        self.used = {}
        plain: dict[str, None] = {}
        rows: dict[str, None] = {}
        numbers: dict[str, None] = {}

        def visit(each: ast.AST, at: int, depth: int) -> bool:
            if depth < 0:
                return False
            if isinstance(each, ast.Name):
                found = self._definition(each.id, at)
                if found is not None:
                    index, value = found
                    self.used[index] = self.block[index]
                    return visit(value, index, depth - 1)
                if self._is_changed(each.id, at):
                    return False
                (numbers if self._is_number_name(each) else plain)[each.id] = None
                return True
            if isinstance(each, ast.Attribute):
                name = dotted(each)
                if name is None:
                    return visit(each.value, at, depth - 1)
                if self._constant(each) is not None:
                    return True
                kind = self._kind(each)
                if kind is None:
                    return False
                (rows if kind == "row" else numbers)[name] = None
                return True
            if isinstance(each, ast.Call):
                parts: list[ast.AST] = [*each.args, *(word.value for word in each.keywords)]
                if isinstance(each.func, ast.Attribute) and self._qualname(each.func) is None:
                    parts.append(each.func.value)
                return all(visit(part, at, depth - 1) for part in parts)
            if isinstance(each, (ast.BinOp, ast.UnaryOp, ast.Constant)):
                return all(
                    visit(part, at, depth - 1) for part in ast.iter_child_nodes(each) if isinstance(part, ast.expr)
                )
            return False

        whole = visit(node, self.at, 24)
        visit = None  # type: ignore[assignment]  # it holds itself
        if not whole or len(plain) != 1 or len(rows) > 2 or len(numbers) > 1:
            return None
        if not self._serves_nothing_else(node):
            return None
        return list(plain), list(rows), list(numbers)

    def _definition(self, name: str, before: int) -> tuple[int, ast.expr] | None:
        """Where in the block a name was set by a formula, above a statement."""
        for index in range(before - 1, -1, -1):
            statement = self.block[index]
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and target.id == name:
                    worth = isinstance(statement.value, (ast.BinOp, ast.Call, ast.Constant))
                    if not worth or self._is_opaque(statement.value):
                        return None
                    return index, statement.value
            if any(written == name for written, _ in stores(statement)):
                return None
        return None

    def _is_opaque(self, value: ast.expr) -> bool:
        """Whether a call is no part of a formula: what it gives is a tensor of its own."""
        return isinstance(value, ast.Call) and self._operation(value) is None

    def _is_changed(self, name: str, at: int) -> bool:
        """Whether a name means something else at the formula than where it was read."""
        between = [self.block[index] for index in range(at, self.at) if index not in self.used]
        if any(written.partition(".")[0] == name for statement in between for written, _ in stores(statement)):
            return True
        for each in (node for statement in between for node in walk(statement) if isinstance(node, ast.Call)):
            if self._operation(each) is not None:
                continue
            taken = [*each.args, *(word.value for word in each.keywords)]  # `F.relu(x, inplace=True)`, or a module's
            if isinstance(each.func, ast.Attribute) and each.func.attr.endswith("_"):
                taken += [part for part in walk(each.func.value) if isinstance(part, ast.Name)]
            if any(isinstance(part, ast.Name) and part.id == name for part in taken):
                return True
        return False

    def _serves_nothing_else(self, node: ast.expr) -> bool:
        """Whether what the formula takes in is read by nothing else."""
        if not self.used:
            return True
        inside = {id(each) for statement in self.used.values() for each in walk(statement)}
        inside |= {id(each) for each in walk(node)}
        shared = {
            name for each in walk(self.function) if isinstance(each, (ast.Global, ast.Nonlocal)) for name in each.names
        }
        for index, statement in self.used.items():
            assert isinstance(statement, ast.Assign)
            target = statement.targets[0]
            assert isinstance(target, ast.Name)
            if target.id in shared:
                return False
            end: tuple[int, int] | None = None
            for later in self.block[index + 1 :]:
                into = later.targets if isinstance(later, ast.Assign) else ()
                if any(isinstance(e, ast.Name) and e.id == target.id for each in into for e in targets(each)):
                    end = (later.end_lineno or later.lineno, later.end_col_offset or 0)
                    break
            for each in walk(self.function):
                if not isinstance(each, ast.Name) or each.id != target.id or isinstance(each.ctx, ast.Store):
                    continue
                place = (each.lineno, each.col_offset)
                if place <= (statement.lineno, statement.col_offset) or (end is not None and place > end):
                    continue
                if id(each) not in inside:
                    return False
        return True

    def _is_number_name(self, node: ast.Name) -> bool:
        """Whether a name is a parameter with a number as default (``eps=1e-6``)."""
        if isinstance(self.function, ast.Module):
            return False
        arguments = self.function.args
        given = [*arguments.posonlyargs, *arguments.args]
        pairs = [*zip(reversed(given), reversed(arguments.defaults), strict=False)]
        pairs += [
            (each, value) for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
        ]
        return any(
            each.arg == node.id and isinstance(value, ast.Constant) and isinstance(value.value, float)
            for each, value in pairs
        )

    def _kind(self, node: ast.Attribute) -> str | None:
        """Whether an attribute of the module is a row of weights or a number; None where neither is known."""
        own = [] if isinstance(self.function, ast.Module) else parameters(self.function)[:1]
        cls = next((e for e in self.places.ancestors(self.function, self.module) if isinstance(e, ast.ClassDef)), None)
        if cls is None or not own or not isinstance(node.value, ast.Name) or node.value.id != own[0].arg:
            return None
        if (cls, node.attr) not in self.kinds:
            self.kinds[cls, node.attr] = self._kind_in(cls, node.attr)
        return self.kinds[cls, node.attr]

    def _kind_in(self, cls: ast.ClassDef, attribute: str) -> str | None:
        """What an attribute is in every object of a class, and of those that derive from it."""
        objects = self.analysis.once("objects by class", lambda: _objects(self.analysis)).get(cls, ())
        values = [value for each in objects for value in members(each.attributes.get(attribute)) or (None,)]
        kinds = {
            "number" if _is_unknown(value) and _is_told_number(cls, attribute) else self._kind_of(value)
            for value in values
        }
        return kinds.pop() if len(kinds) == 1 else None

    def _kind_of(self, value: Value | None) -> str | None:
        if isinstance(value, Option):
            return self._kind_of(value.default)
        if isinstance(value, Const):
            return "number" if isinstance(value.value, float) else None
        made = value.origin if isinstance(value, Tensor) else None
        if made is None or not isinstance(made.node, ast.Call) or len(made.node.args) != 1 or made.node.keywords:
            return None
        inner = made.node.args[0]
        if self._qualname(made.node.func, made.module) not in PARAMETERS:
            return None
        if not isinstance(inner, ast.Call) or len(inner.args) != 1 or inner.keywords:
            return None
        sizes = [
            self._is_size(inner.args[0], self.facts.frames(event), made.module)
            for event in self.facts.at(inner)
            if event.name in ("torch.ones", "torch.zeros", "torch.empty")
        ]
        return "row" if sizes and all(sizes) else None

    def _is_size(self, size: ast.expr, frames: tuple[Frame, ...], module: ModuleFile) -> bool:
        """Whether a size is one whole number, and not 1, which is one weight for all."""
        values = [
            each.default if isinstance(each, Option) else each for each in members(self.facts.evaluate(size, frames))
        ]
        if values and all(isinstance(each, Const) and type(each.value) is int and each.value != 1 for each in values):
            return True
        method = self.places.function(size, module)
        told = (
            next((each for each in parameters(method) if each.arg == getattr(size, "id", "")), None) if method else None
        )
        unknown = all(isinstance(each, (Opaque, Unknown)) for each in values)
        return unknown and told is not None and isinstance(told.annotation, ast.Name) and told.annotation.id == "int"

    # --- what it computes ---------------------------------------------------------------------------------------------

    def _judged(self, node: ast.expr, input_: str, rows: list[str], numbers: list[str]) -> Formula | None:
        """Which of torch's formulas gives the same numbers."""
        draws = [_drawn(seed, input_, rows, numbers) for seed in (1, 2, 3)]
        try:
            results = [self._row(self._work_out(node, self.at, symbols)) for symbols in draws]
        except (_OtherError, ArithmeticError, ValueError, IndexError):
            return None
        reads = sum(isinstance(each, ast.Name) and each.id == input_ for each in walk(node))
        reads += sum(
            isinstance(each, ast.Name) and each.id == input_ for used in self.used.values() for each in walk(used)
        )
        if reads < 2:
            return None

        def agrees(formula: Callable[[_Symbols], list[float]]) -> bool:
            return all(
                all(
                    math.isclose(a, b, rel_tol=_NEAR, abs_tol=_NEAR)
                    for a, b in zip(result, formula(symbols), strict=True)
                )
                for result, symbols in zip(results, draws, strict=True)
            )

        def inputs(symbols: _Symbols) -> list[float]:
            value = symbols[input_]
            assert isinstance(value, list)
            return value

        if not rows and not numbers:
            for kind, activated in _ACTIVATIONS.items():
                if agrees(lambda symbols, each=activated: [each(x) for x in inputs(symbols)]):  # type: ignore[misc]
                    return self._said(node, kind, input_)
        if not numbers:
            return None
        eps = numbers[0]

        def number(symbols: _Symbols) -> float:
            value = symbols[eps]
            assert isinstance(value, float)
            return value

        choices: list[tuple[str | None, str | None]] = [(None, None)] if not rows else []
        choices += [(one, None) for one in rows] if len(rows) == 1 else []
        choices += [(one, other) for one, other in itertools.permutations(rows, 2)]
        for weight, bias in choices:
            for kind, normed in _NORMS.items():
                if kind == "rms_norm" and bias is not None:
                    continue

                def formula(
                    symbols: _Symbols, w: str | None = weight, b: str | None = bias, n: _Norm = normed
                ) -> list[float]:
                    scaled = n(inputs(symbols), number(symbols))
                    if w is not None:
                        scaled = [x * y for x, y in zip(scaled, self._row(symbols[w]), strict=True)]
                    if b is not None:
                        scaled = [x + y for x, y in zip(scaled, self._row(symbols[b]), strict=True)]
                    return scaled

                if agrees(formula):
                    return self._said(node, kind, input_, weight, bias, eps)
        return None

    def _small(self, node: ast.expr) -> list[str]:
        """The small literals in a formula, which stand for an ``eps``: their place in it must show in the numbers."""
        parts = [*walk(node), *(each for used in self.used.values() for each in walk(used))]
        found = (each for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, float))
        return list(
            dict.fromkeys(self.places.text(each, self.module) for each in found if 0 < float(str(each.value)) < 0.01)
        )

    def _said(  # noqa: PLR0913
        self,
        node: ast.expr,
        kind: str,
        input_: str,
        weight: str | None = None,
        bias: str | None = None,
        eps: str | None = None,
    ) -> Formula:
        return Formula(
            self.places.site(node, self.module),
            kind,  # type: ignore[arg-type]
            input_,
            weight,
            bias,
            eps,
            removed=tuple(self.places.site(self.used[index], self.module) for index in sorted(self.used)),
        )

    def _log_of(self, node: ast.expr) -> Formula | None:
        """``torch.log(F.softmax(x, dim=1))``, or of a sigmoid, straight."""
        if not isinstance(node, ast.Call) or node.keywords:
            return None
        inner: ast.expr | None = None
        if self._qualname(node.func) == "torch.log" and len(node.args) == 1:
            inner = node.args[0]
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "log" and not node.args:
            inner = node.func.value
        if not isinstance(inner, ast.Call):
            return None
        given = {each.arg: each.value for each in inner.keywords}
        arguments = list(inner.args)
        package, _, name = (self._qualname(inner.func) or "").rpartition(".")
        if package in ("torch", "torch.nn.functional", "torch.special"):
            of = given.pop("input", None) or (arguments.pop(0) if arguments else None)
        elif isinstance(inner.func, ast.Attribute):
            of, name = inner.func.value, inner.func.attr
            if {each.name for each in self.facts.at(inner)} != {f"Tensor.{name}"}:
                return None
        else:
            return None
        kind = _LOGARITHMS.get(name)
        dim = given.pop("dim", None) or (arguments.pop(0) if arguments else None)
        if kind is None or of is None or (dim is None) is (kind == "log_softmax") or arguments or given:
            return None
        self.used = {}
        text = self.places.text
        told = text(dim, self.module) if dim is not None else None
        return Formula(self.places.site(node, self.module), kind, text(of, self.module), dim=told)

    def _row(self, value: _Number) -> list[float]:
        if isinstance(value, list):
            return value
        raise _OtherError

    def _work_out(self, node: ast.expr, at: int, symbols: _Symbols) -> _Number:
        """The value of an expression for given numbers."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
                return symbols.get(self.places.text(node, self.module), float(node.value))
            raise _OtherError
        if isinstance(node, ast.Name):
            found = self._definition(node.id, at)
            if found is not None:
                return self._work_out(found[1], found[0], symbols)
            return symbols[node.id]
        if isinstance(node, ast.Attribute):
            constant = self._constant(node)
            return constant if constant is not None else symbols[dotted(node) or ""]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _both(lambda a, b: a * b, -1.0, self._work_out(node.operand, at, symbols))
        if isinstance(node, ast.BinOp):
            operation = _OPERATORS.get(type(node.op))
            if operation is None:
                raise _OtherError
            return _both(operation, self._work_out(node.left, at, symbols), self._work_out(node.right, at, symbols))
        if isinstance(node, ast.Call):
            return self._call(node, at, symbols)
        raise _OtherError

    def _constant(self, node: ast.Attribute) -> float | None:
        return math.pi if self._qualname(node) in ("math.pi", "numpy.pi", "torch.pi") else None

    def _operation(self, node: ast.Call) -> tuple[str, list[ast.expr], dict[str | None, ast.expr]] | None:
        """The name of what a call computes, its operands and its keywords."""
        if any(isinstance(each, ast.Starred) for each in node.args):
            return None
        keywords = {each.arg: each.value for each in node.keywords}
        name = self._qualname(node.func)
        if name is not None:
            owner, _, last = name.rpartition(".")
            known = owner in _MODULES and (last in _ELEMENTWISE or last in _REDUCTIONS or last in _BINARY)
            return (last, list(node.args), keywords) if known else None
        if isinstance(node.func, ast.Attribute):
            last = node.func.attr
            if last in _ELEMENTWISE or last in _REDUCTIONS or last in _BINARY:
                return last, [node.func.value, *node.args], keywords
        return None

    def _call(self, node: ast.Call, at: int, symbols: _Symbols) -> _Number:
        found = self._operation(node)
        if found is None:
            raise _OtherError
        name, operands, keywords = found
        if not operands:
            raise _OtherError
        first = self._work_out(operands[0], at, symbols)
        if not isinstance(first, float) and (self._qualname(node.func) or "").startswith(("math.", "numpy.")):
            raise _OtherError  # of numbers, or arrays
        if name in _REDUCTIONS:
            return self._reduced(name, first, operands[1:], keywords)
        if keywords:
            raise _OtherError
        if name in _BINARY and len(operands) == 2:
            return _both(_BINARY[name], first, self._work_out(operands[1], at, symbols))
        if name in _ELEMENTWISE and len(operands) == 1:
            return _each(_ELEMENTWISE[name], first)
        raise _OtherError

    def _reduced(
        self, name: str, value: _Number, arguments: list[ast.expr], keywords: dict[str | None, ast.expr]
    ) -> _Number:
        """A mean or a deviation over the last dimension, which is kept."""
        names = ("dim", "keepdim") if name == "mean" else ("dim", "unbiased", "keepdim")
        given: dict[str | None, ast.expr] = dict(zip(names, arguments, strict=False))
        given.update(keywords)
        dim = given.pop("dim", None)
        if isinstance(dim, (ast.Tuple, ast.List)) and len(dim.elts) == 1:
            dim = dim.elts[0]
        last = isinstance(dim, ast.UnaryOp) and isinstance(dim.op, ast.USub) and isinstance(dim.operand, ast.Constant)
        if not last or not isinstance(dim, ast.UnaryOp) or getattr(dim.operand, "value", None) != 1:
            raise _OtherError
        keep = given.pop("keepdim", None)
        if not isinstance(keep, ast.Constant) or keep.value is not True:
            raise _OtherError
        missing = 1
        unbiased, correction = given.pop("unbiased", None), given.pop("correction", None)
        for literal in (unbiased, correction):
            if literal is not None:
                if not isinstance(literal, ast.Constant) or not isinstance(literal.value, (bool, int)):
                    raise _OtherError
                missing = int(literal.value)
        if given:
            raise _OtherError
        row = self._row(value)
        mean = sum(row) / len(row)
        if name == "mean":
            return _Column(mean)
        variance = sum((each - mean) ** 2 for each in row) / (len(row) - missing)
        return _Column(variance if name == "var" else math.sqrt(variance))

    def _qualname(self, node: ast.expr, module: ModuleFile | None = None) -> str | None:
        """The qualified name of a library's function; None for a method or anything else."""
        module = module or self.module
        name = dotted(node)
        if name is None:
            return None
        head, _, rest = name.partition(".")
        if self.facts.bindings.owner(head, node, module) is not module.tree:
            return None
        value = module.scope.names.get(head)
        found = [getattr(each, "qualname", None) for each in members(value)]
        if len(found) != 1 or not isinstance(found[0], str):
            return None
        return f"{found[0]}.{rest}" if rest else found[0]


# --- numbers ----------------------------------------------------------------------------------------------------------


def _is_unknown(value: Value | None) -> bool:
    return value is None or isinstance(value, (Opaque, Unknown))


@once_per_node
def _numbers_told(cls: ast.ClassDef) -> frozenset[str]:
    """The attributes that only a parameter of ``__init__`` is kept in, which is said to be a float."""
    methods = [each for each in cls.body if isinstance(each, ast.FunctionDef) and each.args.args]
    init = next((each for each in methods if each.name == "__init__"), None)
    if init is None:
        return frozenset()
    said = {each.arg for each in parameters(init) if dotted(each.annotation) == "float"}
    held: dict[str, list[ast.AST]] = {}
    for method in methods:
        own = f"{method.args.args[0].arg}."
        for name, nodes in names_of(method).writes.items():
            if name.startswith(own):
                # what another method sets is not what was passed
                held.setdefault(name[len(own) :], []).extend(nodes if method is init else [*nodes, *nodes])
    found = set()
    for name, nodes in held.items():
        value = nodes[0].value if len(nodes) == 1 and isinstance(nodes[0], ast.Assign) else None
        if isinstance(value, ast.Name) and value.id in said and value.id not in names_of(init).writes:
            found.add(name)
    return frozenset(found)


def _is_told_number(cls: ast.ClassDef, attribute: str) -> bool:
    return attribute in _numbers_told(cls)


def _drawn(seed: int, input_: str, rows: list[str], numbers: list[str]) -> _Symbols:
    """Numbers for what a formula is made of."""
    source = random.Random(seed)
    found: _Symbols = {input_: [source.uniform(-3, 3) for _ in range(_WIDTH)]}
    for each in rows:
        found[each] = [source.uniform(0.5, 2) for _ in range(_WIDTH)]
    for each in numbers:
        found[each] = source.uniform(0.2, 0.5)
    return found


def _both(operation: Callable[[float, float], float], one: _Number, other: _Number) -> _Number:
    if not isinstance(one, list) and not isinstance(other, list):
        column = isinstance(one, _Column) or isinstance(other, _Column)
        result = operation(_number(one), _number(other))
        return _Column(result) if column else result
    left = one if isinstance(one, list) else [_number(one)] * _WIDTH
    right = other if isinstance(other, list) else [_number(other)] * _WIDTH
    return [operation(a, b) for a, b in zip(left, right, strict=True)]


def _each(operation: Callable[[float], float], value: _Number) -> _Number:
    if isinstance(value, list):
        return [operation(each) for each in value]
    return _Column(operation(value.value)) if isinstance(value, _Column) else operation(value)


def _number(value: _Number) -> float:
    if isinstance(value, list):
        raise _OtherError
    return value.value if isinstance(value, _Column) else value


def _power(base: float, exponent: float) -> float:
    result = base**exponent
    if isinstance(result, complex):
        raise _OtherError
    return float(result)


_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
}
_LOGARITHMS: dict[str, Literal["log_softmax", "logsigmoid"]] = {
    "softmax": "log_softmax",
    "sigmoid": "logsigmoid",
    "expit": "logsigmoid",
}
"""What the logarithm of what such a function gives is."""


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


_Norm = Callable[[list[float], float], list[float]]


def _norm(missing: int, *, outside: bool) -> _Norm:
    def normed(row: list[float], eps: float) -> list[float]:
        mean = sum(row) / len(row)
        variance = sum((each - mean) ** 2 for each in row) / (len(row) - missing)
        by = math.sqrt(variance) + eps if outside else math.sqrt(variance + eps)
        return [(each - mean) / by for each in row]

    return normed


def _rms(row: list[float], eps: float) -> list[float]:
    by = math.sqrt(sum(each * each for each in row) / len(row) + eps)
    return [each / by for each in row]


_NORMS: dict[str, _Norm] = {
    "layer_norm": _norm(0, outside=False),
    "rms_norm": _rms,
    "unbiased": _norm(1, outside=False),
    "unbiased_outside": _norm(1, outside=True),
    "outside": _norm(0, outside=True),
}

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: _power,
}

_BINARY: dict[str, Callable[[float, float], float]] = {"pow": _power}

_ELEMENTWISE: dict[str, Callable[[float], float]] = {
    "tanh": math.tanh,
    "erf": math.erf,
    "exp": math.exp,
    "sigmoid": _sigmoid,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "square": lambda x: x * x,
}

_REDUCTIONS = frozenset(("mean", "var", "std"))
