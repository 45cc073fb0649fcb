"""Keep a model's layers in several processes, on a GPU each, through which parts of a batch follow each other.

Why slow
    A model that does not fit one GPU trains with batches that are too small, or in memory that is borrowed from the
    host. In a pipeline each GPU keeps some of its layers, and works on one part of a batch while others work on others.

Example
    ::

        model = nn.Sequential(*[Block(width) for _ in range(48)]).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        torch.save(model.state_dict(), "model.pt")

Use instead
    ::

        pipeline = Pipeline(model) if world_size > 1 else model
        optimizer = torch.optim.AdamW(pipeline.parameters(), lr=1e-4)
        for inputs, targets in loader:
            optimizer.zero_grad()
            if world_size == 1:
                loss = criterion(model(inputs.to(device)), targets.to(device))
                loss.backward()
            else:
                loss = pipeline.step(inputs.to(device), targets.to(device), criterion)
            optimizer.step()
        if world_size > 1:
            pipeline.gather()
        if rank == 0:
            torch.save(model.state_dict(), "model.pt")

    ``Pipeline`` is a class of some forty lines at the head of the script, on ``torch.distributed.pipelining``.
    ``torchrun --nproc-per-node=4 train.py`` starts it on four GPUs; without torchrun it does what it did. Layers are
    shared out by their parameters. The first process says what is in a batch, all are told its loss, and what is saved
    has all layers under their old names.

When refused
    It speaks where stages are asked for (``--pipeline 4``). It is refused for models that are no ``nn.Sequential``, and
    do more than to run one; for batch normalisation, recurrent layers and torch's transformers; for losses that are
    told how to reduce; for steps that clip, accumulate or use autocast; for models that are evaluated, or whose results
    are read beside the loss; and before torch 2.6. Each process makes the whole model before it lets go of the layers
    of others.

Risk
    equivalent: the same gradients but for rounding; dropout draws other numbers in each process.

Measured
    Not measured on GPUs here: two processes on a CPU learn what one does.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import SHARED_OUT
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.training.evidence import of_loop
from turbofix.training.model import Staged, TrainingProgram

from ._ranks import Ranks

codemod = Codemod(
    __name__,
    group="distributed",
    risk=Risk.EQUIVALENT,
    once=True,
    processes=True,
    known_as=("pipelining", "PipelineStage", "GPipe", "model parallel"),
    assumes=(SHARED_OUT,),
    worth=Worth.SOME,
)

SINCE = (2, 6)
"""The torch whose stages find the shapes of what they hand on by themselves."""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """A sequence of layers that one process trains."""
    found = program.staged
    if found is None or program.distributed or program.processes:
        return
    seen = tuple(map(of_loop, program.steps[:1]))
    reason = None
    if found.hazard is not None:
        reason = f"{found.hazard.why} ({found.hazard.site.line_from(found.model.path)})"
    elif max(program.target.torch, program.target.recent or (0, 0)) < SINCE:
        reason = "before torch 2.6 stages have to be told the shapes of what they hand on: --torch-version 2.6"
    if found.optimizer is not None:
        seen += (Evidence("its parameters go to one optimizer", found.optimizer),)
    message = "one process keeps all layers: started by torchrun, each could keep some, on a GPU of its own"
    yield codemod.offer(found.model, message, reason, plan=found, evidence=seen, assumes=(SHARED_OUT,))


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Start the processes' group, give each its layers, and have the step go through those of all."""
    plan = finding.plan
    assert isinstance(plan, Staged)
    at, first, last = plan.optimizer, plan.first, plan.last
    assert at is not None and first is not None and last is not None
    assert plan.parameters is not None and plan.alike is not None
    ranks = Ranks(edit, plan.alike)
    name, world = edit.free_name("pipeline", at), ranks.word("world_size", at)
    made = f"{ranks.word('Pipeline', at)}({plan.layers})"
    ranks.before(at, f"{name} = {made} if {world} > 1 else {edit.text(plan.parameters)}")
    edit.replace(plan.parameters, name)
    edit.wrap(first, last, f"if {world} == 1:")
    step = f"{plan.loss} = {name}.step({plan.inputs}, {plan.targets}, {plan.criterion})"
    edit.after(last, "else:", *(f"    {each}" for each in (*plan.zeroing, step)))
    for save in plan.saves:
        ranks.before(save, ranks.several(save), f"    {name}.gather()")
    ranks.do_once()
    ranks.set_up()
