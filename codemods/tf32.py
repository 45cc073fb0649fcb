"""Let the GPU's tensor cores multiply float32 matrices.

Why slow
    From Ampere on, a GPU multiplies float32 matrices several times faster in TF32: inputs rounded to 10 bits of
    mantissa, sums in float32. PyTorch does that for convolutions by itself, for matrix products only when asked.

Example
    ::

        torch.manual_seed(0)
        model = Net().to(device)

Use instead
    ::

        torch.set_float32_matmul_precision("high")
        torch.manual_seed(0)
        model = Net().to(device)

    A script that uses torch's newer switches already gets the newer one:
    ``torch.backends.cuda.matmul.fp32_precision = "tf32"``. The two kinds cannot be read side by side.

    The ``Trainer`` of transformers has a setting for it, which raises where there are no such tensor cores; the value
    asks transformers itself::

        args = TrainingArguments("out", tf32=is_torch_tf32_available())

    Lightning leaves the switch to the script, which then gets the same line before its trainer is made.

When refused
    Nothing is said for GPUs before Ampere, for programs that never reach a GPU, where the program already allows TF32,
    and where no float32 product is known to take noticeable time. Known are widths that are literals or the defaults of
    options and parameters, also behind the parameters of the program's own classes, and the largest where stages have
    several; a width that is not known is no evidence. A layer speaks for it where

    - both sides of its matrix are wider than 128: thinner ones are bound by memory, which TF32 does not make faster;
    - where a row is a sample, the product is of 268 million multiplications (2 to the 28): 0.5 GFLOP, for which an
      A100 needs 28 microseconds in full float32 (19.5 TFLOPS by its data sheet), several launches of a kernel. A batch
      of 64 through 2048 by 2048 just reaches that. Batches that are not known are taken to be 16 samples;
    - where a row is a token or a node, of which there are thousands, the matrix is 256 by 256 or as large;
    - where a row is a sample beside a library's ready-made convolutional network (a ResNet), which multiplies billions
      for each, the matrix has 33 million elements (2 to the 25);
    - it is not the last layer of a convolutional network, which is its classifier; convolutions and the LSTM, GRU and
      RNN layers of cuDNN use TF32 by default.

    Where a step calls one of several networks, as an option chooses, none of them may be known to have no such layer.

    Whole networks of libraries speak for it where their kind is known for such products: the classes of transformers
    and diffusers with an attention, from a checkpoint that is not called tiny, or in a configuration with the default
    widths or ones of at least 256, and in no other precision (``torch_dtype=``); the ViT, DeiT, BEiT, Swin and ConvNeXt
    of torchvision and timm; torchvision's VGG and AlexNet where they are called whole, and its detectors with two
    stages.

    Products that are written by hand (``x @ self.weight``, ``torch.bmm(scores, values)``) do not count: how large they
    are is not known.

    Where every training step runs under ``autocast`` nothing is left for TF32 to speed up, and nothing is said either.
    Under Accelerate and Fabric the switch is still the script's own: both compute in float32 unless the script or
    whoever starts it asks for another precision, and neither sets it then (Accelerate does beside a dynamo backend). On
    other devices it changes nothing. Where the script asks for another precision itself, nothing is said, nor where it
    hands the model to an engine with a precision of its own: to DeepSpeed or Megatron-LM, by a configuration of its
    parallelism, or to FSDP with a policy of mixed precision.

    In a program without it both are found, for each is judged by itself; ``apply`` lets ``autocast`` go first, and this
    codemod follows only where a training step stays in float32.

    It is refused where the script asks for full float32 precision or for deterministic algorithms, where an option
    decides, where the program computes in float64, and where a step solves equations, inverts or decomposes matrices,
    takes distances by ``torch.cdist`` or compares with a tolerance, or a library does that (gpytorch, torchdiffeq).
    Processes that a script starts do not inherit the switch: where all training is in the function that they run, it is
    set there, and refused where training is in several places or it is not known in which. Under Accelerate and Fabric
    it is refused also where the caller passes their arguments on, and beside torch's newer switches, since both read
    the older ones.

    Under the ``Trainer`` of transformers nothing is said beside ``bf16``, ``fp16``, ``torch_compile`` (which switches
    it on) and DeepSpeed; it is refused where the command line decides (pass ``--tf32 True``), where the settings are
    read or changed elsewhere, and beside ``full_determinism``.

Risk
    equivalent: matrix products round differently, as one float32 GPU differs from another, only more. On a CPU
    nothing changes, except on the few that have TF32 units of their own.

Measured
    GPT-2 124M on an A100: 3.0 times (Karpathy, build-nanogpt) and 2.2 times (Raschka, LLMs-from-scratch); 7 times for
    a matrix product alone (torch CUDA notes). Networks of convolutions gain little.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk
from turbofix.program.evidence import of_loop, of_models
from turbofix.program.libraries import words
from turbofix.program.model import Framework, Model, Setting, Training, TrainingProgram
from turbofix.program.sizes import batch_of, has_noticeable, lacks_noticeable

from ._frameworks import LEFT, NAMES, is_open, named, precisions, starts_processes, where
from ._precision import MATMULS, autocast_of, called, deterministic, in_use, requote, said, version
from ._trainers import FULL, Switch, evidence, is_off, is_sharded, judged, on_gpu, set_switch, stays_on_cpu
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="precision",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 3.0, source="GPT-2 124M on an A100: 2.2x (Raschka) and 3.0x (Karpathy, build-nanogpt)"),
    after=("autocast",),
    once=True,
    known_as=("TensorFloat-32", "float32 matmul precision"),
)

AMPERE = (8, 0)
SINCE = (1, 12)  # torch.set_float32_matmul_precision
OLD_SWITCHES = ("torch.set_float32_matmul_precision", "torch.backends.cuda.matmul.allow_tf32")
NEW_SWITCHES = ("torch.backends.cuda.matmul.fp32_precision", "torch.backends.fp32_precision")
NEW_NEIGHBOURS = (
    "torch.backends.cudnn.fp32_precision",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.rnn.fp32_precision",
)
FAST = (True, "high", "medium", "tf32")

SOLVING_LIBRARIES = frozenset(("gpytorch", "botorch", "linear_operator", "torchdiffeq", "torchsde", "torchdyn"))
"""Libraries that solve equations: from matrices of products, or by steps of a size that their rounding decides."""

SOLVING = frozenset(
    words(
        """
        inverse pinverse det logdet slogdet cholesky cholesky_inverse cholesky_solve svd svd_lowrank pca_lowrank lobpcg
        eig symeig qr lu lu_solve lstsq solve triangular_solve ormqr geqrf matrix_exp matrix_power cdist allclose
        assert_close MultivariateNormal LowRankMultivariateNormal
        """
    )
)
"""Functions, methods and distributions whose result may be far off where a product that goes in is a little."""

PLAIN_LINALG = frozenset(words("norm vector_norm cross vecdot matmul multi_dot diagonal"))

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
    if program.framework is Framework.TRANSFORMERS and program.target.capability >= AMPERE:
        yield from under_trainer(program)
    if program.framework is Framework.LIGHTNING and program.target.capability >= AMPERE:
        yield from under_lightning(program)
    if program.framework not in LEFT or not program.trains or program.target.capability < AMPERE:
        return
    if not program.device.reaches_cuda:
        return
    switches = [setting for name in (*OLD_SWITCHES, *NEW_SWITCHES) for setting in program.setting(name)]
    if switches:
        for setting in switches:
            yield judge(setting)
        return
    place = where(program)
    if place is None or not program.models or nothing_gained(program):
        return
    message = (
        f"the float32 matrix products of {called(in_use(program))} run without the tensor cores: "
        "torch keeps full precision unless told otherwise"
    )
    seen = (*of_models(in_use(program), MATMULS), *map(of_loop, program.steps[:1]))
    reason = why_not(program)
    if reason is not None:
        yield codemod.refuse(place, message, reason, evidence=seen)
        return
    newer = any(program.setting(name) for name in NEW_NEIGHBOURS)
    yield codemod.finding(place, message, plan=newer, evidence=seen)


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, whose settings have a switch for it."""
    switches = [setting for name in (*OLD_SWITCHES, *NEW_SWITCHES) for setting in program.setting(name)]
    if switches:
        yield from map(judge, switches)
        return
    for training in program.trainings:
        others = ("bf16", "fp16", "torch_compile", "torch_compile_backend", "torch_compile_mode", "deepspeed")
        if training.precision == "other" or stays_on_cpu(training):
            continue
        if any(not is_off(training.argument(name)) for name in others):
            continue  # another precision, or `torch_compile`, beside which the trainer switches TF32 on
        models = [model for model in training.models if not is_float64(model)]
        if not models or not all(has_noticeable(model.products, None) for model in models):
            continue
        message = (
            f"the float32 matrix products of {called(models)} run without the tensor cores: "
            "torch keeps full precision unless told otherwise"
        )
        there = judged(codemod, training, "tf32", message, "the trainer lets matrix products use TF32")
        if there is not None:
            yield there
            continue
        seen = evidence(training, "tf32")
        reason = why_not_under(program, training)
        if reason is not None:
            yield codemod.refuse(training.site, message, reason, evidence=seen)
            continue
        plan = Switch("tf32", "{transformers.utils.is_torch_tf32_available}()")
        yield codemod.finding(training.site, message, plan=plan, evidence=seen)


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of Lightning, which leaves the switch to the script, and asks for it when it starts on a GPU."""
    switches = [setting for name in (*OLD_SWITCHES, *NEW_SWITCHES) for setting in program.setting(name)]
    if switches:
        yield from map(judge, switches)
        return
    for training in program.trainings[:1]:
        given = training.argument("precision")
        if training.parsed or not on_gpu(training) or training.precision == "other":
            continue
        if not (given.state == "absent" or (given.known and set(given.values) <= {None, *FULL})):
            continue  # another precision, by the script or by whoever starts it
        models = [model for model in training.models if not is_float64(model)]
        sizes = {size for loader in program.loaders for size in loader.argument("batch_size").values}
        batch = max((size for size in sizes if isinstance(size, int)), default=None)
        if not models or not any(has_noticeable(model.products, batch) for model in models):
            continue
        message = (
            f"the float32 matrix products of {called(models)} run without the tensor cores: "
            "torch keeps full precision unless told otherwise"
        )
        seen = (*of_models(models, MATMULS), *evidence(training, "precision"))
        reason = why_not_under_lightning(program, training)
        if reason is not None:
            yield codemod.refuse(training.site, message, reason, evidence=seen)
            continue
        newer = any(program.setting(name) for name in NEW_NEIGHBOURS)
        yield codemod.finding(training.site, message, plan=newer, evidence=seen)


def why_not_under_lightning(program: TrainingProgram, training: Training) -> str | None:
    """What makes the switch unsafe beside Lightning's trainer, if anything."""
    for name, site in deterministic(program):
        place = site.line_from(program.entry)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {place})"
    if not is_off(training.argument("deterministic")):
        return "the script asks for reproducible results (deterministic)"
    if not program.complete:
        return program.incomplete_because or "the program could not be read to its end"
    if program.target.torch < SINCE:
        return f"the project serves torch {version(program.target.torch)}; the switch came with torch {version(SINCE)}"
    if is_sharded(training):
        return "a strategy or plugin of the trainer may have a precision of its own"
    return None


def why_not_under(program: TrainingProgram, training: Training) -> str | None:
    """What makes a trainer's switch unsafe, or what decides over it."""
    for name, site in deterministic(program):
        place = site.line_from(program.entry)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {place})"
    if not is_off(training.argument("full_determinism")):
        return "the script asks for reproducible results (full_determinism)"
    if any(program.setting(name) for name in NEW_NEIGHBOURS):
        return (
            "older versions of transformers use torch's older switches, which cannot be read beside the newer one here"
        )
    return why_not_setting(program, training, "tf32")


def judge(setting: Setting) -> InPlace | Refusal:
    """What to say of a switch that the script sets itself."""
    value = setting.value
    if setting.switch.option is not None and not any(setting.switch.values):
        return codemod.refuse(
            setting.site,
            "float32 matrix products run without the tensor cores unless an option is passed",
            f"the script sets it under {said(setting.switch)}: pass it",
        )
    if value.known and all(each in FAST for each in value.values) and setting.guard.kind in ("always", "rank"):
        return codemod.in_place(setting.site, "matrix products may use TF32")
    if any(each in FAST for each in value.values):
        return codemod.in_place(setting.site, "matrix products may use TF32, where the script's own test says so")
    if value.option is not None:
        return codemod.refuse(
            setting.site,
            "float32 matrix products run without the tensor cores unless an option is passed",
            f"the script leaves it to {said(value)}: pass it",
        )
    return codemod.refuse(
        setting.site,
        "float32 matrix products run without the tensor cores",
        f"the script sets {setting.name.removeprefix('torch.')} itself, on purpose as it seems",
    )


def nothing_gained(program: TrainingProgram) -> bool:
    """Whether no float32 matrix product is known that TF32 could speed up."""
    if program.steps and all(autocast_of(program, step) is not None for step in program.steps):
        return True
    if program.framework in NAMES and any(named(each) <= OTHERS for each in precisions(program)):
        return True  # it trains in another precision
    if program.framework in NAMES and program.hands_over:
        return True
    if any(part.kind in ("apex", "framework") and not part.off for part in program.precision):
        return True  # a library has taken over the precision
    if program.models and all(model.half for model in program.models) and not any(map(is_float64, program.models)):
        return True
    batches = [batch_of(program, step) for step in program.steps]
    batch = max((each for each in batches if each is not None), default=None) if None not in batches else None
    return not any(
        any(has_noticeable(model.products, batch) for model in models)
        and not any(lacks_noticeable(model.products, batch) for model in models)
        for models in ([each for each in choice if not each.half or is_float64(each)] for choice in called_in(program))
    )


def called_in(program: TrainingProgram) -> list[list[Model]]:
    """The models that each call in a step chooses from: one of many networks tells nothing of the others.

    Every model by itself where a step's are not known.
    """
    models = in_use(program)
    if not program.steps or not all(step.models for step in program.steps):
        return [[model] for model in models]
    choices = dict.fromkeys(choice for step in program.steps for choice in step.choices)
    return [[model for model in models if model.site in choice] for choice in choices]


def is_float64(model: Model) -> bool:
    """Whether the program chose double precision for a model."""
    return model.dtype == "float64"


def why_not(program: TrainingProgram) -> str | None:
    """What makes the switch unsafe, if anything."""
    if not program.complete:
        return program.incomplete_because or "the program could not be read to its end"
    if program.target.torch < SINCE:
        return f"the project serves torch {version(program.target.torch)}; the switch came with torch {version(SINCE)}"
    for name, site in deterministic(program):
        where = site.line_from(program.entry)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {where})"
    if any(is_float64(model) for model in program.models):
        return "the program computes in float64: it wants more precision, not less"
    if program.framework in NAMES:
        framework = NAMES[program.framework]
        if is_open(program) or any(argument.state == "unknown" for argument in precisions(program)):
            return f"the precision of {framework} is chosen by the caller, and this switch with it"
        if any(program.setting(name) for name in NEW_NEIGHBOURS):
            return f"{framework} asks torch's older switches, which cannot be read beside the newer one of this script"
    reason = why_exact(program)
    if reason is not None:
        return reason
    if starts_processes(program) and program.script.trains_at is None:
        own = "the script starts processes of its own, which would not inherit the switch"
        return f"{own}, and it is not known to train in one place only"
    return None


def why_exact(program: TrainingProgram) -> str | None:
    """Where the program solves equations, or takes small differences of large products, and would magnify rounding."""
    libraries = sorted(program.libraries & SOLVING_LIBRARIES)
    if libraries:
        return f"{libraries[0]} solves equations step by step or from products, which rounding may break off"
    for call in (call for loop in (*program.steps,) for call in loop.calls):
        last = call.qualname.rpartition(".")[2]
        if last == "cdist" and 1 in call.constants:
            continue  # by differences, without a product
        solves = call.qualname.startswith("torch.linalg.") and last not in PLAIN_LINALG
        if solves or (last in SOLVING and call.qualname.startswith(("torch.", "Tensor."))):
            return (
                f"`{last}` magnifies what its input is rounded by, and may fail on it "
                f"({call.site.line_from(program.entry)})"
            )
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Set the switch before the first line that calls torch."""
    if isinstance(finding.plan, Switch):
        set_switch(finding.plan, finding.site, edit)
        return
    if finding.plan:
        line = f'{edit.name("torch.backends.cuda.matmul.fp32_precision", finding.site)} = "tf32"'
    else:
        line = f'{edit.name("torch.set_float32_matmul_precision", finding.site)}("high")'
    edit.before(finding.site, requote(line, edit, finding.site), above_comments=True)
