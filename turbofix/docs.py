"""The generated part of the README: ``python -m turbofix.docs`` writes it, ``--check`` fails when it is stale."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from turbofix import registry
from turbofix.codemod import Codemod

BEGIN = "<!-- codemods: written by `python -m turbofix.docs`, from the docstrings -->"
END = "<!-- codemods: end -->"


def table(codemods: Sequence[Codemod]) -> str:
    """All codemods as a Markdown table, by group."""
    rows = [
        "| codemod | group | risk | what it does | gain, and where that was measured |",
        "| --- | --- | --- | --- | --- |",
    ]
    for codemod in registry.by_group(codemods):
        gain = codemod.gain
        measured = "not measured" if gain is None else f"{gain.low:g}–{gain.high:g}×: {gain.source}"
        words = f" ({', '.join(codemod.known_as)})" if codemod.known_as else ""
        cells = (f"`{codemod.name}`", codemod.group, codemod.risk.value, codemod.title + words, measured)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def fill(text: str, codemods: Sequence[Codemod]) -> str:
    """``text`` with the table between its markers. Raises ValueError where it has none."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers {BEGIN!r} and {END!r} are not there")
    return f"{head}{BEGIN}\n\n{table(codemods)}\n\n{END}{tail}"


def main(arguments: Sequence[str]) -> int:
    """Write the README of the current folder; with ``--check`` tell whether it is up to date (exit status 1: not)."""
    readme = Path("README.md")
    try:
        text = readme.read_text(encoding="utf-8")
        filled = fill(text, registry.load())
    except (OSError, ValueError, registry.PackError) as error:
        sys.stderr.write(f"{readme}: {error}\n")
        return 2
    if "--check" in arguments:
        if filled != text:
            sys.stderr.write(f"{readme} is stale: run `python -m turbofix.docs`\n")
            return 1
        return 0
    readme.write_text(filled, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
