"""One line per finding, as compilers and linters write them; ``[*]`` marks what ``apply`` would rewrite."""

from __future__ import annotations

from turbofix.engine.project import Outcome, shown


def render(outcome: Outcome) -> str:
    """``path:line:column: codemod [*] message``; what is not rewritten ends with the reason."""
    lines = []
    for each in outcome.shown:
        where = f"{shown(each.site.path)}:{outcome.spot(each.site)}"
        mark = "[*] " if outcome.applies(each) else ""
        reason = f" (not rewritten: {why_not})" if (why_not := outcome.why_not(each)) else ""
        lines.append(f"{where}: {each.codemod} {mark}{each.message}{reason}\n")
    return "".join(lines)
