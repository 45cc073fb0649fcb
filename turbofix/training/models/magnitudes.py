"""How many numbers the matrices of a model hold at least: linear layers, stacks of Transformers, named checkpoints."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from turbofix.dataflow.facts import settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Arguments
from turbofix.domain.values import Instance, Made, Opaque, members
from turbofix.regex import regex
from turbofix.training.models.products import QUANTIZED

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
    """The numbers in one layer's matrices, or in those of a stack of them."""
    name, given = part.qualname, part.arguments
    if name == "torch.nn.Linear":
        return _number(given, "in_features", 0) * _number(given, "out_features", 1)
    if name == "torch.nn.MultiheadAttention":
        return 4 * _number(given, "embed_dim", 0) ** 2
    if name in ("torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoderLayer"):
        width, behind = _number(given, "d_model", 0), _number(given, "dim_feedforward", 2, 2048)
        return (4 if "Encoder" in name else 8) * width**2 + 2 * width * behind
    if name in ("torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder"):
        passed = given.get("encoder_layer" if "Encoder" in name else "decoder_layer", 0)
        repeated = [each for each in members(passed.value) if isinstance(each, Made)] if passed is not None else []
        more = _number(given, "num_layers", 1) - 1  # the one that it is given is counted by itself
        return max(more, 0) * min(map(_numbers, repeated), default=0)
    return _of_checkpoint(part)


def _number(given: Arguments, name: str, position: int, default: int = 0) -> int:
    """A whole number that is passed, 0 where it is not known."""
    passed = given.get(name, position)
    found = settled(passed.value) if passed is not None else default
    return found if type(found) is int else 0


def _of_checkpoint(part: Made) -> int:
    """What a checkpoint of transformers holds beside its embeddings, where its name says how large it is."""
    given, auto = part.arguments, ".Auto" in part.qualname and ".AutoModel" not in part.qualname
    if not part.qualname.startswith("transformers.") or not part.qualname.endswith(".from_pretrained") or auto:
        return 0
    passed = given.get("pretrained_model_name_or_path", 0)
    if passed is None or given.open or given.star or any(name in given.keywords for name in _OTHERWISE):
        return 0
    billions = _BILLIONS.search(str(settled(passed.value)))
    return int(float(billions[1]) * 1_000_000_000) // _EMBEDDED if billions is not None else 0


def _times(analysis: Analysis, part: Made, outside: set[int]) -> int:
    """How many layers are made where one was seen: ``[Block(width) for _ in range(n)]``; 0 where that is not known."""
    times = 1
    for level in (each for each in part.made_at.chain() if id(each) not in outside):
        if level.kind == "if" and not level.decided:
            return 0
        made = level.node if level.kind == "comprehension" else None
        if isinstance(made, (ast.ListComp, ast.GeneratorExp)) and isinstance(made.generators[0].iter, ast.Call):
            counted, facts = made.generators[0].iter, analysis.facts
            ends = [
                settled(facts.evaluate(each, facts.frames(at))) for at in facts.at(counted) for each in counted.args
            ]
            times *= ends[0] if len(ends) == 1 and type(ends[0]) is int else 0
    return times
