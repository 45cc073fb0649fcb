"""Formulas that torch has one kernel for: GELU, SiLU, norms over the last dimension, logarithms of sigmoid and softmax.

A formula is recognised by what it computes, not by how it is spelled: it is worked out for rows of numbers, with
numbers for its parameters that make every difference show (an ``eps`` of about a third, inside or outside of the root),
and compared with torch's definition. What it is worked out from stands in one block, and serves nothing else.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Made, Option, Sequence, Tensor, Value, members
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every, kept, once_per_node
from turbofix.source.names import default_of, dotted
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.source.site import Site
from turbofix.source.wording import Wording
from turbofix.training.model import Formula
from turbofix.training.models.complexes import PARAMETERS
from turbofix.training.models.held import classes_of, seen

_MENTIONS = (
    Wording((".04471", ".rsqrt", "sigmoid", "exp(", ".mean(-1", "torch.mean")),
    Wording(("softmax",), regex(r"log\(")),
    Wording(("erf",), regex(r"erf\b")),
    Wording((".var",), regex(r"\.var\b")),
    Wording((".std",), regex(r"\.std\b")),
    Wording((".mean(dim",), regex(r"\.mean\(dim ?= ?-1")),
)
"""Each is looked for by itself, as a text with such a word is searched for one pattern in a tenth of the time."""

_MODULES = frozenset(("torch", "math", "numpy", "torch.nn.functional", "torch.special"))
_NEAR = 1e-6
"""How far numbers may be apart, relatively: constants are often written with eight digits (0.79788456)."""

_SMALL = 0.01
"""A literal below it stands for an ``eps``."""

_FAILS = (ArithmeticError, ValueError, LookupError, TypeError)
_Row = tuple[float, ...]
_Number = float | _Row
"""One number, or a row of them."""


class _OtherError(Exception):
    """It is nothing that is known here."""


def formulas(analysis: Analysis) -> tuple[Formula, ...]:
    """The formulas in the functions that the program runs, in order of their places."""
    run = {frame.function.node for frame in analysis.execution.frames.values() if frame.function}
    found: list[Formula] = []
    for module in analysis.execution.modules.values():
        if not kept(module.tree, "mentions_formula", lambda: _mentions(module.text)):  # noqa: B023
            continue
        for function in every(ast.FunctionDef, module.tree):
            text = analysis.facts.places.text(function, module)
            outer = {function, *analysis.facts.places.ancestors(function, module)}
            if outer & (run | classes_of(analysis).keys()) and not _is_compiled(function) and _mentions(text):
                found += _Reader(analysis, function, module).formulas()
        found += _Reader(analysis, module.tree, module).formulas()
    return tuple(sorted(found, key=lambda each: each.site))


def _mentions(text: str) -> bool:
    return any(each.is_in(text) for each in _MENTIONS)


def _is_compiled(function: ast.FunctionDef) -> bool:
    """Whether a compiler makes one kernel of a function by itself."""
    names = [dotted(each.func if isinstance(each, ast.Call) else each) or "" for each in function.decorator_list]
    return any("jit" in name or "compile" in name for name in names)


@once_per_node
def _definitions(scope: ast.AST) -> dict[ast.AST, set[ast.AST]]:
    """What gives each read of a name its value."""
    found: dict[ast.AST, set[ast.AST]] = {}
    for definition, reads in readers(scope).items():
        for read in reads:
            found.setdefault(read, set()).add(definition)
    return found


@dataclass(eq=False)
class _Leaves:
    """What a formula is made of, by its text: tensors, rows of weights and numbers, with numbers for each."""

    seed: int
    inputs: dict[str, _Number]
    rows: dict[str, _Number]
    numbers: dict[str, _Number]
    statements: dict[int, ast.stmt]  # those that it takes in
    reads: int = 0  # of its inputs
    certain: bool = True  # that rows are rows, and numbers numbers

    def drawn(self, of: dict[str, _Number], text: str, low: float, high: float, *, row: bool) -> _Number:
        """Numbers for a leaf, the same ones for each read of it."""
        from random import Random  # few programs have such formulas

        draw = Random(f"{self.seed} {low} {len(of)}")
        numbers = tuple(draw.uniform(low, high) for _ in range(7))
        return of.setdefault(text, numbers if row else numbers[0])


class _Reader:
    """One function."""

    def __init__(self, analysis: Analysis, function: ast.FunctionDef | ast.Module, module: ModuleFile) -> None:
        self.analysis, self.function, self.module = analysis, function, module
        self.places = analysis.facts.places
        self.block: list[ast.stmt] = []
        self.defined: dict[str, set[ast.AST]] = {}

    def formulas(self) -> Iterator[Formula]:
        """The formulas of the function, the largest of those that hold one another."""
        waiting: list[list[ast.stmt]] = [self.function.body]
        while waiting:
            self.block = waiting.pop()
            taken: set[ast.stmt] = set()
            for statement in reversed(self.block):
                if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    continue  # they are looked at by themselves
                blocks = (getattr(statement, name, None) for name in ("body", "orelse", "finalbody"))
                waiting += [each for each in blocks if each]
                if statement not in taken and isinstance(statement, (ast.Assign, ast.Return, ast.Expr)):
                    for found, used in self._in(statement.value):
                        taken |= used
                        yield found

    def _in(self, node: ast.AST | None) -> Iterator[tuple[Formula, set[ast.stmt]]]:
        """The formula that an expression is, or those in it."""
        if isinstance(node, (ast.BinOp, ast.Call, ast.UnaryOp)):
            found = self._log_of(node) or self._judged(node)
            if found is not None:
                yield found
                return
        if node is not None and not isinstance(node, (ast.Lambda, ast.ListComp, ast.GeneratorExp)):
            for child in ast.iter_child_nodes(node):
                yield from self._in(child)

    def _log_of(self, node: ast.expr) -> tuple[Formula, set[ast.stmt]] | None:
        """``torch.log(F.softmax(x, dim=1))``, or of a sigmoid, straight."""
        name, of, given = self._operation(node)
        inner = of[0] if name == "log" and len(of) == 1 and not given else None
        name, of, given = self._operation(inner)
        kind = {"softmax": "log_softmax", "sigmoid": "logsigmoid", "expit": "logsigmoid"}.get(name)
        if kind is None or inner is None or (self._qualname(inner.func) is None and not self._is_of_tensor(inner)):  # type: ignore[attr-defined]
            return None
        told = [*of[1:], *(value for name, value in given.items() if name == "dim")]
        if len(told) != (kind == "log_softmax") or len(given) > len(told):
            return None
        dim = self._text(told[0]) if told else None
        return Formula(self._site(node), kind, self._text(of[0]), dim=dim), set()

    def _is_of_tensor(self, call: ast.AST) -> bool:
        """Whether a method was seen to be a tensor's: not ``self.sigmoid(x)``."""
        return bool(events := self.analysis.facts.at(call)) and all(e.name.startswith("Tensor.") for e in events)

    def _judged(self, node: ast.expr) -> tuple[Formula, set[ast.stmt]] | None:
        """Which of torch's formulas gives the same numbers."""
        worked = []
        try:
            for seed in (1, 2):
                leaves = _Leaves(seed, {}, {}, {}, {})
                self.defined = {}
                worked.append((leaves, self._value(node, leaves)))
        except (_OtherError, *_FAILS):
            return None
        leaves = worked[0][0]
        if len(leaves.inputs) != 1 or leaves.reads < len("xx") or not self._serves_nothing_else(node, leaves):
            return None
        (x,), rows, numbers = leaves.inputs, list(leaves.rows), list(leaves.numbers)
        used = set(leaves.statements.values())
        removed = tuple(self._site(each) for each in sorted(used, key=lambda each: each.lineno))
        for kind, activated in _ACTIVATIONS.items() if not rows and not numbers else ():
            if all(_is_near(_each(activated, one.inputs[x]), got) for one, got in worked):
                return Formula(self._site(node), kind, x, removed=removed), used
        pairs = itertools.permutations((*rows, None, None), 2) if len(rows) <= len("wb") and len(numbers) == 1 else ()
        for weight, bias in dict.fromkeys(each for each in pairs if {*rows} <= {*each}):
            for kind, normed in _NORMS.items() if weight is not None or bias is None else ():
                if (kind != "rms_norm" or bias is None) and all(
                    _is_near(_normed(normed, one, weight, bias), got) for one, got in worked
                ):
                    said = Formula(
                        self._site(node),
                        kind,
                        x,
                        weight=weight,
                        bias=bias,
                        eps=numbers[0],
                        removed=removed,
                        certain=leaves.certain,
                    )
                    return said, used
        return None

    def _serves_nothing_else(self, node: ast.expr, leaves: _Leaves) -> bool:
        """Whether what the formula takes in is read by nothing else."""
        taken = leaves.statements.values()
        inside = {each for part in (node, *taken) for each in walk(part)}
        looping = any(isinstance(each, LOOPS) for each in self.places.ancestors(node, self.module))
        definitions = [each.targets[0] for each in taken if isinstance(each, ast.Assign)]
        return not (taken and looping) and all(
            inside.issuperset(readers(self.function).get(e, ())) for e in definitions
        )

    # --- what it computes ---------------------------------------------------------------------------------------------

    def _value(self, node: ast.AST, leaves: _Leaves) -> _Number:
        """The value of an expression for given numbers."""
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            if isinstance(node.value, float) and 0 < node.value < _SMALL:
                return leaves.drawn(leaves.numbers, self._text(node), 0.2, 0.5, row=False)
            return float(node.value)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._leaf(node, leaves)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _each(operator.neg, self._value(node.operand, leaves))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _each(_OPERATORS[type(node.op)], self._value(node.left, leaves), self._value(node.right, leaves))
        name, operands, given = self._operation(node)
        values = [self._value(each, leaves) for each in operands[:1]]
        if name == "pow" and len(operands) == len("xy") and not given:
            return _each(_power, values[0], self._value(operands[1], leaves))
        if name in _ELEMENTWISE and len(operands) == 1 and not given:
            if isinstance(values[0], tuple) and (self._qualname(node.func) or "").startswith(("math", "numpy")):  # type: ignore[attr-defined]
                raise _OtherError
            return _each(_ELEMENTWISE[name], values[0])
        if name in ("mean", "var", "std") and isinstance(values[0], tuple):
            told = {"dim": None, "keepdim": None} | dict(zip(_TAKING[name], operands[1:], strict=False)) | given
            read = {word: _literal(value) for word, value in told.items()}
            if read.pop("dim") != -1 or read.pop("keepdim") is not True:
                raise _OtherError
            missing = read.get("correction", read.get("unbiased", True))
            return _reduced(name, values[0], int(missing))  # type: ignore[call-overload]
        raise _OtherError

    def _leaf(self, node: ast.Name | ast.Attribute, leaves: _Leaves) -> _Number:
        """The value of a name, by what gave it one if that is part of the formula, or numbers drawn for it."""
        if self._qualname(node) in ("math.pi", "numpy.pi", "torch.pi"):
            return math.pi
        text = dotted(node)
        if text is None:
            raise _OtherError
        if isinstance(node, ast.Name):
            definitions = _definitions(self.function).get(node, set())
            made = next((each for each in self.block if getattr(each, "targets", None) == [*definitions]), None)
            value = getattr(made, "value", None)
            if made is not None and (isinstance(value, (ast.BinOp, ast.UnaryOp)) or self._operation(value)[0]):
                leaves.statements[id(made)] = made
                return self._value(value, leaves)  # type: ignore[arg-type]
            if self.defined.setdefault(text, definitions) != definitions:
                raise _OtherError  # it was given another value meanwhile
        if self._is_number(node, leaves):
            return leaves.drawn(leaves.numbers, text, 0.2, 0.5, row=False)
        if isinstance(node, ast.Attribute):
            held = seen(self.analysis, node, self.module)
            if not held or not all(self._is_row(each, leaves) for each in held):
                raise _OtherError
            return leaves.drawn(leaves.rows, text, 0.5, 2, row=True)
        leaves.reads += 1
        return leaves.drawn(leaves.inputs, text, -3, 3, row=True)

    def _is_number(self, node: ast.Name | ast.Attribute, leaves: _Leaves) -> bool:
        """Whether a name is a parameter with a number as default (``eps=1e-6``), an attribute no tensor as it seems."""
        if isinstance(node, ast.Name):
            default = default_of(self.function, node.id) if isinstance(self.function, ast.FunctionDef) else None
            return isinstance(getattr(default, "value", None), float)
        held = [each.default if isinstance(each, Option) else each for each in seen(self.analysis, node, self.module)]
        if not held or any(isinstance(each, (Tensor, Made)) for each in held):
            return False
        leaves.certain = leaves.certain and all(isinstance(getattr(each, "value", None), float) for each in held)
        return True

    def _is_row(self, value: Value, leaves: _Leaves) -> bool:
        """Whether what an attribute holds is a row of weights: ``nn.Parameter(torch.ones(width))``."""
        origin = value.origin if isinstance(value, Tensor) else None
        made = origin.node if origin is not None else None
        if origin is None or not isinstance(made, ast.Call) or len(made.args) != 1:
            return False
        inner = made.args[0]
        if (self._qualname(made.func, origin.module) or "") not in PARAMETERS:
            return False
        if not isinstance(inner, ast.Call) or len(inner.args) != 1 or inner.keywords:
            return False
        sizes = seen(self.analysis, inner.args[0], origin.module)
        known = [getattr(each.default if isinstance(each, Option) else each, "value", None) for each in sizes]
        leaves.certain = leaves.certain and bool(known) and all(type(each) is int for each in known)
        return 1 not in known and not any(isinstance(each, Sequence) for each in sizes)

    def _operation(self, node: ast.AST | None) -> tuple[str, list[ast.expr], dict[str | None, ast.expr]]:
        """The name of what a call computes, its operands and its keywords; no name for any other call."""
        if not isinstance(node, ast.Call) or any(isinstance(each, ast.Starred) for each in node.args):
            return "", [], {}
        keywords = {each.arg: each.value for each in node.keywords}
        name, last, operands = self._qualname(node.func), "", list(node.args)
        if name is not None:
            owner, _, last = name.rpartition(".")
            last = last if owner in _MODULES else ""
            operands = [*([keywords.pop("input")] if "input" in keywords else []), *operands]
        elif isinstance(node.func, ast.Attribute):
            last, operands = node.func.attr, [node.func.value, *operands]
        known = last in _ELEMENTWISE or last in _TAKING or last in ("pow", "softmax")
        return (last, operands, keywords) if known and operands else ("", [], {})

    def _qualname(self, node: ast.expr, module: ModuleFile | None = None) -> str | None:
        """The qualified name of a library's function; None for a method or anything else."""
        module = module or self.module
        head, _, rest = (dotted(node) or "").partition(".")
        if not head or self.analysis.facts.bindings.owner(head, node, module) is not module.tree:
            return None
        found = [getattr(each, "qualname", None) for each in members(module.scope.names.get(head))]
        if len(found) != 1 or not isinstance(found[0], str):
            return None
        return f"{found[0]}.{rest}" if rest else found[0]

    def _text(self, node: ast.AST) -> str:
        return self.places.text(node, self.module)

    def _site(self, node: ast.AST) -> Site:
        return self.places.site(node, self.module)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _literal(node: ast.expr | None) -> object:
    """A literal; the only one of a list of them."""
    try:
        found = ast.literal_eval(node) if node is not None else None
    except ValueError as error:
        raise _OtherError from error
    return found[0] if isinstance(found, (tuple, list)) and len(found) == 1 else found


def _each(operation: Callable[..., float], *values: _Number) -> _Number:
    """An operation on each place of rows, and of numbers beside them."""
    if not any(isinstance(each, tuple) for each in values):
        return operation(*values)
    rows = [each if isinstance(each, tuple) else itertools.repeat(each, 7) for each in values]
    return tuple(itertools.starmap(operation, zip(*rows, strict=True)))


def _is_near(one: _Number, other: _Number) -> bool:
    """Whether both are rows of the same numbers."""
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) and isinstance(other, tuple) else [(0.0, 1.0)]
    return all(math.isclose(*each, rel_tol=_NEAR, abs_tol=_NEAR) for each in pairs)


def _reduced(name: str, row: _Row, missing: int) -> float:
    mean = math.fsum(row) / len(row)
    if name == "mean":
        return mean
    variance = sum((each - mean) ** 2 for each in row) / (len(row) - missing)
    return math.sqrt(variance) if name == "std" else variance


def _power(base: float, exponent: float) -> float:
    result = base**exponent
    if isinstance(result, complex):
        raise _OtherError
    return float(result)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
}

_Norm = Callable[[_Row, float], _Row]


def _norm(missing: int, *, outside: bool) -> _Norm:
    def normed(x: _Row, eps: float) -> _Row:
        mean, variance = _reduced("mean", x, 0), _reduced("var", x, missing)
        by = math.sqrt(variance) + eps if outside else math.sqrt(variance + eps)
        return tuple((each - mean) / by for each in x)

    return normed


def _rms(x: _Row, eps: float) -> _Row:
    by = math.sqrt(math.fsum(each * each for each in x) / len(x) + eps)
    return tuple(each / by for each in x)


def _normed(norm: _Norm, leaves: _Leaves, weight: str | None, bias: str | None) -> _Number:
    (x,), (eps,) = leaves.inputs.values(), leaves.numbers.values()
    assert isinstance(x, tuple) and isinstance(eps, float)
    scaled: _Number = norm(x, eps)
    scaled = _each(operator.mul, scaled, leaves.rows[weight]) if weight is not None else scaled
    return _each(operator.add, scaled, leaves.rows[bias]) if bias is not None else scaled


_NORMS: dict[str, _Norm] = {
    "layer_norm": _norm(0, outside=False),
    "rms_norm": _rms,
    "unbiased": _norm(1, outside=False),
    "unbiased_outside": _norm(1, outside=True),
    "outside": _norm(0, outside=True),
}

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}

_ELEMENTWISE: dict[str, Callable[..., float]] = {
    "tanh": math.tanh,
    "erf": math.erf,
    "exp": math.exp,
    "log": math.log,
    "neg": operator.neg,
    "sigmoid": _sigmoid,
    "expit": _sigmoid,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "square": lambda x: x * x,
}
_TAKING = {"mean": ("dim", "keepdim"), **dict.fromkeys(("var", "std"), ("dim", "unbiased", "keepdim"))}
"""What is taken over a row, and what it takes behind the tensor."""
