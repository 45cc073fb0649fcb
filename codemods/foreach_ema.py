"""Average all parameters in a few kernels, not in two for each of them.

Why slow
    An average of the weights (EMA, the teacher of a student, the target network of an agent) is brought up to date in a
    Python loop over the parameters. Each of them takes a kernel or two of its own, hundreds in all, each too small to
    fill a GPU, and the loop waits on Python. ``torch._foreach_*`` does the same to whole lists of tensors in a few
    kernels; torch's own optimizers are built on it.

Example
    ::

        for kept, p in zip(average.parameters(), model.parameters()):
            kept.data.mul_(0.999).add_(p.data, alpha=1 - 0.999)

Use instead
    ::

        averages, weights = zip(*((kept.data, p.data) for kept, p in zip(average.parameters(), model.parameters())))
        torch._foreach_mul_(averages, 0.999)
        torch._foreach_add_(averages, weights, alpha=1 - 0.999)

    ``lerp_`` becomes ``torch._foreach_lerp_`` and a plain ``copy_`` ``torch._foreach_copy_``; a ``copy_`` of a sum of
    two products is the first form. What the loop runs over stays as it is written, so that pairs, their order and their
    number are the same. (``torch.optim.swa_utils.AveragedModel`` does it too; it would be another object in your
    checkpoints.)

When refused
    Known are loops of a training step that do nothing else with the parameters of two models: ``mul_`` and ``add_`` in
    one line or two, ``lerp_`` and ``copy_``, on what ``parameters()`` or ``named_parameters()`` give. Nothing is said
    of anything else (a test on each parameter, a norm that is summed up by ``item()``), of loops outside of training
    steps, of those whose variables are read behind them, and where no GPU is used or a framework holds the weights.

    Refused where the loop runs over a ``state_dict()`` or over buffers (running statistics and counters are no weights,
    and a counter is a whole number), and where the decay is not known to be a plain number: a list of tensors takes no
    tensor of one element in its place.

Risk
    equivalent: the same arithmetic; a product and a sum may be rounded once instead of twice.

Measured
    No figure: it depends on how many parameters there are, and how small.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
from turbofix.program.model import Averaging, TrainingProgram

from ._frameworks import LEFT

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EQUIVALENT,
    after=("grad-accumulation",),
    known_as=("exponential moving average", "EMA", "torch._foreach"),
)

SINCE = (2, 1)  # torch._foreach_copy_
LONG = 85
"""Pairs that are longer are written in two lines."""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Loops over the parameters of two models in a training step on a GPU."""
    if program.framework not in LEFT or program.hands_over or not program.complete:
        return
    if not program.device.reaches_cuda or program.target.torch < SINCE:
        return
    for each in program.averagings:
        what = "averaged" if each.weight is not None else "copied"
        message = f"the weights are {what} one parameter at a time, by kernels of their own for each"
        seen = (Evidence("the loop over parameters", each.loop),)
        if each.why_not is not None:
            yield codemod.refuse(each.loop, message, each.why_not, evidence=seen)
        else:
            yield codemod.finding(each.loop, message, plan=each, evidence=seen)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Put the tensors into two lists, and call what takes lists."""
    plan = finding.plan
    assert isinstance(plan, Averaging)
    at = plan.loop
    bases, others = edit.free_name("averages", at), edit.free_name("weights", at)
    if plan.plain is not None:
        names = f"{bases}, {others}" if plan.plain == "same" else f"{others}, {bases}"
        lines = [f"{names} = zip(*{plan.iterated})"]
    else:
        taken, source = f"({plan.base}, {plan.other}) for {plan.target} in ", plan.iterated
        lines = []
        if at.column + len(taken) + len(source) > LONG:
            source = edit.free_name("pairs", at, (bases, others))
            lines.append(f"{source} = {plan.iterated}")
        lines.append(f"{bases}, {others} = zip(*({taken}{source}))")

    def call(name: str) -> str:
        return edit.name(f"torch._foreach_{name}", at)

    if plan.weight is None:
        lines.append(f"{call('copy_')}({bases}, {others})")
    elif plan.scale is None:
        lines.append(f"{call('lerp_')}({bases}, {others}, {plan.weight})")
    else:
        lines.append(f"{call('mul_')}({bases}, {plan.scale})")
        lines.append(f"{call('add_')}({bases}, {others}, alpha={plan.weight})")
    edit.replace_lines(at, at, *lines)
