"""Which optimizers have a fused kernel, and what is in the way of asking for it, whoever steps them."""

from __future__ import annotations

from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import InPlace, Refusal, Site
from turbofix.records import dataclass
from turbofix.training.evidence import of_optimizer
from turbofix.training.model import Act, Optimizer, TrainingProgram

from ._precision import requote, said

SINCE = {
    "torch.optim.Adam": (2, 0),
    "torch.optim.AdamW": (2, 0),
    "torch.optim.SGD": (2, 3),
    "torch.optim.Adagrad": (2, 13),
}
"""From which torch on the optimizer has a fused kernel for CUDA that can be relied on."""
ON_CPU, ON_MPS = (2, 4), (2, 5)

OWN, BORROWED = "torch.optim.AdamW", frozenset(("transformers.AdamW", "transformers.optimization.AdamW"))
"""torch's AdamW, and what was transformers' own until that took it away."""

ON_DTENSORS = ("torch.optim.Adam", "torch.optim.AdamW")
"""Optimizers for whose fused step torch's DTensors have a rule (``torch/distributed/tensor/_ops``)."""

APART = "{} updates the parameters with a kernel per operation; fused, one kernel does it all"
TAKEN = "; torch's AdamW takes the place of transformers' own, with an epsilon that weighs less at first"
AVAILABLE = "torch.cuda.is_available()"


@dataclass(frozen=True)
class Fused:
    """The value of ``fused``, whether torch's AdamW takes the place of transformers' own, and the loads of states that
    may have been saved without it."""

    value: str
    borrowed: bool = False
    loads: tuple[Act, ...] = ()


def is_borrowed(optimizer: Optimizer) -> bool:
    """Whether it is transformers' AdamW that corrects the bias of its averages, as torch's always does."""
    given = optimizer.argument("correct_bias")
    corrects = given.state == "absent" or (given.known and all(given.values))
    return set(optimizer.qualnames) <= BORROWED and not optimizer.open_mapping and corrects


def names_of(optimizer: Optimizer) -> str:
    """The names of all that an optimizer may be."""
    return " or ".join(each.rpartition(".")[2] for each in optimizer.qualnames)


def told(codemod: Codemod, program: TrainingProgram, optimizer: Optimizer) -> Refusal | InPlace | None:
    """What is said of an optimizer that is fused, or cannot be by its kind."""
    fusing = [each for each in optimizer.qualnames if each in SINCE]
    fused = optimizer.argument("fused")
    unsure = fused.state in ("computed", "unknown") and fused.text is not None
    if fusing and (unsure or any(fused.values)):
        says = f", where `{fused.text}` says so" if unsure else ""
        return codemod.in_place(optimizer.site, f"{names_of(optimizer)} updates all parameters in one kernel{says}")
    if fusing == [*optimizer.qualnames]:
        plain = optimizer.is_plain and len(fusing) == 1
        return codemod.in_place(optimizer.site, PLAIN_SGD) if plain else None
    others = [each for each in optimizer.qualnames if each not in fusing]
    chosen = bool(fusing) or any(each.endswith("*") for each in others)
    if not chosen and not any(each.rpartition(".")[2] in ("Adam", "AdamW") for each in others):
        return codemod.in_place(optimizer.site, f"{names_of(optimizer)} has no fused kernel to ask for")
    message = "the optimizer may update the parameters with a kernel per operation, where one could do it all"
    reason = "which one it is is chosen at run time: pass fused=True where it is Adam, AdamW or SGD"
    if not chosen:
        reason = f"{others[0]} has no such kernel: torch.optim.AdamW(..., fused=True) has"
    return codemod.refuse(optimizer.site, message, reason, evidence=of_optimizer(program, optimizer))


PLAIN_SGD = "SGD without momentum updates all parameters by one `_foreach_add_`"


def why_not(program: TrainingProgram, optimizer: Optimizer) -> str | None:
    """What makes ``fused=True`` unsafe for an optimizer, if anything."""
    for name in ("foreach", "differentiable", "fused"):
        argument = optimizer.argument(name)
        if argument.state == "unknown" and argument.text is not None:
            return f"the script sets {name} to `{argument.text}`, and what that is could not be seen"
        if argument.state not in ("absent", "unknown") and not (argument.known and set(argument.values) == {None}):
            return f"the script chooses another implementation: {name}={argument.text or '...'} ({said(argument)})"
    if optimizer.unfused is not None:
        return f"the program speaks of {optimizer.unfused}, and the fused kernel takes plain parameters and gradients"
    if optimizer.complex:
        return "some of its parameters may be complex numbers, which the fused kernel does not take"
    if optimizer.shared and (optimizer.argument("params").text or "").count(".parameters()") > 1:
        return "two of its models share a module, and the fused kernel updates parameters given twice in another way"
    scaler = next((part for part in program.precision if part.kind == "scaler"), None)
    if scaler is not None:  # (one that an option switches on counts too: the user may pass it tomorrow)
        stepped = {site for step in program.steps if optimizer.site in step.optimizers for site in step.models}
        where = said_at(scaler.site, optimizer.site)
        if any(each.half and each.dtype != "bfloat16" for each in program.models if each.site in stepped):
            return f"the GradScaler{where} raises for weights in float16, on which a fused optimizer steps in silence"
        if has_momentum(optimizer):  # torch makes its buffers uninitialised, all of them at the first step
            then = "may skip the first step, and fused SGD then goes on with momentum nobody has filled"
            return f"the GradScaler{where} {then}"
    return None


def has_momentum(optimizer: Optimizer) -> bool:
    """Whether it may be SGD that moves by momentum."""
    momentum = optimizer.argument("momentum")
    none = momentum.state == "absent" or (momentum.known and not any(momentum.values))
    return optimizer.qualname == "torch.optim.SGD" and (optimizer.regrouped or not none)


def said_at(site: Site, beside: Site) -> str:
    """Where something stands, with the file's name where it is another file."""
    return f" on line {site.line}" if site.path == beside.path else f" in {site.path.name}, line {site.line}"


def tell_groups(load: Act, edit: Edit) -> None:
    """Say to the groups of a state what the optimizer does: beside a ``GradScaler`` torch raises for old ones."""
    group = edit.free_name("group", load.site)  # not behind it: the step counters would stay on the CPU
    fused = f'    {group}["fused"] = {load.receiver_text}.defaults.get("fused")'
    lines = f'for {group} in {load.concerns}["param_groups"]:', f"{fused}  # it may have been saved without"
    edit.before(load.site, *(requote(line, edit, load.site) for line in lines))
