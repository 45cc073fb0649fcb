"""What becomes of the value of an expression: it is summed, shown, stored, returned, or it decides something.

The value is followed upwards through its statement, and on through the names that it is given in its function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import field

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.acts import is_module_class, stepper
from turbofix.program.analysis import Analysis
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame
from turbofix.program.names import dotted, reads_of, targets
from turbofix.program.printers import is_printer
from turbofix.program.sites import COMPREHENSIONS, contains
from turbofix.program.values import Instance, members
from turbofix.records import dataclass

STORING = frozenset({"append", "extend", "add", "insert", "put", "appendleft", "setdefault", "push", "send"})
"""Methods that keep their argument."""

_PASSING = frozenset(
    {
        "float", "int", "round", "abs", "str", "repr", "format", "bool", "sum", "exp", "log", "sqrt", "log2", "log10",
        "pow", "isfinite", "isnan", "isinf", "array", "asarray", "mean", "float32", "float64", "squeeze", "tuple",
        "list", "dict", "average", "detach", "cpu", "numpy", "item", "tolist", "join", "ljust", "rjust", "zip",
        "argmax", "floor", "ceil",
    }
)  # fmt: skip
_CHOOSING = frozenset({"max", "min", "sorted"})
_EXACT = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_DEEPEST = 6


@dataclass(eq=False)
class Fate:
    """What was seen to become of one value.

    ``uses`` are members of ``Sync.use``. ``plain``: nothing but ``+ - * /`` lies between the value and its use.
    ``chosen``: it went through ``max``, ``min`` or ``sorted``. ``unread``: nothing reads the list that it is stored in.
    ``forgotten``: and the list ends with its function.
    """

    analysis: Analysis
    frames: tuple[Frame, ...]
    module: ModuleFile
    uses: set[str] = field(default_factory=set)
    update: ast.AugAssign | None = None
    meter: tuple[ast.Call, Instance] | None = None
    shows: list[ast.AST] = field(default_factory=list)
    chosen: bool = False
    unread: bool = False
    forgotten: bool = False
    plain: bool = True
    _seen: set[int] = field(default_factory=set)

    def follow(self, node: ast.AST, depth: int = _DEEPEST) -> Fate:
        """Note what becomes of the value of an expression; the fate itself."""
        current: ast.AST | None = node
        while current is not None:
            if id(current) in self._seen:
                return self
            self._seen.add(id(current))
            current = self._step(current, depth)
        return self

    def _step(self, node: ast.AST, depth: int) -> ast.AST | None:
        """The expression around a node that stands for its value; None where the value came to its use."""
        parent = self.analysis.facts.places.parent(node, self.module)
        if isinstance(parent, ast.BinOp):
            self.plain = self.plain and isinstance(parent.op, _EXACT)
            return parent
        if isinstance(parent, ast.UnaryOp):
            self.plain = self.plain and isinstance(parent.op, ast.USub)
            return parent
        if isinstance(parent, (ast.Tuple, ast.List)) and self._is_unpacked(node, parent, depth):
            return None
        if isinstance(parent, (ast.Starred, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.keyword, ast.Await)):
            return parent
        if isinstance(parent, (ast.BoolOp, ast.Compare, ast.FormattedValue, ast.JoinedStr, *COMPREHENSIONS)):
            self.plain = False
            return parent
        if isinstance(parent, ast.Attribute):
            self.plain = False
            holder = self.analysis.facts.places.parent(parent, self.module)
            return holder if isinstance(holder, ast.Call) and holder.func is parent else parent
        if isinstance(parent, ast.Call):
            return parent if node is parent.func or self._is_passed_on(parent) else None
        if isinstance(parent, ast.IfExp) and node is not parent.test:
            return parent
        if isinstance(parent, ast.Subscript) and node is parent.value:
            self.plain = False
            return parent
        self._end(node, parent, depth)
        return None

    def _is_unpacked(self, node: ast.AST, display: ast.Tuple | ast.List, depth: int) -> bool:
        """Whether a display is assigned item by item (``a, b = x.item(), y.item()``); notes the fate of this item."""
        statement = self.analysis.facts.places.parent(display, self.module)
        if not isinstance(statement, ast.Assign) or statement.value is not display:
            return False
        pairs = [
            single
            for target in statement.targets
            if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == len(display.elts)
            for single, item in zip(target.elts, display.elts, strict=True)
            if item is node
        ]
        for single in pairs:
            self._assigned(node, statement, single, depth)
        return bool(pairs) and len(pairs) == len(statement.targets)

    def _is_passed_on(self, call: ast.Call) -> bool:
        """Note what a call does with an argument; True where its result stands for the value."""
        events = self.analysis.facts.at(call)
        if any(event.kind == "show" for event in events) or is_printer(self.analysis.facts, call, self.frames):
            self.uses.add("shown")
            self.shows.append(call)
            return False
        if any(event.kind == "step" and stepper(event.receiver) == "scheduler" for event in events):
            self.uses.add("control")
            return False
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if isinstance(call.func, ast.Attribute):
            receiver = self._receiver(call)
            if receiver is not None and not is_module_class(receiver):
                self.uses.add("meter" if self.plain else "other")
                self.meter = (call, receiver)
                return False
            if name in STORING:
                self.unread = "stored" not in self.uses and self._only_grows(call.func.value)
                self.forgotten = self.unread and self._is_local(call.func.value)
                self.uses.add("stored")
                return False
        self.plain = False
        self.chosen = self.chosen or name in _CHOOSING
        if name in _CHOOSING or name in _PASSING:
            return True
        self.uses.add("other")
        return False

    def _only_grows(self, kept: ast.expr) -> bool:
        """Whether all that is done with a list of this file is to make it longer."""
        if not isinstance(kept, ast.Name):
            return False
        facts = self.analysis.facts
        owner = facts.bindings.owner(kept.id, kept, self.module)
        made = [each for each in walk(owner) if isinstance(each, ast.Assign) and _is_empty_list(each, kept.id)]
        return bool(made) and all(
            self._makes_longer(read) for read in name_reads(self.analysis, kept.id, owner, self.module)
        )

    def _is_local(self, kept: ast.expr) -> bool:
        """Whether a name is one of a function, with all its reads: neither global nor seen by functions inside."""
        if not isinstance(kept, ast.Name):
            return False
        bindings = self.analysis.facts.bindings
        owner = bindings.owner(kept.id, kept, self.module)
        return isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)) and kept.id not in bindings.captured(owner)

    def _makes_longer(self, read: ast.AST) -> bool:
        """Whether a list is read for nothing but ``losses.append(...)``."""
        places = self.analysis.facts.places
        method = places.parent(read, self.module)
        call = places.parent(method, self.module) if isinstance(method, ast.Attribute) else None
        return (
            isinstance(method, ast.Attribute)
            and method.attr in ("append", "extend", "insert")
            and isinstance(call, ast.Call)
            and call.func is method
            and isinstance(places.parent(call, self.module), ast.Expr)
        )

    def _receiver(self, call: ast.Call) -> Instance | None:
        """The object of the project whose method a call is."""
        values = [event.receiver for event in self.analysis.facts.at(call)]
        if isinstance(call.func, ast.Attribute):
            values.append(self.analysis.facts.evaluate(call.func.value, self.frames))
        found = (member for value in values for member in members(value) if isinstance(member, Instance))
        return next(found, None)

    def _end(self, node: ast.AST, statement: ast.AST | None, depth: int) -> None:
        """Note what the statement at the end of an expression (or a test inside one) does with it."""
        if isinstance(statement, (ast.If, ast.While, ast.Assert, ast.IfExp, ast.Match, ast.Raise)):
            self.uses.add("control")
        elif isinstance(statement, ast.comprehension):
            self.uses.add("control" if node is not statement.iter else "other")
        elif isinstance(statement, ast.AugAssign):
            adds = isinstance(statement.op, ast.Add) and dotted(statement.target) is not None
            if adds and self.plain and self.update in (None, statement):
                self.uses.add("summed")
                self.update = statement
            else:
                self.uses.add("other")
        elif isinstance(statement, (ast.Return, ast.Yield, ast.YieldFrom)):
            self.uses.add("returned")
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            found = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in found:
                for single in targets(target):
                    self._assigned(node, statement, single, depth)
            if isinstance(statement, ast.NamedExpr):
                self.follow(statement, depth)
        elif not isinstance(statement, ast.Expr):
            self.uses.add("other")

    def _assigned(self, node: ast.AST, statement: ast.AST, target: ast.expr, depth: int) -> None:
        """Note what becomes of a value that a statement gives to a target."""
        if isinstance(target, ast.Subscript):
            self.uses.add("stored")
            return
        facts = self.analysis.facts
        if any(event.kind == "show" for event in facts.at(statement)):  # bar.desc = ...
            self.uses.add("shown")
            self.shows.append(statement)
            return
        if not isinstance(target, ast.Name) or depth == 0:
            self.uses.add("other")
            return
        owner = facts.bindings.owner(target.id, target, self.module)
        again = any(isinstance(each, ast.Name) and each.id == target.id for each in walk(node))
        if again or isinstance(owner, COMPREHENSIONS):  # total = total + loss.item()
            self.uses.add("other")
            return
        if target.id in facts.bindings.captured(owner):
            self.uses.add("other")
        for read in name_reads(self.analysis, target.id, owner, self.module):
            if not contains(statement, read, facts.places, self.module):
                self.follow(read, depth - 1)

    def shown_by(self) -> Site | None:
        """The statement that shows the value, where that is all that becomes of it."""
        if self.uses != {"shown"} or self.chosen:
            return None
        statements = self.showing()
        return statements.pop() if len(statements) == 1 else None

    def showing(self) -> set[Site]:
        """The statements that show the value."""
        places = self.analysis.facts.places
        found = (places.statement(call, self.module) for call in self.shows)
        return {places.site(statement, self.module) for statement in found if statement is not None}


def _is_empty_list(statement: ast.Assign, name: str) -> bool:
    return (
        isinstance(statement.value, ast.List)
        and not statement.value.elts
        and [dotted(target) for target in statement.targets] == [name]
    )


def name_reads(analysis: Analysis, name: str, owner: ast.AST, module: ModuleFile) -> Iterator[ast.AST]:
    """The places in a scope that read a dotted name of that scope."""
    head = name.partition(".")[0]
    for node in reads_of(name, owner):
        if analysis.facts.bindings.owner(head, node, module) is owner:
            yield node
