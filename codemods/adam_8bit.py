"""Keep Adam's states in 8 bits for a large model, with bitsandbytes where it is installed.

Why slow
    Adam and AdamW keep two float32 numbers for every parameter: 8 GB for a billion of them. bitsandbytes keeps these
    states in 8 bits, in a quarter of the memory. It makes no step faster.

Example
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

Use instead
    ::

        try:
            import bitsandbytes as bnb
        except Exception:  # it is not installed, or not made for this machine
            bnb = None
        if bnb is not None and device.type == "cuda":
            optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=1e-5)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    Embeddings keep 32 bits. The ``Trainer`` of transformers gets ``optim="adamw_bnb_8bit"`` where bitsandbytes and a
    GPU are there.

When refused
    Nothing is said of models that are not known to have a billion parameters beside embeddings and convolutions, nor
    of 16-bit, quantized, sharded or partly frozen ones. It is refused

    - where the optimizer's state is loaded, or a ``Trainer`` may resume: neither kind reads what the other has saved;
    - for ``Adam`` with a weight decay, and for options that bitsandbytes lacks (``amsgrad``);
    - where the optimizer is built in a loop or inside another expression, or several processes share its parameters;
    - where the ``Trainer``'s command line decides: pass ``--optim adamw_bnb_8bit``.

Risk
    recipe: the states are rounded, so the weights take another way. Checkpoints of the two do not fit each other.

Measured
    20 % less memory, 5 % slower (torchtune).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.assumptions import ON_GPU, READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
from turbofix.records import dataclass
from turbofix.training.evidence import of_optimizer
from turbofix.training.model import Bulk, Framework, Model, Optimizer, Training, TrainingProgram
from turbofix.training.optimizers.bulk import BULKY

from ._precision import requote, test_beside
from ._trainers import OPTIMIZING, Switch, by_deepspeed, evidence, is_off, rests_on_gpu, stays_on_cpu
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="optimizer",
    risk=Risk.RECIPE,
    after=(
        *("fused-optimizer", "clip-gradients", "warmup-schedule", "grad-accumulation", "larger-batch", "autocast"),
        *("compile-model", "crash-checkpoint", "set-to-none"),
    ),
    known_as=("bitsandbytes", "8-bit Adam", "AdamW8bit"),
    assumes=(READ_WHOLE, ON_GPU),
)

TAKEN = ("params", "lr", "betas", "eps", "weight_decay")
"""The parameters of torch's that bitsandbytes' Adam8bit and AdamW8bit have too, in the same order."""

CHOOSING = ("fused", "foreach")
"""What only chooses between torch's own implementations."""

WHOLE = (None, "torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.compile")
"""What may wrap a model and leaves its parameters as they are."""

SETTING = "adamw_bnb_8bit"
PLAIN = ("adamw_torch", "adamw_torch_fused", "adamw_hf")
IN_8_BITS = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit")
SHARDING = ("fsdp", "fsdp_config", "parallelism_config", "accelerator_config")
IS_THERE = "{transformers.utils.is_bitsandbytes_available}() and {torch.cuda.is_available}()"

BYTES = 8
"""What Adam keeps for a parameter, in float32."""


@dataclass(frozen=True)
class Plan:
    """The model as the construction's function calls it, the test for a GPU (None: there is one), and embeddings."""

    kind: str
    model: str
    test: str | None
    embeds: bool
    target: str | None


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Optimizers whose states in float32 are large."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    if program.framework is not Framework.PYTORCH:
        return
    for optimizer in program.optimizers:
        if (optimizer.qualname or "").startswith("bitsandbytes.") and (optimizer.qualname or "").endswith("8bit"):
            yield codemod.in_place(optimizer.site, "the optimizer keeps its states in 8 bits")
    if program.libraries & {"bitsandbytes", "peft", "deepspeed", "apex"} or program.hands_over:
        return
    for bulk in program.bulks:
        optimizer, model = program.optimizer(bulk.optimizer), program.model(bulk.model)  # type: ignore[assignment]
        if optimizer is None or model is None or not optimizer.used or optimizer.handed_over:
            continue
        if model.half or model.dtype is not None or model.wrapped not in WHOLE or not on_gpu(program, optimizer):
            continue
        kind = (optimizer.qualname or "").rpartition(".")[2]
        message = told(kind, model)
        seen = (Evidence("the model, built", model.site), *of_optimizer(program, optimizer))
        reason = why_not(program, optimizer, bulk)
        if reason is not None:
            yield codemod.refuse(optimizer.site, message, reason, evidence=seen)
            continue
        test = test_beside(program, optimizer)
        assert bulk.text is not None
        embeds = "torch.nn.Embedding" in model.layers or not model.layers_complete
        here = f"next({bulk.text}.parameters()).is_cuda" if test is None else test if test != "True" else None
        plan = Plan(kind, bulk.text, here, embeds, optimizer.target_text)
        yield codemod.finding(optimizer.site, message, plan=plan, evidence=seen, for_speed=False)


def told(kind: str, model: Model) -> str:
    """What a finding says of a model."""
    name = f"`{model.name}`" if model.name else "the model"
    many, size = f"{model.numbers / 1e9:.1f} billion", BYTES * model.numbers / 1e9
    return (
        f"{kind} keeps two float32 numbers for each of the {many} parameters or more of {name}: {size:.1f} GB, "
        "of which 8 bits take a quarter"
    )


def on_gpu(program: TrainingProgram, optimizer: Optimizer) -> bool:
    """Whether its parameters may live on a GPU."""
    steps = [step for step in program.steps if optimizer.site in step.optimizers]
    return optimizer.device.reaches_cuda or any(step.device.reaches_cuda for step in steps)


def why_not(program: TrainingProgram, optimizer: Optimizer, bulk: Bulk) -> str | None:
    """What makes 8-bit states unsafe for an optimizer, if anything."""
    kind = (optimizer.qualname or "").rpartition(".")[2]
    if optimizer.state_loads:
        line = optimizer.state_loads[0].site.line_from(optimizer.site.path)
        return f"its state is loaded ({line}), and what torch's {kind} has saved does not fit the other one"
    if bulk.hazard is not None:
        return f"{bulk.hazard.why} ({bulk.hazard.site.line_from(optimizer.site.path)})"
    if optimizer.open_mapping:
        return "the call unpacks a mapping that may hold options which bitsandbytes does not have"
    for name, given in optimizer.arguments.items():
        off = given.state == "absent" or (given.state == "value" and given.known and not any(given.values))
        if name not in (*TAKEN, *CHOOSING) and not off:
            return f"bitsandbytes' {kind}8bit has no `{name}`"
    decay, params = optimizer.argument("weight_decay"), optimizer.argument("params").text or ""
    plain = decay.state == "absent" or (decay.state == "value" and not any(decay.values))
    if kind == "Adam" and not (plain and params.endswith((".parameters()", ".parameters())"))):
        return "bitsandbytes' Adam8bit applies a weight decay as AdamW does, which is another one than Adam's"
    if "tensor(" in (optimizer.argument("lr").text or ""):
        return "the learning rate is a tensor, which bitsandbytes does not take"
    if optimizer.sparse:
        return "some of its gradients are sparse, which bitsandbytes does not take"
    if program.processes and not program.distributed:
        return "several processes update the same parameters"
    if optimizer.in_loop:
        return "it is built again and again, and bitsandbytes would keep every model that it is told of"
    if not bulk.alone:
        return "it is built inside of another expression, where a choice between two has no place"
    if bulk.text is None:
        return "the function that builds it has no name for the model, whose embeddings need 32 bits"
    if optimizer.before_move and test_beside(program, optimizer) is None:
        return "the model is moved to the GPU after it was built, and no test here tells whether there is one"
    return None


# --- the trainer of transformers --------------------------------------------------------------------------------------


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, whose settings name the optimizer."""
    for training in program.trainings:
        optim = training.argument("optim")
        place = optim.edit_at or training.site
        if optim.known and set(optim.values) <= set(IN_8_BITS):
            yield codemod.in_place(place, "the optimizer keeps its states in 8 bits")
        model = next((model for model in training.models if model.numbers >= BULKY and not model.half), None)
        if model is None or len(training.models) != 1 or training.precision == "other":
            continue
        if by_deepspeed(training) or stays_on_cpu(training):
            continue
        if any(not is_off(training.argument(name)) for name in SHARDING):
            continue
        if training.own_optimizer or training.overrides & OPTIMIZING or not is_off(training.argument("adafactor")):
            continue
        if program.libraries & {"bitsandbytes", "peft", "deepspeed"}:
            continue
        if optim.state != "absent" and not (optim.known and len(optim.values) == 1 and optim.values[0] in PLAIN):
            continue
        message = told("AdamW", model)
        seen = evidence(training, "optim")
        reason = why_not_under_trainer(program, training)
        other = f'"{optim.values[0]}"' if optim.values else f"{{{training.qualname}}}.optim"
        plan = Switch("optim", f'"{SETTING}" if {IS_THERE} else {other}', place if optim.values else None)
        gpu = rests_on_gpu(training)
        yield codemod.offer(place, message, reason, plan=plan, evidence=seen, assumes=gpu, for_speed=False)


def why_not_under_trainer(program: TrainingProgram, training: Training) -> str | None:
    """What makes another optimizer unsafe, or what decides over it."""
    optim = training.argument("optim")
    reason = why_not_setting(program, training, "optim", SETTING)
    if reason is not None:
        return reason
    if training.resumes or not is_off(training.argument("resume_from_checkpoint")):
        return "it may go on from a checkpoint, and the state that another optimizer has saved does not fit"
    if optim.option is not None:
        return f"the script leaves it to the option {optim.option}: pass {SETTING}"
    if optim.reads:
        return f"the name is read for something else too (line {optim.reads[0].line})"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Choose between the two where the optimizer is built."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    site = finding.site
    library, unit = edit.free_name("bnb", site), INDENT
    lines = [
        "try:",
        f"{unit}import bitsandbytes as {library}" if library != "bitsandbytes" else f"{unit}import bitsandbytes",
        "except Exception:  # it is not installed, or not made for this machine",
        f"{unit}{library} = None",
        f"if {library} is not None and {plan.test}:" if plan.test is not None else f"if {library} is not None:",
    ]
    if plan.embeds:
        embedding = edit.name("torch.nn.Embedding", site)
        module, manager = edit.free_name("module", site), edit.free_name("manager", site)
        lines += [
            f"{unit}for {module} in {plan.model}.modules():",
            f"{unit * 2}if isinstance({module}, {embedding}):  # the states of embeddings stay in 32 bits",
            f"{unit * 3}{manager} = {library}.optim.GlobalOptimManager.get_instance()",
            f'{unit * 3}{manager}.register_module_override({module}, "weight", {{"optim_bits": 32}})',
        ]
    made = f"{library}.optim.{plan.kind}8bit"
    start = f"{plan.target} = " if plan.target is not None else "return "
    lines += [f"{unit}{line}" for line in f"{start}{called(made, edit.text(site), len(start))}".split("\n")]
    edit.before(site, *(requote(line, edit, site) for line in lines[:-1]), *lines[-1:])
    statement = edit.statement(site)
    edit.wrap(statement, statement, "else:")


INDENT = "    "
LONGEST = 110


def called(function: str, call: str, before: int) -> str:
    """Another function called with what both of them take, on one line or with an argument on each."""
    tree = ast.parse(f"({call})", mode="eval").body
    if not isinstance(tree, ast.Call) or len(tree.args) > len(TAKEN):
        raise Refuse("it is given something by its position that bitsandbytes does not take")
    whole = f"({call})"
    given = [ast.get_source_segment(whole, each) or "" for each in tree.args]
    given += [f"{each.arg}={ast.get_source_segment(whole, each.value)}" for each in tree.keywords if each.arg in TAKEN]
    line = f"{function}({', '.join(given)})"
    if before + len(line) <= LONGEST and "\n" not in line:
        return line
    return "\n".join((f"{function}(", *(f"{INDENT}{each}," for each in given), ")"))
