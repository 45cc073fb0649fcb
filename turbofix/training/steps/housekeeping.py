"""Calls in a loop over batches that compute nothing: the cache is emptied, garbage collected, the GPU waited for.

Each says what it may be there for: a clock that is read beside it, memory that is measured, a stream of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import External, members
from turbofix.source.answers import every
from turbofix.source.names import is_false, walk_here
from turbofix.source.places import blocks
from turbofix.source.site import Site
from turbofix.training.model import Chore, Purpose
from turbofix.training.steps.acts import creates_graph

_KINDS: dict[str, Literal["empty_cache", "collect", "synchronize"]] = {
    "torch.cuda.empty_cache": "empty_cache",
    "torch.cuda.memory.empty_cache": "empty_cache",
    "torch.accelerator.empty_cache": "empty_cache",
    "torch.accelerator.memory.empty_cache": "empty_cache",
    "gc.collect": "collect",
    "torch.cuda.synchronize": "synchronize",
    "torch.accelerator.synchronize": "synchronize",
}

_MEASURES = ("psutil.", "pynvml.", "tracemalloc.", "resource.getrusage", "nvidia_smi.", "GPUtil.", "memory_profiler.")
_MEASURED = frozenset(
    {
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
        "max_memory_cached", "memory_stats", "memory_summary", "memory_snapshot", "mem_get_info",
        "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached", "memory_usage",
    }
)  # fmt: skip

_OF_A_PROCESS = ("memory_info", "memory_full_info", "memory_percent")
"""What an object of psutil, made before the loop, is asked."""

_COLLECTOR = ("gc.disable", "gc.freeze", "gc.set_threshold", "gc.callbacks", "gc.get_objects", "gc.set_debug")

_CLOCKS = frozenset(
    {
        "time.time", "time.perf_counter", "time.monotonic", "time.process_time", "time.time_ns", "time.clock",
        "time.perf_counter_ns", "time.monotonic_ns", "time.process_time_ns", "timeit.default_timer", "timeit.timeit",
        "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "torch.cuda.Event",
        "torch.Event",
    }
)  # fmt: skip

_STREAMS = (
    "torch.cuda.Stream", "torch.cuda.stream", "torch.cuda.ExternalStream", "torch.cuda.CUDAGraph", "torch.cuda.graph",
    "torch.cuda.graphs.", "torch.cuda.make_graphed_callables", "torch.cuda.nvtx.", "torch.cuda.profiler.",
    "torch.profiler.", "torch.autograd.profiler.", "torch.cuda.ipc_collect", "torch.Stream", "torch.cuda.set_stream",
)  # fmt: skip

_KERNELS = frozenset(
    {"cupy", "numba", "pycuda", "triton", "tensorrt", "ctypes", "torch_tensorrt", "nvidia", "jax", "tensorflow", "warp"}
)
"""Packages with kernels or streams of their own, of which torch's do not know."""

_WITHOUT_STOP = frozenset({"to", "cpu", "copy_", "pin_memory", "share_memory_"})


def chores(analysis: Analysis, events: list[Event], record: LoopRecord) -> tuple[Chore, ...]:
    """The chores of a loop's iterations, each once."""
    found: dict[ast.AST, Chore] = {}
    for event in events:
        if event.kind == "call" and event.name in _KINDS and event.node not in found:
            found[event.node] = _chore(analysis, event, events, record)
    return tuple(sorted(found.values(), key=lambda each: each.site))


def _chore(analysis: Analysis, event: Event, events: list[Event], record: LoopRecord) -> Chore:
    facts, loop = analysis.facts, record.node
    kind = _KINDS[event.name]
    statement = facts.places.statement(event.node, event.module) or event.node
    outside = [each for each in facts.at(event.node) if not facts.inside(each, loop)]
    return Chore(
        site=facts.site(event),
        statement=facts.places.site(statement, event.module),
        kind=kind,
        name=event.name,
        guard=analysis.guards.guard(event, loop),
        alone=isinstance(statement, ast.Expr) and statement.value is event.node,
        comments=_comments(analysis, statement, event.module),
        outside=_called_from(analysis, outside[0]) if outside else None,
        purpose=next(_purposes(analysis, kind, events, record), None),
    )


def _comments(analysis: Analysis, statement: ast.AST, module: ModuleFile) -> tuple[str, ...]:
    """The comments on a statement and straight above it, and those of the tests above that, if it is first."""
    places = analysis.facts.places
    found = list(places.comments_at(statement, module))
    above = places.parent(statement, module)
    while isinstance(above, ast.If) and above.body[0] is statement:
        found += places.comments_at(above.test, module)
        statement, above = above, places.parent(above, module)
    return tuple(dict.fromkeys(found))


def _called_from(analysis: Analysis, event: Event) -> Site:
    """Where the function is called from, at the other time that something happens."""
    frames = analysis.facts.frames(event)
    if len(frames) > 1:
        return analysis.facts.places.site(frames[-2].anchor, frames[-2].module)
    return analysis.facts.site(event)


def _purposes(analysis: Analysis, kind: str, events: list[Event], record: LoopRecord) -> Iterator[Purpose]:
    """What a chore may be there for, as far as the program shows it."""
    if kind == "synchronize":
        yield from _read_clocks(analysis, events, record)
        yield from _other_streams(analysis)
        return
    for each in events:
        if each.kind == "call" and _measures_memory(each.name):
            yield Purpose("memory", analysis.facts.site(each))
    for call, frame in _calls(analysis, events, record):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _OF_A_PROCESS:
            yield Purpose("memory", analysis.facts.places.site(call, frame.module))
    if kind == "collect":
        for each in analysis.facts.of("call", "unknown_call"):
            if each.name.startswith(_COLLECTOR):
                yield Purpose("collector", analysis.facts.site(each))
        for each in analysis.facts.of("backward", "autograd_grad"):
            if creates_graph(each):
                yield Purpose("cycle", analysis.facts.site(each))


def _measures_memory(name: str) -> bool:
    return name.startswith(_MEASURES) or (name.startswith("torch.") and name.rpartition(".")[2] in _MEASURED)


def _read_clocks(analysis: Analysis, events: list[Event], record: LoopRecord) -> Iterator[Purpose]:
    """The clocks that an iteration reads: in the loop itself, in what it calls, in the file of what it runs over."""
    places = analysis.facts.places
    for call, frame in _calls(analysis, events, record):
        if _is_clock(analysis, call, frame):
            yield Purpose("clock", places.site(call, frame.module))
    iterated = getattr(record.node, "iter", None)
    called = [getattr(each, "attr", getattr(each, "id", "")) for each in (walk_here(iterated) if iterated else ())]
    for module in analysis.execution.modules.values():
        frame = Frame(module.tree, module, module.tree, None, ())
        functions = [each for each in every(ast.FunctionDef, module.tree) if each.name in called]
        for call in every(ast.Call, module.tree) if functions else ():
            if _is_clock(analysis, call, frame):
                yield Purpose("clock", places.site(call, module))


def _calls(analysis: Analysis, events: list[Event], record: LoopRecord) -> Iterator[tuple[ast.Call, Frame]]:
    """The calls that an iteration makes: in the loop itself, and in what it calls."""
    seen: set[ast.AST] = set()
    for each in events:
        for frame in analysis.facts.frames_within(each, record.node):
            inner = record.node if any(record.node is loop for loop in frame.loops) else frame.scope
            if inner not in seen:
                seen.add(inner)
                yield from ((call, frame) for call in _lines(inner) if isinstance(call, ast.Call))


def _lines(node: ast.AST) -> Iterator[ast.AST]:
    """What is executed in a loop or function."""
    for block in blocks(node):
        for each in block:
            yield from walk_here(each)


def _is_clock(analysis: Analysis, call: ast.Call, frame: Frame) -> bool:
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    if name in ("elapsed_time", "tic", "toc"):
        return True
    found = analysis.facts.evaluate(call.func, (frame,))
    return any(isinstance(each, External) and each.qualname in _CLOCKS for each in members(found))


def _other_streams(analysis: Analysis) -> Iterator[Purpose]:
    """What only a wait for all of the GPU's work makes safe, or what is measured with it."""
    facts = analysis.facts
    for each in facts.of("call", "make", "enter", "unknown_call"):
        if each.name.startswith(_STREAMS):
            yield Purpose("stream", facts.site(each))
    for module in facts.execution.modules.values():
        imports: list[ast.Import | ast.ImportFrom] = [
            *every(ast.Import, module.tree),
            *every(ast.ImportFrom, module.tree),
        ]
        for node in imports:
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(name.partition(".")[0] in _KERNELS for name in names):
                yield Purpose("stream", facts.places.site(node, module))
        for call in every(ast.Call, module.tree):
            if _copies_without_stop(analysis, call):
                yield Purpose("copies", facts.places.site(call, module))


def _copies_without_stop(analysis: Analysis, call: ast.Call) -> bool:
    """A copy that may not block and may leave the GPU, or pinned memory that the program fills itself."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method in ("pin_memory", "share_memory_"):
        return True
    named = any(each.arg in (None, "non_blocking") and not is_false(each.value) for each in call.keywords)
    if method not in _WITHOUT_STOP or not (named or len(call.args) > 1):
        return False
    moves = [each for each in analysis.facts.at(call) if each.kind == "transfer"]
    return method != "to" or not moves or not all(analysis.devices.of_transfer(each).reaches_cuda for each in moves)
