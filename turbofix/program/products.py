"""Which layers of a model multiply matrices, and how wide they are where literals (or options' defaults) tell."""

from __future__ import annotations

from collections.abc import Iterable

from turbofix.program.events import Arguments, Passed
from turbofix.program.facts import constants
from turbofix.program.model import Product, Products
from turbofix.program.values import Const, Made, Option, members

_LAYERS: dict[str, tuple[str, str]] = {
    "torch.nn.Linear": ("in_features", "out_features"),
    "torch.nn.RNNCell": ("input_size", "hidden_size"),
    "torch.nn.LSTMCell": ("input_size", "hidden_size"),
    "torch.nn.GRUCell": ("input_size", "hidden_size"),
    **{
        f"torch_geometric.nn.{name}": ("in_channels", "out_channels")
        for name in (
            *("ARMAConv", "ClusterGCNConv", "GATConv", "GATv2Conv", "GCNConv", "GraphConv", "LEConv", "Linear"),
            *("SAGEConv", "SGConv", "SplineConv", "SuperGATConv", "TAGConv"),
        )
    },
}
"""Layers with one product for each row of their input: what the first two parameters are called."""

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
        *("APPNP", "BatchNorm", "DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "HeteroConv", "InstanceNorm"),
        *("JumpingKnowledge", "LayerNorm", "MessageNorm", "PairNorm", "Sequential"),
    )
)
"""Layers of other libraries without a product of their own; what they are given is looked at by itself."""

_FAMILIES = (
    *("densenet", "efficientnet", "googlenet", "inception", "mnasnet", "mobilenet", "regnet", "resnet", "resnext"),
    *("segmentation.deeplabv3", "segmentation.fcn", "segmentation.lraspp", "shufflenet", "squeezenet", "wide_resnet"),
)
"""Names of convolutional networks that end in one thin linear layer, as torchvision and timm have them."""

_CONVOLUTIONS = tuple(f"torch.nn.{lazy}Conv" for lazy in ("", "Lazy"))

_SEQUENCES = frozenset(f"torch.nn.{name}" for name in ("GRU", "LSTM", "LayerNorm", "RMSNorm", "RNN"))
"""They tell of inputs with a position: layers beside them work on every token."""


def products_of(parts: Iterable[Made], bases: Iterable[str], *, unseen: bool) -> Products:
    """What the layers of a model say: ``bases`` are the external classes that the program's own layers derive from."""
    found: dict[Product, None] = {}
    channels: list[int | None] = [0]
    names = set(bases)
    for part in parts:
        if part.qualname == "torch.nn.Module":
            continue
        if _is_convolutional(part):
            names.add("torch.nn.Conv2d")
            channels.append(None)
            continue
        names.add(part.qualname)
        if part.qualname.startswith(_CONVOLUTIONS):
            channels += _channels(part)
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
        beside_convolutions=any(name.startswith(_CONVOLUTIONS) for name in names),
        of_sequences=bool(names & _SEQUENCES),
        embeds="torch.nn.Embedding" in names,
        channels=_most(None if any(name.startswith(_CONVOLUTIONS) for name in bases) else 0, *channels),
    )


def _channels(part: Made) -> tuple[int | None, int | None]:
    """How many channels a convolution takes and gives."""
    lazy = "nn.Lazy" in part.qualname
    taken = None if lazy else _width(part.arguments.get("in_channels", 0))
    return taken, _width(part.arguments.get("out_channels", 0 if lazy else 1))


def _most(*numbers: int | None) -> int | None:
    """The largest number; None where one is not known."""
    known = [number for number in numbers if number is not None]
    return max(known) if len(known) == len(numbers) else None


def _product(layer: str, arguments: Arguments) -> Product:
    first, second = _LAYERS[layer]
    outputs = _width(arguments.get(second, 1))
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
