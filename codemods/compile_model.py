"""Compile the model of a long training, so that its layers run as fewer, fused kernels.

Why slow
    Each operation of an eager model is a kernel of its own, which reads its input from the GPU's memory and writes its
    output there. A compiled model has element-wise work fused into few kernels, and its launches cost the host less.

Example
    ::

        model = ResNet().to(device)
        for epoch in range(200):
            for images, labels in loader:
                loss = criterion(model(images), labels)

Use instead
    ::

        model = ResNet().to(device)
        if device.type == "cuda":
            model.compile()

    ``model.compile()`` compiles in place: the keys of checkpoints and ``isinstance`` stay as they were, where
    ``torch.compile(model)`` would prefix ``_orig_mod.``. It goes behind the last statement that moves or wraps the
    model, also behind ``DistributedDataParallel``. On a CPU nothing is compiled: that would take a C++ compiler. The
    mode is the default one; whether ``mode="reduce-overhead"`` or ``"max-autotune-no-cudagraphs"`` is faster is for
    measurements to say.

    The ``Trainer`` of transformers has a switch for it: ``torch_compile=torch.cuda.is_available()``.

When refused
    Compiling takes a minute or more, for training and once more for evaluation, and must be earned back. It is done
    where a training is known to take 20,000 steps or more, by literals, defaults of options, the sizes of published
    data and the code that makes the script's own, and its model is known to have noticeable work in each: a ready-made
    network of torchvision or timm, convolutions with 128 channels or more, or matrix products that take noticeable
    time (as for ``tf32``). That is 3 milliseconds saved on each step for a minute of compiling. Shorter trainings, and
    models that are not known to have such work, are passed over in silence. Where the number of steps is not known (an
    ``ImageFolder``, a ``while``, early stopping), it is refused, for whoever starts the training knows.

    It is refused where

    - the forward pass does what breaks its graph, or has it compiled again: it reads a value on the host, prints, goes
      on as the data say, draws random numbers in Python, calls another library, keeps something in the model, loops
      as often as the data say, takes parts by a mask, enters contexts that are not known;
    - sizes change: the batches are not known to have one size, or the last one of a pass is smaller, or may be (no
      ``drop_last=True``), for which a second graph is compiled that serves all sizes from then on, less well;
    - the model is an ``nn.Sequential`` or another class of ``torch.nn`` itself: ``compile()`` compiles nothing there,
      as torch 2.13 was seen to do; or it is called by another method than as ``model(x)``;
    - it is wrapped in ``DataParallel``, is moved in a loop or in several places, or nothing tells whether to a GPU;
    - the script compiles it itself under a switch or with an option, which is off; or determinism is asked for.

    Nothing is said of recurrent models (cuDNN's kernels stay as they are), of those whose layers are not all known, of
    steps that train several networks, go backward more than once or differentiate a gradient, nor where models have
    hooks, are exported or scripted, or the script starts processes of its own; where something is compiled already, for
    GPUs before Volta, which the compiler's kernels do not run on, where the program never reaches a GPU, and under
    frameworks (Accelerate's ``dynamo_backend=``) but the ``Trainer`` of transformers. There it is done where
    ``max_steps`` says that a training takes 20,000 steps or more, for a model of transformers that is made in float32,
    and refused where batches are not known to have one size (they are where the trainer has neither a collator nor a
    tokenizer to pad with, and drops the last one), for gradient checkpointing and for trainers of the script's own.

Risk
    equivalent: fused kernels round differently, and compiled dropout draws other random numbers. Verify it: torch's
    compiler has had bugs in gradients that the loss does not show, which ``turbofix verify`` compares for each
    parameter. On Windows the compiler needs a Triton that torch does not bring along.

Measured
    1.41 times for training, the geometric mean of torch's own benchmarks (ASPLOS 2024); GPT-2 124M 2.3 times (Karpathy,
    build-nanogpt). A job of less than a minute loses.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, Gain, InPlace, Refusal, Risk, Site
from turbofix.program.evidence import of_device, of_loop, of_value
from turbofix.program.model import Evaluation, Framework, Model, Step, Training, TrainingProgram
from turbofix.program.sizes import batch_of, has_noticeable
from turbofix.records import dataclass

from ._precision import RECURRENT, called, cuda_test, deterministic, requote
from ._sizes import have_one_size, uses, varying
from ._trainers import (
    LOADING,
    STEPPING,
    Switch,
    by_deepspeed,
    evidence,
    is_off,
    is_on,
    judged,
    set_switch,
    stays_on_cpu,
)
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 2.3, source="geometric mean 1.41 (ASPLOS 2024); GPT-2 124M 2.3x (Karpathy, build-nanogpt)"),
    after=("autocast", "fused-optimizer"),
    known_as=("torch.compile", "inductor"),
)

VOLTA = (7, 0)
SINCE = (2, 2)
ENOUGH = 20_000
"""Steps that earn a minute of compiling back, at 3 milliseconds saved on each."""

WIDE = 128
SWITCH = "torch_compile"
PARALLEL = "torch.nn.parallel.DistributedDataParallel"
REPLICATED = "torch.nn.DataParallel"


@dataclass(frozen=True)
class Plan:
    """The statement behind which the model is compiled, its name there, and the test under which a GPU is used."""

    after: Site
    text: str
    test: str


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Models with much work, in trainings that are long enough for a compiler."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    if program.framework is not Framework.PYTORCH or not program.trains or not program.device.reaches_cuda:
        return
    for model in program.models:
        option = model.compiling.option if model.compiling is not None else None
        if model.compiled is not None and option is not None:
            message = f"{called([model])} runs uncompiled unless an option is passed"
            yield codemod.refuse(model.compiled, message, f"the script compiles it with {option}: pass it")
        elif model.compiled is not None:
            yield codemod.in_place(model.compiled, f"{called([model])} is compiled")
    if any(model.compiled is not None for model in program.models) or program.target.capability < VOLTA:
        return
    if program.target.torch < SINCE:
        return
    for model in program.models:
        steps = [step for step in program.steps if model.site in step.models]
        if not steps or not any(works(program, model, step) for step in steps):
            continue
        known = [step.iterations for step in steps]
        longest = max((each for each in known if each is not None), default=None)
        if None not in known and (longest or 0) < ENOUGH:
            continue
        if is_out_of_reach(program, model, steps):
            continue
        message = f"{called([model])} runs uncompiled, one kernel for each of its operations"
        seen = tuple(map(of_loop, steps[:1]))
        if longest is not None:
            seen = (*seen, Evidence(f"{longest:,} steps or so in all", steps[0].loop.site))
        reason = why_not(program, model, steps, longest)
        if reason is not None:
            yield codemod.refuse(model.site, message, reason, evidence=seen)
            continue
        compiling = model.compiling
        assert compiling is not None
        assert compiling.after is not None
        assert compiling.text is not None
        test = "True" if compiling.tested else cuda_test(compiling.place)
        assert test is not None
        plan = Plan(compiling.after, compiling.text, test)
        seen = (*seen, *of_device(compiling.place, compiling.after))
        yield codemod.finding(model.site, message, plan=plan, evidence=seen)


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, whose settings have a switch for it."""
    for training in program.trainings:
        compiled = [training.argument(name) for name in (SWITCH, "torch_compile_backend", "torch_compile_mode")]
        on = next((each for each in compiled if is_on(each) and each.option is None), None)
        if on is not None:
            yield codemod.in_place(on.edit_at or training.site, "the trainer compiles the model")
            continue
        if not all(is_off(each) for each in compiled[1:]) or training.parsed or stays_on_cpu(training):
            continue
        if program.target.capability < VOLTA or by_deepspeed(training) or not is_off(training.argument("fsdp")):
            continue
        steps = training.argument("max_steps")
        longest = next((each for each in steps.values if isinstance(each, int)), 0) if steps.known else 0
        if longest < ENOUGH or training.precision != "float32" or not training.models:
            continue  # of other models it is not known what they are, or whether parts of them are frozen
        message = f"{called(training.models)} runs uncompiled, one kernel for each of its operations"
        there = judged(codemod, training, SWITCH, message, "the trainer compiles the model")
        if there is not None:
            yield there
            continue
        seen = (of_value("max_steps", steps, training.site), *evidence(training, SWITCH))
        reason = why_not_under_trainer(program, training)
        if reason is not None:
            yield codemod.refuse(training.site, message, reason, evidence=seen)
        else:
            plan = Switch(SWITCH, "{torch.cuda.is_available}()")
            yield codemod.finding(training.site, message, plan=plan, evidence=seen)


def why_not_under_trainer(program: TrainingProgram, training: Training) -> str | None:
    """What makes the trainer's switch unsafe, or may make it a loss."""
    for name, site in deterministic(program):
        line = site.line_from(program.entry)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {line})"
    if not is_off(training.argument("full_determinism")):
        return "the script asks for reproducible results (full_determinism)"
    own = sorted(training.overrides & (STEPPING | LOADING))
    if own:
        return f"the script's own trainer has a `{own[0]}`, whose code a compiler may not see through"
    if not is_off(training.argument("gradient_checkpointing")):
        return "activations are computed a second time (gradient_checkpointing), in calls that break the graph"
    size = training.argument("per_device_train_batch_size")
    several = size.state == "absent" or (size.known and all(isinstance(each, int) and each > 1 for each in size.values))
    if not training.stacks or not several or training.dataset is None or training.dataset.kind != "map":
        return "batches are not known to have one length, and for a second length it is compiled once more, less well"
    if not is_on(training.argument("dataloader_drop_last")):
        return "the last batch of a pass is smaller, for which it is compiled once more: set dataloader_drop_last=True"
    return why_not_setting(program, training, SWITCH)


def works(program: TrainingProgram, model: Model, step: Step) -> bool:
    """Whether a step is known to have noticeable work in a model."""
    if any(each.whole or min(each.inputs or 0, each.outputs or 0) >= WIDE for each in model.convolutions):
        return True
    return has_noticeable(model.products, batch_of(program, step))


def is_out_of_reach(program: TrainingProgram, model: Model, steps: list[Step]) -> bool:
    """Whether nobody would expect a compiler to help here, or it would not go with what the program does."""
    if model.layers & RECURRENT or model.wrapped not in (None, PARALLEL, REPLICATED) or program.processes:
        return True
    if not model.layers_complete and not any(each.whole for each in model.convolutions):
        return True
    if model.compiling is None or model.compiling.foreign is not None:
        return True
    return any(
        len(step.models) > 1
        or len(step.backwards) > 1
        or any(act.create_graph or act.certainty != "seen" for act in step.backwards)
        or bool(step.grad_reads)
        or any(act.closure for act in step.updates)
        for step in steps
    )


def why_not(program: TrainingProgram, model: Model, steps: list[Step], longest: int | None) -> str | None:
    """What makes compiling unsafe, or may make it a loss, if anything."""
    if not program.complete:
        return program.incomplete_because or "the program could not be read to its end"
    for name, site in deterministic(program):
        line = site.line_from(program.entry)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {line})"
    if model.wrapped == REPLICATED:
        return "it is wrapped in DataParallel, which the compiler does not go with"
    compiling = model.compiling
    if compiling is not None and compiling.hazard is not None:
        return f"{compiling.hazard.why} ({compiling.hazard.site.line_from(program.entry)})"
    sizes = of_sizes(program, model, steps)
    if sizes is not None:
        return sizes
    if longest is None:
        return "how many steps it takes is not known from the text: a minute of compiling must be earned back"
    if compiling is None or compiling.after is None or compiling.text is None:
        return "it is not known to be moved to its device in one place, behind which it could be compiled"
    if cuda_test(compiling.place) is None and not compiling.tested:
        return "nothing tells, where it is moved, whether that is to a GPU: on a CPU it must stay as it is"
    return None


def of_sizes(program: TrainingProgram, model: Model, steps: list[Step]) -> str | None:
    """What the sizes of the batches have against it."""
    loops: list[Step | Evaluation] = [*steps, *(each for each in program.evaluations if uses(program, each, (model,)))]
    for loop in loops:
        reason = varying(program, loop.loaders, loop.resized, "compiled")
        if reason is not None:
            return reason
        if not have_one_size(program, loop.loaders, loop.resized):
            return "the batches are not known to have one size, and each new size would be compiled anew"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Compile the model in place behind the statement that puts it on its device."""
    plan = finding.plan
    if isinstance(plan, Switch):
        set_switch(plan, finding.site, edit)
        return
    assert isinstance(plan, Plan)
    line = f"{plan.text}.compile()"
    if plan.test == "True":
        edit.after(plan.after, line)
        return
    statement = edit.statement(plan.after)
    edit.after(statement, f"if {requote(plan.test, edit, plan.after)}:", f"    {line}")
