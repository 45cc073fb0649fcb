"""What decides over the rest of a training, and must be decided alike in all processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import (
    Bound,
    Computed,
    Const,
    External,
    Function,
    Host,
    Instance,
    Made,
    Method,
    Option,
    Tensor,
    Unknown,
    flatten,
    members,
)
from turbofix.regex import regex
from turbofix.source.names import dotted, loads, parameters, stored, targets
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.parallel.sharing import value_of

_CHANGING = regex(r"param_groups|load_state_dict|\blr\b|adjust|exit\(")
_SHOWS = regex(r"print|info|debug|warn(ing)?|format|float|int|str|round|time|item|len|append")
"""What for a call no process waits."""
_ALIKE = (Const, Option, Computed, External, Made, Instance, Function, Bound)
"""What is the same in each process."""

_PLATEAU = "ReduceLROnPlateau"


def decisions(analysis: Analysis, records: list[LoopRecord]) -> Iterator[Site]:
    """The tests of an epoch that end the training, change its rate or do what all have to come by, such as saving, and
    what a schedule is told of an evaluation."""
    places = analysis.facts.places
    steps = {record.node for record in records}
    told: set[Site] = set()
    for record in records:
        for loop, module in _around(analysis, record):
            if loop in steps:
                continue
            for node in own_nodes(loop, steps):
                if isinstance(node, ast.If) and _decides(node):
                    around = [
                        each for each in tests_in(analysis, node, loop, module) if not is_alike(analysis, each, module)
                    ]
                    told.update(places.site(each, module) for each in around[:1])  # what is inside goes with it
    for event in analysis.facts.of("step"):
        plateau = any(isinstance(each, Made) and each.qualname.endswith(_PLATEAU) for each in members(event.receiver))
        given = event.arguments.get("metrics", 0) if event.arguments is not None else None
        if plateau and given is not None and given.node is not None:
            told.add(places.site(given.node, event.module))
    yield from sorted(told)


def _around(analysis: Analysis, record: LoopRecord) -> Iterator[tuple[ast.AST, ModuleFile]]:
    """The loops around a step, through all calls that lead to it."""
    found: dict[ast.AST, ModuleFile] = {}
    for event in analysis.facts.of("backward"):
        loops = analysis.facts.loops(event)
        if any(each.node is record.node for each in loops):
            found.update((each.node, each.module) for each in loops)
    yield from found.items()


def own_nodes(loop: ast.AST, steps: set[ast.For | ast.AsyncFor | ast.While]) -> Iterator[ast.AST]:
    """What lies in a loop, without the loops of steps and the functions in it."""
    for each in ast.iter_child_nodes(loop):
        if not isinstance(each, (*FUNCTIONS, ast.ClassDef)) and each not in steps:
            yield each
            if not isinstance(each, LOOPS):
                yield from own_nodes(each, steps)


def tests_in(analysis: Analysis, node: ast.If, loop: ast.AST, module: ModuleFile) -> list[ast.expr]:
    """The tests on the way from a loop to a statement, and its own."""
    tests = [node.test]
    for above in analysis.facts.places.ancestors(node, module):
        if above is loop:
            break
        if isinstance(above, ast.If):
            tests.append(above.test)
    return tests[::-1]


def is_alike(analysis: Analysis, test: ast.expr, module: ModuleFile, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a test asks for nothing but options, constants, counters and sizes, which all processes have alike."""
    counters: set[str | None] = set()
    for above in analysis.facts.places.ancestors(test, module):
        if isinstance(above, ast.For):
            text = ast.unparse(above.iter)
            counters |= {dotted(target) for target in targets(above.target) if "range(" in text}
            if "enumerate(" in text and isinstance(above.target, ast.Tuple):
                counters.add(dotted(above.target.elts[0]))
    sizes = {id(one) for each in walk(test) if _is_size(each) for one in walk(each)}
    calls = [each for each in walk(test) if isinstance(each, ast.Call) and id(each) not in sizes]
    if any(_is_asked(analysis, each, module) for each in calls):
        return False
    for read in loads(test):
        name = dotted(read) or ""
        if id(read) in sizes or name in counters or name in seen or _is_steady(analysis, read, module, seen):
            continue
        held = list(members(value_of(analysis, read, module)))
        if isinstance(read, ast.Attribute) and all(isinstance(each, Unknown) for each in held):
            held = [each for each in members(value_of(analysis, read.value, module)) if isinstance(each, Made)]
        values = {each.value for each in held if isinstance(each, Const)}
        differs = len(values) > 1 and not _is_parameter(analysis, read, module)
        if not held or differs or not all(isinstance(each, _ALIKE) for each in held):
            return False
    return True


def _is_asked(analysis: Analysis, call: ast.Call, module: ModuleFile) -> bool:
    """Whether a call gives something to a function or method of the program's own, and asks what it says."""
    held = members(value_of(analysis, call.func, module))
    own = any(isinstance(each, (Function, Bound, Instance, Method)) for each in held)
    return own and bool(call.args or call.keywords)


def _is_parameter(analysis: Analysis, read: ast.expr, module: ModuleFile) -> bool:
    scope = analysis.facts.places.scope(read, module)
    own = {each.arg for each in parameters(scope)} if isinstance(scope, FUNCTIONS) else set()
    return isinstance(read, ast.Name) and read.id in own and read.id not in stored(scope.body)  # type: ignore[attr-defined]


def _is_size(node: ast.AST) -> bool:
    """Whether an expression counts the samples of a batch, of which each process has as many."""
    text = ast.unparse(node)
    return text.startswith("len(") or text.endswith((".shape[0]", ".size(0)"))


def _is_steady(analysis: Analysis, read: ast.expr, module: ModuleFile, seen: frozenset[str]) -> bool:
    """Whether no loop sets it, but to what all processes have alike or by counting, where all of them do so."""
    facts, name = analysis.facts, dotted(read) or ""
    if any(isinstance(each, (Tensor, Host)) for each in flatten(value_of(analysis, read, module))):
        return False
    if isinstance(read, ast.Attribute):
        whole = read.value
        known = _is_parameter(analysis, whole, module) or (
            isinstance(whole, (ast.Name, ast.Attribute)) and _is_steady(analysis, whole, module, seen)
        )
        if not known or any(isinstance(each, (Tensor, Host)) for each in flatten(value_of(analysis, whole, module))):
            return False
        made = facts.attribute_writes(read.attr)
        writes = [(node, place) for node, scope, place in made if getattr(scope, "name", "") != "__init__"]
    elif isinstance(read, ast.Name) and not _is_parameter(analysis, read, module):
        owner = facts.bindings.owner(read.id, read, module)
        written = [each for each in facts.bindings.writes(owner, read.id) if isinstance(each, ast.AST)]
        writes = [(each, module) for each in written if _is_in_loop(analysis, each, module)]
    else:
        return False
    for each, place in writes:
        if not isinstance(each, (ast.Assign, ast.AugAssign)) or not is_alike(
            analysis, each.value, place, seen | {name}
        ):
            return False
        for above in facts.places.ancestors(each, place):
            if isinstance(above, (*FUNCTIONS, ast.Module)):
                break
            if isinstance(above, ast.If) and not is_alike(analysis, above.test, place, seen | {name}):
                return False
    return True


def _is_in_loop(analysis: Analysis, node: ast.AST, module: ModuleFile) -> bool:
    if isinstance(node, LOOPS):
        return True
    for above in analysis.facts.places.ancestors(node, module):
        if isinstance(above, (*FUNCTIONS, ast.Module)):
            return False
        if isinstance(above, LOOPS):
            return True
    return False


def _decides(node: ast.If) -> bool:
    inside = [one for each in node.body for one in walk(each)]
    ends = any(isinstance(each, (ast.Break, ast.Return, ast.Raise)) for each in inside)
    does = any(isinstance(each, ast.Call) and not _shows(each) for each in inside)
    changes = any(_CHANGING.search(ast.unparse(each)) for each in node.body if not isinstance(each, ast.With))
    return ends or does or changes


def _shows(call: ast.Call) -> bool:
    return _SHOWS.fullmatch((dotted(call.func) or "").rpartition(".")[2]) is not None
