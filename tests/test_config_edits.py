"""Settings in the project's configuration files are rewritten as those in its code are: shown, written, verified."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from commands import Run, runner

TRAINING = """\
import os
import sys

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "base.yaml")) as file:
            return torch.full((4,), float(len(file.read()) % 7 + index % 5)), torch.tensor([float(index % 2)])


def main():
    LOAD
    loader = DataLoader(Files(), batch_size=cfg["batch_size"], num_workers=cfg["loader"]["workers"])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
"""
NAMED = 'with open("base.yaml") as file:\n        cfg = yaml.safe_load(file)'
GIVEN = "with open(sys.argv[1]) as file:\n        cfg = yaml.safe_load(file)"
CONFIG = "# how it trains\nbatch_size: 8\nloader:\n    workers: 0   # of the loader\nname: 'first try'\n"
CHANGED = CONFIG.replace("workers: 0 ", "workers: 8 ")
WORKERS = ("--select", "loader-workers")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    (tmp_path / "train.py").write_text(TRAINING.replace("LOAD", NAMED))
    (tmp_path / "base.yaml").write_text(CONFIG)
    return runner(tmp_path, monkeypatch, capfdbinary)


def test_both_files_are_shown_and_written_and_left_alone_then(tmp_path: Path, run: Run) -> None:
    script = (tmp_path / "train.py").read_text()
    shown = run("apply", *WORKERS, "train.py")
    assert shown.code == 1
    assert "-    workers: 0   # of the loader\n+    workers: 8   # of the loader\n" in shown.out
    assert '+                        persistent_workers=cfg["loader"]["workers"] > 0' in shown.out
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "--check", "-"], cwd=tmp_path, input=shown.raw, check=True)
    assert (tmp_path / "base.yaml").read_text() == CONFIG
    written = run("apply", "--write", *WORKERS, "train.py")
    assert written.code == 0, written.err
    assert (tmp_path / "base.yaml").read_text() == CHANGED
    assert (tmp_path / "train.py").read_text() != script
    again = run("apply", *WORKERS, "train.py")
    assert (again.code, again.out) == (0, "")


def test_the_finding_stands_in_the_file(run: Run) -> None:
    (found,) = json.loads(run("analyze", *WORKERS, "--output-format", "json", "train.py").out)["findings"]
    assert (found["path"], found["line"], found["column"]) == ("base.yaml", 4, 14)
    assert (found["fixable"], found["certainty"]) == (True, "proven")


def test_when_one_of_two_files_may_not_be_written_none_is(tmp_path: Path, run: Run) -> None:
    script = (tmp_path / "train.py").read_text()
    (tmp_path / "base.yaml").chmod(0o444)
    ran = run("apply", "--write", *WORKERS, "train.py")
    assert ran.code == 2
    assert "read-only" in ran.err
    assert ((tmp_path / "train.py").read_text(), (tmp_path / "base.yaml").read_text()) == (script, CONFIG)


def test_a_file_that_no_path_names_makes_it_likely(tmp_path: Path, run: Run) -> None:
    (tmp_path / "train.py").write_text(TRAINING.replace("LOAD", GIVEN))
    (found,) = json.loads(run("analyze", *WORKERS, "--output-format", "json", "train.py").out)["findings"]
    assert (found["path"], found["certainty"]) == ("base.yaml", "likely")
    assert [each["name"] for each in found["assumes"]] == ["option-default"]
    assert run("apply", *WORKERS, "train.py").out == ""
    assert "+    workers: 8   # of the loader" in run("apply", "--likely", *WORKERS, "train.py").out


def test_another_script_that_reads_the_file_may_object(tmp_path: Path, run: Run) -> None:
    other = TRAINING.replace("LOAD", NAMED).replace("class Files(Dataset)", "class Files(IterableDataset)")
    other = other.replace("Dataset\n\n", "Dataset, IterableDataset\n\n", 1).replace(
        "__getitem__(self, index)", "__iter__(self)"
    )
    other = other.replace("            return torch.full", "            index = 1\n            yield torch.full")
    (tmp_path / "other.py").write_text(other)
    ran = run("apply", *WORKERS, "train.py")
    assert (ran.code, ran.out) == (0, "")
    assert "other.py, which runs line 4 too, rules it out: its dataset is iterated" in ran.err


def test_a_reason_beside_the_value_is_heard(tmp_path: Path, run: Run) -> None:
    (tmp_path / "base.yaml").write_text(CONFIG.replace("of the loader", "more crash the driver"))
    (found,) = json.loads(run("analyze", *WORKERS, "--output-format", "json", "train.py").out)["findings"]
    assert not found["fixable"]
    assert "more crash the driver" in found["why_not"]


def test_a_comment_in_the_file_is_heard(tmp_path: Path, run: Run) -> None:
    (tmp_path / "base.yaml").write_text(CONFIG.replace("of the loader", "turbofix: ignore[loader-workers]"))
    assert json.loads(run("analyze", *WORKERS, "--output-format", "json", "train.py").out)["findings"] == []


@pytest.mark.usefixtures("warm_interpreter")
def test_a_verification_runs_the_changed_file(tmp_path: Path, run: Run) -> None:
    """The script says how many workers it was told of: the candidate's runs are told of other ones."""
    text = TRAINING.replace(
        "LOAD", NAMED + '\n    if cfg["loader"]["workers"]:\n        raise SystemExit("read the new file")'
    )
    (tmp_path / "train.py").write_text(text)
    ran = run("verify", *WORKERS, "--output-format", "json", "train.py")
    assert ran.code != 0
    assert "read the new file" in ran.out + ran.err
    (tmp_path / "train.py").write_text(TRAINING.replace("LOAD", NAMED))
    ran = run("verify", *WORKERS, "--output-format", "json", "train.py")
    found = json.loads(ran.out)
    assert (found["verdict"], [each["verdict"] for each in found["codemods"]]) == ("pass", ["kept"]), ran.err
    assert (tmp_path / "base.yaml").read_text() == CONFIG


LIT = """\
import torch
from torch import nn
import lightning as L


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 62 * 62, 10))

    def training_step(self, batch, index):
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
"""
TRAINERS = {
    "cli": "from lightning.pytorch.cli import LightningCLI\nfrom lit import Lit\n\nLightningCLI(Lit)\n",
    "unpacked": "import lightning as L\nfrom omegaconf import OmegaConf\nfrom lit import Lit\n\n"
    'cfg = OmegaConf.load("config.yaml")\nL.Trainer(**cfg.trainer).fit(Lit())\n',
    "instantiated": "import hydra\nfrom hydra.utils import instantiate\nfrom lit import Lit\n\n\n"
    '@hydra.main(config_path=".", config_name="config", version_base=None)\ndef main(cfg):\n'
    "    trainer = instantiate(cfg.trainer)\n    trainer.fit(Lit())\n\n\nmain()\n",
}


@pytest.mark.parametrize("way", TRAINERS)
def test_a_trainers_section_gets_a_setting(tmp_path: Path, run: Run, way: str) -> None:
    (tmp_path / "base.yaml").unlink()
    (tmp_path / "lit.py").write_text(LIT)
    (tmp_path / "train.py").write_text(TRAINERS[way])
    head = "  _target_: lightning.Trainer\n" if way == "instantiated" else ""
    text = f"trainer:\n{head}  max_epochs: 30  # enough\n\nmodel: {{}}\n"
    (tmp_path / "config.yaml").write_text(text)
    ran = run("apply", "--write", "--likely", "--select", "autocast,cudnn-benchmark", "train.py")
    assert ran.code == 0, ran.err
    added = "# enough\n  precision: bf16-mixed\n  benchmark: true\n"
    assert (tmp_path / "config.yaml").read_text() == text.replace("# enough\n", added)
    assert (tmp_path / "train.py").read_text() == TRAINERS[way]
    again = run("apply", "--likely", "--select", "autocast,cudnn-benchmark", "train.py")
    assert (again.code, again.out) == (0, "")


def test_a_setting_that_is_said_to_be_the_default_is_changed_in_its_place(tmp_path: Path, run: Run) -> None:
    (tmp_path / "base.yaml").unlink()
    (tmp_path / "lit.py").write_text(LIT)
    (tmp_path / "train.py").write_text(TRAINERS["cli"])
    text = "trainer:\n  precision: 32\n  max_epochs: 30\n  benchmark: null\nmodel: {}\n"
    (tmp_path / "config.yaml").write_text(text)
    ran = run("apply", "--write", "--likely", "--select", "autocast,cudnn-benchmark", "train.py")
    assert ran.code == 0, ran.err
    expected = text.replace("32", "bf16-mixed").replace("null", "true")
    assert (tmp_path / "config.yaml").read_text() == expected


SETTINGS = """\
import json

import yaml
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments


def main():
    with open("FILE") as file:
        config = LOAD(file)
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    args = TrainingArguments(**config["training"])
    Trainer(model, args, train_dataset=data()).train()


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("name", "load", "text", "expected"),
    [
        (
            "run.yaml",
            "yaml.safe_load",
            'training:\n  output_dir: "out"\n  optim: "adamw_torch"  # of torch\n',
            'training:\n  output_dir: "out"\n  optim: "adamw_torch_fused"  # of torch\n  bf16: true\n',
        ),
        (
            "run.json",
            "json.load",
            '{\n  "training": {\n    "output_dir": "o",\n    "optim": "adamw_torch"\n  }\n}\n',
            '{\n  "training": {\n    "output_dir": "o",\n    "optim": "adamw_torch_fused",\n    "bf16": true\n  }\n}\n',
        ),
    ],
)
def test_settings_of_transformers(  # noqa: PLR0913
    tmp_path: Path, run: Run, name: str, load: str, text: str, expected: str
) -> None:
    (tmp_path / "base.yaml").unlink()
    (tmp_path / "train.py").write_text(SETTINGS.replace("FILE", name).replace("LOAD", load))
    (tmp_path / name).write_text(text)
    options = ("--likely", "--select", "autocast,fused-optimizer", "--torch-version", "2.6", "train.py")
    ran = run("apply", "--write", *options)
    assert ran.code == 0, ran.err
    assert (tmp_path / name).read_text() == expected
    assert (tmp_path / "train.py").read_text() == SETTINGS.replace("FILE", name).replace("LOAD", load)
    again = run("apply", *options)
    assert (again.code, again.out) == (0, "")


def test_an_optimizer_and_a_batch_of_a_file(tmp_path: Path, run: Run) -> None:
    text = TRAINING.replace("LOAD", NAMED).replace("lr=1e-4", '**cfg["optimizer"]').replace("SGD", "AdamW")
    text = text.replace("nn.Linear(4, 1)", "nn.Linear(4, 1).cuda()").replace(
        "model(inputs), targets", "model(inputs.cuda()), targets.cuda()"
    )
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "base.yaml").write_text(CONFIG + "optimizer: {lr: 1.0e-4}\n")
    ran = run("apply", "--write", "--select", "fused-optimizer", "train.py")
    assert ran.code == 0, ran.err
    assert (tmp_path / "base.yaml").read_text() == CONFIG + "optimizer: {lr: 1.0e-4, fused: true}\n"
    assert (tmp_path / "train.py").read_text() == text


def test_a_batch_of_a_file_is_enlarged_and_its_other_reads_are_told(tmp_path: Path, run: Run) -> None:
    text = TRAINING.replace("LOAD", NAMED).replace("lr=1e-4", 'lr=1e-4 * cfg["batch_size"]')
    text = text.replace("nn.Linear(4, 1)", "nn.Linear(4, 1).cuda()").replace("model(inputs)", "model(inputs.cuda())")
    (tmp_path / "train.py").write_text(text)
    options = ("--select", "larger-batch", "--risk", "recipe", "--likely")
    ran = run("apply", *options, "train.py")
    assert "-batch_size: 8\n+batch_size: 128\n" in ran.out, ran.err
    (found,) = json.loads(run("analyze", *options, "--output-format", "json", "train.py").out)["findings"]
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "lr=" in each)
    assert f"line {line} of train.py, too" in found["message"]
