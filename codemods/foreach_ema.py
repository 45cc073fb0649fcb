"""Average all parameters in a few kernels, not in two for each of them.

Why slow
    An average of the weights (EMA, the teacher of a student, the target network of an agent) is updated in a Python
    loop over the parameters. Each takes a kernel or two, too small to fill a GPU, and the GPU waits for Python.
    ``torch._foreach_*`` does the same to whole lists of tensors in a few kernels, as torch's own optimizers do.

Example
    ::

        for kept, p in zip(average.parameters(), model.parameters()):
            kept.data.mul_(0.999).add_(p.data, alpha=1 - 0.999)

Use instead
    ::

        pairs = [(kept.data, p.data) for kept, p in zip(average.parameters(), model.parameters())]
        averages, weights = zip(*pairs)
        torch._foreach_mul_(averages, 0.999)
        torch._foreach_add_(averages, weights, alpha=1 - 0.999)

    ``lerp_``, ``copy_``, ``clamp_`` and ``mul_`` (of gradients, too) have a call of their own; norms that are taken in
    a list have ``torch._foreach_norm``. Where the loop gives the weights other memory (``kept.data = ...``), they are
    changed in place: that nobody holds the old ones is assumed. The order is the same.

When refused
    Nothing is said of loops outside of training steps. It is refused

    - where the loop does anything else with each parameter, or its variables are read behind it;
    - where the decay is a tensor: make it a number;
    - for ``AveragedModel`` with a function that takes one weight;
    - before torch 1.9 (averages), 2.0 (bounds), 2.1 (copies, ``mul_``, ``lerp_``).

Risk
    equivalent: the same arithmetic; a product and a sum may be rounded once instead of twice. Where there may be
    nothing to average, as among buffers, that is asked first.

Measured
    No figure: it depends on how many parameters there are, and how small.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import ON_GPU, READ_WHOLE, RECENT_TORCH, SAME_FORMULA
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
from turbofix.training.model import Averaging, TrainingProgram

from ._frameworks import LEFT
from ._listed import made_at_once
from ._precision import on_a_gpu, version

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EQUIVALENT,
    after=("grad-accumulation",),
    known_as=("exponential moving average", "EMA", "torch._foreach"),
    assumes=(READ_WHOLE, ON_GPU, SAME_FORMULA, RECENT_TORCH),
)

SINCE = {"averaged": (1, 9), "copied": (2, 1), "clamped": (2, 0), "scaled": (2, 1)}
"""The first torch with what an average, a copy and bounds are written by; with ``lerp_``, as for a copy."""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Loops over parameters in a training step on a GPU."""
    yield from made_at_once(codemod, program)
    if program.framework not in LEFT or program.hands_over:
        return
    goes = on_a_gpu(program)
    if goes is None:
        return
    for each in program.averagings:
        what = "averaged" if each.weight is not None else "copied"
        if each.done:
            what = "scaled" if each.done[0][0] == "mul_" else "clamped"
        message = f"the {kind_of(each)} are {what} one parameter at a time, by kernels of their own for each"
        seen = (Evidence("the loop over parameters", each.loop),)
        why, since = each.why_not, SINCE["copied" if what == "averaged" and each.scale is None else what]
        if program.target.torch < since:
            why = f"the project serves torch {version(program.target.torch)}; torch does so since {version(since)}"
        yield codemod.offer(
            each.loop, message, why, plan=each, evidence=seen, assumes=(*goes, *(SAME_FORMULA,) * each.unsure)
        )


def kind_of(averaging: Averaging) -> str:
    """What the tensors are, in a word."""
    if averaging.done and "." not in averaging.base:
        return "tensors"
    return "gradients" if "grad" in averaging.base.split(".") else "weights"


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Put the tensors into two lists, and call what takes lists."""
    plan = finding.plan
    assert isinstance(plan, Averaging)
    at = plan.loop
    bases, others = edit.free_name("averages", at), edit.free_name(kind_of(plan), at)
    asked = f" if {plan.test}" if plan.test is not None else ""

    def call(name: str) -> str:
        return edit.name(f"torch._foreach_{name}", at)

    then: list[str] = []  # what is done with the lists
    if plan.done:
        each = f"{plan.base} for {plan.target} in " if asked or plan.base != plan.target else "*"
        lines, tensors = [f"{others} = [{each}{plan.iterated}{asked}]"], others
        then += [f"{call(name)}({others}, {number})" for name, number in plan.done]
    else:
        tensors, lines = edit.free_name("pairs", at, (bases, others)), []
        lines.append(f"{tensors} = [({plan.base}, {plan.other}) for {plan.target} in {plan.iterated}{asked}]")
        then.append(f"{bases}, {others} = zip(*{tensors})")
        if plan.weight is None:
            then.append(f"{call('copy_')}({bases}, {others})")
        elif plan.scale is None:
            then.append(f"{call('lerp_')}({bases}, {others}, {plan.weight})")
        else:
            then.append(f"{call('mul_')}({bases}, {plan.scale})")
            then.append(f"{call('add_')}({bases}, {others}, alpha={plan.weight})")
    lines += [f"if {tensors}:", *(f"    {line}" for line in then)] if plan.hollow else then
    edit.replace_lines(at, at, *lines)
