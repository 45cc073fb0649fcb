"""The documentation of the codemods, from their own docstrings: what ``explain`` prints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from turbofix.codemod import Codemod


def page(codemod: Codemod) -> str:
    """One codemod's page under its name."""
    title = f"{codemod.name}  ({codemod.group}, {codemod.risk.value})"
    return f"{title}\n{'=' * len(title)}\n\n{codemod.page}\n"


def listing(codemods: Sequence[Codemod]) -> str:
    """All codemods by group, one line each."""
    width = max(len(codemod.name) for codemod in codemods)
    parts = []
    for group, members in itertools.groupby(codemods, key=lambda codemod: codemod.group):
        lines = [f"  {each.name:<{width}}  {each.risk.value:<10}  {each.title}\n" for each in members]
        parts.append(f"{group}\n{''.join(lines)}")
    return "\n".join(parts) + "\n`turbofix explain NAME` prints one in full.\n"
