"""End the backward pass where nobody uses the gradients behind it, and leave out those that nobody uses.

Why slow
    A discriminator's step on what the generator has made goes back through the whole generator. The generator's
    gradients are cleared before its own step: computing them was in vain, and what its forward pass kept for them took
    memory.

Example
    ::

        fake = generator(z)
        d_loss = bce(discriminator(real), ones) + bce(discriminator(fake), zeros)
        d_loss.backward()
        d_optimizer.step()

Use instead
    ::

        d_loss = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)

    The same goes for what any model gives to another or to a criterion: the features of an encoder that no optimizer
    trains, the answers of a teacher.

    A generator's step must go back through the discriminator, but the gradients of the discriminator's own weights are
    cleared before anything uses them. The backward pass is told whose are wanted::

        bce(discriminator(generator(z)), ones).backward(inputs=[*generator.parameters()])

    What is detached before anything learns from it (``target(state).detach()``) is computed under ``torch.no_grad()``.

When refused
    It is refused where another backward pass goes through the same call and needs those gradients, and where a model
    gives several results: detach those that are handed on. Nothing is said where it is not known which models an
    optimizer trains, under ``DistributedDataParallel``, and under frameworks.

Risk
    exact: the same forward passes, and the same gradients wherever a step uses them. Where models are compiled it is
    equivalent: an input without a gradient may be compiled to other kernels.

Measured
    Nothing was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import UNUSED_GRADIENTS
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.training.evidence import of_loop
from turbofix.training.model import Framework, Step, ThrownAway, TrainingProgram

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EXACT,
    known_as=("detach", "stop gradient"),
    assumes=(UNUSED_GRADIENTS,),
    worth=Worth.HIGH,
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Backward passes into models whose gradients are cleared before anything uses them."""
    if program.framework is not Framework.PYTORCH or program.hands_over or program.distributed:
        return
    if any(part.kind in ("apex", "framework") for part in program.precision):
        return
    told = set()
    for step in program.steps:
        for found in step.thrown_away:
            if found.backward in told:
                continue
            told.add(found.backward)
            if found.kept and is_compiled(program, step):
                continue  # a compiled backward pass computes all that it was compiled for
            if found.done:
                yield codemod.in_place(found.backward, f"goes back no further than {code(found.names)}")
            elif found.why_not is not None:
                yield codemod.refuse(found.backward, message(found), found.why_not, evidence=seen(step, found))
            else:
                risk = Risk.EQUIVALENT if is_compiled(program, step) else None
                why, worth = seen(step, found), Worth.SOME if found.at_once else None
                assumes = () if found.certain and program.complete else (UNUSED_GRADIENTS,)
                yield codemod.finding(
                    found.backward, message(found), plan=found, risk=risk, evidence=why, assumes=assumes, worth=worth
                )


def message(found: ThrownAway) -> str:
    """What is computed in vain."""
    if found.at_once:
        return f"builds the graph of {code(found.names)}, which is detached before anything learns from it"
    if not found.names:
        fate = "which are cleared before a step uses them" if found.cleared else "which no optimizer trains"
        return f"computes gradients of the weights of {code(found.models)}, {fate}"
    fate = "whose gradients are cleared before a step uses them" if found.cleared else "which no optimizer trains"
    return f"goes back through {code(found.names)} into {code(found.models)}, {fate}"


def code(names: tuple[str, ...]) -> str:
    """Names as code."""
    return " and ".join(f"`{each}`" for each in names)


def seen(step: Step, found: ThrownAway) -> tuple[Evidence, ...]:
    """The loop, and where the gradients are cleared."""
    return (of_loop(step), *(Evidence("gradients are cleared", each) for each in found.cleared))


def is_compiled(program: TrainingProgram, step: Step) -> bool:
    """Whether a model of the step is compiled."""
    models = (program.model(site) for site in step.models)
    return any(each is not None and each.compiled is not None for each in models)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Detach what the next model is given."""
    found = finding.plan
    assert isinstance(found, ThrownAway)
    if found.kept:
        edit.argument(found.backward, "inputs", f"[{', '.join(f'*{each}.parameters()' for each in found.kept)}]")
    for site in found.built:
        first = found.backward if found.at_once else site
        edit.wrap(first, site, f"with {edit.name('torch.no_grad', first)}():")
    for site in found.cuts:
        edit.insert_after(site, ".detach()")
