"""The lines that our sentences name, told another way: in the cells of a notebook, in the text before an edit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from turbofix.findings import Evidence, Examined, InPlace
from turbofix.regex import regex
from turbofix.source.site import Site

Retell: TypeAlias = Callable[[str, Site], str]
"""A sentence that is said at a place -> the sentence with other lines."""

_QUOTED = regex(r"(`[^`]*`)")
_LINES = regex(r"(\bon )?\b(lines? (\d+)(?: and (\d+))?)\b(?: of ([^ ]+\.py)\b)?")


def with_lines(sentence: str, name: Callable[[Sequence[int], str | None], str | None]) -> str:
    """A sentence of ours (never the code that it quotes) with other names for the lines that it speaks of.

    ``name`` gets the lines, and the file's name where the sentence says it; None leaves them as they are.
    """

    def named(match: re.Match[str]) -> str:
        file = match[5]
        new = name([int(line) for line in match.group(3, 4) if line], file)
        if new is None:
            return match[0]
        on = "in " if match[1] and new.startswith("cell") else match[1] or ""
        return f"{on}{new}{f' of {file}' if file else ''}"

    parts = _QUOTED.split(sentence)
    return "".join(part if at % 2 else _LINES.sub(named, part) for at, part in enumerate(parts))


def examined_retold(each: Examined, told: Retell) -> Examined:
    """A finding whose sentences are told another way."""
    return replace(
        each,
        message=told(each.message, each.site),
        why_not=each.why_not and told(each.why_not, each.site),
        evidence=tuple(_seen(seen, told) for seen in each.evidence),
    )


def in_place_retold(each: InPlace, told: Retell) -> InPlace:
    """What is right already, told another way."""
    return replace(each, message=told(each.message, each.site))


def _seen(evidence: Evidence, told: Retell) -> Evidence:
    text = told(evidence.text, evidence.site) if evidence.site is not None else evidence.text
    return replace(evidence, text=text, steps=tuple(_seen(step, told) for step in evidence.steps))
