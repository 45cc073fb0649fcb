"""What an expression was wherever it ran, and what the objects of a class hold under an attribute."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Class, Const, Instance, Value, members


def classes_of(analysis: Analysis) -> dict[ast.AST, list[Instance]]:
    """The objects of each class of the project, and of those that derive from it, in the order of their making."""
    return analysis.once("objects by class", lambda: _classes_of(analysis))


def _classes_of(analysis: Analysis) -> dict[ast.AST, list[Instance]]:
    found: dict[ast.AST, list[Instance]] = {}
    for event in analysis.facts.of("construct"):
        for each in members(event.result):
            if isinstance(each, Instance):
                for cls in {base.node for base in each.cls.mro() if isinstance(base, Class)}:
                    found.setdefault(cls, []).append(each)
    return found


def seen(analysis: Analysis, node: ast.AST, module: ModuleFile) -> list[Value]:
    """All that an expression was; of ``self.x`` in a method that did not run, all that the class's objects hold."""
    places = analysis.facts.places
    frames = analysis.facts.executions(places.scope(node, module))
    found = [each for frame in frames for each in members(frame.values.get(node))]
    if not found and isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
        cls = next((each for each in places.ancestors(node, module) if isinstance(each, ast.ClassDef)), None)
        objects = classes_of(analysis).get(cls, []) if cls is not None else []
        found = [each for one in objects for each in members(one.attributes.get(node.attr))]
    return [each for each in found if not (isinstance(each, Const) and each.value is None)]
