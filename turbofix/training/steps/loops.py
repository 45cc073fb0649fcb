"""A loop as its text says it: what it runs over, its counter, its length and its progress bar."""

from __future__ import annotations

import ast

from turbofix.dataflow.facts import unwrapped
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Instance, Iterated, Made, Sequence, members
from turbofix.library.tables import BARS
from turbofix.source.names import dotted, loaded, stored
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Loop


def loop_of(analysis: Analysis, record: LoopRecord) -> Loop:
    """A loop as its text says it."""
    facts = analysis.facts
    node, module = record.node, record.module
    site = facts.places.site(node, module)
    if not isinstance(node, (ast.For, ast.AsyncFor)):
        return Loop(site, counter=_hand_counter(node))
    text = facts.places.text(node.iter, module)
    target = facts.places.text(node.target, module)
    counter, start, sized = _counting(analysis, node, module)
    if counter in stored(node.body):  # it counts no more when it is read
        counter = None
    bar, bar_name = _progress(analysis, record)
    return Loop(site, text, target, counter or _hand_counter(node), start, sized, bar, bar_name)


def _counting(
    analysis: Analysis, node: ast.For | ast.AsyncFor, module: ModuleFile
) -> tuple[str | None, int, str | None]:
    """The counter of an ``enumerate`` or ``range``, where it starts, and a text for the number of iterations."""
    found = {_counted(analysis, node, each, module) for each in _made_before(analysis, node, module)}
    made = found.pop() if len(found) == 1 else None
    return made if made is not None and made[0] is not None else _counted(analysis, node, node.iter, module)


def _made_before(analysis: Analysis, node: ast.For | ast.AsyncFor, module: ModuleFile) -> tuple[ast.expr, ...]:
    """What a loop runs over, if it goes by a name: ``steps = tqdm(enumerate(loader)) if first else enumerate(loader)``.

    Nothing where something that this reads is changed before the loop is over.
    """
    if not isinstance(node.iter, ast.Name):
        return ()
    bindings = analysis.facts.bindings
    owner = bindings.owner(node.iter.id, node.iter, module)
    writes = bindings.writes(owner, node.iter.id)
    made = writes[0] if len(writes) == 1 and owner is analysis.facts.places.scope(node, module) else None
    if not isinstance(made, (ast.Assign, ast.withitem)):
        return ()
    value = made.value if isinstance(made, ast.Assign) else made.context_expr  # `with tqdm(loader) as bar:`
    lines = [getattr(each, "lineno", 0) for name in loaded(value) for each in bindings.writes(owner, name)]
    changed = any(value.lineno < line <= (node.end_lineno or line) for line in lines)
    if changed:
        return ()
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)


def _counted(
    analysis: Analysis, node: ast.For | ast.AsyncFor, iterated: ast.expr, module: ModuleFile
) -> tuple[str | None, int, str | None]:
    """The same for one expression that the loop may run over."""
    places = analysis.facts.places
    outer = iterated
    counter: str | None = None
    start = 0
    told: str | None = None
    target: ast.expr = node.target
    for _ in range(4):
        if not isinstance(iterated, ast.Call):
            break
        name = analysis.facts.offered(iterated.func, module)
        if name == "builtins.enumerate" and iterated.args:
            if isinstance(target, ast.Tuple) and target.elts and counter is None:
                counter = dotted(target.elts[0])
            begin = iterated.args[1] if len(iterated.args) > 1 else None
            begin = next((each.value for each in iterated.keywords if each.arg == "start"), begin)
            if isinstance(begin, ast.Constant) and isinstance(begin.value, int):
                start = begin.value
            elif begin is not None:
                counter = None
            iterated = iterated.args[0]
        elif name in ("builtins.range", "tqdm.trange", "tqdm.tnrange"):
            if isinstance(target, ast.Name):
                counter = target.id
                first = iterated.args[0] if len(iterated.args) > 1 else None
                if isinstance(first, ast.Constant) and isinstance(first.value, int):
                    start = first.value
                elif first is not None:
                    counter = None
            size = places.text(iterated.args[0], module) if len(iterated.args) == 1 else None
            return counter, start, size
        elif iterated.args and (name in BARS or (name == "builtins.iter" and len(iterated.args) == 1)):
            told = next((places.text(each.value, module) for each in iterated.keywords if each.arg == "total"), told)
            iterated = iterated.args[0]
        else:
            break
    base = dotted(iterated)
    # who tells a bar another number may be given what has no length
    known = (
        base is not None
        and told in (None, f"len({base})")
        and (_is_sized(analysis, iterated, module) if outer is node.iter else _is_loader(analysis, iterated, node))
    )
    sized = f"len({base})" if known else None
    return counter, start, sized


def _is_loader(analysis: Analysis, named: ast.expr, loop: ast.AST) -> bool:
    """Whether a name that is not what a loop runs over itself stands for a loader there."""
    facts = analysis.facts
    found = [
        value
        for event in facts.at(loop)
        if event.kind == "iterate"
        for value in members(facts.evaluate(named, facts.frames(event)))
    ]
    return bool(found) and all(isinstance(value, Made) and value.kind == "loader" for value in found)


def _is_sized(analysis: Analysis, node: ast.expr, module: ModuleFile) -> bool:
    """Whether ``len`` of what is iterated is known to work: a loader, a list, a progress bar around one."""
    for event in analysis.facts.of("iterate"):
        if event.module is not module:
            continue
        for value in unwrapped(event.receiver):
            if isinstance(value, (Made, Sequence, Instance)):
                for each in walk(event.node.iter if isinstance(event.node, (ast.For, ast.AsyncFor)) else event.node):
                    if each is node:
                        return not isinstance(value, Made) or value.kind in ("loader", "progress", "dataset")
    return False


def _hand_counter(node: ast.AST) -> str | None:
    """A variable that each iteration increments by one, as a statement of the loop's own block."""
    for statement in getattr(node, "body", ()):
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
            continue
        if isinstance(statement.value, ast.Constant) and statement.value.value == 1:
            return dotted(statement.target)
    return None


def _progress(analysis: Analysis, record: LoopRecord) -> tuple[Site | None, str | None]:
    for value in unwrapped(record.iterated):
        if isinstance(value, (Made, Iterated)):
            is_bar = (isinstance(value, Made) and value.kind == "progress") or (
                isinstance(value, Iterated) and value.wrapper in ("tqdm", "progress", "trange")
            )
            if is_bar and value.origin is not None:
                site = analysis.facts.origin_site(value.origin)
                node = value.origin.node
                statement = analysis.facts.places.statement(node, value.origin.module)
                name = None
                if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                    name = dotted(statement.targets[0])
                elif isinstance(statement, ast.With):
                    name = next(
                        (dotted(item.optional_vars) for item in statement.items if item.context_expr is node), None
                    )
                return site, name
    return None, None
