"""Pictures for a page: SVG that takes its colors from the page, so that it is right in light, dark and on paper.

Matplotlib draws with stand-in colors, each of which becomes a variable of the page's style sheet.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.verify.agreement import Agreed

WIDTH = 5.4  # inches at 72 points: about as wide as a phone, so that words keep their size there
INK, FAINT, BEFORE, AFTER, BAND = "#010101", "#020202", "#030303", "#040404", "#050505"
PARTS = {
    "data": "#101010",
    "transfer": "#111111",
    "forward": "#121212",
    "backward": "#131313",
    "optimizer": "#141414",
    "syncs": "#151515",
    "other": "#161616",
}
_VARIABLES = {
    INK: "ink",
    FAINT: "faint",
    BEFORE: "before",
    AFTER: "after",
    BAND: "band",
    **{color: f"part-{name}" for name, color in PARTS.items()},
}
LEAST = 0.002  # a part of the longest step below which nobody sees it
FEWEST_MARKED = 60  # with more steps than these a line has no dots


@dataclass(frozen=True)
class Chart:
    """A picture, how it is to be read, and what it shows in a few words for who cannot see it."""

    title: str
    svg: str
    caption: str
    described: str
    key: tuple[str, ...] = ()  # the parts of a step that it shows


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=10, color=FAINT)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any, name: str) -> str:
    """The figure as an element of a page; ``name`` keeps its marks apart from those of other pictures."""
    import matplotlib

    out = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": ["sans-serif"]}
    with matplotlib.rc_context(settings):
        figure.savefig(out, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.05)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    # the page has one font, and ids of its own for every picture
    text = re.sub(r"font: (\S+) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    return text


def steps(title: str, bars: Mapping[str, Mapping[str, float]], caption: str) -> Chart:
    """Milliseconds of a step by part, a bar for each program."""
    figure, axes = _figure(0.75 + 0.42 * len(bars))
    longest = max(sum(parts.values()) for parts in bars.values()) or 1.0
    for place, parts in enumerate(bars.values()):
        left = 0.0
        for name, color in PARTS.items():
            took = parts.get(name, 0.0)
            axes.barh(place, took, left=left, color=color, height=0.62)
            left += took
        axes.text(left + longest * 0.015, place, f"{_figures(left)} ms", va="center", color=INK, fontsize=10)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.16)
    axes.set_xlabel("milliseconds a step", color=INK, fontsize=10)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    words = "; ".join(f"{label}: {_figures(sum(parts.values()))} ms" for label, parts in bars.items())
    key = tuple(name for name in PARTS if any(parts.get(name, 0.0) >= longest * LEAST for parts in bars.values()))
    return Chart(title, _svg(figure, "steps"), caption, words, key)


def gains(intervals: Sequence[tuple[str, float, float, float]], caption: str) -> Chart:
    """How many times as fast each change makes the step: name, low, median, high."""
    figure, axes = _figure(0.75 + 0.3 * len(intervals))
    for place, (_, low, median, high) in enumerate(intervals):
        axes.plot([low, high], [place, place], color=AFTER, linewidth=3, solid_capstyle="round", alpha=0.45)
        axes.plot([median], [place], "o", color=AFTER, markersize=6)
    axes.axvline(1.0, color=FAINT, linewidth=1)
    axes.set_yticks(range(len(intervals)), [each[0] for each in intervals])
    axes.set_ylim(len(intervals) - 0.5, -0.5)
    lows, highs = [each[1] for each in intervals], [each[3] for each in intervals]
    _ratios(axes, min([0.9, *lows]), max([1.5, *highs]))
    axes.set_xlabel("times as fast", color=INK, fontsize=10)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    words = ", ".join(f"{name} {median:.2g} ({low:.2g} to {high:.2g})" for name, low, median, high in intervals)
    return Chart("What each change brings", _svg(figure, "gains"), caption, words)


def _ratios(axes: Any, low: float, high: float) -> None:
    """A logarithmic axis of ratios, with few ticks that people read."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(low * 0.95, high * 1.05)
    ticks = [tick for tick in (0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 50, 100) if low * 0.95 <= tick <= high * 1.05]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}×"))


def losses(agreed: Sequence[Agreed]) -> Chart:
    """The losses of both programs, and around the first what rounding may do to it."""
    figure, axes = _figure(2.5)
    numbers = [each.step for each in agreed]
    before, after = [each.before for each in agreed], [each.after for each in agreed]
    low = [each.before - each.loss_bound * abs(each.before) for each in agreed]
    high = [each.before + each.loss_bound * abs(each.before) for each in agreed]
    axes.fill_between(numbers, low, high, color=BAND, linewidth=0, label="rounding")
    axes.plot(numbers, before, color=BEFORE, linewidth=4, alpha=0.45, solid_capstyle="round", label="before")
    axes.plot(numbers, after, color=AFTER, linewidth=1.5, label="after", **_dots(numbers))
    _whole_steps(axes, numbers)
    axes.set_ylabel("loss", color=INK, fontsize=10)
    _legend(axes)
    caption = "The two lie on each other where the rewrite learns the same. The band is what rounding may do to a loss."
    words = f"from {before[0]:.4g} to {before[-1]:.4g} before, from {after[0]:.4g} to {after[-1]:.4g} after"
    return Chart("Loss, step by step", _svg(figure, "losses"), caption, words)


def gradients(agreed: Sequence[Agreed]) -> Chart | None:
    """How far the gradients of both programs point apart, below what rounding may do; None where none was compared."""
    compared = [(each.step, each.angle, each.angle_bound) for each in agreed if each.angle is not None]
    if not compared:
        return None
    figure, axes = _figure(2.5)
    numbers = [step for step, _, _ in compared]
    least = min([bound for _, _, bound in compared]) * 1e-6
    found = [angle if math.isfinite(angle) else 2.0 for _, angle, _ in compared]
    angles = [max(angle, least) for angle in found]  # 0 has no place on this scale
    bounds = [bound for _, _, bound in compared]
    bottom = min([*angles, *bounds]) / 3
    axes.fill_between(numbers, [bottom] * len(numbers), bounds, color=BAND, linewidth=0, label="rounding")
    axes.plot(numbers, angles, color=AFTER, linewidth=1.5, label="apart", **_dots(numbers))
    axes.set_yscale("log")
    axes.set_ylim(bottom, max([*angles, *bounds]) * 3)
    _whole_steps(axes, numbers)
    axes.set_ylabel("1 − cosine", color=INK, fontsize=10)
    _legend(axes)
    caption = (
        "1 − the cosine between the gradients of all parameters, before and after: 0 where they are the same. "
        "What stays in the band is rounding."
    )
    words = f"at most {max(found):.2g}, where rounding may do {min(bounds):.2g}"
    return Chart("Gradients, step by step", _svg(figure, "gradients"), caption, words)


def _dots(numbers: Sequence[int]) -> dict[str, Any]:
    return {"marker": "o", "markersize": 3.5} if len(numbers) <= FEWEST_MARKED else {}


def _whole_steps(axes: Any, numbers: Sequence[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)
    axes.set_xlabel("optimizer step", color=INK, fontsize=10)


def _legend(axes: Any) -> None:
    above = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "ncols": 3}
    found = axes.legend(frameon=False, fontsize=10, handlelength=1.4, columnspacing=1.2, borderpad=0.1, **above)
    for text in found.get_texts():
        text.set_color(INK)


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
