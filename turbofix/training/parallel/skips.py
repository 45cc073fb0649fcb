"""What a process's own share of a batch decides within a step, and no process can decide alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Host, Tensor, flatten
from turbofix.source.names import loads
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.parallel.decisions import is_alike, own_nodes, tests_in
from turbofix.training.parallel.sharing import value_of

_ENDING = (ast.Break, ast.Return)


def skips(analysis: Analysis, records: list[LoopRecord]) -> Iterator[tuple[Site, bool]]:
    """The tests in steps by which a process's own share decides that something is left out.

    With each: whether one process that finds it so is enough; else all have to, for them to go on.
    """
    found: dict[Site, bool] = {}
    for record in records:
        found.update(_leaving(analysis, record))
        found.update(_returning(analysis, record))
        for site, one in _around_backward(analysis, record):
            found.setdefault(site, one)
    yield from found.items()


def _leaving(analysis: Analysis, record: LoopRecord) -> Iterator[tuple[Site, bool]]:
    """The tests under which a step is left out: what is left out behind it concerns no other process."""
    last = max((each.lineno for each in _going_backward(analysis, record)), default=0)
    for node in own_nodes(record.node, set()):
        if not isinstance(node, ast.If) or node.lineno > last:
            continue
        for block in (node.body, node.orelse):
            if any(isinstance(each, ast.Continue) for each in block):
                for test in _of_share(analysis, record, node):
                    yield analysis.facts.places.site(test, record.module), block is node.body or test is not node.test


def _returning(analysis: Analysis, record: LoopRecord) -> Iterator[tuple[Site, bool]]:
    """The tests under which a function that makes the step returns before it goes backward."""
    for event in analysis.facts.of("backward"):
        for frame in analysis.facts.frames_within(event, record.node)[1:]:
            for node in own_nodes(frame.scope, set()):
                returns = isinstance(node, ast.If) and any(isinstance(each, ast.Return) for each in node.body)
                if not isinstance(node, ast.If) or not returns or node.lineno > frame.anchor.lineno:  # type: ignore[attr-defined]
                    continue
                if _is_of_share(analysis, node, frame.module):
                    yield analysis.facts.places.site(node.test, frame.module), True


def _going_backward(analysis: Analysis, record: LoopRecord) -> Iterator[ast.stmt]:
    """The statements of a loop that go backward, through calls."""
    for event in analysis.facts.of("backward"):
        frames = analysis.facts.frames_within(event, record.node)
        statement = analysis.facts.places.statement(frames[0].anchor, frames[0].module) if frames else None
        if statement is not None:
            yield statement


def ends(analysis: Analysis, records: list[LoopRecord]) -> Iterator[Site]:
    """The tests under which a loop of steps ends, by what a process's own share holds."""
    for record in records:
        for node in own_nodes(record.node, set()):
            if isinstance(node, ast.If) and any(isinstance(each, _ENDING) for each in (*node.body, *node.orelse)):
                for test in _of_share(analysis, record, node):
                    yield analysis.facts.places.site(test, record.module)


def _of_share(analysis: Analysis, record: LoopRecord, node: ast.If) -> list[ast.expr]:
    """The outermost test on the way to a statement that processes may answer differently: the rest goes with it."""
    tests = tests_in(analysis, node, record.node, record.module)
    return [each for each in tests if not is_alike(analysis, each, record.module)][:1]


def _around_backward(analysis: Analysis, record: LoopRecord) -> Iterator[tuple[Site, bool]]:
    """The tests under which a step goes backward."""
    places = analysis.facts.places
    for event in analysis.facts.of("backward"):
        for frame in analysis.facts.frames_within(event, record.node):
            below: ast.AST = frame.anchor
            for above in places.ancestors(frame.anchor, frame.module):
                if above is record.node or isinstance(above, (*FUNCTIONS, ast.Module)):
                    break
                if isinstance(above, ast.If) and _is_of_share(analysis, above, frame.module):
                    yield places.site(above.test, frame.module), below in above.orelse
                below = above


def _is_of_share(analysis: Analysis, node: ast.If, module: ModuleFile) -> bool:
    """Whether a test asks for numbers of a process's own share, or whether something was made of them."""
    test = node.test
    if is_alike(analysis, test, module):
        return False
    for read in loads(test):
        if any(isinstance(each, (Tensor, Host)) for each in flatten(value_of(analysis, read, module))):
            return True
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name)):
        return False
    if not isinstance(test.comparators[0], ast.Constant):
        return False
    writes = analysis.facts.bindings.writes(analysis.facts.places.scope(node, module), test.left.id)
    return any(isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) for each in writes)
