"""Where gradients of a backward pass certainly are read by nobody, so that no run has to tell.

Every optimizer of the program is torch's and is given ``model.parameters()`` of models that are known, nothing else in
the text may read or keep a gradient, and each step of an optimizer with weights of such a model stands behind a
``zero_grad()`` that comes after that backward pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.facts import qualnames
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Control, Event
from turbofix.domain.values import Instance, Made, Tensor, Value, flatten, members
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, stored
from turbofix.source.nodes import walk
from turbofix.training.steps.acts import concerned, is_model, optimizers_in, stepper
from turbofix.training.steps.regions import shared_frames

_READING = regex(
    r"hook\b|retain_grad\b|(?<!\bautograd)\.grad\b|utils\.checkpoint\b|import checkpoint\b|checkpoint_wrapper"
    r"|gradient_checkpointing|autograd\.Function|\.grad_fn\b|\.is_leaf\b|set_grad_enabled|clip_grad|unscale_|closure"
    r"|add_param_group|\.param_groups\b\s*(?:\.|\+?=(?!=))|\bvars\(|__dict__|__setattr__|_modules\b|_parameters\b"
    r"|\.(?:weight|bias)\s*=(?!=)|\.requires_grad\s*=(?!=)|requires_grad_\(\s*(?!True)|[\"'](?:requires_grad|grad)[\"']"
    r"|\.detach_\(|Parameter\([^\n]*requires_grad|\[\s*[\"']params[\"']\s*\]"
)
"""What may read a gradient, keep one from being computed, or give a weight to two modules."""


class Unread:
    """What the steps of a program read of gradients. ``known``: nothing else reads any. ``models``: all that learn."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.facts = analysis, analysis.facts
        self.steps = [
            each for each in self.facts.of("step") if stepper(each.receiver) not in ("scheduler", "environment")
        ]
        self.clearings = list(self.facts.of("zero_grad"))
        given: dict[int, list[Value]] = {}
        for event in self.facts.of("make"):
            for one in _made_in(event):
                passed = one.arguments.get("params", 0) if one.qualname.startswith("torch.optim.") else None
                given[id(one)] = self._models(passed.node, event) if passed is not None else []
        self.models = {id(each): each for found in given.values() for each in found}
        self.read = {key: frozenset[int]().union(*map(parts, found)) for key, found in given.items()}
        texts = [each.text for each in analysis.execution.modules.values()]
        self.known = (
            not any(_READING.search(text) for text in texts)
            and all(self.read.values())
            and all(any(optimizers_in(concerned(each))) for each in self.steps)
            and all(id(one) in self.read for each in self.steps for one in optimizers_in(concerned(each)))
        )

    def is_lost(self, model: Value, backward: Event) -> bool:
        """Whether the gradients that a backward pass gives a model are cleared before a step reads them."""
        own = parts(model)
        return bool(own) and all(
            any(self._clears(each, own, one) and self._always_between(each, step, backward) for each in self.clearings)
            for step in self.steps
            for one in optimizers_in(concerned(step))
            if self.read[id(one)] & own
        )

    def has_penalties_of_inputs(self) -> bool:
        """Whether ``autograd.grad`` is called for what is made to take gradients alone, and for no model's result."""
        places = self.facts.places
        return all(
            _is_of_inputs(call, places.scope(call, module))
            for module in self.analysis.execution.modules.values()
            if "autograd.grad" in module.text
            for call in every(ast.Call, module.tree)
            if (dotted(call.func) or "").endswith("autograd.grad")
        )

    def _models(self, node: ast.AST | None, event: Event) -> list[Value]:
        """The models all of whose parameters an expression is made of; none where it may be something else."""
        if isinstance(node, ast.BinOp):
            below: list[ast.expr] = [node.left, node.right]
        elif not isinstance(node, ast.Call) or node.keywords:
            return []
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "parameters" and not node.args:
            found = list(members(self.facts.evaluate(node.func.value, self.facts.frames(event))))
            return found if len(found) == 1 and parts(found[0]) else []
        elif qualnames(self.facts.evaluate(node.func, self.facts.frames(event))) & {"itertools.chain", "builtins.list"}:
            below = node.args
        else:
            return []
        each_one = [self._models(each, event) for each in below]
        return [one for each in each_one for one in each] if all(each_one) else []

    def _clears(self, event: Event, own: frozenset[int], optimizer: Value) -> bool:
        if event.arguments is not None and event.arguments.values():
            return False  # set_to_none=False: a weight that takes no part could tell
        found = members(event.receiver)
        return len(found) == 1 and (found[0] is optimizer or (is_model(found[0]) and own <= parts(found[0])))

    def _always_between(self, clear: Event, use: Event, backward: Event) -> bool:
        """Whether, wherever a use happens, the clearing has happened since the backward pass, if that ever did."""
        if not isinstance(self.facts.places.parent(clear.node, clear.module), ast.Expr):
            return False
        if not self._is_above(clear, use) or not _levels(clear.control) <= _levels(use.control):
            return False
        if not (self._is_above(backward, clear) or self._is_above(use, backward)):
            return False
        shared = {id(each.node) for each in use.control.upwards() if each.kind == "call"}
        if any(
            each.kind == "call" and each.returned and id(each.node) not in shared for each in clear.control.upwards()
        ):
            return False
        mine, theirs, others = ([id(each.node) for each in self.facts.loops(one)] for one in (clear, use, backward))
        both = [each for each in theirs if each in others]
        return mine == theirs[: len(mine)] and mine[: len(both)] == both

    def _is_above(self, first: Event, second: Event) -> bool:
        """Whether an event's statement stands above another's, in the innermost function that both happen in."""
        own, other = self.facts.frames(first), self.facts.frames(second)
        count = shared_frames(own, other)
        if count == 0 or own[count - 1].module is not other[count - 1].module:
            return False
        return getattr(own[count - 1].anchor, "end_lineno", 0) < getattr(other[count - 1].anchor, "lineno", 0)


def parts(model: Value) -> frozenset[int]:
    """A model, the modules in it and the weights that it holds by themselves; nothing where it is not known."""
    return frozenset(map(id, _parts(model))) if isinstance(model, (Instance, Made)) else frozenset()


def _parts(model: Value, most: int = 3000) -> Iterator[Value]:
    seen: set[int] = set()
    waiting = [model]
    while waiting and len(seen) < most:
        each = waiting.pop()
        weight = isinstance(each, Tensor) and "param" in each.roles
        if id(each) in seen or not (weight or (isinstance(each, (Instance, Made)) and is_model(each))):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, (Instance, Made)):
            base = each.base if isinstance(each, Instance) else each
            held = [*each.attributes.values(), *each.children.values(), base.inner if base is not None else None]
            waiting += [part for value in held for part in flatten(value, 3)]


def _is_of_inputs(call: ast.Call, scope: ast.AST) -> bool:
    passed = next((each.value for each in call.keywords if each.arg == "inputs"), None)
    assigns = (each for each in walk(scope) if isinstance(each, ast.Assign))
    made = [each.value for each in assigns if isinstance(passed, ast.Name) and passed.id in stored([each])]
    return bool(made) and all("requires_grad" in ast.unparse(each) for each in made)


def _made_in(event: Event) -> Iterator[Made]:
    return (each for each in members(event.result) if isinstance(each, Made) and each.kind == "optimizer")


def _levels(control: Control) -> set[tuple[str, int, object]]:
    """The tests, loops and ``try`` blocks that something happens under."""
    return {
        (each.kind, id(each.node), each.detail if each.kind in ("if", "choice") else None)
        for each in control.upwards()
        if each.kind in ("if", "choice", "try", "loop", "comprehension")
    }
