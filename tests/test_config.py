"""Settings from pyproject.toml and the command line, the target, and suppression comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from turbofix import config
from turbofix.config import (
    ConfigError,
    Settings,
    capability,
    find_settings,
    lower_bound,
    parse_torch_version,
    required_version,
    suppressions,
    target,
)
from turbofix.findings import Risk
from turbofix.training.model import Target


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "installed_capability", lambda: None)


def write(folder: Path, toml: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(toml)
    return folder


def test_every_key(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        [tool.turbofix]
        select = ["data", "autocast"]
        ignore = ["pin-memory"]
        risk = "exact"
        gpu = "t4"
        torch-version = "2.1"
        exclude = ["third_party", "*_pb2.py"]
        per-file-ignores = { "scripts/*.py" = ["loader-workers"] }
        """,
    )
    settings = find_settings(tmp_path / "deep" / "er")
    assert settings.select == ("data", "autocast")
    assert settings.ignore == ("pin-memory",)
    assert settings.risk is Risk.EXACT
    assert settings.torch_version == (2, 1)
    assert target(settings, tmp_path / "a.py", tmp_path) == Target((7, 5), (2, 1))
    assert settings.excludes(tmp_path / "third_party" / "x" / "a.py")
    assert settings.excludes(tmp_path / "x" / "a_pb2.py")
    assert not settings.excludes(tmp_path / "x" / "a.py")
    assert settings.ignored_in(tmp_path / "scripts" / "a.py") == ("loader-workers",)
    assert settings.ignored_in(tmp_path / "a.py") == ()


def test_the_nearest_table_holds_and_files_without_one_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, '[tool.turbofix]\nrisk = "recipe"\n')
    inner = write(tmp_path / "inner", '[project]\nname = "x"\n')
    assert find_settings(inner).risk is Risk.RECIPE
    # some editors begin a file with a byte order mark
    nearest = write(inner / "nearest", '\ufeff[tool.turbofix]\nrisk = "exact"\n')
    assert find_settings(nearest).risk is Risk.EXACT


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ('[tool.turbofix]\nselct = ["data"]\n', "selct"),
        ('[tool.turbofix]\nrisk = "brave"\n', "brave"),
        ('[tool.turbofix]\nselect = "data"\n', "select"),
        ("[tool.turbofix]\nselect = [1]\n", "select"),
        ('[tool.turbofix]\ngpu = "voodoo"\n', "voodoo"),
        ("[tool.turbofix]\ngpu = 8\n", "gpu"),
        ("[tool.turbofix]\ntorch-version = 2.4\n", "torch-version"),
        ('[tool.turbofix]\ntorch-version = "new"\n', "new"),
        ('[tool.turbofix]\nper-file-ignores = ["a"]\n', "per-file-ignores"),
        ('[tool.turbofix]\nper-file-ignores = {"a" = "b"}\n', "per-file-ignores"),
        ("[tool]\nturbofix = 1\n", "table"),
        ("[tool.turbofix\n", "pyproject.toml"),
    ],
)
def test_unknown_keys_and_values_are_errors_that_name_them(tmp_path: Path, toml: str, named: str) -> None:
    write(tmp_path, toml)
    with pytest.raises(ConfigError) as error:
        find_settings(tmp_path)
    assert named in str(error.value)
    assert str(tmp_path / "pyproject.toml") in str(error.value)


def test_the_command_line_stands_over_the_file() -> None:
    file = Settings(select=("data",), ignore=("tf32",), risk=Risk.EXACT, gpu="t4")
    assert file.under((), ()).ignore == ("tf32",)
    assert file.under((), ("autocast",)).ignore == ("tf32", "autocast")
    chosen = file.under(("tf32",), (), risk=Risk.RECIPE, gpu=None)
    assert (chosen.select, chosen.ignore) == (("tf32",), ())
    assert (chosen.risk, chosen.gpu) == (Risk.RECIPE, "t4")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", None),
        ("volta", (7, 0)),
        ("turing", (7, 5)),
        ("ampere", (8, 0)),
        ("ada", (8, 9)),
        ("hopper", (9, 0)),
        ("blackwell", (10, 0)),
        ("T4", (7, 5)),
        ("NVIDIA A100", (8, 0)),
        ("h100", (9, 0)),
        ("GeForce RTX 4090", (8, 9)),
        ("8.6", (8, 6)),
    ],
)
def test_gpu_names(name: str, expected: tuple[int, int] | None) -> None:
    assert capability(name) == expected


def test_auto_is_ampere_without_a_gpu_and_the_gpu_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert target(Settings(), tmp_path / "a.py", tmp_path).capability == (8, 0)
    monkeypatch.setattr(config, "installed_capability", lambda: (7, 5))
    assert target(Settings(), tmp_path / "a.py", tmp_path).capability == (7, 5)
    assert target(Settings(gpu="h100"), tmp_path / "a.py", tmp_path).capability == (9, 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch>=2.1", (2, 1)),
        ("torch == 2.0.1+cu118", (2, 0)),
        ("torch~=2.2", (2, 2)),
        ("torch>=1.13,<2.1", (1, 13)),
        ("torch[opt]>=2.5 ; python_version > '3.8'", (2, 5)),
        ("Torch>=2", (2, 0)),
        ("  - pytorch=1.12.1=py3.10_cuda11.3_0", (1, 12)),
        ("    - 'torch==1.8.1'", (1, 8)),
        ("  - pytorch-cuda=11.8", None),
        ("torch<=2.6", None),
        ("torch", None),
        ("torch<2.6", None),
        ("torch ; python_version >= '3.9'", None),
        ("torchvision>=0.15", None),
        ("torch-geometric==2.3", None),
        ("pytorch-lightning>=2.0", None),
        ("# torch>=1.0", None),
    ],
)
def test_lower_bounds(line: str, expected: tuple[int, int] | None) -> None:
    assert lower_bound(line) == expected


def test_a_commit_may_be_of_any_age() -> None:
    assert lower_bound("git+https://github.com/huggingface/accelerate@0a37e20", "accelerate") == (0, 0)
    assert lower_bound("accelerate~=0.24.0", "accelerate") == (0, 24)
    assert lower_bound("accelerate", "accelerate") is None


def test_the_project_s_requirements_decide_on_torch(tmp_path: Path) -> None:
    write(tmp_path, '[project]\nname = "x"\ndependencies = ["numpy>=1", "torch>=2.2"]\n')
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    assert required_version("torch", scripts, tmp_path) == (2, 2)
    assert target(Settings(), scripts / "a.py", tmp_path).torch == (2, 2)
    nearer = scripts / "old"
    nearer.mkdir()
    (nearer / "requirements-gpu.txt").write_text("torchvision\ntorch==1.13.1\n")
    assert target(Settings(), nearer / "a.py", tmp_path).torch == (1, 13)
    assert target(Settings(torch_version=(2, 6)), nearer / "a.py", tmp_path).torch == (2, 6)
    for name in ("api-venv-requirements.txt", "requirement.txt", "environment_gpu.yml"):
        (made := scripts / name.partition(".")[0]).mkdir()
        (made / name).write_text("- torch==2.0.0\n")
        assert target(Settings(), made / "a.py", tmp_path).torch == (2, 0)
    # Poetry means exactly the version that it is given without an operator.
    (exact := scripts / "exact").mkdir()
    for version in ('"2.2.1"', '{ version = "2.2.1+cu121", source = "torch" }', '"^2.2"'):
        write(exact, f"[tool.poetry.dependencies]\ntorch = {version}\n")
        assert target(Settings(), exact / "a.py", tmp_path).torch == (2, 2)
    # Requirements above the project's folder are somebody else's.
    assert required_version("torch", scripts, scripts) is None


def test_torch_version_needs_two_numbers() -> None:
    assert parse_torch_version("2.10.1") == (2, 10)
    for wrong in ("2", "two", "2.x", "", 2.4):
        with pytest.raises(ValueError, match="torch version"):
            parse_torch_version(wrong)


# --- suppression ----------------------------------------------------------------------------------------------------

TEXT = '''import torch
a = 1  # turbofix: ignore
b = 2  # turbofix: ignore[pin-memory, data]
c = "# turbofix: ignore"
d = """
# turbofix: ignore
"""
e = 3  # type: ignore  # turbofix:ignore[tf32]
f = 4  # turbofix: ignored
'''


def test_suppression_comments() -> None:
    found = suppressions(TEXT)
    assert found.cover(2, "autocast", "precision")
    assert found.cover(3, "pin-memory", "data")
    assert found.cover(3, "non-blocking", "data")
    assert not found.cover(3, "autocast", "precision")
    assert found.cover(8, "tf32", "precision")
    assert not found.cover(8, "autocast", "precision")
    for line in (1, 4, 5, 6, 7, 9):
        assert not found.cover(line, "autocast", "precision"), line
    assert not found.skip_file


def test_skip_file_holds_in_the_first_ten_lines() -> None:
    assert suppressions("a = 1  # turbofix: ignore[all]\n").cover(1, "autocast", "precision")
    assert suppressions("\n" * 9 + "# turbofix: skip-file\n").cover(99, "autocast")
    assert not suppressions("\n" * 10 + "# turbofix: skip-file\n").cover(99, "autocast")
    assert not suppressions("x = '# turbofix: skip-file'\n").cover(1, "autocast")


def test_suppression_reads_what_comes_before_a_syntax_error() -> None:
    assert suppressions("a = 1  # turbofix: ignore\nb = (\n").cover(1, "autocast")


def test_lines_count_as_python_counts_them() -> None:
    assert suppressions("a = 1\r\nb = 2  # turbofix: ignore\r\n").cover(2, "autocast")
    assert suppressions("a = 1\rb = 2  # turbofix: ignore\r").cover(2, "autocast")


def test_what_the_project_asks_for_may_be_old(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==1.13.1\n")
    script = tmp_path / "train.py"
    found = target(Settings(gpu="a100"), script, tmp_path)
    assert (found.torch, found.recent) == ((1, 13), (2, 4))
    chosen = target(Settings(gpu="a100", torch_version=(1, 13)), script, tmp_path)
    assert (chosen.torch, chosen.recent) == ((1, 13), None)
