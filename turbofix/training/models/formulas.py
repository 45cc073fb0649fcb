"""Formulas that torch has one kernel for: GELU, SiLU, norms, softmax, cross-entropy, the logarithm of a sigmoid.

A formula is recognised by what it computes, not by how it is spelled: it is worked out for a few rows of numbers, with
numbers for its parameters that make every difference show (an ``eps`` of about a third, inside or outside of the root),
and compared with torch's definition. What it is worked out from stands in one block, and serves nothing else.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import (
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
from turbofix.regex import regex
from turbofix.source.answers import kept, once_per_node
from turbofix.source.names import dotted, names_of, parameters, stores, targets
from turbofix.source.nodes import children, walk
from turbofix.source.places import LOOPS
from turbofix.source.wording import Wording
from turbofix.training.model import Formula
from turbofix.training.models.arrays import (
    Array,
    OtherError,
    combined,
    gathered,
    number,
    picked,
    reduced,
    shaped,
    squeezed,
)
from turbofix.training.models.complexes import PARAMETERS

_MENTIONS = (
    Wording((".04471", ".rsqrt", "softmax", "sigmoid", "exp(", "logsumexp", ".mean(-1", "torch.mean")),
    Wording(("erf",), regex(r"erf\b")),
    Wording((".var",), regex(r"\.var\b")),
    Wording((".std",), regex(r"\.std\b")),
    Wording((".mean(dim",), regex(r"\.mean\(dim ?= ?-1")),
)
"""Each is looked for by itself, as a text with such a word is searched for one pattern in a tenth of the time."""
_OF_TWO = regex(r"exp|log|softmax")
"""What one of the calls of a formula of two tensors is named by."""

_MODULES = frozenset(("torch", "math", "numpy", "torch.nn.functional", "torch.special"))
_SHAPE = (2, 3, 7)
"""Of what formulas are worked out for; of its last two dimensions alone, too."""
_NEAR = 1e-6
"""How far numbers may be apart, relatively: constants are often written with eight digits (0.79788456)."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


_Symbols = dict[str, Array]
_Worked = list[tuple[_Symbols, Array]]
_Reduce = Callable[[list[float]], float]
_FAILS = (OtherError, ArithmeticError, ValueError, LookupError)


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
        self.follows = False  # into functions of the project
        self.met = False  # such a function

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
        if isinstance(node, (ast.BinOp, ast.Call, ast.UnaryOp)):
            found = self._formula(node)
            if found is not None:
                yield found, set(self.used)
                return
        for child in children(node):
            if isinstance(child, ast.expr) and not isinstance(child, (ast.Lambda, ast.ListComp, ast.GeneratorExp)):
                yield from self._in(child, block, index)
            elif isinstance(child, ast.keyword):
                yield from self._in(child.value, block, index)

    def _formula(self, node: ast.expr) -> Formula | None:
        found = self._log_of(node)
        for self.follows in (False, True) if found is None else ():
            self.met = False
            leaves = self._leaves(node)
            small = self._small(node)
            if isinstance(node, ast.Call) and (self._operation(node) or ("",))[0] == "own":
                return None  # it is looked at by itself
            if leaves is not None and len(small) + len(leaves[2]) <= 1:
                found = self._judged(node, leaves[0], leaves[1], leaves[2] or small)
            if found is not None or not self.met:
                return found
        return found

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
                if self._constant(each) is not None:
                    return True
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
                if name is None or each.attr == "shape":
                    return visit(each.value, at, depth - 1)
                if self._constant(each) is not None:
                    return True
                kind = self._kind(each)
                if kind is None:
                    return False
                (rows if kind == "row" else numbers)[name] = None
                return True
            if isinstance(each, ast.Call):
                parts: list[ast.AST] = [*each.args, *(word.value for word in each.keywords if word.arg != "device")]
                if isinstance(each.func, ast.Attribute) and self._qualname(each.func) is None:
                    parts.append(each.func.value)
                return self._operation(each) is not None and all(visit(part, at, depth - 1) for part in parts)
            if isinstance(each, (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Subscript, ast.Tuple, ast.List)):
                return all(visit(part, at, depth - 1) for part in children(each) if isinstance(part, ast.expr))
            return False

        whole = visit(node, self.at, 24)
        visit = None  # type: ignore[assignment]  # it holds itself
        if not whole or not 1 <= len(plain) <= 2 or len(rows) > 2 or len(numbers) > 1:
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
                    return (index, statement.value) if self._is_worked_out(statement.value) else None
            if any(written == name for written, _ in stores(statement)):
                return None
        return None

    def _is_worked_out(self, value: ast.expr) -> bool:
        """Whether it is part of a formula, and no tensor of its own."""
        if isinstance(value, ast.Call):
            return self._operation(value) is not None
        if isinstance(value, ast.Subscript):  # of a size, of a maximum and its place, or by arrays
            sized = isinstance(value.value, ast.Attribute) and value.value.attr == "shape"
            return sized or self._is_maximum(value) or isinstance(value.slice, ast.Tuple)
        return isinstance(value, (ast.BinOp, ast.Constant, ast.UnaryOp)) or self._is_maximum(value)

    def _is_maximum(self, node: ast.expr) -> bool:
        """``x.max(1)[0]``, ``x.max(1).values``."""
        first = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0
        if not first and not (isinstance(node, ast.Attribute) and node.attr == "values"):
            return False
        of = node.value  # type: ignore[attr-defined]
        return isinstance(of, ast.Call) and (self._operation(of) or ("",))[0] == "max"

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
                if isinstance(later, ast.Return) or any(
                    isinstance(e, ast.Name) and e.id == target.id for each in into for e in targets(each)
                ):
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

    def _judged(self, node: ast.expr, plain: list[str], rows: list[str], numbers: list[str]) -> Formula | None:
        """Which of torch's formulas gives the same numbers."""
        x = plain[0]
        if plain[1:]:
            other = plain[1]
            calls = [each for part in (node, *self.used.values()) for each in walk(part) if isinstance(each, ast.Call)]
            if rows or numbers or not (self.met or any(_OF_TWO.search(ast.unparse(each.func)) for each in calls)):
                return None
            return self._of_two(node, x, other) or self._of_two(node, other, x)
        if self._is_read_once(node, x):
            return None
        worked = self._worked(node, [_drawn(seed, rank, x, rows, numbers) for seed, rank in ((1, 3), (2, 3), (3, 2))])
        if not rows and not numbers:
            for kind, activated in _ACTIVATIONS.items():
                if _is_same(worked, lambda s, f=activated: combined(f, s[x])):  # type: ignore[misc]
                    return self._said(node, kind, x)
            for (kind, along), dim in itertools.product(_ALONG.items(), (-1, 1)):
                if _is_same(worked, lambda s, f=along, d=dim: f(s[x], d)):  # type: ignore[misc]
                    return self._said(node, kind, x, dim=str(dim))
        if not numbers:
            return None
        choices: list[tuple[str | None, str | None]] = [(None, None)] if not rows else []
        choices += [(one, None) for one in rows] if len(rows) == 1 else []
        choices += [(one, other) for one, other in itertools.permutations(rows, 2)]
        for weight, bias in choices:
            for kind, normed in _NORMS.items():
                if kind == "rms_norm" and bias is not None:
                    continue

                def formula(s: _Symbols, w: str | None = weight, b: str | None = bias, n: _Norm = normed) -> Array:
                    scaled = n(s[x], s[numbers[0]])
                    scaled = combined(operator.mul, scaled, s[w]) if w is not None else scaled
                    return combined(operator.add, scaled, s[b]) if b is not None else scaled

                if _is_same(worked, formula):
                    return self._said(node, kind, x, weight=weight, bias=bias, eps=numbers[0])
        return None

    def _of_two(self, node: ast.expr, x: str, other: str) -> Formula | None:
        """A cross-entropy of logits and labels, or a softmax over a dimension that a name tells."""

        def cases(rank: int, *given: Array) -> list[_Symbols]:
            return [_drawn(seed, rank, x, [], []) | {other: each} for seed, each in enumerate(given)]

        def entropy(s: _Symbols, reduce: _Reduce | None) -> Array:
            found = combined(operator.neg, gathered(_log_softmax(s[x], -1), -1, squeezed(s[other], -1, more=True)))
            found = squeezed(found, -1, more=False)
            return reduced(reduce, found, None, keep=False) if reduce is not None else found

        few, many = (self._worked(node, cases(rank, _labels(rank, 2), _labels(rank, 3))) for rank in (2, 3))
        for reduction, reduce in _REDUCED.items():
            torchs = partial(entropy, reduce=reduce)
            if _is_same(few, torchs):
                all_ranks = _is_same(many, torchs)
                return self._said(node, "cross_entropy", x, target=other, reduction=reduction, many=all_ranks)
        along = self._worked(node, [*cases(3, *map(number, (0, 1, -1))), *cases(2, number(1))])
        for kind, function in _ALONG.items() if not self._is_read_once(node, x) else ():
            if _is_same(along, lambda s, f=function: f(s[x], s[other][()])):  # type: ignore[misc]
                return self._said(node, kind, x, dim=other)
        return None

    def _is_read_once(self, node: ast.expr, name: str) -> bool:
        """Whether a formula reads its input once, as torch's function does."""
        taken = (part for each in (node, *self.used.values()) for part in walk(each))
        return sum(isinstance(each, ast.Name) and each.id == name for each in taken) < 2

    def _worked(self, node: ast.expr, cases: list[_Symbols]) -> _Worked:
        """What an expression gives for given numbers; nothing where it fails."""
        try:
            return [(each, self._work_out(node, self.at, each)) for each in cases]
        except _FAILS:
            return []

    def _small(self, node: ast.expr) -> list[str]:
        """The small literals in a formula, which stand for an ``eps``: their place in it must show in the numbers."""
        parts = [*walk(node), *(each for used in self.used.values() for each in walk(used))]
        found = (each for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, float))
        return list(
            dict.fromkeys(self.places.text(each, self.module) for each in found if 0 < float(str(each.value)) < 0.01)
        )

    def _said(self, node: ast.expr, kind: str, input_: str, **given: Any) -> Formula:
        removed = tuple(self.places.site(self.used[index], self.module) for index in sorted(self.used))
        return Formula(self.places.site(node, self.module), kind, input_, removed=removed, **given)

    def _log_of(self, node: ast.expr) -> Formula | None:
        """``torch.log(F.softmax(x, dim=1))``, or of a sigmoid, straight."""
        outer = self._operation(node) if isinstance(node, ast.Call) else None
        if outer is None or outer[0] != "log" or outer[2] or not isinstance(outer[1][0], ast.Call):
            return None
        inner = outer[1][0]
        name, (of, *told), given = self._operation(inner) or ("", [inner], {})
        kind = {"softmax": "log_softmax", "sigmoid": "logsigmoid", "expit": "logsigmoid"}.get(name)
        if self._qualname(inner.func) is None and {each.name for each in self.facts.at(inner)} != {f"Tensor.{name}"}:
            return None
        dim = given.pop("dim", None) or (told.pop(0) if told else None)
        if kind is None or (dim is None) is (kind == "log_softmax") or told or given:
            return None
        self.used = {}
        text = self.places.text
        return self._said(node, kind, text(of, self.module), dim=text(dim, self.module) if dim is not None else None)

    def _work_out(self, node: ast.expr, at: int, symbols: _Symbols) -> Array:
        """The value of an expression for given numbers."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, (int, float)):
                return symbols.get(self.places.text(node, self.module), number(node.value))
            raise OtherError
        if isinstance(node, ast.Name):
            found = self._definition(node.id, at)
            if found is not None:
                return self._work_out(found[1], found[0], symbols)
            constant = self._constant(node)
            return number(constant) if constant is not None else symbols[node.id]
        if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == 1:
            return self._work_out(node.elts[0], at, symbols)
        if self._is_maximum(node):
            return self._work_out(node.value, at, symbols)  # type: ignore[attr-defined]
        if isinstance(node, ast.Subscript):
            return self._item(node, at, symbols)
        if isinstance(node, ast.Attribute):
            constant = self._constant(node)
            return number(constant) if constant is not None else symbols[dotted(node) or ""]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return combined(operator.neg, self._work_out(node.operand, at, symbols))
        if isinstance(node, ast.BinOp):
            operation = _OPERATORS.get(type(node.op))
            if operation is None:
                raise OtherError
            return combined(operation, *(self._work_out(each, at, symbols) for each in (node.left, node.right)))
        if isinstance(node, ast.Call):
            return self._call(node, at, symbols)
        raise OtherError

    def _item(self, node: ast.Subscript, at: int, symbols: _Symbols) -> Array:
        """``x.shape[0]``, ``x[rows, labels]``."""
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            of, place = self._work_out(node.value.value, at, symbols), self._work_out(node.slice, at, symbols)
            return number(of.shape[int(place[()])])
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        of = self._work_out(node.value, at, symbols)
        return picked(of, [self._work_out(each, at, symbols) for each in indices])

    def _constant(self, node: ast.expr) -> float | None:
        return math.pi if self._qualname(node) in ("math.pi", "numpy.pi", "torch.pi") else None

    def _operation(self, node: ast.Call) -> tuple[str, list[ast.expr], dict[str | None, ast.expr]] | None:
        """The name of what a call computes, its operands and its keywords."""
        if any(isinstance(each, ast.Starred) for each in node.args):
            return None
        keywords = {each.arg: each.value for each in node.keywords}
        name, last, operands = self._qualname(node.func), "", list(node.args)
        if name is not None:
            owner, _, last = name.rpartition(".")
            last = last if owner in _MODULES else ""
            if "input" in keywords:
                operands.insert(0, keywords.pop("input"))
        elif isinstance(node.func, ast.Name):
            last = node.func.id if node.func.id in ("range", "len") else ""
            if self._own(node) is not None:
                self.met, last = True, "own" if self.follows else ""
        elif isinstance(node.func, ast.Attribute):
            last, operands = node.func.attr, [node.func.value, *operands]
        known = last in _ELEMENTWISE or last in _TAKING or last == "own"
        return (last, operands, keywords) if known else None

    def _own(self, node: ast.Call) -> Function | None:
        """A function of the project that only computes, line by line."""
        found = list(members(self.module.scope.names.get(dotted(node.func) or "")))
        own = found[0] if len(found) == 1 and isinstance(found[0], Function) else None
        if own is None or not isinstance(own.node, ast.FunctionDef) or own.node is self.function:
            return None
        (*lines, last) = own.node.body
        told = isinstance(lines[0].value, ast.Constant) if lines and isinstance(lines[0], ast.Expr) else False
        plain = all(isinstance(e, ast.Assign) and isinstance(e.targets[0], ast.Name) for e in lines[told:])
        return own if plain and isinstance(last, ast.Return) and last.value is not None else None

    def _call(self, node: ast.Call, at: int, symbols: _Symbols) -> Array:
        found = self._operation(node)
        if found is None:
            raise OtherError
        name, operands, keywords = found
        keywords.pop("device", None)
        values = [self._work_out(each, at, symbols) for each in operands]
        given = {word: self._work_out(each, at, symbols) for word, each in keywords.items()}
        own = self._own(node) if name == "own" else None
        if own is not None:
            assert isinstance(own.node, ast.FunctionDef)
            taken = own.node.args
            listed = [each.arg for each in (*taken.posonlyargs, *taken.args)]
            inner = _Reader(self.analysis, own.node, own.module, self.kinds)
            inner.block, inner.at, returned = own.node.body, len(own.node.body) - 1, own.node.body[-1]
            assert isinstance(returned, ast.Return) and returned.value is not None
            usual = zip(reversed(listed), reversed(taken.defaults), strict=False)
            told = {word: inner._work_out(each, 0, {}) for word, each in usual}
            told |= dict(zip(listed, values, strict=False)) | given  # type: ignore[arg-type]
            return inner._work_out(returned.value, inner.at, told)
        of_numbers = ("math.", "numpy.", "torch.tensor")
        if values and values[0].shape and (self._qualname(node.func) or "").startswith(of_numbers):
            raise OtherError  # of numbers, or arrays
        if name in _ELEMENTWISE:
            if given or len(values) != (2 if name == "pow" else 1):
                raise OtherError  # a method of another object: `self.sigmoid(x)`
            return combined(_ELEMENTWISE[name], *values)
        if name in ("view", "reshape"):
            return shaped(values[0], [each[()] for each in values[1:]])
        names = _TAKING[name].split()
        return _taken(name, values[0], given | dict(zip(names, values[1:], strict=False)))

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


def _taken(name: str, of: Array, given: dict[str | None, Array]) -> Array:
    """What a function of a row, or of places, gives."""
    numbers = {word: each[()] for word, each in given.items() if word != "index"}
    dim = numbers.get("dim")
    if name in ("range", "arange"):
        return Array((int(of[()]),), [float(each) for each in range(int(of[()]))])
    if name == "gather" and dim is not None:
        return gathered(of, dim, given["index"])
    if name in ("unsqueeze", "squeeze"):
        return squeezed(of, dim, more=name == "unsqueeze")
    if name in ("size", "len"):
        return number(of.shape[int(dim or 0)])
    if name in _ALONG and dim is not None:
        return _ALONG[name](of, dim)
    if name == "max" and "other" in given:
        raise OtherError
    missing = numbers.get("correction", numbers.get("unbiased", 1))

    def variance(row: list[float]) -> float:
        return sum((each - _mean(row)) ** 2 for each in row) / (len(row) - missing)

    known: dict[str, _Reduce] = {"sum": math.fsum, "mean": _mean, "max": max, "amax": max, "logsumexp": _logsumexp}
    known |= {"var": variance, "std": lambda row: math.sqrt(variance(row))}
    return reduced(known[name], of, dim, keep=bool(numbers.get("keepdim")))


def _mean(row: list[float]) -> float:
    return math.fsum(row) / len(row)


def _logsumexp(row: list[float]) -> float:
    return math.log(sum(map(math.exp, row)))


def _log_softmax(x: Array, dim: float) -> Array:
    return combined(operator.sub, x, reduced(_logsumexp, x, dim, keep=True))


def _softmax(x: Array, dim: float) -> Array:
    return combined(math.exp, _log_softmax(x, dim))


_ALONG: dict[str, Callable[[Array, float], Array]] = {"softmax": _softmax, "log_softmax": _log_softmax}
_REDUCED: dict[str, _Reduce | None] = {"mean": _mean, "sum": math.fsum, "none": None}


def _labels(rank: int, step: int) -> Array:
    shape = _SHAPE[-rank:-1]
    return Array(shape, [float(step * at % _SHAPE[-1]) for at in range(math.prod(shape))])


def _is_same(worked: _Worked, formula: Callable[[_Symbols], Array]) -> bool:
    """Whether a formula gives the same numbers."""
    for symbols, one in worked:
        try:
            other = formula(symbols)
        except _FAILS:
            return False
        pairs = zip(one.numbers, other.numbers, strict=False)
        if one.shape != other.shape or not all(math.isclose(*each, rel_tol=_NEAR, abs_tol=_NEAR) for each in pairs):
            return False
    return bool(worked)


def _drawn(seed: int, rank: int, input_: str, rows: list[str], numbers: list[str]) -> _Symbols:
    """Numbers for what a formula is made of."""
    from random import Random  # few programs have such formulas

    source = Random(seed)

    def drawn(low: float, high: float, shape: tuple[int, ...]) -> Array:
        return Array(shape, [source.uniform(low, high) for _ in range(math.prod(shape))])

    found = {input_: drawn(-3, 3, _SHAPE[-rank:])}
    found |= {each: drawn(0.5, 2, _SHAPE[-1:]) for each in rows}
    return found | {each: drawn(0.2, 0.5, ()) for each in numbers}


def _power(base: float, exponent: float) -> float:
    result = base**exponent
    if isinstance(result, complex):
        raise OtherError
    return float(result)


_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


_Norm = Callable[[Array, Array], Array]


def _norm(missing: int, *, outside: bool) -> _Norm:
    def normed(x: Array, eps: Array) -> Array:
        given: dict[str | None, Array] = {"dim": number(-1), "keepdim": number(1), "correction": number(missing)}
        variance = _taken("var", x, given)
        by = combined(lambda v, e: math.sqrt(v) + e if outside else math.sqrt(v + e), variance, eps)
        return combined(lambda a, mean, b: (a - mean) / b, x, _taken("mean", x, given), by)

    return normed


def _rms(x: Array, eps: Array) -> Array:
    squares = reduced(lambda row: _mean([each * each for each in row]), x, -1, keep=True)
    return combined(lambda a, square, e: a / math.sqrt(square + e), x, squares, eps)


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

_ELEMENTWISE: dict[str, Callable[..., float]] = {
    "pow": _power,
    "tanh": math.tanh,
    "erf": math.erf,
    "exp": math.exp,
    "log": math.log,
    "neg": operator.neg,
    "tensor": operator.pos,  # of one number
    "sigmoid": _sigmoid,
    "expit": _sigmoid,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "square": lambda x: x * x,
}
_TAKING = {
    **dict.fromkeys(("mean", "sum", "max", "amax", "logsumexp"), "dim keepdim"),
    **dict.fromkeys(("var", "std"), "dim unbiased keepdim"),
    **dict.fromkeys(("softmax", "log_softmax", "unsqueeze", "squeeze", "size"), "dim"),
    **dict.fromkeys(("range", "arange", "len", "view", "reshape"), ""),
    "gather": "dim index",
}
"""What else is worked out, and what it takes behind the tensor."""
