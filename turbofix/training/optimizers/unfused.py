"""What a program's text says of weights that the kernel of a fused optimizer does not take, or moves in another way.

Where it is meant otherwise, an edit is missed; a run of the edit would end at its first step.
"""

from __future__ import annotations

from turbofix.dataflow.questions import Analysis
from turbofix.regex import regex

_SPARSE = regex(r"\b(sparse(?:_grad)?)\s*=(?![= ]*(?:False|None))")
_DTENSORS = regex(r"\b(parallelize_module|distribute_tensor|distribute_module)\b")
_SHARDS = regex(r"\b(fully_shard)\b")
_REGROUPED = regex(r"\b(OneCycleLR|CyclicLR)\(|[\"'](momentum|weight_decay)[\"']|\bdict\([^)\n]*weight_decay")

_TAKES_SPARSE = frozenset(("torch.optim.SGD", "torch.optim.Adagrad"))
"""Optimizers that take sparse gradients, as long as they are not fused; the others raise for them in any case."""
_ON_DTENSORS = frozenset(("torch.optim.Adam", "torch.optim.AdamW"))
"""Optimizers for whose fused step torch's DTensors have a rule (``torch/distributed/tensor/_ops``)."""


def unfused(analysis: Analysis, qualname: str | None) -> str | None:
    """What makes gradients sparse, or DTensors of parameters, where the optimizer's fused kernel takes none."""
    patterns = (
        _DTENSORS,
        *(() if qualname in _ON_DTENSORS else (_SHARDS,)),
        *((_SPARSE,) if qualname in _TAKES_SPARSE else ()),
    )
    for module in analysis.execution.modules.values():
        for pattern in patterns:
            if (found := pattern.search(module.text)) is not None:
                return str(found[1])
    return None


def regrouped(analysis: Analysis) -> bool:
    """Whether parameters may have another momentum or weight decay than the optimizer is made with.

    So they have in a group of their own, or by a schedule that sets the momentum, too.
    """
    return any(_REGROUPED.search(module.text) for module in analysis.execution.modules.values())
