"""What the kernel of a fused optimizer does not take: sparse gradients, and plain parameters beside DTensors."""

from __future__ import annotations

import ast
from collections.abc import Collection

from turbofix.dataflow.facts import settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Arguments
from turbofix.domain.values import Value, members
from turbofix.source.answers import every
from turbofix.source.names import is_false

_SPARSE = {
    "torch.nn.functional.embedding": ("sparse", 6),
    "torch.nn.functional.embedding_bag": ("sparse", 7),
    "torch.embedding": ("sparse", 4),
    "torch.embedding_bag": ("sparse", 5),
    "torch.nn.Embedding.from_pretrained": ("sparse", 6),
    "torch.nn.EmbeddingBag.from_pretrained": ("sparse", 6),
    "torch.gather": ("sparse_grad", 3),
    "Tensor.gather": ("sparse_grad", 2),
}
"""Calls that give sparse gradients where they are told to, by which argument."""

_DISTRIBUTES = ("parallelize_module", "distribute_tensor", "distribute_module")


def gives_sparse(arguments: Arguments, name: str, position: int) -> bool:
    """Whether a call is told, or may be, to give sparse gradients."""
    given = arguments.get(name, position)
    return given is not None and settled(given.value) is not False


def sparse_gradients(analysis: Analysis) -> bool:
    """Whether something in the program gives sparse gradients that no layer of a model shows.

    That is a function, a layer of the project's own that tells torch's to, and a switch that is set afterwards.
    """
    texts = analysis.execution.modules.values()
    modules = [each for each in texts if "sparse" in each.text or "embedding" in each.text]
    if not modules:
        return False
    for event in analysis.facts.of("call"):
        told = _SPARSE.get(event.name)
        if told is not None and event.arguments is not None and gives_sparse(event.arguments, *told):
            return True
    for module in modules:
        for call in every(ast.Call, module.tree):
            begins = isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"
            if begins and any(each.arg == "sparse" and not is_false(each.value) for each in call.keywords):
                return True
        for node in every(ast.Assign, module.tree):
            for target in node.targets:
                if not isinstance(target, ast.Attribute) or target.attr != "sparse" or is_false(node.value):
                    continue
                if not isinstance(target.value, ast.Name):  # not `args.sparse`, nor an attribute of its own
                    return True
    return False


def partly_distributed(analysis: Analysis, models: Collection[Value]) -> str | None:
    """What makes DTensors of some parameters, perhaps not of all; the name of the call.

    ``fully_shard`` of the whole model makes them of all.
    """
    if not any("distribute" in each.text for each in analysis.execution.modules.values()):
        return None
    own = {id(each) for each in models}
    parts: str | None = None
    whole = False
    for event in analysis.facts.of("call", "wrap"):
        name = event.name.rpartition(".")[2]
        if not event.name.startswith("torch.distributed."):
            continue
        if name in _DISTRIBUTES:
            return name
        if name == "fully_shard" and event.arguments is not None:
            given = event.arguments.get("module", 0)
            if event.arguments.get("ignored_params", 99) is not None:
                return name
            found = [id(each) for each in members(given.value)] if given is not None else []
            whole = whole or (bool(found) and all(each in own for each in found))
            parts = name
    return None if whole else parts


def sharded(analysis: Analysis) -> bool:
    """Whether ``fully_shard`` makes DTensors of parameters."""
    return any(
        event.name.startswith("torch.distributed.") and event.name.endswith(".fully_shard")
        for event in analysis.facts.of("call", "wrap")
    )
