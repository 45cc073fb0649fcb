"""The walk: statements in program order, on abstract values, under a control stack.

Both sides of an undecided test are executed on copies of the local names and joined; a loop's body is executed once,
after every constant that it assigns became unknown; calls of the project's functions are executed where they stand.
"""

from __future__ import annotations

import ast
from itertools import takewhile

from turbofix.domain.scopes import Frame, Scope
from turbofix.domain.trace import LoopRecord, positional
from turbofix.domain.values import (
    NEVER,
    NONE,
    UNKNOWN,
    Bound,
    Class,
    Const,
    Entry,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    Mapping,
    Namespace,
    Option,
    Partial,
    Sequence,
    Value,
    join,
    members,
    truth_of,
    widened,
)
from turbofix.interpreter import imports
from turbofix.interpreter.calls import call
from turbofix.interpreter.containers import drop_item
from turbofix.interpreter.elements import enter_context, iterate
from turbofix.interpreter.expressions import Evaluator
from turbofix.interpreter.project_calls import decorate, decorator, invoke
from turbofix.interpreter.state import handlers_of
from turbofix.library.tables import NAMES
from turbofix.source.names import dotted
from turbofix.source.nodes import walk


class OutOfBudgetError(Exception):
    """More statements than the analysis takes on were executed."""


class Walk(Evaluator):
    """Statements, each by the method that is called as its class of nodes."""

    __slots__ = ()

    call = call
    invoke = invoke

    def block(self, body: list[ast.stmt]) -> bool:
        """Execute statements; whether control comes out at their end."""
        for statement in body:
            self.budget -= 1
            if self.budget < 0:
                raise OutOfBudgetError
            handler = _HANDLERS.get(type(statement))
            if handler is not None and handler(self, statement) is False:
                return False
        return True

    def do_expr(self, node: ast.Expr) -> bool:
        return self.eval(node.value) is not NEVER

    def do_assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.assign(target, value, node)

    def do_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.eval(node.value), node)

    def do_augassign(self, node: ast.AugAssign) -> None:
        old = self.eval(node.target)
        value = self.eval(node.value)
        self.event("sum", node, "", old, None, value)
        self.assign(node.target, self.operate(old, value, node.op, node), node)

    def under(
        self, body: list[ast.stmt], kind: str, node: ast.AST, detail: object = None, decided: bool = False
    ) -> bool:
        """Execute statements one level down on the control stack; whether control comes out at their end."""
        up = self.control
        self.enter(kind, node, detail, decided)
        falls_through = self.block(body)
        self.control = up
        return falls_through

    def do_if(self, node: ast.If) -> bool:
        truth = truth_of(self.test(node.test))
        scope = self.frame.scope
        before = scope.names
        if truth is None:
            after: list[dict[str, Value]] = []
            for side, body in enumerate((node.body, node.orelse)):
                scope.names = dict(before) if body else before
                if not body or self.under(body, "if", node, side):
                    after.append(scope.names)
            scope.names = joined_names(after) if after else before
            return bool(after)
        live, dead = (node.body, node.orelse) if truth else (node.orelse, node.body)
        if dead:
            scope.names, counts, self.counts = dict(before), self.counts, self.counts_of_dead
            self.under(dead, "if", node, "dead", decided=True)
            scope.names, self.counts = before, counts  # what never happens is no reason to look less at what does
        return self.under(live, "if", node, 0 if truth else 1, decided=True)

    def do_for(self, node: ast.For | ast.AsyncFor) -> bool:
        iterated = self.eval(node.iter)
        self.event("iterate", node, "", iterated)
        source = iterated.source if type(iterated) is Iterated and iterated.wrapper == "items" else None
        if _sets_attributes(node.body) and type(source) is Mapping and not source.open and source.element is None:
            for key, entry in list(source.entries.items()):  # `for k, v in kwargs.items(): setattr(self, k, v)`
                self.assign(node.target, Sequence([Const(key), entry.value]), node)
                self.block(node.body)
            return self.block(node.orelse)
        return self._loop(node, iterated, iterate(self, iterated, node.iter))

    do_asyncfor = do_for

    def do_while(self, node: ast.While) -> bool:
        return self._loop(node, None, None)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, iterated: Value | None, element: Value | None) -> bool:
        record = self.loops.get(node)
        if record is None:
            record = self.loops[node] = LoopRecord(node, self.frame.module, iterated)
        else:
            record.iterated = join(record.iterated, iterated)
        scope = self.frame.scope
        before = dict(scope.names)
        self._widen(node, before)
        up = self.control
        interrupted = self._interrupted
        self._interrupted = []
        self.loop_depth += 1
        scope.names = dict(before)
        self.enter("loop", node, record)
        if isinstance(node, ast.While):
            self.test(node.test)
        else:
            self.assign(node.target, element or UNKNOWN, node)
        falls_through = self.block(node.body)
        after = [before, *self._interrupted]
        if falls_through:
            after.append(scope.names)
        scope.names = joined_names(after)
        self._interrupted = interrupted
        self.loop_depth -= 1
        self.control = up
        return self.block(node.orelse) if node.orelse else True

    def _widen(self, loop: ast.AST, names: dict[str, Value]) -> None:
        """Before a loop's body is executed: what it assigns is no longer the constant that it was."""
        assigned, inside = self.glance.assigned(loop)
        for name in assigned:
            value = names.get(name)
            if type(value) is Const or type(value) is Option:
                names[name] = widened(value)
        for name, key, is_key in inside:
            for member in members(names.get(name)):
                if not is_key and isinstance(member, (Instance, Namespace, Made)):
                    old = member.attributes.get(str(key))
                    if type(old) is Const:
                        member.attributes[str(key)] = widened(old)
                elif is_key and isinstance(member, Mapping) and key in member.entries:
                    entry = member.entries[key]
                    held = widened(entry.value) if type(entry.value) is Const else entry.value
                    member.entries[key] = Entry(held, entry.must, entry.origin)

    def do_break(self, _: ast.Break | ast.Continue) -> bool:
        if not self._is_dead("loop"):
            self._interrupted.append(self.frame.scope.names)
        return False

    do_continue = do_break

    def _is_dead(self, until: str) -> bool:
        """Whether this stands in a branch that a decided test excludes, within the innermost level of that kind."""
        return any(level.is_dead for level in takewhile(lambda level: level.kind != until, self.control.upwards()))

    def do_return(self, node: ast.Return) -> bool:
        value = self.eval(node.value) if node.value is not None else NONE
        if node.value is not None:
            self.event("return", node, "", None, None, value)
        if not self._is_dead("call"):
            self.frame.returned = join(self.frame.returned, value)
            undecided = False
            for level in self.control.upwards():
                if level.kind == "call":
                    level.returned = level.returned or undecided
                    break
                undecided = undecided or level.is_unsure
        return False

    def do_raise(self, node: ast.Raise) -> bool:
        if node.exc is not None:
            self.eval(node.exc)
        return False

    def do_assert(self, node: ast.Assert) -> None:
        self.test(node.test)

    def do_with(self, node: ast.With | ast.AsyncWith) -> bool:
        up = self.control
        for item in node.items:
            value = self.eval(item.context_expr)
            self.event("enter", item.context_expr, "", value)
            entered = enter_context(self, value, item.context_expr)
            self.enter("with", node, (item, value))
            if item.optional_vars is not None:
                self.assign(item.optional_vars, entered, node)
        falls_through = self.block(node.body)
        self.control = up
        return falls_through

    do_asyncwith = do_with

    def do_try(self, node: ast.Try) -> bool:
        scope = self.frame.scope
        before = dict(scope.names)
        up = self.control
        self.enter("try", node)
        falls_through = self.block(node.body)
        body_names = scope.names
        after = [scope.names] if falls_through and self.block(node.orelse) else []
        self.control = up
        for handler in node.handlers:
            scope.names = joined_names([before, body_names])
            if handler.name:
                self.bind(handler.name, self.opaque(handler.name, "call", handler))
            if self.under(handler.body, "if", handler, "except"):
                after.append(scope.names)
        scope.names = joined_names(after) if after else body_names
        return self.block(node.finalbody) and bool(after)

    do_trystar = do_try

    def do_match(self, node: ast.Match) -> bool:
        subject = self.eval(node.subject)
        self.event("test", node.subject, "", subject)
        scope = self.frame.scope
        after = [scope.names]
        for side, case in enumerate(node.cases):
            scope.names = dict(after[0])
            for part in walk(case.pattern):
                name = getattr(part, "name", None)
                if isinstance(name, str):
                    self.bind(name, subject if part is case.pattern else UNKNOWN)
            if case.guard is not None:
                self.test(case.guard)
            if self.under(case.body, "if", node, side):
                after.append(scope.names)
        scope.names = joined_names(after)
        return True

    def do_import(self, node: ast.Import) -> None:
        imports.import_modules(self, node)

    def do_importfrom(self, node: ast.ImportFrom) -> None:
        imports.import_names(self, node)

    def do_global(self, node: ast.Global) -> None:
        self.frame.scope.globals.update(node.names)

    def do_nonlocal(self, node: ast.Nonlocal) -> None:
        self.frame.scope.nonlocals.update(node.names)

    def do_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.frame.scope.names.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                key = self.eval(target.slice)
                for member in members(self.eval(target.value)):
                    if isinstance(member, Mapping):
                        drop_item(self, member, key)

    # --- definitions ----

    def do_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorators = tuple(decorator(self, each) for each in node.decorator_list)
        function = Function(node, self.frame.module, self.closure(), None, decorators)
        self.functions[node] = function
        self.bind(node.name, decorate(self, function))

    do_asyncfunctiondef = do_functiondef

    def do_classdef(self, node: ast.ClassDef) -> None:
        bases = tuple(self.eval(base) for base in node.bases)
        decorators = [decorator(self, each) for each in node.decorator_list]
        outer = self.frame
        scope = Scope(self.closure(), outer.module)
        cls = Class(node, outer.module, bases, scope.names)
        externals = {each.qualname for value in decorators for each in members(value) if type(each) is External}
        cls.is_dataclass = (
            bool(externals & NAMES["dataclass_decorators"])
            or any(name in NAMES["records"] for name in cls.externals())
            or any(type(base) is Class and base.is_dataclass for base in cls.mro()[1:])
        )
        self.classes[node] = cls
        self.frame = Frame(None, scope, outer.module, in_class=True)
        self.block(node.body)
        self.frame = outer
        cls.names = scope.names
        for value in cls.names.values():
            for member in members(value):
                if type(member) is Function and member.cls is None:
                    member.cls = cls
        self.bind(node.name, cls)
        for each in reversed(decorators):  # they put it into a table, perhaps: it is the class all the same
            if isinstance(each, (Function, Bound, Partial)):
                self.call(each, positional(cls), node)


_HANDLERS = handlers_of(Walk, "do_")


def joined_names(alternatives: list[dict[str, Value]]) -> dict[str, Value]:
    """The names after several paths met."""
    if len(alternatives) == 1:
        return alternatives[0]
    joined = dict(alternatives[0])
    for names in alternatives[1:]:
        if names == joined:  # values are equal only to themselves
            continue
        for name, value in names.items():
            old = joined.get(name)
            if old is not value:
                joined[name] = join(old, value) or value
    return joined


def _sets_attributes(body: list[ast.stmt]) -> bool:
    """Whether the body of a loop does nothing but set an attribute by its name."""
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    return isinstance(call, ast.Call) and (dotted(call.func) or "").rpartition(".")[2] in ("setattr", "__setattr__")
