"""A recorded step as a trace that Chrome and Perfetto open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from turbofix.estimate import clock
from turbofix.estimate.cards import Card, constants

if TYPE_CHECKING:
    from turbofix.verify.profile import Profile

_MICROSECONDS = 1e6


def render_trace(profile: Profile, card: Card) -> str:
    """The step's operations one after another, each as long as it is estimated to take on ``card``.

    The document is an array of complete events of the Trace Event Format, in microseconds.
    """
    recording, fitted, now = profile.recording, constants(), 0.0
    events = []
    for name in ("data", "transfer"):
        took = profile.step_ms[name] * 1e3
        if took:
            events.append(_event(name, name, now, took))
            now += took
    for each in recording.operations:
        took = clock.seconds(each, card, recording, fitted) * _MICROSECONDS
        about = {"FLOPs": each.flops, "bytes": each.read + each.written, "bits": each.bits, "kind": each.kind}
        events.append(_event(each.name, each.phase, now, took, about))
        now += took
    took = profile.step_ms["optimizer"] * 1e3
    if took:
        events.append(_event("optimizer", "optimizer", now, took))
    title = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"a step, estimated on {card.name}"}}
    return json.dumps([title, *events]) + "\n"


def _event(name: str, phase: str, start: float, took: float, about: object = None) -> dict[str, object]:
    return {
        "name": name,
        "cat": phase,
        "ph": "X",
        "ts": round(start, 3),
        "dur": round(took, 3),
        "pid": 1,
        "tid": phase,
        **({"args": about} if about else {}),
    }
