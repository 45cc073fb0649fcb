"""Train on the GPU where there is one, in a script that never leaves the CPU.

Why slow
    Models and tensors are made on the CPU, and stay there unless the program moves them. What a GPU multiplies in one
    step, a CPU takes many times as long for.

Example
    ::

        model = ConvNet()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for images, labels in train_loader:
            loss = criterion(model(images), labels)

Use instead
    ::

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = ConvNet().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)

    The device is chosen in front of what moves, or behind the file's imports where functions and methods read it, too.
    Batches move in the loops of training and evaluation, tensors that the program makes beside them where they are made
    (hidden states, masks, weights of a loss, data that a loop cuts up by hand), and ``.numpy()`` of a result becomes
    ``.cpu().numpy()``. ``apply`` lets the other codemods go on from there.

When refused
    Where a sequence is packed by its lengths, which stay on the host, a model is scripted, quantised or exported, the
    program speaks of the CPU itself, or moves its batches there, and where a model is built, or a tensor made, in
    another file than the script, which others may use. Nothing is said of a program that knows of devices, and of
    data that are known to be few.

Risk
    equivalent: other kernels round differently, and dropout draws from the GPU's generator. Without a GPU every number
    stays as it was. A checkpoint that was written on a GPU names it: ``torch.load`` needs ``map_location="cpu"`` on a
    machine that has none.

Measured
    Not measured in isolation.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import ALL_MOVED
from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.program.evidence import of_loop
from turbofix.program.model import Batch, Framework, Model, Step, TrainingProgram, Unplaced
from turbofix.program.sizes import batch_of, has_noticeable
from turbofix.records import dataclass

codemod = Codemod(
    __name__,
    tells=("ddp",),
    group="compute",
    risk=Risk.EQUIVALENT,
    unlocks=("all",),
    known_as=("train on the GPU", "device"),
    assumes=(ALL_MOVED,),
    worth=Worth.HIGH,
)

WIDE = 32
"""Channels of a convolution that has enough to compute for a GPU."""

FEW_SAMPLES = 1000
FEW_STEPS = 100
LONGEST = 100


@dataclass(frozen=True)
class Plan:
    """Everything that moves."""

    all_of_it: Unplaced


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """The models of a training that never reaches a GPU."""
    if program.framework is not Framework.PYTORCH or program.distributed or program.processes:
        return
    found = program.unplaced
    if found is None:
        yield from sent_to_the_cpu(program)
        return
    is_worth = any(is_worth_it(program, step) for step in program.steps)
    if not is_worth and any(is_toy(program, step) for step in program.steps):
        return
    site = min(found.models)
    message = "the model and its batches stay on the CPU: no step of this training reaches a GPU"
    seen = (Evidence("the model is built", site), *map(of_loop, program.steps[:1]))
    if found.hazard is not None:
        reason = f"{found.hazard.why} ({found.hazard.site.line_from(site.path)})"
        yield codemod.refuse(site, message, reason, evidence=seen)
    else:
        worth = Worth.HIGH if is_worth else Worth.SMALL
        yield codemod.finding(site, message, plan=Plan(found), evidence=seen, assumes=(ALL_MOVED,), worth=worth)


def sent_to_the_cpu(program: TrainingProgram) -> Iterator[Refusal]:
    """A training that moves its batches to the CPU, by a device that is written down."""
    for step in program.steps:
        moved = [each for each in step.transfers if each.to.where == "cpu" and each.what == "batch" and each.to.text]
        if not moved or any(each.to.mps for each in step.transfers) or not is_worth_it(program, step):
            continue
        if any(each.to.where != "cpu" for other in program.steps for each in other.transfers):
            continue
        words = moved[0].to.text
        yield codemod.refuse(
            min(step.models),
            "the model and its batches stay on the CPU: no step of this training reaches a GPU",
            f"the script says so itself: `{words}` is the CPU ({moved[0].site.line_from(step.loop.site.path)})",
            evidence=(of_loop(step),),
        )
        return


def is_worth_it(program: TrainingProgram, step: Step) -> bool:
    """Whether a step is known to have noticeable work, on data that are no toy."""
    models = [model for model in program.models if model.site in step.models]
    working = any(convolves(model) or has_noticeable(model.products, batch_of(program, step)) for model in models)
    return working and not is_toy(program, step)


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
    found = plan.all_of_it
    at = found.before or found.after
    assert at is not None
    device = edit.free_name("device", at)
    cuda, cpu = edit.quoted("cuda", at), edit.quoted("cpu", at)
    chosen = f"{edit.name('torch.device', at)}({cuda} if {edit.name('torch.cuda.is_available', at)}() else {cpu})"
    if found.before is not None:
        edit.before(found.before, f"{device} = {chosen}")
    else:
        edit.after(at, "", f"{device} = {chosen}")
    for model in found.models:
        edit.insert_after(model, f".to({device})")
    for batch in found.batches:
        if batch.behind:
            edit.after(batch.at, *moved(batch, batch.text or device))
        else:
            edit.before(batch.at, *moved(batch, batch.text or device), above_comments=True)
    for each in found.moves:
        edit.insert_after(each.site, ".cpu()" if each.text == "cpu" else f".to({each.text or device})")


def moved(batch: Batch, device: str) -> tuple[str, ...]:
    """The lines that move the tensors of a batch: one for two or three of them, if they have room in it."""
    if batch.kind == "mapping":
        return (f"{batch.names[0]} = {{name: each.to({device}) for name, each in {batch.names[0]}.items()}}",)
    if batch.kind == "list":
        return (f"{batch.names[0]} = [each.to({device}) for each in {batch.names[0]}]",)
    each = [f"{name}.to({device})" for name in batch.names]
    together = f"{', '.join(batch.names)} = {', '.join(each)}"
    if len(each) <= 3 and batch.at.column + len(together) <= LONGEST:
        return (together,)
    return tuple(f"{name} = {one}" for name, one in zip(batch.names, each, strict=True))
