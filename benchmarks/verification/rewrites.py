"""What a rewrite is here: edits of a script's text, known to the benchmark alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbofix.findings import Risk

SCRIPTS = Path(__file__).parent / "scripts"

Edit = tuple[str, str]


@dataclass(frozen=True)
class Subject:
    """A training to rewrite: a script, or a variant of it made by ``edits``."""

    name: str
    script: str
    edits: tuple[Edit, ...] = ()

    @property
    def text(self) -> str:
        return edited((SCRIPTS / self.script).read_text(encoding="utf-8"), self.edits, self.name)


@dataclass(frozen=True)
class Rewrite:
    """One rewrite of one subject, and the promise (``risk``) that a good one of its kind makes."""

    kind: str
    subject: Subject
    edits: tuple[Edit, ...] = field(repr=False)
    risk: Risk = Risk.EQUIVALENT

    @property
    def text(self) -> str:
        return edited(self.subject.text, self.edits, f"{self.kind} of {self.subject.name}")


def edited(text: str, edits: tuple[Edit, ...], what: str) -> str:
    """The text with each edit's first half, which stands there exactly once, replaced by its second.

    Raises:
        ValueError: an edit does not fit the text, or changes nothing.
    """
    for old, new in edits:
        if text.count(old) != 1 or old == new:
            raise ValueError(f"{what}: {text.count(old)} places for {old!r}")
        text = text.replace(old, new)
    return text


def table(
    kinds: Mapping[str, Mapping[Subject, tuple[Edit, ...]]], risks: Mapping[str, Risk] | None = None
) -> tuple[Rewrite, ...]:
    """The rewrites of a table by kind and subject."""
    risks = risks or {}
    return tuple(
        Rewrite(kind, subject, edits, risks.get(kind, Risk.EQUIVALENT))
        for kind, by_subject in kinds.items()
        for subject, edits in by_subject.items()
    )


CNN = Subject("cnn", "cnn.py")
TRANSFORMER = Subject("transformer", "transformer.py")
LSTM = Subject("lstm", "lstm.py")
GAN = Subject("gan", "gan.py")
ACCUMULATION = Subject("accumulation", "accumulation.py")
UNET = Subject("unet", "unet.py")
VIT = Subject("vit", "vit.py")
TABULAR = Subject("tabular", "tabular.py")

LSTM_32 = Subject("lstm in float32", "lstm.py", (("AMP = True", "AMP = False"),))
ACCUMULATION_32 = Subject("accumulation in float32", "accumulation.py", (("use_amp=True", "use_amp=False"),))
UNET_32 = Subject("unet in float32", "unet.py", (("amp: bool = True", "amp: bool = False"),))
VIT_32 = Subject("vit in float32", "vit.py", (("AMP = True", "AMP = False"),))
TABULAR_32 = Subject("tabular in float32", "tabular.py", (('"amp": True', '"amp": False'),))
# whole groups of batches: only then is a larger batch the mean over the same samples
TRANSFORMER_EVEN = Subject(
    "transformer, even", "transformer.py", (("(330, 10)", "(350, 10)"), ("[300, 30]", "[320, 30]"))
)
VIT_EVEN = Subject("vit, even", "vit.py", (("(0, 5, (100,))", "(0, 5, (90,))"), ("randn(100, 1", "randn(90, 1")))
