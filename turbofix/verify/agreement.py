"""How closely two programs keep together, step by step, beside what rounding alone may do: for people to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from turbofix.records import dataclass
from turbofix.verify import verdict
from turbofix.verify.probe.tolerances import Tolerance


@dataclass(frozen=True)
class Agreed:
    """One optimizer step of the script as it is and as rewritten.

    ``angle`` is 1 - the cosine between the two gradients, None where they were not compared. ``loss_bound`` (as a share
    of the loss) and ``angle_bound`` are what is taken for rounding in this step.
    """

    step: int
    before: float
    after: float
    loss_bound: float
    angle: float | None
    angle_bound: float


def agreement(
    original: Mapping[str, Any], candidate: Mapping[str, Any], tolerance: Tolerance, control: Mapping[str, Any] | None
) -> tuple[Agreed, ...]:
    """The steps of both runs, in order; ``control`` is the original's with disturbed weights, if there was one."""
    widened = verdict.floors(original, control, tolerance) if control is not None else {}
    found = []
    for place, (old, new) in enumerate(zip(original["rows"], candidate["rows"], strict=False)):
        floor = widened.get((old["optimizer"], old["step"]))
        bounds = floor.tolerance if floor is not None else tolerance
        compare = new.get("compare")
        skipped = old["skipped"] or new["skipped"]
        angle = compare["gradient"]["angle"] if compare and not compare["mismatch"] and not skipped else None
        if old["losses"] and new["losses"]:
            losses = math.fsum(old["losses"]), math.fsum(new["losses"])
            found.append(Agreed(place + 1, *losses, bounds.loss, angle, bounds.gradient_angle))
    return tuple(found)
