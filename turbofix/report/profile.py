"""Where a step's time goes: for people in ten seconds, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from turbofix.report.text import Style

if TYPE_CHECKING:
    from turbofix.estimate.several import Several
    from turbofix.verify.profile import Advice, Profile

BOUNDS = {
    "data": "the GPU waits for data",
    "host": "the GPU waits for the host, which starts its operations too slowly",
    "compute": "the GPU's arithmetic is what takes the time",
    "memory": "the GPU's memory is what takes the time",
    "unknown": "what takes the time is not known",
}
_BAR = 30  # characters


def render_json(profile: Profile) -> str:
    """The JSON document of the contract."""
    return json.dumps(profile.to_json(), indent=2, ensure_ascii=False) + "\n"


def kernels_in_words(advice: Advice) -> str:
    """How many kernels a change leaves, where that is all that is known of it."""
    if advice.estimate is None or advice.estimate.kernels == advice.kernels:
        return ""
    return f"{advice.estimate.kernels:,} kernels are started, not {advice.kernels:,}; no figure"


def facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """What else is known of a step: a name and a figure with its unit."""
    yield "GPU busy", f"{profile.busy:.0%} of the time"
    if profile.throughput is not None:
        yield (
            "samples",
            f"{profile.throughput:,.3g} a second"
            if profile.throughput < 1000
            else f"{profile.throughput:,.0f} a second",
        )
    if profile.estimate.utilisation is not None:
        yield "MFU", f"{profile.estimate.utilisation:.0%} of the card's peak in products, convolutions and attention"
    if profile.memory:
        yield "memory", memory_in_words(profile)


def memory_in_words(profile: Profile) -> str:
    """What the step's tensors take at most, and whether that fits."""
    from turbofix.estimate.cards import cards

    card = cards().get(profile.estimate.gpu)
    taken = (profile.memory or 0) / 1e9
    words = f"{f'{taken:.3g} GB' if taken >= 1 else f'{taken * 1e3:.3g} MB'} of tensors at the most"
    if profile.peak_memory is not None:
        return f"{words} (measured)"
    if card is None:
        return f"{words} (counted)"
    return f"{words} (counted), of the {card.memory:.0f} GB of the card{': it does not fit' * (taken > card.memory)}"


def render(profile: Profile, style: Style = Style()) -> str:  # noqa: B008  (frozen)
    """What bounds the step first, then its parts, what causes them, and what each change would bring."""
    estimate, parts = profile.estimate, profile.step_ms
    total = parts.pop("total")
    lines = [style.wrap(_headline(profile), 0, f"{estimate.bound.upper()}-BOUND", "bold", "yellow"), ""]
    for name, ms in sorted(parts.items(), key=lambda part: -part[1]):
        if ms < 0.0005 * total:
            continue
        bar = style.paint("█" * max(1, round(_BAR * ms / total)), "cyan")
        how = "measured" if profile.measured or name == "data" else f"estimated, {estimate.gpu}"
        lines.append(f"  {name:<10}{ms:9.3f} ms {ms / total:4.0%}  {bar} {style.paint(how, 'dim')}")
    lines.append(f"  {'a step':<10}{total:9.3f} ms")
    lines.append("")
    lines += [style.wrap(words, 2, f"{name:<9}") for name, words in facts(profile)]
    if estimate.refused:
        lines += ["", style.wrap(f"{estimate.refused}: take the parts as a picture, not as figures", 2, "note ")]
    if profile.causes:
        lines += ["", "  where it goes"]
    for number, cause in enumerate(profile.causes, 1):
        by = f" [{', '.join(cause.codemods)}]" if cause.codemods else ""
        lines.append(style.wrap(f"{cause.ms:.3g} ms: {cause.sentence}{by}", 4, f"{number}.", "bold"))
    if profile.advice:
        lines += ["", f"  what each change would bring on top of those made before it (estimated, {estimate.gpu})"]
    unknown: dict[str, list[str]] = {}  # why there is no estimate, and of which
    for advice in profile.advice:
        speedup = advice.estimate.speedup if advice.estimate else None
        if advice.enough:
            factor = f"{speedup.as_factor}; " if speedup else ""
            lines.append(style.wrap(f"{factor}one card is enough: {advice.enough}", 4, f"{advice.codemod:<18}"))
        elif speedup:
            lines.append(style.wrap(speedup.as_factor, 4, f"{advice.codemod:<18}"))
        elif words := kernels_in_words(advice):
            lines.append(style.wrap(words, 4, f"{advice.codemod:<18}"))
        else:
            unknown.setdefault(advice.why_not or "the step before it has none", []).append(advice.codemod)
    for why, names in unknown.items():
        lines.append(
            style.wrap(f"for {', '.join(names)}: {'see the note' if why == estimate.refused else why}", 4, "none")
        )
    if profile.whole is not None and profile.whole.speedup is not None:
        those = "all, on one card" if profile.cards else "all of them"
        lines.append(style.wrap(profile.whole.speedup.as_factor, 4, f"{those:<18}", "bold"))
    if profile.cards is not None:
        lines += ["", f"  on {profile.cards.gpus} cards, each with its share of the batch (estimated, {estimate.gpu})"]
        lines.append(style.wrap(cards_in_words(profile.cards), 4))
    return "\n".join(lines).rstrip() + "\n"


def cards_in_words(cards: Several) -> str:
    """A step on several cards, and whether one is enough."""
    return f"{cards.in_words}; one card is enough: {cards.enough}" if cards.enough else cards.in_words


def _headline(profile: Profile) -> str:
    estimate = profile.estimate
    words = BOUNDS[estimate.bound]
    if profile.measured:
        return f"{words} (measured on {profile.device})"
    step = f"a step takes {estimate.step_ms.in_words} ms, " if estimate.step_ms else ""
    return f"{step}{words} (estimated on {estimate.gpu}; the time for data is measured here)"
