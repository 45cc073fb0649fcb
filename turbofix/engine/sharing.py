"""Files that several scripts run: a rewrite of one is right where it is right for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix.assumptions import READ_WHOLE
from turbofix.records import dataclass
from turbofix.regex import regex

if TYPE_CHECKING:
    from turbofix.assumptions import Assumption
    from turbofix.engine.reports import FileReport
    from turbofix.findings import Examined
    from turbofix.source.site import Site


_UNKNOWN = regex(r"\bnot (followed|known|seen)\b|^`turbofix explain|^other scripts may ")
"""What a refusal says that has found nothing wrong: it could not tell, or leaves it to others, which are asked."""

_OF_WORTH = frozenset(("on-gpu", "all-moved", "long-enough", "wide-enough"))
"""Assumptions that say whether something is gained: where they do not hold for another script, it loses nothing."""


@dataclass(frozen=True)
class Objection:
    """What is right for one script is not for ``script``, which runs the same line."""

    script: Path
    line: int
    why_not: str
    assumes: tuple[Assumption, ...] = ()  # all that stands against it: for that script it is likely


def objections(
    reports: Sequence[FileReport], sharing: Sequence[FileReport] = ()
) -> Mapping[tuple[str, Path], Objection]:
    """Codemod and file, where the codemod would rewrite a line for one of the ``reports``, and another one of them or
    of those in ``sharing`` is of a script that runs that line too and for which it would not, or not for certain.

    Where it says nothing of a line, or could not tell, it is likely. A file that starts nothing does not object. Of
    what is not accepted that is asked, too, unless the codemod has something for the file that is: what is listed is
    what ``--likely`` takes.
    """
    all_of_them = [(report, each) for report in reports for each in report.findings if each.fixable]
    taken = {(each.codemod, each.site.path) for report, each in all_of_them if report.accepts(each)}
    wanted: dict[Path, dict[tuple[str, Site], bool]] = {}
    for report, each in all_of_them:
        accepted = (each.codemod, each.site.path) in taken
        if report.accepts(each) or not accepted:
            wanted.setdefault(each.site.path, {})[each.codemod, each.site] = accepted
    found: dict[tuple[str, Path], Objection] = {}
    for report in (*reports, *sharing):
        for codemod, site, why_not, rests in _of(report, wanted) if report.trains and not report.defines else ():
            known = found.get((codemod, site.path))
            if known is None or (known.assumes and not rests):
                found[codemod, site.path] = Objection(report.path, site.line, why_not, rests)
            elif known.assumes:
                found[codemod, site.path] = replace(known, assumes=tuple(dict.fromkeys((*known.assumes, *rests))))
    return found


def _of(
    report: FileReport, wanted: Mapping[Path, Mapping[tuple[str, Site], bool]]
) -> Iterator[tuple[str, Site, str, tuple[Assumption, ...]]]:
    said: dict[tuple[str, Site], Examined | None] = {(each.codemod, each.site): None for each in report.in_place}
    said |= {(each.codemod, each.site): each for each in report.findings}
    lines: dict[Path, set[int]] = {each.site.path: set() for each in report.findings}
    for path, line in report.acts_on:
        lines.setdefault(path, set()).add(line)
    for path in sorted(lines.keys() & wanted.keys()):
        for (codemod, site), accepted in wanted[path].items():
            each = said.get((codemod, site))
            runs = not lines[path].isdisjoint(range(site.line, site.end_line + 1))
            if (each is not None and _UNKNOWN.search(each.why_not or "")) or (runs and (codemod, site) not in said):
                rests: tuple[Assumption, ...] = (READ_WHOLE,)
                why_not = None if report.likely else "it is not known to be right there"
            elif each is not None:
                rests = tuple(one for one in each.assumes if each.risk <= report.risk and one.name not in _OF_WORTH)
                why_not = each.why_not if not (each.fixable and accepted) else _why_not(report, each, rests)
            else:
                continue
            if why_not is not None:
                yield codemod, site, why_not, rests


def _why_not(report: FileReport, each: Examined, rests: Sequence[Assumption]) -> str | None:
    if each.risk > report.risk:
        return f"its risk is *{each.risk.value}*"
    return None if report.accepts(each) or not rests else f"there it rests on `{rests[0].name}`"
