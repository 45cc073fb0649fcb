"""Forget gradients instead of filling them with zeros.

Why slow
    ``zero_grad(set_to_none=False)``, and a loop over the parameters that calls ``p.grad.zero_()``, write zeros over all
    gradients, and the backward pass then reads them again to add to them. A gradient of None costs no kernel: the
    backward pass puts its own in place. That is torch's default since 2.0.

Example
    ::

        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        loss.backward()
        optimizer.step()

Use instead
    ::

        model.zero_grad()
        loss.backward()
        optimizer.step()

When refused
    ``zero_grad()`` does that already. Nothing is said of gradients that are filled with zeros outside of a training
    step, where an engine (DeepSpeed) owns the optimizer, and for torch older than 2.0. It is refused where the
    optimizer is not torch's own, and where processes train a shared model. An optimizer with a memory goes on to move a
    parameter whose gradient is zero, and leaves one alone whose gradient is None: that each has one is assumed.

Risk
    exact: the same gradients, but for the sign of a zero (``0.0 + -0.0``), which no update of torch's optimizers tells.

Measured
    No figure: it saves a write and a read of every gradient in each step.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import EVERY_GRADIENT, READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.training.evidence import of_loop
from turbofix.training.model import Step, TrainingProgram, Zeroing

from ._frameworks import LEFT

codemod = Codemod(
    __name__,
    group="optimizer",
    risk=Risk.EXACT,
    known_as=("zero_grad", "set_to_none=True"),
    assumes=(READ_WHOLE, EVERY_GRADIENT),
)

SINCE = (2, 0)
RIGHT = "`zero_grad()` makes gradients None, unless it is told otherwise"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Gradients that a step fills with zeros."""
    if program.framework not in LEFT or program.hands_over or program.target.torch < SINCE:
        return
    told, own = set(), any("def zero_grad" in module.text for module in program.modules.by_path.values())
    for step in program.steps:
        clears, filled = () if own else step.zero_grads, {each.site for each in step.zeroings}
        right = (each.site for each in clears if each.site not in filled and are_torchs(step, program))
        yield from (codemod.in_place(site, RIGHT) for site in right)
        for zeroing in step.zeroings:
            if zeroing.site in told or zeroing.guard.kind not in ("always", "config", "every_n"):
                continue
            told.add(zeroing.site)
            message = "all gradients are filled with zeros, and the backward pass adds to these"
            reason, seen = why_not(zeroing, step, program), (of_loop(step),)
            assumes = (EVERY_GRADIENT,) if has_memory(step, program) or step.grad_reads else ()
            yield codemod.offer(zeroing.site, message, reason, plan=zeroing, evidence=seen, assumes=assumes)


def why_not(zeroing: Zeroing, step: Step, program: TrainingProgram) -> str | None:
    """What would tell a gradient of None from one of zeros, and no run shows."""
    if zeroing.receiver_text is None or not are_torchs(step, program):
        return "what it is called on is not known to be a module or an optimizer of torch"
    if program.processes and not program.distributed:
        return "processes that the script starts may share the gradients"
    return None


def has_memory(step: Step, program: TrainingProgram) -> bool:
    """Whether an optimizer moves or decays a parameter whose gradient is zero, and leaves one alone that has None."""
    optimizers = [program.optimizer(site) for site in step.optimizers]
    return not all(each is not None and each.is_plain and not each.regrouped for each in optimizers)


def are_torchs(step: Step, program: TrainingProgram) -> bool:
    """Whether the optimizers of a step are torch's own."""
    names = [getattr(program.optimizer(site), "qualname", None) or "" for site in step.optimizers]
    return bool(names) and all(each.startswith("torch.optim.") for each in names)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Leave the default, in a call of ``zero_grad`` that is there or takes the place of a loop."""
    zeroing = finding.plan
    assert isinstance(zeroing, Zeroing)
    if zeroing.loop:
        edit.replace_lines(zeroing.site, zeroing.site, f"{zeroing.receiver_text}.zero_grad()")
    else:
        edit.drop_argument(zeroing.site, "set_to_none", position=0)
