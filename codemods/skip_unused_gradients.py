"""End the backward pass where nobody uses the gradients behind it, and leave out those that nobody uses.

Why slow
    A discriminator's step that is given what the generator has just made goes back through the discriminator, and then
    through the whole generator. The generator's gradients are cleared before its own step: computing them was in vain,
    and everything that its forward pass kept for them stayed in memory meanwhile.

Example
    ::

        fake = generator(z)
        d_loss = bce(discriminator(real), ones) + bce(discriminator(fake), zeros)
        d_loss.backward()
        d_optimizer.step()

        g_optimizer.zero_grad()
        bce(discriminator(generator(z)), ones).backward()
        g_optimizer.step()

Use instead
    ::

        d_loss = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)

    The same goes for what any model gives to another one or to a criterion: the features of an encoder that no
    optimizer trains, the answers of a teacher.

    A generator's step has to go back through the discriminator, but the gradients of the discriminator's own weights
    are cleared before anything uses them. The backward pass is told whose are wanted, and computes no others::

        bce(discriminator(generator(z)), ones).backward(inputs=[*generator.parameters()])

When refused
    Nothing is said

    - where a step of an optimizer, a clip or a scaler's ``unscale_`` could meet gradients of that backward pass: each
      of them must come behind a ``zero_grad()`` of that model or its optimizer, whenever it happens, and with no such
      backward pass in between;
    - where not every optimizer is one of torch's that is given ``model.parameters()`` of models that are known, or one
      steps with a closure; where it is not known which model computed a value, or that it is one tensor;
    - where a value leaves what can be followed (into an object of another class, through a generator function);
    - where weights are frozen and thawed (``requires_grad``), hooks are registered, activations are checkpointed or the
      project has an ``autograd.Function`` of its own, or reaches into a model (``vars``, ``__dict__``, ``_modules``);
    - of models that several processes train together (``DistributedDataParallel`` counts on its backward pass), and
      under frameworks.

    It is refused where the generator's loss is made of the same result (then its gradients are needed), where
    ``torch.autograd.grad`` takes a gradient through it, as gradient penalties do, where the backward pass comes to that
    model by another way, too, and where the program reads a gradient by itself.

    A backward pass is told whose gradients are wanted only where these models are called by name in the same function,
    consist of torch's layers and make no weight that takes no gradients (torch raises then), where no other optimizer
    could use a gradient of that pass (a penalty on the weights of a model that is not called), and where nothing is
    compiled: a compiled backward pass computes all that it was compiled for.

Risk
    exact: the same forward passes, and the same gradients wherever a step uses them. Where models are compiled it is
    equivalent, since an input without a gradient may be compiled to other kernels.

Measured
    Nothing was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
from turbofix.program.evidence import of_loop
from turbofix.program.model import Framework, Step, ThrownAway, TrainingProgram
from turbofix.records import dataclass

codemod = Codemod(__name__, group="compute", risk=Risk.EXACT, known_as=("detach", "stop gradient"))


@dataclass(frozen=True)
class Plan:
    """Where the backward pass can end."""

    found: ThrownAway


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Backward passes into models whose gradients are cleared before anything uses them."""
    if not program.complete or program.framework is not Framework.PYTORCH or program.hands_over or program.distributed:
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
                plan = Plan(found)
                yield codemod.finding(found.backward, message(found), plan=plan, risk=risk, evidence=seen(step, found))


def message(found: ThrownAway) -> str:
    """What is computed in vain."""
    if found.kept:
        besides = f", and of {code(found.untrained)}, which no optimizer trains" if found.untrained else ""
        lost = f"the weights of {code(found.models)}, which are cleared before a step uses them{besides}"
        return f"computes gradients of {lost}"
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
    plan = finding.plan
    assert isinstance(plan, Plan)
    found = plan.found
    if found.kept:
        edit.argument(found.backward, "inputs", f"[{', '.join(f'*{each}.parameters()' for each in found.kept)}]")
    for site in found.cuts:
        edit.insert_after(site, ".detach()")
