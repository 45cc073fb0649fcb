"""SARIF 2.1.0, for code scanning services."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from turbofix import __version__, registry
from turbofix.engine.project import Outcome, shown
from turbofix.findings import Examined


def render(outcome: Outcome) -> str:
    """One run; the codemods are its rules."""
    codemods = registry.load()
    run = {
        "tool": {
            "driver": {
                "name": "turbofix",
                "version": __version__,
                "rules": [
                    {
                        "id": codemod.name,
                        "shortDescription": {"text": codemod.title or codemod.name},
                        "fullDescription": {"text": codemod.page or codemod.name},
                        "properties": {"group": codemod.group, "risk": codemod.risk.value},
                    }
                    for codemod in codemods
                ],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not outcome.errors,
                "toolExecutionNotifications": [
                    {
                        "level": "error",
                        "message": {"text": report.error},
                        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(shown(report.path))}}}],
                    }
                    for report in outcome.errors
                ],
            }
        ],
        "results": [_result(each, outcome) for each in outcome.shown],
    }
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _result(each: Examined, outcome: Outcome) -> dict[str, Any]:
    spot = outcome.spot(each.site)
    region = {
        "startLine": spot.file_line,
        "startColumn": spot.column,
        "endLine": spot.file_end_line,
        "endColumn": spot.end_column,
    }
    where = ""
    if spot.cell is not None:  # lines are those of the notebook's JSON, where columns mean nothing
        region = {"startLine": spot.file_line, "endLine": spot.file_end_line}
        where = f"Cell {spot.cell}, line {spot.line}: "
    return {
        "ruleId": each.codemod,
        "level": "warning" if outcome.applies(each) else "note",
        "message": {"text": where + each.message + _more(each)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(shown(each.site.path))},
                    "region": region,
                }
            }
        ],
        "properties": {
            "risk": each.risk.value,
            "fixable": each.fixable,
            "certainty": each.certainty,
            "assumes": [assumption.name for assumption in each.assumes],
            "gain": None if each.gain is None else [each.gain.low, each.gain.high],
        },
    }


def _more(each: Examined) -> str:
    """What the message does not say: why it is not rewritten, or what that rests on."""
    if each.why_not:
        return f" Not rewritten: {each.why_not}"
    return "".join(f" Assumes: {assumption.sentence}." for assumption in each.assumes)


def _uri(path: str) -> str:
    return quote(path)
