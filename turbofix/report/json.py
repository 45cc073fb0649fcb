"""The JSON documents: a public interface, held to the letter by tests."""

from __future__ import annotations

import json
from typing import Any

from turbofix.engine.project import Outcome, shown
from turbofix.engine.reports import FileReport
from turbofix.findings import Evidence, Examined
from turbofix.source.site import Spot

VERSION = 1


def render(outcome: Outcome) -> str:
    """Findings and what is in place, with one entry per input and per file that a finding stands in."""
    document = {
        "version": VERSION,
        "files": files(outcome),
        "findings": [finding(each, outcome) for each in outcome.findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def files(outcome: Outcome) -> list[dict[str, Any]]:
    """The inputs and the modules beside them that something was said of, sorted by path."""
    entries = {shown(report.path): _file(shown(report.path), report, outcome) for report in outcome.reports}
    for report in outcome.reports:
        sites = [each.site for each in report.findings] + [each.site for each in report.in_place]
        for path in map(shown, (site.path for site in sites)):
            entries.setdefault(path, _file(path, report, outcome))
    for each in outcome.in_place:
        entries[shown(each.site.path)]["in_place"].append(
            {"codemod": each.codemod, **_place(outcome.spot(each.site)), "message": each.message}
        )
    return [entries[path] for path in sorted(entries)]


def _file(path: str, report: FileReport, outcome: Outcome) -> dict[str, Any]:
    """One file."""
    return {"path": path, "framework": report.framework, "error": report.error, "in_place": []}


def _place(spot: Spot) -> dict[str, Any]:
    """The line; for a notebook the cell, too."""
    return {"line": spot.line} if spot.cell is None else {"cell": spot.cell, "line": spot.line}


def finding(each: Examined, outcome: Outcome) -> dict[str, Any]:
    """One finding; lines and columns count from 1, ``gain`` is a range of factors or null."""
    spot = outcome.spot(each.site)
    return {
        "codemod": each.codemod,
        "group": each.group,
        "message": each.message,
        "path": shown(each.site.path),
        **_place(spot),
        "column": spot.column,
        "end_line": spot.end_line,
        "end_column": spot.end_column,
        "risk": each.risk.value,
        "fixable": each.fixable,
        "why_not": each.why_not,
        "certainty": each.certainty,
        "assumes": [
            {"name": one.name, "sentence": one.sentence, "settled": settled}
            for settled, some in ((None, each.assumes), ("observation", each.settled))
            for one in some
        ],
        "worth": each.worth.value,
        "gain": None if each.gain is None else [each.gain.low, each.gain.high],
        "gain_source": None if each.gain is None else each.gain.source,
        "evidence": [_evidence(seen, outcome) for seen in each.evidence],
    }


def _evidence(seen: Evidence, outcome: Outcome) -> dict[str, Any]:
    """What a finding rests on, and where that stands; ``steps`` is the way of a value to where it is used."""
    return {
        "text": seen.text,
        "path": None if seen.site is None else shown(seen.site.path),
        **({"line": None} if seen.site is None else _place(outcome.spot(seen.site))),
        "steps": [_evidence(step, outcome) for step in seen.steps],
    }
