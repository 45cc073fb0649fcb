"""Whether codemods compose: every pair that acts on a script, and all together, must compile, run and verify.

    python -m benchmarks.composition [SCRIPT ...] [--risk recipe] [--only NAME] [--rows FILE]

The scripts are the whole trainings in ``fixtures/scripts`` unless some are named. Of each, the codemods that have
something to rewrite are found, and every two of them and all of them are applied to it; what comes out is verified as
``turbofix verify SCRIPT --select NAME,OTHER`` does, by the same objects in the same order. Only the runs of the script
as it is are shared by its combinations, which is where the time goes. Combinations that come to the same text are
verified once.

A combination holds when the verdict is *pass* and none of its codemods was dropped; one that a run on this machine
cannot reach (``unverified``: a branch for CUDA only) is told, and no failure. With ``--rows`` the outcomes are appended
to a file, and those that stand in it are not run again. Exits with 1 where a combination does not hold,
or where nothing acts on a script.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from turbofix.engine.project import Chosen
from turbofix.engine.verifying import NothingToChange, plan_verification
from turbofix.findings import Risk
from turbofix.source.files import Workspace
from turbofix.verify import Inconclusive, Options, Request, isolation
from turbofix.verify.blame import Blame
from turbofix.verify.lease import scratch_folder
from turbofix.verify.original import Original
from turbofix.verify.result import DROPPED, PASS, UNVERIFIED
from turbofix.verify.runner import Child
from turbofix.verify.scratch import Scratch, trees_for
from turbofix.verify.verification import conclude

SCRIPTS = Path(__file__).resolve().parent.parent / "fixtures" / "scripts"

QUICK = {"wide_reviews.py": ("--width", "64", "--epochs", "8")}
"""What is passed to trainings that are too large for a CPU by default."""
TIMEOUT = 600.0  # seconds that one run may take, on a busy machine too


@dataclass(frozen=True)
class Outcome:
    """What came of one combination on one script. ``same_as`` names one that comes to the same text."""

    script: str
    codemods: tuple[str, ...]
    verdict: str
    reason: str
    dropped: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    same_as: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the codemods stand beside each other: everything that ran was kept."""
        return not self.dropped and (self.verdict == PASS or bool(self.unverified))


def trainings() -> list[Path]:
    """The whole trainings of the repository."""
    return [*sorted(SCRIPTS.glob("*.py")), SCRIPTS / "project" / "train.py"]


def request_for(script: Path, codemods: Iterable[str], risk: Risk) -> Request | None:
    """What these codemods make of a script; None where they change nothing. Raises
    ``NothingToVerify`` where it cannot be read."""
    chosen = Chosen(select=tuple(codemods), risk=risk)
    try:
        return plan_verification(script, (), chosen, Options(timeout=TIMEOUT), Workspace())
    except NothingToChange:
        return None


def acting(script: Path, risk: Risk) -> tuple[str, ...]:
    """The codemods that rewrite a script when all are applied, in the order of the pipeline."""
    request = request_for(script, (), risk)
    stages = request.stages if request is not None else ()
    return tuple(dict.fromkeys(stage.codemod for stage in stages if stage.codemod is not None))


def combinations(codemods: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Every two and all; the one itself where there is one only."""
    found = [*itertools.combinations(codemods, 2), codemods]
    return list(dict.fromkeys(each for each in found if each))


def outcomes(script: Path, asked: Iterable[tuple[str, ...]], risk: Risk) -> Iterator[Outcome]:
    """Verify these combinations on one script, one after another."""
    name = script.relative_to(SCRIPTS).as_posix() if script.is_relative_to(SCRIPTS) else str(script)
    seen: dict[str, Outcome] = {}
    with _bench(script) as bench:
        planned = [(codemods, request_for(script, codemods, risk)) for codemods in asked]
        for codemods, request in sorted(planned, key=lambda each: each[1] is not None and is_exact(each[1])):
            if request is None:
                yield Outcome(name, codemods, "none", "nothing is rewritten without the others")
                continue
            last = sorted((str(path), content) for path, content in request.stages[-1].files.items())
            for path, content in last:
                compile(content, path, "exec", dont_inherit=True)
            digest = hashlib.sha256(repr((last, [stage.risk for stage in request.stages])).encode()).hexdigest()
            if digest in seen:
                yield replace(seen[digest], codemods=codemods, same_as=seen[digest].codemods)
                continue
            outcome = bench.outcome(name, codemods, request)
            if outcome.holds:
                seen[digest] = outcome
            yield outcome


def is_exact(request: Request) -> bool:
    """Whether the runs must be equal bit by bit: they keep their dropout then."""
    return all(stage.risk is Risk.EXACT for stage in request.stages)


class _Bench:
    """A child with one script and its last run as it is, for rewrites of one kind: a child keeps one recording."""

    def __init__(self, child: Child, scratch: Scratch) -> None:
        self.child, self.scratch = child, scratch
        self.watched: tuple[bool, Original] | None = None

    def outcome(self, name: str, codemods: tuple[str, ...], request: Request) -> Outcome:
        exact = is_exact(request)
        if self.watched is None or self.watched[0] is not exact:
            remap = not self.child.cuda
            original = Original(self.child, self.scratch, request, remap=remap, tell=lambda progress: None)
            try:
                original.watch()
            except Inconclusive as why:
                return Outcome(name, codemods, "inconclusive", str(why))
            self.watched = exact, original
        original = self.watched[1]
        learned = Blame(original, self.scratch, request, cuda=self.child.cuda).sort_out()
        verdict, reason = conclude(learned, request, len(original.log["rows"]), original.log["epochs_ended"])
        judged = {each.codemod: each.verdict for each in learned.judgements}
        return Outcome(
            name,
            codemods,
            verdict,
            reason,
            tuple(codemod for codemod, each in judged.items() if each == DROPPED),
            tuple(codemod for codemod, each in judged.items() if each == UNVERIFIED),
        )


@contextmanager
def _bench(script: Path) -> Iterator[_Bench]:
    trees = trees_for(script, script.parent)
    with scratch_folder(keep=False, outside=trees) as lease:
        scratch = Scratch(lease.root, trees, isolation.reach(None, lease.root, trees), lease.lock)
        child = Child(scratch, script, QUICK.get(script.name, ()), script.parent, Options(timeout=TIMEOUT))
        try:
            child.start()
            yield _Bench(child, scratch)
        finally:
            child.close()


def main(
    scripts: Annotated[list[Path] | None, typer.Argument(metavar="[SCRIPT]...", help="Trainings to try.")] = None,
    risk: Annotated[Risk, typer.Option(help="What rewrites may change.")] = Risk.EQUIVALENT,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Combinations with one of these.")] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append the outcomes, and go on from there.")
    ] = None,
) -> None:
    """Verify every two codemods that act on a script, and all together."""
    before = read(rows) if rows is not None and rows.exists() else []
    found: list[Outcome] = []
    idle: list[str] = []
    for script in (path.resolve() for path in scripts or trainings()):
        codemods = acting(script, risk)
        name = script.relative_to(SCRIPTS).as_posix() if script.is_relative_to(SCRIPTS) else str(script)
        asked = [each for each in combinations(codemods) if not only or set(only) & set(each)]
        kept = [each for each in before if each.script == name and each.codemods in asked]
        typer.echo(f"{name}: {len(codemods)} codemods, {len(asked)} combinations")
        if not codemods:  # a training on which nothing acts is no test of anything
            idle.append(name)
        found += kept
        done = {each.codemods for each in kept}
        for outcome in outcomes(script, [each for each in asked if each not in done], risk):
            found.append(outcome)
            if not outcome.holds and outcome.verdict != "none":
                typer.echo(f"! {' + '.join(outcome.codemods)}: {outcome.verdict}: {outcome.reason}")
            if rows is not None:
                with rows.open("a", encoding="utf-8") as handle:
                    handle.write(json.dumps(asdict(outcome)) + "\n")
    told(found)
    raise typer.Exit(bool(idle) or any(not each.holds and each.verdict != "none" for each in found))


def told(found: Iterable[Outcome]) -> None:
    """One line for each script, and one for all."""
    by_script: dict[str, Counter[str]] = {}
    for each in found:
        kind = "nothing" if each.verdict == "none" else "holds" if each.holds else "fails"
        if kind == "holds" and each.unverified:
            kind = "holds, in part unverified"
        by_script.setdefault(each.script, Counter())[kind] += 1
    for script, counts in by_script.items():
        typer.echo(f"{script}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    total = sum(by_script.values(), Counter[str]())
    typer.echo("all: " + ", ".join(f"{count} {kind}" for kind, count in sorted(total.items())))


def read(rows: Path) -> list[Outcome]:
    """The outcomes that a run wrote down."""
    return [Outcome(**_with_tuples(json.loads(line))) for line in rows.read_text(encoding="utf-8").splitlines()]


def _with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


if __name__ == "__main__":
    typer.run(main)
