"""What ends a program on every torch that a rewrite may count on, on the way to its training or in it.

A script of the time before torch 0.5 reads ``loss.data[0]``, another one names what nothing binds: such a program has
no step to speed up before somebody mends it. Only what is certain counts: a test that may go the other way, a handler
that may catch it, a loop that may be empty, or one of several callees, and nothing is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from turbofix.magics import MARK
from turbofix.program.analysis import Analysis
from turbofix.program.answers import by_type, once_per_node
from turbofix.program.events import Control, Event
from turbofix.program.evidence import short
from turbofix.program.execution import ModuleFile
from turbofix.program.guards import Condition
from turbofix.program.libraries import dropped, words
from turbofix.program.misuses import misuse
from turbofix.program.model import Evaluation, Optimizer, Step, Stop, Target
from turbofix.program.names import walk_here
from turbofix.program.overwritten import is_plain, overwritten
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS
from turbofix.program.tensors import is_scalar
from turbofix.program.values import Host, Made, ModuleValue, Tensor, members, truth_of
from turbofix.program.values import Sequence as Row

Level = tuple[str, int | None, object]

_GIVEN = words(
    """
    display get_ipython In Out exit quit profile reveal_type reveal_locals spark sc dbutils WindowsError aiter anext
    ExceptionGroup BaseExceptionGroup EncodingWarning PythonFinalizationError
    """
)
"""Names that a notebook, a profiler, another system or a newer Python binds by itself."""

_BINDING = words("exec execfile globals vars locals setattr __builtins__ builtins __import__ importlib")
"""Names with whose help a program may bind others."""


def stop(
    analysis: Analysis, backwards: Sequence[list[Event]], evaluations: Iterable[Evaluation], target: Target
) -> Stop | None:
    """The first place at which the program certainly ends, given the backward passes of each of its steps.

    ``target`` says from which torch on.
    """
    if not backwards:
        return None
    found = Stops(analysis, [each[0] for each in backwards], evaluations, target.torch)
    for event in analysis.facts.of("import", "unbound", "index", "call", "criterion", "backward"):
        said = found.judge(event)
        if said is not None:
            return Stop(analysis.facts.site(event), *said)
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
        self, analysis: Analysis, steps: list[Event], evaluations: Iterable[Evaluation], oldest: tuple[int, int]
    ) -> None:
        self.analysis = analysis
        self.oldest = oldest
        self.facts = analysis.facts
        self.steps = steps
        self.last = max(step.order for step in steps)
        self.training = {id(record.node) for step in steps for record in self.facts.loops(step)}
        self.evaluated = {evaluation.loop.site for evaluation in evaluations}
        self._imported: set[ModuleFile] | None = None

    def judge(self, event: Event) -> tuple[str, str] | None:
        """The error that an event raises for certain, and why; None where it raises none or may not be reached."""
        said: tuple[str, str] | None = None
        if event.kind == "index":
            said = self._index(event)
        elif event.kind == "unbound":
            said = self._unbound(event)
        elif event.kind == "import":
            said = self._import(event)
        elif event.kind == "backward":
            said = self._backward(event)
        else:
            said = misuse(self.analysis, event, self.oldest)
        return said if said is not None and self._is_on_the_way(event) else None

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
        if name.startswith("__") or name == "_" or name in _GIVEN or not isinstance(node, ast.Name):
            return None
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

    def _is_on_the_way(self, event: Event) -> bool:
        """Whether the program comes by an event for certain, before its training ends, whichever step it is to run."""
        levels = event.control.chain()
        if not levels or levels[0].detail is not None or _is_optional(event.node, event.module, self.analysis):
            return False
        module = levels[1].module if len(levels) > 1 else None
        if module is not self.facts.execution.entry and levels[-1].kind == "module":
            # what stands at the top level of another file runs when that file is imported
            return self._reaches(event, levels, self.steps[0]) and module in self._modules()
        inside = {id(record.node) for record in self.facts.loops(event)}
        if not inside & self.training and event.order > self.last:
            return False
        return all(self._reaches(event, levels, step) for step in self.steps)

    def _reaches(self, event: Event, levels: list[Control], step: Event) -> bool:
        """Whether nothing but what leads to a step decides whether an event happens, too."""
        shared = _shared(levels, step.control.chain())
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

    def _is_unconditional(self, event: Event, step: Event) -> bool:
        """Whether every test between the event and the program's top level holds, or decides about the step, too."""
        known = {(id(each.node), each.holds) for each in self._conditions(step)}
        outer = next((record.node for record in self.facts.loops(event)), None)
        for condition in self._conditions(event):
            if (id(condition.node), condition.holds) in known or self._holds(condition):
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
