"""Loaders that stay as they are, beside each of which another one gives a process its share, as models are wrapped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Made
from turbofix.source.names import dotted, stored
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.source.site import Site
from turbofix.training.model import Beside, Loader, Pass, Step
from turbofix.training.parallel.sharing import passes_of


def besides(
    analysis: Analysis, loaders: tuple[Loader, ...], steps: tuple[Step, ...], read: set[Made], whole: LoopRecord
) -> tuple[Beside, ...]:
    """What is read of each loader in the training, by a name that it has in front of that; empty where that fails."""
    sites = {analysis.facts.origin_site(each.origin) for each in read}
    found: dict[str, Beside] = {}
    for loader in loaders:
        if loader.site not in sites:
            continue
        plain = loader.argument("batch_sampler").state == "absent" and loader.dataset.kind != "iterable"
        passes = tuple(passes_of(analysis, loader, steps, read))
        uses = [_uses(analysis, each, whole) for each in passes]
        texts = {each.loader for each in passes}
        if not plain or not uses or not all(uses) or len(texts) > 1:
            return ()
        (text,) = texts
        known = found[text].uses if text in found else ()
        found[text] = Beside(text, tuple(sorted({*known, *(site for each in uses for site in each)})))
    return tuple(found.values())


def _uses(analysis: Analysis, read: Pass, whole: LoopRecord) -> tuple[Site, ...]:
    """Where a statement of the training's loop, or that loop, takes a loader; empty where its name is set in there."""
    places, module = analysis.facts.places, whole.module
    root = read.loader.partition(".")[0]
    if read.at.path != module.path or {root, read.loader} & stored([whole.node]):
        return ()
    inside = (each for each in walk(whole.node) if isinstance(each, ast.stmt))
    statement = next((each for each in inside if places.site(each, module) == read.at), None)
    if statement is None or places.scope(statement, module) is not places.scope(whole.node, module):
        return ()
    return tuple(places.site(each, module) for each in _taken(analysis, statement, read.loader, whole))


def _taken(analysis: Analysis, statement: ast.stmt, text: str, whole: LoopRecord) -> Iterator[ast.AST]:
    """The reads of a loader in a statement (of a loop: in what it goes through), but for those that count it."""
    given = getattr(statement, "iter", None) if isinstance(statement, LOOPS) else statement
    for each in walk(given) if given is not None else ():
        if isinstance(each, (ast.Name, ast.Attribute)) and dotted(each) == text:
            above = analysis.facts.places.parent(each, whole.module)
            if isinstance(each.ctx, ast.Load) and not (isinstance(above, ast.Call) and dotted(above.func) == "len"):
                yield each
