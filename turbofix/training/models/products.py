"""Which layers of a model multiply matrices, and how wide they are where literals (or options' defaults) tell."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from turbofix.dataflow.facts import constants
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import Const, Made, Option, members
from turbofix.regex import regex
from turbofix.training.model import Product, Products

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

_STACKS = ("torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder")
"""What repeats a layer that it is given, which is looked at by itself."""

_MODULE = regex(r"^torch_geometric\.nn\.(models|conv|dense)\.(?=\w+$)")
"""What PyTorch Geometric has in the module that defines it, beside its public name."""

_ATTENTION: dict[str, tuple[str, int | None]] = {
    "torch.nn.MultiheadAttention": ("embed_dim", None),
    "torch.nn.Transformer": ("d_model", 5),
    "torch.nn.TransformerEncoderLayer": ("d_model", 2),
    "torch.nn.TransformerDecoderLayer": ("d_model", 2),
}
"""Layers with an attention: the parameter, the first one, of its width, and where ``dim_feedforward`` stands."""

_WIDTH, _BEHIND = 512, 2048  # the defaults of torch.nn.Transformer and, the second, of its layers

_OTHERS = frozenset(
    (
        *("torch.nn.LazyLinear", "torch.nn.Bilinear", "torch.nn.AdaptiveLogSoftmaxWithLoss"),
        *_ATTENTION,
        *(f"torch_geometric.nn.{name}" for name in ("GAT", "GCN", "GraphSAGE", "GIN", "MLP")),
    )
)
"""Other layers with products, whose widths are not known where a class of the program's own derives from them."""

_WITHOUT = frozenset(
    f"torch_geometric.nn.{name}"
    for name in (
        *("APPNP", "BatchNorm", "DeepGCNLayer", "DiffGroupNorm", "DynamicEdgeConv", "EdgeConv", "GINConv", "GINEConv"),
        *("GraphNorm", "GraphSizeNorm", "HeteroConv", "InstanceNorm", "JumpingKnowledge", "LayerNorm", "LightGCN"),
        *("MessageNorm", "PairNorm", "Sequential"),
    )
)
"""Layers of other libraries without a product of their own; what they are given is looked at by itself."""

FAMILIES = (
    *("densenet", "efficientnet", "googlenet", "inception", "mnasnet", "mobilenet", "regnet", "resnet", "resnext"),
    *("segmentation.deeplabv3", "segmentation.fcn", "segmentation.lraspp", "shufflenet", "squeezenet", "wide_resnet"),
    *("ecaresnet", "hrnet", "resnest", "rexnet", "seresnet", "seresnext", "xception"),
)
"""Names of convolutional networks that end in one thin linear layer, as torchvision and timm have them."""

_LARGE = ("beit", "cait", "convnext", "deit", "eva", "mixer_", "swin", "vit_")
"""Names of torchvision's and timm's networks with linear layers over all positions."""

_WIDE_ENDS = ("vgg", "alexnet", *(f"detection.{name}_" for name in ("fasterrcnn", "keypointrcnn", "maskrcnn")))
"""Networks of torchvision that end in wide layers, unless these were replaced."""

_SMALLEST = (192, 768)
"""The largest matrix that the narrowest of the transformers has which are counted by their kind (ViT-Tiny)."""

_SMALL_CLASSES = (
    *("Autoformer", "Bit", "ConvNext", "DecisionTransformer", "EfficientFormer", "EfficientNet", "Informer", "Levit"),
    *("MobileNet", "MobileViT", "PatchTS", "PoolFormer", "RegNet", "ResNet", "Segformer", "TimeSeries", "Timm", "Van"),
    *("AutoBackbone", "AutoModelForDepth", "AutoModelForImage", "AutoModelForInstance", "AutoModelForKeypoint"),
    *("AutoModelForObject", "AutoModelForSemantic", "AutoModelForUniversal", "AutoModelForZeroShotObject"),
)
"""Classes of transformers whose networks are convolutions or narrow, or may be."""

_SMALL = regex(
    r"(?:^|[-_/.])(?:debug|dummy|micro|mini|nano|pico|random|small-test|test|tiny|toy)(?:[-_/.]|$)", re.IGNORECASE
)
"""Words in the names of checkpoints that are narrow, most of them for tests."""

QUANTIZED = ("load_in_4bit", "load_in_8bit", "quantization_config")

_CONVOLUTIONS = tuple(f"torch.nn.{lazy}Conv" for lazy in ("", "Lazy"))

_LABELS = 64
"""Entries up to which an embedding is taken to be of classes; alphabets and vocabularies have more."""

_GROUPS = 6
"""Where ``groups`` stands among a convolution's parameters."""

_GRAPHS = ("torch_geometric.nn.", "dgl.nn.")

_SEQUENCES = frozenset(
    (*(f"torch.nn.{name}" for name in ("GRU", "LSTM", "LayerNorm", "RMSNorm", "RNN")), *_ATTENTION, *_STACKS)
)
"""They tell of inputs with a position: layers beside them work on every token."""


def products_of(parts: Sequence[Made], bases: Iterable[str], *, unseen: bool) -> Products:
    """What the layers of a model say: ``bases`` are the external classes that the program's own layers derive from."""
    found: dict[Product, None] = {}
    channels: list[int | None] = [0]
    names = set(bases)
    beside_network = False
    for part in parts:
        qualname = _MODULE.sub("torch_geometric.nn.", part.qualname)
        if qualname == "torch.nn.Module":
            continue
        if is_convolutional(part):
            names.add("torch.nn.Conv2d")
            channels.append(None)
            beside_network = True
            continue
        names.add(qualname)
        if qualname.startswith(_CONVOLUTIONS):
            channels += _channels(part)
        if qualname in _LAYERS:
            found[_product(qualname, part.arguments)] = None
        elif qualname in _ATTENTION:
            found.update(dict.fromkeys(_attention(qualname, part.arguments)))
        elif qualname in _OTHERS:
            found[Product(qualname)] = None
        elif _is_wide(part) or _is_named(part, _LARGE):
            found[Product(part.qualname, *_SMALLEST, by_position=True)] = None
        elif _is_named(part, _WIDE_ENDS):
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
        beside_network=beside_network,
        of_sequences=bool(names & _SEQUENCES),
        of_graphs=any(name.startswith(_GRAPHS) for name in names),
        embeds="torch.nn.Embedding" in bases
        or any(part.qualname == "torch.nn.Embedding" and not _is_of_labels(part) for part in parts),
        channels=_most(None if any(name.startswith(_CONVOLUTIONS) for name in bases) else 0, *channels),
    )


def _is_of_labels(part: Made) -> bool:
    """Whether an embedding is of a few classes, one for each sample, and not of the tokens of a text."""
    known = _width(part.arguments.get("num_embeddings", 0))
    return known is not None and known <= _LABELS


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
    taken, given = arguments.get(first, 0), arguments.get(second, 1 if second != first else 0)
    inputs, outputs = _range(taken), _range(given)
    heads = arguments.get("heads", 2) if layer.endswith(("GATConv", "GATv2Conv")) else None
    if heads is not None and outputs is not None:
        several = _range(heads)
        outputs = (outputs[0] * several[0], outputs[1] * several[1]) if several is not None else None
    if inputs is None or outputs is None:
        return Product(layer, inputs[1] if inputs is not None else None, outputs[1] if outputs is not None else None)
    pairs = (inputs[1], outputs[0]), (inputs[0], outputs[1])
    both = inputs[0] != inputs[1] and outputs[0] != outputs[1]
    return Product(layer, inputs[1], outputs[1], max(pairs, key=math.prod) if both else None)


def _attention(layer: str, arguments: Arguments) -> list[Product]:
    """The products of a layer with an attention: its projections, and the layers behind it."""
    name, behind = _ATTENTION[layer]
    if arguments.open or arguments.star:
        return [Product(layer)]
    passed = arguments.get(name, 0)
    width = _width(passed) if passed is not None else _WIDTH if layer == "torch.nn.Transformer" else None
    found = [Product(layer, width, width)]
    if behind is not None:
        passed = arguments.get("dim_feedforward", behind)
        found.append(Product(layer, width, _width(passed) if passed is not None else _BEHIND))
    return found


def _width(passed: Passed | None) -> int | None:
    """The number that is passed, the largest where it is one of several."""
    found = _range(passed)
    return found[1] if found is not None else None


def _range(passed: Passed | None) -> tuple[int, int] | None:
    """The smallest and the largest number that is passed; None where it may be another one."""
    if passed is None or not all(isinstance(member, (Const, Option)) for member in members(passed.value)):
        return None
    found = list(constants(passed.value))
    numbers = [each for each in found if isinstance(each, int) and each > 0]
    return (min(numbers), max(numbers)) if numbers and len(numbers) == len(found) else None


# --- what other libraries are known for ---------------------------------------------------------------------------


def names_of(part: Made) -> list[str]:
    """The names of a ready-made network of timm or torchvision that a call can make; none where they are not known."""
    package, _, name = part.qualname.partition("torchvision.models.")
    if part.qualname not in ("timm.create_model", "torchvision.models.get_model"):
        return [] if package or not name else [name.lower()]
    passed = part.arguments.get("model_name" if part.qualname.startswith("timm") else "name", 0)
    named = list(constants(passed.value)) if passed is not None else []
    known = all(isinstance(each, str) and each for each in named)
    return [re.sub("^(hf[-_]hub:)?(timm/)?(tf_|gluon_)?", "", str(each).lower()) for each in named] if known else []


def _is_wide(part: Made) -> bool:
    """Whether a network of transformers or diffusers is known to be wide, and made in float32."""
    library = part.qualname.partition(".")[0]
    package, _, call = part.qualname.rpartition(".")
    cls = package.rpartition(".")[2]
    if library not in ("transformers", "diffusers") or call != "from_pretrained":
        return False
    if library == "transformers" and cls.startswith(_SMALL_CLASSES):
        return False  # (a configuration may make it narrow)
    if library == "diffusers" and "Transformer" not in cls and not cls.startswith(("UNet2DCondition", "ControlNet")):
        return False
    if any(name in part.arguments.keywords for name in QUANTIZED) or not _is_in_float32(part.arguments):
        return False
    passed = part.arguments.get("pretrained_model_name_or_path", 0)
    names = constants(passed.value) if passed is not None else ()
    return not any(isinstance(name, str) and _SMALL.search(name) for name in names)


def _is_in_float32(arguments: Arguments) -> bool:
    """Whether nothing asks for another precision, nor for that of the checkpoint (``"auto"``)."""
    passed = arguments.keywords.get("torch_dtype") or arguments.keywords.get("dtype")
    found = [getattr(each, "qualname", getattr(each, "value", "")) for each in members(passed.value)] if passed else []
    return all(each in (None, "float32", "torch.float32", "torch.float") for each in found)


def is_convolutional(part: Made) -> bool:
    """Whether a library's ready-made model is a convolutional network with one thin linear layer at its end."""
    return _is_named(part, FAMILIES)


def _is_named(part: Made, kinds: tuple[str, ...]) -> bool:
    """Whether all networks of timm or torchvision that a call can make have names that begin so."""
    names = names_of(part)
    return bool(names) and all(name.startswith(kinds) for name in names)
