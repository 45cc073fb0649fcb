"""Whether the models of a loop are given tensors of one size, for codemods that do something for each size."""

from __future__ import annotations

from collections.abc import Iterable

from turbofix.findings import Site
from turbofix.program.model import Evaluation, Loader, Model, Sizes, Step, TrainingProgram


def uses(program: TrainingProgram, loop: Step | Evaluation, models: tuple[Model, ...]) -> bool:
    """Whether a loop calls one of some models, as far as it is known what it calls."""
    return not loop.models or any(model.site in loop.models for model in models)


def other_sizes(program: TrainingProgram, loop: Step | Evaluation, done: str) -> str | None:
    """Why the tensors that a loop gives its models may differ in size; None where they are known not to.

    ``done``: what would be done anew for each size ("measured", "compiled").
    """
    what = "training" if isinstance(loop, Step) else "evaluation"
    reason = sizes_in(program, loop.loaders, what, done)
    return reason if reason is not None or loop.resized is None else drawn(program, loop.resized, done)


def sizes_in(program: TrainingProgram, loaders: Iterable[Site], what: str, done: str) -> str | None:
    """Why the batches of some loaders, which a ``what`` reads, may differ in size."""
    for site in loaders:
        loader = program.loader(site)
        sizes = loader.sizes if loader is not None else None
        if loader is None or sizes is None or (sizes.state != "fixed" and sizes.why is None):
            return f"the batches of the {what} are not known to have one size, and each new size would be {done} anew"
        if sizes.state != "fixed":
            name = f"`{loader.name}`" if loader.name else "a loader"
            line = loader.site.line_from(program.entry)
            return f"the batches of {name} ({line}) may differ in size, each of which would be {done}: {sizes.why}"
        if loader.built_in_loop and not (sizes.literal and is_cut_as_another(program, loader)):
            return (
                f"a loader is built again and again ({loader.site.line_from(program.entry)}), perhaps for other sizes"
            )
    return None


def is_cut_as_another(program: TrainingProgram, loader: Loader) -> bool:
    """Whether a loader that is built again and again has batches as large as one that is not."""
    text = loader.samples.text
    others = (each for each in program.loaders if not each.built_in_loop)
    return text is not None and any(each.samples.text == text for each in others)


def drawn(program: TrainingProgram, resized: Sizes, done: str) -> str | None:
    """What changes the size of tensors on their way."""
    if resized.site is None:
        return None
    why = f"{resized.why} ({resized.site.line_from(program.entry)})"
    return f"tensors may differ in size from step to step, each of which would be {done}: {why}"
