"""What ``turbofix profile`` says of trainings with one slow thing planted in them, and of what it cannot profile."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

from turbofix.estimate.cards import cards
from turbofix.estimate.recording import Recording
from turbofix.estimate.step import PARTS, estimate
from turbofix.report import log
from turbofix.verify.profile import Profile

PLANTED = Path(__file__).with_name("planted.py")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


def profiled(run: Run, script: Path, *arguments: str) -> dict[str, Any]:
    options = ("--quiet", "--output-format", "json", "--device", "cpu", "--select", "sdpa")
    ran = run("profile", script, *options, "--", *arguments)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


@pytest.mark.parametrize(
    ("planted", "cause", "bound"),
    [
        ("loading", "data", "data"),
        ("reads", "reads", "host"),
        ("tiny", "host", "host"),
        ("optimizer", "optimizer", "memory"),
        ("copies", "copies", "data"),
        ("attention", "attention", "memory"),
    ],
)
def test_the_planted_cause_comes_first(run: Run, tmp_path: Path, planted: str, cause: str, bound: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLANTED.read_text())
    found = profiled(run, script, planted)
    assert found["causes"][0]["name"] == cause
    assert found["bound"] == bound
    *parts, total = found["step_ms"].values()
    assert sum(parts) == pytest.approx(total)
    if planted == "loading":
        # sixteen items of 20 ms are a batch
        assert found["step_ms"]["data"] == pytest.approx(320, rel=0.5)
        assert found["estimate"]["step_ms"]["median"] == pytest.approx(total)
        assert found["causes"][0]["codemods"][0] == "loader-workers"
    if planted == "reads":
        lines = script.read_text().splitlines()
        (place,) = found["syncs"]
        assert ".item()" in lines[place["line"] - 1]
        assert place["per_step"] == 90  # ten for each of nine parameters
    if planted == "attention":
        advice = {each["codemod"]: each["estimate"] for each in found["advice"]}
        assert advice["sdpa"]["speedup"]["low"] > 1.5


TUNED = """
import torch
net = torch.compile(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
for step in range(3):
    x = torch.ones(1024, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_a_cause_names_no_codemod_for_what_is_done_already(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TUNED)
    found = {each["name"]: each for each in profiled(run, script)["causes"]}
    assert {"host", "optimizer", "pointwise", "reads"} <= set(found)
    named = {name for each in found.values() for name in each["codemods"]}
    assert not named & {"compile-model", "autocast", "fused-optimizer", "adam-8bit"}
    assert found["reads"]["sentence"] == "the host waits for the GPU once a step: train.py:11"


def test_a_script_that_stops_is_told_in_a_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nraise ValueError('no data')\n")
    ran = run("profile", "train.py")
    assert ran.code == 2
    assert 'error: train.py cannot be profiled: the script stopped with "ValueError: no data"' in ran.err
    assert not ran.out


def test_a_script_that_stays_on_the_cpu_is_not_estimated(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    model(torch.ones(2, 4)).mean().backward()\n    optimizer.step()\n"
    )
    found = profiled(run, script)
    assert found["estimate"]["step_ms"] is None
    assert found["estimate"]["refused"] == "the script computes on the CPU, and a GPU would have nothing to do"


def test_a_reason_is_said_once(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLANTED.read_text())
    ran = run("profile", script, "--quiet", "--device", "cpu", "--select", "fused-optimizer,sdpa", "--", "tiny")
    assert ran.out.count("many small kernels") == 1
    fused, attention = ran.out.strip().splitlines()[-2:]
    for line, name in ((fused, "fused-optimizer"), (attention, "sdpa")):
        before, after = re.fullmatch(rf"    {name} +(\S+) kernels are started, not (\S+); no figure", line).groups()[
            ::-1
        ]
        assert int(after.replace(",", "")) < int(before.replace(",", ""))


def test_what_lies_on_the_host_is_read_without_a_wait(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "model = torch.nn.Linear(4, 1).to(device)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    loss = model(torch.ones(2, 4, device=device)).mean()\n    loss.backward()\n"
        "    kept = loss.detach().cpu()\n    print(kept.item(), kept.item())\n    optimizer.step()\n"
    )
    (read,) = profiled(run, script)["syncs"]
    assert read.pop("ms") == pytest.approx(0.042)  # to ask, and to have started enough again
    assert read == {"path": "train.py", "line": 8, "per_step": 1}


def test_a_card_without_a_data_sheet_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    ran = run("profile", "train.py", "--gpu", "k80")
    assert ran.code == 2
    assert "there is no estimate for 'k80'; there is one for v100" in ran.err


def test_what_is_read_is_plain(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLANTED.read_text())
    lines = tmp_path / "figures.jsonl"
    lines.write_text('{"earlier": 1}\n')
    files = ("--trace", tmp_path / "trace.json", "--log", lines)
    ran = run("profile", script, "--device", "cpu", "--gpu", "h100", "--select", "sdpa", *files, "--", "copies")
    assert ran.code == 0, ran.err
    _, *events = json.loads((tmp_path / "trace.json").read_text())
    assert {each["cat"] for each in events} >= {"transfer", "forward", "backward", "optimizer"}
    ends, starts = [each["ts"] + each["dur"] for each in events], [each["ts"] for each in events]
    assert ends[:-1] == pytest.approx(starts[1:], abs=0.01)
    earlier, line = map(json.loads, lines.read_text().splitlines())
    parts = [line[f"perf/{name}_time"] for name in PARTS]
    assert earlier == {"earlier": 1} and line["perf/step_time"] == pytest.approx(sum(parts))
    assert "DATA-BOUND" in ran.out and "estimated on h100" in ran.out
    assert "1.  " in ran.out and "copies to the GPU (192 MB)" in ran.out
    assert "[pin-memory, non-blocking]" in ran.out.replace("\n    ", " ")
    assert "profile: the script as it is" in ran.err


def test_verify_estimates_what_it_keeps(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLANTED.read_text().replace("20_000_000", "8_000_000"))
    options = ("--quiet", "--output-format", "json", "--device", "cpu", "--steps", "3", "--select", "fused-optimizer")
    ran = run("verify", script, "--gpu", "a100", *options, "--", "optimizer")
    found = json.loads(ran.out)
    assert (ran.code, found["verdict"]) == (0, "pass"), ran.out + ran.err
    # of 19 passes over 8 million numbers 7 are left, in a step that does little else
    assert found["estimate"]["gpu"] == "a100"
    assert 1.3 < found["estimate"]["speedup"]["median"] < 19 / 7
    assert found["codemods"][0]["estimate"]["speedup"] == found["estimate"]["speedup"]
    assert found["speedup"] is None
    # of a card without a data sheet there is none, and it is no error: rewrites are for it all the same
    plain = json.loads(run("verify", script, "--gpu", "p100", *options, "--", "tiny").out)
    assert plain["verdict"] == "pass" and plain["estimate"] is None
    assert plain["codemods"][0]["estimate"] is None


@pytest.fixture
def small() -> Profile:
    """The profile of a step that waits 3 ms for data and nothing else."""
    recording = Recording((), loading=0.003, samples=8)
    return Profile("cpu", recording, estimate(recording, cards()["h100"]), ())


def test_figures_go_to_tensorboard(small: Profile, tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    log.write(small, f"tensorboard:{tmp_path}")
    (file,) = tmp_path.glob("events.out.tfevents.*")
    data, found = file.read_bytes(), {}
    while data:  # length, check, event, check
        (length,) = struct.unpack("<Q", data[:8])
        for value in events.Event.FromString(data[12 : 12 + length]).summary.value:
            found[value.tag] = value.simple_value
        data = data[16 + length :]
    assert found["perf/data_time"] == found["perf/step_time"] == pytest.approx(0.003)


def test_figures_go_to_weights_and_biases_without_a_network(small: Profile, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    log.write(small, f"wandb:{tmp_path / 'new'}")
    (file,) = tmp_path.glob("new/wandb/offline-run-*/*.wandb")
    assert b"perf/step_time" in file.read_bytes()


def test_what_writes_a_log_is_asked_for_before_the_runs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "train.py").write_text(PLANTED.read_text())
    ran = run("profile", "train.py", "--log", "wandb:here", "--", "tiny")
    assert ran.code == 2
    assert "error: --log needs wandb: pip install 'turbofix[report]'" in ran.err


def test_a_log_that_cannot_be_written_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLANTED.read_text())
    options = ("--quiet", "--device", "cpu", "--select", "tf32", "--log", "none/here.jsonl")
    ran = run("profile", "train.py", *options, "--", "tiny")
    assert ran.code == 2
    assert "error: none/here.jsonl cannot be written: No such file or directory" in ran.err
