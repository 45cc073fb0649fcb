"""Pin the loader's memory, so that copies to the GPU can overlap with compute.

Why slow
    A copy from ordinary (pageable) host memory to the GPU is staged through a pinned buffer of the driver, and the
    host waits for it. A loader that pins its batches lets the copy run beside the computation of the step before.

Example
    ::

        train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
        for images, labels in train_loader:
            images = images.to(device)

Use instead
    ::

        train_loader = DataLoader(train_set, batch_size=64, shuffle=True, pin_memory=torch.cuda.is_available())

    In a script that only runs on a GPU the value is ``True``, and where the script has a switch or a device of its own
    choice, it is that (``use_cuda``, ``device.type == "cuda"``). The gain comes with ``non-blocking``: apply both.

    Fabric copies what ``setup_dataloaders`` is given without blocking, and leaves ``pin_memory`` to the script. It is
    said of loaders with workers, beside whose work a thread pins; without them, the training process itself would.
    (Accelerate's copies block unless it is told otherwise; nothing is said there.)

    The ``Trainer`` of transformers pins by itself. Where its settings forbid it (``dataloader_pin_memory=False``) and
    workers load, that is taken out; a comment beside it is a reason to leave it.

When refused
    Nothing is said under frameworks that move the batches themselves (DeepSpeed does not, Fabric gains from it), where
    the batches are on the GPU already, where ``collate_fn`` moves or pins them itself, where no batch is copied to a
    GPU as the loader made it (``x.float()`` and ``torch.stack(x)`` are in new memory, ``x[:, 1:]`` is made contiguous
    there first), where all its copies keep blocking (``non-blocking`` refuses them), where nothing tells which of
    several loaders they read (``if args.task == ...`` in a module that is asked alone, without the script that passes
    ``args``), for an evaluation over a handful of batches that the training process loads, and where an unpacked
    mapping may set ``pin_memory`` already. It is refused where the call unpacks a mapping that is not written out in
    the same function or serves for more than that, where a batch holds sparse tensors (older versions of torch cannot
    pin them), where the batches are objects of a class of their own (the loader pins them only if the class has a
    ``pin_memory`` method), where an on/off option decides, where the GPU is used only with an option that the place of
    the call does not tell, and where ``pin_memory=False`` stands with a comment.

Risk
    exact: where the memory lies changes no number.

Measured
    0.01 % when the step is bound by compute (Raschka, LLMs-from-scratch), more where copies are long; calling
    ``.pin_memory()`` by hand in the loop is up to twice slower than not pinning (PyTorch tutorial on ``pin_memory``).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk, Site
from turbofix.program.evidence import of_device, of_loader, of_value
from turbofix.program.model import Framework, Loader, TrainingProgram
from turbofix.program.pinning import BY_DEEPSPEED, gives_graphs, is_idle, pinning, sparse
from turbofix.records import dataclass

from ._copies import eased, wish_is_elsewhere
from ._loaders import OWN_COPIES, called, copies_to_cuda, is_timed
from ._precision import cuda_test, requote
from ._trainers import LOADING, is_on, stays_on_cpu
from ._trainers import called as called_settings
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    gain=Gain(1.0, 1.1, "Raschka, LLMs-from-scratch ch05/10; PyTorch tutorial on pin_memory"),
    after=("device-tensors", "preload-dataset"),
    known_as=("pinned memory", "page-locked memory"),
)


@dataclass(frozen=True)
class Plan:
    """The call, and the value in it if one stands there; ``test``: the script's own, where it also runs on a CPU.

    ``"True"`` where it never does; None where no test of its own can be told at the call. ``closed``: what the call
    unpacks is known by its text.
    """

    call: Site
    value: Site | None
    test: str | None
    closed: bool


@dataclass(frozen=True)
class Allowed:
    """The settings that forbid it, by an argument of the call or by a value elsewhere."""

    call: Site
    value: Site | None


SETTING = "dataloader_pin_memory"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Loaders whose batches are copied to a GPU and are not pinned."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    if program.framework not in (*OWN_COPIES, Framework.FABRIC) or not program.complete:
        return
    eases = eased(program)
    timed = any(is_timed(loader) for loader in program.loaders)
    for loader in program.loaders:
        if loader.subclass == BY_DEEPSPEED:
            continue
        state = pinning(loader)
        moved = any(copy.to.reaches_cuda for copy in loader.copies)
        if state == "pinned" and (moved or (program.device.reaches_cuda and loader.role != "unused")):
            yield codemod.in_place(loader.site, f"{called(loader)} pins its memory")
        by_fabric = is_moved_by_fabric(program, loader)
        copies = copies_to_cuda(loader) if program.framework in OWN_COPIES else ()
        served = tuple(copy for copy in copies if copy.site in eases)
        copies = served or copies
        if not (copies or by_fabric) or state == "pinned" or loader.first_only:
            continue
        who = "Fabric's" if by_fabric else copies[0].site.line_from(loader.site.path)
        message = f"{called(loader)} hands out pageable memory: the host waits for each copy to the GPU ({who})"
        seen = of_loader(program, loader, "pin_memory")
        if copies:
            seen = (*seen, *of_device(copies[0].to, copies[0].site))
        reason = why_not(loader) if state != "maybe" else None
        if reason is not None:
            yield codemod.refuse(loader.site, message, reason, evidence=seen)
        elif state == "can be" and (served or by_fabric) and not is_idle(program, loader):
            pin = loader.argument("pin_memory")
            test = None if by_fabric else cuda_test(loader.goes_to)
            plan = Plan(loader.site, pin.edit_at or pin.site, test, loader.spelled_out)
            yield codemod.finding(plan.value or loader.site, message, plan=plan, evidence=seen, for_speed=timed)


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainers of transformers that are told not to pin, which they do by themselves.

    Said where workers load: a thread pins what they hand over; without them the training process itself would.
    """
    for training in program.trainings:
        given, workers = training.argument(SETTING), training.argument("dataloader_num_workers")
        if given.state != "value" or given.values != (False,) or stays_on_cpu(training) or training.parsed:
            continue
        if not (workers.state == "computed" or is_on(workers)):
            continue
        place = given.edit_at or training.site
        who = called_settings(training)
        message = f"{who} keeps its loaders from pinning: copies to the GPU go through a buffer of the driver"
        seen = (of_value(SETTING, given, training.site), of_value("dataloader_num_workers", workers, training.site))
        reason = why_not_setting(program, training, SETTING)
        if reason is None and given.comment:
            reason = f"{SETTING} is off with a comment beside it, which may say why"
        if reason is None and training.overrides & LOADING:
            reason = "the script's own trainer builds its loaders itself"
        if reason is not None:
            yield codemod.refuse(place, message, reason, evidence=seen)
        else:
            here = given.edit_at is None or given.edit_at == given.site
            plan = Allowed(training.site, None if here else given.edit_at)
            yield codemod.finding(place, message, plan=plan, evidence=seen)


def is_moved_by_fabric(program: TrainingProgram, loader: Loader) -> bool:
    """Whether Fabric copies the batches of a loader, which it does without blocking; their data must be known.

    And so must its workers: small batches are copied from pageable memory at once (up to 64 KB), and without workers
    it is the training process that would pin large ones.
    """
    return (
        program.framework is Framework.FABRIC
        and loader.site in program.placed
        and loader.role != "unused"
        and loader.dataset.kind != "unknown"
        and has_workers(loader)
    )


def has_workers(loader: Loader) -> bool:
    """Whether a loader surely has workers, unless the user of the script says otherwise."""
    workers = loader.argument("num_workers")
    if workers.state == "computed":
        return True
    return workers.state in ("value", "option") and bool(workers.values) and bool(workers.values[0])


def why_not(loader: Loader) -> str | None:
    """What makes the rewrite unsafe or useless, where a person could still act on it."""
    pin = loader.argument("pin_memory")
    if loader.dataset.on_device or loader.collate_on_device:
        return None
    if (loader.subclass or "").startswith("torchtext."):
        return None  # no loader of torch's, and there is nothing that it could be passed
    if (made := sparse(loader)) is not None:
        return f"its batches hold sparse tensors ({made}), which older versions of torch cannot pin"
    if (loader.subclass is not None or loader.batch == "object") and not gives_graphs(loader):
        return "its batches are objects of a class of their own, which are pinned only if it has a pin_memory method"
    if pin.state == "absent" and not loader.spelled_out:
        return "the call unpacks a mapping; add `pin_memory` to that mapping"
    if pin.state == "option" and pin.option is not None and pin.edit_at is None:
        return f"the script has a switch for it: pass {pin.option}"
    if wish_is_elsewhere(loader):
        return f"the script uses the GPU only with {loader.goes_to.needs}, which the place of this call does not tell"
    if pin.state != "absent" and pin.comment:
        return "pin_memory is off with a comment beside it, which may say why"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Add ``pin_memory``, or change the value that stands there."""
    plan = finding.plan
    if isinstance(plan, Allowed):
        if plan.value is None:
            edit.drop_argument(plan.call, SETTING)
        else:
            edit.replace(plan.value, "True")
        return
    assert isinstance(plan, Plan)
    if plan.test is None:
        value = f"{edit.name('torch.cuda.is_available', plan.call)}()"
    else:
        value = requote(plan.test, edit, plan.call)
    if plan.value is not None:
        edit.replace(plan.value, value)
    else:
        edit.argument(plan.call, "pin_memory", value, spelled_out=plan.closed)
