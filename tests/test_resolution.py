"""How the command that measures the resolution counts: by the text of a script, not by the model."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from benchmarks.precision import resolution


def lines(text: str) -> list[int]:
    return resolution.backward_lines(ast.parse(textwrap.dedent(text)))


def test_a_backward_counts_where_a_loop_of_the_file_reaches_it() -> None:
    assert lines("for x in data:\n    loss(x).backward()\n") == [2]
    assert lines("def learn(x):\n    loss(x).backward()\nwhile True:\n    agent.learn(x)\n") == [2]
    assert lines("def closure():\n    loss().backward()\nfor _ in range(9):\n    opt.step(closure)\n") == [2]
    assert lines("for x in data:\n    loss_scaler(loss, optimizer, clip_grad=1.0)\n") == [2]


def test_a_backward_that_no_loop_of_the_file_reaches_does_not_count() -> None:
    assert lines("loss(x).backward()\n") == []
    assert lines("def learn(x):\n    loss(x).backward()\nfor x in data:\n    show(x)\n") == []
    assert lines("class Wrapper:\n    def backward(self, x):\n        x.backward()\n") == []


def script(folder: Path, text: str, name: str = "train.py") -> None:
    (folder / "owner+name").mkdir(exist_ok=True)
    (folder / "owner+name" / name).write_text(textwrap.dedent(text), encoding="utf-8")


def test_the_table_counts_what_is_known_and_the_misses_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "scripts.tsv"
    listed.write_text("repository\tcommit\tpath\tstyle\nowner/name\t0\ttrain.py\tflat\n", encoding="utf-8")
    script(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader


        def train(model, dataset, settings):
            loader = DataLoader(dataset, batch_size=settings.size, num_workers=2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                loss = model(x).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    )
    assert resolution.main([str(tmp_path), "--scripts", str(listed), "--misses", "--processes", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    rates = {line[:40].strip(): line[66:].split() for line in told}
    assert rates["training loop found, of the scripts that"] == ["1", "1", "1", "100.0%"]
    assert rates["loader: num_workers"] == ["1", "1", "1", "100.0%"]
    assert rates["loader: batch_size"] == ["0", "0", "1", "0.0%"]
    assert [line for line in told if "batch_size: unknown" in line] == [
        "owner+name/train.py:7: loader-argument batch_size: unknown from settings.size"
    ]


def test_what_a_module_leaves_open_is_asked_of_the_script_that_imports_it(tmp_path: Path) -> None:
    script(tmp_path, "def train(model, opt, batches):\n    for x in batches:\n        model(x).backward()\n"
           "        opt.step()\n", "engine.py")  # fmt: skip
    script(
        tmp_path,
        """
        import torch
        from engine import train

        model = torch.nn.Linear(4, 1)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(8, 4)))
        train(model, torch.optim.SGD(model.parameters()), loader)
        """,
        "main.py",
    )
    alone = resolution.resolve((str(tmp_path), "owner+name", "engine.py", True))
    asked = resolution.resolve((str(tmp_path), "owner+name", "engine.py", False))
    question = ("values", "source")
    assert [each.state for each in alone.answers if (each.kind, each.question) == question] == ["unknown"]
    assert [each.state for each in asked.answers if (each.kind, each.question) == question] == ["seen"]
    assert [each.state for each in asked.answers if each.kind == "all-four"] == ["seen"]


def test_a_corpus_that_is_not_laid_out_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = tmp_path / "scripts.tsv"
    listed.write_text("repository\tcommit\tpath\tstyle\nowner/name\t0\ttrain.py\tflat\n", encoding="utf-8")
    assert resolution.main([str(tmp_path), "--scripts", str(listed)]) == 0
    assert capsys.readouterr().out.startswith("skipped: none of the 1 listed scripts")


def test_an_epoch_loop_is_looked_for_in_the_files_that_call_a_loop(tmp_path: Path) -> None:
    engine = """
        def train_epoch(model, loader, optimizer):
            model.train()
            for x in loader:
                loss = model(x).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """
    script(tmp_path, engine, "engine.py")
    job = (str(tmp_path), "owner+name", "engine.py")
    alone = [each for each in resolution.resolve((*job, True)).answers if each.question == "step"]
    assert [each.missing for each in alone] == [True]
    main = """
        import torch
        from engine import train_epoch

        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            train_epoch(model, [torch.zeros(2)], optimizer)
        """
    script(tmp_path, main, "main.py")
    (found,) = (each for each in resolution.resolve((*job, False)).answers if each.question == "step")
    assert not found.missing and found.answer.endswith("epochs 7")
