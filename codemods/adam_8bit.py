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

    The ``Trainer`` of transformers gets ``optim="adamw_bnb_8bit"`` where bitsandbytes and a GPU are there.

When refused
    Nothing is said of models that are not known to have a billion parameters beside embeddings and convolutions, nor
    of 16-bit, quantized, sharded or partly frozen ones. It is refused where the optimizer's state is loaded, or a
    ``Trainer`` may resume (neither kind reads what the other has saved), for ``Adam`` with a weight decay and options
    that bitsandbytes lacks, where it is built in a loop or inside another expression, where several processes share its
    parameters, and where the ``Trainer``'s command line decides: pass ``--optim adamw_bnb_8bit``.

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
from turbofix.training.model import Framework, Model, Optimizer, Training, TrainingProgram

from ._precision import THERE, requote, test_beside, written
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

BULKY = 1_000_000_000
"""So many numbers, and Adam's two float32 states for them take 8 GB: less is no limit on the GPUs of a data center."""

KINDS = ("torch.optim.Adam", "torch.optim.AdamW")
BYTES = 8
"""What Adam keeps for a parameter, in float32."""


@dataclass(frozen=True)
class Plan:
    """What the optimizer is called in bitsandbytes, what it is assigned to (None: returned), the test for a GPU."""

    kind: str
    target: str | None
    test: str


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
    for optimizer in program.optimizers:
        model = large(program, optimizer)
        if model is None or not optimizer.used or optimizer.handed_over or not program.device.reaches_cuda:
            continue
        kind = (optimizer.qualname or "").rpartition(".")[2]
        reason = why_not(program, optimizer)
        plan = Plan(kind, optimizer.target_text, test_beside(program, optimizer) or THERE)
        seen = (Evidence("the model, built", model.site), *of_optimizer(program, optimizer))
        yield codemod.offer(optimizer.site, told(kind, model), reason, plan=plan, evidence=seen, for_speed=False)


def large(program: TrainingProgram, optimizer: Optimizer) -> Model | None:
    """The model of a billion numbers all of whose parameters an optimizer of Adam's kind trains in float32."""
    sites = {site for step in program.steps if optimizer.site in step.optimizers for site in step.models}
    models = [model for model in program.models if model.site in sites]
    owner, _, rest = (optimizer.argument("params").text or "").rpartition(".parameters()")
    if optimizer.qualname not in KINDS or len(models) != 1 or rest or optimizer.unfused is not None:
        return None
    if any("fully_shard" in module.text for module in program.modules.by_path.values()):
        return None
    if owner.rpartition(".")[2] != (models[0].name or "").rpartition(".")[2]:
        return None  # a part of it, perhaps
    plain = not models[0].half and models[0].dtype is None and models[0].wrapped in WHOLE
    return models[0] if plain and models[0].numbers >= BULKY else None


def told(kind: str, model: Model) -> str:
    """What a finding says of a model."""
    name = f"`{model.name}`" if model.name else "the model"
    many, size = f"{model.numbers / 1e9:.1f} billion", BYTES * model.numbers / 1e9
    return (
        f"{kind} keeps two float32 numbers for each of the {many} parameters or more of {name}: {size:.1f} GB, "
        "of which 8 bits take a quarter"
    )


def why_not(program: TrainingProgram, optimizer: Optimizer) -> str | None:
    """What makes 8-bit states unsafe for an optimizer, if anything."""
    kind = (optimizer.qualname or "").rpartition(".")[2]
    if optimizer.state_loads:
        line = optimizer.state_loads[0].site.line_from(optimizer.site.path)
        return f"its state is loaded ({line}), and what torch's {kind} has saved does not fit the other one"
    if optimizer.open_mapping:
        return "the call unpacks a mapping that may hold options which bitsandbytes does not have"
    for name, given in optimizer.arguments.items():
        off = given.state == "absent" or (given.state == "value" and given.known and not any(given.values))
        if name not in (*TAKEN, *CHOOSING) and not off:
            return f"bitsandbytes' {kind}8bit has no `{name}`"
        if name == "weight_decay" and kind == "Adam" and not off:
            return "bitsandbytes' Adam8bit applies a weight decay as AdamW does, which is another one than Adam's"
    if program.processes and not program.distributed:
        return "several processes update the same parameters"
    if optimizer.in_loop or optimizer.target_text is None:
        return "it is built again and again, or inside of another expression, where a choice between two has no place"
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
        settled = by_deepspeed(training) or stays_on_cpu(training) or training.own_optimizer
        if settled or any(not is_off(training.argument(name)) for name in (*SHARDING, "adafactor")):
            continue
        if training.overrides & OPTIMIZING or program.libraries & {"bitsandbytes", "peft", "deepspeed"}:
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
    return f"the script leaves it to the option {optim.option}: pass {SETTING}" if optim.option is not None else None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Choose between the two where the optimizer is built."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    site = finding.site
    test = written(plan.test, edit, site)
    library, unit = edit.free_name("bnb", site), INDENT
    lines = [
        "try:",
        f"{unit}import bitsandbytes as {library}" if library != "bitsandbytes" else f"{unit}import bitsandbytes",
        "except Exception:  # it is not installed, or not made for this machine",
        f"{unit}{library} = None",
        f"if {library} is not None:" if test == "True" else f"if {library} is not None and {test}:",
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
    if not ast.unparse(tree.func).endswith(("Adam", "AdamW")):
        raise Refuse("it is a class of the project's own")
    whole = f"({call})"
    given = [ast.get_source_segment(whole, each) or "" for each in tree.args]
    given += [f"{each.arg}={ast.get_source_segment(whole, each.value)}" for each in tree.keywords if each.arg in TAKEN]
    line = f"{function}({', '.join(given)})"
    if before + len(line) <= LONGEST and "\n" not in line:
        return line
    return "\n".join((f"{function}(", *(f"{INDENT}{each}," for each in given), ")"))
