"""How the user's files are held from a run, level by level, what is said of it, and the folder that the runs work in.

What scripts do to get round it, and what becomes of a verification that is killed, is in test_verify_kills.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import walls

from turbofix.report.verification import render
from turbofix.verify import Inconclusive, Options, isolation, runner, verify
from turbofix.verify.isolation import Held
from turbofix.verify.layers import Layer, layers_for
from turbofix.verify.lease import scratch_folder, sweep
from turbofix.verify.probe import landlock, warden
from turbofix.verify.probe.levels import GUARD, LANDLOCK, OVERLAY
from turbofix.verify.resources import Limits
from turbofix.verify.runner import Child
from turbofix.verify.scratch import Scratch, project_of, trees_for


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = walls.make_project(tmp_path / "home" / "project")
    monkeypatch.chdir(folder)
    return folder


# --- whole verifications --------------------------------------------------------------------------------------------

MISCHIEF = """
import os, pathlib, shutil, sys, torch
here = HERE
def refused(act, *arguments):
    try: act(*arguments)
    except (OSError, RuntimeError): return
    sys.exit(f"{act} {arguments} was allowed")
torch.save({"a": torch.zeros(3)}, "weights.pt")
torch.save({"a": torch.zeros(3)}, os.path.join(os.path.dirname(__file__), "more.pt"))
os.remove("data.txt")
shutil.rmtree("folder")
pathlib.Path("kept.txt").write_text("overwritten")
os.chmod("kept.txt", 0o600)
with open("big.bin", "r+b") as file: file.write(b"x")
assert open("big.bin", "rb").read(2) == b"x\\0"
assert os.path.getsize("big.bin") == 17 << 20
outside = os.path.dirname(here)
refused(open, outside + "/new.txt", "w")
refused(os.mkdir, outside + "/new")
refused(os.chmod, outside, 0o700)
refused(os.utime, outside, (0, 0))
refused(torch.save, {}, outside + "/weights.pt")
refused(os.rename, here, outside + "/moved")
"""

AT_THEIR_OWN_PLACE = """
pathlib.Path(here, "kept.txt").write_text("again")
assert pathlib.Path("kept.txt").read_text() == "again" and not os.path.exists(here + "/data.txt")
assert os.path.dirname(os.path.abspath(__file__)) == here == os.getcwd()
"""

FROM_THEIR_MIRROR = """
refused(open, here + "/kept.txt", "a")
refused(os.remove, here + "/kept.txt")
refused(shutil.rmtree, here)
refused(os.link, here + "/kept.txt", "hard.txt")
"""


@pytest.mark.parametrize("level", [OVERLAY, LANDLOCK, GUARD])
def test_the_users_tree_is_what_it_was_and_the_level_is_told(
    project: Path, level: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("torch")
    if level != OVERLAY:  # that a wall stands before torch is imported is seen there, and without forks at the weakest
        request.getfixturevalue("warm_interpreter")
    walls.demand(level if level != OVERLAY or os.geteuid() == 0 else "overlay-for-users")
    script = project / "mischief.py"
    mischief = MISCHIEF + (AT_THEIR_OWN_PLACE if level == OVERLAY else FROM_THEIR_MIRROR)
    script.write_text(mischief.replace("HERE", repr(str(project)), 1) + walls.TRAINING)
    before = walls.tree_hash(project.parent)
    found = verify(walls.request(script, isolation=level, steps=20))
    assert (found.verdict, found.reason) == ("pass", "it learns the same over 20 steps")
    assert walls.tree_hash(project.parent) == before
    assert found.to_json()["isolation"] == level
    assert f"  isolation  {level}: {isolation.LEVELS[level][:40]}" in render(found)
    assert any("weak" in note for note in found.notes) == (level == GUARD)


@pytest.mark.usefixtures("warm_interpreter")
def test_a_write_outside_is_named_where_it_cannot_be_caught(project: Path) -> None:
    pytest.importorskip("torch")
    script = project / "outside.py"
    script.write_text(f"open({str(project.parent / 'out.txt')!r}, 'w')\n" + walls.TRAINING)
    found = verify(walls.request(script, isolation=GUARD))
    assert found.verdict == "inconclusive"
    assert "at outside.py, line 1" in found.reason and "writes outside its own folder" in found.reason
    assert not (project.parent / "out.txt").exists()


BESIDE = """
import os, torch
with open(DATA + "/given.txt") as handle:
    assert handle.read() == "given"
assert not os.path.exists(DATA + "/cache")
os.makedirs(DATA + "/cache")
open(DATA + "/given.txt", "w").write("other")
"""


@pytest.mark.parametrize("level", [OVERLAY, LANDLOCK, GUARD])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.usefixtures("warm_interpreter")
def test_data_beside_the_project_are_read_and_written_in_a_layer(project: Path, level: str, absolute: bool) -> None:
    pytest.importorskip("torch")
    walls.demand(level if level != OVERLAY or os.geteuid() == 0 else "overlay-for-users")
    if absolute and level != OVERLAY:
        pytest.skip("an absolute path leads out of a mirror")
    data, more = project.parent / "data", project.parent / "more"
    data.mkdir()
    more.mkdir()
    (data / "given.txt").write_text("given")
    script = project / "train.py"
    end = "torch.save(model.state_dict(), MORE + '/model.pt')\n"
    places = [str(one) if absolute else f"../{one.name}" for one in (data, more)]
    text = BESIDE + walls.TRAINING.replace("range(200)", "range(6)") + end
    script.write_text(text.replace("DATA", repr(places[0])).replace("MORE", repr(places[1])))
    before = walls.tree_hash(project.parent)
    found = verify(walls.request(script, isolation=level))
    assert (found.verdict, found.reason) == ("pass", "it learns the same over 6 steps")
    assert walls.tree_hash(project.parent) == before


@pytest.mark.usefixtures("warm_interpreter")
def test_each_run_starts_from_the_users_files(project: Path) -> None:
    """What one run wrote is not there for the next: the second run of the original would differ."""
    pytest.importorskip("torch")
    script = project / "resume.py"
    lines = "import os\nassert not os.path.exists('state.txt')\nopen('state.txt', 'w').write('x')\n"
    script.write_text(lines + "open('kept.txt', 'a').write('x')\n" + walls.TRAINING)
    found = verify(walls.request(script, steps=20))
    assert found.verdict == "pass"
    if found.isolation == OVERLAY:
        assert any("kept.txt" in note and "as it was" in note for note in found.notes)


@pytest.mark.usefixtures("warm_interpreter")
def test_the_scratch_folder_is_kept_on_request(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = project / "train.py"
    script.write_text("open('wrote.txt', 'w').write('x')\n" + walls.TRAINING)
    found = verify(walls.request(script, steps=20, keep_scratch=True))
    assert found.scratch is not None and list(found.scratch.rglob("wrote.txt"))
    assert not (project / "wrote.txt").exists()
    # it is the user's now: no later run takes it for one that was left
    assert list(sweep(tmp_path)) == [] and found.scratch.exists()


@pytest.mark.usefixtures("warm_interpreter")
def test_where_processes_cannot_be_forked_each_run_has_an_interpreter_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(runner, "FORKS", False)
    script = project / "train.py"
    with scratch_folder(keep=False) as lease:
        child = Child(Scratch(lease.root, (project,), Held(GUARD), lease.lock), script, (), project, Options())
        try:
            script.write_text(walls.TRAINING)
            ended = child.run({}, walls.ORDER, lambda step: None)
            assert (ended.how, len(ended.rows)) == ("stopped", 3)
            script.write_text("import sys\nsys.exit('not today')\n")
            assert child.run({}, walls.ORDER, lambda step: None).complaint == "SystemExit: not today"
        finally:
            child.close()


def test_without_forks_there_is_no_warden_and_a_run_still_ends(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, as far as that can be played here."""
    pytest.importorskip("torch")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os\ndel os.fork\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(runner, "FORKS", False)
    monkeypatch.delattr(os, "fork")
    script = project / "train.py"
    with scratch_folder(keep=False) as lease:
        child = Child(Scratch(lease.root, (project,), Held(GUARD), lease.lock), script, (), project, Options())
        try:
            script.write_text("import os\nassert not hasattr(os, 'fork')\n" + walls.TRAINING)
            ended = child.run({}, walls.ORDER, lambda step: None)
            assert (ended.how, ended.complaint) == ("stopped", None)
            child.limits = Limits(seconds=0.5, memory=1 << 40, disk=1 << 40)
            script.write_text("while True: pass\n")
            assert child.run({}, walls.ORDER, lambda step: None).stopped
        finally:
            child.close()
        assert walls.left(lease.root) == []


@pytest.mark.usefixtures("warm_interpreter")
def test_what_the_weak_level_cannot_hold_is_told(project: Path) -> None:
    """Another program can write where it likes; what it did is seen at least."""
    pytest.importorskip("torch")
    script = project / "train.py"
    other = f"import subprocess\nsubprocess.run(['sh', '-c', 'echo x > {project}/kept.txt'])\n"
    script.write_text(other + walls.TRAINING)
    found = verify(walls.request(script, steps=3, isolation=GUARD))
    assert found.verdict == "pass"
    assert any("it started sh, which" in note for note in found.notes), found.notes
    assert any("were changed" in note and "kept.txt" in note for note in found.notes), found.notes


@pytest.mark.usefixtures("warm_interpreter")
def test_what_a_layer_cannot_do_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    walls.demand("overlay-for-users")
    monkeypatch.setattr(isolation, "_manners", lambda: (True,))
    script = project / "train.py"
    script.write_text("import os\nos.rename('folder', 'moved')\n" + walls.TRAINING)
    reason = verify(walls.request(script, steps=3)).reason
    assert "at train.py, line 2" in reason and "--isolation landlock can" in reason


# --- which level ----------------------------------------------------------------------------------------------------


def test_the_strongest_level_that_can_be_had_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    obstacles: dict[str, str | None] = {OVERLAY: None, LANDLOCK: None}
    monkeypatch.setattr(isolation, "_try", lambda *_, **__: dict(obstacles))
    assert isolation.reach(None, root, (tree,)).level == OVERLAY
    obstacles[OVERLAY] = "unshare: Operation not permitted"
    held = isolation.reach(None, root, (tree,))
    assert (held.level, held.notes) == (
        LANDLOCK,
        ("no stronger isolation here: overlay: unshare: Operation not permitted",),
    )
    with pytest.raises(Inconclusive, match="overlay cannot be had here"):
        isolation.reach(OVERLAY, root, (tree,))
    assert isolation.reach(LANDLOCK, root, (tree,)).notes == ()
    obstacles[LANDLOCK] = "this kernel has none"
    held = isolation.reach(None, root, (tree,))
    assert held.level == GUARD and len(held.notes) == 3 and "weak" in held.notes[0]
    with pytest.raises(Inconclusive, match="landlock cannot be had here"):
        isolation.reach(LANDLOCK, root, (tree,))


def test_every_level_is_tried_out_and_none_is_believed(tmp_path: Path) -> None:
    """Trying leaves nothing behind, and says why a level cannot be had."""
    tree = tmp_path / "tree"
    tree.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    layer = Layer(tree, root / "layers" / "0")
    layer.make()
    found = isolation._try(root, (layer,), own_user=True)
    assert found.keys() == {OVERLAY, LANDLOCK}
    assert list(tree.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "tree"]
    gone = isolation._try(root, (Layer(tmp_path / "none", root / "layers" / "0"),), own_user=True)
    assert gone[OVERLAY]


IN_LAYERS = """
import os, subprocess, sys
from pathlib import Path
from turbofix.verify.layers import Layer
from turbofix.verify.probe import landlock, levels, namespaces
version, own_user, root, tree = int(sys.argv[1]), sys.argv[2] == "True", sys.argv[3], sys.argv[4]
landlock.version = lambda: version
layer = Layer(Path(tree), Path(root, "layers", "0"))
layer.make()
def outer():
    namespaces.enter(own_user=own_user)
    levels._demand(inner)
def inner():
    namespaces.wall_in(root)
    levels.lay_over([layer.places()], root, own_user=own_user, shared_memory=1 << 20)
    Path(tree, "kept.txt").write_text("over")
    os.rename(tree + "/data.txt", tree + "/folder/data.txt")
    outside = os.path.dirname(tree)
    undo = f"umount '{tree}'; umount -l '{tree}'; mount -o remount,rw,bind /; mount -o remount,rw,bind '{outside}';"
    harm = f"echo x > '{outside}/new.txt'; touch -d 2000-01-01 '{outside}'; chmod 700 '{outside}'; rm '{tree}/twin.txt'"
    for words in (["sh", "-c", undo + harm], ["unshare", "-rm", "sh", "-c", undo + harm]):
        subprocess.run(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert not os.path.exists(outside + "/new.txt") and Path(tree, "kept.txt").read_text() == "over"
print(levels._trouble(outer))
"""


@pytest.mark.parametrize("own_user", [False, True])
@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_layer_holds_with_any_landlock_and_without(tmp_path: Path, version: int, own_user: bool) -> None:
    """Not even a script with rights of its own making gets out of it."""
    walls.demand("overlay-for-users" if own_user else "overlay")
    tree = walls.make_project(tmp_path / "home" / "project")
    (tmp_path / "root").mkdir()
    before = walls.tree_hash(tmp_path / "home"), (tmp_path / "home").stat()
    if version == 99:
        version = landlock.version()
    arguments = [str(version), str(own_user), str(tmp_path / "root"), str(tree)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", IN_LAYERS, *arguments]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "None\n", told.stdout + told.stderr
    after = (tmp_path / "home").stat()
    assert (walls.tree_hash(tmp_path / "home"), after.st_mode, after.st_mtime_ns) == (
        before[0],
        before[1].st_mode,
        before[1].st_mtime_ns,
    )
    upper = tmp_path / "root" / "layers" / "0" / "upper"
    assert (upper / "kept.txt").read_text() == "over" and (upper / "folder" / "data.txt").exists()


def test_levels_are_demanded_by_name() -> None:
    isolation.demand(None)
    isolation.demand(GUARD)
    with pytest.raises(Inconclusive, match="no isolation level 'glass'; there are overlay, landlock, guard"):
        isolation.demand("glass")


@pytest.mark.usefixtures("warm_interpreter")
def test_a_level_that_fails_in_the_end_runs_nothing(project: Path) -> None:
    pytest.importorskip("torch")
    walls.demand("overlay-for-users")
    script = project / "train.py"
    script.write_text(f"open({str(project / 'ran')!r}, 'w')\n" + walls.TRAINING)
    with scratch_folder(keep=False) as lease:
        held = Held(OVERLAY, True, (Layer(project / "folder" / "none", lease.root / "layers" / "0"),))
        child = Child(Scratch(lease.root, (project,), held), script, (), project, Options())
        try:
            with pytest.raises((Inconclusive, FileNotFoundError)):
                child.run({}, {}, lambda step: None)
        finally:
            child.close()
    assert not (project / "ran").exists()


# --- what the script sees -------------------------------------------------------------------------------------------


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
    assert trees_for(script, Path("/")) == (project,)
    scratch = Scratch(tmp_path / "scratch", (project,), Held(LANDLOCK))
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
    Scratch(tmp_path / "scratch", (project,), Held(GUARD)).populate({})
    assert not (mirror.parent / "data").exists()


def test_big_files_are_linked_where_the_kernel_denies_writes_through_the_link(tmp_path: Path) -> None:
    project = walls.make_project(tmp_path / "home" / "project")
    for level, linked in ((LANDLOCK, True), (GUARD, False)):
        scratch = Scratch(tmp_path / level, (project,), Held(level))
        scratch.populate({})
        big = scratch.mirror(project / "big.bin")
        # never a hard link; and no link at all where the file system can clone
        assert big.stat().st_nlink == 1 and (project / "big.bin").stat().st_nlink == 1
        assert not big.is_symlink() or linked
        assert scratch.mirror(project / "data.txt").stat().st_nlink == 1


def test_what_lies_under_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    project = walls.make_project(home / "project")
    (home / ".cache").mkdir()
    (tmp_path / "hub").mkdir()
    (tmp_path / "linked").symlink_to(project)
    monkeypatch.setattr(Path, "home", lambda: home)
    for name in ("XDG_CACHE_HOME", "HF_DATASETS_CACHE", "TORCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    root = tmp_path / "root"
    folders = [layer.folder for layer in layers_for((project, project / "folder"), root)]
    assert sorted(folders) == sorted([home / ".cache", tmp_path / "hub", project])
    # no folder can lie over the scratch folder itself
    assert layers_for((tmp_path,), root) == ()
    assert sorted(layer.folder for layer in layers_for((project, tmp_path), root)) == sorted(folders)
    layers = layers_for((project,), root)
    scratch = Scratch(root, (project,), Held(OVERLAY, layers=layers))
    assert scratch.mirror(project / "x") == project / "x"
    assert scratch.holds(tmp_path / "linked" / "new.py") and not scratch.holds(tmp_path / "new.py")
    (project / "folder").chmod(0o750)
    scratch.populate({tmp_path / "linked" / "folder" / "inner.txt": b"other"})
    changed = next(layer for layer in layers if layer.folder == project).changed
    assert (changed / "folder" / "inner.txt").read_bytes() == b"other"
    assert (changed / "folder").stat().st_mode == (project / "folder").stat().st_mode
    assert (project / "folder" / "inner.txt").read_text() == "inner"


# --- the scratch folder ---------------------------------------------------------------------------------------------


def test_the_scratch_folder_lies_outside_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with scratch_folder(keep=False) as lease:
        assert lease.root.parent == tmp_path / "tmp"
    with scratch_folder(keep=False, outside=(tmp_path,)) as lease:
        assert tmp_path not in lease.root.parents
    assert not lease.root.exists()


def test_only_what_was_left_is_swept(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from turbofix.verify.lease import _lock_new\n"
        "for name in sys.argv[1:]: _lock_new(Path(name), keep='kept' in name)\n"
        "print('held', flush=True); time.sleep(60)"
    )
    # what is somebody's own: with a lock that is not ours, without one, a link, and one that is just being made
    for name in ("notes", "live", "kept", "strange", "new", "old"):
        (tmp_path / f"turbofix-{name}").mkdir()
    for name in ("live", "kept", "strange", "notes"):
        (tmp_path / f"turbofix-{name}" / "file").write_text("")
    (tmp_path / "turbofix-notes" / "lock").write_text("mine\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "turbofix-link").symlink_to(tmp_path / "elsewhere")
    hour_ago = time.time() - 7200
    for name in ("new", "old"):
        (tmp_path / f"turbofix-{name}" / "lock.new").write_text("")
    for name in ("strange", "old", "notes"):
        os.utime(tmp_path / f"turbofix-{name}", (hour_ago, hour_ago))
    before = {path.name for path in tmp_path.iterdir()}

    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    held = [str(tmp_path / f"turbofix-{name}") for name in ("live", "kept")]
    holder = subprocess.Popen([sys.executable, "-c", program, *held], env=environment, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert list(sweep(tmp_path)) == []
        assert {path.name for path in tmp_path.iterdir()} == before - {"turbofix-old"}
    finally:
        holder.kill()
        holder.communicate()
    assert list(sweep(tmp_path)) == [tmp_path / "turbofix-live"]
    assert {path.name for path in tmp_path.iterdir()} == before - {"turbofix-old", "turbofix-live"}
    assert [path.name for path in (tmp_path / "turbofix-kept").iterdir()] == ["file"]


def test_nothing_above_a_folder_is_touched_when_it_is_removed(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    warden.remove(str(tmp_path / "gone"))
    (tmp_path / "link").symlink_to(tmp_path)
    warden.remove(str(tmp_path / "link"))
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner").chmod(0)
    (tmp_path / "folder").chmod(0)
    warden.remove(str(tmp_path / "folder"))
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_what_is_made_read_only_is_removed_too(tmp_path: Path) -> None:
    with scratch_folder(keep=False) as lease:
        stubborn = lease.root / "a" / "b"
        stubborn.mkdir(parents=True)
        (stubborn / "file").write_text("")
        stubborn.chmod(0)
        stubborn.parent.chmod(0o500)
    assert not lease.root.exists()
