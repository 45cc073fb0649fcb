"""How many numbers the matrices of a model hold at least.

Embeddings and convolutions are left out. What is counted are literals, options' defaults, and the checkpoints of other
libraries that say how large they are by their names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from turbofix.dataflow.facts import constants, is_loop, settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Arguments, Control, Passed
from turbofix.domain.values import Const, Instance, Made, Opaque, Option, members
from turbofix.regex import regex
from turbofix.source.names import dotted
from turbofix.training.models.products import QUANTIZED

_LISTS = ("ModuleList", "Sequential")

_STACKS = {"torch.nn.TransformerEncoder": ("encoder_layer", 1), "torch.nn.TransformerDecoder": ("decoder_layer", 1)}

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
    sizes = [(part, own) for part in parts if (own := _numbers(part))]
    total = sum(own * _times(analysis, part, outside) for part, own in sizes)
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
    if name in _STACKS:
        layer, position = _STACKS[name]
        passed = given.get(layer, 0)
        repeated = list(members(passed.value)) if passed is not None else []
        more = _least(given, "num_layers", position) - 1  # the one that it is given is counted by itself
        return max(more, 0) * _numbers(repeated[0]) if len(repeated) == 1 and isinstance(repeated[0], Made) else 0
    if name == "torch.nn.Transformer":
        width, behind = _least(given, "d_model", 0, 512), _least(given, "dim_feedforward", 4, 2048)
        encoders, decoders = _least(given, "num_encoder_layers", 2, 6), _least(given, "num_decoder_layers", 3, 6)
        return encoders * (4 * width**2 + 2 * width * behind) + decoders * (8 * width**2 + 2 * width * behind)
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
    return least(passed)


def least(passed: Passed) -> int:
    """The smallest whole number that is passed, 0 where it may be anything else."""
    if not all(isinstance(each, (Const, Option)) for each in members(passed.value)):
        return 0
    found = list(constants(passed.value))
    return min((each for each in found if type(each) is int), default=0) if all(type(e) is int for e in found) else 0


def _of_checkpoint(part: Made) -> int:
    """What a checkpoint of transformers holds beside its embeddings, where its name says how large it is."""
    if not part.qualname.startswith("transformers.") or not part.qualname.endswith(".from_pretrained"):
        return 0
    if ".Auto" in part.qualname and ".AutoModel" not in part.qualname:
        return 0
    given = part.arguments
    if given.open or given.star or any(name in given.keywords for name in _OTHERWISE):
        return 0
    passed = given.get("pretrained_model_name_or_path", 0)
    name = settled(passed.value) if passed is not None else None
    return size_by_name(name) if isinstance(name, str) else 0


def size_by_name(name: str) -> int:
    """How many numbers a checkpoint holds at least beside its embeddings; 0 where its name does not say so."""
    billions = _BILLIONS.search(name)
    return int(float(billions[1]) * 1_000_000_000) // _EMBEDDED if billions is not None else 0


# --- how often a layer is there ---------------------------------------------------------------------------------------


def _times(analysis: Analysis, part: Made, outside: set[int]) -> int:
    """How many layers are made where one was seen, all of which a list of modules keeps."""
    times = 1
    for level in part.made_at.chain():
        if id(level) in outside:
            continue
        if level.kind == "comprehension":
            times *= _rounds(analysis, level)
        elif level.kind == "if" and not level.decided:
            return 0
        elif is_loop(level):
            times *= _appended(analysis, level)
    return times


def _rounds(analysis: Analysis, level: Control) -> int:
    """How often a comprehension that fills a list of modules makes what it holds; 1 where that is not known."""
    node, module = level.node, level.module
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp)) or module is None or len(node.generators) != 1:
        return 1
    above = analysis.facts.places.parent(node, module)
    if isinstance(above, ast.Starred):
        above = analysis.facts.places.parent(above, module)
    if not isinstance(above, ast.Call) or (dotted(above.func) or "").rpartition(".")[2] not in _LISTS:
        return 1
    only = node.generators[0]
    return 0 if only.ifs else _count(analysis, only.iter)


def _appended(analysis: Analysis, level: Control) -> int:
    """How often a loop appends what it makes to a list; 1 where that is not known."""
    loop = getattr(level.detail, "node", None)
    if not isinstance(loop, ast.For) or len(loop.body) != 1 or not isinstance(loop.body[0], ast.Expr):
        return 1
    call = loop.body[0].value
    appends = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append"
    return _count(analysis, loop.iter) if appends else 1


def _count(analysis: Analysis, iterated: ast.expr) -> int:
    """The least number of rounds over ``range(n)``."""
    if not isinstance(iterated, ast.Call) or dotted(iterated.func) != "range" or len(iterated.args) != 1:
        return 1
    facts = analysis.facts
    frames = [facts.frames(event) for event in facts.at(iterated)]
    found = [facts.evaluate(iterated.args[0], each) for each in frames]
    numbers = [least(Passed(value)) if value is not None else 0 for value in found]
    return max(min(numbers, default=1), 1)
