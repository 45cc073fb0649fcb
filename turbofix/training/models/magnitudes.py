"""How many numbers the matrices of a model hold at least: linear layers, Transformers, checkpoints by their names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from turbofix.dataflow.facts import constants, is_loop, settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Arguments, Control
from turbofix.domain.values import Const, Instance, Made, Opaque, Option, Value, members
from turbofix.regex import regex
from turbofix.source.names import dotted
from turbofix.training.models.products import QUANTIZED

_RECURRENT = {"torch.nn.LSTM": 4, "torch.nn.GRU": 3, "torch.nn.RNN": 1}

_OTHERWISE = (*QUANTIZED, "config", "device_map", "device_mesh", "tp_plan")
"""What may make a checkpoint another one than its name says, or lay it over several devices."""

_BILLIONS = regex(r"(?:^|[-_/])(\d{1,3}(?:\.\d+)?)[bB](?=[-_.]|$)")

_EMBEDDED = 3
"""A third of what the name of a small checkpoint says is there beside the embeddings, at least."""

_FREEZING = regex(r"\brequires_grad_?\s*(?:=|\()\s*False|\bpeft\b|\.freeze\w*\(")


def numbers_of(analysis: Analysis, parts: Sequence[Made], values: Iterable[Made | Instance | Opaque]) -> int:
    """The numbers in the matrices of a model; 0 where it may be one of several, or be trained in part only."""
    whole = tuple(values)
    if len(whole) != 1 or isinstance(whole[0], Opaque):
        return 0
    outside = {id(level) for level in whole[0].made_at.chain()}
    total = sum(own * _times(analysis, part, outside) for part in parts if (own := _numbers(part)))
    if total and any(_FREEZING.search(module.text) for module in analysis.execution.modules.values()):
        return 0
    return total


def _numbers(part: Made) -> int:
    """The numbers in one layer's matrices."""
    name, given = part.qualname, part.arguments
    if name == "torch.nn.Linear":
        return _least(given, "in_features", 0) * _least(given, "out_features", 1)
    if name == "torch.nn.MultiheadAttention":
        return 4 * _least(given, "embed_dim", 0) ** 2
    if name in ("torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoderLayer"):
        width, behind = _least(given, "d_model", 0), _least(given, "dim_feedforward", 2, 2048)
        return (4 if "Encoder" in name else 8) * width**2 + 2 * width * behind
    if name in ("torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder"):
        passed = given.get("encoder_layer" if "Encoder" in name else "decoder_layer", 0)
        repeated = [each for each in members(passed.value) if isinstance(each, Made)] if passed is not None else []
        more = _least(given, "num_layers", 1) - 1  # the one that it is given is counted by itself
        return max(more, 0) * min(map(_numbers, repeated), default=0)
    if name in _RECURRENT:
        inputs, width = _least(given, "input_size", 0), _least(given, "hidden_size", 1)
        layers = _least(given, "num_layers", 2, 1)
        return _RECURRENT[name] * width * (inputs + width + 2 * max(layers - 1, 0) * width)
    return _of_checkpoint(part)


def _least(given: Arguments, name: str, position: int, default: int = 0) -> int:
    """The smallest number that an argument is known to be, 0 where it is not known."""
    passed = given.get(name, position)
    if passed is None:
        return 0 if given.open or given.star else default
    return least(passed.value)


def least(value: Value | None) -> int:
    """The smallest whole number that a value may be, 0 where it may be anything else."""
    found = list(constants(value)) if all(isinstance(each, (Const, Option)) for each in members(value)) else []
    return min((each for each in found if type(each) is int), default=0) if all(type(e) is int for e in found) else 0


def _of_checkpoint(part: Made) -> int:
    """What a checkpoint of transformers holds beside its embeddings, where its name says how large it is."""
    given, auto = part.arguments, ".Auto" in part.qualname and ".AutoModel" not in part.qualname
    if not part.qualname.startswith("transformers.") or not part.qualname.endswith(".from_pretrained") or auto:
        return 0
    passed = given.get("pretrained_model_name_or_path", 0)
    if passed is None or given.open or given.star or any(name in given.keywords for name in _OTHERWISE):
        return 0
    return size_by_name(str(settled(passed.value)))


def size_by_name(name: str) -> int:
    """How many numbers a checkpoint holds at least beside its embeddings; 0 where its name does not say so."""
    billions = _BILLIONS.search(name)
    return int(float(billions[1]) * 1_000_000_000) // _EMBEDDED if billions is not None else 0


def _times(analysis: Analysis, part: Made, outside: set[int]) -> int:
    """How many layers are made where one was seen: by comprehensions and loops over ``range(n)``."""
    times = 1
    for level in part.made_at.chain():
        if id(level) in outside:
            continue
        if level.kind == "if" and not level.decided:
            return 0
        if level.kind == "comprehension" or is_loop(level):
            times *= _rounds(analysis, level)
    return times


def _rounds(analysis: Analysis, level: Control) -> int:
    """How often a list of modules is given what a level makes; 1 where that is not known."""
    node = level.node if level.kind == "comprehension" else getattr(level.detail, "node", None)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        iterated, ifs = node.generators[0].iter, node.generators[0].ifs
    elif isinstance(node, ast.For) and len(node.body) == 1 and ".append(" in ast.unparse(node.body[0]):
        iterated, ifs = node.iter, []
    else:
        return 1
    if not isinstance(iterated, ast.Call) or dotted(iterated.func) != "range" or len(iterated.args) != 1:
        return 1
    facts = analysis.facts
    numbers = [least(facts.evaluate(iterated.args[0], facts.frames(event))) for event in facts.at(iterated)]
    return 0 if ifs else max(min(numbers, default=1), 1)
