"""The gradient scaler that float16 needs: a name of the step's file, and what it does in the step."""

from __future__ import annotations

from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.records import dataclass
from turbofix.source.nodes import parse
from turbofix.training.model import Act, Step, TrainingProgram

from ._loaders import put_above, whole
from ._precision import THERE, autocast_of, requote, written


@dataclass(frozen=True)
class Scaling:
    """The test for a GPU, and what the scaler does in the step. The scale is updated behind ``last``."""

    test: str
    backwards: tuple[Act, ...]
    unscale: tuple[tuple[Site, str], ...]
    updates: tuple[Act, ...]
    last: Site


def scaling_for(program: TrainingProgram, step: Step, test: str) -> Scaling:
    """What a scaler does in a step; Refuse where that is not known for sure. ``test`` is that at the forward pass.

    It starts afresh with each run, and skips a few updates until it has found its scale.
    """
    if sum(autocast_of(program, other) is None for other in program.steps) > 1:
        raise Refuse("several training loops would have to share one gradient scaler")
    if "horovod" in program.libraries:
        raise Refuse("horovod's optimizer has to be told before gradients are unscaled")
    if program.processes:
        raise Refuse("the script starts processes of its own, which would not share the gradient scaler")
    for act in (*step.backwards, *step.updates):
        if not act.alone or act.certainty != "seen":
            raise Refuse(f"line {act.site.line} is not a plain call that the scaler could take over")
    if not step.updates or len({act.function for act in (*step.backwards, *step.updates)}) > 1:
        raise Refuse("backward and the optimizers' steps stand in different functions")
    last = max(step.updates, key=lambda update: update.statement)
    if len(step.updates) > 1 and last.guard.tests:
        raise Refuse("one of several optimizers steps under a condition, and the scale is updated behind all of them")
    return Scaling(
        test if test == "True" else THERE, step.backwards, unscalings(program, step), step.updates, last.statement
    )


def holds(function: Site, inner: Site) -> bool:
    """Whether something stands in the text of a function."""
    return function.path == inner.path and function.line <= inner.line <= function.end_line


def unscalings(program: TrainingProgram, step: Step) -> tuple[tuple[Site, str], ...]:
    """The backward pass behind which gradients are unscaled, with the optimizer's name: once between two steps.

    Raises Refuse where gradients are clipped or read, and not every step follows one backward pass.
    """
    sole, names = step.backwards[0], dict.fromkeys(each.receiver_text for each in step.updates)
    there = {each.site for each in program.optimizers if each.branch is None}
    follow = all(
        each.guard.tests == sole.guard.tests or (each.guard.kind == "config" and each.optimizer in there)
        for each in step.updates
    )
    if follow and len(step.backwards) == 1 and step.accumulation is None:
        return tuple((sole.statement, name) for name in names if step.clips or step.grad_reads)
    if step.grad_reads:
        where = step.grad_reads[0].line_from(step.loop.site.path)
        raise Refuse(f"{where} reads gradients by hand, which the scaler would have multiplied")
    clips, tests = step.clips, step.updates[0].guard.tests
    if clips and (len(names) > 1 or len(clips) > 1 or clips[0].guard.tests != tests):
        raise Refuse(
            f"gradients are clipped on line {clips[0].site.line} under another condition than the step: "
            "unscaling them twice before a step raises"
        )
    return tuple((clip.statement, next(iter(names))) for clip in clips)


def scale(scaling: Scaling, edit: Edit, *, old_torch: bool) -> None:
    """Make the scaler in front of the step, and let it take over backward, clipping and step."""
    here = scaling.updates[0].site
    name = edit.free_name("scaler", here)
    arguments = [] if old_torch else ['"cuda"']
    test = written(scaling.test, edit, here)
    arguments += [] if test == "True" else [f"enabled={test}"]
    maker = edit.name("torch.cuda.amp.GradScaler" if old_torch else "torch.amp.GradScaler", here)
    put_above(edit, top_of(edit, here), requote(f"{name} = {maker}({', '.join(arguments)})", edit, here))
    for backward in scaling.backwards:
        receiver, found, rest = edit.text(backward.site).rpartition(".backward(")
        if not found:
            raise Refuse(f"line {backward.site.line} is not a plain call that the scaler could take over")
        inner = receiver[1:-1] if receiver.startswith("(") and receiver.endswith(")") else receiver
        edit.replace(backward.site, f"{name}.scale({inner}){found}{rest}")
    backwards = {each.statement for each in scaling.backwards}
    for place, optimizer in scaling.unscale:
        put = edit.after if place in backwards else edit.before
        put(place, f"{name}.unscale_({optimizer})")
    for update in scaling.updates:
        if edit.text(update.site) != f"{update.receiver_text}.step()":
            raise Refuse(f"line {update.site.line} is not a plain call that the scaler could take over")
        edit.replace(update.site, f"{name}.step({update.receiver_text})")
    edit.after(scaling.last, f"{name}.update()")


def top_of(edit: Edit, site: Site) -> Site:
    """The statement of the file's top level that holds a place."""
    tops = parse(whole(edit, site)).body
    top = next(each for each in tops if (each.end_lineno or 0) >= site.line)
    return Site(site.path, top.lineno, 0, top.lineno, 1, type(top).__name__)
