"""What is installed, how it is found, and what a run of it loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from turbofix import docs, packs, registry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent

MNIST = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(datasets.MNIST(".", transform=transforms.ToTensor()), batch_size=64, shuffle=True)
for epoch in range(3):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
"""


def test_the_codemods_are_found_through_the_entry_point() -> None:
    (point,) = (each for each in metadata.entry_points(group=packs.ENTRY_POINTS) if each.name == "core")
    assert point.value == "turbofix_codemods"
    files = {path.stem for path in (ROOT / "codemods").glob("*.py") if not path.stem.startswith("_")}
    assert {codemod.name.replace("-", "_") for codemod in registry.load()} >= files
    assert files


def test_no_codemods_is_an_error_and_not_an_empty_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    monkeypatch.setattr(packs, "entry_point_files", lambda: ())
    monkeypatch.setattr(packs, "_found_on", packs._found_on.__wrapped__)
    with pytest.raises(registry.PackError, match="no codemods are installed"):
        registry.load()


def test_the_entry_points_read_from_the_files_are_those_that_the_standard_library_finds() -> None:
    found = {point.value for point in metadata.entry_points(group=packs.ENTRY_POINTS)}
    assert set(packs.installed_packs()) == found


def test_only_our_group_counts_among_the_entry_points_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "entry_points.txt"
    file.write_text("[console_scripts]\nrun = a:b\n\n[turbofix.codemods]\nmine = my_pack\n\n[other]\nx = y\n")
    assert list(packs.entries(file)) == [("mine", "my_pack")]
    assert list(packs.entries(tmp_path / "missing.txt")) == []


def test_every_package_is_in_the_list() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    there = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "turbofix").rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert listed == there | {"turbofix_codemods"}


def test_analyze_loads_neither_torch_nor_the_slow_parts_of_libcst(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MNIST)
    code = """
import sys
sys.argv = ["turbofix", "analyze", "--output-format", "concise", "train.py"]
from turbofix import cli
try:
    cli.main()
except SystemExit as end:
    assert end.code in (0, 1), end.code
heavy = {"torch", "numpy", "libcst.matchers", "libcst.codemod", "rich.console", "multiprocessing"}
print(sorted(heavy & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
    assert len(result.stdout.splitlines()) > 1, "no finding: the analysis did not run"


def test_only_the_probe_and_the_generator_of_rows_import_torch() -> None:
    for path in (ROOT / "turbofix").rglob("*.py"):
        if "probe" in path.parts or path.name == "generate.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "torch"], path
            assert not [name for name in names if name.startswith(("libcst.matchers", "libcst.codemod"))], path


def test_the_readme_s_table_is_generated() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert docs.fill(text, registry.load()) == text
    assert docs.fill(text.replace("| `pin-memory` |", "| `pin` |"), registry.load()) == text
    with pytest.raises(ValueError, match="markers"):
        docs.fill("no markers", registry.load())


def test_the_hooks_run_commands_that_exist() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "entry: turbofix analyze --output-format concise\n" in text
    assert "entry: turbofix apply --write --risk exact --output-format concise\n" in text
