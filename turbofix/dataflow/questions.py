"""The questions that every reader of the event log may ask, bundled."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Any, TypeVar

from turbofix.dataflow.facts import Facts
from turbofix.dataflow.guards import Guards
from turbofix.dataflow.placements import Devices
from turbofix.dataflow.provenance import Reads
from turbofix.dataflow.uses import Flow
from turbofix.interpreter.execution import Execution
from turbofix.records import dataclass

Answer = TypeVar("Answer")


@dataclass(eq=False)
class Analysis:
    """One execution, with everything that can be asked about it."""

    execution: Execution
    facts: Facts = field(init=False)
    guards: Guards = field(init=False)
    reads: Reads = field(init=False)
    devices: Devices = field(init=False)
    flow: Flow = field(init=False)
    _answers: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.facts = Facts(self.execution)
        self.guards = Guards(self.facts)
        self.reads = Reads(self.facts)
        self.devices = Devices(self.facts, self.guards)
        self.flow = Flow(self.facts)

    def close(self) -> None:
        """Forget the execution: what it left refers to itself, and only a search through all of it would free it."""
        for module in self.execution.modules.values():
            module.scope.names.clear()
        for part in (self.execution, self.guards, self.reads, self.devices, self.flow, self.facts, self):
            vars(part).clear()

    def once(self, question: Hashable, find: Callable[[], Answer]) -> Answer:
        """The answer to a question, which is looked for when it is asked for the first time."""
        if question not in self._answers:
            self._answers[question] = find()
        found: Answer = self._answers[question]
        return found
