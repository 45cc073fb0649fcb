"""The tables of what libraries do: generated from torch as it is installed, and by hand."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

from turbofix import packs
from turbofix.library import rows, tables

LIBRARY = Path(tables.__file__).parent
COLUMNS = {
    "calls.tsv": 6,
    "frameworks.tsv": 2,
    "generated/torch.tsv": 5,
    "gone.tsv": 5,
    "habits.tsv": 6,
    "kinds.tsv": 2,
    "makes.tsv": 3,
    "operand_types.tsv": 3,
    "names.tsv": 3,
    "overlooked.tsv": 4,
    "packages.tsv": 2,
    "renamed.tsv": 7,
    "same.tsv": 2,
    "star.tsv": 2,
}
KEYS = {"calls.tsv": 1, "frameworks.tsv": 1, "generated/torch.tsv": 1, "gone.tsv": 1, "makes.tsv": 1, "names.tsv": 1}
KEYS |= {"packages.tsv": 1, "renamed.tsv": 3, "same.tsv": 1, "star.tsv": 1, "overlooked.tsv": 2}
GIVES = {"tensor", "tensors", "view", "views", "self", "number", "bool", "none", "dtype", "other"}
GIVES |= {"module", "criterion", "optimizer", "loader"}
EFFECTS = {"sync", "sync?"}
TRAITS = {"autocast=half", "autocast=float32", "autocast=promote", "dynamic", "dynamic?", "factory", "loss", "no-graph"}
TRAITS |= {"scalar", "calls=tensor", "calls=tensors", "calls=other", "calls=number"}
NOT_HERE = {
    "os.process_cpu_count": "Python 3.13",
    "torch.Tensor.has_names": "older",
    "pydantic.BaseSettings": "pydantic 1",
    "torch.npu.is_available": "a package of its own",
    "torch.nn.utils.clip_grad_norm": "older, and may go",
    "torch.set_deterministic": "older",
    "torch.utils.tensorboard": "needs tensorboard",
    "torch.utils.tensorboard.SummaryWriter": "needs tensorboard",
}
"""What rows name although it need not be in what is installed, and why."""


def cells(table: str) -> list[list[str]]:
    """The rows of one of our tables."""
    lines = (LIBRARY / table).read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def problems(table: str, found: list[list[str]]) -> list[str]:
    """What is wrong with the form of a table."""
    wrong = [f"{table}: {row[0]} has {len(row)} columns" for row in found if len(row) != COLUMNS[table]]
    key = KEYS.get(table)
    names = [tuple(row[:key]) for row in found] if key else []
    wrong += [f"{table}: {' '.join(name)} stands twice" for name in sorted({n for n in names if names.count(n) > 1})]
    if table in ("calls.tsv", "generated/torch.tsv"):
        for row in found:
            numbered = {word for word in row[1].split("|") if word[:8] == "tensors:" and word[8:].isdigit()}
            wrong += [f"{table}: {row[0]} gives {word!r}" for word in {*row[1].split("|")} - GIVES - numbered - {"-"}]
            wrong += [f"{table}: {row[0]} has the effect {word!r}" for word in {*row[2].split()} - EFFECTS - {"-"}]
            numbered = {word for word in row[3].split() if word[:14] == "calls=tensors:" and word[14:].isdigit()}
            wrong += [
                f"{table}: {row[0]} has the trait {word!r}" for word in {*row[3].split()} - TRAITS - numbered - {"-"}
            ]
    return wrong


def test_every_table_is_known_here() -> None:
    assert {str(path.relative_to(LIBRARY)) for path in LIBRARY.rglob("*.tsv")} == set(COLUMNS)


@pytest.mark.parametrize("table", COLUMNS)
def test_rows_have_their_columns_their_words_and_a_name_of_their_own(table: str) -> None:
    assert problems(table, cells(table)) == []


def test_wrong_rows_are_told() -> None:
    wrong = [["a.b", "tensr", "-", "-", "-", "why"], ["a.b", "tensor", "sync", "-", "-", "why"], ["a.c", "tensor"]]
    assert problems("calls.tsv", wrong[:2]) == [
        "calls.tsv: a.b stands twice",
        "calls.tsv: a.b gives 'tensr'",
    ]
    assert problems("gone.tsv", wrong[2:]) == ["gone.tsv: a.c has 2 columns"]


def test_a_row_by_hand_has_its_reason_and_says_what_no_other_says() -> None:
    generated = {name: rest for name, *rest in cells("generated/torch.tsv")}
    for name, *rest, why in cells("calls.tsv"):
        assert why not in ("", "-"), f"{name} needs its reason"
        known = generated.get(name)
        if known is not None:
            assert any(new not in ("-", old) for new, old in zip(rest, known, strict=True)), f"{name} says nothing new"


def named() -> set[str]:
    """The qualified names of all tables by hand that are said to be there today."""
    found = {row[0] for table in ("calls.tsv", "frameworks.tsv") for row in cells(table)}
    found |= {name for row in cells("kinds.tsv") for name in row[1].split()}
    found |= {row[1] for table in ("same.tsv", "packages.tsv") for row in cells(table)}
    found |= {name for row in cells("names.tsv") for name in row[2].split() if "." in name}
    for modules, names in cells("star.tsv"):
        found |= {f"{modules.split()[0]}.{name}" for name in names.split()}
    return found


def exists(name: str) -> bool:
    """Whether a qualified name can be imported."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        missing = object()
        for part in parts[count:]:
            thing = getattr(thing, part, missing)
        return thing is not missing
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", sorted({name.partition(".")[0] for name in named()} - {"builtins"}))
def test_what_rows_name_exists(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError:
        return  # said where it is installed
    names = {name for name in named() if name.partition(".")[0] == package} - NOT_HERE.keys()
    gone = {row[0] for row in cells("gone.tsv")}
    missing = {name for name in names if tables.dropped(name) is None and name not in gone and not exists(name)}
    assert missing == set(), "these do not exist here: mend the rows, or say in NOT_HERE why they stand"


GENERATING = """
import sys
from turbofix.library import generate
sys.argv[1:] = ["torch.tsv"]
generate.main()
"""


def test_the_generated_table_is_what_the_generator_writes(tmp_path: Path, kept_interpreters: warm.Kept) -> None:
    torch = pytest.importorskip("torch")
    first = (LIBRARY / "generated/torch.tsv").read_text("utf-8").splitlines()[0]
    if f"from torch {torch.__version__.partition('+')[0]};" not in first:
        pytest.skip(f"the table is of another torch than {torch.__version__}")
    kept_interpreters.told(GENERATING, tmp_path, 900)
    made = tmp_path / "torch.tsv"
    new, old = (set(path.read_text("utf-8").splitlines()) for path in (made, LIBRARY / "generated/torch.tsv"))
    assert (new - old, old - new) == (set(), set()), "run `python -m turbofix.library.generate`"


def test_cells_by_hand_stand_over_the_generated_ones() -> None:
    assert "sync" in rows.row("torch.Tensor.tolist").effects
    assert rows.row("torch.nn.LSTM").traits == {"autocast=half", "calls=tensors:2"}
    assert rows.row("torch.no_such_name") == rows.NOTHING
    assert rows.row("item") is rows.row("item") and rows.row("item") == rows.row("torch.Tensor.item")


def test_what_the_analysis_asks_of_rows() -> None:
    assert rows.reads("item") and rows.reads("torch.equal") and not rows.reads("nonzero") and not rows.reads("size")
    assert rows.shares_memory("view") and rows.shares_memory("add_") and not rows.shares_memory("clone")
    assert rows.cuts_graph("argmax") and rows.cuts_graph("eq") and not rows.cuts_graph("exp")
    assert rows.count_of("topk") == 2 and rows.count_of("chunk") == 0 and rows.count_of("exp") is None
    assert rows.is_sized_by_data("nonzero") and not rows.is_sized_by_data("repeat_interleave")
    assert tables.is_product("torch.matmul") and tables.is_widened("Tensor.softmax")
    assert not tables.precision_of("torch.tensordot", half=False)


def test_a_call_of_what_has_no_name_is_in_no_row() -> None:
    assert rows.row("") is rows.NOTHING and not rows.cuts_graph("")


PACK = """
import sys
from turbofix.library import tables, rows
print(tables.kind_of("fastbits.Loader"), tables.kind_of("fastbits.Log"), rows.reads("fastbits.peek"))
shown = tables.NAMES["trackers"]
print(rows.row("torch.Tensor.exp").effects, "fastbits.log" in shown, "wandb.log" in shown)
"""


def test_a_pack_brings_rows(tmp_path: Path) -> None:
    folder = tmp_path / "fast_pack" / "rows"
    folder.mkdir(parents=True)
    (tmp_path / "fast_pack" / "__init__.py").write_text(
        "raise SystemExit('rows are read without importing the pack')\n"
    )
    (folder / "kinds.tsv").write_text("# kinds\nloader\tfastbits.Loader\nwriter\tfastbits.Log\n")
    (folder / "calls.tsv").write_text("fastbits.peek\tnumber\tsync\t-\t-\tit reads its tensor\n")
    (folder / "names.tsv").write_text("trackers\t-\tfastbits.log\n")
    info = tmp_path / "fast_pack-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[{packs.ENTRY_POINTS}]\nfast = fast_pack\n")
    path = os.pathsep.join((str(tmp_path), *filter(None, sys.path)))
    said = subprocess.run(
        [sys.executable, "-c", PACK], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert said.stdout == "loader writer True\nfrozenset() True True\n"


def test_without_other_packs_no_folder_is_looked_at() -> None:
    others = [each for each in packs.installed_packs() if each != packs.OURS]
    assert others or packs.row_folders() == ()


def test_a_loader_by_a_row_is_torch_s_loader_and_one_by_its_package_is_not() -> None:
    assert tables.is_plain_loader("torch.utils.data.DataLoader") and tables.is_plain_loader("monai.data.DataLoader")
    assert tables.kind_of("torch_geometric.loader.NeighborLoader") == "loader"
    assert not tables.is_plain_loader("torch_geometric.loader.NeighborLoader")
