"""How what one call of torch makes at once is written."""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import SAME_FORMULA
from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, Worth
from turbofix.program.model import Listed, TrainingProgram
from turbofix.regex import regex

NAMED = regex(r"\{((?:torch|numpy)\.\w+)\}")


def made_at_once(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding]:
    """What a codemod finds of such lists."""
    for each in program.listed:
        if each.codemod == codemod.name:
            seen = (Evidence("selected by a mask" if each.more else "made in Python", each.site),)
            yield codemod.finding(
                each.site, each.message, plan=each, evidence=seen, assumes=(SAME_FORMULA,), worth=Worth.SOME
            )


def write(made: Listed, edit: Edit) -> None:
    """Put the one call in the place of the list."""
    for site, text in ((made.site, made.text), *made.more):
        edit.replace(site, NAMED.sub(lambda name: edit.name(name[1], made.site), text))
