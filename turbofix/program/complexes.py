"""Whether weights are complex numbers, which torch's fused optimizers do not take."""

from __future__ import annotations

import ast

from turbofix.program.analysis import Analysis
from turbofix.program.events import Event
from turbofix.program.facts import qualnames
from turbofix.program.values import External, Made, members

_DTYPES = frozenset(f"torch.{name}" for name in ("cfloat", "cdouble", "chalf", "complex32", "complex64", "complex128"))
_MAKERS = frozenset(("torch.complex", "torch.polar", "torch.view_as_complex"))
_REAL = frozenset(("view_as_real", "abs", "angle", "real", "imag"))
PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
_DEEPEST = 6


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


def _is_complex(analysis: Analysis, node: ast.AST, event: Event, depth: int = _DEEPEST) -> bool:
    """Whether an expression in the function of an event may be a complex tensor, as far as it is written there."""
    if depth < 0:
        return False
    if isinstance(node, ast.Name):
        bindings = analysis.facts.bindings
        writes = bindings.writes(bindings.owner(node.id, node, event.module), node.id)
        values = (each.value for each in writes if isinstance(each, (ast.Assign, ast.AnnAssign, ast.AugAssign)))
        return any(_is_complex(analysis, each, event, depth - 1) for each in values if each is not None)
    if isinstance(node, ast.Attribute):
        return node.attr not in _REAL and _is_complex(analysis, node.value, event, depth - 1)
    if not isinstance(node, ast.Call):
        parts = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
        return any(_is_complex(analysis, each, event, depth - 1) for each in parts)
    frames = analysis.facts.frames(event)
    names = {
        each.qualname for each in members(analysis.facts.evaluate(node.func, frames)) if isinstance(each, External)
    }
    if names & _MAKERS:
        return True
    if isinstance(node.func, ast.Attribute) and node.func.attr in _REAL:
        return False
    given = [*node.args, *(each.value for each in node.keywords)]
    if any(qualnames(analysis.facts.evaluate(each, frames)) & _DTYPES for each in given):
        return True
    owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return any(_is_complex(analysis, each, event, depth - 1) for each in (*owner, *given))
