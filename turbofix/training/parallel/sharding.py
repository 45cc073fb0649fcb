"""What several processes share out of an optimizer's state, or of a model, and where a program needs it whole."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from turbofix.dataflow.facts import Frame, argument_for
from turbofix.dataflow.guards import Condition
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Function, Instance, Made, Mapping, Opaque, Sequence, Value, flatten, members
from turbofix.library.tables import parameters_of
from turbofix.source.answers import every
from turbofix.source.names import dotted, parameters
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.model import Hazard, Loaded, Model, Optimizer, Saved, Sharding, Wrap
from turbofix.training.objects import models_in, outermost
from turbofix.training.optimizers.optimizer import parameter_owners
from turbofix.training.parallel.sharing import value_of
from turbofix.training.parallel.start import last_import
from turbofix.training.parallel.wrapping import is_normed
from turbofix.training.steps.acts import optimizers_in
from turbofix.training.steps.reductions import PARALLEL

_BEGINS = "torch.distributed.init_process_group"
_OWN = (".no_sync", ".register_comm_hook")
_ENVIRONMENT = ("environ.get", "getenv")
_COUNTING = ("range", "enumerate", "tqdm")
_PLAIN = ("int", "bool", "str")
_SPREADING = ("broadcast", "all_reduce", "all_gather")


class _Unfit(Exception):  # noqa: N818  (an outcome, not an error)
    """What cannot be shared out, and where that is seen."""

    def __init__(self, why: str, site: Site) -> None:
        super().__init__(why)
        self.hazard = Hazard(why, site)


def shardings(analysis: Analysis, made: tuple[Optimizer, ...], known: tuple[Model, ...]) -> Iterator[Sharding]:
    """The optimizers of a training by several processes."""
    for optimizer in made:
        if optimizer.used:
            yield _Survey(analysis, optimizer, known).sharding()


class _Survey:
    """What happens to one optimizer, and to the model that it updates."""

    def __init__(self, analysis: Analysis, optimizer: Optimizer, known: tuple[Model, ...]) -> None:
        self.analysis, self.facts, self.places = analysis, analysis.facts, analysis.facts.places
        self.optimizer, self.known = optimizer, known
        self.makes = [each for each in self.facts.of("make") if self.facts.site(each) == optimizer.site]
        self.made = {id(one) for each in self.makes for one in members(each.result)}
        above = self.places.parent(self.makes[0].node, self.makes[0].module)
        self.returned = isinstance(above, ast.Return)
        modules = analysis.execution.modules.values()
        ends = ((last_import(module), module) for module in modules)
        self.heads = tuple(
            (self.places.site(end[0], module), self.places.site(end[1], module))
            for end, module in ends
            if end is not None
        )
        self.agreeing = tuple(
            (self.places.site(each, module), each.name)
            for module in modules
            for each in module.tree.body
            if isinstance(each, ast.FunctionDef) and _agrees(each)
        )
        self.decisions: dict[Site, None] = {}
        self.models: list[Made | Instance | Opaque] = []

    def sharding(self) -> Sharding:
        """All of it, or what is in the way."""
        site, names = self.optimizer.site, parameters_of(self.optimizer.qualname or "") or ()
        try:
            self._begins_before()
            states = tuple(self._saves(self._of_optimizer))
        except _Unfit as found:
            return Sharding(site, names, hazard=found.hazard, whole=found.hazard)
        decisions = tuple(self.decisions)
        try:
            return self._whole(site, names, states, decisions)
        except _Unfit as found:
            return Sharding(
                site, names, states, decisions, heads=self.heads, agreeing=self.agreeing, whole=found.hazard
            )

    def _begins_before(self) -> None:
        begins = min((each.order for each in self.facts.of("call") if each.name == _BEGINS), default=None)
        if begins is None or begins > self.makes[0].order:
            raise _Unfit("the processes' group is not seen to be there before it is built", self.optimizer.site)

    # --- what is saved

    def _of_optimizer(self, event: Event) -> bool:
        return any(id(each) in self.made for each in optimizers_in(event.receiver))

    def _of_model(self, event: Event) -> bool:
        return any(each is one for each in models_in(event.receiver) for one in self.models)

    def _saves(self, is_of: Callable[[Event], bool]) -> Iterator[Saved]:
        """The states that are saved of what is shared out. Raises _Unfit."""
        found: dict[Site, Saved] = {}
        for event in self.facts.of("call"):
            of_state = event.name.rpartition(".")[2] == "state_dict"
            if not of_state or not is_of(event) or not isinstance(event.node, ast.Call):
                continue
            site = self.facts.site(event)
            saves = [each for each in self.facts.of("save") if _holds(each.receiver, event.node)]
            if not saves:
                self._unsaved(event, site)
                continue
            if any(_holds(each, event.node) for load in self.facts.of("load") for each in _given(load)):
                raise _Unfit("what is saved is loaded again from memory", site)
            for save in saves:
                if not self._ranks(save):
                    raise _Unfit("every process saves it", self.facts.site(save))
            found.setdefault(site, self._saved(event, site))
        yield from found.values()

    def _unsaved(self, event: Event, site: Site) -> None:
        if self._of_optimizer(event):
            raise _Unfit("its state is read, and not seen to be saved", site)
        if self._ranks(event):
            raise _Unfit("one process alone reads the weights", site)

    def _conditions(self, event: Event) -> list[Condition]:
        """The tests on the way to an event, outermost first, through calls."""
        frames, found = self.facts.frames(event), list[Condition]()
        for index, frame in enumerate(frames):
            anchor = event.node if index == len(frames) - 1 else frame.anchor
            around = self.analysis.guards.tests_around(anchor, frame.scope, frames[: index + 1], returns=index > 0)
            found += [each for each in around if each.test is not None]
        return found

    def _ranks(self, event: Event) -> list[Condition]:
        """Those of them that ask for the rank."""
        return [each for each in self._conditions(event) if self._asks_rank(each.test, each.frames)]

    def _asks_rank(self, node: ast.expr | None, frames: tuple[Frame, ...], depth: int = 6) -> bool:
        """Whether a test is for the rank itself, and not for what was computed on the device of that number."""
        if node is None or not depth:
            return False
        guards, module = self.analysis.guards, frames[-1].module
        inside: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = dotted(node.func) or ""
            if guards.is_rank(node.func, frames, 3) or (
                name.endswith(_ENVIRONMENT) and guards.is_rank(node, frames, 1)
            ):
                return True
            inside = node.args if name in _PLAIN else []
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            if guards.is_rank(node, frames, 1):
                return True
            if isinstance(node, ast.Name):
                passed = guards.passed_for(node, frames)
                if passed is not None:
                    return self._asks_rank(passed, frames[:-1], depth - 1)
                written = self.facts.bindings.writes(self.facts.bindings.owner(node.id, node, module), node.id)
            else:
                written = [each for each, *_ in self.facts.attribute_writes(getattr(node, "attr", ""))]
            inside = [each.value for each in written if isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value]
        elif isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.IfExp)):
            inside = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return any(self._asks_rank(each, frames, depth - 1) for each in inside)

    def _saved(self, event: Event, site: Site) -> Saved:
        """Where all processes meet before a state is saved, and what has it there."""
        assert isinstance(event.node, ast.Call)
        assert isinstance(event.node.func, ast.Attribute)
        owner, frames = event.node.func.value, self.facts.frames(event)
        ranks = self._ranks(event)
        self._decide(event, ranks[0] if ranks else None)
        if not ranks:
            at = self.places.statement(event.node, event.module)
            if at is None or isinstance(at, (*FUNCTIONS, ast.If, ast.For, ast.While)) or self._is_lazy(event, at):
                raise _Unfit("its state stands where nothing can be put in front of it", site)
            return Saved(site, self.places.site(at, event.module), self._text(owner, frames, frames[-1], site))
        first = ranks[0]
        frame = first.frames[-1]
        node = self.places.statement(first.node, frame.module)
        if (
            node is None
            or isinstance(node, (ast.For, ast.While))
            or _is_elif(node, self.places.parent(node, frame.module))
        ):
            raise _Unfit("its state stands where nothing can be put in front of it", site)
        tests = tuple(ast.unparse(each) for each in self._beside(first)) if not first.early else ()
        text = self._text(owner, frames, frame, site)
        return Saved(site, self.places.site(node, frame.module), text, tests, True, frame.scope is not frames[-1].scope)

    def _is_lazy(self, event: Event, at: ast.stmt) -> bool:
        """Whether a call in a statement may be left out when that is executed."""
        for above in self.places.ancestors(event.node, event.module):
            if above is at:
                return False
            if isinstance(above, (ast.IfExp, ast.BoolOp, ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.DictComp)):
                return True
        return False

    def _beside(self, condition: Condition) -> Iterator[ast.expr]:
        """What a test asks beside the rank: the other parts of an ``and``."""
        test = condition.test
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and condition.holds:
            yield from (each for each in test.values if not self._asks_rank(each, condition.frames))

    def _decide(self, event: Event, first: Condition | None) -> None:
        """Note the tests on the way to where processes meet that each may answer differently."""
        loops = self.facts.loops(event)
        for each in self._conditions(event) if loops else ():
            if first is not None and each.test is first.test:
                for part in self._beside(each):
                    if self._may_differ(Condition(part, True, each.node, each.frames), loops[0].node):
                        why = "processes may disagree on when to save: decide that in a statement of its own"
                        raise _Unfit(why, self.places.site(part, each.frames[-1].module))
                return
            if self._may_differ(each, loops[0].node):
                assert each.test is not None
                self.decisions[self.places.site(each.test, each.frames[-1].module)] = None

    def _may_differ(self, condition: Condition, loop: ast.AST) -> bool:
        """Whether processes may answer a test differently: it is of what they compute, and none of them has sent."""
        test, frames = condition.test, condition.frames
        if self.analysis.guards.judge(condition, loop)[0] not in ("condition", "rank") or test is None:
            return False
        varying = (
            each for each in walk(test) if isinstance(each, ast.Name) and self.analysis.guards.varies(each, frames)
        )
        plain = not any(isinstance(each, (ast.Call, ast.Attribute)) for each in walk(test))
        if plain and all(self._is_counted(each, frames[-1].module) for each in varying):
            return False
        names = {ast.unparse(test)}
        for call in (each for each in walk(test) if isinstance(each, ast.Call)):
            called = members(self.facts.evaluate(call.func, frames))
            names |= {ast.unparse(each.node) for each in called if isinstance(each, Function)}
        return not any(word in each for word in _SPREADING for each in names)

    def _is_counted(self, name: ast.Name, module: ModuleFile) -> bool:
        """Whether a name is a number that a loop, or a statement in it, counts up."""
        for each in self.facts.bindings.writes(self.facts.bindings.owner(name.id, name, module), name.id):
            if isinstance(each, (ast.For, ast.AsyncFor)):
                target = each.target.elts[0] if isinstance(each.target, ast.Tuple) else each.target
                counts = isinstance(each.iter, ast.Call) and (dotted(each.iter.func) or "").endswith(_COUNTING)
                if not counts or dotted(target) != name.id:
                    return False
            elif not isinstance(getattr(each, "value", None), ast.Constant):
                return False
        return True

    def _text(self, node: ast.expr, frames: tuple[Frame, ...], wanted: Frame, site: Site) -> str:
        """What something is called in an outer frame, followed through what functions are given. Raises _Unfit."""
        lost = _Unfit("what has the state was not followed to where all processes meet", site)
        text = dotted(node)
        for index in range(len(frames) - 1, -1, -1):
            frame = frames[index]
            if text is None:
                break
            if frame.scope is wanted.scope:
                return text
            root, dot, rest = text.partition(".")
            names = [each.arg for each in parameters(frame.scope)] if isinstance(frame.scope, FUNCTIONS) else []
            if root not in names:
                if self.facts.bindings.owner(root, node, frame.module) is frame.module.tree is wanted.module.tree:
                    return text
                break
            call = frame.call
            if not isinstance(call, ast.Call):
                break
            method = frame.function is not None and frame.function.cls is not None
            if method and root == names[0] and isinstance(call.func, ast.Attribute):
                passed: ast.expr | None = call.func.value
            else:
                passed = argument_for(root, frame, call)
            head = dotted(passed) if passed is not None else None
            text = f"{head}{dot}{rest}" if head is not None else None
            node = passed or node
        raise lost

    # --- sharing out parameters, too

    def _whole(
        self, site: Site, names: tuple[str, ...], states: tuple[Saved, ...], decisions: tuple[Site, ...]
    ) -> Sharding:
        make = self.makes[0]
        given = make.arguments.get("params", 0) if make.arguments is not None else None
        owners = list(parameter_owners([given.value])) if given is not None else []
        self.models = list({id(each): each for owner in owners for each in models_in(owner)}.values())
        if given is None or given.node is None or len(self.models) != 1:
            raise _Unfit("its parameters are not seen to be those of one model", site)
        wraps = [
            each
            for each in self.facts.of("wrap")
            if each.name == PARALLEL and any(one is self.models[0] for one in models_in(each.receiver))
        ]
        if len({id(each.node) for each in wraps}) != 1:
            raise _Unfit("its model is not seen to be wrapped by DistributedDataParallel once", site)
        wrap = self._wrap(wraps[0], make)
        self._unfit_elsewhere(wraps[0])
        text = self._owner(given.node, make, wrap)
        weights = tuple(self._saves(self._of_model))
        loaded = tuple(self._loads(wraps[0].order if wrap.before else make.order))
        modules = tuple(self._modules())
        return Sharding(
            site,
            names,
            states,
            decisions,
            model=text,
            wrap=wrap,
            weights=weights,
            loads=loaded,
            modules=modules,
            all_decisions=tuple(self.decisions),
            heads=self.heads,
            agreeing=self.agreeing,
            returned=self.returned,
        )

    def _owner(self, params: ast.expr, make: Event, wrap: Wrap) -> str:
        """What the model is called where its optimizer is built, of parameters that are gathered behind the sharing."""
        frames = self.facts.frames(make)
        read = [each for each in walk(params) if isinstance(each, (ast.Name, ast.Attribute))]
        names = [
            ast.unparse(each)
            for each in read
            if any(one is self.models[0] for one in models_in(self.facts.evaluate(each, frames)))
        ]
        asked = names and any(
            isinstance(each, ast.Call) and "parameters" in ast.unparse(each.func) for each in walk(params)
        )
        plain = [each for each in read if isinstance(each, ast.Name)]
        behind = wrap.before and any(self._is_set_behind(each, make, wrap) for each in plain)
        if asked and (wrap.before or not any(".module" in each for each in names)):
            return names[0]
        if behind and all(self._is_set_behind(each, make, wrap) for each in plain):
            return ""
        why = "its parameters are gathered before they are shared out, and are other objects then"
        raise _Unfit(why, self.places.site(params, make.module))

    def _is_set_behind(self, name: ast.Name, make: Event, wrap: Wrap) -> bool:
        """Whether a name is given its value behind the call that wraps the model, in the function of both."""
        writes = self.facts.bindings.writes(self.facts.bindings.owner(name.id, name, make.module), name.id)
        places = [self.places.site(each, make.module) for each in writes]
        return bool(places) and all(each.path == wrap.call.path and each.line > wrap.call.end_line for each in places)

    def _wrap(self, event: Event, make: Event) -> Wrap:
        given = event.arguments.get("module", 0) if event.arguments is not None else None
        site = self.facts.site(event)
        if given is None or given.node is None:
            raise _Unfit("what is wrapped is not written in the call", site)
        if self.facts.loops(event) or self.facts.loops(make):
            raise _Unfit("its model is wrapped, or it is built, in a loop", site)
        before = event.order < make.order
        return Wrap(
            site, self.places.site(given.node, event.module), before, None if before else self._alone(event, given.node)
        )

    def _alone(self, event: Event, module: ast.expr) -> Site | None:
        """``if several: wrapped = DDP(model)`` behind ``wrapped = model``: the part of it that can go."""
        own = self.places.statement(event.node, event.module)
        above = self.places.parent(own, event.module) if own is not None else None
        if not isinstance(own, ast.Assign) or own.value is not event.node or not isinstance(above, ast.If):
            return None
        block = self.places.block(above, event.module)
        at = next((index for index, each in enumerate(block) if each is above), 0)
        first = block[at - 1] if at else None
        plain = isinstance(first, ast.Assign) and ast.dump(first.targets[0]) == ast.dump(own.targets[0])
        if not plain or above.orelse or ast.unparse(first.value) != ast.unparse(module):  # type: ignore[union-attr]
            return None
        return self.places.site(above if len(above.body) == 1 else own, event.module)

    def _unfit_elsewhere(self, wrap: Event) -> None:
        """Raise _Unfit for what would go wrong, or hang, with a model of shares."""
        for module in self.analysis.execution.modules.values():
            for name in _OWN:
                if name in module.text:
                    node = next((each for each in every(ast.Attribute, module.tree) if f".{each.attr}" == name), None)
                    if node is not None:
                        why = f"it takes what DistributedDataParallel alone has (`{name[1:]}`)"
                        raise _Unfit(why, self.places.site(node, module))
        sites = {self.facts.origin_site(each.origin) for each in self.models}
        if any(each.site in sites and is_normed(self.analysis, each) for each in self.known):
            why = "its model normalises over the batch, and layers that do so over all processes are put in behind it"
            raise _Unfit(why, self.facts.site(wrap))
        for event in outermost(self.analysis, self.facts.of("forward")):
            if self._of_model(event) and self._ranks(event):
                where = self.facts.site(event)
                why = "one process alone calls the model, and would wait for the shares of the others for ever"
                raise _Unfit(why, where)
        for event in self.facts.of("save"):
            if any(one is self.models[0] for part in flatten(event.receiver) for one in models_in(part)):
                raise _Unfit(
                    "the model itself is saved, with no more than this process's share", self.facts.site(event)
                )
        for event in self.facts.of("call", "load"):
            state = event.name.rpartition(".")[2] in ("state_dict", "load_state_dict")
            if state and any(isinstance(each, Made) and each.qualname == PARALLEL for each in members(event.receiver)):
                why = "the names of what is saved or loaded begin with `module.`: take the state of `.module`"
                raise _Unfit(why, self.facts.site(event))

    def _loads(self, since: int) -> Iterator[Loaded]:
        """Where whole states are given to what is shared out."""
        for event in self.facts.of("load"):
            if event.name != "load_state_dict" or event.order < since or not isinstance(event.node, ast.Call):
                continue
            if not self._of_optimizer(event) and not self._of_model(event):
                continue
            site, func = self.facts.site(event), event.node.func
            if not event.node.args or not isinstance(func, ast.Attribute) or dotted(func.value) is None:
                raise _Unfit("what is loaded is not written in the call", site)
            if self._ranks(event):
                raise _Unfit("one process alone loads it", site)
            text = (dotted(func.value) or "").removesuffix(".module")
            yield Loaded(self.places.site(event.node.args[0], event.module), text)

    def _modules(self) -> Iterator[Site]:
        """The reads of what is wrapped: ``model.module``."""
        for module in self.analysis.execution.modules.values():
            for node in every(ast.Attribute, module.tree) if ".module" in module.text else ():
                if node.attr == "module" and self._is_wrapped(node.value, module):
                    yield self.places.site(node, module)

    def _is_wrapped(self, node: ast.expr, module: ModuleFile) -> bool:
        held = members(value_of(self.analysis, node, module))
        return any(isinstance(each, Made) and each.qualname == PARALLEL for each in held)


def _agrees(function: ast.FunctionDef) -> bool:
    """Whether a function gives back in every process what the first one is given."""
    last = function.body[-1]
    sends = "broadcast_object_list(" in ast.unparse(function)
    return sends and len(parameters(function)) == 1 and isinstance(last, ast.Return) and last.value is not None


def _given(event: Event) -> list[Value]:
    return event.arguments.values() if event.arguments is not None else []


def _holds(value: Value | None, node: ast.AST, depth: int = 4) -> bool:
    """Whether a value is, or has in it, what an expression made."""
    for each in members(value):
        origin = getattr(each, "origin", None)
        if origin is not None and origin.node is node:
            return True
        inside: list[Value | None] = []
        if isinstance(each, Mapping):
            inside = [*(entry.value for entry in each.entries.values()), each.element]
        elif isinstance(each, Sequence):
            inside = [*(each.items or ()), each.element]
        if depth and any(_holds(one, node, depth - 1) for one in inside):
            return True
    return False


def _is_elif(node: ast.stmt, above: ast.AST | None) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(above, ast.If)
        and above.orelse == [node]
        and (above.col_offset == node.col_offset)
    )
