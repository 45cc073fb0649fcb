"""``python -m benchmarks.picture``: the picture of the README, a real verification of the demonstration's training.

It copies ``fixtures/scripts/seq2seq.py`` into a scratch folder, runs ``turbofix verify`` on it, and writes what a
terminal shows to ``docs/verify.svg``.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
COMMAND = ("verify", "train.py", "--", "--epochs", "2")
WIDTH = 100


def main() -> None:
    """Run the verification and write the picture. Raises CalledProcessError where it is no pass."""
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(ROOT / "fixtures/scripts/seq2seq.py", Path(scratch, "train.py"))
        shown = subprocess.run(
            [sys.executable, "-m", "turbofix", *COMMAND],
            cwd=scratch,
            env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout.decode()
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(shown.rstrip()))
    console.save_svg(str(ROOT / "docs/verify.svg"), title=f"turbofix {' '.join(COMMAND)}")


if __name__ == "__main__":
    main()
