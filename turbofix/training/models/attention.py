"""Attention that is written out: softmax(QK^T * scale + masks) V, as a pattern of definitions and uses.

It begins at a softmax and goes back through masks and a scale to the product of queries and keys, and on through
dropout to the product with the values. For any factors, ``softmax(A @ B, -1) @ C`` is the attention of ``A``, ``B``
transposed and ``C``. The script's own masks are handed on, what scales the scores and may be a tensor scales the
queries: what they mean need not be known. What a run would show is left to it (``certain`` says where nothing is).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Const, Instance, Made, Opaque, Option, Unknown, Value, members
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import dotted, is_nothing, parameters, reads_of, stored
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Attention, Unread, Unwanted
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
_FLATTENING = frozenset(("view", "reshape", "flatten"))
"""What makes positions, which come last, of a picture's rows and columns."""

_ASKING = regex("MultiheadAttention|attn_implementation|output_attentions|AttnProcessor")
_CASTS = words("float half double bfloat16 to type_as type contiguous clone")
_MODULES = words("torch F nn functional einops")
_PRODUCTS = words("matmul bmm einsum")
_INFINITE = regex(r"(?<![\w.])(?:(?:math|torch|np|numpy)\.)?inf\b")  # not ``self.inf``, which may be any number
_FAR = -1e4
"""From here on down a fill is minus infinity wherever a query sees a key: its exponential is 0 in float32."""
_LAST = {(-2, -1), (-1, -2)}
_SHAPING = words("bool to view unsqueeze float")
_SHAPES = words("shape size dim ndim")
_DEEP = regex(r"\[.*(None|:).*\]|unsqueeze|\.view\(|reshape|expand")
"""What shows that a mask has two dimensions: torch's function takes no mask of one."""


Product = tuple[ast.expr, tuple[str, str]]
"""The product of weights and values, the values, and what turns the result."""


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


def unwanted_weights(analysis: Analysis) -> tuple[Unwanted, ...]:
    """Calls of layers and models that make attention weights, which keeps torch's fused kernels away, for nobody."""
    found = dict[Site, Unwanted]()
    for module in analysis.execution.modules.values():
        said = _ASKING.search(module.text) is not None
        for call in every(ast.Call, module.tree) if said else ():
            one = _unwanted(analysis, call, module)
            if one is not None:
                found[one.call] = one
    return tuple(found[site] for site in sorted(found))


def _unwanted(analysis: Analysis, call: ast.Call, module: ModuleFile) -> Unwanted | None:
    named = {each.arg: each.value for each in call.keywords}
    if _name(call.func).rpartition(".")[2] in ("AttnProcessor", "LoRAAttnProcessor"):
        message = "this processor of diffusers writes a score for every pair of positions to memory"
        why = f"`{_name(call.func)}2_0` is by torch's kernel: take that where the versions served have it"
        return Unwanted(analysis.facts.places.site(call, module), message, why_not=why)
    asking = {None, "need_weights", "attn_implementation", "output_attentions"}
    if not asking & {*named} and "MultiheadAttention" not in module.text:
        return None
    site = analysis.facts.places.site(call, module)
    if getattr(named.get("output_attentions"), "value", None) is True and analysis.facts.at(call):
        message = "the model is asked for its attention weights, which keeps torch's fused kernels away"
        made, inside = _name(call.func).endswith("from_pretrained"), analysis.facts.places.function(call, module)
        if made and not _reads_attentions(analysis):
            return Unwanted(site, message, "output_attentions", "False", certain=False)
        why = "who reads them was not followed: ask for them only where they are read"
        steps = made or getattr(inside, "name", "") == "forward"
        return Unwanted(site, message, why_not=why) if steps else None
    if "MultiheadAttention" in module.text and _made_as(analysis, module, call.func).endswith("nn.MultiheadAttention"):
        asked = named.get("need_weights") or next(iter(call.args[4:5]), None)
        if None in named or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        if isinstance(asked, ast.Constant) and asked.value is False:
            return Unwanted(site, "the attention makes no weights", done=True)
        certain = _drops_weights(analysis, call, module) if asked is None else None
        if certain is not None:
            message = "this attention makes weights that nobody reads, which keeps the fused kernels away"
            return Unwanted(site, message, "need_weights", "False", certain)
    elif isinstance(given := named.get("attn_implementation"), ast.Constant):
        if given.value == "eager" and not _asks_for_attentions(analysis):
            message = "the model is loaded with attention that is written out, though torch has a fused kernel"
            return Unwanted(site, message, "attn_implementation", '"sdpa"', certain=False)
        if given.value in ("sdpa", "flash_attention_2", "flash_attention_3"):
            return Unwanted(site, f"attention runs in a fused kernel ({given.value})", done=True)
    return None


def _asks_for_attentions(analysis: Analysis) -> bool:
    return any(
        "output_attentions" in each.text or ".attentions" in each.text for each in analysis.execution.modules.values()
    )


def _reads_attentions(analysis: Analysis) -> bool:
    """Whether the program reads ``outputs.attentions``, and does not only hand them on under this name."""
    trees = [each.tree for each in analysis.execution.modules.values() if ".attentions" in each.text]
    handed = {id(each.value) for tree in trees for each in every(ast.keyword, tree) if each.arg == "attentions"}
    named = (each for tree in trees for each in every(ast.Attribute, tree) if each.attr == "attentions")
    return any(id(each) not in handed for each in named)


def _drops_weights(analysis: Analysis, call: ast.Call, module: ModuleFile) -> bool | None:
    """Whether a call's second result is certainly, or (False) seemingly read by nobody; None where it is read."""
    parent = analysis.facts.places.parent(call, module)
    if isinstance(parent, ast.Subscript) and getattr(parent.slice, "value", None) == 0:
        return True
    target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
    if not isinstance(target, ast.Tuple) or len(target.elts) != len("ow"):
        return None
    taken = target.elts[1]
    if isinstance(taken, ast.Attribute):
        return None if _attribute_read(analysis, taken.attr) else False
    assert isinstance(parent, ast.Assign)
    scope = analysis.facts.places.scope(call, module)
    if not isinstance(taken, ast.Name):
        return None
    first = [each.id for each in walk(target.elts[0]) if isinstance(each, ast.Name)]
    named = [each for each in walk(scope) if isinstance(each, ast.Name) and each.id == taken.id]
    reads = [each for each in named if isinstance(each.ctx, ast.Load)]
    same = taken.id in first or taken.id == "_"  # what is read is something else
    return not reads if same or all(_is_handed_on(analysis, each, scope, module) for each in reads) else None


def _is_handed_on(analysis: Analysis, name: ast.Name, function: ast.AST, module: ModuleFile) -> bool:
    """Whether a function only returns a name among others, and no caller is seen to use that one."""
    shown = analysis.facts.places.parent(name, module)
    if not isinstance(shown, ast.Tuple) or not isinstance(analysis.facts.places.parent(shown, module), ast.Return):
        return False
    return _taken(analysis, module, function, shown.elts.index(name), len(shown.elts)) is None


def _attentions(analysis: Analysis) -> Iterator[Attention]:
    made = {
        cls.node
        for event in analysis.facts.of("construct")
        for each in members(event.result)
        if isinstance(each, Instance)
        for cls in each.cls.mro()
        if hasattr(cls, "node")
    }
    made |= {frame.function.node for frame in analysis.execution.frames.values() if frame.function}
    against: list[str | None] = []
    texts = "\n".join(each.text for each in analysis.execution.modules.values())

    @cache
    def is_named(cls: str) -> bool:
        found = re.finditer(rf"{cls}\b(?<!\w{cls})(?<!super\({cls})", texts)  # a word at its head is found fast
        return len([*islice(found, len("xy"))]) > 1

    for module in analysis.execution.modules.values():
        if "oftmax" not in module.text:
            continue
        for call in every(ast.Call, module.tree):
            if not _is_softmax(call, module, analysis):
                continue
            outer = list(analysis.facts.places.ancestors(call, module))
            if not analysis.facts.at(call) and not any(each in made for each in outer):
                continue
            classes = [each for each in outer if isinstance(each, ast.ClassDef) and not each.decorator_list]
            if not all(map(is_named, {each.name for each in classes})):
                continue  # nothing but its own definition names it
            found = _Reading(analysis, call, module).attention()
            if found is not None:
                against = against or [_differentiates_twice(analysis)]
                if found.why_not is None and against[0] is not None:
                    found = Attention(found.softmax, found.product, found.function, why_not=against[0])
                yield found


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
    """``F.softmax(x, -1)``, ``x.softmax(-1)``, ``self.softmax(x)`` of a module made in the class."""
    name = _name(call.func).rpartition(".")[2]
    if name == "softmax" and not (dotted(call.func) or "").startswith("self."):
        return True
    return _made_as(analysis, module, call.func).endswith("nn.Softmax")


def _made_as(analysis: Analysis, module: ModuleFile, func: ast.expr) -> str:
    """The class of a layer that is called: as was seen, or as the class that holds it writes it down."""
    parent = analysis.facts.places.parent(func, module)
    seen = {event.name for event in analysis.facts.at(parent) if event.kind == "forward"} if parent else set()
    if len(seen) == 1 and (name := seen.pop()).startswith("torch.nn."):
        return name
    if isinstance(func, ast.Call):
        return dotted(func.func) or ""
    given = _attribute(analysis, module, func)
    if isinstance(given, ast.IfExp) and is_nothing(given.orelse):  # a layer that may be left out, and is tested for
        given = given.body
    return (dotted(given.func) or "") if isinstance(given, ast.Call) else ""


def _attribute(analysis: Analysis, module: ModuleFile, node: ast.AST) -> ast.expr | None:
    """What the class sets ``self.x`` to, where it does so once."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"):
        return None
    outer = (each for each in analysis.facts.places.ancestors(node, module) if isinstance(each, ast.ClassDef))
    cls = next(outer, None)
    found = _attributes(cls).get(node.attr, []) if cls is not None else []
    return found[0] if len(found) == 1 else None


@once_per_node
def _attributes(cls: ast.ClassDef) -> dict[str, list[ast.expr]]:
    """What a class sets the attributes of its objects to, buffers too."""
    found: dict[str, list[ast.expr]] = {}
    for node in walk(cls):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for one, value in pairs:
                    if isinstance(one, ast.Attribute) and dotted(one) == f"self.{one.attr}":
                        found.setdefault(one.attr, []).append(value)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "register_buffer" and len(node.args) > 1:
            name = node.args[0]
            if isinstance(name, ast.Constant):
                found.setdefault(str(name.value), []).append(node.args[1])
    return found


class _Reading:
    """One softmax, and what leads to it and away from it."""

    def __init__(self, analysis: Analysis, softmax: ast.Call, module: ModuleFile) -> None:
        self.analysis, self.module, self.softmax = analysis, module, softmax
        self.places = analysis.facts.places
        self.removed: list[ast.stmt] = []
        self.names: set[str] = set()  # those of the scores and of the weights
        self.uses: list[ast.AST] = []  # nodes within which these may be read
        self.masks: list[tuple[str, str, str | None]] = []  # keep or "", added, test
        self.causal: list[bool] = []
        self.scale: str | None = None
        self.folded: str | None = None  # what the queries are multiplied or divided by
        self.moved: list[tuple[int, ast.AST]] = []  # what is read further down than it was
        self.dropout: str | None = None
        self.certain = True
        self.letters: str | None = None  # einsum's, of the scores
        self.typed: list[tuple[ast.stmt, list[ast.Name]]] = []  # statements that ask scores for their dtype or device

    def attention(self) -> Attention | None:
        """The attention; None where it is none."""
        function = self.places.function(self.softmax, self.module)
        statement = self.places.statement(self.softmax, self.module)
        if function is None or statement is None or _KERNELS.search(self._text(self._owner(function))):
            return None
        self.function, self.block = function, self.places.block(statement, self.module)
        at = next((i for i, each in enumerate(self.block) if each is statement), None)
        if at is None:
            return None
        product: ast.AST = self.softmax
        try:
            product, values = self._forward(self.softmax, at)
            arguments = [*self.softmax.args, *(each.value for each in self.softmax.keywords if each.arg == "input")]
            func = self.softmax.func
            own = isinstance(func, ast.Attribute) and func.attr == "softmax" and not self._is_function(func)
            is_layer = (dotted(func) or "").startswith("self.")
            scores = func.value if isinstance(func, ast.Attribute) and own and not is_layer else arguments[0]
            query, key = self._back(scores, at)
            self._last_axis()
            self._keeps_queries(product)
            return self._told(product, query, key, values)
        except (_OtherError, IndexError):
            return None
        except _WhyNotError as error:
            site = self.places.site
            outer = site(function, self.module)
            return Attention(site(self.softmax, self.module), site(product, self.module), outer, why_not=str(error))

    def _owner(self, function: ast.AST) -> ast.AST:
        outer = self.places.ancestors(function, self.module)
        return next((each for each in outer if isinstance(each, ast.ClassDef)), function)

    def _text(self, node: ast.AST) -> str:
        return self.places.text(node, self.module)

    def _operand(self, node: ast.AST) -> str:
        text = self._text(node)
        return (
            text if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)) else f"({text})"
        )

    def _is_function(self, func: ast.expr) -> bool:
        """Whether ``torch.x`` or ``F.x`` is called, and not a method."""
        return isinstance(func, ast.Name) or (dotted(func) or "").partition(".")[0] in _MODULES

    def _called(self, node: ast.AST, *names: str) -> list[ast.expr] | None:
        """The operands of a call by one of these names, the object of a method first."""
        if not isinstance(node, ast.Call):
            return None
        name = _name(node.func).rpartition(".")[2]
        if name not in names:
            return None
        if self._is_function(node.func):  # (einops names the axes behind the tensors)
            last = name == "einsum" and isinstance(node.args[-1] if node.args else None, ast.Constant)
            return [node.args[-1], *node.args[:-1]] if last else list(node.args)
        return [node.func.value, *node.args] if isinstance(node.func, ast.Attribute) else None

    # --- onwards: from the softmax to the product with the values -------------------------------------------------

    def _forward(self, node: ast.expr, at: int) -> Product:
        product = self._climb(node)
        if product is not None:
            return product
        top = self._top
        statement = self.block[at]
        if not isinstance(statement, ast.Assign) or statement.value is not top or len(statement.targets) != 1:
            raise _OtherError
        name = statement.targets[0]
        if not isinstance(name, ast.Name):
            raise _OtherError
        self.names.add(name.id)
        self.removed.append(statement)
        for index in range(at + 1, len(self.block)):
            each = self.block[index]
            inner, test = _only_under_test(each)
            loads = [one for one in walk(each) if isinstance(one, ast.Name) and one.id == name.id]
            reads = [one for one in loads if isinstance(one.ctx, ast.Load)]
            if not reads:
                if loads:
                    raise _OtherError
                continue
            if self._asks_for_shape(each, name.id):
                self.removed.append(each)
                continue
            if isinstance(each, ast.Assign) and all(map(self._kept_on_demand, reads)):
                continue
            for read in reads:
                product = self._climb(read, test)
                if product is not None and test is None:
                    return product
            if not isinstance(inner, ast.Assign) or inner.value is not self._top or self._top is reads[-1]:
                raise _OtherError
            if [getattr(one, "id", None) for one in inner.targets] != [name.id] or len(reads) > 1:
                raise _OtherError
            if isinstance(each, ast.If) and len(each.body) > 1:
                raise _OtherError
            self.removed.append(each)
        raise _OtherError

    def _kept_on_demand(self, name: ast.Name) -> ast.IfExp | None:
        """What keeps weights for whoever asks for them: ``weights if self.vis else None``."""
        parent = self.places.parent(name, self.module)
        return parent if isinstance(parent, ast.IfExp) and parent.body is name and is_nothing(parent.orelse) else None

    def _climb(self, node: ast.expr, test: ast.expr | None = None) -> Product | None:
        """From the weights through dropout and casts to the product; the expression reached is ``_top``."""
        while True:
            parent = self.places.parent(node, self.module)
            first = isinstance(parent, ast.keyword) and parent.arg == "input"
            parent = self.places.parent(parent, self.module) if first and parent is not None else parent
            self._top = node
            if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult) and parent.left is node:
                return parent, (self._operand_of(parent.right), "")
            if isinstance(parent, ast.Call):
                given = self._called(parent, "matmul", "bmm")
                if given is not None and len(given) > 1 and given[0] is node:
                    return parent, (self._operand_of(given[1]), "")
                given = self._called(parent, "einsum")
                if given is not None and len(given) == len("swv") and given[1] is node:
                    return self._by_letters(parent, given)
                if given is not None:
                    raise _OtherError
                if (first or parent.args[:1] == [node]) and self._drops(parent, test):
                    node = parent
                    continue
            if not isinstance(parent, ast.Attribute):
                return None
            if parent.attr in ("permute", "transpose"):
                return self._turned_product(parent)
            called = self.places.parent(parent, self.module)
            if parent.attr in ("matmul", "bmm") and isinstance(called, ast.Call) and called.func is parent:
                return called, (self._operand_of(called.args[0]), "")
            if parent.attr in _CASTS:
                if isinstance(called, ast.Call):
                    self.certain = False
                    node = called
                    continue
                raise _OtherError
            return None

    def _turns(self, axes: list[ast.expr], *, of_three: bool = False) -> bool:
        """Whether the last two axes change places."""
        numbers = tuple(map(_number, axes))
        return numbers in _LAST or numbers == (0, 2, 1) or (of_three and numbers in ((1, 2), (2, 1)))

    def _turned_product(self, turned: ast.Attribute) -> Product | None:
        """``bmm(v, weights.permute(0, 2, 1))``: values whose widths come first, and a result like them."""
        call = self.places.parent(turned, self.module)
        if not isinstance(call, ast.Call):
            return None
        product = self.places.parent(call, self.module)
        of_three = self._called(product, "bmm") is not None if product is not None else False
        return self._product_of_turned(product, call) if self._turns(call.args, of_three=of_three) else None

    def _product_of_turned(self, product: ast.AST | None, weights: ast.expr) -> Product | None:
        if not isinstance(product, ast.expr):
            return None
        given = self._called(product, "matmul", "bmm") or []
        if isinstance(product, ast.BinOp) and isinstance(product.op, ast.MatMult):
            given = [product.left, product.right]
        if len(given) != len("vw") or given[1] is not weights:
            return None
        shaped = (each.attr for each in walk(self._given_last(given[0], product)) if isinstance(each, ast.Attribute))
        if not _FLATTENING & {*shaped}:
            raise _WhyNotError("whether its scores are between positions or between channels is not known")
        self.moved.append((-1, given[0]))
        return product, (f"{self._operand(given[0])}.transpose(-2, -1).contiguous()", ".transpose(-2, -1).contiguous()")

    def _has_three(self, factor: ast.expr) -> bool:
        """Whether a factor was given three dimensions: ``q.permute(0, 2, 1)``, ``x.reshape(b, c, h * w)``."""
        given = self._called(self._given_last(factor, factor), "permute", "reshape", "view") or []
        return len(given) == len("xbqc") and not any(isinstance(each, ast.Starred) for each in given)

    def _given_last(self, node: ast.expr, reader: ast.expr) -> ast.expr:
        """What a name was set to last in the block, before it is read; other expressions as they are."""
        if not isinstance(node, ast.Name):
            return node
        above = [each for each in self.block if each.lineno < reader.lineno and node.id in stored([each])]
        last = above[-1] if above else None
        return last.value if isinstance(last, ast.Assign) else node

    def _operand_of(self, node: ast.expr) -> str:
        self.moved.append((-1, node))
        return self._text(node)

    def _drops(self, call: ast.Call, test: ast.expr | None) -> bool:
        """Whether a call is dropout, which is noted."""
        name = (dotted(call.func) or "").rpartition(".")[2]
        if self.dropout is not None:
            return False
        own = {each.arg for each in parameters(self.function)}
        if name == "dropout" and self._is_function(call.func) and _name(call.func) not in own:
            named = {each.arg: each.value for each in call.keywords}
            share = named.get("p") or next(iter(call.args[1:]), None)
            on = named.get("training") or next(iter(call.args[2:]), None)
            text = self._text(share) if share is not None else "0.5"
            if on is not None and not (isinstance(on, ast.Constant) and on.value is True):
                text = (
                    f"({text}) if {self._text(on)} else 0.0"
                    if " if " in text
                    else f"{text} if {self._text(on)} else 0.0"
                )
        elif _made_as(self.analysis, self.module, call.func).endswith("nn.Dropout") and len(call.args) == 1:
            layer = self._text(call.func)
            text = f"{layer}.p if {layer}.training else 0.0"
        elif isinstance(call.func, ast.Name) and "drop" in call.func.id and call.func.id in own:
            self.certain = False  # a layer that is handed down
            layer = call.func.id
            text = f"{layer}.p if {layer}.training else 0.0"
        else:
            return False
        if test is not None:
            text = f"({text}) if {self._text(test)} else 0.0"
        self.dropout = text
        return True

    def _by_letters(self, call: ast.Call, given: list[ast.expr]) -> Product:
        """``einsum("bhqk,bkhd->bqhd", weights, v)``: the values as torch wants them, and how to turn the result."""
        (weights, values), out = _subscripts(given[0])
        *batch, query, key = list(weights)
        width = [each for each in values if each not in weights]
        if len(width) != 1 or sorted(values) != sorted([*batch, key, *width]):
            raise _OtherError
        if sorted(out) != sorted([*batch, query, *width]):
            raise _OtherError
        self.letters = weights
        turned = _turned(self._operand_of(given[2]), values, [*batch, key, *width])
        return call, (turned, _turned("", "".join([*batch, query, *width]), list(out)))

    # --- back: from the softmax to the product of queries and keys ------------------------------------------------

    def _back(self, node: ast.expr, at: int, test: ast.expr | None = None) -> tuple[str, str]:
        """Queries and keys, as they are to be given; notes masks and the scale on the way."""
        if isinstance(node, ast.Name):
            return self._back_from(node, at)
        if isinstance(node, ast.BinOp):
            left, right = self._is_scores(node.left, at), self._is_scores(node.right, at)
            if isinstance(node.op, ast.MatMult):
                return self._factors(node.left, node.right, at)
            if left and right and isinstance(node.op, ast.Add):  # both are products: either is added to the other
                left, right = self._is_product(node.left, at), not self._is_product(node.left, at)
            if left is right:
                raise _OtherError
            scores, other = (node.left, node.right) if left else (node.right, node.left)
            self._operation(node.op, other, at, test, swapped=right)
            return self._back(scores, at)
        if (given := self._called(node, "einsum")) is not None:
            return self._factors_by_letters(given, at)
        if (given := self._called(node, "matmul", "bmm")) is not None and len(given) == len("qk"):
            self._in_heads = self._called(node, "bmm") is not None or self._has_three(given[0])
            return self._factors(given[0], given[1], at)
        if (given := self._called(node, "masked_fill", "masked_fill_")) is not None and len(given) == len("smf"):
            self._masked(given[1], given[2], at, test)
            return self._back(given[0], at)
        if (
            (given := self._called(node, "where")) is not None
            and len(given) == len("msf")
            and self._is_scores(given[1], at)
        ):
            self._kept(given[0], given[2], at, test)
            return self._back(given[1], at)
        if (given := self._called(node, "mul", "div", "mul_", "div_")) is not None and len(given) == len("sc"):
            divides = self._called(node, "div", "div_") is not None
            self._operation(ast.Div() if divides else ast.Mult(), given[1], at, test, swapped=False)
            return self._back(given[0], at)
        if (given := self._called(node, "add", "add_")) is not None and len(given) == len("sm"):
            self._operation(ast.Add(), given[1], at, test, swapped=False)
            return self._back(given[0], at)
        given = node.args if isinstance(node, ast.Call) and self._drops_nothing(node) else None
        if given := given or self._called(node, *_CASTS):
            self.certain = False
            return self._back(given[0], at)
        raise _OtherError

    def _drops_nothing(self, call: ast.Call) -> bool:
        """Whether a call is dropout, of a share that is 0 wherever its layer was seen to be made."""
        seen = [each for event in self.analysis.facts.at(call) for each in members(event.receiver)]
        layers = [each for each in seen if isinstance(each, Made) and "Dropout" in each.qualname]
        shares = [members(share.value) if (share := each.arguments.get("p", 0)) else () for each in layers]
        if layers and not all(each and all(getattr(one, "value", 1) == 0 for one in each) for each in shares):
            raise _WhyNotError("its scores are dropped at random before the softmax, which torch's kernels cannot")
        return bool(layers)

    def _asks_for_shape(self, statement: ast.stmt, name: str) -> bool:
        """Whether a statement asserts no more of a name than its shape."""
        reads = [each for each in walk(statement) if isinstance(each, ast.Name) and each.id == name]
        above = (self.places.parent(each, self.module) for each in reads)
        return isinstance(statement, ast.Assert) and all(getattr(each, "attr", "") in _SHAPES for each in above)

    def _back_from(self, name: ast.Name, at: int) -> tuple[str, str]:
        """From a name to the statement above that gave it its value, and through those that change it."""
        self.names.add(name.id)
        for index in reversed(range(at)):
            each = self.block[index]
            inner, test = _only_under_test(each)
            changes = name.id in stored([each]) or self._is_changed(inner, name.id)
            beside = [each] if not changes else each.body[:-1] if isinstance(each, ast.If) else []
            for one in reversed(beside):
                self._asks(one, name.id)
            if not changes:
                continue
            if test is not None:
                self.moved.append((index, test))
            self.removed.append(inner if beside else each)
            if isinstance(inner, ast.Assign) and len(inner.targets) == 1 and isinstance(inner.targets[0], ast.Name):
                if test is None:
                    return self._back(inner.value, index)
                return self._through(inner.value, name, index, test)
            if isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
                self._operation(inner.op, inner.value, index, test, swapped=False)
                return self._back_from(name, index)
            if isinstance(inner, ast.Expr):
                return self._through(inner.value, name, index, test)
            raise _OtherError
        raise _OtherError

    def _asks(self, statement: ast.stmt, name: str) -> None:
        """What stands between the scores and their softmax may ask what they are made of, and no more."""
        read = [each for each in walk(statement) if isinstance(each, ast.Name) and each.id == name]
        asked = {getattr(self.places.parent(each, self.module), "attr", "") for each in read}
        if read and self._asks_for_shape(statement, name):  # of what will not be made any more
            self.removed.append(statement)
        elif not asked <= {"dtype", "device"}:
            raise _WhyNotError("the scores are read by themselves as well")
        elif read:
            self.typed.append((statement, read))

    def _through(self, change: ast.expr, name: ast.Name, at: int, test: ast.expr | None) -> tuple[str, str]:
        """Through one change of the scores, perhaps under a test, to those before it."""
        given = self._called(change, "masked_fill", "masked_fill_", "where", "add_", "mul_", "div_") or []
        left = getattr(change, "left", None)
        if any(isinstance(each, ast.Name) and each.id == name.id for each in (*given, left)):
            return self._back(change, at, test)
        raise _OtherError

    def _is_changed(self, statement: ast.stmt, name: str) -> bool:
        given = (
            self._called(statement.value, "masked_fill_", "add_", "mul_", "div_")
            if isinstance(statement, ast.Expr)
            else None
        )
        return given is not None and getattr(given[0], "id", None) == name

    def _is_scores(self, node: ast.expr, at: int, depth: int = 6) -> bool:
        """Whether an expression holds a product, or a name that does."""
        for each in walk(node):
            if isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult):
                return True
            if isinstance(each, ast.Call) and self._called(each, *_PRODUCTS) is not None:
                return True
        if isinstance(node, ast.Name) and depth:
            for index in reversed(range(at)):
                inner, _ = _only_under_test(self.block[index])
                if node.id in stored([self.block[index]]):
                    if (
                        isinstance(inner, ast.Assign)
                        and len(inner.targets) == 1
                        and inner.targets[0].__class__ is ast.Name
                    ):
                        return self._is_scores(inner.value, index, depth - 1)
                    if isinstance(inner, ast.AugAssign):
                        return self._is_scores(node, index, depth - 1)
                    return False
            return False
        below = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return depth > 0 and any(self._is_scores(each, at, depth - 1) for each in below)

    def _is_product(self, node: ast.expr, at: int) -> bool:
        """Whether an expression is a product itself, or a name for one."""
        if isinstance(node, ast.Name):
            found = [each for each in self.block[:at] if node.id in stored([each])]
            return len(found) == 1 and isinstance(found[0], ast.Assign) and self._is_product(found[0].value, at)
        matrices = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
        return matrices or self._called(node, *_PRODUCTS) is not None

    # --- scale and masks --------------------------------------------------------------------------------------------

    def _operation(self, op: ast.operator, other: ast.expr, at: int, test: ast.expr | None, *, swapped: bool) -> None:
        if isinstance(op, (ast.Mult, ast.Div)) and not (swapped and isinstance(op, ast.Div)):
            if test is not None or self.scale is not None or self.folded is not None:
                raise _WhyNotError("it is scaled more than once, or under a test")
            self.moved.append((at, other))
            text, divides = self._operand(other), isinstance(op, ast.Div)
            self._scaling = f" {'/' if divides else '*'} {text}"
            if self._is_number(other):
                self.scale = f"1.0 / {text}" if divides else self._text(other)
            else:
                self.certain = False
                self.folded = f"{{}}{self._scaling}"
        elif isinstance(op, ast.Add):
            self.moved.append((at, other))
            self.causal.append(self._is_triangle(other, added=True))
            self.certain = self.certain and self.causal[-1]
            added = f"{self._operand(other)}{self._scaling}" if self._scaling else self._text(other)
            self.masks.append(("", added, self._text(test) if test is not None else None))
        else:
            raise _OtherError

    def _is_number(self, node: ast.expr) -> bool:
        """Whether a factor was no tensor wherever the function ran."""
        frames = self.analysis.execution.frames.values()
        found = [each.values.get(node) for each in frames if each.function and each.function.node is self.function]
        return isinstance(node, ast.Constant) or (bool(found) and all(map(_is_no_tensor, found)))

    def _masked(self, mask: ast.expr, fill: ast.expr, at: int, test: ast.expr | None) -> None:
        """``masked_fill(mask, fill)``: what is True may not be seen."""
        kept = None
        if isinstance(mask, ast.Compare) and len(mask.ops) == 1 and isinstance(mask.ops[0], (ast.Eq, ast.NotEq)):
            other = " != " if isinstance(mask.ops[0], ast.Eq) else " == "
            kept = self._text(mask.left) + other + self._text(mask.comparators[0])
        elif isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
            kept = self._text(mask.operand)
        elif (given := self._called(mask, "logical_not", "eq", "bool")) is not None and len(given) == 1:
            kept = self._text(given[0]) if self._called(mask, "logical_not") else None
        self._left_out(mask, fill, kept or f"~{self._operand(mask)}", "{zeros}.masked_fill({mask}, {fill})", at, test)

    def _kept(self, mask: ast.expr, fill: ast.expr, at: int, test: ast.expr | None) -> None:
        """``where(mask, scores, fill)``: what is True may be seen."""
        added = "{zeros}.masked_fill(~{mask}, {fill})"
        if not self._is_number(fill):
            self.certain = False
        self._left_out(mask, fill, self._text(mask), added, at, test, zero_is_out=True)

    def _left_out(  # noqa: PLR0913
        self,
        mask: ast.expr,
        fill: ast.expr,
        keep: str,
        added: str,
        at: int,
        test: ast.expr | None,
        *,
        zero_is_out: bool = False,
    ) -> None:
        self.moved += [(at, mask), (at, fill)]
        said = self._text(fill)
        value = _number(fill)
        infinite = _INFINITE.search(said) is not None
        if value is not None and value > _FAR:
            raise _OtherError
        if value is None and not infinite:
            self.certain = False
        for name in self.names:
            said = re.sub(rf"\b{name}\.dtype\b", "{query}.dtype", said)
        if any(isinstance(each, ast.Name) and each.id in self.names for each in walk(mask)):
            raise _WhyNotError("its mask is made of the scores")
        causal = self._is_triangle(mask, zero_is_out)
        if not causal and not _DEEP.search(self._text(mask) + self._made_of(mask)):
            self.certain = False  # it may have one dimension only, which torch's function does not take
        self.causal.append(causal)
        additive = added.replace("{mask}", self._operand(mask) if "~" in added else self._text(mask)).replace(
            "{fill}", said
        )
        under = self._text(test) if test is not None else None
        self.masks.append((keep if infinite else "", additive, under))

    def _made_of(self, node: ast.AST) -> str:
        """The texts of the statements in this function that give a mask's name its value."""
        names = {each.id for each in walk(node) if isinstance(each, ast.Name)}
        found = [each for each in walk(self.function) if isinstance(each, ast.Assign) and names & stored([each])]
        return " ".join(self._text(each.value) for each in found)

    def _is_triangle(self, node: ast.expr, zero_is_out: bool = False, *, added: bool = False) -> bool:
        """Whether a mask leaves out just what lies ahead of each query, of as many keys as queries."""
        if "cat(" in self._text(self.function) or "past" in self._text(self.function):
            return False
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            zero_is_out ^= getattr(node.comparators[0], "value", 1) in (0, False)
            node = node.left
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            zero_is_out, node = not zero_is_out, node.operand
        made = self._made_once(node) if isinstance(node, ast.Name) else None
        node = made if isinstance(made, ast.Subscript) else node
        part = node
        square = True
        while isinstance(part, (ast.Subscript, ast.Call)) and not self._called(part, "tril", "triu"):
            if isinstance(part, ast.Call):
                if getattr(part.func, "attr", "") not in _SHAPING:
                    return False
                part = part.func.value  # type: ignore[attr-defined]
                continue
            ends = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
            cuts = [each for each in ends if isinstance(each, ast.Slice) and each.upper is not None]
            square = (
                square and len({ast.dump(each.upper) for each in cuts if each.upper}) == 1 and len(cuts) == len("qk")
            )
            square = square and not any(each.step or not _is_from_the_end(each) for each in cuts)
            part = part.value
        if part is not node and not square and any(isinstance(each, ast.Slice) for each in walk(node)):
            return False
        if isinstance(part, ast.Attribute):
            given = _attribute(self.analysis, self.module, part)
            if given is None or not any(isinstance(each, ast.Slice) for each in walk(node)):
                return False
            if _is_changed_in_place(self.analysis, part.attr):
                return False
            return self._makes_triangle(given, zero_is_out, added, set())
        return self._makes_triangle(part, zero_is_out, added, set())

    def _made_once(self, name: ast.Name) -> ast.expr | None:
        """What a function sets a name to, where it does so once, and changes it nowhere."""
        scope = self.places.function(name, self.module) or self.function
        found = [each for each in walk(scope) if isinstance(each, ast.Assign) and name.id in stored([each])]
        written = _changed_in_place([each for each in walk(scope) if isinstance(each, ast.stmt)])
        once = len(found) == 1 and found[0].targets[0].__class__ is ast.Name and name.id not in written
        return found[0].value if once else None

    def _makes_triangle(self, node: ast.expr, zero_is_out: bool, added: bool, seen: set[str]) -> bool:
        while isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _SHAPING:
            node = node.func.value  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and node.id not in seen:
            made = self._made_once(node)
            return made is not None and self._makes_triangle(made, zero_is_out, added, {*seen, node.id})
        given = self._called(node, "tril", "triu")
        if given is None or not isinstance(node, ast.Call):
            return False
        diagonal = next((each.value for each in node.keywords if each.arg == "diagonal"), None) or next(
            iter(given[1:]), None
        )
        shift = _number(diagonal) if diagonal is not None else 0
        filled = self._called(given[0], "full", "ones", "ones_like")
        if filled is None or not isinstance(given[0], ast.Call):
            return False
        if self._called(given[0], "ones") and not _is_square(filled):
            return False
        if added:
            inf = any("inf" in self._text(each) for each in given[0].args)
            size = filled[0].elts if filled and isinstance(filled[0], ast.Tuple) else []
            return bool(self._called(node, "triu")) and shift == 1 and inf and _is_square(size)
        if self._called(given[0], "full"):
            return False
        return shift == 0 and zero_is_out if self._called(node, "tril") else shift == 1 and not zero_is_out

    # --- factors ----------------------------------------------------------------------------------------------------

    _in_heads = False
    _scaling = ""  # what scales the scores later, and with them what is added to them

    def _factors(self, query: ast.expr, key: ast.expr, at: int) -> tuple[str, str]:
        made = self._made_once(key) if isinstance(key, ast.Name) else None
        set_at = [
            i for i, each in enumerate(self.block[:at]) if made is not None and getattr(each, "value", None) is made
        ]
        if made is not None and set_at and self._untransposed(made) in map(self._text, walk(made)):
            at, key = set_at[0], made
        self.moved += [(at, query), (at, key)]
        self._asked = next((each.id for each in walk(query) if isinstance(each, ast.Name) and each.id != "self"), "")
        return self._text(query), self._untransposed(key)

    _asked = ""  # of what dtype the queries are, and so the scores

    def _untransposed(self, key: ast.expr) -> str:
        """The keys of the transposed ones."""
        given = self._called(key, "transpose", "swapaxes", "permute") or []
        axes = tuple(each for each in map(_number, given[1:]) if each is not None)
        last = _LAST | ({(1, 2), (2, 1)} if self._in_heads else set())
        turned = axes in last or axes == (0, 1, 3, 2) or (axes == (0, 2, 1)) or (axes in ((2, 3), (3, 2)))
        if self._called(key, "t") is not None or (isinstance(key, ast.Attribute) and key.attr == "T"):
            raise _OtherError  # of two dimensions: rows of a memory or of classes, and no positions
        if given and turned:
            return self._text(given[0])
        if isinstance(key, ast.Attribute) and key.attr == "mT":
            return self._text(key.value)
        return f"{self._operand(key)}.transpose(-2, -1).contiguous()"

    def _factors_by_letters(self, given: list[ast.expr], at: int) -> tuple[str, str]:
        """``einsum("bqhd,bkhd->bhqk", q, k)``."""
        if len(given) != len("sqk"):
            raise _OtherError
        (one, two), out = _subscripts(given[0])
        *batch, i, j = list(out)
        queries, keys = (one, two) if i in one else (two, one)
        width = [each for each in queries if each not in out]
        if (
            len(width) != 1
            or sorted(queries) != sorted([*batch, i, *width])
            or sorted(keys) != sorted([*batch, j, *width])
        ):
            raise _OtherError
        if self.letters is not None and len(self.letters) != len(out):
            raise _OtherError
        first, second = (given[1], given[2]) if queries is one else (given[2], given[1])
        self.moved += [(at, first), (at, second)]
        self._letters_out = out if "." not in out else None
        query = _turned(self._operand(first), queries, [*batch, i, *width])
        return query, _turned(self._operand(second), keys, [*batch, j, *width])

    _letters_out: str | None = None

    # --- all of it ----------------------------------------------------------------------------------------------------

    def _last_axis(self) -> None:
        """The softmax runs over the keys."""
        made = self.softmax
        given = next((each.value for each in made.keywords if each.arg == "dim"), None)
        if given is None and _made_as(self.analysis, self.module, made.func).endswith("nn.Softmax"):
            layer = made.func if isinstance(made.func, ast.Call) else _attribute(self.analysis, self.module, made.func)
            made = layer if isinstance(layer, ast.Call) else made
            given = next((each.value for each in made.keywords if each.arg == "dim"), None) or next(
                iter(made.args), None
            )
        elif given is None:
            own = isinstance(made.func, ast.Attribute) and not self._is_function(made.func)
            given = next(iter(made.args if own else made.args[1:]), None)
        axis = _number(given) if given is not None else None
        rank = len(self._letters_out) if self._letters_out else 3 if self._in_heads else None
        if axis == -1 or (rank is not None and axis == rank - 1):
            return
        if axis == len("bhq") and rank is None:
            return
        raise _WhyNotError("its softmax does not run over the last axis, the keys, as far as the text tells")

    def _told(self, product: ast.expr, query: str, key: str, values: tuple[str, str]) -> Attention:
        value, behind = values
        self.uses += [product, *self.removed, *(each for _, read in self.typed for each in read)]
        self._is_unchanged(product)
        unread = self._read_elsewhere(product)
        unread += [] if self._is_function(self.softmax.func) or not _hooks(self.analysis) else [Unread(None)]
        scale = self.scale or "1.0"
        if self.folded is not None:
            query = self.folded.format(query if query.isidentifier() else f"({query})")
        causal = bool(self.masks) and all(self.causal) and len({each[2] for each in self.masks}) == 1
        test = self.masks[0][2] if self.masks else None
        mask = None
        if causal:
            mask = "True" if test is None else f"bool({test})"
        elif self.masks:
            mask = self._mask(query, key)
        is_of_three = self._in_heads or len(self._letters_out or "") == len("bij") or self._is_of_one_head(query)
        if not behind and self._is_viewed(product):
            behind = ".contiguous()"
        site = self.places.site
        asked = tuple(site(each, self.module) for each in self._still_asking(mask or ""))
        return Attention(
            site(self.softmax, self.module),
            site(product, self.module),
            site(self.function, self.module),
            query,
            key,
            value,
            mask,
            causal,
            self.dropout,
            scale,
            behind,
            is_of_three,
            tuple(site(each, self.module) for each in self.removed),
            tuple(unread),
            self.certain,
            typed=asked,
            like=self._asked,
        )

    def _still_asking(self, mask: str) -> list[ast.Name]:
        """Where the scores are asked what they are made of, once what only leads to a mask that goes has gone, too."""
        found: list[ast.Name] = []
        for statement, read in self.typed:  # the last one first
            own = stored([statement])
            gone = {id(each) for node in (*self.removed, statement) for each in walk(node)}
            kept = any(id(each) not in gone for name in own for each in reads_of(name, self.function))
            if isinstance(statement, ast.Assign) and not kept and not own & set(re.findall(r"\w+", mask)):
                self.removed.append(statement)
            else:
                found += read
        if found and not self._asked:
            raise _WhyNotError("the scores are read by themselves as well")
        return found

    def _mask(self, query: str, key: str) -> str:
        """All masks as one: a condition where each leaves out for certain, else what is added."""
        tests = {test for _, _, test in self.masks}
        if len(tests) > 1 and None not in tests:
            raise _WhyNotError("its masks are made under different tests")
        (common,) = tests if len(tests) == 1 else (None,)
        if all(keep for keep, _, _ in self.masks):
            kept = [_under(keep, test if test != common else None, "True") for keep, _, test in reversed(self.masks)]
            text = kept[0] if len(kept) == 1 else " & ".join(f"({each})" for each in kept)
        else:
            first = query if query.isidentifier() else f"({query})"
            zeros = f"{key if key.isidentifier() else self._asked or first}.new_zeros(())"
            self.certain = self.certain and len(self.masks) == 1
            added = [
                _under(
                    each.replace("{zeros}", zeros).replace("{query}", first), test if test != common else None, "0.0"
                )
                for _, each, test in reversed(self.masks)
            ]
            text = " + ".join(added)
        return f"{text} if {common} else None" if common is not None else text

    def _is_of_one_head(self, query: str) -> bool:
        """Whether queries are a layer's output of three dimensions: torch's kernels take four."""
        made = [each for each in walk(self.function) if isinstance(each, ast.Assign) and query in stored([each])]
        if len(made) != 1 or not isinstance(made[0].value, ast.Call) or isinstance(made[0].targets[0], ast.Tuple):
            return False
        call = made[0].value
        if not (dotted(call.func) or "").startswith("self.") or (dotted(call.func) or "").count(".") != 1:
            return False
        if not _made_as(self.analysis, self.module, call.func).endswith("nn.Linear") or len(call.args) != 1:
            return False
        shapes = {f"{self._text(call.args[0])}.shape", f"{self._text(call.args[0])}.size()"}
        unpacked = [
            each for each in walk(self.function) if isinstance(each, ast.Assign) and self._text(each.value) in shapes
        ]
        return any(
            isinstance(each.targets[0], ast.Tuple) and len(each.targets[0].elts) == len("btc") for each in unpacked
        )

    def _is_viewed(self, product: ast.expr) -> bool:
        """Whether the product may be viewed as it lies, which what torch's kernels give does not allow."""
        statement = self.places.statement(product, self.module)
        names = stored([statement]) if isinstance(statement, ast.Assign) and statement.value is product else set()
        later = [each for each in self.block if each.lineno > product.lineno]
        once = not names & stored(later)
        for each in walk(self.function):
            if isinstance(each, ast.Attribute) and each.attr == "view":
                held: ast.AST | None = each.value
            else:
                held = each.value if isinstance(each, ast.Return) and once and self._views_somewhere() else None
                held = held.elts[0] if isinstance(held, ast.Tuple) and held.elts else held
            if held is product or (isinstance(held, ast.Name) and held.id in names):
                return True
        return False

    def _views_somewhere(self) -> bool:
        return any(".view(" in each.text for each in self.analysis.execution.modules.values())

    def _keeps_queries(self, product: ast.AST) -> None:
        """What is added up over its queries is a pooling: adding up the weights first is better."""
        above = self.places.parent(product, self.module)
        added = isinstance(above, ast.Attribute) and above.attr in ("sum", "mean")
        call = self.places.parent(above, self.module) if above is not None and added else None
        given = [*call.args, *(each.value for each in call.keywords)] if isinstance(call, ast.Call) else []
        if {1, -2} & {*map(_number, given)}:
            raise _WhyNotError("its result is added up over the queries: add up the weights first, and multiply once")

    def _is_unchanged(self, product: ast.expr) -> None:
        """What is read at the product instead of further up must be the same there."""
        last = self.places.statement(product, self.module)
        end = next((i for i, each in enumerate(self.block) if each is last), None)
        if end is None:
            raise _OtherError
        for at, node in self.moved:
            kinds = {each.value for each in walk(node) if isinstance(each, ast.Attribute) and each.attr == "dtype"}
            names = {each.id for each in {*walk(node)} - kinds if isinstance(each, ast.Name)} if at >= 0 else set()
            between = [each for each in self.block[at + 1 : end] if each not in self.removed]
            if names & (stored(between) | self.names | _changed_in_place(between)):
                raise _OtherError

    def _read_elsewhere(self, product: ast.expr) -> list[Unread]:
        """Where weights are handed on: nobody seems to read them, or it is refused."""
        inside = {id(each) for node in self.uses for each in walk(node)}
        found: list[Unread] = []
        end = (product.end_lineno or 0, product.end_col_offset or 0)
        chain: list[ast.stmt | ast.expr] = [*self.removed, self.softmax]
        first = min((each.lineno, each.col_offset) for each in chain)
        bound = stored([self.places.statement(product, self.module) or self.function]) & self.names
        names = [each for each in walk(self.function) if isinstance(each, ast.Name) and each.id in self.names]
        for each in sorted(names, key=lambda one: (one.lineno, one.col_offset)):
            here = each.lineno, each.col_offset
            if id(each) in inside or here < first or each.id in bound:
                continue
            statement = self.places.statement(each, self.module)
            if isinstance(statement, ast.Delete) and len(statement.targets) == 1 and statement in self.block:
                self.removed.append(statement)
                continue
            if isinstance(each.ctx, ast.Store) and here > end:
                bound = bound | {each.id}
                continue
            found.append(self._unread(each))
        return found

    def _unread(self, name: ast.Name) -> Unread:
        places = self.places
        parent = places.parent(name, self.module)
        statement = places.statement(name, self.module)
        why = f"its weights are read by themselves on line {name.lineno}"
        kept = self._kept_on_demand(name)
        if kept is not None and isinstance(statement, ast.Assign) and statement.value is kept:
            return Unread(places.site(kept, self.module))
        if isinstance(parent, ast.Assign) and parent.value is name and isinstance(parent.targets[0], ast.Attribute):
            line = _attribute_read(self.analysis, parent.targets[0].attr)
            if line is None:
                return Unread(places.site(name, self.module))
            raise _WhyNotError(f"its weights are kept, and read {line}")
        if isinstance(statement, ast.Return) and isinstance(parent, ast.Tuple) and parent is statement.value:
            line = _taken(self.analysis, self.module, self.function, parent.elts.index(name), len(parent.elts))
            if line is None:
                return Unread(places.site(name, self.module))
            raise _WhyNotError(f"its weights are returned, and read {line}")
        raise _WhyNotError(why)


# --- small questions ----------------------------------------------------------------------------------------------


def _hooks(analysis: Analysis) -> bool:
    """Whether the program hooks into its layers' calls."""
    return any("register_forward_hook" in each.text for each in analysis.execution.modules.values())


def _only_under_test(statement: ast.stmt) -> tuple[ast.stmt, ast.expr | None]:
    """The last statement of an ``if`` without ``else``, with its test; any other statement itself."""
    if isinstance(statement, ast.If) and not statement.orelse:
        return statement.body[-1], statement.test
    return statement, None


def _under(text: str, test: str | None, otherwise: str) -> str:
    return text if test is None else f"({text} if {test} else {otherwise})"


def _is_no_tensor(value: Value | None) -> bool:
    found = members(value)
    return bool(found) and all(
        isinstance(each, (Const, Option))
        or (isinstance(each, Unknown) and each.number)
        or (isinstance(each, Opaque) and each.name.startswith("numpy."))
        for each in found
    )


def _name(func: ast.expr) -> str:
    """What is called: a dotted name, or the method's alone."""
    return dotted(func) or (func.attr if isinstance(func, ast.Attribute) else "")


def _number(node: ast.expr | None) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return -inner if inner is not None else None
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value) if isinstance(node.value, float) else node.value  # type: ignore[return-value]
    return None


def _is_from_the_end(cut: ast.Slice) -> bool:
    """``:n``, or ``n - m : n``: the last of n, which are all of them where there are as many keys as queries."""
    low = cut.lower
    return low is None or (isinstance(low, ast.BinOp) and ast.dump(low.left) == ast.dump(cut.upper or low))


def _is_square(sizes: list[ast.expr]) -> bool:
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple):
        sizes = sizes[0].elts
    return len(sizes) > 1 and ast.dump(sizes[-1]) == ast.dump(sizes[-2])


def _subscripts(node: ast.expr) -> tuple[tuple[str, str], str]:
    """The letters of an einsum of two factors."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise _OtherError
    text, named = node.value.replace("...", "."), re.compile(r"\w\w+").findall(node.value)
    if re.search(r"\w \w", text):  # einops: each axis is a word
        from string import ascii_letters

        free = (each for each in ascii_letters if each not in re.findall(r"\b\w\b", text))
        letters = dict(zip(dict.fromkeys(named), free))  # noqa: B905
        text = re.sub(r"\w\w+", lambda word: letters[word[0]], text)
    found = re.fullmatch(r"([a-zA-Z.]+),([a-zA-Z.]+)->([a-zA-Z.]+)", text.replace(" ", ""))
    if found is None or any(len(set(each)) != len(each) for each in found.groups()):
        raise _OtherError
    return (found[1], found[2]), found[3]


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


def _changed_in_place(statements: list[ast.stmt]) -> set[str]:
    """The names whose tensors statements may write into: ``k[0] = 1``, ``k.mul_(2)``, ``F.relu(k, inplace=True)``."""
    found: set[str] = set()
    for node in (each for statement in statements for each in walk(statement)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found |= {each.id for each in walk(node.value) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.Call):
            changes = isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")
            if changes or any(each.arg in ("inplace", "out") for each in node.keywords):
                method = changes and (dotted(node.func) or "").partition(".")[0] not in _MODULES
                found |= {each.id for each in walk(node.func if method else node) if isinstance(each, ast.Name)}
    return found


def _is_changed_in_place(analysis: Analysis, name: str) -> bool:
    """Whether the program writes into an attribute of this name, or calls what does."""
    changed = re.compile(rf"\.{name}(?:\[[^\]]*\] *[-+*/]?=[^=]|(?:\.data)?\.\w+_\()")
    return any(changed.search(module.text) for module in analysis.execution.modules.values())


def _attribute_read(analysis: Analysis, name: str) -> str | None:
    """Where the program reads an attribute of this name."""
    for module in analysis.execution.modules.values():
        for each in every(ast.Attribute, module.tree) if name in module.text else ():
            if each.attr == name and isinstance(each.ctx, ast.Load):
                return f"on line {each.lineno} of {module.path.name}"
    return None


def _taken(analysis: Analysis, own: ModuleFile, function: ast.AST, number: int, count: int) -> str | None:
    """Where a caller of the function does more with a part of what it returns than to hand it on."""
    name = getattr(function, "name", "")
    cls = next(
        (each for each in analysis.facts.places.ancestors(function, own) if isinstance(each, ast.ClassDef)), None
    )
    for module in analysis.execution.modules.values():
        for statement in every(ast.Assign, module.tree):
            target, call = statement.targets[0], statement.value
            if not isinstance(call, ast.Call) or not isinstance(target, ast.Tuple) or len(target.elts) != count:
                continue
            called = _name(call.func)
            if name == "forward" and cls is not None:
                made = _attribute(analysis, module, call.func)
                if not (isinstance(made, ast.Call) and (dotted(made.func) or "").rpartition(".")[2] == cls.name):
                    continue
            elif called.rpartition(".")[2] != name:
                continue
            taken = target.elts[number]
            if isinstance(taken, ast.Attribute):
                line = _attribute_read(analysis, taken.attr)
                if line is not None:
                    return line
            elif isinstance(taken, ast.Name) and (line := _used(analysis, module, statement, taken.id)) is not None:
                return line
    return None


def _used(analysis: Analysis, module: ModuleFile, statement: ast.stmt, name: str) -> str | None:
    """Where a function computes with a name, and does not only return it or keep it in a list."""
    places = analysis.facts.places
    scope = places.function(statement, module) or module.tree
    for each in walk(scope):
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load):
            parent = places.parent(each, module)
            kept = isinstance(parent, (ast.Return, ast.Tuple, ast.List, ast.IfExp))
            kept = kept or (isinstance(parent, ast.Call) and getattr(parent.func, "attr", "") == "append")
            if not kept:
                return f"on line {each.lineno} of {module.path.name}"
    return None
