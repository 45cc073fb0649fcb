"""Which branch of the program something belongs to, where options decide that: ``if args.task == "translate":``."""

from __future__ import annotations

import ast

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame
from turbofix.program.guards import Condition
from turbofix.program.lightning import FITS
from turbofix.program.values import Const, Option, members

_TRAINS = ("backward", "step")


def keeping_from_training(analysis: Analysis) -> dict[ast.AST, str]:
    """The literals by which the program does not come to its training (``task = "predict"``), and what holds them.

    They decide the tests around what goes backward, and around the steps of optimizers.
    """
    execution, places = analysis.execution, analysis.facts.places
    found: dict[ast.AST, str] = {}
    seen: set[ast.AST] = set()
    for event in execution.events:
        for level in event.control.upwards() if event.kind in _TRAINS or event.name in FITS else ():
            if level.detail != "dead" or not isinstance(level.node, ast.If) or level.node in seen:
                continue
            seen.add(level.node)
            frame = next((execution.frames[each] for each in level.upwards() if each in execution.frames), None)
            inside = list(walk(level.node.test))
            for value in (each for node in inside if frame is not None for each in members(frame.values.get(node))):
                origin = value.origin if isinstance(value, Const) and type(value.value) in (str, bool, int) else None
                if origin is not None and isinstance(origin.node, ast.Constant) and origin.node not in inside:
                    statement = places.parent(origin.node, origin.module)
                    targets = statement.targets if isinstance(statement, ast.Assign) else [origin.node]
                    found[origin.node] = ast.unparse(targets[0])
    return found


Choices = dict[ast.AST, tuple[set[object], set[object]]]
"""For each option (where it is declared) the values that it has there, one or none, and those that it cannot have."""


def without_excluded(analysis: Analysis, found: list[Site], module: ModuleFile) -> list[Site]:
    """The loaders that can be built in the same run in which a module is there; all where that would leave none."""
    if len(found) < 2:
        return found
    here = _of_module(analysis, module)
    if not here:
        return found
    made = {analysis.facts.site(event): event for event in analysis.facts.of("make")}
    return [site for site in found if site not in made or not _exclude(here, _of_event(analysis, made[site]))] or found


def _of_module(analysis: Analysis, module: ModuleFile) -> Choices:
    """What the options must be for a module to be imported: by the tests around the only statement that does it."""
    found: list[tuple[ast.AST, ModuleFile]] = []
    for other in analysis.execution.modules.values():
        if other is not module:
            found += [(node, other) for node in _imports(other.tree).get(module.path.stem, ())]
    if len(found) != 1:
        return {}
    node, other = found[0]
    scope = analysis.facts.places.scope(node, other)
    if not isinstance(scope, ast.Module):
        return {}
    frame = Frame(other.tree, other, node, None, ())
    return _choices(analysis, analysis.guards.tests_around(node, other.tree, (frame,), returns=False))


@once_per_node
def _imports(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """The statements of a file that may import a module, by the last name of that module."""
    found: dict[str, list[ast.AST]] = {}
    nodes: list[ast.Import | ast.ImportFrom] = [*every(ast.Import, tree), *every(ast.ImportFrom, tree)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names = {(node.module or "").rpartition(".")[2], *(alias.name for alias in node.names)}
        else:
            names = {alias.name.rpartition(".")[2] for alias in node.names}
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def _of_event(analysis: Analysis, event: Event) -> Choices:
    """What the options must be for an event to happen: by the tests around it in its function."""
    frames = analysis.facts.frames(event)
    if not frames:
        return {}
    return _choices(analysis, analysis.guards.tests_around(event.node, frames[-1].scope, frames, returns=False))


def _choices(analysis: Analysis, conditions: list[Condition]) -> Choices:
    found: Choices = {}
    for condition in conditions:
        test = condition.test if not condition.early else None  # an exit above may be one of several
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
            continue
        right = test.comparators[0]
        options = list(members(analysis.facts.evaluate(test.left, condition.frames)))
        if not isinstance(right, ast.Constant) or len(options) != 1:
            continue
        option = options[0]
        if isinstance(option, Option) and not option.derived and option.origin is not None:
            is_it = condition.holds is isinstance(test.ops[0], ast.Eq)
            found.setdefault(option.origin.node, (set(), set()))[0 if is_it else 1].add(right.value)
    return found


def _exclude(one: Choices, other: Choices) -> bool:
    """Whether no run can meet both."""
    for option, (has, has_not) in one.items():
        there, not_there = other.get(option, (set(), set()))
        if len(has | there) > 1 or has & not_there or there & has_not:
            return True
    return False
