"""A verification or a profile as one page of HTML that needs no network: ``--report``.

The page is ``page.html``, the pictures are those of ``charts``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix import __version__
from turbofix.engine.project import shown
from turbofix.records import dataclass
from turbofix.report import charts, diff
from turbofix.report.charts import Chart
from turbofix.report.profile import BOUNDS, cards_in_words, kernels_in_words
from turbofix.report.profile import facts as known
from turbofix.report.verification import headline, isolation_in_words, speed_in_words

if TYPE_CHECKING:
    from turbofix.estimate.step import Estimate
    from turbofix.verify import Request, Verification
    from turbofix.verify.profile import Advice, Profile
    from turbofix.verify.result import Judgement, Measured


@dataclass(frozen=True)
class Change:
    """A codemod on the page: what became of it, why, what it rests on, and its diff."""

    name: str
    verdict: str
    reason: str
    gain: str = ""
    assumes: tuple[tuple[str, str, str], ...] = ()  # how it was settled, what is assumed, what was seen
    diff: tuple[tuple[str, str], ...] = ()  # the kind of each line, and the line


@dataclass(frozen=True)
class Page:
    """What the page shows, from top to bottom. ``badge`` is the verdict, ``mood`` good, bad or open."""

    title: str
    badge: str
    mood: str
    headline: str
    facts: tuple[tuple[str, str], ...]
    charts: tuple[Chart, ...] = ()
    causes: tuple[tuple[str, str, str], ...] = ()  # milliseconds, sentence, codemods
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = field(default=__version__)


_MOODS = {"pass": "good", "fail": "bad"}


def of_verification(found: Verification, request: Request) -> str:
    """The page of a verification: the verdict first, then the step, the learning, the changes and what they rest on."""
    diffs = dict(_diffs(request))
    facts = [("script", " ".join([shown(request.script), *request.args]))]
    if found.steps:
        facts.append(("compared", f"{found.steps} optimizer steps on {found.device}"))
    facts.append(("speed", speed_in_words(found)))
    if found.estimate is not None and found.estimate.speedup is not None:
        brings = found.estimate.speedup.as_factor
        facts.append((f"estimated on {found.estimate.gpu}", f"{brings} · {found.estimate.step_ms_in_words}"))
    before, after = found.baseline.peak_memory_bytes, found.candidate.peak_memory_bytes
    memory = f"{before / 2**20:,.0f} MiB before, {after / 2**20:,.0f} MiB after" if before and after else "not measured"
    facts.append(("peak memory", memory))
    drawn = [_steps_of(found), _gains_of((each.codemod, each.estimate) for each in found.codemods)]
    if found.agreement:
        drawn += [charts.losses(found.agreement), charts.gradients(found.agreement)]
    page = Page(
        title=f"{request.script.name}, verified",
        badge=found.verdict,
        mood=_MOODS.get(found.verdict, "open"),
        headline=headline(found),
        facts=tuple(facts),
        charts=tuple(each for each in drawn if each is not None),
        changes=tuple(_change(each, diffs.get(each.codemod, b"")) for each in found.codemods),
        notes=(*found.notes, *([f"isolation: {isolation_in_words(found.isolation)}"] if found.isolation else [])),
    )
    return _rendered(page)


def of_profile(found: Profile, request: Request) -> str:
    """The page of a profile: what bounds the step, its parts, what causes them, and what each change would bring."""
    estimate, parts = found.estimate, found.step_ms
    total = parts.pop("total")
    how = (
        f"measured on {found.device}" if found.measured else f"estimated on {estimate.gpu}; the time for data measured"
    )
    facts = [("script", " ".join([shown(request.script), *request.args])), ("figures", how)]
    if estimate.step_ms is not None:
        facts.append(("a step takes", f"{estimate.step_ms.in_words} ms"))
    facts += known(found)
    if found.whole is not None and found.whole.speedup is not None:
        facts.append(
            ("with all changes", f"{found.whole.speedup.as_factor} · {found.whole.step_ms_in_words} (estimated)")
        )
    caption = f"Where a step's {total:.3g} ms go ({how})."
    bars = {"now": parts}
    if found.cards is not None:
        facts.append((f"on {found.cards.gpus} cards", f"{cards_in_words(found.cards)} (estimated)"))
    if found.whole is not None and found.whole.step_ms is not None and estimate.step_ms is not None:
        bars["with all changes"] = dict(found.whole.parts)
    diffs = dict(_diffs(request))
    reads = Counter((each.path, each.line) for each in found.recording.reads)
    words = [f"{path}:{line} ({count})" if path else f"in a library ({count})" for (path, line), count in reads.items()]
    notes = [f"{estimate.refused}: take the parts as a picture, not as figures"] if estimate.refused else []
    notes += [f"reads of the GPU in a step: {', '.join(words)}"] if words else []
    drawn = [
        charts.steps("A step", bars, caption),
        _gains_of((each.codemod, each.estimate) for each in found.advice),
    ]
    page = Page(
        title=f"{request.script.name}, profiled",
        badge=f"{estimate.bound}-bound",
        mood="open",
        headline=BOUNDS[estimate.bound],
        facts=tuple(facts),
        charts=tuple(each for each in drawn if each is not None),
        causes=tuple((f"{each.ms:.3g}", each.sentence, ", ".join(each.codemods)) for each in found.causes),
        changes=tuple(
            Change(each.codemod, "offered", _without_figure(each, estimate), _gain(each.estimate), diff=_lines(made))
            for each, made in ((each, diffs.get(each.codemod)) for each in found.advice)
        ),
        notes=tuple(notes),
    )
    return _rendered(page)


def _rendered(page: Page) -> str:
    from jinja2 import Environment
    from markupsafe import Markup, escape

    def marked(words: str) -> Markup:
        """Words with what stands between backticks as code."""
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words))))

    template = (files("turbofix.report") / "page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["marked"] = marked
    return environment.from_string(template).render(page=page) + "\n"


def _steps_of(found: Verification) -> Chart | None:
    """The step before and after: measured where it was, else estimated."""
    measured = {"before": _parts(found.baseline), "after": _parts(found.candidate)}
    if all(measured.values()):
        return charts.steps("A step, before and after", measured, f"Measured on {found.device}.")
    before, after = found.estimate_before, found.estimate
    if before is None or after is None or before.step_ms is None or after.step_ms is None:
        return None
    caption = f"Estimated on {after.gpu}, where nothing was measured; the time for data was measured here."
    return charts.steps("A step, before and after", {"before": before.parts, "after": after.parts}, caption)


def _parts(measured: Measured) -> dict[str, float]:
    return {name: ms for name, ms in measured.step_ms.items() if ms is not None}


def _gains_of(estimates: Iterable[tuple[str, Estimate | None]]) -> Chart | None:
    told = [(name, each.speedup, each.gpu) for name, each in estimates if each is not None and each.speedup is not None]
    if not told:
        return None
    rows = [(name, gain.low, gain.median, gain.high) for name, gain, _ in told]
    caption = (
        f"Estimated on {told[0][2]}, each on top of those made before it; the line is the range of four cases of five."
    )
    return charts.gains(sorted(rows, key=lambda row: -row[2]), caption)


def _gain(estimate: Estimate | None) -> str:
    return f"estimated {estimate.speedup.as_factor}" if estimate is not None and estimate.speedup is not None else ""


def _without_figure(advice: Advice, now: Estimate) -> str:
    """What is said of a change in place of a figure; what a note says of the step as it is, is said there."""
    if advice.estimate is not None and advice.estimate.speedup is not None:
        return ""
    return kernels_in_words(advice) or (advice.why_not if advice.why_not != now.refused else None) or ""


def _change(judged: Judgement, made: bytes) -> Change:
    gain = f"{judged.speedup:.3g}×" if judged.speedup is not None else _gain(judged.estimate)
    # what was seen is said once
    assumes = tuple(
        (each.how, each.assumption.sentence, "" if each.figure in judged.reason else each.figure)
        for each in judged.assumes
    )
    return Change(judged.codemod, judged.verdict, judged.reason, gain, assumes, _lines(made))


def _diffs(request: Request) -> Iterator[tuple[str, bytes]]:
    """What each codemod changes in the program as those before it have left it."""
    now: dict[Path, bytes] = {}
    for stage in request.stages:
        parts = [_diff(request, now, path, content) for path, content in stage.files.items()]
        now.update(stage.files)
        if stage.codemod:
            yield stage.codemod, b"".join(parts)


def _diff(request: Request, now: Mapping[Path, bytes], path: Path, content: bytes) -> bytes:
    return diff.unified(now.get(path, request.content(path)), content, shown(path))


_KINDS = {"+": "added", "-": "removed", "@": "place"}


def _lines(made: bytes | None) -> tuple[tuple[str, str], ...]:
    """The lines of a diff behind its names, and what each is."""
    lines = (made or b"").decode(errors="replace").splitlines()
    names = ("--- ", "+++ ")
    return tuple(("name" if line.startswith(names) else _KINDS.get(line[:1], ""), line) for line in lines)
