"""Which layers of a model multiply matrices, and how wide they are where literals (or options' defaults) tell."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from turbofix.program.events import Arguments, Passed
from turbofix.program.facts import constants
from turbofix.program.model import Product, Products
from turbofix.program.values import Const, Made, Option, members
from turbofix.program.values import Sequence as Listed

_LAYERS: dict[str, tuple[str, str]] = {
    "torch.nn.Linear": ("in_features", "out_features"),
    "torch.nn.RNNCell": ("input_size", "hidden_size"),
    "torch.nn.LSTMCell": ("input_size", "hidden_size"),
    "torch.nn.GRUCell": ("input_size", "hidden_size"),
    **{
        f"torch_geometric.nn.{name}": ("in_channels", "out_channels")
        for name in (
            *("ARMAConv", "ClusterGCNConv", "FastRGCNConv", "FiLMConv", "GATConv", "GATv2Conv", "GCNConv", "GENConv"),
            *("GraphConv", "LEConv", "Linear", "PNAConv", "RGATConv", "RGCNConv", "SAGEConv", "SGConv", "SplineConv"),
            *("SuperGATConv", "TAGConv"),
        )
    },
    "torch_geometric.nn.GCN2Conv": ("channels", "channels"),
    "torch_geometric.nn.SignedGCN": ("in_channels", "hidden_channels"),
}
"""Layers with products for each row of their input: the parameters, the first two, that tell how wide they are."""

_CHAIN = "torch_geometric.nn.MLP"
"""Linear layers one behind another, whose widths stand in a list."""

_OTHERS = frozenset(
    (
        *("torch.nn.LazyLinear", "torch.nn.Bilinear", "torch.nn.MultiheadAttention", "torch.nn.Transformer"),
        *(f"torch.nn.Transformer{part}{layer}" for part in ("Encoder", "Decoder") for layer in ("", "Layer")),
        *("torch.nn.AdaptiveLogSoftmaxWithLoss",),
    )
)
"""Layers with products whose widths are not read off here."""

_WITHOUT = frozenset(
    f"torch_geometric.nn.{name}"
    for name in (
        *("APPNP", "BatchNorm", "DeepGCNLayer", "DiffGroupNorm", "DynamicEdgeConv", "EdgeConv", "GINConv", "GINEConv"),
        *("GraphNorm", "GraphSizeNorm", "HeteroConv", "InstanceNorm", "JumpingKnowledge", "LayerNorm", "LightGCN"),
        *("MessageNorm", "PairNorm", "Sequential"),
    )
)
"""Layers of other libraries without a product of their own; what they are given is looked at by itself."""

_FAMILIES = (
    *("densenet", "efficientnet", "googlenet", "inception", "mnasnet", "mobilenet", "regnet", "resnet", "resnext"),
    *("segmentation.deeplabv3", "segmentation.fcn", "segmentation.lraspp", "shufflenet", "squeezenet", "wide_resnet"),
)
"""Names of convolutional networks that end in one thin linear layer, as torchvision and timm have them."""

_CONVOLUTIONS = tuple(f"torch.nn.{lazy}Conv" for lazy in ("", "Lazy"))

_LABELS = 64
"""Entries up to which an embedding is taken to be of classes; alphabets and vocabularies have more."""

_GROUPS = 6
"""Where ``groups`` stands among a convolution's parameters."""

_GRAPHS = ("torch_geometric.nn.", "dgl.nn.")

_SEQUENCES = frozenset(
    f"torch.nn.{name}" for name in ("GRU", "LSTM", "LayerNorm", "MultiheadAttention", "RMSNorm", "RNN")
)
"""They tell of inputs with a position: layers beside them work on every token."""


def products_of(parts: Sequence[Made], bases: Iterable[str], *, unseen: bool) -> Products:
    """What the layers of a model say: ``bases`` are the external classes that the program's own layers derive from."""
    found: dict[Product, None] = {}
    channels: list[int | None] = [0]
    grouped: list[int | None] = [0]
    names = set(bases)
    for part in parts:
        if part.qualname == "torch.nn.Module":
            continue
        if _is_convolutional(part):
            names.add("torch.nn.Conv2d")
            channels.append(None)
            continue
        if part.qualname == _CHAIN:
            chain = _chain(part)
            names.add(f"{_GRAPHS[0]}Linear" if chain else part.qualname)
            found.update(dict.fromkeys(chain))
            continue
        names.add(part.qualname)
        if part.qualname.startswith(_CONVOLUTIONS):
            channels += _channels(part)
            grouped += _channels(part) if _has_groups(part) else ()
        if part.qualname in _LAYERS:
            found[_product(part.qualname, part.arguments)] = None
        elif part.qualname in _OTHERS:
            found[Product(part.qualname)] = None
    for base in bases:
        if base in _LAYERS or base in _OTHERS:
            found[Product(base)] = None
    known = all(
        (name.startswith("torch.nn.") and not name.endswith("*")) or name in _LAYERS or name in _WITHOUT
        for name in names
    )
    return Products(
        layers=tuple(found),
        complete=known and not unseen,
        foreign=not known,
        beside_convolutions=any(name.startswith(_CONVOLUTIONS) for name in names),
        of_sequences=bool(names & _SEQUENCES),
        of_graphs=any(name.startswith(_GRAPHS) for name in names),
        embeds=any(part.qualname == "torch.nn.Embedding" and not _is_of_labels(part) for part in parts),
        channels=_most(None if any(name.startswith(_CONVOLUTIONS) for name in bases) else 0, *channels),
        grouped=_most(*grouped),
    )


def _is_of_labels(part: Made) -> bool:
    """Whether an embedding is of a few classes, one for each sample, and not of the tokens of a text."""
    known = _width(part.arguments.get("num_embeddings", 0))
    return known is not None and known <= _LABELS


def _has_groups(part: Made) -> bool:
    """Whether a convolution may have groups (depthwise ones have as many as channels)."""
    passed = part.arguments.get("groups", _GROUPS)
    return passed is not None and _width(passed) != 1


def _channels(part: Made) -> tuple[int | None, int | None]:
    """How many channels a convolution takes and gives."""
    lazy = "nn.Lazy" in part.qualname
    taken = None if lazy else _width(part.arguments.get("in_channels", 0))
    return taken, _width(part.arguments.get("out_channels", 0 if lazy else 1))


def _most(*numbers: int | None) -> int | None:
    """The largest number; None where one is not known."""
    known = [number for number in numbers if number is not None]
    return max(known) if len(known) == len(numbers) else None


def _chain(part: Made) -> list[Product]:
    """The products of layers whose widths stand in a list; none where that is not known."""
    passed = part.arguments.get("channel_list", 0)
    value = passed.value if passed is not None else None
    items = value.items if isinstance(value, Listed) else None
    widths = [_width(Passed(item)) for item in items or ()]
    return [Product(part.qualname, one, other) for one, other in itertools.pairwise(widths)]


def _product(layer: str, arguments: Arguments) -> Product:
    first, second = _LAYERS[layer]
    outputs = _width(arguments.get(second, 1 if second != first else 0))
    heads = arguments.get("heads", 2) if layer.endswith(("GATConv", "GATv2Conv")) else None
    if heads is not None and outputs is not None:
        several = _width(heads)
        outputs = outputs * several if several is not None else None
    return Product(layer, _width(arguments.get(first, 0)), outputs)


def _width(passed: Passed | None) -> int | None:
    """The number that is passed, the largest where it is one of several."""
    if passed is None or not all(isinstance(member, (Const, Option)) for member in members(passed.value)):
        return None
    found = list(constants(passed.value))
    numbers = [each for each in found if isinstance(each, int) and each > 0]
    return max(numbers) if numbers and len(numbers) == len(found) else None


def _is_convolutional(part: Made) -> bool:
    """Whether a library's ready-made model is a convolutional network with one thin linear layer at its end."""
    if part.qualname == "timm.create_model":
        passed = part.arguments.get("model_name", 0)
        named = list(constants(passed.value)) if passed is not None else []
        return bool(named) and all(isinstance(each, str) and each.lower().startswith(_FAMILIES) for each in named)
    package, _, name = part.qualname.partition("torchvision.models.")
    return not package and name.lower().startswith(_FAMILIES)
