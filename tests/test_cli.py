"""The commands: results, messages and exit statuses, as the README promises them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SLOW, Ran, Run, runner

from turbofix import telling
from turbofix.codemod import GROUPS
from turbofix.engine import project, verifying
from turbofix.engine.verifying import NothingToVerify
from turbofix.source.files import Workspace
from turbofix.verify import Options


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SLOW)
    return path


def findings(ran: Ran) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(ran.out)["findings"]
    return found


# --- analyze --------------------------------------------------------------------------------------------------------


def test_analyze_exits_with_1_where_something_can_be_fixed(run: Run, script: Path) -> None:
    ran = run("analyze", "train.py")
    assert ran.code == 1
    assert "pin-memory" in ran.out
    assert "next: turbofix apply --verify train.py -- ARGS" in ran.out
    assert ran.err == ""
    assert script.read_text() == SLOW


def test_analyze_exits_with_0_where_nothing_can(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('hello')\n")
    ran = run("analyze", "a.py")
    assert (ran.code, ran.err) == (0, "")


def test_risk_decides_what_counts(run: Run, script: Path) -> None:
    everything = findings(run("analyze", "--output-format", "json", "train.py"))
    levels = {f["risk"] for f in everything if f["fixable"]}
    assert {"exact", "equivalent"} <= levels
    # Riskier findings are reported and do not count.
    only = run("analyze", "--risk", "exact", "--select", "precision", "--output-format", "json", "train.py")
    assert findings(only)
    assert only.code == 0
    assert run("analyze", "--risk", "equivalent", "--select", "precision", "train.py").code == 1


def test_select_and_ignore(run: Run, script: Path) -> None:
    def names(*options: str) -> set[object]:
        return {f["codemod"] for f in findings(run("analyze", "--output-format", "json", *options, "train.py"))}

    assert names("--select", "pin-memory") == {"pin-memory"}
    assert names("--select", "pin-memory,non-blocking") == {"pin-memory", "non-blocking"}
    assert names("--select", "pin-memory", "--select", "non-blocking") == {"pin-memory", "non-blocking"}
    assert names("--select", "data", "--ignore", "pin-memory") >= {"non-blocking"}
    assert "pin-memory" not in names("--select", "data", "--ignore", "pin-memory")
    assert names("--ignore", "all") == set()


def test_unknown_names_and_values_exit_with_2(run: Run, script: Path) -> None:
    wrong = run("analyze", "--select", "pin-memry", "train.py")
    assert wrong.code == 2
    assert "did you mean 'pin-memory'?" in wrong.err
    for option, value in (
        ("--gpu", "voodoo"),
        ("--torch-version", "two"),
        ("--risk", "brave"),
        ("--output-format", "x"),
    ):
        ran = run("analyze", option, value, "train.py")
        assert ran.code == 2, option
        assert value in ran.err, option
    assert run("analyze", "--no-such-option").code == 2
    assert run("analyse").code == 2


def test_json_paths_are_relative_and_sorted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/train.py", "a.py"):
        (tmp_path / name).write_text(SLOW)
    document = json.loads(run("analyze", "--output-format", "json").out)
    assert [file["path"] for file in document["files"]] == ["a.py", "b/train.py"]
    places = [(f["path"], f["line"], f["column"], f["codemod"]) for f in document["findings"]]
    assert places == sorted(places)
    assert {place[0] for place in places} == {"a.py", "b/train.py"}


def test_other_formats_options_and_files(run: Run, script: Path, tmp_path: Path) -> None:
    concise = run("analyze", "--output-format", "concise", "train.py")
    assert any(line.startswith("train.py:8:10: pin-memory [*] ") for line in concise.out.splitlines())
    assert run("analyze", "--exit-zero", "train.py").code == 0
    assert "  pin-memory  [*]" in run("analyze", "--statistics", "train.py").out
    to_file = run("analyze", "--output-format", "json", "--output-file", "out.json", "train.py")
    assert (to_file.code, to_file.out) == (1, "")
    assert json.loads((tmp_path / "out.json").read_text())["version"] == 1
    nowhere = run("analyze", "--output-file", "no/such/folder.txt", "train.py")
    assert nowhere.code == 2
    assert "cannot be written" in nowhere.err


def test_analyze_reads_standard_input(run: Run) -> None:
    ran = run("analyze", "--output-format", "concise", "-", stdin=SLOW.encode())
    assert ran.code == 1
    assert ran.out.startswith("-:")


def test_suppressed_findings_are_not_reported(run: Run, script: Path) -> None:
    script.write_text(SLOW.replace("shuffle=True)", "shuffle=True)  # turbofix: ignore[pin-memory]"))
    lines = run("analyze", "--output-format", "concise", "train.py").out
    assert "pin-memory" not in lines
    assert "non-blocking" in lines
    script.write_text("# turbofix: skip-file\n" + SLOW)
    assert run("analyze", "train.py").code == 0
    assert run("apply", "train.py").out == ""


def test_unknown_names_in_a_suppression_are_told(run: Run, script: Path) -> None:
    script.write_text(SLOW.replace("shuffle=True)", "shuffle=True)  # turbofix: ignore[pin_memory, data, all]"))
    ran = run("analyze", "--output-format", "concise", "train.py")
    assert ran.err == (
        "warning: train.py:8: in the comment for turbofix, 'pin_memory' is no codemod and no group; "
        "did you mean 'pin-memory'?\n"
    )
    assert "train.py:8:" not in ran.out
    assert run("analyze", "--quiet", "train.py").err == ""


ENGINE = """\
def train_one_epoch(model, loader, optimizer, device):
    for batch, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
"""


def test_a_file_that_only_defines_a_loop_is_told_from_one_that_is_right(run: Run, tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("import torch\n" + ENGINE)
    (tmp_path / "steps.py").write_text("from engine import train_one_epoch\n")
    start = "train_one_epoch(model, loader, optimizer, device)\n"
    (tmp_path / "run.py").write_text(
        SLOW.partition("for epoch")[0].replace("import torch\n", "import torch\nfrom steps import train_one_epoch\n", 1)
        + start
    )
    hint = "engine.py starts no training by itself: it holds a training loop that other code calls; "
    hint += "analyze the script that runs it: run.py\n"
    ran = run("analyze", "engine.py")
    assert ran.code == 0  # what is offered here is likely: the script decides what it trains with
    assert hint.strip() in " ".join(ran.out.split())
    assert run("analyze", "--output-format", "concise", "engine.py").err == f"note: {hint}"
    said = run("apply", "engine.py").err
    assert said.startswith("nothing to change\n") and said.endswith(f"note: {hint}")
    assert "starts no training" not in run("analyze", "run.py").out
    (tmp_path / "run.py").unlink()
    assert "analyze the script that runs it: steps.py\n" in run("apply", "engine.py").err
    (tmp_path / "steps.py").unlink()
    assert "which decides what it trains with" in run("apply", "engine.py").err


def test_a_scaler_goes_into_a_file_that_today_s_python_does_not_read(tmp_path: Path, run: Run) -> None:
    lines = SLOW.replace("labels.to(device)", "labels.cuda(async=True)").splitlines()
    inside = ["def train(loader, model, optimizer):", *(f"    {line}" for line in lines[11:])]
    (tmp_path / "old.py").write_text("\n".join([*lines[:10], *inside, "", "train(loader, model, optimizer)", ""]))
    ran = run("apply", "--likely", "--gpu", "turing", "--select", "autocast", "old.py")
    assert "scaler.scale(loss).backward()" in ran.out and "mistake" not in ran.err


def test_a_deprecated_name_is_told_of_in_a_file_that_trains_nothing(tmp_path: Path, run: Run) -> None:
    (tmp_path / "amp.py").write_text(
        "from torch.cuda.amp import GradScaler\n\n\ndef make():\n    return GradScaler()\n"
    )
    assert 'return GradScaler("cuda")' in run("apply", "amp.py").out
    (tmp_path / "amp.py").write_text("def make():\n    return None\n")
    assert run("apply", "amp.py").code == 0


def test_the_starting_script_is_looked_for_one_folder_up(run: Run, tmp_path: Path) -> None:
    (tmp_path / "old" / "helpers").mkdir(parents=True)
    (tmp_path / "old" / "helpers" / "__init__.py").write_text("from .engine import *\n")
    (tmp_path / "old" / "helpers" / "engine.py").write_text("import torch\n" + ENGINE)
    (tmp_path / "old" / "train.py").write_text("from helpers import train_one_epoch\n")
    (tmp_path / "new.py").write_text("from old.helpers import train_one_epoch\n")
    assert "the script that runs it: old/train.py\n" in run("apply", "old/helpers/engine.py").err
    (tmp_path / "pyproject.toml").write_text("")  # now the whole folder is one project
    assert "the script that runs it: new.py, old/train.py\n" in run("apply", "old/helpers/engine.py").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "train.py", "--epochs", "1"), "No such option: --epochs. The script's own"),
        (("verify", "train.py", "cifar", "adam"), "unexpected extra argument(s) (adam). The script's own"),
        (("apply", "--verify", "train.py", "--lr", "0.1"), "go behind `--`: turbofix apply --verify SCRIPT -- ARGS"),
        (("verify", "train.py", "lr=0.1"), "there is no file lr=0.1 to compare with; if this is an argument"),
    ],
)
def test_a_forgotten_separator_is_told(run: Run, script: Path, arguments: tuple[str, ...], words: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert words in ran.err
    assert "Possible options" not in ran.err


def test_a_slip_in_an_own_option_is_told(run: Run, script: Path) -> None:
    assert "(Possible options: --steps)" in run("verify", "train.py", "--step", "3").err
    assert "`--`" not in run("verify", "train.py", "--step", "3", "--", "--epochs", "1").err
    assert "`--`" not in run("apply", "train.py", "--lr", "3").err


def test_settings_of_the_project_hold(run: Run, script: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.turbofix]\nselect = ["non-blocking"]\nexclude = ["old"]\n')
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "train.py").write_text(SLOW)
    found = findings(run("analyze", "--output-format", "json"))
    assert {(f["path"], f["codemod"]) for f in found} == {("train.py", "non-blocking")}
    assert "pin-memory" in run("analyze", "--select", "pin-memory", "train.py").out
    (tmp_path / "pyproject.toml").write_text('[tool.turbofix.per-file-ignores]\n"train.py" = ["data"]\n')
    assert not {f["group"] for f in findings(run("analyze", "--output-format", "json", "train.py"))} & {"data"}
    (tmp_path / "pyproject.toml").write_text("[tool.turbofix]\nrisky = 1\n")
    wrong = run("analyze", "train.py")
    assert wrong.code == 2
    assert "risky" in wrong.err


def test_a_module_that_a_script_imports_is_reported_once(run: Run, tmp_path: Path) -> None:
    loop = SLOW.index("for epoch")
    body = "".join(f"    {line}\n" for line in SLOW[loop:].splitlines())
    (tmp_path / "engine.py").write_text(
        f"from torch import nn\n\n\ndef train(model, loader, optimizer, device):\n{body}"
    )
    (tmp_path / "main.py").write_text(
        "from engine import train\n"
        + SLOW[:loop]
        + "if __name__ == '__main__':\n    train(model, loader, optimizer, device)\n"
    )
    one = findings(run("analyze", "--output-format", "json", "main.py"))
    assert {f["path"] for f in one} == {"main.py", "engine.py"}
    folder = findings(run("analyze", "--output-format", "json", "."))
    assert folder == one


def test_many_files_in_several_processes_give_the_same(run: Run, tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"s{number:02}.py").write_text(SLOW if number % 8 == 0 else f"x = {number}\n")
    (tmp_path / "s99.py").write_text("x = (\n")
    alone = run("analyze", "--jobs", "1", "--output-format", "json")
    together = run("analyze", "--jobs", "2", "--output-format", "json")
    assert (together.code, together.err) == (alone.code, alone.err) == (2, alone.err)
    assert together.out == alone.out
    assert {f["path"] for f in findings(together)} == {"s00.py", "s08.py", "s16.py", "s24.py"}


# --- apply ----------------------------------------------------------------------------------------------------------


def test_apply_prints_a_diff_that_git_takes(run: Run, script: Path, tmp_path: Path) -> None:
    ran = run("apply", "train.py")
    assert ran.code == 1
    assert "would rewrite 1 file" in ran.err
    assert script.read_text() == SLOW
    subprocess.run(["git", "apply"], input=ran.raw, cwd=tmp_path, check=True)
    by_git = script.read_text()
    script.write_text(SLOW)
    written = run("apply", "--write", "train.py")
    assert (written.code, written.out) == (0, "")
    assert "rewrote train.py" in written.err
    assert script.read_text() == by_git != SLOW


def test_a_new_file_is_in_the_diff_and_is_written(run: Run, script: Path, tmp_path: Path) -> None:
    several = ("apply", "--select", "ddp", "--likely", "--gpus", "2", "train.py")
    ran, new = run(*several), tmp_path / "workers.py"
    assert "would rewrite 2 files" in ran.err
    assert "--- /dev/null\n+++ b/workers.py\n@@ -0,0 +1," in ran.out
    subprocess.run(["git", "apply"], input=ran.raw, cwd=tmp_path, check=True)
    by_git = script.read_text(), new.read_text()
    new.unlink()
    script.write_text(SLOW)
    written = run(*several[:1], "--write", *several[1:])
    assert (written.code, written.out) == (0, "")
    assert (script.read_text(), new.read_text()) == by_git
    assert new.stat().st_mode == script.stat().st_mode
    assert run(*several).out == ""
    script.write_text(SLOW)  # another script beside it
    assert "would rewrite 1 file " in run(*several).err
    new.write_text("mine = 1\n")
    assert "workers_2.py" in run(*several).out
    assert run("apply", *several[1:-1], "-", stdin=SLOW.encode()).out == SLOW


def test_apply_twice_changes_nothing_the_second_time(run: Run, script: Path) -> None:
    run("apply", "--write", "train.py")
    once = script.read_bytes()
    assert run("apply", "train.py").out == ""
    assert run("apply", "train.py").code == 0
    assert run("apply", "--write", "train.py").code == 0
    assert script.read_bytes() == once


def test_a_file_that_another_script_runs_is_rewritten_where_it_is_right_for_both(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "from torch.utils.data import DataLoader\n\n\n"
        "def batches(dataset, collate=None):\n"
        "    return DataLoader(dataset, batch_size=64, shuffle=True, collate_fn=collate)\n"
    )
    own = "DataLoader(dataset, batch_size=64, shuffle=True)"
    script = "from data import batches\n" + SLOW.replace(own, "batches(dataset)")
    (tmp_path / "train.py").write_text(script)
    alone = run("apply", "--select", "pin-memory", "train.py")
    assert "+    return DataLoader" in alone.out
    on_gpu = "lambda items: [torch.stack(each).cuda() for each in zip(*items)]"
    (tmp_path / "tune.py").write_text(script.replace("batches(dataset)", f"batches(dataset, {on_gpu})"))
    both = run("apply", "--select", "pin-memory", "train.py")
    assert (both.code, both.out) == (0, "")
    assert both.err == (
        "nothing to change\ndata.py: pin-memory was not applied: "
        "tune.py, which runs line 5 too, rules it out: it is not known to be right there\n"
    )
    told = findings(run("apply", "--select", "pin-memory", "--output-format", "json", "train.py"))
    assert [[one["name"] for one in each["assumes"]] for each in told] == [["read-whole"]], (
        "likely, for all that is known"
    )
    assert run("apply", "--select", "pin-memory", "--write", "train.py").code == 0
    assert "pin_memory" not in (tmp_path / "data.py").read_text()
    (tmp_path / "tune.py").write_text(script)  # as right for this one
    assert run("apply", "--select", "pin-memory", "train.py").out == alone.out


def test_apply_keeps_to_the_risk(run: Run, script: Path) -> None:
    exact = run("apply", "--risk", "exact", "train.py").out
    assert "pin_memory" in exact
    assert "autocast" not in exact
    assert "autocast" in run("apply", "train.py").out


def test_apply_keeps_encoding_newlines_and_byte_order_mark(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "my train.py"
    data = b"\xef\xbb\xbf" + ("# Zoë\n" + SLOW).replace("\n", "\r\n").encode()[:-2]
    path.write_bytes(data)
    ran = run("apply", path.name)
    new = run("apply", "--write", path.name)
    assert new.code == 0
    after = path.read_bytes()
    assert after.startswith("\ufeff# Zoë\r\n".encode())
    assert b"\n" not in after.replace(b"\r\n", b"")
    assert not after.endswith(b"\n")
    path.write_bytes(data)
    subprocess.run(["git", "apply", "--whitespace=nowarn"], input=ran.raw, cwd=tmp_path, check=True)
    assert path.read_bytes() == after


def test_apply_rewrites_standard_input_to_standard_output(run: Run, script: Path, tmp_path: Path) -> None:
    ran = run("apply", "-", stdin=SLOW.encode())
    run("apply", "--write", "train.py")
    assert ran.code == 0
    assert ran.raw == script.read_bytes()
    plain = b"x = '\xc3\xa9'\r\n"
    assert run("apply", "-", stdin=plain).raw == plain
    assert run("apply", "-", "train.py").code == 2
    assert run("apply", "--write", "-").code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_apply_reports_findings_in_other_formats_too(run: Run, script: Path) -> None:
    ran = run("apply", "--output-format", "json", "train.py")
    assert ran.code == 1
    assert {f["codemod"] for f in findings(ran)} >= {"pin-memory"}


# --- the command line itself ----------------------------------------------------------------------------------------


def test_what_follows_the_first_double_dash_is_the_script_s(
    run: Run, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def plan(path: Path, args: tuple[str, ...], *rest: object) -> None:
        asked.append((path, args))
        raise NothingToVerify("stop here")

    monkeypatch.setattr(verifying, "plan_verification", plan)
    monkeypatch.setattr(verifying, "plan_comparison", lambda *_: pytest.fail("there is no CANDIDATE"))
    assert run("verify", "train.py", "--", "--epochs", "1", "--", "--help").code == 2
    assert run("verify", "--seed", "3", "train.py").code == 2
    assert run("apply", "--verify", "train.py", "--", "-x").code == 2
    assert asked == [
        (Path("train.py"), ("--epochs", "1", "--", "--help")),
        (Path("train.py"), ()),
        (Path("train.py"), ("-x",)),
    ]


def test_nothing_may_follow_for_commands_that_run_no_script(run: Run, script: Path) -> None:
    for command in (("analyze", "train.py"), ("apply", "train.py"), ("explain",)):
        ran = run(*command, "--", "--epochs", "1")
        assert ran.code == 2, command
        assert "runs no script" in ran.err, command


def test_an_error_of_our_own_is_a_sentence(run: Run, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(project, "analyze", broken)
    ran = run("analyze", "train.py")
    assert ran.code == 2
    assert "ZeroDivisionError" in ran.err
    assert "report it" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_ctrl_c_is_no_traceback(run: Run, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(project, "analyze", stopped)
    assert run("analyze", "train.py").code == 130


def test_explain(run: Run) -> None:
    listing = run("explain")
    assert listing.code == 0
    assert "pin-memory" in listing.out
    groups = [line for line in listing.out.splitlines() if line in GROUPS]
    assert groups == [group for group in GROUPS if group in groups] and len(groups) > 5
    page = run("explain", "pin_memory")
    assert page.code == 0
    assert page.out.startswith("pin-memory")
    for heading in ("Why slow", "Example", "Use instead", "When refused", "Risk", "Measured"):
        assert heading in page.out
    assert run("explain", "Mixed-precision").out.startswith("autocast")
    several = run("explain", "capability")  # in pages only
    assert several.code == 0
    assert "these speak of it" in several.out
    unknown = run("explain", "pin-memry")
    assert unknown.code == 2
    assert "did you mean 'pin-memory'?" in unknown.err


@pytest.mark.parametrize(
    ("words", "codemod"),
    [
        ("gradient accumulation", "grad-accumulation"),
        ("mixed precision", "autocast"),
        ("GradScaler", "autocast"),
        ("FlashAttention", "sdpa"),
        ("gradient checkpointing", "activation-checkpointing"),
        ("torch.compile", "compile-model"),
        ("persistent workers", "loader-workers"),
        ("prefetch_factor", "loader-workers"),
        ("pinned memory", "pin-memory"),
        ("fused AdamW", "fused-optimizer"),
        ("cosine schedule", "warmup-schedule"),
        ("gradient clipping", "clip-gradients"),
        ("checkpoint on interrupt", "crash-checkpoint"),
        ("torch.cuda.empty_cache", "no-empty-cache"),
        (".item() in the loop", "defer-item"),
    ],
)
def test_codemods_are_found_by_what_people_call_them(run: Run, words: str, codemod: str) -> None:
    assert run("explain", words).out.startswith(f"{codemod}  (")


def test_every_command_has_help(run: Run) -> None:
    listed = run("--help")
    assert listed.code == 0
    for command in ("analyze", "apply", "verify", "profile", "explain"):
        assert command in listed.out
        assert run(command, "--help").code == 0
    assert "  tune " not in listed.out
    assert run("--version").out.startswith("turbofix ")


def test_color_only_on_a_terminal_whose_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def __init__(self, terminal: bool) -> None:
            self.isatty = lambda: terminal

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert telling.use_color(Stream(True))
    assert not telling.use_color(Stream(False))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not telling.use_color(Stream(True))


def test_results_survive_a_narrow_encoding(script: Path, tmp_path: Path) -> None:
    import os
    import sys

    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", "from turbofix.cli import main; main()", "analyze", "train.py"]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert b"pin-memory" in ran.stdout


# --- what a verification is asked -----------------------------------------------------------------------------------


def test_a_plan_has_one_stage_per_codemod_and_can_leave_some_out(script: Path) -> None:
    request = verifying.plan_verification(script, ["--epochs", "1"], project.Chosen(), Options(), Workspace())
    assert request.script == script
    assert request.args == ("--epochs", "1")
    names = [stage.codemod for stage in request.stages]
    assert {"preload-dataset", "autocast"} <= set(names)
    assert all(set(stage.files) == {script} for stage in request.stages)
    assert b"preloaded(" in request.stages[-1].files[script]
    assert request.rebuild is not None
    fewer = request.rebuild(frozenset({"preload-dataset"}))
    assert "preload-dataset" not in [stage.codemod for stage in fewer]
    assert b"preloaded(" not in fewer[-1].files[script]
    assert b"pin_memory" in fewer[-1].files[script]  # which there is no need of beside the other
    assert b"autocast" in fewer[-1].files[script]
    assert request.rebuild(frozenset({"preload-dataset"})) is fewer  # and analyses the program for each set once


def test_a_plan_can_leave_a_single_finding_out(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n\n\ndef train(model, batches):\n    optimizer = torch.optim.Adam(model.parameters())\n"
        "    for x, y in batches:\n        loss = (model(x.cuda()) - y.cuda()).square().mean()\n"
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n\n\n"
        "first, second = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 64).cuda()\n"
        "batches = [(torch.ones(8, 64), torch.ones(8, 64))]\ntrain(first, batches)\n"
        "optimizer = torch.optim.AdamW(second.parameters())\n"
        "for x, y in batches:\n    loss = (second(x.cuda()) - y.cuda()).square().mean()\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    )
    chosen = project.Chosen(select=("tf32", "fused-optimizer"))
    request = verifying.plan_verification(path, [], chosen, Options(), Workspace())
    (stage,) = [stage for stage in request.stages if stage.codemod == "fused-optimizer"]
    first, second = stage.pieces
    assert (path, 5) in first.lines and (path, 5) not in second.lines
    text = request.leaving({first.name}).stages[-1].files[path]
    assert b"Adam(model.parameters())\n" in text and b"AdamW(second.parameters(), fused=" in text
    # where an earlier rewrite has moved it, too
    text = request.leaving({second.name}).stages[-1].files[path]
    assert b"Adam(model.parameters(), fused=" in text and b"AdamW(second.parameters())\n" in text
    assert text.startswith(request.stages[0].files[path][:60])


def test_what_evaluations_alone_gain_by_is_not_dropped_for_what_timed_steps_show(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loader = [(torch.ones(4, 2), torch.ones(4, 1))]\n"
        "for x, y in loader:\n    loss = (model(x) - y).square().mean()\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
        "model.eval()\nfor x, y in loader:\n    print((model(x) - y).abs().max().item())\n"
    )
    chosen = project.Chosen(select=("no-grad-eval",))
    request = verifying.plan_verification(path, [], chosen, Options(), Workspace())
    assert [(stage.codemod, stage.for_speed) for stage in request.stages] == [("no-grad-eval", False)]


@pytest.mark.parametrize(("trained_on", "for_speed"), [("loader", True), ("[(steady, steady)]", False)])
def test_copies_of_evaluations_alone_are_not_dropped_for_what_timed_steps_show(
    tmp_path: Path, trained_on: str, for_speed: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n\n"
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
        "model = torch.nn.Linear(64, 64).to(device)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "steady = torch.randn(512, 64, device=device)\n"
        "loader = DataLoader(TensorDataset(torch.randn(9000, 64), torch.randn(9000, 64)), batch_size=512)\n"
        f"for epoch in range(9):\n    for x, y in {trained_on}:\n"
        "        loss = (model(x.to(device)) - y.to(device)).square().mean()\n"
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
        "    with torch.no_grad():\n        total = 0.0\n        for x, y in loader:\n"
        "            total += (model(x.to(device)) - y.to(device)).abs().max()\n    print(total)\n"
    )
    chosen = project.Chosen(select=("pin-memory", "non-blocking"))
    request = verifying.plan_verification(path, [], chosen, Options(), Workspace())
    found = {stage.codemod: stage.for_speed for stage in request.stages}
    assert found == {"pin-memory": for_speed, "non-blocking": for_speed}


def test_a_script_that_apply_would_not_change_has_nothing_to_verify(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("print(1)\n")
    with pytest.raises(NothingToVerify, match="nothing to verify"):
        verifying.plan_verification(path, [], project.Chosen(), Options(), Workspace())


def test_a_candidate_is_a_file_or_a_folder_laid_over_the_script_s(script: Path, tmp_path: Path) -> None:
    risk = project.DEFAULT_RISK
    file = tmp_path / "other.py"
    file.write_text("x = 1\n")
    request = verifying.plan_comparison(script, file, [], risk, Options())
    assert [stage.files for stage in request.stages] == [{script: b"x = 1\n"}]
    folder = tmp_path / "new"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("y = 1\n")
    (folder / "pkg" / "m.py").write_text("z = 1\n")
    request = verifying.plan_comparison(script, folder, [], risk, Options())
    assert request.stages[0].files == {script: b"y = 1\n", tmp_path / "pkg" / "m.py": b"z = 1\n"}
    for wrong, sentence in ((tmp_path / "none.py", "no such file"), (tmp_path / "empty", "no files")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(NothingToVerify, match=sentence):
            verifying.plan_comparison(script, wrong, [], risk, Options())


def test_verify_says_in_json_too_that_there_is_nothing_to_verify(run: Run, tmp_path: Path) -> None:
    (tmp_path / "still.py").write_text("import torch\nprint(torch.__version__)\n")
    ran = run("verify", "still.py", "--output-format", "json")
    assert ran.code == 2
    answer = json.loads(ran.out)
    assert answer["verdict"] == "inconclusive" and "nothing to verify" in answer["reason"]
    assert answer["speedup"] is None


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("x = 1\n")
    run = subprocess.run(
        [sys.executable, "-m", "turbofix", "analyze", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0 and "No training loop found" in run.stdout + run.stderr


def test_a_diff_of_files_elsewhere_applies_in_their_project(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, inner = tmp_path / "elsewhere", tmp_path / "project" / "src"
    elsewhere.mkdir()
    inner.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("")
    (inner / "train.py").write_text(SLOW)
    monkeypatch.chdir(elsewhere)
    ran = run("apply", "../project/src/train.py")
    assert ran.code == 1
    assert "--- a/src/train.py\n" in ran.out
    assert f"the diff is for {tmp_path / 'project'}" in ran.err


@pytest.mark.parametrize("arguments", [("apply", "--write", "-"), ("apply", "--verify", "a.py", "b.py")])
def test_a_wrong_use_is_told_in_a_sentence(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("error: ") and "mistake of its own" not in ran.err


def test_verified_apply_of_a_script_that_is_right_already_is_no_failure(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('no training')\n")
    ran = run("apply", "--write", "--verify", "a.py")
    assert ran.code == 0
    assert "apply would change nothing" in ran.err


def test_paths_alone_need_no_library_that_reads_options(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    code = "import sys, turbofix.__main__ as m\ntry: m.main()\nexcept SystemExit as e: "
    code += "print(e.code, 'typer' in sys.modules)"
    commands = [["analyze", "train.py"], ["analyze", "train.py", "--quiet"], ["analyze", "none.py"]]
    told = [
        subprocess.run([sys.executable, "-c", code, *each], cwd=tmp_path, capture_output=True, text=True, check=False)
        for each in commands
    ]
    assert [each.stdout.split()[-2:] for each in told] == [["0", "False"], ["0", "True"], ["2", "False"]]
    assert told[0].stdout.splitlines()[:-1] == told[1].stdout.splitlines()[:-1]
