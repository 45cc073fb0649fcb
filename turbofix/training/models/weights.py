"""Attention weights that a layer or model is asked for, and that nobody reads: they keep torch's fused kernels away."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Made
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, reads_of
from turbofix.source.site import Site
from turbofix.training.model import Unwanted
from turbofix.training.models.handed import name_of, read_at, taken_at
from turbofix.training.models.held import seen

_ASKING = regex("MultiheadAttention|attn_implementation|output_attentions|AttnProcessor")
_FUSED = ("sdpa", "flash_attention_2", "flash_attention_3")


def unwanted_weights(analysis: Analysis) -> tuple[Unwanted, ...]:
    """Calls of layers and models that make attention weights for nobody."""
    found = dict[Site, Unwanted]()
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree) if _ASKING.search(module.text) else ():
            site = analysis.facts.places.site(call, module)
            one = _of_model(analysis, call, site) or _of_layer(analysis, call, module, site)
            if one is not None:
                found[site] = one
    return tuple(found[site] for site in sorted(found))


def _of_model(analysis: Analysis, call: ast.Call, site: Site) -> Unwanted | None:
    """A model of a library that is told how to attend, or asked for its weights."""
    named = {each.arg: getattr(each.value, "value", None) for each in call.keywords}
    if name_of(call.func) in ("AttnProcessor", "LoRAAttnProcessor"):
        message = "this processor of diffusers writes a score for every pair of positions to memory"
        why = f"`{name_of(call.func)}2_0` is by torch's kernel: take that where the versions served have it"
        return Unwanted(site, message, why_not=why)
    if named.get("output_attentions") is True and analysis.facts.at(call):
        message = "the model is asked for its attention weights, which keeps torch's fused kernels away"
        if name_of(call.func) == "from_pretrained" and read_at(analysis, "attentions") is None:
            return Unwanted(site, message, "output_attentions", "False", certain=False)
        return Unwanted(site, message, why_not="who reads them was not followed: ask for them only where they are read")
    if named.get("attn_implementation") == "eager" and read_at(analysis, "attentions") is None:
        message = "the model is loaded with attention that is written out, though torch has a fused kernel"
        return Unwanted(site, message, "attn_implementation", '"sdpa"', certain=False)
    if (how := named.get("attn_implementation")) in _FUSED:
        return Unwanted(site, f"attention runs in a fused kernel ({how})", done=True)
    return None


def _of_layer(analysis: Analysis, call: ast.Call, module: ModuleFile, site: Site) -> Unwanted | None:
    """``x, _ = self.attention(x, x, x)`` of torch's own layer."""
    made = {each.qualname for each in seen(analysis, call.func, module) if isinstance(each, Made)}
    if made != {"torch.nn.MultiheadAttention"} or any(each.arg is None for each in call.keywords):
        return None
    asked = (
        next((each.value for each in call.keywords if each.arg == "need_weights"), None) or [*call.args, *[None] * 5][4]
    )
    if getattr(asked, "value", None) is False:
        return Unwanted(site, "the attention makes no weights", done=True)
    certain = _drops_weights(analysis, call, module) if asked is None else None
    if certain is None:
        return None
    message = "this attention makes weights that nobody reads, which keeps the fused kernels away"
    return Unwanted(site, message, "need_weights", "False", certain)


def _drops_weights(analysis: Analysis, call: ast.Call, module: ModuleFile) -> bool | None:
    """Whether a call's second result is certainly, or (False) seemingly read by nobody; None where it is read."""
    parent, scope = analysis.facts.places.parent(call, module), analysis.facts.places.scope(call, module)
    if isinstance(parent, ast.Subscript) and getattr(parent.slice, "value", None) == 0:
        return True
    target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
    taken = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == len("ow") else None
    if isinstance(taken, ast.Attribute):
        return None if read_at(analysis, taken.attr) else False
    if not isinstance(taken, ast.Name):
        return None
    assert isinstance(target, ast.Tuple)
    if taken.id == "_" or dotted(target.elts[0]) == taken.id:
        return True
    reads = list(reads_of(taken.id, scope))
    shown = [analysis.facts.places.parent(each, module) for each in reads]
    if not all(isinstance(each, ast.Tuple) for each in shown):
        return None
    numbers = [each.elts.index(read) for each, read in zip(shown, reads, strict=True) if isinstance(each, ast.Tuple)]
    return not reads if all(taken_at(analysis, scope, each) is None for each in numbers) else None
