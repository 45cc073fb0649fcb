"""Evaluate without building graphs.

Why slow
    Outside ``torch.no_grad()`` every operation keeps what the backward pass would need. An evaluation then takes the
    memory of a training step, and time, for gradients that nobody computes. ``model.eval()`` changes dropout and
    BatchNorm only; ``volatile=True`` has done nothing since torch 0.4.

Example
    ::

        def evaluate(model, loader):
            model.eval()
            for images, labels in loader:
                correct += (model(images).argmax(1) == labels).sum().item()

Use instead
    ::

        @torch.no_grad()
        def evaluate(model, loader):

    A function that does nothing else is decorated; otherwise the loop goes under ``with torch.no_grad():``. A function
    that a training calls to look at its models (to draw pictures, to choose an action) is decorated too, if no tensor
    with a graph leaves it; and so is what looks at them when all training is over.

When refused
    Nothing is said of loops that a training step runs (the rollouts of reinforcement learning), and under frameworks
    that own the evaluation (Lightning, the ``Trainer`` of transformers). It is refused

    - where a gradient is asked for (``requires_grad``, ``.grad``, hooks: attacks, saliency, penalties);
    - where results go on to a training step;
    - where a generator hands results on from within the loop: its taker would run under ``no_grad`` too.

Risk
    exact: the training and the evaluation stay as they are. It is equivalent where the model has, or may have, torch's
    own attention or transformer layers, which take a fused path when no graph is built.

Measured
    No figure. Evaluation takes the memory of one layer instead of all of them, and larger batches fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import NO_GRAPH_NEEDED, READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
from turbofix.training.evidence import of_loop
from turbofix.training.model import Evaluation, KeptGraph, Sampling, TrainingProgram

from ._frameworks import LEFT

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EXACT,
    known_as=("torch.no_grad", "inference_mode"),
    assumes=(READ_WHOLE, NO_GRAPH_NEEDED),
)

WHY = {
    "asked": "{line} asks for a gradient, or whether there is one",
    "yielded": "what takes what {line} hands on would run without graphs, too",
    "taken": "{line}, in a training step, takes up what is computed here",
}

FUSED = frozenset(
    (
        *("torch.nn.MultiheadAttention", "torch.nn.Transformer", "torch.nn.TransformerEncoder"),
        "torch.nn.TransformerEncoderLayer",
    )
)
"""Layers that take a path of their own in evaluation, where no graph is built."""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Evaluations that build graphs."""
    if program.framework not in LEFT:
        return
    told = set()
    decorated = {
        graphs.function
        for each in program.evaluations
        if (graphs := each.graphs) is not None and graphs.why is None and graphs.function is not None
    }
    for evaluation in program.evaluations:
        graphs = evaluation.graphs
        if evaluation.no_grad:
            yield codemod.in_place(evaluation.loop.site, "the evaluation builds no graphs")
        if graphs is None or evaluation.no_grad or graphs.loop in told:
            continue
        if graphs.through & decorated:
            continue  # one cause, one finding
        told.add(graphs.loop)
        message = "every forward pass of this evaluation builds a graph that nothing goes through"
        seen = (of_loop(evaluation),)
        assumes = (NO_GRAPH_NEEDED,) if graphs.why is not None else ()
        if graphs.why in WHY and graphs.where is not None:
            reason = WHY[graphs.why].format(line=graphs.where.line_from(graphs.loop.path))
            yield codemod.refuse(graphs.loop, message, reason, evidence=seen)
            continue
        risk = Risk.EQUIVALENT if fuses(evaluation, program) else Risk.EXACT
        # timed steps do not show what an evaluation takes
        yield codemod.finding(
            graphs.loop, message, plan=graphs, risk=risk, evidence=seen, for_speed=False, assumes=assumes
        )
    yield from sampled(program)


def sampled(program: TrainingProgram) -> Iterator[Finding]:
    """Functions that look at the models between the training steps."""
    for each in program.samplings:
        function = each.function if each.function.kind == "FunctionDef" else None
        what = "the forward passes of this function build graphs" if function else "a forward pass builds a graph here"
        seen = (Evidence("the training loop", each.loop),)
        risk = Risk.EQUIVALENT if fuses(each, program) else Risk.EXACT
        plan = KeptGraph(each.function, function)
        text, assumes = f"{what} that nothing goes through", (NO_GRAPH_NEEDED,)
        yield codemod.finding(
            each.function, text, plan=plan, risk=risk, evidence=seen, for_speed=False, assumes=assumes
        )


def fuses(where: Evaluation | Sampling, program: TrainingProgram) -> bool:
    """Whether torch takes another path through the model where no graph is built."""
    models = [program.model(site) for site in where.models]
    return not models or any(each is None or not each.layers_complete or each.layers & FUSED for each in models)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Decorate the function, or put the loop under a ``with``."""
    graphs = finding.plan
    assert isinstance(graphs, KeptGraph)
    spelled = edit.name("torch.no_grad", graphs.function or graphs.loop)
    if graphs.function is not None:
        edit.before(graphs.function, f"@{spelled}()")
    else:
        edit.wrap(graphs.loop, graphs.loop, f"with {spelled}():")
