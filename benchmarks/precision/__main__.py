"""The command line: ``python -m benchmarks.precision COMMAND CORPUS``, from a checkout of turbofix."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.precision import analysis, corpus, ledger, pool, score, sweep, tables
from benchmarks.precision.analysis import Found
from benchmarks.precision.corpus import Program
from benchmarks.precision.draw import draw as sample
from benchmarks.precision.ledger import Expectation, Judgement

app = typer.Typer(
    name="python -m benchmarks.precision",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Measure what turbofix says of public training scripts, which lie in CORPUS.",
)

Corpus = Annotated[Path, typer.Argument(metavar="CORPUS", help="The folder with the repositories (see README.md).")]
Jobs = Annotated[int, typer.Option(min=1, metavar="N", help="Worker processes.")]


@app.command("sweep")
def sweep_command(  # noqa: PLR0913
    where: Corpus,
    jobs: Jobs = 2,
    only: Annotated[list[str] | None, typer.Option(metavar="OWNER/NAME", help="Only these repositories.")] = None,
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="What the analysis of a file may take.")] = 2.0,
    analysis_only: Annotated[
        bool, typer.Option("--analysis-only", help="Rewrite nothing: what analysis costs.")
    ] = False,
    likely: Annotated[bool, typer.Option("--likely", help="Apply what rests on assumptions, too.")] = False,
) -> None:
    """Run every file of the corpus through the whole pipeline: crashes, broken files, cost. Exit 1 on any."""
    wanted = corpus.commits(corpus.scripts())
    if only:
        unknown = [name for name in only if name not in wanted]
        if unknown:
            raise typer.BadParameter(f"{', '.join(unknown)}: not in scripts.tsv")
        wanted = {name: wanted[name] for name in only}
    folders = laid_out(where, wanted)
    programs = [
        Program(repository, wanted[repository], folder, path)
        for repository, folder in folders.items()
        for path in corpus.files(folder)
    ]
    random.Random(0).shuffle(programs)  # so that the long ones do not come together
    listed = {(row.repository, row.path) for row in corpus.scripts()}
    programs.sort(key=lambda each: (each.repository, each.path) not in listed)  # what matters most is told first
    task = sweep.look if analysis_only else sweep.believe if likely else sweep.sweep
    results = sorted(pool.run(task, programs, jobs, "sweep", tell_problems), key=lambda each: each.name)
    raise typer.Exit(show_sweep(results, limit))


@app.command("check")
def check_command(where: Corpus, jobs: Jobs = 2) -> None:
    """Precision against the ledger, recall against the readings, and every fixable finding that nobody judged."""
    commits = corpus.commits(corpus.scripts())
    folders = laid_out(where, commits)
    here = {name: commits[name] for name in folders}
    judged, expected = ledger.at_commits(ledger.judgements(), here), ledger.at_commits(ledger.expectations(), here)
    found = findings(folders, jobs, [*judged, *expected])
    verdicts = score.verdicts(judged)
    show_precision("codemod", score.grouped(found, verdicts, lambda each: (each.codemod,)))
    show_precision("style", score.grouped(found, verdicts, lambda each: each.styles))
    show_precision("", {"all": score.precision(found, verdicts)})
    show_recall(score.recall(expected, found))
    listing(
        "judged, and not fixable any more",
        [f"{at(row)}: {row.codemod} was {row.verdict}: {row.reason}" for row in score.gone(found, judged)],
    )
    said = score.by_place(found)
    listing(
        "expected otherwise",
        [
            f"{at(row)}: {row.codemod}: {row.expected} expected ({row.reason}), "
            + answer(said.get(ledger.place(row.key)))
            for row in score.missed(expected, found)
        ],
    )
    listing(
        "fixable and not judged yet",
        [f"{at(each)}: {each.codemod}: {each.message}" for each in score.unjudged(found, verdicts)],
    )


@app.command("draw")
def draw_command(
    where: Corpus,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed draws the same findings.")],
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many findings.")] = 150,
    jobs: Jobs = 2,
) -> None:
    """Draw fixable findings at random, of every style and codemod, as rows for ledger.tsv without a verdict."""
    judged = ledger.judgements()
    known = {row.key for row in judged}
    folders = laid_out(where, corpus.commits(corpus.scripts()))
    drawn = sample(findings(folders, jobs, []), seed, count)
    rows = [Judgement(each.repository, each.commit, each.path, each.codemod, each.line, "", "") for each in drawn]
    new = [row for row in rows if row.key not in known]
    typer.echo(tables.lines(new), nl=False)
    styles = Counter(style for each in drawn for style in each.styles)
    codemods = Counter(each.codemod for each in drawn)
    for counts in (codemods, styles):
        typer.echo(", ".join(f"{name} {number}" for name, number in counts.most_common()), err=True)
    typer.echo(f"{len(rows)} drawn, {len(rows) - len(new)} of them in the ledger already", err=True)
    of_these = score.precision(drawn, score.verdicts(judged))
    typer.echo(f"right {of_these.right}, arguable {of_these.arguable}, wrong {of_these.wrong}", err=True)


# --- analysing ------------------------------------------------------------------------------------------------------


def laid_out(where: Path, wanted: Mapping[str, str]) -> dict[str, Path]:
    """The folders of the repositories; a clear line for each that is missing, and the end where all are."""
    reasons = corpus.missing(where, wanted)
    if len(reasons) == len(wanted):
        typer.echo(f"skipped: the corpus {where} is not laid out; see benchmarks/precision/README.md")
        raise typer.Exit(0)
    for repository, reason in reasons.items():
        typer.echo(f"skipped: {repository} {reason}; see benchmarks/precision/README.md", err=True)
    return {name: corpus.folder_of(where, name) for name in wanted if name not in reasons}


def findings(folders: Mapping[str, Path], jobs: int, rows: Sequence[Judgement | Expectation]) -> list[Found]:
    """What is said of the listed scripts, and of each file with a row in a table that none of them reaches.

    Where ``entries.tsv`` names a further script that runs such a file, what that one says of this file counts, too.
    """
    scripts = corpus.scripts()
    listed = [
        Program(row.repository, row.commit, folders[row.repository], row.path)
        for row in scripts
        if row.repository in folders
    ]
    reached = pool.run(analysis.analyze, listed, jobs, "scripts")
    read = {path for each in reached for path in each.read}
    others = {Program(row.repository, row.commit, folders[row.repository], row.path) for row in rows}
    more = sorted((each for each in others if each.file not in read), key=lambda each: (each.repository, each.path))
    reached += pool.run(analysis.analyze, more, jobs, "other files with rows") if more else []
    with_rows = {(row.repository, row.path) for row in rows}
    through: dict[Program, set[Path]] = {}
    for row in corpus.entries():
        if (row.repository, row.path) in with_rows and row.repository in folders:
            entry = Program(row.repository, row.commit, folders[row.repository], row.entry)
            through.setdefault(entry, set()).add(folders[row.repository] / row.path)
    whole = pool.run(analysis.analyze, list(through), jobs, "entries") if through else []
    reached += [analysis.within(each, frozenset(through[each.program])) for each in whole]
    for each in reached:
        if each.error:
            typer.echo(f"{each.program.repository}/{each.program.path}: {each.error}", err=True)
    return analysis.merge(reached, {(row.repository, row.path): row.style for row in scripts})


# --- showing --------------------------------------------------------------------------------------------------------


def show_sweep(results: Sequence[sweep.Swept], limit: float) -> int:
    """Everything that the sweep tells; 1 where something is there that must not be."""
    files = {
        "files": len(results),
        "that mention torch": sum(each.torch for each in results),
        "that train": sum(each.trains for each in results),
        "that are rewritten": sum(each.rewritten > 0 for each in results),
        "that Python cannot read": sum(bool(each.unreadable) for each in results),
    }
    show_table(["files", ""], [[name, str(number)] for name, number in files.items()])
    counts = sweep.states(results)
    columns = ("fixed", "void", "likely", "riskier", "refused")
    show_table(
        ["findings", *columns],
        [[name, *(str(states[column]) for column in columns)] for name, states in counts.items()]
        + [["all", *(str(sum(states[column] for states in counts.values())) for column in columns)]],
    )
    listing("what Python cannot read", [f"{each.name}: {each.unreadable}" for each in results if each.unreadable])
    show_cost(sweep.cost(results), results)
    slow = sweep.too_slow(results, limit)
    failed = bool(slow)
    listing(f"more than {limit:g} s", [f"{each.name}: {each.seconds:.1f} s, {each.lines} lines" for each in slow])
    for what, ask in sweep.MUST_BE_EMPTY:
        bad = [f"{each.name}: {sentence}" for each in results for sentence in ask(each)]
        failed |= bool(bad)
        listing(what, bad)
    return int(failed)


def tell_problems(result: sweep.Swept) -> None:
    """What is wrong with a file, at once, on standard error."""
    for sentence in sweep.problems(result):
        typer.echo(sentence, err=True)


def show_cost(cost: sweep.Cost | None, results: Sequence[sweep.Swept]) -> None:
    """What the sweep cost, and whether cost grows as the lines do."""
    if cost is None:
        return
    slope = "unknown" if cost.slope is None else f"{cost.slope:.2f} (1 is linear)"
    show_table(
        ["processor time of files that train", ""],
        [
            ["all", f"{cost.seconds:.0f} s, {cost.lines} lines read"],
            ["median", f"{cost.median:.2f} s"],
            ["90 % at most", f"{cost.p90:.2f} s"],
            ["longest", f"{cost.longest:.2f} s"],
            ["exponent of time over lines", slope],
            *([f"lines/s in programs of up to {lines} lines", f"{rate:.0f}"] for lines, rate in cost.quartiles),
            ["all files, whether they train or not", f"{sum(each.seconds for each in results):.0f} s"],
            ["memory of a worker at most", f"{max(each.memory for each in results) / 2**20:.2f} GiB"],
        ],
    )


def show_precision(what: str, groups: Mapping[str, score.Precision]) -> None:
    """Verdicts by group."""
    show_table(
        [what, "right", "wrong", "arguable", "precision", "not judged"],
        [
            [name, str(each.right), str(each.wrong), str(each.arguable), percent(each.share), str(each.unjudged)]
            for name, each in groups.items()
        ],
    )


def show_recall(groups: Mapping[str, score.Recall]) -> None:
    """Expectations by what is expected."""
    show_table(
        ["expected", "met", "of", "recall"],
        [[name, str(each.met), str(each.all), percent(each.share)] for name, each in groups.items()],
    )


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, its first column on the left."""
    table = Table(box=None, pad_edge=False, title_justify="left")
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print()


def listing(what: str, lines: Sequence[str]) -> None:
    """A heading with the number, and a line each."""
    typer.echo(f"{what}: {len(lines)}")
    for line in lines:
        typer.echo(f"  {line}")


def at(row: Found | Judgement | Expectation) -> str:
    """The place of a finding."""
    return f"{row.repository}/{row.path}:{row.line}"


def answer(found: Found | None) -> str:
    """What the tool says instead of what was expected."""
    if found is None:
        return "nothing is said"
    return "it is fixable" if found.fixable else f"refused: {found.why_not}"


def percent(share: float | None) -> str:
    """A share for people."""
    return "–" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    try:
        app()
    except tables.TableError as error:
        raise SystemExit(f"error: {error}") from None
