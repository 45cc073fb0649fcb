"""The questions that every reader of the event log may ask, bundled."""

from __future__ import annotations

from dataclasses import field

from turbofix.program.arguments import Reads
from turbofix.program.execution import Execution
from turbofix.program.facts import Facts
from turbofix.program.guards import Guards
from turbofix.program.placements import Devices
from turbofix.records import dataclass


@dataclass(eq=False)
class Analysis:
    """One execution, with everything that can be asked about it."""

    execution: Execution
    facts: Facts = field(init=False)
    guards: Guards = field(init=False)
    reads: Reads = field(init=False)
    devices: Devices = field(init=False)

    def __post_init__(self) -> None:
        self.facts = Facts(self.execution)
        self.guards = Guards(self.facts)
        self.reads = Reads(self.facts)
        self.devices = Devices(self.facts, self.guards)
