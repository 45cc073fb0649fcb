"""Data sets whose samples are float32 throughout: a cast of their batches to it gives the batches themselves."""

from __future__ import annotations

import ast

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.arguments import bound_arguments
from turbofix.program.datasets import callee
from turbofix.program.libraries import LOADER_PARAMETERS
from turbofix.program.names import dotted
from turbofix.program.sites import FUNCTIONS
from turbofix.program.values import Const, External, Function, Instance, members

_FLOAT32 = frozenset(("numpy.float32", "torch.FloatTensor"))
"""What makes float32 of whatever it is given."""


def gives_float32(analysis: Analysis, site: Site) -> bool:
    """Whether all that a loader's batches hold is float32: by its data set's own code, put together by torch's."""
    return analysis.once(("float32", site), lambda: _gives_float32(analysis, site))


def _gives_float32(analysis: Analysis, site: Site) -> bool:
    built = [event for event in analysis.facts.of("make") if analysis.facts.site(event) == site]
    for event in built:
        if event.arguments is None or event.arguments.open or event.arguments.star:
            return False
        passed = bound_arguments(event.arguments, LOADER_PARAMETERS)
        collate, data = passed.get("collate_fn"), passed.get("dataset")
        own = members(collate.value) if collate is not None else ()
        if not all(isinstance(each, Const) and each.value is None for each in own):
            return False
        read = members(data.value) if data is not None else ()
        if not read or not all(isinstance(each, Instance) and _of_float32(each) for each in read):
            return False
    return bool(built)


def _of_float32(instance: Instance) -> bool:
    """Whether whatever an object's ``__getitem__`` returns is made float32 where it is returned."""
    method = instance.cls.find("__getitem__")
    if not isinstance(method, Function) or instance.cls.find("__getitems__") is not None:
        return False
    if any(isinstance(each, FUNCTIONS) for each in walk(method.node) if each is not method.node):
        return False
    returned = [each.value for each in walk(method.node) if isinstance(each, ast.Return)]
    parts = [part for each in returned for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return bool(parts) and all(_makes_float32(each, method, instance) for each in parts)


def _makes_float32(node: ast.expr | None, method: Function, instance: Instance) -> bool:
    name = dotted(node.func) if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords else None
    called = list(callee(name, method, instance)) if name is not None else []
    return bool(called) and all(isinstance(each, External) and each.qualname in _FLOAT32 for each in called)
