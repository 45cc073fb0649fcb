"""Leave out of DistributedDataParallel what a training does not need, and let gradients lie where they are sent from.

Why slow
    With ``find_unused_parameters=True`` each forward pass is followed by a walk through its whole graph, in search of
    parameters that no gradient will reach. And gradients are kept twice: as the parameters' own, and in the buckets
    that are sent from process to process, with a copy from one to the other in each step.

Example
    ::

        model = DistributedDataParallel(model, device_ids=[rank], find_unused_parameters=True)

Use instead
    ::

        model = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)

    Where an option's default or a constant says it, that becomes False. So does ``ddp_find_unused_parameters`` of the
    Trainer; Lightning's strategy becomes ``"ddp"``. Accelerate's ``DistributedDataParallelKwargs`` has both flags.

When refused
    A model some of whose parameters get no gradient in a step fails without the search: that each gets one is assumed,
    and a run tells. ``broadcast_buffers`` and ``static_graph`` are left alone: there may be buffers, and a static graph
    fails beside ``no_sync``. It is refused

    - where gradients are read by hand: in a bucket they are overwritten by those of the next step;
    - where ``gradient_as_bucket_view=False`` is written down, or a ``**mapping`` may hold it.

Risk
    exact: the same gradients in another place.

Measured
    No figure of its own. The buckets take as much memory as the gradients: 4 bytes for each parameter are saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import EVERY_GRADIENT, OPTION_DEFAULT, READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.training.evidence import of_value
from turbofix.training.model import Argument, Framework, TrainingProgram, Wrapping

from ._loaders import mend_help, reason_beside
from ._options import on_defaults
from ._trainers import Switch, evidence, why_not

codemod = Codemod(
    __name__,
    group="distributed",
    risk=Risk.EXACT,
    known_as=("find_unused_parameters", "gradient_as_bucket_view", "static_graph"),
    assumes=(READ_WHOLE, EVERY_GRADIENT, OPTION_DEFAULT),
    worth=Worth.SMALL,
)

SEARCH, VIEW = "find_unused_parameters", "gradient_as_bucket_view"
SINCE = (1, 8)
SWITCHES = (
    (f"ddp_{SEARCH}", True, "False"),
    ("strategy", f"ddp_{SEARCH}_true", '"ddp"'),
)
"""What the trainers of transformers and Lightning are told, and what instead."""


@dataclass(frozen=True)
class Plan:
    """The call, whether gradients are to be views of its buckets, and what says that it searches, if anything does."""

    call: Site
    view: bool
    search: Argument | None


SEARCHES = "each step searches the whole graph for parameters that its loss does not use"
TWICE = "gradients are kept twice: as those of the parameters, and in the buckets that are sent"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Calls of DistributedDataParallel that search for parameters without a gradient, or keep gradients twice."""
    yield from under_trainer(program)
    if program.framework not in (Framework.PYTORCH, Framework.ACCELERATE) or program.target.torch < SINCE:
        return
    for each in program.wrappings:
        search, view = each.argument(SEARCH), each.argument(VIEW)
        if view.known and all(view.values):
            yield codemod.in_place(each.site, "gradients lie in the buckets that are sent")
        if search.known and not any(search.values):
            yield codemod.in_place(each.site, "no step looks for parameters that its loss does not use")
        searches = search.state in ("value", "option") and search.values == (True,) and not each.idle
        kept, fixed = why_twice(program, each), reason_beside(search)
        twice = view.state == "absent" or view.off
        seen = tuple(of_value(name, given, each.site) for name, given in ((SEARCH, search), (VIEW, view)))
        if searches and fixed is None:
            plan, rests = Plan(each.site, twice and kept is None, search), (EVERY_GRADIENT, *on_defaults(search))
            message = f"{SEARCHES}; {TWICE}" if plan.view else SEARCHES
            yield codemod.finding(each.site, message, plan=plan, evidence=seen, assumes=rests, worth=Worth.SOME)
        elif searches and fixed is not None:
            yield codemod.refuse(each.site, SEARCHES, fixed, evidence=seen)
        elif twice:
            yield codemod.offer(each.site, TWICE, kept, plan=Plan(each.site, True, None), evidence=seen)


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal]:
    """Trainings of the Trainer of transformers, or Lightning's, that are told to search."""
    for training in program.trainings:
        for name, slow, value in SWITCHES:
            given = training.argument(name)
            if given.state not in ("value", "option") or given.values != (slow,):
                continue
            reason = why_not(program, training, name, value.strip('"')) or reason_beside(given)
            rests = (EVERY_GRADIENT, *on_defaults(given))
            plan, seen = Switch(name, value, given.edit_at), evidence(training, name)
            yield codemod.offer(
                training.site, SEARCHES, reason, plan=plan, evidence=seen, assumes=rests, worth=Worth.SOME
            )


def why_twice(program: TrainingProgram, wrapping: Wrapping) -> str | None:
    """Why gradients cannot be views of buckets, if anything speaks against it."""
    view = wrapping.argument(VIEW)
    read = next((site for step in program.steps for site in step.grad_reads), None)
    if read is not None:
        where = read.line_from(wrapping.site.path)
        return f"{where} reads gradients by hand: what it keeps of them would be overwritten by the next step"
    if wrapping.open_mapping:
        return "a mapping that the call unpacks may hold it"
    if view.off and view.edit_at != view.site:
        return f"the script leaves it to {view.option or view.text}: turn it on there"
    return reason_beside(view)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Drop the search, or turn it off where it is said, and make gradients views."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    said = plan.search
    if said is not None and said.edit_at in (None, said.site):
        edit.drop_argument(plan.call, SEARCH)
    elif said is not None and said.edit_at is not None:
        edit.replace(said.edit_at, "False")
        mend_help(edit, said.edit_at, "True", "False")
    if plan.view:
        edit.argument(plan.call, VIEW, "True", spelled_out=True)
