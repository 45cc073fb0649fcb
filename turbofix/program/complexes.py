"""Whether weights are complex numbers, which torch's fused optimizers do not take."""

from __future__ import annotations

import ast

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.events import Event
from turbofix.program.facts import qualnames
from turbofix.program.values import Made, members
from turbofix.regex import regex

_DTYPES = frozenset(f"torch.{name}" for name in ("cfloat", "cdouble", "chalf", "complex32", "complex64", "complex128"))
_COMPLEX = regex(r"\b(?:cfloat|cdouble|chalf|complex\d*|polar|view_as_complex)\b")
_REAL = regex(r"view_as_real|\.(?:abs|angle)\(|\.(?:real|imag)\b")
PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")


def has_complex_weights(analysis: Analysis) -> bool:
    """Whether the program makes a parameter of complex numbers, or a layer of torch's with such weights."""
    return analysis.once("complex weights", lambda: _has_complex_weights(analysis))


def _has_complex_weights(analysis: Analysis) -> bool:
    if not any("complex" in each.text or "cfloat" in each.text for each in analysis.execution.modules.values()):
        return False
    for event in analysis.facts.events:
        given = event.node.args[:1] if event.name in PARAMETERS and isinstance(event.node, ast.Call) else []
        if given and _is_complex(analysis, given[0], event):
            return True
        if event.kind == "make" and event.arguments is not None and "dtype" in event.arguments.keywords:
            layer = any(isinstance(each, Made) and each.kind == "module" for each in members(event.result))
            if layer and qualnames(event.arguments.keywords["dtype"].value) & _DTYPES:
                return True
    return False


def _is_complex(analysis: Analysis, node: ast.AST, event: Event) -> bool:
    """Whether an expression in the function of an event speaks of complex numbers, or of a name that is given them."""
    bindings, said = analysis.facts.bindings, ast.unparse(node)
    for name in (each for each in walk(node) if isinstance(each, ast.Name)):
        writes = bindings.writes(bindings.owner(name.id, node, event.module), name.id)
        said += "".join(ast.unparse(each.value) for each in writes if isinstance(each, ast.Assign))
    return _COMPLEX.search(said) is not None and _REAL.search(said) is None
