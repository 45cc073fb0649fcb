"""What libraries are imported ahead of the runs, and that a run cannot tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import warm

from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage, verify
from turbofix.verify.leading import leading_imports

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runs are forked on Linux alone")

LIBRARY = """
import os
from torch.nn.utils import clip_grad_norm_
os.environ["SET_BY_THE_LIBRARY"] = "1"
def clip(parameters, bound):
    clip_grad_norm_(parameters, bound)
"""

SCRIPT = """
import torch
import taken
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    taken.clip(model.parameters(), 1000.0)
    optimizer.step()
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    folder = tmp_path / "environment" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "taken.py").write_text(LIBRARY)
    (folder / "plain.py").write_text("")
    (folder / "later.py").write_text("print('imported')\n")
    return folder


def test_a_library_that_was_imported_ahead_is_watched_as_well(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    stage = Stage(None, Risk.EQUIVALENT, {script: SCRIPT.replace("1000.0", "2000.0").encode()})
    found = verify(Request(script, (), (stage,), Options(timeout=120)))
    assert found.verdict == "fail"
    assert "clip_grad_norm_ clips at 2000 instead of 1000" in found.reason


WATCHED = """
import sys
sys.path.insert(0, FOLDER)
from turbofix.verify.probe import ahead
imports = ahead.Imports()
imports.watch()
exec(compile(open("script.py").read(), "script.py", "exec"), {})
found = [name for name in imports.of_libraries() if name in ("taken", "plain", "later")]
for name in found:
    del sys.modules[name]
print(found, ahead.import_all(found, remap=False))
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import taken\nimport plain\n", "['taken', 'plain'] True"),
        # what a library has set it sets again, what the script has set it may not have set before
        ("import os\nimport taken\nos.environ['SET_BY_THE_SCRIPT'] = '1'\nimport later\n", "['taken'] True"),
        # what an import prints would be missing
        ("import later\n", "['later'] False"),
    ],
)
def test_what_the_script_has_a_say_in_is_left_to_it(
    libraries: Path, tmp_path: Path, kept_interpreters: warm.Kept, text: str, told: str
) -> None:
    (tmp_path / "script.py").write_text(text)
    done = kept_interpreters.told(WATCHED.replace("FOLDER", repr(str(libraries))), tmp_path)
    assert done.splitlines()[-1] == told


def test_the_first_run_begins_with_what_the_script_imports_before_it_does_anything_else(tmp_path: Path) -> None:
    def begins(text: str, **modules: str) -> tuple[str, ...]:
        for name, module in modules.items():
            (tmp_path / f"{name}.py").write_text(module)
        script = tmp_path / "train.py"
        script.write_text(text)
        return leading_imports(script, Path.read_bytes)

    assert begins('"""Trains."""\nimport os, json\nfrom torch import nn\nx = 1\nimport later\n') == (
        "os",
        "json",
        "torch",
    )
    # its own modules import before it goes on; one that changes the environment has a say in what comes next
    own = {
        "nets": "import torchvision.models as zoo\nclass Net: pass\n",
        "places": "import sys\nsys.path.append('..')\n",
    }
    assert begins("import nets\nfrom nets import Net\nimport einops\n", **own) == ("torchvision.models", "einops")
    assert begins("import nets, places\nimport einops\n", **own) == ("torchvision.models", "sys")
    (tmp_path / "core").mkdir()  # a module below imports as seen from the script
    (tmp_path / "core" / "__init__.py").write_text("import math\nimport nets\n")
    assert begins("import core\nimport einops\n") == ("math", "torchvision.models", "einops")
    (tmp_path / "datasets").mkdir()  # where its modules are is not known
    assert begins("import math\nimport datasets\nimport einops\n") == ("math",)
