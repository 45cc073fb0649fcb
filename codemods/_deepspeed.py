"""The precision that DeepSpeed computes in: what its configuration says of it, and how it is written there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from turbofix.codemod import Codemod
from turbofix.datafile import is_json
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Site
from turbofix.program.evidence import of_forward, of_value
from turbofix.program.model import Configuration, Engine, Step, Training, TrainingProgram
from turbofix.records import dataclass

from ._precision import called, requote
from ._trainers import CAPABLE, Switch, set_switch

VOLTA, AMPERE = (7, 0), (8, 0)

PRECISIONS = ("bf16", "bfloat16", "fp16", "amp", "torch_autocast")
"""The objects of a configuration that turn another precision on by ``enabled``."""

OF_TOKENS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForSeq2SeqLM")
"""Models of transformers that are given whole numbers, and compute their loss themselves."""

SPLIT = (1, 2, 3)
"""The stages of ZeRO that have weights in float32 beside those of the model."""


@dataclass(frozen=True)
class InConfiguration:
    """The entry ``bf16`` that a configuration gets (none without ``top``), and the switch of a trainer beside it."""

    top: Site | None
    value: str = ""
    switch: Switch | None = None
    call: Site | None = None


def find(
    codemod: Codemod, program: TrainingProgram, gains: Callable[[Step], bool]
) -> Iterator[Finding | Refusal | InPlace]:
    """Models that DeepSpeed trains in float32, where its configuration names no precision.

    ``gains`` says whether a step of a model of the script's own has work that 16 bits make faster.
    """
    if program.target.capability < VOLTA:
        return
    for engine in program.engines:
        steps = [step for step in program.steps if {model.site for model in engine.models} & set(step.models)]
        known = engine.precision == "float32" or (engine.precision == "own" and any(map(gains, steps)))
        if not engine.models or not known or any(model.half for model in engine.models):
            continue
        configured = engine.configuration
        seen = (
            of_value("config", configured.given, engine.site),
            *(of_forward(steps[0]) if steps else ()),
        )
        message = f"DeepSpeed computes {called(engine.models)} in float32 where its configuration says nothing else"
        if configured.top is None or configured.said is None:
            if engine.precision == "own":
                continue
            unknown = f"{configured.why_not}: give it `bf16` there"
            yield codemod.refuse(engine.site, f"{message}; the GPU is faster in bfloat16", unknown, evidence=seen)
            continue
        there = judged(codemod, configured, message)
        if there is not None:
            yield there
            continue
        message = (
            f"DeepSpeed computes {called(engine.models)} in float32: its configuration names no precision, "
            "and the GPU is faster in bfloat16"
        )
        reason = why_not(program, engine, steps)
        if reason is not None:
            yield codemod.refuse(configured.top, message, reason, evidence=seen)
            continue
        value = '{"enabled": True}' if is_json(configured.top.path) else f'{{"enabled": {CAPABLE}}}'
        yield codemod.finding(configured.top, message, plan=InConfiguration(configured.top, value), evidence=seen)


def judged(codemod: Codemod, configured: Configuration, message: str) -> Refusal | InPlace | None:
    """What to say of a precision that a configuration names; None where it names none."""
    assert configured.top is not None
    off: list[str] = []
    for name in PRECISIONS:
        if configured.value(name) is None:
            continue
        enabled = configured.value(name, "enabled")
        site = configured.places.get(f"{name}.enabled") or configured.places.get(name) or configured.top
        if enabled is ...:
            return codemod.in_place(site, f"DeepSpeed's precision is chosen by its configuration ({name})")
        if enabled not in (None, False):
            return codemod.in_place(site, f"DeepSpeed computes in the precision that its configuration names ({name})")
        off.append(name)
    if off:
        site = configured.places.get(f"{off[0]}.enabled") or configured.places.get(off[0]) or configured.top
        reason = f"the configuration switches {off[0]} off itself, on purpose as it seems"
        return codemod.refuse(site, f"{message}; the GPU is faster in bfloat16", reason)
    return None


def why_not(program: TrainingProgram, engine: Engine, steps: list[Step]) -> str | None:
    """What makes bfloat16 unsafe for a model and its steps, all of whose weights DeepSpeed would cast."""
    if not program.complete:
        return program.incomplete_because or "the program could not be read to its end"
    if program.target.capability < AMPERE:
        return "before Ampere there is only fp16, in which models that were trained in bfloat16 (T5) overflow"
    if engine.precision == "own":
        return "DeepSpeed casts the whole model, and not what it is given: cast that to the dtype of the model"
    layers = {layer.rpartition(".")[0] for model in engine.models for layer in model.layers}
    if not all(layer.endswith(OF_TOKENS) for layer in layers):
        return (
            "it may be given pictures, sound or targets in float32, which DeepSpeed does not cast along with the model"
        )
    if engine.embeds is not None:
        return f"{engine.embeds.line_from(engine.site.path)} gives it embeddings, which DeepSpeed does not cast along"
    if engine.resumes is not None:
        return f"{engine.resumes.line_from(engine.site.path)} may load what was saved by a training in float32"
    if not steps:
        return "its training step could not be followed"
    for step in steps:
        if step.loss.qualnames or any(region.half for region in step.forwards):
            return "the script computes the loss itself, which would be left with three digits: cast the logits first"
    for region in (
        *(each for step in steps for each in step.forwards),
        *(each.forward for each in program.evaluations),
    ):
        if region is not None and region.escapes:
            place = region.escapes[0].line_from(engine.site.path)
            return f"{place} hands a result to another library; numpy has no bfloat16"
    batches = engine.configuration.value("gradient_accumulation_steps")
    derived = all(
        engine.configuration.value(name) is not None for name in ("train_batch_size", "train_micro_batch_size_per_gpu")
    )
    return unfit(engine.configuration, batches if batches is not None or not derived else ...)


def unfit(configured: Configuration, batches: object) -> str | None:
    """What in a configuration does not go with bfloat16; ``batches`` is how many make up an update."""
    if configured.value("zero_optimization", "stage") not in SPLIT:
        return (
            "without a stage of ZeRO, versions of DeepSpeed differ in how they keep weights in float32 beside bfloat16"
        )
    if configured.value("data_types") is not None:
        return "the configuration names precisions of its own (`data_types`)"
    if batches not in (None, 1):
        return "DeepSpeed would add up the gradients of several batches in bfloat16 (see its `grad_accum_dtype`)"
    return None


def under_trainer(training: Training) -> InConfiguration | str:
    """What is written beside the switch of a trainer that hands over to DeepSpeed, or why nothing is."""
    configured, call = training.configuration, training.site
    if configured is None or configured.top is None or configured.said is None:
        found = configured.why_not if configured is not None else None
        return f"{found or 'DeepSpeed has a configuration of its own'}, and must say the same as the settings"
    for name in PRECISIONS:
        enabled = configured.value(name, "enabled")
        if configured.value(name) is None or enabled == "auto":
            continue
        if enabled in (None, False):
            if configured.value("bf16", "enabled") == "auto":
                continue
            return f"DeepSpeed's configuration switches {name} off itself, on purpose as it seems"
        return f"DeepSpeed's configuration names a precision ({name}), with which the settings must agree"
    if configured.value("fp16") is not None and configured.value("bf16") is None:
        return "DeepSpeed's configuration leaves fp16 to the settings, on purpose as it seems"
    if training.resumes:
        return "it may go on from a checkpoint of a training in float32"
    given = training.argument("gradient_accumulation_steps")
    batches: object = 1 if given.state == "absent" else given.values[0] if given.state == "value" else ...
    reason = unfit(configured, batches)
    if reason is not None:
        return reason
    top = configured.top if configured.value("bf16") is None else None
    return InConfiguration(top, '{"enabled": "auto"}', Switch("bf16", CAPABLE), call)


def write(plan: InConfiguration, edit: Edit) -> None:
    """Give the configuration the entry, and the settings the switch."""
    if plan.top is not None and is_json(plan.top.path):
        edit.setting(plan.top, "bf16", plan.value, before="zero_optimization")
    elif plan.top is not None:
        value = plan.value
        for part in plan.value.split("{")[2:]:
            dotted = part.partition("}")[0]
            value = value.replace("{" + dotted + "}", edit.name(dotted, plan.top))
        edit.entry(plan.top, "bf16", requote(value, edit, plan.top))
    if plan.switch is not None and plan.call is not None:
        set_switch(plan.switch, plan.call, edit)


def evidence(training: Training) -> tuple[Evidence, ...]:
    """The configuration that a trainer's settings name."""
    configured = training.configuration
    return (Evidence("DeepSpeed's configuration", configured.top),) if configured and configured.top else ()
