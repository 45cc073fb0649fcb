"""Which framework owns the training: what is called, derived from or handed the loss, never what is merely imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Class, External, Instance, Made, Tensor, members
from turbofix.library.tables import rows_of
from turbofix.training.model import Framework

_OWNERS = {name: Framework[kind] for name, kind in rows_of("frameworks.tsv")}
"""What starts a framework: a call of it, or of a constructor of its own (``Trainer.from_argparse_args``), or an object
of a class that derives from it."""

_MODULES = {
    "lightning.LightningModule": Framework.LIGHTNING,
    "lightning.pytorch.LightningModule": Framework.LIGHTNING,
    "pytorch_lightning.LightningModule": Framework.LIGHTNING,
}
"""What a framework trains: to derive from it is to write for the framework."""

_ENGINES = {
    "deepspeed": Framework.DEEPSPEED,
    "accelerate": Framework.ACCELERATE,
    "lightning": Framework.FABRIC,
    "lightning_fabric": Framework.FABRIC,
    "pytorch_lightning": Framework.FABRIC,
}
"""Packages whose objects take the loss (``accelerator.backward(loss)``), by the name under which they are imported."""

_IN_STEPS = {Framework.DEEPSPEED, Framework.ACCELERATE, Framework.FABRIC}
"""Frameworks that run no loop: the steps are the program's own."""

_ORDER = (
    Framework.DEEPSPEED,
    Framework.ACCELERATE,
    Framework.FABRIC,
    Framework.LIGHTNING,
    Framework.TRANSFORMERS,
)


def framework_of(analysis: Analysis, trains: bool) -> Framework:
    """The framework in charge; plain torch where the program has its own steps, none where nothing trains."""
    facts = analysis.facts
    names: set[str] = set()
    for event in (*facts.of("make"), *facts.of("call")):
        names.add(event.name)
        names.update([member.qualname for member in members(event.result) if isinstance(member, Made)])
    for event in facts.of("construct"):
        for member in members(event.result):
            if isinstance(member, Instance):
                names.update(member.cls.externals())
    found = {framework for name in names for framework in _owned_by(name)}
    for event in facts.of("backward"):
        if takes_loss(event):
            found |= {_ENGINES[package] for package in imported(event.module) if package in _ENGINES}
    torch = trains or any(name.startswith("torch.") for name in names)
    if not found and not trains:
        found |= {framework for name in _derived(analysis) for framework in _owned_by(name)}
    own = found - _IN_STEPS  # a loader that Accelerate prepares beside does not take the training from its trainer
    for framework in _ORDER:
        if framework in (found if trains else own or found):
            return framework
    return Framework.PYTORCH if torch else Framework.NONE


def takes_loss(event: Event) -> bool:
    """Whether a backward is called on something else than the loss, which it is given: ``engine.backward(loss)``.

    ``output.backward(gradient)`` is none: its gradient is made for it.
    """
    if event.name != "engine" or event.arguments is None or not event.arguments.positions:
        return False
    roles = {role for each in members(event.receiver) if isinstance(each, Tensor) for role in each.roles}
    return not (roles and roles <= {"made", "grad"})


def imported(module: ModuleFile) -> set[str]:
    """The packages that names of a file's top level come from."""
    values = [member for value in module.scope.names.values() for member in members(value)]
    return {value.qualname.partition(".")[0] for value in values if isinstance(value, External)}


def _owned_by(name: str) -> Iterator[Framework]:
    """The framework that a called or derived-from name belongs to."""
    if name in _MODULES:
        yield _MODULES[name]
    owner = name if name in _OWNERS else name.rpartition(".")[0]
    if owner in _OWNERS:
        yield _OWNERS[owner]
    elif name.startswith("trl.") and name.endswith("Trainer"):
        yield Framework.TRANSFORMERS


def _derived(analysis: Analysis) -> Iterator[str]:
    """What the entry file's own classes derive from: a file of classes alone is run by another one."""
    module = analysis.execution.entry
    if not any(isinstance(statement, ast.ClassDef) for statement in module.tree.body):
        return
    for value in list(module.scope.names.values()):
        for member in members(value):
            if isinstance(member, Class) and member.module is module:
                yield from member.externals()
