"""What calls of libraries do, in rows: from torch's wheel (``generated/torch.tsv``), and by hand (``calls.tsv``).

A row is looked up by name and split when it is asked for: most programs call a few dozen of the names. A cell ``-`` is
not known, which is never "no".
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from turbofix.packs import row_folders

SILENT = "-"


class Row(NamedTuple):
    """What a call of one name does; docs/library-rows.md has the words."""

    gives: frozenset[str] = frozenset()
    effects: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    parameters: tuple[str, ...] = ()


NOTHING = Row()
_NO_TENSOR = frozenset({"none", "number", "bool", "dtype", "other"})
_VALUES = frozenset({"number", "bool", "other"})
_SHARED = frozenset({"view", "views", "self"})


def lines_of(name: str) -> list[str]:
    """The rows of a table, unsplit: ours, and after them those of other packs."""
    own = Path(__file__).with_name(name)
    files = [own] if own.exists() else []
    files += [folder / name for folder in row_folders() if (folder / name).exists()]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").split("\n")]
    return [line for line in lines if line and line[0] != "#"]


@cache
def _generated() -> dict[str, str]:
    text = Path(__file__).with_name("generated").joinpath("torch.tsv").read_text(encoding="utf-8")
    return {name: rest for name, _, rest in (line.partition("\t") for line in text.split("\n")) if name[:1] != "#"}


@cache
def _by_hand() -> dict[str, str]:
    return {name: rest for name, _, rest in (line.partition("\t") for line in lines_of("calls.tsv"))}


def _cells(name: str) -> list[str]:
    line, over = _generated().get(name), _by_hand().get(name)
    cells = line.split("\t") if line is not None else [SILENT] * 4
    if over is not None:
        cells = [new if new != SILENT else old for new, old in zip(over.split("\t"), cells, strict=False)]
    return cells


@lru_cache(maxsize=4096)
def row(name: str) -> Row:
    """The row of a qualified name; of ``item`` or ``Tensor.item``, that of the method of tensors."""
    qualname = f"torch.Tensor.{name}" if "." not in name else f"torch.{name}" if name.startswith("Tensor.") else name
    if qualname not in _generated() and qualname not in _by_hand():
        return NOTHING
    gives, effects, traits, parameters = (
        [] if cell == SILENT else cell.replace("|", " ").split() for cell in _cells(qualname)
    )
    return Row(frozenset(gives), frozenset(effects), frozenset(traits), tuple(parameters))


@lru_cache(maxsize=2048)
def operation(name: str) -> Row:
    """The row of a method of tensors, or else of the function of torch, that has this last name."""
    return row(name) if row(name) is not NOTHING else row(f"torch.{name}")


def members_of(package: str) -> frozenset[str]:
    """The functions and classes of a package of torch that have a row."""
    start = package + "."
    names = [name[len(start) :] for name in _generated() if name.startswith(start)]
    return frozenset(name for name in names if "." not in name)


@lru_cache(maxsize=2048)
def reads(name: str) -> bool:
    """Whether a call always waits for the device and gives a value on the host: ``item``, ``torch.equal``."""
    found = row(name)
    return "sync" in found.effects and bool(found.gives) and found.gives <= _VALUES


@lru_cache(maxsize=2048)
def shares_memory(name: str) -> bool:
    """Whether what a method or a function of torch gives lies, nearly always, in the memory of what it is given."""
    return (name.endswith("_") and not name.endswith("__")) or not _SHARED.isdisjoint(operation(name).gives)


@lru_cache(maxsize=2048)
def cuts_graph(name: str) -> bool:
    """Whether what a method or a function of torch gives has no graph: none that it gives could have one."""
    found = operation(name)
    return "no-graph" in found.traits or gives_no_tensor(name)


@lru_cache(maxsize=2048)
def gives_no_tensor(name: str) -> bool:
    """Whether a method of tensors, or a function of torch, certainly gives no tensor."""
    gives = operation(name).gives
    return bool(gives) and gives <= _NO_TENSOR


@lru_cache(maxsize=2048)
def is_sized_by_data(name: str) -> bool:
    """Whether the result of a method of tensors is as large as the data make it."""
    return "dynamic" in row(name).traits


@lru_cache(maxsize=2048)
def count_of(name: str) -> int | None:
    """How many tensors a method or function of torch gives, whatever it is told; 0 for a list of them.

    None for one, and where that depends on the arguments.
    """
    gives = operation(name).gives
    word = next(iter(gives)) if len(gives) == 1 else ""
    return int(word[8:]) if word.startswith("tensors:") else 0 if word in ("tensors", "views") else None
