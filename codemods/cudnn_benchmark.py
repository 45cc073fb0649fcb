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
    Every new size of input is measured anew, which takes longer than it saves where a size comes once. So it needs
    batches that are known to have one size (the last of a pass may be smaller). They are known for where

    - they come from one of torchvision's data sets of small pictures, or from a ``TensorDataset``;
    - torch's own loader puts two samples or more together by ``torch.stack``, in its own ``default_collate`` or in a
      ``collate_fn`` that does nothing else: that takes tensors of one size only, from data that it draws in any order;
    - torchvision's transforms end in one size (a crop, or ``Resize`` to a pair; what follows keeps it), whatever the
      number of samples: of one of its data sets of pictures, or of all that the ``__getitem__`` of the program's own
      gives beside numbers;
    - nothing on the way through the loop and the layers takes a part by a mask, or of a size that is drawn at random.

    It is refused where a training loop reads other batches: of another ``collate_fn``, a batch sampler of the
    program's own, a stream, one sample at a time without such transforms, data that change meanwhile, a loader that
    is built in a loop (unless its samples are cut to a size that the text tells); and where an evaluation does, for
    it would be slower than it was. It is refused where the script asks for determinism, and where it sets the
    switch itself: to False, or by an option. Where it does both for an option alone that is off (a seed that may be
    passed), the switch is turned on in front of that, for all other runs. It is refused where the training may be
    over before the measuring is earned back: it is known to take fewer than 2,000 steps, at the end of its loops or
    where a count leaves them (``if step > 100: break``), or nothing more is known than that it makes fewer than five
    passes over its data (by the default, where an option says). Processes that a
    script starts do not inherit it: where all training is in the function that they run, it is set there, and
    refused where that is not known.

    Nothing is said where no convolution is known (one that cuts pictures into patches for a transformer is a product of
    matrices, whatever its name), where the program never reaches a GPU or trains nothing, where its batches come from
    elsewhere than a loader, and under the ``Trainer`` of transformers. Under Accelerate and Fabric it is the script's.
    Lightning's trainer has a switch for it, ``benchmark=True``: nothing is said there where the trainer is made of a
    command line, or its loaders were not seen being made.

Risk
    equivalent: another algorithm rounds differently, and some add up in an order that differs from run to run. On a
    CPU nothing changes.

Measured
    No isolated figure is known that could be trusted, so none is claimed. The first iterations take longer: all of
    the algorithms are run for each size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site
from turbofix.program.evidence import of_loop
from turbofix.program.model import (
    Argument,
    Evaluation,
    Framework,
    Loader,
    Model,
    Setting,
    Step,
    Training,
    TrainingProgram,
)

from ._frameworks import LEFT, starts_processes, where
from ._precision import called, deterministic, in_use, requote, said
from ._sizes import drawn, other_sizes, sizes_in, uses
from ._trainers import Switch, is_off, on_gpu, set_switch
from ._trainers import judged as judged_setting
from ._trainers import why_not as why_not_setting

codemod = Codemod(__name__, group="compute", risk=Risk.EQUIVALENT, once=True, known_as=("cuDNN autotuning",))

SWITCH = "torch.backends.cudnn.benchmark"
NEIGHBOURS = ("torch.backends.cudnn.enabled", "torch.backends.cudnn.flags", "torch.backends.cudnn.benchmark_limit")
STEPS = 2_000
PASSES = 5
"""A training that is known to take fewer steps, or of which no more is known than that it makes fewer passes over its
data, may end before it has saved the seconds that the measuring takes for each convolution and each size."""

READ = ("training", "evaluation")
"""What the loaders of Lightning are read for."""

CHOSEN = "cuDNN picks the algorithms of the convolutions by rules of thumb"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Convolutions over batches of one size, whose algorithms are never measured."""
    if program.framework is Framework.LIGHTNING:
        yield from under_lightning(program)
    if program.framework not in LEFT or not program.trains or not program.device.reaches_cuda:
        return
    convolving = tuple(model for model in in_use(program) if convolves(model))
    if not convolving:
        return
    switches = program.setting(SWITCH)
    for_others = turned_off_on_demand(program, switches)
    if switches and for_others is None:
        judged = [judge(program, setting) for setting in switches]
        yield from [each for each in judged if isinstance(each, InPlace)] or judged
        return
    place = program.script.setup if for_others is not None else where(program)
    if place is None or any(program.setting(name) for name in NEIGHBOURS):
        return
    loops = [step for step in program.steps if uses(program, step, convolving)]
    if not loops or not all(step.loaders and step.source == "loader" for step in loops):
        return
    message = f"cuDNN picks algorithms for the convolutions of {called(convolving)} by rule of thumb, without measuring"
    seen = (*map(of_convolutions, convolving), *map(of_loop, loops[:1]))
    if for_others is not None:
        message += f"; the script turns that off where `{for_others.switch.text}`, which stays"
        seen = (*seen, Evidence("turned off on demand", for_others.site))
    reason = why_not(program, loops, convolving, for_others)
    if reason is not None:
        yield codemod.refuse(place, message, reason, evidence=seen)
    else:
        yield codemod.finding(place, message, evidence=seen)


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """A training of Lightning, whose trainer has a switch for it."""
    if len(program.trainings) != 1:
        return  # whose loaders are whose is not known
    (training,) = program.trainings
    convolving = tuple(model for model in training.models if convolves(model))
    if not convolving or training.module is None or training.parsed or on_gpu(training) is False:
        return
    if switches := program.setting(SWITCH):
        yield from (judge(program, setting) for setting in switches)
        return
    message = f"cuDNN picks algorithms for the convolutions of {called(convolving)} by rule of thumb, without measuring"
    there = judged_setting(codemod, training, "benchmark", message, "cuDNN measures the algorithms of convolutions")
    if there is not None:
        yield there
        return
    loaders = {what: [each for each in program.loaders if each.fed != "no" and each.role == what] for what in READ}
    if not loaders["training"] or any(program.setting(name) for name in NEIGHBOURS):
        return
    read = tuple(Evidence("its batches come from the loader", each.site) for each in loaders["training"][:1])
    seen = (*map(of_convolutions, convolving), *read)
    reason = why_not_under_lightning(program, training, loaders)
    if reason is not None:
        yield codemod.refuse(training.site, message, reason, evidence=seen)
    else:
        yield codemod.finding(training.site, message, plan=Switch("benchmark", "True"), evidence=seen)


def why_not_under_lightning(
    program: TrainingProgram, training: Training, loaders: Mapping[str, list[Loader]]
) -> str | None:
    """What makes the trainer's switch unsafe or useless, if anything."""
    for name, site in deterministic(program):
        line = site.line_from(program.entry)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {line})"
    if not is_off(training.argument("deterministic")):
        return "the script asks for reproducible results (deterministic)"
    if any(map(is_detector, training.models)):
        return "a detector takes pictures as large as they are, and each new size would be measured anew"
    for what, read in loaders.items():
        reason = sizes_in(program, [each.site for each in read], what, "measured")
        if reason is not None:
            return reason
    resized = training.module.resized if training.module is not None else None
    if resized is not None and (reason := drawn(program, resized, "measured")) is not None:
        return reason
    return too_short_under_lightning(training, loaders["training"]) or why_not_setting(program, training, "benchmark")


def too_short_under_lightning(training: Training, loaders: list[Loader]) -> str | None:
    """Why a training may end before the measuring is earned back."""
    for name in ("limit_train_batches", "overfit_batches", "fast_dev_run"):
        if not is_off(training.argument(name)):
            return f"the trainer is told to train on a part of the data ({name})"
    steps, epochs = training.argument("max_steps"), training.argument("max_epochs")
    counts = [each for each in steps.values if isinstance(each, int) and each >= 0]
    passes = min((each for each in epochs.values if isinstance(each, int) and each >= 0), default=None)
    for loader in loaders:
        length, batch = loader.dataset.length, loader.samples.values
        if passes is not None and length is not None and len(batch) == 1 and isinstance(batch[0], int) and batch[0] > 0:
            counts.append(passes * -(-length // batch[0]))
    if counts and min(counts) < STEPS:
        return f"the training takes {min(counts):,} steps or so, too few to earn the measuring back"
    if not counts and passes is not None and passes < PASSES:
        said_so = "one pass" if passes == 1 else f"{passes} passes"
        return f"the training makes {said_so} over its data, which may be too few to earn the measuring back"
    return None


def convolves(model: Model) -> bool:
    """Whether a model has a convolution that is more than the product of matrices."""
    return any(not each.cuts for each in model.convolutions)


def of_convolutions(model: Model) -> Evidence:
    """The model, with the kinds of its convolutions."""
    kinds = sorted({each.layer.rpartition(".")[2] for each in model.convolutions if not each.cuts})
    return Evidence(
        f"{f'`{model.name}`' if model.name else 'the model'} with {', '.join(kinds[:3])}, built", model.site
    )


def judge(program: TrainingProgram, setting: Setting) -> InPlace | Refusal:
    """What to say of a switch that the script sets itself."""
    value = setting.value
    if setting.switch.option is not None and not any(setting.switch.values) and turns_on(value):
        why = f"the script sets `cudnn.benchmark` under {said(setting.switch)}: pass it"
        return codemod.refuse(setting.site, f"{CHOSEN} unless an option is passed", why)
    if turns_on(value):
        return codemod.in_place(setting.site, "cuDNN measures the algorithms of convolutions")
    if value.option is not None:
        why = f"the script leaves `cudnn.benchmark` to {said(value)}: pass it"
        return codemod.refuse(setting.site, f"{CHOSEN} unless an option is passed", why)
    alone = not any(turns_on(each.value) for each in program.setting(SWITCH))
    test = setting.switch.text if alone and may_be_passed_by(setting) else None
    for name, site in deterministic(program):
        if test is not None and any(each.site == site and each.switch.text == test for each in program.setting(name)):
            continue
        line = site.line_from(setting.site.path)
        why = f"the script asks for reproducible results ({name.removeprefix('torch.')}, {line})"
        return codemod.refuse(setting.site, CHOSEN, why)
    if test is not None:
        elsewhere = "nothing turns it on elsewhere: do, if all batches have one size"
        why = f"the script sets it to False where `{test}`, and {elsewhere}"
        return codemod.refuse(setting.site, CHOSEN, why)
    why = "the script sets `cudnn.benchmark` to False itself, on purpose as it seems"
    return codemod.refuse(setting.site, CHOSEN, why)


def turns_on(value: Argument) -> bool:
    """Whether a switch is, or may be, set to True."""
    return any(value.values) or value.state in ("unknown", "computed")


def may_be_passed_by(setting: Setting) -> bool:
    """Whether a test lets the program run without the setting: as it stands, or as far as is known."""
    if setting.switch.state == "absent" or setting.switch.text is None:
        return False
    return setting.switch.state == "unknown" or not any(setting.switch.values)


def turned_off_on_demand(program: TrainingProgram, switches: tuple[Setting, ...]) -> Setting | None:
    """The one place that turns it off, if the script does so for an option that is off, as for a seed.

    Behind the set-up's first line, in the same function: what that line sets holds in all other runs. In processes that
    the script may start neither does.
    """
    if len(switches) != 1 or not program.script.trains_here:
        return None
    (setting,) = switches
    is_off_by_value = setting.value.state == "value" and not any(setting.value.values)
    if not is_off_by_value or setting.guard.kind != "config" or len(setting.guard.tests) != 1:
        return None
    if setting.switch.state not in ("value", "option") or any(setting.switch.values) or setting.switch.text is None:
        return None
    first, function, test = program.script.setup, program.script.setup_function, setting.guard.tests[0]
    if first is None or first.path != test.path or first.line > test.line:
        return None
    if function is not None and not function.line < test.line <= function.end_line:
        return None
    return setting


def why_not(
    program: TrainingProgram, steps: list[Step], convolving: tuple[Model, ...], apart: Setting | None = None
) -> str | None:
    """What makes the switch unsafe or useless, if anything. ``apart``: where the script turns it off for some runs."""
    if not program.complete:
        return program.incomplete_because or "the program could not be read to its end"
    for name, site in deterministic(program):
        if apart is not None and any(is_beside(each, apart, site) for each in program.setting(name)):
            continue
        line = site.line_from(program.entry)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {line})"
    if apart is None and starts_processes(program) and program.script.trains_at is None:
        own = "the script starts processes of its own, which would not inherit the switch"
        return f"{own}, and it is not known to train in one place only"
    if any(map(is_detector, convolving)):
        return "a detector takes pictures as large as they are, and each new size would be measured anew"
    evaluations = [each for each in program.evaluations if uses(program, each, convolving)]
    loops: tuple[Step | Evaluation, ...] = (*steps, *evaluations)
    for loop in loops:
        reason = other_sizes(program, loop, "measured")
        if reason is not None:
            return reason
    return too_short(steps[0]) if all(map(is_short, steps)) else None


def is_beside(setting: Setting, apart: Setting, site: Site) -> bool:
    """Whether a switch at a place holds only in the runs for which the script turns off another one, too."""
    return setting.site == site and setting.guard.tests == apart.guard.tests


def is_short(step: Step) -> bool:
    """Whether a training is not known to run long enough for what it measures at its start."""
    if step.most is not None and step.most < STEPS:
        return True
    if step.iterations is not None:
        return step.iterations < STEPS
    return step.passes is not None and step.passes < PASSES


def too_short(step: Step) -> str:
    """What to say of such a training."""
    if step.iterations is not None:
        return f"the training takes {step.iterations:,} steps or so, too few to earn the measuring back"
    if step.most is not None and step.most < STEPS:
        return f"the training takes {step.most:,} steps at most, too few to earn the measuring back"
    passes = "one pass" if step.passes == 1 else f"{step.passes} passes"
    return f"the training makes {passes} over its data, which may be too few to earn the measuring back"


def is_detector(model: Model) -> bool:
    """Whether it is one of torchvision's networks that take lists of pictures."""
    return any(layer.startswith("torchvision.models.detection.") for layer in model.layers)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Set the switch before the first line that calls torch."""
    if isinstance(finding.plan, Switch):
        set_switch(finding.plan, finding.site, edit)
        return
    line = f"{edit.name(SWITCH, finding.site)} = True"
    edit.before(finding.site, requote(line, edit, finding.site), above_comments=True)
