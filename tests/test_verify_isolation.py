"""No file of the user's is touched, no process and no scratch folder stays behind, at each level of isolation."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage, isolation, verify
from turbofix.verify.probe import limits
from turbofix.verify.scratch import Scratch, project_of, trees_for

pytest.importorskip("torch")

# seconds to sleep, by which a process of this run is known from those of any other
UNIQUE = f"90.{os.getpid()}"

STRONG = limits.landlock_version() >= 3

TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# all within what a level-three wall can hold, then what only the kernel can
MISCHIEF = """
import os, pathlib, shutil, subprocess, sys, torch
torch.save({"a": torch.zeros(3)}, "weights.pt")
torch.save({"a": torch.zeros(3)}, os.path.join(os.path.dirname(__file__), "more.pt"))
os.remove("data.txt")
shutil.rmtree("folder")
pathlib.Path("kept.txt").write_text("overwritten")
with open("kept.txt", "a") as f: f.write("more")
os.chmod("kept.txt", 0o600)
def denied(act, *arguments):
    try: act(*arguments)
    except (OSError, RuntimeError): return
    sys.exit(f"{act} {arguments} was allowed")
here = HERE
denied(open, here + "/kept.txt", "a")
denied(os.remove, here + "/kept.txt")
denied(os.chmod, here + "/kept.txt", 0o600)
denied(os.utime, here + "/kept.txt", (0, 0))
denied(os.link, here + "/kept.txt", "hard.txt")
denied(torch.save, {}, here + "/weights.pt")
denied(os.rename, here + "/kept.txt", "moved.txt")
denied(os.truncate, "big.bin", 0)
denied(open, "big.bin", "r+b")
"""
KERNEL_ONLY = """
from torch import UntypedStorage
denied(UntypedStorage.from_file, here + "/kept.txt", True, 4096)
subprocess.run(["sh", "-c", f"echo x > '{here}/kept.txt'; rm -f '{here}/data.txt'; echo y > kept.txt"])
"""


def tree_hash(folder: Path) -> str:
    """A hash over the names, kinds, modes, times and contents of everything below ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_mtime_ns} {status.st_size} {status.st_nlink}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "folder").mkdir(parents=True)
    (folder / "folder" / "inner.txt").write_text("inner")
    (folder / "data.txt").write_text("data")
    (folder / "kept.txt").write_text("kept")
    with open(folder / "big.bin", "wb") as handle:
        handle.truncate(17 << 20)  # big enough to be linked, not copied
    monkeypatch.chdir(folder)
    return folder


def request(script: Path, **options: object) -> Request:
    stage = Stage(None, Risk.EQUIVALENT, {script: script.read_bytes()})
    return Request(script, stages=(stage,), options=Options(**{"timeout": 120.0, **options}))  # type: ignore[arg-type]


needs_landlock = pytest.mark.skipif(not STRONG, reason="this kernel has no Landlock")


@pytest.mark.parametrize("level", [pytest.param("landlock", marks=needs_landlock), "guard"])
def test_the_users_tree_is_what_it_was(project: Path, level: str) -> None:
    script = project / "mischief.py"
    mischief = MISCHIEF + (KERNEL_ONLY if level == "landlock" else "")
    script.write_text(mischief.replace("HERE", repr(str(project)), 1) + TRAINING)
    before = tree_hash(project.parent)
    found = verify(request(script, isolation=level, steps=20))
    assert (found.verdict, found.reason) == ("pass", "it learns the same over 20 steps")
    assert found.isolation == level
    assert any("weak" in note for note in found.notes) == (level == "guard")
    assert tree_hash(project.parent) == before


def test_each_run_starts_from_the_users_files(project: Path) -> None:
    """What one run wrote is not there for the next: the second run of the original would differ."""
    script = project / "resume.py"
    lines = "import os\nassert not os.path.exists('state.txt')\nopen('state.txt', 'w').write('x')\n"
    script.write_text(lines + TRAINING)
    assert verify(request(script, steps=20)).verdict == "pass"


def test_a_write_outside_is_named(project: Path) -> None:
    script = project / "outside.py"
    script.write_text(f"open({str(project.parent / 'out.txt')!r}, 'w')\n" + TRAINING)
    found = verify(request(script))
    assert found.verdict == "inconclusive"
    assert "writes outside its own folder" in found.reason
    assert not (project.parent / "out.txt").exists()


def test_no_process_and_no_scratch_is_left(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a process that went into a session of its own."""
    scratches = tmp_path / "scratches"
    scratches.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratches))
    script = project / "orphan.py"
    orphan = f"import subprocess\nsubprocess.Popen(['sleep', '{UNIQUE}'], start_new_session=True)\n"
    script.write_text(orphan + TRAINING)
    assert verify(request(script, steps=20)).verdict == "pass"
    script.write_text(orphan + "import time\ntime.sleep(60)\n")
    assert "time limit" in verify(request(script, timeout=1.0)).reason
    assert list(scratches.iterdir()) == []
    assert not _running(UNIQUE)


def _running(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def has_started(scratches: Path) -> bool:
    """Whether the script runs; folders come and go meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return bool(list(scratches.rglob("started")))
    return False


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_end_from_outside_leaves_nothing_behind(project: Path, tmp_path: Path, end: signal.Signals) -> None:
    """Neither a process nor, unless it was killed outright, the scratch folder."""
    scratches = tmp_path / "scratches"
    scratches.mkdir()
    script = project / "long.py"
    # a process that the script started outlives a verification that is killed outright, and nothing can be done there
    started = "" if end == signal.SIGKILL else f"import subprocess\nsubprocess.Popen(['sleep', '{UNIQUE}'])\n"
    script.write_text(f"{started}import time\nopen('started', 'w')\ntime.sleep(60)\n{TRAINING}")
    program = (
        "import signal, sys; from pathlib import Path\n"
        "from turbofix.verify import *; from turbofix.findings import Risk\n"
        # a job in the background of a script is born deaf to Ctrl-C
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "p = Path(sys.argv[1]); verify(Request(p, stages=(Stage(None, Risk.EXACT, {p: p.read_bytes()}),)))"
    )
    environment = {**os.environ, "TMPDIR": str(scratches), "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", program, str(script)], env=environment, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 60
        while not has_started(scratches) and time.monotonic() < until:
            time.sleep(0.1)
        assert _running(str(scratches))
        process.send_signal(end)
        _, complaint = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (b"KeyboardInterrupt" in complaint) == (end == signal.SIGINT)
    assert process.returncode == {signal.SIGINT: -2, signal.SIGTERM: 143, signal.SIGKILL: -9}[end]
    assert end == signal.SIGKILL or list(scratches.iterdir()) == []
    until = time.monotonic() + 10
    while _running(str(scratches)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _running(str(scratches)) and not _running(UNIQUE)


def test_the_scratch_folder_is_kept_on_request(project: Path) -> None:
    script = project / "train.py"
    script.write_text("open('wrote.txt', 'w').write('x')\n" + TRAINING)
    found = verify(request(script, steps=20, keep_scratch=True))
    try:
        assert found.scratch is not None
        assert list(found.scratch.rglob("wrote.txt"))
        assert not (project / "wrote.txt").exists()
    finally:
        if found.scratch:
            subprocess.run(["rm", "-rf", str(found.scratch)], check=True)


def test_what_is_mirrored(tmp_path: Path) -> None:
    project = tmp_path / "home" / "project"
    (project / "src").mkdir(parents=True)
    (project / "pyproject.toml").write_text("")
    for skipped in (".git", "__pycache__", "env"):
        (project / skipped).mkdir()
        (project / skipped / "file").write_text("")
    (project / "env" / "pyvenv.cfg").write_text("")
    (project / "link").symlink_to("src")
    (project / "src" / "train.py").write_text("print()")
    (tmp_path / "home" / "data").mkdir()
    script = project / "src" / "train.py"
    assert project_of(script) == project
    assert trees_for(script, project / "src") == (project,)
    assert trees_for(script, tmp_path / "home") == (tmp_path / "home",)
    assert trees_for(script, tmp_path / "other") == (project, tmp_path / "other")
    scratch = Scratch(tmp_path / "scratch", (project,))
    scratch.root.mkdir()
    scratch.populate({script: b"print(1)"})
    mirror = scratch.mirror(project)
    assert sorted(path.name for path in mirror.iterdir()) == ["link", "pyproject.toml", "src"]
    assert (mirror / "link" / "train.py").read_bytes() == b"print(1)"
    assert os.readlink(mirror / "link") == str(mirror / "src")
    assert (mirror.parent / "data").is_symlink()
    assert script.read_text() == "print()"
    assert scratch.argument(f"--data={project}/x") == f"--data={mirror}/x"
    assert scratch.argument("--lr=0.1") == "--lr=0.1"
    # without the kernel's help nothing is linked that a script could write through
    Scratch(tmp_path / "scratch", (project,), strong=False).populate({})
    assert not (mirror.parent / "data").exists()


def test_levels_are_demanded_by_name() -> None:
    isolation.demand(None)
    isolation.demand("guard")
    with pytest.raises(Exception, match="no isolation level"):
        isolation.demand("glass")
