"""The loop of a whole training, where it keeps nothing before its end: what a checkpoint of it would have to hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from turbofix.dataflow.facts import Frame, settled
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.switches import switch_of
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Host, Instance, Iterated, Made, Namespace, Value, flatten, members
from turbofix.interpreter.syntax import Glance
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, loads, parameters, said, stored, walk_here
from turbofix.source.nodes import walk
from turbofix.source.wording import Wording
from turbofix.training.data.lengths import PUBLISHED
from turbofix.training.model import Loader, Parser, Part, Run, Step
from turbofix.training.objects import called_through, models_in, outermost
from turbofix.training.steps.acts import concerned, is_module_class, optimizers_in

_ENDS = Wording(
    ("keyboardinterrupt", "signal", "sigterm", "sigint", "baseexception", "atexit", "excepthook"),
    regex(
        r"KeyboardInterrupt|import signal\b|\bsignal\.signal|SIGTERM|SIGINT|BaseException|atexit|excepthook",
        re.IGNORECASE,
    ),
)
"""Words of a script that does something itself when it is interrupted."""

_RESUMES = Wording(("resum",), regex(r"resum", re.IGNORECASE))
"""A word of a script that may go on from something already."""

_KEEPING = regex(
    r"(?:save|dump|export)(?!_?(?:result|fig|im(?:age|g)|plot|t(?:e?xt|able)|csv|json|metric|mae|pred|sample|hist|log|loss|score|vid))"
    r"|checkpoint|ckpt|snapshot|write_weights",
    re.IGNORECASE,
)
"""Words of calls that keep what was learned: pictures and results are none of it."""

_RECORDING = ("json.", "yaml.", "csv.", "np.save", "numpy.save", "plt.", "torch.utils.checkpoint")
"""Starts of calls by which no weights are kept, whatever word is in them."""

_CHANGING = frozenset(
    (
        *("append", "extend", "insert", "add", "update", "setdefault", "push", "put"),
        *("pop", "popleft", "appendleft", "remove", "clear", "record", "update_parameters"),
    )
)
"""Methods that change what they are called on."""

_ARRAYS = tuple(f"numpy.{name}" for name in ("zeros", "ones", "empty", "full", "array"))
_FILLED = (ast.List, ast.Dict)
_EMPTYING = frozenset(("shutil.rmtree", "os.remove", "os.unlink", "os.rmdir"))

_DRAWING = frozenset(("random_split", "train_test_split", "permutation", "shuffle", "randperm", "sample"))
"""Calls that choose by chance what a training sees, by their last names."""

_FIXING = ("generator", "random_state", "seed", "shuffle")
"""Arguments by which they choose the same each time."""

_SEEDING = ("seed", "set_seed", "seed_everything")
"""Ends of the calls that seed a generator; the last two seed all."""

_STATEFUL = {"optimizer": "optimizer", "scheduler": "scheduler", "scaler": "scaler"}


def run(analysis: Analysis, steps: tuple[Step, ...], loaders: tuple[Loader, ...]) -> Run | None:
    """The outermost loop of the training, where it saves nothing before its end that it could go on from; else None."""
    facts = analysis.facts
    saves = facts.of("save")
    weights: Event | None = None
    texts = [each.text for each in analysis.execution.modules.values()]
    if not steps or any(map(_ENDS.is_in, texts)):
        return None
    found = {id(record.node): record for each in facts.of("backward") for record in facts.loops(each)[:1]}
    for record in found.values():
        inside = facts.events_in(record.node)
        saved = [each for each in inside if each.kind == "save"]
        if any(map(_keeps, inside)) or not are_weights(saved, inside):
            return None
        if saved:
            weights = weights or saved[0]
        elif _KEEPING.search(_calls_in(record.node)):
            return None
    if not found or any(map(_saves_after_all, facts.of("backward"))):
        return None
    outermost = next(iter(found.values()))
    loop, module = outermost.node, outermost.module
    events = facts.events_in(loop)
    behind = [each for each in saves if each.order > events[-1].order]
    kept = next((each for each in behind if _is_on(analysis, each)), None)
    frames = _frames_at(analysis, events[0], loop)
    counted = _counted(analysis, loop, module) if isinstance(loop, ast.For) else None
    site = facts.places.site(loop, module)
    whole = Run(
        loop=site,
        body=facts.places.site(loop.body[0], module),
        counter="",
        counted=site,
        start=None,
        start_site=None,
        rounds=_rounds(analysis, counted, frames),
        samples=_samples(steps, loaders) if any(each.epoch_loop is not None for each in steps) else 1,
        result=facts.site(kept) if kept is not None else None,
        weights=facts.site(weights) if weights is not None else None,
        parts=(),
        carried=(),
        generators=_generators(module),
    )
    if any(map(_RESUMES.is_in, texts)):
        return replace(whole, why_not="the script speaks of resuming, and what it goes on from was not followed")
    if len(found) > 1:
        return replace(whole, why_not="several loops train, one after another")
    if not isinstance(loop, ast.For) or loop.orelse or counted is None or not frames:
        return replace(whole, why_not="the loop names no number of its rounds, as `for epoch in range(...)` does")
    emptied = next((each for each in facts.of("call") if each.name in _EMPTYING and each.order < events[0].order), None)
    if emptied is not None:
        where = facts.site(emptied).line_from(module.path)
        return replace(whole, why_not=f"files of the run before are deleted at each start ({where})")
    drawn = next(_drawn_anew(analysis, events[0].order), None)
    if drawn is not None:
        where = facts.site(drawn).line_from(module.path)
        return replace(whole, why_not=f"`{drawn.name}` draws anew at each start ({where}): give it a seed")
    survey = Survey(analysis, loop, module, frames)
    parts, why = survey.parts()
    carried, left = survey.carried({part.text for part in parts})
    first = counted.args[0] if len(counted.args) == 2 else None
    return replace(
        whole,
        counter=facts.places.text(loop.target, module),
        counted=facts.places.site(counted, module),
        start=facts.places.text(first, module) if first is not None else None,
        start_site=facts.places.site(first, module) if first is not None else None,
        parts=parts,
        carried=carried,
        parser=_parser(analysis, frames, module),
        why_not=why or left,
    )


def _rounds(analysis: Analysis, counted: ast.Call | None, frames: tuple[Frame, ...]) -> int | None:
    """How often a loop over a ``range`` runs as the program stands; None where that is not known."""
    numbers = [_number(analysis, each, frames) for each in counted.args[:2]] if counted is not None else [None]
    first, last = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    return last - first if first is not None and last is not None else None


def _number(analysis: Analysis, node: ast.expr, frames: tuple[Frame, ...]) -> int | None:
    """The whole number that an expression is as the program stands."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = (_number(analysis, each, frames) for each in (node.left, node.right))
        if left is None or right is None:
            return None
        return left + right if isinstance(node.op, ast.Add) else left - right
    value = settled(analysis.facts.evaluate(node, frames))
    return value if type(value) is int else None


def _is_on(analysis: Analysis, event: Event) -> bool:
    """Whether something is saved as the program stands: not under a switch that is off."""
    switch = switch_of(analysis, event)
    return not switch.values or bool(switch.values[0])


def are_weights(saves: Iterable[Event], around: Iterable[Event]) -> bool:
    """Whether nothing but weights is saved: without the state of an optimizer, no training can go on from them."""
    for event in around:
        if event.name.endswith("state_dict") and event.kind in ("call", "unknown_call") and not models(event.receiver):
            return False
    parts = [part for event in saves for part in (event.receiver, *flatten(event.receiver))]
    whole = any(event.name != "torch.save" for event in saves)  # `accelerator.save_state(...)`
    return not whole and not any(next(optimizers_in(part), None) for part in parts)


def models(value: Value | None) -> bool:
    """Whether a value is a model."""
    return next(iter(models_in(value)), None) is not None


def _saves_after_all(event: Event) -> bool:
    """Whether something around an event saves what was learned when that is interrupted, too."""
    around = (level.node for level in event.control.upwards() if isinstance(level.node, ast.Try))
    return any(_KEEPING.search(_calls_in(part)) for each in around for part in (*each.handlers, *each.finalbody))


def _keeps(event: Event) -> bool:
    name = event.name
    keeping = _KEEPING.search(name.rpartition(".")[2]) is not None and not name.startswith(_RECORDING)
    return event.kind in ("call", "unknown_call") and keeping


def _calls_in(loop: ast.AST) -> str:
    """The names of all that is called in a loop's own text."""
    names = (dotted(node.func) or "" for node in walk(loop) if isinstance(node, ast.Call))
    return " ".join(name for name in names if not name.startswith(_RECORDING))


def _counted(analysis: Analysis, loop: ast.For, module: ModuleFile) -> ast.Call | None:
    """The call of ``range`` that a loop runs over, with one or two arguments, perhaps in a progress bar."""
    if not isinstance(loop.target, ast.Name) or loop.target.id == "_":
        return None
    node = analysis.facts.without_bar(loop.iter, module)
    plain = isinstance(node, ast.Call) and analysis.facts.offered(node.func, module) == "builtins.range"
    if not plain or not isinstance(node, ast.Call) or not 1 <= len(node.args) <= 2 or node.keywords:
        return None
    return node if not any(isinstance(each, ast.Starred) for each in node.args) else None


def _frames_at(analysis: Analysis, event: Event, loop: ast.AST) -> tuple[Frame, ...]:
    """The frames at a loop, given something that happens in it."""
    frames = analysis.facts.frames(event)
    for index, frame in enumerate(frames):
        if any(loop is each for each in frame.loops):
            return frames[: index + 1]
    return ()


def _drawn_anew(analysis: Analysis, before: int) -> Iterator[Event]:
    """Where the samples to train on are drawn by chance, and nothing seeds that: another start draws others."""
    facts = analysis.facts
    above = [each for kind in ("call", "make", "set") for each in facts.of(kind) if each.order < before]
    seeded = {each.name for each in above if each.name.endswith(_SEEDING) and _is_on(analysis, each)}
    for event in above:
        package, _, name = event.name.rpartition(".")
        if name not in _DRAWING or event.control.chain()[0].detail == "worker":
            continue
        given = event.arguments.keywords if event.arguments is not None else {}
        fixing = [given[each].value for each in _FIXING if each in given]
        seed = {"torch": "torch.manual_seed", "random": "random.seed"}.get(package.split(".")[0], "numpy.random.seed")
        chosen = all(isinstance(each, Const) and (each.value is None or each.value is True) for each in fixing)
        if chosen and not any(each == seed or each.endswith(_SEEDING[1:]) for each in seeded):
            yield event


def _samples(steps: Iterable[Step], loaders: Iterable[Loader]) -> int | None:
    """How many samples an epoch has; None where that is not known."""
    total = 0
    for site in {site for step in steps for site in step.loaders}:
        loader = next((each for each in loaders if each.site == site), None)
        if loader is None:
            return None
        _, parts, _ = PUBLISHED.get(loader.dataset.qualname or "", ("", {}, 0))
        length = loader.dataset.length or next(iter(parts.values()), None)
        if length is None:
            return None
        total += length
    return total or None


def _generators(module: ModuleFile) -> tuple[str, ...]:
    """The modules with a generator of random numbers beside torch's that a file imports."""
    found = {alias.name for node in every(ast.Import, module.tree) for alias in node.names}
    return tuple(name for name in ("random", "numpy") if name in found)


def _parser(analysis: Analysis, frames: tuple[Frame, ...], module: ModuleFile) -> Parser | None:
    """Where an option could be added, and what the loop's function calls the options; None where that is not seen."""
    facts, scope = analysis.facts, frames[-1].scope
    for node in every(ast.Assign, module.tree) if "argparse" in module.text else ():
        target, call = node.targets[0], node.value
        parser, _, method = (dotted(call.func) or "").rpartition(".") if isinstance(call, ast.Call) else ("", "", "")
        if method != "parse_args" or not isinstance(target, ast.Name):
            continue
        adding = f"{parser}.add_argument"
        block = [each for each in facts.places.block(node, module) if isinstance(each, ast.Expr)]
        added = [each for each in block if isinstance(each.value, ast.Call) and dotted(each.value.func) == adding]
        given = [each.arg for each in parameters(scope) if _are_options(facts.named(each.arg, scope, frames[-1]))]
        owner = facts.bindings.owner(target.id, target, module)
        if not given and owner in (scope, module.tree) and target.id not in {each.arg for each in parameters(scope)}:
            given = [target.id]
        if added and given:
            return Parser(facts.places.site(added[-1], module), parser, given[0])
    return None


def _are_options(value: Value | None) -> bool:
    return len(members(value)) == 1 and isinstance(members(value)[0], Namespace)


def _candidates(scope: ast.AST, loop: ast.For) -> Iterator[ast.Name | ast.Attribute]:
    """The names that a function's text reads, each once, with their beginnings (``self.model`` of ``self.model.fc``).

    Those that the loop itself reads come first.
    """
    seen: set[str] = set()
    for each, _ in (*said(loop), *said(scope)):
        chain: list[ast.Name | ast.Attribute] = [each]
        while isinstance(chain[-1], ast.Attribute) and isinstance(chain[-1].value, (ast.Name, ast.Attribute)):
            chain.append(chain[-1].value)
        for node in reversed(chain):
            text = dotted(node) or ""
            if text.count(".") <= 1 and text not in seen:
                seen.add(text)
                yield node


class Survey:
    """What goes from one round of a loop to the next."""

    def __init__(self, analysis: Analysis, loop: ast.For, module: ModuleFile, frames: tuple[Frame, ...]) -> None:
        self.analysis = analysis
        self.loop = loop
        self.module = module
        self.frames = frames
        self.scope = frames[-1].scope
        self.inside = stored(loop.body)
        self.events = analysis.facts.events_in(loop)
        forwards = [each for each in self.events if each.kind == "forward"]
        self.outer = {id(each) for each in outermost(analysis, forwards)}
        self.texts: dict[int, str] = {}
        self.values: dict[str, Value] = {}
        for node in _candidates(self.scope, loop):
            text = dotted(node) or ""
            root = node.value if isinstance(node, ast.Attribute) else node
            name = root.id if isinstance(root, ast.Name) else ""
            if analysis.facts.bindings.owner(name, root, module) not in (self.scope, module.tree):
                continue  # of a function or class in it
            found = members(analysis.facts.evaluate(node, frames))
            if text.partition(".")[0] in self.inside or text in self.inside:
                continue
            held = [each for each in found if isinstance(each, (Made, Instance, Iterated))]
            stepped = all(isinstance(each, Made) and each.kind == "optimizer" for each in held)
            others = [each for each in found if each not in held and not (stepped and isinstance(each, Const))]
            if held and not others:
                for each in held:  # of several, whichever it is has that name
                    wrapped = models_in(each) if isinstance(each, Made) and each.kind == "wrapper" else ()
                    for one in (each, *wrapped):
                        self.texts.setdefault(id(one), text)
                self.values[text] = held[0]
        for text, value in self._own().items():
            if text not in self.inside:
                self.texts.setdefault(id(value), text)
                self.values.setdefault(text, value)
        hidden = (
            {*self.inside, *stored(getattr(self.scope, "body", ()))} if self.scope is not module.tree else self.inside
        )
        for name, value in module.scope.names.items():  # what only the functions read that the loop calls
            if isinstance(value, Made) and value.kind == "scaler" and name not in hidden:
                self.texts.setdefault(id(value), name)
                self.values.setdefault(name, value)

    def _own(self) -> dict[str, Value]:
        """The attributes of the object whose method holds the loop, which its other methods use."""
        first = [each.arg for each in parameters(self.scope)[:1]]
        cls = self.frames[-1].function.cls if self.frames[-1].function is not None else None
        if not first or cls is None:
            return {}
        owner = self.analysis.facts.named(first[0], self.scope, self.frames[-1])
        found: dict[str, Value] = {}
        for member in members(owner):
            if isinstance(member, Instance) and len(members(owner)) == 1:
                for name, value in member.attributes.items():
                    (only,) = members(value) if len(members(value)) == 1 else (None,)
                    if isinstance(only, (Made, Instance, Iterated)):
                        found[f"{first[0]}.{name}"] = only
        return found

    def parts(self) -> tuple[tuple[Part, ...], str | None]:
        """All that has a state of its own and is used in the loop; a sentence where something cannot be named."""
        found: dict[str, Part] = {}
        for event in self.events:
            kinds = self._stateful(event)
            if not kinds:
                continue
            for value, kind in kinds:
                text = self.texts.get(id(value))
                if text is None and self._is_made_inside(value):
                    continue  # a round makes it anew
                line = self.analysis.facts.site(event).line_from(self.module.path)
                if text is None:
                    return (), f"what is used as {kind} on {line} has no one name before the loop"
                found.setdefault(text, Part(text, kind, text.rpartition(".")[2]))
        for text in self._modules():  # an average of the weights is changed without being called
            found.setdefault(text, Part(text, "model", text.rpartition(".")[2]))
        parts = tuple(found.values())
        if not {"model", "optimizer"} <= {part.kind for part in parts}:
            return parts, "the model or the optimizer is not known at the loop"
        return parts, None

    def _is_made_inside(self, value: Value) -> bool:
        """Whether something is made in each round."""
        levels = value.made_at.chain() if isinstance(value, (Made, Instance)) else ()
        return any(getattr(level.detail, "node", None) is self.loop for level in levels)

    def _modules(self) -> list[str]:
        """What the modules are called that the loop can see, without the parts of others."""
        names = [text for text, value in self.values.items() if _is_module(value)]
        return [text for text in names if text.rpartition(".")[0] not in names]

    def _stateful(self, event: Event) -> list[tuple[Value, str]]:
        """The objects with a state that an event uses, each with what it is."""
        given = members(event.receiver)
        if event.kind in ("step", "update", "scale"):
            known = [
                (each, _STATEFUL[each.kind]) for each in given if isinstance(each, Made) and each.kind in _STATEFUL
            ]
            if event.kind == "step" and len(known) != len(given):
                return [*known, (event.receiver or Const(None), "optimizer")]
            stepped = optimizers_in(concerned(event)) if event.kind == "step" else ()
            return list(dict.fromkeys([*known, *((each, "optimizer") for each in stepped)]))
        if event.kind == "criterion":  # a loss of the project's own may have weights
            return [(each, "model") for each in given if isinstance(each, Instance) and is_module_class(each)]
        if event.kind != "forward" or id(event) not in self.outer:
            return []
        owner = called_through(self.analysis, event, self.loop)
        models = [owner] if owner is not None else list(models_in(event.receiver))
        return [(each, "model") for each in models or [event.receiver or Const(None)]]

    def carried(self, known: set[str]) -> tuple[tuple[str, ...], str | None]:
        """The plain variables that one round leaves to the next; a sentence where something else does."""
        found: list[str] = []
        before, read = self._before(), self._read_in_loop()
        for name in sorted(self.inside - {dotted(self.loop.target)}):
            start = before.get(name)
            if name in known or name.partition(".")[0] in known or (start is None and name.partition(".")[0] == "self"):
                return (), f"the loop sets `{name}`"
            if start is None or self._set_first(name):
                continue
            if not self._is_data(start):
                return (), f"the loop goes on with `{name}` from one round to the next"
            found.append(name)
        filled = (each for each in sorted(read & before.keys() - self.inside) if isinstance(before[each], _FILLED))
        found += (each for each in filled if self._is_data(before[each]))
        return tuple(found), self._hidden(known)

    def _is_data(self, node: ast.expr) -> bool:
        """Whether a value is made of numbers, strings and arrays, which a checkpoint can hold as they are."""
        if _is_plain(node) or (isinstance(node, (ast.List, ast.Tuple)) and all(map(self._is_data, node.elts))):
            return True
        if isinstance(node, ast.Call):
            return (self.analysis.facts.offered(node.func, self.module) or "").startswith(_ARRAYS)
        found = members(self.analysis.facts.evaluate(node, self.frames))
        return bool(found) and all(isinstance(each, (Const, Host)) for each in found)

    def _hidden(self, known: set[str]) -> str | None:
        """Whether something keeps a state that is not in sight."""
        glance, read = Glance(), self._read_in_loop()
        for module in self.analysis.execution.modules.values():
            if names := glance.changing_names(module):
                return f"functions change the global `{min(names)}`"
        for text, value in self.values.items():
            if text in known or text not in read:
                continue
            if isinstance(value, Instance) and not is_module_class(value):
                changing = {f"{text}.{name}" for name in glance.changing_attributes(value.cls.node)} - known
                if changing:
                    return f"`{min(changing)}` may change as it trains, and a checkpoint would have to hold that"
                if text == "self":  # a generator that it keeps begins its pass over the data anew
                    return None
            if isinstance(value, Iterated) and value.wrapper in ("iter", "cycle", "generator"):
                return f"the loop goes on with `{text}` from one round to the next"
        for node in walk(self.loop):
            call = node.func if isinstance(node, ast.Call) else None
            if not isinstance(call, ast.Attribute) or call.attr not in _CHANGING:
                continue
            name = dotted(call.value)
            if name is None or name.partition(".")[0] in self.inside or name in known:
                continue
            start, changed = self._before().get(name), self.values.get(name)
            of_library = isinstance(changed, Made) and changed.kind in ("writer", "progress", "scaler")
            if not of_library and (start is None or not self._is_data(start)):
                return f"`{name}` may keep a state that a checkpoint would have to hold"
        return None

    def _before(self) -> dict[str, ast.expr]:
        """What plain names of the loop's scope are first set to, above the loop."""
        found: dict[str, ast.expr] = {}
        for each in (one for node in getattr(self.scope, "body", ()) for one in walk_here(node)):
            value = each.value if isinstance(each, (ast.Assign, ast.AnnAssign)) else None
            if value is None or value.lineno >= self.loop.lineno:
                continue
            for target in getattr(each, "targets", None) or [getattr(each, "target", None)]:
                several = target.elts if isinstance(target, ast.Tuple) else [target]
                values = value.elts if isinstance(value, ast.Tuple) and len(several) > 1 else []
                alike = len(values) == len(several)
                found |= {dotted(one) or "": values[n] if alike else value for n, one in enumerate(several)}
        for parameter in parameters(self.scope):
            found.setdefault(parameter.arg, ast.Name(parameter.arg, ast.Load()))
        return found

    def _read_in_loop(self) -> set[str]:
        return {text for each in _candidates(self.loop, self.loop) if (text := dotted(each)) is not None}

    def _set_first(self, name: str) -> bool:
        """Whether every round sets a name before it reads it: by a statement of the loop's own body."""
        for statement in self.loop.body:
            read = statement.iter if isinstance(statement, ast.For) else statement
            if name in {dotted(each) for each in loads(read)}:
                return False
            if name in stored([statement]):
                of_loop = isinstance(statement, ast.For) and name in {dotted(each) for each in walk(statement.target)}
                return isinstance(statement, ast.Assign) or of_loop
        return False


def _is_module(value: Value) -> bool:
    if isinstance(value, Made):
        return value.kind in ("module", "wrapper", "model")
    return isinstance(value, Instance) and is_module_class(value)


def _is_plain(node: ast.expr) -> bool:
    """Whether a value is a number, a string, None, or a list or dict without anything in it."""
    if isinstance(node, ast.UnaryOp):
        return _is_plain(node.operand)
    if isinstance(node, (ast.List, ast.Tuple)):
        return not node.elts
    if isinstance(node, ast.Dict):
        return not node.keys
    if isinstance(node, ast.Call):
        text = dotted(node.func)
        infinite = text == "float" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant)
        return infinite or (text in ("list", "dict") and not node.args and not node.keywords)
    return isinstance(node, ast.Constant) or dotted(node) in ("math.inf", "np.inf", "numpy.inf", "torch.inf")
