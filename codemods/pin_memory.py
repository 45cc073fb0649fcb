"""Pin the loader's memory, so that copies to the GPU can overlap with compute.

Why slow
    A copy from ordinary (pageable) memory to the GPU goes through a pinned buffer of the driver, and the host waits for
    it. A loader that pins its batches lets the copy run beside the computation of the step before.

Example
    ::

        train_loader = DataLoader(train_set, batch_size=64, shuffle=True)

Use instead
    ::

        train_loader = DataLoader(train_set, batch_size=64, shuffle=True, pin_memory=torch.cuda.is_available())

    Where the script has a switch or a device of its own choice, the value is that (``device.type == "cuda"``). The gain
    comes with ``non-blocking``: apply both. Lightning, Fabric and Accelerate leave ``pin_memory`` to the script.

When refused
    Nothing is said where the batches are on the GPU already, where every copy is of new memory (``torch.stack(x)``),
    and for an evaluation over a handful of batches. It is refused

    - where an on/off option of the script decides: pass it;
    - where an option chooses the GPU, and the place of the call does not know it;
    - where batches hold sparse tensors, which older versions of torch cannot pin;
    - where batches are objects of a class of their own, which are pinned only if it has a ``pin_memory`` method;
    - where ``pin_memory=False`` stands with a comment, or the loader is read once, beside a training of many passes.

Risk
    exact: where the memory lies changes no number.

Measured
    0.01 % when the step is bound by compute (Raschka, LLMs-from-scratch), more where copies are long. Calling
    ``.pin_memory()`` by hand in the loop is up to twice slower than not pinning (PyTorch tutorial on ``pin_memory``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from turbofix.assumptions import BATCHES_ON_HOST, ON_GPU, READ_WHOLE, Assumption
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.training.data.pinning import BY_DEEPSPEED, gives_graphs, is_idle, pinning, sparse
from turbofix.training.evidence import of_device, of_loader
from turbofix.training.model import Evaluation, Framework, Loader, Step, TrainingProgram, Transfer

from ._copies import KEPT, Copying, eased, is_kept
from ._loaders import ONCE, called, copies_itself, is_read_once, is_timed, reason_beside
from ._precision import cuda_test, on_a_gpu, requote
from ._trainers import on_gpu

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    gain=Gain(1.0, 1.1, "Raschka, LLMs-from-scratch ch05/10; PyTorch tutorial on pin_memory"),
    after=("device-tensors", "preload-dataset"),
    known_as=("pinned memory", "page-locked memory"),
    assumes=(BATCHES_ON_HOST, ON_GPU, READ_WHOLE),
)


@dataclass(frozen=True)
class Plan:
    """The call, and the value in it if one stands there; ``test``: the script's own, where it also runs on a CPU.

    ``"True"`` where it never does; None where no test of its own can be told at the call.
    """

    call: Site
    value: Site | None
    test: str | None


UNREAD = "whether it is told to pin could not be read: see that `pin_memory` is true where a GPU is used"
UNFOLLOWED = "by a copy that was not followed"
UNSEEN = "what its `collate_fn` returns was not followed: tensors are pinned, and what has a `pin_memory` method"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Loaders whose batches are copied to a GPU and are not pinned."""
    eases = eased(program)
    timed = any(is_timed(loader) for loader in program.loaders)
    for loader in program.loaders:
        if loader.subclass == BY_DEEPSPEED or loader.role == "unused":
            continue
        state, moved = pinning(loader), moved_by(program, loader, eases)
        if state == "pinned" and (moved is not None or program.device.reaches_cuda):
            yield codemod.in_place(loader.site, f"{called(loader)} pins its memory")
        given = state == "maybe" and loader.argument("pin_memory").state != "absent"  # `pin_memory=config.pin`
        if moved is None or state == "pinned" or given or loader.first_only or loader.unused:
            continue
        who, assumes, copy = moved
        hands = "may hand" if state == "maybe" else "hands"
        message = f"{called(loader)} {hands} out pageable memory: copies to the GPU are staged and waited for ({who})"
        seen = of_loader(program, loader, "pin_memory")
        if copy is not None:
            seen = (*seen, *of_device(copy.to, copy.site))
        reason = UNREAD if state == "maybe" else why_not(program, loader) or (UNSEEN if who == UNFOLLOWED else None)
        if reason is not None:
            yield codemod.refuse(loader.site, message, reason, evidence=seen)
        elif state == "can be" and not is_idle(loader):
            pin = loader.argument("pin_memory")
            here = pin.edit_at in (None, pin.site)  # else a name of the test may not be there
            test = cuda_test(loader.goes_to) if copy and here else None
            plan = Plan(loader.site, pin.edit_at or pin.site, test)
            open_ = pin.state == "absent" and bool(loader.unpacks) and loader.site not in program.told_by
            kept = is_kept(program, loader)
            little = BATCHES_ON_HOST in assumes or kept or loader.role == "evaluation"
            yield codemod.finding(
                plan.value or loader.site,
                message + KEPT * kept,
                plan=plan,
                evidence=seen,
                for_speed=timed,
                assumes=(*assumes, *((READ_WHOLE,) * open_)),
                worth=Worth.SMALL if little else None,
            )


def moved_by(
    program: TrainingProgram, loader: Loader, eases: Mapping[Site, Copying]
) -> tuple[str, tuple[Assumption, ...], Transfer | None] | None:
    """Who copies the loader's batches to a GPU, as it made them, what that assumes, and the copy where it is seen."""
    if program.framework in (Framework.FABRIC, Framework.ACCELERATE) and loader.site in program.placed:
        return ("Fabric" if program.framework is Framework.FABRIC else "Accelerate", (), None)
    if program.framework is Framework.LIGHTNING:
        on = {on_gpu(each) for each in program.trainings} - {False}
        return ("Lightning", () if True in on else (ON_GPU,), None) if on else None
    if not copies_itself(program):
        return None
    for copy in loader.copies:
        goes, eased_by = on_a_gpu(program, copy.to), eases.get(copy.site)
        told = pinning(loader) == "no" and (copy.cast is not None or not copy.pageable)
        told = told or is_read_once(program, loader)
        if goes is not None and (eased_by is not None or told):
            return copy.site.line_from(loader.site.path), eased_by.assumes if eased_by is not None else goes, copy
    loops: tuple[Step | Evaluation, ...] = (*program.steps, *program.evaluations)
    moving = any(each.transfers for each in loops if loader.site in each.loaders)
    goes = on_a_gpu(program)
    if goes is None or loader.copies or (moving and loader.batch != "unknown") or loader.role == "evaluation":
        return None
    return UNFOLLOWED if moving else "by what is not seen", (BATCHES_ON_HOST, *goes), None


def why_not(program: TrainingProgram, loader: Loader) -> str | None:
    """What makes the rewrite unsafe or useless, where a person could still act on it."""
    pin = loader.argument("pin_memory")
    if loader.dataset.on_device or loader.collate_on_device:
        return None
    if (loader.subclass or "").startswith("torchtext."):
        return None  # no loader of torch's, and there is nothing that it could be passed
    if (made := sparse(loader)) is not None:
        return f"its batches may hold sparse tensors ({made}), which older versions of torch cannot pin"
    if (loader.subclass is not None or loader.batch == "object") and not gives_graphs(loader):
        return "its batches are objects of a class of their own, which are pinned only if it has a pin_memory method"
    if pin.state == "option" and pin.option is not None and pin.edit_at is None:
        return f"the script has a switch for it: pass {pin.option}"
    return reason_beside(pin) or (ONCE if is_read_once(program, loader) else None)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Add ``pin_memory``, or change the value that stands there."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    if edit.in_data(plan.value or plan.call):
        value = "True"
    elif plan.test is None:
        value = f"{edit.name('torch.cuda.is_available', plan.call)}()"
    else:
        value = requote(plan.test, edit, plan.call)
    if plan.value is not None:
        edit.replace(plan.value, value)
    else:
        edit.argument(plan.call, "pin_memory", value, spelled_out=True)
