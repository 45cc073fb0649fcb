"""How long a list is that the program fills in plain sight."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import settled
from turbofix.program.names import parameters
from turbofix.program.values import Function, members

Known = Mapping[str, int]
"""Parameters of the function at hand whose number is known."""

_DEPTH = 8


def length_of(
    analysis: Analysis, node: ast.expr, module: ModuleFile, known: Known | None = None, depth: int = _DEPTH
) -> int | None:
    """The length of what an expression gives, where the text leaves no doubt."""
    if depth < 0:
        return None
    if isinstance(node, (ast.List, ast.Tuple)):
        return None if any(isinstance(each, ast.Starred) for each in node.elts) else len(node.elts)
    if isinstance(node, ast.ListComp):
        only = node.generators[0]
        return (
            _iterations(analysis, only.iter, module, known, depth)
            if len(node.generators) == 1 and not only.ifs
            else None
        )
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return _sliced(length_of(analysis, node.value, module, known, depth - 1), node.slice)
    if isinstance(node, ast.Name):
        bindings = analysis.facts.bindings
        writes = bindings.writes(bindings.owner(node.id, node, module), node.id)
        if len(writes) == 1 and isinstance(writes[0], ast.Assign) and isinstance(writes[0].targets[0], ast.Name):
            value = writes[0].value
            if isinstance(value, ast.List):  # it may be filled later on
                return None
            return length_of(analysis, value, module, known, depth - 1)
        return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _returned(analysis, node, module, known, depth)
    return None


def _sliced(length: int | None, part: ast.Slice) -> int | None:
    bounds: list[int | None] = []
    for bound in (part.lower, part.upper, part.step):
        if bound is None:
            bounds.append(None)
            continue
        try:
            bounds.append(ast.literal_eval(bound))
        except ValueError:
            return None
    return None if length is None else len(range(length)[slice(*bounds)])


def _iterations(analysis: Analysis, node: ast.expr, module: ModuleFile, known: Known | None, depth: int) -> int | None:
    """How many times a loop over an expression runs."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        count = _number(analysis, node.args[0], module, known) if len(node.args) == 1 else None
        return max(count, 0) if count is not None else None
    return length_of(analysis, node, module, known, depth - 1)


def _number(analysis: Analysis, node: ast.expr, module: ModuleFile, known: Known | None) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        if known is not None and node.id in known:
            return known[node.id]
        bindings = analysis.facts.bindings
        if bindings.owner(node.id, node, module) is module.tree and len(bindings.writes(module.tree, node.id)) == 1:
            found = settled(module.scope.names.get(node.id))
            return found if type(found) is int else None
    return None


def _returned(analysis: Analysis, call: ast.Call, module: ModuleFile, known: Known | None, depth: int) -> int | None:
    """The length of the list that a function of the project fills by one ``append`` per round of a loop."""
    assert isinstance(call.func, ast.Name)
    function = next(
        (each for each in members(module.scope.names.get(call.func.id)) if isinstance(each, Function)), None
    )
    if (
        function is None
        or not isinstance(function.node, ast.FunctionDef)
        or any(isinstance(each, ast.Starred) for each in call.args)
    ):
        return None
    numbers: dict[str, int] = {}
    passed = [*zip((each.arg for each in parameters(function.node)), call.args, strict=False)]
    passed += [(each.arg, each.value) for each in call.keywords if each.arg is not None]
    for name, value in passed:
        number = _number(analysis, value, module, known)
        if number is not None and not analysis.facts.bindings.writes(function.node, name):
            numbers[name] = number
    last = function.node.body[-1]
    returns = [each for each in walk(function.node) if isinstance(each, ast.Return)]
    if returns != [last] or not isinstance(last, ast.Return) or not isinstance(last.value, ast.Name):
        return None
    name = last.value.id
    uses = [each for each in walk(function.node) if isinstance(each, ast.Name) and each.id == name]
    loops = [each for each in function.node.body if isinstance(each, ast.For) and _appends(each, name)]
    starts = [
        each
        for each in function.node.body
        if isinstance(each, ast.Assign)
        and isinstance(each.value, ast.List)
        and not each.value.elts
        and [getattr(target, "id", None) for target in each.targets] == [name]
    ]
    if len(uses) != 3 or len(loops) != 1 or len(starts) != 1:  # set, appended to, returned: and nothing else
        return None
    if any(isinstance(each, (ast.Break, ast.Continue)) for each in walk(loops[0])) or loops[0].orelse:
        return None
    return _iterations(analysis, loops[0].iter, function.module, numbers, depth - 1)


def _appends(loop: ast.For, name: str) -> bool:
    """Whether each round of a loop appends once to a list: a statement of its body's own."""
    return any(
        isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Attribute)
        and each.value.func.attr == "append"
        and getattr(each.value.func.value, "id", None) == name
        for each in loop.body
    )
