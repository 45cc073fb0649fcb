"""How what one call of torch makes at once is written."""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import ON_GPU, SAME_FORMULA, Assumption
from turbofix.codemod import Codemod, SharedPlan
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, Site, Worth
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.training.model import Listed, TrainingProgram

NAMED = regex(r"\{((?:torch|numpy)\.\w+)\}")


def made_at_once(codemod: Codemod, program: TrainingProgram, assumes: Assumption = SAME_FORMULA) -> Iterator[Finding]:
    """What a codemod finds of such lists; those that it assumes to be of a GPU, only where the program names one."""
    on_gpu = assumes is ON_GPU
    for each in program.listed:
        if each.codemod == codemod.name and (not on_gpu or program.device.reaches_cuda or program.names_cuda):
            unsure = not on_gpu or each.unplaced or not program.device.reaches_cuda
            seen = (Evidence("read one by one" if on_gpu else "made in Python", each.site),)
            yield codemod.finding(
                each.site, each.message, plan=AtOnce(each), evidence=seen, assumes=(assumes,) * unsure, worth=Worth.SOME
            )


@dataclass(frozen=True)
class AtOnce(SharedPlan):
    """The one call in the place of the list."""

    made: Listed

    def write(self, place: Site, edit: Edit) -> None:
        """Put it there."""
        made, name = self.made, ""
        if made.above is not None:
            statement, name, source = made.above
            name = edit.free_name(name, statement)
            edit.before(statement, f"{name} = {source}")
        for site, text in ((made.site, made.text), *made.more):
            told = NAMED.sub(lambda found: edit.name(found[1], place), text)
            edit.replace(site, told.replace("{above}", name))
