"""The statements of a training step that go under autocast, their type, and what is kept in 32 bits in them."""

from __future__ import annotations

from dataclasses import replace

from turbofix.assumptions import LEARNS_IN_16_BITS, Assumption
from turbofix.editing.edit import Refuse
from turbofix.findings import Site
from turbofix.library.tables import is_sigmoid, unfit_for_half
from turbofix.records import dataclass
from turbofix.training.model import Called, Evaluation, Output, Region, Step, Sync, TrainingProgram

from ._precision import (
    THERE,
    asks_torch,
    cuda_test,
    models_of,
)
from ._scaler import Scaling, scaling_for
from ._sixteen import (
    AMPERE,
    LOGIT_LOSSES,
    islands,
    refuse_model,
    refuse_program,
    refuse_second_passes,
    unsafe_call,
)

SCALER_SINCE = (2, 3)  # torch.amp.GradScaler; torch.cuda.amp.GradScaler before

DOUBTFUL = ("torch.autograd.Function.apply",)
"""What has a backward of its own that may not know autocast."""

PERIODIC = frozenset(f"{owner}.{name}" for owner in ("torch", "Tensor") for name in ("sin", "cos", "sin_", "cos_"))
"""Sines of what a layer gave with a factor of some tens (SIREN), or of positions from a matrix product (rotary
embeddings by ``einsum``): their arguments reach into the hundreds, and 16 bits hold those to 1 or 2."""

LOGARITHMS = frozenset(f"{owner}.{name}" for owner in ("torch", "Tensor") for name in ("log", "log2", "log1p", "logit"))

LOGIT_CRITERIA = ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss", "with_logits", "WithLogitsLoss")


@dataclass(frozen=True)
class Wrap:
    """A region to put under autocast; ``test`` is true where a GPU is used ("True": always).

    ``outputs`` become float32 again inside it, because the loss is computed from them outside. ``apart``: each
    statement that calls a model gets a region of its own.
    """

    region: Region
    test: str
    outputs: tuple[Output, ...] = ()
    apart: bool = False


@dataclass(frozen=True)
class Plan:
    """What to rewrite: the regions, their type, the scaler for float16, and the calls that are kept in 32 bits."""

    wraps: tuple[Wrap, ...]
    half: str
    scaling: Scaling | None = None
    old_torch: bool = False
    islands: tuple[Called, ...] = ()


def plan_for(program: TrainingProgram, step: Step, half: str, taken: set[Site]) -> tuple[Plan, tuple[Assumption, ...]]:
    """What to rewrite for one training step, and what that rests on.

    Raises Refuse with the reason where it is not safe.
    """
    around = [step.loop.site, *(each.function for each in step.forwards if each.function is not None)]
    if step.scaler_updates:
        around += [part.site for part in program.precision if part.kind == "scaler"]
    refuse_program(program, step.loop.site.path, around)
    kept = refuse_step(program, step, half)
    wraps: list[Wrap] = []
    sure = is_sure(program, step) and (half == "bfloat16" or program.target.capability < AMPERE)
    blocked = why_apart(step)
    for region in step.forwards:
        test = test_in(program, step, region)
        outside = why_outside(step, region)
        wrap, plain = (apart(region, test, blocked), False) if blocked else wrap_of(step, region, test, outside)
        wraps.append(wrap)
        sure = sure and plain
    for evaluation in program.evaluations:
        found = evaluation_wrap(program, evaluation, step, half)
        if found is None or found.region.first in taken or any(overlap(found.region, other.region) for other in wraps):
            continue
        taken.add(found.region.first)
        wraps.append(found)
    scaled = half != "float16" or step.scaler_updates
    scaling = None if scaled else scaling_for(program, step, wraps[0].test)
    plan = Plan(tuple(wraps), half, scaling, program.target.torch < SCALER_SINCE, kept)
    return plan, () if sure and not kept else (LEARNS_IN_16_BITS,)


def is_sure(program: TrainingProgram, step: Step) -> bool:
    """Whether all that a step computes was seen."""
    if not program.complete or step.loss.certainty != "seen" or step.scaler_updates:
        return False
    if len(step.forwards) != len(step.backwards) or len({region.function for region in step.forwards}) > 1:
        return False
    own = any(call.qualname.startswith(DOUBTFUL) and call.constants != ("custom_fwd",) for call in step.calls)
    saturates = has_sigmoid(program, step) and any(call.qualname in LOGARITHMS for call in step.calls)
    return bool(step.models) and not own and not saturates and not any(map(is_periodic, step.calls))


def is_periodic(call: Called) -> bool:
    """Whether a sine is taken of what a product gave: its phase may be lost in 16 bits."""
    return call.of_halves and call.qualname in PERIODIC


def why_outside(loop: Step | Evaluation, region: Region) -> str | None:
    """Why the region has to end with the forward pass, whose results become float32 again."""
    names = loop.loss.qualnames if isinstance(loop, Step) else tuple(call.qualname for call in loop.calls)
    for name in (*names, *region.criteria_inside):
        if name in LOGIT_LOSSES:
            why = "raises under autocast, and the loss cannot be told from the forward pass"
            return f"{name.rpartition('.')[2]} {why}: let the model return logits and use {LOGIT_LOSSES[name]}"
    for call in region.unfit:
        line, broken = call.site.line_from(region.first.path), unfit_for_half(call.qualname)
        return f"{call.qualname} on {line} is given a result of the forward pass, and {broken}: give it `.float()`"
    return None


def wrap_of(loop: Step | Evaluation, region: Region, test: str, outside: str | None) -> tuple[Wrap, bool]:
    """A region without its loss, where that is put together by hand, or where other lines stand before it; and whether
    16 bits are known to be enough for what becomes of its results. ``outside``: why the loss must not stand in it.

    Criteria of torch compute in float32 under autocast. What a script computes itself from results in 16 bits is
    left with three digits, and a mean or a sum of it too. Products of matrices beside the models are such work (Gram
    matrices, similarities), unless they are the logits of a classification.
    """
    end, outputs = region.calls_end, region.outputs
    leaves = leaves_torch(region, loop.syncs)
    if outside is None and not leaves and not region.half and not region.products and not region.idle:
        return Wrap(region, test), True
    inside = outside is not None and any(name in LOGIT_LOSSES for name in region.criteria_inside)
    if end is not None and outputs is not None and not region.tangled and not inside:
        return Wrap(replace(region, last=end), test, outputs), outside is None and not leaves
    if outside is not None:
        return apart(region, test, outside), False
    logits = isinstance(loop, Evaluation) or (
        bool(loop.loss.qualnames) and all(name.endswith(LOGIT_CRITERIA) for name in loop.loss.qualnames)
    )
    return Wrap(region, test), not leaves and not region.half and (logits or not region.products)


def apart(region: Region, test: str, why: str) -> Wrap:
    """A region for each statement that calls a model, where one around all of them is not possible (``why``)."""
    hidden = set(region.criteria_hidden) & LOGIT_LOSSES.keys()
    if region.outputs is None or region.mixed or not region.calling or hidden:
        raise Refuse(why)
    return Wrap(region, test, region.outputs, apart=True)


def test_in(program: TrainingProgram, loop: Step | Evaluation, region: Region) -> str:
    """The source of a test, valid at a region of a loop, of whether it runs on a GPU.

    The device of the forward pass says so, or the test under which the model was moved, where that asks torch itself.
    Else it is whether there is one: on tensors of a CPU the region has no effect.
    """
    test: str | None = cuda_test(loop.device)
    moves = [model.device for site in loop.models if (model := program.model(site)) is not None]
    for move in moves if test is None else ():
        if move.test is not None and asks_torch(move, region.first.path):
            return move.test
    return test if test is not None else THERE


def refuse_step(program: TrainingProgram, step: Step, half: str) -> tuple[Called, ...]:
    """Raise Refuse for what happens in the step; the calls in it that are kept in 32 bits."""
    refuse_regions(step)
    refuse_second_passes(program, step)
    for model in models_of(program, step):
        refuse_model(model)
    outside = {call.site for region in step.forwards for call in region.unfit}
    kept = islands(program, step.calls, outside)
    calls = [
        each for each in step.calls if each.qualname != "torch.autograd.grad"
    ]  # the regions know where that stands
    reason = unsafe_call(calls, half, step.forwards[0].first.path, {*outside, *(each.site for each in kept)})
    if reason is not None:
        raise Refuse(reason)
    return kept + sigmoids(program, step, half)


def sigmoids(program: TrainingProgram, step: Step, half: str) -> tuple[Called, ...]:
    """The sigmoids before a loss that takes probabilities, or a logarithm, which are kept in 32 bits.

    In 16 a probability near 1 is 1, and the loss of a wrong one no longer pulls it back: no short run shows that.
    """
    loss = next((name for name in step.loss.qualnames if name in LOGIT_LOSSES), None)
    by_hand = any(call.qualname in LOGARITHMS for call in step.calls)
    found = tuple(call for call in step.calls if is_sigmoid(call.qualname) and call.of_halves and not call.beside)
    if loss is not None and (has_sigmoid(program, step) or not all(call.operands for call in found)):
        name = loss.rpartition(".")[2]
        raise Refuse(
            f"in {half} a sigmoid rounds probabilities above {NEAR_ONE[half]} to 1, from which {name} teaches nothing: "
            f"let the model return logits and use {LOGIT_LOSSES[loss]}"
        )
    return tuple(call for call in found if call.operands) if loss is not None or by_hand else ()


def has_sigmoid(program: TrainingProgram, step: Step) -> bool:
    """Whether a sigmoid is a layer, which cannot be given 32 bits."""
    return any("torch.nn.Sigmoid" in model.layers for model in models_of(program, step))


NEAR_ONE = {"bfloat16": 0.998, "float16": 0.9998}
"""Half a step below 1, in types whose steps there are 2**-8 and 2**-11."""


def refuse_regions(step: Step) -> None:
    """Raise Refuse where the statements of the forward passes cannot stand under a ``with``."""
    if not step.forwards or not step.backwards:
        raise Refuse("forward pass and loss could not be told apart from the rest of the step")
    for region in step.forwards:
        for blocker in region.blockers:
            if blocker not in region.between:
                raise Refuse(blocker)


def why_apart(step: Step) -> str | None:
    """Why the calls of models cannot stand under one ``with`` with all that lies between them, if anything."""
    for region in step.forwards:
        if region.between:
            return region.between[0]
    for one, other in zip(step.forwards, step.forwards[1:], strict=False):
        if overlap(one, other):
            return "the forward passes of several losses overlap"
    for backward in step.backwards:
        alone = replace(step.forwards[0], first=backward.statement, last=backward.statement)
        if any(overlap(alone, region) for region in step.forwards):
            return "a loss is sent back before the forward pass of another one is over"
    return None


def overlap(one: Region, other: Region) -> bool:
    """Whether two regions share lines."""
    same = one.first.path == other.first.path
    return same and one.first.line <= other.last.end_line and other.first.line <= one.last.end_line


def leaves_torch(region: Region, syncs: tuple[Sync, ...]) -> bool:
    """Whether a result of the forward pass is handed to numpy or another library, which may not know bfloat16."""
    kept = ("loss", "batch", "param", "grad")
    read = [each for each in syncs if each.how == "numpy" and each.of not in kept and not casts(each.of_text)]
    return bool(read or region.escapes)


def casts(text: str) -> bool:
    """Whether an expression ends in something that is float32 or integer whatever it was before."""
    tail = text.replace(".detach()", "").replace(".cpu()", "").replace(".data", "")
    return tail.endswith((".float()", ".double()", ".long()", ".int()", ".bool()")) or ".argmax(" in tail


def evaluation_wrap(program: TrainingProgram, evaluation: Evaluation, step: Step, half: str) -> Wrap | None:
    """The evaluation's forward region, where it runs the step's model and nothing speaks against it.

    An evaluation that stays in float32 is right too, so there is nothing to refuse.
    """
    region = evaluation.forward
    if region is None or region.blockers or evaluation.autocast is not None:
        return None
    if not evaluation.loaders or not set(evaluation.models) & set(step.models):
        return None  # a loop over no loader shows or translates a few samples
    shared = {each.site for each in islands(program, step.calls)}
    if unsafe_call(evaluation.calls, half, region.first.path, shared):
        return None
    try:
        test = test_in(program, evaluation, region)
        wrap, _ = wrap_of(evaluation, region, test, why_outside(evaluation, region))
    except Refuse:
        return None
    leaves = leaves_torch(region, evaluation.syncs)
    return None if wrap.region == region and leaves and not wrap.apart else wrap
