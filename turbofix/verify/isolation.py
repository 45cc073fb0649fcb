"""How well the user's files are kept from the run: the levels, and which of them this machine can give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from turbofix.records import dataclass
from turbofix.verify.layers import Layer, layers_for
from turbofix.verify.probe.levels import GUARD, LANDLOCK, OVERLAY
from turbofix.verify.result import Inconclusive

PROBE = Path(__file__).parent / "probe"

LEVELS = {
    OVERLAY: "the script runs where your files are, but every write goes to a layer in the scratch folder "
    "and everything else is read-only (Linux namespaces and Landlock)",
    LANDLOCK: "a scratch copy, and the kernel (Landlock) denies every write outside it; "
    "what no kernel rule covers, modes and times of files, is kept from Python code alone",
    GUARD: "a scratch copy, with Python's and torch's writers patched; another program or library that the script "
    "starts could still write elsewhere",
}

# seconds that trying out the levels may take
_PATIENCE = 60.0

# files named in one note
_MOST_NAMED = 5


@dataclass(frozen=True)
class Held:
    """The level that was reached, and why not a stronger one.

    ``own_user`` says whether the namespaces need a user namespace; ``layers`` are the folders under overlays.
    """

    level: str
    own_user: bool = True
    layers: tuple[Layer, ...] = ()
    why_not: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the level."""
        weak = ("weak isolation: only Python's and torch's own writers are held",) if self.level == GUARD else ()
        return weak + tuple(f"no stronger isolation here: {why}" for why in self.why_not)


def demand(level: str | None) -> None:
    """Refuse a level that does not exist."""
    if level is not None and level not in LEVELS:
        raise Inconclusive(f"there is no isolation level {level!r}; there are {', '.join(LEVELS)}")


def reach(level: str | None, root: Path, trees: Sequence[Path]) -> Held:
    """The strongest level that this machine gives for these folders, or ``level``, if it gives that.

    Every level is tried out in a process of its own, on the folders that are meant.
    """
    if level == GUARD:
        return Held(GUARD)
    layers = layers_for(trees, root)
    missing: dict[str, str | None] = {}
    for own_user in () if level == LANDLOCK else _manners():
        missing = _obstacles(layers, root, own_user=own_user)
        if missing[OVERLAY] is None:
            return Held(OVERLAY, own_user, layers)
    if level == OVERLAY:
        raise Inconclusive(
            f"--isolation overlay cannot be had here ({missing[OVERLAY]}); without that option the strongest level "
            "that can be had is taken"
        )
    missing = missing or _try(root, (), own_user=True)
    why_not = tuple(f"{name}: {missing[name]}" for name in (OVERLAY, LANDLOCK) if missing.get(name))
    if missing[LANDLOCK] is None:
        return Held(LANDLOCK, why_not=why_not if level is None else ())
    if level == LANDLOCK:
        raise Inconclusive(
            f"--isolation landlock cannot be had here ({missing[LANDLOCK]}): --isolation guard is all there is"
        )
    return Held(GUARD, why_not=why_not)


def difference(before: Mapping[Path, object], after: Mapping[Path, object]) -> tuple[Path, ...]:
    """The paths that came, went, or look different."""
    return tuple(sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)))


def events(touched: Collection[Path], programs: Sequence[str], changed: Sequence[Path], cwd: Path) -> tuple[str, ...]:
    """What a reader must know of what the script did.

    ``touched`` are files that it wrote to in its layer, ``programs`` what it started at the weakest level, ``changed``
    what is not as it was there.
    """
    found = []
    if touched:
        names = _listed(sorted(touched), cwd)
        found.append(f"the script writes to files that are there already ({names}); every one of yours is as it was")
    if programs:
        found.append(f"it started {', '.join(programs)}, which weak isolation does not hold")
    if changed:
        names = _listed(changed, cwd)
        found.append(f"while it ran, these of your files were changed, by the script or by somebody else: {names}")
    return tuple(found)


def _listed(paths: Sequence[Path], cwd: Path) -> str:
    names = [os.path.relpath(path, cwd) if cwd in path.parents else str(path) for path in paths[:_MOST_NAMED]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _manners() -> tuple[bool, ...]:
    """Whether to take a user namespace: root can do without, and then keeps its rights to everybody's files."""
    return (False, True) if hasattr(os, "geteuid") and os.geteuid() == 0 else (True,)


def _obstacles(layers: tuple[Layer, ...], root: Path, *, own_user: bool) -> dict[str, str | None]:
    if not layers:
        where = f"the folder for temporary files, {tempfile.gettempdir()}, lies in the project"
        return {**_try(root, (), own_user=True), OVERLAY: where}
    for layer in layers:
        layer.make()
    found = _try(root, layers, own_user=own_user)
    for layer in layers:
        layer.remove()
    return found


def _try(root: Path, layers: tuple[Layer, ...], *, own_user: bool) -> dict[str, str | None]:
    """For each level by its name what stands in its way, None where nothing does."""
    configuration = root / "levels.json"
    places = [layer.places() for layer in layers]
    configuration.write_text(json.dumps({"root": str(root), "layers": places, "own_user": own_user}))
    # the kernel is the same for every interpreter: this one is sure to start
    command = [sys.executable, "-I", "-S", str(PROBE), "try", str(configuration)]
    try:
        told = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=True, stdin=subprocess.DEVNULL)
        found: dict[str, str | None] = json.loads(told.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return dict.fromkeys((OVERLAY, LANDLOCK), f"it could not be tried out: {error}")
    return found
