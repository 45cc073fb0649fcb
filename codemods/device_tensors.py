"""Make the tensors of a step on the device, not on the host with a copy behind it.

Why slow
    ``torch.zeros(n, m).to(device)`` fills memory of the host and copies it from there. The host waits for the copy, and
    for whatever the GPU was doing before. Made on the device it is one kernel that the host launches and leaves.

Example
    ::

        for images in train_loader:
            valid = torch.ones(images.size(0), 1).to(device)
            noise = torch.randn(images.size(0), 100).cuda()

Use instead
    ::

        for images in train_loader:
            valid = torch.ones(images.size(0), 1, device=device)
            noise = torch.randn(images.size(0), 100, device="cuda")

    What is copied is followed back through names and functions to the calls that fill memory of the host. A function
    that returns it gets a parameter ``device=None``.
    Where ``if use_cuda:`` decides over the copy, it chooses: ``device="cuda" if use_cuda else "cpu"``.
    A number is copied, too, where it is told the device: ``torch.tensor(0.5, device=device)`` becomes
    ``torch.full((), 0.5, device=device)``.
    An array or list of the host by which a step indexes several tensors on the GPU (``chosen = order[start:end]``,
    ``for chosen in BatchSampler(...)``) is copied there once: ``torch.as_tensor(chosen, device=states.device)``.
    What is made in an index (``logits[torch.arange(n), labels]``) is made where the tensor lies.

When refused
    Nothing is said of set-up code. It is refused

    - where a step copies other data of the host each time: told the device, the call makes the same copy;
    - where something else uses the tensor on the host, or it takes gradients;
    - where a generator of the host's draws it, or ``.cuda(gpu)`` may be given None;
    - where the device is known only below: choose it earlier;
    - where the call unpacks a mapping that may hold the device already;
    - in an evaluation that runs once, beside a training of many passes.

Risk
    exact: the numbers are the same. equivalent: random numbers come from the GPU's generator, and what is computed
    there (``linspace``, ranges of fractions) may be rounded differently. On a CPU nothing changes.

Measured
    Not measured in isolation.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import ALL_MOVED, ON_GPU, Assumption
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.training.evidence import of_device, of_loop
from turbofix.training.model import Creation, Evaluation, Guard, HostIndex, Placement, Step, TrainingProgram

from ._loaders import ONCE, is_once
from ._precision import filled, on_a_gpu

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EXACT,
    known_as=("tensors made on the device",),
    assumes=(ON_GPU, ALL_MOVED),
)

OFTEN = 10
"""A test that lets every tenth step by, or fewer, is no matter of every step."""
PASSES = {Step: "training step", type(None): "forward pass"}


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Tensors that steps and evaluations make on the host and copy at once."""
    if not program.trains:
        return
    yield from copied_to_index(program)
    told: set[Site] = set()
    loops: tuple[Step | Evaluation | None, ...] = (*program.steps, *program.evaluations, None)
    for loop in loops:
        for made in loop.creations if loop is not None else program.creations:
            goes = goes_there(program, made.to)
            if made.site in told or goes is None or is_seldom(made.guard, kept=made.kept):
                continue
            told.add(made.site)
            name = made.calls[0].name.rpartition(".")[2]
            where = PASSES.get(type(loop), "step of the evaluation")
            seldom = made.guard.kind == "condition"
            often = f"each time that a {where} makes it" if seldom else f"in every {where}"
            if made.switch.off:
                by = f" (by {made.switch.option})" if made.switch.option else ""
                often += f", but only where `{made.switch.text}`{by}"
            message = f"`{name}` fills memory of the host, and the host waits for its copy to the GPU {often}"
            seen = (
                *(map(of_loop, [loop] if loop is not None else [])),
                *(Evidence("made on the host", call.site) for call in made.calls),
                *of_device(made.to, made.site),
            )
            risk = Risk.EQUIVALENT if made.draws or made.rounds else Risk.EXACT
            why_not = made.why_not or (ONCE if is_once(program, loop) else None)
            if why_not is not None:
                yield codemod.refuse(made.site, message, why_not, risk=risk, evidence=seen)
            else:
                assumes = (*((ON_GPU,) if made.unsure else goes), *(ALL_MOVED,) * made.meets)
                yield codemod.finding(
                    made.site,
                    message,
                    plan=made,
                    risk=risk,
                    evidence=seen,
                    assumes=assumes,
                    worth=Worth.SMALL if seldom or made.switch.off or isinstance(loop, Evaluation) else None,
                )


def copied_to_index(program: TrainingProgram) -> Iterator[Finding]:
    """The indices of the host by which a step takes parts of several tensors on the GPU."""
    found = {index.site: (index, step) for step in program.steps for index in step.indices}
    for site, (index, loop) in found.items():
        goes = on_a_gpu(program, index.to)
        if goes is not None:
            message = f"`{index.name}` lies on the host, and is copied to the GPU {index.times} times in every training"
            message += " step, to index what lies there; the host waits each time"
            seen = (of_loop(loop), *of_device(index.to, site))
            yield codemod.finding(site, message, plan=index, evidence=seen, assumes=goes)


def goes_there(program: TrainingProgram, to: Placement) -> tuple[Assumption, ...] | None:
    """What it assumes that a copy goes to a GPU, as it does to what a framework brings there."""
    moves = not program.steps and to.text is not None and to.text.endswith("device")
    return (ON_GPU,) if moves and not to.reaches_cuda else on_a_gpu(program, to)


def is_seldom(guard: Guard, *, kept: bool = False) -> bool:
    """Whether it happens in few steps: once, to be kept, in every tenth, or where something went wrong."""
    if guard.kind == "every_n":
        return guard.every is None or not 0 < guard.every < OFTEN  # every 0: only where an option asks for it
    return guard.kind in ("rank", "except") or (guard.kind == "condition" and kept)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Tell the call the device, and take the copy away; copy an index once."""
    plan = finding.plan
    if isinstance(plan, HostIndex):
        copy, device = edit.name("torch.as_tensor", plan.site), f"device={plan.to.text}"
        if plan.body is None:
            edit.replace(plan.site, f"{copy}({edit.text(plan.site)}, {device})")
        else:
            edit.before(plan.body, f"{plan.name} = {copy}({plan.name}, {device})")
        return
    assert isinstance(plan, Creation)
    for call in plan.calls:
        device = "device" if call.inside else device_of(edit, plan, call.site)
        if call.written is not None:
            edit.replace(call.site, filled(call.written.replace("{device}", device), edit, call.site))
            continue
        if plan.dtype is not None:
            edit.argument(call.site, "dtype", plan.dtype, keyword_only=True)
        edit.argument(call.site, "device", device, keyword_only=True)
    for helper in plan.helpers:
        edit.parameter(helper.function, "device=None", helper.beside)
        edit.argument(helper.call, "device", device_of(edit, plan, helper.call))
    if plan.unused is not None:
        edit.delete(plan.unused)
    elif plan.moved is not None:
        if plan.packs:
            edit.insert_after(plan.moved, ".clone()")
        edit.cut(plan.site, plan.moved)


def device_of(edit: Edit, plan: Creation, site: Site) -> str:
    """How a call is told the device."""
    device = plan.device or edit.quoted("cuda", site)
    return device if plan.only_if is None else f"{device} if {plan.only_if} else {edit.quoted('cpu', site)}"
