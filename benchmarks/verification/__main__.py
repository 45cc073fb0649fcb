"""The command line: ``python -m benchmarks.verification broken|good|report``, from a checkout with torch installed."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.verification import broken, good, tables
from benchmarks.verification.measure import Verified, verify_all
from benchmarks.verification.rewrites import Rewrite

app = typer.Typer(
    name="python -m benchmarks.verification",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Measure how often a verification errs: broken rewrites that pass, good ones that fail.",
)

Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="How many seeds, from 0.")]
Only = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these kinds and subjects (repeatable).")]
Rows = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Append the verdicts here, and leave out those that stand in it.")
]


@app.command("broken")
def broken_command(seeds: Seeds = 1, only: Only = None, rows: Rows = None) -> None:
    """Verify every broken rewrite; exit 1 where one does not fail."""
    found = run(chosen(broken.REWRITES, only), seeds, rows, wanted="fail")
    raise typer.Exit(any(each.verdict != "fail" for each in found))


@app.command("good")
def good_command(
    seeds: Seeds = 20,
    compile_seeds: Annotated[
        int, typer.Option(metavar="N", help="Seeds for the kind that compiles, which is slow.")
    ] = 2,
    only: Only = None,
    rows: Rows = None,
) -> None:
    """Verify every good rewrite; exit 1 where one does not pass."""
    rewrites = chosen(good.REWRITES, only)
    slow = [each for each in rewrites if each.kind == "compile"]
    found = run([each for each in rewrites if each not in slow], seeds, rows, wanted="pass")
    found += run(slow, min(seeds, compile_seeds), rows, wanted="pass")
    raise typer.Exit(any(each.verdict != "pass" for each in found))


@app.command("report")
def report_command(
    broken_rows: Annotated[Path, typer.Argument(metavar="BROKEN", help="What `broken --rows` wrote.")],
    good_rows: Annotated[Path, typer.Argument(metavar="GOOD", help="What `good --rows` wrote.")],
) -> None:
    """Print both suites as the page ``benchmarks/results/verification.md``."""
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    where = f"torch {torch.__version__}, {device}, CPython {platform.python_version()}"
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    typer.echo(tables.page(today, where, read(broken_rows), read(good_rows)), nl=False)


def chosen(rewrites: Iterable[Rewrite], only: list[str] | None) -> list[Rewrite]:
    """Those whose kind or subject is named in ``only``; where it names both, those that both name."""
    rewrites = list(rewrites)
    if not only:
        return rewrites
    kinds, subjects = {each.kind for each in rewrites}, {each.subject.name for each in rewrites}
    unknown = [name for name in only if name not in kinds | subjects]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: neither a kind nor a subject")
    kinds, subjects = kinds.intersection(only) or kinds, subjects.intersection(only) or subjects
    return [each for each in rewrites if each.kind in kinds and each.subject.name in subjects]


def run(rewrites: list[Rewrite], seeds: int, rows: Path | None, *, wanted: str) -> list[Verified]:
    """Verify and tell each verdict as it comes; what ``rows`` holds already is taken from there."""
    asked = {(each.kind, each.subject.name) for each in rewrites}
    before = [] if rows is None or not rows.exists() else read(rows)
    found = [each for each in before if (each.kind, each.subject) in asked and each.seed < seeds]
    done = {(each.kind, each.subject, each.seed) for each in found}
    tasks = [(each, seed) for each in rewrites for seed in range(seeds)]
    for verified in verify_all((one, seed) for one, seed in tasks if (one.kind, one.subject.name, seed) not in done):
        found.append(verified)
        mark = " " if verified.verdict == wanted else "!"
        name = f"{verified.kind} of {verified.subject}, seed {verified.seed}"
        typer.echo(f"{mark} {name}: {verified.verdict}: {verified.reason} [{verified.seconds:.1f} s]")
        if rows is not None:
            with rows.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(verified.to_json()) + "\n")
    otherwise = sum(each.verdict != wanted for each in found)
    if found:
        typer.echo(f"{len(found) - otherwise} of {len(found)}: {wanted}", err=True)
    return found


def read(rows: Path) -> list[Verified]:
    """The verdicts that a run wrote down."""
    return [Verified(**json.loads(line)) for line in rows.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    app()
