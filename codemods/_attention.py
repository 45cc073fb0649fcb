"""Whether a step trains a transformer: the codemods that change the recipe speak of these alone."""

from __future__ import annotations

from collections.abc import Sequence

from turbofix.findings import Evidence, Site
from turbofix.training.model import Called, Model, Step, TrainingProgram

from ._precision import PRODUCTS, models_of

_LAYERS = ("torch.nn.MultiheadAttention", "torch.nn.Transformer")
_LIBRARIES = ("transformers.",)
_READY_MADE = ("timm.", "torchvision.models.")
"""Libraries whose networks with products over all positions are vision transformers, where they do not convolve."""

_FUNCTIONS = frozenset(
    ("torch.nn.functional.scaled_dot_product_attention", "torch.nn.functional.multi_head_attention_forward")
)
_SOFTMAXES = frozenset(("torch.nn.functional.softmax", "torch.softmax", "Tensor.softmax", "torch.nn.Softmax"))
_NORMS = frozenset(("torch.nn.LayerNorm", "torch.nn.RMSNorm"))
_OF_IMAGES = frozenset(("torch.nn.GroupNorm", "torch.nn.BatchNorm2d", "torch.nn.functional.group_norm"))
"""Norms of convolutional networks: with none of a transformer's beside them, an attention is one of their layers."""


def attention_of(program: TrainingProgram, model: Model, calls: Sequence[Called]) -> Evidence | None:
    """What shows that a model which a framework trains is a transformer; ``calls`` are those of its steps."""
    return _by_layers(model) or _by_calls(program, calls)


def _by_layers(model: Model) -> Evidence | None:
    """A layer of a transformer; an attention beside a convolutional network's norms is one of the network's layers."""
    stacks = _LIBRARIES if _OF_IMAGES & model.layers and not _NORMS & model.layers else (*_LAYERS, *_LIBRARIES)
    found = next((layer for layer in sorted(model.layers) if layer.startswith(stacks)), None)
    if found is None and not any(each.whole and not each.unknown for each in model.convolutions):
        ready = (each.layer for each in model.products.layers if each.by_position)
        found = next((each for each in ready if each.startswith(_READY_MADE)), None)
    return Evidence(f"`{model.name or 'the model'}` is made with {found}", model.site) if found is not None else None


def goes_on_from(program: TrainingProgram, models: Sequence[Model]) -> str | None:
    """Why a recipe stays as it is where pretrained weights are trained on, and no training of its own goes on."""
    own = any(each.state_loads for each in program.optimizers)
    if any((each.pretrained and not own) or is_pretrained(each) for each in models):
        return "it goes on from pretrained weights, which rarely need it: the recipe is yours to change"
    return None


def is_pretrained(model: Model) -> bool:
    """Whether a part of a model is a library's, with its weights."""
    return any(layer.endswith(".from_pretrained") for layer in model.layers)


def attention_in(program: TrainingProgram, step: Step, trained: Site | None) -> Evidence | None:
    """What shows that a step trains a transformer: its layers, or softmax between products beside layer norms.

    ``trained`` is the model whose parameters the optimizer has: a frozen transformer below it does not count. What the
    step computes speaks for it where it calls no other model.
    """
    models = models_of(program, step)
    if len(models) != 1 and trained is None:
        return None
    for model in models if trained is None else [each for each in models if each.site == trained]:
        if (found := _by_layers(model)) is not None:
            return found
    if len(models) != 1 or trained not in (None, models[0].site):
        return None
    return _by_calls(program, step.calls)


def _by_calls(program: TrainingProgram, calls: Sequence[Called]) -> Evidence | None:
    """An attention among what a model calls: torch's own, one written out, or softmax between products and layer norms.

    One that is written out and may be called as torch's own counts as that: else ``sdpa`` would make a transformer of
    what was none.
    """
    called = {call.qualname: call.site for call in calls}
    if _OF_IMAGES & called.keys() and not _NORMS & called.keys():
        return None
    written = {each.softmax for each in program.attentions if each.why_not is None}
    for call in calls:
        if call.qualname in _FUNCTIONS:
            return Evidence(f"the model calls {call.qualname}", call.site)
        if call.site in written:
            return Evidence("the model has an attention of its own", call.site)
    softmax = next((called[name] for name in sorted(_SOFTMAXES & called.keys())), None)
    if softmax is None or not PRODUCTS & called.keys() or not _NORMS & called.keys():
        return None
    return Evidence("the model has an attention of its own", softmax)
