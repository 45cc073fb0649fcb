"""Texts that are padded to a fixed length: where, and which loaders or trainers make batches of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from turbofix.dataflow.facts import Frame, constants
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Bound, Function, Instance, Made, Value, members
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import every, kept
from turbofix.source.names import dotted, is_nothing
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.data.preloading import place_of_helper
from turbofix.training.data.same_items import datasets_in
from turbofix.training.model import Padding, Step

_WORD = regex(r"\bpadding\b|\bpad_to_max_length\b")
_LOADER, _TRAINERS = "torch.utils.data.DataLoader", ("transformers.Trainer", "transformers.Seq2SeqTrainer")
_LONGEST = frozenset(("longest", True))
_UNPADDED = frozenset((None, False, "do_not_pad"))
_ITEMWISE = frozenset(("__getitem__", "__iter__", "forward"))
"""Methods that are given a text, or a batch of them."""
_TO_THE_LONGEST = frozenset(("torch.nn.utils.rnn.pad_sequence", "torch.nn.utils.rnn.pack_sequence"))
_PADDED = frozenset(("torch.nn.functional.pad", "torch.nn.ConstantPad1d", "numpy.pad"))
_FILLED = frozenset(words("zeros ones full empty"))
_MISSING = regex(r"- (?:len\(|\w+(?:\.\w+)*\.(?:size\(|shape\[))")
"""What tells that a number is how many are missing to a length."""
_TOLD_APART = regex(r"attention_mask|pad(?:ding)?_mask|masked_fill|pack_padded_sequence|ignore_index|-100\b")
"""What a program has that leaves padding out."""
_SCOPES = (*FUNCTIONS, ast.Lambda)
_ROUNDS = (*LOOPS, ast.ListComp, ast.GeneratorExp, ast.DictComp)
_LEFT = regex(r"padding_side\W+left\b")
_BY_HAND = (
    "who makes batches of it was not followed: where the model and its loss leave padding out, pad in the `collate_fn` "
    "of the loader, to the longest of the batch (`DataCollatorWithPadding(tokenizer)`, `pad_sequence`)"
)
_COUNTED = "nothing in the program tells padding from words, so that the model and its loss count it: mask it first"
_BY_TOKENIZER = (
    "the trainer's own collator pads as well, to the longest of what it is given: leave out `padding` here, and "
    "give it `data_collator=DataCollatorWithPadding(tokenizer)`"
)
COLLATE = {False: ("collate_fn", 7), True: ("data_collator", 2)}
"""The argument of a loader, and that of a trainer, that puts batches together, with its place."""


def paddings(analysis: Analysis, steps: tuple[Step, ...]) -> tuple[Padding, ...]:
    """The calls that pad texts for a training, in the order of the text; one for all that the same readers read."""
    search = _Search(analysis, steps)
    found = {each.site: each for each in search.by_hand()}
    for module in analysis.execution.modules.values():
        if kept(module.tree, "pads", lambda: _WORD.search(module.text) is not None):  # noqa: B023
            found.update((each.site, each) for each in search.in_file(module))
    once = {each.readers or site: site for site, each in sorted(found.items(), reverse=True)}
    return tuple(found[site] for site in sorted(once.values()))


class _Search:
    """The search through one program."""

    def __init__(self, analysis: Analysis, steps: tuple[Step, ...]) -> None:
        self.analysis, self.facts, self.places = analysis, analysis.facts, analysis.facts.places
        self.loaders = [each for each in self.facts.of("make") if each.name == _LOADER and each.arguments is not None]
        self.trained = {site for step in steps for site in step.loaders} or {*map(self.facts.site, self.loaders)}
        trainers = [each for each in self.facts.of("make", "construct") if _is_trainer(each) and _trains(each)]
        made = [each for event in trainers if event.kind == "construct" for each in members(event.result)]
        bases = [each.base for each in made if isinstance(each, Instance)]  # what `super().__init__` makes of them
        self.trainers = [each for each in trainers if not any(each.result is base for base in bases)]
        self.collating: dict[int, list[Event]] = {}
        for event in self.loaders:
            passed = event.arguments.get("collate_fn", 7) if event.arguments is not None else None
            for function in _functions(passed.value if passed is not None else None):
                self.collating.setdefault(id(function.node), []).append(event)

    def _collated(self, scopes: Iterable[ast.AST]) -> list[Event]:
        """The loaders of the training in whose collate function something is done."""
        found = (each for scope in scopes for each in self.collating.get(id(scope), ()))
        return [each for each in found if self.facts.site(each) in self.trained]

    # --- without a tokenizer

    def by_hand(self) -> Iterator[Padding]:
        """What a training's loaders pad without a tokenizer: to the longest of a batch, or sample by sample."""
        making: set[int] = set()
        for event in (each for each in self.loaders if self.facts.site(each) in self.trained):
            making |= {key for key, events in self.collating.items() if event in events}
            items = (each.cls.find("__getitem__") for each in _data_of(event))
            making |= {id(function.node) for item in items for function in _functions(item)}
        for event in self.facts.of("call"):
            scopes = [frame.scope for frame in self.facts.frames(event)] if event.name in _TO_THE_LONGEST else []
            if self._collated(scopes):
                yield Padding(self.facts.site(event), dynamic=True)
        told: set[int] = set()
        for event in self.facts.of("return") if self.trained else ():
            frames = self.facts.frames(event)
            if not frames or id(frames[-1].scope) in told or frames[-1].function is None:
                continue
            told.add(id(frames[-1].scope))
            made = not making.isdisjoint(id(frame.scope) for frame in frames)
            nodes = [each for each in self._written_out(frames) if made or isinstance(each, ast.BinOp)]
            if nodes:  # (lists are filled up beforehand as well)
                first = min(nodes, key=lambda each: (each.lineno, each.col_offset))
                scopes = [frame.scope for frame in frames]
                yield self._padding(first, frames[-1].module, self._readers(first, frames[-1].module, scopes), True)

    def _written_out(self, frames: tuple[Frame, ...]) -> Iterator[ast.expr]:
        """What a function pads to a length that is the same for all batches: ``ids + [0] * (length - len(ids))``."""
        scope = frames[-1].scope
        if any(isinstance(each, ast.Call) and dotted(each.func) == "max" for each in walk(scope)):
            return  # to the longest of some
        sets = [each for each in walk(scope) if isinstance(each, ast.Assign)]
        counts = {dotted(each.targets[0]) or "": ast.unparse(each.value) for each in sets}
        filled = {  # ``x = zeros(n)``, ``x[: len(ids)] = ids``
            dotted(to.value)
            for to in (each.targets[0] for each in sets)
            if isinstance(to, ast.Subscript) and re.match(r":\s?len\(", ast.unparse(to.slice))
        }

        def is_missing(count: ast.expr) -> bool:
            return _MISSING.search(counts.get(dotted(count) or " ", ast.unparse(count))) is not None

        for node in walk(scope):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                for listed, count in ((node.left, node.right), (node.right, node.left)):
                    if isinstance(listed, ast.List) and len(listed.elts) == 1 and is_missing(count):
                        yield node
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
                makes = (dotted(node.value.func) or "").rpartition(".")[2] in _FILLED
                if makes and (dotted(node.targets[0]) in filled or is_missing(node.value.args[0])):
                    yield node.value
            elif isinstance(node, ast.Call):
                ends = next((each.elts for each in node.args[:2] if isinstance(each, (ast.Tuple, ast.List))), [])
                # two: of the last dimension alone, where pictures have more
                pads = len(ends) == 2 and any(map(is_missing, ends))
                if pads and {event.name for event in self.facts.at(node)} & _PADDED:
                    yield node

    # --- with one

    def in_file(self, module: ModuleFile) -> Iterator[Padding]:
        """The calls of a file that pad texts for the training."""
        for call in every(ast.Call, module.tree):
            if not any(each.arg in ("padding", "pad_to_max_length") for each in call.keywords):
                continue
            events = [each for each in self.facts.at(call) if each.kind == "call"]
            event = next((each for each in events if any(map(_is_tokenizer, members(each.receiver)))), None)
            given = (
                event.arguments.keywords.get("padding") if event is not None and event.arguments is not None else None
            )
            said = {*constants(given.value)} - _UNPADDED if given is not None else _said(call)
            above = self.places.ancestors(call, module)
            scopes: list[ast.AST] = [*(each for each in above if type(each) in _SCOPES)]
            scopes += [frame.scope for frame in self.facts.frames(event)] if event is not None else []
            if said and said <= _LONGEST and event is not None and self._collated(scopes):
                yield Padding(self.places.site(call, module), dynamic=True)
            elif said == {"max_length"}:
                readers = self._readers(call, module, scopes)
                if events or readers:
                    yield self._padding(call, module, readers, False)
            elif said and said <= _LONGEST and event is not None:
                readers = self._of_all(call, module, scopes)
                if readers:
                    yield replace(self._padding(call, module, readers, False, of_all=True), of_all=True)

    def _readers(self, node: ast.expr, module: ModuleFile, scopes: Iterable[ast.AST]) -> list[Event]:
        """The loaders, or trainers, that make batches of what a call pads."""
        if loaders := self._collated(scopes):
            return loaders
        classes = self._classes(node, module, scopes)
        read = [each for each in self.loaders if any(data.cls.node in classes for data in _data_of(each))]
        others = [each for each in self.loaders if not [*_data_of(each)]]
        return read or self.trainers or ([] if classes else others)

    def _classes(self, node: ast.expr, module: ModuleFile, scopes: Iterable[ast.AST]) -> list[ast.ClassDef]:
        """The classes that a call stands in, or that are given what it makes; none for what maps data."""
        classes = [each for each in self.places.ancestors(node, module) if isinstance(each, ast.ClassDef)]
        names = {getattr(each, "name", each) for each in scopes}
        mapped = self.analysis.once("what maps data", lambda: {*_mapping(self.analysis.execution.modules.values())})
        if not classes and not mapped & names:
            events = [each for each in self.facts.at(node) if each.kind == "call"]
            uses = [use for e in events for use in self.analysis.flow.uses(e.node, e.control, deep=True)]
            around = [one for use in uses for one in self.places.ancestors(use.node, use.frame.module)]
            classes = [each for each in around if isinstance(each, ast.ClassDef)]
        return classes

    def _of_all(self, node: ast.expr, module: ModuleFile, scopes: Iterable[ast.AST]) -> list[Event]:
        """What makes batches of texts that one call has padded to the longest of them all, or of a thousand mapped."""
        scopes, modules = [*scopes], self.analysis.execution.modules.values()
        names = {getattr(each, "name", each) for each in scopes}
        above = self.places.ancestors(node, module)
        if names & _ITEMWISE or self._collated(scopes) or any(isinstance(each, _ROUNDS) for each in above):
            return []
        if names & self.analysis.once("what maps batches of data", lambda: {*_mapping(modules, batched=True)}):
            return self.trainers
        classes = self._classes(node, module, scopes)
        readers = [*(each for each in self.loaders if self.facts.site(each) in self.trained), *self.trainers]
        return [each for each in readers if any(data.cls.node in classes for data in _data_of(each))]

    def _padding(
        self, node: ast.expr, module: ModuleFile, readers: list[Event], by_hand: bool, of_all: bool = False
    ) -> Padding:
        """What pads texts before there are batches, with what could cut off what none of a batch needs."""
        site = self.places.site(node, module)
        if any(map(self._cuts, readers)):
            return Padding(site, dynamic=True)
        modules = self.analysis.execution.modules.values()
        apart = any(_TOLD_APART.search(each.text) for each in modules)
        why: str | None = None
        if not readers or len({event.module.path for event in readers}) > 1 or any(map(_unpacks, readers)):
            why = _BY_HAND
        elif any(event in self.trainers and not _takes_collator(event) for event in readers):
            why = "the batches are put together by a trainer of its own"
        elif by_hand and not apart:
            why = _COUNTED
        elif of_all and any(map(self._gathers, readers)):
            why = _BY_TOKENIZER
        elif any(_LEFT.search(each.text) for each in modules) or self._is_in_front(node, module):
            why = "it pads at the front, and batches are cut off at their end"
        if why is not None:
            return Padding(site, by_hand=by_hand, why_not=why)
        return Padding(
            site,
            by_hand=by_hand,
            readers=tuple(sorted({(self.facts.site(each), self._collate(each)) for each in readers}, key=str)),
            helper=min(place_of_helper(self.analysis, each.node, each.module) for each in readers),
            trainer=readers[0] in self.trainers,
        )

    def _is_in_front(self, node: ast.expr, module: ModuleFile) -> bool:
        """Whether padding stands before the text: ``[0] * missing + ids``."""
        above = self.places.parent(node, module)
        return isinstance(above, ast.BinOp) and above.left is node

    def _gathers(self, event: Event) -> bool:
        """Whether a trainer without a collator may pad batches by its tokenizer, as those of mapped texts need it."""
        return event in self.trainers and self._collate(event) is None and not [*_data_of(event)]

    def _collate(self, event: Event) -> Site | None:
        """The collate function that a loader or trainer is given."""
        passed = event.arguments.get(*COLLATE[event in self.trainers]) if event.arguments is not None else None
        node = passed.node if passed is not None and not is_nothing(passed.node) else None
        return self.places.site(node, event.module) if node is not None else None

    def _cuts(self, event: Event) -> bool:
        """Whether the collate function that a reader is given cuts batches, or is this rewrite's."""
        passed = event.arguments.get(*COLLATE[event in self.trainers]) if event.arguments is not None else None
        given = passed.node if passed is not None else None
        names = [each.id for each in walk(given) if isinstance(each, ast.Name)] if given is not None else []
        found = [passed.value if passed is not None else None, *map(event.module.scope.names.get, names)]
        text = " ".join(ast.unparse(function.node) for each in found for function in _functions(each))
        return re.search(r"\[(\.\.\.|:), :\w", text) is not None


def _said(call: ast.Call) -> set[object]:
    """What a call says of its padding, as it is written."""
    told: dict[str | None, object] = {
        each.arg: each.value.value for each in call.keywords if isinstance(each.value, ast.Constant)
    }
    return {"max_length"} if told.get("pad_to_max_length") else {told.get("padding")} - _UNPADDED


def _mapping(modules: Iterable[ModuleFile], batched: bool = False) -> Iterator[object]:
    """The functions, by their names or themselves, that data sets are mapped by; only those for batches of texts."""
    for module in modules:
        for call in every(ast.Call, module.tree) if ".map(" in module.text else ():
            given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "function")]
            many = any(each.arg == "batched" and getattr(each.value, "value", None) for each in call.keywords)
            if isinstance(call.func, ast.Attribute) and call.func.attr == "map" and given and (many or not batched):
                yield dotted(given[0]) or given[0]


def _data_of(event: Event) -> Iterator[Instance]:
    """The project's data sets that a loader reads."""
    place = ("train_dataset", 3) if _is_trainer(event) else ("dataset", 0)
    passed = event.arguments.get(*place) if event.arguments is not None else None
    return datasets_in(passed.value if passed is not None else None)


def _unpacks(event: Event) -> bool:
    return event.arguments is None or event.arguments.open or event.arguments.star


def _trains(event: Event) -> bool:
    """Whether a trainer is given data to train on, or more than is written in its call."""
    return _unpacks(event) or (event.arguments is not None and event.arguments.get("train_dataset", 3) is not None)


def _takes_collator(event: Event) -> bool:
    """Whether a trainer makes its batches as that of transformers does, by what it is given."""
    own = [each.cls for each in members(event.result) if isinstance(each, Instance)]
    return event.name in _TRAINERS or (bool(own) and all(_hands_on(each.names.get("__init__")) for each in own))


def _hands_on(init: Value | None) -> bool:
    """Whether there is no ``__init__``, or one that hands on the keywords that it does not know."""
    nodes = [function.node for function in _functions(init)]
    rest = [f"**{node.args.kwarg.arg}" for node in nodes if node.args.kwarg is not None]
    calls = [each for node in nodes for each in walk(node) if isinstance(each, ast.Call)]
    made = [call for call in calls if ast.unparse(call.func) == "super().__init__"]
    passed = any(name in ast.unparse(call) for name in rest for call in made)
    return init is None or (passed and all("data_collator" not in ast.unparse(node) for node in nodes))


def _functions(value: Value | None) -> Iterator[Function]:
    for each in members(value):
        function = each.function if isinstance(each, Bound) else each
        if isinstance(function, Function):
            yield function


def _is_tokenizer(value: Value) -> bool:
    return isinstance(value, Made) and value.kind == "tokenizer"


def _is_trainer(event: Event) -> bool:
    bases = [getattr(each, "base", None) for each in members(event.result)]
    named = event.name.startswith("transformers.") and event.name.endswith("Trainer")
    return named or any(isinstance(each, Made) and each.kind == "trainer" for each in bases)
