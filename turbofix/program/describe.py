"""A training program as text, for people: what was understood, with line numbers."""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.findings import Site
from turbofix.program.model import (
    Act,
    Argument,
    Evaluation,
    Guard,
    Loader,
    Loop,
    Model,
    Optimizer,
    Placement,
    Region,
    Step,
    Sync,
    TrainingProgram,
    Transfer,
)


def describe(program: TrainingProgram) -> str:
    """All that the model knows of a program, one fact on a line."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: TrainingProgram) -> Iterator[str]:
    yield f"{program.entry}: {program.framework.value}, device {place(program.device)}"
    if not program.complete:
        yield f"  incomplete: {program.incomplete_because}"
    script = program.script
    yield (
        f"  set-up at {at(script.setup)} in {at(script.setup_function) or 'the module'},"
        f" {'guarded' if script.guarded else 'not guarded: ' + region(script.unguarded)}"
    )
    if program.distributed or program.processes:
        yield f"  distributed: {program.distributed}, processes: {program.processes}"
    for step in program.steps:
        yield from _step(step)
    for evaluation in program.evaluations:
        yield from _evaluation(evaluation)
    for loader in program.loaders:
        yield from _loader(loader)
    for optimizer in program.optimizers:
        yield from _optimizer(optimizer)
    for model in program.models:
        yield from _model(model)
    for scaler in program.precision:
        enabled = argument(scaler.enabled)
        yield f"  precision {at(scaler.site)}: {scaler.kind} {scaler.qualname} dtype={scaler.dtype} enabled={enabled}"
    for setting in program.settings:
        yield f"  setting {at(setting.site)}: {setting.name} = {argument(setting.value)}{guard(setting.guard)}"


def at(site: Site | None) -> str:
    """A place as ``file:line``."""
    return f"{site.path.name}:{site.line}" if site is not None else ""


def place(placement: Placement) -> str:
    """A placement on one line."""
    text = f" {placement.text}({placement.text_kind})" if placement.text else ""
    return placement.where + text + (f" if {placement.test}" if placement.test else "")


def guard(given: Guard) -> str:
    """A guard, nothing for one that always holds."""
    if given.kind == "always":
        return ""
    every = f" {given.every}" if given.every is not None else ""
    return f" [{given.kind}{every} at {', '.join(str(site.line) for site in given.tests)}]"


def argument(given: Argument) -> str:
    """An argument on one line."""
    if given.state == "absent":
        return "-"
    values = ", ".join(repr(value) for value in given.values)
    parts = [given.state + (f"({values})" if given.values else "")]
    if given.may_be_absent:
        parts.append("or absent")
    if given.option:
        parts.append(given.option)
    if given.edit_at is not None and given.edit_at != given.site:
        parts.append(f"from {at(given.edit_at)}")
    if given.reads:
        parts.append(f"read at {', '.join(at(site) for site in given.reads)}")
    if given.comment:
        parts.append(f"# {given.comment}")
    return " ".join(parts)


def region(given: Region | None) -> str:
    """A region as a range of lines."""
    if given is None:
        return "none"
    blockers = f" BLOCKED: {'; '.join(given.blockers)}" if given.blockers else ""
    return f"{given.first.path.name}:{given.first.line}-{given.last.end_line}{blockers}"


def _loop(loop: Loop) -> str:
    counted = f", counter {loop.counter} from {loop.counter_start}" if loop.counter else ""
    sized = f", size {loop.sized}" if loop.sized else ""
    bar = f", bar {loop.progress_name or ''} at {at(loop.progress)}" if loop.progress else ""
    return f"{at(loop.site)} for {loop.target} in {loop.iterated}{counted}{sized}{bar}"


def _act(act: Act) -> str:
    flags = [
        name
        for name, holds in (
            ("inferred", act.certainty == "inferred"),
            ("scaled", act.scaled),
            ("closure", act.closure),
            ("create_graph", act.create_graph),
            ("result is read", not act.alone),
        )
        if holds
    ]
    more = f" ({', '.join(flags)})" if flags else ""
    norm = f" max_norm={argument(act.max_norm)}" if act.max_norm.state != "absent" else ""
    optimizer = f" -> {at(act.optimizer)}" if act.optimizer else ""
    return f"{at(act.site)} {act.receiver_text}{guard(act.guard)}{more}{norm}{optimizer}"


def _step(step: Step) -> Iterator[str]:
    yield f"  STEP {_loop(step.loop)} ({step.certainty}, source {step.source})"
    if step.epoch_loop is not None:
        yield f"    epochs {_loop(step.epoch_loop)}"
    for part in ("optimizer", "model", "data"):
        known = getattr(step, part)
        yield f"    {part} {known.certainty}: {', '.join(known.names)}{f' ({known.why})' if known.why else ''}"
    yield f"    loaders {', '.join(at(site) for site in step.loaders) or '-'}; device {place(step.device)}"
    yield f"    models {', '.join(at(site) for site in step.models) or '-'}"
    yield f"    forward {region(step.forward)}"
    if len(step.forwards) > 1:
        yield from (f"      {region(each)}" for each in step.forwards)
    loss = step.loss
    criteria = ", ".join(map(" ".join, zip(loss.qualnames, loss.reductions, strict=True)))
    yield f"    loss {loss.text} ({loss.certainty}) {criteria}"
    for name in ("backwards", "updates", "zero_grads", "clips", "unscales", "scaler_updates", "scheduler_steps"):
        for act in getattr(step, name):
            yield f"    {name[:-1]} {_act(act)}"
    if step.accumulation is not None:
        found = step.accumulation
        yield (
            f"    accumulation {argument(found.steps)} under {at(found.guard)}, divided {found.divided}"
            f" at {', '.join(at(site) for site in found.divisions)}, tail {found.tail_flushed}"
        )
    if step.autocast is not None:
        yield f"    autocast {at(step.autocast)}"
    yield from map(_transfer, step.transfers)
    yield from map(_sync, step.syncs)
    for show in step.shows:
        reading = ", ".join(str(site.line) for site in show.syncs)
        yield f"    show {at(show.statement)} {show.kind}{guard(show.guard)} syncs {reading or '-'}"
    for leak in step.leaks:
        yield f"    leak {at(leak.update)} {leak.text}"
    if step.grad_reads:
        yield f"    grad reads {', '.join(at(site) for site in step.grad_reads)}"


def _evaluation(evaluation: Evaluation) -> Iterator[str]:
    yield f"  EVALUATION {_loop(evaluation.loop)}{'' if evaluation.no_grad else ' WITH GRAPH'}"
    yield f"    loaders {', '.join(at(site) for site in evaluation.loaders) or '-'}; device {place(evaluation.device)}"
    yield f"    forward {region(evaluation.forward)}"
    yield from map(_transfer, evaluation.transfers)
    yield from map(_sync, evaluation.syncs)
    for show in evaluation.shows:
        yield f"    show {at(show.statement)} {show.kind}{guard(show.guard)}"


def _transfer(transfer: Transfer) -> str:
    more = f" non_blocking={argument(transfer.non_blocking)}" if transfer.non_blocking.state != "absent" else ""
    more += " dtype only" if transfer.dtype_only else ""
    more += " pageable" if transfer.pageable else ""
    more += f" of {at(transfer.loader)}" if transfer.loader else ""
    where = f"to {place(transfer.to)}{guard(transfer.guard)}{more}"
    what = f"{transfer.what} (likely {transfer.likely})" if transfer.likely else transfer.what
    return f"    transfer {at(transfer.site)} {transfer.method} {what} {where}"


def _sync(sync: Sync) -> str:
    text = f"    sync {at(sync.site)} {sync.how} of {sync.of} `{sync.of_text}`: {sync.use}{guard(sync.guard)}"
    text += " no_grad" if sync.no_grad else ""
    text += f" on {place(sync.on_device)}"
    if sync.accumulator is not None:
        found = sync.accumulator
        reads = ", ".join(f"{read.site.line} {read.when}" for read in found.reads)
        inits = ", ".join(str(site.line) for site in found.inits)
        simple = "simple" if found.simple else f"not simple: {found.why_not_simple}"
        text += f"\n      into {found.text} set at {inits or '-'}, read at {reads or '-'}, {simple}"
    if sync.meter is not None:
        text += f" meter {at(sync.meter.cls)} computes only: {sync.meter.computes_only}"
    return text


def _loader(loader: Loader) -> Iterator[str]:
    yield (
        f"  LOADER {at(loader.site)} {loader.name} {loader.role}{' in loop' if loader.built_in_loop else ''}"
        f"{' open' if loader.open_mapping else ''} batch {loader.batch} collate {loader.collate}"
        f"{' on device' if loader.collate_on_device else ''}{' subclass ' + loader.subclass if loader.subclass else ''}"
    )
    data = loader.dataset
    flags = [name for name in ("on_device", "random", "worker_aware") if getattr(data, name)]
    yield (
        f"    dataset {data.kind} {data.qualname} {' '.join(flags)} work {','.join(data.work) or '-'}"
        f" length {data.length}"
        f"{' unpicklable: ' + data.unpicklable if data.unpicklable else ''}"
        f"{' stateful: ' + data.stateful if data.stateful else ''}"
        f"{' draws from: ' + data.generator if data.generator else ''}"
    )
    for name, given in sorted(loader.arguments.items()):
        if name != "dataset":
            yield f"    {name}: {argument(given)}"
    for name, site in sorted(loader.mapping_entries.items()):
        yield f"    entry {name} at {at(site)}"
    for comment in loader.comments:
        yield f"    # {comment}"
    for copy in loader.copies:
        yield f"    copied at {at(copy.site)}"


def _optimizer(optimizer: Optimizer) -> Iterator[str]:
    flags = [
        name
        for name in ("in_loop", "before_move", "sparse", "lazy", "shared", "complex", "open_mapping")
        if getattr(optimizer, name)
    ] + ([] if optimizer.used else ["unused"])
    yield (
        f"  OPTIMIZER {at(optimizer.site)} {optimizer.target_text} = {optimizer.qualname} trains {optimizer.trains}"
        f" on {place(optimizer.device)} {' '.join(flags)}"
    )
    for name, given in sorted(optimizer.arguments.items()):
        if name != "params":
            yield f"    {name}: {argument(given)}"
    for hop in optimizer.passes:
        yield f"    passed at {at(hop.argument)} as {hop.parameter} to {at(hop.function)}"
    if not optimizer.passes_complete:
        yield "    not every way was seen"
    for act in optimizer.state_loads:
        yield f"    state loaded at {at(act.site)}"


def _model(model: Model) -> Iterator[str]:
    flags = [name for name in ("half", "dtype", "compiled", "wrapped", "ends_in_sigmoid") if getattr(model, name)]
    yield (
        f"  MODEL {at(model.site)} {model.name} on {place(model.device)} {' '.join(flags)}"
        f" layers{'' if model.layers_complete else ' (incomplete)'}: {', '.join(sorted(model.layers))}"
    )
