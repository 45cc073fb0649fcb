"""What a script does beside training that several processes would do several times: files, logs, bars, the clock."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import External, members
from turbofix.library.tables import BARS, NAMES
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.site import Site
from turbofix.training.parallel.sharing import value_of

_BARS = BARS | NAMES["progress"]
_MADE = frozenset(("torch.save", "os.makedirs", "os.mkdir"))
_OPENS = regex(
    r"(builtins\.|io\.|codecs\.|gzip\.|bz2\.|zipfile\.|tarfile\.|h5py\.|pandas\.)?(open|ZipFile|File|HDFStore)"
)
_OTHERS = frozenset().union(
    *(NAMES[each] for each in ("writes", "fetches", "asks_user", "makes_writer", "disabled_by_mode", "entropy"))
) | (NAMES["clock"] - {"time.time"})
_LIBRARIES = regex(
    r"(?m)^\s*(import|from) [^#\n]*\b(loguru|hydra|torchmetrics|logging|subprocess|mlflow|wandb|comet_ml|neptune|visdom"
    r"|optuna|ray|requests|sqlite3|threading)\b|SystemRandom|as_completed\(|imap_unordered\(|WebDataset\(|PoolExecutor\("
)
"""What writes, shows or asks in ways of its own."""
_DEVICES = regex(
    r"cuda:([1-9]|\{|%|['\"])|CUDA_VISIBLE_DEVICES|set_device|device_count|device_ids|\.cuda\([^)\s]|torch\.device\([^'\"]"
)
"""What may name another GPU than the first."""
_WRITES = regex(r"(im)?(save|write|export|dump|log)\w*")


class Files:
    """The calls that one process makes for all: what it saves (``made``), bars, and what it fetches first.

    ``other`` is what else is done beside the training, which one process has to do.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.made: dict[Site, None] = {}
        self.bars: dict[Site, None] = {}
        self.fetching: dict[Site, None] = {}
        self.other: Site | None = None
        modules = [*analysis.execution.modules.values()]
        classes = [each for module in modules for each in every(ast.ClassDef, module.tree)]
        self.own = {each.name for module in modules for each in every(ast.FunctionDef, module.tree)}
        self.own |= {each.name for each in classes if "def __init__" in ast.unparse(each)}
        for module in modules:
            if _LIBRARIES.search(module.text) or _DEVICES.search(module.text):
                self.other = self.other or analysis.facts.places.site(module.tree, module)
            for call in every(ast.Call, module.tree):
                self._look(call, module)

    def _look(self, call: ast.Call, module: ModuleFile) -> None:
        places, last = self.analysis.facts.places, (dotted(call.func) or "").rpartition(".")[2]
        name = self.analysis.facts.offered(call.func, module) or ""
        if not name and not last.startswith(("add_", "append")):  # one of several, or a module, that something holds
            held = members(value_of(self.analysis, call.func, module))
            name = next((each.qualname for each in held if isinstance(each, External)), "")
        site, func = places.site(call, module), places.site(call.func, module)
        if last in self.own and not name:
            return
        if name in _BARS and name.startswith(("tqdm", "rich")):  # which `disable` turns off
            self.bars[site] = None
        elif name in _MADE or (last == "mkdir" and not name):
            self.made[func] = None
        elif _downloads(call, name) or name.startswith("sklearn.datasets.fetch_") or name == "torch.hub.load":
            self.fetching[func] = None
        elif self._is_other(call, name, last, module):
            self.other = self.other or site

    def _is_other(self, call: ast.Call, name: str, last: str, module: ModuleFile) -> bool:
        if _OPENS.fullmatch(name or last):
            given = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
            return bool(given) and ast.unparse(given[0]).strip("'\"") not in ("r", "rb", "rt")
        if name in NAMES["entropy"] and not name.startswith(("os.", "secrets.")):
            return not (call.args or call.keywords)
        by_chance = last == "seed" and not (call.args or call.keywords)
        listed = name in _OTHERS or name in _BARS or last in NAMES["writing_methods"] or by_chance
        if name.startswith("sys."):
            return False
        of_library = bool(name) and not name.startswith(("torch.", "math.", "numpy.log", "builtins."))
        alone = isinstance(self.analysis.facts.places.parent(call, module), ast.Expr)
        return listed or bool(_WRITES.fullmatch(last.lower()) and (of_library or alone))


def _downloads(call: ast.Call, name: str) -> bool:
    """Whether a call fetches data, or weights, where an argument asks for them."""
    asking = {"download", "pretrained"} | ({"weights"} if name.startswith("torchvision.models.") else set())
    given = [each.value for each in call.keywords if each.arg in asking]
    return any(not (isinstance(each, ast.Constant) and not each.value) for each in given)
