"""Run a script as it is and as rewritten, and say whether it learns the same and, on a GPU, how much faster it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from pathlib import Path

from turbofix.assumptions import SCRIPT_MENDED
from turbofix.estimate import step
from turbofix.estimate.cards import Card
from turbofix.estimate.several import Several
from turbofix.estimate.step import Estimate
from turbofix.findings import Risk
from turbofix.verify import isolation, settle, signals, speed
from turbofix.verify.blame import Blame
from turbofix.verify.demands import demand_script, mentions_cuda
from turbofix.verify.lease import Lease, scratch_folder
from turbofix.verify.original import Elsewhere, Learned, Original
from turbofix.verify.probe.levels import GUARD
from turbofix.verify.profile import estimated as estimated_stages
from turbofix.verify.profile import on_several
from turbofix.verify.recipes import Recipes
from turbofix.verify.recorded import Recorder
from turbofix.verify.request import ASSUMPTION, NOTEBOOK, OnProgress, Progress, Request, names_of
from turbofix.verify.result import (
    DROPPED,
    FAIL,
    INCONCLUSIVE,
    KEPT,
    PASS,
    UNVERIFIED,
    Inconclusive,
    Judgement,
    Stopped,
    Verification,
    all_of,
)
from turbofix.verify.runner import Child
from turbofix.verify.scratch import Scratch, trees_for
from turbofix.verify.selection import Selected, Selection
from turbofix.verify.settle import Settled


def verify(request: Request, on_progress: OnProgress | None = None) -> Verification:
    """Verify ``request``. A script that cannot be judged gives the verdict *inconclusive*, never an exception.

    No file of the user's is touched; the scratch folder is removed at the end, on Ctrl-C and SIGTERM too.
    """
    tell = on_progress or (lambda progress: None)
    options = request.options
    request = dataclasses.replace(request, script=request.script.absolute())
    try:
        demand_script(request)
        isolation.demand(options.isolation)
    except Inconclusive as why:
        return Verification(INCONCLUSIVE, str(why), options.device or "cpu")
    cwd = Path.cwd()
    trees = trees_for(request.script, cwd)
    with signals.unwinding(), scratch_folder(keep=options.keep_scratch, outside=trees) as lease:
        while True:
            try:
                return _in_folders(request, trees, cwd, lease, tell)
            except Elsewhere as more:
                trees = (*trees, more.folder)


def _in_folders(request: Request, trees: tuple[Path, ...], cwd: Path, lease: Lease, tell: OnProgress) -> Verification:
    """The verification where the script may work in these folders."""
    options = request.options
    try:
        held = isolation.reach(options.isolation, lease.root, trees)
    except Inconclusive as why:
        return Verification(INCONCLUSIVE, str(why), options.device or "cpu")
    scratch = Scratch(lease.root, trees, held, lease.lock)
    child = Child(scratch, request.script, request.args, cwd, options, request.texts)
    before = scratch.state() if held.level == GUARD else {}
    try:
        found = _verify(request, scratch, child, tell)
    except Inconclusive as why:
        device = child.device_name if child.cuda and child.device_name else "cpu"
        found = Verification(INCONCLUSIVE, str(why), device, isolation=child.isolation or None)
    finally:
        child.close()
    changed = isolation.difference(before, scratch.state()) if before else ()
    return dataclasses.replace(
        found,
        reason=scratch.told(found.reason),
        codemods=tuple(dataclasses.replace(one, reason=scratch.told(one.reason)) for one in found.codemods),
        notes=(
            *found.notes,
            *held.notes,
            *isolation.events(child.touched, child.programs(), changed, cwd),
            *(f"removed {folder}, left by a verification that was killed" for folder in lease.swept),
        ),
        scratch=lease.root if options.keep_scratch else None,
        script=request.name,
    )


def _verify(request: Request, scratch: Scratch, child: Child, tell: OnProgress) -> Verification:
    options = request.options
    for stage in request.stages:
        for path in stage.files:
            if not scratch.holds(path):
                raise Inconclusive(f"{path} lies outside the project of {request.script.name} and cannot be replaced")
    tell(Progress("importing torch", 0, None))
    child.start()
    cuda = child.cuda and options.device != "cpu"
    if options.device == "cuda" and not cuda:
        raise Inconclusive("--device cuda was asked for, and torch sees no CUDA device here")
    remap = not cuda and mentions_cuda(request)
    original = Original(child, scratch, request, remap=remap, tell=tell)
    mending: tuple[Judgement, ...] = ()
    try:
        original.watch()
    except Stopped as why:
        mended = request.mended()
        if mended is None:
            raise
        names = tuple(dict.fromkeys(stage.codemod for stage in request.stages if stage.codemod and stage.mends))
        mending = tuple(Judgement(name, KEPT, f"without it {why}") for name in names)
        request, child.texts = mended, mended.texts
        original = Original(child, scratch, request, remap=remap, tell=tell)
        try:
            original.watch()
        except Inconclusive as still:
            refuted = f"`{SCRIPT_MENDED.name}` is refuted: with {all_of(names)} {still}"
            raise Inconclusive(f"{why}; {refuted}") from still
    open_ones = {each.name: each for stage in request.stages for each in stage.assumes}
    seen = {**original.log, "arguments": request.args, "shortened": original.shortened}
    settled = settle.observed(open_ones.values(), seen)
    left = request.leaving(ASSUMPTION + name for name, one in settled.items() if one.how != settle.OBSERVED)
    unsettled = _unsettled(request, left, settled)
    blame = Blame(original, scratch, left, cuda=cuda, out=unsettled)
    selected = Selected(Recipes(original, left, blame).judge_candidate(blame.sort_out()))
    differing = {one.codemod for one in selected.learned.judgements if one.verdict == DROPPED} - unsettled.keys()
    if selected.learned.stages and speed.is_measured(cuda=cuda):
        selected = Selection(child, blame.request, blame, tell).sort_out(selected.learned)
    learned = Recipes(original, blame.request, blame).judge(selected.learned)
    learned = _with_assumptions(learned, request, settled, blame.partly, differing)
    rows = original.log["rows"]
    rewritten = learned.outcome.log.get("rows", []) if learned.outcome else []
    # with changes of the recipe alone, nothing was compared step by step
    steady = request.rebuild is not None and any(stage.risk is not Risk.RECIPE for stage in request.stages)
    compared = steady or not learned.steps
    notes = [*original.notes(compared=compared), *learned.notes]
    if request.script.suffix == NOTEBOOK and request.script in request.texts:
        notes.append("the notebook ran as a script, cell after cell, without magics and shell lines")
    if learned.outcome and learned.outcome.log.get("rounded"):
        notes.append("TF32 was imitated: the operands of float32 matrix products were rounded to 10 bits of mantissa")
    if remap and learned.outcome and learned.outcome.log.get("events", {}).get("compiled"):
        notes.append("the graphs of the compiler ran, and not the kernels that it makes of them")
    if learned.outcome and learned.stages:
        notes += learned.outcome.notes
    if any(stage.processes for stage in learned.stages) and not request.processes(learned.stages):
        notes.append("it was run in one process alone (--processes)")
    if selected.note:
        notes.append(selected.note)
    if learned.stages:
        notes += learned.stages[-1].void
    if learned.recipes and selected.speedup is not None:
        notes.append(f"speed was measured without {all_of(learned.recipes)}")
    verdict, reason = conclude(learned, request, len(rows), original.log["epochs_ended"])
    kept = dict(learned.stages[-1].files) if learned.stages else {}
    if mending:
        runs = f"it stopped, and with {all_of([one.codemod for one in mending])} it runs"
        reason = f"{runs}; mended, {reason}" if learned.stages else runs
        verdict, kept = PASS, kept or dict(request.texts)
    judged = (*mending, *learned.judgements)
    before: Estimate | None = None
    estimated: Estimate | None = None
    cards: Several | None = None
    if request.card is not None and not cuda and kept:
        recorder = Recorder(child, scratch, request, remap=remap, pretend=True, tell=tell)
        try:
            judged, before, estimated = _with_estimates(judged, learned, recorder, request, request.card)
            cards = on_several(recorder, "what was kept", kept, estimated or before, request.card, request.gpus)
            why_none = before.refused or (estimated.refused if estimated is not None else None)
        except Inconclusive as why:
            why_none = str(why)
        notes += [f"no estimate for {request.card.name}: {why_none}"] if why_none else []
    return Verification(
        verdict,
        reason,
        (child.device_name or "cuda") if cuda else "cpu",
        steps=len(rows) if compared else learned.steps,
        speedup=selected.speedup,
        baseline=dataclasses.replace(selected.baseline, losses=_losses(rows)),
        candidate=dataclasses.replace(selected.candidate, losses=_losses(rewritten)),
        codemods=judged if request.rebuild is not None else (),
        isolation=child.isolation,
        notes=tuple(notes),
        kept=kept if verdict == PASS else {},
        estimate=estimated,
        estimate_before=before,
        processes=learned.outcome.processes or 1 if learned.outcome and learned.stages else 1,
        agreement=original.agreement(learned.outcome.log) if compared and learned.outcome and rewritten else (),
        cards=cards,
    )


def _with_estimates(
    judged: tuple[Judgement, ...], learned: Learned, runs: Recorder, request: Request, card: Card
) -> tuple[tuple[Judgement, ...], Estimate, Estimate | None]:
    """The judgements with what each kept codemod brings on a card that is not here; a step before, and after all."""
    recording = runs.record("a step of the script as it is", {})
    advice, whole = estimated_stages(runs, request, learned.stages, card, recording)
    brought = {each.codemod: each.estimate for each in advice}
    told = tuple(dataclasses.replace(one, estimate=brought.get(one.codemod)) for one in judged)
    return told, step.estimate(recording, card), whole


def _unsettled(request: Request, left: Request, settled: Mapping[str, Settled]) -> dict[str, Judgement]:
    """A judgement for each codemod of which nothing is left: the run did not bear out what it assumes."""
    found = {}
    for stage in request.stages:
        bad = [settled[each.name] for each in stage.assumes if each.name in settled]
        bad = [one for one in bad if one.how != settle.OBSERVED]
        if stage.codemod and bad and stage.codemod not in names_of(left.stages):
            verdict = DROPPED if any(one.how == settle.REFUTED for one in bad) else UNVERIFIED
            found[stage.codemod] = Judgement(stage.codemod, verdict, settle.in_words(bad))
    return found


def _with_assumptions(
    learned: Learned,
    request: Request,
    settled: Mapping[str, Settled],
    partly: Mapping[str, Judgement],
    differing: Collection[str],
) -> Learned:
    """The judgements with what became of the assumptions of each codemod."""
    assumed = {stage.codemod: stage.assumes for stage in request.stages}
    claimed = {stage.codemod: stage.claims for stage in request.stages}

    def told(one: Judgement) -> Judgement:
        mine = []
        reason = one.reason
        for each in assumed.get(one.codemod, ()):
            if each.name in settled:
                mine.append(settled[each.name])
            elif one.codemod in partly:
                how = settle.REFUTED if partly[one.codemod].verdict == DROPPED else settle.NOT_EXERCISED
                mine.append(Settled(each, how, partly[one.codemod].reason))
            elif one.codemod in differing:
                mine.append(Settled(each, settle.REFUTED, one.reason))
            else:
                how = settle.COMPARED if one.verdict == KEPT else settle.NOT_EXERCISED
                mine.append(Settled(each, how, one.reason))
        bad = [settled for settled in mine if settled.how in (settle.REFUTED, settle.NOT_EXERCISED)]
        if one.verdict == KEPT and bad:
            reason = f"{reason}; where it assumes more it was left out: {settle.in_words(bad)}"
        elif one.verdict == DROPPED and one.codemod in differing:
            names = settle.names_of([each.assumption for each in bad] or claimed.get(one.codemod, ()))
            reason += f"; that refutes {names}" if names and names not in reason else ""
        return dataclasses.replace(one, reason=reason, assumes=tuple(mine))

    return dataclasses.replace(learned, judgements=tuple(map(told, learned.judgements)))


def conclude(learned: Learned, request: Request, steps: int, epochs: int) -> tuple[str, str]:
    """The verdict and its reason, of a run that saw so many steps and ends of epochs."""
    seen = f"{steps} steps" + (f" and {epochs} epoch end{'s' if epochs > 1 else ''}" if epochs else "")
    if learned.stages:
        out = [judgement.codemod for judgement in learned.judgements if judgement.verdict != KEPT]
        rest = f"; {all_of(out)} {'were' if len(out) > 1 else 'was'} left out" if out else ""
        if learned.told is None:
            unseen = f"; {learned.unseen}" if learned.unseen else ""
            return PASS, f"it learns the same over {seen}{rest}{unseen}"
        if request.rebuild is None:
            return PASS, f"it is another recipe, and learns: {learned.told}"
        steady = {stage.codemod for stage in learned.stages} - set(learned.recipes)
        same = f"but for changes of the recipe it learns the same over {seen}; " if steady else ""
        change = "changes" if len(learned.recipes) == 1 else "change"
        return PASS, f"{same}{all_of(learned.recipes)} {change} the recipe: {learned.told}{rest}"
    if not request.stages:
        return INCONCLUSIVE, f"nothing was rewritten, so there is nothing to verify (the script itself ran {seen})"
    if request.rebuild is None:
        judgement = learned.judgements[-1]
        return (FAIL if judgement.verdict == DROPPED else INCONCLUSIVE), judgement.reason
    if all(judgement.verdict == UNVERIFIED for judgement in learned.judgements):
        return INCONCLUSIVE, "no rewrite could be verified: " + _listed(learned.judgements)
    return FAIL, "no rewrite survived: " + _listed(learned.judgements)


def _listed(judgements: tuple[Judgement, ...]) -> str:
    return "; ".join(f"{judgement.codemod}: {judgement.reason}" for judgement in judgements)


def _losses(rows: list[dict[str, object]]) -> tuple[float, ...]:
    sums = []
    for row in rows:
        losses = row["losses"]
        if isinstance(losses, list) and losses:
            finite = all(math.isfinite(loss) for loss in losses)
            sums.append(math.fsum(losses) if finite else math.nan)
    return tuple(sums)
