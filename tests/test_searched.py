"""Where a program looks for its own modules, and those that it names at run time."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from turbofix.source.searched import added_folders
from turbofix.training.model import Target, TrainingProgram
from turbofix.training.program import analyse

ROOT = Path("/project")

MODEL = """
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(x)
"""

TRAINING = """
import torch
from torch.utils.data import DataLoader
model = make().cuda()
optimizer = torch.optim.Adam(model.parameters())
for x, y in DataLoader(data, batch_size=4):
    loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def program(entry: str, head: str, **files: str) -> TrainingProgram:
    texts = {ROOT / name.replace("__", "/").replace("_py", ".py"): text for name, text in files.items()}
    texts[ROOT / entry] = textwrap.dedent(head) + TRAINING
    found = analyse(ROOT / entry, ROOT, texts.get, Target(), lambda: list(texts))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("sys.path.append('..')", "."),
        ("sys.path.insert(0, '../lib')", "lib"),
        ("sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))", "."),
        ("sys.path.append(os.path.join(os.path.dirname(__file__), '..', 'src'))", "src"),
        ("HERE = Path(__file__).resolve().parent\nsys.path.insert(0, str(HERE.parent / 'src'))", "src"),
        ("sys.path.append(str(Path(__file__).parents[1].joinpath('src')))", "src"),
        ("root = os.path.abspath(__file__ + '/../..')\nsys.path.append(root)", "."),
        ("sys.path.extend([os.getcwd()])", "."),
        ("sys.path += [f'{os.path.dirname(__file__)}/nets']", "tools/nets"),
        ("site.addsitedir(os.path.realpath('../src'))", "src"),
        ("here = os.path.dirname(inspect.getfile(inspect.currentframe()))\nsys.path.append(here + '/../src')", "src"),
    ],
)
def test_a_folder_that_is_added(text: str, folder: str) -> None:
    assert (ROOT / folder) in added_folders(f"import os, site, sys\n{text}\n", ROOT / "tools/train.py", ROOT)


@pytest.mark.parametrize("text", ["sys.path.append(folder)", "sys.path.append('/data/x')", "paths.append('..')"])
def test_no_folder_that_is_told(text: str) -> None:
    assert added_folders(f"import sys\n{text}\n", ROOT / "tools/train.py", ROOT) == []


@pytest.mark.parametrize(
    "head",
    [
        "import sys\nsys.path.append(__file__ + '/../../lib')\nfrom nets import Net as make\n",
        "from flat import Net as make\n",
        "import importlib\nmake = importlib.import_module('lib.nets').Net\n",
        "import importlib, sys\nmake = getattr(importlib.import_module(f'lib.{sys.argv[1]}'), 'Net')\n",
        "import sys\nmake = __import__('lib.' + sys.argv[1], fromlist=['Net']).Net\n",
        "import importlib, sys\nmake = importlib.import_module('lib.{}'.format(sys.argv[1])).Net\n",
        "import importlib, sys\nmake = importlib.import_module(sys.argv[1]).Net\n",
        "import importlib, sys\nmake = getattr(importlib.import_module('lib.gone'), 'Net')\n",
    ],
)
def test_a_model_of_the_project_is_found(head: str) -> None:
    found = program("tools/train.py", head, lib__nets_py=MODEL, lib__other_py="x = 1", src__flat_py=MODEL)
    (model,) = found.models
    assert model.layers == {"torch.nn.Linear"}
    assert [step.models for step in found.steps] == [(model.site,)]


def test_a_script_in_a_package_that_is_called_like_a_library_means_its_own() -> None:
    head = "from diffusers.nets import Net as make\n"
    (model,) = program("diffusers/tools/train.py", head, diffusers__nets_py=MODEL).models
    assert model.layers == {"torch.nn.Linear"}
    (model,) = program("tools/train.py", head, diffusers__nets_py=MODEL).models
    assert not model.layers_complete
    # nor in the library's own repository
    setup = 'import setuptools\nsetuptools.setup(name="diffusers")\n'
    (model,) = program("diffusers/tools/train.py", head, diffusers__nets_py=MODEL, setup_py=setup).models
    assert not model.layers_complete


def test_a_module_that_one_folder_has_is_found_though_that_is_put_on_the_path_from_outside() -> None:
    (model,) = program("tools/train.py", "from nets import Net as make\n", core__nets_py=MODEL).models
    assert model.layers == {"torch.nn.Linear"}
    # a library's, for it has another name; and which of two it is nobody says
    for files in ({"core__nets_py": "x = 1"}, {"core__nets_py": MODEL, "old__nets_py": MODEL}):
        (model,) = program("tools/train.py", "from nets import Net as make\n", **files).models
        assert not model.layers_complete


@pytest.mark.parametrize(
    "head",
    [
        "from somewhere import build as make\n",
        "import zoo\nmake = zoo.registry.build\n",
        "from zoo import Mixin\nclass make(Mixin):\n    def forward(self, x):\n        return self.fc(x)\n",
    ],
)
def test_a_model_that_another_library_makes_is_one(head: str) -> None:
    found = program("train.py", head)
    (model,) = found.models
    assert not model.layers_complete
    assert [step.models for step in found.steps] == [(model.site,)]
    assert model.device.where == "cuda"


TABLES = """
class Dicts(dict):
    def register(self, name):
        def wrap(cls):
            self[name] = cls
            return cls
        return wrap


class Registry:
    def __init__(self):
        self._made = {}

    def register(self, cls=None):
        def add(cls):
            self._made[cls.__name__] = cls
            return cls
        return add if cls is None else add(cls)

    def build(self, config):
        given = config.copy()
        return self._made[given.pop("type")](**given)


NETS, REGISTRY, TABLE = Dicts(), Registry(), {}


def register(name):
    def wrap(cls):
        TABLE[name] = cls
        return cls
    return wrap
"""


@pytest.mark.parametrize(
    ("decorator", "make"),
    [
        ("@NETS.register('net')", "NETS[sys.argv[1]]"),
        ("@NETS.register('net')", "NETS.get('net')"),
        ("@register('net')", "TABLE[sys.argv[1]]"),
        ("@REGISTRY.register()", "lambda: REGISTRY.build({'type': 'Net'})"),
    ],
)
@pytest.mark.parametrize("imported", ["import nets", "from nets import unused"])
def test_a_table_that_modules_fill_when_they_are_imported(decorator: str, make: str, imported: str) -> None:
    nets = "from tables import *\n" + MODEL.replace("class Net", f"{decorator}\nclass Net") + "unused = 1\n"
    head = f"import sys\n{imported}\nfrom tables import *\nmake = {make}\n"
    found = program("train.py", head, nets_py=nets, tables_py=TABLES)
    (model,) = found.models
    assert model.layers == {"torch.nn.Linear"}
