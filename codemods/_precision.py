"""What the codemods of precision and of the optimizer ask: which layers do the heavy work, and where a GPU is used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from turbofix.assumptions import ON_GPU, Assumption
from turbofix.editing.edit import Edit
from turbofix.findings import Site
from turbofix.regex import regex
from turbofix.training.model import Argument, Model, Optimizer, Placement, Step, TrainingProgram

MATMULS = frozenset(
    f"torch.nn.{name}"
    for name in (
        *("Linear", "LazyLinear", "Bilinear", "MultiheadAttention", "Transformer", "TransformerEncoder"),
        *("TransformerEncoderLayer", "TransformerDecoder", "TransformerDecoderLayer", "RNNCell", "LSTMCell", "GRUCell"),
    )
)
"""Layers whose work is a matrix product."""

RECURRENT = frozenset(f"torch.nn.{name}" for name in ("RNN", "LSTM", "GRU"))
"""Layers that cuDNN computes, with a precision of its own under autocast."""

GATED_CELLS = frozenset(("torch.nn.LSTMCell", "torch.nn.GRUCell"))
"""Layers with a fused kernel that older torch versions do not have for bfloat16."""

CONVOLUTIONS = frozenset(
    f"torch.nn.{lazy}Conv{transpose}{dimensions}d"
    for lazy in ("", "Lazy")
    for transpose in ("", "Transpose")
    for dimensions in (1, 2, 3)
)

PRODUCTS = frozenset(
    (
        *(f"torch.{name}" for name in ("matmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "tensordot")),
        *(f"torch.nn.functional.{name}" for name in ("linear", "bilinear", "scaled_dot_product_attention")),
        *(f"Tensor.{name}" for name in ("matmul", "mm", "bmm", "baddbmm", "addmm", "__matmul__")),
    )
)
"""Functions and methods that multiply matrices."""

CONVOLVING = frozenset(
    f"torch.nn.functional.conv{transpose}{dimensions}d" for transpose in ("", "_transpose") for dimensions in (1, 2, 3)
)

ENVIRONMENTS = frozenset(("gym", "gymnasium", "pettingzoo", "procgen", "dm_control"))

GRAPHS = frozenset(
    ("torch_geometric", "dgl", "torch_sparse", "torch_scatter", "torch_cluster", "spconv", "MinkowskiEngine")
)
"""Libraries whose own kernels do most of the work: they pass messages in graphs, or convolve over points."""

SIMPLE = regex(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def models_of(program: TrainingProgram, step: Step) -> tuple[Model, ...]:
    """The models that a step trains, as far as they are known."""
    return tuple(model for site in step.models if (model := program.model(site)) is not None)


def in_use(program: TrainingProgram) -> tuple[Model, ...]:
    """The models that the steps call: `model.encoder(x)` calls the encoder alone. All where a step's are not known."""
    if not program.steps or not all(step.models for step in program.steps):
        return program.models
    sites = {site for step in program.steps for site in step.models}
    return tuple(model for model in program.models if model.site in sites)


def may_contain(models: Iterable[Model], steps: Iterable[Step], layers: frozenset[str], calls: frozenset[str]) -> bool:
    """Whether the work of some steps holds one of these layers or calls; yes where a part of it was not seen."""
    known = tuple(models)
    if not known or any(not model.layers_complete or model.layers & layers for model in known):
        return True
    return any(call.qualname in calls for step in steps for call in step.calls)


def autocast_of(program: TrainingProgram, step: Step) -> Site | None:
    """The autocast that a step's forward pass runs under, leaving out one that is switched off for good."""
    part = program.part(step.autocast)
    return None if part is not None and part.kind == "autocast" and part.disabled else step.autocast


def follows_gpu(switch: Argument, devices: Iterable[Placement]) -> bool:
    """Whether a switch of mixed precision is on wherever the program uses a GPU: nobody else decides."""
    text = (switch.text or "").replace("'", '"')
    given = switch.state == "absent" or (switch.state == "value" and not switch.off)
    return given or "is_available()" in text or text in map(cuda_test, devices)


def cuda_test(place: Placement) -> str | None:
    """The source of a test, valid at the place, that is true exactly where a GPU is used.

    ``"True"`` where the program always uses one; None where no test can be written. Strings in it stand in double
    quotes (``requote`` changes them).
    """
    if place.where == "cuda":
        return "True"
    if place.where != "conditional":
        return None
    text = place.text or ""
    if SIMPLE.fullmatch(text):
        if place.text_kind == "device":
            return f'{text}.type == "cuda"'
        if place.text_kind == "string":
            return f'{text}.startswith("cuda")'
        if place.text_kind == "tensor":
            return f"{text}.is_cuda"
    return place.test


def on_a_gpu(program: TrainingProgram, to: Placement | None = None) -> tuple[Assumption, ...] | None:
    """What a training (a copy ``to`` some place) that may run on a GPU assumes of that; None on a CPU."""
    to = to or program.device
    return () if to.reaches_cuda else (ON_GPU,) if to.where == "unknown" and program.names_cuda else None


def convolves(model: Model) -> bool:
    """Whether a model has a convolution that is more than the product of matrices."""
    return any(not each.cuts for each in model.convolutions)


def is_unknown(model: Model) -> bool:
    """Whether nothing tells which network of a library it is, so that it may have no convolution."""
    return all(each.unknown for each in model.convolutions if not each.cuts)


def is_detector(model: Model) -> bool:
    """Whether it is one of torchvision's networks that take lists of pictures."""
    return any(
        re.match(r"torchvision\.models\.(detection\.|\w+rcnn_|retinanet_|fcos_|ssd)", layer) for layer in model.layers
    )


def called(models: Iterable[Model]) -> str:
    """How a message calls some models."""
    names = list(dict.fromkeys(f"`{model.name}`" for model in models if model.name))
    return " and ".join(names[:2]) if 0 < len(names) < 3 else "the model" if len(names) < 2 else "the models"


def asks_torch(place: Placement, file: Path) -> bool:
    """Whether a placement's test asks torch itself, so that it is valid anywhere in the file that it stands in."""
    return place.test == "torch.cuda.is_available()" and any(test.path == file for test in place.tests)


def test_beside(program: TrainingProgram, optimizer: Optimizer) -> str | None:
    """The device test of an optimizer's parameters, where it is valid at the optimizer's construction too.

    The test was written where the model was moved. It holds beside the optimizer if it asks torch itself or ``self``,
    or if the model is built in the same function.
    """
    test = cuda_test(optimizer.device)
    if test is None or test == "True" or asks_torch(optimizer.device, optimizer.site.path):
        return test
    if test.startswith("self.") and (optimizer.target_text or "").startswith("self.") and not optimizer.before_move:
        return test
    here = optimizer.function
    models = [model.site for model in program.models if model.device == optimizer.device]
    if here is None:
        built = any(site.path == optimizer.site.path and site.line < optimizer.site.line for site in models)
    else:
        built = any(site.path == here.path and here.line <= site.line <= here.end_line for site in models)
    return test if built else None


THERE = "torch.cuda.is_available()"
"""A test that is valid anywhere: whether there is a GPU at all."""


def written(test: str, edit: Edit, site: Site) -> str:
    """A test as a file writes it."""
    return f"{edit.name(THERE[:-2], site)}()" if test == THERE else test


def requote(line: str, edit: Edit, site: Site) -> str:
    """A line of ours with its strings in the quotes of the file that it goes to."""
    return line.replace('"', edit.quoted("", site)[0])


def filled(value: str, edit: Edit, site: Site) -> str:
    """A value of ours as the file writes it that it goes to: qualified names stand in braces.

    A configuration file cannot ask for a GPU: it is given what holds where there is one.
    """
    if edit.in_data(site) and "{" not in value.replace("{torch.cuda.", ""):
        there = value.partition(" if ")[0]
        return "True" if there.startswith("{torch.cuda.is_available}") else there
    text = requote(value, edit, site)
    for part in value.split("{")[1:]:
        dotted = part.partition("}")[0]
        module = dotted.rpartition(".")[0] if dotted.startswith("transformers.") else None
        text = text.replace("{" + dotted + "}", edit.name(dotted, site, module))
    return text


def version(torch: tuple[int, int]) -> str:
    """A torch version as people write it."""
    return f"{torch[0]}.{torch[1]}"


def said(argument: Argument) -> str:
    """Where an argument's value comes from, for a message: the option that sets it, or its line."""
    if argument.option:
        return f"the option {argument.option}"
    site = argument.edit_at or argument.site
    return f"line {site.line}" if site is not None else "the script"


def deterministic(program: TrainingProgram) -> Iterator[tuple[str, Site]]:
    """The switches that ask for determinism, with the place of each."""
    for name in ("torch.use_deterministic_algorithms", "torch.backends.cudnn.deterministic"):
        for setting in program.setting(name):
            if setting.value.state in ("unknown", "computed") or any(setting.value.values):
                yield name, setting.site
