"""What a training step or a forward pass computes again and again, by its text: shapes of ``overlooked.tsv``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeGuard

from turbofix.domain.scopes import ModuleFile
from turbofix.library.tables import FROM_HOST, words
from turbofix.regex import regex
from turbofix.source.answers import once_per_node, parents_in
from turbofix.source.names import dotted, targets_of
from turbofix.source.nodes import walk
from turbofix.training.told.written import Found, Written, calls_by_name, function_of, last, meaning

_MAKERS = words("""
    zeros ones empty full rand randn randint randperm arange linspace eye hamming_window hann_window blackman_window
    """)
_DEFAULTS = words("set_default_device set_default_tensor_type")
_ASKING = words("None hasattr shape size len cache")


def _calls_in(written: Written, names: Iterable[str], *methods: str) -> Iterator[tuple[ast.Call, ModuleFile]]:
    """The calls by some names in methods so called, and in what a training step runs."""
    for module in written.modules:
        calls = calls_by_name(module.tree)
        for call in (each for name in names for each in calls.get(name, ())):
            if _is_of(written, call, module, methods) or written.where(call, module) == "step":
                yield call, module


def _is_of(written: Written, node: ast.AST, module: ModuleFile, methods: tuple[str, ...], depth: int = 2) -> bool:
    """Whether a place is in a method of these, or in a function of a name of its own that one calls."""
    name = getattr(function_of(node, module), "name", "")
    if name in methods or not depth or len(written.functions.get(name, ())) != 1:
        return name in methods
    return any(_is_of(written, each, where, methods, depth - 1) for each, where in written.callers(name))


def _is_kept(node: ast.AST, module: ModuleFile) -> bool:
    """Whether a place is come to where something is not there yet, or has another size, or once by a decorator."""
    parents = parents_in(module.tree)
    above: ast.AST | None = node
    while above is not None:
        if isinstance(above, ast.FunctionDef):
            return any("cache" in ast.unparse(each) for each in above.decorator_list)
        if isinstance(above, (ast.If, ast.IfExp)) and _asks_for_it(above.test):
            return True
        above = parents.get(above)
    return False


@once_per_node
def _asks_for_it(test: ast.AST) -> bool:
    said = ast.unparse(test)
    return any(word in said for word in _ASKING)


# --- transforms -----------------------------------------------------------------------------------------------------

_FILTERS = words("Resample MelSpectrogram MelScale MFCC LFCC Spectrogram")
"""What of torchaudio's transforms computes filters or a window when it is built."""


def filters_anew(written: Written) -> Found:
    """``torchaudio.transforms.Resample(rate, 16000)(sound)`` for each item, or in a forward pass."""
    for made, module in _calls_in(written, _FILTERS, "forward", "__getitem__"):
        if meaning(made.func, module.tree).startswith("torchaudio.transforms."):
            yield made, module


# --- tensors --------------------------------------------------------------------------------------------------------


def made_on_host(written: Written) -> Found:
    """``torch.exp(torch.arange(n) * -c).to(device)`` in a forward pass or a training step."""
    if any(name in module.text for module in written.modules for name in _DEFAULTS):
        return
    for call, module in _calls_in(written, ("to", "cuda"), "forward"):
        if isinstance(call.func, ast.Attribute) and _is_to_device(call) and not _is_kept(call, module):
            made = [each for each in walk(call.func.value) if isinstance(each, ast.Call)]
            told = any(word.arg == "device" for each in made for word in each.keywords)
            told = told or any(last(each) in ("to", "cuda", "from_numpy") for each in made)
            if not told and any(_makes(each, module) for each in made):
                yield call, module


_COPYING = ("torch.tensor", "torch.as_tensor")


def copied_from_host(written: Written) -> Found:
    """``torch.FloatTensor(states).to(device)`` and ``torch.tensor(states, device=device)`` in a training step."""
    for call, module in _calls_in(written, ("to", "cuda", "tensor", "as_tensor"), "forward"):
        inner = call if meaning(call.func, module.tree) in _COPYING else call.func
        made = [each for each in walk(inner) if isinstance(each, ast.Call) and last(each) in FROM_HOST]
        named = any(isinstance(each, ast.Name) for one in made for given in one.args for each in walk(given))
        if named and _is_to_device(call):
            yield call, module


def looked_up(written: Written) -> Found:
    """``table.gather(-1, t.cpu())``: the table lies on the host, the indices on the GPU."""
    for module in written.modules:
        for call in calls_by_name(module.tree).get("gather", ()):
            if any(isinstance(each, ast.Call) and last(each) == "cpu" for each in call.args):
                yield call, module


def left_on_host(written: Written) -> Found:
    """``self.positions.to(x.device)`` in a forward pass."""
    for call, module in _calls_in(written, ("to",), "forward"):
        source = call.func.value if isinstance(call.func, ast.Attribute) else None
        moved = _moved(source) if source is not None else None
        given = [dotted(each) or "" for each in (*call.args[:1], *(word.value for word in call.keywords))]
        own = moved is not None and moved.startswith("self.") and moved.count(".") == 1
        of_another = any(each.endswith(".device") and not each.startswith("self.") for each in given)
        part = source is not None and moved != dotted(source)  # of a tensor, then, and to the module's own device
        if part and re.search(rf"{moved} = .*(device|cuda|nn\.)|register_buffer\(\W*{str(moved)[5:]}\W", module.text):
            continue
        if own and (of_another or part) and moved not in _set_around(call, module):
            yield call, module


def _moved(node: ast.expr) -> str | None:
    """The name of what is copied, or a part of it: ``self.pe[:, :n]``, ``Variable(self.pe[:n])``."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and last(node) == "Variable" and node.args:
            node = node.args[0]
        else:
            return dotted(node)


def _set_around(node: ast.AST, module: ModuleFile) -> set[str | None]:
    """What the statement around an expression sets: ``self.mask = self.mask.to(x.device)`` copies it once."""
    parents = parents_in(module.tree)
    while node in parents and not isinstance(node, ast.stmt):
        node = parents[node]
    return {dotted(each) for each in targets_of(node)}


def _makes(call: ast.Call, module: ModuleFile) -> bool:
    name = meaning(call.func, module.tree)
    return name.startswith("torch.") and name.rpartition(".")[2] in _MAKERS and name.count(".") == 1


def _is_to_device(call: ast.Call) -> bool:
    given = [each.value for each in call.keywords if each.arg == "device"] + (call.args if last(call) == "to" else [])
    return last(call) == "cuda" or any(re.search(r"device|cuda|\bdev\b", ast.unparse(each).lower()) for each in given)


# --- layers and optimizers ------------------------------------------------------------------------------------------

_PRODUCTS = words("matmul bmm einsum baddbmm")
_SCALES = regex(r"sqrt|scal|\*\* ?\(?-?0?\.5|\bd_?k\b|head_dim")


def attended(written: Written) -> Found:
    """``softmax(q @ k.T / sqrt(d)) @ v`` in one function, whatever is done in between."""
    for module in written.modules:
        if "scaled_dot_product_attention(" in module.text.replace("def scaled_dot_product_attention(", ""):
            continue
        for call in calls_by_name(module.tree).get("softmax", ()):
            function = function_of(call, module)
            if function is None or not _SCALES.search(ast.unparse(function)):
                continue
            products = [each for each in walk(function) if _multiplies(each)]
            given = {dotted(to) for each in walk(function) if call in [*walk(each)] for to in targets_of(each)}
            for each in walk(function):  # dropout of them
                if isinstance(each, ast.Assign) and any(dotted(one) in given for one in walk(each.value)):
                    given |= {dotted(to) for to in targets_of(each)} if not _multiplies(each.value) else set()
            before = any(each.lineno < call.lineno or each in [*walk(call)] for each in products)
            behind = any(
                each.lineno >= call.lineno and any(one is call or dotted(one) in given - {None} for one in walk(each))
                for each in products
                if each not in [*walk(call)]
            )
            if before and behind:
                yield call, module


def _multiplies(node: ast.AST) -> TypeGuard[ast.expr]:
    if isinstance(node, ast.Call):
        return last(node) in _PRODUCTS
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def stepped_apart(written: Written) -> Found:
    """``torch.optim.AdamW(model.parameters())`` in a program that speaks of CUDA, where the execution did not come."""
    if not any("cuda" in module.text for module in written.modules):
        return
    for module in written.modules:
        for call in (each for name in ("Adam", "AdamW") for each in calls_by_name(module.tree).get(name, ())):
            told = {word.arg for word in call.keywords}
            known = told & {"fused", "foreach", None} or written.analysis.facts.at(call)
            if meaning(call.func, module.tree).startswith("torch.optim.") and not known:
                yield call, module


_FOUND = (filters_anew, made_on_host, copied_from_host, looked_up, left_on_host, attended, stepped_apart)
SHAPES: dict[str, Callable[[Written], Found]] = {each.__name__: each for each in _FOUND}
"""The shapes that the table may name."""
