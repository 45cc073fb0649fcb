"""Let a transformer's learning rate rise at first, and fall to zero by the end.

Why slow
    A constant rate is too large for the first steps, and the last ones never settle: more steps get as far.

Example
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

Use instead
    ::

        total_steps = args.epochs * len(train_loader)
        warmup_steps = max(1, min(1000, total_steps // 20))
        scheduler = torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=warmup_steps),
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, total_steps - warmup_steps)),
            ],
            milestones=[warmup_steps],
        )

    and ``scheduler.step()`` behind each step. Its state goes into the checkpoints that hold the optimizer's. Beside a
    schedule that lets the rate fall from its height on, as ``CosineAnnealingLR``, there is the ``LinearLR`` alone.
    Lightning is handed it with ``"interval": "step"``, and transformers' settings get ``warmup_steps=100``.

When refused
    Nothing is said of models without attention, other optimizers than Adam and AdamW, and programs with a warm-up. It
    is refused where the number of steps cannot be written down beside the optimizer, not every batch makes a step, the
    optimizer is built in a loop, its state is loaded, or a framework has to prepare the scheduler (Accelerate, Fabric).

Risk
    recipe: the learning rate is another one in nearly every step, and the best one to start from may be higher.

Measured
    Only on a toy, where it does not pay; ``verify --risk recipe`` tells whether it does for your training.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE, RECENT_TORCH
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site
from turbofix.records import dataclass
from turbofix.training.evidence import of_loop
from turbofix.training.model import Act, Framework, Handed, Optimizer, Step, Training, TrainingProgram

from ._attention import attention_in, attention_of, goes_on_from
from ._companions import companion_names
from ._frameworks import LEFT
from ._precision import models_of
from ._trainers import Switch, is_off
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="schedule",
    risk=Risk.RECIPE,
    after=("autocast", "modern-amp", "clip-gradients"),
    known_as=("learning-rate warm-up", "cosine schedule"),
    assumes=(READ_WHOLE, RECENT_TORCH),
)

OPTIMIZERS = frozenset(("torch.optim.Adam", "torch.optim.AdamW", "transformers.AdamW"))
SINCE = (1, 10)  # torch.optim.lr_scheduler.SequentialLR
SCHEDULERS = "torch.optim.lr_scheduler"
WORDS = ("scheduler", "warmup")  # what the new schedule is called: the only one, or the one before another


@dataclass(frozen=True)
class Plan:
    """Where the scheduler is made, how many steps it counts, how it is called, what it is stepped after, and whether
    there is one that lets the rate fall."""

    optimizer: Optimizer
    after: Site
    total: str
    at_home: str
    in_step: str
    stepped_after: Act
    falling: bool


AT_ONCE = "the learning rate of a transformer has its full height at once, and falls from there: it lacks a warm-up"
CONSTANT = "the learning rate of a transformer is the same in all steps, with no warm-up and no decay"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Transformers that are trained without a warm-up."""
    message = CONSTANT if program.schedule == "no" else AT_ONCE
    if program.schedule == "other" or program.target.torch < SINCE or program.hands_over:
        return
    yield from under_trainers(program, message)
    for step in program.steps if program.framework in LEFT else ():
        trained = step.weights[0].model if len(step.weights) == 1 else None
        if len(step.updates) != 1 or len(step.optimizers) != 1 or not step.backwards:
            continue
        optimizer = program.optimizer(step.optimizers[0])
        attention = attention_in(program, step, trained)
        if optimizer is None or optimizer.qualname not in OPTIMIZERS or attention is None:
            continue
        seen = (of_loop(step), attention)
        try:
            plan = planned(program, step, optimizer)
        except Refuse as reason:
            yield codemod.refuse(optimizer.site, message, str(reason), evidence=seen)
            continue
        counted = Evidence(f"`{plan.total}` steps are known", plan.after)
        yield codemod.finding(optimizer.site, message, plan=plan, evidence=(*seen, counted))


def under_trainers(program: TrainingProgram, message: str) -> Iterator[Finding | Refusal]:
    """Trainings by transformers' trainer, whose settings have a number of steps, and by Lightning's."""
    for training in program.trainings:
        calls = training.module.calls if training.module is not None else ()
        attention = attention_of(program, training.models[0], calls) if len(training.models) == 1 else None
        if attention is None:
            continue
        most = next((each for each in training.argument("max_steps").values if type(each) is int and each > 0), 2000)
        plan: Switch | Handed = Switch("warmup_steps", str(max(1, min(100, most // 20))))
        where = training.site
        if program.framework is Framework.TRANSFORMERS:
            kind = training.argument("lr_scheduler_type")
            warms = not all(is_off(training.argument(name)) for name in ("warmup_steps", "warmup_ratio"))
            if warms or training.own_optimizer or "constant" in map(str, kind.values):
                continue
            message = AT_ONCE.replace("a transformer", "a model of transformers")  # which may be a ResNet
            reason = why_not_setting(program, training, "warmup_steps", "100")
        else:
            optimizer = program.optimizers[0] if len(program.optimizers) == 1 else None
            if optimizer is None or optimizer.qualname not in OPTIMIZERS or training.module is None:
                continue
            where, handed = optimizer.site, training.module.handed
            reason = handed if isinstance(handed, str) else why_not_handed(program, training)
            if isinstance(handed, Handed):
                plan = handed
                if optimizer.site != handed.made and optimizer.target_text != handed.optimizer:
                    reason = "`configure_optimizers` does not make the optimizer that it returns"
        yield codemod.offer(where, message, reason, plan=plan, evidence=(attention,))


def why_not_handed(program: TrainingProgram, training: Training) -> str | None:
    """What speaks against a schedule more in Lightning's hands, if anything."""
    if (oldest := program.target.oldest("lightning")) is not None and oldest < (1, 6):
        return "the project serves a Lightning that does not know how many steps there will be"
    if training.module is None or training.module.manual or training.module.resumes:
        return "the module steps its optimizer itself, or may go on from a checkpoint that knows of no warm-up"
    if -1 in training.argument("max_epochs").values:
        return "the training has no end"
    return goes_on_from(program, training.models)


def planned(program: TrainingProgram, step: Step, optimizer: Optimizer) -> Plan:
    """What the rewrite does; Refuse where it is not known to be right."""
    update, steps = step.updates[0], step.planned
    loader = program.loader(steps.loader)
    sized = loader is not None and loader.dataset.kind in ("map", "tensors") and not loader.first_only
    followed = optimizer.target_text is not None and optimizer.passes_complete
    for holds, reason in (
        (program.framework is not Framework.PYTORCH, "the framework has to prepare a scheduler, and counts the steps"),
        (program.processes, "the script starts processes of its own, which would each count their own steps"),
        (sum(optimizer.site in each.optimizers for each in program.steps) > 1, "the optimizer steps in several loops"),
        (not update.alone or update.certainty != "seen" or update.closure, "the step is no plain call of an optimizer"),
        (step.accumulation is not None or update.guard.tests, "not every batch makes a step"),
        (optimizer.in_loop or optimizer.branch is not None, "the optimizer is built in a loop or under a condition"),
        (not followed, "the optimizer could not be followed from its construction to the step"),
        (optimizer.state_loads, "the optimizer's state is loaded, so that the training may go on from the middle"),
        (steps.text is None or steps.after is None, steps.why_not or "how many steps there are is not known"),
        (steps.loader is not None and not sized, "the loader is not known to have a length"),
    ):
        if holds:
            raise Refuse(reason)
    if (pretrained := goes_on_from(program, models_of(program, step))) is not None:
        raise Refuse(pretrained)
    assert steps.text is not None and steps.after is not None
    falling = program.schedule == "falling"
    at_home, in_step = companion_names(optimizer, update, WORDS[falling])
    where = (update.guard.tests, update.function)
    alike = [each for each in step.scaler_updates if update.scaled and (each.guard.tests, each.function) == where]
    return Plan(optimizer, steps.after, steps.text, at_home, in_step, alike[-1] if alike else update, falling)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Make the scheduler, send it along with the optimizer, and step it after the step."""
    plan = finding.plan
    if isinstance(plan, Handed):
        hand_over(plan, edit)
        return
    assert isinstance(plan, Plan)
    for place, name in ((plan.after, plan.at_home), (plan.stepped_after.site, plan.in_step)):
        if "." not in name and edit.is_bound(name, place):
            raise Refuse(f"the name {name} is taken")
    optimizer = plan.optimizer.target_text or ""
    edit.after(plan.after, *written(edit, plan.after, plan.total, plan.at_home, optimizer, plan.falling))
    name, word = plan.at_home, WORDS[plan.falling]
    for hop in plan.optimizer.passes:
        edit.pass_on(hop.call, name, beside=hop.argument)
        edit.parameter(hop.function, word, beside=hop.parameter)
        name = word
    edit.after(plan.stepped_after.statement, f"{plan.in_step}.step()")
    for save in plan.optimizer.state_saves:
        if save.mapping is not None:
            edit.entry(save.mapping, word, f"{plan.at_home}.state_dict()")


def hand_over(plan: Handed, edit: Edit) -> None:
    """Return one schedule more, which is stepped in every step."""
    at, optimizer = plan.returned, plan.optimizer
    if plan.made is not None:
        optimizer = edit.free_name("optimizer", at)
        edit.before(at, f"{optimizer} = {edit.text(plan.made)}")
    name = edit.free_name(WORDS[bool(plan.schedules)], at)
    lines = written(edit, at, "int(self.trainer.estimated_stepping_batches)", name, optimizer, bool(plan.schedules))
    edit.before(at, *lines)
    rises = f'{{"scheduler": {name}, "interval": "step"}}'
    if plan.schedules:
        rows = (f"    {' '.join(each.split())}," for each in (*plan.schedules, rises))
        edit.replace_lines(at, at, f"return [{optimizer}], [", *rows, "]")
    else:
        edit.replace(plan.value, f"[{optimizer}], [{rises}]")


def written(edit: Edit, place: Site, total: str, name: str, optimizer: str, falling: bool) -> list[str]:  # noqa: PLR0913
    """The lines that make the warm-up, and what follows it where nothing else does."""
    steps, warmup = (edit.free_name(word, place) for word in ("total_steps", "warmup_steps"))
    sequential, linear, cosine = (
        edit.name(f"{SCHEDULERS}.{each}", place) for each in ("SequentialLR", "LinearLR", "CosineAnnealingLR")
    )
    rises = f"{linear}({optimizer}, start_factor=0.01, total_iters={warmup})"
    if falling:
        return [f"{warmup} = max(1, min(1000, {total} // 20))", f"{name} = {rises}"]
    return [
        f"{steps} = {total}",
        f"{warmup} = max(1, min(1000, {steps} // 20))",
        f"{name} = {sequential}(",
        f"    {optimizer},",
        "    [",
        f"        {rises},",
        f"        {cosine}({optimizer}, T_max=max(1, {steps} - {warmup})),",
        "    ],",
        f"    milestones=[{warmup}],",
        ")",
    ]
