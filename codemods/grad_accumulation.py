"""Add up the gradients of several batches before each update, where the script says so and does not do it.

Why slow
    A script that says how many batches make up one update, and then updates with every batch, trains with a smaller
    batch than it says: with more noise, and at a learning rate that was meant for the larger one.

Example
    ::

        parser.add_argument("--accumulation-steps", type=int, default=4)  # nothing reads it

Use instead
    ::

        for i, (images, labels) in enumerate(train_loader):
            if i % args.accumulation_steps == 0:
                optimizer.zero_grad()
            loss = criterion(model(images), labels)
            (loss / args.accumulation_steps).backward()
            if (i + 1) % args.accumulation_steps == 0 or i + 1 == len(train_loader):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    Clipping, the scaler, a schedule by batches and an average of the weights wait for the last batch of each group.
    Losses that are shown stay as they were. The trainers of transformers and Lightning have a switch for it. It makes
    nothing faster: where the whole batch fits, one larger batch is (``larger-batch``).

When refused
    Nothing is said unless an option or a constant that is called so (``accum_iter``) asks for it and nothing reads it.
    Refused where the step has several losses or optimizers, where backward and update stand in other functions or under
    tests, where other statements stand between them, where gradients are read, where the loop may leave a batch out,
    where weights are averaged elsewhere or the learning rate is set by hand with every batch, where the number of
    batches cannot be written, and for settings that are changed, or decided by DeepSpeed or a strategy.

Risk
    recipe: the effective batch is larger, and there are fewer updates. BatchNorm still sees the small batches.

Measured
    Nothing: it is not about speed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.names import loaded
from turbofix.source.nodes import walk
from turbofix.training.evidence import of_loop, of_value
from turbofix.training.model import Act, Argument, Framework, Step, TrainingProgram

from ._loaders import node_of, site_of, whole
from ._trainers import Switch, by_deepspeed, is_sharded
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="schedule",
    risk=Risk.RECIPE,
    after=("larger-batch",),
    tells=("no-sync",),
    known_as=("gradient accumulation", "effective batch size"),
)


PACED = regex(r"param_groups|(adjust|set|update)_(lr|learning_rate)|lr_?sched\w*|warm_?up\w*|(\w+_)?ema(_\w+)?")
"""Names that set the learning rate by hand, or keep an average of the weights."""

SWITCHES = {
    Framework.TRANSFORMERS: "gradient_accumulation_steps",
    Framework.LIGHTNING: "accumulate_grad_batches",
}


@dataclass(frozen=True)
class Plan:
    """The step, the text of the number of batches, and the loops that average weights in the step."""

    step: Step
    many: str
    averages: tuple[Site, ...]


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Steps that update with every batch, although the script says over how many gradients shall add up."""
    if program.framework in SWITCHES and program.complete:
        yield from under_trainer(program, SWITCHES[program.framework])
    if program.framework is not Framework.PYTORCH or not program.complete:
        return
    for step in program.steps:
        groups = step.accumulation
        if groups is not None:
            if groups.divided and groups.steps.values != (1,):
                yield codemod.in_place(groups.guard, "gradients add up over several batches, each with its share")
            continue
        wish = step.wish
        if wish.state == "absent" or wish.text is None or not step.reached or len(step.backwards) == 0:
            continue
        place = step.backwards[0].site
        message = unheard(wish)
        if step.scheduler_steps:
            message += "; the schedule would count updates then, and no more batches"
        seen = (of_loop(step), of_value("the number of batches", wish, place))
        averages = tuple(each.loop for each in program.averagings if each.loop.path == step.loop.site.path)
        plan = Plan(step, wish.text, averages)
        yield codemod.offer(place, message, why_not(program, step), plan=plan, evidence=seen)


def unheard(wish: Argument) -> str:
    """What is said of a number of batches that nothing reads."""
    said, many = wish.option or f"`{wish.text}`", wish.values[0] if wish.values[0] != 1 else "several"
    return (
        f"every batch is an update of its own, although {said} says that the gradients of {many} add up, "
        "and nothing reads it"
    )


def under_trainer(program: TrainingProgram, switch: str) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of a framework whose trainer adds gradients up where it is told to."""
    for training in program.trainings:
        given, wish = training.argument(switch), training.wish
        if given.state != "absent" or wish.state == "absent" or wish.text is None or training.parsed:
            continue
        if training.module is not None and training.module.manual:
            continue
        message = unheard(wish)
        seen = (of_value("the number of batches", wish, training.site),)
        reason = why_not_setting(program, training, switch, wish.text)
        if reason is None and (by_deepspeed(training) or is_sharded(training)):
            reason = "another engine may take part, with a number of its own"
        yield codemod.offer(training.site, message, reason, plan=Switch(switch, wish.text), evidence=seen)


def why_not(program: TrainingProgram, step: Step) -> str | None:
    """What the model knows that is in the way."""
    if len(step.backwards) != 1 or len(step.updates) != 1 or len(step.optimizers) > 1:
        return "the step has several losses or optimizers"
    backward, update, loop = step.backwards[0], step.updates[0], step.loop
    waiting = (backward, *acts(step))
    reasons = {
        "the optimizer computes the loss itself": update.closure,
        "the gradient is differentiated again": backward.create_graph,
        "some of the step happens under a test": any(
            each.guard.kind != "always" for each in (*waiting, *step.zero_grads)
        ),
        "backward and update stand in functions of their own": any(
            each.function != step.function or each.site.path != loop.site.path for each in waiting
        ),
        "the result of a call that would no more happen with every batch is read": not all(
            each.alone for each in (*waiting, *step.zero_grads)
        ),
        "gradients are read by hand": step.grad_reads,
        "the gradients are cleared in several places, or in none that was seen": len(step.zero_grads) != 1,
        "the number of batches cannot be told, nor the last group flushed": loop.sized is None,
        "the batches are counted from another number": loop.counter is not None and loop.counter_start not in (0, 1),
        "several processes train, and would exchange gradients with every batch (no_sync)": program.distributed
        or program.processes,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def acts(step: Step) -> tuple[Act, ...]:
    """All that is to wait for the last batch of a group, but for clearing the gradients."""
    return (*step.unscales, *step.clips, *step.updates, *step.scaler_updates, *step.scheduler_steps)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Divide the loss, and let the update wait."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    step, many = plan.step, plan.many
    loop = node_of(edit, step.loop.site)
    if not isinstance(loop, ast.For):
        raise Refuse("the loop over batches is no `for`")
    for node in walk(loop):
        if isinstance(node, (ast.Continue, ast.Break, ast.Return, ast.Try)):
            raise Refuse(f"a batch may be left out (line {node.lineno}), and the update with it")
    lines = [(each.lineno, each.end_lineno or each.lineno) for each in loop.body]
    backward, clear = position(lines, step.backwards[0].statement), position(lines, step.zero_grads[0].statement)
    ends = sorted({position(lines, act.statement) for act in acts(step)})
    behind = clear > max(ends)
    averaged = {averaging(loop, lines, each) for each in plan.averages}
    wrapped = sorted({*ends, clear, *averaged}) if behind else sorted({*ends, *averaged})
    if wrapped != list(range(wrapped[0], wrapped[-1] + 1)) or wrapped[0] <= backward:
        raise Refuse("other statements stand among those of the update")
    for index, statement in enumerate(loop.body):
        for node in walk(statement) if index not in wrapped else ():
            if isinstance(node, (ast.Name, ast.Attribute)) and (is_paced(node) or averages(node)):
                raise Refuse(
                    f"the loop sets the learning rate or averages weights by its own count (line {node.lineno})"
                )
    if not behind and clear > backward:
        raise Refuse("the gradients are cleared between backward and update")
    count, start = step.loop.counter, step.loop.counter_start
    text = whole(edit, step.loop.site)
    if count is None:
        count, start = edit.free_name("i", step.loop.site), 0
        old = edit.text(site_of(loop.target, step.loop.site.path, text))
        is_bare = isinstance(loop.target, ast.Tuple) and not old.startswith("(")
        edit.replace(
            site_of(loop.target, step.loop.site.path, text), f"{count}, ({old})" if is_bare else f"{count}, {old}"
        )
        given = site_of(loop.iter, step.loop.site.path, text)
        edit.replace(given, f"enumerate({edit.text(given)})")
    elif not isinstance(loop.target, ast.Tuple) or count not in loaded_names(loop.target):
        raise Refuse("the batches are counted by hand")
    seen, before = (f"({count} + 1)", count) if start == 0 else (count, f"({count} - 1)")
    edit.insert_after(divided(edit, step.backwards[0]), f" / {many}")
    if not behind:
        edit.wrap(step.zero_grads[0].statement, step.zero_grads[0].statement, f"if {before} % {many} == 0:")
    last = f"{seen.strip('()')} == {step.loop.sized}"
    first, end = (site_of(loop.body[index], step.loop.site.path, text) for index in (wrapped[0], wrapped[-1]))
    edit.wrap(first, end, f"if {seen} % {many} == 0 or {last}:")


def loaded_names(target: ast.expr) -> set[str]:
    """The names in a target."""
    return {node.id for node in walk(target) if isinstance(node, ast.Name)} | set(loaded(target))


def position(lines: list[tuple[int, int]], statement: Site) -> int:
    """Which statement of the loop's own body a statement is. Raises Refuse where it stands deeper."""
    for index, (first, last) in enumerate(lines):
        if (first, last) == (statement.line, statement.end_line):
            return index
    raise Refuse("some of the step stands in a block of its own")


def averages(node: ast.Name | ast.Attribute) -> bool:
    """Whether a name is that of a call which brings averages of weights up to date, or works on lists of tensors."""
    return isinstance(node, ast.Attribute) and (node.attr == "update_parameters" or node.attr.startswith("_foreach_"))


def averaging(loop: ast.For, lines: list[tuple[int, int]], site: Site) -> int:
    """Which statement of the loop's own body does nothing but average weights. Raises Refuse where it does more."""
    for index, (first, last) in enumerate(lines):
        statement = loop.body[index]
        inner = statement.body if isinstance(statement, ast.With) else [statement]
        if first <= site.line <= last and [each.lineno for each in inner] == [site.line]:
            return index
    raise Refuse(f"the weights are averaged with every batch (line {site.line})")


def divided(edit: Edit, backward: Act) -> Site:
    """The loss in ``loss.backward()`` and in ``scaler.scale(loss).backward()``."""
    call = node_of(edit, backward.site)
    receiver = call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
    if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute) and receiver.func.attr == "scale":
        receiver = receiver.args[0] if len(receiver.args) == 1 else None
    if receiver is None or isinstance(receiver, ast.Call):
        raise Refuse("the loss has no name at backward")
    return site_of(receiver, backward.site.path, whole(edit, backward.site))


def is_paced(node: ast.Name | ast.Attribute) -> bool:
    """Whether a name speaks of something that a loop does at its own pace, once per batch."""
    return PACED.fullmatch((node.id if isinstance(node, ast.Name) else node.attr).lower()) is not None
