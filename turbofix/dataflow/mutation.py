"""Whether what some names hold is changed in place, through them or through other names for the same memory."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import (
    Bound,
    Const,
    External,
    Function,
    Made,
    Option,
    Unknown,
    members,
)
from turbofix.library.tables import words
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk

_VIEWS = words(
    """
    view reshape flatten ravel squeeze unsqueeze t transpose permute expand numpy detach from_numpy as_tensor float long
    double
    """
)
"""Methods and functions whose result may lie in the same memory."""
_CHANGING = words(
    """
    append extend insert pop remove clear update setdefault add discard appendleft popleft sort reverse fill put
    partition resize itemset push popitem
    """
)
_WRITING = words("shuffle put copyto place putmask fill_diagonal heappush heappop heapreplace heapify all_reduce")
"""Functions of libraries that change what they are given."""


def change_of(
    analysis: Analysis,
    held: Iterable[ast.Name | ast.Attribute],
    module: ModuleFile,
    frames: tuple[Frame, ...],
    counts: Callable[[ast.AST], bool],
) -> str | None:
    """What changes what some names hold, in a sentence. ``counts``: whether what happens at a node matters."""
    bindings = analysis.facts.bindings

    def key(node: ast.Name | ast.Attribute | None) -> object:
        """What tells names apart: plain ones by their scope."""
        return (bindings.owner(node.id, node, module), node.id) if isinstance(node, ast.Name) else node and dotted(node)

    known = ((each, members(analysis.facts.evaluate(each, frames))) for each in held)
    names = {key(each) for each, values in known if not (values and all(map(_is_fixed, values)))}
    before = -1
    while names and before != len(names):
        before = len(names)
        for target, value in (pair for each in every(ast.Assign, module.tree) for pair in _pairs(each)):
            names |= {key(target), key(value)} if names & {key(target), key(value)} else set()
    for node in walk(module.tree) if names else ():
        changed = next((each for each in _changed(node) if each is not None and key(each) in names), None)
        if changed is not None and counts(node):
            return f"`{dotted(changed)}` is changed in place on line {getattr(node, 'lineno', 0)}"
        given = node.args if isinstance(node, ast.Call) else [node.value] if isinstance(node, ast.Return) else []
        given = [part for each in given for part in (each.elts if isinstance(each, ast.Tuple) else [each]) if part]
        passed = next((each for each in map(_root, given) if each is not None and key(each) in names), None)
        if passed is None or not counts(node):
            continue
        called = members(analysis.facts.evaluate(node.func, frames)) if isinstance(node, ast.Call) else ()
        harmless = isinstance(node, ast.Call) and is_builtin(analysis, node.func, module)
        if not harmless and (not called or any(isinstance(each, (Function, Bound)) for each in called)):
            taker = f"to `{_called(node)}` " if isinstance(node, ast.Call) else ""
            return f"`{dotted(passed)}` is handed {taker}on line {getattr(node, 'lineno', 0)}, which may change it"
    return None


def change_after(
    analysis: Analysis, call: ast.Call, held: Iterable[ast.Name | ast.Attribute], frames: tuple[Frame, ...]
) -> str | None:
    """The same of what happens behind a call, or in other functions."""
    module = frames[-1].module
    scope, inside = analysis.facts.places.scope(call, module), {id(each) for each in walk(call)}

    def counts(node: ast.AST) -> bool:
        later = getattr(node, "lineno", 0) > (call.end_lineno or call.lineno)
        return id(node) not in inside and (later or analysis.facts.places.scope(node, module) is not scope)

    return change_of(analysis, held, module, frames, counts)


def _root(node: ast.AST) -> ast.Name | ast.Attribute | None:
    """The name whose memory an expression lies in: ``x`` of ``x[1:].view(-1)`` and ``torch.from_numpy(x)``."""
    while isinstance(node, (ast.Call, ast.Subscript, ast.Starred)):
        if not isinstance(node, ast.Call):
            node = node.value
        elif _called(node) not in _VIEWS:
            return None
        else:
            node = node.args[0] if node.args else getattr(node.func, "value", node.func)
    return node if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) is not None else None


def _pairs(statement: ast.Assign) -> Iterator[tuple[ast.Name | ast.Attribute, ast.Name | ast.Attribute]]:
    """Names that an assignment lets stand for the same memory."""
    target, value = statement.targets[0], statement.value
    both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
    pairs = zip(target.elts, value.elts, strict=False) if both else [(target, value)]  # type: ignore[attr-defined]
    for one, other in pairs:
        root = _root(other)
        if isinstance(one, (ast.Name, ast.Attribute)) and root is not None:
            yield one, root


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func) or ""


def _changed(node: ast.AST) -> Iterator[ast.Name | ast.Attribute | None]:
    """The names whose contents a node writes: ``x[i] = 0``, ``x += 1``, ``x.data = y``, ``x.add_(1)``."""
    if isinstance(node, ast.AugAssign):
        yield _root(node.target)
    elif isinstance(node, (ast.Assign, ast.For)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Subscript) or (isinstance(each, ast.Attribute) and each.attr == "data"):
                    yield _root(each.value)
    elif isinstance(node, ast.Call):
        name = _called(node)
        yield from (_root(each.value) for each in node.keywords if each.arg == "out")
        if isinstance(node.func, ast.Attribute) and (name in _CHANGING or name.strip("_") + "_" == name):
            yield _root(node.func.value)
        if name in _WRITING and node.args:
            yield _root(node.args[0])


def _is_fixed(value: object) -> bool:
    """Whether a value has no contents that could be changed."""
    made = isinstance(value, Made) and value.kind != "dataset"
    return isinstance(value, (Const, Option, External)) or made or (isinstance(value, Unknown) and value.number)


def is_builtin(analysis: Analysis, node: ast.expr, module: ModuleFile) -> bool:
    """Whether a name is one of Python's own functions."""
    if not isinstance(node, ast.Name) or not hasattr(builtins, node.id):
        return False
    owner = analysis.facts.bindings.owner(node.id, node, module)
    return owner is module.tree and not analysis.facts.bindings.writes(owner, node.id)
