"""A recording as ``torch.compile`` would run it: what lies between two products becomes few kernels.

Pointwise operations and reductions that follow each other are joined. What they hand to each other is neither written
nor read; what comes from outside is read once, and what is used later is written once. Convolutions find their layout
as they want it (inductor's ``layout_optimization``), for the most part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from turbofix.estimate.cards import constants
from turbofix.estimate.recording import CONVOLUTION, POINTWISE, REDUCTION, Operation, Recording

_JOINED = (POINTWISE, REDUCTION)


def compiled(recording: Recording) -> Recording:
    """The same step with its forward and backward passes compiled."""
    inside = [each for each in recording.operations if each.phase in ("forward", "backward")]
    rest = [each for each in recording.operations if each.phase not in ("forward", "backward")]
    return replace(recording, operations=(*joined(inside), *rest), compiled=True)


def joined(operations: Iterable[Operation]) -> list[Operation]:
    """The operations with every run of joinable ones as one."""
    operations = list(operations)
    uses = Counter(number for each in operations for number, _ in each.inputs)
    made: list[Operation] = []
    run: list[Operation] = []

    def close() -> None:
        if run:
            made.append(_one(run, uses))
            run.clear()

    for each in operations:
        if each.kind in _JOINED:
            run.append(each)
        else:
            close()
            turned = each.turned * (constants()["compiled_turning"] if each.kind == CONVOLUTION else 1.0)
            made.append(each._replace(turned=turned))
    close()
    return made


def _one(run: list[Operation], uses: Counter[int]) -> Operation:
    inner = Counter(number for each in run for number, _ in each.inputs)
    made: dict[int, int] = {}
    outside: dict[int, int] = {}
    for each in run:
        for number, size in each.inputs:
            if number not in made:
                outside[number] = max(outside.get(number, 0), size)
        for number, size in each.outputs:
            made[number] = max(made.get(number, 0), size)
    reached = constants()["compiled_memory"]
    read = sum(outside.values()) / reached
    written = sum(size for number, size in made.items() if uses[number] > inner[number] or not uses[number]) / reached
    kind = REDUCTION if any(each.kind == REDUCTION for each in run) else POINTWISE
    first = run[0]
    return Operation("compiled", kind, first.phase, 0.0, read, written, first.bits, (), 0.0)
