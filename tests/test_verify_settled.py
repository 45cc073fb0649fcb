"""Assumptions that a run settles: where one is false the rewrite goes, by name; where it holds it stays."""

# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turbofix import assumptions, registry
from turbofix.assumptions import Assumption
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.report.verification import render
from turbofix.source.files import Workspace
from turbofix.training.model import Target
from turbofix.verify import Options, Request, Stage, Verification, verify
from turbofix.verify.request import ASSUMPTION, FINDING, Piece
from turbofix.verify.settle import FACTS, observed

pytestmark = pytest.mark.usefixtures("warm_interpreters")

FLAT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
WIDTH = 64


class Numbers(Dataset):
    def __init__(self):
        self.values = torch.randn(80, WIDTH)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index], self.values[index, :1]


model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 1))
# the model is made
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = Numbers()
for epoch in range(EPOCHS):
    for x, y in DataLoader(data, batch_size=16):
        # a batch has come
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

PICTURES = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(EPOCHS):
    loss = model(torch.randn(4, 3, 8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

TEXTS_BESIDE = PICTURES.replace("optimizer =", "words = nn.Linear(5, 1)\noptimizer =").replace(
    "loss = ", "loss = words(torch.randn(1 + step % 7, 5)).sum() + "
)
AS_THEY_ARE = PICTURES.replace("nn.Flatten()", "nn.AdaptiveAvgPool2d(6), nn.Flatten()").replace(
    "3, 8, 8)).", "3, 8 + step % 7, 8))."
)

ON_GPU = """device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = model.to(device)
optimizer"""

WIDE = FLAT.replace("80, WIDTH", "320, WIDTH").replace("batch_size=16", "batch_size=64")
MOVED = FLAT.replace("optimizer", ON_GPU, 1).replace("# a batch", "x, y = x.to(device), y.to(device)  #")


def rewritten(text: str, replacements: tuple[tuple[str, str], ...]) -> str:
    for old, new in replacements:
        text = text.replace(old, new)
    return text


SCRIPTS: dict[str, tuple[str, str, str]] = {
    # what is like it: (a script, the assumptions that are false of it, those of which it shows nothing; the rest holds)
    "as few as can": (
        rewritten(
            FLAT,
            (
                ("64", "8"),
                ("EPOCHS", "2"),
                ("import torch\n", "import torch\ntorch.__version__ = '1.13.1'\n"),
                ("from torch import nn\ntorch.__version__ = '1.13.1'\n", "from torch import nn\n"),
                ("# the model is made", "model.register_parameter('spare', nn.Parameter(torch.zeros(1)))"),
                ("data = Numbers()", "data = Numbers()\ndata.change = lambda x: x"),
                ("for epoch", "optimizer.load_state_dict(optimizer.state_dict())\nfor epoch"),
                ("# a batch has come", "size = 1 + int(x.abs().sum()) % 16; x, y = x[:size], y[:size]"),
            ),
        ),
        "on-gpu wide-enough one-size few-sizes pictures pickled every-gradient long-enough no-old-checkpoint recent-torch",
        "convolved-alike",
    ),
    # of 40 steps in an epoch, so that few passes tell that it goes on for long, however slow the machine
    "long, of two sizes, on a GPU, with an old torch": (
        rewritten(
            MOVED,
            (
                ("80, WIDTH", "320, WIDTH"),
                ("batch_size=16", "batch_size=8"),
                ("EPOCHS", "1000"),
                ("import torch\nfrom", "import torch\ntorch.__version__ = '2.7.1'\nfrom"),
                ("  # has come", "; x, y = x[epoch % 2 :], y[epoch % 2 :]"),
            ),
        ),
        "wide-enough one-size pictures",
        "convolved-alike",
    ),
    "large, and its batches are moved by what puts them together": (
        rewritten(
            WIDE,
            (
                ("EPOCHS", "12"),
                ("class Numbers", "def moved(rows):\n    return [torch.stack(each).cuda() for each in zip(*rows)]\n\n\nclass Numbers"),
                ("batch_size=64", "batch_size=64, collate_fn=moved"),
                ("# the model is made", "model.cuda()"),
            ),
        ),
        "batches-on-host pictures long-enough older-torch",
        "convolved-alike",
    ),
    "pictures as they are": (AS_THEY_ARE, "on-gpu wide-enough one-size few-sizes convolved-alike long-enough older-torch", "batches-on-host"),
    "pictures, and texts beside them": (TEXTS_BESIDE, "on-gpu wide-enough one-size few-sizes long-enough older-torch", "batches-on-host"),
}  # fmt: skip


COUNTED = FLAT.replace(
    "return self.values[index],",
    "self.calls = vars(self).get('calls', 0) + 1\n        return self.values[index] + self.calls,",
)
DIFFERENCES = (  # small ones of large numbers, which a batch norm makes large
    ("torch.randn(80, WIDTH)", "1000 + 0.01 * torch.randn(80, WIDTH)"),
    ("nn.ReLU(),", "nn.BatchNorm1d(64), nn.ReLU(),"),
)
FORMULA = FLAT.replace("loss =", "x = x * torch.sigmoid(x)\n        loss =")
READ = FLAT.replace("loss.backward()", "loss.backward()\n        seen = loss.item()\n        print(seen)")
TWICE = FLAT.replace("model(x)", "model[3](model[:3](x))")
WATCHED = FLAT.replace("optimizer.zero_grad()", "watched = model(x).mean()\n        optimizer.zero_grad()")
JOINING = (
    FLAT.replace("batch_size=16", "batch_size=8")
    .replace("model(x), y)", "model(x), y) / 2")
    .replace("        optimizer.zero_grad()\n", "        steps = vars(data).get('steps', 0) + 1; data.steps = steps\n")
    .replace(
        "        optimizer.step()",
        "        if steps % 2 == 0:\n            optimizer.step()\n            optimizer.zero_grad()",
    )
)
PADDED = FLAT.replace("model(x)", "model(x.sum(1))").replace(
    "return self.values[index],", "return nn.functional.pad(self.values[index : index + 1], (0, 0, 0, 7)),"
)
ATTENDING = FLAT.replace("nn.Linear(WIDTH, 64), nn.ReLU()", "Attending(), nn.ReLU()").replace(
    "class Numbers",
    """class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, x):
        x, weights = self.attend(x, x, x)
        return x


class Numbers""",
)
CPU = FLAT.replace("loss =", "shift = torch.ones(1, 1) * 0.5\n        loss =").replace(
    "model(x), y", "model(x) - y, shift.expand_as(y)"
)
CUDA = (("# the model is made", "model.cuda()"), ("# a batch has come", "x, y = x.cuda(), y.cuda()"))
EXEC = FLAT.replace("# the model is made", "rate = 0.01\nexec(TEXT)").replace("lr=0.01", "lr=rate")
CONVOLVING = (
    PICTURES.replace("nn.Flatten()", "Rows()")
    .replace(
        "torch.manual_seed",
        """class Rows(nn.Module):
    def forward(self, x):
        return x.flatten(1)


torch.manual_seed""",
    )
    .replace("torch.randn(4, 3, 8, 8)", "torch.randn(4, 3, 8, 8)")
)

REMEMBERING = """
import random
from collections import deque

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
remembered = deque(maxlen=50)
for step in range(EPOCHS * 8):
    remembered.append((np.float32([step % each for each in range(1, 5)]), step % 3 / 2))
    if step >= 8:
        states, rewards = zip(*random.sample(remembered, 8))
        rewards = torch.FloatTensor(rewards)
        loss = nn.functional.mse_loss(model(torch.from_numpy(np.array(states)))[:, 0], rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

COMPARED: dict[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    # assumption: (a script where it holds, one where it does not, what the rewrite puts for what)
    "same-items": (FLAT, COUNTED, (("batch_size=16", "batch_size=16, num_workers=2"),)),
    "alike-items": (REMEMBERING, REMEMBERING.replace("Tensor(rewards)", "Tensor((rewards + rewards)[:8])"), (("zip(*random.sample(remembered, 8))", "map(np.array, zip(*random.sample(remembered, 8)))"),)),
    "learns-in-16-bits": (FLAT, rewritten(FLAT, DIFFERENCES), (("loss =", "with torch.autocast('cpu', dtype=torch.bfloat16): model(x)\n        loss ="), ("(model(x),", "(half(x),"), ("# the model is made", "half = torch.autocast('cpu', dtype=torch.bfloat16)(model.forward)"))),
    "learns-in-tf32": (MOVED, rewritten(MOVED, DIFFERENCES), (("WIDTH = 64", "WIDTH = 64; torch.set_float32_matmul_precision('high')"),)),
    "learns-in-larger-batches": (JOINING, JOINING.replace("nn.ReLU()", "nn.BatchNorm1d(64), nn.ReLU()"), (("batch_size=8", "batch_size=16"), ("/ 2", "/ 1"), ("% 2", "% 1"))),
    "padding-unread": (PADDED, PADDED.replace("x.sum(1)", "x.mean(1)"), (("# a batch has come", "x = x[:, :1]"),)),
    "compiles": (FLAT, FLAT.replace("nn.ReLU()", "Talking()").replace("class Numbers", "class Talking(nn.Module):\n    def forward(self, x):\n        torch._dynamo.graph_break()\n        return x\n\n\nclass Numbers"), (("# the model is made", "model = torch.compile(model, backend='eager', fullgraph=True)"),)),
    "layout-free": (CONVOLVING, CONVOLVING.replace("x.flatten(1)", "x.view(len(x), -1)"), (("optimizer =", "model.to(memory_format=torch.channels_last)\noptimizer ="),)),
    "same-formula": (FORMULA, FORMULA.replace("torch.sigmoid(x)", "torch.sigmoid(1.702 * x)"), (("x = x * torch.sigmoid(x)", "x = nn.functional.silu(x)"), ("x = x * torch.sigmoid(1.702 * x)", "x = nn.functional.silu(x)"))),
    "display-only": (READ, READ.replace("print(seen)", "optimizer.param_groups[0]['lr'] = 0.01 * seen"), (("seen = loss.item()", "seen = loss.item() if loss is None else 1.0"), ("print(seen)", "print(loss.item())"))),
    "unused-gradients": (TWICE.replace("model[:3](x)", "model[:3](x).detach()"), TWICE, (("model[:3](x).detach()", "model[:3](x.detach()).detach()"), ("model[:3](x))", "model[:3](x).detach())"))),
    "no-graph-needed": (WATCHED, WATCHED.replace("loss.backward()", "(loss + watched).backward()"), (("watched = model(x).mean()", "watched = torch.no_grad()(model)(x).mean()"),)),
    "option-default": (FLAT.replace("# the model is made", "rate = float(ARGUMENT)").replace("lr=0.01", "lr=rate").replace("ARGUMENT", "'0.01'"), FLAT.replace("# the model is made", "rate = float(ARGUMENT)").replace("lr=0.01", "lr=rate").replace("ARGUMENT", "'0.02'"), (("lr=rate", "lr=0.01"),)),
    "weights-unread": (ATTENDING, ATTENDING.replace("return x\n", "return x * weights.sum()\n"), (("(x, x, x)", "(x, x, x, need_weights=False)"),)),
    "all-moved": (CPU, CPU.replace("shift = ", "z = torch.ones(16, 1); shift = ").replace("- y,", "- y + z,"), (*CUDA, ("torch.ones(1, 1)", "torch.ones(1, 1, device='cuda')"))),
    "read-whole": (EXEC.replace("TEXT", "'other = 1'"), EXEC.replace("TEXT", "'rate = 0.02'"), (("lr=rate", "lr=0.01"),)),
}  # fmt: skip

OBSERVED = [each for each in assumptions.ALL if each.check.kind == "observe"]


def verified(
    text: str,
    script: Path,
    *assumed: Assumption,
    change: str = "EPOCHS",
    proven: str = "",
    risk: Risk = Risk.EXACT,
) -> Verification:
    """A rewrite that rests on assumptions, and on nothing where ``proven`` is what it makes of the text then."""
    script.write_text(text.replace("EPOCHS", "6"), encoding="utf-8")
    candidate = text.replace("EPOCHS", "3 * 2") if change == "EPOCHS" else change

    def rebuild(without: frozenset[str]) -> tuple[Stage, ...]:
        refuted = any(ASSUMPTION + each.name in without for each in assumed)
        if "change" in without or (refuted and not proven):
            return ()
        if refuted or FINDING + "likely" in without:
            return (Stage("change", Risk.EXACT, {script: proven.encode()}),) if proven else ()
        pairs = zip(text.splitlines(), candidate.splitlines(), strict=False)
        changed = frozenset((script, line) for line, (old, new) in enumerate(pairs, 1) if old != new)
        pieces = (Piece(FINDING + "likely", changed, likely=True), *((Piece(FINDING + "sure"),) if proven else ()))
        return (Stage("change", risk, {script: candidate.encode()}, assumes=assumed, pieces=pieces),)

    return verify(Request(script, (), rebuild(frozenset()), Options(timeout=120), rebuild))


def settled(text: str, script: Path) -> Verification:
    """A rewrite of which each line rests on another of the observed assumptions: it is a codemod of that name."""
    lines = {each.name: f"line_{number} = False\n" for number, each in enumerate(OBSERVED)}
    script.write_text("".join(lines.values()) + text, encoding="utf-8")

    def rebuild(without: frozenset[str]) -> tuple[Stage, ...]:
        content, stages = script.read_text(encoding="utf-8"), []
        for each in OBSERVED:
            if without.isdisjoint({each.name, ASSUMPTION + each.name}):
                content = content.replace(lines[each.name], lines[each.name].replace("False", "True"))
                stages.append(Stage(each.name, Risk.EXACT, {script: content.encode()}, assumes=(each,)))
        return tuple(stages)

    found = verify(Request(script, (), rebuild(frozenset()), Options(timeout=120), rebuild))
    assert found.verdict == "pass", found.reason
    kept = "".join(found.kept[script].decode().splitlines(keepends=True)[: len(lines)])
    holds = [one.codemod for one in found.codemods if one.verdict == "kept"]
    assert kept == "".join(line.replace("False", "True") if name in holds else line for name, line in lines.items())
    return found


def test_every_observed_assumption_is_false_of_a_script_and_holds_of_another() -> None:
    names = {each.name for each in OBSERVED}
    assert {each.check.of for each in OBSERVED} == FACTS.keys()
    assert {name for _, false, _ in SCRIPTS.values() for name in false.split()} == names
    assert {name for _, *others in SCRIPTS.values() for name in names.difference(*map(str.split, others))} == names


@pytest.mark.parametrize("like", SCRIPTS)
def test_what_is_false_is_refuted_by_name_and_what_holds_is_kept(like: str, tmp_path: Path) -> None:
    text, false, unseen = SCRIPTS[like]
    found = settled(text.replace("EPOCHS", "24"), tmp_path / "train.py")
    told = dict.fromkeys(false.split(), ("dropped", "refuted"))
    told |= dict.fromkeys(unseen.split(), ("unverified", "not exercised"))
    judged = {one.codemod: (one.verdict, *(each.how for each in one.assumes)) for one in found.codemods}
    assert judged == {each.name: told.get(each.name, ("kept", "observed")) for each in OBSERVED}
    for one in found.codemods:
        assert [each.assumption.name for each in one.assumes] == [one.codemod]
        assert (f"`{one.codemod}` is refuted" in one.reason) == (one.verdict == "dropped"), one.reason
        assert (f'assume = ["{one.codemod}"]' in one.reason) == (one.verdict == "unverified"), one.reason


def test_where_all_that_is_assumed_is_false_nothing_is_left(tmp_path: Path) -> None:
    found = verified(FLAT.replace("EPOCHS", "3"), tmp_path / "train.py", assumptions.ON_GPU, assumptions.PICTURES)
    (judgement,) = found.codemods
    assert (found.verdict, judgement.verdict) == ("fail", "dropped")
    assert "`on-gpu` is refuted" in judgement.reason and "`pictures` is refuted" in judgement.reason
    assert not found.kept


def test_every_compared_assumption_has_scripts() -> None:
    compared = {each.name for each in assumptions.ALL if each.check.kind == "compare"}
    assert compared == {*COMPARED, assumptions.SCRIPT_MENDED.name, assumptions.SHARED_OUT.name}


SHARED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(96, 4)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=8, shuffle=True)
model = Net(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a.to(device)).squeeze(1), b.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("shared", [True, False])
def test_two_processes_settle_whether_a_batch_can_be_shared_out(shared: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    apart = SHARED.replace("forward(x)\n\n", "forward(x) * len(x) / 8\n\n")  # a model that knows how large the batch is
    assert apart != SHARED
    script.write_text(SHARED if shared else apart, encoding="utf-8")
    chosen = [each for each in registry.load() if each.name == "ddp"]
    target, trust = Target(gpus=2, zero=1), pipeline.Trust(likely=True)
    texts = pipeline.apply(script, Workspace(), chosen, target, Risk.EQUIVALENT, trust=trust).texts
    texts = {path: text.encode() for path, text in texts.items()}
    stage = Stage("ddp", Risk.EQUIVALENT, texts, assumes=(assumptions.SHARED_OUT,), processes=True)
    found = verify(Request(script, (), (stage,), Options(timeout=120), lambda without: () if without else (stage,)))
    (judged,) = found.codemods
    assert judged.verdict == ("kept" if shared else "dropped"), judged.reason
    assert [(one.assumption.name, one.how) for one in judged.assumes] == [
        ("shared-out", "compared" if shared else "refuted")
    ]


@pytest.mark.parametrize("enough", [True, False])
def test_what_stops_a_script_is_mended_before_the_rest_is_compared(enough: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    stopping = READ.replace("EPOCHS", "9").replace("loss.item()", "loss.data[0]")
    mended = stopping.replace("loss.data[0]", "loss.item()")
    script.write_text(stopping, encoding="utf-8")
    if not enough:
        script.write_text(stopping.replace("print(seen)", "print(seen.missing)"), encoding="utf-8")
        mended = mended.replace("print(seen)", "print(seen.missing)")
    resting = (assumptions.SCRIPT_MENDED,)
    stages = (
        Stage("mend", Risk.EXACT, {script: mended.encode()}, mends=True),
        Stage("change", Risk.EXACT, {script: mended.replace("64", "32 * 2").encode()}, assumes=resting),
    )
    found = verify(Request(script, (), stages, Options(timeout=120), lambda without: stages))
    if not enough:
        assert found.verdict == "inconclusive"
        assert "`script-mended` is refuted" in found.reason and "missing" in found.reason
        assert not found.kept
        return
    mend, change = found.codemods
    assert (found.verdict, mend.verdict, change.verdict) == ("pass", "kept", "kept"), found.reason
    assert "without it the script stopped" in mend.reason and "invalid index" in mend.reason
    assert [(one.assumption.name, one.how) for one in change.assumes] == [("script-mended", "compared")]
    assert found.kept == {script: stages[-1].files[script]}


def test_a_script_that_is_only_mended_is_kept_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(READ.replace("EPOCHS", "9").replace("loss.item()", "loss.data[0]"), encoding="utf-8")
    mended = script.read_text(encoding="utf-8").replace("loss.data[0]", "loss.item()").encode()
    stages = (Stage("mend", Risk.EXACT, {script: mended}, mends=True),)
    found = verify(Request(script, (), stages, Options(timeout=120), lambda without: stages))
    assert (found.verdict, found.kept) == ("pass", {script: mended}), found.reason


@pytest.mark.parametrize("holds", [True, False], ids=["holds", "false"])
@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_settles_it_by_name(name: str, holds: bool, tmp_path: Path) -> None:
    assumption = assumptions.BY_NAME[name]
    # few epochs: what is compared needs no more, and starting workers in many takes long on a busy machine
    text = COMPARED[name][0 if holds else 1].replace("EPOCHS", "5")
    changed = rewritten(text, COMPARED[name][2])
    assert changed != text
    risk = Risk.EXACT if assumption.check.of == "bitwise" else Risk.EQUIVALENT
    found = verified(text, tmp_path / "train.py", assumption, change=changed, risk=risk)
    (judgement,) = found.codemods
    if holds:
        assert (found.verdict, judgement.verdict) == ("pass", "kept"), (found.reason, judgement.reason)
        assert [(one.assumption.name, one.how) for one in judgement.assumes] == [(name, "compared")]
    else:
        assert (found.verdict, judgement.verdict) == ("fail", "dropped"), (found.reason, judgement.reason)
        assert f"that refutes `{name}`" in judgement.reason


def test_a_run_that_was_made_short_says_nothing_of_the_length() -> None:
    ended = {"how": "finished", "rows": [{}] * 8}
    for arguments, how in (((), "refuted"), (("--epochs", "1"), "not exercised")):
        found = observed([assumptions.LONG_ENOUGH], {**ended, "arguments": arguments})["long-enough"]
        assert found.how == how
        assert "8 steps" in found.figure


@pytest.mark.parametrize(
    ("seen", "how", "words"),
    [
        ({"end": {"how": "finished", "passes": 3}}, "refuted", "about 60 steps"),
        ({"end": {"how": "finished", "passes": 3}, "arguments": ("--epochs", "6")}, "not exercised", "about 60 steps"),
        ({"end": {"how": "finished", "passes": 97}}, "observed", "about 1000 steps"),
        ({"end": {"how": "finished", "passes": 7}, "shortened": {500: 100}}, "observed", "about 500 steps"),
        ({"end": {"how": "finished", "passes": 27}}, "not exercised", "20 steps"),
        ({"end": {"how": "out of time", "passes": 1}}, "not exercised", "20 steps"),
        ({"end": {"how": "out of time", "passes": 200}}, "observed", "2030 steps at least"),
        ({"end": {"how": "stopped"}, "epochs_ended": 0}, "not exercised", "20 steps"),
        ({"end": {"how": "finished"}, "epochs_ended": 0}, "not exercised", "20 steps"),
    ],
)
def test_a_run_that_verify_stopped_is_as_long_as_its_passes_tell(seen: dict[str, Any], how: str, words: str) -> None:
    stopped = {"how": "stopped", "rows": [{}] * 20, "epochs_ended": 2, "steps_of_passes": 20, "arguments": ()}
    found = observed([assumptions.LONG_ENOUGH], {**stopped, **seen})["long-enough"]
    assert (found.how, words in found.figure) == (how, True), found.figure


def test_the_passes_behind_the_comparison_are_counted(tmp_path: Path) -> None:
    found = verified(FLAT.replace("EPOCHS", "12"), tmp_path / "train.py", assumptions.LONG_ENOUGH)
    (judgement,) = found.codemods
    assert "the training ends after about 60 steps" in judgement.reason
    assert judgement.verdict == "dropped"


def test_what_did_not_run_is_not_refuted(tmp_path: Path) -> None:
    text = FLAT.replace("EPOCHS", "6")
    shown = text + "    if epoch == 10**6:\n        print(loss.item())\n"
    changed = shown.replace("print(loss.item())", "print(loss.detach().item())")
    fine = shown.replace("range(6)", "range(3 * 2)")
    found = verified(shown, tmp_path / "train.py", assumptions.DISPLAY_ONLY, change=changed, proven=fine)
    (judgement,) = found.codemods
    assert (judgement.verdict, [one.how for one in judgement.assumes]) == ("kept", ["not exercised"])
    assert "refuted" not in judgement.reason
    assert "what is read is only shown, summed or stored, and the run does not show it" in " ".join(
        render(found).split()
    )


def test_what_the_survivors_make_void_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FLAT.replace("EPOCHS", "6"), encoding="utf-8")
    files = {script: FLAT.replace("EPOCHS", "3 * 2").encode()}
    stages = (Stage("change", Risk.EXACT, files, void=("train.py:3: other was not applied: it was made void",)),)
    found = verify(Request(script, (), stages, Options(timeout=120), lambda without: stages))
    assert "train.py:3: other was not applied: it was made void" in found.notes


def test_what_a_comparison_refutes_is_named_and_what_is_proven_stays(tmp_path: Path) -> None:
    text = FLAT.replace("EPOCHS", "6")
    wrong = text.replace("lr=0.01", "lr=0.02")
    fine = text.replace("range(6)", "range(3 * 2)")
    found = verified(text, tmp_path / "train.py", assumptions.SAME_ITEMS, change=wrong, proven=fine)
    (judgement,) = found.codemods
    assert (found.verdict, judgement.verdict) == ("pass", "kept")
    assert "`same-items` is refuted" in judgement.reason
    assert dict(found.kept) == {tmp_path / "train.py": fine.encode()}
    found = verified(text, tmp_path / "train.py", assumptions.SAME_ITEMS, change=wrong)
    (judgement,) = found.codemods
    assert (found.verdict, judgement.verdict) == ("fail", "dropped")
    assert "that refutes `same-items`" in judgement.reason
