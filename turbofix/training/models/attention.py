"""Attention that is written out: softmax(QK^T * scale + masks) V, as a pattern of definitions and uses.

It begins at a softmax and goes back through masks and a scale to the product of queries and keys, and on through
dropout to the product with the values. For any factors, ``softmax(A @ B, -1) @ C`` is the attention of ``A``, ``B``
transposed and ``C``. The script's own masks are handed on: what they mean need not be known, a run compares both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Const, Made, Opaque, Option, Tensor, Unknown, Value
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, is_nothing, parameters, stored
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Attention, Unread
from turbofix.training.models.handed import name_of, read_at, taken_at
from turbofix.training.models.held import classes_of, seen
from turbofix.training.steps.acts import creates_graph

FUSED = "torch.nn.functional.scaled_dot_product_attention"
_KERNELS = regex(
    r"(?<!self\.)(?<!def )scaled_dot_product_attention|"
    r"flash_attn|memory_efficient_attention|flex_attention|xformers\.ops"
)
_HIGHER = regex(
    r"^ *(?:import|from) .*\b(?:functorch|higher|learn2learn|torchmeta|torchopt|forward_ad)\b|"
    r"\bautograd(?:\.| import )functional\b|"
    r"\btorch(?:\.| import )func\b(?!(?:\.| import )(?:vmap|functional_call|stack_module_state)\b)",
    re.MULTILINE,
)
_CASTS = words("float half double bfloat16 to type_as type contiguous clone")
_MODULES = words("torch F nn functional einops")
_INFINITE = regex(r"(?<![\w.])(?:(?:math|torch|np|numpy)\.)?inf\b")  # not ``self.inf``, which may be any number
_FAR = -1e4
"""From here on down a fill is minus infinity wherever a query sees a key: its exponential is 0 in float32."""

_LAST = {(-2, -1), (-1, -2), (2, 3), (3, 2), (0, 1, 3, 2), (0, 2, 1)}
"""What changes the places of the last two axes."""

_SHAPING = words("bool to view unsqueeze float type cuda")
_FULL = regex(r"\b(ones|ones_like|full)\(")


class _OtherError(Exception):
    """It is not an attention, or not one that can be told."""


class _WhyNotError(Exception):
    """It is an attention; the argument says what speaks against another spelling."""


def attentions(analysis: Analysis) -> tuple[Attention, ...]:
    """The attentions that the program writes out, in functions that it runs, in order of their places."""
    return analysis.once("attentions", lambda: tuple(_attentions(analysis)))


def fused_attentions(analysis: Analysis) -> tuple[Site, ...]:
    """Where the program calls torch's own attention."""
    facts = analysis.facts
    return tuple(sorted({facts.site(event) for event in facts.of("call") if event.name == FUSED}))


def _attentions(analysis: Analysis) -> Iterator[Attention]:
    facts, places = analysis.facts, analysis.facts.places
    run: set[ast.AST] = {frame.function.node for frame in analysis.execution.frames.values() if frame.function}
    against: list[str | None] = []
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree) if "oftmax" in module.text else ():
            if not _is_softmax(call, module, analysis):
                continue
            outer = {*places.ancestors(call, module)}
            if not facts.at(call) and not outer & (run | classes_of(analysis).keys()):
                continue
            found = _Reading(analysis, call, module).attention()
            if found is not None:
                against = against or [_differentiates_twice(analysis)]
                why = found.why_not or against[0]
                yield Attention(found.softmax, found.product, found.function, why_not=why) if why else found


def _differentiates_twice(analysis: Analysis) -> str | None:
    """What differentiates gradients once more, for which torch's fused kernels have no derivative."""
    for event in analysis.facts.of("autograd_grad", "backward"):
        if creates_graph(event):
            line = analysis.facts.site(event).line
            return f"gradients are differentiated once more (line {line}), which torch's fused kernels cannot"
    if any(_HIGHER.search(each.text) for each in analysis.execution.modules.values()):
        return "the program transforms functions or their gradients, which torch's fused kernels do not follow"
    return None


def _is_softmax(call: ast.Call, module: ModuleFile, analysis: Analysis) -> bool:
    """``F.softmax(x, -1)``, ``x.softmax(-1)``, ``self.softmax(x)`` of a layer that is held."""
    if name_of(call.func) == "softmax" and not (dotted(call.func) or "").startswith("self."):
        return True
    return _is_layer(analysis, module, call.func, "Softmax")


def _is_layer(analysis: Analysis, module: ModuleFile, func: ast.expr, kind: str) -> bool:
    """Whether what is called may be torch's layer of that name, and no other one."""
    if isinstance(func, ast.Call):
        return (dotted(func.func) or "").endswith(f"nn.{kind}")
    made = {each.qualname for each in seen(analysis, func, module) if isinstance(each, Made)}
    return made == {f"torch.nn.{kind}"} and isinstance(func, (ast.Attribute, ast.Name, ast.Subscript))


class _Reading:
    """One softmax, and what leads to it and away from it."""

    def __init__(self, analysis: Analysis, softmax: ast.Call, module: ModuleFile) -> None:
        self.analysis, self.module, self.softmax = analysis, module, softmax
        self.places = analysis.facts.places
        self.removed: list[ast.stmt] = []
        self.names: set[str] = set()  # those of the scores and of the weights
        self.masks: list[tuple[str, str, str | None]] = []  # keep or "", added, test
        self.causal: list[bool] = []
        self.scale: str | None = None
        self.folded = "{}"  # the queries, with a factor that may be a tensor
        self.scaling = ""  # what scales the scores later, and with them what is added to them
        self.moved: list[tuple[int, ast.AST]] = []  # what is read further down than it was
        self.dropout: str | None = None
        self.layer = False  # makes the weights
        self.like = ""  # a name of what the queries are made of
        self.certain = True
        self.three = False  # dimensions, and torch's kernels take four

    def attention(self) -> Attention | None:
        """The attention; None where it is none."""
        function = self.places.function(self.softmax, self.module)
        statement = self.places.statement(self.softmax, self.module)
        if function is None or statement is None or _KERNELS.search(self._text(self._owner(function))):
            return None
        self.function, self.block = function, self.places.block(statement, self.module)
        site, product = self.places.site, self.softmax
        try:
            at = self.block.index(statement)
            product, value, behind = self._forward(self.softmax, at)  # type: ignore[assignment]
            func = self.softmax.func
            self.layer = isinstance(func, ast.Call) or (dotted(func) or "").startswith("self.")
            given = [] if self.layer else self._called(self.softmax, "softmax")
            given += [*self.softmax.args, *(each.value for each in self.softmax.keywords if each.arg == "input")]
            query, key = self._back(given[0], at)
            self._last_axis()
            return self._told(product, query, key, value, behind)
        except (_OtherError, IndexError, ValueError):
            return None
        except _WhyNotError as error:
            outer = site(function, self.module)
            return Attention(site(self.softmax, self.module), site(product, self.module), outer, why_not=str(error))

    def _owner(self, function: ast.AST) -> ast.AST:
        outer = self.places.ancestors(function, self.module)
        return next((each for each in outer if isinstance(each, ast.ClassDef)), function)

    def _text(self, node: ast.AST) -> str:
        return self.places.text(node, self.module)

    def _operand(self, node: ast.AST) -> str:
        plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant))
        return self._text(node) if plain else f"({self._text(node)})"

    def _called(self, node: ast.AST | None, *names: str) -> list[ast.expr]:
        """The operands of a call by one of these names, the object of a method first."""
        if not isinstance(node, ast.Call) or name_of(node.func) not in names:
            return []
        if _is_function(node.func):
            last = name_of(node.func) == "einsum" and isinstance(node.args[-1] if node.args else None, ast.Constant)
            return [node.args[-1], *node.args[:-1]] if last else list(node.args)  # (einops names the axes last)
        return [node.func.value, *node.args] if isinstance(node.func, ast.Attribute) else []

    def _set_at(self, name: str, before: int) -> int | None:
        """Where the block gives a name its value, above a statement."""
        return next((at for at in reversed(range(before)) if name in stored([self.block[at]])), None)

    # --- onwards: from the softmax to the product with the values -------------------------------------------------

    def _forward(self, node: ast.expr, at: int) -> tuple[ast.expr, str, str]:
        """The product with the values, the values, and what turns the result."""
        found, top = self._climb(node, None)
        if found is not None:
            return found
        name = self._given_name(self.block[at], top)
        self.removed.append(self.block[at])
        for each in self.block[at + 1 :]:
            inner, test = _only_under_test(each)
            used = [one for one in walk(each) if isinstance(one, ast.Name) and one.id == name]
            loads = [one for one in used if isinstance(one.ctx, ast.Load)]
            if used and not loads:
                raise _OtherError
            if all(map(self._kept_on_demand, loads)) or self._asks_for_shape(each, name):
                self.removed += [each] if isinstance(each, ast.Assert) and loads else []
                continue
            for read in loads:
                found, top = self._climb(read, test)
                if found is not None and test is None:
                    return found
            name, before = self._given_name(inner, top), name
            under = isinstance(each, ast.If) and (len(each.body) > 1 or name != before)
            if under or len(loads) > 1 or top is loads[0]:
                raise _OtherError
            self.removed.append(each)
        raise _OtherError

    def _given_name(self, statement: ast.stmt, value: ast.expr) -> str:
        """The one name that a statement gives to just that value."""
        names = statement.targets if isinstance(statement, ast.Assign) and statement.value is value else []
        if len(names) != 1 or not isinstance(names[0], ast.Name):
            raise _OtherError
        self.names.add(names[0].id)
        return names[0].id

    def _kept_on_demand(self, name: ast.Name) -> ast.IfExp | None:
        """What keeps weights for whoever asks for them: ``weights if self.vis else None``."""
        parent = self.places.parent(name, self.module)
        return parent if isinstance(parent, ast.IfExp) and parent.body is name and is_nothing(parent.orelse) else None

    def _climb(self, node: ast.expr, test: ast.expr | None) -> tuple[tuple[ast.expr, str, str] | None, ast.expr]:
        """From the weights through dropout and casts to the product, and the expression that was reached."""
        while True:
            parent = self.places.parent(node, self.module)
            if isinstance(parent, ast.keyword) and parent.arg == "input":
                parent = self.places.parent(parent, self.module)
            above = self.places.parent(parent, self.module) if isinstance(parent, ast.Attribute) else None
            call = above if isinstance(above, ast.Call) and above.func is parent else parent
            if isinstance(call, ast.BinOp) and isinstance(call.op, ast.MatMult) and call.left is node:
                return (call, self._behind(call.right), ""), node
            if not isinstance(call, ast.Call):
                return None, node
            given = self._called(call, "matmul", "bmm", "einsum")
            if len(given) == len("wv") and given[0] is node:
                return (call, self._behind(given[1]), ""), node
            if len(given) == len("swv") and given[1] is node:
                return (call, *self._by_letters(given)), node
            if call is not parent and name_of(call.func) in _CASTS:
                self.certain = False
            elif given or call is not parent or not self._drops(call, node, test):
                return None, node
            node = call

    def _behind(self, node: ast.expr) -> str:
        self.moved.append((-1, node))
        return self._text(node)

    def _drops(self, call: ast.Call, node: ast.expr, test: ast.expr | None) -> bool:
        """Whether a call is dropout of the weights, which is noted."""
        named = {each.arg: each.value for each in call.keywords}
        if self.dropout is not None or node not in (*call.args[:1], named.get("input")):
            return False
        own = [each.arg for each in parameters(self.function)]
        if name_of(call.func) == "dropout" and _is_function(call.func) and dotted(call.func) not in own:
            share = named.get("p") or next(iter(call.args[1:]), None)
            on = named.get("training") or next(iter(call.args[2:]), None)
            text = self._text(share) if share is not None else "0.5"
            if on is not None and getattr(on, "value", None) is not True:
                text = f"{f'({text})' if ' if ' in text else text} if {self._text(on)} else 0.0"
        elif _is_layer(self.analysis, self.module, call.func, "Dropout") or self._is_left_out(call.func):
            layer = self._text(call.func)
            self.certain = self.certain and not isinstance(call.func, ast.Name) and not self._is_left_out(call.func)
            text = f"{layer}.p if {layer}.training else 0.0"
        else:
            return False
        self.dropout = text if test is None else f"({text}) if {self._text(test)} else 0.0"
        return True

    def _is_left_out(self, func: ast.expr) -> bool:
        """Whether something is called dropout that was never there: a layer may be passed, or made of a share."""
        return "drop" in name_of(func) and not seen(self.analysis, func, self.module)

    def _by_letters(self, given: list[ast.expr]) -> tuple[str, str]:
        """``einsum("bhqk,bkhd->bqhd", weights, v)``: the values as torch wants them, and how to turn the result."""
        weights, values, out = _subscripts(given[0])
        *batch, query, key = list(weights)
        width = [each for each in values if each not in weights]
        if {*values} != {*batch, key, *width} or sorted(out) != sorted([*batch, query, *width]) or len(width) != 1:
            raise _OtherError
        self.moved.append((-1, given[2]))
        turned = _turned(self._operand(given[2]), values, [*batch, key, *width])
        return turned, _turned("", "".join([*batch, query, *width]), list(out))

    # --- back: from the softmax to the product of queries and keys ------------------------------------------------

    def _back(self, node: ast.expr, at: int, test: ast.expr | None = None) -> tuple[str, str]:
        """Queries and keys, as they are to be given; notes masks and the scale on the way."""
        if isinstance(node, ast.Name):
            return self._back_from(node, at)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                return self._factors(node.left, node.right, at)
            if isinstance(node.op, ast.Sub) and self._is_greatest(node.right, node.left):
                self.certain = False
                return self._back(node.left, at)
            left = self._is_scores(node.left, at)
            if left is self._is_scores(node.right, at) or (not left and isinstance(node.op, ast.Div)):
                raise _OtherError
            scores, other = (node.left, node.right) if left else (node.right, node.left)
            self._operation(node.op, other, at, test)
            return self._back(scores, at)
        name, given = name_of(node.func) if isinstance(node, ast.Call) else "", self._called(node, *_STEPS)
        if name == "einsum" and len(given) == len("sqk"):
            return self._factors_by_letters(given, at)
        if name in ("matmul", "bmm") and len(given) == len("qk"):
            self.three = name == "bmm"
            return self._factors(given[0], given[1], at)
        if name in ("masked_fill", "masked_fill_") and len(given) == len("smf"):
            self._masked(given[1], given[2], _opposite(given[1], self._text), self._text(given[1]), at, test)
            return self._back(given[0], at)
        if name == "where" and len(given) == len("msf") and self._is_scores(given[1], at):
            self._masked(given[0], given[2], self._text(given[0]), f"~{self._operand(given[0])}", at, test)
            return self._back(given[1], at)
        if name in _OPERATIONS and len(given) == len("sc"):
            self._operation(_OPERATIONS[name], given[1], at, test)
            return self._back(given[0], at)
        if name in _CASTS and given:
            self.certain = False
            return self._back(given[0], at)
        if isinstance(node, ast.Call) and "drop" in name_of(node.func) and self._is_scores(node, at):
            raise _WhyNotError("its scores are dropped at random before the softmax, which torch's kernels cannot")
        raise _OtherError

    def _back_from(self, name: ast.Name, at: int) -> tuple[str, str]:
        """From a name to the statement above that gave it its value, and through those that change it."""
        self.names.add(name.id)
        for index in reversed(range(at)):
            each = self.block[index]
            inner, test = _only_under_test(each)
            value = getattr(inner, "value", None)
            written = self._called(value, *_IN_PLACE) if isinstance(inner, ast.Expr) else []
            if name.id not in stored([each]) and dotted(next(iter(written), None)) != name.id:
                if self._asks_for_shape(each, name.id):
                    self.removed.append(each)
                elif any(isinstance(one, ast.Name) and one.id == name.id for one in walk(each)):
                    raise _WhyNotError("the scores are read by themselves as well")
                continue
            if test is not None:
                self.moved.append((index, test))
            self.removed.append(inner if isinstance(each, ast.If) and len(each.body) > 1 else each)
            if isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
                self._operation(inner.op, inner.value, index, test)
                return self._back_from(name, index)
            plain = isinstance(inner, ast.Assign) and [dotted(one) for one in inner.targets] == [name.id]
            again = any(isinstance(one, ast.Name) and one.id == name.id for one in walk(value)) if value else False
            if not (plain or written) or (test is not None and not again) or value is None:
                raise _OtherError
            return self._back(value, index, test)
        raise _OtherError

    def _asks_for_shape(self, statement: ast.stmt, name: str) -> bool:
        """Whether a statement asserts the shape of a name, and says no more of it."""
        reads = [each for each in walk(statement) if isinstance(each, ast.Name) and each.id == name]
        asked = {getattr(self.places.parent(each, self.module), "attr", "") for each in reads}
        return isinstance(statement, ast.Assert) and bool(reads) and asked <= {"shape", "size", "dim", "ndim"}

    def _is_greatest(self, node: ast.expr, scores: ast.expr) -> bool:
        """``scores.amax(dim=-1, keepdim=True).detach()``: a softmax is the same without what it subtracts."""
        called = self._called(node, "detach")
        node = called[0] if called else node
        node = node.value if isinstance(node, (ast.Attribute, ast.Subscript)) else node  # ``max(...).values``
        given, told = self._called(node, "amax", "max"), self._text(node)
        told = told[len(self._text(scores)) :]
        return bool(given) and ast.dump(given[0]) == ast.dump(scores) and "keepdim=True" in told and "-1" in told

    def _is_scores(self, node: ast.expr, at: int) -> bool:
        """Whether an expression holds a product, or a name that does."""
        for each in walk(node):
            if isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult):
                return True
            if isinstance(each, ast.Call) and name_of(each.func) in ("matmul", "bmm", "einsum"):
                return True
            set_at = self._set_at(each.id, at) if isinstance(each, ast.Name) else None
            if set_at is not None and isinstance(each, ast.Name):
                inner, _ = _only_under_test(self.block[set_at])
                value = getattr(inner, "value", None)
                own = isinstance(inner, ast.AugAssign) and self._is_scores(each, set_at)
                alone = getattr(inner, "targets", [None])[0].__class__ is ast.Name
                if own or (alone and value is not None and self._is_scores(value, set_at)):
                    return True
        return False

    # --- scale and masks --------------------------------------------------------------------------------------------

    def _operation(self, op: ast.operator, other: ast.expr, at: int, test: ast.expr | None) -> None:
        self.moved.append((at, other))
        text, divides = self._operand(other), isinstance(op, ast.Div)
        if isinstance(op, (ast.Mult, ast.Div)):
            if test is not None or self.scaling:
                raise _WhyNotError("it is scaled more than once, or under a test")
            self.scaling = f" {'/' if divides else '*'} {text}"
            found = seen(self.analysis, other, self.module)
            tensor = any(isinstance(each, Tensor) for each in found)
            known = isinstance(other, ast.Constant) or bool(found)
            self.certain = self.certain and all(map(_is_number, found))
            if tensor or not known:
                self.certain, self.folded = False, f"{{}}{self.scaling}"
            else:
                self.scale = f"1.0 / {text}" if divides else self._text(other)
        elif isinstance(op, ast.Add):
            self.certain = False
            self.causal.append(self._is_triangle(other))
            added = f"{text}{self.scaling}" if self.scaling else self._text(other)
            self.masks.append(("", added, self._text(test) if test is not None else None))
        else:
            raise _OtherError

    def _masked(self, mask: ast.expr, fill: ast.expr, keep: str, out: str, at: int, test: ast.expr | None) -> None:  # noqa: PLR0913
        """Scores that are left out: as a condition (``keep``) where they are so for certain, else what is added."""
        self.certain = False
        self.moved += [(at, mask), (at, fill)]
        said, value = self._text(fill), _number(fill)
        if value is not None and value > _FAR:
            raise _OtherError
        for name in self.names:
            said = re.sub(rf"\b{name}\.dtype\b", "{query}.dtype", said)
        if any(isinstance(each, ast.Name) and each.id in self.names for each in walk(mask)):
            raise _WhyNotError("its mask is made of the scores")
        self.causal.append(self._is_triangle(mask))
        under = self._text(test) if test is not None else None
        added = f"{{zeros}}.masked_fill({out}, {said})"
        self.masks.append((keep if _INFINITE.search(said) else "", added, under))

    def _is_triangle(self, node: ast.AST) -> bool:
        """Whether a mask is made of a triangle, and nothing else: what lies ahead of each query. A run compares."""
        if "cat(" in self._text(self.function) or "past" in self._text(self.function):
            return False  # there may be more keys than queries
        for _ in range(12):
            if isinstance(node, ast.Call) and name_of(node.func) in ("tril", "triu"):
                diagonal = [*node.args[1:], *(each.value for each in node.keywords)]
                plain = [*map(_number, diagonal)] in ([[], [0]] if name_of(node.func) == "tril" else [[1]])
                return plain and _FULL.search(self._text(node)) is not None
            if isinstance(node, ast.Compare):
                node = node.left
            elif isinstance(node, ast.UnaryOp):
                node = node.operand
            elif isinstance(node, ast.Subscript):
                node = node.value
            elif isinstance(node, ast.Call) and name_of(node.func) in _SHAPING and isinstance(node.func, ast.Attribute):
                node = node.func.value
            elif isinstance(node, (ast.Name, ast.Attribute)):
                found = self._made(node)
                if found is None:
                    return False
                node = found
        return False

    def _made(self, node: ast.Name | ast.Attribute) -> ast.expr | None:
        """What a name of the function, or an attribute of the class, is set to, where that is done once."""
        scope = self.function if isinstance(node, ast.Name) else self._owner(self.function)
        found: list[ast.expr] = []
        for each in walk(scope):
            if isinstance(each, ast.Assign) and dotted(node) in map(dotted, each.targets):
                found.append(each.value)
            elif isinstance(each, ast.Call) and name_of(each.func) == "register_buffer" and len(each.args) > 1:
                named = getattr(each.args[0], "value", None) == getattr(node, "attr", "")
                found += [each.args[1]] if named else []
        return found[0] if len(found) == 1 else None

    # --- factors ----------------------------------------------------------------------------------------------------

    def _factors(self, query: ast.expr, key: ast.expr, at: int) -> tuple[str, str]:
        set_at = self._set_at(key.id, at) if isinstance(key, ast.Name) else None
        made = getattr(self.block[set_at], "value", None) if set_at is not None else None
        if made is not None and isinstance(self._given(made), ast.expr):
            key, at = made, set_at  # type: ignore[assignment]
        self.moved += [(at, query), (at, key)]
        self.three = self.three or self._has_three(query, at)
        self.like = next((each.id for each in walk(query) if isinstance(each, ast.Name) and each.id != "self"), "")
        if name_of(getattr(key, "func", None)) == "t" or getattr(key, "attr", "") == "T":
            raise _OtherError  # of two dimensions: rows of a memory or of classes, and no positions
        given = self._given(key)
        return self._text(query), self._text(given) if given else f"{self._operand(key)}.transpose(-2, -1).contiguous()"

    def _given(self, key: ast.expr) -> ast.expr | None:
        """The keys of the transposed ones."""
        given = self._called(key, "transpose", "swapaxes", "permute")
        axes = tuple(map(_number, given[1:]))
        if given and (axes in _LAST or (self.three and axes in ((1, 2), (2, 1)))):
            return given[0]
        return key.value if isinstance(key, ast.Attribute) and key.attr == "mT" else None

    def _has_three(self, query: ast.expr, at: int) -> bool:
        """Whether queries seem to have three dimensions: a shape of three, or just what a layer gives."""
        set_at = self._set_at(query.id, at) if isinstance(query, ast.Name) else None
        made = getattr(self.block[set_at], "value", None) if set_at is not None else query
        given = self._called(made, "permute", "reshape", "view")
        if given:
            return len(given) == len("xbqc") and not any(isinstance(each, ast.Starred) for each in given)
        return isinstance(made, ast.Call) and _is_layer(self.analysis, self.module, made.func, "Linear")

    def _factors_by_letters(self, given: list[ast.expr], at: int) -> tuple[str, str]:
        """``einsum("bqhd,bkhd->bhqk", q, k)``."""
        one, two, out = _subscripts(given[0])
        *batch, i, j = list(out)
        first, second = given[1:] if i in one else given[:0:-1]
        queries, keys = (one, two) if i in one else (two, one)
        width = [each for each in queries if each not in out]
        if {*queries} != {*batch, i, *width} or {*keys} != {*batch, j, *width} or len(width) != 1:
            raise _OtherError
        self.moved += [(at, first), (at, second)]
        self.three = len(out) == len("bij") and "." not in out
        self.like = first.id if isinstance(first, ast.Name) else ""
        query = _turned(self._operand(first), queries, [*batch, i, *width])
        return query, _turned(self._operand(second), keys, [*batch, j, *width])

    # --- all of it ----------------------------------------------------------------------------------------------------

    def _last_axis(self) -> None:
        """The softmax runs over the keys; which one a number from the front is, a run shows."""
        layer = self.softmax.func
        made: Value | None = next(iter(seen(self.analysis, layer, self.module)), None)
        if isinstance(layer, ast.Call) or isinstance(made, Made):
            call = layer if isinstance(layer, ast.Call) else made.origin.node  # type: ignore[union-attr]
            positional = call.args[:1] if isinstance(call, ast.Call) else []
        else:
            call, positional = self.softmax, self._called(self.softmax, "softmax")[1:2]
        named = [each.value for each in getattr(call, "keywords", ()) if each.arg == "dim"]
        axis = next(map(_number, (*named, *positional)), None)
        if axis not in (-1, 2, 3):
            raise _WhyNotError("its softmax does not run over the last axis, the keys, as far as the text tells")
        self.certain = self.certain and axis == -1

    def _told(self, product: ast.expr, query: str, key: str, value: str, behind: str) -> Attention:
        site = self.places.site
        self._is_unchanged(product)
        unread = self._read_elsewhere(product)
        if self.layer and any(
            "register_forward_hook" in each.text for each in self.analysis.execution.modules.values()
        ):
            unread.append(Unread(None))
        query = self.folded.format(query if query.isidentifier() or self.folded == "{}" else f"({query})")
        causal = bool(self.masks) and all(self.causal) and len({each[2] for each in self.masks}) == 1
        mask = self._mask(query) if self.masks else None
        if causal:
            mask = "True" if self.masks[0][2] is None else f"bool({self.masks[0][2]})"
        if not behind and self._is_viewed(product):
            behind = ".contiguous()"
        softmax, there, function = (site(each, self.module) for each in (self.softmax, product, self.function))
        removed = tuple(site(each, self.module) for each in self.removed)
        texts = query, key, value, mask, causal, self.dropout, self.scale or "1.0", behind, self.three
        return Attention(softmax, there, function, *texts, removed, tuple(unread), self.certain)

    def _mask(self, query: str) -> str:
        """All masks as one: a condition where each leaves out for certain, else what is added."""
        tests = {test for _, _, test in self.masks}
        if len(tests) > 1 and None not in tests:
            raise _WhyNotError("its masks are made under different tests")
        common = next(iter(tests)) if len(tests) == 1 else None
        first = query if query.isidentifier() else self.like or f"({query})"
        kept = all(keep for keep, _, _ in self.masks)
        parts = []
        for keep, added, test in reversed(self.masks):
            text = keep if kept else added.replace("{zeros}", f"{first}.new_zeros(())").replace("{query}", first)
            text = text if test in (None, common) else f"({text} if {test} else {'True' if kept else '0.0'})"
            parts.append(f"({text})" if kept and len(self.masks) > 1 else text)
        text = (" & " if kept else " + ").join(parts)
        return f"{text} if {common} else None" if common is not None else text

    def _is_viewed(self, product: ast.expr) -> bool:
        """Whether the product may be viewed as it lies, which what torch's kernels give does not allow."""
        statement = self.places.statement(product, self.module)
        names = stored([statement]) if isinstance(statement, ast.Assign) and statement.value is product else set()
        held = [each.value for each in walk(self.function) if isinstance(each, ast.Attribute) and each.attr == "view"]
        if ".view(" in self.module.text:
            given = [each.value for each in walk(self.function) if isinstance(each, ast.Return)]
            held += [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in given if each]
        return any(each is product or getattr(each, "id", None) in names for each in held)

    def _is_unchanged(self, product: ast.expr) -> None:
        """What is read at the product instead of further up must be the same there."""
        last = self.places.statement(product, self.module)
        if last not in self.block:
            raise _OtherError
        for at, node in self.moved:
            kinds = {each.value for each in walk(node) if isinstance(each, ast.Attribute) and each.attr == "dtype"}
            names = {each.id for each in {*walk(node)} - kinds if isinstance(each, ast.Name)} if at >= 0 else set()
            between = [each for each in self.block[at + 1 : self.block.index(last)] if each not in self.removed]
            if names & (stored(between) | self.names):
                raise _OtherError

    def _read_elsewhere(self, product: ast.expr) -> list[Unread]:
        """Where weights are handed on: nobody seems to read them, or it is refused."""
        inside = {id(each) for node in (product, *self.removed) for each in walk(node)}
        statement = self.places.statement(product, self.module)
        again = stored([statement]) if statement is not None else set()
        found: list[Unread] = []
        chain: list[ast.stmt | ast.expr] = [*self.removed, self.softmax]
        begin = min((each.lineno, each.col_offset) for each in chain)
        for each in walk(self.function):
            if isinstance(each, ast.Name) and each.id in self.names - again and id(each) not in inside:
                found += [self._unread(each)] if (each.lineno, each.col_offset) > begin else []
        return found

    def _unread(self, name: ast.Name) -> Unread:
        """Weights that are kept on demand, kept in an attribute or returned, and that nobody is seen to use."""
        parent = self.places.parent(name, self.module)
        kept = self._kept_on_demand(name) or name
        held = isinstance(parent, ast.Assign) and parent.value is name and isinstance(parent.targets[0], ast.Attribute)
        returned = isinstance(parent, ast.Tuple) and isinstance(self.places.parent(parent, self.module), ast.Return)
        if kept is name and not held and not returned:
            raise _WhyNotError(f"its weights are read by themselves on line {name.lineno}")
        line = (
            taken_at(self.analysis, self.function, parent.elts.index(kept)) if isinstance(parent, ast.Tuple) else None
        )
        if held:
            line = read_at(self.analysis, parent.targets[0].attr)  # type: ignore[union-attr]
        if line is not None:
            raise _WhyNotError(f"its weights are {'kept' if held else 'returned'}, and read {line}")
        return Unread(self.places.site(kept, self.module))


# --- small questions ----------------------------------------------------------------------------------------------

_OPERATIONS: dict[str, ast.operator] = {
    **dict.fromkeys(("mul", "mul_"), ast.Mult()),
    **dict.fromkeys(("div", "div_"), ast.Div()),
    **dict.fromkeys(("add", "add_"), ast.Add()),
}
_STEPS = ("einsum", "matmul", "bmm", "masked_fill", "masked_fill_", "where", *_OPERATIONS, *_CASTS)
_IN_PLACE = ("masked_fill_", "add_", "mul_", "div_")


def _is_function(func: ast.expr) -> bool:
    """Whether ``torch.x`` or ``F.x`` is called, and not a method."""
    return isinstance(func, ast.Name) or (dotted(func) or "").partition(".")[0] in _MODULES


def _only_under_test(statement: ast.stmt) -> tuple[ast.stmt, ast.expr | None]:
    """The last statement of an ``if`` without ``else``, with its test; any other statement itself."""
    if isinstance(statement, ast.If) and not statement.orelse:
        return statement.body[-1], statement.test
    return statement, None


def _opposite(mask: ast.expr, text: object) -> str:
    """The source of what is True where a mask is not."""
    assert callable(text)
    if isinstance(mask, ast.Compare) and len(mask.ops) == 1 and isinstance(mask.ops[0], (ast.Eq, ast.NotEq)):
        sign = "!=" if isinstance(mask.ops[0], ast.Eq) else "=="
        return f"{text(mask.left)} {sign} {text(mask.comparators[0])}"
    if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
        return str(text(mask.operand))
    plain = isinstance(mask, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return f"~{text(mask)}" if plain else f"~({text(mask)})"


def _is_number(value: Value) -> bool:
    """Whether a value is certainly no tensor."""
    plain = isinstance(value, (Const, Option)) or (isinstance(value, Unknown) and value.number)
    return plain or (isinstance(value, Opaque) and value.name.startswith("numpy."))


def _number(node: ast.expr | None) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return -inner if inner is not None else None
    return node.value if isinstance(node, ast.Constant) and type(node.value) in (int, float) else None  # type: ignore[return-value]


def _subscripts(node: ast.expr) -> tuple[str, str, str]:
    """The letters of an einsum of two factors."""
    text = str(getattr(node, "value", "")).replace("...", ".").replace(" ", "")
    found = re.fullmatch(r"([a-zA-Z.]+),([a-zA-Z.]+)->([a-zA-Z.]+)", text)
    if found is None or any(len({*each}) != len(each) for each in found.groups()):
        raise _OtherError
    return found[1], found[2], found[3]


def _turned(text: str, have: str, want: list[str]) -> str:
    """A tensor whose axes are those letters, with its axes in the order that is wanted."""
    order = [have.index(each) for each in want]
    if order == list(range(len(order))):
        return text
    if "." in have:
        raise _OtherError
    moved = [place for place, each in enumerate(order) if place != each]
    behind = ".contiguous()" if text and order[-1] != len(order) - 1 else ""  # the kernels read widths side by side
    if len(moved) == len("ab"):
        return f"{text}.transpose({moved[0]}, {moved[1]}){behind}"
    return f"{text}.permute({', '.join(map(str, order))}){behind}"
