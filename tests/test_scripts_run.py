"""The whole trainings in fixtures/scripts run, learn, and touch nothing but their own folder."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm

SCRIPTS = Path(__file__).resolve().parent.parent / "fixtures" / "scripts"
SECONDS = 180  # generous: a busy machine is not a broken script


@dataclass(frozen=True)
class Training:
    """One script, the losses that it prints (group 1 of `loss`, in order) and the files it writes."""

    path: str
    loss: str
    count: int
    writes: frozenset[str]
    args: tuple[str, ...] = ()
    needs_cuda: bool = False
    needs: tuple[str, ...] = ()  # packages beside torch

    @property
    def absent(self) -> list[str]:
        return [package for package in self.needs if importlib.util.find_spec(package) is None]


def expect(  # noqa: PLR0913 (a row of the table)
    path: str,
    loss: str,
    count: int,
    *writes: str,
    args: tuple[str, ...] = (),
    needs_cuda: bool = False,
    needs: tuple[str, ...] = (),
) -> Training:
    return Training(path, loss, count, frozenset(writes), args, needs_cuda, needs)


ONE_FOR_EIGHT = ("--batch-size", "32", "--accumulation-steps", "1")
TRAININGS = [
    # a fifth of the time
    expect("seq2seq.py", r"train loss (\S+),", 2, "checkpoint.pt", args=("--epochs", "2", *ONE_FOR_EIGHT)),
    expect("mnist_flat.py", r"average loss: (\S+),", 3, "model.ckpt"),
    expect("residual_tiles.py", r"epoch \d+: loss (\S+)", 3, "tiles.pt", args=("--epochs", "3")),
    expect("mnist_functions.py", r"average loss: (\S+),", 2, args=("--epochs", "2")),
    expect("sentiment_trainer.py", r"train_loss=(\S+)", 3, "best_model.pt"),
    expect(
        "gan.py",
        r"Loss_D: (\S+)",
        40,
        *(f"net{net}_epoch_{epoch}.pth" for net in "DG" for epoch in range(2)),
        args=("--n_epochs", "2"),
    ),
    expect("char_gpt.py", r"iter \d+: loss (\S+),", 6, "out/ckpt.pt"),
    expect("image_amp.py", r"train loss: (\S+)", 2, "weights/last.pth", args=("--epochs", "2")),
    # one line per evaluation of the closure: 4 steps of at most 10 iterations
    expect("lbfgs_sine.py", r"(?m)^loss: (\S+)", 40, "sine.pt"),
    expect("rnn_lm.py", r"valid loss (\S+)", 3, "model.pt"),
    expect("unet_segmentation.py", r": loss (\S+)", 2, "unet.pth", args=("--epochs", "2")),
    expect("textures.py", r"loss (\S+),", 3, "textures.pt"),
    expect("ddp_points.py", r"loss (\S+)", 2, "ddp_points.pt", args=("--epochs", "2")),
    expect("tabular_mlp.py", r"train mse (\S+)", 5, "mlp.pth"),
    expect("ema_bytes.py", r"loss (\S+)", 20, "bytes.pt"),
    expect("critic_points.py", r"critic (\S+)", 20, "circles.pt"),
    expect("deep_points.py", r"loss (\S+)", 3, "deep_points.pt"),
    expect("spirals.py", r"loss (\S+)", 4, "spirals.pt"),
    expect("majority_transformer.py", r"train loss (\S+),", 2, "majority.pt", args=("--epochs", "2")),
    expect("wide_reviews.py", r"loss (\S+)", 4, "words.pt", args=("--width", "64", "--epochs", "4")),
    expect("vae_cuda.py", r"Average loss: (\S+)", 3, "vae.pth", needs_cuda=True),
    expect("project/train.py", r"train_loss (\S+)", 4, "output/checkpoint.pth"),
    expect("project/train.py", r"train_loss (\S+)", 4, "output/checkpoint.pth", args=("--model", "gru")),
    # files beside the weights: the vocabulary, and what the library writes about model, tokenizer and settings
    expect(
        "libraries/bert_reviews.py",
        r"loss (\S+)",
        4,
        "vocab.txt",
        *(f"critic/{name}" for name in ("config.json", "model.safetensors")),
        needs=("transformers",),
    ),
    expect(
        "libraries/trainer_reviews.py",
        r"'loss': '?([\d.]+)",
        4,
        "vocab.txt",
        *(f"critic/{name}" for name in ("config.json", "model.safetensors", "training_args.bin")),
        *(f"critic/{name}" for name in ("tokenizer.json", "tokenizer_config.json")),
        needs=("transformers", "accelerate"),
    ),
    expect("libraries/lightning_reviews.py", r"loss (\S+)", 3, "critic.ckpt", needs=("lightning",)),
    expect("libraries/accelerate_tiles.py", r"loss (\S+)", 4, "tiles/model.safetensors", needs=("accelerate",)),
]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the scripts need torch")


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


Ran = subprocess.CompletedProcess[str]


def run_script(kept: warm.Kept, path: str, folder: Path, *args: str) -> Ran:
    """Run one script in a child process, with `folder` as its working folder.

    On one thread: the same sums in the same order, and other tests keep their core.
    """
    return kept.run([str(SCRIPTS / path), *args], folder, SECONDS, PYTHONDONTWRITEBYTECODE="1")


def read_tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`: its relative path and content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def python_files() -> list[Path]:
    return sorted(path for path in SCRIPTS.rglob("*.py") if "__pycache__" not in path.parts)


def imported_modules(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def learned(kept: warm.Kept, training: Training, folder: Path) -> None:
    """A training runs, learns and writes only its own files into `folder`, which is made."""
    scripts_before = read_tree(SCRIPTS)
    folder.mkdir()

    run = run_script(kept, training.path, folder, *training.args)

    assert run.returncode == 0, run.stderr
    losses = [float(loss) for loss in re.findall(training.loss, run.stdout)]
    assert len(losses) == training.count
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]
    assert set(read_tree(folder.parent)) == {f"{folder.name}/{name}" for name in training.writes}
    assert read_tree(SCRIPTS) == scripts_before


@needs_torch
@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: " ".join((training.path, *training.args)))
def test_it_runs_and_learns_and_writes_only_its_own_files(
    training: Training, tmp_path: Path, kept_interpreters: warm.Kept
) -> None:
    if training.needs_cuda and not has_cuda():
        pytest.skip(f"{training.path} hard-codes CUDA, and this machine has none")
    if training.absent:
        pytest.skip(f"{training.path} needs {' and '.join(training.absent)}")
    learned(kept_interpreters, training, tmp_path / "work")


@needs_torch
def test_hard_coded_cuda_is_really_hard_coded(tmp_path: Path, kept_interpreters: warm.Kept) -> None:
    if has_cuda():
        pytest.skip("only a machine without CUDA shows it")
    run = run_script(kept_interpreters, "vae_cuda.py", tmp_path)
    assert run.returncode == 1
    assert "CUDA" in run.stderr or "NVIDIA" in run.stderr


@needs_torch
def test_the_demonstration_script_repeats_itself_and_learns_the_same_with_one_batch_for_eight(
    tmp_path: Path, kept_interpreters: warm.Kept
) -> None:
    text, network = (SCRIPTS / "seq2seq.py").read_text("utf-8"), "d_model=128, n_heads=4, d_hidden=512, n_layers=2"
    assert text.count(network) == 1
    small = tmp_path / "small.py"
    small.write_text(text.replace(network, "d_model=32, n_heads=4, d_hidden=64, n_layers=1"), "utf-8")
    first, second, large = (
        run_script(kept_interpreters, str(small), tmp_path, "--epochs", "1", "--lr", "1e-3", *args)
        for args in ((), (), ONE_FOR_EIGHT)
    )
    assert first.returncode == second.returncode == large.returncode == 0
    steps = re.findall(r"\] loss: (\S+)", first.stdout)
    assert len(steps) == 1280 // 4
    assert steps == re.findall(r"\] loss: (\S+)", second.stdout)
    assert "1280 training pairs, 160 validation pairs" in first.stdout
    # Only dropout's draws differ. A learning rate 10 % off moves this loss by 3 %, a forgotten accumulation
    # setting by 60 %.
    naive_loss, large_loss = (float(re.findall(r"val loss (\S+),", run.stdout)[0]) for run in (first, large))
    assert large_loss == pytest.approx(naive_loss, rel=0.002)


def test_a_training_is_listed_for_every_script_that_can_be_started() -> None:
    modules = {"project/data.py", "project/engine.py", "project/models.py"}
    started = {training.path for training in TRAININGS}
    assert {path.relative_to(SCRIPTS).as_posix() for path in python_files()} == started | modules


def test_the_table_of_the_readme_has_one_row_for_each_script() -> None:
    rows = re.findall(r"(?m)^\| `(\S+)` \|", (SCRIPTS / "README.md").read_text("utf-8"))
    assert sorted(rows) == sorted({training.path for training in TRAININGS})


@pytest.mark.parametrize("path", python_files(), ids=lambda path: path.relative_to(SCRIPTS).as_posix())
def test_it_needs_torch_and_the_standard_library_only_and_what_is_told_of_it(path: Path) -> None:
    # The oldest grammar that we serve; tqdm is used where it is installed.
    tree = ast.parse(path.read_bytes(), feature_version=(3, 10))
    siblings = {file.stem for file in path.parent.glob("*.py")} if path.parent == SCRIPTS / "project" else set()
    name = path.relative_to(SCRIPTS).as_posix()
    needed = {package for training in TRAININGS if training.path == name for package in training.needs}
    allowed = set(sys.stdlib_module_names) | {"torch", "tqdm"} | siblings | needed
    assert imported_modules(tree) <= allowed


def test_the_unusual_bytes_are_still_there() -> None:
    crlf = (SCRIPTS / "tabular_mlp.py").read_bytes()
    assert crlf.count(b"\n") == crlf.count(b"\r\n") > 0
    assert not (SCRIPTS / "rnn_lm.py").read_bytes().endswith(b"\n")
    assert b"\n\tdef " in (SCRIPTS / "vae_cuda.py").read_bytes()
