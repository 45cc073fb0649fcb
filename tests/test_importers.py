"""Who imports whom, by the names in the texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from turbofix.engine.importers import Importers, imported_files
from turbofix.source.files import Workspace

FILES = {
    "train.py": "from package.model import Net\n",
    "again.py": "import package.model as m, package.data\n",
    "notes.py": "# model.py is where the package's model is\n",
    "package/__init__.py": "",
    "package/model.py": "from . import layers\n",
    "package/layers.py": "",
    "package/data.py": "from .model import Net\nif __name__ == '__main__':\n    Net()\n",
    "package/deep/inner.py": "from ..layers import Layer\nfrom .. import data\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "importers"),
    [
        ("package/model.py", ["again.py", "package/data.py", "train.py"]),  # and not what only speaks of it
        ("package/layers.py", ["package/deep/inner.py", "package/model.py"]),
        ("package/data.py", ["again.py", "package/deep/inner.py"]),
        ("package/__init__.py", ["package/deep/inner.py", "package/model.py"]),  # `from . import`: without its name
        ("train.py", []),
    ],
)
def test_the_files_that_import_a_file(project: Path, file: str, importers: list[str]) -> None:
    found = Importers(project, Workspace()).of(project / file)
    assert sorted(each.relative_to(project).as_posix() for each in found) == importers


def test_scripts_are_what_nothing_imports_or_what_can_be_run(project: Path) -> None:
    scripts = Importers(project, Workspace()).scripts(project / "package/layers.py")
    assert [each.relative_to(project).as_posix() for each in scripts] == [
        "package/deep/inner.py",
        "again.py",
        "package/data.py",
        "train.py",
    ]


def test_what_a_script_imports(project: Path) -> None:
    found = imported_files(project / "train.py", Workspace())
    assert sorted(each.relative_to(project).as_posix() for each in found) == [
        "package/__init__.py",
        "package/layers.py",
        "package/model.py",
        "train.py",
    ]
