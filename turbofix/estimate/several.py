"""A step on several cards of one machine, each with its share of the batch, as DistributedDataParallel does it.

Every card computes the step of its share. The gradients are added up over all of them bucket by bucket, while the
backward pass still runs; the last bucket comes when it has ended. Host time and the update are those of one card.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from turbofix.estimate.cards import Card, constants
from turbofix.estimate.recording import Recording, Update
from turbofix.estimate.step import DATA, HOST, MANY_KERNELS, Estimate, Interval
from turbofix.records import dataclass

BUCKET = 25 * 2**20
"""Bytes of gradients that DistributedDataParallel adds up at once."""
ENOUGH = 1.3
"""A factor below which several cards are not worth their price."""
SLOW_BUS = 2.0
"""How many times as long as NCCL's best figure the adding up may take: that is of messages larger than a bucket."""


@dataclass(frozen=True)
class Several:
    """A step on so many ``gpus``: ``estimate`` is that of each, with its ``speedup`` over one card.

    ``communication_ms`` is what adding up the gradients takes, ``exposed_ms`` what of it nothing hides. ``samples`` are
    those of one card. ``enough`` says why one card is enough, None where it is not.
    """

    gpus: int
    estimate: Estimate
    communication_ms: float | None = None
    exposed_ms: float | None = None
    samples: int | None = None
    enough: str | None = None

    @property
    def in_words(self) -> str:
        """The step, the factor, and what the cards wait for each other; or why there is no figure."""
        step, speedup = self.estimate.step_ms, self.estimate.speedup
        if step is None or speedup is None:
            return self.estimate.step_ms_in_words
        waits = f"{self.exposed_ms:.2g} of {self.communication_ms:.2g} ms of communication are not hidden"
        return f"{self.estimate.step_ms_in_words}, {speedup.in_words}× one; {waits}"

    def to_json(self) -> dict[str, Any]:
        return {
            "gpus": self.gpus,
            "estimate": self.estimate.to_json(),
            "communication_ms": self.communication_ms,
            "exposed_ms": self.exposed_ms,
            "samples_per_gpu": self.samples,
            "enough": self.enough,
        }


def several(one: Estimate, share: Estimate, recording: Recording, card: Card, gpus: int) -> Several:
    """What a step that takes ``one`` on one card takes on ``gpus``: a card's ``share`` is recorded and estimated."""
    fitted = constants()
    waiting = enough_of(one)
    refused = one.refused or _not_shared(one, share, gpus) or _bound_by_host(one, share, gpus)
    if refused is None and card.bus is None:
        refused = "how fast such cards reach each other is not known"
    if refused is not None or one.step_ms is None or share.step_ms is None or card.bus is None:
        most = _most(one, share)
        few = f"{gpus} are estimated to be at most {most:.2g} times as fast" if most < ENOUGH else None
        none = replace(share, step_ms=None, refused=refused, samples=one.samples)
        return Several(gpus, none, samples=share.samples, enough=waiting or few)
    took = communication(recording.updates, card.bus, gpus)
    joining = 1e-3 * fitted["together"] * sum("batch_norm" in each.name for each in recording.operations)
    backward, total = share.parts["backward"], sum(share.parts.values())
    waits = joining + exposed(took, backward, recording.updates)
    longest = joining + exposed(took * SLOW_BUS, backward, recording.updates)
    friction, most = fitted["friction"], fitted["friction_high"]
    middle = (total + waits) * friction
    step = Interval(middle, share.step_ms.low + waits, (share.step_ms.high + longest) * most)
    now = one.step_ms.median
    ratio = min(now / middle, gpus)
    # as for two programs: what both are off alike counts for nothing
    widen = math.exp(fitted["spread_ratio"] * math.sqrt(abs(math.log2(ratio))))
    least, best = now / ((total + longest) * most) / widen, now / (total + waits) * widen
    speedup = Interval(ratio, min(least, ratio), max(ratio, min(best, gpus)))
    few = f"{gpus} are estimated to be {speedup.in_words} times as fast" if ratio < ENOUGH else None
    found = replace(share, step_ms=step, speedup=speedup, samples=one.samples)
    return Several(gpus, found, took, waits, share.samples, waiting or few)


def communication(updates: Iterable[Update], bus: float, gpus: int) -> float:
    """Milliseconds in which so many cards add up their gradients: each sends and gets 2 (n - 1) / n of them."""
    size = _gradients(updates)
    sent = 2 * (gpus - 1) / gpus * size
    return 1e3 * (sent / (bus * 1e9) + _buckets(size) * constants()["together"] * 1e-6)


def exposed(took: float, backward: float, updates: Iterable[Update]) -> float:
    """What of that nothing hides: the last bucket, and what is longer than the backward pass."""
    last = took / _buckets(_gradients(updates))
    return last + max(took - last - backward, 0.0)


def _gradients(updates: Iterable[Update]) -> int:
    """Bytes of the gradients, which are of their parameters' type."""
    return sum(each.numbers * each.bytes_each for each in updates)


def _buckets(size: int) -> int:
    return max(1, math.ceil(size / BUCKET))


def enough_of(one: Estimate) -> str | None:
    """Why several cards would wait as one does."""
    if one.bound == DATA:
        return "its step waits for data, and mending that takes no second card"
    if one.bound == HOST or one.refused == MANY_KERNELS:
        return "the host takes its time, and has as many operations to start for each of several"
    return None


def _not_shared(one: Estimate, share: Estimate, gpus: int) -> str | None:
    """Why what was recorded is no card's share of a batch."""
    if not one.samples or not share.samples:
        return "its batches come from no DataLoader, so that no share of one could be recorded"
    if one.samples != share.samples * gpus:
        return f"its batch of {one.samples} samples was not shared out evenly among {gpus} cards"
    return None


def _most(one: Estimate, share: Estimate) -> float:
    """A factor that is not reached, since the host starts the operations of a share no faster."""
    least = share.kernels * constants()["start_low"] * 1e-3
    return one.step_ms.median / least if one.step_ms is not None and least else math.inf


def _bound_by_host(one: Estimate, share: Estimate, gpus: int) -> str | None:
    """Why a share has no figure, and what is known all the same."""
    most = _most(one, share)
    known = f"; {gpus} cards are at most {most:.2g} times as fast" if most < gpus else ""
    return f"with {share.samples} samples on each, {share.refused}{known}" if share.refused else None
