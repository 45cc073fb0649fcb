"""Bad input: a sentence, exit status 2, the other inputs served, and no file of the user's changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import SLOW, Run, runner

from turbofix.engine import project
from turbofix.source.files import Workspace

BAD: Mapping[str, tuple[bytes, str]] = {
    "syntax error": (b"import torch\nfor x in\n", "bad.py:2:"),
    "Python 2": (b"import torch\nprint 'hello'\n", "Python 2"),
    "undecodable bytes": (b"import torch\nx = '\xff\xfe'\n", "not valid utf-8 (byte 0xff on line 2)"),
    "null bytes": (b"import torch\0\n", "null bytes"),
    "unknown encoding": (b"# coding: klingon\nimport torch\n", "klingon"),
    "deep nesting": (b"import torch\nx = " + b"(" * 300 + b")" * 300 + b"\n", "bad.py"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    (tmp_path / "good.py").write_text(SLOW)
    return runner(tmp_path, monkeypatch, capfdbinary)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", BAD)
def test_analyze_and_apply_serve_the_others(run: Run, tmp_path: Path, kind: str) -> None:
    data, sentence = BAD[kind]
    (tmp_path / "bad.py").write_bytes(data)
    before = contents(tmp_path)
    ran = run("analyze", "--output-format", "json", "bad.py", "good.py")
    assert ran.code == 2
    document = json.loads(ran.out)
    errors = {file["path"]: file["error"] for file in document["files"]}
    assert errors["good.py"] is None
    assert sentence in errors["bad.py"]
    assert str(tmp_path) not in errors["bad.py"]
    assert "\n" not in errors["bad.py"]
    assert f"error: {errors['bad.py']}" in ran.err.splitlines()
    assert {f["path"] for f in document["findings"]} == {"good.py"}

    diff = run("apply", "bad.py", "good.py")
    assert diff.code == 2
    assert diff.out.startswith("--- a/good.py\n")
    assert sentence in diff.err
    assert contents(tmp_path) == before

    written = run("apply", "--write", "bad.py", "good.py")
    assert written.code == 2
    after = contents(tmp_path)
    assert after["bad.py"] == data
    assert after["good.py"] != before["good.py"]


@pytest.mark.parametrize("kind", BAD)
def test_verify_has_no_verdict(run: Run, tmp_path: Path, kind: str) -> None:
    data, sentence = BAD[kind]
    (tmp_path / "bad.py").write_bytes(data)
    before = contents(tmp_path)
    for command in (("verify", "bad.py"), ("verify", "bad.py", "good.py"), ("verify", "good.py", "bad.py")):
        ran = run(*command)
        assert ran.code == 2, command
        assert sentence in ran.err, command
        assert ran.out == "", command
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", BAD)
def test_standard_input(run: Run, kind: str) -> None:
    data, sentence = BAD[kind]
    ran = run("analyze", "-", stdin=data)
    assert ran.code == 2
    assert sentence.replace("bad.py", "-") in ran.err
    ran = run("apply", "-", stdin=data)
    assert ran.code == 2
    assert sentence.replace("bad.py", "-") in ran.err
    assert ran.raw in (data, b""), "what comes in goes out unchanged, or not at all"


def test_missing_file_and_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("x")
    for name, sentence in (("gone.py", "no such file"), ("data", "no Python files"), ("gone/", "no such file")):
        for command in ("analyze", "apply"):
            ran = run(command, name, "good.py")
            assert ran.code == 2, (command, name)
            assert sentence in ran.err, (command, name)
            assert "good.py" in ran.out, (command, name)
    assert run("verify", "gone.py").code == 2
    assert run("verify", "good.py", "gone.py").code == 2
    assert run("verify", "data").code == 2


def test_a_notebook_that_is_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("{}")
    ran = run("analyze", "a.ipynb", "good.py")
    assert ran.code == 2
    assert "a.ipynb: it has no list of cells, so it is no notebook" in ran.err
    assert "good.py" in ran.out


def test_a_file_that_may_not_be_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.py").write_text(SLOW)
    allowed = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "secret.py":  # by name: mode bits do not stop a privileged user
            raise PermissionError(13, "Permission denied")
        return allowed(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    ran = run("analyze", "secret.py", "good.py")
    assert ran.code == 2
    assert "secret.py: permission denied" in ran.err
    assert "good.py" in ran.out


def test_a_file_that_may_not_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "locked.py").write_text(SLOW)
    (tmp_path / "locked.py").chmod(0o444)
    before = contents(tmp_path)
    ran = run("apply", "--write", "locked.py", "good.py")
    assert ran.code == 2
    assert "locked.py: it is read-only" in ran.err
    after = contents(tmp_path)
    assert after["locked.py"] == before["locked.py"]
    assert after["good.py"] != before["good.py"]
    assert sorted(after) == sorted(before)
    assert run("apply", "locked.py").code == 1, "to show the diff needs no permission"


def test_a_file_that_changed_meanwhile(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edited.py").write_text(SLOW)
    rewrite = project.rewrite

    def and_the_user_saves(*args: object, **kwargs: object) -> object:
        outcome = rewrite(*args, **kwargs)  # type: ignore[arg-type]
        (tmp_path / "edited.py").write_text("mine = 1\n")
        return outcome

    monkeypatch.setattr(project, "rewrite", and_the_user_saves)
    ran = run("apply", "--write", "edited.py", "good.py")
    assert ran.code == 2
    assert "edited.py: it changed since it was read" in ran.err
    assert (tmp_path / "edited.py").read_text() == "mine = 1\n"
    assert (tmp_path / "good.py").read_text() != SLOW


def test_files_of_one_script_change_together_or_not_at_all(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "b.py").chmod(0o444)
    workspace = Workspace()
    written, errors = project.write_together({tmp_path / name: b"x = 2\n" for name in ("a.py", "b.py")}, workspace)
    assert written == []
    assert [error.path.name for error in errors] == ["b.py"]
    assert (tmp_path / "a.py").read_text() == "x = 1\n"


def test_a_linked_file_is_rewritten_behind_its_link(run: Run, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.replace(tmp_path / "good.py", tmp_path / "real" / "target.py")
    (tmp_path / "good.py").symlink_to("real/target.py")
    assert run("apply", "--write", "good.py").code == 0
    assert (tmp_path / "good.py").is_symlink()
    assert (tmp_path / "real" / "target.py").read_text() != SLOW


# --- scripts that cannot be verified --------------------------------------------------------------------------------

TRAINING = """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dataset = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
"""

HOPELESS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "crashes at import": (
        TRAINING.replace("import argparse", "import no_such_module_at_all"),
        (),
        "no_such_module_at_all",
    ),
    "never steps": (TRAINING.replace("in range(2)", "in range(0)"), (), "step"),
    "asks for input": (TRAINING.replace("torch.manual_seed(0)", 'input("which data? ")'), (), "input"),
    "runs past its time": (
        TRAINING.replace("torch.manual_seed(0)", "import time\ntime.sleep(600)"),
        ("--timeout", "1"),
        "time",
    ),
}


@pytest.mark.usefixtures("warm_interpreter")
@pytest.mark.parametrize("kind", HOPELESS)
def test_scripts_that_cannot_be_verified(run: Run, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    text, options, sentence = HOPELESS[kind]
    (tmp_path / "train.py").write_text(text)
    before = contents(tmp_path)
    ran = run("verify", "--output-format", "json", "--quiet", *options, "train.py")
    assert ran.code == 2, ran.out + ran.err
    document = json.loads(ran.out)
    assert document["verdict"] == "inconclusive"
    assert sentence in document["reason"].lower()
    assert document["speedup"] is None
    assert contents(tmp_path) == before
    written = run("apply", "--write", "--verify", "--quiet", *options, "train.py")
    assert written.code == 2
    assert contents(tmp_path) == before
