"""Share out the optimizer's state, gradients or parameters among processes, where one GPU cannot hold them (ZeRO).

Why slow
    With ``DistributedDataParallel`` every process holds everything: parameters, gradients, and Adam's two numbers for
    each parameter. A model that does not fit forces small batches, or no training at all.

Example
    ::

        model = DDP(model, device_ids=[rank])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

Use instead
    ``--zero 1`` lets each process keep, and update by, its share of the optimizer's state::

        if torch.distributed.is_initialized():
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    ``--zero 2`` shares out gradients, too, and ``--zero 3`` parameters, by ``fully_shard`` (FSDP2) in the place of
    ``DistributedDataParallel``, block by block. What is saved is put together first, by all processes, and written by
    the first: the file is the one that the script wrote before. DeepSpeed is told the stage in its configuration.

When refused
    It speaks where a stage is asked for (``--zero``, or ``zero`` in pyproject.toml), of a training by several
    processes (``--gpus`` makes one). It is refused

    - for ``LBFGS``, closures, and optimizers that are not torch's own, or not known to update each number by itself;
    - where a state is saved by every process, or read for another purpose;
    - in stages 2 and 3 where one process alone calls the model, or a function that saves it (the others would be waited
      for), for batch normalisation, ``no_sync``, models that are saved themselves, names that begin with ``module.``,
      parameters that were gathered before, and torch before 2.6;
    - under Accelerate, Lightning and the Trainer, which have settings for it.

Risk
    equivalent: the same updates but for the order in which gradients are summed.

Measured
    Two processes on CPUs: half of the optimizer's state in each, and in stages 2 and 3 half of all three.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.records import dataclass
from turbofix.training.evidence import of_optimizer
from turbofix.training.model import Framework, Hazard, Optimizer, Sharding, TrainingProgram

from ._sharding import Shares
from ._stages import under_deepspeed
from ._trainers import is_off

codemod = Codemod(
    __name__,
    group="distributed",
    risk=Risk.EQUIVALENT,
    after=("ddp", "ddp-flags", "no-sync"),
    processes=True,
    known_as=("ZeroRedundancyOptimizer", "FSDP", "fully_shard", "DeepSpeed ZeRO"),
    worth=Worth.SOME,
)

SHARED = "torch.distributed.optim.ZeroRedundancyOptimizer"
SHARDS_SINCE = (2, 6)
SINGLE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
"""torch's optimizers that update each number by itself."""

BY_PARAMETER = (*SINGLE, "Adafactor", "Muon")
"""Those that update each parameter by itself."""

WHAT = {
    1: "every process keeps the whole state of {}, and could keep a share of it",
    2: "every process keeps all gradients and the whole state of {}, and could keep a share of them",
    3: "every process keeps all parameters, gradients and the whole state of {}, and could keep a share of them",
}
SETTINGS = {
    Framework.ACCELERATE: "`accelerate config` asks for DeepSpeed, or FSDP",
    Framework.LIGHTNING: 'its trainer takes `strategy="fsdp"`, or `strategy="deepspeed_stage_2"`',
    Framework.TRANSFORMERS: "its arguments take `fsdp`, or a `deepspeed` configuration",
}
ASKING = ("strategy", "fsdp", "deepspeed", "fsdp_plugin", "deepspeed_plugin")
ALONE = "one process trains: ask for several GPUs first (`--gpus 2`)"


@dataclass(frozen=True)
class Plan:
    """The stage, what changes, and what the optimizer is assigned to (None: returned)."""

    stage: int
    sharding: Sharding
    target: str | None


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Optimizers of which every process keeps the whole state."""
    stage = program.target.zero
    if stage and program.framework is Framework.DEEPSPEED:
        yield from under_deepspeed(codemod, program, stage)
    setting = SETTINGS.get(program.framework)
    asked = program.hands_over or any(not is_off(each.argument(name)) for each in program.trainings for name in ASKING)
    if stage and setting is not None and program.trained_at is not None and not asked:
        yield codemod.refuse(program.trained_at, WHAT[stage].format("the optimizer"), setting)
    if not stage or program.framework is not Framework.PYTORCH or is_sharded(program):
        return
    for each in program.shardings:
        optimizer = program.optimizer(each.optimizer)
        if optimizer is None or optimizer.qualname == SHARED or is_shared_already(program, optimizer):
            continue
        name = (optimizer.qualname or "the optimizer").rpartition(".")[2]
        reason = why_not(program, optimizer, each, stage)
        seen = (*of_optimizer(program, optimizer), *(Evidence("saved by one process", one.call) for one in each.states))
        plan = Plan(stage, each, optimizer.target_text)
        yield codemod.offer(optimizer.site, WHAT[stage].format(name), reason, plan=plan, evidence=seen)


def is_sharded(program: TrainingProgram) -> bool:
    """Whether parameters are shared out already."""
    words = ("fully_shard", "FullyShardedDataParallel")
    return any(word in module.text for module in program.modules.by_path.values() for word in words)


def is_shared_already(program: TrainingProgram, optimizer: Optimizer) -> bool:
    """Whether it is what a training of one process takes in the place of a shared one."""
    return any(
        each.qualname == SHARED and each.branch is not None and each.branch == optimizer.branch
        for each in program.optimizers
    )


def why_not(program: TrainingProgram, optimizer: Optimizer, found: Sharding, stage: int) -> str | None:
    """What speaks against it, if anything."""
    if not program.distributed:
        return ALONE
    if not program.complete:  # a run by one process would not show it
        return program.incomplete_because or "the program could not be read to its end"
    package, _, name = (optimizer.qualname or "").rpartition(".")
    if name == "LBFGS" or any(
        act.closure for step in program.steps for act in step.updates if act.optimizer == optimizer.site
    ):
        return "it is given a closure, which each process would call by itself"
    if package != "torch.optim" or name not in (SINGLE if stage > 1 else BY_PARAMETER):
        return "it is not known to update each number by itself"
    if stage > 1 and program.target.torch < SHARDS_SINCE:
        return "`fully_shard` came with torch 2.6: say `--torch-version 2.6` where that is there"
    if not program.wrappings:
        return "no DistributedDataParallel is seen to sum its gradients over the processes"
    hazard: Hazard | None = found.whole if stage > 1 else found.hazard
    if hazard is not None:
        return (
            f"{hazard.why} ({hazard.site.line_from(optimizer.site.path)})"
            if hazard.site != optimizer.site
            else hazard.why
        )
    if stage == 1 and optimizer.target_text is None and not found.returned:
        return "it is built inside of another expression, where a choice between two has no place"
    if stage > 1 and optimizer.before_move:
        return "it is built before its model is moved to the GPU"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Share out the state, or all."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    shares = Shares(edit, plan.sharding)
    if plan.stage == 1:
        shares.share_state(plan.target)
    else:
        shares.share_all(plan.stage)
    shares.finish()
