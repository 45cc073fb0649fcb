"""Which branch of the program something belongs to, where options decide that: ``if args.task == "translate":``."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Const, members
from turbofix.source.nodes import walk
from turbofix.training.frameworks.lightning import FITS

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
