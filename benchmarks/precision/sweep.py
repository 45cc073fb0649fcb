"""Every file of the corpus through the tool's whole pipeline: what broke, what was found, and what it cost."""

from __future__ import annotations

import itertools
import math
import resource
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.precision import intact
from benchmarks.precision.corpus import Checkout, Program
from benchmarks.precision.pool import TookTooLong, limited
from turbofix import registry
from turbofix.engine import pipeline
from turbofix.engine.reports import Rewriting, Trust
from turbofix.findings import Risk
from turbofix.source.files import Source, SourceError, Workspace, decode
from turbofix.training.model import Target

RISK = Risk.EQUIVALENT


@dataclass(frozen=True)
class Said:
    """A finding as it is told of one entry: fixed, void, likely, riskier or refused."""

    repository: str
    path: str
    line: int
    column: int
    codemod: str
    state: str


@dataclass(frozen=True)
class Swept:
    """What came of one file. All sentences but ``unreadable`` are bugs of the tool."""

    name: str
    lines: int = 0  # of all files that were read for it
    seconds: float = 0.0
    trains: bool = False
    torch: bool = False
    rewritten: int = 0
    said: tuple[Said, ...] = ()
    unreadable: str = ""
    crashes: tuple[str, ...] = ()
    uncompilable: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    memory: int = 0  # KiB at most, of the process that did it


def look(program: Program) -> Swept:
    """Analyse one file, and rewrite nothing."""
    return sweep(program, rewrite=False)


def believe(program: Program) -> Swept:
    """As ``sweep``, with everything believed that findings rest on."""
    return sweep(program, trust=Trust(likely=True))


def sweep(program: Program, *, rewrite: bool = True, trust: Trust = Trust()) -> Swept:  # noqa: B008
    """Analyse one file, apply everything to it, twice, and look at the outcome. ``seconds`` are the analysis's."""
    name = f"{program.repository}/{program.path}"
    checkout = Checkout(program.folder)
    source = checkout.files.source(program.file)
    if isinstance(source, SourceError):
        return Swept(name, unreadable=source.sentence)
    torch = b"torch" in source.data
    codemods = registry.load()
    seconds = 0.0
    pipeline.collect_what_is_left()  # by other files, in this process: no time of this one
    try:
        with limited() as clock:
            report = pipeline.analyze(program.file, checkout, codemods, Target())
            seconds = clock()
        first = Rewriting(program.file, {}, (), report)
        if rewrite and any(each.fixable for each in report.findings):  # else there is nothing that apply would do
            with limited():
                first = pipeline.apply(program.file, checkout, codemods, Target(), RISK, trust=trust, report=report)
        lines = sum(text.count("\n") + 1 for path in checkout.seen if (text := checkout.read(path)) is not None)
        second = first
        if first.texts:  # else the second apply is the first one again
            with limited():
                again_on = checkout.with_texts(first.texts)
                second = pipeline.apply(program.file, again_on, codemods, Target(), RISK, trust=trust)
    except TookTooLong as error:
        return Swept(name, torch=torch, seconds=seconds, crashes=(str(error),))
    if report.error is not None:
        return Swept(name, lines, seconds, torch=torch, unreadable=report.error.replace(str(program.file), name))
    files, lost = changed(program, first, checkout.files)
    problems = [intact.compile_problem(path, old, new) for path, (old, new) in files.items()]
    damages = [sentence for path, (old, new) in files.items() for sentence in intact.damages(path, old, new)]
    if files and (wrong := intact.diff_problem(files)):
        damages.append(wrong)
    return Swept(
        name,
        lines,
        seconds,
        report.trains,
        torch,
        len(files),
        tuple(said(program, first, trust)),
        crashes=tuple(dict.fromkeys(note.partition("\n")[0] for note in (*first.report.notes, *second.report.notes))),
        uncompilable=tuple(problem for problem in problems if problem),
        damaged=(*lost, *damages),
        unstable=tuple(again(program, second)) if second is not first else (),
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def changed(program: Program, rewriting: Rewriting, workspace: Workspace) -> tuple[dict[str, intact.Pair], list[str]]:
    """The bytes of every changed file before and after, and what stopped others."""
    files: dict[str, intact.Pair] = {}
    problems: list[str] = []
    for path, text in rewriting.texts.items():
        name = path.relative_to(program.folder).as_posix()
        source = workspace.source(path)
        data = source.encode(text) if isinstance(source, Source) else source
        if isinstance(data, SourceError) or isinstance(source, SourceError):
            problems.append(f"{name}: {data.sentence if isinstance(data, SourceError) else source}")
            continue
        files[name] = (source.data, data)
        if path.suffix == ".py":
            back = decode(path, data)
            if not isinstance(back, Source) or back.text != text:
                problems.append(f"{name}: its new bytes are not read as the text that they were made from")
    return files, problems


def said(program: Program, rewriting: Rewriting, trust: Trust) -> Iterator[Said]:
    """The findings of one file, with what became of them."""
    void = {(each.codemod, each.message) for each in rewriting.void}
    for each in rewriting.report.findings:
        if not each.fixable:
            state = "refused"
        elif each.risk > RISK:
            state = "riskier"
        elif not trust.likely and not rewriting.report.is_settled(each):
            state = "likely"
        else:
            state = "void" if (each.codemod, each.message) in void else "fixed"
        path = each.site.path.relative_to(program.folder).as_posix()
        yield Said(program.repository, path, each.site.line, each.site.column, each.codemod, state)


def again(program: Program, second: Rewriting) -> Iterator[str]:
    """What a second apply would change."""
    for path in second.texts:
        name = path.relative_to(program.folder).as_posix()
        names = ", ".join(dict.fromkeys(stage.codemod for stage in second.stages))
        places = ", ".join(str(each.site.line) for stage in second.stages for each in stage.findings)
        yield f"{name}: a second apply changes it ({names}, lines {places})"


# --- all files ------------------------------------------------------------------------------------------------------

MUST_BE_EMPTY: tuple[tuple[str, Callable[[Swept], tuple[str, ...]]], ...] = (
    ("crashes", lambda each: each.crashes),
    ("rewritten files that do not compile", lambda each: each.uncompilable),
    ("rewritten files that differ outside of their edits", lambda each: each.damaged),
    ("second applies that change something", lambda each: each.unstable),
)


def problems(result: Swept) -> Iterator[str]:
    """Everything about a file that must not be."""
    for what, ask in MUST_BE_EMPTY:
        for sentence in ask(result):
            yield f"{what}: {result.name}: {sentence}"


def states(results: Iterable[Swept]) -> dict[str, Counter[str]]:
    """How many findings of each codemod came to which end.

    One that several entries reach counts once, refused where one of them refuses.
    """
    worst = ("fixed", "void", "likely", "riskier", "refused")
    merged: dict[tuple[str, str, int, int, str], str] = {}
    for each in (said for result in results for said in result.said):
        key = (each.repository, each.path, each.line, each.column, each.codemod)
        merged[key] = max(merged.get(key, "fixed"), each.state, key=worst.index)
    counts: dict[str, Counter[str]] = {}
    for (*_, codemod), state in merged.items():
        counts.setdefault(codemod, Counter())[state] += 1
    return dict(sorted(counts.items()))


@dataclass(frozen=True)
class Cost:
    """What the analysis of files cost, in seconds of processor time."""

    seconds: float
    lines: int
    median: float
    p90: float
    longest: float
    slope: float | None
    quartiles: tuple[tuple[int, float], ...] = field(default=())  # lines at most, lines in a second


def cost(results: Sequence[Swept], least: int = 20) -> Cost | None:
    """The cost over the files that train; None where there were none.

    ``slope`` is the exponent with which time grows with the lines that were read (1 is linear), fitted over the
    logarithms; ``quartiles`` say the same from the smallest programs to the largest.
    """
    timed = sorted(
        (each for each in results if each.trains and each.lines and each.seconds > 0), key=lambda each: each.lines
    )
    if not timed:
        return None
    seconds = sorted(each.seconds for each in timed)
    slope = None
    if len(timed) >= least:
        logs = [(math.log(each.lines), math.log(each.seconds)) for each in timed]
        slope = statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope
    cuts = [len(timed) * part // 4 for part in range(5)]
    parts = [timed[start:stop] for start, stop in itertools.pairwise(cuts) if stop > start]
    return Cost(
        sum(seconds),
        sum(each.lines for each in timed),
        statistics.median(seconds),
        seconds[min(len(seconds) - 1, math.ceil(len(seconds) * 0.9) - 1)],
        seconds[-1],
        slope,
        tuple((part[-1].lines, sum(e.lines for e in part) / sum(e.seconds for e in part)) for part in parts),
    )


def too_slow(results: Iterable[Swept], limit: float) -> list[Swept]:
    """The files above the limit, slowest first."""
    return sorted((each for each in results if each.seconds > limit), key=lambda each: -each.seconds)
