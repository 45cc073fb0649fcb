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
    Nothing is said of ``zero_grad()``, which does that already, of gradients that are filled with zeros outside of a
    training step, where an engine (DeepSpeed) owns the optimizer, and for torch older than 2.0.

    It is refused where the program reads a gradient itself, which may be None then; where a parameter may take part in
    some steps and not in others, since an optimizer goes on to decay and to move one whose gradient is zero, and leaves
    one alone whose gradient is None: where a test that changes from step to step stands in the model or over the
    backward pass, layers are picked by a number, ``requires_grad`` is changed, another loop trains the same model, or
    not all of the model is known (none of that matters to SGD without momentum and weight decay, in all groups and at
    all times, which leaves both alone); where the optimizer is not torch's own; where processes train a shared model;
    in a captured CUDA graph, whose gradients must stay where they are; and where a comment stands beside it.

Risk
    exact: the same gradients, but for the sign of a zero (``0.0 + -0.0``), which no update of torch's optimizers tells.

Measured
    No figure: it saves a write and a read of every gradient in each step.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.program.evidence import of_loop
from turbofix.program.model import Optimizer, Step, TrainingProgram, Zeroing
from turbofix.records import dataclass

from ._frameworks import LEFT

codemod = Codemod(
    __name__, group="optimizer", risk=Risk.EXACT, known_as=("zero_grad", "set_to_none=True"), assumes=(READ_WHOLE,)
)

SINCE = (2, 0)
DEPENDING = frozenset(("torch.nn.AdaptiveLogSoftmaxWithLoss",))
"""Layers that leave parameters out where no sample of a batch needs them."""


@dataclass(frozen=True)
class Plan:
    """What is filled with zeros, and how."""

    zeroing: Zeroing


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Gradients that a step fills with zeros."""
    if program.framework not in LEFT or program.hands_over or program.target.torch < SINCE:
        return
    told = set()
    for step in program.steps:
        for zeroing in step.zeroings:
            if zeroing.site in told or zeroing.guard.kind not in ("always", "config", "every_n"):
                continue
            told.add(zeroing.site)
            message = "all gradients are filled with zeros, and the backward pass adds to these"
            reason = why_not(zeroing, step, program)
            if reason is not None:
                yield codemod.refuse(zeroing.site, message, reason, evidence=(of_loop(step),))
            else:
                yield codemod.finding(zeroing.site, message, plan=Plan(zeroing), evidence=(of_loop(step),))


def why_not(zeroing: Zeroing, step: Step, program: TrainingProgram) -> str | None:
    """What would tell a gradient of None from one of zeros, if anything."""
    if zeroing.receiver_text is None:
        return "what it is called on is not known to be a module or an optimizer of torch"
    if zeroing.comments:
        return "the comment beside it may say why the gradients must stay"
    if zeroing.read is not None:
        return f"a gradient is read on {zeroing.read.line_from(zeroing.site.path)}, which may be None then"
    if program.processes and not program.distributed:
        return "processes that the script starts may share the gradients"
    if any(each.qualname.startswith("torch.cuda.") and "graph" in each.qualname.lower() for each in step.calls):
        return "a captured graph writes its gradients to one place"
    optimizers = [program.optimizer(site) for site in step.optimizers]
    if not optimizers or any(each is None or not is_torchs(each) for each in optimizers):
        return "an optimizer that is not torch's own may need a gradient for every parameter"
    if all(each is not None and each.is_plain and not each.regrouped for each in optimizers):
        return None
    some = "with None an optimizer leaves a parameter alone that takes no part in a step"
    if zeroing.unsettled is not None:
        return f"{some}, and {zeroing.unsettled.line_from(zeroing.site.path)} may decide over that"
    other = next((each for each in program.steps if each is not step and shares(each, step)), None)
    if other is not None:
        return f"{some}, and the loop on {other.loop.site.line_from(zeroing.site.path)} trains the same model"
    models = [program.model(site) for site in step.models]
    if not models or any(each is None or not each.layers_complete or each.layers & DEPENDING for each in models):
        return f"{some}, and not all of the model is known"
    return None


def shares(one: Step, other: Step) -> bool:
    """Whether two loops train the same parameters, as far as is known."""
    return bool({*one.models, *one.optimizers} & {*other.models, *other.optimizers})


def is_torchs(optimizer: Optimizer) -> bool:
    """Whether an optimizer is one of torch's own."""
    return optimizer.qualname is not None and optimizer.qualname.startswith("torch.optim.")


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Leave the default, in a call of ``zero_grad`` that is there or takes the place of a loop."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    zeroing = plan.zeroing
    if zeroing.keyword is None:
        edit.replace_lines(zeroing.site, zeroing.site, f"{zeroing.receiver_text}.zero_grad()")
    else:
        edit.drop_argument(zeroing.site, "set_to_none", position=0)
