"""Let cuDNN measure which of its algorithms is fastest for each convolution.

Why slow
    cuDNN has several algorithms for a convolution, and picks one by rules of thumb. With
    ``torch.backends.cudnn.benchmark`` it runs them once for each size of input, and keeps to the fastest.

Example
    ::

        torch.manual_seed(0)
        model = Net().to(device)

Use instead
    ::

        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        model = Net().to(device)

When refused
    Every new size of input is measured anew, which takes longer than it saves where a size comes once. Batches are
    known to have one size (the last of a pass may be smaller) where torch's own loader stacks two samples or more.

    It is refused where sizes are known to differ (they are drawn at random, a detector takes pictures as they are, all
    that a loader gives is padded to the longest of a batch; where that stacks a part, the pictures may have one size),
    where the script asks for determinism, sets the switch to False or leaves it to an option. Processes that a script
    starts do not inherit it: where all training is in the function that they run, it is set there, and refused where
    that is not known.

    Nothing is said where no convolution is known (one that cuts pictures into patches for a transformer is a product of
    matrices, whatever its name), on a CPU, and under the ``Trainer`` of transformers. Lightning's trainer has a switch
    for it, ``benchmark=True``.

Risk
    equivalent: another algorithm rounds differently, and some add up in an order that differs from run to run. On a
    CPU nothing changes.

Measured
    No isolated figure is known that could be trusted, so none is claimed. The first iterations take longer: all of
    the algorithms are run for each size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turbofix.assumptions import CONVOLVED_ALIKE, LONG_ENOUGH, ON_GPU, OPTION_DEFAULT, PICTURES, Assumption
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.training.evidence import of_loop
from turbofix.training.model import Argument, Evaluation, Framework, Model, Setting, Step, Training, TrainingProgram

from ._frameworks import LEFT, starts_processes, where
from ._options import decides, left_off
from ._precision import called, convolves, deterministic, in_use, is_detector, is_unknown, on_a_gpu, requote, said
from ._sizes import have_one_size, uses, varying
from ._trainers import Switch, is_off, on_gpu
from ._trainers import judged as judged_setting
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    once=True,
    known_as=("cuDNN autotuning",),
    assumes=(ON_GPU, CONVOLVED_ALIKE, PICTURES, LONG_ENOUGH, OPTION_DEFAULT),
)

SWITCH = "torch.backends.cudnn.benchmark"
NEIGHBOURS = ("torch.backends.cudnn.enabled", "torch.backends.cudnn.flags", "torch.backends.cudnn.benchmark_limit")
STEPS = 2_000
PASSES = 5
"""A training that is known to take fewer steps, or to make fewer passes over data of unknown length, hardly earns back
the seconds that the measuring takes."""

WIDE = 256
"""Convolutions over one dimension with fewer channels than this are over as soon as they are launched."""

CHOSEN = "cuDNN picks the algorithms of the convolutions by rules of thumb"
MEASURED = "measured"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Convolutions over batches of one size, whose algorithms are never measured."""
    if program.framework is Framework.LIGHTNING:
        yield from under_lightning(program)
    if program.framework not in LEFT or not program.trains or (gpu := on_a_gpu(program)) is None:
        return
    convolving = tuple(filter(convolves, in_use(program)))
    if switches := program.setting(SWITCH):
        judged = [judge(program, setting) for setting in switches]
        yield from [each for each in judged if isinstance(each, InPlace)] or (judged if convolving else ())
        return
    steps = [step for step in program.steps if uses(program, step, convolving)]
    if not convolving:
        yield from no_choice(program)
        return
    if not steps:
        yield codemod.refuse(convolving[0].site, CHOSEN, "no step of a training is seen that calls them")
        return
    place, message = where(program), slow(convolving)
    seen = (*map(of_convolutions, convolving), *map(of_loop, steps[:1]))
    evaluations = [each for each in program.evaluations if uses(program, each, convolving)]
    loops: tuple[Step | Evaluation, ...] = (*steps, *evaluations)
    reason = why_not(program, loops, convolving)
    if reason is not None or place is None:
        lost = "nothing here calls what trains: set it where the training is started"
        yield codemod.refuse(place or steps[0].loop.site, message, reason or lost, evidence=seen)
        return
    known = program.complete and all(step.source == "loader" for step in steps)
    known = known and all(have_one_size(program, loop.loaders, loop.resized) for loop in loops)
    short = all(map(is_short, steps)) or all(map(is_thin, convolving))
    assumes, worth = (*gpu, *rests_on(convolving, known, short)), Worth.SMALL if short else Worth.SOME
    yield codemod.finding(place, message, evidence=seen, assumes=assumes, worth=worth)


def slow(convolving: tuple[Model, ...]) -> str:
    """What is slow."""
    return f"cuDNN picks algorithms for the convolutions of {called(convolving)} by rule of thumb, without measuring"


def rests_on(convolving: tuple[Model, ...], known: bool, short: bool) -> tuple[Assumption, ...]:
    """What is assumed of the models, of the sizes of what they are given, and of how long it goes on."""
    pictures = (PICTURES,) if all(map(is_unknown, convolving)) else ()
    return (*(() if known else (CONVOLVED_ALIKE,)), *pictures, *((LONG_ENOUGH,) if short else ()))


def no_choice(program: TrainingProgram) -> Iterator[InPlace]:
    """What to tell of convolutions that are products of matrices, which there is one way to compute."""
    if any(model.convolutions for model in in_use(program)):
        what = "its convolutions are products of matrices: another algorithm brings nothing"
        yield from codemod.nothing(program, what)


def is_thin(model: Model) -> bool:
    """Whether nothing of a model convolves but small layers over one dimension."""
    known = [
        (each.dims, min(each.inputs or WIDE, each.outputs or WIDE)) for each in model.convolutions if not each.cuts
    ]
    return all(dims == 1 and side < WIDE for dims, side in known)


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """A training of Lightning, whose trainer has a switch for it."""
    for training in program.trainings:
        convolving = tuple(filter(convolves, training.models))
        if on_gpu(training) is False:
            continue
        if switches := program.setting(SWITCH):
            yield from (judge(program, setting) for setting in switches)
            return
        message = slow(convolving)
        there = judged_setting(codemod, training, "benchmark", message, "cuDNN measures the algorithms of convolutions")
        if isinstance(there, InPlace) or (there is not None and convolving):
            yield there
        if there is not None or not convolving:
            continue
        read = [each.site for each in program.loaders if each.fed != "no" and each.role in ("training", "evaluation")]
        seen = tuple(map(of_convolutions, convolving))
        reason = why_not_under_lightning(program, training)
        resized = training.module.resized if training.module is not None else None
        known = program.complete and len(program.trainings) == 1 and training.module is not None
        known = known and have_one_size(program, read, resized)
        thin = all(map(is_thin, convolving))
        assumes = (*((ON_GPU,) if on_gpu(training) is None else ()), *rests_on(convolving, known, thin))
        worth = Worth.SMALL if thin else Worth.SOME
        plan = Switch("benchmark", "True")
        yield codemod.offer(training.site, message, reason, plan=plan, evidence=seen, assumes=assumes, worth=worth)


def why_not_under_lightning(program: TrainingProgram, training: Training) -> str | None:
    """What makes the trainer's switch unsafe or useless, if anything."""
    if not is_off(training.argument("deterministic")):
        return "the script asks for reproducible results (deterministic)"
    resized = training.module.resized if training.module is not None else None
    read = [each.site for each in program.loaders if each.fed != "no"]
    reason = asks_otherwise(program, training.models) or varying(program, read, resized, MEASURED, partly=False)
    return reason or why_not_setting(program, training, "benchmark")


def asks_otherwise(program: TrainingProgram, convolving: Iterable[Model]) -> str | None:
    """Why the script, or a model, does not go with measuring."""
    for name, site in deterministic(program):
        line = site.line_from(program.entry)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {line})"
    if any(map(is_detector, convolving)):
        return "a detector takes pictures as large as they are, and each new size would be measured anew"
    for setting in (each for name in NEIGHBOURS for each in program.setting(name)):
        name = setting.name.removeprefix("torch.backends.")
        return f"the script sets {name} itself ({setting.site.line_from(program.entry)})"
    return None


def of_convolutions(model: Model) -> Evidence:
    """The model, with the kinds of its convolutions."""
    kinds = sorted({each.layer.rpartition(".")[2] for each in model.convolutions if not each.cuts})
    return Evidence(
        f"{f'`{model.name}`' if model.name else 'the model'} with {', '.join(kinds[:3])}, built", model.site
    )


def judge(program: TrainingProgram, setting: Setting) -> Finding | InPlace | Refusal:
    """What to say of a switch that the script sets itself."""
    value = setting.value
    under = setting.switch if setting.switch.off else None
    if turns_on(value) and under is None:
        return codemod.in_place(setting.site, "cuDNN measures the algorithms of convolutions")
    off = under if turns_on(value) else value
    if off is not None and decides(off):
        asked = f"the script leaves `cudnn.benchmark` to {said(off)}: pass it" if any(deterministic(program)) else None
        return left_off(codemod, setting.site, CHOSEN, off, (ON_GPU, CONVOLVED_ALIKE), "True", asked)
    for name, site in deterministic(program):
        line = site.line_from(setting.site.path)
        why = f"the script asks for reproducible results ({name.removeprefix('torch.')}, {line})"
        return codemod.refuse(setting.site, CHOSEN, why)
    why = "the script sets `cudnn.benchmark` to False itself, on purpose as it seems"
    return codemod.refuse(setting.site, CHOSEN, why)


def turns_on(value: Argument) -> bool:
    """Whether a switch is, or may be, set to True."""
    return any(value.values) or value.state in ("unknown", "computed")


def why_not(
    program: TrainingProgram, loops: tuple[Step | Evaluation, ...], convolving: tuple[Model, ...]
) -> str | None:
    """What makes the switch unsafe or useless, if anything."""
    if starts_processes(program) and program.script.trains_at is None:
        own = "the script starts processes of its own, which would not inherit the switch"
        return f"{own}, and it is not known to train in one place only"
    reasons = (varying(program, loop.loaders, loop.resized, MEASURED, partly=False) for loop in loops)
    return asks_otherwise(program, convolving) or next((each for each in reasons if each is not None), None)


def is_short(step: Step) -> bool:
    """Whether a training is not known to run long enough for what it measures at its start."""
    if step.iterations:
        return step.iterations < STEPS
    return step.passes is not None and step.passes < PASSES


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Set the switch before the first line that calls torch."""
    line = f"{edit.name(SWITCH, finding.site)} = True"
    edit.before(finding.site, requote(line, edit, finding.site), above_comments=True)
