"""One line per finding, as compilers and linters write them; ``[*]`` marks what ``apply`` can rewrite."""

from __future__ import annotations

from turbofix.project import Outcome, shown


def render(outcome: Outcome) -> str:
    """``path:line:column: codemod [*] message``; a refusal ends with its reason."""
    lines = []
    for each in outcome.findings:
        where = f"{shown(each.site.path)}:{outcome.spot(each.site)}"
        mark = "[*] " if each.fixable else ""
        reason = f" (not rewritten: {each.why_not})" if each.why_not else ""
        lines.append(f"{where}: {each.codemod} {mark}{each.message}{reason}\n")
    return "".join(lines)
