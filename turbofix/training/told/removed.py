"""What torch and its companions have taken away and the program still says: it cannot run before that is mended.

``loss.data[0]``, ``x.cuda(async=True)``, ``np.int``, ``from torch._six import inf``. Only what has one right form today
comes with it. What stands in an ``except``, in a ``try`` that catches the error, or under a test of the version, is the
program's own answer to that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any, NamedTuple, TypeGuard

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.tensors import is_scalar
from turbofix.domain.trace import Event
from turbofix.domain.values import Host, Instance, Made, ModuleValue, Opaque, Tensor, members
from turbofix.library.tables import dropped, rows_of, words
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import dotted
from turbofix.source.nodes import ASYNC, walk
from turbofix.source.places import Places
from turbofix.source.site import Site
from turbofix.training.evidence import short
from turbofix.training.model import Removed, Target

_OF_MODELS = words("eval train parameters named_parameters modules children state_dict forward")
_READING = words("data cpu numpy detach")
_CATCHING = words("KeyboardInterrupt SystemExit StopIteration OSError FileNotFoundError GeneratorExit")
"""What a handler may catch that none of these errors is."""


def removed(analysis: Analysis, target: Target) -> tuple[Removed, ...]:
    """All of it in the program's files, in order; ``target`` is what a rewrite must serve."""
    found: dict[Site, Removed] = {}
    for module in analysis.execution.modules.values():
        for node, said in _found(analysis, module, target):
            if not (is_guarded(analysis, node, module) or _is_caught(analysis, node, module)):
                found.setdefault(said.site, said)
    return tuple(sorted(found.values(), key=lambda each: each.site))


def is_guarded(analysis: Analysis, node: ast.AST, module: ModuleFile) -> bool:
    """Whether the program chooses by the torch that it finds: it asks which one, or that is its answer to an error."""
    return any(
        isinstance(each, ast.ExceptHandler)
        or (isinstance(each, (ast.If, ast.IfExp)) and any(map(_asks_for_version, walk(each.test))))
        for each in analysis.facts.places.ancestors(node, module)
    )


def _is_caught(analysis: Analysis, node: ast.AST, module: ModuleFile) -> bool:
    """Whether the program has an answer of its own to an error there."""
    below = node
    for each in analysis.facts.places.ancestors(node, module):
        if isinstance(each, ast.Try) and any(below is one for one in each.body):
            kinds = [kind for one in each.handlers for kind in getattr(one.type, "elts", [one.type])]
            if any(dotted(kind) not in _CATCHING for kind in kinds):
                return True
        below = each
    return False


def _asks_for_version(node: ast.AST) -> bool:
    """``hasattr(torch.amp, "GradScaler")``, ``torch.__version__``."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__version__"
    return isinstance(node, ast.Name) and node.id in ("hasattr", "getattr")


def _found(analysis: Analysis, module: ModuleFile, target: Target) -> Iterator[tuple[ast.AST, Removed]]:
    site = partial(analysis.facts.places.site, module=module)
    quoted = partial(_quoted, analysis, module)
    if "[0]" in module.text:
        for item in every(ast.Subscript, module.tree):
            if (number := _number(analysis, module, item)) is not None:
                why = f"`{quoted(item)}` indexes a number, which raises an error since torch 0.5"
                yield item, Removed(site(item), why, "after", site(number), (".item()",))
    for old in every(ast.keyword, module.tree):
        if old.arg == ASYNC:
            why = "`async` is a word of Python's own since 3.7; the argument is `non_blocking`"
            new = f"non_blocking={analysis.facts.places.text(old.value, module)}"
            yield old, Removed(site(old), why, "argument", None, (ASYNC, new))
    for view in every(ast.Attribute, module.tree) if ".t()" in module.text else ():
        if view.attr == "view" and _is_of_transposed(view.value, analysis.facts.places.scope(view, module)):
            why = f"`{quoted(view.value)}` is transposed, and `view` raises an error for it since torch 1.7"
            yield view, Removed(site(view), why, "after", site(view.value), (".reshape",))
    yield from _calls(analysis, module, target)
    if "torch.load(" in module.text and target.torch >= (2, 4):
        yield from _pickles(analysis, module)
    yield from _imports(analysis, module, target)


def _quoted(analysis: Analysis, module: ModuleFile, node: ast.AST) -> str:
    return short(analysis.facts.places.text(node, module))


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


# --- a number's item --------------------------------------------------------------------------------------------------


def _number(analysis: Analysis, module: ModuleFile, item: ast.Subscript) -> ast.expr | None:
    """``loss`` in ``loss.data[0]`` where it has no dimension: as was seen, or since a plain backward begins at it."""
    if not (isinstance(item.slice, ast.Constant) and item.slice.value == 0 and isinstance(item.ctx, ast.Load)):
        return None
    if item.slice.value is False:
        return None
    held: ast.expr = item.value
    while True:
        method = held.func if isinstance(held, ast.Call) and not held.args and not held.keywords else held
        if not isinstance(method, ast.Attribute) or method.attr not in _READING:
            break
        if (method is held) is not (method.attr == "data"):
            break
        held = method.value
    if held is not item.value and isinstance(held, ast.Name) and held.id in _gone_back_from(module.tree):
        return held
    found = [each for event in analysis.facts.at(item) if event.kind == "index" for each in members(event.receiver)]
    read_here = held is not item.value  # what numpy makes of a number, as `np.where(...)`, may have dimensions
    known = all(_is_a_number(each) and (read_here or isinstance(each, Tensor)) for each in found)
    return held if found and known else None


def _is_a_number(value: object) -> bool:
    if isinstance(value, Host):
        return value.of is not None and value.of.scalar
    return isinstance(value, Tensor) and is_scalar(value)


@once_per_node
def _gone_back_from(tree: ast.Module) -> frozenset[str]:
    """The names on which a file calls ``backward()`` without a gradient: they hold numbers."""
    calls = [each.func for each in every(ast.Call, tree) if not each.args]
    named = [each for each in calls if isinstance(each, ast.Attribute) and each.attr == "backward"]
    return frozenset(name for each in named if (name := dotted(each.value)) is not None)


# --- views, calls, imports ------------------------------------------------------------------------------------


def _is_of_transposed(part: ast.expr, scope: ast.AST) -> bool:
    """Whether it is ``correct[:k]``, where ``correct`` is compared with ``pred.t()``; one row alone can be viewed."""
    if not isinstance(part, ast.Subscript) or not isinstance(part.slice, ast.Slice):
        return False
    last = part.slice.upper
    whole = last is None or part.slice.lower is not None or getattr(last, "value", None) == 1
    return not whole and dotted(part.value) in _transposed(scope)


@once_per_node
def _transposed(scope: ast.AST) -> frozenset[str | None]:
    """The names that a function sets to what is compared with ``pred.t()``."""
    sets = [(dotted(each.targets[0]), each.value) for each in walk(scope) if isinstance(each, ast.Assign)]
    turned = {name for name, value in sets if ast.unparse(value).endswith(".t()")}
    compared = [(name, value.func.value) for name, value in sets if _is_call_of(value, "eq")]
    compared += [(name, value.left) for name, value in sets if isinstance(value, ast.Compare)]
    return frozenset(name for name, one in compared if dotted(one) in turned or _is_call_of(one, "t"))


def _is_call_of(node: ast.expr, method: str) -> TypeGuard[Any]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method


def _calls(analysis: Analysis, module: ModuleFile, target: Target) -> Iterator[tuple[ast.AST, Removed]]:
    places = analysis.facts.places
    for event in analysis.facts.of("call", "make"):
        call = event.node
        if event.module is not module or not isinstance(call, ast.Call):
            continue
        for each in call.keywords:
            if (row := _row(event, each, target)) is not None:
                yield call, _renamed(places, event, each, row)


def _pickles(analysis: Analysis, module: ModuleFile) -> Iterator[tuple[ast.AST, Removed]]:
    """Whole objects that ``torch.load`` reads: models by what is done with them, others by where they were saved."""
    whole = {
        text: event
        for event in analysis.facts.of("save")
        if isinstance(event.node, ast.Call) and (text := _file(event.node, 1))
        if any(isinstance(each, (Instance, Made)) for each in members(event.receiver))
    }
    for event in analysis.facts.of("load"):
        call = event.node
        if event.module is not module or event.name != "torch.load" or not isinstance(call, ast.Call):
            continue
        used = any(isinstance(each, Opaque) and each.uses & _OF_MODELS for each in members(event.result))
        told = any(each.arg in (None, "weights_only", "pickle_module") for each in call.keywords)
        if not told and (used or _file(call, 0) in whole):
            why = "since torch 2.6 `torch.load` makes no objects, as the one that is read here, unless it is told to"
            place = analysis.facts.places.site(call, module)
            yield call, Removed(place, why, "given", None, ("weights_only", "False"))


def _file(call: ast.Call, position: int) -> str | None:
    """The file that something is saved into or read from, as it is written."""
    given = call.args[position] if len(call.args) > position else _keyword(call, "f")
    return ast.unparse(given) if given is not None else None


class Row(NamedTuple):
    """A row of ``renamed.tsv``, which says what its columns are."""

    call: str
    argument: str
    value: str
    instead: str
    package: str
    since: str
    note: str


@cache
def rows() -> dict[str | None, tuple[Row, ...]]:
    """What is said of each argument in ``renamed.tsv``."""
    found = [Row(*row) for row in rows_of("renamed.tsv")]
    return {row.argument: tuple(each for each in found if each.argument == row.argument) for row in found}


def _row(event: Event, given: ast.keyword, target: Target) -> Row | None:
    """The first row that speaks of an argument, where no version that is to be served takes it.

    Requirements that name torch alone tell by it how old the others are.
    """
    for row in rows().get(given.arg, ()):
        if fnmatchcase(event.name, row.call) and fnmatchcase(ast.unparse(given.value), row.value):
            return row if _is_gone(target, f"{row.package} {row.since}") else None
    return None


def _is_gone(target: Target, gone: str, torch: str = "2.4") -> bool:
    """Whether no version that is to be served has it any more; ``torch`` tells it where the project says no version."""
    package, since = gone.rsplit(" ", 1)
    oldest = target.oldest(package.lower())
    least = torch if oldest is None else since
    return (oldest or target.torch) >= tuple(map(int, least.split(".")))


def _renamed(places: Places, call: Event, old: ast.keyword, row: Row) -> Removed:
    """An argument that is gone, and what is given in its place."""
    keywords = call.node.keywords if isinstance(call.node, ast.Call) else []
    given = {each.arg: places.text(each.value, call.module).replace("'", '"') for each in keywords}
    value = places.text(old.value, call.module)
    new = dict(each.replace("{}", value).split("=", 1) for each in row.instead.split(" & ") if each)
    taken = [f"`{name}` is given as well" for name, text in new.items() if given.get(name, text) != text]
    note = row.note.removeprefix("!")
    why = f"`{old.arg}` is no argument of `{call.name.rpartition('.')[2]}` from {row.package} {row.since} on"
    why_not = next(iter(taken), note if note != row.note else None)
    text = ", ".join(f"{name}={text}" for name, text in new.items() if name not in given)
    site, around = places.site(old, call.module), places.site(call.node, call.module)
    why += f", and {note}" if note and note == row.note else ""
    return Removed(site, why, "argument", around, (old.arg or "", text), why_not)


def _imports(analysis: Analysis, module: ModuleFile, target: Target) -> Iterator[tuple[ast.AST, Removed]]:
    """Names that libraries have taken away, where they are imported or read off a module that is still there."""
    site = partial(analysis.facts.places.site, module=module)
    for event in analysis.facts.of("import"):
        gone = None if any(isinstance(each, ModuleValue) for each in members(event.result)) else dropped(event.name)
        node = event.node
        if event.module is not module or gone is None or not _is_gone(target, gone.since, gone.torch):
            continue
        why = f"there is no `{gone.name}` from {gone.since} on"
        aliases = node.names if isinstance(node, ast.ImportFrom) else ()
        alias = next((each for each in aliases if f"{getattr(node, 'module', '')}.{each.name}" == gone.name), None)
        if alias is None and event.name != gone.name and gone.instead:
            continue  # the import that brings it is mended
        bound = alias.asname or alias.name if alias is not None else ""
        names = [each for each in every(ast.Name, module.tree) if each.id == bound] if alias is not None else [node]
        parent, _, last = gone.instead.rpartition(".")
        new = f"from {parent} import {last}" if parent else f"import {last}"
        new = bound + f" {gone.instead}" if gone.instead[:2] == "= " else new + f" as {bound}" * (bound != last)
        calls: tuple[Site, ...] = ()
        why_not = None if gone.instead else gone.note or "what does its work today works in another way"
        if alias is not None and not names and module.path.name != "__init__.py":
            why, new, why_not = f"{why}, and nothing here uses it", "", None
        elif gone.instead == "torch.optim.AdamW":
            around = [analysis.facts.places.parent(each, module) for each in names]
            made = [each for each, name in zip(around, names, strict=True) if getattr(each, "func", None) is name]
            calls, why_not = tuple(map(site, made)), _why_not_torchs(made, len(names))
        yield node, Removed(site(alias or node), why, "name", None, (new, gone.instead), why_not, calls)


def _why_not_torchs(calls: list[Any], uses: int) -> str | None:
    """What keeps the AdamW that transformers had from being torch's, whose defaults are others."""
    if len(calls) != uses or any(each.arg is None for call in calls for each in call.keywords):
        return "what it is given is not all written where it is called: torch's has `weight_decay=1e-2` and `eps=1e-8`"
    given = [[*call.args[5:], *filter(None, [_keyword(call, "correct_bias")])] for call in calls]
    if any(getattr(each, "value", None) is not True for told in given for each in told):
        return "torch's AdamW corrects the bias of its averages in any case"
    return None
