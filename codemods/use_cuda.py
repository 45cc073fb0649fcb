"""Train on the GPU where there is one, in a script that never leaves the CPU.

Why slow
    Models and tensors stay on the CPU unless the program moves them, and a CPU takes many times as long.

Example
    ::

        model = ConvNet()
        for images, labels in train_loader:
            loss = criterion(model(images), labels)

Use instead
    ::

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = ConvNet().to(device)
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)

    Tensors that the program makes beside them move too. Where only a constant or an option's default keeps a training
    on the CPU or Apple's GPU (``device = "cpu"``, ``--device``), that one place is changed: what it says stays for
    machines without CUDA. Lightning's ``accelerator="cpu"`` becomes ``"auto"``, before 2.0 it is given ``gpus``.

When refused
    Nothing is said of data that are known to be few. It is refused

    - where only a part of the training is moved, or what would move is not followed;
    - where the program speaks of the CPU itself;
    - where the model acts in an environment, a state at a time, and has no wide convolution;
    - where a sequence is packed by its lengths, or a model is scripted, quantised or exported;
    - where a model is built, or a tensor is made, in another file than the script: others may use it.

Risk
    equivalent: other kernels round differently, and dropout draws from the GPU's generator. Without a GPU nothing
    changes. A checkpoint of a GPU names it: without one ``torch.load`` needs ``map_location="cpu"``.

Measured
    Not measured in isolation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from turbofix.assumptions import ALL_MOVED, ON_GPU, OPTION_DEFAULT
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.records import dataclass
from turbofix.training.evidence import of_loop
from turbofix.training.model import Batch, Framework, Held, Model, Step, TrainingProgram, Unplaced

from ._loaders import mend_help, node_of, reason_beside
from ._options import TurnedOn, on_defaults
from ._precision import ENVIRONMENTS
from ._trainers import Switch, evidence, is_off, why_not

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    brings=(ON_GPU,),
    known_as=("train on the GPU", "device"),
    once=True,
    assumes=(ALL_MOVED, OPTION_DEFAULT),
    worth=Worth.HIGH,
)

WIDE = 32
"""Channels of a convolution that has enough to compute for a GPU."""

FEW_SAMPLES, FEW_STEPS, LONGEST = 1000, 100, 100


@dataclass(frozen=True)
class Plan:
    """Everything that moves, or the literals that keep it on the CPU."""

    all_of_it: Unplaced | None
    held: tuple[Held, ...] = ()


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """The models of a training that never reaches a GPU."""
    if program.framework is Framework.LIGHTNING:
        yield from under_lightning(program)
    if program.framework is not Framework.PYTORCH or program.distributed or program.processes:
        return
    found = program.unplaced
    if found is None:
        yield from held_back(program)
        return
    if any(is_toy(program, step) for step in program.steps):
        return
    site = min(found.models)
    message = "the model and its batches stay on the CPU: no step of this training reaches a GPU"
    seen = (Evidence("the model is built", site), *map(of_loop, program.steps[:1]))
    reason = answers_one(program)
    if found.hazard is not None:
        reason = f"{found.hazard.why} ({found.hazard.site.line_from(site.path)})"
    if reason is not None:
        yield codemod.refuse(site, message, reason, evidence=seen)
    else:
        worth = Worth.HIGH if any(map(convolves, program.models)) else Worth.SOME
        yield codemod.finding(site, message, plan=Plan(found), evidence=seen, assumes=(ALL_MOVED,), worth=worth)


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal]:
    """Trainings of Lightning whose trainer is told to leave the GPU alone."""
    for training in program.trainings:
        gpus, others = training.argument("gpus"), map(training.argument, ("accelerator", "devices", "tpu_cores"))
        old = gpus.state != "absent" or (training.module is not None and training.module.old is not None)
        if old and is_off(gpus, unless_passed=True) and all(map(is_off, others)):
            message = "Lightning before 2.0 trains on the CPU unless its trainer is given `gpus`"
            reason, seen = why_not(program, training, "gpus", "1") or reason_beside(gpus), evidence(training, "gpus")
            if reason is not None:
                yield codemod.refuse(training.site, message, reason, evidence=seen)
                continue
            switch = Switch("gpus", "1 if {torch.cuda.is_available}() else None", gpus.edit_at)
            rests = (ALL_MOVED, *on_defaults(gpus))
            yield codemod.finding(training.site, message, plan=switch, evidence=seen, assumes=rests)
            continue
        given = training.argument("accelerator")
        site = given.edit_at
        if given.values != ("cpu",) or site is None:
            continue
        message = "Lightning's trainer is told to train on the CPU"
        reason = why_not(program, training, "accelerator", "auto")
        plan = Plan(None, (Held(site, "auto", given.option, quoted=True),))
        yield codemod.offer(
            site, message, reason, plan=plan, evidence=evidence(training, "accelerator"), assumes=(ALL_MOVED,)
        )


def held_back(program: TrainingProgram) -> Iterator[Finding | Refusal]:
    """A training that moves by a device, which a literal or an option's default keeps on the CPU."""
    if not program.held:
        left: Sequence[Step] = [step for step in program.steps if step.device.where == "cpu"]
        message = "the training stays on the CPU although the script chooses a GPU"
        reason = "only a part of it is moved there: move the model, its batches and what the step makes"
        if not (left and program.names_cuda and not program.device.reaches_cuda):
            message = "nothing here speaks of CUDA: no step of this training reaches such a GPU"
            reason = answers_one(program) or "what would move was not followed: move the model and each batch to one"
            left = [] if program.names_cuda or any(is_toy(program, each) for each in program.steps) else program.steps
        yield from (codemod.refuse(each.loop.site, message, reason, evidence=(of_loop(each),)) for each in left[:1])
        return
    site, options = program.held[0].site, [each.option for each in program.held if each.option is not None]
    message = "no step of this training reaches a CUDA GPU although it moves by a device: this chooses it"
    assumes = (ALL_MOVED, *on_defaults(options))
    few = answers_one(program) is not None or any(is_toy(program, step) for step in program.steps)
    yield codemod.finding(
        site,
        message,
        plan=Plan(None, program.held),
        evidence=tuple(map(of_loop, program.steps[:1])),
        assumes=assumes,
        worth=Worth.SMALL if few else Worth.HIGH,
    )


def answers_one(program: TrainingProgram) -> str | None:
    """Why an agent may stay on the CPU: it gives one action at a time, and nothing of it is wide."""
    if not program.libraries & ENVIRONMENTS or any(map(convolves, program.models)):
        return None
    return "it acts in an environment, a state at a time: layers without wide convolutions answer sooner on the CPU"


def is_toy(program: TrainingProgram, step: Step) -> bool:
    """Whether a step's data are few, or it is made a few times only: the start of a GPU takes longer."""
    sizes = [loader.dataset.length for site in step.loaders if (loader := program.loader(site)) is not None]
    few = any(size is not None and size < FEW_SAMPLES for size in sizes)
    return few or (step.iterations is not None and step.iterations < FEW_STEPS)


def convolves(model: Model) -> bool:
    """Whether a model has a wide convolution, or a whole network of them."""
    return any(each.whole or max(each.inputs or 0, each.outputs or 0) >= WIDE for each in model.convolutions)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Choose the device, move the models where they are built, and the batches where they are read."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    for held in plan.held:
        if held.wanted is None:
            TurnedOn(held.site, f"the option {held.option}").write(held.site, edit)
            continue
        old = edit.text(held.site).strip("'\"")
        edit.replace(held.site, switched(edit, held))
        if edit.in_data(held.site):
            continue
        mend_help(edit, held.site, old, f"{held.wanted or True} where there is a GPU")
    found = plan.all_of_it
    if found is None:
        return
    at = found.after
    assert at is not None
    device = edit.free_name("device", at)
    cuda, cpu = edit.quoted("cuda", at), edit.quoted("cpu", at)
    chosen = f"{edit.name('torch.device', at)}({cuda} if {edit.name('torch.cuda.is_available', at)}() else {cpu})"
    edit.after(at, "", f"{device} = {chosen}")
    for model in found.models:
        edit.insert_after(model, f".to({device})")
    for batch in found.batches:
        if batch.behind:
            edit.after(batch.at, *moved(batch, batch.text or device))
        else:
            edit.before(batch.at, *moved(batch, batch.text or device), above_comments=True)
    for each in found.moves:
        if learns(node_of(edit, each.site)):
            edit.argument(each.site, "device", each.text or device)
        else:
            edit.insert_after(each.site, ".cpu()" if each.text == "cpu" else f".to({each.text or device})")


def learns(node: ast.AST | None) -> bool:
    """Whether a call makes a tensor for an optimizer, of which a copy would be none: ``requires_grad=True``."""
    return isinstance(node, ast.Call) and any(each.arg == "requires_grad" for each in node.keywords)


def switched(edit: Edit, held: Held) -> str:
    """The literal where there is no GPU, and what it should be where there is one.

    A configuration file cannot ask for a GPU, and Lightning asks for it by itself.
    """
    if held.wanted == "auto" or edit.in_data(held.site):
        return edit.quoted(held.wanted or "", held.site) if held.quoted else held.wanted or "True"
    there = f"{edit.name('torch.cuda.is_available', held.site)}()"
    if not held.wanted:
        return there
    wanted = edit.quoted(held.wanted, held.site) if held.quoted else held.wanted
    text = f"{wanted} if {there} else {edit.text(held.site)}"
    return f"({text})" if held.inner else text


def moved(batch: Batch, device: str) -> tuple[str, ...]:
    """The lines that move the tensors of a batch: one for two or three of them, if they have room in it."""
    if batch.kind == "mapping":
        return (f"{batch.names[0]} = {{name: each.to({device}) for name, each in {batch.names[0]}.items()}}",)
    each = [f"{name}.to({device})" for name in batch.names]
    together = f"{', '.join(batch.names)} = {', '.join(each)}"
    if len(each) <= 3 and batch.at.column + len(together) <= LONGEST:
        return (together,)
    return tuple(f"{name} = {one}" for name, one in zip(batch.names, each, strict=True))
