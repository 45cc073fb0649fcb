"""Compile the model of a long training, so that its layers run as fewer, fused kernels.

Why slow
    Each operation of an eager model is a kernel of its own, which reads and writes the GPU's memory. The compiler fuses
    element-wise work into few kernels, and their launches cost the host less.

Example
    ::

        model = ResNet().to(device)

Use instead
    ::

        model = ResNet().to(device)
        if device.type == "cuda":
            model.compile()

    ``model.compile()`` compiles in place: the keys of checkpoints stay as they were. Where sizes are known to differ it
    is ``model.compile(dynamic=True)``. Transformers' ``Trainer`` gets ``torch_compile=torch.cuda.is_available()``.
    The models in a Lightning module are compiled one by one. What keeps the script's own
    ``torch.compile`` off is turned on where it stands: a literal, or an option's default.

When refused
    Nothing is said on a CPU and for GPUs before Volta. It is refused where a minute of compiling hardly comes back: for
    few steps, recurrent models, and products of 64 by 64. And it is refused

    - before torch 2.2, and for a class of ``torch.nn`` itself, such as ``nn.Sequential``: put it into a class of yours;
    - for detectors and graph networks;
    - where gradients are differentiated (``create_graph``), or deterministic algorithms are asked for;
    - where the model is exported, and where a flag that is not passed compiles it;
    - under the ``Trainer``, for models in 16 bits or quantized, and beside ``gradient_checkpointing``.

Risk
    equivalent: fused kernels round differently, and compiled dropout draws other numbers. On Windows the compiler needs
    a Triton that torch does not bring.

Measured
    1.41 times, the geometric mean of torch's own benchmarks (ASPLOS 2024); GPT-2 124M 2.3 times (build-nanogpt).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import COMPILES, FEW_SIZES, LONG_ENOUGH, ON_GPU, OPTION_DEFAULT, RECENT_TORCH
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, Gain, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.training.data.sizes import batch_of
from turbofix.training.evidence import of_device, of_loop
from turbofix.training.model import Compiling, Framework, Model, Step, TrainingProgram

from ._compiling import (
    HEAVY,
    LONG,
    USUAL,
    VOLTA,
    brought,
    counted,
    is_heavy,
    over_soon,
    under_trainer,
    why_not_as_it_is,
)
from ._loaders import reason_beside
from ._options import TurnedOn, on_defaults, turned_on
from ._precision import CONVOLVING, PRODUCTS, called, cuda_test, filled, may_contain, models_of, on_a_gpu
from ._precision import said as told_by
from ._sizes import varying
from ._trainers import limit, shards
from ._trainers import on_gpu as trains_on_gpu
from ._work import worth_of_work

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 2.3, source="geometric mean 1.41 (ASPLOS 2024); GPT-2 124M 2.3x (Karpathy, build-nanogpt)"),
    after=("autocast", "fused-optimizer"),
    known_as=("torch.compile", "inductor"),
    assumes=(ON_GPU, COMPILES, FEW_SIZES, LONG_ENOUGH, RECENT_TORCH, OPTION_DEFAULT),
    otherwise="no model was recognised here that would gain more from a compiler than compiling takes",
)

DYNAMIC = "; sizes differ from batch to batch, so it is compiled for all of them at once"
ASKED, COUNTED = "{torch.cuda.is_available}()", "{torch.cuda.device_count}() == 1"
COPYING = "torch.nn.DataParallel"
PARALLEL = "torch.nn.parallel.DistributedDataParallel"


@dataclass(frozen=True)
class Plan:
    """The statement behind (or before) which the model is compiled, its name there, and a test of whether on a GPU.

    ``dynamic``: for all sizes at once. ``methods``: those that are called by name, and compiled by themselves.
    """

    place: Site
    text: str
    test: str
    before: bool
    dynamic: bool = False
    methods: tuple[str, ...] = ()


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Models that run uncompiled."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(codemod, program)
    if program.framework is Framework.LIGHTNING and all(model.compiled is None for model in program.models):
        yield from under_lightning(program)
    for model in program.models if program.trains else ():
        if model.compiled is not None:
            unsure = model.compiling.unsure.text if model.compiling is not None else None
            says = f", where `{unsure}` says so" if unsure is not None else ""
            yield codemod.in_place(model.compiled, f"{called([model])} is compiled{says}")
    by_itself = program.framework in (Framework.PYTORCH, Framework.ACCELERATE)
    if not by_itself or not program.trains or (gpu := on_a_gpu(program)) is None:
        return
    if any(model.compiled is not None for model in program.models) or program.target.capability < VOLTA:
        return
    told: set[Plan | TurnedOn] = set()
    for model in program.models:
        steps = [step for step in program.steps if model.site in step.models]
        compiling = model.compiling
        if not steps or compiling is None or not may_contain((model,), steps, HEAVY, PRODUCTS | CONVOLVING):
            continue
        if not is_heavy(model) and any(map(is_heavy, (each for step in steps for each in models_of(program, step)))):
            continue  # the products that the step calls are another one's
        message = f"{called([model])} runs uncompiled, one kernel for each of its operations"
        seen = tuple(map(of_loop, steps[:1]))
        longest, soon = counted(program, model, steps)
        if longest is not None:
            seen = (*seen, Evidence(f"{longest:,} steps or so in all", steps[0].loop.site))
        reason = why_not(program, model, steps) or soon
        off = compiling.off
        switch = turned_on(off)
        if off.state != "absent":
            message += f": `{off.text}`, by which the script compiles it, is off"
            reason = reason or reason_beside(off)
            if reason is None and (switch is None or switch.site.kind == "Call"):
                reason = f"it is left to {told_by(off)}: pass it, or turn it on there"
        if reason is not None:
            yield codemod.refuse(model.site, message, reason, evidence=seen)
            continue
        sizes = (varying(program, step.loaders, step.resized, "compiled") for step in steps)
        differ = next((each for each in sizes if each is not None), None)
        plan = switch or plan_for(model, compiling, dynamic=differ is not None)
        message += DYNAMIC if differ is not None and switch is None else ""
        if plan in told:
            continue
        told.add(plan)
        place = plan.site if isinstance(plan, TurnedOn) else model.site
        seen = (*seen, *(() if isinstance(plan, TurnedOn) else of_device(compiling.place, plan.place)))
        worths = [worth_of_work(program, (model,), batch_of(program, step), step.loaders) for step in steps]
        plain = differ is None and model.wrapped != COPYING and not compiling.methods
        sized = () if differ and not switch else (FEW_SIZES,)
        assumes = (*gpu, COMPILES, *sized, LONG_ENOUGH, *on_defaults(off))
        worth = max(min(worths), Worth.HIGH if plain else Worth.SOME)
        yield codemod.finding(place, message, plan=plan, evidence=seen, assumes=assumes, worth=worth)


def plan_for(model: Model, compiling: Compiling, *, dynamic: bool) -> Plan:
    """How a model is compiled in place."""
    place = compiling.after or compiling.before
    assert place is not None and compiling.text is not None
    test = "True" if compiling.tested else cuda_test(compiling.place)
    test = test if compiling.after is not None or test == "True" else None
    test = test or f"next({compiling.text}.parameters()).is_cuda"
    test = COUNTED if model.wrapped == COPYING else test
    return Plan(place, compiling.text, test, compiling.after is None, dynamic, compiling.methods)


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """The models in a module of Lightning's, which are compiled in place in front of its training."""
    told: set[tuple[Site | None, str]] = set()
    for training in program.trainings if program.target.capability >= VOLTA else ():
        gpu = trains_on_gpu(training)
        if gpu is False or any(each.compiled is not None for _, each, _ in training.parts):
            continue
        for text, model, starts in training.parts:
            unknown = model.cls is None and not model.layers
            key = (starts if training.inside else None, text)
            if key in told or not (model.layers & HEAVY or model.convolutions or brought(model) or unknown):
                continue
            told.add(key)
            message = f"`{text}` runs uncompiled, one kernel for each of its operations"
            seen = (Evidence("Lightning trains it", training.site),)
            loaders = [each.site for each in program.loaders if each.fed != "no"]
            resized = training.module.resized if training.module is not None else None
            differ = varying(program, loaders, resized, "compiled") is not None
            reason = why_not_as_it_is(program, model)
            if model.compiling is not None and model.compiling.barred is not None:
                reason = model.compiling.barred.why
            if shards(training):
                reason = "a strategy or plugin of the trainer may wrap its layers one by one"
            steps, passes = limit(training, "max_steps"), limit(training, "max_epochs") or LONG
            sizes = [size for each in program.loaders for size in each.samples.values if isinstance(size, int)]
            reason = reason or over_soon(steps, passes, max(sizes, default=USUAL), (model,))
            open_ones = (*((ON_GPU,) if gpu is None else ()), COMPILES, *(() if differ else (FEW_SIZES,)))
            assumes = (*open_ones, LONG_ENOUGH, *on_defaults(shards(training) is None))
            methods = model.compiling.methods if model.compiling is not None else ()
            message += DYNAMIC if differ and reason is None else ""
            plan = Plan(starts, text, ASKED, not training.inside, differ, methods)
            worth = worth_of_work(program, (model,), None, loaders)
            yield codemod.offer(model.site, message, reason, plan=plan, evidence=seen, assumes=assumes, worth=worth)


def why_not(program: TrainingProgram, model: Model, steps: list[Step]) -> str | None:
    """What makes compiling wrong, or impossible."""
    compiling, reason = model.compiling, why_not_as_it_is(program, model)
    if compiling is None or reason is not None:
        return reason
    if model.wrapped not in (None, PARALLEL, COPYING):
        return f"it is wrapped in {(model.wrapped or '').rpartition('.')[2]}, which the compiler does not go with"
    itself = compiling.off.state != "absent"  # the script compiles it, in its own way
    for hazard in (None if itself else compiling.barred, compiling.foreign):
        if hazard is not None:
            return f"{hazard.why} ({hazard.site.line_from(model.site.path)})"
    if any(act.create_graph for step in steps for act in step.backwards):
        return "gradients are differentiated (create_graph), which compiled graphs do not bear"
    if not itself and ((compiling.after or compiling.before) is None or compiling.text is None):
        return "it has no name of its own in front of its training, where it could be compiled"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Compile the model in place behind the statement that puts it on its device."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    dynamic = "dynamic=True" if plan.dynamic else ""
    lines = [] if plan.methods else [f"{plan.text}.compile({dynamic})"]
    for own in (f"{plan.text}.{each}" for each in plan.methods):
        given = ", ".join(filter(None, (own, dynamic)))
        lines += [f"{own} = {edit.name('torch.compile', plan.place)}({given})"]
    if plan.test != "True":
        lines = [f"if {filled(plan.test, edit, plan.place)}:", *(f"    {each}" for each in lines)]
    if plan.before:
        edit.before(plan.place, *lines)
    else:
        edit.after(edit.statement(plan.place) if plan.test != "True" else plan.place, *lines)
