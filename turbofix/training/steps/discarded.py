"""Gradients that a backward pass computes and that nobody uses: those of a generator in the discriminator's step.

From the expression that a backward pass begins at, names are followed to what set them, and calls of models to what
they were given. A model on that way that the next step does not update, and whose gradients are cleared before its own
optimizer steps, is gone through in vain. That nothing else reads those gradients is left to a comparison of runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Const, Instance, Made, Option, Tensor, Value, flatten, members
from turbofix.library.rows import cuts_graph
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import body_of, dotted, stores, targets
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.model import ThrownAway
from turbofix.training.objects import outermost
from turbofix.training.optimizers.optimizer import parameter_owners, parts_of
from turbofix.training.precision import autocasts_around
from turbofix.training.steps.acts import concerned, is_model, loss_expression, optimizers_in
from turbofix.training.steps.regions import no_grad

_CUTS = frozenset({"detach_", "shape", "data", "dtype", "device"})
"""What cuts a graph, or asks for something else than numbers, beside the methods of which rows say so."""
_DATA = frozenset({"batch", "data", "made", "object"})
_COMPUTING = ("torch.", "F.", "min", "max")
_DEEPEST = 12
_FREEZING = regex(r"\.requires_grad\s*=(?!=)|requires_grad_\(\s*(?!True)|set_requires_grad")


def _cuts(name: str) -> bool:
    return name in _CUTS or cuts_graph(name)


@dataclass(frozen=True, eq=False)
class _Pass:
    """One call of a model on the way of a backward pass; ``given`` is what hands its result to the call ``to``."""

    call: ast.Call
    models: frozenset[int]
    to: _Pass | None
    given: ast.expr
    func: ast.expr
    """The model; for a call of another method than ``forward``, what it is called on."""

    @property
    def name(self) -> str:
        """What the model is called there."""
        return ast.unparse(self.func).removesuffix(".forward")

    def before(self) -> Iterator[_Pass]:
        """The calls that take its result, one after another."""
        each = self.to
        while each is not None:
            yield each
            each = each.to


def thrown_away(analysis: Analysis, record: LoopRecord, backwards: list[Event]) -> tuple[ThrownAway, ...]:
    """The backward passes of a training loop that go on into models which make no use of it, or that could."""
    found = _Loop(analysis, record, backwards)
    thrown = (*(found.all() if len(found.called) > 1 else ()), *found.cut_at_once())
    return tuple(sorted(thrown, key=lambda each: each.backward))


def is_updated_by(analysis: Analysis, call: Event, model: Value) -> bool:
    """Whether a step updates a model by what a call of it in its loops gives, for all that is known."""
    loops = [each for each in analysis.facts.loops(call) if _backwards_in(analysis, each)]
    return not loops or any(_is_used(*_ways_of(analysis, each), call.node, model) for each in loops)


def _is_used(loop: _Loop, ways: list[tuple[Event, _Way]], call: ast.AST, model: Value) -> bool:
    mine = parts(model)
    through = [event for event, way in ways for each in way.passes if each.call is call and id(model) in each.models]
    updated = [loop.updated(each) for each in through]
    if not updated:  # no backward pass is seen to go through it
        return not loop.trained or not mine.isdisjoint(loop.trained)
    return not all(each and mine.isdisjoint(each) for each in updated)


def _backwards_in(analysis: Analysis, record: LoopRecord) -> list[Event]:
    return [each for each in analysis.facts.of("backward") if analysis.facts.inside(each, record.node)]


def _ways_of(analysis: Analysis, record: LoopRecord) -> tuple[_Loop, list[tuple[Event, _Way]]]:
    def find() -> tuple[_Loop, list[tuple[Event, _Way]]]:
        loop = _Loop(analysis, record, _backwards_in(analysis, record))
        return loop, [(each, loop.way(each)) for each in loop.backwards]

    return analysis.once(("ways", record.node), find)


class _Loop:
    """The acts of one training loop, in order."""

    def __init__(self, analysis: Analysis, record: LoopRecord, backwards: list[Event]) -> None:
        self.analysis, self.facts, self.places = analysis, analysis.facts, analysis.facts.places
        self.record = record
        self.backwards = [each for each in backwards if self.facts.inside(each, record.node)]
        self.acts = [each for each in self.facts.events_in(record.node) if each.kind in ("step", "zero_grad")]
        made = {id(made): made for each in self.acts for made in optimizers_in(concerned(each))}
        self.owned = {key: _owners(each) for key, each in made.items()}
        self.trained = frozenset[int]().union(*self.owned.values()) if self.owned else frozenset()
        everything = (each for each in self.facts.events_in(record.node) if each.kind == "forward")
        self.called = {id(one) for each in everything for one in members(each.receiver)}
        self.texts = [each.text for each in analysis.execution.modules.values()]

    def all(self) -> Iterator[ThrownAway]:
        """What each backward pass computes in vain."""
        ways = {id(each): self.way(each) for each in self.backwards}
        for event in self.backwards:
            others = {id(one.call) for key, way in ways.items() if key != id(event) for one in way.passes}
            yield from self._of(event, ways[id(event)], others)

    def cut_at_once(self) -> list[ThrownAway]:
        """The statements that build the graph of a model's call, of which nothing is kept: ``q = net(x).detach()``."""
        found: list[ThrownAway] = []
        forwards = [each for each in self.facts.events_in(self.record.node) if each.kind == "forward"]
        for event in sorted(outermost(self.analysis, forwards), key=self._statement):
            unseen = self._beside(event, frozenset())
            name = ast.unparse(event.node.func) if isinstance(event.node, ast.Call) else "the model"
            if unseen is None or self._is_frozen(name):
                continue
            site = self._statement(event)
            new = ThrownAway(site, (name,), (), (), at_once=True, certain=not unseen, built=(site,))
            last, end = (found[-1], found[-1].built[0]) if found else (new, site)
            follows = (end.path, end.column, end.end_line + 1) == (site.path, site.column, site.line)
            if found and (follows or end == site):  # one block for them all
                names = tuple(dict.fromkeys((*last.names, name)))
                found[-1] = replace(last, names=names, certain=last.certain and new.certain, built=(site,))
            else:
                found.append(new)
        return found

    def _built(self, each: _Pass, ended: frozenset[ast.AST]) -> Site | None:
        """The statement that builds a graph in vain as soon as some expressions are detached."""
        forwards = [one for one in self.facts.at(each.call) if one.kind == "forward"]
        own = forwards and each.given is not each.call
        spared = own and all(self._beside(one, ended) is not None for one in forwards)
        return self._statement(forwards[0]) if spared else None

    def _statement(self, event: Event) -> Site:
        return self.places.site(self.places.statement(event.node, event.module) or event.node, event.module)

    def _beside(self, event: Event, ended: frozenset[ast.AST]) -> list[ast.AST] | None:
        """What of the statement of a model's call nobody knows, where nothing of its graph is kept; None where it is.

        ``ended`` are the expressions that will be detached.
        """
        statement = self.places.statement(event.node, event.module)
        if no_grad(event) or not isinstance(statement, ast.Assign):
            return None
        detached = self._is_detached_later(statement, event.module, ended)
        beside = _beside(statement.value, event.node, detached=detached)
        if beside is None or any(True for _ in autocasts_around(self.analysis, event)):
            return None
        values = [self.facts.evaluate(each, self.facts.frames(event)) for each in beside]
        held = [one for each in values if each is not None for one in flatten(each, 3)]
        unseen = [one for each, value in zip(beside, values, strict=True) if value is None for one in walk(each)]
        graphs = any(isinstance(each, Tensor) and each.roles - _DATA for each in held)
        return None if graphs or any(isinstance(each, ast.Call) for each in unseen) else unseen

    def _is_detached_later(self, statement: ast.Assign, module: ModuleFile, ended: frozenset[ast.AST]) -> bool:
        """Whether whatever reads the names that are given a value there detaches it, before anything learns from it."""
        names = [each for target in statement.targets for each in targets(target)]
        if statement in ended or not all(isinstance(each, ast.Name) for each in names):
            return False
        found = readers(self.places.scope(statement, module))
        reads = [read for each in names for read in found.get(each, ())]
        return bool(reads) and all(self._is_cut(read, module, ended | {statement}) for read in reads)

    def _is_cut(self, node: ast.AST, module: ModuleFile, ended: frozenset[ast.AST]) -> bool:
        """Whether no gradient can come back to an expression: what is computed from it is detached."""
        if node in ended:
            return True
        above = self.places.parent(node, module)
        if isinstance(above, ast.keyword):
            above = self.places.parent(above, module)
        if isinstance(above, ast.Assign):
            return self._is_detached_later(above, module, ended)
        if isinstance(above, ast.Attribute):
            call = self.places.parent(above, module)
            method = isinstance(call, ast.Call) and call.func is above and not above.attr.endswith(("_", "backward"))
            return _cuts(above.attr) or (method and call is not None and self._is_cut(call, module, ended))
        if isinstance(above, ast.Call):
            computes = (dotted(above.func) or "").removeprefix("torch.nn.functional.").startswith(_COMPUTING)
            passes = computes or any(each.kind == "forward" for each in self.facts.at(above))
            return passes and self._is_cut(above, module, ended)
        if isinstance(above, ast.Subscript) and node is not above.value:
            return False
        through = (ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Tuple, ast.List)
        return isinstance(above, through) and self._is_cut(above, module, ended)

    def _of(self, event: Event, way: _Way, others: set[int]) -> Iterator[ThrownAway]:
        updated = self.updated(event)
        passed = event.arguments.get("inputs", 3) if event.arguments is not None else None
        if passed is not None or not updated:
            return  # it is told already whose gradients are wanted, or what the next optimizer trains is not known
        site = self.facts.site(event)
        cuts: list[_Pass] = []
        lost: list[_Pass] = []
        cleared: dict[Site, None] = {}
        for each in way.passes:
            if each.models & updated or any(one in (*cuts, *lost) for one in each.before() if one in cuts):
                continue
            places = self._cleared(event, each.models)
            if places is None or not (each.models & self.trained or self._is_never_frozen()):
                continue
            if self._is_frozen(each.name):
                continue
            cleared.update(dict.fromkeys(places))
            wanted = any(one.models & updated and each in one.before() for one in way.passes)
            if wanted and each.models & self.trained:
                lost.append(each)
            elif not wanted and each.func is each.call.func:
                cuts.append(each)
        whole = {id(each.call) for each in cuts if each.to is None}
        cuts = [each for each in cuts if each.to is None or id(each.call) not in whole]
        if not any(each.models & updated for each in way.passes):
            cuts = []  # what the pass is for was not seen: it may have nothing left to go back through
        same = next((each for each in cuts if id((each.to or each).call) in others), None)
        names = tuple(dict.fromkeys(_short(each.given) for each in cuts))
        models = tuple(dict.fromkeys(each.name for each in (*cuts, *lost)))
        kept = self._kept(event, way, updated) if lost else ()
        if cuts:
            over = {id(each): self._built(each, frozenset(one.given for one in cuts)) for each in cuts}
            gone = tuple(self.places.site(each.given, event.module) for each in cuts if over[id(each)] is None)
            why = "another backward pass goes through the same call, and needs them" if same is not None else None
            ended = tuple(dict.fromkeys(each.name for each in cuts))
            built = tuple(dict.fromkeys(each for each in over.values() if each is not None))
            gone = tuple(dict.fromkeys(gone))
            yield ThrownAway(site, names, gone, ended, tuple(cleared), why, kept=kept, built=built)
        elif kept:
            yield ThrownAway(site, (), (), models, tuple(cleared), kept=kept)
        elif way.cut:
            yield ThrownAway(site, tuple(dict.fromkeys(way.cut)), (), (), done=True)

    def _kept(self, event: Event, way: _Way, updated: frozenset[int]) -> tuple[str, ...]:
        """The models whose gradients are wanted, as they are called in the function of the backward pass."""
        call = event.node
        if not isinstance(call, ast.Call) or call.keywords or not self._is_never_frozen():
            return ()
        wanted = [each for each in way.passes if each.models & updated]
        scope = self.places.scope(call, event.module)
        own = all(self.places.scope(each.call, event.module) is scope for each in wanted)
        own = own and not any(isinstance(one, ast.Call) for each in wanted for one in walk(each.func))
        texts = (self.places.text(each.func, event.module).removesuffix(".forward") for each in wanted)
        return tuple(dict.fromkeys(texts)) if own else ()

    def updated(self, event: Event) -> frozenset[int]:
        """The models that the next steps update, up to the next backward pass behind them."""
        end = next((each.order for each in self.acts if each.kind == "step" and each.order > event.order), None)
        if end is None:
            return frozenset()
        following = [each.order for each in self.backwards if each.order > end]
        last = min(following, default=float("inf"))
        steps = [each for each in self.acts if each.kind == "step" and event.order < each.order < last]
        found = [self.owned[id(one)] for each in steps for one in optimizers_in(concerned(each))]
        return frozenset[int]().union(*found) if all(found) else frozenset()

    def _cleared(self, event: Event, models: frozenset[int]) -> tuple[Site, ...] | None:
        """Where the gradients of models are cleared before their optimizer steps; None where it steps first."""
        round_again = [
            *(each for each in self.acts if each.order > event.order),
            *(each for each in self.acts if each.order < event.order),
        ]
        for each in round_again:
            made = list(optimizers_in(concerned(each)))
            about = frozenset[int]().union(*(self.owned[id(one)] for one in made), map(id, members(each.receiver)))
            about |= frozenset(map(id, made))
            if about & models:
                return (self.facts.site(each),) if each.kind == "zero_grad" else None
        return () if not models & self.trained else None

    def _is_never_frozen(self) -> bool:
        """Whether no weights are frozen: else a model that nothing trains has no gradients."""
        return not any(_FREEZING.search(text) for text in self.texts)

    def _is_frozen(self, name: str) -> bool:
        """Whether a model takes no gradients for a while."""
        pattern = re.compile(rf"\b{re.escape(name)}\.requires_grad_\(False|\bin {re.escape(name)}\.parameters\(\)")
        return any("requires_grad" in text and pattern.search(text) for text in self.texts)

    def way(self, event: Event) -> _Way:
        way = _Way(self.analysis, event, self.trained)
        loss = loss_expression(self.analysis, event)
        if loss is not None:
            way.follow(loss, None, None, 0)
        return way


class _Way:
    """All calls of models that a backward pass goes through."""

    def __init__(self, analysis: Analysis, event: Event, trained: frozenset[int]) -> None:
        self.analysis, self.module, self.trained = analysis, event.module, trained
        self.frames = analysis.facts.frames(event)
        self.places = analysis.facts.places
        self.passes: list[_Pass] = []
        self.cut: list[str] = []  # what is detached
        self._seen: set[tuple[int, int]] = set()

    def follow(self, node: ast.AST, to: _Pass | None, given: ast.expr | None, depth: int) -> None:
        """What an expression was computed by; ``given`` is the part of the argument of ``to`` that it came by."""
        if depth > _DEEPEST or (id(node), id(to)) in self._seen:
            return
        self._seen.add((id(node), id(to)))
        if isinstance(node, (ast.Name, ast.Attribute)) and (name := dotted(node)) is not None:
            if not isinstance(node.ctx, ast.Load):
                return
            made = self._definitions(node, name)
            for each in made:
                self.follow(each, to, given or node, depth + 1)
            if made or isinstance(node, ast.Name):
                return
        if isinstance(node, ast.Attribute) and _cuts(node.attr):
            return
        if isinstance(node, ast.Call):
            func = node.func
            if isinstance(func, ast.Attribute) and _cuts(func.attr):
                if func.attr == "detach" and to is not None:
                    self.cut.append(_short(func.value))
                return
            forwards = [each for each in self.analysis.facts.at(node) if each.kind == "forward"]
            receivers = [one for each in forwards for one in members(each.receiver)]
            seen = self.analysis.facts.at(node) or self.places.scope(node, self.module) is not self.frames[-1].scope
            owner = func.value if isinstance(func, ast.Attribute) and not seen else None
            found_there = self.analysis.facts.evaluate(owner, self.frames)
            receivers += [each for each in members(found_there) if id(each) in self.trained]
            models = [each for each in receivers if isinstance(each, (Instance, Made)) and is_model(each)]
            models = models if any(map(_may_learn, models)) else []
            above = self.places.ancestors(node, self.module) if models and owner else ()
            without = any(isinstance(each, ast.With) and "_grad(" in ast.unparse(each.items[0]) for each in above)
            if models and (without or any(map(no_grad, forwards))):
                return
            if models:
                handed = (given or node) if to is not None else node
                found = _Pass(node, frozenset(map(id, models)), to, handed, owner or func)
                self.passes.append(found)
                for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                    self.follow(each, found, None, depth + 1)
                return
        for below in ast.iter_child_nodes(node):
            self.follow(below, to, given, depth)

    def _definitions(self, node: ast.expr, name: str) -> Sequence[ast.expr]:
        """What was assigned last to a name above its use, or to an attribute of the object in the class."""
        if "." in name:
            if not name.startswith("self.") or not self._is_computed(name):
                return ()
            return [
                each.value
                for each in every(ast.Assign, self.module.tree)
                if any(dotted(target) == name for target in each.targets) and not self._is_made(each)
            ]
        scope = self.places.scope(node, self.module)
        found: list[ast.expr] = []
        for each in _statements(scope):
            if not isinstance(each, (ast.Assign, ast.AugAssign)) or each.lineno >= node.lineno:
                continue
            if any(target == name for target, _ in stores(each)):
                found = [each.value] if isinstance(each, ast.Assign) else [*found, each.value]
        return found

    def _is_computed(self, name: str) -> bool:
        return f"{name} =" in self.module.text

    def _is_made(self, statement: ast.Assign) -> bool:
        function = self.places.function(statement, self.module)
        return function is None or function.name == "__init__"


def _beside(node: ast.AST, call: ast.AST, *, detached: bool = False) -> list[ast.expr] | None:
    """What an expression computes with beside a model's call that is detached in it; None where it is not."""
    if node is call:
        return [] if detached else None
    if isinstance(node, ast.BinOp):
        inner, other = (
            (node.left, node.right) if any(each is call for each in walk(node.left)) else (node.right, node.left)
        )
        found = _beside(inner, call, detached=detached)
        return None if found is None else [*found, other]
    if isinstance(node, ast.Call) and (dotted(node.func) or "").startswith(("np.", "torch.")) and node.args:
        found = _beside(node.args[0], call, detached=detached)
        return None if found is None else [*found, *node.args[1:]]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        found = _beside(node.func.value, call, detached=detached or node.func.attr in ("detach", "numpy"))
        return None if found is None else [*found, *node.args]
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return _beside(node.value, call, detached=detached)
    return None


def _may_learn(model: Value) -> bool:
    """Whether a module may have weights: a transform of torchaudio has none, nor has what holds but such."""
    if not isinstance(model, Instance) or model.base is not None:
        return not (isinstance(model, Made) and model.qualname.startswith("torchaudio.transforms."))
    held = [each for one in model.attributes.values() for each in flatten(one, 2)]
    known = all(isinstance(each, (Const, Option, Made, Instance)) for each in held)
    return not held or not known or any(_may_learn(each) for each in held if isinstance(each, (Made, Instance)))


@once_per_node
def _statements(scope: ast.AST) -> list[ast.stmt]:
    """The statements of a function, in the order of their lines, without those of functions in it."""
    found: list[ast.stmt] = []
    waiting: list[ast.AST] = list(body_of(scope))
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.stmt):
            found.append(each)
        if not isinstance(each, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            waiting += ast.iter_child_nodes(each)
    return sorted(found, key=lambda one: (one.lineno, one.col_offset))


def _owners(optimizer: Value) -> frozenset[int]:
    """The models whose parameters an optimizer is given, with all that they are made of."""
    if not isinstance(optimizer, Made):
        return frozenset()
    passed = optimizer.arguments.get("params", 0)
    owners = [] if passed is None else list(parameter_owners([passed.value]))
    return frozenset[int]().union(*map(parts, owners))


def _short(node: ast.AST) -> str:
    names = [each.id for each in walk(node) if isinstance(each, ast.Name)] if isinstance(node, ast.Call) else []
    return ast.unparse(node) if len(names) < len("several") else f"{names[0]}(...)"


def parts(model: Value) -> frozenset[int]:
    """The identities of a model and all that it is made of."""
    return frozenset(map(id, parts_of(model)))
