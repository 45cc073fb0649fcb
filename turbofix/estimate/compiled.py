"""A recording as ``torch.compile`` would run it: what lies between two products becomes few kernels.

What is no product and no convolution is joined to what follows it. What such operations hand to each other is neither
written nor read; what comes from outside is read once, and what is used later is written once. What a long reduction
goes over (a mean over an image) does not fit into a kernel, and is read again. Convolutions find their layout as they
want it (inductor's ``layout_optimization``), for the most part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from turbofix.estimate.cards import constants
from turbofix.estimate.recording import CONVOLUTION, OTHER, POINTWISE, REDUCTION, Operation, Recording

# of other operations, what only moves numbers (pads, joins, picks, pools) becomes part of the kernel that uses them
_JOINED = (POINTWISE, REDUCTION, OTHER)
# they go over more numbers than a kernel can hold, so that what they are made of is read again for what follows
_LONG = frozenset({"mean", "sum", "amax", "amin", "max", "var", "var_mean", "std", "native_group_norm"})


def compiled(recording: Recording) -> Recording:
    """The same step with its forward and backward passes compiled."""
    inside = [each for each in recording.operations if each.phase in ("forward", "backward")]
    rest = [each for each in recording.operations if each.phase not in ("forward", "backward")]
    return replace(recording, operations=(*joined(inside), *rest), compiled=True)


def joined(operations: Iterable[Operation], known: Mapping[str, float] | None = None) -> list[Operation]:
    """The operations with every run of joinable ones as one."""
    fitted = known or constants()
    operations = list(operations)
    uses = Counter(number for each in operations for number, _ in each.inputs)
    made: list[Operation] = []
    run: list[Operation] = []

    def close() -> None:
        if run:
            made.append(_one(run, uses, fitted))
            run.clear()

    for each in operations:
        if each.kind in _JOINED:
            run.append(each)
        else:
            close()
            turned = each.turned * (fitted["compiled_turning"] if each.kind == CONVOLUTION else 1.0)
            made.append(each._replace(turned=turned))
    close()
    return made


def _one(run: list[Operation], uses: Counter[int], fitted: Mapping[str, float]) -> Operation:
    inner = Counter(number for each in run for number, _ in each.inputs)
    made: dict[int, int] = {}
    outside: dict[int, int] = {}
    for each in run:
        for number, size in each.inputs:
            if number not in made:
                outside[number] = max(outside.get(number, 0), size)
        for number, size in each.outputs:
            made[number] = max(made.get(number, 0), size)
    reached = fitted["compiled_memory"]
    again = sum(size for each in run if each.name in _LONG for _, size in each.inputs[:1])
    read = (sum(outside.values()) + again * fitted["compiled_again"]) / reached
    written = sum(size for number, size in made.items() if uses[number] > inner[number] or not uses[number]) / reached
    kind = REDUCTION if any(each.kind == REDUCTION for each in run) else POINTWISE
    first = run[0]
    return Operation("compiled", kind, first.phase, 0.0, read, written, first.bits, (), 0.0)
