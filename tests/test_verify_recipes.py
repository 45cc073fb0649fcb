"""A change of the recipe is judged by what it learns, over several seeds, and told as a change."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage, Verification, verify
from turbofix.verify.blame import Blame
from turbofix.verify.curves import PASSES, SAMPLES, Curve, NoCurve, curve_of, judge, smoothed, unit_of, why_blind
from turbofix.verify.original import Goal, Learned, Original
from turbofix.verify.recipes import Recipes
from turbofix.verify.result import UNVERIFIED, Judgement
from turbofix.verify.runner import Ended

pytestmark = pytest.mark.usefixtures("warm_interpreters")

# --- numbers


def curve(  # noqa: PLR0913
    seed: int,
    *,
    steps: int = 64,
    pace: float = 0.05,
    noise: float = 0.03,
    floor: float = 0.3,
    every: int = 1,
    scale: float = 1.0,
    rates: Callable[[int], float] = lambda step: 1e-3,
    ended: bool = True,
) -> Curve:
    """A loss that falls from 2 towards ``floor``, in batches of 8 of which ``every`` so many make a step."""
    draw = random.Random(seed)
    count = steps // every
    losses = [floor + (2 - floor) * math.exp(-pace * every * step) + draw.gauss(0, noise) for step in range(count)]
    return Curve(
        tuple(8.0 * every * (step + 1) for step in range(count)),
        tuple(scale * loss for loss in losses),
        tuple(rates(step) for step in range(count)),
        count,
        8.0 * every * count,
        passes=every,
        ended=ended,
    )


def curves(first: int = 0, **given: Any) -> list[Curve]:
    return [curve(first + seed, **given) for seed in range(3)]


def test_a_stretch_is_the_mean_over_the_same_amount_whatever_the_steps() -> None:
    small = Curve((1.0, 2.0, 3.0, 4.0), (4.0, 2.0, 2.0, 0.0), (None,) * 4, 4, 4.0)
    assert smoothed(small, 2.0) == [(2.0, 3.0), (3.0, 2.0), (4.0, 1.0)]
    large = Curve((2.0, 4.0), (3.0, 1.0), (None,) * 2, 2, 4.0)
    assert smoothed(large, 2.0) == [(2.0, 3.0), (4.0, 1.0)]
    # a step that began before the stretch counts with all of it
    assert smoothed(large, 3.0) == [(4.0, 2.0)]


def test_a_harmless_change_is_kept_and_time_to_equal_loss_is_told() -> None:
    found = [judge(curves(seed), curves(seed + 5000)) for seed in range(0, 1200, 3)]
    assert {one.verdict for one in found} == {"kept"}
    assert "the same" not in " ".join(one.told for one in found)
    faster = judge(curves(), curves(100, pace=0.1))
    assert faster.verdict == "kept"
    words = faster.told.split()
    # a loss of X is reached after A–B steps, and after C–D steps without it
    with_it, without_it = (
        [int(word) for word in words[place + 1].split("–")] for place, word in enumerate(words) if word == "after"
    )
    assert max(with_it) < 0.7 * min(without_it)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"pace": 0.0}, "nothing is learned with any seed: after 64 steps the loss is"),
        ({"pace": -0.05}, "nothing is learned with any seed"),
        ({"pace": 0.02}, "it learns clearly worse: after 64 steps the loss is"),
        ({"floor": 0.7, "pace": 0.2}, "it learns clearly worse"),
    ],
)
def test_what_stays_clearly_worse_is_dropped(broken: dict[str, Any], words: str) -> None:
    found = judge(curves(), curves(100, **broken))
    assert found.verdict == "dropped"
    assert found.told.startswith(words)


def test_one_seed_that_learns_nothing_or_ends_in_no_number_is_enough() -> None:
    good = curves(100)
    stuck = judge(curves(), [*good[:2], curve(3, pace=0.0)])
    assert (stuck.verdict, stuck.told.split(":")[0]) == ("dropped", "nothing is learned with 1 of 3 seeds")
    burst = replace(good[1], losses=(*good[1].losses[:-1], math.nan))
    lost = judge(curves(), [good[0], burst, good[2]])
    assert (lost.verdict, lost.told) == ("dropped", "the loss is no longer finite with 1 of 3 seeds")


def test_a_little_slower_is_told_and_kept() -> None:
    found = judge(curves(noise=0.005), curves(100, pace=0.045, noise=0.005))
    assert found.verdict == "kept"


def test_without_enough_to_see_nothing_is_said() -> None:
    assert judge(curves(steps=16), curves(steps=16)).told == "16 optimizer steps are too few to see how it learns"
    for seed in range(0, 150, 3):
        flat = judge(curves(seed, pace=0.0), curves(seed + 300, pace=0.0))
        assert flat.verdict == "unverified"
        assert flat.told.startswith("the loss of the original does not fall in 64 steps by much more than it varies")
    burst = replace(curve(1), losses=(math.inf, *curve(1).losses[1:]))
    assert why_blind([curve(0), burst, curve(2)]) == "the loss of the original is not finite itself"
    few = judge(curves(steps=24), curves(100, steps=24, every=8))
    assert few.told == "3 steps are taken where there were 24, too few to see what they do"


def test_larger_steps_are_compared_by_samples_and_losses_that_are_counted_otherwise_are_not() -> None:
    found = judge(curves(pace=0.1), curves(100, pace=0.1, every=2))
    assert found.verdict == "kept"
    assert "is reached after the samples of " in found.told
    # the sum of two batches' losses, not their mean
    summed = judge(curves(), curves(100, every=2, scale=2.0))
    assert summed.verdict == "unverified"
    assert "are not counted alike" in summed.told


def test_a_schedule_that_was_not_seen_to_its_end_is_not_dropped() -> None:
    def rising(step: int) -> float:
        return 1e-5 * (step + 1)

    slow = curves(100, pace=0.01, rates=rising)
    assert judge(curves(), slow).verdict == "dropped"
    cut = judge(curves(ended=False), slow)
    assert cut.verdict == "unverified"
    assert "what it comes to was not seen" in cut.told
    # another rate throughout is no schedule
    assert judge(curves(ended=False), curves(100, pace=0.01, rates=lambda step: 0.1)).verdict == "dropped"


def test_what_goes_on_for_longer_is_judged_by_as_much_as_the_original_saw() -> None:
    longer = [replace(one, steps=64, whole=512.0) for one in curves(100, steps=96, pace=0.02)]
    assert judge(curves(), longer).verdict == "dropped"


def row(losses: Sequence[float], samples: int | None = 8, optimizer: int = 0) -> dict[str, Any]:
    return {"optimizer": optimizer, "losses": list(losses), "samples": samples, "hyper": [{"lr": 0.1}]}


def test_curves_are_read_from_the_rows_of_a_log() -> None:
    log = {"how": "finished", "rows": [row([0.5, 0.5], 16), row([0.25, 0.25], 16), row([0.5], 8), row([0.2, 0.2], 16)]}
    found = curve_of(log, unit_of(log))
    # the remainder of an epoch is seen, and its loss is on another scale
    assert (found.seen, found.losses) == ((16.0, 32.0, 56.0), (1.0, 0.5, 0.4))
    assert (found.steps, found.whole, found.unit, found.passes, found.ended) == (4, 56.0, SAMPLES, 2, True)
    unknown = {"how": "stopped", "rows": [row([1.0], None), row([0.5, 0.25], None), row([0.5], None)]}
    found = curve_of(unknown, unit_of(unknown))
    assert (found.seen, found.unit, found.ended) == ((1.0, 4.0), PASSES, False)
    beside = {"how": "finished", "rows": [row([1.0]), row([], optimizer=1)]}
    assert curve_of(beside, SAMPLES).losses == (1.0,)
    # a loader that fetches a batch ahead has drawn two for the first step and none for the last
    ahead = {"how": "finished", "rows": [row([1.0], 16), row([0.5], 8), row([0.25], None)] * 2}
    assert curve_of(ahead, unit_of(ahead)).seen == (16.0, 24.0, 24.0, 40.0, 48.0, 48.0)
    assert unit_of({"rows": [row([1.0]), row([1.0], None)]}) == PASSES
    # samples that nobody saw are no samples fetched ahead: none were drawn before them
    for samples in ([8, None, 8, 8, 8], [8, 8, None, 8, 16], [16, 8, None, 8, None]):
        assert unit_of({"rows": [row([1.0], count) for count in samples]}) == PASSES
    with pytest.raises(NoCurve, match="not known in every step"):
        curve_of(unknown, SAMPLES)
    with pytest.raises(NoCurve, match="several optimizers"):
        curve_of({"how": "finished", "rows": [row([1.0]), row([1.0], optimizer=1)]}, SAMPLES)
    with pytest.raises(NoCurve, match="no loss was seen"):
        curve_of({"how": "finished", "rows": [row([])]}, SAMPLES)


# --- several changes, one on top of another

SCRIPT = Path("train.py")


class FakeOriginal(Original):
    """A training whose loss falls as its set of changes lets it."""

    def __init__(self, paces: dict[str, float]) -> None:
        self._paces, self._plan = paces, {}

    def learn(self, phase: str, files: Mapping[Path, bytes], run: int, goal: Goal) -> Ended:
        names = files.get(SCRIPT, b"").decode().split()
        one = curve(run + 10 * len(names), noise=0.01, pace=0.05 * math.prod(self._paces[name] for name in names))
        return Ended("finished", {"how": "finished", "rows": [row([loss]) for loss in one.losses]})


class FakeBlame(Blame):
    """Everything that was changed has run."""

    def __init__(self) -> None:
        pass

    def not_exercised(self, stages: tuple[Stage, ...], index: int, log: Mapping[str, Any]) -> None:
        return None


def judged(**paces: float) -> Learned:
    def rebuild(without: frozenset[str]) -> tuple[Stage, ...]:
        there = [name for name in paces if name not in without]
        texts = [" ".join(there[: place + 1]).encode() for place in range(len(there))]
        return tuple(Stage(name, Risk.RECIPE, {SCRIPT: text}) for name, text in zip(there, texts, strict=True))

    request = Request(SCRIPT, stages=rebuild(frozenset()), rebuild=rebuild)
    waiting = tuple(Judgement(name, UNVERIFIED, "it changes the training recipe") for name in paces)
    return Recipes(FakeOriginal(paces), request, FakeBlame()).judge(Learned((), waiting, None))


def test_changes_that_are_kept_are_told_together() -> None:
    found = judged(faster=1.3, more=1.2)
    assert found.recipes == ("faster", "more")
    assert [stage.files[SCRIPT] for stage in found.stages] == [b"faster", b"faster more"]
    assert found.judgements[1].reason.startswith("a change of the recipe, on top of faster: over 3 seeds a loss of ")
    assert found.told is not None and found.told.endswith("steps without them")


def test_changes_that_are_a_little_slower_each_and_clearly_worse_together_are_not_both_kept() -> None:
    found = judged(slower=0.8, again=0.8)
    assert found.recipes == ("slower",)
    verdict = {one.codemod: one.verdict for one in found.judgements}
    assert verdict == {"slower": "kept", "again": "dropped"}
    assert "with all of them together, over 3 seeds it learns clearly worse" in found.judgements[1].reason
    assert "without any of them" in found.judgements[1].reason


# --- runs

SMALL = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)


def unused():
    return 1


for epoch in range(5):
    for a, b in loader:
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

STEP = "        optimizer.step()"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    return script


def verify_changes(script: Path, edits: dict[str, tuple[Risk, str, str]]) -> Verification:
    def rebuild(excluded: frozenset[str]) -> tuple[Stage, ...]:
        text, stages = script.read_text(), []
        for name, (risk, old, new) in edits.items():
            if name not in excluded:
                assert old in text
                text = text.replace(old, new)
                stages.append(Stage(name, risk, {script: text.encode()}))
        return tuple(stages)

    return verify(Request(script, stages=rebuild(frozenset()), options=Options(timeout=120), rebuild=rebuild))


def test_recipes_are_judged_on_top_of_what_learns_the_same(small: Path) -> None:
    found = verify_changes(
        small,
        {
            "set-to-none": (Risk.EXACT, "zero_grad()", "zero_grad(set_to_none=True)"),
            "clip": (
                Risk.RECIPE,
                STEP,
                "        torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)\n" + STEP,
            ),
            "hundredfold": (Risk.RECIPE, "lr=0.02", "lr=2.0"),
            "crash": (Risk.RECIPE, "model(a), b)", "model(a), b, weigth=1)"),
            "asleep": (Risk.RECIPE, "return 1", "return 2"),
        },
    )
    judged = {one.codemod: one for one in found.codemods}
    assert {name: one.verdict for name, one in judged.items()} == {
        "set-to-none": "kept",
        "clip": "kept",
        "hundredfold": "dropped",
        "crash": "dropped",
        "asleep": "unverified",
    }
    assert found.verdict == "pass"
    assert found.reason.startswith("but for changes of the recipe it learns the same over 20 steps and 2 epoch ends; ")
    assert "clip changes the recipe: over 3 seeds a loss of " in found.reason
    assert found.reason.endswith("; hundredfold, crash and asleep were left out")
    assert judged["clip"].reason.startswith("a change of the recipe: over 3 seeds a loss of ")
    assert "on top of clip: over 3 seeds nothing is learned with" in judged["hundredfold"].reason or (
        "no longer finite" in judged["hundredfold"].reason
    )
    # the seeds of the script itself are moved, too: three seeds are three trainings
    (told,) = [note for note in found.notes if note.startswith("the recipe was compared over 40 steps with each of 3")]
    assert re.search(r"the original ends with \([\d.e-]+–[\d.e-]+\)", told)
    assert "unexpected keyword argument 'weigth'" in judged["crash"].reason
    kept = found.kept[small].decode()
    assert "clip_grad_norm_" in kept and "set_to_none" in kept and "lr=0.02" in kept and "weigth" not in kept
    assert small.read_text() == SMALL


def test_a_test_that_can_see_nothing_is_no_test(small: Path) -> None:
    small.write_text(SMALL.replace("lr=0.02", "lr=0.0"))
    found = verify_changes(small, {"decay": (Risk.RECIPE, "lr=0.0", "lr=0.0, weight_decay=0.1")})
    assert found.verdict == "inconclusive"
    assert "the loss of the original does not fall in 40 steps" in found.reason


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        (("lr=0.02", "lr=0.03"), "pass", "it is another recipe, and learns: over 3 seeds a loss of "),
        (("lr=0.02", "lr=2.0"), "fail", "the rewritten script is another recipe: over 3 seeds "),
        (("zero_grad()", "zero_grad(True)"), "pass", "it learns the same over 20 steps and 2 epoch ends"),
    ],
)
def test_a_candidate_that_may_change_the_recipe_has_to_learn(
    small: Path, change: tuple[str, str], verdict: str, words: str
) -> None:
    stage = Stage(None, Risk.RECIPE, {small: SMALL.replace(*change).encode()})
    found = verify(Request(small, stages=(stage,), options=Options(timeout=120)))
    assert (found.verdict, found.reason[: len(words)]) == (verdict, words)
    assert "without it" not in found.reason
    if "another recipe" in words:
        assert found.steps == 40
        assert any(note.startswith("step by step: at step 1 the learning rate is") for note in found.notes)
