"""Which convolutions a model has: torch's own layers, with what literals tell of them, and networks of libraries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from turbofix.dataflow.facts import constants
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import Const, Made, Option, members
from turbofix.domain.values import Sequence as Listed
from turbofix.library.tables import is_named_as_convolutional
from turbofix.regex import regex
from turbofix.training.model import Convolution
from turbofix.training.models.products import is_convolutional, names_of

_LAYER = regex(r"torch\.nn\.(Lazy)?Conv(Transpose)?([123])d")

_NETWORKS = regex(
    r"segmentation_models_pytorch\.(create_model|[A-Z]\w*)|monai\.networks\.nets\.(?!ViT|SwinUNETR|UNETR)[A-Z]\w*"
    r"|efficientnet_pytorch\.EfficientNet(\.from_(pretrained|name))?|pretrainedmodels\.\w+"
    r"|torchvision\.models\.(detection|segmentation|optical_flow)\.(?!FastRCNNPredictor|TwoMLPHead)\w+"
    r"|torchvision\.models\.(vgg|alexnet|convnext|efficientnet)\w*"
    r"|diffusers\.([a-z_.0-9]+\.)?(UNet2D|Autoencoder|VQModel|ControlNet|StableDiffusion)\w*(\.from_\w+)?"
    r"|transformers\.([a-z_.0-9]+\.)?(Bit|ConvNext|(Conditional|Deformable|RT)?Detr|DFine|EfficientNet|MobileNetV"
    r"|RegNet|ResNet|TableTransformer)\w*(\.from_\w+)?",
    re.IGNORECASE,
)
"""Networks of libraries that are made of convolutions over pictures."""

_VIDEO = regex(r"torchvision\.models\.video\.(?!mvit|swin)\w+")
_OF_CHOICE = ("timm.create_model", "torchvision.models.get_model")
"""What makes a network by its name."""


def convolutions_of(parts: Sequence[Made], bases: Iterable[str]) -> tuple[Convolution, ...]:
    """The convolutions among the layers of a model, each kind of them once; ``bases``: what its classes derive from."""
    found: dict[Convolution, None] = {}
    for part in parts:
        layer = _LAYER.fullmatch(part.qualname)
        if layer is not None:
            found[_convolution(part.qualname, part.arguments, layer)] = None
        elif is_convolutional(part) or _NETWORKS.fullmatch(part.qualname):
            dims = 3 if "monai" in part.qualname and _number(part.arguments.get("spatial_dims", 0)) != 2 else 2
            found[Convolution(part.qualname, dims, whole=True)] = None
        elif _VIDEO.fullmatch(part.qualname):
            found[Convolution(part.qualname, 3, whole=True)] = None
        elif is_named_as_convolutional(part.qualname) or (part.qualname in _OF_CHOICE and not names_of(part)):
            found[Convolution(part.qualname, 2, whole=True, unknown=True)] = None
    for base in bases:
        layer = _LAYER.fullmatch(base)
        if layer is not None:
            found[Convolution(base, int(layer[3]))] = None
    return tuple(found)


def _convolution(qualname: str, arguments: Arguments, layer: re.Match[str]) -> Convolution:
    lazy = layer[1] is not None
    shift = -1 if lazy else 0
    if arguments.open or arguments.star:
        return Convolution(qualname, int(layer[3]))
    kernel, stride = arguments.get("kernel_size", 2 + shift), arguments.get("stride", 3 + shift)
    groups = arguments.get("groups", (7 if layer[2] else 6) + shift)
    return Convolution(
        qualname,
        int(layer[3]),
        inputs=None if lazy else _number(arguments.get("in_channels", 0)),
        outputs=_number(arguments.get("out_channels", 1 + shift)),
        groups=_number(groups) if groups is not None else 1,
        cuts=_is_same(kernel, stride),
    )


def _is_same(kernel: Passed | None, stride: Passed | None) -> bool:
    """Whether the kernel is as large as the stride, so that each number of the input is read once."""
    if kernel is None or stride is None:
        return stride is None and _number(kernel) == 1
    if kernel.node is not None and stride.node is not None and ast.dump(kernel.node) == ast.dump(stride.node):
        return True
    return _number(kernel) is not None and _number(kernel) == _number(stride)


def _number(passed: Passed | None) -> int | None:
    """The largest number that is passed, or that stands in the tuple that is; None where that is not known."""
    if passed is None:
        return None
    found: list[object] = []
    for member in members(passed.value):
        if isinstance(member, (Const, Option)):
            found += constants(member)
        elif isinstance(member, Listed) and member.items:
            for item in member.items:
                if not all(isinstance(each, (Const, Option)) for each in members(item)):
                    return None
                found += constants(item)
        else:
            return None
    numbers = [each for each in found if isinstance(each, int)]
    return max(numbers) if numbers and len(numbers) == len(found) else None
