"""What Accelerate and Fabric leave to the script and whoever starts it, and the AdamW that transformers had."""

from __future__ import annotations

from turbofix.editing.edit import Edit
from turbofix.findings import Site
from turbofix.training.model import Argument, Framework, TrainingProgram

LEFT = (Framework.PYTORCH, Framework.ACCELERATE, Framework.FABRIC)
"""Where loops, messages and optimizers are written by the user: in plain torch, and under these two frameworks."""

NAMES = {Framework.ACCELERATE: "Accelerate", Framework.FABRIC: "Fabric"}

_PARAMETERS = {Framework.ACCELERATE: "mixed_precision", Framework.FABRIC: "precision"}


def precisions(program: TrainingProgram) -> tuple[Argument, ...]:
    """What each of the framework's objects is told about the precision.

    Where that is nothing, or None, it is chosen when the program is started (``accelerate config``, ``fabric run``).
    """
    return tuple(owner.argument(_PARAMETERS[program.framework]) for owner in program.owners)


def is_open(program: TrainingProgram) -> bool:
    """Whether one of the framework's objects is made with arguments that the program does not show."""
    return not program.owners or any(owner.open_mapping for owner in program.owners)


def named(argument: Argument) -> frozenset[str | None]:
    """The values that a precision may have as the program stands, as strings; with None where there may be others."""
    found = frozenset(str(each) if each is not None else None for each in argument.values)
    return found if argument.state == "value" and found else found | {None}


def where(program: TrainingProgram) -> Site | None:
    """Where a person would set the switch: in the process that trains.

    The ranks that a framework starts run the script, or the function with its set-up, anew.
    """
    script = program.script
    return (starts_processes(program) and script.trains_at) or script.setup


def starts_processes(program: TrainingProgram) -> bool:
    """Whether what the script sets is lost to processes that it starts itself."""
    return program.processes and program.framework not in NAMES


def give_back(site: Site, edit: Edit) -> None:
    """Call torch's AdamW in place of transformers' own, with the defaults of that."""
    call = edit.call(site)
    edit.replace(call.function, edit.name("torch.optim.AdamW", site))
    for number, (name, value) in enumerate((("eps", "1e-6"), ("weight_decay", "0.0")), 3):
        if call.value(name, number) is None:
            edit.argument(site, name, value, spelled_out=True)
    for number, name in enumerate(("correct_bias", "no_deprecation_warning"), 5):
        if call.value(name, number) is not None:
            edit.drop_argument(site, name, number)
