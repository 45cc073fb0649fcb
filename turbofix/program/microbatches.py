"""Whether small batches whose gradients add up are parts of one large batch, and nothing else.

Two questions are answered of the text that runs for each small batch. Does it do anything but add its gradients: count,
remember, average, leave out, save? Then fewer and larger batches do it less often, or otherwise. And is what it
computes a sum over its samples? Only what is known to look at each sample by itself counts as that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every
from turbofix.program.attention import attentions
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame
from turbofix.program.libraries import words
from turbofix.program.model import Accumulation, Hazard
from turbofix.program.names import body_of, dotted, loaded, targets, walk_here
from turbofix.program.regions import loss_expression
from turbofix.program.sites import FUNCTIONS, LOOPS
from turbofix.program.values import Iterated, Made, Tensor, Value, members
from turbofix.records import dataclass

_MAKING = frozenset(words("zeros ones full empty rand randn randint arange eye"))
"""Calls that make a tensor of a shape, in which the size of a batch may stand as a number."""

_SHAPING = frozenset(words("view reshape expand repeat"))

_CUTTING = frozenset(words("chunk split tensor_split unbind unfold"))
"""Methods that take a batch apart by a number."""

_STEPPING = frozenset(words("backward scale zero_grad show mode forward criterion step clip unscale sync iterate"))
"""What a statement may do that is one call: the rest of a step, and what others look at (updates, schedules)."""

_COLLECTING = frozenset(words("append extend add update set_postfix set_description write"))
"""Methods by which something is collected, which must not come back into the step."""

_WEIGHTS = frozenset(
    words("parameters named_parameters state_dict load_state_dict param_groups grad buffers named_buffers modules")
)
"""Attributes by which weights, gradients and rates are reached."""

_PER_SAMPLE_LAYERS = frozenset(
    words(
        """
        Linear Bilinear Identity Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LayerNorm
        GroupNorm RMSNorm ReLU ReLU6 LeakyReLU PReLU ELU SELU CELU GELU SiLU Mish Sigmoid LogSigmoid Tanh Hardtanh
        Hardswish Hardsigmoid Softplus Softsign Tanhshrink Threshold Dropout Dropout1d Dropout2d Dropout3d AlphaDropout
        MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d
        AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d Sequential ModuleList ModuleDict
        ParameterList ParameterDict Upsample PixelShuffle PixelUnshuffle ZeroPad2d ReflectionPad2d ReplicationPad2d
        ConstantPad1d ConstantPad2d Module
        """
    )
)
"""Layers that compute each sample by itself, whatever they are told."""

_TOLD_LAYERS = frozenset(words("Softmax LogSoftmax Flatten Embedding LSTM GRU RNN MultiheadAttention"))
"""Layers that do so if they are told it: see ``_is_told``."""

_PER_SAMPLE_CALLS = frozenset(
    words(
        """
        relu relu_ gelu silu elu selu leaky_relu tanh sigmoid softplus hardswish mish dropout dropout1d dropout2d exp
        log log1p sqrt rsqrt abs sin cos pow square clamp neg add sub mul div linear conv1d conv2d conv3d embedding
        expm1 max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d
        eq ne lt gt le ge logical_not logical_and logical_or masked_fill
        adaptive_max_pool2d interpolate pad ones_like zeros_like to cuda float double long int bool type_as contiguous
        clone detach size dim len range enumerate zip isinstance autocast no_grad str print reversed getattr hasattr
        """
    )
)
"""Functions and methods that compute each number, or each sample, by itself, or no number of a batch at all."""

_ALONG = frozenset(
    words("softmax log_softmax normalize mean sum max min amax amin std var argmax argmin cumsum logsumexp norm")
)
"""Functions and methods that go along a dimension that they are told."""

_BATCH_FIRST = frozenset(words("LSTM GRU RNN MultiheadAttention"))


_FLUSHING = frozenset({"sys.stdout.flush", "sys.stderr.flush"})

_REACHED = "weights or gradients are gone through with every small batch"
_RATES = "the loop sets the learning rate with every small batch"


_WITH_HEADS = 4
"""Dimensions of what an attention computes with: samples, positions, heads, and the width of each."""


class _Apart(Exception):  # noqa: N818  (an outcome)
    """What is in the way, in a clause, and where."""

    def __init__(self, node: ast.AST, module: ModuleFile, why: str) -> None:
        super().__init__(why)
        self.node, self.module, self.why = node, module, why


def joined(
    analysis: Analysis, loop: ast.AST, backwards: list[Event], found: Accumulation | None
) -> Accumulation | None:
    """The accumulation with what tells its small batches from one large batch."""
    if found is None or not found.divided or not isinstance(loop, LOOPS):
        return found
    reading = _Reading(analysis, loop, backwards[0], found)
    place = analysis.facts.places.site
    apart = mixed = None
    try:
        reading.look()
    except _Apart as other:
        apart = Hazard(other.why, place(other.node, other.module))
    if apart is None:
        node = reading.mixing()
        if node is not None:
            mixed = Hazard("it may compute with a batch as a whole", place(*node))
    ignored = any("-100" in module.text for module in analysis.execution.modules.values())
    return replace(found, apart=apart, mixed=mixed, numbers=tuple(reading.numbers()), ignored=ignored)


@dataclass(eq=False)
class _Reading:
    """The text that runs for each small batch of one accumulation."""

    analysis: Analysis
    loop: ast.For | ast.AsyncFor | ast.While
    backward: Event
    found: Accumulation
    body: list[ast.stmt] = field(default_factory=list)
    parts: dict[int, tuple[Frame, ...]] = field(default_factory=dict)  # functions of the step, with their frames
    models: dict[int, tuple[Frame, ...]] = field(default_factory=dict)  # the same, below the call of a model
    relevant: set[str] = field(default_factory=set)
    outer: tuple[Frame, ...] = ()
    whole: bool = False
    around: ast.AST | None = None  # the loop over small batches
    followed: set[int] = field(default_factory=set)  # the calls of the functions in `parts` and `models`
    attending: set[Site] | None = None  # functions that write an attention out

    def __post_init__(self) -> None:
        facts = self.analysis.facts
        frames = facts.frames(self.backward)
        depth = next(i for i, frame in enumerate(frames) if any(self.loop is each for each in frame.loops))
        self.outer = frames[: depth + 1]
        self.whole = self.found.guard.kind in ("For", "AsyncFor")
        inner = next((each for each in walk(self.loop) if self._is_guard(each)), None) if self.whole else None
        self.body = inner.body if isinstance(inner, LOOPS) else self.loop.body
        self.around = inner if isinstance(inner, LOOPS) else self.loop
        self._functions(self.around)

    def _small(self) -> ast.AST:
        return self.around or self.loop

    @property
    def module(self) -> ModuleFile:
        """The file of the loop."""
        return self.outer[-1].module

    def _is_guard(self, node: ast.AST, module: ModuleFile | None = None) -> bool:
        known = isinstance(node, (ast.If, *LOOPS)) and node.lineno == self.found.guard.line
        return known and self.analysis.facts.places.site(node, module or self.module) == self.found.guard

    def _functions(self, loop: ast.AST) -> None:
        """The functions that run for each small batch: those of the step, and those of models."""
        facts = self.analysis.facts
        for event in facts.events_in(loop):
            within = facts.frames_within(event, loop)
            if any(self._is_update(frame.anchor, frame.module) for frame in within):
                continue
            all_frames = facts.frames(event)
            start = len(all_frames) - len(within)
            in_model = False
            for index in range(1, len(within)):
                frame = within[index]
                if not isinstance(frame.scope, FUNCTIONS):
                    continue
                if frame.call is not None and any(each.kind == "show" for each in facts.at(frame.call)):
                    break
                in_model = in_model or self._is_of_model(frame)
                self.followed.add(id(frame.call))
                (self.models if in_model else self.parts).setdefault(id(frame.scope), all_frames[: start + index + 1])

    def _is_update(self, node: ast.AST, module: ModuleFile) -> bool:
        """Whether something happens with the update alone."""
        child = node
        for above in (node, *self.analysis.facts.places.ancestors(node, module)):
            if not self.whole and isinstance(above, ast.If) and self._is_guard(above, module):
                return any(each is child or each is node for each in above.body) or child in above.body
            child = above
        return False

    def _is_of_model(self, frame: Frame) -> bool:
        for above in self.analysis.facts.places.ancestors(frame.scope, frame.module):
            if isinstance(above, ast.ClassDef):
                return any(isinstance(each, ast.FunctionDef) and each.name == "forward" for each in above.body)
        return False

    # --- what is done beside adding gradients

    def look(self) -> None:
        """Raise ``_Apart`` where a small batch does more than to add its gradients."""
        self._all_is_read()
        self._is_divided()
        self._is_one_number()
        self._relevant()
        self._block(self.body, self.module, self.outer)
        for frames in self.parts.values():
            scope = frames[-1].scope
            if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._block(scope.body, frames[-1].module, frames)
        for frames in self.models.values():
            self._keeps(frames)
        self._carried()
        self._counted()
        self._measured()
        self._picked()
        self._hooked()

    def _all_is_read(self) -> None:
        """Whether the loop goes through its loader to the end."""
        if self.whole:
            return
        if not isinstance(self.loop, (ast.For, ast.AsyncFor)):
            raise _Apart(self.loop, self.module, "the training may end after a number of small batches")
        record = next(each for each in self.analysis.facts.loops(self.backward) if each.node is self.loop)
        if not _is_of_loader(record.iterated):
            raise _Apart(self.loop.iter, self.module, "the loop may not take all batches of one loader")

    def _is_divided(self) -> None:
        """Whether all of what is sent backward is divided, not only a part of it."""
        expression = loss_expression(self.analysis, self.backward)
        frames = self.analysis.facts.frames(self.backward)
        if expression is None or not self._divides(expression, self.backward.node, frames[-1], 6):
            raise _Apart(
                self.backward.node,
                self.backward.module,
                "it is not seen that all of the loss is divided by the number of accumulated batches",
            )

    def _is_one_number(self) -> None:
        """Whether the number that divides the loss is the one that counts the batches, and not another of its size."""
        place = self.analysis.facts.places.site
        for module in self.analysis.execution.modules.values():
            quotients = [(each, each.op, each.right) for each in every(ast.BinOp, module.tree)]
            for node, operator, number in (
                *quotients,
                *((each, each.op, each.value) for each in every(ast.AugAssign, module.tree)),
            ):
                if not isinstance(operator, ast.Div) or not isinstance(number, ast.Constant):
                    continue
                if place(node, module) in self.found.divisions and place(number, module) != self.found.steps.edit_at:
                    raise _Apart(node, module, "the loss is divided by a number of its own")

    def _divides(self, node: ast.expr, at: ast.AST, frame: Frame, depth: int) -> bool:
        facts = self.analysis.facts
        if depth < 0:
            return False
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Div) and facts.places.site(node, frame.module) in self.found.divisions:
                return True
            left = self._divides(node.left, at, frame, depth - 1)
            if isinstance(node.op, (ast.Add, ast.Sub)):
                return left and self._divides(node.right, at, frame, depth - 1)
            return left or (isinstance(node.op, ast.Mult) and self._divides(node.right, at, frame, depth - 1))
        if isinstance(node, ast.Call):
            return any(
                isinstance(each, ast.Return)
                and each.value is not None
                and self._divides(each.value, each, frames[-1], depth - 1)
                for frames in self.parts.values()
                if frames[-1].call is node
                for each in _nodes(frames[-1].scope)
            )
        name = dotted(node)
        if name is None:
            return False
        lines = (at.lineno, at.col_offset)  # type: ignore[attr-defined]
        last: ast.stmt | None = None
        for each in _nodes(frame.scope):
            if not isinstance(each, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                continue
            to = each.targets if isinstance(each, ast.Assign) else [each.target]
            written = any(dotted(one) == name for given in to for one in targets(given))
            if written and (each.lineno, each.col_offset) < lines:
                last = each if last is None or each.lineno >= last.lineno else last
        if isinstance(last, ast.AugAssign):
            if isinstance(last.op, ast.Div):
                return facts.places.site(last, frame.module) in self.found.divisions
            return False
        if isinstance(last, (ast.Assign, ast.AnnAssign)) and last.value is not None:
            return self._divides(last.value, last, frame, depth - 1)
        return False

    def _relevant(self) -> None:
        """The names that what a small batch computes is made of."""
        facts = self.analysis.facts
        statements = list(_statements(self.body))
        for event in facts.events_in(self._small()):
            if event.kind not in ("forward", "criterion", "backward"):
                continue
            within = facts.frames_within(event, self._small())
            if not within or self._is_update(within[0].anchor, within[0].module):
                continue
            statement = facts.places.statement(within[0].anchor, within[0].module)
            if statement is not None:
                self.relevant |= loaded(statement) if not isinstance(statement, LOOPS) else set()
        while True:
            before = len(self.relevant)
            for each in statements:
                if isinstance(each, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and each.value is not None:
                    to = each.targets if isinstance(each, ast.Assign) else [each.target]
                    names = {dotted(one) for given in to for one in targets(given)}
                    names |= {_base(one) for given in to for one in targets(given)}
                    if names & self.relevant:
                        self.relevant |= loaded(each.value)
                elif (
                    isinstance(each, ast.For)
                    and {one.id for one in walk(each.target) if isinstance(one, ast.Name)} & self.relevant
                ):
                    self.relevant |= loaded(each.iter)
            if len(self.relevant) == before:
                break

    def _block(self, body: list[ast.stmt], module: ModuleFile, frames: tuple[Frame, ...]) -> None:
        for statement in body:
            self._statement(statement, module, frames, last=statement is body[-1])

    def _statement(self, each: ast.stmt, module: ModuleFile, frames: tuple[Frame, ...], *, last: bool) -> None:
        if not self.whole and self._is_guard(each, module):
            assert isinstance(each, ast.If)
            self._block(each.orelse, module, frames)
        elif isinstance(each, (ast.Pass, ast.Import, ast.ImportFrom, ast.Delete)):
            pass
        elif isinstance(each, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            to = each.targets if isinstance(each, ast.Assign) else [each.target]
            for target in (one for given in to for one in targets(given)):
                self._stored(target, module, frames)
            if isinstance(to[0], (ast.Tuple, ast.List)) and each.value is not None:
                self._taken_apart(each.value, module, frames)
        elif isinstance(each, ast.Expr):
            self._expression(each.value, module)
        elif isinstance(each, ast.If):
            self._test(each, module, frames)
        elif isinstance(each, (ast.For, ast.AsyncFor)):
            if self._reaches_weights(each.iter):
                raise _Apart(each, module, _RATES if "param_groups" in ast.dump(each.iter) else _REACHED)
            self._block([*each.body, *each.orelse], module, frames)
        elif isinstance(each, (ast.With, ast.AsyncWith)):
            self._block(each.body, module, frames)
        elif isinstance(each, ast.Return) and last:
            pass
        elif isinstance(each, ast.Try):
            why = "the loop catches exceptions; a larger batch that runs out of memory would be skipped in silence"
            raise _Apart(each, module, why)
        elif isinstance(each, (ast.Break, ast.Return)):
            raise _Apart(each, module, "the loop may be left early, after a number of small batches")
        else:
            raise _Apart(each, module, "it is not known what is done with every small batch")

    def _reaches_weights(self, node: ast.AST) -> bool:
        return any(isinstance(each, ast.Attribute) and each.attr in _WEIGHTS for each in walk(node))

    def _stored(self, target: ast.expr, module: ModuleFile, frames: tuple[Frame, ...]) -> None:
        """Whether what a statement sets is forgotten before the next small batch, or only counted and shown."""
        facts = self.analysis.facts
        while isinstance(target, ast.Starred):
            target = target.value
        if isinstance(target, ast.Name):
            if target.id in _globals(frames[-1].scope):
                raise _Apart(target, module, f"`{target.id}` is set with every small batch, and read elsewhere")
            return
        text = facts.places.text(target, module)
        if isinstance(target, ast.Subscript):
            base = _base(target)
            scope = frames[-1].scope
            local = base is not None and any(
                isinstance(write, (ast.Assign, ast.AnnAssign, ast.For)) and self._is_in_step(write, scope)
                for write in facts.bindings.writes(scope, base)
            )
            if local or (base is not None and self._is_only_shown(base, module)):
                return
            raise _Apart(target, module, f"`{text}` is set with every small batch")
        if isinstance(target, ast.Attribute):
            plain = isinstance(target.value, ast.Name) and target.value.id == "self"
            if plain and not self._is_read(target.attr):
                return
            raise _Apart(target, module, f"`{text}` is set with every small batch")

    def _is_in_step(self, node: ast.AST, scope: ast.AST) -> bool:
        if scope is not self.outer[-1].scope:
            return True
        return any(each is node for statement in self.body for each in walk(statement)) or node is self.loop

    def _is_only_shown(self, name: str, module: ModuleFile) -> bool:
        """Whether a name is but filled and shown, as a dict of averages is."""
        for node in every(ast.Name, module.tree):
            if node.id == name and isinstance(node.ctx, ast.Load) and not self._is_shown(node, module):
                above = self.analysis.facts.places.parent(node, module)
                if not isinstance(above, ast.Subscript) or isinstance(above.ctx, ast.Load):
                    return False
        return True

    def _is_read(self, name: str) -> bool:
        """Whether anything but a message, or its own sum, reads an attribute of that name."""
        for module in self.analysis.execution.modules.values():
            for node in every(ast.Attribute, module.tree):
                read = node.attr == name and isinstance(node.ctx, ast.Load)
                if read and not self._is_shown(node, module) and not self._is_of_guard(node, module):
                    return True
        return False

    def _is_of_guard(self, node: ast.AST, module: ModuleFile) -> bool:
        child = node
        for above in self.analysis.facts.places.ancestors(node, module):
            if isinstance(above, ast.If) and self._is_guard(above, module):
                return child is above.test
            child = above
        return False

    def _is_shown(self, node: ast.AST, module: ModuleFile, *, named: bool = False) -> bool:
        """Whether something is read to be shown, or for a mean; where it is not ``named`` yet, also by such a name."""
        places, child = self.analysis.facts.places, node
        for above in places.ancestors(node, module):
            if isinstance(above, ast.Call) and any(each.kind == "show" for each in self.analysis.facts.at(above)):
                return True
            if (
                isinstance(above, ast.BinOp)
                and isinstance(above.op, ast.Div)
                and child is above.right
                and loaded(above.left)
            ):
                return self._is_mean(places.statement(above, module))
            if isinstance(above, ast.If) and child is above.test and self._only_shows(above):
                return True
            if isinstance(above, ast.stmt):
                return not named and isinstance(above, ast.Assign) and self._is_for_show(above, module)
            child = above
        return False

    def _is_for_show(self, statement: ast.Assign, module: ModuleFile) -> bool:
        """``bar = "#" * (30 * (step + 1) // len(loader))``: whether a statement sets only names that are shown."""
        names = [each.id for each in statement.targets if isinstance(each, ast.Name)]
        return len(names) == len(statement.targets) and all(
            self._is_shown(node, module, named=True)
            for node in every(ast.Name, module.tree)
            if node.id in names and isinstance(node.ctx, ast.Load)
        )

    def _is_mean(self, statement: ast.stmt | None) -> bool:
        """Whether a statement with a quotient in it keeps, gives or shows it, and the step is not made of it."""
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            to = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            return all(isinstance(each, ast.Name) for each in to) and not self._feeds(statement)
        return isinstance(statement, (ast.Return, ast.Expr))

    def _taken_apart(self, value: ast.expr, module: ModuleFile, frames: tuple[Frame, ...]) -> None:
        """Whether a batch is unpacked into its samples."""
        found = members(self.analysis.facts.evaluate(value, frames))
        if isinstance(value, (ast.Name, ast.Attribute)) and found and all(isinstance(one, Tensor) for one in found):
            raise _Apart(value, module, "a batch is taken apart into its samples")

    def _expression(self, value: ast.expr, module: ModuleFile) -> None:
        """Whether a statement that is one expression belongs to the step, or only shows something."""
        if isinstance(value, ast.Constant):
            return
        if not isinstance(value, ast.Call):
            raise _Apart(value, module, "it is not known what is done with every small batch")
        facts = self.analysis.facts
        kinds = {event.kind for event in facts.at(value)}
        if kinds & _STEPPING and not self._reaches_weights(value.func):
            return
        if self._shows(value):
            return
        if any(frames[-1].call is value for frames in (*self.parts.values(), *self.models.values())):
            return
        method = value.func.attr if isinstance(value.func, ast.Attribute) else ""
        base = _base(value.func) if method else None
        if method in _COLLECTING and not any(map(self._reaches_weights, value.args)):
            names = {dotted(value.func.value), base} if isinstance(value.func, ast.Attribute) else set()
            if not names & self.relevant and not self._is_model(value):
                return
        text = facts.places.text(value.func, module)
        raise _Apart(value, module, f"`{text}` is called with every small batch")

    def _is_model(self, call: ast.Call) -> bool:
        """Whether a call is given weights: ``ema.update(model)``."""
        given = {name for each in call.args for name in loaded(each)}
        called = {
            dotted(event.node.func)
            for event in self.analysis.facts.events_in(self._small())
            if event.kind == "forward" and isinstance(event.node, ast.Call)
        }
        return bool(given & called)

    def _test(self, each: ast.If, module: ModuleFile, frames: tuple[Frame, ...]) -> None:
        """Whether a test is the same for all batches, or only something is shown under it."""
        guards = self.analysis.guards
        if self._only_shows(each):
            return
        if any(isinstance(one, (ast.Break, ast.Return)) for one in walk_here(each)):
            raise _Apart(each, module, "the loop may be left early, after a number of small batches")
        if guards.varies(each.test, frames):
            raise _Apart(each, module, "what a small batch holds, or its number, decides what is done")
        self._block(each.body, module, frames)
        self._block(each.orelse, module, frames)

    def _shows(self, call: ast.Call) -> bool:
        """Whether a call shows something, or lets what was shown appear: ``sys.stdout.flush()``."""
        return any(event.kind == "show" or event.name in _FLUSHING for event in self.analysis.facts.at(call))

    def _only_shows(self, each: ast.If) -> bool:
        def shows(statement: ast.stmt) -> bool:
            if isinstance(statement, ast.If):
                return all(map(shows, (*statement.body, *statement.orelse)))
            if isinstance(statement, (ast.Assign, ast.AugAssign)):
                to = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                return all(isinstance(one, ast.Name) and one.id not in self.relevant for one in to)
            if isinstance(statement, ast.Pass):
                return True
            value = statement.value if isinstance(statement, ast.Expr) else None
            return isinstance(value, ast.Call) and self._shows(value)

        return all(map(shows, (*each.body, *each.orelse)))

    def _keeps(self, frames: tuple[Frame, ...]) -> None:
        """Whether a model keeps something from one batch to the next."""
        module = frames[-1].module
        for node in _nodes(frames[-1].scope):
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if stored and dotted(node) == f"self.{node.attr}" and self._is_read(node.attr):  # type: ignore[attr-defined]
                raise _Apart(node, module, "the model keeps something from one batch to the next")
            if isinstance(node, (ast.Global, ast.Nonlocal)) or self._fills(node):
                raise _Apart(node, module, "the model keeps something from one batch to the next")

    def _fills(self, node: ast.AST) -> bool:
        """``self.mean.mul_(0.9)``, ``self.seen.append(x)``: something that the model holds is changed."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        name, kinds = dotted(node.func) or "", {event.kind for event in self.analysis.facts.at(node)}
        if not name.startswith("self.") or name.count(".") < 2 or kinds & {"forward", "criterion", "show"}:
            return False
        last = node.func.attr
        return (last.endswith("_") and not last.endswith("__")) or last in _COLLECTING

    def _carried(self) -> None:
        """Whether something comes back into the step from the small batch before."""
        first: dict[str, ast.AST] = {}
        written: dict[str, ast.AST] = {}
        over = self.loop.target if isinstance(self.loop, (ast.For, ast.AsyncFor)) else None
        taken = {each.id for each in walk(over) if isinstance(each, ast.Name)} if over is not None else set()
        for part in (each for statement in self.body for each in walk(statement)):
            if isinstance(part, ast.comprehension):
                taken |= {each.id for each in walk(part.target) if isinstance(each, ast.Name)}
        for node in _in_order(self.body):
            name = dotted(node)
            if name is None or name in taken:  # the loop itself, or a comprehension, sets it anew
                continue
            first.setdefault(name, node)
            if not isinstance(getattr(node, "ctx", None), ast.Load) and not self._is_update(node, self.module):
                written.setdefault(name, node)
        for name, node in written.items():
            start = first[name]
            summed = self.analysis.facts.places.parent(start, self.module)
            again = isinstance(getattr(start, "ctx", None), ast.Load) or (
                isinstance(summed, ast.AugAssign) and summed.target is start
            )
            if name in self.relevant and again:
                raise _Apart(node, self.module, f"`{name}` goes from one small batch to the next")

    def _counted(self) -> None:
        """Whether the number of a small batch is read for more than to show it."""
        names: dict[str, ast.AST] = {}
        if not self.whole and isinstance(self.loop, (ast.For, ast.AsyncFor)):
            called, target = self.loop.iter, self.loop.target
            counts = isinstance(called, ast.Call) and (dotted(called.func) or "").endswith(("enumerate", "tqdm"))
            if counts and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
                names[target.elts[0].id] = self.loop
        for each in _statements(self.body):
            number = each.value if isinstance(each, ast.AugAssign) else None
            if isinstance(number, ast.Constant) and isinstance(each, ast.AugAssign):
                name = dotted(each.target)
                if name is not None and not self._is_update(each, self.module):
                    names[name] = each
        scope = self.outer[-1].scope
        for node in walk(scope) if names else ():
            name = dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
            if name not in names or not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                continue
            if not self._is_shown(node, self.module) and not self._is_of_guard(node, self.module):
                raise _Apart(node, self.module, "the number of small batches is used for something else too")

    def _measured(self) -> None:
        """Whether the length of the loader is read for more than to show it, or for a mean."""
        facts = self.analysis.facts
        called = [
            (call, module)
            for module in self.analysis.execution.modules.values()
            for call in every(ast.Call, module.tree)
            if dotted(call.func) == "len" and len(call.args) == 1 and dotted(call.args[0]) is not None
        ]
        scopes = {id(facts.places.scope(call, module)) for call, module in called}
        frames: dict[int, tuple[Frame, ...]] = {}
        for event in facts.events if called else ():
            stack = facts.frames(event)
            for index, frame in enumerate(stack):
                if id(frame.scope) in scopes:
                    frames.setdefault(id(frame.scope), stack[: index + 1])
        for call, module in called:
            stack = frames.get(id(facts.places.scope(call, module)), ())
            value = members(facts.evaluate(call.args[0], stack)) if stack else ()
            held = any(map(_is_loader, value)) or (not stack and self._is_handed_over())
            if held and not self._is_shown(call, module) and not self._is_of_guard(call, module):
                raise _Apart(call, module, "the number of small batches is used for something else too")

    def _is_handed_over(self) -> bool:
        """Whether an object of the project is made with a loader, and may ask for its length."""
        return any(
            _is_loader(each)
            for event in self.analysis.facts.of("construct")
            for passed in (event.arguments.values() if event.arguments is not None else ())
            for each in members(passed)
        )

    def _hooked(self) -> None:
        """Whether something hangs on the backward pass, which would happen once instead of with every small batch."""
        for module in self.analysis.execution.modules.values():
            for node in every(ast.Attribute, module.tree) if "hook" in module.text else ():
                if node.attr.startswith("register_") and node.attr.endswith("hook"):
                    raise _Apart(node, module, "a hook may do something with every small batch")

    def _picked(self) -> None:
        """Whether one sample of a batch is taken by its number, which is another share of a larger batch."""
        for event in self.analysis.facts.events_in(self._small()):
            within = self.analysis.facts.frames_within(event, self._small())
            if event.kind != "index" or not within or self._is_update(within[0].anchor, within[0].module):
                continue
            if any(id(frame.scope) in self.models for frame in within):
                continue  # of what has other dimensions by then, and is looked at as such
            taken = any(isinstance(each, Tensor) for each in members(event.receiver))
            if taken and not self._is_shown(event.node, event.module):
                raise _Apart(event.node, event.module, "a sample is taken by its number")

    # --- what looks at more than one sample

    def mixing(self) -> tuple[ast.AST, ModuleFile] | None:
        """What is not known to compute each sample by itself, and the file that it stands in."""
        for event in self.analysis.facts.of("make", "call"):
            name = event.name.rpartition(".")[2]
            if name == "spectral_norm":
                return event.node, event.module
            if event.name.startswith("torch.nn.") and name in _TOLD_LAYERS and not _is_told(name, event):
                return event.node, event.module
        for statement in _statements(self.body):
            if isinstance(statement, (ast.If, ast.With, ast.For)) or self._is_update(statement, self.module):
                continue
            relevant = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and self._feeds(statement)
            node = self._mixed(statement, self.module, self.outer) if relevant else None
            if node is not None:
                return node, self.module
        for frames in (*self.parts.values(), *self.models.values()):
            node = self._mixed(frames[-1].scope, frames[-1].module, frames)
            if node is not None:
                return node, frames[-1].module
        return None

    def _feeds(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> bool:
        to = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return any(dotted(one) in self.relevant or _base(one) in self.relevant for t in to for one in targets(t))

    def _mixed(self, scope: ast.AST, module: ModuleFile, frames: tuple[Frame, ...]) -> ast.AST | None:
        sizes = _Sizes(frames[-1].scope)
        attends = self._is_attention(scope, module)
        for node in _nodes(scope):
            if isinstance(node, ast.Call) and not (
                self._is_each(node, sizes)
                or sizes.make(node)
                or (attends and _is_of_heads(node))
                or _is_fused_attention(node, scope)
            ):
                return node
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                value = members(self.analysis.facts.evaluate(node.value, frames))
                tensors = [one for one in value if isinstance(one, Tensor)]
                if (tensors or not value) and not _keeps_samples(node) and not _is_shape(node):
                    return node
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                right = dotted(node.right) or ""
                if not right.startswith("self.") and not attends:
                    return node
        return None

    def _is_attention(self, scope: ast.AST, module: ModuleFile) -> bool:
        """Whether a function writes an attention out, whose queries have heads or positions behind the samples."""
        if not isinstance(scope, FUNCTIONS) or "softmax" not in module.text:
            return False
        if self.attending is None:
            read = attentions(self.analysis)
            self.attending = {each.function for each in read if each.why_not is None and not each.heads}
        return self.analysis.facts.places.site(scope, module) in self.attending

    def _is_each(self, call: ast.Call, sizes: _Sizes) -> bool:
        """Whether a call is known to compute each sample by itself."""
        facts = self.analysis.facts
        if any(e.kind in ("forward", "criterion", "show", "sync", "backward", "scale", "next") for e in facts.at(call)):
            return True
        if id(call) in self.followed:
            return True  # looked at by itself
        name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func) or ""
        if name == "super" or (
            isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Call)
            and dotted(call.func.value.func) == "super"
        ):
            return True
        if name in ("view", "reshape"):
            return bool(call.args) and (_is_number_of_samples(call.args[0]) or sizes.samples(call.args[0]))
        if name == "flatten":
            of_torch = dotted(call.func) == "torch.flatten"
            return _is_inner(_given(call, "start_dim", 1 if of_torch else 0))
        if name in ("unsqueeze", "squeeze"):
            return _is_inner(_given(call, "dim", 0))
        if name in ("transpose", "permute", "movedim"):
            numbers = [each.value for each in call.args if isinstance(each, ast.Constant)]
            if name == "permute":
                return numbers[:1] == [0] and len(numbers) == len(call.args)
            return bool(numbers) and len(numbers) == len(call.args) and 0 not in numbers
        if name in ("split", "chunk"):
            of_torch = (dotted(call.func) or "").startswith("torch.")
            return _is_inner(_given(call, "dim", 2 if of_torch else 1))
        if name in ("cat", "concat", "stack"):
            return _is_inner(_given(call, "dim", 1))
        if name in _ALONG:
            of_library = (dotted(call.func) or "").startswith(("torch.", "F.", "nn.")) or isinstance(
                call.func, ast.Name
            )
            return _is_inner(_given(call, "dim", 1 if of_library else 0)) or (
                name == "normalize" and _given(call, "dim", 2) is None
            )
        return name in _PER_SAMPLE_CALLS

    # --- numbers

    def numbers(self) -> Iterator[tuple[int, Site]]:
        """The numbers in the program that the size of a batch may be fixed to."""
        places = self.analysis.facts.places
        scopes = [(frames[-1].scope, frames[-1].module) for frames in (*self.parts.values(), *self.models.values())]
        for scope, module in ((self.loop, self.module), *scopes):
            for node in walk(scope):
                if not isinstance(node, ast.Call):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func) or ""
                if name in _CUTTING or (name == "range" and not self._is_count(node)):
                    for each in node.args:
                        if isinstance(each, ast.Constant) and type(each.value) is int:
                            yield each.value, places.site(node, module)

    def _is_count(self, call: ast.Call) -> bool:
        """Whether a ``range`` is that of the small batches themselves."""
        above = self.analysis.facts.places.parent(call, self.module)
        return self.whole and above is not None and self._is_guard(above)


def fixed_sizes(analysis: Analysis) -> tuple[tuple[int, Site], ...]:
    """The numbers in the program that the first sizes of tensors are, or are compared with.

    One and two are that of too many others.
    """
    places = analysis.facts.places
    found: list[tuple[int, Site]] = []
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func) or ""
            if name in _MAKING:
                found += [(number, places.site(call, module)) for number in _leading(call, 2)]
            elif name in _SHAPING:
                found += [(number, places.site(call, module)) for number in _leading(call, 1)]
        for test in every(ast.Compare, module.tree):
            sides = [test.left, *test.comparators]
            if any(map(_is_number_of_samples, sides)):
                numbers = [side.value for side in sides if isinstance(side, ast.Constant)]
                found += [(number, places.site(test, module)) for number in numbers if type(number) is int]
    return tuple((number, site) for number, site in found if number > 2)


def counting(analysis: Analysis) -> Hazard | None:
    """Where a program under a trainer does something with every small batch, or by their number or size."""
    places = analysis.facts.places
    for module in analysis.execution.modules.values():
        for function in every(ast.FunctionDef, module.tree):
            if function.name == "on_substep_end":
                why = "a callback does something with every small batch"
                return Hazard(why, places.site(function, module))
        for node in every(ast.Attribute, module.tree):
            if node.attr in ("train_batch_size", "get_train_dataloader"):
                return Hazard("the batches of the trainer are read for something else", places.site(node, module))
    return None


def _is_of_loader(value: Value | None, depth: int = 4) -> bool:
    """Whether what a loop runs over are all batches of a loader, counted or in a progress bar perhaps."""
    found = members(value)
    return bool(found) and depth > 0 and all(_is_one_of_loader(each, depth) for each in found)


def _is_one_of_loader(value: Value, depth: int) -> bool:
    if isinstance(value, Iterated):
        return value.wrapper in ("enumerate", "tqdm") and _is_of_loader(value.source, depth - 1)
    if isinstance(value, Made) and value.kind == "progress":
        return _is_of_loader(value.inner, depth - 1)
    return _is_loader(value)


def _is_loader(value: Value) -> bool:
    return isinstance(value, Made) and value.kind == "loader"


def _leading(call: ast.Call, most: int) -> Iterator[int]:
    sizes: list[ast.expr] = []
    for argument in call.args:
        sizes += argument.elts if isinstance(argument, (ast.Tuple, ast.List)) else [argument]
    for each in sizes[:most]:
        if isinstance(each, ast.Constant) and type(each.value) is int:
            yield each.value


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the blocks in it, without those of functions."""
    for each in body:
        yield each
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(each, name, None)
            if isinstance(inner, list) and not isinstance(each, (*FUNCTIONS, ast.ClassDef)):
                yield from _statements(inner)
        for handler in getattr(each, "handlers", ()):
            yield from _statements(handler.body)


def _in_order(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Names and dotted names in the order in which they are read and written: values before their targets."""
    for statement in body:
        yield from _ordered(statement)


def _ordered(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) is not None:
        yield node
        return
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
        value = node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else node.value
        to = node.targets if isinstance(node, ast.Assign) else [node.target]
        if value is not None:
            yield from _ordered(value)
        for given in to:
            yield from _ordered(given)
        for each in (*getattr(node, "body", ()), *getattr(node, "orelse", ())):
            yield from _ordered(each)
        return
    for each in ast.iter_child_nodes(node):
        yield from _ordered(each)


def _nodes(scope: ast.AST) -> list[ast.AST]:
    """The nodes of a function, a module or a statement, without those of functions in it."""
    body = body_of(scope) if isinstance(scope, (*FUNCTIONS, ast.Module)) else [scope]
    return [node for part in body for node in walk_here(part)]


def _base(node: ast.AST) -> str | None:
    base: ast.AST = node
    while isinstance(base, (ast.Attribute, ast.Subscript)):
        base = base.value
    return base.id if isinstance(base, ast.Name) and base.id != "self" else None


def _globals(scope: ast.AST) -> set[str]:
    return {name for each in _nodes(scope) if isinstance(each, (ast.Global, ast.Nonlocal)) for name in each.names}


def _given(call: ast.Call, name: str, position: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name or (name == "dim" and keyword.arg == "axis"):
            return keyword.value
    return call.args[position] if position < len(call.args) else None


def _is_inner(dimension: ast.expr | None) -> bool:
    """Whether a dimension is surely another one than the first, of a batch that has two: the last, or a later one."""
    if isinstance(dimension, (ast.Tuple, ast.List)):
        return bool(dimension.elts) and all(
            isinstance(each, ast.Constant) and type(each.value) is int and each.value > 0 for each in dimension.elts
        )
    if isinstance(dimension, ast.UnaryOp) and isinstance(dimension.op, ast.USub):
        return isinstance(dimension.operand, ast.Constant) and dimension.operand.value == 1
    return isinstance(dimension, ast.Constant) and type(dimension.value) is int and dimension.value > 0


class _Sizes:
    """What the names of a function are that are set once: the number of samples, or another size of a batch."""

    def __init__(self, scope: ast.AST) -> None:
        self.found: dict[str, list[str]] = {}
        arguments = scope.args if isinstance(scope, FUNCTIONS) else None
        for given in walk(arguments) if arguments is not None else ():
            if isinstance(given, ast.arg):
                self.found.setdefault(given.arg, []).append("")
        for node in _nodes(scope):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.found.setdefault(node.id, []).append("")
        for node in _nodes(scope):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target = node.targets[0]
            if isinstance(target, ast.Name):
                self._tell(target, self.kind(node.value))
            elif isinstance(target, ast.Tuple) and _is_all_sizes(node.value):
                for index, each in enumerate(target.elts):
                    self._tell(each, "inner" if index else "samples")

    def _tell(self, name: ast.expr, kind: str) -> None:
        if isinstance(name, ast.Name) and self.found.get(name.id) == [""]:
            self.found[name.id] = [kind]

    def samples(self, node: ast.expr) -> bool:
        """Whether a name is the number of samples."""
        return isinstance(node, ast.Name) and self.found.get(node.id) == ["samples"]

    def kind(self, node: ast.expr) -> str:
        """What a size is; nothing where that is not known."""
        if isinstance(node, ast.Name):
            return (self.found.get(node.id) or [""])[0]
        if isinstance(node, ast.Constant):
            return "inner" if type(node.value) is int else ""
        if isinstance(node, ast.BinOp):
            return "inner" if self.kind(node.left) == self.kind(node.right) == "inner" else ""
        index: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            index = node.args[0] if node.args else None
        elif isinstance(node, ast.Subscript) and _is_shape(node):
            index = node.slice
        if not isinstance(index, ast.Constant) or type(index.value) is not int:
            return ""
        return "inner" if index.value > 0 else "samples" if index.value == 0 else ""

    def make(self, node: ast.AST) -> bool:
        """``torch.ones(1, length, length).triu(1)``: whether a call makes the same for all samples, of other sizes."""
        if isinstance(node, ast.BinOp):
            parts = (node.left, node.right)
            return any(map(self.make, parts)) and all(
                isinstance(each, ast.Constant) or self.make(each) for each in parts
            )
        if not isinstance(node, ast.Call):
            return False
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func) or ""
        if name in ("triu", "tril"):
            of_torch = (dotted(node.func) or "").startswith("torch.")
            made = node.args[0] if of_torch and node.args else getattr(node.func, "value", None)
            return isinstance(made, ast.expr) and self.make(made)
        if name not in ("ones", "zeros", "full", "arange") or not (dotted(node.func) or "").startswith("torch."):
            return False
        sizes = node.args[0].elts if node.args and isinstance(node.args[0], (ast.Tuple, ast.List)) else node.args
        sizes = sizes[:1] if name == "full" and sizes is node.args else sizes
        return bool(sizes) and all(self.kind(each) == "inner" for each in sizes)


def _is_all_sizes(node: ast.expr) -> bool:
    """``x.shape``, ``x.size()``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "size" and not node.args
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _is_fused_attention(call: ast.Call, scope: ast.AST) -> bool:
    """Torch's attention in a function that views its input by samples, positions, heads and their widths.

    With two dimensions it would go over the samples.
    """
    if (dotted(call.func) or "").rpartition(".")[2] != "scaled_dot_product_attention":
        return False
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in ("view", "reshape")
        and len(each.args) >= _WITH_HEADS
        for each in _nodes(scope)
    )


def _is_of_heads(call: ast.Call) -> bool:
    """What an attention does with tensors of four dimensions: products of the last two, and turning them around."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func) or ""
    if name == "matmul":
        return True
    turned = [each for each in call.args if isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.USub)]
    last = {each.operand.value for each in turned if isinstance(each.operand, ast.Constant)}
    return name == "transpose" and last == {1, 2} and len(call.args) == 2


def _is_number_of_samples(node: ast.expr) -> bool:
    """``x.size(0)``, ``x.shape[0]``, ``len(x)``, ``-1``: how many samples there are, whatever else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return isinstance(node.operand, ast.Constant) and node.operand.value == 1
    if isinstance(node, ast.Call):
        if dotted(node.func) == "len":
            return True
        first = node.args[0] if node.args else None
        sized = isinstance(node.func, ast.Attribute) and node.func.attr == "size"
        return sized and isinstance(first, ast.Constant) and first.value == 0
    return _is_shape(node) and isinstance(node, ast.Subscript) and getattr(node.slice, "value", None) == 0


def _is_shape(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"


def _keeps_samples(node: ast.Subscript) -> bool:
    """``x[:, 1]``, ``x[..., 0]``: all samples stay."""
    first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    if isinstance(first, ast.Slice):
        return first.lower is None and first.upper is None and first.step is None
    if isinstance(first, ast.Constant):
        return first.value is Ellipsis or isinstance(first.value, str)
    return False


def _is_told(name: str, event: Event) -> bool:
    """Whether a layer is told to take each sample by itself."""
    call = event.node
    if not isinstance(call, ast.Call) or any(each.arg is None for each in call.keywords):
        return False
    told = {each.arg: each.value for each in call.keywords}
    if name in _BATCH_FIRST:
        first = told.get("batch_first")
        return isinstance(first, ast.Constant) and first.value is True
    if name == "Embedding":
        return not told.keys() & {"max_norm", "scale_grad_by_freq"} and len(call.args) <= 3
    if name == "Flatten":
        start = _given(call, "start_dim", 0)
        return start is None or _is_inner(start)
    return _is_inner(_given(call, "dim", 0))


def is_per_sample(layer: str) -> bool:
    """Whether a layer of torch is known to compute each sample by itself."""
    name = layer.rpartition(".")[2]
    return not layer.startswith("torch.nn.") or name in _PER_SAMPLE_LAYERS or name in _TOLD_LAYERS
