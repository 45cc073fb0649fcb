"""A workspace that lives in memory, for tests: no disk, no surprise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path("/project")
ENTRY = ROOT / "train.py"


class MemoryWorkspace:
    """Texts by path; nothing else exists."""

    def __init__(self, texts: Mapping[Path, str]) -> None:
        self.texts = dict(texts)

    @classmethod
    def of(cls, text: str, **others: str) -> MemoryWorkspace:
        """One entry script, and other modules of the project by name (``engine="..."`` is ``engine.py``)."""
        return cls({ENTRY: text, **{ROOT / f"{name}.py": body for name, body in others.items()}})

    def read(self, path: Path, /) -> str | None:
        return self.texts.get(path)

    def file(self, place: str, /) -> Path | None:
        return Path(place) if Path(place) in self.texts else None

    def with_texts(self, texts: Mapping[Path, str], /) -> MemoryWorkspace:
        return MemoryWorkspace({**self.texts, **texts})

    def root(self, entry: Path, /) -> Path:
        return ROOT

    def beside(self, entry: Path, /, *suffixes: str) -> list[Path]:
        return sorted(path for path in self.texts if path.suffix in (suffixes or (".py",)))
