"""Let the GPU's tensor cores multiply float32 matrices.

Why slow
    From Ampere on, a GPU multiplies float32 matrices several times faster in TF32: inputs rounded to 10 bits of
    mantissa, sums in float32. PyTorch does that for convolutions by default, for matrix products only when asked.

Example
    ::

        torch.manual_seed(0)

Use instead
    ::

        torch.set_float32_matmul_precision("high")
        torch.manual_seed(0)

    A script that uses torch's newer switches gets ``torch.backends.cuda.matmul.fp32_precision = "tf32"``. The settings
    of the ``Trainer`` of transformers get ``tf32=is_torch_tf32_available()``. Lightning leaves the switch to the
    script, which gets the first line before its trainer is made.

When refused
    Nothing is said for GPUs before Ampere, on a CPU, where all matrices are known to be small, and where another
    precision is in force in the training (``autocast`` goes first). It is refused

    - where the script sets full precision itself (``"highest"``, ``allow_tf32 = False``) or computes in float64;
    - where an option decides that cannot be turned on in the script: pass it;
    - where processes that the script starts train in several places, for they do not inherit the switch;
    - beside Accelerate, Fabric or the ``Trainer``, which read torch's older switches, if the script uses the newer
      ones.

Risk
    equivalent: matrix products round differently. On a CPU nothing changes, except on the few with TF32 units.

Measured
    GPT-2 124M on an A100: 3.0 times (Karpathy, build-nanogpt) and 2.2 times (Raschka, LLMs-from-scratch); 7 times for a
    matrix product alone (torch CUDA notes). Networks of convolutions gain little.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from turbofix.assumptions import LEARNS_IN_TF32, ON_GPU, OPTION_DEFAULT, RECENT_TORCH, WIDE_ENOUGH, Assumption
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk, Worth
from turbofix.training.data.sizes import batch_of, has_none, has_noticeable
from turbofix.training.evidence import of_loop, of_models
from turbofix.training.model import Framework, Model, Setting, TrainingProgram
from turbofix.training.models.products import FAMILIES

from ._frameworks import LEFT, NAMES, is_open, named, precisions, starts_processes, where
from ._options import decides, left_off
from ._precision import (
    MATMULS,
    PRODUCTS,
    RECURRENT,
    autocast_of,
    called,
    convolves,
    in_use,
    is_unknown,
    may_contain,
    on_a_gpu,
    requote,
    version,
)
from ._trainers import (
    FULL,
    Switch,
    beside,
    evidence,
    is_off,
    is_sharded,
    judged,
    on_gpu,
    rests_on_defaults,
    rests_on_gpu,
    stays_on_cpu,
)
from ._trainers import why_not as why_not_setting
from ._work import is_narrow, looks_up, worth_of_work

codemod = Codemod(
    __name__,
    group="precision",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 3.0, source="GPT-2 124M on an A100: 2.2x (Raschka) and 3.0x (Karpathy, build-nanogpt)"),
    after=("autocast",),
    once=True,
    known_as=("TensorFloat-32", "float32 matmul precision"),
    assumes=(ON_GPU, WIDE_ENOUGH, LEARNS_IN_TF32, OPTION_DEFAULT, RECENT_TORCH),
    otherwise="no float32 product of matrices was recognised here that a GPU would multiply faster in TF32",
)

ANOTHER = "its products are computed in the precision that the script asks for by itself"
AMPERE = (8, 0)
ACTING = 512  # the layers of what acts in an environment, on a batch of a few hundred states
SINCE = (1, 12)  # torch.set_float32_matmul_precision
OLD_SWITCHES = ("torch.set_float32_matmul_precision", "torch.backends.cuda.matmul.allow_tf32")
NEW_SWITCHES = ("torch.backends.cuda.matmul.fp32_precision", "torch.backends.fp32_precision")
NEW_NEIGHBOURS = (
    "torch.backends.cudnn.fp32_precision",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.rnn.fp32_precision",
)
SLOW = "float32 matrix products run without the tensor cores"
FAST = (True, "high", "medium", "tf32")

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


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Matrix products in full float32 on a GPU that could do them in TF32."""
    if not program.trains or program.target.capability < AMPERE:
        return
    gpu = on_a_gpu(program) if program.framework in LEFT else ()
    switches = [setting for name in (*OLD_SWITCHES, *NEW_SWITCHES) for setting in program.setting(name)]
    if switches and gpu is not None:
        yield from map(judge, switches)
    elif program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    elif program.framework is Framework.LIGHTNING:
        yield from under_lightning(program)
    elif program.framework in LEFT and gpu is not None:
        yield from by_script(program, gpu)


def by_script(program: TrainingProgram, gpu: tuple[Assumption, ...]) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings whose script sets the switch."""
    models = [model for model in in_use(program) if not is_half(model)]
    if is_in_another(program):
        yield from codemod.nothing(program, ANOTHER)
        return
    if not may_contain(models, program.steps, MATMULS, PRODUCTS):
        yield from nothing(program, models)
        return
    batches = [batch_of(program, step) for step in program.steps]
    batch = max((each for each in batches if each is not None), default=None) if None not in batches else None
    by_hand = any(call.qualname in PRODUCTS for step in program.steps for call in step.calls)
    little = (is_little(program, model, batch, by_hand=by_hand) for model in models)
    if models and (is_unseen(models, by_hand) or all(little)):
        yield from nothing(program, models)
        return
    message, seen = slow(models), (*of_models(models, MATMULS), *map(of_loop, program.steps[:1]))
    message += ", where no 16 bits are asked for" if any(each.half for each in models) else ""
    reason, place = why_not(program), where(program)
    if reason is not None or place is None:
        lost = "nothing here calls what trains: set it where the training is started"
        at = place or next((step.loop.site for step in program.steps), None)
        if at is not None:
            yield codemod.refuse(at, message, reason or lost, evidence=seen)
        return
    own = program.complete and not (program.framework in NAMES and is_open(program))
    own = own and not any(each.half for each in models)
    wide = own and any(has_noticeable(each.products, batch) for each in models)
    assumes = (*gpu, *(() if wide else (WIDE_ENOUGH,)), *((LEARNS_IN_TF32,) if solves(program) else ()))
    newer = any(program.setting(name) for name in NEW_NEIGHBOURS)
    worth = worth_of(program, models, batch, wide)
    yield codemod.finding(place, message, plan=newer, evidence=seen, assumes=assumes, worth=worth)


def nothing(program: TrainingProgram, models: Iterable[Model]) -> Iterator[InPlace]:
    """What to tell of models without products that are worth it; cuDNN is faster by itself."""
    recurrent = any(model.layers & RECURRENT for model in models)
    quick = " and ".join([*["convolutions"] * any(map(convolves, models)), *["recurrent layers"] * recurrent])
    small = "no float32 product of its is known to be large enough for TF32 to matter"
    if not program.setting("torch.backends.cudnn.allow_tf32"):
        yield from codemod.nothing(program, f"{quick} use TF32, unless torch is told otherwise" if quick else small)


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


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, whose settings have a switch for it."""
    for training in program.trainings:
        there = judged(codemod, training, "tf32", slow(training.models), "the trainer lets matrix products use TF32")
        if isinstance(there, InPlace):
            yield there
            continue
        others = ("bf16", "fp16", "torch_compile", "torch_compile_backend", "torch_compile_mode", "deepspeed")
        if stays_on_cpu(training):
            continue
        if training.precision == "other" or any(not is_off(training.argument(name)) for name in others):
            yield from codemod.nothing(program, ANOTHER)  # beside `torch_compile` the trainer switches TF32 on
            continue
        models = [model for model in training.models if not is_float64(model)]
        if training.models and not models:
            continue
        if there is not None:
            yield there
            continue
        seen = evidence(training, "tf32")
        reason = why_not_setting(program, training, "tf32", as_a_field=True)
        if any(program.setting(name) for name in NEW_NEIGHBOURS):
            older = "older versions of transformers use torch's older switches"
            reason = f"{older}, which cannot be read beside the newer one here"
        wide = bool(models) and all(has_noticeable(model.products, None) for model in models)
        plan = Switch("tf32", "{transformers.utils.is_torch_tf32_available}()", beside=beside(training))
        assumes = (*(() if wide else (WIDE_ENOUGH,)), *rests_on_gpu(training), *rests_on_defaults(plan))
        worth = worth_of(program, models, None, wide)
        yield codemod.offer(training.site, slow(models), reason, plan=plan, evidence=seen, assumes=assumes, worth=worth)


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of Lightning, which leaves the switch to the script, and asks for it when it starts on a GPU."""
    for training in program.trainings[:1]:
        given, gpu = training.argument("precision"), on_gpu(training)
        if gpu is False:
            continue
        full = given.state == "absent" or (given.known and set(given.values) <= {None, *FULL})
        if training.precision == "other" or not full:
            yield from codemod.nothing(program, ANOTHER)  # by the script or by whoever starts it
            continue
        models = [model for model in training.models if not is_float64(model)]
        if (training.models and not models) or not may_contain(models, (), MATMULS, PRODUCTS):
            yield from nothing(program, models)
            continue
        sizes = {size for loader in program.loaders for size in loader.argument("batch_size").values}
        batch = max((size for size in sizes if isinstance(size, int)), default=None)
        seen = (*of_models(models, MATMULS), *evidence(training, "precision"))
        if models and (is_unseen(models) or all(is_little(program, model, batch) for model in models)):
            yield from nothing(program, models)
            continue
        wide = program.complete and not is_sharded(training)
        wide = wide and any(has_noticeable(model.products, batch) for model in models)
        assumes = (*((ON_GPU,) if gpu is None else ()), *(() if wide else (WIDE_ENOUGH,)))
        newer = any(program.setting(name) for name in NEW_NEIGHBOURS)
        worth, message, reason = worth_of(program, models, batch, wide), slow(models), why_not(program)
        yield codemod.offer(training.site, message, reason, plan=newer, evidence=seen, assumes=assumes, worth=worth)


def judge(setting: Setting) -> Finding | InPlace | Refusal:
    """What to say of a switch that the script sets itself."""
    value = setting.value
    if setting.switch.off and decides(setting.switch):
        return left_off(codemod, setting.site, SLOW, setting.switch, (ON_GPU, WIDE_ENOUGH), "True")
    if value.known and all(each in FAST for each in value.values) and setting.guard.kind in ("always", "rank"):
        return codemod.in_place(setting.site, "matrix products may use TF32")
    if any(each in FAST for each in value.values):
        return codemod.in_place(setting.site, "matrix products may use TF32, where the script's own test says so")
    if decides(value):
        wanted = '"high"' if any(isinstance(each, str) for each in value.values) else "True"
        return left_off(codemod, setting.site, SLOW, value, (ON_GPU, WIDE_ENOUGH), wanted)
    return codemod.refuse(
        setting.site,
        SLOW,
        f"the script sets {setting.name.removeprefix('torch.')} itself, on purpose as it seems",
    )


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


def is_half(model: Model) -> bool:
    """Whether all of a model certainly computes in 16 bits."""
    return model.half and model.dtype not in (None, "float64")


def is_float64(model: Model) -> bool:
    """Whether the program chose double precision for a model."""
    return model.dtype == "float64"


def why_not(program: TrainingProgram) -> str | None:
    """What makes the switch unsafe, if anything."""
    if program.target.torch < SINCE:
        return f"the project serves torch {version(program.target.torch)}; the switch came with torch {version(SINCE)}"
    if any(is_float64(model) for model in program.models):
        return "the program computes in float64: it wants more precision, not less"
    if program.framework in NAMES and any(program.setting(name) for name in NEW_NEIGHBOURS):
        framework = NAMES[program.framework]
        return f"{framework} asks torch's older switches, which cannot be read beside the newer one of this script"
    if starts_processes(program) and program.script.trains_at is None:
        own = "the script starts processes of its own, which would not inherit the switch"
        return f"{own}, and it is not known to train in one place only"
    return None


def solves(program: TrainingProgram) -> bool:
    """Whether it solves equations, or takes small differences of large products, which would magnify rounding."""
    if program.libraries & SOLVING_LIBRARIES:
        return True
    names = (call.qualname for step in program.steps for call in step.calls)
    own = (each for each in names if each.startswith(("torch.", "Tensor.")))
    return any(SOLVING.fullmatch(each.rpartition(".")[2]) or each.startswith("torch.linalg.") for each in own)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Set the switch before the first line that calls torch."""
    if finding.plan:
        line = f'{edit.name("torch.backends.cuda.matmul.fp32_precision", finding.site)} = "tf32"'
    else:
        line = f'{edit.name("torch.set_float32_matmul_precision", finding.site)}("high")'
    edit.before(finding.site, requote(line, edit, finding.site), above_comments=True)
