"""What ends a program on every torch that a rewrite may count on, on the way to its training or in it.

A script of the time before torch 0.5 reads ``loss.data[0]``, another one names what nothing binds: such a program has
no step to speed up before somebody mends it. Only what is certain counts: a test that may go the other way, a handler
that may catch it, a loop that may be empty, or one of several callees, and nothing is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from turbofix.findings import Site
from turbofix.magics import MARK
from turbofix.program.analysis import Analysis
from turbofix.program.answers import by_type, once_per_node
from turbofix.program.events import Control, Event
from turbofix.program.evidence import short
from turbofix.program.execution import ModuleFile
from turbofix.program.guards import Condition
from turbofix.program.libraries import dropped, words
from turbofix.program.lightning import FITTED, runs
from turbofix.program.misuses import definition, misuse
from turbofix.program.model import Evaluation, Optimizer, Step, Stop, Target
from turbofix.program.names import dotted, walk_here
from turbofix.program.overwritten import is_plain, overwritten
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS
from turbofix.program.tensors import is_scalar
from turbofix.program.unset import unset
from turbofix.program.values import Function, Host, Made, ModuleValue, Tensor, Value, members, truth_of
from turbofix.program.values import Sequence as Row

Level = tuple[str, int | None, object]

_GIVEN = words(
    """
    display get_ipython In Out exit quit profile reveal_type reveal_locals spark sc dbutils WindowsError aiter anext
    ExceptionGroup BaseExceptionGroup EncodingWarning PythonFinalizationError
    __name__ __file__ __doc__ __package__ __loader__ __spec__ __path__ __cached__ __builtins__ __annotations__
    __annotate__ __conditional_annotations__ __debug__ __class__ __module__ __qualname__ __firstlineno__ __classdict__
    __build_class__ __import__ __IPYTHON__ __session__ __warningregistry__ __vsc_ipynb_file__
    """
)
"""Names that a notebook, a profiler, another system or a newer Python binds by itself; those of modules and classes."""

_BINDING = words("exec execfile globals vars locals setattr __builtins__ builtins __import__ importlib")
"""Names with whose help a program may bind others."""


def stop(
    analysis: Analysis, backwards: Sequence[list[Event]], evaluations: Iterable[Evaluation], target: Target
) -> Stop | None:
    """The first place at which the program certainly ends, given the backward passes of each of its steps.

    Where Lightning steps, the call that tells it to stands for them. ``target`` says from which torch on.
    """
    ran = list(runs(analysis))
    steps = [each[0] for each in backwards] + [event for event, trains in ran if trains]
    if not steps:
        return None
    found = Stops(analysis, steps, evaluations, target.torch, {id(event.node): trains for event, trains in ran})
    ends: list[tuple[Event, str, str]] = []
    running = set(range(len(steps)))
    for event in analysis.facts.of("import", "unbound", "unset", "index", "call", "criterion", "backward"):
        said = found.judge(event)
        ended = found.ended_by(event) if said is not None else frozenset[int]()
        if said is not None and ended:
            ends.append((event, *said))
            running -= ended
        if not running:
            first, error, why = ends[0]
            spares = found.spared() if all(_is_called_by_others(each.control) for each, _, _ in ends) else ()
            return Stop(analysis.facts.site(first), error, why, spares=spares)
    return None


def possible_stop(analysis: Analysis, steps: Iterable[Step], optimizers: Iterable[Optimizer]) -> Stop | None:
    """A backward pass that goes, on some way through a step, through weights that were changed since the forward.

    A fused optimizer's changes go unnoticed, and copies of the weights (autocast's, those of several GPUs) stay.
    """
    noticed = {each.site for each in optimizers if each.argument("fused").state == "absent"}
    for old in (each for step in steps for each in step.stale if each.optimizer in noticed):
        if not is_plain(analysis):
            return None
        where = old.step.line_from(old.backward.path)
        why = f"on torch 1.5 and newer: it goes back through weights that the step on {where} has changed since"
        return Stop(old.backward, "RuntimeError", why, certain=False)
    return None


class Stops:
    """The ways to the training steps, and what lies on all of them."""

    def __init__(
        self,
        analysis: Analysis,
        steps: list[Event],
        evaluations: Iterable[Evaluation],
        oldest: tuple[int, int],
        runs: Mapping[int, bool],
    ) -> None:
        self.analysis = analysis
        self.runs = runs
        self.oldest = oldest
        self.facts = analysis.facts
        self.steps = steps
        self.last = max(step.order for step in steps)
        self.training = {id(record.node) for step in steps for record in self.facts.loops(step)}
        self.evaluated = {evaluation.loop.site for evaluation in evaluations}
        self._imported: set[ModuleFile] | None = None

    def judge(self, event: Event) -> tuple[str, str] | None:
        """The error that an event raises for certain where it is reached, and why; None where it raises none."""
        if event.kind == "index":
            return self._index(event)
        if event.kind == "unbound":
            return self._unbound(event)
        if event.kind == "unset":
            # of a class that others derive from, their files may set what this one reads
            return None if _is_called_by_others(event.control) else unset(self.analysis, event)
        if event.kind == "import":
            return self._import(event)
        if event.kind == "backward":
            return self._backward(event)
        return misuse(self.analysis, event, self.oldest)

    # --- what raises --------------------------------------------------------------------------------------------

    def _index(self, event: Event) -> tuple[str, str] | None:
        """An index into what has no dimension."""
        node = event.node
        found = members(event.receiver)
        if not isinstance(node, ast.Subscript):
            return None
        text = short(self.facts.places.text(node, event.module))
        if any(isinstance(each, Tensor) for each in found) and is_scalar(event.receiver):
            return "IndexError", f"on torch 0.5 and newer: `{text}` indexes a number"
        for host in found:
            # ``loss.data.cpu().numpy()[0]``; what was read elsewhere may be an array of such numbers by now
            if not (len(found) == 1 and isinstance(host, Host) and host.of is not None and host.of.scalar):
                return None
            if [origin.node for origin in host.syncs] != [node.value] or not isinstance(node.value, ast.Call):
                return None
            error = "IndexError" if _attribute(node.value) == "numpy" else "TypeError"
            return error, f"on torch 0.5 and newer: `{text}` indexes a number"
        return None

    def _unbound(self, event: Event) -> tuple[str, str] | None:
        """A name that nothing binds, in the whole of what the file sees."""
        name, node = event.name, event.node
        if name == "_" or name in _GIVEN or not isinstance(node, ast.Name):
            return None
        if name.startswith("__") and not name.endswith("__"):
            return None  # a class's methods read it under another name
        if not isinstance(self.facts.bindings.owner(name, node, event.module), ast.Module):
            return None
        if self._is_bound_later(event, name):
            return "NameError", f"on every version: `{name}` is bound further down only"
        bound = self._bound(event.module, set())
        if bound is None or name in bound or self.facts.attribute_writes(name):
            return None
        return "NameError", f"on every version: nothing binds `{name}`"

    def _is_bound_later(self, event: Event, name: str) -> bool:
        """Whether a file's top level reads a name that it binds further down only; the cells of a notebook move."""
        module, frames = event.module, self.facts.frames(event)
        tree = module.tree
        if len(frames) != 1 or frames[0].scope is not tree or module.path.suffix == ".ipynb" or MARK in module.text:
            return False
        found = by_type(tree)
        if (
            any(name in getattr(each, "names", ()) for each in found.get(ast.Global, ()))
            or any(alias.name == "*" for each in found.get(ast.ImportFrom, ()) for alias in getattr(each, "names", ()))
            or self.facts.attribute_writes(name)
            or name not in bound_in(tree)
        ):
            return False
        above = {id(each) for each in (event.node, *self.facts.places.ancestors(event.node, module))}
        for statement in tree.body:
            so_far = ast.Module([statement], [])
            if name in bound_in(so_far) or _may_bind(so_far):
                return False
            if id(statement) in above:
                return True
        return False

    def _bound(self, module: ModuleFile, seen: set[ModuleFile]) -> frozenset[str] | None:
        """The names that a file binds at its top level, through its star imports too; None where others may be."""
        if module in seen:
            return frozenset()
        seen.add(module)
        if module.star_imports or MARK in module.text or _may_bind(module.tree):
            return None
        found = bound_in(module.tree)
        for node in by_type(module.tree).get(ast.ImportFrom, ()):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                starred = [
                    member.module
                    for event in self.facts.at(node)
                    if event.kind == "import"
                    for member in members(event.result)
                    if isinstance(member, ModuleValue)
                ]
                more = [self._bound(each, seen) for each in starred]
                if not more:
                    return None
                for names in more:
                    if names is None:
                        return None
                    found |= names
        return found

    def _import(self, event: Event) -> tuple[str, str] | None:
        """An import, or a use, of what libraries have dropped."""
        gone = None if any(isinstance(each, ModuleValue) for each in members(event.result)) else dropped(event.name)
        if gone is None:
            return None
        name, since, torch = gone
        if self.oldest < torch:  # there is one that has it, and on which the result must run
            return None
        if isinstance(event.node, ast.Attribute):
            error = "AttributeError"
        else:
            module = isinstance(event.node, ast.Import) or _names_module(event.node, name)
            error = "ModuleNotFoundError" if module else "ImportError"
        return error, f"on every torch that counts: there is no `{name}` from {since} on"

    def _backward(self, event: Event) -> tuple[str, str] | None:
        """A backward pass that needs weights which a step has overwritten."""
        step = overwritten(self.analysis, event)
        if step is None:
            return None
        line = self.facts.site(step).line
        return "RuntimeError", f"on every version: it needs weights that the step in line {line} has overwritten"

    # --- whether it is reached ----------------------------------------------------------------------------------

    def ended_by(self, event: Event) -> frozenset[int]:
        """The steps, by their number, on whose way the program comes by an event for certain, before training ends."""
        levels = event.control.chain()
        if not levels or levels[0].detail is not None or _is_optional(event.node, event.module, self.analysis):
            return frozenset()
        module = levels[1].module if len(levels) > 1 else None
        if module is not self.facts.execution.entry and levels[-1].kind == "module":
            # what stands at the top level of another file runs when that file is imported
            imported = self._reaches(event, levels, self.steps[0]) and module in self._modules()
            return frozenset(range(len(self.steps))) if imported else frozenset()
        inside = {id(record.node) for record in self.facts.loops(event)} & self.training
        if not inside and event.order > self.last and not any(self._is_run(level) for level in levels):
            return frozenset()
        return frozenset(number for number, step in enumerate(self.steps) if self._reaches(event, levels, step))

    def spared(self) -> tuple[Site, ...]:
        """The functions that the script itself calls, where it trains in none of these: others call what trains."""
        if not all(_is_called_by_others(step.control) for step in self.steps):
            return ()
        found: dict[Site, None] = {}
        for event in self.facts.events:
            if _is_called_by_others(event.control):
                continue
            function = next((each.detail for each in event.control.upwards() if each.kind == "call"), None)
            if isinstance(function, Function) and not isinstance(function.node, ast.Lambda):
                found.setdefault(self.facts.places.site(function.node, function.module))
        return tuple(found)

    def _reaches(self, event: Event, levels: list[Control], step: Event) -> bool:
        """Whether nothing but what leads to a step decides whether an event happens, too."""
        others = step.control.chain()
        shared = _shared(levels, others)
        if event.order > step.order and any(each.kind == "if" and _may_leave(each.node) for each in others[shared:]):
            return False  # the branch that holds the step may be the whole of such a run
        looping = False
        for index, level in enumerate(levels):
            looping = looping or level.kind == "loop"
            if level.kind == "try":
                if (looping or index >= shared) and not _passes_on(level.node):
                    return False
            elif index >= shared and not self._is_certain(level):
                return False
        return self._is_unconditional(event, step)

    def _is_certain(self, level: Control) -> bool:
        """Whether a level of the stack is entered for certain; tests are judged by themselves."""
        if level.kind == "call":
            if self._is_run(level) and not (self.runs[id(level.node)] and getattr(level.detail, "name", "") in FITTED):
                return False
            return level.node is not None and not _is_generator(level.detail)
        if level.kind == "loop":
            record = level.detail
            node = level.node
            if node is None or level.module is None or record is None:
                return False
            if _has_items(record):
                return True
            return id(node) in self.training or self.facts.places.site(node, level.module) in self.evaluated
        if level.kind == "with":
            value = level.detail[1] if isinstance(level.detail, tuple) else None
            return not any(isinstance(each, Made) and each.qualname == "contextlib.suppress" for each in members(value))
        return level.kind in ("root", "module", "no_grad") or (level.kind == "if" and level.detail != "except")

    def _is_run(self, level: Control) -> bool:
        """Whether it is a method of a module that Lightning's trainer calls."""
        return level.kind == "call" and id(level.node) in self.runs

    def _is_unconditional(self, event: Event, step: Event) -> bool:
        """Whether every test between the event and the program's top level holds, or decides about the step, too."""
        known = {(id(each.node), each.holds) for each in self._conditions(step)}
        outer = next((record.node for record in self.facts.loops(event)), None)
        for condition in self._conditions(event):
            if (id(condition.node), condition.holds) in known or self._holds(condition):
                continue
            if self._is_given(condition, step, known):
                continue
            kind = "condition"
            if outer is not None and condition.test is not None and self.facts.inside(event, outer):
                inner = self.facts.loops(event)[-1].node
                kind, _ = self.analysis.guards.judge(condition, inner)
            if kind not in ("every_n", "rank"):
                return False
        return True

    def _conditions(self, event: Event) -> Iterator[Condition]:
        frames = self.facts.frames(event)
        for index, frame in enumerate(frames):
            anchor = event.node if index == len(frames) - 1 else frame.anchor
            returns = not isinstance(frame.scope, ast.Module)
            yield from self.analysis.guards.tests_around(anchor, frame.scope, frames[: index + 1], returns=returns)

    def _holds(self, condition: Condition) -> bool:
        """Whether a test is decided, the way that leads on."""
        if condition.test is None:
            return False
        if isinstance(condition.node, ast.If) and not condition.early:
            for event in self.facts.of("test"):
                if event.node is condition.test and truth_of(event.receiver or Host(None)) is condition.holds:
                    return True
        return False

    def _is_given(self, condition: Condition, step: Event, known: set[tuple[int, bool]]) -> bool:
        """Whether it asks for a result that is not None where the call that it came from has run the step."""
        name = _asked_for_none(condition)
        frames = self.facts.frames(step)
        if name is None or any(level.kind == "choice" for level in step.control.chain()):
            return False
        statement = definition(self.analysis, name, condition.frames[-1].module)
        call = statement.value if isinstance(statement, ast.Assign) and statement.targets[1:] == [] else None
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            return False
        index = next((i for i, frame in enumerate(frames) if call is not None and frame.call is call), None)
        if index is None:
            return False
        inner = frames[: index + 1]
        function = inner[-1].scope
        if not isinstance(function, ast.FunctionDef) or function.decorator_list or _is_generator(inner[-1].function):
            return False
        if inner[-1].loops or not isinstance(function.body[-1], ast.Return):  # a test in a loop may turn out otherwise
            return False
        for returned in (each for statement in function.body for each in walk_here(statement)):
            if not isinstance(returned, ast.Return):
                continue
            around = self.analysis.guards.tests_around(returned, function, inner, returns=True)
            excluded = any((id(each.node), not each.holds) in known for each in around)
            if not excluded and not _is_tensor(self.facts.evaluate(returned.value, inner)):
                return False
        return True

    def _modules(self) -> set[ModuleFile]:
        """The files that are certainly imported when the script starts."""
        if self._imported is None:
            self._imported = {self.facts.execution.entry}
            waiting = [self.facts.execution.entry]
            while waiting:
                importer = waiting.pop()
                for event in self.facts.of("import"):
                    if event.module is not importer or not any(event.node is each for each in importer.tree.body):
                        continue
                    for member in members(event.result):
                        if isinstance(member, ModuleValue) and member.module not in self._imported:
                            self._imported.add(member.module)
                            waiting.append(member.module)
        return self._imported


# --- small answers ----------------------------------------------------------------------------------------------------


def _is_called_by_others(control: Control) -> bool:
    """Whether it happens in a function that the script does not call, or in a worker's code."""
    return any(
        (level.kind == "call" and level.node is None) or (level.kind == "root" and level.detail is not None)
        for level in control.upwards()
    )


def _asked_for_none(condition: Condition) -> ast.Name | None:
    """The name of which a test says that it is not None: ``if loss is not None``."""
    test = condition.test
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name) or len(test.ops) != 1:
        return None
    other = test.comparators[0]
    if not isinstance(other, ast.Constant) or other.value is not None:
        return None
    return test.left if isinstance(test.ops[0], ast.IsNot if condition.holds else ast.Is) else None


def _is_tensor(value: Value | None) -> bool:
    found = members(value)
    return bool(found) and all(isinstance(each, Tensor) for each in found)


def _shared(levels: list[Control], others: list[Control]) -> int:
    """How many levels two stacks have in common, from the root down."""
    count = 0
    for one, other in zip(levels, others, strict=False):
        if one is not other and _key(one) != _key(other):
            break
        count += 1
    return count


def _key(level: Control) -> Level:
    detail = level.detail if isinstance(level.detail, (int, str)) else None
    if level.kind == "call" and level.node is None:
        detail = id(getattr(level.detail, "node", level.detail))
    if level.kind == "root" or (level.node is None and level.kind != "call"):
        return level.kind, id(level), None
    return level.kind, id(level.node), detail


def _is_optional(node: ast.AST, module: ModuleFile, analysis: Analysis) -> bool:
    """Whether an expression is only evaluated at need: behind ``and``, in a conditional, a lambda, a comprehension."""
    child = node
    for parent in analysis.facts.places.ancestors(node, module):
        if isinstance(child, ast.stmt):
            return False
        if isinstance(parent, (ast.Lambda, *COMPREHENSIONS)):
            return True
        if isinstance(parent, ast.IfExp) and child is not parent.test:
            return True
        if isinstance(parent, ast.BoolOp) and child is not parent.values[0]:
            return True
        if isinstance(parent, ast.Assert) and child is parent.msg:
            return True
        child = parent
    return False


def _has_items(record: object) -> bool:
    """Whether a loop runs over a tuple or list that is known to hold something, and to its end."""
    found = members(getattr(record, "iterated", None))
    body = getattr(getattr(record, "node", None), "body", ())
    if any(isinstance(each, ast.Break) for statement in body for each in walk_here(statement)):
        return False
    return bool(found) and all(isinstance(each, Row) and bool(each.items) for each in found)


def _passes_on(node: ast.AST | None) -> bool:
    """Whether the handlers of a ``try`` let an error through: they are for the user's interrupt, or raise again."""
    for handler in getattr(node, "handlers", ()):
        again = bool(handler.body) and isinstance(handler.body[-1], ast.Raise)
        if not again and not (isinstance(handler.type, ast.Name) and handler.type.id == "KeyboardInterrupt"):
            return False
    return not any(isinstance(each, ast.Return) for each in getattr(node, "finalbody", ()))


def _may_leave(node: ast.AST | None) -> bool:
    """Whether a statement may end the function, or the program."""
    return node is not None and any(
        isinstance(each, (ast.Return, ast.Raise))
        or (isinstance(each, ast.Call) and (dotted(each.func) or "").rpartition(".")[2] in ("exit", "_exit", "quit"))
        for each in walk_here(node)
    )


def _is_generator(function: object) -> bool:
    """Whether a call of it only makes an iterator."""
    body = getattr(getattr(function, "node", None), "body", None)
    return isinstance(body, list) and any(
        isinstance(each, (ast.Yield, ast.YieldFrom)) for statement in body for each in walk_here(statement)
    )


def _attribute(call: ast.Call) -> str | None:
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def _names_module(node: ast.AST, name: str) -> bool:
    """Whether ``from torchtext.legacy import data`` names the module itself."""
    return isinstance(node, ast.ImportFrom) and ((node.module or "") + ".").startswith(name + ".")


@once_per_node
def bound_in(tree: ast.Module) -> frozenset[str]:
    """The names that a file binds at its top level, anywhere in it, and what its functions declare global."""
    found: set[str] = set()
    for statement in tree.body:
        for each in walk_here(statement):
            if isinstance(each, ast.Name) and isinstance(each.ctx, (ast.Store, ast.Del)):
                found.add(each.id)
            elif isinstance(each, (ast.Import, ast.ImportFrom)):
                found |= {alias.asname or alias.name.partition(".")[0] for alias in each.names}
            elif isinstance(each, (*FUNCTIONS, ast.ClassDef)):
                found.add(getattr(each, "name", ""))
            elif isinstance(each, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and each.name is not None:
                found.add(each.name)
            elif isinstance(each, ast.MatchMapping) and each.rest is not None:
                found.add(each.rest)
    for node in by_type(tree).get(ast.Global, ()):
        found |= set(getattr(node, "names", ()))
    return frozenset(found)


@once_per_node
def _may_bind(tree: ast.Module) -> bool:
    """Whether a file holds what may bind names that it does not write."""
    found = by_type(tree)
    return any(getattr(node, "id", "") in _BINDING for node in found.get(ast.Name, ())) or any(
        getattr(node, "attr", "") in ("__dict__", "modules") for node in found.get(ast.Attribute, ())
    )
