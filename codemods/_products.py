"""What the products of a training are like: whether they are little, in float32, and sensitive to rounding."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from turbofix.findings import Worth
from turbofix.training.data.sizes import has_none
from turbofix.training.model import Model, TrainingProgram
from turbofix.training.models.products import FAMILIES

from ._frameworks import NAMES, named, precisions
from ._precision import MATMULS, RECURRENT, autocast_of, called, convolves, is_unknown
from ._work import is_narrow, looks_up, worth_of_work

ACTING = 512  # the layers of what acts in an environment, on a batch of a few hundred states
SOLVING_LIBRARIES = frozenset(("gpytorch", "botorch", "linear_operator", "torchdiffeq", "torchsde", "torchdyn"))
"""Libraries that solve equations: from matrices of products, or by steps of a size that their rounding decides."""

SOLVING = re.compile(
    r"p?inverse|(log|slog)?det|cholesky\w*|svd\w*|pca_lowrank|lobpcg|(sym)?eig|qr|lu(_solve)?|lstsq|(triangular_)?solve"
    r"|ormqr|geqrf|matrix_exp|matrix_power|cdist|allclose|assert_close|(LowRank)?MultivariateNormal"
)
"""Functions, methods and distributions whose result may be far off where a product that goes in is a little."""

PLAIN = ("torch.nn.", "lightning.", "pytorch_lightning.")


OTHERS = frozenset(
    (
        *("fp16", "bf16", "fp8"),
        *("16", "16-true", "16-mixed", "bf16-true", "bf16-mixed", "64", "64-true"),
        *("transformer-engine", "transformer-engine-float16"),
    )
)
"""What a script asks of Accelerate or Fabric where float32 products are not what it waits for."""


def slow(models: Collection[Model]) -> str:
    """What is slow."""
    own = [each for each in models if not each.layers_complete or each.layers & MATMULS]
    return (
        f"the float32 matrix products of {called(own or models)} run without the tensor cores: "
        "torch keeps full precision unless told otherwise"
    )


def worth_of(program: TrainingProgram, models: Collection[Model], batch: int | None, wide: bool) -> Worth:
    """How much the switch may bring: what faster arithmetic does, but little beside convolutions, which use TF32."""
    if wide or not models or not all(model.convolutions for model in models):
        read = [site for step in program.steps for site in step.loaders]
        return worth_of_work(program, models, batch, read)
    return Worth.SMALL


def is_in_another(program: TrainingProgram) -> bool:
    """Whether the training computes in another precision, which this one does not concern."""
    parts = [program.part(autocast_of(program, step)) for step in program.steps]
    if parts and all(part is not None and not part.enabled.off for part in parts):
        return True
    if program.framework in NAMES and any(named(each) <= OTHERS for each in precisions(program)):
        return True
    if program.hands_over or any(
        part.kind in ("apex", "framework") and not part.enabled.off for part in program.precision
    ):
        return True  # a library has taken over the precision
    return bool(program.models) and all(map(is_half, program.models))


def is_unseen(models: Collection[Model], by_hand: bool = False) -> bool:
    """Whether convolutions are known among some models, and no product of matrices is."""
    seen = any(model.layers & (MATMULS | RECURRENT) or model.products.layers for model in models)
    return any(convolves(model) and not is_unknown(model) for model in models) and not (by_hand or seen)


def is_little(program: TrainingProgram, model: Model, batch: int | None, *, by_hand: bool = False) -> bool:
    """Whether nothing of a model is multiplied but small matrices, or what is seen of it convolves for the rest."""
    if by_hand:  # the scores of a narrow attention are as small
        return model.products.by_position and is_narrow(program, model)
    if is_narrow(program, model, ACTING) or has_none(model.products, batch) or looks_up(model, batch):
        return True
    own = all(layer.startswith(PLAIN) or layer.partition(".models.")[2].startswith(FAMILIES) for layer in model.layers)
    plain = own and model.layers & (MATMULS | RECURRENT) <= {"torch.nn.Linear"}
    return plain and convolves(model) and has_none(replace(model.products, complete=True), batch)


def is_half(model: Model) -> bool:
    """Whether all of a model certainly computes in 16 bits."""
    return model.half and model.dtype not in (None, "float64")


def is_float64(model: Model) -> bool:
    """Whether the program chose double precision for a model."""
    return model.dtype == "float64"


def solves(program: TrainingProgram) -> bool:
    """Whether it solves equations, or takes small differences of large products, which would magnify rounding."""
    if program.libraries & SOLVING_LIBRARIES:
        return True
    names = (call.qualname for step in program.steps for call in step.calls)
    own = (each for each in names if each.startswith(("torch.", "Tensor.")))
    return any(SOLVING.fullmatch(each.rpartition(".")[2]) or each.startswith("torch.linalg.") for each in own)
