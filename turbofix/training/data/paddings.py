"""Texts that a tokenizer pads to a fixed length: where, and whether shorter batches would be the same to the model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from turbofix.dataflow.facts import Frame, constants
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Bound, Class, Const, Function, Instance, Made, Value, members
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import every, kept
from turbofix.source.names import dotted, is_false, is_nothing, targets
from turbofix.source.nodes import walk
from turbofix.source.places import COMPREHENSIONS, FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.source.wording import Wording
from turbofix.training.data.preloading import place_of_helper
from turbofix.training.data.same_items import datasets_in
from turbofix.training.model import Padding, Step

_WORD = regex(r"\bpadding\b|\bpad_to_max_length\b")
_FIXED = ("tpu", "xla", "torch_xla", "dispatch_batches", "split_batches", "streaming")
_FIXED_SHAPES = Wording(_FIXED, regex(rf"\b({'|'.join(_FIXED)})\b", re.IGNORECASE))
"""Words of programs that want shapes which stay, or join batches."""
_LOADER, _TRAINERS = "torch.utils.data.DataLoader", ("transformers.Trainer", "transformers.Seq2SeqTrainer")
_LONGEST = frozenset(("longest", True))
MASK = "attention_mask"


def paddings(analysis: Analysis, steps: tuple[Step, ...]) -> tuple[Padding, ...]:
    """The calls that pad texts for a training, in the order of the text."""
    modules = list(analysis.execution.modules.values())
    fixed = next((module.path.name for module in modules if _FIXED_SHAPES.is_in(module.text)), None)
    search = _Search(analysis, steps)
    found = {each.site: each for each in search.by_hand()}
    for module in modules:
        found.update((each.site, each) for each in search.in_file(module) if _pads(module))
    if fixed is not None:
        reason = (
            f"by what {fixed} speaks of (TPUs, joined batches, streams), lengths may have to stay: pad less by hand"
        )
        found = {site: each if each.dynamic else replace(each, why_not=reason) for site, each in found.items()}
    once = {
        (each.keys, each.readers) if each.keys else site: site for site, each in sorted(found.items(), reverse=True)
    }
    return tuple(found[site] for site in sorted(once.values()))


def _pads(module: ModuleFile) -> bool:
    return kept(module.tree, "pads", lambda: _WORD.search(module.text) is not None)


def _said(call: ast.Call) -> set[object]:
    """What a call says of its padding, as it is written."""
    told: dict[str | None, object] = {
        each.arg: each.value.value for each in call.keywords if isinstance(each.value, ast.Constant)
    }
    return {"max_length"} if told.get("pad_to_max_length") else {told.get("padding")} - {None, False}


def _masks_in(cls: ast.ClassDef) -> Iterator[str]:
    """The keys of attention masks in items: by what they are made of, or by name among all that a tokenizer gives."""
    for node in walk(cls):
        pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        given = node.keywords if isinstance(node, ast.Call) and dotted(node.func) == "dict" else ()
        for key, value in (*pairs, *((ast.Constant(each.arg), each.value) for each in given)):
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and _reads_mask(value, cls):
                yield key.value
    if any(isinstance(each, ast.DictComp) or getattr(each, "attr", None) == "items" for each in walk(cls)):
        yield MASK


def _reads_mask(value: ast.expr, cls: ast.ClassDef, depth: int = 3) -> bool:
    """Whether an expression is a tokenizer's attention mask, or a one for each token, by names that its class sets."""
    names: set[str] = set()
    for each in walk(value):
        if MASK in (getattr(each, "attr", None), getattr(each, "value", None), getattr(each, "id", None)):
            return True
        ones = each.left if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult) else None
        if isinstance(ones, ast.List) and [getattr(one, "value", None) for one in ones.elts] == [1]:
            return True
        names |= {each.id} if isinstance(each, ast.Name) else set()
    sets = [each for each in walk(cls) if isinstance(each, ast.Assign) and dotted(each.targets[0]) in names]
    return bool(depth) and any(_reads_mask(each.value, cls, depth - 1) for each in sets)


def _lengthens(node: ast.AST) -> bool:
    """Whether an expression pads: a tokenizer's call, or ``[0] * missing``."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List) and len(node.left.elts) == 1
    return isinstance(node, ast.Call) and "max_length" in _said(node)


_COMPILED = "the model is compiled, which would happen anew for each length"
_ONE_BY_ONE = (
    "which parts of an item it lengthens was not followed: where the model and its loss leave padding out, pad in the "
    "`collate_fn` of the loader, to the longest of the batch (`DataCollatorWithPadding(tokenizer)`, `pad_sequence`)"
)
_TO_THE_LONGEST = frozenset(("torch.nn.utils.rnn.pad_sequence", "torch.nn.utils.rnn.pack_sequence"))
_PADDED = frozenset(("torch.nn.functional.pad", "torch.nn.ConstantPad1d", "numpy.pad"))
_FILLED = frozenset(words("zeros ones full empty"))
_IN_FRONT = "it pads at the front, and batches are cut off at their end"
_COUNTED = "nothing in the program tells padding from words, so that the model and its loss count it: mask it first"
_TOLD_APART = regex(r"attention_mask|pad(?:ding)?_mask|masked_fill|pack_padded_sequence|ignore_index|-100\b")
"""What a program has that leaves padding out."""


def _written_out(analysis: Analysis, frames: tuple[Frame, ...]) -> Iterator[ast.expr]:
    """What a function pads to a length that is the same for all batches: ``ids + [0] * (length - len(ids))``."""
    yield from _filled(frames[-1].scope)
    for node in walk(frames[-1].scope):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for listed, count in ((node.left, node.right), (node.right, node.left)):
                one = isinstance(listed, ast.List) and len(listed.elts) == 1
                if one and _is_missing(analysis, count, frames):
                    yield node
        elif isinstance(node, ast.Call) and node.args and (dotted(node.func) or "").rpartition(".")[2] in _FILLED:
            if _is_missing(analysis, node.args[0], frames):
                yield node
        elif isinstance(node, ast.Call) and (ends := _ends(node)):
            names = {event.name for event in analysis.facts.at(node) if event.kind in ("call", "make")}
            # two: of the last dimension alone, where pictures have more
            if names & _PADDED and len(ends) == 2 and any(_is_missing(analysis, each, frames) for each in ends):
                yield node


def _filled(scope: ast.AST) -> list[ast.expr]:
    """What a function makes at a fixed length and fills from its start: ``x = zeros(n)``, ``x[: len(ids)] = ids``."""
    sets = [each for each in walk(scope) if isinstance(each, ast.Assign)]
    begun = {
        dotted(to.value)
        for to in (each.targets[0] for each in sets)
        if isinstance(to, ast.Subscript) and isinstance(to.slice, ast.Slice) and to.slice.lower is None
        if any(isinstance(each, ast.Call) and dotted(each.func) == "len" for each in walk(to.slice))
    }
    return [
        each.value
        for each in sets
        if isinstance(each.value, ast.Call) and dotted(each.targets[0]) in begun
        if (dotted(each.value.func) or "").rpartition(".")[2] in _FILLED and each.value.args
    ]


def _ends(call: ast.Call) -> list[ast.expr]:
    """How much a call pads on each side, if it pads: ``pad(ids, (0, missing))``, ``ConstantPad1d((0, missing), 0)``."""
    return next((each.elts for each in call.args[:2] if isinstance(each, (ast.Tuple, ast.List))), [])


def _is_in_front(node: ast.AST, parent: ast.AST | None) -> bool:
    """Whether padding stands before the text: ``[0] * missing + ids``, ``pad(ids, (missing, 0))``."""
    if isinstance(node, ast.Call) and (ends := _ends(node)):
        return getattr(ends[0], "value", None) != 0
    first = parent.left if isinstance(parent, ast.BinOp) else next(iter(getattr(parent, "elts", ())), None)
    return first is node


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
    of = short.args[0] if isinstance(short, ast.Call) and short.args else None
    for write in analysis.facts.bindings.writes(frames[-1].scope, of.id) if isinstance(of, ast.Name) else ():
        cut = write.value.slice if isinstance(write, ast.Assign) and isinstance(write.value, ast.Subscript) else None
        if isinstance(cut, ast.Slice) and cut.lower is not None and not isinstance(cut.lower, ast.Constant):
            return False  # a stretch of a stream: only the last is short
    if (dotted(long) or "").startswith("self."):
        return True
    found = list(constants(analysis.facts.evaluate(long, frames)))
    return len(found) == 1 and type(found[0]) is int and found[0] > 1


class _Search:
    """The search through one program."""

    def __init__(self, analysis: Analysis, steps: tuple[Step, ...]) -> None:
        self.analysis, self.facts, self.places = analysis, analysis.facts, analysis.facts.places
        self.loaders = [each for each in self.facts.of("make") if each.name == _LOADER and each.arguments is not None]
        self.trained = {site for step in steps for site in step.loaders} or {*map(self.facts.site, self.loaders)}
        self.trainers = [each for each in self.facts.of("make", "construct") if _is_trainer(each) and _trains(each)]
        self.collating: dict[int, list[Event]] = {}
        for event in self.loaders:
            passed = event.arguments.get("collate_fn", 7) if event.arguments is not None else None
            for function in _functions(passed.value if passed is not None else None):
                self.collating.setdefault(id(function.node), []).append(event)

    # --- without a tokenizer

    def by_hand(self) -> Iterator[Padding]:
        """What a training's loaders pad without a tokenizer: to the longest of a batch, or sample by sample."""
        facts = self.facts
        making: set[int] = set()
        for event in self.loaders if self.trained else ():
            if facts.site(event) in self.trained:
                making |= {key for key, events in self.collating.items() if event in events}
                making |= {id(each.node) for cls in _classes_of(event) for each in _functions(cls.find("__getitem__"))}
        for event in facts.of("call"):
            if event.name in _TO_THE_LONGEST:
                collates = (self.collating.get(id(frame.scope), ()) for frame in facts.frames(event))
                if any(facts.site(each) in self.trained for events in collates for each in events):
                    yield Padding(facts.site(event), "batch", dynamic=True)
        told: set[int] = set()
        for event in facts.of("return"):
            frames = facts.frames(event)
            if not frames or id(frames[-1].scope) in told or frames[-1].function is None or not self.trained:
                continue
            made = not making.isdisjoint(id(frame.scope) for frame in frames)
            told.add(id(frames[-1].scope))
            module = frames[-1].module
            nodes = [each for each in _written_out(self.analysis, frames) if made or isinstance(each, ast.BinOp)]
            if nodes:  # (lists are filled up beforehand as well)
                first = min(nodes, key=lambda each: (each.lineno, each.col_offset))
                yield self._of_items(first, module, self._classes_around(first, module), by_hand=True)

    # --- with one

    def in_file(self, module: ModuleFile) -> Iterator[Padding]:
        """The calls of a file that pad texts for the training."""
        for call in every(ast.Call, module.tree):
            if not any(each.arg in ("padding", "pad_to_max_length") for each in call.keywords):
                continue
            events = [each for each in self.facts.at(call) if each.kind == "call"]
            known = [
                each
                for each in events
                if any(getattr(one, "kind", "") == "tokenizer" for one in members(each.receiver))
            ]
            found = self._of_call(call, module, events, known[0] if known else None)
            if found is not None:
                yield found

    def _of_call(self, call: ast.Call, module: ModuleFile, events: list[Event], event: Event | None) -> Padding | None:
        passed = event.arguments.keywords.get("padding") if event is not None and event.arguments is not None else None
        said = {*constants(passed.value)} if passed is not None else _said(call)
        scopes: list[ast.AST] = [
            each for each in self.places.ancestors(call, module) if isinstance(each, (*FUNCTIONS, ast.Lambda))
        ]
        scopes += [frame.scope for frame in self.facts.frames(event)] if event is not None else []
        loaders = [each for scope in scopes for each in self.collating.get(id(scope), ())]
        if not said or not said <= {"max_length", *_LONGEST}:
            return None
        if loaders and event is not None:
            if not any(self.facts.site(each) in self.trained for each in loaders):
                return None
            return self._of_batch(call, event, said)
        classes = self._classes_around(call, module)
        mapped = [one for name, one in self._maps() if name in {getattr(each, "name", each) for each in scopes}]
        gives = any(isinstance(one, FUNCTIONS) and one.name == "__getitem__" for cls in classes for one in cls.body)
        if said == {"max_length"}:
            if not (events or gives or mapped):
                return None
            if not (gives or mapped or loaders):
                classes = self._holding(events)
        elif not any(
            getattr(each.value, "value", None) is True
            for one in mapped
            for each in one.keywords
            if each.arg == "batched"
        ):
            classes = self._holding(events)
            gives = bool(classes)
            if not classes:
                return None
        found = self._of_items(call, module, [] if mapped and not gives else classes)
        if said == {"max_length"} or found.dynamic:
            return found
        return replace(found, of="all") if found.why_not is None else None

    def _maps(self) -> list[tuple[object, ast.Call]]:
        """The functions, by their names or themselves, that data sets are mapped by, with the calls of ``map``."""
        return self.analysis.once("what maps data", lambda: list(_mapping(self.analysis.execution.modules.values())))

    def _classes_around(self, node: ast.AST, module: ModuleFile) -> list[ast.ClassDef]:
        return [each for each in self.places.ancestors(node, module) if isinstance(each, ast.ClassDef)]

    def _holding(self, events: list[Event]) -> list[ast.ClassDef]:
        """The classes of samples that use what calls gave."""
        uses = [use for e in events for use in self.analysis.flow.uses(e.node, e.control, deep=True) if e.node]
        around = [cls for use in uses for cls in self._classes_around(use.node, use.frame.module)]
        return [cls for cls in dict.fromkeys(around) if any(getattr(e, "name", "") == "__getitem__" for e in cls.body)]

    def _of_items(
        self, node: ast.expr, module: ModuleFile, classes: list[ast.ClassDef], *, by_hand: bool = False
    ) -> Padding:
        """What pads texts before there are batches, with the loaders or trainers that could cut off what none needs."""
        site = self.places.site(node, module)
        readers = [each for each in self.loaders if any(cls.node in classes for cls in _classes_of(each))]
        mask = next((key for one in classes for key in _masks_in(one)), None if classes else MASK)
        if by_hand and mask == MASK and MASK not in module.text:
            mask = None  # no tokenizer gives one
        readers = readers or self.trainers or ([] if classes else [e for e in self.loaders if not [*_classes_of(e)]])
        owner: ast.AST | None = classes[0] if classes else self.places.function(node, module)
        pads = [each for each in walk(owner or node) if isinstance(each, ast.Call) and "max_length" in _said(each)]
        targets = len(pads) > 1 or any(word.arg == "text_target" for each in pads for word in each.keywords)
        own = len(pads) < 3 and all(each.name.endswith("Seq2SeqTrainer") for each in readers)  # (labels by their own)
        why: str | None = None
        keys: tuple[str | int, ...] = ()
        if not (readers and mask) or (targets and not own):  # (two have two lengths)
            mask, keys = None, self._lengthened(classes, node) if readers else ()
            known = keys and all(self._collate(each) is None or self._keeps(each, keys) for each in readers)
            apart = any(_TOLD_APART.search(each.text) for each in self.analysis.execution.modules.values())
            why = _ONE_BY_ONE if not known else None if apart else _COUNTED
            why = _IN_FRONT if why is None and _is_in_front(node, self.places.parent(node, module)) else why
        if len({event.module.path for event in readers}) > 1 or any(map(_unpacks, readers)):
            why = _ONE_BY_ONE
        elif any(event in self.trainers and not _takes_collator(event) for event in readers):
            why = "the batches are put together by a trainer of its own"
        elif self.facts.of("compile") or any(
            word.arg == "torch_compile" and not is_false(word.value)
            for each in self.analysis.execution.modules.values()
            for word in (every(ast.keyword, each.tree) if "torch_compile" in each.text else ())
        ):
            why = _COMPILED
        by = mask if mask is not None else next(iter(self._lengthened(classes, node)), None)
        if by is not None and any(self._cuts(each, by) for each in readers):
            return Padding(site, "item", dynamic=True)
        if why is not None:
            return Padding(site, "item", by_hand=by_hand, why_not=why)
        return Padding(
            site,
            "item",
            by_hand=by_hand,
            readers=tuple(sorted({(self.facts.site(each), self._collate(each)) for each in readers}, key=str)),
            helper=min(place_of_helper(self.analysis, each.node, each.module) for each in readers),
            mask=mask,
            keys=keys,
            squares=any(re.search("tri[lu]|mask\\(", ast.unparse(each)) for each in classes),
            trainer=readers[0] in self.trainers,
            targets=targets,
        )

    def _lengthened(self, classes: list[ast.ClassDef], node: ast.expr) -> tuple[str | int, ...]:
        """The keys or places of what is made of padded texts in the items of a class."""
        methods = [each for cls in classes[:1] for each in cls.body if getattr(each, "name", "") == "__getitem__"]
        method = methods[-1] if methods else None
        returns = [each.value for each in walk(method) if isinstance(each, ast.Return)] if method is not None else []
        if method is None or len(returns) != 1 or not any(each is node for each in walk(method)):
            return ()
        sets = [each for each in walk(method) if isinstance(each, (ast.Assign, ast.AugAssign, ast.Expr))]
        made: set[str | None] = set()
        filled = _filled(method)

        def reads(value: ast.AST) -> bool:
            return any(
                each is node or each in filled or _lengthens(each) or (isinstance(each, ast.Name) and each.id in made)
                for each in walk(value)
            )

        for _ in range(3):
            for each in sets:
                call = each.value if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) else None
                changed = call.func.value if call is not None and isinstance(call.func, ast.Attribute) else None
                to = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", changed)]
                if reads(each.value):
                    made |= {
                        one.id for part in to if part is not None for one in targets(part) if isinstance(one, ast.Name)
                    }
        given = returns[0]
        if isinstance(given, ast.Name):
            written = [
                each.value for each in sets if isinstance(each, ast.Assign) and dotted(each.targets[0]) == given.id
            ]
            given = written[0] if len(written) == 1 else None
        pairs: list[tuple[object, ast.expr]] = list(enumerate(given.elts)) if isinstance(given, ast.Tuple) else []
        if isinstance(given, ast.Dict):
            pairs = [(getattr(each, "value", None), one) for each, one in zip(given.keys, given.values, strict=True)]
        return tuple(key for key, value in pairs if isinstance(key, (str, int)) and reads(value))

    def _collate(self, event: Event) -> Site | None:
        """The collate function that a loader or trainer is given."""
        passed = event.arguments.get(*COLLATE[event in self.trainers]) if event.arguments is not None else None
        node = passed.node if passed is not None and not is_nothing(passed.node) else None
        return self.places.site(node, event.module) if node is not None else None

    def _collating(self, event: Event) -> Iterator[ast.AST]:
        """The nodes of the functions in the collate function that a reader is given."""
        passed = event.arguments.get(*COLLATE[event in self.trainers]) if event.arguments is not None else None
        given = passed.node if passed is not None else None
        names = [each.id for each in walk(given) if isinstance(each, ast.Name)] if given is not None else []
        found = [passed.value if passed is not None else None, *map(event.module.scope.names.get, names)]
        yield from (node for each in found for function in _functions(each) for node in walk(function.node))

    def _cuts(self, event: Event, mask: str | int) -> bool:
        """Whether the collate function that a reader is given cuts batches by their mask."""
        said = [*self._collating(event)]
        reads = any(isinstance(each, ast.Constant) and each.value == mask for each in said)
        cuts = (
            each.slice.elts for each in said if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Tuple)
        )
        return reads and any(isinstance(part, (ast.Slice, ast.Constant)) for parts in cuts for part in parts)

    def _keeps(self, event: Event, keys: tuple[str | int, ...]) -> bool:
        """Whether the collate function that a reader is given makes a dict of the same keys."""
        made = [each.keys for each in self._collating(event) if isinstance(each, ast.Dict)]
        return any({getattr(key, "value", None) for key in each} >= {*keys} for each in made)

    # --- a batch

    def _of_batch(self, call: ast.Call, event: Event, said: set[object]) -> Padding:
        assert event.arguments is not None
        site = self.places.site(call, event.module)
        if said <= _LONGEST:
            return Padding(site, "batch", dynamic=True)
        value = event.arguments.keywords["padding"].node
        why = self._why_not_batch(event, call)
        if why is None and not isinstance(value, ast.Constant):
            why = "what it pads to is chosen elsewhere"
        if why is None and (_unpacks(event) or "pad_to_multiple_of" in event.arguments.keywords):
            why = "the call is given more than is written in it"
        why = why or (_COMPILED if self.facts.of("compile") else None)
        at = self.places.site(value, event.module) if value is not None else None
        return Padding(site, "batch", at, self._is_in_eights(event), why_not=why)

    def _is_in_eights(self, event: Event) -> bool:
        """Whether the fixed length is a known multiple of eight: no batch is padded beyond it then."""
        passed = event.arguments.keywords.get("max_length") if event.arguments is not None else None
        found = [each.value for each in members(passed.value) if isinstance(each, Const)] if passed is not None else []
        whole = passed is not None and len(found) == len(members(passed.value))
        return whole and all(type(each) is int and each > 0 and each % 8 == 0 for each in found)

    def _why_not_batch(self, event: Event, node: ast.Call) -> str | None:
        """Why a call in a collate function is not known to be given all the texts of a batch, and to be handed on."""
        scopes = [frame.scope for frame in self.facts.frames(event)]
        function = next((each for each in reversed(scopes) if isinstance(each, FUNCTIONS)), None)
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return "the batch is put together in an expression"
        inner = (*COMPREHENSIONS, *LOOPS, ast.Lambda)
        for above in self.places.ancestors(node, event.module):
            if above is function:
                break
            if isinstance(above, (*inner, ast.If, ast.Try, ast.IfExp)):
                return "it pads some of the batches, or each sample by itself"
        return None


COLLATE = {False: ("collate_fn", 7), True: ("data_collator", 2)}
"""The argument of a loader, and that of a trainer, that puts batches together, with its place."""


def _mapping(modules: Iterable[ModuleFile]) -> Iterator[tuple[object, ast.Call]]:
    for module in modules:
        for call in every(ast.Call, module.tree) if ".map(" in module.text else ():
            given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "function")]
            if isinstance(call.func, ast.Attribute) and call.func.attr == "map" and given:
                yield dotted(given[0]) or given[0], call


def _classes_of(event: Event) -> Iterator[Class]:
    """The classes of the project's data sets that a loader reads."""
    passed = event.arguments.get("dataset", 0) if event.arguments is not None else None
    return (each.cls for each in datasets_in(passed.value if passed is not None else None))


def _unpacks(event: Event) -> bool:
    return event.arguments is None or event.arguments.open or event.arguments.star


def _trains(event: Event) -> bool:
    """Whether a trainer is given data to train on, or more than is written in its call."""
    return _unpacks(event) or (event.arguments is not None and event.arguments.get("train_dataset", 3) is not None)


def _takes_collator(event: Event) -> bool:
    """Whether a trainer makes its batches as that of transformers does, by what it is given."""
    own = [each.cls for each in members(event.result) if isinstance(each, Instance)]
    return event.name in _TRAINERS or (bool(own) and all("__init__" not in each.names for each in own))


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
