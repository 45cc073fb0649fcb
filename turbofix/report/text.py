"""Plain text with colors: what the reports for people are made of.

Loading the library that draws the progress bars would cost a short analysis a tenth of its time.
"""

from __future__ import annotations

import textwrap

from turbofix.records import dataclass

CODES = {
    "bold": "1",
    "dim": "2",
    "underline": "4",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}


@dataclass(frozen=True)
class Style:
    """How wide lines may be, and whether there are colors."""

    width: int = 100
    color: bool = False

    def paint(self, text: str, *styles: str) -> str:
        """``text`` in those styles."""
        if not self.color or not text:
            return text
        return f"\x1b[{';'.join(CODES[style] for style in styles)}m{text}\x1b[0m"

    def wrap(self, text: str, indent: int, label: str = "", *styles: str) -> str:
        """Lines of ``text``, all indented by ``indent``; ``label``, which is painted, begins the first."""
        lines = textwrap.wrap(
            f"{label}  {text}" if label else text,
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        wrapped = "\n".join(lines)
        # Painted afterwards: the codes take no room on the line.
        return wrapped.replace(label, self.paint(label, *styles), 1) if label and styles else wrapped
