"""Copy batches to the GPU without waiting for the copy.

Why slow
    ``batch.to(device)`` makes the host wait until the copy has arrived. The host could launch the kernels of the step
    meanwhile; the GPU keeps the order.

Example
    ::

        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)

Use instead
    ::

        for images, labels in train_loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    A cast goes behind the copy (``x.float().to(device)``), for it makes new memory. The loader must pin its memory
    (``pin-memory``), otherwise the copy waits all the same. Where the device may be
    another one than CUDA's (``mps``), the value is the test ``device.type == "cuda"``. Accelerate (0.30 or newer)
    copies the batches itself, and is told to with
    ``dataloader_config=DataLoaderConfiguration(non_blocking=torch.cuda.is_available())``.

When refused
    Nothing is said of copies to the host, of models, and of batches that are on the GPU already. It is refused

    - for what the step puts together in new memory, or cuts out (``torch.stack(x).to(device)``): that is not pinned;
    - where the host changes the batch in place below the copy, which may not have read it yet;
    - in an evaluation that runs once, beside a training of many passes;
    - for batches of a class of their own, whose ``to`` may not take ``non_blocking``;
    - where the device may be Apple's and no test tells: there the copy may be read too early (pytorch issue 139550);
    - for an older Accelerate, or beside ``split_batches`` and the like, which belong into ``dataloader_config`` too.

Risk
    exact: the kernels that read the batch run after the copy, in the same stream.

Measured
    Not measured in isolation; see ``pin-memory``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from turbofix.assumptions import BATCHES_ON_HOST, ON_GPU
from turbofix.codemod import Codemod
from turbofix.config import suppressions
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site
from turbofix.source.names import dotted, targets, walk_here
from turbofix.training.data.pinning import pinning
from turbofix.training.evidence import of_copy, of_loader, of_value
from turbofix.training.model import Framework, TrainingProgram

from ._copies import KEPT, Copying, copyings, is_kept
from ._loaders import called, copies_itself, is_timed
from ._pages import pages_of
from ._precision import filled, version
from ._tensors import changed_line

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    after=("device-tensors", "preload-dataset"),
    together=("pin-memory",),
    known_as=("asynchronous transfer", "non_blocking"),
    assumes=(BATCHES_ON_HOST, ON_GPU),
)


APART = 3
"""Copies of a batch that stand together are at most so many lines apart."""

VIEWS = ("numpy", "view", "detach", "squeeze", "unsqueeze", "reshape", "flatten", "t", "float")
"""Methods whose result may be the same memory."""


SINCE = (0, 30)
"""From which Accelerate on it can be told to copy without a wait."""

OF_LOADERS = ("dispatch_batches", "split_batches", "even_batches", "use_seedable_sampler")
"""What such an object took itself before ``dataloader_config`` came, and overrules that with."""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Blocking copies of a loader's batches to a GPU."""
    if program.framework is Framework.ACCELERATE:
        yield from under_accelerate(program)
    if not copies_itself(program):
        return
    found = tuple(each for each in copyings(program) if not is_ignored(program, each))
    timed = any(is_timed(loader) for copy in found for loader in copy.loaders)
    for group in together(unless_changed(program, copy) for copy in found):
        copy = group[0]
        transfer, loaders = copy.transfer, copy.loaders
        if copy.state == "given":
            flag = transfer.non_blocking
            pins = all(pinning(loader) in ("pinned", "maybe") for loader in loaders)  # from pageable memory it blocks
            if flag.state == "value" and flag.values[0] and pins:
                yield codemod.in_place(transfer.site, "the copy does not block the host")
            continue
        who = f" of {called(loaders[0])}" if len(loaders) == 1 and loaders[0].name else ""
        these = "this copy" if len(group) == 1 else f"these {len(group)} copies"
        message = f"the host waits for {these} " + ("to the GPU" if transfer.what == "input" else f"of a batch{who}")
        others = (Evidence("copied as well", each.transfer.site) for each in group[1:])
        seen = (*of_copy(program, transfer.site, transfer.to, loaders), *others)
        kept = copy.value is not None and bool(loaders) and all(is_kept(program, loader) for loader in loaders)
        yield codemod.offer(
            transfer.site,
            message + KEPT * kept,
            copy.why_not if copy.value is None else None,
            plan=tuple((each.transfer, each.value) for each in group if each.value is not None),
            evidence=seen,
            for_speed=timed,
            assumes=copy.assumes,
            worth=copy.worth(program),
        )


def is_ignored(program: TrainingProgram, copy: Copying) -> bool:
    """Whether a comment beside a copy keeps it out: one is enough, whatever copies stand around it."""
    told = suppressions(pages_of(program)(copy.transfer.site).module.text)
    return told.cover(copy.transfer.site.line, codemod.name, codemod.group)


def together(found: Iterable[Copying]) -> list[list[Copying]]:
    """The copies of one batch that stand together are one edit: those of the same kind, a few lines apart."""
    groups: list[list[Copying]] = []
    for copy in found:
        last = groups[-1][-1] if groups else None
        near = last is not None and last.transfer.site.path == copy.transfer.site.path
        near = near and copy.transfer.site.line - last.transfer.site.end_line <= APART  # type: ignore[union-attr]
        if last is not None and near and copy.state == "can be" and kind_of(last) == kind_of(copy):
            groups[-1].append(copy)
        else:
            groups.append([copy])
    return groups


def kind_of(copy: Copying) -> tuple[object, ...]:
    """What copies have in common that are spoken of together."""
    return copy.state, copy.loaders, copy.assumes, copy.value is None and copy.why_not


def under_accelerate(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """The object that copies the batches of the loaders that it has prepared, and waits for each."""
    pinned = [
        loader
        for loader in program.loaders
        if loader.site in program.placed and is_timed(loader) and pinning(loader) in ("pinned", "can be")
    ]
    if len(program.owners) != 1 or not pinned:
        return
    (owner,) = program.owners
    given = owner.argument("dataloader_config")
    if given.state != "absent" and given.values != (None,):
        return  # what it says is not looked into
    message = f"Accelerate waits for the copy of a batch of {called(pinned[0])} to the GPU in every step"
    seen = (of_value("dataloader_config", given, owner.site), *of_loader(program, pinned[0], "pin_memory"))
    reason, old = None, program.target.oldest("accelerate")
    gone = any(owner.argument(name).state != "absent" for name in ("logging_dir", "fp16"))  # before that
    if (old is not None and old < SINCE) or gone:
        reason = f"the project serves an Accelerate older than {version(SINCE)}, which cannot be told"
    elif owner.open_mapping:
        reason = "the call unpacks a mapping that may already hold dataloader_config"
    elif told := sorted(name for name in OF_LOADERS if owner.argument(name).state != "absent"):
        reason = f"older versions take no dataloader_config beside {told[0]}: that belongs into it, too"
    yield codemod.offer(owner.site, message, reason, plan=owner.site, evidence=seen)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Add ``non_blocking`` to the calls."""
    plan = finding.plan
    if isinstance(plan, Site):  # the construction of the object through which Accelerate copies
        told = f"non_blocking={edit.name('torch.cuda.is_available', plan)}()"
        made = edit.name("accelerate.DataLoaderConfiguration", plan)
        edit.argument(plan, "dataloader_config", f"{made}({told})")
        return
    assert isinstance(plan, tuple)
    for copy, value in plan:  # each with the source of what `non_blocking` is set to, and the cast that goes behind it
        edit.argument(copy.site, "non_blocking", filled(value, edit, copy.site))
        if copy.cast is not None:
            cast, of, text = copy.cast
            edit.cut(cast, of)
            edit.insert_after(copy.site, text)


def unless_changed(program: TrainingProgram, copy: Copying) -> Copying:
    """A copy, refused where the host changes what it copies further below, which may be before it is read."""
    if copy.state != "can be" or copy.value is None:
        return copy
    page = pages_of(program)(copy.transfer.site)
    call = page.node(copy.transfer.site)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return copy
    name = viewed(call.func.value)
    code = page.loop_of(call) or page.scope(call)
    copied = page.statement(call)
    assigned = [each for each in walk_here(code) if isinstance(each, ast.Assign) and each is not copied]
    views = {dotted(target) for each in assigned if viewed(each.value) == name for target in each.targets}
    given = copied.targets if isinstance(copied, ast.Assign) else []
    replaced = {dotted(single) for target in given for single in targets(target)}
    for each in sorted({one for one in (name, *views) if one is not None} - replaced if name is not None else ()):
        line = changed_line(each, code, call.lineno)
        if line is not None:
            why = f"line {line} changes `{each}` on the host, perhaps before the copy has read it"
            return replace(copy, value=None, why_not=why)
    return copy


def viewed(node: ast.AST) -> str | None:
    """The name of the tensor whose memory an expression shows: ``x`` of ``x.numpy()``; none for an item of a list."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        node = node.func.value
    return dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
