"""Which changes are kept on a GPU: the order in which they are timed, and what the figures drop. No GPU is needed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turbofix.findings import Gain, Risk
from turbofix.verify import Options, Request, Stage, speed, worth
from turbofix.verify.blame import Blame
from turbofix.verify.original import Learned, Outcome
from turbofix.verify.result import KEPT, Judgement
from turbofix.verify.runner import Ended
from turbofix.verify.selection import Selected, Selection
from turbofix.verify.worth import Unit

SCRIPT = Path("train.py")


def stage(name: str, gain: tuple[float, float] | None = None, **declared: Any) -> Stage:
    claimed = None if gain is None else Gain(*gain, "measured elsewhere")
    return Stage(name, Risk.EQUIVALENT, {}, claimed, **declared)


def names(units: tuple[Unit, ...]) -> list[tuple[str, ...]]:
    return [unit.codemods for unit in units]


# --- the order


def test_the_order_is_that_of_the_expected_gain() -> None:
    units = worth.ranked(
        [stage("small", (1.0, 1.03)), stage("none"), stage("large", (1.1, 2.6)), stage("wide", (1, 3))]
    )
    assert names(units) == [("wide",), ("large",), ("small",), ("none",)]
    assert [unit.claim for unit in units] == [3.0, 2.6, 1.03, 1.0]


def test_what_another_one_has_to_come_after_comes_first_however_little_it_brings() -> None:
    units = worth.ranked(
        [stage("base"), stage("small", (1, 1.1)), stage("large", (1, 3), after=("base", "absent")), stage("last")]
    )
    assert names(units) == [("base",), ("large",), ("small",), ("last",)]


def test_codemods_that_gain_together_are_one_unit() -> None:
    pair = [stage("copies", together=("pinned",)), stage("fused", (1, 1.03)), stage("pinned", (1, 1.1))]
    units = worth.ranked(pair)
    assert names(units) == [("copies", "pinned"), ("fused",)]
    assert units[0].claim == 1.1
    assert names(worth.ranked(pair[:1])) == [("copies",)]


def test_codemods_that_wait_for_a_pair_and_for_one_another_are_all_placed() -> None:
    circle = [stage("a", after=("b",), together=("c",)), stage("b", after=("c",)), stage("c")]
    assert sorted(name for unit in worth.ranked(circle) for name in unit.codemods) == ["a", "b", "c"]


def test_a_codemod_with_two_turns_is_one_unit_and_all_of_them_must_be_for_speed() -> None:
    (unit,) = worth.ranked([stage("twice", (1, 1.2)), stage("twice", (1, 1.5), for_speed=False)])
    assert unit == Unit(("twice",), 1.5, for_speed=False)


# --- one unit's figures


def runs(gain: float = 1.0, noise: float = 0.005, count: int = 5, seed: int = 0) -> tuple[list[float], list[float]]:
    draw = random.Random(seed)
    old = [100 * math.exp(draw.gauss(0, noise)) for _ in range(count)]
    return old, [100 * gain * math.exp(draw.gauss(0, noise)) for _ in range(count)]


def share_dropped(unit: Unit, gain: float, noise: float = 0.005, count: int = 5) -> float:
    found = [worth.brought(unit, *runs(gain, noise, count, seed)) for seed in range(100)]
    return sum(one.why_not is not None for one in found) / len(found)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_RESAMPLINGS", 200)


@pytest.mark.parametrize("count", [5, 8])
def test_what_brings_nothing_goes_and_what_gains_stays(count: int) -> None:
    claims = Unit(("fast",), 1.1)
    assert share_dropped(claims, 1.0, count=count) > 0.7
    assert share_dropped(claims, 1.03, count=count) < 0.01
    assert share_dropped(claims, 0.9, count=count) > 0.99


def test_what_the_noise_would_hide_is_no_evidence() -> None:
    assert share_dropped(Unit(("fused",), 1.03), 1.0, noise=0.03) < 0.05
    assert share_dropped(Unit(("larger",), 1.5), 1.0, noise=0.03) > 0.7


def test_few_runs_drop_nothing() -> None:
    for gain in (0.5, 1.0):
        assert share_dropped(Unit(("fast",), 2.0), gain, count=speed.LEAST_RUNS - 1) == 0


def test_what_claims_no_gain_goes_for_a_loss_alone_and_what_has_another_purpose_never() -> None:
    assert share_dropped(Unit(("workers",)), 1.0) < 0.02
    assert share_dropped(Unit(("workers",)), 0.8) == 1
    assert share_dropped(Unit(("checkpoint",), 1.1, for_speed=False), 1.0) == 0
    assert share_dropped(Unit(("checkpoint",), 1.1, for_speed=False), 0.5) == 0


def test_the_reason_holds_the_figures() -> None:
    flat = worth.brought(Unit(("fused",), 1.2), [100, 101, 99, 100, 100.5], [100, 99.5, 100, 100.5, 99])
    assert flat.change is None
    assert flat.why_not is not None and flat.why_not.startswith("it brings nothing beyond the noise: 1× (95 % interval")
    assert flat.why_not.endswith("where runs of one program differ by up to 2.0 %")
    slower = worth.brought(Unit(("fused",), 1.2), [100, 101, 99, 100, 100], [50, 50, 50, 51, 50])
    assert slower.why_not is not None and slower.why_not.startswith("it makes the training slower here: 0.5")


# --- the whole selection


class FakeChild:
    """A machine on which the program takes the time that its set of codemods takes."""

    def __init__(self, seconds: Callable[[frozenset[str]], float], *, on_gpu: bool = True, lean: str = "") -> None:
        self._seconds, self._on_gpu, self._lean, self._draw = seconds, on_gpu, lean, random.Random(5)
        self.timed: list[frozenset[str]] = []

    def start(self) -> None:
        pass

    def run(self, files: dict[Path, bytes], order: dict[str, Any], on_step: Callable[[int], None]) -> Ended:
        codemods = frozenset(files.get(SCRIPT, b"").decode().split())
        self.timed.append(codemods)
        seconds = self._seconds(codemods)
        if math.isnan(seconds):
            return Ended("crashed", complaint="RuntimeError: CUDA out of memory")
        peak = 900 if self._lean in codemods else 1000
        log = {
            "seconds": seconds * math.exp(self._draw.gauss(0, 0.003)), "samples": 640, "steps": 60,
            "peak_memory_bytes": peak if self._on_gpu else 0, "warm_up_seconds": 1.0, "parts_ms": {},
        }  # fmt: skip
        return Ended("stopped", log)


class FakeBlame(Blame):
    """Every set learns the same but those with or without what is given."""

    def __init__(self, fails: Callable[[frozenset[str]], bool] = lambda codemods: False) -> None:
        self._fails = fails

    def recheck(self, stages: tuple[Stage, ...]) -> Outcome | None:
        outcome = Outcome(None, None, {"rows": []})
        return None if self._fails(frozenset(stage.codemod or "" for stage in stages)) else outcome


def select(
    declared: list[Stage],
    child: FakeChild,
    blame: FakeBlame | None = None,
    rests: Callable[[str, frozenset[str]], bool] = lambda name, others: False,
    **options: Any,
) -> Selected:
    """The selection among codemods whose program is their names; one of them may rest on others being there."""

    def rebuild(without: frozenset[str]) -> tuple[Stage, ...]:
        there = [one for one in declared if one.codemod not in without]
        there = [one for one in there if not rests(one.codemod or "", frozenset(o.codemod or "" for o in there))]
        made: list[Stage] = []
        for one in there:
            text = " ".join(str(each.codemod) for each in there[: len(made) + 1]).encode()
            made.append(Stage(one.codemod, one.risk, {SCRIPT: text}, one.gain, one.after, one.together, one.for_speed))
        return tuple(made)

    stages = rebuild(frozenset())
    request = Request(SCRIPT, stages=stages, rebuild=rebuild, options=Options(**options))
    judgements = tuple(Judgement(one.codemod or "", KEPT, "it learns the same") for one in stages)
    learned = Learned(stages, judgements, Outcome(None, None, {"rows": []}))
    selection = Selection(child, request, blame or FakeBlame(), lambda progress: None)  # type: ignore[arg-type]
    return selection.sort_out(learned)


def outcome(selected: Selected) -> dict[str, str]:
    return {one.codemod: one.verdict for one in selected.learned.judgements}


def kept_text(selected: Selected) -> str:
    return selected.learned.stages[-1].files[SCRIPT].decode() if selected.learned.stages else ""


def factors(**gains: float) -> Callable[[frozenset[str]], float]:
    return lambda codemods: math.prod(1 / gains[name] for name in codemods)


THREE = [stage("fused", (1, 1.03)), stage("cast", (1.1, 2.6)), stage("reads", (1, 1.07))]


def test_what_brings_nothing_is_dropped_with_its_figures_and_the_rest_is_timed_anew() -> None:
    child = FakeChild(factors(fused=1.02, cast=2.0, reads=1.0))
    found = select(THREE, child)
    assert child.timed[:4] == [frozenset(), {"cast"}, {"cast", "reads"}, {"cast", "reads", "fused"}]
    assert child.timed[20:23] == [frozenset(), {"fused", "cast"}, {"cast", "reads", "fused"}]
    assert outcome(found) == {"fused": "kept", "cast": "kept", "reads": "dropped"}
    assert kept_text(found) == "fused cast"
    by_name = {one.codemod: one for one in found.learned.judgements}
    assert "beyond the noise" in by_name["reads"].reason and by_name["reads"].speedup is None
    assert by_name["cast"].speedup == pytest.approx(2.0, rel=0.02)
    assert by_name["fused"].speedup == pytest.approx(1.02, rel=0.01)
    assert found.speedup is not None and found.speedup.median == pytest.approx(2.04, rel=0.02)


def test_what_is_left_needs_no_further_runs_where_it_was_timed_already() -> None:
    child = FakeChild(factors(fused=1.0, cast=2.0, reads=1.05))
    found = select([stage("fused", (1, 1.05)), *THREE[1:]], child)
    assert outcome(found) == {"fused": "dropped", "cast": "kept", "reads": "kept"}
    assert len(child.timed) == 20
    assert found.speedup is not None and found.speedup.median == pytest.approx(2.1, rel=0.02)


def test_a_slower_one_is_dropped_though_it_claims_nothing() -> None:
    found = select([THREE[1], stage("workers")], FakeChild(factors(cast=2.0, workers=0.7)))
    assert outcome(found) == {"cast": "kept", "workers": "dropped"}
    dropped = found.learned.judgements[1]
    assert dropped.speedup == pytest.approx(0.7, rel=0.02) and "slower here: 0.7" in dropped.reason


def test_one_that_claims_nothing_or_has_another_purpose_is_kept() -> None:
    declared = [stage("copies"), stage("saves", (1, 1.1), for_speed=False), THREE[1]]
    found = select(declared, FakeChild(factors(copies=1.0, saves=0.9, cast=2.0)))
    assert set(outcome(found).values()) == {"kept"}
    copies, saves, _ = found.learned.judgements
    assert copies.reason.endswith("; no change in speed of its own was seen")
    assert saves.reason.endswith("; it costs speed, which is not what it is for")
    assert saves.speedup == pytest.approx(0.9, rel=0.02)


def test_one_that_saves_memory_is_kept_for_that() -> None:
    found = select(THREE, FakeChild(factors(fused=1.02, cast=2.0, reads=1.0), lean="reads"))
    assert set(outcome(found).values()) == {"kept"}
    reads = found.learned.judgements[2].reason
    assert reads.endswith("; no change in speed of its own was seen, but the peak of memory is 10 % lower")


def both(codemods: frozenset[str]) -> float:
    return 0.8 if codemods >= {"copies", "pinned"} else 1.0


def test_a_pair_that_gains_together_is_kept_and_its_factor_told_once() -> None:
    found = select([stage("copies", together=("pinned",)), stage("pinned", (1, 1.1))], FakeChild(both))
    assert set(outcome(found).values()) == {"kept"}
    first, second = found.learned.judgements
    assert first.speedup == pytest.approx(1.25, rel=0.02) and second.speedup is None
    assert first.reason.endswith("; what it brought is that of copies and pinned")


def test_what_gains_only_together_is_kept_though_nothing_was_seen_of_each() -> None:
    """That is seen where what is left is timed beside the whole, and each by itself is below the noise."""
    runs_made = [0]

    def seconds(codemods: frozenset[str]) -> float:
        runs_made[0] += 1
        with_reads = runs_made[0] <= 20 or "reads" in codemods
        return factors(fused=1.02, cast=2.0, reads=1.0)(codemods) * (1.0 if with_reads or not codemods else 1.1)

    found = select(THREE, FakeChild(seconds))
    assert set(outcome(found).values()) == {"kept"}
    reads = found.learned.judgements[2]
    assert "and all that seemed to bring nothing bring 1.1× (95 % interval" in reads.reason
    assert found.speedup is not None and found.speedup.median == pytest.approx(2.04, rel=0.02)


def test_a_pair_that_brings_nothing_goes_together() -> None:
    declared = [stage("copies", together=("pinned",)), stage("pinned", (1, 1.1)), THREE[1]]
    found = select(declared, FakeChild(factors(copies=1.0, pinned=1.0, cast=2.0)))
    assert outcome(found) == {"copies": "dropped", "pinned": "dropped", "cast": "kept"}


def test_one_that_another_rests_on_is_kept_for_it() -> None:
    """Without the first there is nothing that the second could change."""
    declared = [stage("opens", (1, 1.2)), stage("uses", (1, 1.1), after=("opens",))]
    seconds = factors(opens=1.0, uses=1.5)
    found = select(declared, FakeChild(seconds), rests=lambda name, there: name == "uses" and "opens" not in there)
    assert set(outcome(found).values()) == {"kept"}
    assert found.learned.judgements[0].reason.endswith("and another change rests on it")


def test_one_that_changes_nothing_without_a_later_one_is_timed_with_it() -> None:
    declared = [stage("uses", (1, 1.9)), stage("opens", (1, 1.2))]
    child = FakeChild(factors(opens=1.0, uses=1.5))
    found = select(declared, child, rests=lambda name, there: name == "uses" and "opens" not in there)
    assert child.timed[:3] == [frozenset(), {"uses", "opens"}, frozenset()]
    assert set(outcome(found).values()) == {"kept"}


def test_nothing_goes_without_which_the_rest_does_not_learn_the_same() -> None:
    blame = FakeBlame(lambda codemods: "reads" not in codemods)
    found = select(THREE, FakeChild(factors(fused=1.02, cast=2.0, reads=1.0)), blame)
    assert set(outcome(found).values()) == {"kept"}
    assert found.learned.judgements[2].reason.endswith("and without it the rest could not be verified")
    assert kept_text(found) == "fused cast reads"


def test_nothing_is_dropped_by_a_run_that_used_no_gpu() -> None:
    found = select(THREE, FakeChild(factors(fused=1.0, cast=0.5, reads=1.0), on_gpu=False))
    assert set(outcome(found).values()) == {"kept"}
    assert found.speedup is None and not found.baseline.step_ms
    assert found.note == "speed was not measured: the script used no GPU in its timed runs"


def test_nothing_is_dropped_by_few_runs() -> None:
    found = select(THREE, FakeChild(factors(fused=1.0, cast=0.5, reads=1.0)), repeats=4)
    assert set(outcome(found).values()) == {"kept"} and found.speedup is None
    assert found.note is not None and "fewer than 5 timed runs" in found.note


def test_when_everything_goes_nothing_is_kept() -> None:
    found = select(THREE[1:], FakeChild(factors(cast=1.0, reads=1.0)))
    assert set(outcome(found).values()) == {"dropped"}
    assert found.learned.stages == () and found.speedup is None


def test_one_that_fails_in_a_timed_run_is_dropped_and_the_rest_is_timed() -> None:
    child = FakeChild(lambda codemods: math.nan if "cast" in codemods else 1.0 if "reads" in codemods else 1.1)
    found = select(THREE, child)
    assert outcome(found) == {"fused": "dropped", "cast": "dropped", "reads": "kept"}
    why = found.learned.judgements[1].reason
    assert why == 'it stops with "RuntimeError: CUDA out of memory" in a timed run'
    assert "noise" in found.learned.judgements[0].reason
    assert found.speedup is not None and found.speedup.median == pytest.approx(1.1, rel=0.02)


def test_an_original_that_fails_in_a_timed_run_says_nothing_of_its_rewrites() -> None:
    found = select(THREE, FakeChild(lambda codemods: math.nan))
    assert set(outcome(found).values()) == {"kept"}
    assert found.note == 'speed was not measured: a timed run stops with "RuntimeError: CUDA out of memory"'
