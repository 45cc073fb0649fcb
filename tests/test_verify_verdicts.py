"""The whole of ``verify``: verdicts, blame, and scripts that cannot be judged."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from turbofix.assumptions import LEARNS_IN_16_BITS
from turbofix.findings import Risk
from turbofix.verify import Options, Progress, Request, Stage, Verification, verify

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

# what a tiny training needs: (set-up, loop); one epoch of four batches
TINY = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(32, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    return float((model(x) ** 2).mean())


for epoch in range(6):
    for a, b in loader:
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

CodemodEdits = dict[str, tuple[Risk, str, str]]


def pipeline(script: Path, edits: CodemodEdits) -> Callable[[frozenset[str]], tuple[Stage, ...]]:
    """A stand-in for the engine: each codemod replaces one text by another, on what the last one left."""

    def rebuild(excluded: frozenset[str]) -> tuple[Stage, ...]:
        text, stages = script.read_text(), []
        for name, (risk, old, new) in edits.items():
            if name not in excluded:
                assert old in text
                text = text.replace(old, new)
                stages.append(Stage(name, risk, {script: text.encode()}))
        return tuple(stages)

    return rebuild


def verify_edits(script: Path, edits: CodemodEdits) -> Verification:
    rebuild = pipeline(script, edits)
    request = Request(script, stages=rebuild(frozenset()), options=Options(timeout=120), rebuild=rebuild)
    return verify(request)


def verify_candidate(script: Path, candidate: str, **options: object) -> Verification:
    stage = Stage(None, Risk.EQUIVALENT, {script: candidate.encode()})
    return verify(Request(script, stages=(stage,), options=Options(**{"timeout": 120.0, **options})))  # type: ignore[arg-type]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "tiny.py"
    script.write_text(TINY)
    return script


def test_a_script_against_itself_passes_and_claims_no_speed(tiny: Path) -> None:
    seen: list[Progress] = []
    stage = Stage(None, Risk.EQUIVALENT, {tiny: tiny.read_bytes()})
    found = verify(Request(tiny, stages=(stage,), options=Options(device="cpu")), seen.append)
    assert (found.verdict, found.speedup, found.device) == ("pass", None, "cpu")
    assert found.steps == 20
    assert found.kept == {tiny: tiny.read_bytes()}
    assert found.scratch is None
    assert {progress.phase for progress in seen} >= {"importing torch", "the script as it is"}
    answer = found.to_json()
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert list(answer)[:10] == [
        "version", "verdict", "reason", "device", "steps", "speedup", "estimate", "baseline", "candidate", "codemods",
    ]  # fmt: skip
    assert answer["speedup"] is None
    assert len(answer["baseline"]["losses"]) == 20
    assert answer["baseline"]["losses"] == answer["candidate"]["losses"]
    assert answer["codemods"] == []


def test_a_shorter_script_is_compared_whole_and_says_so(tiny: Path) -> None:
    tiny.write_text(TINY.replace("range(6)", "range(2)"))
    whole = "the script takes 8 optimizer steps in all, and every one was compared"
    found = verify_candidate(tiny, tiny.read_text())
    assert (found.verdict, found.steps) == ("pass", 8)
    assert whole in found.notes
    assert whole not in verify_candidate(tiny, tiny.read_text(), steps=8).notes


def test_an_error_names_the_users_own_paths(tiny: Path) -> None:
    reading = "import os\nopen(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'absent.txt'))\n"
    tiny.write_text(reading + TINY)
    found = verify_candidate(tiny, TINY)
    assert found.verdict == "inconclusive"
    assert f"'{tiny.parent}/absent.txt'" in found.reason
    tiny.write_text(TINY)
    failed = verify_candidate(tiny, reading + TINY)
    assert failed.verdict == "fail"
    assert f"'{tiny.parent}/absent.txt'" in failed.reason


def test_what_fails_is_blamed_and_what_does_not_run_is_unverified(tiny: Path) -> None:
    edits: CodemodEdits = {
        "set-to-none": (Risk.EXACT, "zero_grad()", "zero_grad(set_to_none=True)"),
        "wrong-rate": (Risk.EQUIVALENT, "lr=0.1", "lr=0.11"),
        "never-run": (Risk.EXACT, "return float((model(x) ** 2).mean())", "return (model(x) ** 2).mean().item()"),
        "fused-optimizer": (Risk.EQUIVALENT, "model.parameters(), ", "model.parameters(), fused=True, "),
        "asleep": (Risk.EQUIVALENT, "    for a, b", "    torch.autocast('cpu', enabled=False)\n    for a, b"),
        "recipe": (Risk.RECIPE, "range(6)", "range(7)"),
    }
    found = verify_edits(tiny, edits)
    assert found.verdict == "pass"
    verdicts = {judgement.codemod: judgement for judgement in found.codemods}
    assert {name: judgement.verdict for name, judgement in verdicts.items()} == {
        "set-to-none": "kept",
        "wrong-rate": "dropped",
        "never-run": "unverified",
        "fused-optimizer": "kept",
        "asleep": "unverified",
        "recipe": "kept",
    }
    assert list(verdicts) == list(edits)
    assert verdicts["recipe"].reason.startswith("a change of the recipe: over 3 seeds a loss of ")
    assert "the learning rate is 0.11 instead of 0.1" in verdicts["wrong-rate"].reason
    assert verdicts["never-run"].reason == "what it changed at tiny.py, line 12, did not run"
    assert "autocast was never enabled" in verdicts["asleep"].reason
    survivors = pipeline(tiny, edits)(frozenset({"wrong-rate", "never-run", "asleep"}))
    assert found.kept == survivors[-1].files
    assert tiny.read_text() == TINY


REINFORCE = """\
import torch

torch.manual_seed(0)
policy = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for episode in range(30):
    states = torch.randn(8, 4)
    logs = torch.log_softmax(policy(states), 1)[:, 0]
    returns = (states.sum(1) - states.mean()) / states.std()
    loss = -(logs * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PRODUCT = "    logs = torch.log_softmax(policy(states), 1)[:, 0]\n"
RETURNS = "    returns = (states.sum(1) - states.mean()) / states.std()\n    loss = -(logs * returns).sum()\n"


def in_autocast(lines: str) -> str:
    return "    with torch.autocast('cpu', dtype=torch.bfloat16):\n    " + lines.replace("\n    ", "\n        ")


def test_autocast_around_no_product_is_unverified_and_around_one_is_kept(tiny: Path) -> None:
    tiny.write_text(REINFORCE)
    edits: CodemodEdits = {
        "set-to-none": (Risk.EXACT, "zero_grad()", "zero_grad(set_to_none=True)"),
        "autocast": (Risk.EQUIVALENT, RETURNS, in_autocast(RETURNS)),
        "autocast-too": (Risk.EQUIVALENT, PRODUCT, in_autocast(PRODUCT)),
        # which stands in the idle region, and gives it no other indentation
        "renames": (Risk.EXACT, "loss = -(logs", "loss = 1 * -(logs"),
    }
    found = verify_edits(tiny, edits)
    verdicts = {judgement.codemod: judgement for judgement in found.codemods}
    assert {name: judgement.verdict for name, judgement in verdicts.items()} == {
        "set-to-none": "kept",
        "autocast": "unverified",
        "autocast-too": "kept",
        "renames": "kept",
    }
    assert verdicts["autocast"].reason == (
        "nothing that autocast computes in 16 bits ran in what it encloses at tiny.py, line 9"
    )
    idle = verify_candidate(tiny, REINFORCE.replace(RETURNS, in_autocast(RETURNS)))
    assert (idle.verdict, idle.reason) == ("inconclusive", verdicts["autocast"].reason)


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_autocast_around_a_recurrent_network_is_awake(tiny: Path, layer: str) -> None:
    # (the GPU's autocast, for which there is a stand-in: not every processor has an LSTM in bfloat16)
    recurrent = REINFORCE.replace("torch.nn.Linear(4, 2)", f"torch.nn.{layer}(4, 2)").replace("logs * returns", "logs")
    tiny.write_text(recurrent.replace("policy(states)", "policy(states)[0]"))
    product = PRODUCT.replace("policy(states)", "policy(states)[0]")
    found = verify_candidate(tiny, tiny.read_text().replace(product, in_autocast(product).replace("'cpu'", "'cuda'")))
    assert found.verdict == "pass", found.reason


LOWERING = TINY.replace(
    "def evaluate",
    """\
class Display:
    def __init__(self, every):
        self.calls, self.every = 0, every

    def __call__(self, loss):
        self.calls += 1
        if self.calls % 2000 == 0:
            print(loss)
        if self.calls == 30:
            optimizer.param_groups[0]["lr"] = 0.01
        if self.calls > 5000:
            optimizer.param_groups[0]["lr"] = 0.001


display = Display(10)


def evaluate""",
).replace("range(6)", "range(20)")


def test_what_is_counted_in_an_edited_call_is_compared_past_its_count_or_told(tiny: Path) -> None:
    shown = f"{LOWERING}        display(loss)\n"
    tiny.write_text(shown)
    found = verify_candidate(tiny, LOWERING + "        if epoch % 2 == 0:\n            display(loss)\n")
    assert found.verdict == "fail"
    assert found.reason == "at step 31 the learning rate is 0.1 instead of 0.01"
    found = verify_candidate(tiny, f"{LOWERING}        display(loss.detach())\n")
    assert (found.verdict, found.steps) == ("pass", 32)
    assert "not seen, for 32 steps were compared: what tiny.py, line 21, does when it has counted 5000" in found.notes
    # an edit that has nothing to do with it costs no more steps than others
    assert verify_candidate(tiny, shown.replace("zero_grad()", "zero_grad(set_to_none=True)")).steps == 20


def test_a_buffer_with_a_length_is_compared_past_it(tiny: Path) -> None:
    buffered = TINY.replace("for epoch", "import collections\nlosses = collections.deque(maxlen=25)\nfor epoch", 1)
    buffered = buffered.replace("range(6)", "range(9)")
    tiny.write_text(f"{buffered}        losses.append(loss.item())\n        print(sum(losses))\n")
    kept = buffered.replace("maxlen=25", "maxlen=250")
    found = verify_candidate(tiny, f"{kept}        losses.append(loss.detach())\n        print(float(sum(losses)))\n")
    assert found.verdict == "fail"
    assert "it prints" in found.reason


def test_an_exact_codemod_in_a_mixed_set_is_held_to_every_bit(tiny: Path) -> None:
    edits: CodemodEdits = {
        "rounds": (Risk.EXACT, "mse_loss(model(a), b)", "mse_loss(model(a) * (1 + 1e-6), b)"),
        "fused-optimizer": (Risk.EQUIVALENT, "model.parameters(), ", "model.parameters(), fused=True, "),
    }
    found = verify_edits(tiny, edits)
    assert [(judgement.codemod, judgement.verdict) for judgement in found.codemods] == [
        ("rounds", "dropped"),
        ("fused-optimizer", "kept"),
    ]
    assert "bit for bit" in found.codemods[0].reason


EXACT_AND_NOT: CodemodEdits = {
    "set-to-none": (Risk.EXACT, "zero_grad()", "zero_grad(set_to_none=True)"),
    "fused-optimizer": (Risk.EQUIVALENT, "model.parameters(), ", "model.parameters(), fused=True, "),
}


def phases(script: Path, edits: CodemodEdits) -> tuple[Verification, list[str]]:
    """The verification, and the runs that it took."""
    rebuild = pipeline(script, edits)
    seen: list[Progress] = []
    request = Request(script, stages=rebuild(frozenset()), options=Options(timeout=120), rebuild=rebuild)
    found = verify(request, seen.append)
    return found, [progress.phase for progress in seen if not progress.done]


def test_an_exact_change_shows_that_the_script_repeats_itself(tiny: Path) -> None:
    found, runs = phases(tiny, EXACT_AND_NOT)
    assert found.verdict == "pass"
    assert runs == ["importing torch", "the script as it is", "the rewritten script", "with set-to-none"]
    _, runs = phases(tiny, {"fused-optimizer": EXACT_AND_NOT["fused-optimizer"]})
    assert runs[1:] == ["the script as it is", "with fused-optimizer", "the script against itself"]


def test_what_nothing_ran_of_is_left_out_without_another_run(tiny: Path) -> None:
    silent: CodemodEdits = {"never-run": (Risk.EQUIVALENT, "return float(", "return 1 * float(")}
    found, runs = phases(tiny, {**silent, "fused-optimizer": EXACT_AND_NOT["fused-optimizer"]})
    assert [(each.codemod, each.verdict) for each in found.codemods] == [
        ("never-run", "unverified"),
        ("fused-optimizer", "kept"),
    ]
    assert runs[1:] == ["the script as it is", "with fused-optimizer", "the script against itself"]
    assert b"1 * float" not in found.kept[tiny]


def test_what_is_said_to_round_is_suspected_first(tiny: Path) -> None:
    edits: CodemodEdits = {
        **EXACT_AND_NOT,
        "wrong-rate": (Risk.EQUIVALENT, "lr=0.1", "lr=0.2"),
        "never-run": (Risk.EQUIVALENT, "return float(", "return 1 * float("),
    }
    every = pipeline(tiny, edits)

    def rebuild(without: frozenset[str]) -> tuple[Stage, ...]:
        # the first one is claimed to round, too, but without it the others are not there
        without = frozenset(edits) if "set-to-none" in without else without
        claims = {"set-to-none": (LEARNS_IN_16_BITS,), "wrong-rate": (LEARNS_IN_16_BITS,)}
        return tuple(replace(stage, claims=claims.get(stage.codemod or "", ())) for stage in every(without))

    seen: list[Progress] = []
    found = verify(Request(tiny, (), rebuild(frozenset()), Options(timeout=120), rebuild), seen.append)
    verdicts = {each.codemod: each.verdict for each in found.codemods}
    kept = dict.fromkeys(EXACT_AND_NOT, "kept")
    assert verdicts == {**kept, "wrong-rate": "dropped", "never-run": "unverified"}
    runs = [progress.phase for progress in seen if not progress.done]
    assert runs.count("the rewritten script") == 2  # all of them, and all but the culprit


def test_a_script_that_goes_by_chance_has_no_verdict_though_its_rewrite_is_exact(tiny: Path) -> None:
    tiny.write_text("import os\n" + BY_CHANCE)
    found, _ = phases(tiny, EXACT_AND_NOT)
    assert found.verdict == "inconclusive"
    assert "two runs of the script as it is are not the same: at step 1" in found.reason


def test_nothing_left_is_a_failure_or_without_a_verdict(tiny: Path) -> None:
    broken: CodemodEdits = {"wrong-rate": (Risk.EQUIVALENT, "lr=0.1", "lr=0.2")}
    found = verify_edits(tiny, broken)
    assert (found.verdict, dict(found.kept)) == ("fail", {})
    assert "wrong-rate" in found.reason
    silent: CodemodEdits = {"never-run": (Risk.EXACT, "return float(", "return 1 * float(")}
    found = verify_edits(tiny, silent)
    assert found.verdict == "inconclusive"
    assert "did not run" in found.reason


def test_a_candidate_that_hangs_is_neither_right_nor_wrong(tiny: Path) -> None:
    found = verify_candidate(tiny, "import time\ntime.sleep(60)\n" + TINY, timeout=2.0)
    assert found.verdict == "inconclusive"
    assert found.reason.startswith(
        "the rewritten script ran past its time limit of 2 seconds (--timeout) (the original took"
    )


def test_a_broken_candidate_fails(tiny: Path) -> None:
    found = verify_candidate(tiny, TINY.replace("        optimizer.zero_grad()\n", ""))
    assert found.verdict == "fail"
    assert "at step 2" in found.reason and "times the original's" in found.reason
    assert dict(found.kept) == {}


BY_CHANCE = TINY.replace("manual_seed(0)", 'manual_seed(int.from_bytes(os.urandom(4), "big"))')
TWO_STEPS = TINY.replace("range(6)", "range(1)").replace("randn(32", "randn(16")
BY_HAND = TINY.replace("optimizer.step()", "model.weight.data -= 0.1 * model.weight.grad")
CHILD = (
    "import multiprocessing as mp\ndef train(): pass\n"
    "if __name__ == '__main__':\n    p = mp.Process(target=train)\n    p.start()\n    p.join()\n"
)
PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.parse_args()"

UNJUDGED: dict[str, tuple[str, dict[str, object], str]] = {
    "crashes at import": ("import no_such_module_here", {}, "before its first optimizer step"),
    "crashes before a step": ("1 / 0\n" + TINY, {}, 'stopped with "ZeroDivisionError: division by zero" at ours.py'),
    "crashes in a step": (TINY + "    assert epoch < 1, 'not today'\n", {}, "AssertionError: not today"),
    "never steps": ("print('hello')", {}, "without a single optimizer step, and without a backward pass"),
    "steps by hand": (BY_HAND, {}, "after 24 backward passes: a verification compares the steps of torch's optimizers"),
    "trains in a child": (CHILD, {}, "it trains in processes that it starts (train)"),
    "asks for input": ("name = input('name? ')\n" + TINY, {}, "asks for input at ours.py, line 1"),
    "wants arguments": (PARSER, {}, "the following arguments are required: data"),
    "runs past its time": ("import time\ntime.sleep(60)", {"timeout": 0.5}, "time limit of 0.5 seconds"),
    "goes by chance": (
        "import os\n" + BY_CHANCE,
        {},
        "two runs of the script as it is are not the same: at step 1",
    ),
    "is killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", {}, "was killed by SIGKILL"),
    "takes two steps": (TWO_STEPS, {}, "2 optimizer steps, too few"),
    "syntax error": ("def f(:\n", {}, "cannot be compiled"),
}


@pytest.mark.parametrize("name", UNJUDGED)
def test_a_script_that_cannot_be_judged_gives_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text, options, words = UNJUDGED[name]
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "ours.py"
    script.write_text(text)
    found = verify_candidate(script, text, **options)
    assert found.verdict == "inconclusive"
    assert words in found.reason
    assert "Traceback" not in found.reason and "\n" not in found.reason
    assert script.read_text() == text


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("absent.py", {}, "there is no file"),
        ("tiny.py", {"isolation": "glass"}, "there is no isolation level 'glass'"),
        ("tiny.py", {"python": "/no/such/python"}, "could not be started"),
        ("tiny.py", {"python": "/bin/false"}, "could not import torch"),
        ("tiny.py", {"device": "cuda"}, "torch sees no CUDA device"),
    ],
)
def test_what_cannot_be_run_gives_one_sentence(tiny: Path, path: str, options: dict[str, object], words: str) -> None:
    if "device" in options and _has_cuda():
        pytest.skip("this machine has the device")
    found = verify_candidate(tiny.parent / path, TINY, **options)
    assert found.verdict == "inconclusive"
    assert words in found.reason


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def test_a_script_runs_as_if_run_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments, working folder, module search path, standard input and the main module are what they should be."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "setup.cfg").write_text("")
    (project / "lib").mkdir()
    (project / "lib" / "elsewhere.py").write_text("VALUE = 10\n")
    monkeypatch.setenv("PYTHONPATH", "lib")
    (project / "data.txt").write_text("7")
    (tmp_path / "beside.txt").write_text("8")
    (project / "src" / "helper.py").write_text("VALUE = 9\n")
    script = project / "src" / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, pickle, sys
            import helper
            assert sys.argv == ["src/train.py", "--data", os.path.abspath("data.txt"), "x=1"], (sys.argv, os.getcwd())
            assert open("data.txt").read() == "7" and open("../beside.txt").read() == "8"
            import elsewhere
            assert elsewhere.VALUE == 10 and elsewhere.__file__.startswith(os.getcwd()), elsewhere.__file__
            assert helper.VALUE == 9 and __name__ == "__main__" and os.path.isabs(__file__)
            assert sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.path
            assert sys.stdin.read() == "" and not any("turbofix" in m and not m.startswith("_") for m in sys.modules)
            class Kept: pass
            assert isinstance(pickle.loads(pickle.dumps(Kept())), Kept)
            """
        )
        + TINY
    )
    monkeypatch.chdir(project)
    stage = Stage(None, Risk.EQUIVALENT, {script: script.read_bytes()})
    arguments = ("--data", str(project / "data.txt"), "x=1")
    found = verify(Request(script, arguments, (stage,), Options(timeout=120, python=sys.executable)))
    assert found.reason == "it learns the same over 20 steps and 4 epoch ends"


DRAWN_ALONE = """\
class Moved(TensorDataset):
    def __getitem__(self, i):
        row, label = super().__getitem__(i)
        row = row.roll(int(torch.randint(0, 4, (1,))))
        return row if torch.rand(1) < 0.5 else -row, label

loader = DataLoader(Moved(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
"""
DRAWN_FOR_A_BATCH = """\
def take(chosen):
    steps = torch.randint(4, (len(chosen),))
    rows = torch.stack([row.roll(int(step)) for row, step in zip(x[chosen], steps)])
    rows = torch.where(torch.rand(len(chosen), 1) < 0.5, rows, -rows)
    return rows, x[chosen].sum(1, keepdim=True)

loader = DataLoader(range(32), collate_fn=take, batch_size=8, shuffle=True)
"""


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("", "", "pass"),
        ("torch.randint(4, (len(chosen),))", "torch.randint(4, (1,)).expand(len(chosen))", "fail"),
        ("torch.rand(len(chosen), 1)", "torch.rand(1, 1)", "fail"),
    ],
    ids=["for each", "one step for all", "one sign for all"],
)
def test_a_draw_for_each_sample_of_a_batch_is_what_it_drew_alone(tiny: Path, old: str, new: str, verdict: str) -> None:
    before = next(line for line in TINY.splitlines() if line.startswith("loader"))
    tiny.write_text(TINY.replace(before, DRAWN_ALONE))
    candidate = TINY.replace(before, DRAWN_FOR_A_BATCH.replace(old, new))
    assert verify_candidate(tiny, candidate).verdict == verdict
