"""A script that cannot run today is mended first, and all else of it rests on that."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

CODEMODS = registry.load()
SCRIPT = """\
import torch
from torch import nn
{before}
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad(set_to_none=False)
    loss = model(torch.randn(2, 3)).sum()
    loss.backward()
    optimizer.step()
    print({shown})
"""


def rewriting(before: str, shown: str) -> pipeline.Rewriting:
    text = SCRIPT.format(before=before, shown=shown)
    return pipeline.apply(ENTRY, MemoryWorkspace({ENTRY: text}), CODEMODS, Target(), Risk.EQUIVALENT)


@pytest.mark.parametrize(
    ("before", "shown", "mended"),
    [
        ("", "loss.data[0]", True),
        ("from torchtext.legacy import data", "loss.item()", False),
        ("", "loss.item()", None),
    ],
)
def test_what_else_is_found_rests_on_what_stops_the_script(before: str, shown: str, mended: bool | None) -> None:
    done = rewriting(before, shown)
    (zeroing,) = [each for each in done.report.findings if each.codemod == "set-to-none"]
    assert [each.name for each in zeroing.assumes] == ([] if mended is None else ["script-mended"])
    assert done.report.accepts(zeroing) is (mended is not False)
    assert ("set_to_none=False" not in done.texts.get(ENTRY, "set_to_none=False")) is (mended is not False)
    assert ("loss.item()" in done.texts.get(ENTRY, "")) is (mended is not False)


def test_an_old_argument_is_read_as_the_word_of_its_length() -> None:
    text = 'x = "(async = 1)"  # async=2\n\n\ndef f(y):\n    return y.cuda(0, async=True), x\n'
    source = {Path(ENTRY): "import torch\n" + text}
    done = pipeline.apply(ENTRY, MemoryWorkspace(source), CODEMODS, Target(), Risk.EXACT)
    assert done.texts[ENTRY] == "import torch\n" + text.replace("async=True", "non_blocking=True")
