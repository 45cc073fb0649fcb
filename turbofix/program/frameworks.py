"""Which framework owns the training: what is imported and called, not what is merely imported."""

from __future__ import annotations

from turbofix.program.analysis import Analysis
from turbofix.program.model import Framework
from turbofix.program.values import Instance, Made, members

_CALLS = (
    ("deepspeed.initialize", Framework.DEEPSPEED),
    ("deepspeed.DeepSpeedEngine", Framework.DEEPSPEED),
    ("accelerate.Accelerator", Framework.ACCELERATE),
    ("lightning.fabric.Fabric", Framework.FABRIC),
    ("lightning.Fabric", Framework.FABRIC),
    ("lightning_fabric.Fabric", Framework.FABRIC),
    ("pytorch_lightning.Trainer", Framework.LIGHTNING),
    ("lightning.pytorch.Trainer", Framework.LIGHTNING),
    ("lightning.Trainer", Framework.LIGHTNING),
    ("ignite.engine.", Framework.IGNITE),
    ("transformers.Trainer", Framework.TRANSFORMERS),
    ("transformers.Seq2SeqTrainer", Framework.TRANSFORMERS),
    ("trl.", Framework.TRANSFORMERS),
)
_BASES = (
    ("pytorch_lightning.LightningModule", Framework.LIGHTNING),
    ("lightning.pytorch.LightningModule", Framework.LIGHTNING),
    ("lightning.LightningModule", Framework.LIGHTNING),
    ("transformers.Trainer", Framework.TRANSFORMERS),
    ("transformers.Seq2SeqTrainer", Framework.TRANSFORMERS),
)
_ORDER = (
    Framework.DEEPSPEED,
    Framework.ACCELERATE,
    Framework.FABRIC,
    Framework.LIGHTNING,
    Framework.IGNITE,
    Framework.TRANSFORMERS,
)


def framework_of(analysis: Analysis, trains: bool) -> Framework:
    """The framework in charge; plain torch where the program has its own steps, none where nothing trains."""
    found: set[Framework] = set()
    torch = trains
    for event in analysis.facts.events:
        if event.kind in ("make", "call"):
            names = {event.name}
            names |= {member.qualname for member in members(event.result) if isinstance(member, Made)}
            for name in names:
                torch = torch or name.startswith("torch.")
                for prefix, framework in _CALLS:
                    if name == prefix or (prefix.endswith(".") and name.startswith(prefix)):
                        found.add(framework)
        elif event.kind == "construct":
            for member in members(event.result):
                if isinstance(member, Instance):
                    for base in member.cls.externals():
                        torch = torch or base.startswith("torch.")
                        found |= {framework for name, framework in _BASES if base == name}
    for framework in _ORDER:
        if framework in found:
            return framework
    return Framework.PYTORCH if torch else Framework.NONE
