"""Whether weights are complex numbers, which torch's fused optimizers do not take."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.tensors import tensors_in
from turbofix.domain.values import Made, members
from turbofix.regex import regex

_DTYPES = regex(r"\b(cfloat|cdouble|chalf|complex(32|64|128))\b")
PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")


def has_complex_weights(analysis: Analysis) -> bool:
    """Whether the program makes a parameter of complex numbers, or a layer of torch's with such weights."""
    return analysis.once("complex weights", lambda: _has_complex_weights(analysis))


def _has_complex_weights(analysis: Analysis) -> bool:
    if not any("complex" in each.text or "cfloat" in each.text for each in analysis.execution.modules.values()):
        return False
    for event in analysis.facts.events:
        given = event.arguments.get("data", 0) if event.name in PARAMETERS and event.arguments is not None else None
        if given is not None and any("complex" in tensor.roles for tensor in tensors_in(given.value)):
            return True
        layer = any(isinstance(each, Made) and each.kind == "module" for each in members(event.result))
        weights = event.name in PARAMETERS or (event.kind == "make" and layer)
        if weights and isinstance(event.node, ast.Call) and _DTYPES.search(ast.unparse(event.node)):
            return True
    return False
