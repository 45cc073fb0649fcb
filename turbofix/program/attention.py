"""Attention that is written out: softmax(QK^T * scale) V, from the product to the product, within one block.

It begins at a softmax, and is followed through names of the block that holds it: back through masks and a scale to the
product of queries and keys, on through dropout to the product with the values. For any factors,
``softmax(A @ B, -1) @ C`` is the attention of ``A``, ``B`` transposed and ``C``; what has to be shown is that nothing
else reads what lies between, and what the masks mean.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.acts import creates_graph
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Facts, Frame, argument_for, attribute, settled
from turbofix.program.model import Attention, AttentionMask
from turbofix.program.names import body_of, dotted, parameters, stores, targets, walk_here, written
from turbofix.program.ranks import LAYERS, Ranks
from turbofix.program.sites import FUNCTIONS, LOOPS
from turbofix.program.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Made,
    Option,
    Tensor,
    Unknown,
    Value,
    join_all,
    members,
)
from turbofix.records import dataclass

SOFTMAX = frozenset(("torch.nn.functional.softmax", "torch.softmax", "torch.special.softmax", "Tensor.softmax"))
FUSED = "torch.nn.functional.scaled_dot_product_attention"
_MODULE = "torch.nn.Softmax"
_DROPOUT = "torch.nn.Dropout"
_KERNELS = re.compile(
    r"scaled_dot_product_attention|flash_attn|memory_efficient_attention|flex_attention|sdp_kernel|xformers\.ops"
)
_MEANT = re.compile(
    r"\b(?:explicit(?:ly)?\s+(?:implementation|implemented|written|coded|version)|from scratch|written out|on purpose|"
    r"educational|for (?:clarity|illustration|demonstration|teaching)|to show (?:how|that))\b",
    re.IGNORECASE,
)
_HOOKS = re.compile(r"\.register_(?:module_)?(?:full_)?(?:forward|backward)_(?:pre_)?hook")
_HIGHER = re.compile(r"\btorch\.func\b|\bfunctorch\b|\bautograd\.functional\b|\bautograd\.forward_ad\b")
_META = frozenset(("higher", "learn2learn", "torchmeta", "functorch", "torchopt", "betty"))
_LAYING_OUT = frozenset(("reshape", "flatten", "contiguous", "size", "shape"))
_TURNING = frozenset(("transpose", "permute", "swapaxes", "movedim"))
_HEADS_BEHIND = frozenset(("12", "21", "-2-3", "-3-2", "0213"))
"""What turns heads and positions around."""
_CASTS = ("float", "to", "type_as", "type", "double", "half", "bfloat16")
_PRECISION = "its softmax is computed in another precision, on purpose as it seems"
_ROOTS = frozenset(("math.sqrt", "numpy.sqrt"))
_OPSET = 14
_VIEWS = frozenset(
    ("unsqueeze", "squeeze", "view", "reshape", "permute", "transpose", "expand", "contiguous", "repeat")
)
_FAR = -1e4
"""From here on down a fill counts as minus infinity wherever a row keeps a key: its exponential is 0 in float32."""


class _OtherError(Exception):
    """It is not an attention, or not one that can be told."""


class _WhyNotError(Exception):
    """It is an attention; the argument says what makes a rewrite unsafe."""


def attentions(analysis: Analysis) -> tuple[Attention, ...]:
    """The attentions that the program writes out and executes, in order of their places."""
    facts = analysis.facts
    found: dict[ast.AST, list[Event]] = {}
    for event in facts.events:
        if (event.kind == "call" and event.name in SOFTMAX) or (event.kind == "forward" and event.name == _MODULE):
            found.setdefault(event.node, []).append(event)
    written: list[Attention] = []
    others: list[str | None] = []
    readings = [_Reading(analysis, node, each[0].module, each, ()) for node, each in found.items() if _is_call(node)]
    for reading in (*readings, *_not_followed(analysis)):
        attention = reading.attention()
        if attention is not None:
            if attention.why_not is None:
                others = others or [_differentiates_twice(analysis) or _exports(analysis)]
                attention = attention if others[0] is None else _refused(attention, others[0])
            written.append(attention)
    return tuple(sorted(written, key=lambda each: each.softmax))


def _not_followed(analysis: Analysis) -> Iterator[_Reading]:
    """Those in modules that the program makes, and whose calls were not followed: out of a ``ModuleDict``."""
    execution, facts = analysis.execution, analysis.facts
    made: dict[ast.ClassDef, list[Instance]] = {}
    kinds: dict[ast.ClassDef, Class] = {}
    saying = {module for module in execution.modules.values() if "oftmax" in module.text}
    for event in facts.of("construct"):
        for member in members(event.result):
            if isinstance(member, Instance) and "torch.nn.Module" in member.cls.externals():
                for cls in member.cls.mro():
                    if isinstance(cls, Class) and cls.module in saying:
                        made.setdefault(cls.node, []).append(member)
                        kinds[cls.node] = cls
    if not made:
        return
    followed = {
        (each.detail.function if isinstance(each.detail, Bound) else each.detail).node
        for each in execution.scopes
        if isinstance(each.detail, (Bound, Function))
    }
    for node, objects in made.items():
        for function in node.body:
            if isinstance(function, ast.FunctionDef) and function.name != "__init__" and function not in followed:
                for call in walk(function):
                    if isinstance(call, ast.Call) and _may_be_softmax(call, objects):
                        yield _Reading(analysis, call, kinds[node].module, [], objects)


def _may_be_softmax(call: ast.Call, objects: Sequence[Instance]) -> bool:
    """Whether a call may be a softmax: by the function's name, or by what an attribute of the objects is."""
    if isinstance(call.func, ast.Name):
        return call.func.id == "softmax"
    if not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr == "softmax" or any(
        isinstance(member, Made) and member.qualname == _MODULE
        for each in objects
        for member in members(each.attributes.get(call.func.attr))
    )


def _is_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)


def fused_attentions(analysis: Analysis) -> tuple[Site, ...]:
    """Where the program calls torch's own attention."""
    facts = analysis.facts
    return tuple(sorted({facts.site(event) for event in facts.of("call") if event.name == FUSED}))


def _refused(attention: Attention, reason: str) -> Attention:
    return Attention(attention.softmax, attention.product, attention.function, why_not=reason)


def _differentiates_twice(analysis: Analysis) -> str | None:
    """What differentiates gradients once more, for which torch's fused kernels have no derivative."""
    facts = analysis.facts
    for event in facts.of("autograd_grad", "backward"):
        if creates_graph(event):
            line = facts.site(event).line
            return f"gradients are differentiated once more (line {line}), which torch's fused kernels cannot"
    for module in analysis.execution.modules.values():
        packages = {name.name.partition(".")[0] for each in every(ast.Import, module.tree) for name in each.names}
        taken = {f"{each.module}.{name.name}" for each in every(ast.ImportFrom, module.tree) for name in each.names}
        packages |= {name.partition(".")[0] for name in taken}
        if packages & _META or _HIGHER.search(" ".join((module.text, *taken))):
            return "the program transforms functions or their gradients, which torch's fused kernels do not follow"
    return None


def _exports(analysis: Analysis) -> str | None:
    """What takes the program elsewhere, where the kernel, or what leads to it, is not known."""
    facts = analysis.facts
    for event in facts.of("call"):
        if event.name == "torch.jit.script":
            return f"TorchScript compiles a model (line {facts.site(event).line}), which does not follow all of Python"
        if event.name == "torch.onnx.export" and event.arguments is not None:
            passed = event.arguments.get("opset_version")
            opset = settled(passed.value) if passed is not None else _OPSET
            if not isinstance(opset, int) or opset < _OPSET:
                line = facts.site(event).line
                return f"a model is exported to ONNX (line {line}), which has an attention from opset {_OPSET} on"
    return None


@dataclass(eq=False)
class _Operation:
    """What happens to the scores between the product and the softmax; ``test``: only where it holds."""

    kind: str  # "scale", "mask", "add"
    node: ast.expr  # the factor, the condition, what is added
    at: int  # the index of its statement
    inverse: bool = False  # divides; or (of a mask) True keeps
    fill: float | None = None
    said: str = ""
    test: ast.expr | None = None


@dataclass(eq=False)
class _Product:
    """Queries times keys: the expressions, with what has to be put behind each so that it is (..., length, width)."""

    query: ast.expr
    key: ast.expr
    suffix: tuple[str, str]
    batch: int | None = None  # how many dimensions lie before those of the scores, where the text tells
    letters: str | None = None
    at: int = 0


class _Reading:
    """One softmax, and what is before and behind it."""

    def __init__(
        self,
        analysis: Analysis,
        node: ast.Call,
        module: ModuleFile,
        events: list[Event],
        objects: Sequence[Instance],
    ) -> None:
        self.facts = analysis.facts
        self.places = analysis.facts.places
        self.node = node
        self.events = events
        self.module = module
        self.objects = objects  # of the class that holds it, where no call of it was followed
        self.frames: list[tuple[Frame, ...]] = [self.facts.frames(event) for event in events]
        self.consumed: set[ast.Name] = set()  # reads of the names in between that belong to the chain
        self.ignored: set[ast.Name] = set()  # reads of them that go away with it
        self.names: dict[str, tuple[int, int]] = {}  # the names in between: from which statement to which
        self.removed: dict[int, ast.stmt] = {}
        self.operations: list[_Operation] = []
        self.function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
        self.block: list[ast.stmt] = []
        self.product: ast.expr = node
        self.ranks = Ranks(analysis, self.module, self._layers)
        self.rank: int | None = None
        self.doubts: list[str] = []  # what makes a rewrite unsafe, if it is an attention

    # --- the whole ----------------------------------------------------------------------------------------------------

    def attention(self) -> Attention | None:
        """The attention around this softmax; None where there is none, or none that can be told."""
        function = self.places.function(self.node, self.module)
        if function is None:
            return None
        if not self.events:
            self.frames = [(Frame(function, self.module, self.node, None, ()),)]
        if not all(self.frames):
            return None
        self.function = function
        try:
            return self._read(function)
        except _OtherError:
            return None
        except _WhyNotError as reason:
            return Attention(
                self.places.site(self.node, self.module),
                self.places.site(self.product, self.module),
                self.places.site(function, self.module),
                why_not=str(reason),
            )

    def _read(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Attention:
        statement = self.places.statement(self.node, self.module)
        if statement is None or _is_scripted(function):
            raise _OtherError
        self.block = self.places.block(statement, self.module)
        position = self._position(statement)
        if self._has_kernel(function):
            raise _OtherError
        scores = self._scores()
        try:
            values, suffix, dropout = self._forwards(position)
        except _WhyNotError:
            self._backwards(scores, position)  # is it one at all?
            raise
        final = self._position(self._statement(self.product))
        base = self._backwards(scores, position)
        self._fold_query(base)
        transposed = suffix == ".transpose(1, 2)"
        if base.letters is None and suffix:
            raise _OtherError
        self._check_others(final)
        if self.doubts:
            raise _WhyNotError(self.doubts[0])
        if self._is_meant(function):
            raise _WhyNotError("its docstring says that it is written out on purpose")
        rank = self.rank = self._rank(base, values)
        self._check_softmax(rank)
        scale = self._scale(base)
        masks = self._masks(base)
        as_long = not masks or self._made_as(base.query, base) == self._made_as(base.key, base)
        self._check_between(base, final, values)
        if any(isinstance(each, LOOPS) for each in self._above(self.block[final], function)):
            raise _OtherError
        if rank is None and scale == "1.0":
            raise _OtherError  # of few dimensions, perhaps: a mixture, a memory
        if rank is None:
            raise _WhyNotError(
                "it is not known that its tensors have four dimensions, and torch has no fused kernel for others"
            )
        if rank == 3 and not (all(each.causal for each in masks) and (as_long or isinstance(base.query, ast.Name))):
            raise _WhyNotError(
                "its tensors have three dimensions, for which torch has no fused kernel, and those of its mask are "
                "not known"
            )
        if rank not in (3, 4):
            raise _OtherError
        query = self._text(base.query)
        texts = [query, self._text(base.key), self._text(values), scale or "", dropout or ""]
        texts += [each.keep for each in masks] + [each.test or "" for each in masks]
        self._drop_helpers(texts, final)
        removed = sorted(index for index in self.removed if index != final)
        loads = self._loads_behind(final, base.query)
        return Attention(
            softmax=self.places.site(self.node, self.module),
            product=self.places.site(self.product, self.module),
            function=self.places.site(function, self.module),
            query=self._laid(base.query, base.suffix[0]),
            key=self._laid(base.key, base.suffix[1]),
            value=self._laid(values, suffix),
            scale=scale,
            masks=masks,
            dropout=dropout,
            removed=tuple(self.places.site(self.removed[index], self.module) for index in removed),
            rank=rank,
            transposed=transposed,
            as_long=as_long,
            contiguous=rank == 4 and not transposed and self._may_be_viewed(final),
            query_is_free=isinstance(base.query, ast.Name)
            and self._laid(base.query, base.suffix[0]) == query
            and not loads
            and not any(_is_name(each, base.query.id) for part in (base.key, values) for each in walk(part)),
        )

    def _has_kernel(self, function: ast.AST) -> bool:
        """Whether a fused kernel stands beside it, so that this is the way without: for old torch, or for a switch."""
        outer = next(
            (each for each in self.places.ancestors(function, self.module) if isinstance(each, ast.ClassDef)), function
        )
        return _KERNELS.search(self.places.text(outer, self.module)) is not None

    def _is_meant(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether the function or its class says that a reader shall see every operation: what teaches stays."""
        holders = [each for each in self.places.ancestors(function, self.module) if isinstance(each, ast.ClassDef)]
        return any(_MEANT.search(ast.get_docstring(each) or "") for each in (function, *holders))

    # --- from the softmax on ------------------------------------------------------------------------------------------

    def _forwards(self, position: int) -> tuple[ast.expr, str, str | None]:
        """The values, what has to be put behind them, and how much is dropped; sets ``product``."""
        current: ast.expr = self.node
        at = position
        dropout: str | None = None
        while True:
            parent = self.places.parent(current, self.module)
            if isinstance(parent, ast.Assign) and parent.value is current and len(parent.targets) == 1:
                target = parent.targets[0]
                if not isinstance(target, ast.Name) or self.places.block(parent, self.module) is not self.block:
                    raise _OtherError
                current, at = self._next_read(target.id, parent, at)
                continue
            if isinstance(parent, ast.keyword):
                parent = self.places.parent(parent, self.module)
            if isinstance(parent, ast.Call):
                dropped = self._dropout(parent, current)
                if dropped is not None:
                    if dropout is not None:
                        raise _OtherError
                    dropout, current = dropped, parent
                    continue
                if isinstance(parent.func, ast.Attribute) and parent.func.value is current:
                    raise _OtherError
            if isinstance(parent, ast.Attribute) and parent.value is current:
                call = self.places.parent(parent, self.module)
                if isinstance(call, ast.Call) and call.func is parent and parent.attr in _CASTS:
                    self.doubts.append(_PRECISION)
                    current = call
                    continue
                if isinstance(call, ast.Call) and parent.attr == "contiguous" and not call.args:
                    current = call
                    continue
            found = self._times_values(parent, current)
            if found is None:
                raise _OtherError
            self.product, values, suffix = found
            return values, suffix, dropout

    def _times_values(self, parent: ast.AST | None, weights: ast.expr) -> tuple[ast.expr, ast.expr, str] | None:
        """The product with the values around some weights: it, the values, and what has to be put behind these."""
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult) and parent.left is weights:
            return parent, parent.right, ""
        if isinstance(parent, ast.Attribute) and parent.attr in ("matmul", "bmm") and parent.value is weights:
            call = self.places.parent(parent, self.module)
            if isinstance(call, ast.Call) and call.func is parent and len(call.args) == 1 and not call.keywords:
                return call, call.args[0], ""
        if isinstance(parent, ast.Call) and not parent.keywords and all(not _starred(each) for each in parent.args):
            name = self._called(parent)
            if name in ("torch.matmul", "torch.bmm") and len(parent.args) == 2 and parent.args[0] is weights:
                return parent, parent.args[1], ""
            if name == "torch.einsum" and len(parent.args) == 3 and parent.args[1] is weights:
                terms = _terms(parent.args[0])
                if terms is not None:
                    scores, values, out = terms
                    if values[:-2] == scores[:-2] and values[-2] == scores[-1] and values[-1] not in scores:
                        if out == scores[:-1] + values[-1]:
                            return parent, parent.args[2], ""
                    elif values[:-2] == scores[:-2] and values[-1] == scores[-1] and values[-2] not in scores:
                        # "bhij,bhdj->bhid"
                        if out == scores[:-1] + values[-2]:
                            return parent, parent.args[2], ".transpose(-2, -1)"
                    elif len(scores) == 4:
                        # heads behind the lengths: "bhls,bshd->blhd"
                        b, h, length, keys = tuple(scores)
                        if values[:3] == b + keys + h and values[3] not in scores and out == b + length + h + values[3]:
                            return parent, parent.args[2], ".transpose(1, 2)"
        return None

    def _dropout(self, call: ast.Call, weights: ast.expr) -> str | None:
        """The source of the probability with which a call drops weights; None where it is no dropout."""
        if not call.args or call.args[0] is not weights:
            return None
        modules = self._layers(call)
        if modules and all(isinstance(each, Made) and each.qualname == _DROPOUT for each in modules):
            name = dotted(call.func)
            if name is None or len(call.args) != 1 or call.keywords:
                raise _OtherError
            self._refuse_hooks()
            return f"{name}.p if {name}.training else 0.0"  # its own switch: dropout may go on where the model is off
        if self._called(call) in ("torch.nn.functional.dropout", "torch.dropout"):
            given = dict(zip(("input", "p", "training", "inplace"), call.args, strict=False))
            given.update({each.arg: each.value for each in call.keywords if each.arg is not None})
            share, training = given.get("p"), given.get("training")
            text = self._text(share) if share is not None else "0.5"
            if training is None or (isinstance(training, ast.Constant) and training.value is True):
                return text
            if not isinstance(training, (ast.Name, ast.Attribute)):
                raise _OtherError
            return f"{text} if {self._text(training)} else 0.0"
        return None

    def _refuse_hooks(self) -> None:
        for module in self.facts.execution.modules.values():
            if _HOOKS.search(module.text):
                self.doubts.append(f"{module.path.name} registers hooks, which may read the weights from a module")

    def _next_read(self, name: str, definition: ast.stmt, at: int) -> tuple[ast.expr, int]:
        """The one place that goes on with a name; the others are looked at later."""
        self._name(name, at)
        self.removed[at] = definition
        reads = [each for each in self._reads(name, at) if each not in self.consumed]
        going = [each for each in reads if self._goes_on(each)]
        if len(going) != 1:
            raise _OtherError
        read = going[0]
        statement = self._statement(read)
        if self.places.block(statement, self.module) is not self.block:
            others = [each for each in reads if each is not read]
            if isinstance(statement, ast.stmt) and not others:
                raise _WhyNotError(f"it goes on under a test (line {statement.lineno})")
            raise _OtherError
        self.consumed.add(read)
        found = self._position(statement)
        self._name(name, found)
        return read, found

    def _goes_on(self, read: ast.Name) -> bool:
        """Whether a read of the weights is the one that leads to the values."""
        parent = self.places.parent(read, self.module)
        if self._times_values(parent, read) is not None:
            return True
        if isinstance(parent, ast.Attribute):
            return parent.attr in ("contiguous", "matmul", "bmm", *_CASTS)
        return isinstance(parent, ast.Call) and self._dropout(parent, read) is not None

    # --- before the softmax -------------------------------------------------------------------------------------------

    def _scores(self) -> ast.expr:
        """What the softmax is taken of."""
        call = self.node
        if self._is_module():
            self._refuse_hooks()
            if len(call.args) == 1 and not call.keywords:
                return call.args[0]
            raise _OtherError
        if self._called(call) in SOFTMAX - {"Tensor.softmax"}:
            if call.args:
                return call.args[0]
            for keyword in call.keywords:
                if keyword.arg == "input":
                    return keyword.value
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "softmax":
            return call.func.value
        raise _OtherError

    def _is_module(self) -> bool:
        """Whether it is a ``torch.nn.Softmax`` that is called."""
        layers = self._layers(self.node)
        return bool(layers) and all(isinstance(each, Made) and each.qualname == _MODULE for each in layers)

    def _check_softmax(self, rank: int | None) -> None:
        """The softmax must run over the keys, and in the precision of the scores."""
        dims: list[object] = []
        if self._is_module():
            for member in self._layers(self.node):
                passed = member.arguments.get("dim", 0) if isinstance(member, Made) else None
                dims.append(settled(passed.value) if passed is not None else None)
        else:
            call = self.node
            method = isinstance(call.func, ast.Attribute) and call.func.value is self._scores()
            if any(_starred(each) for each in call.args) or any(each.arg is None for each in call.keywords):
                raise _OtherError
            names = ["dim", "dtype"] if method else ["input", "dim", "dtype"]
            if self._called(call) == "torch.nn.functional.softmax":
                names.insert(2, "_stacklevel")
            given = dict(zip(names, call.args, strict=False))
            given.update({each.arg: each.value for each in call.keywords if each.arg is not None})
            dims += [settled(value) for value in self._values(given["dim"])] if "dim" in given else [None]
            dtype = given.get("dtype")
            if dtype is not None and not (isinstance(dtype, ast.Constant) and dtype.value is None):
                raise _WhyNotError(_PRECISION)
        if any(dim != -1 and not (rank is not None and dim == rank - 1) for dim in dims):
            raise _OtherError

    def _backwards(self, scores: ast.expr, position: int) -> _Product:
        """The product of queries and keys that scores come from; notes what happens to them on the way."""
        current: ast.expr | str = scores
        at = position
        while True:
            if isinstance(current, ast.Name):
                self.consumed.add(current)
                self._name(current.id, at)
                current = current.id
            if isinstance(current, str):
                current, at = self._definition(current, at)
                continue
            base = self._keys_times(current, at)
            if base is not None:
                return base
            current = self._operation(current, at, None)

    def _definition(self, name: str, before: int) -> tuple[ast.expr | str, int]:
        """What a name was set to above a statement of the block; the name again behind a change in place."""
        for index in range(before - 1, -1, -1):
            statement = self.block[index]
            if isinstance(statement, ast.If) and self._changes(statement, name):
                self._under_test(statement, name, index)
                self._take(index, name)
                return name, index
            if isinstance(statement, ast.Expr) and self._changes(statement, name):
                inner = self._in_place(statement.value, name, index, None)
                self._take(index, name)
                self.consumed.add(inner)
                return name, index
            if isinstance(statement, ast.AugAssign) and _is_name(statement.target, name):
                self._augmented(statement, index, None)
                self._take(index, name)
                return name, index
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                into = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if len(into) == 1 and _is_name(into[0], name):
                    self._take(index, name)
                    return statement.value, index
            if any(written == name for written, _ in stores(statement)):
                break
        raise _OtherError

    def _changes(self, statement: ast.stmt, name: str) -> bool:
        """Whether a statement sets a name, or changes what it stands for in place."""
        if any(written == name for written, _ in stores(statement)):
            return True
        if _is_changed_in_place(statement, name):
            return True
        for each in walk_here(statement):
            if isinstance(each, ast.Call) and any(_is_name(part, name) for part in each.args):
                called = self._called(each) or ""
                if called.startswith("torch.") and called.endswith("_"):
                    return True
                if any(word.arg in ("inplace", "out", None) for word in each.keywords):
                    return True
        return False

    def _under_test(self, statement: ast.If, name: str, index: int) -> None:
        """``if mask is not None: scores = scores.masked_fill(mask == 0, -1e9)``."""
        body = [each for each in statement.body if not _is_words(each)]
        if statement.orelse or len(body) != 1:
            raise _OtherError
        inner = body[0]
        test = statement.test
        if not _is_plain_test(test):
            raise _OtherError
        rest: ast.expr | None = None
        if isinstance(inner, ast.AugAssign) and _is_name(inner.target, name):
            self._augmented(inner, index, test)
            return
        if isinstance(inner, ast.Expr):
            self.consumed.add(self._in_place(inner.value, name, index, test))
            return
        if isinstance(inner, ast.Assign) and len(inner.targets) == 1 and _is_name(inner.targets[0], name):
            rest = inner.value
            while not isinstance(rest, ast.Name):
                rest = self._operation(rest, index, test)
        if not isinstance(rest, ast.Name) or rest.id != name:
            raise _OtherError
        self.consumed.add(rest)

    def _augmented(self, statement: ast.AugAssign, index: int, test: ast.expr | None) -> None:
        if isinstance(statement.op, (ast.Mult, ast.Div)):
            divides = isinstance(statement.op, ast.Div)
            self.operations.append(_Operation("scale", statement.value, index, inverse=divides, test=test))
        elif isinstance(statement.op, ast.Add):
            self.operations.append(_Operation("add", statement.value, index, test=test))
        else:
            raise _OtherError

    def _in_place(self, call: ast.expr, name: str, index: int, test: ast.expr | None) -> ast.Name:
        """``scores.masked_fill_(mask, -inf)`` as a statement of its own."""
        rest = self._operation(call, index, test)
        if not isinstance(rest, ast.Name) or rest.id != name:
            raise _OtherError
        func = call.func if isinstance(call, ast.Call) else None
        if not isinstance(func, ast.Attribute) or not func.attr.endswith("_"):
            raise _OtherError
        return rest

    def _operation(self, node: ast.expr, at: int, test: ast.expr | None) -> ast.expr:
        """Notes what an expression does to the scores in it, and gives these."""
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, (ast.Mult, ast.Div)):
                scores, other = node.left, node.right
                if isinstance(node.op, ast.Mult) and self._is_number(scores) and not self._is_number(other):
                    scores, other = other, scores
                divides = isinstance(node.op, ast.Div)
                self.operations.append(_Operation("scale", other, at, inverse=divides, test=test))
                return scores
            if isinstance(node.op, ast.Add):
                scores, other = node.left, node.right
                if self._leads_to_scores(other) and not self._leads_to_scores(scores):
                    scores, other = other, scores
                self.operations.append(_Operation("add", other, at, test=test))
                return scores
            raise _OtherError
        if not isinstance(node, ast.Call) or any(_starred(each) for each in node.args):
            raise _OtherError
        name = self._called(node)
        given = {each.arg: each.value for each in node.keywords}
        if name == "torch.where" and len(node.args) == 3 and not node.keywords:
            fill = self._fill(node.args[2])
            keeps = fill is not None
            if fill is None:
                fill = self._fill(node.args[1])
            if fill is None:
                raise _OtherError
            scores, filler = (node.args[1], node.args[2]) if keeps else (node.args[2], node.args[1])
            said = self._text(filler)
            self.operations.append(_Operation("mask", node.args[0], at, keeps, fill, said, test))
            self._ignore(filler)
            return scores
        if isinstance(node.func, ast.Attribute):
            method, scores = node.func.attr.removesuffix("_"), node.func.value
            arguments = list(node.args)
        elif name in ("torch.div", "torch.mul", "torch.masked_fill", "torch.add") and node.args:
            method, scores = name.rpartition(".")[2], node.args[0]
            arguments = list(node.args[1:])
        else:
            raise _OtherError
        if name in ("torch.div", "torch.mul", "torch.masked_fill", "torch.add"):
            method, scores, arguments = name.rpartition(".")[2], node.args[0], list(node.args[1:])
        if method == "masked_fill":
            mask = given.pop("mask", None) or (arguments.pop(0) if arguments else None)
            value = given.pop("value", None) or (arguments.pop(0) if arguments else None)
            if mask is None or value is None or arguments or given:
                raise _OtherError
            fill = self._fill(value)
            if fill is None:
                raise _OtherError
            self.operations.append(_Operation("mask", mask, at, False, fill, self._text(value), test))
            self._ignore(value)
            return scores
        if method in ("div", "mul", "add") and len(arguments) == 1 and not given:
            kind = "add" if method == "add" else "scale"
            self.operations.append(_Operation(kind, arguments[0], at, inverse=method == "div", test=test))
            return scores
        if method in _CASTS:
            self.doubts.append(_PRECISION)
            self.ignored.update(each for given_ in node.args for each in walk(given_) if isinstance(each, ast.Name))
            return scores
        if method == "contiguous" and not arguments and not given:
            return scores
        raise _OtherError

    def _leads_to_scores(self, node: ast.expr) -> bool:
        """Whether an operand of a sum is the scores: a product, or a name that is one further up."""
        if isinstance(node, ast.Name):
            for index in range(len(self.block) - 1, -1, -1):
                statement = self.block[index]
                if (
                    isinstance(statement, ast.Assign)
                    and _is_name(statement.targets[0], node.id)
                    and statement.lineno < self.node.lineno
                    and (index != self._position(self._statement(node)))
                ):
                    return self._leads_to_scores(statement.value)
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            return self._leads_to_scores(node.left) or self._leads_to_scores(node.right)
        return self._keys_times(node, 0, look=True) is not None

    def _fill(self, node: ast.expr) -> float | None:
        """The number that masked scores are set to, as far down as it matters; None where it is not known."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "tensor":
            return self._fill(node.args[0]) if len(node.args) == 1 else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            if self._is_infinite(node.operand):
                return float("-inf")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
            given = node.args[0] if len(node.args) == 1 else None
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                try:
                    return _far(float(given.value))
                except ValueError:
                    return None
        elif isinstance(node, ast.Attribute) and node.attr in ("min", "max"):
            of = node.value
            if node.attr == "min" and isinstance(of, ast.Call) and self._called(of) == "torch.finfo":
                return -3e38
            return None
        values = self._values(node)
        found = {settled(value) for value in values}
        value = found.pop() if len(found) == 1 else None
        if any(isinstance(member, Option) for each in values for member in members(each)):
            return None  # whoever runs it may say another number
        if value is None:
            value = _arithmetic(node)
        return _far(value) if isinstance(value, (int, float)) else None

    def _is_infinite(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
            given = node.args[0] if len(node.args) == 1 else None
            return isinstance(given, ast.Constant) and given.value in ("inf", "Inf", "infinity")
        names = {
            member.qualname for value in self._values(node) for member in members(value) if isinstance(member, External)
        }
        return bool(names) and names <= {"math.inf", "numpy.inf", "torch.inf", "numpy.Inf"}

    def _keys_times(self, node: ast.expr, at: int, look: bool = False) -> _Product | None:
        """Queries times keys, where an expression is that."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return self._with_keys(node.left, node.right, at, look)
        if not isinstance(node, ast.Call) or node.keywords or any(_starred(each) for each in node.args):
            return None
        name = self._called(node)
        if name in ("torch.matmul", "torch.bmm") and len(node.args) == 2:
            found = self._with_keys(node.args[0], node.args[1], at, look)
            if name == "torch.bmm":
                found.batch = 1
            return found
        if name == "torch.einsum" and len(node.args) == 3:
            terms = _terms(node.args[0])
            return self._by_letters(terms, node.args[1], node.args[2], at) if terms is not None else None
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("matmul", "bmm") and len(node.args) == 1:
            found = self._with_keys(node.func.value, node.args[0], at, look)
            if node.func.attr == "bmm":
                found.batch = 1
            return found
        return None

    def _by_letters(self, terms: tuple[str, str, str], first: ast.expr, second: ast.expr, at: int) -> _Product | None:
        """``torch.einsum("bhid,bhjd->bhij", q, k)``, the heads of each before or behind its length."""
        one, two, out = terms
        if len(out) < 3 or len(set(out)) != len(out):
            return None
        i, j = out[-2], out[-1]
        if i in two and j in one and i not in one and j not in two:
            one, two, first, second = two, one, second, first
        shared = [letter for letter in one if letter in two and letter not in out]
        if len(shared) != 1 or i not in one or j not in two or i in two or j in one:
            return None
        width = shared[0]
        suffixes: list[str] = []
        for term, length in ((one, i), (two, j)):
            batch = out[:-2]
            if term == batch + length + width:
                suffixes.append("")
            elif term == batch + width + length:
                suffixes.append(".transpose(-2, -1)")
            elif len(out) == 4 and term == out[0] + length + out[1] + width:
                suffixes.append(".transpose(1, 2)")
            else:
                return None
        return _Product(first, second, (suffixes[0], suffixes[1]), len(out) - 2, out, at)

    def _with_keys(self, query: ast.expr, keys: ast.expr, at: int, look: bool) -> _Product:
        """A product by ``@``: the keys, the other way round, may have a name of their own."""
        if _is_matrix(keys):
            raise _OtherError
        plain, batch = self._untransposed(keys)
        if plain is None and isinstance(keys, ast.Name) and not look:
            definition = self._single(keys, at)
            if definition is not None:
                index, value = definition
                plain, batch = self._untransposed(value)
                if plain is not None:
                    self.consumed.add(keys)
                    self._name(keys.id, at)
                    self._take(index, keys.id)
                    if not self._holds(plain, index, at):
                        raise _OtherError
        if plain is None:
            return _Product(query, keys, ("", ".transpose(-2, -1)"), batch, None, at)
        return _Product(query, plain, ("", ""), batch, None, at)

    def _untransposed(self, node: ast.expr) -> tuple[ast.expr | None, int | None]:
        """``k`` of ``k.transpose(-2, -1)``; ``transpose(1, 2)`` is that where there are three dimensions."""
        plain, batch = _untransposed(node)
        if plain is None and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            pair = {_arithmetic(each) for each in node.args}
            if node.func.attr == "transpose" and pair == {1, 2} and self.function is not None:
                of = node.func.value
                if all(self.ranks.of(of, self.function, frames) == 3 for frames in self.frames):
                    return of, 1
        return plain, batch

    def _single(self, name: ast.Name, at: int) -> tuple[int, ast.expr] | None:
        """Where in the block a name was set that nothing else reads."""
        for index in range(at - 1, -1, -1):
            statement = self.block[index]
            if isinstance(statement, ast.Assign) and _sets(statement, name.id):
                reads = [each for each in self._reads(name.id, index) if each is not name]
                return None if reads else (index, statement.value)
            if any(written == name.id for written, _ in stores(statement)):
                return None
        return None

    def _holds(self, node: ast.expr, start: int, end: int) -> bool:
        """Whether the names in an expression mean the same at two statements of the block."""
        used = {each.id for each in walk(node) if isinstance(each, ast.Name)}
        return not any(
            self._changes(statement, name) for statement in self.block[start + 1 : end] for name in used
        ) and not any(
            "." in written and written.partition(".")[0] in used
            for statement in self.block[start + 1 : end]
            for written, _ in stores(statement)
        )

    def _fold_query(self, base: _Product) -> None:
        """``q = q * self.scale`` above the product, or in it, is the scale."""
        query, at = base.query, base.at
        if any(each.kind == "scale" for each in self.operations):
            return
        index: int | None = None
        if isinstance(query, ast.Name):
            found = self._scaled(query, at)
            if found is None:
                return
            index, value = found
        else:
            value = query
        if not (isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div))):
            return
        inner, factor = value.left, value.right
        if not self._is_number(factor):
            if not isinstance(value.op, ast.Mult) or not self._is_number(inner):
                return
            inner, factor = factor, inner
        if index is not None:
            if not (isinstance(inner, ast.Name) and self._holds(factor, index, at)):
                return
            if isinstance(query, ast.Name) and inner.id != query.id and not self._holds(inner, index, at):
                return
            if isinstance(query, ast.Name):
                self.consumed.add(query)
            self.removed[index] = self.block[index]
        base.query = inner
        divides = isinstance(value.op, ast.Div)
        self.operations.append(_Operation("scale", factor, at if index is None else index, inverse=divides))

    def _scaled(self, query: ast.Name, at: int) -> tuple[int, ast.expr] | None:
        """Where queries were set, if nothing but the product reads them afterwards."""
        for index in range(at - 1, -1, -1):
            statement = self.block[index]
            if isinstance(statement, ast.Assign) and _sets(statement, query.id):
                reads = [each for each in self._reads(query.id, index) if each is not query]
                return None if reads else (index, statement.value)
            if isinstance(statement, ast.AugAssign) and _is_name(statement.target, query.id):
                return None
            if any(written == query.id for written, _ in stores(statement)):
                return None
        return None

    # --- what it means ------------------------------------------------------------------------------------------------

    def _scale(self, base: _Product) -> str | None:
        """The source of the scale, None for the default."""
        scales = [each for each in self.operations if each.kind == "scale"]
        if not scales:
            return "1.0"
        if len(scales) > 1:
            raise _OtherError
        scale = scales[0]
        if scale.test is not None:
            raise _WhyNotError(f"its scores are scaled only under a test (line {scale.test.lineno})")
        # operations are noted from the softmax backwards: what comes behind the scale in the list came before it
        before = self.operations[self.operations.index(scale) + 1 :]
        if any(each.kind == "add" or (each.fill is not None and each.fill != float("-inf")) for each in before):
            raise _OtherError
        node = scale.node
        root = self._root_of(node, scale.inverse)
        if root is not None and self._is_width(root, base):
            return None
        if not self._is_number(node):
            if self._is_tensor(node):
                raise _WhyNotError(f"its scale (`{self._text(node)}`) is a tensor, and torch's is a number")
            raise _WhyNotError(f"it is not known that its scale (`{self._text(node)}`) is a number")
        text = self._text(node)
        if not scale.inverse:
            return text
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            half = node.right
            if isinstance(half, ast.Constant) and half.value == 0.5:
                return f"{self._text(node.left, power=True)} ** -0.5"
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Pow):
            text = f"({text})"
        return f"1.0 / {text}"

    def _root_of(self, node: ast.expr, inverse: bool) -> ast.expr | None:
        """``d`` where a factor is 1 / sqrt(d)."""
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and not inverse:
            if not (isinstance(node.left, ast.Constant) and node.left.value == 1):
                return None
            node, inverse = node.right, True
        if isinstance(node, ast.Name):
            definition = self._local(node)
            if definition is not None:
                return self._root_of(definition, inverse)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            power = _arithmetic(node.right)
            return node.left if power == (0.5 if inverse else -0.5) else None
        one = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        if inverse and one and isinstance(node, ast.Call) and self._called(node) in _ROOTS:
            return node.args[0]
        return None

    def _local(self, node: ast.Name) -> ast.expr | None:
        """What a name of the function is set to, where it is set once, at the function's own level or in the block."""
        function = self.places.function(node, self.module)
        if function is None:
            return None
        found = [each for statement in function.body for name, each in stores(statement) if name == node.id]
        if len(found) != 1 or any(each.arg == node.id for each in parameters(function)):
            return None
        write = found[0]
        if isinstance(write, ast.Assign) and len(write.targets) == 1:
            target = write.targets[0]
            if isinstance(target, ast.Name):
                return write.value
            if isinstance(target, ast.Tuple) and isinstance(write.value, ast.Tuple):
                for one, value in zip(target.elts, write.value.elts, strict=False):
                    if _is_name(one, node.id) and len(target.elts) == len(write.value.elts):
                        return value
        return None

    def _writes(self) -> list[tuple[str, ast.AST]]:
        assert self.function is not None
        return [pair for statement in self.function.body for pair in stores(statement)]

    def _is_width(self, node: ast.expr, base: _Product) -> bool:
        """Whether an expression is certainly the last dimension of the queries (and with that of the keys)."""
        if base.suffix[0] == ".transpose(-2, -1)":
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("float", "int"):
            return len(node.args) == 1 and self._is_width(node.args[0], base)
        own = {self._text(base.query)}
        if base.suffix[1] in ("", ".transpose(1, 2)"):
            own.add(self._text(base.key))
        of: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            of = node.func.value if len(node.args) == 1 and _arithmetic(node.args[0]) in self._last() else None
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            of = node.value.value if _arithmetic(node.slice) in self._last() else None
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call) and _is_shape(node.value):
            func = node.value.func
            last = not node.value.args and _arithmetic(node.slice) in self._last()
            of = func.value if last and isinstance(func, ast.Attribute) else None
        if of is not None:
            return self._text(of) in own and isinstance(of, ast.Name) and self._keeps_width(of, base)
        if isinstance(node, ast.Name):
            definition = self._local(node)
            if definition is not None:
                return self._is_width(definition, base)
            return self._is_last_of_a_shape(node, own)
        if isinstance(node, ast.Attribute) and isinstance(base.query, ast.Name):
            return self.ranks.width_of(base.query, self.function) == self._text(node)
        return False

    def _last(self) -> tuple[int, ...]:
        """The numbers of the last dimension."""
        return (-1,) if self.rank is None else (-1, self.rank - 1)

    def _keeps_width(self, node: ast.Name, base: _Product) -> bool:
        """Whether what has a name where it is asked for its width is what the product takes, but for a factor."""
        product = self.block[base.at]
        start, end = (node.lineno, node.col_offset), (product.lineno, product.col_offset)
        between = [
            each
            for written, each in self._writes()
            if written == node.id and start < (each.lineno, each.col_offset) < end  # type: ignore[attr-defined]
        ]
        return all(self._only_scales(each, node.id) for each in between)

    def _only_scales(self, write: ast.AST, name: str) -> bool:
        """Whether a name is set to what it was, times a number."""
        if isinstance(write, ast.AugAssign):
            return isinstance(write.op, (ast.Mult, ast.Div)) and self._is_number(write.value)
        if not isinstance(write, ast.Assign) or not _sets(write, name) or not isinstance(write.value, ast.BinOp):
            return False
        value = write.value
        return isinstance(value.op, (ast.Mult, ast.Div)) and _is_name(value.left, name) and self._is_number(value.right)

    def _is_last_of_a_shape(self, node: ast.Name, own: set[str]) -> bool:
        """``b, h, t, d = k.size()``."""
        found = [each for name, each in self._writes() if name == node.id]
        if len(found) != 1 or not isinstance(found[0], ast.Assign) or len(found[0].targets) != 1:
            return False
        target, value = found[0].targets[0], found[0].value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "size":
            of: ast.expr | None = value.func.value if not value.args else None
        else:
            of = value.value if isinstance(value, ast.Attribute) and value.attr == "shape" else None
        return (
            isinstance(of, ast.Name)
            and of.id in own
            and isinstance(target, (ast.Tuple, ast.List))
            and _is_name(target.elts[-1], node.id)
            and not any(isinstance(each, ast.Starred) for each in target.elts[1:])
            and len([each for name, each in self._writes() if name == of.id]) == 0
        )

    def _is_number(self, node: ast.expr, depth: int = 6) -> bool:
        """Whether an expression is certainly a number of Python's."""
        if depth < 0:
            return False
        if isinstance(node, ast.Constant):
            return isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
        if isinstance(node, ast.UnaryOp):
            return self._is_number(node.operand, depth - 1)
        if isinstance(node, ast.BinOp):
            return self._is_number(node.left, depth - 1) and self._is_number(node.right, depth - 1)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "len"):
                return len(node.args) == 1
            if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and len(node.args) == 1:
                return True
            return self._called(node) in _ROOTS and all(self._is_number(each, depth - 1) for each in node.args)
        if isinstance(node, ast.Subscript) and _is_shape(node.value):
            return not isinstance(node.slice, ast.Slice)
        if isinstance(node, ast.Name) and self.function is not None:
            definition = self._local(node)
            if definition is not None:
                return self._is_number(definition, depth - 1)
            if any(
                name == node.id and isinstance(each, ast.Assign) and _is_shape(each.value)
                for name, each in self._writes()
            ):
                return len([each for name, each in self._writes() if name == node.id]) == 1
        if isinstance(node, (ast.Name, ast.Attribute)):
            values = self._values(node)
            return bool(values) and all(map(_is_numeric, values))
        return False

    def _is_tensor(self, node: ast.expr) -> bool:
        return any(
            isinstance(member, Tensor)
            or (isinstance(member, Made) and member.qualname in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"))
            for value in self._values(node)
            for member in members(value)
        )

    def _masks(self, base: _Product) -> tuple[AttentionMask, ...]:
        """What the masks mean, the first that is applied first."""
        found: list[AttentionMask] = []
        for each in reversed(self.operations):
            if each.kind == "scale":
                continue
            test = self._text(each.test) if each.test is not None else None
            if each.kind == "add":
                found.append(self._added(each, test))
                continue
            assert each.fill is not None
            causal = self._is_causal(each.node, base, keeps=each.inverse)
            keep = self._text(each.node) if each.inverse else self._kept(each.node)
            if each.inverse and not self._is_boolean(each.node):
                keep = f"{self._text(each.node, power=True)}.bool()"
            fill = "infinite" if each.fill == float("-inf") else "finite"
            found.append(AttentionMask(keep, fill, each.said, test, causal, not causal and self._is_flat(each.node)))  # type: ignore[arg-type]
        if len(found) > 1:
            alike = all(each.causal for each in found) or all(each.fill != "added" for each in found)
            if any(each.test is not None for each in found) or not alike:
                raise _WhyNotError("it has several masks, not all of which say in the same way what to leave out")
            if len({each.fill for each in found}) > 1:
                raise _WhyNotError("it has several masks, which are filled with different numbers")
        return tuple(found)

    def _is_flat(self, node: ast.expr) -> bool:
        """Whether a mask may have one dimension only: it can be added, but torch's function takes none."""
        assert self.function is not None
        self.ranks.set_to = self._set_to
        return any(self.ranks.at_least(node, self.function, frames) < 2 for frames in self.frames or [()])

    def _is_boolean(self, node: ast.expr) -> bool:
        """Whether an expression over tensors certainly gives truth values."""
        if isinstance(node, ast.Name):
            definition = self._local(node)
            return definition is not None and self._is_boolean(definition)
        called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        return isinstance(node, ast.Compare) or called in ("bool", "eq", "ne")

    def _kept(self, node: ast.expr) -> str:
        """The source of what is True where a key may be seen, from what is True where not."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return self._text(node.operand)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            sign = "!=" if isinstance(node.ops[0], ast.Eq) else "=="
            return f"{self._text(node.left)} {sign} {self._text(node.comparators[0])}"
        return f"~{self._text(node, power=True)}"

    def _added(self, operation: _Operation, test: str | None) -> AttentionMask:
        """A mask or bias that is added: torch takes it as it is, if it is of floats."""
        node = operation.node
        if self._is_causal_sum(node):
            return AttentionMask(self._text(node), "added", "", test, causal=True)
        if self._is_number(node):
            raise _OtherError
        if not self._is_floating(node) and not self._is_handed_floats(node):
            raise _WhyNotError(
                f"it is not known that `{self._text(node)}`, which is added to its scores, holds floats: torch takes "
                "no integers"
            )
        return AttentionMask(self._text(node), "added", "", test, causal=False, flat=self._is_flat(node))

    def _is_floating(self, node: ast.expr, depth: int = 5) -> bool:
        """Whether a tensor certainly holds floats: a parameter, or what is made of ones."""
        if depth < 0:
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div, ast.Add, ast.Sub)):
            sides = (node.left, node.right)
            if isinstance(node.op, ast.Div) and not all(self._is_number(each) for each in sides):
                return True
            return any(isinstance(_arithmetic(each), float) for each in sides) or any(
                self._is_floating(each, depth - 1) for each in sides
            )
        if isinstance(node, ast.Name):
            definition = self._local(node)
            return definition is not None and self._is_floating(definition, depth - 1)
        if isinstance(node, ast.Subscript):
            return self._is_floating(node.value, depth - 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in (
                *("unsqueeze", "squeeze", "view", "reshape", "permute", "transpose", "expand", "contiguous", "repeat"),
                *("index_select", "flatten"),
            ):
                return self._is_floating(node.func.value, depth - 1)
            made = self._layers(node)
            return bool(made) and all(isinstance(each, Made) and each.qualname == "torch.nn.Embedding" for each in made)
        if isinstance(node, ast.Attribute) and dotted(node) is not None:
            return self._is_parameter(node)
        return False

    def _is_handed_floats(self, node: ast.expr) -> bool:
        """Whether it is a parameter, or a view of one, that is a tensor of floats in each call that was followed."""
        return bool(self.events) and all(_holds_floats(self.facts, node, frames) for frames in self.frames)

    def _is_parameter(self, node: ast.Attribute) -> bool:
        """Whether an attribute is a parameter of its module, or the weight of an embedding."""
        assert self.function is not None
        values = self._set_to(node)
        return bool(values) and all(
            isinstance(each, ast.Call)
            and self._called(each) in ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
            and not each.keywords
            for each in values
        )

    def _set_to(self, node: ast.Attribute) -> list[ast.expr]:
        """The expressions that an attribute of ``self`` is set to in the class, buffers included.

        The attribute itself stands for what is no such expression: a part that is set, one of several targets.
        """
        assert self.function is not None
        own = parameters(self.function)[:1]
        if not own or not _is_name(node.value, own[0].arg):
            return []
        cls = next(
            (each for each in self.places.ancestors(self.function, self.module) if isinstance(each, ast.ClassDef)), None
        )
        if cls is None:
            return []
        found: list[ast.expr] = []
        for each in walk(cls):
            if any(name.endswith(f".{node.attr}") for name in written(each)):
                into = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
                plain = isinstance(each, (ast.Assign, ast.AnnAssign)) and isinstance(into[-1], ast.Attribute)
                found.append(each.value if plain and len(into) == 1 else node)  # type: ignore[attr-defined]
            elif isinstance(each, ast.Call) and (dotted(each.func) or "").endswith(".register_buffer"):
                given = {word.arg: word.value for word in each.keywords}
                name = each.args[0] if each.args else given.get("name")
                value = each.args[1] if len(each.args) > 1 else given.get("tensor")
                if isinstance(name, ast.Constant) and name.value == node.attr:
                    found.append(value if value is not None else node)
        return [] if self._set_elsewhere(node, cls) else found

    def _set_elsewhere(self, node: ast.Attribute, cls: ast.ClassDef) -> bool:
        """Whether an attribute is anything else than its class sets it to."""
        origins = [getattr(member, "origin", None) for each in self._values(node) for member in members(each)]
        writes = [(write, module) for write, _, module in self.facts.attribute_writes(node.attr)]
        writes += [(each.node, each.module) for each in origins if each is not None]
        return any(cls not in set(self.places.ancestors(write, module)) for write, module in writes)

    # --- whether there are as many keys as queries --------------------------------------------------------------------

    def _made_as(self, node: ast.expr, base: _Product) -> list[str]:
        """How the function makes queries or keys, without their names: the same of both where they are as many.

        ``k = torch.cat((past, k), dim=2)`` is one more.
        """
        if not isinstance(node, ast.Name):
            return [self._spelled(node, "")]
        end = self.block[base.at].lineno
        gone = list(self.removed.values())
        writes = [each for name, each in self._writes() if name == node.id and each.lineno < end and each not in gone]  # type: ignore[attr-defined]
        return [self._spelled_write(each, node.id) for each in writes] or [node.id]

    def _spelled_write(self, write: ast.AST, own: str) -> str:
        if not isinstance(write, ast.Assign) or len(write.targets) != 1:
            return str(id(write))
        target, value = write.targets[0], write.value
        if isinstance(target, ast.Name):
            return self._spelled(value, own)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, each in zip(target.elts, value.elts, strict=True):
                if _is_name(one, own):
                    return self._spelled(each, own)
        return str(id(write))  # all that it sets is made alike

    def _spelled(self, node: object, own: str) -> str:
        """An expression without the name of what it makes, of its layers, and of the part that it takes."""
        if isinstance(node, list):
            return ",".join(self._spelled(each, own) for each in node)
        if not isinstance(node, ast.AST):
            return repr(node)
        fields = dict(ast.iter_fields(node))
        if isinstance(node, ast.Name):
            if node.id == own:
                return "_"
            before = [each for name, each in self._writes() if name == node.id and each.lineno < node.lineno]  # type: ignore[attr-defined]
            return f"{node.id}:{len(before)}"
        if isinstance(node, ast.Call):
            layers = self._layers(node)
            if layers and all(isinstance(each, Made) and each.qualname in LAYERS for each in layers):
                del fields["func"]
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            fields["slice"] = [each for each in parts if not isinstance(_arithmetic(each), int)]
        return f"{type(node).__name__}({','.join(self._spelled(each, own) for each in fields.values())})"

    # --- causal masks -------------------------------------------------------------------------------------------------

    def _is_causal(self, node: ast.expr, base: _Product, *, keeps: bool) -> bool:
        """Whether a condition leaves out just what lies ahead of each query: True there, or (``keeps``) elsewhere."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return self._is_causal(node.operand, base, keeps=not keeps)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            number = _arithmetic(node.comparators[0])
            equal = isinstance(node.ops[0], ast.Eq)
            if number == 0:
                return self._is_causal(node.left, base, keeps=keeps if not equal else not keeps)
            if number == 1:
                return self._is_causal(node.left, base, keeps=keeps if equal else not keeps)
            return False
        return self._triangle(node) == ("lower" if keeps else "upper")

    def _is_causal_sum(self, node: ast.expr) -> bool:
        """Whether what is added is minus infinity ahead of each query, and 0 elsewhere."""
        return self._triangle(node, infinite=True) == "upper"

    def _triangle(self, node: ast.expr, infinite: bool = False, depth: int = 8) -> str | None:
        """``lower``: ones up to each query; ``upper``: ones (or -inf) behind it. Only whole squares."""
        if depth < 0:
            return None
        if isinstance(node, ast.Subscript):
            if not _is_square(node.slice):
                return None
            return self._triangle(node.value, infinite, depth - 1)
        if isinstance(node, ast.Name):
            definition = self._local(node)
            function = self.places.function(node, self.module)
            if definition is None or function is None or _is_changed_in_place(function, node.id):
                return None
            return self._triangle(definition, infinite, depth - 1)
        if isinstance(node, ast.Attribute):
            modules = self.facts.execution.modules.values()
            if any(node.attr in each.text and _is_changed_in_place(each.tree, node.attr) for each in modules):
                return None
            made = self._set_to(node)
            found = {self._triangle(each, infinite, depth - 1) if each is not node else None for each in made}
            return found.pop() if len(found) == 1 else None
        if isinstance(node, ast.Call):
            name = self._called(node)
            if name in ("torch.tril", "torch.triu") and node.args:
                return self._cut(name, node.args[0], node.args[1:], node.keywords, infinite)
            if isinstance(node.func, ast.Attribute):
                if node.func.attr in ("tril", "triu", "tril_", "triu_"):
                    method = f"torch.{node.func.attr.removesuffix('_')}"
                    return self._cut(method, node.func.value, node.args, node.keywords, infinite)
                if node.func.attr in ("view", "unsqueeze", "bool", "to", "cuda", "type", "byte", "float", "expand"):
                    if node.func.attr in ("view", "expand") and not _is_leading_ones(node.args):
                        return None
                    if node.func.attr == "unsqueeze" and _arithmetic(node.args[0] if node.args else node) not in (0, 1):
                        return None
                    return self._triangle(node.func.value, infinite, depth - 1)
            return None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            number = _arithmetic(node.comparators[0])
            inner = self._triangle(node.left, infinite, depth - 1)
            equal = isinstance(node.ops[0], ast.Eq)
            if inner is None or number not in (0, 1) or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
                return None
            return inner if equal == (number == 1) else ("upper" if inner == "lower" else "lower")
        return None

    def _cut(
        self, name: str, square: ast.expr, given: Sequence[ast.expr], keywords: Sequence[ast.keyword], infinite: bool
    ) -> str | None:
        """What ``tril`` or ``triu`` leaves of a square of ones."""
        diagonal: object = 0
        if given:
            diagonal = _arithmetic(given[0])
        for keyword in keywords:
            if keyword.arg == "diagonal":
                diagonal = _arithmetic(keyword.value)
        if not self._is_full_square(square, infinite):
            return None
        if name == "torch.tril" and diagonal == 0 and not infinite:
            return "lower"
        return "upper" if name == "torch.triu" and diagonal == 1 else None

    def _is_full_square(self, node: ast.expr, infinite: bool) -> bool:
        """``torch.ones(n, n)``; or ``torch.full((n, n), float("-inf"))``, ``torch.ones(n, n) * float("-inf")``."""
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("bool", "to"):
            node = node.func.value
        if infinite and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if self._fill(other) == float("-inf") and self._is_full_square(one, False):
                    return True
            return False
        if not isinstance(node, ast.Call):
            return False
        name = self._called(node)
        if name == "torch.full" and len(node.args) == 2:
            wanted = self._fill(node.args[1]) == float("-inf") if infinite else _arithmetic(node.args[1]) in (1, True)
            return wanted and _sizes(node.args[:1]) is not None
        return name == "torch.ones" and not infinite and _sizes(node.args) is not None

    # --- whether it may go --------------------------------------------------------------------------------------------

    def _check_others(self, final: int) -> None:
        """Nothing else may read what lies between."""
        assert self.function is not None
        for each in walk(self.function):
            gone = getattr(each, "names", ()) if isinstance(each, (ast.Global, ast.Nonlocal)) else ()
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Del):
                gone = (each.id,)
            if any(name in self.names for name in gone):
                raise _OtherError
        inside = {id(each) for index in self.removed for each in walk(self.removed[index])}
        for name, (first, last) in self.names.items():
            for read in self._reads(name, first, last):
                if read in self.consumed or read in self.ignored:
                    continue
                line = read.lineno
                if id(read) in inside and self._position(self._statement(read), strict=False) != final:
                    raise _OtherError
                what = "weights" if self._is_behind(name) else "scores"
                raise _WhyNotError(
                    f"its {what} are used by themselves as well (line {line}); the kernels never make them"
                )
        for statement in self.removed.values():
            if any(isinstance(each, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)) for each in walk(statement)):
                raise _OtherError

    def _is_behind(self, name: str) -> bool:
        """Whether a name in between holds weights, at some time."""
        at = self._position(self._statement(self.node))
        first, last = self.names[name]
        return last > at or first >= at

    def _check_between(self, base: _Product, final: int, values: ast.expr) -> None:
        """What is read later than it was must not change meanwhile."""
        reads = [(base.query, base.at), (base.key, base.at)]
        reads += [(each.node, each.at) for each in self.operations]
        reads += [(each.test, each.at) for each in self.operations if each.test is not None]
        for node, at in reads:
            used = {each.id for each in walk(node) if isinstance(each, ast.Name)}
            for statement in (self.block[index] for index in range(at, final) if index not in self.removed):
                if any(self._changes(statement, name) for name in used):
                    raise _OtherError
                if any(written.partition(".")[0] in used and "." in written for written, _ in stores(statement)):
                    raise _OtherError
        if any(isinstance(each, ast.Name) and each.id in self.names for each in walk(values)):
            raise _OtherError
        for node, _ in reads:
            if any(isinstance(each, ast.Name) and each.id in self._between_names(base) for each in walk(node)):
                raise _OtherError

    def _between_names(self, base: _Product) -> set[str]:
        own = {each.id for part in (base.query, base.key) for each in walk(part) if isinstance(each, ast.Name)}
        return set(self.names) - own

    def _drop_helpers(self, texts: list[str], final: int) -> None:
        """Takes along what was only worked out for the lines that go: ``d_k = q.size(-1)``."""
        assert self.function is not None
        for _ in range(3):
            gone = {id(each) for index in self.removed for each in walk(self.removed[index])}
            gone |= {id(each) for each in walk(self.product)}
            for index in range(final):
                statement = self.block[index]
                if index in self.removed or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                    continue
                target = statement.targets[0]
                if not isinstance(target, ast.Name) or not _is_harmless(statement.value):
                    continue
                if any(re.search(rf"\b{re.escape(target.id)}\b", text) for text in texts):
                    continue
                reads = [
                    each
                    for each in walk(self.function)
                    if isinstance(each, ast.Name) and each.id == target.id and isinstance(each.ctx, ast.Load)
                ]
                once = len([1 for name, _ in self._writes() if name == target.id]) == 1
                if once and reads and all(id(each) in gone for each in reads):
                    self.removed[index] = statement

    # --- small answers ------------------------------------------------------------------------------------------------

    def _rank(self, base: _Product, values: ast.expr) -> int | None:
        """How many dimensions queries, keys and values have, where they have as many."""
        assert self.function is not None
        if base.letters is not None:
            return len(base.letters)
        found: list[int | None] = []
        for frames in self.frames:
            ranks = [self.ranks.of(each, self.function, frames) for each in (base.query, base.key, values)]
            known = {each for each in ranks if each is not None}
            if len(known) > 1:
                raise _OtherError
            found.append(known.pop() if known else None)
        if base.batch is not None:
            return base.batch + 2
        return found[0] if found and all(each == found[0] for each in found) else None

    def _above(self, node: ast.AST, function: ast.AST) -> Iterator[ast.AST]:
        for each in self.places.ancestors(node, self.module):
            if each is function:
                return
            yield each

    def _statement(self, node: ast.AST) -> ast.stmt:
        statement = self.places.statement(node, self.module)
        if statement is None:
            raise _OtherError
        return statement

    def _position(self, statement: ast.stmt, strict: bool = True) -> int:
        for index, each in enumerate(self.block):
            if each is statement:
                return index
        if strict:
            raise _OtherError
        return -1

    def _take(self, index: int, name: str) -> None:
        self.removed[index] = self.block[index]
        self._name(name, index)

    def _name(self, name: str, at: int) -> None:
        first, last = self.names.get(name, (at, at))
        self.names[name] = (min(first, at), max(last, at))

    def _reads(self, name: str, first: int, last: int | None = None) -> list[ast.Name]:
        """The reads of a name from behind its setting on, until the block sets it to something else."""
        assert self.function is not None
        start = self.block[first]
        end: tuple[int, int] | None = None
        for statement in self.block[(first if last is None else last) + 1 :]:
            into = statement.targets if isinstance(statement, ast.Assign) else ()
            if any(_is_name(each, name) for target in into for each in targets(target)):
                end = (statement.end_lineno or statement.lineno, statement.end_col_offset or 0)
                break
        if last is not None and end is None:
            final = self.block[last]
            into = final.targets if isinstance(final, ast.Assign) and last not in self.removed else ()
            if any(_is_name(each, name) for target in into for each in targets(target)):
                end = (final.end_lineno or final.lineno, final.end_col_offset or 0)
        found: list[ast.Name] = []
        for each in walk(self.function):
            if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load):
                place = (each.lineno, each.col_offset)
                if place > (start.lineno, start.col_offset) and (end is None or place <= end):
                    found.append(each)
        own = {id(each) for each in walk(start)}
        return sorted(
            (each for each in found if id(each) not in own or last is not None),
            key=lambda each: (each.lineno, each.col_offset),
        )

    def _may_be_viewed(self, final: int) -> bool:
        """Whether something may rely on the product's rows lying one behind another: the kernels' do not.

        ``y.view(...)`` raises then. Behind ``y.transpose(1, 2)`` it does not, but behind ``y.transpose(0, 1)``, whose
        positions and widths lay together as written.
        """
        parent = self.places.parent(self.product, self.module)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            reads: Sequence[ast.expr] = self._reads(parent.targets[0].id, final)
            return not all(self._copies(each) for each in reads)
        return not self._copies(self.product)

    def _copies(self, node: ast.expr) -> bool:
        """Whether what reads a tensor lays it out anew, or turns it around."""
        parent = self.places.parent(node, self.module)
        if isinstance(parent, ast.Attribute):
            call = self.places.parent(parent, self.module)
            if parent.attr not in _TURNING or not isinstance(call, ast.Call):
                return parent.attr in _LAYING_OUT
            order = "".join(ast.unparse(each) for each in call.args) if not call.keywords else ""
            return re.sub(r"[(), \[\]]", "", order) in _HEADS_BEHIND or self._copies(call)
        if not isinstance(parent, ast.Call) or node not in parent.args[:1]:
            return False
        return (dotted(parent.func) or "").rpartition(".")[2] == "rearrange"

    def _loads_behind(self, final: int, query: ast.expr) -> bool:
        """Whether queries are read again behind the product."""
        if not isinstance(query, ast.Name) or self.function is None:
            return True
        end = self.block[final]
        return any(
            isinstance(each, ast.Name)
            and each.id == query.id
            and isinstance(each.ctx, ast.Load)
            and (each.lineno, each.col_offset) > (end.end_lineno or end.lineno, end.end_col_offset or 0)
            for each in walk(self.function)
        )

    def _values(self, node: ast.expr) -> list[Value | None]:
        """What an expression can be, in each call of the function."""
        if self.objects and isinstance(node, ast.Attribute) and self.function is not None:
            own = parameters(self.function)[:1]
            if own and _is_name(node.value, own[0].arg):
                return [attribute(each, node.attr) for each in self.objects]
            return [
                join_all(attribute(member, node.attr) for member in members(value))
                for value in self._values(node.value)
            ]
        return [self.facts.evaluate(node, frames) for frames in self.frames]

    def _layers(self, call: ast.Call) -> list[Value]:
        """The modules that a call calls."""
        if self.objects:
            return [member for value in self._values(call.func) for member in members(value)]
        return [each for event in self.facts.at(call) if event.kind == "forward" for each in members(event.receiver)]

    def _called(self, call: ast.Call) -> str | None:
        """The qualified name of what a call calls, where it is a library's."""
        for event in self.facts.at(call):
            if event.kind == "call" and event.name:
                return event.name
        frames = self.frames[0]
        names: set[str] = set()
        head = call.func
        while isinstance(head, ast.Attribute):
            head = head.value
        if isinstance(head, ast.Name):
            for member in members(self.facts.evaluate(call.func, frames)):
                if isinstance(member, External):
                    names.add(member.qualname)
        return names.pop() if len(names) == 1 else None

    def _ignore(self, node: ast.expr) -> None:
        """What is read in an expression that goes away with its statement."""
        self.ignored.update(each for each in walk(node) if isinstance(each, ast.Name))

    def _text(self, node: ast.expr, power: bool = False) -> str:
        text = self.places.text(node, self.module)
        if isinstance(node, (ast.IfExp, ast.Lambda)):
            return f"({text})"  # it is weaker than anything that it may stand beside
        simple = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
        return f"({text})" if power and not isinstance(node, simple) else text

    def _laid(self, node: ast.expr, suffix: str) -> str:
        """An operand as the kernels take it: with the numbers of one position side by side in memory.

        Given another order, torch says nothing, and computes the matrix of scores as before.
        """
        made = self._local(node) if isinstance(node, ast.Name) else node
        turned = suffix == ".transpose(-2, -1)" or self._is_rearranged(node)
        turned = turned or (not suffix and made is not None and self._untransposed(made)[0] is not None)
        if not suffix and not turned:
            return self._text(node)
        return f"{self._text(node, power=True)}{suffix}{'.contiguous()' if turned else ''}"

    def _is_rearranged(self, node: ast.expr) -> bool:
        """Whether einops has brought another axis to the end: ``b (h c) x y -> b h (x y) c``, which copies nothing."""
        made: list[ast.AST] = [node]
        if isinstance(node, ast.Name) and self.function is not None:
            writes = [write for each in self.function.body for name, write in stores(each) if name == node.id]
            made = [each.value for each in writes if isinstance(each, ast.Assign)]
        return any(
            isinstance(call, ast.Call)
            and (dotted(call.func) or "").rpartition(".")[2] == "rearrange"
            and len(call.args) > 1
            and isinstance(call.args[1], ast.Constant)
            and _moves_last(str(call.args[1].value))
            for each in made
            for call in walk(each)
        )


# --- what a function is handed ----------------------------------------------------------------------------------------


def _holds_floats(facts: Facts, node: ast.expr, frames: tuple[Frame, ...], depth: int = 12) -> bool:
    """Whether an expression of the innermost frame certainly is a tensor of floats: by how its callers have made it.

    It is asked of what is added to a tensor, so that what is told here is that it holds no integers.
    """
    if depth < 0 or not frames:
        return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.Sub)):
        sides = (node.left, node.right)  # a tensor of integers times a number with a point holds floats, too
        return any(
            isinstance(_arithmetic(each), float) or _holds_floats(facts, each, frames, depth - 1) for each in sides
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "float" and not node.args and not node.keywords:
            return True
        return node.func.attr in _VIEWS and _holds_floats(facts, node.func.value, frames, depth - 1)
    if not isinstance(node, ast.Name):
        return False
    frame = frames[-1]
    written = _written_last(facts, node, frame)
    if written is not None:
        return _holds_floats(facts, written, frames, depth - 1)
    given = _given_for(facts, node.id, frames)
    return given is not None and _holds_floats(facts, given, frames[:-1], depth - 1)


def _written_last(facts: Facts, node: ast.Name, frame: Frame) -> ast.expr | None:
    """What a name of a function was set to when ``node`` is read, where that is one statement whichever way it goes."""
    if not isinstance(frame.scope, FUNCTIONS) or facts.bindings.owner(node.id, node, frame.module) is not frame.scope:
        return None
    body = body_of(frame.scope)
    above = {*facts.places.ancestors(node, frame.module)}
    here = next((index for index, each in enumerate(body) if each in above), None)
    if here is None:
        return None
    writes = [(index, write) for index, each in enumerate(body) for name, write in stores(each) if name == node.id]
    before = [(index, write) for index, write in writes if index < here]
    if not before or any(index == here and write is not body[here] for index, write in writes):
        return None
    index, write = before[-1]
    if write is not body[index] or not isinstance(write, ast.Assign) or not _sets(write, node.id):
        return None
    return write.value


def _given_for(facts: Facts, name: str, frames: tuple[Frame, ...]) -> ast.expr | None:
    """The argument that the innermost frame's function was called with, if nothing sets the parameter."""
    frame = frames[-1]
    call = frame.call
    if len(frames) < 2 or not isinstance(call, ast.Call) or not isinstance(frame.scope, FUNCTIONS):
        return None
    if any(found == name for each in body_of(frame.scope) for found, _ in stores(each)):
        return None
    # checkpoint(block, x) and nn.Sequential hand on what they are given in their own way
    direct = (Instance, Bound, Function, Unknown)
    if not all(isinstance(each, direct) for each in members(facts.evaluate(call.func, frames[:-1]))):
        return None
    return None if any(each.arg is None for each in call.keywords) else argument_for(name, frame, call)


# --- small answers ----------------------------------------------------------------------------------------------------


def _moves_last(pattern: str) -> bool:
    """Whether the last axis of what einops gives is not the last one of what it is given."""
    given, arrow, made = pattern.partition("->")
    axes, last = re.findall(r"\w+", given), re.findall(r"\w+", made)
    return bool(arrow and axes and last) and axes[-1] != last[-1]


def _is_scripted(function: ast.AST) -> bool:
    """Whether TorchScript compiles a function."""
    return any("jit" in (dotted(each) or "") for each in getattr(function, "decorator_list", ()))


def _is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_changed_in_place(tree: ast.AST, name: str) -> bool:
    """Whether a method with an underscore behind it is called on a name, an attribute of this name, or a view of it."""
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr.endswith("_")
        and not each.func.attr.endswith("__")
        and any(name in (getattr(part, "id", None), getattr(part, "attr", None)) for part in walk(each.func.value))
        for each in walk(tree)
    )


def _sets(statement: ast.Assign, name: str) -> bool:
    """Whether an assignment sets a name, and nothing else."""
    return len(statement.targets) == 1 and _is_name(statement.targets[0], name)


def _starred(node: ast.AST) -> bool:
    return isinstance(node, ast.Starred)


def _is_words(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_plain_test(node: ast.expr) -> bool:
    """Whether a test may be asked once more, a little later."""
    if isinstance(node, (ast.Name, ast.Constant)):
        return True
    if isinstance(node, ast.Attribute):
        return dotted(node) is not None
    if isinstance(node, ast.UnaryOp):
        return _is_plain_test(node.operand)
    if isinstance(node, ast.Compare):
        return all(isinstance(each, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)) for each in node.ops) and all(
            _is_plain_test(each) for each in (node.left, *node.comparators)
        )
    if isinstance(node, ast.Call):
        return (
            isinstance(node.func, ast.Name)
            and node.func.id == "exists"
            and not node.keywords
            and all(isinstance(each, ast.Name) for each in node.args)
        )
    return False


def _far(value: float) -> float | None:
    return float(value) if value <= _FAR else None


def _arithmetic(node: ast.AST) -> object:
    """The number that literals come to."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float)) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _arithmetic(node.operand)
        return -inner if isinstance(inner, (int, float)) else None
    if isinstance(node, ast.BinOp):
        left, right = _arithmetic(node.left), _arithmetic(node.right)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Div) and right:
                return left / right
            if (
                isinstance(node.op, ast.Pow)
                and abs(right) < 64
                and abs(left) < 64
                and (left > 0 or right == int(right))
            ):
                return left**right if left or right > 0 else None
    return None


def _terms(node: ast.expr) -> tuple[str, str, str] | None:
    """The three terms of an einsum."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    found = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)", node.value.replace(" ", ""))
    if found is None or any(len(set(term)) != len(term) or len(term) < 3 for term in found.groups()):
        return None
    return found[1], found[2], found[3]


def _untransposed(node: ast.expr) -> tuple[ast.expr | None, int | None]:
    """``k`` of ``k.transpose(-2, -1)``, and how many dimensions lie before its last two where that is told."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value, None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
        return None, None
    numbers = [_arithmetic(each) for each in node.args]
    if len(node.args) == 1 and isinstance(node.args[0], (ast.Tuple, ast.List)):
        numbers = [_arithmetic(each) for each in node.args[0].elts]
    if node.func.attr in ("transpose", "swapaxes", "swapdims"):
        pair = set(numbers)
        if pair == {-2, -1}:
            return node.func.value, None
        if pair == {2, 3}:
            return node.func.value, 2
        # of three dimensions: of four, it would be the heads that change places
    if node.func.attr == "permute":
        if numbers == [0, 2, 1]:
            return node.func.value, 1
        if numbers in ([0, 1, 3, 2], [0, 1, -1, -2]):
            return node.func.value, 2
    return None, None


def _is_matrix(node: ast.expr) -> bool:
    """Whether an expression is turned as only a matrix of two dimensions is."""
    if isinstance(node, ast.Attribute):
        return node.attr == "T"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "t"


def _is_shape(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "shape"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size"


def _is_numeric(value: Value | None) -> bool:
    found = members(value)
    return bool(found) and all(
        (isinstance(each, Const) and isinstance(each.value, (int, float)) and not isinstance(each.value, bool))
        or (isinstance(each, Option) and _is_numeric(each.default))
        or (isinstance(each, Unknown) and each.number)
        for each in found
    )


def _is_square(node: ast.expr) -> bool:
    """``[:, :, :T, :T]``, ``[:T, :T]``, or new dimensions before a whole square."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    cut: list[str] = []
    for part in parts:
        if isinstance(part, ast.Slice):
            if part.lower is not None or part.step is not None:
                return False
            cut.append(ast.dump(part.upper) if part.upper is not None else "")
        elif isinstance(part, ast.Constant) and (part.value is None or part.value is Ellipsis):
            if cut and part.value is None:
                return False
        else:
            return False
    if not any(cut):
        return all(isinstance(part, ast.Constant) for part in parts)
    return len(cut) >= 2 and cut[-1] == cut[-2] and not any(cut[:-2])


def _is_leading_ones(arguments: Sequence[ast.expr]) -> bool:
    """``view(1, 1, n, n)``."""
    parts = list(arguments)
    if len(parts) == 1 and isinstance(parts[0], (ast.Tuple, ast.List)):
        parts = list(parts[0].elts)
    return (
        len(parts) >= 2
        and ast.dump(parts[-1]) == ast.dump(parts[-2])
        and _arithmetic(parts[-1]) != -1
        and all(_arithmetic(each) == 1 for each in parts[:-2])
    )


def _sizes(arguments: Sequence[ast.expr]) -> tuple[str, str] | None:
    """The sides of a square."""
    parts = list(arguments)
    if len(parts) == 1 and isinstance(parts[0], (ast.Tuple, ast.List)):
        parts = list(parts[0].elts)
    lead = parts[:-2]
    if len(parts) < 2 or any(_arithmetic(each) != 1 for each in lead):
        return None
    one, other = ast.dump(parts[-2]), ast.dump(parts[-1])
    return (one, other) if one == other else None


def _is_harmless(node: ast.expr) -> bool:
    """Whether an expression only works out a number: nothing is lost where nothing reads it."""
    for each in walk(node):
        if isinstance(each, ast.Call):
            name = dotted(each.func) or ""
            plain = isinstance(each.func, ast.Attribute) and each.func.attr in ("size", "dim")
            if not plain and name not in ("math.sqrt", "np.sqrt", "float", "int", "len", "sqrt"):
                return False
        elif not isinstance(
            each,
            (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.operator, ast.unaryop),
        ):
            return False
    return True
