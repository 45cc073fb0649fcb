"""Why the tensors of a loop differ in size, in words; what follows, compile-model and cudnn-benchmark decide each."""

from __future__ import annotations

from collections.abc import Iterable

from turbofix.findings import Site
from turbofix.training.model import Evaluation, Model, Sizes, Step, TrainingProgram


def uses(program: TrainingProgram, loop: Step | Evaluation, models: tuple[Model, ...]) -> bool:
    """Whether a loop calls one of some models, as far as it is known what it calls."""
    return not loop.models or any(model.site in loop.models for model in models)


def varying(
    program: TrainingProgram, loaders: Iterable[Site], resized: Sizes | None, done: str, partly: bool = True
) -> str | None:
    """Why what a model is given is known to differ in size from step to step, if only in a part (``partly``).

    ``done``: what would be done anew for each size ("measured", "compiled").
    """
    for site in loaders:
        loader = program.loader(site)
        if loader is not None and loader.sizes.state == "varies" and (partly or not loader.sizes.partly):
            name = f"`{loader.name}`" if loader.name else "a loader"
            line = loader.site.line_from(program.entry)
            return f"the batches of {name} ({line}) differ in size, each of which would be {done}: {loader.sizes.why}"
    if resized is None or resized.site is None or resized.state != "varies":
        return None
    line = resized.site.line_from(program.entry)
    return f"tensors differ in size from step to step, each of which would be {done}: {resized.why} ({line})"


def have_one_size(program: TrainingProgram, loaders: Iterable[Site], resized: Sizes | None = None) -> bool:
    """Whether all batches of some loaders are known to have one size, the last of a pass left out."""
    read = [program.loader(site) for site in loaders]
    once = {each.samples.text for each in program.loaders if not each.built_in_loop}
    fixed = all(
        each is not None
        and each.sizes.state == "fixed"
        and not (each.built_in_loop and (each.samples.text is None or each.samples.text not in once))
        for each in read
    )
    return bool(read) and fixed and resized is None
