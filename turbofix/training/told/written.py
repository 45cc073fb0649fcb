"""What the text of the training's files does right: shapes of code, and calls that the execution did not come to.

Names are those of the imports. Which loop is a training step's is told by the ``backward`` calls in it, and in the
functions that it calls, by their names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from turbofix.dataflow.guards import modulo_of
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.library.tables import LOGGING_METHODS, SHOWING_METHODS, words
from turbofix.source.answers import every, once_per_node, parents_in
from turbofix.source.names import body_of, default_of, dotted, parameters, walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS, SCOPES

Node = TypeVar("Node", bound=ast.AST)
_BACKWARD = frozenset(("backward", "manual_backward", "autograd"))
_STEPS = words("training_step compute_loss on_step_end on_train_batch_end on_before_zero_grad on_before_optimizer_step")
_MAKERS = words("zeros ones empty full rand randn randint randperm arange linspace eye normal")
_SHOWING = SHOWING_METHODS | LOGGING_METHODS | {"print"}
_SHOWN = _SHOWING | words("savefig imshow save_image line bar image images add_images log_artifact display Image pause")
_DECODING = words("""
    imread read_image decode_image load encode encode_plus batch_encode_plus tokenize tokenizer stft melspectrogram mfcc
    resample fromarray imdecode read_video convert_tokens_to_ids
    """)
"""The last names of calls that decode, transform or tokenize."""

_CHEAP = words("""
    tensor as_tensor from_numpy FloatTensor LongTensor Tensor float long int bool dict items len to type clone view
    reshape unsqueeze squeeze permute transpose tolist is_tensor item size shape iloc get isinstance range str list
    """)
_PLAIN = _CHEAP | words("DataFrame Series array asarray sorted glob listdir copy zip astype zeros len sum arange")
_LISTS = frozenset(("batch", "samples", "examples", "features", "data", "batch_data", "batches", "items", "instances"))


@once_per_node
def imports(tree: ast.Module) -> dict[str, str]:
    """The names that a file imports, with what they mean; those of its project are not told apart."""
    found: dict[str, str] = {}
    for plain in every(ast.Import, tree):
        for alias in plain.names:
            found[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
    for chosen in every(ast.ImportFrom, tree):
        if not chosen.level:
            for alias in chosen.names:
                found[alias.asname or alias.name] = f"{chosen.module}.{alias.name}"
    return found


@once_per_node
def _made(tree: ast.Module) -> dict[str, str]:
    """The names that are given what a library's constructor makes: ``self.accelerator`` is an ``Accelerator``."""
    found: dict[str, str] = {}
    for given in every(ast.Assign, tree):
        if isinstance(given.value, ast.Call):
            name = meaning(given.value.func, tree)
            if "." in name[1:] and name.rpartition(".")[2][:1].isupper():
                found.update((text, name) for target in given.targets if (text := dotted(target)) is not None)
    return found


def meaning(node: ast.AST, tree: ast.Module) -> str:
    """The qualified name of a function; ``.name`` where its owner is not known, a name of the project as it is."""
    text = dotted(node)
    if text is None:
        return f".{node.attr}" if isinstance(node, ast.Attribute) else ""
    head, _, rest = text.partition(".")
    known = imports(tree)
    if head in known:
        return f"{known[head]}.{rest}" if rest else known[head]
    owner, _, last = text.rpartition(".")
    return f".{last}" if owner else text


@once_per_node
def named_calls(tree: ast.Module) -> list[tuple[ast.Call, str, str]]:
    """The calls of a file, each with the meaning of its function, also by what its receiver was given in the file."""
    made, found = _made(tree), []
    for call in every(ast.Call, tree):
        name = full = meaning(call.func, tree)
        if name[:1] == "." and isinstance(call.func, ast.Attribute):
            full = made.get(dotted(call.func.value) or "", "") + name
        found.append((call, name, full))
    return found


@once_per_node
def calls_by_name(tree: ast.Module) -> dict[str, list[ast.Call]]:
    """The calls of a file by the last names of their functions."""
    found: dict[str, list[ast.Call]] = {}
    for call in every(ast.Call, tree):
        found.setdefault(last(call), []).append(call)
    return found


def last(node: ast.AST) -> str:
    """The last name of a function that is called."""
    func = node.func if isinstance(node, ast.Call) else node
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


class _Spoken(NamedTuple):
    """The last names of what the bodies of functions and loops call, functions in them left out."""

    everywhere: dict[ast.AST, set[str]]
    outside: dict[ast.AST, set[str]]
    """Loops in them left out, too."""


@once_per_node
def _spoken(tree: ast.Module) -> _Spoken:
    parents, found = parents_in(tree), _Spoken({}, {})
    for name, calls in calls_by_name(tree).items():
        for call in calls:
            child: ast.AST = call
            is_outside = True
            while (above := parents.get(child)) is not None:
                kind = above.__class__
                if kind in _BODIES:
                    if isinstance(child, ast.stmt):
                        found.everywhere.setdefault(above, set()).add(name)
                        if is_outside and child not in getattr(above, "orelse", ()):
                            found.outside.setdefault(above, set()).add(name)
                    is_outside = False
                if kind in SCOPES:
                    break
                child = above
    return found


_BODIES = frozenset((*LOOPS, ast.FunctionDef, ast.AsyncFunctionDef))
_NOTHING: frozenset[str] = frozenset()


class Written:
    """The files of a training, by what is written in them."""

    def __init__(self, modules: Collection[ModuleFile], analysis: Analysis) -> None:
        self.modules = modules
        self.analysis = analysis
        self.followed: set[tuple[Path, int]] = set()
        self._places: dict[tuple[ast.AST, int], str] = {}
        self.functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for module in modules:
            for function in every(ast.FunctionDef, module.tree):
                self.functions.setdefault(function.name, []).append(function)

    @cached_property
    def _spoken(self) -> _Spoken:
        found = _Spoken({}, {})
        for all_, part in ((found, _spoken(module.tree)) for module in self.modules):
            all_.everywhere.update(part.everywhere)
            all_.outside.update(part.outside)
        return found

    def everywhere(self, node: ast.AST) -> Collection[str]:
        """The last names of what a function or loop calls."""
        return self._spoken.everywhere.get(node, _NOTHING)

    def _reaching(self, names: frozenset[str], said: dict[ast.AST, set[str]]) -> frozenset[str]:
        """The names, and those of the functions whose calls (as far as they are given) lead to one."""
        found = names
        calls = {name: _NOTHING.union(*(said.get(each, ()) for each in all_)) for name, all_ in self.functions.items()}
        while True:
            more = {name for name, called in calls.items() if not called.isdisjoint(found)}
            if more <= found:
                return found
            found |= more

    def goes_backward(self, loop: ast.For) -> bool:
        """Whether each round of a loop goes backward, outside of loops in it."""
        return not self.steps.isdisjoint(self._spoken.outside.get(loop, ()))

    @cached_property
    def steps(self) -> frozenset[str]:
        """The names of the functions that are a step: they go backward outside of a loop over data."""
        return self._reaching(_BACKWARD, self._spoken.outside) | _STEPS

    @cached_property
    def trains(self) -> frozenset[str]:
        """The names of the functions that go backward, in a loop or not."""
        return self._reaching(_BACKWARD, self._spoken.everywhere) | _STEPS

    @cached_property
    def shows(self) -> frozenset[str]:
        """The names of the functions that show something."""
        return self._reaching(_SHOWING, self._spoken.everywhere) - {"forward", "__init__", "main"}

    @cached_property
    def collating(self) -> frozenset[str]:
        """The names of the functions that put batches together."""
        given = (
            last(word.value)
            for module in self.modules
            for word in every(ast.keyword, module.tree)
            if word.arg in ("collate_fn", "data_collator")
        )
        return frozenset(name for name in given if name)

    def where(self, node: ast.AST, module: ModuleFile, depth: int = 3) -> str:
        """``step``, ``interval`` (in a step, every so often), ``loop`` (around steps) or nothing."""
        known = self._places.get((node, depth))
        if known is None:
            known = self._places[node, depth] = self._where(node, module, depth)
        return known

    def _where(self, node: ast.AST, module: ModuleFile, depth: int) -> str:
        parents = parents_in(module.tree)
        rare = False
        above: ast.AST | None = node
        while above is not None:
            if isinstance(above, ast.If) and is_interval(above):
                rare = True
            if isinstance(above, LOOPS) and node is not above:
                if not self.steps.isdisjoint(self._spoken.outside.get(above, ())):
                    return "interval" if rare else "step"
                if not self.trains.isdisjoint(self.everywhere(above)):
                    return "loop"
            if isinstance(above, FUNCTIONS):
                name = getattr(above, "name", "")
                if name in _STEPS:
                    return "interval" if rare else "step"
                if depth and name and name not in ("__init__", "forward"):
                    found = [self.where(each, where, depth - 1) for each, where in self._callers.get(name, ())[:4]]
                    for kind in ("interval", "step", "loop"):
                        if kind in found:
                            return "interval" if rare and kind == "step" else kind
                return ""
            above = parents.get(above)
        return ""

    def is_before_training(self, node: ast.AST, module: ModuleFile, depth: int = 3) -> bool:
        """Whether a place is run where the training is set up: outside of its loops, by what goes on to train."""
        if self.where(node, module):
            return False
        function = function_of(node, module)
        if function is not None and function.name in ("forward", "__call__", "__getitem__"):
            return False
        if function is None or function.name in self.trains:
            return True
        callers = self._callers.get(function.name, ()) if depth and function.name != "__init__" else ()
        return any(self.is_before_training(each, where, depth - 1) for each, where in callers)

    def callers(self, name: str) -> list[tuple[ast.AST, ModuleFile]]:
        """The calls of functions of a name."""
        return self._callers.get(name, [])

    @cached_property
    def _callers(self) -> dict[str, list[tuple[ast.AST, ModuleFile]]]:
        found: dict[str, list[tuple[ast.AST, ModuleFile]]] = {}
        for module in self.modules:
            for name, calls in calls_by_name(module.tree).items():
                if name in self.functions:
                    found.setdefault(name, []).extend((call, module) for call in calls)
        return found


def written_of(analysis: Analysis) -> Written:
    """The files of an analysis, by what is written in them."""
    return analysis.once("what is written", lambda: Written(tuple(analysis.execution.modules.values()), analysis))


# --- shapes ---------------------------------------------------------------------------------------------------------


@once_per_node
@once_per_node
def is_interval(test: ast.If) -> bool:
    """Whether what is under a test is done every so often: by a remainder, a clock, or a count that begins again."""
    remainder = modulo_of(test.test)
    if remainder is not None and not remainder[1]:
        return False  # all times but one: `if step % n:`
    for node in walk(test.test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            left = node.left
            if not (isinstance(left, ast.Constant) or (isinstance(node.right, ast.Constant) and node.right.value == 1)):
                return True
        if isinstance(node, ast.Call) and last(node) in ("time", "perf_counter", "monotonic"):
            return True
    names = {name for node in walk(test.test) if (name := dotted(node)) is not None}
    for statement in test.body if isinstance(test.test, ast.Compare) else ():
        if isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Constant, ast.List)):
            cleared = {dotted(each) for each in statement.targets}
        else:
            calls = [each.func for each in walk_here(statement) if isinstance(each, ast.Call)]
            cleared = {dotted(each.value) for each in calls if isinstance(each, ast.Attribute) and each.attr == "clear"}
        if cleared & names:
            return True
    return False


Found = Iterator[tuple[ast.AST, ModuleFile]]


def every_so_often(written: Written) -> Found:
    """``if step % 50 == 0:`` in a training's loop, with something that is shown or read."""
    for module in written.modules:
        for test in every(ast.If, module.tree):
            if not is_interval(test):
                continue
            said = {last(each) for part in test.body for each in walk_here(part) if isinstance(each, ast.Call)}
            if (said & written.shows or "item" in said) and written.where(test.test, module):
                yield test, module


def unshown(written: Written) -> Found:
    """A loop of steps in which nothing is printed, logged or drawn."""
    for module in written.modules:
        for loop in every(ast.For, module.tree):
            if written.goes_backward(loop) and (written.shows | _SHOWN).isdisjoint(written.everywhere(loop)):
                yield loop, module


def added_up(written: Written) -> Found:
    """``for _ in range(n):`` with a backward pass, and the optimizer's step behind it."""
    for module in written.modules:
        for loop in every(ast.For, module.tree):
            counts = isinstance(loop.iter, ast.Call) and last(loop.iter) == "range"
            if not counts or not written.goes_backward(loop) or {"step", "zero_grad"} & {*written.everywhere(loop)}:
                continue
            above = parents_in(module.tree).get(loop)
            behind = getattr(above, "body", ())
            behind = behind[behind.index(loop) + 1 :] if loop in behind else ()
            if any(isinstance(each, ast.Expr) and last(each.value) == "step" for each in behind):
                yield loop, module


def set_rates(written: Written) -> Found:
    """``group["lr"] = rate`` in a training's loop, or in a class that keeps a schedule."""
    for module in written.modules:
        for node in every(ast.Subscript, module.tree):
            if isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant) and node.slice.value == "lr":
                function = function_of(node, module)
                if written.where(node, module) or (function is not None and function.name in ("__call__", "step")):
                    yield node, module


def frozen(written: Written) -> Found:
    """``parameter.requires_grad = False`` and ``model.requires_grad_(False)``."""
    for module in written.modules:
        for given in every(ast.Assign, module.tree):
            target = given.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == "requires_grad" and _is(given.value, False):
                yield given, module
        for call in calls_by_name(module.tree).get("requires_grad_", ()):
            if call.args and _is(call.args[0], False):
                yield call, module


def without_graph(written: Written) -> Found:
    """``with torch.no_grad():`` around what is computed in a forward pass or beside a backward pass."""
    for module in written.modules:
        for block in every(ast.With, module.tree):
            entered = [each.context_expr for each in block.items if isinstance(each.context_expr, ast.Call)]
            names = {meaning(each.func, module.tree) for each in entered}
            function = function_of(block, module)
            if function is None or not names & {"torch.no_grad", "torch.inference_mode"}:
                continue
            trains = not _BACKWARD.isdisjoint(written.everywhere(function))
            trains = trains and written.where(block, module) in ("step", "interval")
            if (trains or function.name == "forward") and any(isinstance(each, ast.Assign) for each in block.body):
                yield block, module


def cut_off(written: Written) -> Found:
    """``critic(fake.detach())`` in a step."""
    for module in written.modules:
        for call in calls_by_name(module.tree).get("detach", ()):
            above = parents_in(module.tree).get(call)
            handed = isinstance(above, ast.Call) and call in above.args and last(above) not in _SHOWING | {"append"}
            if handed and written.where(call, module) in ("step", "interval"):
                yield call, module


def clipped(written: Written) -> Found:
    """``clip_gradients(model, 1.0)``, a function of the project's own, in a step."""
    for module in written.modules:
        for name, calls in calls_by_name(module.tree).items():
            if name in written.functions and "clip" in name and "grad" in name:
                yield from ((each, module) for each in calls if written.where(each, module))


def made_there(written: Written) -> Found:
    """Tensors that a step or a forward pass makes where they are needed: ``torch.zeros(n, device=x.device)``."""
    for module in written.modules:
        for call, name, _ in named_calls(module.tree):
            on = next((word.value for word in call.keywords if word.arg == "device"), None)
            like = name.endswith("_like") and on is None
            if not like and (on is None or _is(on, "cpu") or _is(on, None) or name.rpartition(".")[2] not in _MAKERS):
                continue
            if not name.startswith("torch."):
                continue
            function = function_of(call, module)
            if written.where(call, module) or (function is not None and function.name != "__init__"):
                yield call, module


def longest(written: Written) -> Found:
    """What pads or cuts a batch to its own longest: in functions that put batches together, and in steps."""
    for module in written.modules:
        for call in every(ast.Call, module.tree):
            pads = last(call) == "max" and _measures(call, module)
            asked = any(word.arg == "padding" and _is_longest(word.value, module) for word in call.keywords)
            pads = pads or asked
            always = last(call) == "enable_padding" and not any(word.arg == "length" for word in call.keywords)
            always = always or (asked and "Collator" in last(call))
            if always or (pads and puts_together(written, call, module)):
                yield call, module
        for cut in every(ast.Slice, module.tree):
            if isinstance(cut.upper, ast.Call) and last(cut.upper) == "max" and written.where(cut, module) == "step":
                yield cut, module


def _is_longest(given: ast.expr, module: ModuleFile) -> bool:
    """Whether a tokenizer is asked for it: ``True``, one arm of a choice, an attribute that is so by default."""
    if isinstance(given, ast.IfExp):
        return _is_longest(given.body, module) or _is_longest(given.orelse, module)
    if isinstance(given, ast.Attribute) and dotted(given.value) == "self":
        said = getattr(_above(given, module, ast.ClassDef), "body", ())
        fields = (each for each in said if isinstance(each, ast.AnnAssign) and dotted(each.target) == given.attr)
        made = [each.value for each in fields]
        made += [default_of(each, given.attr) for each in said if getattr(each, "name", "") == "__init__"]
        return any(each is not None and _is_longest(each, module) for each in made)
    return _is(given, True) or _is(given, "longest")


def _measures(call: ast.Call, module: ModuleFile) -> bool:
    """``max(len(x) for x in batch)``, ``max(lengths)``, ``max(x.size(0) for ...)``, ``lengths.max()``."""
    if isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
        compared = isinstance(parents_in(module.tree).get(call), ast.Compare)
        return "len" in (dotted(call.func.value) or "") and not compared
    if len(call.args) != 1 or call.keywords:
        return False
    given = call.args[0]
    if isinstance(given, ast.Name):
        made = (each for each in walk(function_of(call, module) or module.tree) if isinstance(each, ast.Assign))
        given = next((each.value for each in made if dotted(each.targets[0]) == given.id), given)
    if isinstance(given, (ast.GeneratorExp, ast.ListComp)):
        return any(
            (isinstance(each, ast.Call) and last(each) in ("len", "size"))
            or (isinstance(each, ast.Attribute) and (each.attr == "shape" or "len" in each.attr))
            for each in walk(given.elt)
        )
    if isinstance(given, ast.Call):
        return last(given) == "map" and bool(given.args) and dotted(given.args[0]) == "len"
    return "len" in (dotted(given) or "")


def puts_together(written: Written, node: ast.AST, module: ModuleFile) -> bool:
    """Whether a batch is put together here."""
    function = function_of(node, module)
    if function is None or function.name in ("__init__", "__getitem__"):
        return False
    given, cls = {each.arg for each in parameters(function)} - {"self"}, _above(function, module, ast.ClassDef)
    name = function.name.lower()
    return (
        function.name in written.collating
        or any(
            function.name in written.everywhere(each)
            for n in written.collating
            for each in written.functions.get(n, ())
        )
        or any(word in name for word in ("collate", "batch"))
        or (name == "__call__" and (not given.isdisjoint(_LISTS) or "ollat" in getattr(cls, "name", "")))
        or written.where(node, module) == "step"
    )


def kept_items(written: Written) -> Found:
    """Data sets that prepare their items as they are made, and hand them out from memory."""
    for module in written.modules:
        for cls in every(ast.ClassDef, module.tree):
            methods = {each.name: each for each in cls.body if isinstance(each, ast.FunctionDef)}
            item = methods.pop("__getitem__", None)
            if any(last(base) == "InMemoryDataset" for base in cls.bases) and "process" in methods:
                yield methods["process"], module
            if item is None or not any("Data" in last(base) for base in cls.bases):
                continue
            called = _names_called(item)
            held = {last(each.value) for each in walk(item) if isinstance(each, ast.Subscript)}
            for method in methods.values():
                again = [each for each in walk(method) if isinstance(each, ast.For) and _is_over_self(each.iter)]
                made = again[0] if again else _prepares(method, held, called)
                if made is not None:
                    yield made, module
                    break


def _is_over_self(iterated: ast.AST) -> bool:
    """``for item in tqdm(self):``."""
    given = iterated.args[:1] if isinstance(iterated, ast.Call) else [iterated]
    return any(isinstance(each, ast.Name) and each.id == "self" for each in given)


def _names_called(function: ast.AST) -> set[str]:
    return {last(each) for each in walk(function) if isinstance(each, ast.Call)}


def _prepares(method: ast.FunctionDef, held: Collection[str], called: set[str]) -> ast.AST | None:
    """The statement of a method that prepares what is handed out later: an item decodes nothing, or calls nothing."""
    is_cheap = not called - _CHEAP
    if called & _DECODING:
        return None
    given = [
        (last(target), each.value) for each in walk(method) if isinstance(each, ast.Assign) for target in each.targets
    ]
    for node in walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            kept = last(node.func.value) in held and bool(node.args)
            if kept and (is_cheap or _is_decoded(node.args[0], given)):
                return node
        if isinstance(node, ast.Assign) and any(last(target) in held for target in node.targets):
            made = dict(given).get(node.value.id) if isinstance(node.value, ast.Name) else node.value
            works = is_cheap and isinstance(made, ast.Call) and last(made) not in _PLAIN and last(made).islower()
            works = works and not (dotted(getattr(made, "func", None)) or "").startswith("self.")
            if _is_decoded(node.value, given) or works:
                return node
    return None


def _is_decoded(node: ast.AST, given: list[tuple[str, ast.expr]]) -> bool:
    """Whether an expression decodes, or names what does."""
    names = {each.id for each in walk(node) if isinstance(each, ast.Name)}
    parts = [node, *(value for name, value in given if name in names)]
    calls = [each for part in parts for each in walk(part) if isinstance(each, ast.Call)]
    return any(_decodes(each) for each in calls)


def _decodes(call: ast.Call) -> bool:
    return last(call) in _DECODING or "tokeni" in last(call) or dotted(call.func) in ("Image.open", "PIL.Image.open")


def prepared(written: Written) -> Found:
    """What is decoded or tokenised before the training, and then given to a data set or loader, or kept in a table."""
    for module in written.modules:
        for scope in (module.tree, *every(ast.FunctionDef, module.tree)):
            nodes = [each for statement in body_of(scope) for each in walk_here(statement)]
            given = [each for each in nodes if isinstance(each, ast.Assign) and _decodes_all(each, written)]
            made = {each.id: one for one in given for each in one.targets if isinstance(each, ast.Name)}
            for call in (each for each in nodes if isinstance(each, ast.Call)) if made else ():
                names = {each.id for each in walk(call) if isinstance(each, ast.Name)} & made.keys()
                if names and last(call).endswith(("Dataset", "DataLoader")):
                    yield from ((made[each], module) for each in names if written.is_before_training(call, module))
            for kept in given:
                if isinstance(kept.targets[0], ast.Subscript) and written.is_before_training(kept, module):
                    yield kept, module


def _decodes_all(given: ast.Assign, written: Written) -> bool:
    """``[encode(text) for text in texts]``, ``tokenizer(texts, ...)``, ``table["text"].apply(clean)``."""
    value = given.value
    applied = isinstance(value, ast.Call) and last(value) in ("apply", "map", "progress_apply")
    if isinstance(given.targets[0], ast.Subscript):
        names = {last(each) for each in walk(value) if isinstance(each, (ast.Name, ast.Attribute))}
        return applied and bool(names & (_DECODING | written.functions.keys()))
    if isinstance(value, ast.ListComp):
        calls = [each for each in walk(value.elt) if isinstance(each, ast.Call)]
        return any(_decodes(each) or last(each) in written.functions for each in calls)
    return isinstance(value, ast.Call) and re.search("encode|tokeni", last(value)) is not None


def function_of(node: ast.AST, module: ModuleFile) -> ast.FunctionDef | None:
    """The innermost function around a node."""
    return _above(node, module, ast.FunctionDef)


def _above(node: ast.AST, module: ModuleFile, kind: type[Node]) -> Node | None:
    """The innermost statement of a kind around a node."""
    parents = parents_in(module.tree)
    above = parents.get(node)
    while above is not None and not isinstance(above, kind):
        above = parents.get(above)
    return above


def _is(node: ast.AST, value: bool | str | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


SHAPES: dict[str, Callable[[Written], Found]] = {
    each.__name__: each
    for each in (
        every_so_often,
        unshown,
        added_up,
        set_rates,
        frozen,
        without_graph,
        cut_off,
        clipped,
        made_there,
        longest,
        kept_items,
        prepared,
    )
}
"""The shapes that the table may name."""
