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

    The settings of the ``Trainer`` of transformers get ``tf32=is_torch_tf32_available()``. Lightning leaves the switch
    to the script, which gets the first line before its trainer is made.

When refused
    Nothing is said for GPUs before Ampere, on a CPU, where all matrices are known to be small, and where another
    precision is in force in the training (``autocast`` goes first). It is refused

    - where the script sets full precision itself (``"highest"``, ``allow_tf32 = False``) or computes in float64;
    - where an option decides that cannot be turned on in the script: pass it;
    - where processes that the script starts train in several places, for they do not inherit the switch.

Risk
    equivalent: matrix products round differently. On a CPU nothing changes, except on the few with TF32 units.

Measured
    GPT-2 124M on an A100: 3.0 times (Karpathy, build-nanogpt) and 2.2 times (Raschka, LLMs-from-scratch); 7 times for a
    matrix product alone (torch CUDA notes). Networks of convolutions gain little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turbofix.assumptions import LEARNS_IN_TF32, ON_GPU, OPTION_DEFAULT, RECENT_TORCH, WIDE_ENOUGH, Assumption
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk
from turbofix.training.data.sizes import batch_of, has_noticeable
from turbofix.training.evidence import of_loop, of_models
from turbofix.training.model import Framework, Model, Setting, TrainingProgram

from ._frameworks import LEFT, NAMES, is_open, starts_processes, where
from ._options import decides, left_off, on_defaults
from ._precision import MATMULS, PRODUCTS, RECURRENT, convolves, in_use, may_contain, on_a_gpu, requote, version
from ._products import is_float64, is_half, is_in_another, is_little, is_unseen, slow, solves, worth_of
from ._trainers import (
    FULL,
    Switch,
    beside,
    evidence,
    is_off,
    is_sharded,
    judged,
    on_gpu,
    rests_on_gpu,
    stays_on_cpu,
)
from ._trainers import why_not as why_not_setting

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
SINCE = (1, 12)  # torch.set_float32_matmul_precision
OLD_SWITCHES = ("torch.set_float32_matmul_precision", "torch.backends.cuda.matmul.allow_tf32")
NEW_SWITCHES = ("torch.backends.cuda.matmul.fp32_precision", "torch.backends.fp32_precision")
NEW_NEIGHBOURS = tuple(f"torch.backends.cudnn.{name}fp32_precision" for name in ("", "conv.", "rnn."))
SLOW = "float32 matrix products run without the tensor cores"
FAST = (True, "high", "medium", "tf32")


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
    worth = worth_of(program, models, batch, wide)
    yield codemod.finding(place, message, evidence=seen, assumes=assumes, worth=worth)


def nothing(program: TrainingProgram, models: Iterable[Model]) -> Iterator[InPlace]:
    """What to tell of models without products that are worth it; cuDNN is faster by itself."""
    recurrent = any(model.layers & RECURRENT for model in models)
    quick = " and ".join([*["convolutions"] * any(map(convolves, models)), *["recurrent layers"] * recurrent])
    small = "no float32 product of its is known to be large enough for TF32 to matter"
    if not program.setting("torch.backends.cudnn.allow_tf32"):
        yield from codemod.nothing(program, f"{quick} use TF32, unless torch is told otherwise" if quick else small)


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
        wide = bool(models) and all(has_noticeable(model.products, None) for model in models)
        since = training.sixteen_since  # from then on few products are left in float32
        message = f"before {since} {slow(models)}" if since else slow(models)
        plan = Switch("tf32", "{transformers.utils.is_torch_tf32_available}()", beside=beside(training))
        rests = () if wide and not since else (WIDE_ENOUGH,)
        assumes = (*rests, *rests_on_gpu(training), *on_defaults(plan.beside))
        worth = worth_of(program, models, None, wide)
        yield codemod.offer(training.site, message, reason, plan=plan, evidence=seen, assumes=assumes, worth=worth)


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
        worth, message, reason = worth_of(program, models, batch, wide), slow(models), why_not(program)
        yield codemod.offer(training.site, message, reason, evidence=seen, assumes=assumes, worth=worth)


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


def why_not(program: TrainingProgram) -> str | None:
    """What makes the switch unsafe, if anything."""
    if program.target.torch < SINCE:
        return f"the project serves torch {version(program.target.torch)}; the switch came with torch {version(SINCE)}"
    if any(is_float64(model) for model in program.models):
        return "the program computes in float64: it wants more precision, not less"
    if any(program.setting(name) for name in NEW_NEIGHBOURS):
        return f'torch\'s newer switches do not go with the older one: set `{NEW_SWITCHES[0]} = "tf32"` beside them'
    if starts_processes(program) and program.script.trains_at is None:
        own = "the script starts processes of its own, which would not inherit the switch"
        return f"{own}, and it is not known to train in one place only"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Set the switch before the first line that calls torch."""
    line = f'{edit.name("torch.set_float32_matmul_precision", finding.site)}("high")'
    edit.before(finding.site, requote(line, edit, finding.site), above_comments=True)
