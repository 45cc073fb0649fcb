"""Calls in a loop over batches that compute nothing: the cache is emptied, garbage collected, the GPU waited for.

Each says what it may be there for, as far as any text of the program speaks of it: a clock, a stream of its own. No
run shows what happens without it.
"""

from __future__ import annotations

import ast
import re
from typing import Literal

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord
from turbofix.regex import regex
from turbofix.source.site import Site
from turbofix.training.model import Chore, Purpose

Kind = Literal["empty_cache", "collect", "synchronize"]

_KINDS: dict[str, Kind] = {
    "torch.cuda.empty_cache": "empty_cache",
    "torch.cuda.memory.empty_cache": "empty_cache",
    "torch.accelerator.empty_cache": "empty_cache",
    "torch.accelerator.memory.empty_cache": "empty_cache",
    "gc.collect": "collect",
    "torch.cuda.synchronize": "synchronize",
    "torch.accelerator.synchronize": "synchronize",
}

_CLOCK = regex(
    r"\btime\.time\(|\btime\(\)|perf_counter|monotonic\(|process_time|timeit|datetime\.(?:now|utcnow)"
    r"|\.Event\(|elapsed_time|\bt[io]c\("
)
_STREAM = regex(
    r"\bStream\b|cuda\.stream\(|CUDAGraph|cuda\.graph|make_graphed|nvtx|profiler|ipc_collect|set_stream|non_blocking"
    r"|pin_memory\(|share_memory_|\b(?:cupy|numba|pycuda|triton|tensorrt|ctypes|torch_tensorrt|jax|tensorflow|warp)\b"
)
_MEMORY = regex(
    r"memory_(?:allocated|reserved|cached|stats|summary|snapshot|usage|info|percent)|max_memory|mem_get_info"
    r"|\b(?:psutil|pynvml|tracemalloc|getrusage|nvidia_smi|GPUtil|memory_profiler)\b"
)
_COLLECTOR = regex(r"\bgc\.(?:disable|freeze|set_threshold|callbacks|get_objects|set_debug)|create_graph")

_PURPOSES: dict[Kind, tuple[tuple[Literal["clock", "stream", "memory", "collector"], re.Pattern[str]], ...]] = {
    "synchronize": (("clock", _CLOCK), ("stream", _STREAM)),
    "empty_cache": (("memory", _MEMORY),),
    "collect": (("memory", _MEMORY), ("collector", _COLLECTOR)),
}


def chores(analysis: Analysis, events: list[Event], record: LoopRecord) -> tuple[Chore, ...]:
    """The chores of a loop's iterations, each once."""
    found: dict[ast.AST, Chore] = {}
    for event in events:
        if event.kind == "call" and event.name in _KINDS and event.node not in found:
            found[event.node] = _chore(analysis, event, record)
    return tuple(sorted(found.values(), key=lambda each: each.site))


def _chore(analysis: Analysis, event: Event, record: LoopRecord) -> Chore:
    places, kind = analysis.facts.places, _KINDS[event.name]
    statement = places.statement(event.node, event.module) or event.node
    alone = isinstance(statement, ast.Expr) and statement.value is event.node
    guard = analysis.guards.guard(event, record.node)
    comments = places.comments_at(statement, event.module)
    above = places.parent(statement, event.module)
    while guard.kind in ("always", "config") and isinstance(above, ast.If) and above.body == [statement]:
        outer = places.parent(above, event.module)
        if above.orelse or (isinstance(outer, ast.If) and outer.orelse == [above]):
            break
        comments += places.comments_at(above.test, event.module)
        statement, above = above, outer
    return Chore(
        site=analysis.facts.site(event),
        statement=places.site(statement, event.module),
        kind=kind,
        name=event.name,
        guard=guard,
        alone=alone and not (isinstance(above, ast.If) and len(above.body) == 1),
        comments=comments,
        purpose=_purpose(analysis, kind, record),
    )


def _purpose(analysis: Analysis, kind: Kind, record: LoopRecord) -> Purpose | None:
    """What a chore may be there for: the first line that speaks of it, in the file of the loop first."""
    first, last = record.node.lineno, record.node.end_lineno or 0
    modules = sorted(analysis.execution.modules.values(), key=lambda each: each is not record.module)
    for name, pattern in _PURPOSES[kind]:
        for module in modules:
            for number, line in enumerate(module.text.splitlines(), 1) if pattern.search(module.text) else ():
                if name == "clock" and module is record.module and not first <= number <= last:
                    continue  # once in a pass, say
                code = line.partition("#")[0]
                if pattern.search(code) and not code.lstrip().startswith(("import ", "from time", "from datetime")):
                    return Purpose(name, Site(module.path, number, 0, number, len(code), "Call"))
    return None
