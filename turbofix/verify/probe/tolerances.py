"""How close is close enough: the tolerances of the lock-step comparison, as plain numbers and functions of numbers.

``ROUNDED`` is for programs that compute in another precision, ``CLOSE`` for programs that should differ by the order
of additions at most. Measured over good rewrites of large batches, bfloat16 reaches 0.0023 / 0.0077 / 0.0053 / 0.022 /
0.0003 of the five whole-vector measures, fused and larger batches 1e-6. In small batches through BatchNorm, and where
two networks play against each other, sums cancel, and bfloat16 goes to five times a bound in single steps, and past it
in a quarter of them: those are strays. The closest wrong rule, a learning rate × 1.1, is at twice its bound in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# the fewest steps of a script that ends by itself
FEWEST_STEPS = 3
# how a run ends that is through with its training: it is over, or waits for what never comes
ENDINGS = ("finished", "waiting")


@dataclass(frozen=True)
class Tolerance:
    """Bounds on one step: ``angle`` is 1 - cosine, ``ratio`` |ln(norm ratio)|, ``share`` relative to the whole.

    ``stray`` is how many times its bound a measure may reach in a few of the steps.
    """

    gradient_angle: float
    gradient_ratio: float
    update_angle: float
    update_ratio: float
    loss: float
    parameter_angle: float
    parameter_ratio: float
    parameter_share: float
    buffer: float
    printed: float
    stray: float


ROUNDED = Tolerance(0.02, 0.03, 0.05, 0.05, 0.01, 0.05, 0.1, 0.005, 0.05, 0.05, stray=6.0)
CLOSE = Tolerance(0.001, 0.005, 0.05, 0.05, 0.001, 0.002, 0.01, 0.001, 0.01, 0.01, stray=1.0)

# A parameter whose gradient is below this share of the whole (a bias before a normalisation) has a gradient of noise.
NOISE_SHARE = 1e-4

# How far two updates of one parameter may lie apart, in units of the last place of its numbers: each rounds twice.
STORED = 2.0

# What rounding to bfloat16 moves a number by at most, as a share of it.
ROUNDING = 2.0**-9

# What 16 bits do to a gradient beside what disturbed weights do to it: they round each activation too, and each
# gradient of one. A difference is that many times as long, and 1 - cosine goes with its square.
BESIDE_WEIGHTS = 3.0


def distance(ratio: float) -> float:
    """|ln(ratio)|, infinite for a ratio that is zero, negative or not a number."""
    return abs(math.log(ratio)) if ratio > 0 and math.isfinite(ratio) else math.inf


def severity(angle: float, ratio: float, share: float, tolerance: Tolerance) -> float:
    """How far one parameter's gradient is from the original's; above 1 it differs.

    It differs when its direction or length does, and the difference is more than noise beside the whole gradient.
    """
    if math.isnan(angle) or math.isnan(share):
        return math.inf
    own = max(angle / tolerance.parameter_angle, distance(ratio) / tolerance.parameter_ratio)
    return min(own, share / tolerance.parameter_share)
