"""Workflow commands that GitHub Actions shows as annotations on the changed lines."""

from __future__ import annotations

from turbofix.engine.project import Outcome, shown


def render(outcome: Outcome) -> str:
    """One ``::warning`` per finding that ``apply`` fixes, ``::notice`` per other one, ``::error`` per failed file."""
    lines = [
        f"::error title=turbofix,file={_property(shown(report.path))}::{_data(report.error or '')}\n"
        for report in outcome.errors
    ]
    for each in outcome.shown:
        spot = outcome.spot(each.site)
        # A notebook's lines are those of its JSON, where columns mean nothing; the text says which cell it is.
        columns = (f"col={spot.column}", f"endColumn={spot.end_column}") if spot.cell is None else ()
        where = "" if spot.cell is None else f"cell {spot.cell}, line {spot.line}: "
        place = ",".join(
            (
                f"title={_property(f'turbofix ({each.codemod})')}",
                f"file={_property(shown(each.site.path))}",
                f"line={spot.file_line}",
                f"endLine={spot.file_end_line}",
                *columns,
            )
        )
        level = "warning" if outcome.applies(each) else "notice"
        reason = f" (not rewritten: {why_not})" if (why_not := outcome.why_not(each)) else ""
        lines.append(f"::{level} {place}::{_data(where + each.message + reason)}\n")
    return "".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
