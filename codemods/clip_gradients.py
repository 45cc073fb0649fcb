"""Clip the gradients of a transformer before each step.

Why slow
    It is not about the time of a step. One batch with large gradients can throw a transformer's weights far off;
    training that cannot take such batches needs a smaller learning rate, and so more steps.

Example
    ::

            loss.backward()
            optimizer.step()

Use instead
    ::

            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    1.0 is what the Trainer of transformers clips to (``max_grad_norm``). The line stands before the step, under its
    condition, so that with accumulation the sum is clipped, once. Where the optimizer may have other parameters than
    those of one model, what is in its ``param_groups`` is clipped. Beside a scaler ``scaler.unscale_(optimizer)`` comes
    first. Lightning's trainer has ``gradient_clip_val=1.0``; Accelerate and Fabric have calls of their own.

When refused
    Nothing is said of models without an attention, of convolutional networks, of what is trained on top of a frozen
    model, of steps that clip or in which several optimizers step, and of programs whose framework clips. It is refused

    - where the function of the step has no name for what it trains;
    - where gradients are read or changed by hand, by hooks, or by a call between the backward and the step;
    - where a step goes through a closure or is read, or gradients are differentiated again;
    - under FSDP, whose parameters are pieces, beside strategies of Lightning of another kind, and for a fused optimizer
      beside Lightning's mixed precision;
    - where a scaler's gradients are unscaled under another condition than the step.

Risk
    recipe: the steps of batches with a gradient norm above 1.0 become shorter. Others stay as they were.

Measured
    Nothing but that it does no harm to a toy (``fixtures/scripts/majority_transformer.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.records import dataclass
from turbofix.training.evidence import of_loop, of_value
from turbofix.training.model import Act, Framework, Step, Training, TrainingProgram, Weights

from ._attention import attention_in, attention_of
from ._frameworks import LEFT
from ._precision import models_of, requote
from ._trainers import FULL, Switch, is_off, is_sharded, judged
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="schedule",
    risk=Risk.RECIPE,
    after=("autocast", "modern-amp"),
    known_as=("gradient clipping", "clip_grad_norm_"),
    assumes=(READ_WHOLE,),
)

LARGEST = 1.0
SWITCH = "gradient_clip_val"
OPTIMIZERS = frozenset(
    f"torch.optim.{name}" for name in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD", "Adagrad")
) | {"transformers.AdamW"}
"""Those that are known not to clip by themselves."""

SHARDED = ("torch.distributed.fsdp.", "torch.distributed._composable.fsdp.")


@dataclass(frozen=True)
class Plan:
    """Where to clip, of which model (None: what the optimizer has), and by whom: torch, or a framework's object that
    ``backward`` is called on."""

    update: Act
    text: str | None
    framework: Framework
    backward: Act
    unscaled: bool


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Steps of transformers that clip no gradients."""
    if program.framework is Framework.LIGHTNING:
        yield from under_lightning(program)
    if program.framework not in LEFT or program.hands_over:
        return
    for step in program.steps:
        trained = step.weights[0].model if len(step.weights) == 1 else None
        attention = attention_in(program, step, trained)
        if attention is None or not step.updates or not step.backwards:
            continue
        if step.clips:
            yield codemod.in_place(step.clips[0].site, "gradients are clipped before the step")
            continue
        update = step.updates[0]
        optimizer = program.optimizer(update.optimizer)
        if len(step.updates) > 1 or len(step.optimizers) != 1 or optimizer is None:
            continue
        if optimizer.qualname not in OPTIMIZERS:
            continue
        message = "gradients are not clipped: one odd batch can throw the weights of a transformer off"
        seen = (of_loop(step), attention)
        reason = why_not(program, step)
        weights = next((each for each in step.weights if each.update == update.site), Weights(update.site))
        named = weights.text if program.framework is Framework.FABRIC else weights.text or update.concerns
        reason = reason or weights.why_not or (None if named else "the function that makes the step has no name for it")
        if reason is not None:
            yield codemod.refuse(update.site, message, reason, evidence=seen)
            continue
        plan = Plan(update, weights.text, program.framework, step.backwards[0], bool(step.unscales))
        yield codemod.finding(update.site, message, plan=plan, evidence=seen)


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of Lightning, whose trainer clips what its optimizer trains, where it is told to."""
    for training in program.trainings:
        module = training.module
        if module is None or module.manual or module.freezes is not None or training.parsed:
            continue
        if not all(each.qualname in OPTIMIZERS for each in program.optimizers) or not program.optimizers:
            continue
        found = (attention_of(program, each, module.calls) for each in training.models)  # of several it may be any
        if (attention := next(filter(None, found), None)) is None:
            continue
        if module.clips is not None:
            yield codemod.in_place(module.clips, "the module clips gradients itself")
            continue
        message = "gradients are not clipped: one odd batch can throw the weights of a transformer off"
        there = judged(codemod, training, SWITCH, message, "gradients are clipped before the step")
        if there is not None:
            yield there
            continue
        seen = (attention, of_value(SWITCH, training.argument(SWITCH), training.site))
        reason = why_not_under_lightning(program, training)
        if reason is not None:
            yield codemod.refuse(training.site, message, reason, evidence=seen)
        else:
            yield codemod.finding(training.site, message, plan=Switch(SWITCH, str(LARGEST)), evidence=seen)


def why_not_under_lightning(program: TrainingProgram, training: Training) -> str | None:
    """What makes the trainer's switch unsafe, if anything."""
    precision = training.argument("precision")
    is_full = precision.state == "absent" or (precision.known and set(precision.values) <= {None, *FULL})
    if not is_full and not all(is_off(each.argument("fused")) for each in program.optimizers):
        return "Lightning cannot clip the gradients of a fused optimizer beside mixed precision"
    if is_sharded(training):
        return "a strategy or plugin of the trainer may have a way of its own to clip"
    return why_not_setting(program, training, SWITCH, str(LARGEST))


def why_not(program: TrainingProgram, step: Step) -> str | None:
    """What makes a clip unsafe, apart from what it would be given."""
    update = step.updates[0]
    if not update.alone or update.certainty != "seen" or update.closure:
        return "the step is no plain call of an optimizer that was seen being made"
    if step.grad_reads:
        where = step.grad_reads[0].line_from(update.site.path)
        return f"{where} reads or changes gradients by hand"
    if update.scaled and not step.unscales and not update.concerns:
        return "the scaler's step is given more than an optimizer with a name"
    if any(act.create_graph for act in step.backwards):
        return "gradients are differentiated again"
    if any(part.qualname.startswith(SHARDED) for part in program.precision) or any(
        (model.wrapped or "").startswith(SHARDED) for model in models_of(program, step)
    ):
        return "the parameters of FSDP are pieces: its model has a clip_grad_norm_ of its own"
    if any(act.guard.tests != update.guard.tests or act.function != update.function for act in step.unscales):
        return f"gradients are unscaled under another condition than the step (line {step.unscales[0].site.line})"
    if any(part.kind in ("apex", "framework") and not part.enabled.off for part in program.precision):
        return "a library has taken over the precision, and with it the gradients"
    if program.framework is not Framework.PYTORCH and step.backwards[0].function != update.function:
        return "backward and the optimizer's step stand in different functions"
    if program.framework is not Framework.PYTORCH and not step.backwards[0].owner:
        return "backward is called past the framework, whose object is to clip"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Clip before the step."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    place = plan.update.site
    parameters = f"{plan.text}.parameters()"
    if plan.text is None:
        group, each = edit.free_name("group", place), edit.free_name("each", place)
        groups = f"{plan.update.concerns}.param_groups"
        parameters = requote(f'[{each} for {group} in {groups} for {each} in {group}["params"]]', edit, place)
    if plan.framework is Framework.PYTORCH:
        lines = []
        if plan.update.scaled and not plan.unscaled:
            lines.append(f"{plan.update.receiver_text}.unscale_({plan.update.concerns})")
        clip = edit.name("torch.nn.utils.clip_grad_norm_", place)
        edit.before(place, *lines, f"{clip}({parameters}, {LARGEST})")
        return
    owner = plan.backward.owner
    if plan.framework is Framework.FABRIC:
        edit.before(place, f"{owner}.clip_gradients({plan.text}, {plan.update.concerns}, max_norm={LARGEST})")
        return
    edit.before(place, f"if {owner}.sync_gradients:", f"    {owner}.clip_grad_norm_({parameters}, {LARGEST})")
