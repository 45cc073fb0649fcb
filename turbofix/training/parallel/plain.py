"""Whether all that a loop does with its batches is to train one model on them and to add up what is reduced behind it.

Then each process can read its own share of the data: nothing that it does hangs on which share that is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Made, members
from turbofix.regex import regex
from turbofix.source.names import dotted, loaded, stored
from turbofix.source.nodes import walk
from turbofix.training.model import Parallel

_SHOWS = frozenset(("print", "set_postfix", "set_postfix_str", "set_description", "add_scalar", "info", "debug"))
_MADE = regex(r"torch\.nn\.(\w+)Loss")
_CALLED = regex(
    r"torch\.nn\.functional\.(cross_entropy|nll_loss|mse_loss|l1_loss|smooth_l1_loss|huber_loss|binary_cross_entropy\w*)"
)
_WEIGHED = ("reduction", "weight", "ignore_index", "size_average", "reduce", "pos_weight")
_COMPUTES = regex(r"(torch|F|nn|np|numpy)\.|(float|int|len|round)$")
_SQUEEZES = regex(r"\.squeeze\(\)|torch\.squeeze\([^,()]+\)")
_REDUCES = regex(
    r"\.(sum|mean|std|var|norm|prod|max|min|numel)\(\)|\.(sum|mean|std|var|norm)\((dim=|axis=)?0\b|nn\.[A-Z]\w+\("
)
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.For, ast.While, ast.Yield, ast.Try, ast.Raise)


def is_plain(analysis: Analysis, found: Parallel, record: LoopRecord) -> bool:
    """Whether shares of the data are enough for a training loop, by what it does with a batch."""
    loop = record.node
    if not isinstance(loop, ast.For) or any(isinstance(each, _LEAVES) for node in loop.body for each in walk(node)):
        return False
    if any(_SQUEEZES.search(module.text) for module in analysis.execution.modules.values()):
        return False  # a share of one sample has no dimension for it then
    if len(found.models) != 1 or len(found.loaders) != 1 or found.models[0].unwraps or found.models[0].idle:
        return False
    figures = [each for one in found.totals for each in one.figures]
    if any(each.kind != "number" for each in figures) or any(each.anew for each in found.totals):
        return False
    made = [each for each in analysis.facts.of("make") if getattr(each.result, "kind", "") in ("loader", "optimizer")]
    if any(analysis.facts.loops(each) for each in made):
        return False  # one training after another, of which each begins alike in all processes
    if any(_REDUCES.search(ast.unparse(each)) for each in scopes_of_models(analysis)):
        return False  # it answers with figures of a batch, makes one row of several, or makes layers
    return _Loop(analysis, record, frozenset(each.text for each in figures)).is_closed()


def scopes_of_models(analysis: Analysis) -> list[ast.AST]:
    """The functions by which models compute."""
    facts, called = analysis.facts, {id(each.node) for each in analysis.facts.of("forward")}
    scopes: dict[int, ast.AST] = {}
    for event in facts.levels():
        frames = facts.frames(event)
        first = next((index for index, each in enumerate(frames) if id(each.call) in called), len(frames))
        scopes.update({id(each.scope): each.scope for each in frames[first:]})
    return [*scopes.values()]


class _Loop:
    """What becomes of a batch in one loop."""

    def __init__(self, analysis: Analysis, record: LoopRecord, figures: frozenset[str]) -> None:
        self.analysis, self.record, self.figures = analysis, record, figures
        self.node: ast.For = record.node  # type: ignore[assignment]
        events = analysis.facts.events_in(record.node)
        self.calls = {id(each.node) for each in events if each.kind == "forward" or _is_mean(each)}
        criteria = [each for each in events if each.kind == "criterion" or _CALLED.fullmatch(each.name)]
        self.means = all(map(_is_mean, criteria)) and bool(criteria)
        target: ast.expr = self.node.target
        counts = isinstance(self.node.iter, ast.Call) and dotted(self.node.iter.func) == "enumerate"
        if counts and isinstance(target, ast.Tuple) and len(target.elts) > 1:
            target = target.elts[1]
        self.batch = {each.id for each in walk(target) if isinstance(each, ast.Name)}

    def is_closed(self) -> bool:
        """Whether no more than sums leaves the loop, and no decision hangs on a share."""
        if not self.means or not self._all(self.node.body):
            return False
        scope = self.analysis.facts.places.scope(self.node, self.record.module)
        inside = {id(each) for each in walk(self.node)}
        outside = [each for each in walk(scope) if isinstance(each, ast.Name) and id(each) not in inside]
        anew = {each.id for each in outside if isinstance(each.ctx, ast.Store)}
        return not self.batch & ({each.id for each in outside} - anew)

    def _all(self, block: Iterable[ast.stmt]) -> bool:
        return all(map(self._may, block))

    def _is_of(self, node: ast.AST) -> bool:
        return bool(loaded(node) & self.batch)

    def _may(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return not self._is_of(node.test) and self._all(node.body) and self._all(node.orelse)
        if isinstance(node, ast.With):
            return not any(self._is_of(each.context_expr) for each in node.items) and self._all(node.body)
        if not self._is_of(node):
            return True
        if isinstance(node, ast.Assign):
            names = all(isinstance(each, (ast.Name, ast.Tuple)) for each in node.targets)
            self.batch |= stored([node])
            return names and self._computes(node.value)
        if isinstance(node, ast.AugAssign):
            added = ast.unparse(node.target) in self.figures or dotted(node.target) in self.batch
            return added and self._computes(node.value)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = (dotted(node.value.func) or ast.unparse(node.value.func)).rpartition(".")[2]
            return name == "backward" or name in _SHOWS
        return False

    def _computes(self, value: ast.expr) -> bool:
        """Whether a batch goes into nothing but a model, its loss, and what torch computes."""
        for call in walk(value):
            if not isinstance(call, ast.Call) or id(call) in self.calls or not self._is_of(call):
                continue
            method = isinstance(call.func, ast.Attribute) and self._is_of(call.func.value)
            if not method and not _COMPUTES.match(dotted(call.func) or ""):
                return False
        return not any(isinstance(each, (ast.Lambda, ast.ListComp, ast.GeneratorExp)) for each in walk(value))


def _is_mean(event: Event) -> bool:
    """Whether a loss is a mean over the samples of its batch, each of which weighs as much."""
    made = [each for each in members(event.receiver) if isinstance(each, Made)]
    given = [each.arguments for each in made] if made else [event.arguments]
    names = [each.qualname for each in made] if made else [event.name]
    plain = all(each is not None and all(each.get(name) is None for name in _WEIGHED) for each in given)
    return plain and all(_MADE.fullmatch(each) or _CALLED.fullmatch(each) for each in names)
