"""Scripts that misbehave, and verifications that are ended from outside: the user's files stay as they were, and
neither a process nor a scratch folder stays behind.

The scripts run one after another in the same child, once for each level of isolation that this machine has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import walls
import warm

from turbofix.engine import project
from turbofix.verify import Options, resources, verify
from turbofix.verify.isolation import Held
from turbofix.verify.lease import scratch_folder, sweep
from turbofix.verify.probe import guard, landlock, processes
from turbofix.verify.probe.levels import GUARD
from turbofix.verify.resources import Limits
from turbofix.verify.runner import Child, Ended
from turbofix.verify.scratch import Scratch

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes through /proc"),
    pytest.mark.usefixtures("warm_interpreters"),
]

MIB = 1 << 20
GENEROUS = Limits(seconds=60.0, memory=1 << 40, disk=1 << 40)

# seconds to sleep, by which a process of these tests is known from those of any other
UNIQUE = f"90.{os.getpid()}"


@dataclass
class Bench:
    """A child at one level of isolation, and the project that its scripts run in."""

    child: Child
    scratch: Scratch
    script: Path
    level: str

    def run(self, text: str, given: Limits = GENEROUS) -> Ended:
        """Run a script to its end; the user's tree must be what it was, and nothing may go on."""
        self.script.write_text(text)
        before = walls.tree_hash(self.script.parents[1])
        self.child.limits = given
        ended = self.child.run({}, walls.ORDER, lambda step: None)
        assert walls.tree_hash(self.script.parents[1]) == before
        assert walls.lives(UNIQUE) == []
        assert not Path("/dev/shm", f"turbofix-{UNIQUE}").exists()
        return ended

    @property
    def strong(self) -> bool:
        return self.level != "guard"


@pytest.fixture(scope="module", params=walls.LEVELS)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, warm_interpreters: None
) -> Iterator[Bench]:
    base = tmp_path_factory.mktemp("kills")
    project = walls.make_project(base / "home" / "project")
    script = project / "script.py"
    script.write_text("")
    with scratch_folder(keep=False) as lease:
        held = walls.reach(request.param, lease.root, (project,))
        scratch = Scratch(lease.root, (project,), held, lease.lock)
        child = Child(scratch, script, (), project, Options())
        try:
            child.start()
            yield Bench(child, scratch, script, held.level)
        finally:
            child.close()
        assert walls.left(lease.root) == []
    assert not lease.root.exists()


# --- what scripts do ------------------------------------------------------------------------------------------------

ATTEMPT = """
def attempt(act, *arguments, **keywords):
    "Whatever comes of it: what counts is what the user's files look like afterwards."
    try: return act(*arguments, **keywords)
    except (OSError, RuntimeError, ValueError) as error: print(type(error).__name__, error)
"""

WRITES_FROM_CPP = (
    ATTEMPT
    + """
import os, torch
here = HERE
for folder in (".", here):
    for name in ("kept.txt", "big.bin", "link.txt", "new.pt"):
        attempt(torch.save, {"a": torch.zeros(3)}, os.path.join(folder, name))
    scripted = torch.jit.script(torch.nn.Linear(2, 2))
    attempt(torch.jit.save, scripted, os.path.join(folder, "kept.txt"))
    attempt(scripted.save, os.path.join(folder, "big.bin"))
    for name in ("kept.txt", "data.txt", "big.bin"):
        mapped = attempt(torch.from_file, os.path.join(folder, name), shared=True, size=4, dtype=torch.uint8)
        if mapped is not None: mapped.fill_(7)
    storage = attempt(torch.UntypedStorage.from_file, os.path.join(folder, "twin.txt"), True, 4)
    if storage is not None: storage.fill_(7)
"""
)

BIG_FILES_AND_LINKS = (
    ATTEMPT
    + """
import mmap, os, torch
here = HERE
def overwrite(path):
    with open(path, "r+b") as file: file.write(b"overwritten")
def map_and_write(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped: mapped[:4] = b"over"
for name in ("big.bin", "twin.txt", "data.txt", "link.txt"):
    for folder in (".", here):
        path = os.path.join(folder, name)
        attempt(os.link, path, "hard-" + name)
        attempt(os.symlink, os.path.join(here, name), "soft-" + name)
        for way in (path, "hard-" + name, "soft-" + name):
            attempt(overwrite, way)
            attempt(map_and_write, way)
            attempt(os.truncate, way, 3)
            attempt(os.chmod, way, 0o600)
            attempt(os.utime, way, (0, 0))
            attempt(os.rename, way, "moved-" + name)
"""
)

DELETES_ITS_DATA = (
    ATTEMPT
    + """
import os, shutil
here = HERE
for folder in (".", here):
    for name in ("data.txt", "twin.txt", "big.bin", "link.txt"): attempt(os.remove, os.path.join(folder, name))
    attempt(shutil.rmtree, os.path.join(folder, "folder"))
attempt(shutil.rmtree, here)
assert not os.path.exists("data.txt") and not os.path.exists("folder/inner.txt")
"""
)

# what a level that only patches Python cannot hold
BY_OTHER_PROGRAMS = """
import subprocess
here = HERE
for folder in (".", here):
    for words in ("echo x > kept.txt", "rm -rf data.txt folder", "ln big.bin hard.bin; echo x >> hard.bin",
                  "mv kept.txt elsewhere.txt", "truncate -s 1 big.bin"):
        subprocess.run(["sh", "-c", f"cd '{folder}'; {words}"], stderr=subprocess.DEVNULL)
subprocess.run(["sh", "-c", f"echo x > '{here}/../outside.txt'; mkdir '{here}/../outside'"])
"""

# what Landlock does not know of
METADATA_BY_OTHER_PROGRAMS = """
import subprocess
here = HERE
subprocess.run(["sh", "-c", f"cd '{here}'; touch kept.txt; chmod 600 data.txt; touch .. ../folder; chmod 700 .."])
"""

FORKS = f"""
import os, subprocess, sys
for _ in range(3):
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{UNIQUE}"])
subprocess.Popen(["sleep", "{UNIQUE}"])
if os.fork() == 0:
    while True: pass
"""

SHARES_MEMORY = f"""
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *arguments: None
held = shared_memory.SharedMemory("turbofix-{UNIQUE}", create=True, size=1 << 20)
"""

DAEMONISES = f"""
import os, subprocess, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 100)
    os.execvp("sh", ["sh", "-c", "trap '' TERM INT HUP; while :; do sleep {UNIQUE}; done"])
subprocess.Popen(["setsid", "sleep", "{UNIQUE}"], start_new_session=True, env={{}})
time.sleep(0.2)
"""

LOOPS_AND_IGNORES_SIGNALS = """
import signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
while True:
    try:
        while True: pass
    except BaseException: pass
"""

# ends by itself where nobody stops it, rather than harm the machine
FILLS_THE_DISK = """
for number in range(512):
    with open(f"{number}.bin", "wb") as file: file.write(b"x" * (1 << 20))
"""

FILLS_A_FILE = """
import time
with open("one.bin", "wb") as file:
    for number in range(512):
        file.write(b"x" * (1 << 20))
        time.sleep(0.01)
"""

EATS_MEMORY = """
import time
held = []
for number in range(96):
    held.append(b"x" * (32 << 20))
    time.sleep(0.02)
"""

KILLS_ITS_PARENT = """
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(WRITES_FROM_CPP, id="writes from C++"),
        pytest.param(BIG_FILES_AND_LINKS, id="big files and links"),
        pytest.param(DELETES_ITS_DATA, id="deletes its data"),
        pytest.param(SHARES_MEMORY, id="shares memory"),
        pytest.param(FORKS, id="forks"),
        pytest.param(DAEMONISES, id="daemonises"),
    ],
)
def test_a_script_that_misbehaves_still_learns(bench: Bench, text: str) -> None:
    ended = bench.run(text.replace("HERE", repr(str(bench.script.parent))) + walls.TRAINING)
    assert (ended.how, ended.complaint) == ("stopped", None), ended.last_words


def test_other_programs_cannot_write_either(bench: Bench) -> None:
    if not bench.strong:
        pytest.skip("this level is weak, and says so")
    ended = bench.run(BY_OTHER_PROGRAMS.replace("HERE", repr(str(bench.script.parent))) + walls.TRAINING)
    assert (ended.how, ended.complaint) == ("stopped", None), ended.last_words


def test_other_programs_cannot_change_modes_and_times(bench: Bench) -> None:
    if bench.level != "overlay":
        pytest.skip("Landlock has no rule for modes and times, and the level says so")
    bench.run(METADATA_BY_OTHER_PROGRAMS.replace("HERE", repr(str(bench.script.parent))) + walls.TRAINING)


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        pytest.param(
            LOOPS_AND_IGNORES_SIGNALS,
            Limits(0.5, 1 << 40, 1 << 40),
            "ran past its time limit of 0.5 seconds",
            id="time",
        ),
        pytest.param(EATS_MEMORY, Limits(60.0, 896 * MIB, 1 << 40), "used more memory than its limit", id="memory"),
        pytest.param(FILLS_THE_DISK, Limits(60.0, 1 << 40, 64 * MIB), "wrote more than its limit of 64 MiB", id="disk"),
    ],
)
def test_a_limit_ends_the_run(bench: Bench, text: str, given: Limits, words: str) -> None:
    ended = bench.run(f"import subprocess; subprocess.Popen(['sleep', '{UNIQUE}'])\n" + text, given)
    assert ended.stopped and ended.complaint and ended.complaint.startswith(words), ended
    # and the next run is none the worse for it
    assert bench.run(walls.TRAINING).how == "stopped"


def test_a_flood_of_processes_ends_the_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MOST_PROCESSES", 20)
    flood = f"import subprocess, time\nfor _ in range(40): subprocess.Popen(['sleep', '{UNIQUE}'])\ntime.sleep(60)\n"
    ended = bench.run(flood)
    assert ended.stopped and ended.complaint == "started more than 20 processes", ended


def test_a_single_file_is_held_to_the_limit_too(bench: Bench) -> None:
    ended = bench.run(FILLS_A_FILE, Limits(60.0, 1 << 40, 64 * MIB))
    assert ended.stopped or "File too large" in str(ended.complaint), ended


def test_a_script_that_kills_its_parent_harms_itself_alone(bench: Bench) -> None:
    ended = bench.run(KILLS_ITS_PARENT + walls.TRAINING)
    if bench.level == "overlay":
        # its parent is the first process of its namespace: the kernel does not let it
        assert ended.how in ("crashed", "stopped"), ended
    assert bench.run(walls.TRAINING).how == "stopped"


def test_a_folder_can_be_renamed_where_the_layer_takes_it(bench: Bench) -> None:
    ended = bench.run("import os\nos.rename('folder', 'moved')\nopen('moved/inner.txt')\n" + walls.TRAINING)
    if bench.level == "overlay" and bench.scratch.held.own_user:
        assert "Invalid cross-device link" in str(ended.complaint), ended
    else:
        assert (ended.how, ended.complaint) == ("stopped", None), ended


KILLS_ANOTHER = (
    ATTEMPT
    + """
import os, signal, subprocess
attempt(os.kill, VICTIM, signal.SIGKILL)
attempt(os.killpg, VICTIM, signal.SIGKILL)
"""
)


def test_other_processes_of_the_users_are_not_reached(bench: Bench) -> None:
    victim = subprocess.Popen(["sleep", "60"], start_new_session=True)
    text = KILLS_ANOTHER.replace("VICTIM", str(victim.pid))
    if bench.level == "overlay" or (bench.strong and landlock.version() >= 6):
        text += f"subprocess.run(['kill', '-9', '{victim.pid}'], stderr=subprocess.DEVNULL)\n"
    try:
        ended = bench.run(text + walls.TRAINING)
        assert (ended.how, ended.complaint) == ("stopped", None), ended.last_words
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_a_script_may_signal_what_it_started_and_nobody_else() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        me = os.getpid()
        for event, number in (("os.kill", child.pid), ("os.kill", me), ("os.kill", 0), ("os.killpg", os.getpgrp())):
            assert guard._own_process(event, number, me)
        # -1 is everybody, and a negative number a group
        for event, number in (("os.kill", -1), ("os.kill", 1), ("os.kill", os.getppid()), ("os.killpg", 1)):
            assert not guard._own_process(event, number, me)
    finally:
        child.kill()
        child.wait()


def test_the_user_sees_what_the_script_would_have_changed(bench: Bench) -> None:
    if bench.level != "overlay":
        pytest.skip("only a layer tells")
    bench.run("import os\nopen('kept.txt', 'a').write('x')\nos.remove('data.txt')\nopen('new.txt', 'w')\n")
    project = bench.script.parent
    assert bench.scratch.touched() == (project / "data.txt", project / "kept.txt")
    assert (project / "kept.txt").read_text() == "kept" * 2000


# --- turbofix is ended from outside ---------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, types
from pathlib import Path
sys.path.insert(0, TESTS)
import walls
from turbofix.verify import lease, verify
from turbofix.verify.scratch import Scratch
# a job in the background of a script is born deaf to Ctrl-C
signal.signal(signal.SIGINT, signal.default_int_handler)
number, phase, level = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def end():
    os.kill(os.getpid(), number)
    signal.pause()
def advance(progress):
    if progress.phase + ", in the middle" == phase and progress.done: end()
if phase == "copying":
    original = Scratch.populate
    Scratch.populate = lambda *arguments: (original(*arguments), end())
if phase == "trying the levels":
    import turbofix.verify.isolation as isolation
    isolation.reach = lambda *arguments: end()
if phase == "importing torch":
    from turbofix.verify.runner import Child
    Child._wait = lambda *arguments: end()
if phase == "cleaning up":
    remove = lease.warden.remove
    lease.warden = types.SimpleNamespace(remove=lambda folder: (os.kill(os.getpid(), number), remove(folder)))
if sys.argv[4:]:
    # a fork of an interpreter that has imported torch, see `warm`
    import socket, subprocess, warm
    from turbofix.verify import runner
    control = socket.socket(fileno=int(sys.argv[4]))
    def fork(command, **given): return warm.Forked(control, command[1:], given["env"], given)
    runner.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": fork})
verify(walls.request(Path("script.py").absolute(), steps=6, isolation=level), advance)
"""

PHASES = (
    "trying the levels",
    "importing torch",
    "copying",
    "the script as it is, in the middle",
    "the script against itself, in the middle",
    "the rewritten script, in the middle",
    "cleaning up",
)

# steps take their time, so that there is a middle
SLOW_TRAINING = walls.TRAINING.replace("    optimizer.step()", "    optimizer.step(); import time; time.sleep(0.03)")


def environment_of(project: Path, scratches: Path) -> dict[str, str]:
    """The environment of what a verification starts."""
    return Child(Scratch(scratches, (), Held(GUARD)), project, (), project, Options())._environment()


def turbofix_ended(  # noqa: PLR0913
    project: Path, scratches: Path, number: int, phase: str, level: str, kept: warm.Kept
) -> int:
    """Verify in a process of its own that gets the signal ``number`` in ``phase``; its exit status."""
    tests = Path(__file__).parent
    program = PROGRAM.replace("TESTS", repr(str(tests)))
    command = [sys.executable, "-c", program, str(number), phase, level]
    control = ()
    if phase != "importing torch":
        control = (kept.control(sys.executable, environment_of(project, scratches)).fileno(),)
    return subprocess.run(
        [*command, *map(str, control)],
        cwd=project,
        env={**os.environ, "TMPDIR": str(scratches), "PYTHONPATH": str(tests.parent)},
        timeout=120,
        stderr=subprocess.DEVNULL,
        pass_fds=control,
        check=False,
    ).returncode


@pytest.fixture(name="project")
def slow_project(tmp_path: Path) -> Path:
    folder = walls.make_project(tmp_path / "home" / "project")
    (folder / "script.py").write_text(
        f"import subprocess\nsubprocess.Popen(['sleep', '{UNIQUE}'], start_new_session=True, env={{}})\n{SLOW_TRAINING}"
    )
    return folder


@pytest.fixture
def scratches(tmp_path: Path) -> Path:
    (tmp_path / "scratches").mkdir()
    return tmp_path / "scratches"


def strongest() -> str:
    return "overlay" if os.geteuid() == 0 else "overlay-for-users"


# each signal in each phase at one level, and each level with each signal in one phase
ENDS = [(number, phase, "landlock") for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) for phase in PHASES]
ENDS += [
    (number, PHASES[3], level)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    for level in ("overlay", "guard")
]


@pytest.mark.parametrize(("number", "phase", "level"), ENDS)
def test_an_end_from_outside_leaves_nothing_behind(  # noqa: PLR0913
    project: Path,
    scratches: Path,
    number: signal.Signals,
    phase: str,
    level: str,
    kept_interpreters: warm.Kept,
) -> None:
    walls.demand(level if level != "overlay" else strongest())
    before = walls.tree_hash(project.parent)
    status = turbofix_ended(project, scratches, number, phase, level, kept_interpreters)
    undisturbed = phase == "cleaning up" and number != signal.SIGKILL
    expected = {signal.SIGINT: -2, signal.SIGTERM: 143, signal.SIGKILL: -9}
    assert status == (0 if undisturbed else expected[number])
    if number == signal.SIGKILL and phase in ("trying the levels", "cleaning up"):
        # there is no warden yet, or no more
        assert [folder.parent for folder in sweep(scratches)] == [scratches]
    # a warden needs a moment to notice that turbofix is dead
    assert walls.wait_for(lambda: not list(scratches.iterdir()), 20), list(scratches.rglob("*"))
    assert walls.wait_for(lambda: not walls.lives(UNIQUE) and not walls.lives(str(scratches)), 20)
    assert walls.tree_hash(project.parent) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_files_that_belong_together_are_written_together(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last phase: what is borne out is written, and a request to end half-way comes too late."""
    paths = [tmp_path / name for name in ("model.py", "train.py")]
    for path in paths:
        path.write_text("old = 1\n")
    workspace = project.Workspace()
    for path in paths:
        workspace.source(path)
    write = project.write_bytes
    monkeypatch.setattr(project, "write_bytes", lambda *given: (os.kill(os.getpid(), number), write(*given))[1])
    written, problems = project.write_together(dict.fromkeys(paths, b"new = 1\n"), workspace)
    assert (sorted(written), problems) == (paths, [])
    assert [path.read_bytes() for path in paths] == [b"new = 1\n"] * 2
    assert sorted(tmp_path.iterdir()) == paths


@pytest.mark.parametrize("level", walls.LEVELS[1:])
def test_what_a_kill_of_everything_leaves_is_swept_by_the_next_run(
    project: Path, scratches: Path, level: str, monkeypatch: pytest.MonkeyPatch, kept_interpreters: warm.Kept
) -> None:
    """Turbofix and its warden are killed at once. A run of somebody else's meanwhile is left alone."""
    walls.demand(level)
    monkeypatch.setattr(tempfile, "tempdir", str(scratches))
    monkeypatch.chdir(project)
    script = project / "script.py"
    daemon = DAEMONISES.replace(", env={}", "")  # nobody finds one that hides its origin, but a namespace of its own
    script.write_text(daemon + "open('started', 'w')\n" + LOOPS_AND_IGNORES_SIGNALS)
    before = walls.tree_hash(project.parent)
    tests = Path(__file__).parent
    environment = {**os.environ, "TMPDIR": str(scratches), "PYTHONPATH": str(tests.parent)}
    program = PROGRAM.replace("TESTS", repr(str(tests)))
    started = environment_of(project, scratches)
    control = kept_interpreters.control(sys.executable, started).fileno()
    command = [sys.executable, "-c", program, "0", "", level.partition("-")[0], str(control)]
    turbofix = subprocess.Popen(command, cwd=project, env=environment, pass_fds=(control,))
    try:
        assert walls.wait_for(lambda: walls.lives(UNIQUE) and list(scratches.rglob("started")))
        forks = processes.children(kept_interpreters.pid(sys.executable, started))
        (warden,) = set(forks).intersection(walls.lives(str(scratches)))
        os.kill(warden, signal.SIGKILL)
    finally:
        turbofix.kill()
        turbofix.wait()
    assert walls.wait_for(lambda: not os.path.exists(f"/proc/{warden}"))
    (stale,) = walls.scratches_in(scratches)
    with scratch_folder(keep=False) as living:
        # it was there before: the first to come has removed it
        assert living.swept == (stale,)
        assert not stale.exists()
        assert walls.wait_for(lambda: not walls.lives(UNIQUE), 10)
        assert walls.tree_hash(project.parent) == before
        script.write_text(walls.TRAINING)
        assert verify(walls.request(script, steps=3)).verdict == "pass"
        assert living.root.exists()
    assert list(scratches.iterdir()) == []


def test_the_machine_is_asked_what_is_free() -> None:
    assert 0 < resources.available_memory() < 1 << 50
    assert resources.in_words(3 << 30) == "3 GiB" and resources.in_words(64 * MIB) == "64 MiB"
    assert landlock.version() >= 0
