"""Which packs are installed, by the entry point ``turbofix.codemods``, and which tables they bring."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ENTRY_POINTS = "turbofix.codemods"
OURS = "turbofix_codemods"


def installed_packs() -> tuple[str, ...]:
    """The packages that offer the entry point, by the name of their entry."""
    return _found_on(tuple(sys.path))


@cache
def _found_on(path: tuple[str, ...]) -> tuple[str, ...]:
    """The packs of one search path.

    The files that hold entry points are read here, where they lie in folders: ``importlib.metadata`` takes longer to
    import than everything else that is needed to find the codemods. It is asked where nothing was found so.
    """
    found = {name: package for file in entry_point_files() for name, package in entries(file)}
    if not found:
        from importlib import metadata

        found = {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINTS)}
    return tuple(found[name] for name in sorted(found))


def entry_point_files() -> Iterator[Path]:
    """The files with the entry points of everything that is installed, those that come first on the path last."""
    for folder in reversed(sys.path):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield Path(folder, name, "entry_points.txt")


def entries(file: Path) -> Iterator[tuple[str, str]]:
    """The entries (name, package) of our group in one such file."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return
    section = ""
    for line in text.splitlines() if ENTRY_POINTS in text else ():
        if line.startswith("["):
            section = line.strip().strip("[]")
        elif section == ENTRY_POINTS and "=" in line:
            name, _, package = line.partition("=")
            yield name.strip(), package.strip()


@cache
def row_folders() -> tuple[Path, ...]:
    """The folders ``rows`` of the packs of others, with tables that are read after ours."""
    return tuple(folder for package in installed_packs() if package != OURS for folder in row_folders_of(package))


def row_folders_of(package: str) -> list[Path]:
    """The folders ``rows`` of one pack, which is not imported for it."""
    from importlib.util import find_spec

    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # the registry says what is wrong with it
        return []
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return [Path(place, "rows") for place in places if Path(place, "rows").is_dir()]
