"""What one process does for all that run the same script: it writes files, fetches data, asks and reads the clock.

All processes come by each of these calls, so a call itself is what one of them makes: the others wait for it, and have
what it returns. Whatever stands around it is done by all, and stays as it is.
"""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Const, External, members
from turbofix.library.tables import BARS, NAMES
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, reads_of, targets_of
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.parallel.sharing import value_of
from turbofix.training.script import is_guard

_BARS = BARS | NAMES["progress"]
_WRITTEN = NAMES["writes"]
_LAST = frozenset(each.rpartition(".")[2] for each in _WRITTEN)
_STOPWATCHES = frozenset(("time.perf_counter", "time.monotonic", "time.process_time"))
_NAMES_BAR = regex(r"tqdm|range|bar|progress")
_LOGS = frozenset(
    ("logging.FileHandler", "logging.handlers.RotatingFileHandler", "loguru.logger.add", "cv2.VideoWriter")
)
"""What is written from now on."""
_TABLES = frozenset(("h5py.File", "pandas.HDFStore"))
"""What can be written into a file alone, and not into nothing."""
_OPENS = (_LOGS | _TABLES) | frozenset(
    ("builtins.open", "io.open", "codecs.open", "gzip.open", "bz2.open", "zipfile.ZipFile", "tarfile.open")
)
_READS = frozenset(("numpy.load", "torch.load", "pandas.read_csv", "joblib.load", "pandas.read_json"))
_OF_DATA = frozenset(("__getitem__", "__getitems__", "__iter__", "forward", "collate_fn"))
_MOVING = frozenset(("save", "replace", "rename", "unlink", "rmdir", "touch"))
_MOMENTARY = regex(r"\btempfile\b|mkdtemp|mkstemp|TemporaryDirectory|NamedTemporaryFile")
_SHOWS = regex(r"print|info|debug|warn|log|write|echo|describ|desc")
_WRITES = regex(r"(im)?(save|write|export)\w*")
_SAVES = regex(r"(save|export|dump|write)_(?!rows?\b)\w+|export")
_FILE = regex(r"^[^ ]*[\w}]\.[a-z]\w{1,4}['\"]$|^(os\.)?path\.join\(")
"""What is the name of a file, and no text to put into one."""
_BY_ITSELF = ("accelerate.", "csv.", "deepspeed.", "os.", "sys.", "torch.", "tqdm.", "wandb.")
"""What takes a file that is open, or knows of processes."""
_LOGGING = frozenset(("Formatter", "Handler", "StreamHandler", "FileHandler", "Filter"))
_WRITING_MODES = frozenset("wax+")


class Files:
    """The calls of a program's files that one process makes, or makes otherwise than the other ones."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.places = analysis, analysis.facts.places
        self.made: dict[Site, None] = {}  # what is called
        self.opened: dict[Site, None] = {}
        self.logs: dict[Site, None] = {}  # of these, files that are open for long
        self.both: dict[Site, None] = {}  # of these, files that are read and written
        self.receivers: dict[Site, None] = {}
        self.told: dict[Site, str] = {}  # files that are read or written, as a variable says
        self.writers: dict[Site, None] = {}
        self.disabled: dict[Site, None] = {}
        self.bars: dict[Site, None] = {}
        self.streams: dict[Site, None] = {}  # bars that are written to a file
        self.contexts: dict[Site, None] = {}
        self.fetching: dict[Site, None] = {}  # what makes a data set, and fetches its files
        self.alone: dict[Site, None] = {}  # what one process calls, and nobody waits for
        self.shown: dict[Site, None] = {}  # windows and questions, for which the others wait
        self.metrics: dict[Site, None] = {}  # what adds up over processes by itself, where each has all of it
        self.settled: dict[Site, None] = {}  # statements that write a file which something reads
        self.read: list[ast.AST] = []
        self.written: list[tuple[ast.stmt, ModuleFile, ast.AST]] = []
        entry = analysis.execution.entry
        trees = [module.tree for module in analysis.execution.modules.values()]
        functions = {each.name for tree in trees for each in every(ast.FunctionDef, tree)}
        classes = [each for tree in trees for each in every(ast.ClassDef, tree)]
        methods = {one.name for each in classes for one in each.body if isinstance(one, ast.FunctionDef)}
        self.own, self.methods = functions, methods  # what writes in there is found there
        paths = [module.path for module in analysis.execution.modules.values()]
        self.project = {each.stem for each in paths} | {each.parent.name for each in paths}
        self.made_here = functions | {each.name for each in classes if "def __init__" in ast.unparse(each)}
        heard = _of_loggers(trees, classes)
        loops = [analysis.facts.loops(each) for each in analysis.facts.of("backward")]
        stepping = {id(each.node) for some in loops for each in some[-1:]}
        for module in analysis.execution.modules.values():
            for call in every(ast.Call, module.tree):
                scope = self.places.scope(call, module)
                aside = module is not entry and any(is_guard(each) for each in self.places.ancestors(call, module))
                if getattr(scope, "name", "") not in heard and not _is_of_each(scope) and not aside:
                    above = {id(each) for each in self.places.ancestors(call, module)}
                    self._look(call, module, steps=bool(above & stepping))
        for statement, module, path in self.written:
            if any(_may_be_one(path, each) for each in self.read):
                self.settled[self.places.site(self._attempt(statement, module), module)] = None

    def _attempt(self, statement: ast.stmt, module: ModuleFile) -> ast.stmt:
        """The ``try`` around a statement that writes, which may fail in the one process that does; or that itself."""
        below: ast.AST = statement
        for above in self.places.ancestors(statement, module):
            if isinstance(above, (*FUNCTIONS, *LOOPS, ast.ClassDef)):
                break
            if isinstance(above, ast.Try) and below in above.body:
                inside = {id(each) for each in walk(above)}
                plain = above.handlers and not above.finalbody and not any(id(each) in inside for each in self.read)
                return above if plain else statement
            below = above
        return statement

    def _look(self, call: ast.Call, module: ModuleFile, *, steps: bool) -> None:
        name = (self.analysis.facts.offered(call.func, module) or "").replace("matplotlib.pylab.", "matplotlib.pyplot.")
        called = (dotted(call.func) or "").rpartition(".")[2]
        if not name and (
            _NAMES_BAR.search(dotted(call.func) or "") or called in _LAST
        ):  # one of several, or a module, that something holds
            held = members(value_of(self.analysis, call.func, module))
            found = [each.qualname for each in held if isinstance(each, External)]
            name = next((each for each in found if each in _BARS | _WRITTEN), "")
        method = call.func.attr if isinstance(call.func, ast.Attribute) and not name else ""
        method = "" if method in (self.own if _is_of_module(call, module) else self.methods) else method
        site, func = self.places.site(call, module), self.places.site(call.func, module)
        parent = self.places.parent(call, module)
        if name.partition(".")[0] in self.project:
            return
        if name in _BARS and name.startswith(("tqdm", "rich", "accelerate")):  # which `disable` turns off
            self.bars[site] = None
        elif name.startswith("progress.") and not any(each.arg == "file" for each in call.keywords):
            self.streams[site] = None
        elif name in NAMES["makes_writer"] or method == "SummaryWriter":
            self.writers[func] = None
        elif name.startswith("torchmetrics.") and name.rpartition(".")[2][:1].isupper() and "Collection" not in name:
            self.metrics[site] = None
        elif name in NAMES["disabled_by_mode"]:
            modes = [each.value for each in call.keywords if each.arg == "mode"]
            if not any(isinstance(each, ast.Constant) and each.value == "disabled" for each in modes):
                self.disabled[site] = None
        elif name == "logging.basicConfig":
            named = [each.value for each in call.keywords if each.arg == "filename"]
            self.opened.update({self.places.site(each, module): None for each in named})
            self.logs.update({self.places.site(each, module): None for each in named})
        elif name in _OPENS or method == "open":
            given = call.args[1 if name else 0 :] or [each.value for each in call.keywords if each.arg == "mode"]
            letters, known = self._letters(given[0] if given else None, module)
            asked = dotted(given[0]) if given else None  # by which a file may be read as well
            either = bool(asked and name) and ("r" in letters or not known) and name not in _TABLES
            if name in _LOGS or letters & _WRITING_MODES or either:
                self._open(call, module, name, both="+" in letters or name in _TABLES)
                if either:
                    self.told.update({self.places.site(each, module): asked or "" for each in call.args[:1]})
            elif not steps:
                self.read += call.args[:1] if name else [call.func]
        elif name in _READS or method in ("read_text", "read_bytes"):
            self.read += call.args[:1] if name else [call.func]
        elif name in NAMES["writes"] and isinstance(parent, ast.withitem) and parent.optional_vars is None:
            self.contexts[func] = None
        elif name == "matplotlib.pyplot.show" and isinstance(parent, ast.Expr):
            self._make(call, module)
            self.shown[site] = None
        elif name in ("os.mkdir", "os.makedirs") or method == "mkdir":
            # what is there is found by what comes before it, so that all have to wait for each other
            may_be_there = any(each.arg == "exist_ok" and _is_on(each.value) for each in call.keywords)
            if not may_be_there or self.places.scope(call, module) is not module.tree:
                self._make(call, module)
        elif name == "os.fsync":  # of a file that is another one in each process
            self.alone[func] = None
        elif (
            name in NAMES["writes"] | NAMES["fetches"] | NAMES["asks_user"]
            or (method or name.rpartition(".")[2]) in NAMES["writing_methods"]
            or (isinstance(parent, (ast.Expr, ast.Assign)) and _writes(name, method, call))
        ):
            self._make(call, module)
            if name in NAMES["asks_user"]:
                self.shown[site] = None
        elif (
            (method and _moves(call, parent))
            or (name in NAMES["clock"] and not steps and self._tells(call, module))
            or (name in NAMES["clock"] | _STOPWATCHES and self._decides(call, module))
        ):
            self.made[func] = None
        elif name == "tempfile.mkdtemp":  # of the run, as no function is done with it
            self._make(call, module)
        elif name in NAMES["entropy"] and (name.startswith(("os.", "secrets.")) or not (call.args or call.keywords)):
            self.made[func] = None  # all go on with the generator of the first process, and its numbers
        elif (
            (
                _downloads(call, name)
                and (dotted(call.func) or "").rpartition(".")[2] not in self.made_here
                and name != "functools.partial"
            )
            or name.startswith("sklearn.datasets.fetch_")
            or name == "torch.hub.load"
        ):
            self.fetching[func] = None

    def _make(self, call: ast.Call, module: ModuleFile) -> None:
        self.made[self.places.site(call.func, module)] = None

    def _tells(self, call: ast.Call, module: ModuleFile) -> bool:
        """Whether a call reads the clock for more than to measure or to print: for a name, a seed, a decision."""
        name, parent = self.analysis.facts.offered(call.func, module) or "", self.places.parent(call, module)
        if len(call.args) > name.endswith("strftime") and not name.startswith("datetime"):
            return False  # it writes out a time that it is given
        below: ast.AST = call
        for above in self.places.ancestors(call, module):
            if isinstance(above, ast.stmt):
                if isinstance(above, (ast.If, ast.While)) and below is above.test:
                    return True
                if isinstance(above, ast.Expr) and _SHOWS.search(ast.unparse(above).partition("(")[0]):
                    return False
                break
            below = above
        if name == "time.time":
            while isinstance(parent, ast.BinOp) and not isinstance(parent.op, ast.Sub):
                parent = self.places.parent(parent, module)
            return isinstance(parent, (ast.Call, ast.FormattedValue))
        return not self._is_start(parent, module)

    def _decides(self, call: ast.Call, module: ModuleFile) -> bool:
        """Whether it hangs on what a clock says, now or later, what else is done: processes would disagree."""
        statement = self.places.statement(call, module)
        scope: ast.AST = self.places.scope(call, module)
        told = {dotted(each) or "" for each in targets_of(statement or call)}
        if any("." in each for each in told):  # other methods may read it
            scope = module.tree
        kept = [each for each in walk(scope) if isinstance(each, (ast.Assign, ast.AnnAssign, ast.AugAssign))]
        for _ in range(3):
            for setting in kept:
                if told & _names_in(setting.value):
                    told |= {dotted(target) or "" for target in targets_of(setting)}
        told.discard("")
        for each in walk(scope):
            test = each.test if isinstance(each, (ast.If, ast.While)) else None
            if isinstance(each, ast.Return) and isinstance(each.value, ast.Compare):
                test = each.value
            hangs = test is not None and (told & _names_in(test) or any(one is call for one in walk(test)))
            if hangs and not (isinstance(each, ast.If) and _only_shows(each)):
                return True
        return False

    def _is_start(self, parent: ast.AST | None, module: ModuleFile) -> bool:
        """Whether a time is kept, or taken, for the difference to another one."""
        target = parent.targets[0] if isinstance(parent, ast.Assign) else None
        if isinstance(target, ast.Name):
            reads: list[ast.AST] = [*reads_of(target.id, self.places.scope(target, module))]
        elif isinstance(target, ast.Attribute):
            named = [each for each in every(ast.Attribute, module.tree) if dotted(each) == dotted(target)]
            reads = [each for each in named if isinstance(each.ctx, ast.Load)]
        if isinstance(target, (ast.Name, ast.Attribute)):
            return all(isinstance(self.places.parent(each, module), ast.BinOp) for each in reads)
        return isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub)

    def _letters(self, mode: ast.expr | None, module: ModuleFile) -> tuple[set[str], bool]:
        """The letters of all modes in which a file may be opened, and whether they are known."""
        held = members(value_of(self.analysis, mode, module)) if mode is not None else ()
        known = all(isinstance(each, Const) for each in held) and bool(held or mode is None)
        return {letter for each in held if isinstance(each, Const) for letter in str(each.value)}, known

    def _open(self, call: ast.Call, module: ModuleFile, name: str, *, both: bool) -> None:
        """A file that is written: the other processes write into nothing, or into a copy where they read it, too."""
        statement = self.places.statement(call, module)
        given = [*call.args[:1], *(each.value for each in call.keywords if each.arg in ("file", "filename"))][:1]
        if name not in _OPENS and isinstance(call.func, ast.Attribute):
            given = [call.func.value]
        if isinstance(statement, (ast.With, ast.Expr)) and name not in _LOGS:
            self.written += [(statement, module, path) for path in given]
        if both:
            self.both.update({self.places.site(each, module): None for each in given})
        elif name in _OPENS:
            for each in given:
                self.opened[self.places.site(each, module)] = None
                if name in _LOGS:
                    self.logs[self.places.site(each, module)] = None
        elif isinstance(call.func, ast.Attribute):
            self.receivers[self.places.site(call.func.value, module)] = None


def _names_in(node: ast.AST | None) -> set[str]:
    """The variables and attributes that an expression reads."""
    return {dotted(each) or "" for each in walk(node) if isinstance(each, (ast.Name, ast.Attribute))} if node else set()


def _only_shows(node: ast.If) -> bool:
    """Whether what hangs on a test is no more than what is printed, and when that was."""
    inside = [one for each in (*node.body, *node.orelse) for one in walk(each)]
    ends = any(isinstance(each, (ast.Break, ast.Continue, ast.Return, ast.Raise)) for each in inside)
    shown = {id(one) for each in inside if isinstance(each, ast.Call) and _shows(each) for one in walk(each)}
    calls = [each for each in inside if isinstance(each, ast.Call) and id(each) not in shown]
    return not ends and all("time" in (dotted(each.func) or "") for each in calls)


def _shows(call: ast.Call) -> bool:
    return _SHOWS.search((dotted(call.func) or "").rpartition(".")[2]) is not None


def _is_of_module(call: ast.Call, module: ModuleFile) -> bool:
    """Whether what is called may be a file's own function, by a name that the file's is imported as."""
    brought = [one for each in every(ast.Import, module.tree) for one in each.names]
    brought += [one for each in every(ast.ImportFrom, module.tree) for one in each.names]
    names = {one.asname or one.name.partition(".")[0] for one in brought}
    return (dotted(call.func) or "").partition(".")[0] in names


def _may_be_one(written: ast.AST, read: ast.AST) -> bool:
    """Whether two expressions may name one file: not where each has texts of its own."""
    one, other = ({each.value for each in walk(node) if isinstance(each, ast.Constant)} for node in (written, read))
    return not one or not other or bool(one & other)


def _of_loggers(trees: list[ast.Module], classes: list[ast.ClassDef]) -> set[str]:
    """The functions by which loggers write, which only the first process comes by: the others' are silent."""
    bases = [(each, {(dotted(base) or "").rpartition(".")[2] for base in each.bases}) for each in classes]
    bodies: list[ast.AST] = [each for each, names in bases if names & _LOGGING]
    found: set[str] = set()
    while bodies:
        nodes = [node for body in bodies for node in walk(body)]
        methods = {each.name for each in nodes if isinstance(each, ast.FunctionDef)}
        fresh = methods | {
            each.func.id for each in nodes if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        }
        bodies = [
            each for tree in trees for each in every(ast.FunctionDef, tree) if each.name in fresh - methods - found
        ]
        found |= fresh
    return found


def _is_of_each(scope: ast.AST) -> bool:
    """Whether each process needs what a function writes: in a folder for the moment, or as part of its data."""
    name = getattr(scope, "name", "")
    return name in _OF_DATA or (isinstance(scope, FUNCTIONS) and _MOMENTARY.search(ast.unparse(scope)) is not None)


def _moves(call: ast.Call, parent: ast.AST | None) -> bool:
    """Whether a path moves or removes itself: of a text, nobody would leave the result."""
    alone = isinstance(parent, ast.Expr) and not any(each.arg == "inplace" for each in call.keywords)
    return alone and isinstance(call.func, ast.Attribute) and call.func.attr in _MOVING


def _writes(name: str, method: str, call: ast.Call) -> bool:
    """Whether a library's function, or a method that no class of the project has, writes a file, as its name says, or
    ``save=`` asks for."""
    last = name.rpartition(".")[2]
    of_library = name and last[:1].isalpha() and not name.startswith(_BY_ITSELF)
    given = [each.value for each in call.keywords if each.arg == "save"]
    asked = any(not isinstance(each, ast.Constant) or each.value for each in given)
    if method == "write" and call.args and _FILE.search(ast.unparse(call.args[0])):
        return True
    return bool(_SAVES.fullmatch(method) or (of_library and (asked or _WRITES.fullmatch(last.lower()))))


def _is_on(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def _downloads(call: ast.Call, name: str) -> bool:
    """Whether a call fetches data, or weights, where an argument asks for them."""
    asking = {"download", "pretrained"} | ({"weights"} if name.startswith("torchvision.models.") else set())
    given = [each.value for each in call.keywords if each.arg in asking]
    return any(not (isinstance(each, ast.Constant) and not each.value) for each in given)
