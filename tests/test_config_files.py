"""Values that stand in the project's YAML and JSON files, and what is made of them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from turbofix.training.model import Target, TrainingProgram
from turbofix.training.program import analyse

ROOT = Path("/project")

STEP = """
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
"""

TRAINING = """
    import torch, yaml, json
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader
    from data import Pictures
"""


def program(script: str, **files: str) -> TrainingProgram:
    """Analyse a script with other files beside it, each named with ``__`` for a slash and ``_`` before its suffix."""
    texts = {ROOT / _path(name): textwrap.dedent(text) for name, text in files.items()}
    texts[ROOT / "train.py"] = script
    texts[ROOT / "data.py"] = "class Pictures:\n    def __getitem__(self, i):\n        return open(i)\n"

    def beside(*suffixes: str) -> list[Path]:
        return sorted(path for path in texts if path.suffix in (suffixes or (".py",)))

    found = analyse(ROOT / "train.py", ROOT, texts.get, Target(), beside)
    assert found is not None
    return found


def _path(name: str) -> str:
    head, _, suffix = name.rpartition("_")
    return f"{head.replace('__', '/')}.{suffix}"


def script(load: str, *, batch: str = "cfg['batch_size']", workers: str = "cfg['loader']['num_workers']") -> str:
    """A training whose loader is told by a configuration."""
    return (
        textwrap.dedent(TRAINING)
        + textwrap.dedent(load)
        + textwrap.dedent(
            f"""
        loader = DataLoader(Pictures(), batch_size={batch}, num_workers={workers})
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        """
        )
        + textwrap.dedent(STEP)
    )


CONFIG = """
    batch_size: 32
    loader:
      num_workers: 0  # for debugging
"""


def test_a_value_is_read_from_the_file_that_is_named() -> None:
    found = program(script("cfg = yaml.safe_load(open('configs/base.yaml'))"), configs__base_yaml=CONFIG)
    (loader,) = found.loaders
    workers = loader.argument("num_workers")
    assert (workers.state, workers.values) == ("value", (0,))
    assert workers.option == "loader.num_workers in base.yaml"
    assert workers.edit_at is not None and workers.comment == "for debugging"
    assert (workers.edit_at.path, workers.edit_at.line) == (ROOT / "configs/base.yaml", 4)


def test_the_file_may_be_named_in_a_path_an_option_or_beside_the_script() -> None:
    for load in (
        "import os; cfg = yaml.load(open(os.path.join(os.path.dirname(__file__), 'configs', 'base.yaml')))",
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument('--config', default='configs/base.yaml')
        args = parser.parse_args()
        with open(args.config) as file:
            cfg = yaml.safe_load(file)
        """,
        "from pathlib import Path; cfg = yaml.safe_load((Path('configs') / 'base.yaml').read_text())",
        """
        from omegaconf import OmegaConf
        cfg = OmegaConf.merge(OmegaConf.load('configs/base.yaml'), OmegaConf.from_cli())
        """,
    ):
        found = program(script(load), configs__base_yaml=CONFIG, configs__other_yaml="batch_size: 7")
        assert found.loaders[0].argument("batch_size").values == (32,), load


def test_of_a_path_that_is_not_known_the_file_is_taken_that_has_what_is_read() -> None:
    load = "import sys; cfg = yaml.safe_load(open(sys.argv[1]))"
    files = {"configs__base_yaml": CONFIG, "configs__words_yaml": "vocabulary: 3\nmerges: 4", "data_json": '{"a": 1}'}
    assert program(script(load), **files).loaders[0].argument("batch_size").values == (32,)
    del files["configs__base_yaml"]
    assert program(script(load), **files).loaders[0].argument("batch_size").state == "unknown"


def test_what_is_read_may_be_read_in_another_file() -> None:
    load = "import sys; from net import batch_of; cfg = yaml.safe_load(open(sys.argv[1]))"
    net = "def batch_of(cfg):\n    width, rate = cfg['width'], cfg['rate']\n    return cfg['batch_size']\n"
    text = script(load, batch="batch_of(cfg)", workers="0")
    found = program(text, net_py=net, base_yaml="width: 8\nrate: 0.1\nbatch_size: 16")
    assert found.loaders[0].argument("batch_size").values == (16,)


def test_json_and_attributes() -> None:
    load = "from easydict import EasyDict; cfg = EasyDict(json.load(open('base.json')))"
    text = '{"batch_size": 32, "loader": {"num_workers": 2}}'
    found = program(script(load, batch="cfg.batch_size", workers="cfg.loader.num_workers"), base_json=text)
    assert found.loaders[0].argument("num_workers").values == (2,)


def test_hydra_composes_its_lists_of_defaults() -> None:
    text = (
        textwrap.dedent(TRAINING)
        + textwrap.dedent(
            """
        import hydra, os
        from hydra.utils import instantiate

        @hydra.main(config_path="conf", config_name=os.environ.get("CONFIG", default="train"), version_base=None)
        def main(cfg):
            loader = DataLoader(Pictures(), **cfg.data.loader)
            model = instantiate(cfg.model).cuda()
            optimizer = instantiate(cfg.optimizer, params=model.parameters())
        """
        )
        + textwrap.indent(textwrap.dedent(STEP), "    ")
        + "\nmain()\n"
    )
    found = program(
        text,
        conf__train_yaml="defaults: [data: big, model: plain, optimizer: adam, _self_]\nworkers: 3\n",
        conf__data__big_yaml="loader: {batch_size: 16, num_workers: '${workers}'}",
        conf__model__plain_yaml="_target_: net.Net\nwidth: 8",
        conf__optimizer__adam_yaml="# @package optimizer\n_target_: torch.optim.Adam\nlr: 3e-4",
        net_py="from torch import nn\nclass Net(nn.Module):\n    def __init__(self, width):\n"
        "        super().__init__()\n        self.layer = nn.Linear(width, 4)\n"
        "    def forward(self, x):\n        return self.layer(x)\n",
    )
    (loader,) = found.loaders
    assert loader.argument("batch_size").values == (16,)
    assert loader.argument("num_workers").values == (3,)
    assert [each.qualname for each in found.optimizers] == ["torch.optim.Adam"]
    assert found.models[0].layers == {"torch.nn.Linear"}


@pytest.mark.parametrize(
    "found",
    [
        "module, name = config['target'].rsplit('.', 1)",
        "parts = config['target'].rsplit('.', 1)\n            module = parts.pop(0)\n            name = parts[0]",
        "parts = config['target'].split('.')\n            module, name = '.'.join(parts[:-1]), parts[-1]",
        "text = config['target']\n            module, name = text[:text.rfind('.')], text[text.rfind('.') + 1:]",
    ],
)
def test_a_class_that_a_file_names_is_looked_up(found: str) -> None:
    load = f"""
        import importlib
        cfg = yaml.safe_load(open('base.yaml'))

        def make(config, **more):
            {found}
            return getattr(importlib.import_module(module), name)(**{{**config.get('params', {{}}), **more}})

        others = make(cfg['a']), make(cfg['b']), make(cfg['c']), make(cfg['d']), make(cfg['e'])
        net = make(cfg['net'])
    """
    text = script(load, batch="4", workers="0").replace("nn.Linear(4, 4)", "net")
    text = text.replace("torch.optim.Adam(", "make(cfg['optimizer'], params=")
    made = program(
        text,
        base_yaml="net: {target: torch.nn.Linear, params: {in_features: 4, out_features: 4}}\n"
        "optimizer: {target: torch.optim.SGD, params: {lr: 0.1}}",
    )
    assert [each.qualname for each in made.optimizers] == ["torch.optim.SGD"]
    assert made.models[0].layers == {"torch.nn.Linear"}


def test_what_modules_register_is_found_though_nobody_names_them() -> None:
    text = script("cfg = yaml.safe_load(open('none.yaml'))", batch="4", workers="0")
    text = text.replace("from data import", "import nets\nfrom registry import MODELS\nfrom data import")
    found = program(
        text.replace("nn.Linear(4, 4)", "MODELS.build(cfg['model'])"),
        registry_py="""
            class Registry:
                def __init__(self):
                    self.classes = {}
                def register(self, name=None):
                    def put(cls):
                        self.classes[name or cls.__name__] = cls
                        return cls
                    return put
                def build(self, cfg):
                    return self.classes[cfg.pop("type")](**cfg)
            MODELS = Registry()
        """,
        nets_py="""
            from torch import nn
            from registry import MODELS
            @MODELS.register()
            class Net(nn.Module):
                def __init__(self, width):
                    super().__init__()
                    self.layer = nn.Linear(width, 4)
                def forward(self, x):
                    return self.layer(x)
        """,
    )
    assert found.models[0].layers == {"torch.nn.Linear"}


def test_a_device_that_nobody_knows_may_be_a_gpu() -> None:
    text = script("cfg = yaml.safe_load(open('none.yaml'))", batch="4", workers="0")
    found = program(text.replace(".cuda()", ".to(cfg['device'])"))
    assert found.names_cuda and found.device.where == "unknown"


def test_lightnings_command_line_makes_what_a_file_names() -> None:
    found = program(
        "from lightning.pytorch.cli import LightningCLI\n\nLightningCLI()\n",
        config_yaml="trainer: {precision: 32, max_epochs: 3}\nmodel: {class_path: lit.Lit, init_args: {width: 8}}\n",
        src__lit_py="import lightning as L\nimport torch\nfrom torch import nn\n\n\nclass Lit(L.LightningModule):\n"
        "    def __init__(self, width):\n        super().__init__()\n        self.layer = nn.Linear(width, 1)\n"
        "    def training_step(self, batch, index):\n        return self.layer(batch).mean()\n"
        "    def configure_optimizers(self):\n        return torch.optim.Adam(self.parameters())\n",
    )
    (training,) = found.trainings
    assert training.parsed == "--trainer." and training.module is not None
    assert training.argument("precision").values == (32,)
    assert [each.qualname for each in found.optimizers] == ["torch.optim.Adam"]
