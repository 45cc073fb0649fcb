"""Keep what a long training has learned when it is interrupted, and let it go on from there.

Why slow
    A training that saves its result at its end loses everything when it is stopped before. A training that saves
    weights alone counts as one that cannot go on: the optimizer's state is missing.

Example
    ::

        for epoch in range(args.epochs):
            train(model, train_loader, optimizer)

Use instead
    ::

        epoch = 0
        if args.resume:
            checkpoint = torch.load(args.resume, map_location="cpu", weights_only=False)  # load only files of your own
            ...  # the states of the model, the optimizer and the random numbers, and the epoch
        unfinished = args.resume or time.strftime(f"unfinished-%Y%m%d-%H%M%S-{os.getpid()}.pt")
        due = 0.0
        for epoch in range(epoch, args.epochs):
            if time.monotonic() >= due:  # --resume unfinished-....pt goes on from here
                due = time.monotonic()
                ...  # save the same
                due = time.monotonic() + 100 * (time.monotonic() - due)  # a hundredth of the time, at most
            train(model, train_loader, optimizer)

    What is saved is what the epochs before have left, so a training that goes on is the one that was interrupted: by
    Ctrl-C, a signal, an error or the loss of power. What it has learned since is learned again. The file stays. Where
    nothing was saved, the weights go into ``trained-<time>.pt`` at the end. Without ``argparse`` it is
    ``RESUME=unfinished-....pt python train.py``.

When refused
    Nothing is offered for a training that is known to be short (five million samples), saves the weights in each of its
    few passes, saves the optimizer's state, or does something of its own when it is interrupted. It is refused where
    the script speaks of resuming or deletes files at the start, in notebooks, under Accelerate, where several processes
    or loops train, where the outer loop is no ``for ... in range(...)`` or runs nobody knows how often, and where an
    epoch leaves behind what cannot be saved, and where a split by chance has no seed: another split would test on rows
    that were trained on.

Risk
    exact: as long as nothing interrupts it, the training is the same. What goes on draws other random numbers where a
    generator of the script's own makes them.

Measured
    Nothing: it makes no step faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import LONG_ENOUGH, READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
from turbofix.records import dataclass
from turbofix.training.model import Framework, Run, TrainingProgram

from ._precision import requote
from ._work import is_narrow

codemod = Codemod(
    __name__,
    group="safety",
    risk=Risk.EXACT,
    once=True,
    known_as=("checkpoint on interrupt", "resume", "SIGTERM"),
    assumes=(READ_WHOLE, LONG_ENOUGH),
    otherwise="nothing was recognised here that an interruption would lose",
)

SAMPLES = 5_000_000
"""A training of fewer samples than this is short: an hour or so at the speed of a small network."""

FEW = 5
"""Fewer, behind which the weights are saved, lose little."""

STEPS = 10_000
"""So many steps without epochs may."""


@dataclass(frozen=True)
class Plan:
    """The loop, and whether the training draws numbers on a GPU."""

    run: Run
    on_gpu: bool


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """A long training that saves nothing, before its end, that it could go on from."""
    run = program.run
    own = program.framework in (Framework.PYTORCH, Framework.ACCELERATE)
    if not own or not program.script.starts or run is None:
        return
    if is_short(program, run):
        soon = "the training is over soon" if run.samples is not None else "its few passes save what they learned"
        yield codemod.in_place(run.loop, f"{soon}: nothing more is saved to go on from")
        return
    ends = "the kernel dies" if program.entry.suffix == ".ipynb" else "it is interrupted"
    message = f"all that this training has learned is lost when {ends}: "
    often = f"runs {run.rounds:,} times" if run.rounds is not None else "how often it runs is not known"
    seen = [Evidence(often, run.counted)]
    if run.weights is not None:
        where = run.weights.line_from(run.loop.path)
        message = f"this training cannot go on from where {ends}: {where} saves weights without the optimizer's state"
        seen.append(Evidence("weights alone are saved", run.weights))
        yield codemod.in_place(run.weights, "weights are saved in the course of the training")
    elif run.result is not None:
        message += f"{run.result.line_from(run.loop.path)} saves it at the end alone"
        seen.append(Evidence("the result is saved", run.result))
    else:
        message += "it is saved nowhere"
    reason = run.why_not
    if run.rounds == 1:
        reason = "it is one pass over the data, which would begin anew"
    elif run.rounds is None or (run.rounds < FEW and run.samples is None and run.result is not None):
        reason = reason or "how long it takes is not known, and it may be over soon"
    if program.entry.suffix == ".ipynb":
        reason = "a notebook keeps its names when a cell is interrupted, but not when its kernel dies"
    if program.framework is Framework.ACCELERATE:
        reason = "Accelerate saves what it has prepared by `accelerator.save_state()`"
    if program.distributed or program.processes:
        reason = "several processes train, and which of them is to save what is yours to say"
    if reason is not None:
        by_hand = "; save the states of the model, the optimizer and the schedule every few epochs"
        yield codemod.refuse(run.loop, message, reason + by_hand, evidence=tuple(seen))
        return
    assumes = () if run.samples is not None and (run.result or run.weights) else (LONG_ENOUGH,)
    plan = Plan(run, program.device.reaches_cuda or program.names_cuda)
    yield codemod.finding(run.loop, message, plan=plan, evidence=tuple(seen), assumes=assumes)


def is_short(program: TrainingProgram, run: Run) -> bool:
    """Whether a training is known to be over soon; a step of a narrow model takes a few milliseconds."""
    if run.rounds is None:
        return False
    if run.samples is None:
        return run.rounds < FEW and run.weights is not None
    if run.samples == 1:  # a loop over steps
        narrow = program.models and all(is_narrow(program, model) for model in program.models)
        return run.rounds < STEPS * (10 if narrow else 1)
    return run.rounds * run.samples < SAMPLES


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Save at the start of a round, and put what it takes to go on above the loop."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    run, at = plan.run, plan.run.loop
    environ = edit.name("os.environ", at) if run.parser is None else ""
    move = edit.name("os.replace", at)
    checkpoint = edit.free_name("checkpoint", at)
    saved, loaded = [(run.counter, run.counter)], []
    for part in run.parts:
        saved.append((part.key, f"{part.text}.state_dict()"))
        loaded.append(f'{part.text}.load_state_dict({checkpoint}["{part.key}"])')
    for name in run.carried:
        saved.append((name, name))
        loaded.append(f'{name} = {checkpoint}["{name}"]')
    for key, get, put in states(run, plan.on_gpu, edit):
        saved.append((key, f"{get}()"))
        loaded.append(f'{put}({checkpoint}["{key}"])')
    if len({key for key, _ in saved}) != len(saved):
        raise Refuse("two of the things to save go by one name")
    load, save = edit.name("torch.load", at), edit.name("torch.save", at)
    word = "--resume"
    if run.parser is not None:
        option = f'{run.parser.name}.add_argument("--resume", help="a checkpoint of an interrupted run to go on from")'
        edit.after(run.parser.last, requote(option, edit, at))
        resume, test = f"{run.parser.options}.resume", f"if {run.parser.options}.resume:"
    else:
        word, resume = "RESUME", edit.free_name("resume", at)
        test = f"if {resume}:"
    lines = [f"{run.counter} = {run.start or 0}", *([] if run.parser else [f'{resume} = {environ}.get("RESUME")'])]
    indented = [
        f'{checkpoint} = {load}({resume}, map_location="cpu", weights_only=False)',
        *loaded,
        f'{run.counter} = {checkpoint}["{run.counter}"]',
    ]
    clock, pid = edit.name("time.monotonic", at), edit.name("os.getpid", at)
    due, unfinished = edit.free_name("due", at), edit.free_name("unfinished", at)
    named = f'{edit.name("time.strftime", at)}(f"unfinished-%Y%m%d-%H%M%S-{{{pid}()}}.pt")'
    edit.before(
        at,
        *(requote(line, edit, at) for line in lines),
        test,
        *(requote(f"    {line}", edit, at) for line in indented),
        requote(f"{unfinished} = {resume} or {named}", edit, at),
        f"{due} = 0.0",
    )
    way = f"{word}{' ' if run.parser else '='}unfinished-....pt"
    edit.before(
        run.body,
        f"if {clock}() >= {due}:  # {way} goes on from here",
        f"    {due} = {clock}()",
        f"    {checkpoint} = {{",
        *(requote(f'        "{key}": {value},', edit, at) for key, value in saved),
        "    }",
        requote(f'    {save}({checkpoint}, {unfinished} + ".tmp")', edit, at),
        requote(f'    {move}({unfinished} + ".tmp", {unfinished})', edit, at) + "  # whole, or not there",
        f"    {due} = {clock}() + 100 * ({clock}() - {due})  # a hundredth of the time, at most",
        above_comments=True,
    )
    if run.start_site is not None:
        edit.replace(run.start_site, run.counter)
    else:
        inner = edit.text(run.counted)
        head, _, rest = inner.partition("(")
        edit.replace(run.counted, f"{head}({run.counter}, {rest.lstrip()}")
    models = [f'"{part.key}": {part.text}.state_dict()' for part in run.parts if part.kind == "model"]
    if models and run.result is None and run.weights is None:
        moment = f"{edit.name('time.strftime', at)}({edit.quoted('trained-%Y%m%d-%H%M%S.pt', at)})"
        edit.after(at, f"{save}({{{', '.join(requote(each, edit, at) for each in models)}}}, {moment})")


def states(run: Run, on_gpu: bool, edit: Edit) -> Iterator[tuple[str, str, str]]:
    """The generators of random numbers: the key, what gives a state and what takes one."""
    at = run.loop
    yield "rng", edit.name("torch.get_rng_state", at), edit.name("torch.set_rng_state", at)
    if on_gpu:
        get, put = edit.name("torch.cuda.get_rng_state_all", at), edit.name("torch.cuda.set_rng_state_all", at)
        yield "cuda_rng", get, put
    if "random" in run.generators:
        yield "random_rng", edit.name("random.getstate", at), edit.name("random.setstate", at)
    if "numpy" in run.generators:
        yield "numpy_rng", edit.name("numpy.random.get_state", at), edit.name("numpy.random.set_state", at)
