"""The stage of ZeRO in DeepSpeed's configuration."""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod, SharedPlan
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Site
from turbofix.records import dataclass
from turbofix.training.model import Stage, TrainingProgram

SECTION = "zero_optimization"
TESTED = ("torch.optim.Adam", "torch.optim.AdamW")
"""torch's optimizers whose state DeepSpeed shares out without being told that it may."""


@dataclass(frozen=True)
class Staged(SharedPlan):
    """A stage that is written into a configuration: instead of another, or into a section that may have to be made."""

    stage: int
    found: Stage

    def write(self, site: Site, edit: Edit) -> None:
        """Set it where it stands, else add it."""
        found, text = self.found, str(self.stage)
        if found.at is not None:
            edit.replace(found.at, text)
            return
        place, key = (found.section, "stage") if found.section is not None else (found.place, SECTION)
        assert place is not None
        if edit.in_data(place):
            edit.setting(place, key, text if key == "stage" else repr({"stage": self.stage}))
        else:
            edit.entry(place, key, text if key == "stage" else f"{{{edit.quoted('stage', place)}: {text}}}")


def under_deepspeed(codemod: Codemod, program: TrainingProgram, stage: int) -> Iterator[Finding | Refusal | InPlace]:
    """Calls of ``deepspeed.initialize`` whose configuration shares out less than is asked for."""
    for found in program.stages:
        if found.stage is not None and found.stage >= stage:
            yield codemod.in_place(found.at or found.call, f"DeepSpeed has stage {found.stage} of ZeRO")
            continue
        message = f"DeepSpeed is told to share out less than stage {stage} of ZeRO does"
        seen = (Evidence("its engine", found.call),)
        plan = Staged(stage, found)
        yield codemod.offer(found.at or found.call, message, why_not(program, found), plan=plan, evidence=seen)


def why_not(program: TrainingProgram, found: Stage) -> str | None:
    """What speaks against a stage, or leaves it to the user."""
    numbers = dict(found.numbers)
    if (found.at is None and (found.section or found.place) is None) or (found.at is not None and found.stage is None):
        return f'its configuration is not seen: say `"{SECTION}": {{"stage": {program.target.zero}}}` in it'
    whole, micro = numbers.get("train_batch_size"), numbers.get("train_micro_batch_size_per_gpu")
    steps = numbers.get("gradient_accumulation_steps", 1)
    if whole and micro and (whole % (micro * steps) or program.target.gpus not in (1, whole // (micro * steps))):
        return (
            f"its batch size does not fit: `train_batch_size` ({whole}) has to be `train_micro_batch_size_per_gpu` "
            f"({micro}) times `gradient_accumulation_steps` ({steps}) times the number of GPUs"
        )
    if found.steps is not None and found.steps not in TESTED and not numbers.get("zero_allow_untested_optimizer"):
        name = found.steps.rpartition(".")[2]
        return f"DeepSpeed shares out the state of {name} only where it is told `zero_allow_untested_optimizer`"
    return None
