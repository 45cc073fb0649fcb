"""Leave out the bias of a layer whose result goes to a batch norm.

Why slow
    A batch norm subtracts the mean of each channel, and with it whatever the bias of the layer before it has added. So
    the bias is computed, its gradient is summed up over the whole batch, and the optimizer updates it, for nothing.

Example
    ::

        self.conv = nn.Conv2d(64, 128, 3, padding=1)
        self.norm = nn.BatchNorm2d(128)

Use instead
    ::

        self.conv = nn.Conv2d(64, 128, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(128)

When refused
    It is done for torch's convolutions and linear layers that are made with a bias, whose result goes to a batch or
    instance norm and nowhere else: the next in one ``nn.Sequential(...)`` or in the list that it is made of,
    ``self.norm(self.conv(x))`` in the class that makes both in its ``__init__``, or ``x = self.norm(x)`` as the next
    statement behind ``x = self.conv(x)``. The code must have been seen to be executed.

    It is refused where each start of the training loads a checkpoint, which may have been saved with the bias; where a
    file beside it holds a copy of the class, which would not load what is trained; where it reads the ``bias`` of
    layers without a test (``m.bias.data.zero_()``); where it has hooks; and where it sets batch norms to evaluation
    while it trains, when they subtract another mean.

    Nothing is said where one of the two is there under a condition, is called from elsewhere or twice, where ``bias``
    is given by a variable or in an unpacked mapping, where an ``nn.Sequential`` is indexed or gone through, of other
    norms, and of linear layers that are not as wide as the norm: it may count positions as channels.

Risk
    recipe: the function that the network can learn is the same, but the bias draws no random number any more when the
    network is made, so that the weights behind it start from other values, and checkpoints lose an entry for each
    layer: those saved before do not load without ``strict=False``.

Measured
    Nothing that could be named: it saves one small kernel in the forward and one in the backward pass of each layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import NO_OLD_CHECKPOINT, READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.training.model import TrainingProgram

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.RECIPE,
    known_as=("bias=False", "convolution before BatchNorm"),
    assumes=(READ_WHOLE, NO_OLD_CHECKPOINT),
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Layers with a bias, straight before a batch norm."""
    if not program.trains or not program.biases.layers:
        return
    layers = program.biases.layers
    first, needed = layers[0], program.biases.needed
    more = f" (and those of {len(layers) - 1} other layers)" if len(layers) > 1 else ""
    message = f"the norm behind it takes the bias of this {first.kind} out again{more}"
    seen: tuple[Evidence, ...] = (Evidence("the norm, made", first.norm),)
    if needed is not None:
        reason = f"{needed.why} ({needed.site.line_from(first.layer.path)})"
        yield codemod.refuse(first.layer, message, reason, evidence=seen)
    else:
        loaded = program.biases.loaded
        assumes = (NO_OLD_CHECKPOINT,) if loaded is not None else ()
        seen = (*seen, *(Evidence("keeps a checkpoint", each.site) for each in (loaded,) if each is not None))
        yield codemod.finding(first.layer, message, plan=layers, evidence=seen, assumes=assumes, worth=Worth.SMALL)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Make the layers without a bias."""
    plan = finding.plan
    assert isinstance(plan, tuple)
    for each in plan:
        edit.argument(each.layer, "bias", "False", each.position, spelled_out=True)
