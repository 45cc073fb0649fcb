"""Say it as today's torch does, where a script says what torch has taken away and so cannot run.

Why slow
    It is not slow: it ends with an error. ``loss.data[0]`` raises since torch 0.5, ``x.cuda(async=True)`` is no Python
    since 3.7, and a script that cannot run cannot be made faster. Mended first, the other findings of the script stand.

Example
    ::

        images = images.cuda(async=True)
        ...
        total += loss.data[0]

Use instead
    ::

        images = images.cuda(non_blocking=True)
        ...
        total += loss.item()

    In the same way: ``from torch._six import inf``, transformers' own ``AdamW`` (torch's, with its defaults),
    ``Image.ANTIALIAS``, imports of what is gone and not used, ``Accelerator(fp16=True)``, ``verbose=`` of a learning
    rate schedule, ``np.int`` and its like, ``save_image(range=...)``, ``correct[:5].view(-1)`` where it is
    transposed (``reshape``), a whole object read by ``torch.load`` (``weights_only=False``: load only files of your
    own), and arguments that Lightning's trainer (``gpus=1``) or transformers' settings (``evaluation_strategy=``,
    ``warmup_ratio=``) take no more.

When refused
    Where what is gone has no one successor (``torchtext.legacy``, ``load_metric``). Nothing is said where the program
    itself has an answer: in an ``except``, in a ``try`` that catches the error, under a test of the version, or where
    the requirements ask for an older version. What is old and works (``Variable(x)``, ``volatile=True``) is left alone.

Risk
    exact: the new form is what the old one meant.

Measured
    Nothing to measure: before it, the script does not run.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.training.model import Removed, TrainingProgram

from ._frameworks import give_back

codemod = Codemod(
    __name__,
    group="precision",
    risk=Risk.EXACT,
    everywhere=True,
    mends=True,
    worth=Worth.HIGH,
    known_as=("loss.data[0]", "async=True"),
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """All that is gone."""
    for each in program.removed:
        if each.why_not is not None:
            yield codemod.refuse(each.site, each.message, each.why_not)
        else:
            yield codemod.finding(
                each.site, each.message, plan=each, evidence=(Evidence("it stands", each.site),), for_speed=False
            )


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """The new form in the place of the old one."""
    plan = finding.plan
    assert isinstance(plan, Removed)
    if plan.how == "name":
        renamed(plan, edit)
    elif plan.part is not None and plan.how == "after":
        edit.replace(plan.site, edit.text(plan.part) + plan.texts[0])
    elif plan.how == "argument" and plan.texts[1]:
        edit.replace(plan.site, plan.texts[1])
    elif plan.part is not None and plan.how == "argument":
        edit.drop_argument(plan.part, plan.texts[0])
    else:
        name, value = plan.texts
        edit.argument(plan.site, name, value)


def renamed(plan: Removed, edit: Edit) -> None:
    """What a name that is gone is today: in its import, where it is called, or in its place."""
    new, name = plan.texts
    for call in plan.calls:
        give_back(call, edit)
    if plan.site.kind == "alias":
        if new and not plan.calls:
            edit.before(plan.site, new)
        edit.unimport(plan.site)
    elif not plan.calls:
        if edit.is_bound(name.removeprefix("= "), plan.site):
            raise Refuse(f"`{name[2:]}` is bound to something else in this file")
        edit.replace(plan.site, name[2:] if name[:2] == "= " else edit.name(name, plan.site))
