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
from turbofix.program.facts import Frame, argument_for, constants
from turbofix.program.libraries import words
from turbofix.program.model import Padding, Step
from turbofix.program.names import body_of, dotted, loaded, parameters, targets, walk_here
from turbofix.program.objects import models_in, outermost
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS, LOOPS
from turbofix.program.values import Bound, Const, Function, Instance, Iterated, Made, Value, members
from turbofix.program.wording import Wording

_WORD = re.compile(r"\bpadding\b")
_FIXED_LENGTH = re.compile(r"\bmax_length\b|\bpad_to_max_length\b")
_FIXED = ("tpu", "xla", "torch_xla", "padding_side", "onnx", "torchscript", "jit")
_JOINED = ("dispatch_batches", "split_batches", "streaming")
_FIXED_SHAPES = Wording((*_FIXED, *_JOINED), re.compile(rf"\b({'|'.join((*_FIXED, *_JOINED))})\b", re.IGNORECASE))
"""Words of programs that want shapes which stay, or pad in front, where positions count from, or join batches."""

_CLASSIFIER = "ForSequenceClassification"
_READING_MASKS = re.compile(r"bert|electra|ernie|minilm", re.IGNORECASE)
"""Families of models whose layers read other positions by attention alone, which leaves out what the mask says."""
_READING_NEIGHBOURS = re.compile(
    r"convbert|squeezebert|visualbert|mobilebert|hubert|qdqbert|ibert|deberta.*v[23]|fnet|funnel|bigbird|nystrom|yoso"
    r"|\bmra\b|reformer|linformer",
    re.IGNORECASE,
)
"""Others by name: with convolutions, neighbours in their embeddings, attention by blocks, landmarks or hashes."""

_SHOWING_POSITIONS = re.compile(r"\b(output_hidden_states|output_attentions|trust_remote_code|model_input_names)\b")
_FIXED_MEMORY = re.compile(r"\b(CUDAGraph|make_graphed_callables|register_\w*hook)\b")

_OF_MODELS = frozenset(
    words(
        """
        train eval to cuda cpu parameters named_parameters state_dict load_state_dict zero_grad save_pretrained half
        float bfloat16 requires_grad_ gradient_checkpointing_enable resize_token_embeddings num_parameters device dtype
        from_pretrained module config push_to_hub modules named_modules no_sync training compile
        """
    )
)
"""Attributes of a model by which nobody meets what it computes for each position."""

_OF_TOKENIZERS = frozenset(words("pad_token pad_token_id eos_token sep_token cls_token model_max_length"))

_OF_POSITIONS = ("hidden_states", "attentions", "last_hidden_state", "output_hidden_states", "output_attentions")
_ANY_LENGTH = ("len", "print", "decode", "batch_decode", "dict", "update")
_OWN = ("input_ids", "attention_mask", "token_type_ids")
_GIVEN = (None, *_OWN, "labels", "return_dict")
_KEEPING = {"remove_unused_columns", "torch_compile", "include_inputs_for_metrics", "include_for_metrics"}
_ELSEWHERE = re.compile(r"\b(save_to_disk|to_parquet|to_json|to_csv|push_to_hub|to_tf_dataset)\b")
_PASSED_ON = ("to", "cuda", "items", "values", "keys", "update")


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
            told = {each.arg: each.value.value for each in call.keywords if isinstance(each.value, ast.Constant)}
            fixed = told.get("padding") == "max_length" or told.get("pad_to_max_length") is True
            if fixed and (analysis.facts.at(call) or _gives_items(analysis, call, module)):
                yield Padding(analysis.facts.places.site(call, module), "item", why_not="it pads each text by itself")


def _gives_items(analysis: Analysis, call: ast.Call, module: ModuleFile) -> bool:
    """Whether a call stands in a class of samples."""
    above = [each for each in analysis.facts.places.ancestors(call, module) if isinstance(each, ast.ClassDef)]
    return any(isinstance(each, FUNCTIONS) and each.name == "__getitem__" for one in above for each in one.body)


def _pads(module: ModuleFile) -> bool:
    return kept(module.tree, "pads", lambda: _WORD.search(module.text) is not None)


_TO_THE_LONGEST = frozenset(("torch.nn.utils.rnn.pad_sequence", "torch.nn.utils.rnn.pack_sequence"))
_PADDED = "torch.nn.functional.pad"
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
    if not collating and not getting:
        return
    told: set[int] = set()
    for event in facts.of("call"):
        if event.name in _TO_THE_LONGEST and any(id(frame.scope) in collating for frame in facts.frames(event)):
            yield Padding(facts.site(event), "batch", dynamic=True)
    for event in facts.of("return"):
        frames = facts.frames(event)
        if not frames or id(frames[-1].scope) in told or frames[-1].function is None:
            continue
        within = {id(frame.scope) for frame in frames}
        if within & (collating | getting):
            told.add(id(frames[-1].scope))
            for node in _written_out(analysis, frames):
                yield Padding(places.site(node, frames[-1].module), "item", by_hand=True, why_not=_BY_HAND)


def _written_out(analysis: Analysis, frames: tuple[Frame, ...]) -> Iterator[ast.expr]:
    """What a function pads to a length that is the same for all batches: ``ids + [0] * (length - len(ids))``."""
    for node in walk(frames[-1].scope):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for listed, count in ((node.left, node.right), (node.right, node.left)):
                one = isinstance(listed, ast.List) and len(listed.elts) == 1
                if one and _is_missing(analysis, count, frames):
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
        if not isinstance(only, ast.Assign) or not isinstance(only.targets[0], ast.Name):
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
        self.models = {site for step in steps for site in step.models}
        self.collating: dict[int, list[Event]] = {}
        self.mapping: set[int] = set()
        self.stacks: dict[int, tuple[Frame, ...]] | None = None
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
            why = self._why_not_steps() or self._why_not_batch(event, node, function) or self._why_not(event, value)
            why = why or self._why_not_used({id(made.node) for made in loaders})
            return Padding(site, "batch", self._value(event, value), self._is_in_eights(event), why_not=why)
        if said != {"max_length"}:
            return None
        if any(id(scope) in self.mapping for scope in scopes):
            return self._mapped(event, node, value, function)
        if event.control.chain()[0].detail == "worker" and self.trained:
            return Padding(site, "item", why_not=self._why_not_steps() or "it pads each sample by itself")
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
        if "return_attention_mask" in arguments.keywords:
            return "the tokenizer is told whether to make a mask"
        if self.facts.of("compile"):
            return "the model is compiled, which would happen anew for each length"
        return next(filter(None, map(self._reads_length, self.analysis.execution.modules.values())), None)

    def _reads_length(self, module: ModuleFile) -> str | None:
        """Whether anything reads the tokens, or what a model gives for each, but to hand them on."""
        names: set[str] = set()
        for statement in every(ast.Assign, module.tree):
            if any(map(_is_of_tokens, walk(statement.value))):
                written = (each for given in statement.targets for each in walk(given) if isinstance(each, ast.Name))
                names.update(each.id for each in written if isinstance(each.ctx, ast.Store))
        for kind in (ast.Subscript, ast.Attribute, ast.Name):
            for read in every(kind, module.tree):
                if isinstance(read, ast.Attribute) and read.attr in _OF_POSITIONS:
                    return f"line {read.lineno} reads what the model gives for each position"
                named = isinstance(read, ast.Name) and read.id in names
                if not (named or _is_of_tokens(read)) or not isinstance(read.ctx, ast.Load):  # type: ignore[attr-defined]
                    continue
                parent = self.places.parent(read, module)
                if self._is_handed_on(parent, module):
                    continue
                if isinstance(parent, (ast.Attribute, ast.Subscript, ast.BinOp, ast.Compare)):
                    return f"line {parent.lineno} computes with the tokens, whose number would vary"
                if isinstance(parent, ast.keyword):
                    parent = self.places.parent(parent, module)
                if isinstance(parent, ast.Call) and not self._takes_any_length(parent):
                    return f"line {parent.lineno} gives the tokens, whose number would vary, to something else"
        return None

    def _takes_any_length(self, call: ast.Call) -> bool:
        """Whether a call is one of the model, or of what does not mind how many tokens there are."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func) or ""
        return name in _ANY_LENGTH or any(event.kind == "forward" for event in self.facts.at(call))

    def _is_handed_on(self, parent: ast.AST | None, module: ModuleFile) -> bool:
        """Whether what is done to tokens is to move them, or to count samples: ``.to(device)``, ``.size(0)``."""
        if not isinstance(parent, ast.Attribute):
            return False
        outer = self.places.parent(parent, module)
        first: ast.expr | None = None
        if parent.attr == "size" and isinstance(outer, ast.Call) and outer.args:
            first = outer.args[0]
        if parent.attr == "shape" and isinstance(outer, ast.Subscript):
            first = outer.slice
        return parent.attr in ("to", "cuda") or (isinstance(first, ast.Constant) and first.value == 0)

    def _why_not_batch(self, event: Event, node: ast.Call, function: ast.AST | None) -> str | None:
        """Why a call in a collate function is not known to be given all the texts of a batch, and to be handed on."""
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return "the batch is put together in an expression"
        calls = [each for each in walk(function) if isinstance(each, ast.Call)]
        padding = [each for each in calls if any(word.arg == "padding" for word in each.keywords)]
        if len(padding) != 1:
            return "the texts of a batch are padded in several calls, whose lengths may have to agree"
        inner = (*COMPREHENSIONS, *LOOPS, ast.Lambda)
        for above in self.places.ancestors(node, event.module):
            if above is function:
                break
            if isinstance(above, (*inner, ast.If, ast.Try, ast.IfExp)):
                return "it pads some of the batches, or each sample by itself"
        taken = node.args[0] if node.args else next((each.value for each in node.keywords if each.arg == "text"), None)
        if taken is None or not self._is_batch(taken, function):
            return "it is not known that it is given all the texts of a batch"
        for name in self._names_of_result(node, event.module):
            if (line := self._is_computed_with(name, function, event.module)) is not None:
                return f"line {line} computes with the padded batch"
        if (line := _adds_positions(function)) is not None:
            return f"line {line} adds something for each position"
        return None

    def _is_batch(self, taken: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int = 4) -> bool:
        """Whether an expression is what a collate function is given, or one thing of each sample."""
        given = [each.arg for each in parameters(function)]
        batch = given[1:] if given[:1] == ["self"] else given
        if isinstance(taken, ast.ListComp):
            only = taken.generators[0]
            return len(taken.generators) == 1 and not only.ifs and self._is_batch(only.iter, function, depth - 1)
        if isinstance(taken, ast.Call) and dotted(taken.func) in ("list", "tuple") and len(taken.args) == 1:
            return self._is_batch(taken.args[0], function, depth - 1)
        if not isinstance(taken, ast.Name) or not depth:
            return False
        writes = [
            each
            for each in walk(function)
            if isinstance(each, ast.Name) and each.id == taken.id and isinstance(each.ctx, ast.Store)
        ]
        if taken.id in batch[:1]:
            return not writes
        statements = [each for each in walk(function) if isinstance(each, ast.Assign)]
        own = [each for each in statements if any(target in writes for target in walk(each.targets[0]))]
        if len(writes) != 1 or len(own) != 1:
            return False
        value = own[0].value
        if isinstance(own[0].targets[0], ast.Tuple):  # texts, labels = zip(*rows)
            zipped = isinstance(value, ast.Call) and dotted(value.func) == "zip" and len(value.args) == 1
            star = value.args[0] if isinstance(value, ast.Call) and zipped else None
            return isinstance(star, ast.Starred) and self._is_batch(star.value, function, depth - 1)
        return isinstance(value, (ast.ListComp, ast.Call)) and self._is_batch(value, function, depth - 1)

    def _names_of_result(self, node: ast.Call, module: ModuleFile) -> Iterator[str]:
        statement = self.places.statement(node, module)
        if isinstance(statement, ast.Assign) and statement.value is node:
            yield from (each.id for each in statement.targets if isinstance(each, ast.Name))

    def _is_computed_with(self, name: str, function: ast.AST, module: ModuleFile) -> int | None:
        """The line that does more with a batch than to hand it on, with something beside it perhaps."""
        for read in walk(function):
            if not isinstance(read, ast.Name) or read.id != name or not isinstance(read.ctx, ast.Load):
                continue
            parent = self.places.parent(read, module)
            if isinstance(parent, (ast.Subscript, ast.Attribute)):
                outer = self.places.parent(parent, module)
                stored = isinstance(parent.ctx, ast.Store)
                handed = isinstance(outer, (ast.Dict, ast.Return, ast.keyword))
                called = isinstance(parent, ast.Attribute) and parent.attr in _PASSED_ON
                if stored or handed or called:
                    continue
                return read.lineno
            if not isinstance(parent, (ast.Return, ast.Dict, ast.keyword)) and not (
                isinstance(parent, ast.Call) and dotted(parent.func) == "dict"
            ):
                return read.lineno
        return None

    def _why_not_steps(self) -> str | None:
        """What of the steps may count padding: a model that is no known classifier, or one that is given no mask."""
        forwards = outermost(self.analysis, self.facts.of("forward"))
        for event in forwards:
            for model in models_in(event.receiver):
                if self.facts.origin_site(model.origin) in self.models and (said := _other_model(model)):
                    return said
            if isinstance(event.node, ast.Call) and any(each.arg not in _GIVEN for each in event.node.keywords):
                return f"line {event.node.lineno} gives the model more than texts, masks and labels"
            if not isinstance(event.node, ast.Call) or not _is_given_mask(event.node):
                return f"line {getattr(event.node, 'lineno', 0)} calls the model without the mask"
        return None if forwards else "no call of the model is seen"

    # --- what else meets the batches and the models

    def _why_not_parts(self) -> str | None:
        """What may meet the positions of a model from within, or change what the tokenizer gives."""
        for module in self.analysis.execution.modules.values():
            for pattern in (_SHOWING_POSITIONS, _FIXED_MEMORY):
                if said := pattern.search(module.text):
                    return f"the program says `{said[0]}`, and may read what the model computes for each position"
        for node, frames in self._attributes():
            name = node.attr
            for owner in members(self.facts.evaluate(node.value, frames)):
                if not isinstance(owner, Made):
                    continue
                if owner.kind == "tokenizer" and isinstance(node.ctx, ast.Store) and name not in _OF_TOKENIZERS:
                    return f"line {node.lineno} changes the tokenizer"
                if self._is_classifier(owner) and not self._is_harmless(node, frames[-1].module):
                    return f"line {node.lineno} uses a part of the model by itself"
        for event in self.facts.of("call"):
            if event.name in ("builtins.setattr", "setattr") and event.arguments is not None:
                given = [each for value in event.arguments.values() for each in members(value)]
                if any(isinstance(each, Made) for each in given):
                    return f"line {getattr(event.node, 'lineno', 0)} changes the model or the tokenizer"
        return None

    def _is_classifier(self, made: Made) -> bool:
        return made.qualname.removesuffix(".from_pretrained").endswith(_CLASSIFIER)

    def _is_harmless(self, node: ast.Attribute, module: ModuleFile) -> bool:
        """Whether an attribute of a model is one of those that tell nothing of positions, or the weights of a part."""
        if node.attr in _OF_MODELS:
            return isinstance(node.ctx, ast.Load)
        outermost_one: ast.AST = node
        while isinstance(parent := self.places.parent(outermost_one, module), (ast.Attribute, ast.Subscript)):
            if parent.value is not outermost_one:
                break
            outermost_one = parent
        last = outermost_one.attr if isinstance(outermost_one, ast.Attribute) else ""
        return last in ("parameters", "named_parameters", "requires_grad", "requires_grad_", "in_features")

    def _attributes(self) -> Iterator[tuple[ast.Attribute, tuple[Frame, ...]]]:
        """The attributes that are read or set in what the program runs, each with the frames around it."""
        for frames in self._stacks().values():
            for part in body_of(frames[-1].scope):
                for node in walk_here(part):
                    if isinstance(node, ast.Attribute):
                        yield node, frames

    def _stacks(self) -> dict[int, tuple[Frame, ...]]:
        if self.stacks is None:
            self.stacks = {}
            for event in self.facts.events:
                frames = self.facts.frames(event)
                for index, frame in enumerate(frames):
                    self.stacks.setdefault(id(frame.scope), frames[: index + 1])
        return self.stacks

    def _why_not_used(self, loaders: set[int]) -> str | None:
        """What else than the model may be given the padded batches of these loaders, or look at them."""
        if (said := self._why_not_parts()) is not None:
            return said
        for event in self.facts.of("iterate", "next"):
            if not any(id(each) in loaders for each in _origins(event.receiver)):
                continue
            scope = self.places.scope(event.node, event.module)
            over = self.places.parent(event.node, event.module)
            while isinstance(over, ast.Call):
                over = self.places.parent(over, event.module)
            loop = event.node if isinstance(event.node, (ast.For, ast.AsyncFor)) else over
            if not isinstance(loop, (ast.For, ast.AsyncFor)):
                return f"line {getattr(event.node, 'lineno', 0)} reads batches in a way that is not known"
            names = {each.id for each in walk(loop.target) if isinstance(each, ast.Name)}
            if isinstance(loop.target, ast.Tuple) and dotted(getattr(loop.iter, "func", None)) is not None:
                names -= {each.id for each in loop.target.elts[:1] if isinstance(each, ast.Name)}  # its number
            line = self._met(names, loop.body, self._stacks().get(id(scope), ()), event.module, 4)
            if line is not None:
                return f"line {line} does something with the padded batch, which would be shorter"
        return None

    def _met(
        self, names: set[str], body: list[ast.stmt], frames: tuple[Frame, ...], module: ModuleFile, depth: int
    ) -> int | None:
        """The line that does more with batches of these names than to move them and to give them to a model."""
        nodes = [node for statement in body for node in walk(statement)]
        known = set(names)
        while True:
            size = len(known)
            for node in nodes:
                if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                    continue
                if self._stays_batch(node.value, known):
                    to = node.targets if isinstance(node, ast.Assign) else [node.target]
                    known |= {each.id for one in to for each in targets(one) if isinstance(each, ast.Name)}
            if len(known) == size:
                break
        for node in nodes:
            read = isinstance(node, ast.Name) and node.id in known and isinstance(node.ctx, ast.Load)
            if read and not self._is_fine(node, known, frames, module, depth):  # type: ignore[arg-type]
                return node.lineno  # type: ignore[attr-defined,no-any-return]
        return None

    def _stays_batch(self, value: ast.expr, known: set[str]) -> bool:
        """Whether an expression is a batch, or a part of it with positions."""
        if isinstance(value, ast.Name):
            return value.id in known
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            return value.func.attr in ("to", "cuda") and self._stays_batch(value.func.value, known)
        if isinstance(value, (ast.DictComp, ast.ListComp, ast.GeneratorExp)):
            return bool(loaded(value) & known)
        if isinstance(value, ast.Subscript):
            return self._stays_batch(value.value, known) and not _is_label(value.slice)
        if isinstance(value, ast.Tuple):
            return any(self._stays_batch(each, known) for each in value.elts)
        return False

    def _is_fine(
        self, node: ast.Name, known: set[str], frames: tuple[Frame, ...], module: ModuleFile, depth: int
    ) -> bool:
        parent = self.places.parent(node, module)
        outer = self.places.parent(parent, module) if parent is not None else None
        if isinstance(parent, ast.Subscript) and parent.value is node:
            if not isinstance(parent.ctx, ast.Load):
                return not isinstance(parent.ctx, ast.Del) or _is_label(parent.slice)
            return _is_label(parent.slice) or self._is_passed(parent, known, frames, module, depth)
        if isinstance(parent, ast.Attribute):
            if parent.attr in ("to", "cuda"):
                return True
            if parent.attr in ("items", "keys"):
                return self._is_moved(outer, module)
            if parent.attr in ("pop", "get") and isinstance(outer, ast.Call) and outer.args:
                return _is_label(outer.args[0])
            if parent.attr in ("size", "shape"):
                return self._is_handed_on(parent, module)
            return parent.attr not in ("values", "data", "update", "copy") and (
                parent.attr not in _OWN or self._is_passed(parent, known, frames, module, depth)
            )
        return self._is_passed(node, known, frames, module, depth)

    def _is_moved(self, items: ast.AST | None, module: ModuleFile) -> bool:
        """``{k: v.to(device) for k, v in batch.items()}``, or the same as a loop: all of it, or without the labels."""
        over = self.places.parent(items, module) if items is not None else None
        if isinstance(over, ast.comprehension):
            whole = self.places.parent(over, module)
            if not isinstance(whole, ast.DictComp):
                return False
            tests = [each for test in over.ifs for each in walk(test) if isinstance(each, (ast.Constant, ast.Call))]
            return all(_is_label(each) for each in tests) and _moves(whole.value)
        if isinstance(over, ast.For):
            return all(isinstance(each, ast.Assign) and _moves(each.value) for each in over.body)
        return False

    def _is_passed(
        self, node: ast.expr, known: set[str], frames: tuple[Frame, ...], module: ModuleFile, depth: int
    ) -> bool:
        """Whether a batch, or its tokens, are only moved and then given to a model, or to a function that does so."""
        parent = self.places.parent(node, module)
        if isinstance(parent, ast.Attribute) and parent.attr in ("to", "cuda", "size", "shape"):
            return parent.attr in ("to", "cuda") or self._is_handed_on(parent, module)
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            return True  # under another name, which is followed
        if isinstance(parent, ast.Tuple):
            return isinstance(self.places.parent(parent, module), ast.Assign)
        if isinstance(parent, (ast.For, ast.comprehension)):
            body = parent.body if isinstance(parent, ast.For) else []
            return bool(body) and all(isinstance(each, ast.Assign) and _moves(each.value) for each in body)
        if isinstance(parent, ast.keyword):
            parent = self.places.parent(parent, module)
        if not isinstance(parent, ast.Call):
            return False
        if any(event.kind == "forward" for event in self.facts.at(parent)) or dotted(parent.func) == "len":
            return True
        for scope in list(self._stacks().values()) if depth else ():
            inner = scope[-1]
            if inner.call is not parent:
                continue
            given = [each.arg for each in parameters(inner.scope) if argument_for(each.arg, inner, parent) is node]
            if given and isinstance(inner.scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return self._met(set(given), inner.scope.body, scope, inner.module, depth - 1) is None
        return False

    # --- a trainer

    def _mapped(self, event: Event, node: ast.Call, value: ast.expr | None, function: ast.AST | None) -> Padding | None:
        """A call in a function that a data set is mapped by, where a trainer of transformers makes the batches."""
        site = self.places.site(node, event.module)
        trainers = [each for each in self.facts.of("make", "construct") if _is_trainer(each)]
        if not trainers:
            alone = "the samples are padded one by one, before a loader makes batches of them"
            return Padding(site, "item", why_not=self._why_not_steps() or alone) if self.trained else None
        first = trainers[0]
        arguments = first.arguments
        why: str | None = None
        if len(trainers) > 1 or arguments is None or first.name != "transformers.Trainer" or first.kind != "make":
            why = "the batches are put together by a trainer of its own"
        elif arguments.open or arguments.star or arguments.get("data_collator", 2) is not None:
            why = "the trainer is given a collator"
        else:
            model = arguments.get("model", 0)
            found = list(models_in(model.value)) if model is not None else []
            why = next(filter(None, map(_other_model, found)), None) if found else "the model is not known"
            why = why or self._why_not(event, value) or self._why_not_mapped(event, node, first, function)
            why = why or self._why_not_parts()
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
        for result in self._names_of_result(node, event.module):
            if (line := self._is_computed_with(result, function, event.module)) is not None:
                return f"line {line} computes with what is padded"
        if (line := _adds_positions(function)) is not None:
            return f"line {line} adds something for each position"
        for module in self.analysis.execution.modules.values():
            if said := _ELSEWHERE.search(module.text):
                return f"the data may be read by others (`{said[0]}`)"
            for kind in (ast.Subscript, ast.Attribute):
                for read in every(kind, module.tree):
                    if _is_of_tokens(read) and not any(each is read for each in walk(function)):
                        return f"line {read.lineno} reads the tokens itself"
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


def _origins(value: Value | None, depth: int = 4) -> Iterator[ast.AST]:
    """The calls that made the loaders which an iteration goes over."""
    for each in members(value) if depth else ():
        if isinstance(each, Iterated):
            yield from _origins(each.source, depth - 1)
        elif isinstance(each, Made) and each.kind == "loader" and each.origin is not None:
            yield each.origin.node
        elif isinstance(each, Made):
            yield from _origins(each.inner, depth - 1)


def _is_label(key: ast.AST) -> bool:
    """Whether a key is surely not that of something with positions."""
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in _OWN


def _moves(value: ast.expr) -> bool:
    """``v.to(device)``, ``v``, ``batch[k].cuda()``."""
    if isinstance(value, ast.Call):
        method = isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda")
        return method and isinstance(value.func.value, (ast.Name, ast.Subscript))  # type: ignore[attr-defined]
    return isinstance(value, ast.Name)


def _is_of_tokens(read: ast.AST) -> bool:
    if isinstance(read, ast.Attribute):
        return read.attr in _OWN
    if isinstance(read, ast.Subscript) and isinstance(read.slice, ast.Constant):
        return read.slice.value in _OWN
    return False


def _adds_positions(function: ast.AST) -> int | None:
    """The line that puts something for each position beside the tokens: ``batch["position_ids"] = ...``."""
    for node in walk(function):
        entries: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.Dict):
            entries = list(zip(node.keys, node.values, strict=True))
        elif isinstance(node, ast.Assign):
            entries = [(each.slice, node.value) for each in node.targets if isinstance(each, ast.Subscript)]
        for key, value in entries:
            name = key.value if isinstance(key, ast.Constant) else ""
            if isinstance(name, str) and name.endswith(("_ids", "_mask")) and not _is_of_tokens(value):
                return value.lineno
    return None


def _is_trainer(event: Event) -> bool:
    found: Iterable[Value] = members(event.result)
    return (event.name.startswith("transformers.") and event.name.endswith("Trainer")) or any(
        isinstance(getattr(each, "base", None), Made) and each.base.kind == "trainer"  # type: ignore[attr-defined]
        for each in found
    )


def _other_model(model: Value) -> str | None:
    """Why a model is not known to give the same whatever its batch is padded to."""
    if not isinstance(model, Made):
        return "the model is not one of transformers, and may count padding"
    cls = model.qualname.removesuffix(".from_pretrained").rpartition(".")[2]
    if not model.qualname.startswith("transformers.") or not cls.endswith(_CLASSIFIER):
        return f"`{cls}` is no classifier of whole texts: its loss may count padding, or want labels of the same length"
    first = model.arguments.get("pretrained_model_name_or_path", 0)
    names = [each for each in constants(first.value) if isinstance(each, str)] if first is not None else []
    told = cls if cls != f"AutoModel{_CLASSIFIER}" else " ".join(names)
    if not _READING_MASKS.search(told) or _READING_NEIGHBOURS.search(f"{told} {' '.join(names)}"):
        return "it is not known that the model's layers leave padding out"
    return None


def _is_given_mask(call: ast.Call) -> bool:
    if any(each.arg in (None, "attention_mask") for each in call.keywords):
        return True
    return len(call.args) > 1 and not any(isinstance(each, ast.Starred) for each in call.args)
