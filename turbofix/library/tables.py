"""What is known of torch and its neighbours, as tables: which name is which, and which call makes what.

A qualified name is canonical when it is the shortest one that the library documents: ``torch.optim.Adam``, not
``torch.optim.adam.Adam``. Names of libraries that are not listed here stay as the program writes them.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import NamedTuple

from turbofix.library.rows import lines_of, members_of, row
from turbofix.regex import regex


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def rows_of(name: str) -> list[list[str]]:
    """The rows of a table beside this file, by columns, and after them those of other packs."""
    return [line.split("\t") for line in lines_of(name)]


NAMES: dict[str, frozenset[str]] = {}
"""Names of libraries that are known together; the table says what they are."""

for _name, _, _words in rows_of("names.tsv"):
    NAMES[_name] = NAMES.get(_name, frozenset()).union(_words.split())


def is_loss(name: str) -> bool:
    """Whether it is a function that computes a loss."""
    found = row(name)
    return "loss" in found.traits and "criterion" not in found.gives


def is_scalar_loss(name: str) -> bool:
    """Whether it is a module whose result has no dimension unless ``reduction`` says otherwise."""
    return "scalar" in row(name).traits


class Gone(NamedTuple):
    """A row of ``gone.tsv``, which says what its columns are."""

    name: str
    instead: str
    since: str
    torch: str
    note: str


def parameters_of(name: str) -> tuple[str, ...] | None:
    """The parameters of a class that is made by position, in order: torch's optimizers and its loader."""
    return row(name).parameters or None


def loader_parameters() -> tuple[str, ...]:
    """The parameters of torch's loader, in order."""
    return row("torch.utils.data.DataLoader").parameters


@cache
def _shorter() -> dict[str, str]:
    return {row[0]: row[1] for row in rows_of("packages.tsv")}


@cache
def _gone() -> dict[str, Gone]:
    return {row[0]: Gone(*row) for row in rows_of("gone.tsv")}


@lru_cache(maxsize=8192)
def dropped(qualname: str) -> Gone | None:
    """What of a qualified name is gone."""
    parts = qualname.split(".")
    heads = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((_gone()[head] for head in heads if head in _gone()), None)


_CASTS = frozenset({"float", "double"})
_PRODUCING = ("torch", "Tensor", "torch.nn.functional")


NO_KERNEL, NO_MIXING = "has no kernel for 16 bits", "does not mix 16 and 32 bits"
_NO_KERNEL = NAMES["no_kernel"]
_MIXED = {
    name: tuple(zip(operands.split(), map(int, places.split()), strict=True))
    for name, operands, places in rows_of("operand_types.tsv")
}
"""What takes operands of one type, and which can be given that of the first: by name, and by place in a method."""
_PAIRS = NAMES["pairs"]
_UNFIT_PACKAGES = {
    **dict.fromkeys(("torch.linalg.", "torch.fft."), NO_KERNEL),
    **dict.fromkeys(("torch.sparse.", "torch_scatter.", "torch_sparse."), NO_MIXING),
}
_FIT = NAMES["fit"]
_OF_COMPLEX = ("torch.fft.i", "torch.fft.hfft", "torch.istft", "Tensor.istft")


@lru_cache(maxsize=1024)
def unfit_for_half(name: str) -> str | None:
    """Why an operation raises where one of its operands comes in 16 bits, as under autocast; None for most.

    That there is no kernel was seen on torch 2.13, each called with bfloat16; in float16 some have none either.
    """
    owner, _, last = name.rstrip("_").rpartition(".")
    if owner in ("torch", "Tensor"):
        if last in _NO_KERNEL:
            return NO_KERNEL
        if last in _MIXED:
            return NO_MIXING
    if owner in ("torch.linalg", "torch.fft") and last in _FIT:
        return None
    return next((why for package, why in _UNFIT_PACKAGES.items() if name.startswith(package)), None)


def is_sigmoid(name: str) -> bool:
    """Whether a call gives probabilities, of which 16 bits round those near 1 to 1."""
    return name in ("torch.sigmoid", "Tensor.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit")


def widened_operands(name: str) -> tuple[tuple[str, int], ...]:
    """The operands of what is unfit for 16 bits that can be given another type, by name and by place in the call.

    Nothing where they may be complex numbers, which have no other type.
    """
    owner, _, last = name.rstrip("_").rpartition(".")
    method = owner == "Tensor"
    if owner in ("torch", "Tensor") and last in _MIXED:
        return tuple((key, place + (not method)) for key, place in _MIXED[last])
    if not is_sigmoid(name) and (unfit_for_half(name) != NO_KERNEL or name.startswith(_OF_COMPLEX)):
        return ()
    places = ("input", "real", "abs", "A"), ("other", "imag", "angle", "B")
    return tuple((key, place - method) for place in range(1 + (last in _PAIRS)) for key in places[place])


def is_product(name: str) -> bool:
    """Whether a call multiplies matrices: a function of torch, or a method or operator of a tensor."""
    return name.rpartition(".")[0] in _PRODUCING and "autocast=half" in row(name).traits


def precision_of(name: str, *, half: bool) -> bool:
    """Whether an operation of torch gives 16 bits under autocast, where ``half`` says whether its operands have them.

    What autocast's lists do not name takes the precision of its operands.
    """
    traits = row(name).traits
    if "autocast=half" in traits:
        return True
    is_wide = "autocast=float32" in traits or name.rpartition(".")[2] in _CASTS
    return half and not is_wide and unfit_for_half(name) != NO_KERNEL


def is_widened(name: str) -> bool:
    """Whether autocast lets an operation of torch compute in 32 bits; outside of it the operands' 16 bits stay."""
    return name.rpartition(".")[0] in _PRODUCING and "autocast=float32" in row(name).traits


_CLASSIFIERS = ("alexnet", "convnext", "densenet", "efficientnet", "mobilenet", "resnet", "shufflenet", "vgg", "vit")


def returns_tensor(module: str) -> bool:
    """Whether a library's module gives one tensor, whatever it is given."""
    package, _, name = module.rpartition(".")
    if package in ("torch.nn", "timm"):
        calls = {trait for trait in row(module).traits if trait.startswith("calls=")}
        return calls <= {"calls=tensor"}
    return package.startswith("torchvision.models") and "segmentation" not in package and name.startswith(_CLASSIFIERS)


def is_factory(name: str) -> bool:
    """Whether a function of torch makes a tensor. Those named ``..._like`` make it where another tensor is."""
    return "factory" in row(name).traits


LIKE_TENSORS = ("torch.", "torchvision.transforms.", "torchaudio.", "einops.", "torch_geometric.data.")
"""Packages whose functions and classes give tensors, or what is pinned and moved as tensors are."""

FROM_HOST = NAMES["from_host"]
SWITCHES = NAMES["switches"]
PROGRESS = NAMES["progress"]

BARS = NAMES["bars"]


_ONE = frozenset({"tensor"})


def gives_tensors(qualname: str) -> bool:
    """Whether a library's function makes a tensor of tensors, as torch's own operations do."""
    return qualname.rpartition(".")[0] in NAMES["tensor_packages"] or row(qualname).gives == _ONE


TRAINERS_START = NAMES["trainers_start"]

STARTERS = ("multiprocessing.Process", "multiprocessing.spawn", "multiprocessing.start_processes")
"""How calls end that start processes, to which what the script has set is not handed down."""

CLIPS = NAMES["clips"]
SHOWING_METHODS = NAMES["showing_methods"]
LOGGING_METHODS = NAMES["logging_methods"]
PREPARES = NAMES["prepares"]
DEAD_ENDS = NAMES["dead_ends"]
# --- canonical names ------------------------------------------------------------------------------------------------

_FLATTENED = (
    ("torch.nn.modules.", "torch.nn."),
    *((f"torchvision.models.{kind}.",) * 2 for kind in ("detection", "optical_flow", "segmentation", "video")),
    ("torchvision.models.", "torchvision.models."),
    ("torchvision.datasets.", "torchvision.datasets."),
    ("transformers.models.", "transformers."),
)
"""Packages that re-export the members of all their modules."""

_OPTIMIZER_MODULES = NAMES["optimizer_modules"]
_SAME = {row[0]: row[1] for row in rows_of("same.tsv")}


@lru_cache(maxsize=8192)
def canonical(qualname: str) -> str:
    """The canonical name of a library's member."""
    if "." not in qualname:
        return qualname
    package, _, member = qualname.rpartition(".")
    if package in _shorter():
        qualname = f"{_shorter()[package]}.{member}"
    elif member[:1].isupper() or package.startswith("torchvision.models."):
        for prefix, short in _FLATTENED:
            if package.startswith(prefix) or package + "." == prefix:
                qualname = short + member
                break
        else:
            if package.startswith("torch.optim.") and package[12:] in _OPTIMIZER_MODULES:
                qualname = f"torch.optim.{member}"
    return _SAME.get(qualname, qualname)


# --- which call makes what ------------------------------------------------------------------------------------------

_KINDS = {name: kind for kind, names in rows_of("kinds.tsv") for name in names.split()}
_KINDS |= {**dict.fromkeys(NAMES["parsers"], "argparse"), **dict.fromkeys(PROGRESS, "progress")}


def is_plain_loader(name: str) -> bool:
    """Whether a class makes batches as torch's loader does and takes its arguments, as ``kinds.tsv`` says of it."""
    return _KINDS.get(name) == "loader"


_OPEN_PACKAGES = rows_of("makes.tsv")
"""Packages whose members (or classes: "Upper") all make one kind of object; the first that fits decides."""


@lru_cache(maxsize=8192)
def kind_of(qualname: str) -> str | None:
    """The kind of object that calling this name makes (see ``values.Made``); None where it is not known to make one."""
    kind = _KINDS.get(qualname)
    if kind is not None:
        return kind
    package, _, member = qualname.rpartition(".")
    top = package.partition(".")[0]
    if member in ("from_pretrained", "from_config", "from_name") and top in NAMES["pretrained"]:
        cls = package.rpartition(".")[2]
        if any(part in cls for part in ("Tokenizer", "Processor", "Extractor")):
            return "tokenizer"
        if "Config" in cls:
            return "config"
        return "scheduler_config" if "Scheduler" in cls else "module"
    if top == "transformers":
        return _transformers_kind(package, member)
    if top == "diffusers" and member[:1].isupper():
        return "module" if member.endswith("Model") or member.startswith("Autoencoder") else None
    if package in ("torch.utils.data", "torch_geometric.loader", "torch_geometric.data", "dgl.dataloading"):
        if member.endswith("Sampler"):
            return "sampler"
        if member.endswith(("Loader", "DataLoader")):
            return "loader"
        return None
    if top == "torchtext" and (member.endswith("Iterator") or package.endswith("Iterator")):
        return "loader"
    for prefix, which, kind in _OPEN_PACKAGES:
        if qualname.startswith(prefix):
            if not kind or (which == "Upper" and not (member[:1].isupper() or member == "*")):
                return None
            return "criterion" if kind == "module" and member.endswith("Loss") else kind
    return "module" if is_named_as_convolutional(qualname) else None


_ARCHITECTURE = regex(
    r"\w+(\.\w+)*\.((Wide|SE)?(Dense|Efficient|Google|Mnas|Mobile|Reg|Res|Shuffle|Squeeze)_?Net|Inception|ResNe[sx]t|VGG"
    r"|DeepLab|(Nested|Attention|R2|Attn)?_?U_?Net)(?!\w*(Block|Config|Data|Encoder|Layer|Loss|Score|Transform|Weights))\w*",
    re.IGNORECASE,
)


def is_named_as_convolutional(qualname: str) -> bool:
    """Whether a library's class has the name of an architecture of convolutions."""
    class_like = qualname.rpartition(".")[2][:1].isupper()
    others = qualname.startswith(("torch.", "tensorflow.", "keras.", "jax.", "flax.", "monai.", "transformers."))
    return class_like and not others and _ARCHITECTURE.fullmatch(qualname) is not None


def _transformers_kind(package: str, member: str) -> str | None:
    if member.startswith("get_") and "schedule" in member:
        return "scheduler"
    if member.endswith("Config"):
        return "config"
    if member.endswith(("Tokenizer", "TokenizerFast", "Processor")):
        return "tokenizer"
    home = package == "transformers" or package.startswith("transformers.modeling_")  # the modules of old versions
    if member[:1].isupper() and ("Model" in member or "For" in member) and home:
        return "module"
    return None


@cache
def star_names() -> dict[str, frozenset[str]]:
    """What ``from module import *`` brings, of the names that programs use."""
    found: dict[str, frozenset[str]] = {}
    for modules, names in rows_of("star.tsv"):
        for module in modules.split():
            found[module] = found.get(module, frozenset()) | words(names)
    for module in ("torch", "torch.nn", "torch.nn.modules", "torch.nn.functional", "torch.optim"):
        found[module] = found.get(module, frozenset()) | members_of(module.removesuffix(".modules"))
    return found


WEIGHED = regex(
    r"torch\.nn\.(Linear|Bilinear|Conv\w*|LazyConv\w*|LazyLinear|Embedding\w*|LSTM|GRU|RNN|Transformer\w*|Multihead\w*)$"
    r"|torchvision\.models\.|timm\.|transformers\.|torch\.hub\."
)
"""Modules that certainly have weights."""
