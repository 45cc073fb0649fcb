"""What a finding rests on, for people to check: the loop, the loader, the values, each with the place it was read.

Codemods hand these on with what they say; reports put them under the message.
"""

from __future__ import annotations

from collections.abc import Iterable

from turbofix.findings import Evidence
from turbofix.source.site import Site
from turbofix.training.model import (
    Accumulator,
    Argument,
    Evaluation,
    Guard,
    Loader,
    Loop,
    Model,
    Optimizer,
    Placement,
    Step,
    TrainingProgram,
)

_LONGEST = 60


def of_value(name: str, given: Argument, call: Site) -> Evidence:
    """What an argument of a call is, and how it came there."""
    if given.state == "absent":
        return Evidence(f"{quoted(name)} is not passed", call)
    place = given.edit_at or given.site or call
    if given.state in ("unknown", "computed") or not given.values:
        return Evidence(f"{quoted(name)} is `{short(given.text or '...')}`", given.site or call)
    said = " or ".join(repr(value) for value in given.values)
    said += " or not passed" if given.may_be_absent else ""
    source = f", from `{given.option}`'s default" if given.option else ""
    return Evidence(f"{quoted(name)} is {said}{source}", place, _way(name, given))


def quoted(name: str) -> str:
    """A name as code; words stay words."""
    return f"`{name}`" if name.isidentifier() else name


def _way(name: str, given: Argument) -> tuple[Evidence, ...]:
    """From where a value is written to the call that it ends in."""
    if given.edit_at is None or given.site is None or given.edit_at == given.site:
        return ()
    first = (
        f"`{given.option}` is {given.values[0]!r} unless given" if given.option else f"{given.values[0]!r} is written"
    )
    text = short(given.text or "")
    end = Evidence(f"passed as `{name}={text}`" if name.isidentifier() else f"used as `{text}`", given.site)
    return (Evidence(first, given.edit_at), *given.way, end)


def of_loop(loop: Step | Evaluation) -> Evidence:
    """The loop that something happens in."""
    what = "training" if isinstance(loop, Step) else "evaluation"
    line = Evidence(f"`{header(loop.loop)}`", loop.loop.site)
    return Evidence(f"the {what} loop", loop.loop.site, (line,))


def header(loop: Loop) -> str:
    """A loop's first line, as far as it is known."""
    if loop.site.kind == "While" or loop.target is None or loop.iterated is None:
        return "while ..." if loop.site.kind == "While" else "for ..."
    return short(f"for {loop.target} in {loop.iterated}")


def of_loader(program: TrainingProgram, loader: Loader, *names: str) -> tuple[Evidence, ...]:
    """Some arguments of a loader, and the first loop that reads it."""
    loops = [loop for loop in _loops(program) if loader.site in loop.loaders]
    values = [of_value(name, loader.argument(name), loader.site) for name in names]
    return (*values, *map(of_loop, loops[:1]))


def of_data(loader: Loader) -> tuple[Evidence, ...]:
    """What a loader reads, where that was seen being made."""
    data = loader.dataset
    if data.qualname is None:
        return ()
    return (Evidence(f"the data, {data.qualname.rpartition('.')[2]}, made", data.site or loader.site),)


def of_device(place: Placement, site: Site) -> tuple[Evidence, ...]:
    """Where something lives, as far as a GPU is concerned."""
    where = {"cuda": "a GPU", "conditional": "a GPU where there is one"}.get(place.where)
    if where is None:
        return ()
    return (Evidence(f"`{short(place.text)}` ({where})" if place.text else where, site),)


def of_copy(program: TrainingProgram, site: Site, to: Placement, loaders: Iterable[Loader]) -> tuple[Evidence, ...]:
    """The loop around a copy, the loader of what it copies, and where it goes."""
    loops = [loop for loop in _loops(program) if any(t.site == site for t in loop.transfers)]
    made = [Evidence(f"{called(loader)}, built", loader.site) for loader in loaders]
    return (*map(of_loop, loops[:1]), *made[:1], *of_device(to, site))


def _loops(program: TrainingProgram) -> tuple[Step | Evaluation, ...]:
    return (*program.steps, *program.evaluations)


def called(loader: Loader) -> str:
    """How the code calls a loader."""
    return f"`{loader.name}`" if loader.name else "a loader"


def of_optimizer(program: TrainingProgram, optimizer: Optimizer) -> tuple[Evidence, ...]:
    """Where an optimizer steps, and where its parameters are."""
    steps = [step for step in program.steps if optimizer.site in step.optimizers]
    updates = [act for step in steps for act in step.updates if act.optimizer in (None, optimizer.site)]
    stepped = [Evidence("the update", act.site) for act in updates[:1]]
    return (*stepped, *map(of_loop, steps[:1]))


def of_models(models: Iterable[Model], layers: frozenset[str]) -> tuple[Evidence, ...]:
    """The models that hold such layers."""
    found = []
    for model in models:
        names = sorted({layer.rpartition(".")[2] for layer in model.layers & layers})
        name = f"`{model.name}`" if model.name else "the model"
        if names:
            found.append(Evidence(f"{name} with {', '.join(names[:3])}, built", model.site))
    return tuple(found)


def of_forward(step: Step) -> tuple[Evidence, ...]:
    """The statements of a forward pass, its loop, and the device."""
    region = step.forwards[0] if step.forwards else None
    lines: tuple[Evidence, ...] = ()
    if region is not None:
        last = f", up to line {region.last.end_line}," if region.last.end_line > region.first.line else ""
        lines = (Evidence(f"forward pass and loss{last} begin", region.first),)
    return (*lines, of_loop(step), *of_device(step.device, step.loop.site))


def of_sum(total: Accumulator | None) -> tuple[Evidence, ...]:
    """Where a sum starts, and where it is read."""
    if total is None:
        return ()
    starts = [Evidence(f"`{short(total.text)}` starts", site) for site in total.inits[:1]]
    return (*starts, *(Evidence("is read", read.site) for read in total.reads[:1]))


def of_guard(guard: Guard) -> tuple[Evidence, ...]:
    """Under which test something runs."""
    return tuple(Evidence("a test decides", site) for site in guard.tests[-1:])


def short(text: str) -> str:
    """A source text on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
