"""What becomes of a number that is read from a tensor, in its function and in all of the program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.interpreter.execution import execute

SCRIPT = Path("/project/train.py")

HEAD = """
import torch

class Log:
    def __init__(self):
        self.rows = []
        self.last = 0.0

    def tell(self, step, value):
        print(step, value)

    def keep(self, value):
        self.rows.append(value)

    def best(self):
        return min(self.rows)

class Stopper:
    def __init__(self):
        self.worst = 9.0

    def watch(self, value):
        if value > self.worst:
            raise SystemExit

def step(x):
    found = model(x).mean()
    return found.item(), x.shape[0]

log, stopper = Log(), Stopper()
model = torch.nn.Linear(4, 4).cuda()
"""


def uses(text: str, read: str = "loss.item()") -> tuple[str, str]:
    execution = execute(SCRIPT, SCRIPT.parent, {SCRIPT: HEAD + text}.get)
    assert execution is not None
    analysis = Analysis(execution)
    (event,) = [e for e in analysis.facts.of("sync") if analysis.facts.places.text(e.node, e.module) == read]
    found = (analysis.flow.uses(event.node, event.control, deep=deep) for deep in (False, True))
    near, far = (" ".join(sorted({each.kind for each in kinds})) for kinds in found)
    return near, far


LOOP = "for i in range(100):\n    loss = model(torch.rand(4, 4).cuda()).mean()\n    "


@pytest.mark.parametrize(
    ("body", "near", "far"),
    [
        ("print(loss.item())", "shown", "shown"),
        ("text = f'{loss.item():.3f}'\n    print('loss ' + text)", "shown", "shown"),
        ("text = 'loss {}'.format(loss.item())\n    print(text)", "shown", "shown"),
        ("text = 'step'\n    text += f' {loss.item()}'\n    print(text)", "shown", "shown"),
        # a name that is given another value is another name
        ("x = loss.item()\n    print(x)\n    x = i\n    if x > 3: break", "shown", "shown"),
        ("x = loss.item()\n    if i == 3: x = 0\n    if x > 3: break", "control", "control"),
        ("if i and last > 3: break\n    last = loss.item()", "control", "control"),
        ("x = loss.item()\n    if x is not None: print(x)", "shown", "shown"),
        # containers
        ("row = {'loss': loss.item(), 'step': i}\n    if row['step'] > 3: print(row['loss'])", "shown", "shown"),
        ("row = {}\n    row['loss'] = loss.item()\n    print(row)", "stored", "shown stored"),
        ("row = {}\n    row['loss'] = loss.item()\n    if row['loss'] > 3: break", "stored", "control stored"),
        ("rows.append(loss.item())\nprint(sum(rows) / len(rows))", "stored", "shown stored"),
        ("rows += [loss.item()]\nprint(rows)", "stored", "shown stored"),
        ("logs['loss'].append(loss.item())\nprint(logs)", "stored", "shown stored"),
        ("logs['loss'].append(loss.item())\nprint(logs['steps'])", "stored", "stored"),
        ("rows.append(loss.item())\nif rows[-1] > 3: print()", "stored", "control stored"),
        ("rows.append(loss.item())", "stored", "stored"),
        (
            "row = dict(loss=loss.item())\n    for key, value in row.items():\n        print(key, value)",
            "shown",
            "shown",
        ),
        ("sums['loss'] += loss.item()\nprint(sums['loss'] / 100, sums['steps'])", "summed", "shown summed"),
        ("total += loss.item()\nprint(total)", "summed", "shown summed"),
        # the project's own functions and objects
        ("log.tell(i, loss.item())", "shown", "shown"),
        ("log.keep(loss.item())", "passed", "stored"),
        ("log.keep(loss.item())\nif log.best() < 3: print()", "passed", "control returned stored"),
        ("stopper.watch(loss.item())", "passed", "control"),
        ("log.last = loss.item()\nprint(log.last)", "other", "other shown"),
        ("unknown(loss.item())", "other", "other"),
    ],
)
def test_a_number_is_followed_to_its_uses(body: str, near: str, far: str) -> None:
    assert uses(
        f"logs = {{'loss': [], 'steps': []}}\nrows, sums, total = [], {{'loss': 0.0, 'steps': 0}}, 0.0\n{LOOP}{body}\n"
    ) == (near, far)


def test_what_a_function_returns_is_followed_into_its_callers_one_item_apart_from_the_others() -> None:
    assert uses(
        "for i in range(9):\n    value, count = step(torch.rand(4, 4).cuda())\n    print(value)\n", "found.item()"
    ) == (
        "returned",
        "returned shown",
    )
    assert uses(
        "for i in range(9):\n    value, count = step(torch.rand(4, 4).cuda())\n    if count: break\n", "found.item()"
    ) == (
        "returned",
        "returned",
    )


def test_a_result_that_is_given_to_its_function_again_is_followed_once() -> None:
    text = """
def advance(x, rate):
    moved = x - rate * x
    return moved

times = model(torch.rand(4, 4).cuda())
x = torch.rand(4)
for i in range(9):
    x = advance(x, times[i].item())
print(x)
"""
    near, far = uses(text, "times[i].item()")
    assert near
    assert "shown" in far.split()


def test_functions_that_call_functions_are_followed_once_each() -> None:
    calls = "\n".join(f"def f{i}(x):\n    f{i + 1}(x)\n    f{i + 1}(x + 1)\n" for i in range(30))
    loop = "for i in range(9):\n    f0(model(torch.rand(4, 4).cuda()).mean().item())\n"
    text = f"def f30(x):\n    print(x)\n\n{calls}\n{loop}"
    assert uses(text, "model(torch.rand(4, 4).cuda()).mean().item()")[0]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("x = 1\nx = 2\ny = x\n", {2: [3]}),
        ("x = 1\nif y:\n    x = 2\nz = x\n", {1: [4], 3: [4]}),
        ("x = 1\nfor y in z:\n    a = x\n    x = 2\n", {1: [3], 4: [3]}),
        ("x = 1\nwhile x:\n    x = 2\n    break\nz = x\n", {1: [2, 5], 3: [5]}),
        ("x = 1\ntry:\n    x = 2\n    f()\nexcept E:\n    z = x\n", {1: [6], 3: [6]}),
        ("x = 1\nreturn x\nx = 2\n", {1: [2]}),
        ("x = 1\nx += 2\ny = x\n", {1: [2], 2: [3]}),
        ("x = 1\ny = [x for x in x]\nz = x\n", {1: [2, 3], 2: [2]}),
        ("x = 1\nf = lambda: x\nx = 2\n", {1: [2], 3: [2]}),
        ("x = 1\nif y:\n    x = 2\n    continue_ = 1\nelse:\n    return\nz = x\n", {3: [7]}),
    ],
)
def test_a_definition_reaches_the_reads_that_no_other_one_comes_before(body: str, lines: dict[int, list[int]]) -> None:
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    function = ast.parse(f"def f(y, z, E):\n{indented}").body[0]
    found: dict[int, list[int]] = {}
    for definition, reads in readers(function).items():
        if getattr(definition, "id", "") == "x":
            found[definition.lineno - 1] = [read.lineno - 1 for read in reads]  # type: ignore[attr-defined]
    assert found == lines
