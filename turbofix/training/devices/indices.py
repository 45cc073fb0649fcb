"""What indexes tensors on the GPU, and lies on the host: each indexing copies it there, and waits."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.scopes import Frame
from turbofix.domain.trace import Event
from turbofix.domain.values import Made, Opaque, Tensor, Value, members
from turbofix.source.names import dotted, stores
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.training.devices.factories import made_there, makes_there
from turbofix.training.model import Creation, HostIndex, Placement

_DRAWN = {"numpy.random.permutation": 1, "numpy.random.choice": 2, "numpy.random.randint": 2}
"""What draws an array, with so many arguments at least: with fewer some draw a number."""


def host_indices(analysis: Analysis, events: list[Event], loop: ast.AST) -> tuple[HostIndex, ...]:
    """Such indices in a training loop and in the functions that it calls, in the order of the text."""
    frames: dict[ast.AST, Frame] = {}
    for event in events:
        frame = analysis.flow.frame_at(event.control)
        if frame is not None and frame.function is not None:
            frames[frame.function.node] = frame
        elif frame is not None:
            frames[frame.module.tree] = frame
    found: list[HostIndex] = []
    for scope, frame in frames.items():
        inside = {id(each) for each in walk(loop)}
        for definition in readers(scope):
            own = id(definition) in inside or id(loop) not in {id(each) for each in walk(scope)}
            index = _index(analysis, frame, scope, definition) if own and isinstance(definition, ast.Name) else None
            found += [index] if index is not None else []
    return tuple(sorted(found, key=lambda each: each.site))


def _index(analysis: Analysis, frame: Frame, scope: ast.AST, definition: ast.Name) -> HostIndex | None:
    """One of them: what indexes tensors on the GPU twice or more, and is used for nothing else."""
    places, module = analysis.facts.places, frame.module
    statement = places.statement(definition, module)
    if isinstance(statement, ast.Assign):
        if statement.targets != [definition] or not _is_array(analysis, frame, statement.value):
            return None
    elif not (isinstance(statement, ast.For) and definition is statement.target and _draws(frame, statement.iter)):
        return None
    indexed: list[ast.Subscript] = []
    reaching = readers(scope)
    for read in reaching[definition]:
        if sum(read in reads for reads in reaching.values()) > 1:
            return None
        above = places.parent(read, module)
        if isinstance(above, ast.Tuple):
            cuts = all(each is read or isinstance(each, ast.Slice) for each in above.elts)
            above = places.parent(above, module) if cuts else None
        if isinstance(above, ast.Subscript) and above.value is not read:
            indexed.append(above)
        elif not (isinstance(above, ast.Call) and dotted(above.func) == "len"):
            return None
    held = [one for each in indexed for one in members(frame.values.get(each.value)) or (None,)]
    there = [each.device for each in held if isinstance(each, Tensor) and each.device in ("cuda", "conditional")]
    beside = next((each.value for each in indexed if _is_known_at(analysis, frame, scope, each.value, statement)), None)
    if len(indexed) < 2 or len(there) < len(held) or beside is None:
        return None
    text = f"{places.text(beside, module)}.device"
    return HostIndex(
        site=places.site(statement.value if isinstance(statement, ast.Assign) else statement.iter, module),
        name=definition.id,
        times=len(indexed),
        to=Placement("cuda" if {*there} == {"cuda"} else "conditional", text, "device"),
        body=None if isinstance(statement, ast.Assign) else places.site(statement.body[0], module),
    )


def _is_array(analysis: Analysis, frame: Frame, value: ast.expr) -> bool:
    """Whether it is an array of numpy's or a tensor of the host for certain, and no single number."""
    if isinstance(value, ast.Subscript):
        held = members(frame.values.get(value.value))
        return isinstance(value.slice, ast.Slice) and bool(held) and all(map(_is_on_host, held))
    names = {event.name for event in analysis.facts.at(value) if event.kind == "call"}
    given = len(value.args) + len(value.keywords) if isinstance(value, ast.Call) else 0
    return len(names) == 1 and given >= _DRAWN.get(names.pop(), given + 1)


def _is_on_host(value: Value) -> bool:
    of_numpy = isinstance(value, Opaque) and value.name.startswith("numpy.")
    return of_numpy or (isinstance(value, Tensor) and value.device == "cpu")


def _draws(frame: Frame, sampler: ast.expr) -> bool:
    """``BatchSampler(...)``, which gives lists of numbers."""
    held = members(frame.values.get(sampler))
    return bool(held) and all(isinstance(each, Made) and each.qualname.endswith(".BatchSampler") for each in held)


def _is_known_at(analysis: Analysis, frame: Frame, scope: ast.AST, node: ast.expr, statement: ast.stmt) -> bool:
    """Whether what a name stands for is there, and the same, where the index is made."""
    if isinstance(node, ast.Name):
        given = [definition for definition, reads in readers(scope).items() if node in reads]
        return bool(given) and all(getattr(each, "lineno", 0) < statement.lineno for each in given)
    around = analysis.facts.places.ancestors(node, frame.module)
    loops = [each for each in around if isinstance(each, LOOPS)]
    text = dotted(node)
    return text is not None and not any(to == text for loop in loops[:1] for to, _ in stores(loop))


_SHAPING = frozenset(("unsqueeze", "view", "reshape", "expand", "repeat", "flatten", "long", "t"))


def made_to_index(analysis: Analysis, events: list[Event], loop: ast.AST | None) -> tuple[Creation, ...]:
    """``logits[torch.arange(n), labels]``: what is made on the host, in the index of a tensor on the GPU."""
    found: dict[ast.AST, Creation] = {}
    for event in events:
        made = [isinstance(each, Tensor) and each.device == "cpu" for each in members(event.result)]
        if event.kind == "call" and makes_there(event) and made and all(made) and event.node not in found:
            creation = _in_an_index(analysis, event, loop)
            found.update({event.node: creation} if creation is not None else {})
    return tuple(sorted(found.values(), key=lambda each: each.site))


def _in_an_index(analysis: Analysis, event: Event, loop: ast.AST | None) -> Creation | None:
    places, module, frame = analysis.facts.places, event.module, analysis.flow.frame_at(event.control)
    node: ast.AST | None = event.node
    above = places.parent(event.node, module)
    while above is not None and not (isinstance(above, ast.Subscript) and above.slice is node):
        if isinstance(above, ast.Attribute):
            called = places.parent(above, module)
            shapes = isinstance(called, ast.Call) and called.func is above and above.attr in _SHAPING
            above = called if shapes else None
        elif isinstance(above, ast.Subscript):
            cut = [above.slice] if not isinstance(above.slice, ast.Tuple) else above.slice.elts
            above = above if all(isinstance(each, (ast.Slice, ast.Constant)) for each in cut) else None
        elif not isinstance(above, ast.Tuple):
            above = None
        node, above = above, places.parent(above, module) if above is not None else None
    text = dotted(above.value) if isinstance(above, ast.Subscript) else None
    held = members(frame.values.get(above.value)) if frame is not None and isinstance(above, ast.Subscript) else ()
    there = [each.device for each in held if isinstance(each, Tensor) and each.device in ("cuda", "conditional")]
    if text is None or not held or len(there) < len(held):
        return None
    to = Placement("cuda" if {*there} == {"cuda"} else "conditional", f"{text}.device", "device")
    return made_there(analysis, event, loop, to)
