"""Call torch's own GELU, SiLU, norms, log-softmax and log-sigmoid instead of writing them out.

Why slow
    Each operation of a formula reads a whole tensor from memory, writes another one, and keeps it for the backward
    pass. Torch's own function does it all in one kernel.

Example
    ::

        def gelu(x):
            return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

Use instead
    ::

        def gelu(x):
            return F.gelu(x, approximate="tanh")

    A formula is known by what it computes, not by its spelling: it is worked out for some numbers and compared with
    torch's definition. So ``x * torch.sigmoid(x)`` is ``F.silu(x)``, and a norm that is written out is ``F.layer_norm``
    or ``F.rms_norm``. Modules and their parameters stay, so checkpoints load as before.

    A layer norm that divides by the deviation of n - 1, or adds ``eps`` to the deviation, gets a factor or ``eps **
    2``. They differ in the last digits, and more only where a row hardly varies.

When refused
    Nothing is said of formulas that are used piece by piece, of norms over another dimension than the last, and where
    all models are compiled: the compiler fuses formulas itself. It is refused

    - for a layer norm of n - 1 that has no weight, which could take the factor;
    - for an RMS norm before torch 2.9, which has the first kernel for it.

Risk
    equivalent: the same formula, rounded in another order.

Measured
    Not by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE, RECENT_TORCH, SAME_FORMULA
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
from turbofix.training.model import Formula, TrainingProgram

from ._precision import version

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    known_as=("fused LayerNorm", "GELU", "SiLU", "RMSNorm", "log_softmax"),
    assumes=(READ_WHOLE, SAME_FORMULA, RECENT_TORCH),
)

FUSED_RMS = (2, 9)
UNBIASED, OUTSIDE = ("unbiased", "unbiased_outside"), ("outside", "unbiased_outside")
NAMES = {
    "gelu": "GELU",
    "gelu_tanh": "GELU (by tanh)",
    "silu": "SiLU",
    "rms_norm": "RMS norm",
    "log_softmax": "log-softmax",
    "logsigmoid": "log-sigmoid",
}


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Formulas that torch has a kernel for."""
    compiled = program.models and all(model.compiled is not None for model in program.models)
    for formula in () if compiled else program.formulas:
        name = NAMES.get(formula.kind, "layer norm")
        message = f"this {name} is written out: each of its operations goes through memory, forward and backward"
        reason, end = why_not(program, formula), formula.site
        begin = min((*formula.removed, end))
        site = begin._replace(end_line=end.end_line, end_column=end.end_column) if begin != end else end
        if reason is not None:
            yield codemod.refuse(site, message, reason)
            continue
        near = "nearly what" if formula.kind in OUTSIDE else "what"
        seen = Evidence(f"for any numbers it gives {near} torch's function gives, of `{formula.input}`", formula.site)
        assumes = (SAME_FORMULA,) if formula.kind in OUTSIDE or not formula.certain else ()
        yield codemod.finding(site, message, plan=formula, evidence=(seen,), assumes=assumes)


def why_not(program: TrainingProgram, formula: Formula) -> str | None:
    """What makes torch's function another one."""
    if formula.kind in UNBIASED and formula.weight is None:
        return (
            "it divides by the deviation of n - 1, torch's layer norm by that of n, and no weight could take the factor"
        )
    if formula.kind == "rms_norm" and program.target.torch < FUSED_RMS:
        served, since = version(program.target.torch), version(FUSED_RMS)
        return f"the project serves torch {served}; torch has a kernel for it since {since}"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Replace the expression by a call, and take out what led to it."""
    formula = finding.plan
    assert isinstance(formula, Formula)
    norm = formula.eps is not None
    plain = {"gelu_tanh": "gelu", "rms_norm": "rms_norm"}
    function = plain.get(formula.kind, "layer_norm" if norm else formula.kind)
    name = edit.name(f"torch.nn.functional.{function}", formula.site)
    arguments = [formula.input]
    if formula.kind == "gelu_tanh":
        arguments.append(f"approximate={edit.quoted('tanh', formula.site)}")
    elif formula.dim is not None:
        arguments.append(f"dim={formula.dim}")
    elif norm:
        weight, eps = formula.weight, f"{formula.eps} ** 2" if formula.kind in OUTSIDE else formula.eps
        arguments.append(f"{weight}.shape" if weight is not None else f"{formula.input}.shape[-1:]")
        if formula.kind in UNBIASED:
            share = f"(1 - 1 / {formula.input}.shape[-1])"
            weight, eps = f"{weight} * {share} ** 0.5", f"{eps} * {share}"
        arguments += [each for each in (weight, formula.bias) if each is not None]
        full = formula.bias is not None or (formula.kind == "rms_norm" and weight is not None)
        arguments.append(str(eps) if full else f"eps={eps}")
    edit.replace(formula.site, f"{name}({', '.join(arguments)})")
    for site in formula.removed:
        edit.delete(site)
