"""A recorded step as a trace that Chrome and Perfetto open, and as a line of figures for a log."""

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


def render_log(profile: Profile) -> str:
    """One line of JSON: seconds by part, as a logger of training figures names them."""
    figures: dict[str, object] = {f"perf/{name}_time": ms * 1e-3 for name, ms in profile.step_ms.items()}
    figures["perf/step_time"] = figures.pop("perf/total_time")
    figures["perf/mfu"] = profile.estimate.utilisation
    figures["perf/samples_per_second"] = profile.samples_per_second
    figures["perf/estimated_on"] = None if profile.measured else profile.estimate.gpu
    return json.dumps(figures) + "\n"
