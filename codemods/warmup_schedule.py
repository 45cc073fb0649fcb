"""Let a transformer's learning rate rise at first, and fall to zero by the end.

Why slow
    It is not about the time of a step. A constant rate is too large for the first steps, and the last ones never
    settle. With warm-up and decay fewer steps get as far.

Example
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

Use instead
    ::

        total_steps = args.epochs * len(train_loader)
        warmup_steps = max(1, total_steps // 20)
        scheduler = torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=warmup_steps),
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, total_steps - warmup_steps)),
            ],
            milestones=[warmup_steps],
        )

    and ``scheduler.step()`` behind each step. Its state goes into the checkpoints that hold the optimizer's.

When refused
    Nothing is said of models without attention, convolutional networks, other optimizers than Adam and AdamW, and
    programs that schedule. It is refused where

    - the number of steps cannot be written down beside the optimizer, or not every batch makes a step;
    - the optimizer is built in a loop or under a condition, its state is loaded, or it is not followed to the step;
    - a framework has to prepare the scheduler (Accelerate, Fabric).

Risk
    recipe: the learning rate is another one in nearly every step, and the best one to start from may be higher.

Measured
    Only on a toy, where it does not pay; ``verify --risk recipe`` tells whether it does for your training.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE, RECENT_TORCH
from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site
from turbofix.program.evidence import of_loop
from turbofix.program.model import Act, Framework, Optimizer, Step, TrainingProgram
from turbofix.records import dataclass

from ._attention import attention_in, goes_on_from
from ._frameworks import LEFT
from ._precision import models_of
from ._scaler import companion_names, why_not_saved

codemod = Codemod(
    __name__,
    group="schedule",
    risk=Risk.RECIPE,
    after=("autocast", "modern-amp", "clip-gradients"),
    known_as=("learning-rate warm-up", "cosine schedule"),
    assumes=(READ_WHOLE, RECENT_TORCH),
)

OPTIMIZERS = frozenset(("torch.optim.Adam", "torch.optim.AdamW"))
SINCE = (1, 10)  # torch.optim.lr_scheduler.SequentialLR
SCHEDULERS = "torch.optim.lr_scheduler"


@dataclass(frozen=True)
class Plan:
    """Where the scheduler is made, how many steps it counts, how it is called, and what it is stepped after."""

    optimizer: Optimizer
    after: Site
    total: str
    at_home: str
    in_step: str
    stepped_after: Act


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Transformers that are trained at a constant learning rate."""
    if program.framework not in LEFT or program.hands_over or program.target.torch < SINCE:
        return
    for step in program.steps:
        trained = step.weights[0].model if len(step.weights) == 1 else None
        if len(step.updates) != 1 or len(step.optimizers) != 1 or not step.backwards or step.planned.scheduled:
            continue
        optimizer = program.optimizer(step.optimizers[0])
        attention = attention_in(program, step, trained)
        if optimizer is None or optimizer.qualname not in OPTIMIZERS or attention is None:
            continue
        message = "the learning rate of a transformer is the same in all steps, with no warm-up and no decay"
        seen = (of_loop(step), attention)
        try:
            plan = planned(program, step, optimizer)
        except Refuse as reason:
            yield codemod.refuse(optimizer.site, message, str(reason), evidence=seen)
            continue
        counted = Evidence(f"`{plan.total}` steps are known", plan.after)
        yield codemod.finding(optimizer.site, message, plan=plan, evidence=(*seen, counted))


def planned(program: TrainingProgram, step: Step, optimizer: Optimizer) -> Plan:
    """What the rewrite does; Refuse where it is not known to be right."""
    update = step.updates[0]
    if (reason := goes_on_from(program, models_of(program, step))) is not None:
        raise Refuse(reason)
    if program.framework is not Framework.PYTORCH:
        raise Refuse("the framework has to prepare a scheduler, which may then count the steps of all processes")
    if program.processes:
        raise Refuse("the script starts processes of its own, which would each count their own steps")
    if sum(optimizer.site in each.optimizers for each in program.steps) > 1:
        raise Refuse("the optimizer steps in several loops")
    if not update.alone or update.certainty != "seen" or update.closure:
        raise Refuse("the step is no plain call of an optimizer that was seen being made")
    if step.accumulation is not None or update.guard.kind != "always" or update.guard.tests:
        raise Refuse("not every batch makes a step, so that their number is not that of the batches")
    if optimizer.in_loop or optimizer.branch is not None:
        raise Refuse("the optimizer is built in a loop or under a condition")
    if optimizer.target_text is None or not optimizer.passes_complete:
        raise Refuse("the optimizer could not be followed from its construction to the step")
    if optimizer.state_loads:
        raise Refuse("the optimizer's state is loaded, so that the training may go on from the middle")
    if (line := why_not_saved([optimizer], optimizer, step.loop.site.path)) is not None:
        raise Refuse(f"the optimizer's state goes into a checkpoint, and the scheduler's cannot be put beside it{line}")
    steps = step.planned
    if steps.text is None or steps.after is None:
        raise Refuse(steps.why_not or "how many steps there are is not known")
    loader = program.loader(steps.loader)
    if steps.loader is not None and (
        loader is None or loader.dataset.kind not in ("map", "tensors") or loader.first_only
    ):
        raise Refuse("the loader is not known to have a length")
    at_home, in_step = companion_names(optimizer, update, "scheduler")
    last = update
    for each in step.scaler_updates:
        if each.guard.tests == update.guard.tests and each.function == update.function and update.scaled:
            last = each
    return Plan(optimizer, steps.after, steps.text, at_home, in_step, last)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Make the scheduler, send it along with the optimizer, and step it after the step."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    for place, name in ((plan.after, plan.at_home), (plan.stepped_after.site, plan.in_step)):
        if "." not in name and edit.is_bound(name, place):
            raise Refuse(f"the name {name} is taken")
    place, optimizer = plan.after, plan.optimizer.target_text
    total, warmup = (edit.free_name(word, place) for word in ("total_steps", "warmup_steps"))
    sequential, linear, cosine = (
        edit.name(f"{SCHEDULERS}.{name}", place) for name in ("SequentialLR", "LinearLR", "CosineAnnealingLR")
    )
    edit.after(
        place,
        f"{total} = {plan.total}",
        f"{warmup} = max(1, {total} // 20)",
        f"{plan.at_home} = {sequential}(",
        f"    {optimizer},",
        "    [",
        f"        {linear}({optimizer}, start_factor=0.01, total_iters={warmup}),",
        f"        {cosine}({optimizer}, T_max=max(1, {total} - {warmup})),",
        "    ],",
        f"    milestones=[{warmup}],",
        ")",
    )
    name = plan.at_home
    for hop in plan.optimizer.passes:
        edit.pass_on(hop.call, name, beside=hop.argument)
        edit.parameter(hop.function, "scheduler", beside=hop.parameter)
        name = "scheduler"
    edit.after(plan.stepped_after.statement, f"{plan.in_step}.step()")
    for save in plan.optimizer.state_saves:
        if save.mapping is not None:
            edit.entry(save.mapping, "scheduler", f"{plan.at_home}.state_dict()")
