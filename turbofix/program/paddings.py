"""Texts that a tokenizer pads to a fixed length: where, and whether shorter batches would be the same to the model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, kept
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame, constants
from turbofix.program.libraries import words
from turbofix.program.model import Padding, Step
from turbofix.program.names import dotted
from turbofix.program.preloading import place_of_helper
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS, LOOPS
from turbofix.program.values import Bound, Const, Function, Instance, Made, Value, flatten, members
from turbofix.program.wording import Wording

_WORD = re.compile(r"\bpadding\b")
_FIXED_LENGTH = re.compile(r"\bmax_length\b|\bpad_to_max_length\b")
_FIXED = ("tpu", "xla", "torch_xla", "padding_side", "onnx", "torchscript", "jit")
_JOINED = ("dispatch_batches", "split_batches", "streaming")
_FIXED_SHAPES = Wording((*_FIXED, *_JOINED), re.compile(rf"\b({'|'.join((*_FIXED, *_JOINED))})\b", re.IGNORECASE))
"""Words of programs that want shapes which stay, or pad in front, where positions count from, or join batches."""

_KEEPING = {"remove_unused_columns", "torch_compile", "include_inputs_for_metrics", "include_for_metrics"}
_ELSEWHERE = re.compile(r"\b(save_to_disk|to_parquet|to_json|to_csv|push_to_hub|to_tf_dataset)\b")


def paddings(analysis: Analysis, steps: tuple[Step, ...]) -> tuple[Padding, ...]:
    """The calls that pad texts for a training, in the order of the text."""
    modules = list(analysis.execution.modules.values())
    if any(_FIXED_SHAPES.is_in(module.text) for module in modules):
        return ()
    found = {each.site: each for each in _by_hand(analysis, steps)}
    if any(map(_pads, modules)):
        found.update((each.site, each) for each in _Search(analysis, steps).found())
    for each in _said(analysis, steps):
        found.setdefault(each.site, each)
    return tuple(found[site] for site in sorted(found))


def _said(analysis: Analysis, steps: tuple[Step, ...]) -> Iterator[Padding]:
    """The calls of a training program that say they pad to a fixed length, whatever it is that they call."""
    for module in analysis.execution.modules.values() if steps else ():
        if _FIXED_LENGTH.search(module.text) is None:
            continue
        for call in every(ast.Call, module.tree):
            if _is_fixed(call) and (analysis.facts.at(call) or _gives_items(analysis, call, module)):
                yield _of_items(analysis, call, module)


def _is_fixed(node: ast.AST) -> bool:
    """Whether a call says that it pads to a fixed length."""
    given = node.keywords if isinstance(node, ast.Call) else []
    told = {each.arg: each.value.value for each in given if isinstance(each.value, ast.Constant)}
    return told.get("padding") == "max_length" or told.get("pad_to_max_length") is True


def _of_items(analysis: Analysis, call: ast.Call, module: ModuleFile) -> Padding:
    """A call that pads the texts of a data set each by itself, with the loaders that could cut off what none needs."""
    facts, places = analysis.facts, analysis.facts.places
    site, one_by_one = places.site(call, module), "it pads each text by itself"
    classes = [each for each in places.ancestors(call, module) if isinstance(each, ast.ClassDef)]
    found: list[Event] = []
    for event in facts.of("make"):
        passed = event.arguments.get("dataset", 0) if event.arguments is not None else None
        if event.name != "torch.utils.data.DataLoader" or passed is None:
            continue
        data = [each.cls.node for one in flatten(passed.value) for each in members(one) if isinstance(each, Instance)]
        if any(each in classes for each in data):
            found.append(event)
    mask = next((key for one in classes for key in _masks_in(one)), None)
    alone = (
        sum(_is_fixed(each) for one in classes for each in walk(one)) == 1
    )  # of two, one would be cut like the other
    plain = all(
        event.arguments is not None
        and not event.arguments.open
        and not event.arguments.star
        and event.arguments.get("collate_fn", 7) is None
        for event in found
    )
    if not (found and mask and plain and alone) or len({event.module.path for event in found}) != 1:
        return Padding(site, "item", why_not=one_by_one)
    if facts.of("compile"):
        return Padding(site, "item", why_not=_COMPILED)
    loaders = tuple(sorted({facts.site(event) for event in found}))
    helper = min(place_of_helper(analysis, event.node, event.module) for event in found)
    return Padding(site, "item", loaders=loaders, helper=helper, mask=mask)


MASK = "attention_mask"


def _masks_in(cls: ast.ClassDef) -> Iterator[str]:
    """The keys of attention masks in items: by what they are made of, or by name among all that a tokenizer gives."""
    for node in walk(cls):
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and _reads_mask(value, cls):
                yield key.value
    if any(isinstance(each, ast.DictComp) or getattr(each, "attr", None) == "items" for each in walk(cls)):
        yield MASK


def _reads_mask(value: ast.expr, cls: ast.ClassDef, depth: int = 3) -> bool:
    """Whether an expression reads the attention mask that a tokenizer gives, by names that its class sets, too."""
    names: set[str] = set()
    for each in walk(value):
        if MASK in (getattr(each, "attr", None), getattr(each, "value", None), getattr(each, "id", None)):
            return True
        names |= {each.id} if isinstance(each, ast.Name) else set()
    sets = [each for each in walk(cls) if isinstance(each, ast.Assign) and dotted(each.targets[0]) in names]
    return bool(depth) and any(_reads_mask(each.value, cls, depth - 1) for each in sets)


_COMPILED = "the model is compiled, which would happen anew for each length"


def _gives_items(analysis: Analysis, call: ast.Call, module: ModuleFile) -> bool:
    """Whether a call stands in a class of samples."""
    above = [each for each in analysis.facts.places.ancestors(call, module) if isinstance(each, ast.ClassDef)]
    return any(isinstance(each, FUNCTIONS) and each.name == "__getitem__" for one in above for each in one.body)


def _pads(module: ModuleFile) -> bool:
    return kept(module.tree, "pads", lambda: _WORD.search(module.text) is not None)


_TO_THE_LONGEST = frozenset(("torch.nn.utils.rnn.pad_sequence", "torch.nn.utils.rnn.pack_sequence"))
_PADDED = "torch.nn.functional.pad"
_FILLED = frozenset(words("zeros ones full empty"))
_BY_HAND = (
    "it is written out, and what the model and its loss make of padding is not known: where they leave it out, "
    "pad in the `collate_fn` of the loader, to the longest of the batch (`pad_sequence`)"
)


def _by_hand(analysis: Analysis, steps: tuple[Step, ...]) -> Iterator[Padding]:
    """What a training's loaders pad without a tokenizer: to the longest of a batch, or sample by sample."""
    facts, places = analysis.facts, analysis.facts.places
    trained = {site for step in steps for site in step.loaders}
    collating: set[int] = set()
    getting: set[int] = set()
    for event in facts.of("make"):
        if event.name != "torch.utils.data.DataLoader" or event.arguments is None or facts.site(event) not in trained:
            continue
        collate, data = event.arguments.get("collate_fn", 7), event.arguments.get("dataset", 0)
        collating.update(id(each.node) for each in _functions(collate.value if collate is not None else None))
        for each in members(data.value) if data is not None else ():
            if isinstance(each, Instance):
                getting.update(id(method.node) for method in _functions(each.cls.find("__getitem__")))
    told: set[int] = set()
    for event in facts.of("call"):
        if event.name in _TO_THE_LONGEST and any(id(frame.scope) in collating for frame in facts.frames(event)):
            yield Padding(facts.site(event), "batch", dynamic=True)
    for event in facts.of("return"):
        frames = facts.frames(event)
        if not frames or id(frames[-1].scope) in told or frames[-1].function is None:
            continue
        made = bool({id(frame.scope) for frame in frames} & (collating | getting))
        told.add(id(frames[-1].scope))
        for node in _written_out(analysis, frames) if trained else ():
            if made or isinstance(node, ast.BinOp):  # lists are filled up beforehand as well
                yield Padding(places.site(node, frames[-1].module), "item", by_hand=True, why_not=_BY_HAND)


def _written_out(analysis: Analysis, frames: tuple[Frame, ...]) -> Iterator[ast.expr]:
    """What a function pads to a length that is the same for all batches: ``ids + [0] * (length - len(ids))``."""
    for node in walk(frames[-1].scope):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for listed, count in ((node.left, node.right), (node.right, node.left)):
                one = isinstance(listed, ast.List) and len(listed.elts) == 1
                if one and _is_missing(analysis, count, frames):
                    yield node
        elif isinstance(node, ast.Call) and node.args and (dotted(node.func) or "").rpartition(".")[2] in _FILLED:
            if _is_missing(analysis, node.args[0], frames):
                yield node
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], (ast.Tuple, ast.List)):
            names = {event.name for event in analysis.facts.at(node) if event.kind == "call"}
            ends = node.args[1].elts  # two: of the last dimension alone, where pictures have more
            if names == {_PADDED} and len(ends) == 2 and any(_is_missing(analysis, each, frames) for each in ends):
                yield node


def _is_missing(analysis: Analysis, node: ast.expr, frames: tuple[Frame, ...]) -> bool:
    """Whether it is how many are missing to a length that the text or an option says."""
    if isinstance(node, ast.Name):
        scope = frames[-1].scope
        writes = analysis.facts.bindings.writes(scope, node.id)
        (only,) = writes if len(writes) == 1 else (None,)
        plain = isinstance(only, ast.Assign) and isinstance(only.targets[0], ast.Name)
        if not isinstance(only, (ast.Assign, ast.NamedExpr)) or not (plain or isinstance(only, ast.NamedExpr)):
            return False
        node = only.value
    while isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
        node = node.left  # less one for the end
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    long, short = node.left, node.right
    counted = isinstance(short, ast.Call) and dotted(short.func) == "len"
    sized = isinstance(short, ast.Call) and isinstance(short.func, ast.Attribute) and short.func.attr == "size"
    shaped = isinstance(short, ast.Subscript) and isinstance(short.value, ast.Attribute) and short.value.attr == "shape"
    if not (counted or sized or shaped):
        return False
    if (dotted(long) or "").startswith("self."):
        return True
    found = list(constants(analysis.facts.evaluate(long, frames)))
    return len(found) == 1 and type(found[0]) is int and found[0] > 1


class _Search:
    """The search through one program."""

    def __init__(self, analysis: Analysis, steps: tuple[Step, ...]) -> None:
        self.analysis, self.facts, self.places = analysis, analysis.facts, analysis.facts.places
        self.trained = {site for step in steps for site in step.loaders}
        self.collating: dict[int, list[Event]] = {}
        self.mapping: set[int] = set()
        for event in self.facts.of("make"):
            passed = event.arguments.get("collate_fn", 7) if event.arguments is not None else None
            if passed is not None and event.name == "torch.utils.data.DataLoader":
                for function in _functions(passed.value):
                    self.collating.setdefault(id(function.node), []).append(event)
        for event in self.facts.of("call"):
            if event.name.endswith(".map") and any(isinstance(each, Made) for each in members(event.receiver)):
                passed = event.arguments.get("function", 0) if event.arguments is not None else None
                self.mapping.update(id(each.node) for each in _functions(passed.value if passed else None))

    def found(self) -> Iterator[Padding]:
        seen: set[int] = set()
        for event in self.facts.of("call"):
            if id(event.node) in seen or not isinstance(event.node, ast.Call) or event.arguments is None:
                continue
            if not any(isinstance(each, Made) and each.kind == "tokenizer" for each in members(event.receiver)):
                continue
            passed = event.arguments.keywords.get("padding")
            said = set(constants(passed.value)) if passed is not None else set()
            if passed is None or not said or not said <= {"max_length", "longest", True}:
                continue
            one = self._padding(event, event.node, said, passed.node)
            if one is not None:
                seen.add(id(event.node))
                yield one

    def _padding(self, event: Event, node: ast.Call, said: set[object], value: ast.expr | None) -> Padding | None:
        scopes = [frame.scope for frame in self.facts.frames(event)]
        site = self.places.site(node, event.module)
        function = next((each for each in reversed(scopes) if isinstance(each, FUNCTIONS)), None)
        loaders = [each for scope in scopes for each in self.collating.get(id(scope), ())]
        if loaders:
            if not any(self.facts.site(each) in self.trained for each in loaders):
                return None
            if said <= {"longest", True}:
                return Padding(site, "batch", dynamic=True)
            why = self._why_not_batch(event, node, function) or self._why_not(event, value)
            return Padding(site, "batch", self._value(event, value), self._is_in_eights(event), why_not=why)
        if said != {"max_length"}:
            return None
        if any(id(scope) in self.mapping for scope in scopes):
            return self._mapped(event, node, value, function)
        if event.control.chain()[0].detail == "worker" and self.trained:
            return _of_items(self.analysis, node, event.module)
        return None

    def _value(self, event: Event, value: ast.expr | None) -> Site | None:
        return self.places.site(value, event.module) if value is not None else None

    def _is_in_eights(self, event: Event) -> bool:
        """Whether the fixed length is a known multiple of eight: no batch is padded beyond it then."""
        passed = event.arguments.keywords.get("max_length") if event.arguments is not None else None
        found = [each.value for each in members(passed.value) if isinstance(each, Const)] if passed is not None else []
        whole = passed is not None and len(found) == len(members(passed.value))
        return whole and all(type(each) is int and each > 0 and each % 8 == 0 for each in found)

    # --- what is in the way

    def _why_not(self, event: Event, value: ast.expr | None) -> str | None:
        arguments = event.arguments
        assert arguments is not None
        if not isinstance(value, ast.Constant):
            return "what it pads to is chosen elsewhere"
        if arguments.open or arguments.star or "pad_to_multiple_of" in arguments.keywords:
            return "the call is given more than is written in it"
        return _COMPILED if self.facts.of("compile") else None

    def _why_not_batch(self, event: Event, node: ast.Call, function: ast.AST | None) -> str | None:
        """Why a call in a collate function is not known to be given all the texts of a batch, and to be handed on."""
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return "the batch is put together in an expression"
        inner = (*COMPREHENSIONS, *LOOPS, ast.Lambda)
        for above in self.places.ancestors(node, event.module):
            if above is function:
                break
            if isinstance(above, (*inner, ast.If, ast.Try, ast.IfExp)):
                return "it pads some of the batches, or each sample by itself"
        return None

    # --- a trainer

    def _mapped(self, event: Event, node: ast.Call, value: ast.expr | None, function: ast.AST | None) -> Padding | None:
        """A call in a function that a data set is mapped by, where a trainer of transformers makes the batches."""
        site = self.places.site(node, event.module)
        trainers = [each for each in self.facts.of("make", "construct") if _is_trainer(each)]
        if not trainers:
            alone = "the samples are padded one by one, before a loader makes batches of them"
            return Padding(site, "item", why_not=alone) if self.trained else None
        first = trainers[0]
        arguments = first.arguments
        why: str | None = None
        if len(trainers) > 1 or arguments is None or first.name != "transformers.Trainer" or first.kind != "make":
            why = "the batches are put together by a trainer of its own"
        elif arguments.open or arguments.star or arguments.get("data_collator", 2) is not None:
            why = "the trainer is given a collator"
        else:
            why = self._why_not(event, value) or self._why_not_mapped(event, node, first, function)
        name = dotted(node.func)
        return Padding(
            site,
            "map",
            self._value(event, value),
            self._is_in_eights(event),
            trainer=self.facts.site(first),
            imports=self._import(first.module),
            tokenizer=name,
            why_not=why,
        )

    def _import(self, module: ModuleFile) -> Site | None:
        """The first statement on the top level of a file that imports single names of transformers."""
        for each in module.tree.body:
            ours = isinstance(each, ast.ImportFrom) and each.module == "transformers" and not each.level
            if ours and all(alias.name != "*" for alias in each.names):  # type: ignore[attr-defined]
                return self.places.site(each, module)
        return None

    def _why_not_mapped(self, event: Event, node: ast.Call, trainer: Event, function: ast.AST | None) -> str | None:
        name = dotted(node.func)
        if not isinstance(node.func, ast.Name) or name is None or event.module is not trainer.module:
            return "the tokenizer has another name where the trainer is built"
        here = self.facts.bindings.owner(name, node, event.module)
        there = self.facts.bindings.owner(name, trainer.node, trainer.module)
        if here is not there or len(self.facts.bindings.writes(here, name)) != 1:
            return "the tokenizer has another name where the trainer is built"
        if event.arguments is not None and "return_tensors" in event.arguments.keywords:
            return "the texts of one call become one tensor, whose rows must have one length"
        cut = event.arguments.keywords.get("truncation") if event.arguments is not None else None
        if cut is None or set(constants(cut.value)) != {True}:
            return "the texts are not cut to the length, which the tokenizer would do if it does not pad"
        if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
            return "the function that tokenizes is not known"
        for module in self.analysis.execution.modules.values():
            if said := _ELSEWHERE.search(module.text):
                return f"the data may be read by others (`{said[0]}`)"
        for other in self.facts.of("make"):
            if other.name == "torch.utils.data.DataLoader":
                return "a loader beside the trainer reads data"
            told = other.arguments if other.name.endswith("TrainingArguments") else None
            if told is not None and (told.open or told.keywords.keys() & _KEEPING):
                return "the trainer keeps columns that have no common length, or compiles"
        return None


def _functions(value: Value | None) -> Iterator[Function]:
    for each in members(value):
        function = each.function if isinstance(each, Bound) else each
        if isinstance(function, Function):
            yield function


def _is_trainer(event: Event) -> bool:
    found: Iterable[Value] = members(event.result)
    return (event.name.startswith("transformers.") and event.name.endswith("Trainer")) or any(
        isinstance(getattr(each, "base", None), Made) and each.base.kind == "trainer"  # type: ignore[attr-defined]
        for each in found
    )
