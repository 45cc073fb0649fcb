"""What the tool says of the corpus's programs, each finding once, however many scripts reach it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.precision.corpus import Checkout, Program
from benchmarks.precision.ledger import Key
from benchmarks.precision.pool import TookTooLong, limited
from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Examined, Risk
from turbofix.source.files import Source
from turbofix.source.site import Site, spot
from turbofix.training.model import Target


@dataclass(frozen=True)
class Reached:
    """What was said from one entry. ``error`` is a sentence where nothing could be said, ``trains`` whether it is a
    training program."""

    program: Program
    findings: tuple[tuple[str, Examined], ...] = ()  # each with its line as tables hold it
    read: frozenset[Path] = frozenset()
    error: str = ""
    trains: bool = False
    guarded: bool = False  # it asks whether it is run itself


@dataclass(frozen=True)
class Found:
    """All findings of one codemod on one line. ``styles`` are those of the scripts that reach it, ``likely`` whether it
    rests on assumptions that ``apply`` does not settle by itself."""

    repository: str
    commit: str
    path: str
    codemod: str
    line: str
    fixable: bool
    risk: str
    message: str
    why_not: str
    styles: tuple[str, ...]
    likely: bool = False

    @property
    def key(self) -> Key:
        """What it is matched with judgements by."""
        return self.repository, self.path, self.codemod, self.line


def analyze(program: Program) -> Reached:
    """What the tool says of one program."""
    checkout = Checkout(program.folder)
    try:
        with limited():
            report = pipeline.analyze(program.file, checkout, registry.load(), Target())
    except TookTooLong as late:
        return Reached(program, error=str(late))
    notes = tuple(note.partition("\n")[0] for note in report.notes)
    told = (replace(each, assumes=()) if report.is_settled(each) else each for each in report.findings)
    findings = tuple((line_of(each.site, checkout), each) for each in told)
    source = checkout.files.source(program.file)
    guarded = isinstance(source, Source) and "__main__" in source.text
    sentence = report.error or "; ".join(notes)
    return Reached(program, findings, frozenset(checkout.seen), sentence, report.trains, guarded)


def line_of(site: Site, checkout: Checkout) -> str:
    """The line as tables hold it: ``12``, in a notebook ``3:12``."""
    source = checkout.files.source(site.path)
    place = spot(site, source.cells if isinstance(source, Source) else None)
    return str(place.line) if place.cell is None else f"{place.cell}:{place.line}"


def within(reached: Reached, files: frozenset[Path]) -> Reached:
    """Only what was said of these files."""
    said = tuple((line, each) for line, each in reached.findings if each.site.path in files)
    return replace(reached, findings=said, read=reached.read & {reached.program.file, *files})


def merge(reached: Iterable[Reached], styles: Mapping[tuple[str, str], str]) -> list[Found]:
    """Every finding once; refused where one of the entries refuses it. ``styles`` by repository and path of entries.

    What a module says of itself counts only where no training program that reads it says something there.
    Several findings of a codemod on one line are judged as one, fixable where one of them is.
    """
    sites: dict[tuple[str, Path, str, str, int], list[tuple[Program, Examined]]] = {}
    entries = list(reached)
    covered = {path for each in entries if each.trains for path in each.read - {each.program.file}}
    modules = {each.program.file for each in entries if not each.guarded} & covered
    for each in entries:
        for line, finding in each.findings:
            place = (each.program.repository, finding.site.path, finding.codemod, line, finding.site.column)
            sites.setdefault(place, []).append((each.program, finding))
    rows: dict[Key, Found] = {}
    for (repository, path, codemod, line, _), told in sites.items():
        knowing = [each for each in told if each[0].file not in modules] or told
        program, finding = min(knowing, key=lambda each: (each[1].fixable, not each[1].assumes))  # a refusal first
        row = Found(
            repository,
            program.commit,
            path.relative_to(program.folder).as_posix(),
            codemod,
            line,
            finding.fixable,
            finding.risk.value,
            finding.message,
            finding.why_not or "",
            tuple(sorted({styles.get((entry.repository, entry.path), "other") for entry, _ in told})),
            bool(finding.assumes),
        )
        other = rows.get(row.key)
        if other is None or (row.fixable, not row.likely) > (other.fixable, not other.likely):
            rows[row.key] = row
    return sorted(rows.values(), key=order)


def order(found: Found) -> tuple[str, str, list[int], str]:
    """Findings by place."""
    return found.repository, found.path, [int(part) for part in found.line.split(":")], found.codemod


def fixable(found: Sequence[Found]) -> list[Found]:
    """What ``apply`` rewrites without being asked twice."""
    return [each for each in found if each.fixable and not each.likely and Risk(each.risk) <= Risk.EQUIVALENT]
