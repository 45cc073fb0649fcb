"""What one process does for all: write files, show windows, fetch data, draw progress bars."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Bound, Const, Function, Instance, Method, members
from turbofix.library.tables import BARS, NAMES
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, stored
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.parallel.paths import in_front_of_tests, is_numbering
from turbofix.training.parallel.sharing import value_of
from turbofix.training.parallel.ways import on_the_way
from turbofix.training.parallel.wrapping import NotWrapped

_BARS = BARS | NAMES["progress"]
_WRITES = NAMES["writes"]
_WRITING = NAMES["writing_methods"]
_WRITERS = NAMES["makes_writer"]
_DISABLED = NAMES["disabled_by_mode"]
_OPENS = frozenset(("builtins.open", "io.open", "logging.FileHandler", "logging.handlers.RotatingFileHandler"))
_OF_DATA = frozenset(("__getitem__", "__getitems__", "__iter__", "forward", "collate_fn"))
_ASKS = NAMES["asks_user"]
_FETCHES = NAMES["fetches"]
_MOVING = frozenset(("replace", "rename", "unlink", "rmdir", "touch"))
_MOMENTARY = regex(r"\btempfile\b|mkdtemp|mkstemp|TemporaryDirectory|NamedTemporaryFile")
_ITS_MODE = frozenset("wax")


class Once:
    """The statements of a program's files that one process is to execute."""

    def __init__(
        self, analysis: Analysis, modules: Iterable[ModuleFile], *, normed: bool = False, starts: ast.AST | None = None
    ) -> None:
        self.starts = starts  # the function that starts the group, if one does
        self.normed = normed  # what a model computes in training needs all processes
        self.analysis, self.places = analysis, analysis.facts.places
        self.modules = list(modules)
        self.statements: list[tuple[ast.stmt, ModuleFile]] = []
        self.written: list[tuple[ast.stmt, ModuleFile]] = []  # what writes a file, as a statement or in one
        self.opened: list[Site] = []
        self.receivers: list[Site] = []
        self.writers: list[Site] = []
        self.disabled: list[Site] = []
        self.bars: list[Site] = []
        self.contexts: list[Site] = []
        self.fetching: list[tuple[ast.stmt, ModuleFile]] = []
        scopes = on_the_way(analysis)
        for module in self.modules:
            for call in every(ast.Call, module.tree):
                scope = self.places.scope(call, module)
                if id(scope) in scopes and not _is_of_each(scope):
                    self._look(call, module)

    def _name(self, call: ast.Call, module: ModuleFile) -> str | None:
        return self.analysis.facts.offered(call.func, module)

    def _look(self, call: ast.Call, module: ModuleFile) -> None:
        name = self._name(call, module) or ""
        site = self.places.site(call, module)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in _ASKS:
            raise NotWrapped("it asks its user, and each process would", site)
        if name in _BARS and name.startswith(("tqdm", "rich", "accelerate")):  # which `disable` turns off
            self.bars.append(site)
        elif name in _WRITERS:
            self.writers.append(site)
        elif name in _DISABLED:
            self.disabled.append(site)
        elif name in _OPENS or (not name and method == "open"):
            if name.startswith("logging") or self._mode(call, module) & _ITS_MODE:
                self._open(call, module)
                self._note(call, module)
        elif name in _WRITES or (not name and (method in _WRITING or _moves(call, self.places.parent(call, module)))):
            self._guard(call, module)
            self._note(call, module)
        if _downloads(call) or name in _FETCHES:
            self.fetching += self._fetching(call, module)

    def _mode(self, call: ast.Call, module: ModuleFile) -> set[str]:
        """The letters of all modes in which a file may be opened."""
        at = 0 if isinstance(call.func, ast.Attribute) else 1
        told = next((each.value for each in call.keywords if each.arg == "mode"), None)
        given = call.args[at] if len(call.args) > at else told
        held = members(value_of(self.analysis, given, module)) if given is not None else ()
        return {letter for each in held if isinstance(each, Const) for letter in str(each.value)}

    def _fetching(self, call: ast.Call, module: ModuleFile) -> Iterator[tuple[ast.stmt, ModuleFile]]:
        """The statements that fetch data: of what a function returns, those that call it.

        What only another call that fetches data leads to is a part of that one.
        """
        facts = self.analysis.facts
        at = [facts.frames(event) for event in facts.at(call)]
        for frames in map(facts.frames, facts.levels()):
            at += [frames[:place] for place, frame in enumerate(frames) if frame.call is call]
        for frames in at or [()]:
            ways = [(each.call, above.module) for above, each in itertools.pairwise(frames)]
            calls = [(each, place) for each, place in ways if isinstance(each, ast.Call)]
            if any(_downloads(each) for each, _ in calls):
                continue
            for each, place in ((call, module), *reversed(calls)):
                statement = self.places.statement(each, place)
                if statement is not None and not isinstance(statement, ast.Return):
                    statement = in_front_of_tests(self.places, statement, place)
                    if self._trains(statement):
                        why = "it fetches data in a statement that trains: set a name to them in front of it"
                        raise NotWrapped(why, self.places.site(statement, place))
                    yield statement, place
                    break

    def _trains(self, statement: ast.stmt) -> bool:
        """Whether a step's backward pass happens in a statement, or in what it calls."""
        inside, facts = {id(each) for each in walk(statement)}, self.analysis.facts
        return any(id(frame.anchor) in inside for each in facts.of("backward") for frame in facts.frames(each))

    def _open(self, call: ast.Call, module: ModuleFile) -> None:
        """A file that is written: as a block of its own by one process, else the other ones write into nothing."""
        statement = self.places.statement(call, module)
        if isinstance(statement, ast.With) and any(call is item.context_expr for item in statement.items):
            scope = self.places.scope(statement, module)
            inside = {id(each) for each in walk(statement)}
            outside = {dotted(each) for each in walk(scope) if id(each) not in inside and isinstance(each, ast.Name)}
            if (
                not stored(statement.body) & outside
                and not self._trains(statement)
                and not self._calls(statement, module)
            ):
                self.statements.append((statement, module))
                return
        if not isinstance(call.func, ast.Attribute) or (self._name(call, module) or "") in _OPENS:
            self.opened += [self.places.site(each, module) for each in call.args[:1]]
        else:
            self.receivers.append(self.places.site(call.func.value, module))

    def _calls(self, statement: ast.With, module: ModuleFile) -> bool:
        """Whether a block calls functions of the program's own, which all processes may have to be in."""
        for each in (one for inside in statement.body for one in walk(inside)):
            if isinstance(each, ast.Call):
                held = members(value_of(self.analysis, each.func, module))
                if any(isinstance(one, (Function, Bound, Method, Instance)) for one in held):
                    return True
        return False

    def _note(self, call: ast.Call, module: ModuleFile) -> None:
        statement = self.places.statement(call, module)
        if statement is not None:
            self.written.append((statement, module))

    def _guard(self, call: ast.Call, module: ModuleFile) -> None:
        statement = self.places.statement(call, module)
        if isinstance(statement, ast.With):
            plain = [each.context_expr for each in statement.items if each.optional_vars is None]
            self.contexts += [self.places.site(each, module) for each in plain if each is call]
        calls = {id(each.node) for each in self.analysis.facts.of("forward")} if self.normed else ()
        if statement is not None and any(id(each) in calls for each in walk(statement)):
            return
        may_be_there = any(each.arg == "exist_ok" for each in call.keywords)
        if isinstance(statement, ast.Expr) and (not may_be_there or is_numbering(self.places.scope(call, module))):
            self.statements.append((statement, module))

    def runs(self) -> tuple[tuple[Site, Site], ...]:
        """The statements that one process executes, those that follow on each other together."""
        chosen = {id(each) for each, _ in self.statements}
        inside = {id(one) for each, _ in self.statements for one in walk(each) if one is not each}
        found: list[tuple[Site, Site]] = []
        for statement, module in self.statements:
            if id(statement) in inside:
                continue
            block = self._block(statement, module)
            at = block.index(statement)
            if at and id(block[at - 1]) in chosen:
                continue
            last = at
            while last + 1 < len(block) and id(block[last + 1]) in chosen:
                last += 1
            run = (self.places.site(statement, module), self.places.site(block[last], module))
            found += [run] if run not in found else []
        return tuple(sorted(found))

    def narrowed(self) -> tuple[tuple[Site, Site], ...]:
        """The runs that are all of what is under a test: their first statement, and that test."""
        chosen, found = {id(each) for each, _ in self.statements}, dict[Site, Site]()
        for statement, module in self.statements:
            above = self.places.parent(statement, module)
            if isinstance(above, ast.If) and not above.orelse and all(id(each) in chosen for each in above.body):
                found[self.places.site(above.body[0], module)] = self.places.site(above.test, module)
        return tuple(found.items())

    def downloads(self) -> tuple[tuple[Site, Site], ...]:
        """The statements that fetch data, from the first to the last of one block."""
        found: dict[int, tuple[Site, Site]] = {}
        for statement, module in self.fetching:
            if self.places.scope(statement, module) is module.tree and module is not self.analysis.execution.entry:
                continue  # as it is imported there is no group yet
            block, site = self._block(statement, module), self.places.site(statement, module)
            first, last = found.get(id(block[0]), (site, site))
            found[id(block[0])] = (min(first, site), max(last, site))
        return tuple(found.values())

    def _block(self, statement: ast.stmt, module: ModuleFile) -> list[ast.stmt]:
        above = self.places.parent(statement, module)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(above, name, None)
            if isinstance(block, list) and statement in block:
                return block
        return [statement]

    def loads(self, saves: Iterable[ast.AST]) -> Iterator[Site]:
        """The statements that read a file behind those that may have written it."""
        written = {id(each) for each in saves}
        here = on_the_way(self.analysis)
        order = [each.order for each in self.analysis.facts.of("save") if id(each.node) in written]
        for event in self.analysis.facts.of("load"):
            beside = id(self.places.scope(event.node, event.module)) in here
            in_group = self.starts is None or any(
                each.scope is self.starts for each in self.analysis.facts.frames(event)
            )
            if event.name == "torch.load" and beside and in_group and order and event.order > min(order):
                statement = self.places.statement(event.node, event.module)
                if statement is not None:
                    yield self.places.site(in_front_of_tests(self.places, statement, event.module), event.module)


def _is_of_each(scope: ast.AST) -> bool:
    """Whether each process needs what a function writes: in a folder for the moment, or as part of its data."""
    name = getattr(scope, "name", "")
    return name in _OF_DATA or (isinstance(scope, FUNCTIONS) and _MOMENTARY.search(ast.unparse(scope)) is not None)


def _moves(call: ast.Call, parent: ast.AST | None) -> bool:
    """Whether a path moves or removes itself: of a text, nobody would leave the result."""
    alone = isinstance(parent, ast.Expr) and not any(each.arg == "inplace" for each in call.keywords)
    return alone and isinstance(call.func, ast.Attribute) and call.func.attr in _MOVING


def _downloads(call: ast.Call) -> bool:
    return any(each.arg == "download" and not _is_off(each.value) for each in call.keywords)


def _is_off(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def last_import(module: ModuleFile) -> tuple[ast.stmt, ast.stmt] | None:
    """The last import of a file's own level, behind which a name can be set, and the statement that follows it."""
    known: tuple[ast.stmt, ast.stmt] | None = None
    for each, following in itertools.pairwise(module.tree.body):
        if isinstance(each, (ast.Import, ast.ImportFrom)):
            known = each, following
        elif isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            break
    return known


def last_imports(analysis: Analysis, modules: Iterable[ModuleFile]) -> tuple[tuple[Site, Site], ...]:
    """The same of each file that has one."""
    places, found = analysis.facts.places, ((module, last_import(module)) for module in modules)
    return tuple((places.site(each[0], module), places.site(each[1], module)) for module, each in found if each)
