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

_PIPELINE = '''
class {name}:
    """The layers of this process, and steps through those of all."""

    def __init__(self, layers):
        sizes = [sum(each.numel() for each in layer.parameters()) for layer in layers]
        middles = [sum(sizes[:number]) + size / 2 for number, size in enumerate(sizes)]
        owners = [min(int(each / max(sum(sizes), 1) * {world}), {world} - 1) for each in middles]
        shared = sum(each.numel() for each in layers.parameters()) < sum(sizes)
        if shared or len(set(owner for owner, size in zip(owners, sizes) if size)) < {world}:
            {exit}({few})
        for layer, owner in zip(layers, owners):
            if owner != {rank}:
                layer.cpu()
        self.layers, self.owners, self.schedules = layers, owners, {{}}
        self.own = {sequence}(*[layer for layer, owner in zip(layers, owners) if owner == {rank}])
        self.device = next(self.own.parameters()).device

    def parameters(self):
        return self.own.parameters()

    def step(self, inputs, targets, criterion):
        """The mean loss of a batch of the first process; its gradients are added to those that are there."""
        if inputs.shape not in self.schedules:
            from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

            stage = PipelineStage(self.own, {rank}, {world}, self.device)
            parts = {gcd}(len(inputs), 2 * {world})
            self.schedules[inputs.shape] = ScheduleGPipe(stage, parts, loss_fn=criterion)
        schedule, targets, losses = self.schedules[inputs.shape], targets.contiguous(), []
        {broadcast}(targets, 0)
        if {rank} == 0:
            schedule.step(inputs)
        elif {rank} == {world} - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        loss = {stack}(losses).mean().detach() if losses else {zeros}((), device=self.device)
        {broadcast}(loss, {world} - 1)
        return loss

    def gather(self):
        """Bring the layers of all processes up to date in each."""
        for layer, owner in zip(self.layers, self.owners):
            state = [{{name: value.cpu() for name, value in layer.state_dict().items()}}]
            {objects}(state, owner)
            layer.load_state_dict(state[0])
'''
_NAMES = {
    "exit": "sys.exit",
    "gcd": "math.gcd",
    "sequence": "torch.nn.Sequential",
    "broadcast": "torch.distributed.broadcast",
    "objects": "torch.distributed.broadcast_object_list",
    "stack": "torch.stack",
    "zeros": "torch.zeros",
}


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
    for name in ("atexit.register", "math.gcd"):  # imports in this order
        edit.name(name, at)
    ranks = Ranks(edit, plan.alike)
    kind, name, world = edit.free_name("Pipeline", at), edit.free_name("pipeline", at), ranks.word("world_size", at)
    few = edit.quoted("the layers cannot be shared out among so many processes: start fewer", at)
    words = {each: edit.name(dotted, at) for each, dotted in _NAMES.items()}
    text = _PIPELINE.format(name=kind, world=world, rank=ranks.word("rank", at), few=few, **words)
    ranks.helpers.setdefault(at.path, []).extend(["", *text.rstrip().split("\n")])
    ranks.before(at, f"{name} = {kind}({plan.layers}) if {world} > 1 else {edit.text(plan.parameters)}")
    edit.replace(plan.parameters, name)
    edit.wrap(first, last, f"if {world} == 1:")
    step = f"{plan.loss} = {name}.step({plan.inputs}, {plan.targets}, {plan.criterion})"
    edit.after(last, "else:", *(f"    {each}" for each in (*plan.zeroing, step)))
    for save in plan.saves:
        ranks.before(save, ranks.several(save), f"    {name}.gather()")
    ranks.do_once()
    ranks.set_up()
