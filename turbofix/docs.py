"""The generated pages: ``python -m turbofix.docs`` writes them, ``--check`` fails when one is stale.

The README's table of codemods comes from their docstrings; ``docs/map.md`` has the first line of every file.
"""

from __future__ import annotations

import ast
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


def chart(root: Path) -> str:
    """Every file of the product and what is found in it, by folder: the first sentence of its docstring."""
    lines = ["# Every file, in one line", "", "Written by `python -m turbofix.docs`, from the docstrings."]
    files = (*root.glob("turbofix/**/*.py"), *root.glob("codemods/*.py"))
    folder = None
    for path in sorted(files, key=lambda path: (path.parent.parts, path.name)):
        words = ast.get_docstring(ast.parse(path.read_bytes()))
        if not words:
            continue
        here = path.parent.relative_to(root).as_posix()
        if here != folder:
            lines += ["", f"## {here}/", ""]
            folder = here
        first = " ".join(words.split("\n\n")[0].split())
        lines.append(f"- `{path.name}`: {first}" if path.name != "__init__.py" else f"{first}\n")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the pages of the current folder; with ``--check`` tell whether they are up to date (exit status 1: not)."""
    readme, atlas = Path("README.md"), Path("docs/map.md")
    try:
        pages = {readme: fill(readme.read_text(encoding="utf-8"), registry.load())}
        pages[atlas] = chart(Path.cwd())
    except (OSError, ValueError, registry.PackError) as error:
        sys.stderr.write(f"{readme}: {error}\n")
        return 2
    stale = [page for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for page in stale:
            sys.stderr.write(f"{page} is stale: run `python -m turbofix.docs`\n")
        return 1 if stale else 0
    for page in stale:
        page.write_text(pages[page], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
