"""Writes ``generated/torch.tsv``, the rows of what torch's names do: ``python -m turbofix.library.generate [FILE]``.

A developer's command, run for each release of torch; nothing else imports this. A cell is filled by the first of these
that knows: the schemas of torch's operations and their tags, the lists of its autocast, its stubs, and small calls,
of tensors on a GPU that need not exist (``FakeTensorMode``) or of real ones on the CPU. What none of them tells is
``-``: not known, which is never "no".
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import logging
import random
import re
import sys
import textwrap
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from turbofix.library.tables import words

FILE = Path(__file__).with_name("generated") / "torch.tsv"
COLUMNS = ("name", "gives", "effects", "traits", "parameters")
HEADER = """\
# What torch's names do. Written by `python -m turbofix.library.generate` from torch {version}; do not edit: calls.tsv,
# by hand, has precedence. Columns are separated by tabs, `-` is "not known", never "no": name; what a call gives
# (`a|b`: by its arguments); effects; traits; parameters (of what is made by position). See docs/library-rows.md.
"""

_PACKAGES = {"nn": "torch.nn.functional.", "linalg": "torch.linalg.", "fft": "torch.fft.", "special": "torch.special."}
_PREFIXED = ("linalg", "fft", "special")
_OPERATORS = frozenset(
    f"__{name}__"
    for name in words(
        """
        add radd sub rsub mul rmul truediv rtruediv rdiv div floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg abs
        invert and or xor eq ne lt le gt ge getitem len bool int float index contains
        """
    )
)
_NOT_CALLED = words(
    """
    backward apply_ map_ map2_ set_ resize_ share_memory_ register_hook register_post_accumulate_grad_hook from_file
    module_load to_mkldnn mkldnn_max_pool2d mkldnn_max_pool3d rename refine_names align_to unflatten cuda xpu ipu hpu
    """
)
"""What is not tried: it needs hardware, files or functions, or names of dimensions."""


class Overload(NamedTuple):
    """One schema of an operation, with what its tags say."""

    schema: Any
    tags: frozenset[str]


class Row:
    """What is found out of one name."""

    def __init__(self) -> None:
        self.gives: list[str] = []
        self.effects: list[str] = []
        self.traits: list[str] = []
        self.parameters: list[str] = []

    def line(self, name: str) -> str:
        """The row as it stands in the table."""
        cells = "|".join(self.gives), *(" ".join(sorted(set(each))) for each in (self.effects, self.traits))
        return "\t".join((name, *(cell or "-" for cell in (*cells, " ".join(self.parameters)))))

    def is_plain(self, name: str) -> bool:
        """Whether it says nothing, or of a method only what is taken of all: that it gives a tensor; in place, as its
        name ends with ``_``."""
        if self.effects or self.traits or self.parameters:
            return False
        is_method = name.startswith("torch.Tensor.")
        return not self.gives or (is_method and self.gives in (["tensor"], ["self"] if name.endswith("_") else []))


# --- names ------------------------------------------------------------------------------------------------------------


def names_of_torch() -> dict[str, Any]:
    """The names that get a row: of functions, methods, layers, optimizers, and of the loader."""
    import torch

    found: dict[str, Any] = {}
    for name in (*torch.__all__, *torch.functional.__all__):
        thing = getattr(torch, name, None)
        if callable(thing) and not isinstance(thing, type):
            found[f"torch.{name}"] = thing
    for name, thing in vars(torch).items():
        if isinstance(thing, type(torch.FloatTensor)):  # the old names of types of tensors
            found[f"torch.{name}"] = thing
    for package in ("nn.functional", "linalg", "fft", "special"):
        owner = _at(torch, package)
        for name, thing in vars(owner).items():
            home = str(getattr(thing, "__module__", None) or "torch")
            is_function = callable(thing) and not isinstance(thing, (type, types.ModuleType))
            borrowed = home in ("torch._jit_internal", "torch.overrides", "torch.types") or not home.startswith("torch")
            if not name.startswith("_") and is_function and not borrowed:
                found[f"torch.{package}.{name}"] = thing
    for name in dir(torch.Tensor):
        if (name in _OPERATORS or not name.startswith("_")) and name != "index":  # which is undocumented
            found[f"torch.Tensor.{name}"] = getattr(torch.Tensor, name, None)
    for package, base in (("nn", torch.nn.Module), ("optim", torch.optim.Optimizer)):
        for name, thing in vars(_at(torch, package)).items():
            if isinstance(thing, type) and issubclass(thing, base) and thing is not base:
                found[f"torch.{package}.{name}"] = thing
    found["torch.utils.data.DataLoader"] = torch.utils.data.DataLoader
    return found


def _at(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = getattr(root, part)
    return root


# --- schemas, lists and stubs -----------------------------------------------------------------------------------------


def schemas() -> dict[str, list[Overload]]:
    """The schemas of each public name, but those that write to ``out=`` or know dimensions by names."""
    import torchgen
    from torchgen.model import FunctionSchema

    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, list[Overload]] = defaultdict(list)
    for entry in yaml.load(path.read_text("utf-8"), loader):
        if "Dimname" in entry["func"]:
            continue
        schema = FunctionSchema.parse(entry["func"])
        name, package = str(schema.name.name), entry.get("python_module")
        if schema.is_out_fn() or (name.startswith("_") and not schema.name.name.dunder_method):
            continue
        tags = entry.get("tags", [])
        overload = Overload(schema, frozenset([tags] if isinstance(tags, str) else tags))
        variants = entry.get("variants", "function")
        if "function" in variants:
            short = name.removeprefix(f"{package}_") if package in _PREFIXED else name
            found[_PACKAGES.get(package, "torch.") + short].append(overload)
        if "method" in variants:
            found[f"torch.Tensor.{name}"].append(overload)
    for name, stands_for in (("T", "numpy_T"), ("H", "matrix_H"), ("data", "detach")):
        found[f"torch.Tensor.{name}"] = found[f"torch.Tensor.{stands_for}"]
    return found


def given_by(schema: Any) -> str:
    """What an operation of this schema gives, in a word."""
    returns = schema.returns
    kinds = [str(each.type) for each in returns]
    if not kinds:
        return "none"
    if len(kinds) > 1:
        return f"tensors:{len(kinds)}" if set(kinds) == {"Tensor"} else "other"
    note = returns[0].annotation
    if kinds == ["Tensor"]:
        return "tensor" if note is None else "self" if note.is_write else "view"
    if kinds == ["Tensor[]"]:
        return "tensors" if note is None else "views"
    if kinds[0] in ("int", "SymInt", "float", "Scalar"):
        return "number"
    return {"bool": "bool", "ScalarType": "dtype"}.get(kinds[0], "other")


def autocast_lists() -> dict[str, str]:
    """Operation -> half, float32 or promote: the lists of autocast on CUDA."""
    import torch

    text = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text("utf-8")
    lists = {
        "LOWER_PRECISION_FP": "half",
        "FP32": "float32",
        "FP32_SET_OPT_DTYPE": "float32",
        "DIFFERENT_REDISPATCH_SIGNATURE": "float32",
        "PROMOTE": "promote",
    }
    found: dict[str, str] = {}
    for macro, word in lists.items():
        body = re.search(rf"#define AT_FORALL_{macro}\(_\)((?:[^\n]*\\\n)*[^\n]*)", text)
        assert body is not None, f"autocast_mode.h has no list {macro}"
        for name in re.findall(r"_\(\s*(?:ADD_NS\()?(\w+)", body[1]):
            found.setdefault(name, word)
    return found


def stubs() -> dict[str, list[str]]:
    """What torch's stubs say that functions and methods give, in words, and ``device``, where they take one."""
    import torch

    home = Path(torch.__file__).parent
    found: dict[str, list[str]] = defaultdict(list)

    def read(body: list[ast.stmt], owner: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                word = word_of(ast.unparse(node.returns))
                if owner == "torch." and any(each.arg == "device" for each in (*node.args.args, *node.args.kwonlyargs)):
                    word = "device" if word == "tensor" else word
                if word is not None and word not in found[owner + node.name]:
                    found[owner + node.name].append(word)

    read(ast.parse((home / "_C/_VariableFunctions.pyi").read_text("utf-8")).body, "torch.")
    read(ast.parse((home / "nn/functional.pyi").read_text("utf-8")).body, "torch.nn.functional.")
    body = ast.parse((home / "_C/__init__.pyi").read_text("utf-8")).body
    read(body, "torch.")
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == "TensorBase":
            read(node.body, "torch.Tensor.")
    return found


def word_of(annotation: Any) -> str | None:
    """The word for what an annotation says; None where it says nothing that is told apart."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)
    text = text if isinstance(annotation, str) or not hasattr(annotation, "__args__") else str(annotation)
    text = text.replace("torch.", "").replace("builtins.", "").replace("typing.", "").strip("'\"")
    if text in ("Tensor", "Self"):
        return "tensor"
    if text.startswith("return_types."):
        return None  # several tensors under names, which its schema tells
    inside = re.fullmatch(r"[Tt]uple\[(Tensor(?:, Tensor)*)\]", text)
    if inside is not None:
        return f"tensors:{inside[1].count('Tensor')}"
    if re.fullmatch(r"([Tt]uple|[Ll]ist|Sequence)\[Tensor(, \.\.\.)?\]", text):
        return "tensors"
    if text in ("int", "_int", "float", "_float", "Number", "Size", "_size", "tuple[_int, ...]", "tuple[int, ...]"):
        return "number"
    if ("Tensor" in text and "TypeIs" not in text and "TypeGuard" not in text) or re.search(
        r"Any|\b_?[A-Z]$|Union|\|", text
    ):
        return None
    plain = {"None": "none", "bool": "bool", "_bool": "bool", "dtype": "dtype", "_dtype": "dtype"}
    return plain.get(text) or ("bool" if "Type" in text else "other")


# --- small calls ------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What one call gave, or that it had to wait for the GPU."""

    result: Any = None
    waits: bool = False
    dynamic: bool = False


_SHAPES = ((4, 4), (4,), (2, 4, 4), (2, 4, 4, 4), (2, 4, 4, 4, 4), ())


def attempts(schema: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments for an operation, made up from its schema: a tensor stands as (shape, whether it holds integers)."""
    arguments = [each for each in schema.arguments.flat_all if each.default is None]
    tensors = [each for each in arguments if str(each.type) in ("Tensor", "Tensor[]")]
    only = {each.name for each in schema.arguments.flat_kwarg_only}
    for shape in _SHAPES:
        for whole in itertools.product((False, True), repeat=min(len(tensors), 2)):
            if whole and whole[0] and len(whole) > 1:
                continue
            positions: list[Any] = []
            keywords: dict[str, Any] = {}
            for each in arguments:
                at = tensors.index(each) if each in tensors else 0
                value = _made_up(str(each.type), each.name, shape, bool(whole) and at > 0 and whole[-1])
                if whole == (True,):
                    value = _made_up(str(each.type), each.name, shape, True)
                if each.name in only:
                    keywords[each.name] = value
                else:
                    positions.append(value)
            yield tuple(positions), keywords


def _made_up(kind: str, name: str, shape: tuple[int, ...], whole: bool) -> Any:
    if kind.startswith("Tensor"):
        return [(shape, whole), (shape, whole)] if "[" in kind else (shape, whole)
    if "[" in kind:
        many = kind.startswith(("int[", "SymInt[")) and name in ("dim", "dims", "dim0")
        return [0] if many else list(shape) or [1]
    if kind.startswith(("int", "SymInt")):
        return 0 if name.startswith(("dim", "axis", "source", "destination", "start", "index")) else 1
    if kind.startswith(("float", "Scalar")) and not kind.startswith("ScalarType"):
        return 0.5 if kind.startswith("float") else 1
    return {"bool": False, "bool?": False}.get(kind)


def of_python(function: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments for a function that is written in Python, made up from its signature."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [each for each in found if each.default is each.empty and each.kind is not each.KEYWORD_ONLY][:4]
    needed = [each for each in needed if each.kind is not each.VAR_KEYWORD]
    for shape in _SHAPES:
        for whole in (False, True):
            values: list[Any] = []
            for number, each in enumerate(needed):
                kind = str(each.annotation)
                if "Tensor" in kind or each.annotation is each.empty or number == 0:
                    values.append((shape, whole and number > 0))
                else:
                    values.append(2 if "int" in kind or "size" in each.name else 0.5)
            yield tuple(values), {}


def call(  # noqa: PLR0913
    function: Callable[..., Any],
    given: tuple[tuple[Any, ...], dict[str, Any]],
    *,
    dtype: Any = None,
    device: str = "cuda:0",
    autocast: bool = False,
    gradient: bool = False,
) -> Seen | None:
    """What a function gives for such arguments; None where it refuses them."""
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    fake = device != "cpu"

    def real(value: Any) -> Any:
        if isinstance(value, list):
            return [real(each) for each in value]
        if type(value) is tuple and len(value) == 2 and type(value[0]) is tuple:  # (shape, whether it holds integers)
            if value[1]:
                return (torch.empty if fake else torch.zeros)(value[0], dtype=torch.int64, device=device)
            kind = dtype or torch.float32
            made = torch.empty(value[0], dtype=kind, device=device) if fake else torch.full(value[0], 0.5, dtype=kind)
            return made.requires_grad_() if gradient else made
        return value

    positions, keywords = [real(each) for each in given[0]], {name: real(each) for name, each in given[1].items()}
    try:
        if autocast:
            torch.set_autocast_enabled("cuda", True)
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            torch.set_autocast_cache_enabled(False)
        with torch.set_grad_enabled(gradient):
            result = function(*positions, **keywords)
        return None if result is NotImplemented else Seen(result)
    except DynamicOutputShapeException:
        return Seen(waits=True, dynamic=True)
    except DataDependentOutputException:
        return Seen(waits=True)
    except Exception:
        return None
    finally:
        torch.set_autocast_enabled("cuda", False)


def first_tensor(result: Any) -> Any:
    """The first tensor of a result; None where it has none."""
    import torch

    flat = result if isinstance(result, (tuple, list)) else (result,)
    return next((each for each in flat if isinstance(each, torch.Tensor)), None)


@functools.cache
def gpu() -> Any:
    """The mode in which tensors lie on a GPU that need not exist."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def seen_on_gpu(
    function: Callable[..., Any], given: tuple[tuple[Any, ...], dict[str, Any]]
) -> tuple[str | None, Seen] | None:
    """What autocast makes of a call, and the call itself, of tensors on a GPU that need not exist."""
    import torch

    with gpu():
        seen = call(function, given)
        if seen is None:
            return None
        plain = first_tensor(seen.result)
        if plain is None or plain.dtype != torch.float32:
            return None, seen
        cast = call(function, given, autocast=True)
        narrow = call(function, given, dtype=torch.bfloat16)
        narrow_cast = call(function, given, dtype=torch.bfloat16, autocast=True)
    kinds = [
        None if each is None else getattr(first_tensor(each.result), "dtype", None)
        for each in (cast, narrow, narrow_cast)
    ]
    if kinds[0] == torch.bfloat16:
        return "half", seen
    if kinds[2] == torch.float32 and kinds[1] in (torch.bfloat16, None):
        return "float32", seen
    return None, seen


def cuts_graph(function: Callable[..., Any], given: tuple[tuple[Any, ...], dict[str, Any]]) -> bool | None:
    """Whether what a call on the CPU gives has no graph, although its operands have one; None where it cannot tell."""
    seen = call(function, given, device="cpu", gradient=True)
    result = None if seen is None else first_tensor(seen.result)
    return None if result is None else not result.requires_grad


# --- rows -------------------------------------------------------------------------------------------------------------


def row_of(name: str, thing: Any, overloads: list[Overload], casts: dict[str, str], told: list[str]) -> Row:
    """The row of a function or method."""
    row = Row()
    last = name.rpartition(".")[2]
    known = [given_by(each.schema) for each in overloads]
    around = is_of_python(thing)
    row.gives = [] if around else list(dict.fromkeys(known))
    is_factory = "device" in told
    for word in ["tensor" if word == "device" else word for word in told] or annotated(thing):
        if not any(_family(word) == _family(each) for each in row.gives):
            row.gives.append(word)
    for tag in ("data_dependent_output", "dynamic_output_shape"):
        count = sum(tag in each.tags for each in overloads)
        if count:
            row.effects.append("sync" if count == len(overloads) else "sync?")
            if tag == "dynamic_output_shape":
                row.traits.append("dynamic" if count == len(overloads) else "dynamic?")
    if "sync" in row.effects:
        row.effects = ["sync"]
    if is_factory:
        row.traits.append("factory")
    cast = casts.get(_key(name))
    listed = cast is not None and name.startswith(("torch.", "torch.Tensor."))
    if listed:
        row.traits.append(f"autocast={cast}")
    if last not in _NOT_CALLED and callable(thing) and not isinstance(thing, type):
        observe(row, name, thing, overloads, asks_autocast=not listed)
    if around:  # it may give less than the operation under it, of which it tells whether that is a view
        families = {_family(word) for word in row.gives}
        row.gives = [word for word in dict.fromkeys(known) if _family(word) in families] or row.gives
    with contextlib.suppress(TypeError, ValueError):
        if name.startswith("torch.nn.functional.") and _reduces(inspect.signature(thing).parameters):
            row.traits.append("loss")
    return row


def _reduces(parameters: Any) -> bool:
    return "reduction" in parameters and parameters["reduction"].default == "mean"


def _key(name: str) -> str:
    package, _, last = name.rpartition(".")
    short = package.removeprefix("torch.").removeprefix("torch")
    return f"{short}_{last}" if short in _PREFIXED else last


def _family(word: str) -> str:
    kind = word.partition(":")[0]
    return {"view": "tensor", "self": "tensor", "views": "tensors"}.get(kind, kind)


def is_of_python(thing: Any) -> bool:
    """Whether it is one of torch's functions that are written in Python, around its operations."""
    home = str(getattr(thing, "__module__", ""))
    return inspect.isfunction(thing) and home in ("torch.functional", "torch.nn.functional", "torch._tensor")


def annotated(thing: Any) -> list[str]:
    """What a function's own annotation says that it gives."""
    try:
        answer = inspect.signature(thing).return_annotation
    except (TypeError, ValueError):
        return []
    word = None if answer is inspect.Signature.empty else word_of(answer)
    return [] if word is None else [word]


def observe(row: Row, name: str, thing: Any, overloads: list[Overload], *, asks_autocast: bool) -> None:
    """Fill a row with what small calls show."""
    last = name.rpartition(".")[2]
    if last.endswith("_") and not last.endswith("__"):
        return
    is_python = is_of_python(thing) and last not in _OPERATORS
    if not overloads and not is_python and last not in _OPERATORS and last != "tolist":
        return
    ways: list[Iterator[tuple[tuple[Any, ...], dict[str, Any]]]] = [attempts(each.schema) for each in overloads]
    if is_python:
        ways.insert(0, of_python(thing))
    if not ways:
        one, other = ((4, 4), False), ((4, 4), False)
        ways = [iter([((one,), {}), ((((1,), False),), {})]), iter([((one, other), {}), ((one, 2.0), {})])]
    casts, cuts, waits, dynamic, calls = [], [], 0, 0, 0
    for way in ways:
        for given in itertools.islice(way, 24):
            found = seen_on_gpu(thing, given)
            if found is None:
                continue
            calls += 1
            casts.append(found[0])
            waits += found[1].waits
            dynamic += found[1].dynamic
            if not found[1].waits and (is_python or not row.gives):
                word = _seen_word(found[1].result)
                if _family(word) not in {_family(each) for each in row.gives}:
                    row.gives.append(word)
            cut = cuts_graph(thing, given)
            if cut is not None:
                cuts.append(cut)
            break
    every = calls == len(ways) or len(overloads) < 2
    if waits and not {"sync", "sync?"} & set(row.effects):
        row.effects.append("sync" if waits == calls and every else "sync?")
    if dynamic and not {"dynamic", "dynamic?"} & set(row.traits):
        row.traits.append("dynamic" if dynamic == calls and every else "dynamic?")
    if asks_autocast and casts and len(set(casts)) == 1 and casts[0] is not None:
        row.traits.append(f"autocast={casts[0]}")
    if cuts and all(cuts) and every and "factory" not in row.traits:
        row.traits.append("no-graph")


def _seen_word(result: Any) -> str:
    import torch

    if isinstance(result, torch.Tensor):
        return "tensor"
    if isinstance(result, (tuple, list)) and all(isinstance(each, torch.Tensor) for each in result):
        return "tensors" if isinstance(result, list) or not result else f"tensors:{len(result)}"
    if isinstance(result, bool):
        return "bool"
    return "number" if isinstance(result, (int, float)) else "none" if result is None else "other"


def row_of_class(thing: Any, lists: dict[str, str]) -> Row:
    """The row of a layer, a loss, an optimizer, the loader, or an old type of tensors."""
    import torch

    row = Row()
    if isinstance(thing, type(torch.FloatTensor)):
        row.gives, row.traits = ["tensor"], ["factory"]
        return row
    if hasattr(thing, "cls_to_become") and isinstance(thing.cls_to_become, type):
        return row_of_class(thing.cls_to_become, lists)  # a lazy layer, which is another one after its first call
    if not issubclass(thing, torch.nn.Module):
        row.gives = ["optimizer" if issubclass(thing, torch.optim.Optimizer) else "loader"]
        row.parameters = list(inspect.signature(thing).parameters)
        return row
    is_loss = issubclass(thing, torch.nn.modules.loss._Loss)
    row.gives = ["criterion" if is_loss else "module"]
    if is_loss:
        row.traits.append("loss")
        if _reduces(inspect.signature(thing).parameters):
            row.traits.append("scalar")
    word = next(iter(annotated(thing.forward)), None) or _returned(thing)
    casts = set()
    for made, given in _layers(thing):
        seen = seen_on_gpu(made, given)
        if seen is None or seen[1].waits:
            continue
        word = _seen_word(seen[1].result)
        casts.add(seen[0])
        break
    if word is not None and word != "none":
        row.traits.append(f"calls={word}")
    cast = next(iter(casts), None) or (None if casts else _handed_on(thing, lists))
    if cast is not None and not is_loss:
        row.traits.append(f"autocast={cast}")
    return row


def _returned(thing: Any) -> str | None:
    """What ``forward`` gives by its text: several, where it returns a tuple."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing.forward)))
    except (OSError, TypeError, SyntaxError):
        return None
    returns = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    sizes = {len(each.elts) for each in returns if isinstance(each, ast.Tuple)}
    return f"tensors:{sizes.pop()}" if len(sizes) == 1 else None


def _handed_on(thing: Any, lists: dict[str, str]) -> str | None:
    """What autocast makes of a layer that could not be called: what it makes of the one operation that it names."""
    try:
        named = re.findall(r"\b(?:F|_VF|torch)\.(\w+)\(", inspect.getsource(thing.forward))
    except (OSError, TypeError):
        return None
    casts = {lists[name] for name in named if name in lists}
    return casts.pop() if len(casts) == 1 else None


def _layers(thing: Any) -> Iterator[tuple[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Ways to make a layer and to call it; its weights are put on the GPU that need not exist, and
    under autocast stay in 32 bits, as they are in a training."""
    import torch

    if thing in (torch.nn.Transformer, torch.nn.TransformerEncoder, torch.nn.TransformerDecoder):
        return  # large, and put together of layers
    found = list(inspect.signature(thing).parameters.values())
    needed = sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in found)

    def run(layer: Any) -> Callable[..., Any]:
        def moved_and_called(*args: Any) -> Any:
            asked = torch.is_autocast_enabled("cuda")
            torch.set_autocast_enabled("cuda", False)
            kind = next((each.dtype for each in args if each.is_floating_point() and not asked), torch.float32)
            for part in layer.modules():
                for kept in (part._parameters, part._buffers):
                    for name, old in kept.items():
                        if isinstance(old, torch.Tensor):
                            dtype = kind if old.is_floating_point() else old.dtype
                            new = torch.empty(old.shape, dtype=dtype, device="cuda:0")
                            kept[name] = torch.nn.Parameter(new, False) if kept is part._parameters else new
            torch.set_autocast_enabled("cuda", asked)
            return layer.requires_grad_(False)(*args)

        return moved_and_called

    sizes = [(4,) * needed, (4, 4, 3)[:needed], (2, 4)[:needed], (2,) * needed, (0.5,) * needed, (1,) * needed]
    for constructor in dict.fromkeys(each for each in sizes if len(each) == needed):
        try:
            with gpu():
                layer = thing(*constructor)
        except Exception:
            continue
        for count, shape, whole in itertools.product((1, 2, 3), _SHAPES[:-1], (False, True)):
            if count == 1 or shape in ((4, 4), (4,)):
                yield run(layer), (((shape, whole), *((shape, False),) * (count - 1)), {})


def rows() -> dict[str, Row]:
    """All rows that say something."""
    import torch

    random.seed(0)
    torch.manual_seed(0)
    found, casts, told = schemas(), autocast_lists(), stubs()
    result: dict[str, Row] = {}
    for name, thing in sorted(names_of_torch().items()):
        if isinstance(thing, type):
            result[name] = row_of_class(thing, casts)
        else:
            last = name.rpartition(".")[2]
            overloads = found.get(name) or (found.get(f"torch.{last}", []) if "functional" in name else [])
            result[name] = row_of(name, thing, overloads, casts, told.get(name, []))
    return {name: row for name, row in result.items() if not row.is_plain(name)}


def text() -> str:
    """The whole table."""
    import torch

    version = torch.__version__.partition("+")[0]
    lines = [row.line(name) for name, row in sorted(rows().items())]
    return HEADER.format(version=version) + "\n".join(lines) + "\n"


def main() -> None:
    """Write the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # torch tells of each call that it refuses
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    path.write_text(text(), encoding="utf-8", newline="\n")
    print(f"{path}: {sum(not line.startswith('#') for line in path.read_text('utf-8').splitlines())} rows")


if __name__ == "__main__":
    main()
