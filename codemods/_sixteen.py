"""What computes well in 16 bits, and what does not: asked of a step, wherever its autocast comes from."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site, Worth
from turbofix.library.tables import NO_MIXING, unfit_for_half
from turbofix.training.data.sizes import batch_of
from turbofix.training.model import Called, Model, Step, TrainingProgram

from ._loaders import node_of
from ._precision import (
    CONVOLUTIONS,
    CONVOLVING,
    ENVIRONMENTS,
    GATED_CELLS,
    GRAPHS,
    MATMULS,
    PRODUCTS,
    RECURRENT,
    SIMPLE,
    may_contain,
    models_of,
    version,
)
from ._scaler import holds
from ._work import worth_of_work

VOLTA, AMPERE = (7, 0), (8, 0)

EVALUATED = "; the evaluation goes along: its figures come of 16-bit products, too"
AUTOCAST_SINCE = (1, 10)  # torch.autocast
LOGIT_LOSSES = {
    "torch.nn.BCELoss": "BCEWithLogitsLoss",
    "torch.nn.functional.binary_cross_entropy": "binary_cross_entropy_with_logits",
}
FAIRSCALE_CHECKPOINT = "fairscale.nn.checkpoint_wrapper"
FORGETS = "recomputes the forward pass without the autocast that it ran under"
UNSAFE = (
    ("torch.nn.functional.batch_norm", "does not mix statistics in 32 bits with weights in 16"),
    ("torch.autograd.grad", "takes gradients inside the forward pass"),
    ("deepspeed.checkpointing.", FORGETS),
    ("deepspeed.runtime.activation_checkpointing.", FORGETS),
    ("apex.transformer.tensor_parallel.checkpoint", FORGETS),
    ("apex.transformer.tensor_parallel.random.checkpoint", FORGETS),
    ("torchdiffeq.", "picks its steps by the error, which rounding to 16 bits drowns"),
    ("torchsde.", "picks its steps by the error, which rounding to 16 bits drowns"),
)
"""Calls that break or lose their meaning under autocast, by the beginning of their name, and why."""
FILLS = ("Tensor.masked_fill", "torch.masked_fill")
FLOAT16_MAX = 65504.0
QUANTIZERS = frozenset(("pytorch_quantization", "nncf", "brevitas", "torchao", "auto_gptq"))
PARTS = {"scaler": "a gradient scaler", "autocast": "autocast"}


def worth_of(program: TrainingProgram, step: Step) -> Worth | None:
    """What 16 bits are worth in a step: None where it holds no product and no convolution, or trains no model."""
    optimizers = [optimizer for optimizer in program.optimizers if optimizer.site in step.optimizers]
    if optimizers and all(optimizer.trains == "inputs" for optimizer in optimizers):
        return None  # an image or a latent code is searched for: its small changes are the result
    models = models_of(program, step)
    if not may_contain(models, (step,), MATMULS | RECURRENT | CONVOLUTIONS, PRODUCTS | CONVOLVING):
        return None
    worth = worth_of_work(program, models, batch_of(program, step), step.loaders)
    # the scores of a narrow attention are as small as its layers; of other products by hand nothing is known
    by_hand = [call for call in step.calls if call.qualname in PRODUCTS | CONVOLVING]
    scores = any(each.products.by_position for each in models)
    unknown = any(call.of_weights for call in by_hand) or (by_hand and not scores)
    return Worth.SOME if worth is Worth.SMALL and unknown else worth


def refuse_program(program: TrainingProgram, here: Path, around: Sequence[Site] | None = None) -> None:
    """Raise Refuse for what the whole program does. ``around``: where another mixed precision would be in the way."""
    if program.target.torch < AUTOCAST_SINCE:
        older = version(program.target.torch)
        raise Refuse(f"the project serves torch {older}; torch.autocast came with torch {version(AUTOCAST_SINCE)}")
    if program.libraries & ENVIRONMENTS:
        raise Refuse("the model also acts in an environment, and the step compares with what it did there in float32")
    if graphs := sorted(program.libraries & GRAPHS):
        raise Refuse(f"the kernels of {graphs[0]} do the work, which do not all take 16 bits")
    if program.libraries & QUANTIZERS:
        raise Refuse("the model is quantized, and what it is calibrated on would be rounded to 16 bits first")
    there = [part for part in program.precision if part.kind in PARTS and not part.disabled]
    for part in there if any(part.kind == "autocast" for part in there) else ():  # (a scaler alone rounds nothing)
        if around is None or any(holds(each, part.site) for each in around):
            what = f"{PARTS[part.kind]}, {part.site.line_from(here)}"
            raise Refuse(f"the script has mixed precision of its own already ({what}), but not here")


def refuse_second_passes(program: TrainingProgram, step: Step) -> None:
    """Raise Refuse for what goes through the forward pass, or the backward pass, of a step once more."""
    names = {optimizer.qualname for site in step.optimizers if (optimizer := program.optimizer(site)) is not None}
    if any(update.closure for update in step.updates) or "torch.optim.LBFGS" in names:
        raise Refuse("the optimizer calls the forward pass again through a closure")
    if any(backward.create_graph for backward in step.backwards):
        raise Refuse("gradients of gradients are taken (create_graph), which 16 bits need other care for")


def refuse_model(model: Model) -> None:
    """Raise Refuse for what a model is made of."""
    if model.dtype == "float64":
        raise Refuse("the program computes in float64: it wants more precision, not less")
    if model.half:
        raise Refuse("the model, or a part of it, is in another precision already, or a setting makes it so")
    if (model.wrapped or "").endswith("FullyShardedDataParallel"):
        raise Refuse("FullyShardedDataParallel has mixed precision of its own: pass it mixed_precision=")


def needs_float16(model: Model) -> str | None:
    """What a model has that computes in float16 whatever the region says, where small gradients need a scaler.

    cuDNN does so with recurrent layers, fairscale when it recomputes; the threads of ``DataParallel`` take over that
    autocast is on, but not its dtype. Cells have no kernel for bfloat16 in older versions of torch.
    """
    if model.wrapped == "torch.nn.DataParallel":
        return "DataParallel"
    if FAIRSCALE_CHECKPOINT in model.layers:
        return "checkpoint_wrapper of fairscale"
    layer = next(iter(sorted(model.layers & (RECURRENT | GATED_CELLS))), None)
    return f"{layer.rpartition('.')[2]} layers" if layer is not None else None


def islands(program: TrainingProgram, calls: Iterable[Called], outside: Collection[Site] = ()) -> tuple[Called, ...]:
    """The calls of a forward pass that are unfit for 16 bits, and can be given what they take.

    What stands ``outside`` of the models is given 32 bits there.
    """
    if any(optimizer.complex for optimizer in program.optimizers):
        return ()
    return tuple(call for call in calls if is_unfit(call) and call.operands and call.site not in outside)


def is_unfit(call: Called) -> bool:
    """Whether a call in the forward pass may be given 16 bits that it does not take."""
    return not call.beside and (call.of_halves or call.of_weights) and unfit_for_half(call.qualname) is not None


def keep_wide(call: Called, edit: Edit) -> None:
    """Give the operands of a call 32 bits, or, where it does not mix, the type of its first one."""
    ending, why = ".float()", unfit_for_half(call.qualname)
    if why == NO_MIXING:
        node = node_of(edit, call.site)
        owner = node.func if isinstance(node, ast.Call) and call.qualname.startswith("Tensor.") else node
        owners = [owner.value] if isinstance(owner, (ast.Attribute, ast.Subscript)) else []
        if isinstance(owner, ast.Call):
            owners = [each.value for each in owner.keywords if each.arg == "input"] + owner.args
        text = ast.unparse(owners[0]) if owners else ""
        if not SIMPLE.fullmatch(text):
            raise Refuse(f"{call.qualname} on line {call.site.line} {why}")
        ending = f".to({text}.dtype)"
    for site in call.operands:
        edit.insert_after(site, ending)


def unsafe_call(calls: Iterable[Called], half: str, here: Path, outside: Collection[Site] = ()) -> str | None:
    """Why the forward pass would break or lose its meaning in 16 bits, if one of its calls says so.

    What stands ``outside`` of the models, or is an island, can be given what it takes.
    """
    for call in calls:
        if call.beside:
            continue
        why = unfit_for_half(call.qualname) if is_unfit(call) and call.site not in outside else None
        why = why or next((why for prefix, why in UNSAFE if call.qualname.startswith(prefix)), None)
        if why is not None and call.constants != ("custom_fwd",):
            return f"{call.qualname} on {call.site.line_from(here)} {why}"
        if half == "float16" and call.qualname.startswith(FILLS):
            numbers = [value for value in call.constants if isinstance(value, (int, float))]
            if any(FLOAT16_MAX < abs(value) < float("inf") for value in numbers):
                where = call.site.line_from(here)
                return f"{where} fills with a number that float16 cannot hold: use torch.finfo(x.dtype).min"
    return None


def half_for(program: TrainingProgram, step: Step) -> str:
    """What a step computes in: bfloat16, but where only float16 is there, or a part of it computes in that anyway."""
    narrow = any(needs_float16(model) is not None for model in models_of(program, step))
    return "float16" if narrow or program.target.capability < AMPERE else "bfloat16"
