"""What a run has shown of a script: the JSON of ``profile`` or ``verify``, read back by ``--observed``.

Assumptions that a run has settled are settled, and what each codemod brings by its estimate stands in place of what it
brought others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from turbofix.config import ConfigError
from turbofix.findings import Finding, Gain, Worth
from turbofix.records import dataclass

HELD = ("observed", "compared")
REFUTED = "refuted"
# factors from which a change is worth a tenth of a step, and from which it can be seen at all
MUCH, SEEN = 1.1, 1.03


@dataclass(frozen=True)
class Observed:
    """What was seen of one ``script`` (absolute): assumptions by name, with what was seen, and gains by codemod.

    ``needless`` are codemods for several cards where one is enough.
    """

    script: Path
    held: Mapping[str, str] = field(default_factory=dict)
    refuted: frozenset[str] = frozenset()
    gains: Mapping[str, Gain] = field(default_factory=dict)
    needless: frozenset[str] = frozenset()

    def speaks_of(self, path: Path) -> bool:
        """Whether the run was one of this script."""
        return path == self.script


def read(path: Path) -> Observed:
    """The observation in a file.

    Raises:
        ConfigError: it is no JSON of ``profile`` or ``verify``.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return _observed(document, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wanted = "turbofix profile SCRIPT --output-format json --output-file F -- ARGS"
        raise ConfigError(f"{path} is no observation: `{wanted}` writes one") from error


def _observed(document: Mapping[str, Any], path: Path) -> Observed:
    """As the document says it; names are relative to the current folder, or else to the document's."""
    here = Path(os.path.abspath(document["script"]))
    script = here if here.exists() else Path(os.path.abspath(path.parent / document["script"]))
    settled = [*document.get("settled", ()), *(one for each in document.get("codemods", ()) for one in each["assumes"])]
    refuted = frozenset(each["name"] for each in settled if each["settled"] == REFUTED)
    held = {each["name"]: each["figure"] for each in settled if each["settled"] in HELD}
    return Observed(
        script,
        {name: figure for name, figure in held.items() if name not in refuted},
        refuted,
        dict(_gains([*document.get("advice", ()), *document.get("codemods", ())])),
        frozenset(each["codemod"] for each in document.get("advice", ()) if each.get("enough")),
    )


def _gains(told: list[Mapping[str, Any]]) -> Iterator[tuple[str, Gain]]:
    for each in told:
        estimate = each.get("estimate") or {}
        speedup = estimate.get("speedup")
        if speedup:
            if not 0 < speedup["low"] <= speedup["high"]:
                raise ValueError("no range of factors")
            source = f"estimated on {estimate['gpu']}, from the operations of this training's own step"
            yield each["codemod"], Gain(float(speedup["low"]), float(speedup["high"]), source, estimated=True)


def estimated(finding: Finding, seen: Observed) -> Finding:
    """A finding with what it brings here, in place of what it brought others; as it is where nothing was estimated."""
    if finding.codemod in seen.needless:
        return replace(finding, gain=seen.gains.get(finding.codemod), worth=Worth.SMALL)
    gain = seen.gains.get(finding.codemod)
    if gain is None:
        return replace(finding, gain=None) if seen.gains else finding
    return replace(finding, gain=gain, worth=worth_of(gain))


def worth_of(gain: Gain) -> Worth:
    """How much an estimated gain is worth, by the middle of its range."""
    middle = (gain.low * gain.high) ** 0.5
    return Worth.HIGH if middle >= MUCH else Worth.SOME if middle >= SEEN else Worth.SMALL
