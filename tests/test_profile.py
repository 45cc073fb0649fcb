"""What ``turbofix profile`` says of trainings with one slow thing planted in them, and of what it cannot profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import run

PLANTED = Path(__file__).with_name("planted.py")


def profile(*arguments: str, cwd: Path | None = None) -> dict[str, object]:
    result = run("profile", *arguments[:1], "--quiet", "--output-format", "json", *arguments[1:], cwd=cwd)
    assert result.returncode == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found
