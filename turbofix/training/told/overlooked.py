"""What the text shows to be slow where the execution was not followed: told with what to do, and never rewritten.

The rows of ``overlooked.tsv`` say for each shape what it costs and what to do. A codemod tells of one where it has said
nothing else of that function (``Codemod.examine``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import members
from turbofix.library.tables import SHOWING_METHODS, rows_of, words
from turbofix.source.answers import every, parents_in
from turbofix.source.names import walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.training.data.loaders import loader_sites
from turbofix.training.model import Evaluation, Overlooked, Step
from turbofix.training.models.recomputed import SHAPES as REPEATED
from turbofix.training.told.written import (
    Found,
    Written,
    calls_by_name,
    function_of,
    last,
    meaning,
    named_calls,
    puts_together,
    written_of,
)

_WORKING = words("norm mul_ add_ copy_ lerp_ clamp_ div_ sub_ zero_ fill_ pow abs sum square")
_PICTURES = words("savefig save_image imsave add_figure add_image add_images")
_SHOWN = words("print log log_metric log_metrics line bar image images scatter heatmap text matplot histogram Image")
_SENT = words("wandb.log mlflow.log_metric mlflow.log_metrics")
_SHOWS = _PICTURES | SHOWING_METHODS | _SHOWN | {"log_dict"}
_READS = words("item tolist numpy cpu int float bool")
_HOOKS = words("training_step validation_step")
_PROFILERS = words("PyTorchProfiler AdvancedProfiler pytorch advanced")


@cache
def table() -> tuple[tuple[str, str, str, str], ...]:
    """The rows: codemod, shape, what it costs, what to do."""
    return tuple(map(tuple, rows_of("overlooked.tsv")))  # type: ignore[arg-type]


def overlooked(analysis: Analysis, steps: Iterable[Step | Evaluation]) -> Iterator[Overlooked]:
    """Each place once, in the order of the rows; what steps show was weighed where their loops were followed."""
    places = analysis.facts.places
    written = written_of(analysis)
    followed = [step.loop.site for step in steps]
    written.followed = {loop[:2] for loop in followed}
    dead = {id(event.node) for event in analysis.facts.dead}
    for codemod, shape, message, why_not in table():
        for node, module in SHAPES[shape](written):
            site = places.site(node, module)
            weighed = shape == "read_to_show" and any(
                site.path == loop.path and loop.line <= site.line <= loop.end_line for loop in followed
            )
            if id(node) not in dead and not weighed:
                function = function_of(node, module)
                around = places.site(function, module) if function is not None else site
                yield Overlooked(codemod, site, message, why_not, around)


def one_by_one(written: Written) -> Found:
    """A loop over parameters in a training step that computes with each."""
    for module in written.modules:
        for loop in every(ast.For, module.tree):
            if not re.search(r"(parameters|state_dict)\(|\[.params.\]$", ast.unparse(loop.iter)):
                continue
            said = [each for statement in loop.body for each in walk_here(statement)]
            computes = any(
                (isinstance(each, ast.Call) and last(each) in _WORKING)
                or (isinstance(each, ast.AugAssign) and not isinstance(each.value, ast.Call))
                for each in said
            )
            if computes and written.where(loop, module) in ("step", "interval"):
                yield loop, module


def replayed(written: Written) -> Found:
    """``random.sample(self.memory, size)`` in a step: a batch is put together of items that lie in a list."""
    for module in written.modules:
        for call, _, name in named_calls(module.tree):
            if name == "random.sample" and written.where(call, module) in ("step", "interval"):
                yield call, module


def tokenized(written: Written) -> Found:
    """``tokenizer(texts, padding=True)`` where a batch is put together."""
    for module in written.modules:
        for call in every(ast.Call, module.tree):
            if call.args and last(call) in ("tokenizer", "tokenize") and puts_together(written, call, module):
                yield call, module


def profiled(written: Written) -> Found:
    """``Trainer(profiler="advanced")``, or an object, and ``with profile():`` around steps."""
    for module in written.modules:
        for call in calls_by_name(module.tree).get("Trainer", ()):
            given = [word.value for word in call.keywords if word.arg == "profiler"]
            if given and {last(given[0]), getattr(given[0], "value", None)} & _PROFILERS:
                yield call, module
        for block in every(ast.With, module.tree):
            begun = [each.context_expr for each in block.items if _is_profiler(each.context_expr, module)]
            if begun and any(last(each) in written.trains for each in walk(block) if isinstance(each, ast.Call)):
                yield begun[0], module


def _is_profiler(node: ast.expr, module: ModuleFile) -> bool:
    """``torch.profiler.profile(...)`` without a schedule, and those of ``torch.autograd``."""
    if not isinstance(node, ast.Call) or any(word.arg == "schedule" for word in node.keywords):
        return False
    return meaning(node.func, module.tree) in ("torch.profiler.profile", "torch.autograd.profiler.profile")


def drawn(written: Written) -> Found:
    """A picture that every step draws, writes or sends."""
    for module, call, _, name in _in_each_step(written):
        if last(call) in _PICTURES or name == "wandb.Image" or name.startswith("visdom.Visdom."):
            yield call, module


def read_to_show(written: Written) -> Found:
    """``print(loss.item())`` and ``log_metric("loss", loss.item())`` in every step."""
    for module, call, name, _ in _in_each_step(written):
        if last(call) in SHOWING_METHODS | {"print"} or name in _SENT:
            given = (*call.args, *(word.value for word in call.keywords))
            if any(isinstance(each, ast.Call) and last(each) == "item" for part in given for each in walk(part)):
                yield call, module


def read_apart(written: Written) -> Found:
    """A read in a loop that is no step (``for user in users: ...``), and in what Lightning's step calls."""
    facts = written.analysis.facts
    on_cpu = any("accelerator='cpu'" in module.text.replace('"', "'") for module in written.modules)
    for event in facts.of("sync"):
        frames, node, module = facts.frames(event), event.node, event.module
        loops = [(loop, frame.module) for frame in frames for loop in frame.loops]
        held = {getattr(each, "device", "") for each in members(event.receiver)}
        around = (last(each) for each in facts.places.ancestors(node, module) if isinstance(each, ast.Call))
        apart = event.name in _READS and _SHOWS.isdisjoint(around)
        if {getattr(each.scope, "name", "") for each in frames} & _HOOKS:
            apart = apart and not on_cpu and held != {""}
        else:
            apart = apart and bool(loops) and bool(held & {"cuda", "conditional"})
            apart = apart and not {facts.places.site(*each)[:2] for each in loops} & written.followed
            apart = apart and written.trains.isdisjoint(written.everywhere(loops[-1][0]))
            apart = apart and not any(loader_sites(written.analysis, e.receiver) for e in facts.at(loops[-1][0]))
        if apart:
            yield node, module


def shown_by_the_bar(written: Written) -> Found:
    """``self.log("loss", loss, prog_bar=True)`` in a step of Lightning's, whose bar reads it when it moves on."""
    told = {word.arg for module in written.modules for word in every(ast.keyword, module.tree)}
    own = any("ProgressBar" in module.text for module in written.modules)
    if own or told & {"refresh_rate", "progress_bar_refresh_rate"}:
        return
    for module, call, _, _ in _in_each_step(written):
        said = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
        if last(call) in ("log", "log_dict") and said.get("prog_bar") is True and said.get("on_step") is not False:
            yield call, module


def _in_each_step(written: Written) -> Iterator[tuple[ModuleFile, ast.Call, str, str]]:
    """The calls that steps make under no condition, as ``named_calls`` does."""
    for module in written.modules:
        for call, name, full in named_calls(module.tree):
            shows = last(call) in _SHOWS
            if shows and written.where(call, module) == "step" and _is_certain(written, call, module):
                yield module, call, name, full


def _is_certain(written: Written, node: ast.AST, module: ModuleFile, depth: int = 3) -> bool:
    """Whether a place of a step is come to in each: no test stands between, nor in front of what calls its function."""
    parents = parents_in(module.tree)
    above = parents.get(node)
    while above is not None and not isinstance(above, LOOPS):
        each = isinstance(above, ast.If) and "optimizer_idx" in ast.unparse(above.test)  # in old Lightning's steps
        if isinstance(above, (ast.If, ast.IfExp, ast.ExceptHandler, ast.BoolOp)) and not each:
            return False
        if isinstance(above, FUNCTIONS):
            name = getattr(above, "name", "")
            return name == "training_step" or any(
                written.where(each, where) == "step" and _is_certain(written, each, where, depth - 1)
                for each, where in (written.callers(name) if depth else ())
            )
        above = parents.get(above)
    return above is not None


SHAPES: dict[str, Callable[[Written], Found]] = REPEATED | {
    each.__name__: each
    for each in (
        drawn,
        read_to_show,
        read_apart,
        one_by_one,
        profiled,
        replayed,
        tokenized,
    )
}
"""The shapes that the table may name."""
