"""Bytes to text and back: every encoding Python allows, byte for byte; atomic writing; folders."""

from __future__ import annotations

import codecs
import os
import stat
import subprocess
from pathlib import Path

import pytest

from turbofix.source import files as source_module
from turbofix.source.files import Source, SourceError, Workspace, decode, python_files, read_source, write_bytes

LATIN = "# -*- coding: latin-1 -*-\nname = 'Zoë'\n".encode("latin-1")

BYTES = {
    "utf-8": "x = 'é — 漢'\n".encode(),
    "byte-order mark": codecs.BOM_UTF8 + b"x = 1\n",
    "byte-order mark and cookie": codecs.BOM_UTF8 + b"# coding: utf-8\nx = 1\n",
    "latin-1": LATIN,
    "cookie on line 2": "#!/usr/bin/env python\n# vim: set fileencoding=cp1251 :\nx = 'жук'\n".encode("cp1251"),
    "other bytes beside the cookie": "# coding: latin-1, café\nx = 'é'\n".encode("latin-1"),
    "shift_jis": "# coding: shift_jis\nx = '表示'\n".encode("shift_jis"),
    "crlf": b"x = 1\r\nif x:\r\n\ty = 2\r\n",
    "lone cr": b"x = 1\ry = 2\r",
    "mixed": b"x = 1\r\ny = 2\nz = 3\r",
    "no final newline": b"x = 1\ny = 2",
    "form feed and separators": "x = 1\n\x0cy = '\u2028 \x85'\n".encode(),
    "empty": b"",
}


def good(data: bytes, path: Path = Path("x.py")) -> Source:
    source = decode(path, data)
    assert isinstance(source, Source), source
    return source


def test_bytes_survive_decoding_and_encoding() -> None:
    for name, data in BYTES.items():
        source = good(data)
        assert source.encode(source.text) == data, name


def test_text_is_what_python_reads() -> None:
    assert good(BYTES["utf-8"]).text == "x = 'é — 漢'\n"
    assert good(BYTES["byte-order mark"]).text == "x = 1\n"
    assert "Zoë" in good(LATIN).text
    assert "жук" in good(BYTES["cookie on line 2"]).text
    assert good(BYTES["crlf"]).text == "x = 1\r\nif x:\r\n\ty = 2\r\n"


def test_what_an_edit_does_not_touch_stays_byte_for_byte() -> None:
    for name, data in BYTES.items():
        source = good(data)
        assert source.encode(source.text + "z = 1") == data + b"z = 1", name


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"x = '\xff'\n", "not valid utf-8 (byte 0xff on line 1)"),
        (b"\nx = 1\ny = '\xe9'\n", "on line 3"),
        (b"# coding: klingon\n", "klingon"),
        (codecs.BOM_UTF8 + b"# coding: latin-1\n", "declares iso8859-1"),
        ("x = 1\n".encode("utf-16"), "UTF-16"),
        (b"x = 1\0\n", "null bytes"),
        (b"# coding: rot13\nk = 1\n", "rot-13"),
        # Two byte sequences for one character: encoding gives the other one back.
        (b"# coding: cp932\nx = '\xfa\x5c'\n", "cannot be written back unchanged"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(data: bytes, sentence: str) -> None:
    error = decode(Path("x.py"), data)
    assert isinstance(error, SourceError)
    assert sentence in error.sentence


def test_new_text_outside_the_encoding_is_a_sentence() -> None:
    error = good(LATIN).encode("# -*- coding: latin-1 -*-\nx = '漢'\n")
    assert isinstance(error, SourceError)
    assert "'漢'" in error.sentence
    assert "iso8859-1" in error.sentence


def test_reading_folders_pipes_and_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "regular" in sentence_of(read_source(tmp_path / "pipe.py"))
    assert "folder" in sentence_of(read_source(tmp_path))
    assert "no such file" in sentence_of(read_source(tmp_path / "none.py"))
    assert "no such file" in sentence_of(read_source(tmp_path / "none.ipynb"))


def sentence_of(result: Source | SourceError | None) -> str:
    assert isinstance(result, SourceError)
    return result.sentence


# --- writing --------------------------------------------------------------------------------------------------------


def read(path: Path) -> Source:
    source = read_source(path)
    assert isinstance(source, Source)
    return source


def test_writing_keeps_mode_encoding_and_newlines(tmp_path: Path) -> None:
    path = tmp_path / "train me.py"
    data = codecs.BOM_UTF8 + b"x = 1\r\ny = 2"
    path.write_bytes(data)
    path.chmod(0o751)
    source = read(path)
    assert write_bytes(source, data.replace(b"1", b"3")) is None
    assert path.read_bytes() == data.replace(b"1", b"3")
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert os.listdir(tmp_path) == ["train me.py"]


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "a.py", tmp_path / "b.py"
    real.write_text("x = 1\n")
    link.symlink_to(real)
    assert write_bytes(read(link), b"x = 2\n") is None
    assert link.is_symlink()
    assert real.read_text() == "x = 2\n"


def test_a_read_only_file_is_refused_even_in_a_writable_folder(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    path.chmod(0o444)
    assert "read-only" in sentence_of(write_bytes(read(path), b"x = 2\n"))
    assert path.read_text() == "x = 1\n"
    assert os.listdir(tmp_path) == ["a.py"]


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    source = read(path)
    status = path.stat()
    path.write_text("x = 9\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size, same time: only the content tells
    assert "changed" in sentence_of(write_bytes(source, b"x = 2\n"))
    assert path.read_text() == "x = 9\n"
    path.unlink()
    assert "no such file" in sentence_of(write_bytes(source, b"x = 2\n"))
    assert os.listdir(tmp_path) == []


def test_a_change_during_the_write_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    source = read(path)
    monkeypatch.setattr(source_module.os, "fsync", lambda _: path.write_text("mine\n"))
    assert "changed" in sentence_of(write_bytes(source, b"x = 2\n"))
    assert path.read_text() == "mine\n"
    assert os.listdir(tmp_path) == ["a.py"]


def test_a_full_disk_leaves_the_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    source = read(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(source_module.os, "fsync", full)
    assert "no space left" in sentence_of(write_bytes(source, b"x = 2\n"))
    assert path.read_text() == "x = 1\n"
    assert os.listdir(tmp_path) == ["a.py"]


# --- folders --------------------------------------------------------------------------------------------------------

FILES = ("a.py", "pkg/b.py", "notes.txt", ".hidden/c.py", "venv/lib/d.py", "env2/lib/e.py", "x/site-packages/f.py")


def make_tree(folder: Path) -> None:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x = 1\n")
    (folder / "env2" / "pyvenv.cfg").write_text("home = /usr\n")


def test_walking_without_git(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert names(tmp_path) == ["a.py", "pkg/b.py"]


def names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in python_files(folder)]


def test_walking_with_git_skips_what_it_ignores(tmp_path: Path) -> None:
    make_tree(tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("generated*.py\nout/\n")
    for name in ("generated_1.py", "out/g.py", "new é.py", "gone.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    subprocess.run(["git", "-C", tmp_path, "add", "a.py", "gone.py"], check=True)
    (tmp_path / "gone.py").unlink()
    assert names(tmp_path) == ["a.py", "new é.py", "pkg/b.py"]
    # A folder that is ignored as a whole was named by the user: it is walked.
    assert names(tmp_path / "out") == ["g.py"]


def test_git_never_runs_a_command_that_the_repository_names(tmp_path: Path) -> None:
    make_tree(tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    hook.chmod(0o755)
    subprocess.run(["git", "-C", tmp_path, "config", "core.fsmonitor", os.fspath(hook)], check=True)
    assert "a.py" in names(tmp_path)
    assert not (tmp_path / "ran").exists()


# --- the workspace --------------------------------------------------------------------------------------------------


def test_workspace_reads_once_and_overlays(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    workspace = Workspace()
    assert workspace.read(path) == "x = 1\n"
    path.write_text("x = 2\n")
    assert workspace.read(path) == "x = 1\n"
    over = workspace.with_texts({path: "x = 3\n"})
    assert over.read(path) == "x = 3\n"
    assert workspace.read(path) == "x = 1\n"
    assert over.with_texts({tmp_path / "b.py": "b"}).read(path) == "x = 3\n"
    assert workspace.read(tmp_path / "none.py") is None
    workspace.forget([path])
    assert workspace.read(path) == "x = 2\n"


def test_root_is_the_nearest_project_folder(tmp_path: Path) -> None:
    deep = tmp_path / "project" / "scripts" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    assert Workspace().root(deep / "train.py") == tmp_path / "project"
    (tmp_path / "project" / "scripts" / "setup.py").write_text("from setuptools import setup\n")
    assert Workspace().root(deep / "train.py") == tmp_path / "project" / "scripts"
    (tmp_path / "project" / "scripts" / "setup.py").write_text("import os\nos.makedirs('logs')\n")  # called so
    assert Workspace().root(deep / "train.py") == tmp_path / "project"


def test_a_project_without_its_history_is_told_by_its_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "project" / "package"
    package.mkdir(parents=True)
    monkeypatch.chdir(package)
    assert Workspace().root(package / "train.py") == package
    (tmp_path / "project" / "requirements.txt").touch()
    assert Workspace().root(package / "train.py") == tmp_path / "project"
    monkeypatch.chdir(tmp_path)
    assert Workspace().root(package / "train.py") == tmp_path
