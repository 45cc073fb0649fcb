"""What a training step or a forward pass computes again and again, by its text: shapes of ``overlooked.tsv``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from turbofix.domain.scopes import ModuleFile
from turbofix.library.tables import FROM_HOST, words
from turbofix.source.answers import every, once_per_node, parents_in
from turbofix.source.names import walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.training.told.written import Found, Written, calls_by_name, function_of, last, meaning

_MAKERS = words("zeros ones empty full rand randn randint randperm arange linspace eye")
_DEFAULTS = words("set_default_device set_default_tensor_type")
_ASKING = words("None hasattr shape size len cache")
_COMMON = words("forward __init__ __call__ get step run update sum mean sample call to train eval main plot")


def _computing(written: Written) -> tuple[tuple[ast.FunctionDef, ModuleFile], ...]:
    if written.computing is None:
        written.computing = tuple(_find_computing(written))
    return written.computing


def _find_computing(written: Written) -> Iterator[tuple[ast.FunctionDef, ModuleFile]]:
    """The functions that a forward pass runs, or that a training step calls: by their names, where only one has it."""
    waiting = list(_methods(written, "forward"))
    for name, functions in written.functions.items():
        only = functions[0] if name not in _COMMON and len(functions) == 1 else None
        if isinstance(only, ast.FunctionDef) and any(
            written.where(each, module) == "step" for each, module in written.callers(name)
        ):
            waiting.append(only)
    return _with_called(written, waiting)


def _methods(written: Written, name: str) -> Iterator[ast.FunctionDef]:
    """The methods of that name."""
    for module in written.modules:
        for cls in every(ast.ClassDef, module.tree):
            yield from (each for each in cls.body if isinstance(each, ast.FunctionDef) and each.name == name)


def _with_called(written: Written, waiting: list[ast.FunctionDef]) -> Iterator[tuple[ast.FunctionDef, ModuleFile]]:
    """Functions, and those that they call by a name that only one has."""
    where = {id(each): module for module in written.modules for each in every(ast.FunctionDef, module.tree)}
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        module = where[id(function)]
        yield function, module
        for call in _said(function):
            once = not isinstance(call, ast.Call) or _is_kept(call, module)
            named = [] if once else written.functions.get(last(call), [])
            if len(named) == 1 and last(call) not in _COMMON and isinstance(named[0], ast.FunctionDef):
                waiting.append(named[0])


def _is_kept(node: ast.AST, module: ModuleFile) -> bool:
    """Whether a place is come to where something is not there yet, or has another size, or once by a decorator."""
    parents = parents_in(module.tree)
    above: ast.AST | None = node
    while above is not None:
        if isinstance(above, ast.FunctionDef):
            return any("cache" in ast.unparse(each) for each in above.decorator_list)
        if isinstance(above, (ast.If, ast.IfExp)) and _asks_for_it(above.test):
            return True
        above = parents.get(above)
    return False


@once_per_node
def _asks_for_it(test: ast.AST) -> bool:
    said = ast.unparse(test)
    return any(word in said for word in _ASKING)


@once_per_node
def _said(function: ast.AST) -> list[ast.AST]:
    """What a function says outside of those in it."""
    return [each for statement in getattr(function, "body", []) for each in walk_here(statement)]


# --- loaders --------------------------------------------------------------------------------------------------------


def _epoch(node: ast.AST, written: Written, module: ModuleFile, depth: int = 2) -> ast.For | None:
    """The loop over epochs that runs a place once in each."""
    parents = parents_in(module.tree)
    while isinstance(node, ast.expr):  # what a loop goes through is made before it
        above = parents.get(node)
        if above is None or (isinstance(above, ast.stmt) and node is not getattr(above, "iter", None)):
            break
        node = above
    if written.where(node, module) != "loop":
        return None
    child, above = node, parents.get(node)
    while above is not None and not isinstance(above, ast.FunctionDef):
        if isinstance(above, LOOPS) and child is not getattr(above, "iter", None):
            said = ast.unparse(above.target) + ast.unparse(above.iter) if isinstance(above, ast.For) else ""
            return above if isinstance(above, ast.For) and "epoch" in said.lower() else None
        child, above = above, parents.get(above)
    if not depth or above is None:
        return None
    callers = written.callers(above.name)
    found = [_epoch(each, written, where, depth - 1) for each, where in callers]
    return found[0] if found and all(found) else None


def loader_of_epoch(written: Written) -> Found:
    """A function that makes a loader is called once in every epoch, with nothing of that epoch."""
    giving = {
        function.name
        for module in written.modules
        for call in calls_by_name(module.tree).get("DataLoader", ())
        if (function := function_of(call, module)) is not None
    }
    makers = {
        name
        for name in giving - _COMMON
        if all(
            any(
                isinstance(each, ast.Return) and isinstance(each.value, ast.Call) and last(each.value) == "DataLoader"
                for each in _said(function)
            )
            and not any(isinstance(each, ast.If) for each in _said(function))
            and not function.decorator_list
            for function in written.functions[name]
        )
    }
    for module in written.modules if makers else ():
        for call in every(ast.Call, module.tree):
            if last(call) in makers and (loop := _epoch(call, written, module)) is not None:
                counted = {each.id for each in walk(loop.target) if isinstance(each, ast.Name)}
                if not any(isinstance(each, ast.Name) and each.id in counted for each in walk(call)):
                    yield call, module


# --- transforms -----------------------------------------------------------------------------------------------------

_FILTERS = frozenset(
    f"torchaudio.transforms.{name}" for name in words("Resample MelSpectrogram MelScale MFCC LFCC Spectrogram")
)
"""What computes filters or a window when it is built."""


def filters_anew(written: Written) -> Found:
    """``torchaudio.transforms.Resample(rate, 16000)(sound)`` for each item, or in a forward pass."""
    for function, module in _with_called(written, [*_methods(written, "forward"), *_methods(written, "__getitem__")]):
        for made in _said(function):
            if isinstance(made, ast.Call) and meaning(made.func, module.tree) in _FILTERS:
                yield made, module


# --- tensors --------------------------------------------------------------------------------------------------------


def made_on_host(written: Written) -> Found:
    """``torch.exp(torch.arange(n) * -c).to(device)`` in a forward pass or a training step."""
    if any(name in module.text for module in written.modules for name in _DEFAULTS):
        return
    for function, module in _computing(written):
        for call in _said(function):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _is_to_device(call)):
                continue
            made = [each for each in walk(call.func.value) if isinstance(each, ast.Call)]
            makers = [each for each in made if _makes(each, module)]
            known = makers and not any(last(each) in ("to", "cuda", "from_numpy") for each in made)
            known = known and not _is_kept(call, module)
            if known and not any(word.arg == "device" for each in made for word in each.keywords):
                yield call, module


_COPYING = ("torch.tensor", "torch.as_tensor")


def copied_from_host(written: Written) -> Found:
    """``torch.FloatTensor(states).to(device)`` and ``torch.tensor(states, device=device)`` in a training step."""
    for module in written.modules:
        calls = calls_by_name(module.tree)
        for call in (each for name in ("to", "cuda", "tensor", "as_tensor") for each in calls.get(name, ())):
            inner = call if meaning(call.func, module.tree) in _COPYING else call.func
            made = [each for each in walk(inner) if isinstance(each, ast.Call) and last(each) in FROM_HOST]
            named = any(isinstance(each, ast.Name) for one in made for given in one.args for each in walk(given))
            if named and _is_to_device(call) and written.where(call, module) == "step":
                yield call, module


def _makes(call: ast.Call, module: ModuleFile) -> bool:
    name = meaning(call.func, module.tree)
    return name.startswith("torch.") and name.rpartition(".")[2] in _MAKERS and name.count(".") == 1


def _is_to_device(call: ast.Call) -> bool:
    given = [each.value for each in call.keywords if each.arg == "device"] + (call.args if last(call) == "to" else [])
    return last(call) == "cuda" or any(re.search("device|cuda", ast.unparse(each).lower()) for each in given)


SHAPES: dict[str, Callable[[Written], Found]] = {
    each.__name__: each
    for each in (
        loader_of_epoch,
        filters_anew,
        made_on_host,
        copied_from_host,
    )
}
"""The shapes that the table may name."""
