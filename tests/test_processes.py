"""A candidate that trains in several processes where torchrun starts it: run so, and held against the original."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turbofix.engine.verifying import plan_comparison
from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage, Verification, runner, verify
from turbofix.verify.runner import Child

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("warm_interpreters"),
    pytest.mark.skipif(not runner.FORKS, reason="several processes are run on Linux alone"),
]

HEAD = """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset, random_split

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
"""

ORIGINAL = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(64, 8)
data, held_out = random_split(TensorDataset(x, (x.sum(1) > 0).long()), [48, 16], torch.Generator().manual_seed(1))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} done")
torch.save(model.state_dict(), "model.pt")
"""

GOOD = f"""\
{HEAD}
torch.manual_seed(0)
x = torch.randn(64, 8)
data, held_out = random_split(TensorDataset(x, (x.sum(1) > 0).long()), [48, 16], torch.Generator().manual_seed(1))
sampler = DistributedSampler(data) if world > 1 else None
loader = DataLoader(data, batch_size=16 // world, shuffle=sampler is None, sampler=sampler)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
trained = DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for step, (inputs, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(trained(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {{epoch}} done")
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
if world > 1:
    dist.destroy_process_group()
"""

OTHER_SAMPLES = "the processes train on other samples than the original"

BROKEN = {
    "no_set_epoch": (
        "        sampler.set_epoch(epoch)",
        "        pass",
        f"at step 4 {OTHER_SAMPLES}: every pass over the data has the same order (`set_epoch` sets another)",
    ),
    "whole_batches": ("16 // world", "16", "at step 1 the optimizer steps after 32 samples instead of 16"),
    "not_wrapped": (
        "DistributedDataParallel(model) if world > 1 else model",
        "model",
        "at step 1 the gradients of the processes are not the same: they are not reduced",
    ),
    "summed_loss": (
        "loss.backward()",
        "(loss * world).backward()",
        r"at step 1 the loss is .*, 2 times the original's",
    ),
    "summed_gradients": (
        "        optimizer.step()\n",
        "        [each.grad.mul_(world) for each in model.parameters()]\n        optimizer.step()\n",
        "at step 1 the gradient is 2 times the original's",
    ),
    "a_little_longer": (
        "        optimizer.step()\n",
        "        [each.grad.mul_(1 + 3e-4 * (world > 1)) for each in model.parameters()]\n        optimizer.step()\n",
        "the gradient of the typical step differs by 3e-4 of its length, and rounding is less",
    ),
    "all_print": (
        "    if rank == 0:\n        print",
        "    if True:\n        print",
        'rank 0 and rank 1 print "epoch 0 done", each for itself',
    ),
    "none_prints": (
        "    if rank == 0:\n        print",
        "    if world == 1:\n        print",
        'none of the processes prints "epoch 0 done"',
    ),
    "all_save": (
        "if rank == 0:\n    torch.save",
        "if True:\n    torch.save",
        "2 processes save model.pt: one overwrites what the other writes",
    ),
    "saves_the_wrapper": ("torch.save(model.", "torch.save(trained.", "what it saves in model.pt has other keys"),
    "one_dies": (
        "        optimizer.step()\n",
        '        optimizer.step()\n        if rank == 1 and epoch == 1:\n            raise ValueError("no more")\n',
        'rank 1 stopped with "ValueError: no more" at train.py, line 30 after 4 steps',
    ),
    "one_is_killed": (
        "        optimizer.step()\n",
        "        optimizer.step()\n        if rank == 1 and epoch == 1:\n            os.kill(os.getpid(), 9)\n",
        "rank 1 was killed by SIGKILL",
    ),
    "one_stops_early": (
        "        optimizer.step()\n",
        "        optimizer.step()\n        if rank == 1 and step == 1:\n            raise SystemExit\n",
        r"rank 1 ends after 2 steps, and rank 0 at train.py, line \d+ after 2 steps waits for it",
    ),
    "frozen_part": (
        "Adam(model.",
        "Adam((model[0] if world > 1 else model).",
        "none of the processes trains `2.weight`",
    ),
    "other_rate": ("lr=1e-2", "lr=1e-2 / (rank + 1)", "rank 1: at step 1 the learning rate is 0.005 instead of 0.01"),
    "other_splits": (
        "manual_seed(1)",
        "manual_seed(1 + rank)",
        f"at step 1 {OTHER_SAMPLES}",
    ),
    "other_orders": (
        "DistributedSampler(data)",
        "DistributedSampler(data, seed=rank)",
        "the samplers shuffle by other numbers in each process",
    ),
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(ORIGINAL)
    return tmp_path / "train.py"


def verified(script: Path, candidate: str, **options: object) -> Verification:
    theirs = script.with_name("theirs.py")
    theirs.write_text(candidate)
    given = Options(**{"timeout": 60.0, **options})  # type: ignore[arg-type]
    return verify(plan_comparison(script, theirs, (), Risk.EQUIVALENT, given))


def figure(found: Verification) -> float:
    """The largest relative difference that the note tells."""
    assert found.verdict == "pass", found.reason
    told = [re.search(r"of one process \(largest relative difference (\S+) over", note) for note in found.notes]
    return next(float(match[1]) for match in told if match)


def test_what_trains_in_two_processes_as_in_one_passes(script: Path) -> None:
    found = verified(script, GOOD)
    assert 0 < figure(found) < 1e-6
    assert any(
        note.startswith("run as 2 processes over gloo: the gradients and updates of both") for note in found.notes
    )
    assert found.steps == 9


def test_three_processes(script: Path) -> None:
    script.write_text(ORIGINAL.replace("batch_size=16", "batch_size=12"))
    found = verified(script, GOOD.replace("16 // world", "12 // world"), processes=3)
    assert 0 < figure(found) < 1e-6
    assert any("run as 3 processes over gloo: the gradients and updates of all 3" in note for note in found.notes)


@pytest.mark.parametrize("name", BROKEN)
def test_what_goes_wrong_in_several_processes_is_said(script: Path, name: str) -> None:
    old, new, says = BROKEN[name]
    assert GOOD.count(old) == 1
    found = verified(script, GOOD.replace(old, new))
    assert found.verdict == "fail", found
    assert found.reason.startswith("run as 2 processes, ")
    assert says in found.reason or re.search(says, found.reason)


@pytest.mark.parametrize("processes", [0, 1])
def test_without_them_their_lines_are_not_seen_to_run(script: Path, processes: int) -> None:
    found = verified(script, GOOD, processes=processes)
    assert found.verdict == "inconclusive"
    assert found.reason == "what it changed at train.py, line 11, did not run"


Edits = tuple[tuple[str, str], ...]


def edited(text: str, *edits: tuple[str, str]) -> str:
    """The text with each edit made, in however many places it applies."""
    for old, new in edits:
        text = text.replace(old, new)
    return text


ON_CUDA = (
    ("torch.manual_seed(0)\n", 'torch.manual_seed(0)\ndevice = torch.device("cuda", rank)\n'),
    ("nn.Linear(16, 2))", "nn.Linear(16, 2)).to(device)"),
    ("        loss =", "        inputs, labels = inputs.to(device), labels.to(device)\n        loss ="),
    ('init_process_group("gloo")', 'init_process_group("nccl", device_id=torch.device("cuda", rank))'),
    ("DistributedDataParallel(model)", "DistributedDataParallel(model, device_ids=[rank], output_device=rank)"),
    (
        "    dist.destroy",
        (
            "    dist.barrier(device_ids=[rank])\n    assert torch.cuda.device_count() == world\n"
            "    assert inputs.device.index == torch.cuda.current_device() == rank\n    dist.destroy"
        ),
    ),
)
NORMALISED = (*ON_CUDA, ("nn.ReLU()", "nn.BatchNorm1d(16)"))
TOGETHER = "trained = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model)"
STREAM = (
    (
        "sampler = DistributedSampler(data) if world > 1 else None\n",
        (
            "sampler = None\n\n\nclass Numbers(IterableDataset):\n    def __iter__(self):\n"
            "        for number in range(48):\n            drawn = torch.randn(8)\n"
            "            if number % world == rank:\n                yield drawn, (drawn.sum() > 0).long()\n\n\n"
            "data = Numbers()\n"
        ),
    ),
    ("shuffle=sampler is None, sampler=sampler", ""),
    ("    if sampler is not None:\n        sampler.set_epoch(epoch)\n", ""),
)
BY_HAND = (
    ("sampler = DistributedSampler(data) if world > 1 else None\n", ""),
    ("    if sampler is not None:\n        sampler.set_epoch(epoch)\n", ""),
    (
        "loader = DataLoader(data, batch_size=16 // world, shuffle=sampler is None, sampler=sampler)\n",
        "y = (x.sum(1) > 0).long()\n",
    ),
    (
        "enumerate(loader):",
        "((s, (x[i], y[i])) for s in range(3) for i in [torch.randint(64, (16,))[rank::world]]):",
    ),
)
DROPPED_TAIL = (
    ("DistributedSampler(data)", "DistributedSampler(data, drop_last=True)"),
    ("sampler=sampler)", "sampler=sampler, drop_last=True)"),
)
SHARDED = (
    ("import os\n", "import os\n\nfrom torch.distributed.optim import ZeroRedundancyOptimizer\n"),
    (
        "optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)",
        (
            "adam, parameters = torch.optim.Adam, model.parameters()\n"
            "zero = ZeroRedundancyOptimizer(parameters, adam, lr=1e-2) if world > 1 else None\n"
            "optimizer = zero or adam(parameters, lr=1e-2)"
        ),
    ),
)

ALIKE: dict[str, tuple[Edits, Edits]] = {
    "on_cards": (ON_CUDA, ON_CUDA),
    "normalised_together": (NORMALISED, (*NORMALISED, ("trained = DistributedDataParallel(model", TOGETHER))),
    "stream": (STREAM, STREAM),
    "drawn_by_hand": (BY_HAND, BY_HAND),
    "own_generator": ((("shuffle=sampler is None", "shuffle=True, generator=torch.Generator().manual_seed(3)"),), ()),
    "dropped_tail": (
        (("[48, 16]", "[45, 19]"), ("shuffle=sampler is None", "shuffle=True, drop_last=True")),
        (("[48, 16]", "[45, 19]"), *DROPPED_TAIL),
    ),
    "in_workers": (
        (("batch_size=16", "num_workers=1, batch_size=16"),),
        (("batch_size=16", "num_workers=1, batch_size=16"),),
    ),
    "dropout": ((("nn.ReLU()", "nn.Dropout(0.5)"),), (("nn.ReLU()", "nn.Dropout(0.5)"),)),
    "sharded_optimizer": ((), SHARDED),
    "aborted_at_the_end": (
        (),
        (("    dist.destroy_process_group()", "    dist.destroy_process_group()\n    rank and os.abort()"),),
    ),
}


def in_one(text: str) -> str:
    """The same training for one process, which knows of no others."""
    text = re.sub(r"if world > 1:\n    dist\.[^\n]*\n(?:    [^\n]*\n)*", "", text)
    text = re.sub(r"world, rank = .*", "world, rank = 1, 0", text)
    return re.sub(r" = (\w+)\(.*\) if world > 1 else (None|model)\n", r" = \2\n", text)


@pytest.mark.parametrize("name", ALIKE)
def test_more_that_trains_in_two_processes_as_in_one(script: Path, name: str) -> None:
    before, after = ALIKE[name]
    script.write_text(in_one(edited(GOOD, *before)))
    candidate = edited(GOOD, *after)
    assert candidate != GOOD or not after
    assert figure(verified(script, candidate)) < 1e-6


def test_a_tail_that_cannot_be_shared_out_evenly_is_left_out(script: Path) -> None:
    script.write_text(ORIGINAL.replace("[48, 16]", "[45, 19]"))
    found = verified(script, GOOD.replace("[48, 16]", "[45, 19]"))
    assert figure(found) < 1e-6
    told = "the last batch of an epoch is shared out unevenly: 3 steps were left out of that comparison"
    assert told in found.notes


def test_long_data_is_shortened_alike_in_all_processes(script: Path) -> None:
    longer = (("torch.randn(64", "torch.randn(3600"), ("[48, 16]", "[3584, 16]"))
    script.write_text(edited(ORIGINAL, *longer))
    found = verified(script, edited(GOOD, *longer))
    assert figure(found) < 1e-6
    assert any("3584 to 160 samples" in note for note in found.notes)


def test_batch_norm_of_each_process_alone_is_named(script: Path) -> None:
    script.write_text(ORIGINAL.replace("nn.ReLU()", "nn.BatchNorm1d(16)"))
    found = verified(script, GOOD.replace("nn.ReLU()", "nn.BatchNorm1d(16)"))
    assert found.verdict == "fail"
    assert found.reason.endswith("; BatchNorm sees no more than its own process's share of a batch")


def noisy(noise: str, drawing: Edits = ()) -> str:
    """The good one, with noise in each step."""
    return edited(GOOD, *drawing, ("trained(inputs)", f"trained(inputs + {noise})"))


@pytest.mark.parametrize(
    "noise", ["torch.randn_like(inputs)", "torch.rand(len(inputs), 1)", "torch.randint(0, 2, (len(inputs), 1))"]
)
def test_each_process_draws_for_its_share_what_one_draws_for_it(script: Path, noise: str) -> None:
    script.write_text(in_one(noisy(noise)))
    assert figure(verified(script, noisy(noise))) < 1e-6


@pytest.mark.parametrize(
    ("noise", "drawing"),
    [("torch.randn_like(inputs)", BY_HAND), ("torch.randperm(len(inputs)).unsqueeze(1) / 9", ())],
)
def test_noise_that_no_share_can_be_told_of_leaves_nothing_to_compare(script: Path, noise: str, drawing: Edits) -> None:
    script.write_text(in_one(noisy(noise, drawing)))
    found = verified(script, noisy(noise, drawing))
    assert found.verdict == "inconclusive"
    assert found.reason.endswith("the training step draws random numbers, and each of the processes draws its own")


def test_processes_that_all_do_the_same_are_told_of(script: Path) -> None:
    script.write_text(in_one(edited(GOOD, *BY_HAND)))
    found = verified(script, edited(GOOD, *BY_HAND, ("[rank::world]", "")))
    assert found.verdict == "pass"
    assert (
        "all processes have the same losses: each does the work of one, but for what they share of a model"
        in found.notes
    )


def test_numbers_that_a_process_prints_of_its_own_share_are_a_note(script: Path) -> None:
    script.write_text(ORIGINAL.replace("{epoch} done", "{epoch} loss {loss.item()}"))
    found = verified(script, GOOD.replace("{epoch} done", "{epoch} loss {loss.item()}"))
    assert found.verdict == "pass"
    assert any(
        note.startswith('rank 0 prints what it knows of its own share: it prints "epoch 0') for note in found.notes
    )


PIPELINE = edited(
    GOOD,
    (
        "trained = DistributedDataParallel(model) if world > 1 else model\n",
        """\
trained = model
if world > 1:
    pipe = pipeline(model, (torch.zeros(4, 8),), split_spec={"2": SplitPoint.BEGINNING})
    trained = pipe.get_stage_module(rank)
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, nn.functional.cross_entropy)
""",
    ),
    ("Adam(model.", "Adam(trained."),
    (
        """\
        loss = nn.functional.cross_entropy(trained(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
""",
        """\
        optimizer.zero_grad()
        if world == 1:
            loss = nn.functional.cross_entropy(trained(inputs), labels)
            loss.backward()
        elif rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=labels, losses=[])
""",
    ),
    ("sampler = DistributedSampler(data) if world > 1 else None", "sampler = None"),
    ("16 // world", "16"),
    ("    if sampler is not None:\n        sampler.set_epoch(epoch)\n", ""),
    ("import os\n", "import os\n\nfrom torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline\n"),
)


def test_a_pipeline_is_held_against_the_original_part_by_part(script: Path) -> None:
    found = verified(script, PIPELINE)
    assert figure(found) < 1e-6
    assert "each process trains a part of the parameters" in found.notes
    found = verified(
        script,
        PIPELINE.replace("4, nn.functional.cross_entropy", "4, nn.CrossEntropyLoss(torch.ones(2), reduction='sum')"),
    )
    assert found.verdict == "fail"
    assert "the gradient is 4 times the original's" in found.reason


UNGUARDED = edited(
    GOOD,
    ('os.environ.get("WORLD_SIZE", 1)', 'os.environ["WORLD_SIZE"]'),
    ('os.environ.get("RANK", 0)', 'os.environ["RANK"]'),
    ("if world > 1:\n    dist.", "if True:\n    dist."),
)


def test_what_runs_under_torchrun_alone_is_held_against_itself(script: Path) -> None:
    script.write_text(UNGUARDED)
    found = verified(
        script, UNGUARDED.replace("DistributedDataParallel(model)", "DistributedDataParallel(model, bucket_cap_mb=1)")
    )
    assert found.verdict == "pass", found.reason
    assert "the script does not run by itself: it was started as torchrun starts it, as the only process" in found.notes
    assert any("of both are those of the script as it is" in note for note in found.notes)
    found = verified(script, UNGUARDED.replace("trained(inputs)", "model(inputs)"))
    assert found.verdict == "fail"
    assert "the gradients of the processes are not the same" in found.reason


def test_a_candidate_for_torchrun_alone_is_started_as_it_would(script: Path) -> None:
    found = verified(script, UNGUARDED)
    assert figure(found) < 1e-6
    told = "the rewritten script does not run by itself: it was started as torchrun starts the only process"
    assert told in found.notes


def codemods(script: Path) -> Verification:
    """What becomes of three codemods: a plain one, one that trains in several processes, and one that spoils that."""

    def rebuild(without: frozenset[str]) -> tuple[Stage, ...]:
        text, stages = ORIGINAL, []
        if "plain" not in without:
            text = text.replace("zero_grad()", "zero_grad(set_to_none=True)")
            stages.append(Stage("plain", Risk.EXACT, {script: text.encode()}))
        if "ddp" not in without:
            text = GOOD if "plain" in without else GOOD.replace("zero_grad()", "zero_grad(set_to_none=True)")
            stages.append(Stage("ddp", Risk.EQUIVALENT, {script: text.encode()}, processes=True))
        if not without & {"ddp", "steady"}:
            text = text.replace("        sampler.set_epoch(epoch)", "        sampler.set_epoch(0)")
            stages.append(Stage("steady", Risk.EQUIVALENT, {script: text.encode()}, processes=True))
        return tuple(stages)

    return verify(Request(script, stages=rebuild(frozenset()), options=Options(timeout=60), rebuild=rebuild))


def test_a_codemod_that_fails_in_several_processes_goes_and_the_rest_stays(script: Path) -> None:
    found = codemods(script)
    told = [(one.codemod, one.verdict) for one in found.codemods]
    assert told == [("plain", "kept"), ("ddp", "kept"), ("steady", "dropped")]
    assert "run as 2 processes over gloo" in found.codemods[1].reason
    assert found.codemods[2].reason.startswith(f"run as 2 processes, at step 4 {OTHER_SAMPLES}")
    assert found.to_json()["processes"] == 2
    assert b"set_epoch(epoch)" in found.kept[script]


def test_where_they_cannot_be_run_nothing_is_kept_that_needs_them(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "why_not_several", lambda self, count: "they are run on Linux alone")
    why = "it was not run as 2 processes: they are run on Linux alone"
    found = verified(script, GOOD)
    assert (found.verdict, found.reason) == ("inconclusive", why)
    found = codemods(script)
    assert {one.codemod: one.verdict for one in found.codemods} == {"plain": "kept", "ddp": "unverified"}
    assert found.codemods[1].reason == why
    assert found.kept[script] == ORIGINAL.replace("zero_grad()", "zero_grad(set_to_none=True)").encode()


def test_what_cannot_be_run_in_several_as_it_is_is_compared_in_one(script: Path) -> None:
    refusing = GOOD.replace("if world > 1:\n    dist.init", 'if world > 1:\n    raise OSError("no")\n    dist.init')
    script.write_text(refusing)
    found = verified(script, refusing.replace("zero_grad()", "zero_grad(set_to_none=True)"))
    assert found.verdict == "pass"
    told = 'each stopped with "OSError: no" at train.py, line 11 before its first step'
    assert f"it was compared in one process alone: as it is, {told}" in found.notes


def test_several_processes_need_as_many_gpus(script: Path, tmp_path: Path) -> None:
    child = Child.__new__(Child)
    child._forks, child.cuda, child._cards, child._options = True, True, 1, Options()
    assert child.why_not_several(2) == "2 of them need 2 GPUs, and 1 is here (--device cpu runs them without)"
    child._options = Options(device="cpu")
    assert child.why_not_several(2) is None
