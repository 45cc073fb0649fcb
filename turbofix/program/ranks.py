"""How many dimensions a tensor has, as far as the calls that shape it tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from turbofix.program.analysis import Analysis
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame, argument_for
from turbofix.program.names import dotted, parameters, stores
from turbofix.program.sites import COMPREHENSIONS
from turbofix.program.values import Made, Value, members

_SHAPING = frozenset(("view", "reshape", "expand", "repeat"))
_KEEPING = frozenset(
    (
        *("transpose", "contiguous", "swapaxes", "float", "half", "to", "type_as", "clone", "detach", "cuda", "chunk"),
        *("split", "tanh", "relu", "sigmoid", "softmax", "masked_fill", "double", "roll", "flip", "div", "mul", "add"),
    )
)
LAYERS = frozenset(
    f"torch.nn.{name}" for name in ("Linear", "LayerNorm", "Dropout", "RMSNorm", "GELU", "ReLU", "Identity")
)
"""What changes no dimension but the last."""
_DEPTH = 12

Function = ast.FunctionDef | ast.AsyncFunctionDef
Frames = tuple[Frame, ...]


_SQUARES = frozenset(("torch.tril", "torch.triu", "torch.eye"))
_MADE = frozenset(f"torch.{name}" for name in ("ones", "zeros", "empty", "rand", "randn"))


class Ranks:
    """Ranks of expressions in the functions of one file."""

    def __init__(self, analysis: Analysis, module: ModuleFile, layers: Callable[[ast.Call], list[Value]]) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.module = module
        self.layers = layers
        self.set_to: Callable[[ast.Attribute], Sequence[ast.expr]] = lambda _: ()  # what an attribute is set to

    def of(self, node: ast.AST | None, function: Function, frames: Frames, depth: int = _DEPTH) -> int | None:
        """The number of dimensions of an expression in a function; None where it is not known."""
        if node is None or depth < 0:
            return None
        if isinstance(node, ast.Name):
            return self._of_name(node, function, frames, depth)
        if isinstance(node, ast.Subscript):
            return self._of_part(node, function, frames, depth)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                return None
            sides = [self.of(each, function, frames, depth - 1) for each in (node.left, node.right)]
            known = [each for each in sides if each is not None]
            return max(known) if known else None
        if isinstance(node, ast.Call):
            return self._of_call(node, function, frames, depth)
        return None

    def at_least(self, node: ast.AST | None, function: Function, frames: Frames, depth: int = _DEPTH) -> int:
        """The number of dimensions that an expression certainly has; a mask is taken for a tensor, of one at least.

        (``mask.unsqueeze(1)`` raises for one without dimensions.)
        """
        if node is None or depth < 0:
            return 1
        known = self.of(node, function, frames)
        if known is not None:
            return known
        found = 1
        if isinstance(node, ast.UnaryOp):
            found = self.at_least(node.operand, function, frames, depth - 1)
        elif isinstance(node, ast.Compare):
            found = max(self.at_least(each, function, frames, depth - 1) for each in (node.left, *node.comparators))
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
            found = max(self.at_least(each, function, frames, depth - 1) for each in (node.left, node.right))
        elif isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            numbers = [each for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, int)]
            new = [each for each in parts if isinstance(each, ast.Constant) and each.value is None]
            cut = [each for each in parts if isinstance(each, ast.Slice)]
            whole = self.at_least(node.value, function, frames, depth - 1)
            others = len(parts) - len(numbers) - len(new) - len(cut)
            found = len(new) + max(len(cut), whole - len(numbers) - others)
        elif isinstance(node, ast.Name):
            value = self._last_set(node, function)
            if value is not None:
                found = self.at_least(value, function, frames, depth - 1)
            elif any(each.arg == node.id for each in parameters(function)):
                found = self._passed_at_least(node.id, frames, depth)
        elif isinstance(node, ast.Attribute):
            values = self.set_to(node)
            found = min((self.at_least(each, function, frames, depth - 1) for each in values), default=1)
        elif isinstance(node, ast.Call):
            found = self._called_at_least(node, function, frames, depth)
        return max(found, 1)

    def _passed_at_least(self, name: str, frames: Frames, depth: int) -> int:
        """What a call certainly passes."""
        if len(frames) < 2 or not isinstance(frames[-1].call, ast.Call):
            return 1
        argument, outer = argument_for(name, frames[-1], frames[-1].call), frames[-2]
        if argument is None or not isinstance(outer.scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return 1
        ranks = Ranks(self.analysis, outer.module, self._executed)
        return ranks.at_least(argument, outer.scope, frames[:-1], depth - 1)

    def _called_at_least(self, node: ast.Call, function: Function, frames: Frames, depth: int) -> int:
        names = {event.name for event in self.facts.at(node)}
        given = [each for each in node.args if not isinstance(each, ast.Starred)]
        if names & _SQUARES:
            return 2
        if names & _MADE and given:
            sizes = given[0].elts if isinstance(given[0], (ast.Tuple, ast.List)) else given
            return len(sizes)
        if any(name.startswith("torch.") for name in names):
            return max((self.at_least(each, function, frames, depth - 1) for each in given), default=1)
        if not isinstance(node.func, ast.Attribute):
            return 1
        method, base = node.func.attr, node.func.value
        if method in ("view", "reshape", "expand", "repeat", "permute"):
            sizes = given[0].elts if given and isinstance(given[0], (ast.Tuple, ast.List)) else given
            return len(sizes)
        inner = self.at_least(base, function, frames, depth - 1)
        if method == "unsqueeze":
            return inner + 1
        if method in ("tril", "triu"):
            return 2
        if method in ("squeeze", "flatten", "sum", "any", "all", "mean", "max", "min", "select", "item", "diagonal"):
            return 1
        return inner

    def width_of(self, node: ast.Name, function: Function | None) -> str | None:
        """The source of the last dimension of what a name stands for, where a ``view`` gave it its own."""
        if function is None:
            return None
        value = self._last_set(node, function)
        moved = False
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            name, given = value.func.attr, value.args
            if name in ("transpose", "permute"):
                numbers = [each.value for each in given if isinstance(each, ast.Constant)]
                if (name == "transpose" and sorted(map(str, numbers)) != ["1", "2"]) or (
                    name == "permute" and numbers not in ([0, 2, 1, 3], [0, 2, 3, 1])
                ):
                    return None
                if name == "permute" and numbers[-1] != len(numbers) - 1:
                    return None
                moved = True
            elif name in _SHAPING:
                parts = list(given)
                if len(parts) != 4 or name in ("expand", "repeat") or any(isinstance(e, ast.Starred) for e in parts):
                    return None
                return self.facts.places.text(parts[-1], self.module) if moved else None
            elif name != "contiguous":
                return None
            value = value.func.value
        return None

    def _last_set(self, node: ast.Name, function: Function) -> ast.expr | None:
        """What a name is set to last above a place, where nothing but what stands around that decides about it."""
        places = self.facts.places
        above = [
            each
            for statement in function.body
            for written, each in stores(statement)
            if written == node.id and each.lineno < node.lineno  # type: ignore[attr-defined]
        ]
        last = above[-1] if above else None
        if not isinstance(last, ast.Assign) or not isinstance(last.targets[0], ast.Name):
            return None
        around = {id(each) for each in (node, *places.ancestors(node, self.module))}
        return last.value if any(id(each) in around for each in places.block(last, self.module)) else None

    def _of_name(self, node: ast.Name, function: Function, frames: Frames, depth: int) -> int | None:
        """The last setting above tells; then what a shape is taken apart to; then what is passed."""
        above = [
            (each, written)
            for statement in function.body
            for written, each in stores(statement)
            if written == node.id and (each.lineno, each.col_offset) < (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        ]
        above = [pair for pair in above if not self._is_around(pair[0], node)]
        taken = self._taken_apart(node, function, bool(above))
        if taken is not None:
            return taken
        if above:
            write = max((each for each, _ in above), key=lambda each: (each.lineno, each.col_offset))  # type: ignore[attr-defined]
            return self._of_write(write, node.id, function, frames, depth)
        if any(each.arg == node.id for each in parameters(function)):
            return self._of_parameter(node.id, frames, depth)
        return None

    def _is_around(self, write: ast.AST, node: ast.AST) -> bool:
        """Whether a name is read in the statement that sets it."""
        return any(each is write for each in self.facts.places.ancestors(node, self.module))

    def _taken_apart(self, node: ast.Name, function: Function, is_set: bool) -> int | None:
        """``b, h, t, d = k.shape``, of a name that is not set before."""
        for statement in function.body:
            for each in [statement]:
                if not isinstance(each, ast.Assign) or len(each.targets) != 1:
                    continue
                pairs = [(each.targets[0], each.value)]
                if isinstance(each.targets[0], ast.Tuple) and isinstance(each.value, ast.Tuple):
                    continue
                for target, value in pairs:
                    of: ast.AST | None = None
                    if isinstance(value, ast.Attribute) and value.attr == "shape":
                        of = value.value
                    elif (
                        isinstance(value, ast.Call)
                        and isinstance(value.func, ast.Attribute)
                        and value.func.attr == "size"
                        and not value.args
                    ):
                        of = value.func.value
                    if not (isinstance(of, ast.Name) and of.id == node.id and isinstance(target, ast.Tuple)):
                        continue
                    if any(isinstance(one, ast.Starred) for one in target.elts) or is_set:
                        continue
                    return len(target.elts)
        return None

    def _of_write(self, write: ast.AST, name: str, function: Function, frames: Frames, depth: int) -> int | None:
        if isinstance(write, ast.AugAssign):
            return self.of(write.target, function, frames, depth - 1)
        if not isinstance(write, ast.Assign) or len(write.targets) != 1:
            return None
        target, value = write.targets[0], write.value
        if isinstance(target, ast.Name):
            return self.of(value, function, frames, depth - 1)
        if not isinstance(target, ast.Tuple):
            return None
        index = next((i for i, each in enumerate(target.elts) if isinstance(each, ast.Name) and each.id == name), None)
        if index is None or any(isinstance(each, ast.Starred) for each in target.elts):
            return None
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            return self.of(value.elts[index], function, frames, depth - 1)
        return self._of_element(value, function, frames, depth - 1)

    def _of_element(self, value: ast.expr, function: Function, frames: Frames, depth: int) -> int | None:
        """What each element of a sequence has."""
        if isinstance(value, COMPREHENSIONS) and not isinstance(value, ast.DictComp):
            return self.of(value.elt, function, frames, depth - 1)
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Name) and value.func.id == "map" and value.args:
                mapped = value.args[0]
                return self.of(mapped.body, function, frames, depth - 1) if isinstance(mapped, ast.Lambda) else None
            if isinstance(value.func, ast.Attribute):
                if value.func.attr in ("chunk", "split"):
                    return self.of(value.func.value, function, frames, depth - 1)
                if value.func.attr == "unbind":
                    whole = self.of(value.func.value, function, frames, depth - 1)
                    return whole - 1 if whole is not None else None
        whole = self.of(value, function, frames, depth - 1)
        return whole - 1 if whole is not None else None

    def _of_part(self, node: ast.Subscript, function: Function, frames: Frames, depth: int) -> int | None:
        whole = self.of(node.value, function, frames, depth - 1)
        if whole is None:
            return None
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if isinstance(part, ast.Slice):
                continue
            if isinstance(part, ast.Constant) and part.value is None:
                whole += 1
            elif isinstance(part, ast.Constant) and isinstance(part.value, int):
                whole -= 1
            elif not (isinstance(part, ast.Constant) and part.value is Ellipsis):
                return None
        return whole

    def _of_call(self, node: ast.Call, function: Function, frames: Frames, depth: int) -> int | None:
        given = node.args
        names = {event.name for event in self.facts.at(node)}
        if (dotted(node.func) or "").rpartition(".")[2] == "rearrange" and len(given) > 1:
            pattern = given[1]
            if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str) and "->" in pattern.value:
                behind = re.sub(r"\([^)]*\)", "g", pattern.value.partition("->")[2])
                return len(behind.split()) if "..." not in behind else None
            return None
        if names & {"torch.cat", "torch.transpose"} and given:
            first = given[0]
            if isinstance(first, (ast.Tuple, ast.List)):
                known = {self.of(each, function, frames, depth - 1) for each in first.elts} - {None}
                return known.pop() if len(known) == 1 else None
            return self.of(first, function, frames, depth - 1)
        layers = self.layers(node)
        if layers and all(isinstance(each, Made) and each.qualname in LAYERS for each in layers) and given:
            return self.of(given[0], function, frames, depth - 1)
        if not isinstance(node.func, ast.Attribute):
            return None
        own = parameters(function)[:1]
        if own and isinstance(node.func.value, ast.Name) and node.func.value.id == own[0].arg:
            return self._of_method(node, function, depth)
        name = node.func.attr
        if name in _SHAPING or name == "permute":
            parts = list(given)
            if len(parts) == 1 and isinstance(parts[0], (ast.Tuple, ast.List)):
                parts = list(parts[0].elts)
            elif len(parts) == 1 and not isinstance(parts[0], ast.Constant):
                return None
            return None if not parts or any(isinstance(each, ast.Starred) for each in parts) else len(parts)
        if name == "unsqueeze":
            whole = self.of(node.func.value, function, frames, depth - 1)
            return whole + 1 if whole is not None else None
        if name == "flatten" and len(given) == 1 and isinstance(given[0], ast.Constant):
            return given[0].value + 1 if isinstance(given[0].value, int) and given[0].value >= 0 else None
        if name in _KEEPING:
            return self.of(node.func.value, function, frames, depth - 1)
        return None

    def _of_method(self, node: ast.Call, function: Function, depth: int) -> int | None:
        """What a method of the same class returns: ``self.split_heads(x)``."""
        func = node.func
        assert isinstance(func, ast.Attribute)
        cls = next((e for e in self.facts.places.ancestors(function, self.module) if isinstance(e, ast.ClassDef)), None)
        for each in cls.body if cls is not None else ():
            if isinstance(each, ast.FunctionDef) and each.name == func.attr:
                returned = [e for e in ast.walk(each) if isinstance(e, ast.Return) and e.value is not None]
                found = {self.of(e.value, each, (), depth - 1) for e in returned}
                return found.pop() if len(found) == 1 else None
        return None

    def _of_parameter(self, name: str, frames: Frames, depth: int) -> int | None:
        """What a call passes."""
        if len(frames) < 2 or not isinstance(frames[-1].call, ast.Call):
            return None
        argument = argument_for(name, frames[-1], frames[-1].call)
        outer = frames[-2]
        if argument is None or not isinstance(outer.scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        ranks = Ranks(self.analysis, outer.module, self._executed)
        return ranks.of(argument, outer.scope, frames[:-1], depth - 1)

    def _executed(self, node: ast.Call) -> list[Value]:
        """The modules that a call was seen to call."""
        return [each for event in self.facts.at(node) if event.kind == "forward" for each in members(event.receiver)]
