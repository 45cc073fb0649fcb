"""Use ``torch.amp`` in place of the deprecated ``torch.cuda.amp``.

Why slow
    It is not slower by itself: since torch 2.4 each ``torch.cuda.amp.autocast()`` warns, and the names will go. What
    does cost time is a gradient scaler beside bfloat16, which needs none: it looks at every gradient for infinities
    and makes the host wait for the answer in every step.

Example
    ::

        from torch.cuda.amp import GradScaler, autocast

        scaler = GradScaler(enabled=args.amp)

Use instead
    ::

        from torch.amp import GradScaler, autocast

        scaler = GradScaler("cuda", enabled=args.amp)

    The import changes together with all that uses it. Where another default may be in force ``dtype=torch.float16`` is
    written out, which the old name always means.

When refused
    Nothing is said where the program itself asks which torch it has: there the old name is the fallback. It is refused

    - where the oldest torch to be served does not have the new name;
    - where a class derives from the old one, it is passed on without being called, or its name is set twice;
    - where a mapping with arguments is unpacked in a program with several types;
    - where the import brings other things that have no new name, or another file of the project takes it from there;
    - for apex's mixed precision, which is deprecated, too, and works otherwise;
    - for a scaler beside bfloat16 alone: give it ``enabled=False``, and nothing waits any more.

Risk
    exact: the old classes are the new ones with their device filled in.

Measured
    Nothing was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import RECENT_TORCH
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.training.model import Framework, OldName, TrainingProgram

from ._precision import version

codemod = Codemod(
    __name__,
    group="precision",
    risk=Risk.EXACT,
    everywhere=True,
    known_as=("torch.cuda.amp", "deprecated AMP"),
    assumes=(RECENT_TORCH,),
    worth=Worth.SMALL,
)

SINCE = {"autocast": (1, 12), "GradScaler": (2, 3)}
"""The torch that first had each name in ``torch.amp``."""

BEGINNING = regex(r"\((?:\s*#[^\n]*(?=\n))*(\s*)")
"""What stands before the first argument of a call, and the space in front of it."""

OLD_NAME = regex(r"([A-Za-z_]\w*)\.cuda\.amp(?:\.\w+)?\.\w+")


@dataclass(frozen=True)
class Plan:
    """The uses that change together, and those of them that must say their dtype."""

    uses: tuple[OldName, ...]
    dtypes: frozenset[Site]


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Every use of a deprecated name of ``torch.cuda.amp``."""
    for part in program.precision if only_bfloat16(program) else ():
        if part.kind == "scaler" and not part.enabled.off:
            message = "the gradient scaler does nothing for bfloat16 but wait for the GPU in every step"
            yield codemod.refuse(part.site, message, "give it `enabled=False`, where nothing else computes in float16")
    groups: dict[Site, list[OldName]] = {}
    for use in program.old_names:
        groups.setdefault(use.brought or use.site, []).append(use)
    for uses in groups.values():
        if any(use.guarded for use in uses):
            continue
        reason = next((use.why_not for use in uses if use.why_not is not None), None)
        if any(program.target.torch < SINCE[use.name] for use in uses):
            reason = f"the project serves torch {version(program.target.torch)}, which has the old name alone"
        dtypes = frozenset(use.site for use in uses if needs_dtype(program, use))
        if reason is None and any("**" in use.takes for use in uses if use.site in dtypes):
            reason = "it may be entered inside another region, and what it unpacks may hold a dtype or not"
        for use in uses:
            message = (
                f"`torch.cuda.amp.{use.name}` is deprecated since torch 2.4; `torch.amp.{use.name}` takes the device"
            )
            seen = tuple(
                Evidence("brought by this import", place) for place in (use.brought,) if place is not None
            ) or (Evidence("called by its full name", use.site),)
            yield codemod.offer(use.site, message, reason, plan=Plan(tuple(uses), dtypes), evidence=seen)
    for part in program.precision:
        if part.qualname == "torch.amp.GradScaler":
            yield codemod.in_place(part.site, "the gradient scaler is torch.amp's")
        if part.kind == "apex" and part.qualname.endswith(".initialize"):
            why = "no script is rewritten for it: leave `initialize` and `scale_loss` out and use torch.autocast"
            yield codemod.refuse(part.site, "apex's mixed precision is deprecated; torch.amp takes its place", why)


def only_bfloat16(program: TrainingProgram) -> bool:
    """Whether all that computes in 16 bits does so in bfloat16, as far as the whole text tells."""
    parts = [part for part in program.precision if part.kind != "scaler" and not part.disabled]
    known = {place for part in program.precision for place in (part.site, *part.entered)}
    if not parts or program.framework is not Framework.PYTORCH or not program.complete:
        return False
    if any(model.half or model.dtype is not None for model in program.models):
        return False  # weights in float16 have gradients in float16
    if any(use.name == "autocast" and not use.named and use.site not in known for use in program.old_names):
        return False
    return all(part.kind == "autocast" and part.dtype == "bfloat16" for part in parts)


def needs_dtype(program: TrainingProgram, use: OldName) -> bool:
    """Whether the new autocast would take over another dtype than float16."""
    if use.name != "autocast" or use.named or "dtype" in use.takes:
        return False
    return use.nested or program.framework is not Framework.PYTORCH


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Give every use of the import its device, and the module its new name."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    for use in plan.uses:
        place, _ = use.spelled
        text = edit.text(use.site)
        name, called, rest = text.partition("(")
        if use.brought is not None:
            edit.replace(place, use.spelled[1])
        else:
            name = respelled(use, edit)
        if use.named:
            edit.replace(use.site, name)
        else:
            edit.replace(use.site, name + with_device(use, called + rest, edit, dtype=use.site in plan.dtypes))


def respelled(use: OldName, edit: Edit) -> str:
    """The full name of the new module, as the file calls torch."""
    place, name = use.spelled
    found = OLD_NAME.fullmatch(edit.text(place))
    return f"{found[1]}.amp.{use.name}" if found is not None else edit.name(name, use.site)


def with_device(use: OldName, call: str, edit: Edit, *, dtype: bool) -> str:
    """The arguments of a use, the device first. What had a place of its own in autocast's arguments gets its name."""
    device = edit.quoted("cuda", use.site)
    if dtype:
        device = f"{device}, dtype={edit.name('torch.float16', use.site)}"
    if not use.takes:
        return f"({device})"
    found = BEGINNING.match(call)
    assert found is not None
    begins, gap = found[0], found[1] if "\n" in found[1] else " "
    enabled = "enabled=" if use.name == "autocast" and use.takes[0] == "" else ""
    return f"{begins}{device},{gap}{enabled}{call[len(begins) :]}"
