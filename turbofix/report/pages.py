"""The documentation of the codemods, from their own docstrings: what ``explain`` prints."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from turbofix import registry
from turbofix.assumptions import Check
from turbofix.codemod import Codemod


def page(codemod: Codemod) -> str:
    """One codemod's page under its name."""
    title = f"{codemod.name}  ({codemod.group}, {codemod.risk.value})"
    words = f"Known as: {', '.join(codemod.known_as)}\n\n" if codemod.known_as else ""
    return f"{title}\n{'=' * len(title)}\n\n{words}{codemod.page}\n{assumed(codemod)}"


def assumed(codemod: Codemod) -> str:
    """What findings of a codemod may assume, as the last part of its page."""
    if not codemod.assumes:
        return ""
    lines = "".join(f"    {each.name}: {each.sentence} ({settled_by(each.check)})\n" for each in codemod.assumes)
    return (
        f"\nAssumes\n    Where analysis leaves one of these open, a finding is likely, and a run settles it:\n\n{lines}"
    )


def settled_by(check: Check) -> str:
    """How a run settles an assumption, in words."""
    if check.kind == "observe":
        return f"seen in a run of the script, over {check.coverage}"
    how = {"bitwise": "bit for bit", "rounded": "within rounding", "printed": "by what is shown"}[check.of]
    return f"the rewritten script is compared {how}, over {check.coverage}"


def found(codemods: Sequence[Codemod], words: str) -> str | None:
    """What is said of words that are no codemod's name: the page of the only codemod that they stand for, or a list of
    those, else of those whose page has the words in it; None where none does."""
    wanted = _plain(words)
    exactly = [each for each in codemods if any(wanted == _plain(word) for word in each.known_as)]
    nearly = [each for each in codemods if any(wanted in _plain(word) for word in (each.title, *each.known_as))]
    called = exactly or nearly
    if len(called) == 1:
        return page(called[0])
    meant = called or [each for each in codemods if wanted in _plain(each.page)]
    if not meant:
        return None
    width = max(len(codemod.name) for codemod in meant)
    lines = "".join(f"  {each.name:<{width}}  {each.title}\n" for each in meant)
    return f"No codemod is called {words!r}; these speak of it:\n{lines}\n`turbofix explain NAME` prints one in full.\n"


def _plain(text: str) -> str:
    """Words without what people write in different ways: case, hyphens, lines, marks of code."""
    return re.sub(r"[\s_-]+", " ", text.replace("`", "").lower()).strip()


def listing(codemods: Sequence[Codemod]) -> str:
    """All codemods by group, one line each."""
    width = max(len(codemod.name) for codemod in codemods)
    parts = []
    for group, members in itertools.groupby(registry.by_group(codemods), key=lambda codemod: codemod.group):
        lines = [f"  {each.name:<{width}}  {each.risk.value:<10}  {each.title}\n" for each in members]
        parts.append(f"{group}\n{''.join(lines)}")
    return "\n".join(parts) + "\n`turbofix explain NAME` prints one in full.\n"
