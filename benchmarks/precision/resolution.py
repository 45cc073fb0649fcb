"""How much of the training scripts of a corpus the model of the program resolves.

    python -m benchmarks.precision.resolution CORPUS            # the table of the rates
    python -m benchmarks.precision.resolution CORPUS --misses   # and every answer that is missing
    python -m benchmarks.precision.resolution CORPUS --draw 60 --seed 7 transfer

``CORPUS`` holds one folder ``OWNER+NAME`` for each repository of ``scripts.tsv``. What counts as a training loop is
decided here, by the text alone and not by the model: a call of ``backward`` (or of a loss scaler that takes the loss
and the optimizer) that stands in a loop, or in a function that the same file calls from a loop.

Many of the listed scripts are modules that another script of the repository imports (``engine.py`` beside
``main.py``). What such a file alone leaves open is asked of the programs that import it, as ``turbofix`` does when it
is given the folder; ``--alone`` leaves that out.
"""

from __future__ import annotations

import argparse
import ast
import csv
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turbofix.source.files import Source, Workspace, read_source
from turbofix.source.nodes import parse
from turbofix.training.model import (
    Argument,
    Evaluation,
    Framework,
    Loader,
    Step,
    Target,
    TrainingProgram,
    Transfer,
)
from turbofix.training.program import analyse

SCRIPTS = Path(__file__).with_name("scripts.tsv")
LOADER_ARGUMENTS = ("num_workers", "pin_memory", "batch_size")
State = Literal["seen", "inferred", "computed", "unknown"]
KINDS = ("loop", "values", "transfer", "loader-argument")


@dataclass(frozen=True)
class Answer:
    """One question about a script, and what the model answered.

    ``state``: "seen" stands for all that is known without a doubt. ``answer`` is what was resolved, or why nothing was.
    """

    kind: str
    question: str
    path: str  # of the file, below the corpus
    line: int
    state: State
    answer: str

    column: int = 0

    @property
    def missing(self) -> bool:
        return self.state == "unknown"

    @property
    def key(self) -> tuple[object, ...]:
        """What two answers to the same question share."""
        question = "" if self.kind == "transfer" else self.question
        return self.kind, question, self.path, self.line, self.column


@dataclass(frozen=True)
class Resolved:
    """What came of one script. ``skipped`` says why it was not analysed."""

    path: str
    answers: tuple[Answer, ...] = ()
    seconds: float = 0.0
    skipped: str | None = None


# --- what the text alone says ---------------------------------------------------------------------------------------

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def backward_lines(tree: ast.Module) -> list[int]:
    """The lines of the backward passes that stand in a loop, or in what the same file calls from a loop.

    By name: ``self.learn()`` in a loop makes what stands in any ``def learn`` of the file stand in a loop. Methods
    called ``backward`` are not looked into (they are steps of a graph, or wrappers).
    """
    backwards: list[tuple[int, bool, str | None]] = []
    calls: list[tuple[str, bool, str | None]] = []
    for call, in_loop, function in _calls(tree, False, None):
        if _is_backward(call) and function != "backward":
            backwards.append((call.lineno, in_loop, function))
        name = _called(call)
        if name is not None:
            calls.append((name, in_loop, function))
        given = (*call.args, *(each.value for each in call.keywords))  # optimizer.step(closure), Process(target=train)
        calls += [(each.id, in_loop, function) for each in given if isinstance(each, ast.Name)]
    repeated: set[str] = set()
    grown = True
    while grown:
        reached = {name for name, in_loop, function in calls if in_loop or function in repeated}
        grown = not reached <= repeated
        repeated |= reached
    return sorted({line for line, in_loop, function in backwards if in_loop or function in repeated})


def _calls(node: ast.AST, in_loop: bool, function: str | None) -> Iterator[tuple[ast.Call, bool, str | None]]:
    for child in ast.iter_child_nodes(node):
        inside, name = in_loop, function
        if isinstance(child, _LOOPS):
            inside = True
        elif isinstance(child, _FUNCTIONS):
            inside, name = False, getattr(child, "name", function)
        if isinstance(child, ast.Call):
            yield child, in_loop, function
        yield from _calls(child, inside, name)


def _called(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _is_backward(call: ast.Call) -> bool:
    name = _called(call)
    if name in ("backward", "manual_backward"):
        return isinstance(call.func, ast.Attribute)
    if name is not None and name.endswith("scaler") and len(call.args) >= 2:
        return "optim" in ast.unparse(call.args[1])
    return False


def makes_trainer(tree: ast.Module) -> int | None:
    """The line that makes a framework's trainer, by the name of what is called; None where there is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _called(node) or ""
            if name.endswith("Trainer") and name[:1].isupper():
                return node.lineno
    return None


# --- what the model says ----------------------------------------------------------------------------------------------


def resolve(job: tuple[str, str, str, bool]) -> Resolved:
    """Analyse one script: the corpus, the repository's folder in it, the script in that, whether alone."""
    corpus, folder, script, alone = job
    root = Path(corpus).absolute()
    repository = root / folder
    entry = repository / script
    path = f"{folder}/{script}"
    source = read_source(entry)
    if not isinstance(source, Source):
        return Resolved(path, skipped=source.sentence)
    try:
        tree = parse(source.text)
    except (SyntaxError, ValueError) as error:
        return Resolved(path, skipped=f"no Python 3: {error}")
    began = time.perf_counter()
    read = Workspace().read
    program = analyse(entry, repository, read, Target())
    seconds = time.perf_counter() - began
    if program is None:
        return Resolved(path, skipped="the model gives none")
    found = tuple(answers(program, entry, tree, root))
    if not alone:
        for importer in importers(entry, repository):
            if not any(answer.missing for answer in found):
                break
            other = analyse(importer, repository, read, Target())
            if other is not None and entry in other.files:
                found = completed(found, tuple(answers(other, entry, tree, root)), path)
    return Resolved(path, found, seconds)


_IMPORTERS = 8
"""So many importing files are asked at most."""


def importers(module: Path, repository: Path) -> list[Path]:
    """The files of the repository that may import a module, by the text, through packages too: the nearest first."""
    texts = {path: source.text for path in sorted(repository.rglob("*.py")) if (source := _source(path)) is not None}
    waiting, known = [module], {module}
    found: list[Path] = []
    while waiting:
        each = waiting.pop()
        name = each.parent.name if each.name == "__init__.py" else each.stem
        wanted = re.compile(rf"^\s*(from\s+[\w.]*\b{name}\b\s+import|(from|import)\s.*\b{name}\b)", re.MULTILINE)
        for path, text in texts.items():
            if path not in known and name in text and wanted.search(text):
                known.add(path)
                (waiting if path.name == "__init__.py" else found).append(path)
    near = [*module.parents]
    found.sort(key=lambda path: next(i for i, folder in enumerate(near) if path.is_relative_to(folder)))
    return found[:_IMPORTERS]


def _source(path: Path) -> Source | None:
    source = read_source(path)
    return source if isinstance(source, Source) else None


def completed(first: tuple[Answer, ...], second: tuple[Answer, ...], path: str) -> tuple[Answer, ...]:
    """The answers about a file, with what another program that holds it knows where this one knows nothing."""
    keys = [each.key for each in first]
    better = {each.key: each for each in second if not each.missing}
    merged = [better.get(each.key, each) if each.missing else each for each in first]
    if not any(each.kind == "values" for each in first):  # alone, no step was found
        merged += [each for each in second if each.path == path and each.key not in keys]
    for index, each in enumerate(merged):
        if each.kind == "all-four":
            parts = [other for other in merged if other.kind == "values" and other.line == each.line]
            merged[index] = worst(parts)
    return tuple(merged)


def answers(program: TrainingProgram, entry: Path, tree: ast.Module, root: Path) -> Iterator[Answer]:
    """All questions about one script, with the model's answers; ``root`` is the folder that paths are told from."""
    steps = [step for step in program.steps if step.loop.site.path == entry]
    evaluations = [each for each in program.evaluations if each.loop.site.path == entry]
    yield from _loops(program, steps, entry, tree, _below(entry, root))
    for step in steps:
        yield from _values(step, root)
    for transfer in _transfers(steps, evaluations):
        what, state = (transfer.what, "seen") if transfer.what != "unknown" else (transfer.likely, "inferred")
        yield Answer(
            "transfer",
            "in a step" if transfer.in_step else "in an evaluation",
            _below(transfer.site.path, root),
            transfer.site.line,
            state if what is not None else "unknown",  # type: ignore[arg-type]
            f"column {transfer.site.column}: .{transfer.method}() moves {what or 'unknown'}, to {transfer.to.where}",
            transfer.site.column,
        )
    for loader in program.loaders:
        yield from _loader(loader, root)


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _loops(program: TrainingProgram, steps: list[Step], entry: Path, tree: ast.Module, path: str) -> Iterator[Answer]:
    expected = backward_lines(tree)
    covered = {act.site.line for step in program.steps for act in step.backwards if act.site.path == entry}
    for step in steps:  # a wrapper's backward stands elsewhere, its call in the loop
        covered.update(range(step.loop.site.line, step.loop.site.end_line + 1))
    told = ", ".join(
        f"{step.loop.site.line} (backward {_lines(act.site.line for act in step.backwards)}; "
        f"update {_lines(act.site.line for act in step.updates)})"
        for step in steps
    )
    if expected:
        found = bool(steps) or bool(covered & set(expected))
        yield Answer("loop", "script", path, expected[0], "seen" if found else "unknown", f"steps at {told or 'none'}")
        for line in expected:
            yield Answer("loop", "backward", path, line, "seen" if line in covered else "unknown", f"line {line}")
    elif (trainer := makes_trainer(tree)) is not None:
        known = program.framework not in (Framework.PYTORCH, Framework.NONE) or bool(steps)
        yield Answer("loop", "framework", path, trainer, "seen" if known else "unknown", program.framework.value)
    if not program.complete:
        yield Answer("loop", "complete", path, 1, "unknown", program.incomplete_because or "")
    for step in steps:
        yield Answer(
            "loop",
            "step",
            path,
            step.loop.site.line,
            # another file may call the function in a loop
            "seen" if step.epoch_loop is not None or step.reached else "unknown",
            f"{step.loop.site.kind} over {step.loop.iterated}: backward {_lines(a.site.line for a in step.backwards)}; "
            f"update {_lines(a.site.line for a in step.updates)}; epochs "
            f"{step.epoch_loop.site.line if step.epoch_loop is not None else None}",
        )


def _lines(lines: Iterable[int]) -> str:
    return ", ".join(map(str, lines))


def _values(step: Step, root: Path) -> Iterator[Answer]:
    path, line = _below(step.loop.site.path, root), step.loop.site.line
    loss, column = step.loss, step.loop.site.column
    told = ", ".join(loss.qualnames) or f"backward of {loss.text}"
    parts_told = [
        Answer("values", "loss", path, line, loss.certainty, told, column),
        Answer("values", "source", path, line, "unknown" if step.source == "unknown" else "seen", step.source, column),
    ]
    yield from parts_told
    yield worst(parts_told)


def worst(parts: list[Answer]) -> Answer:
    """Whether all values of a step are known."""
    states = {each.state for each in parts}
    order: tuple[State, ...] = ("unknown", "inferred", "seen")
    state = next(state for state in order if state in states)
    missing = ", ".join(each.question for each in parts if each.state == state)
    return Answer("all-four", "all four", parts[0].path, parts[0].line, state, missing, parts[0].column)


def _transfers(steps: list[Step], evaluations: list[Evaluation]) -> list[Transfer]:
    """What moves in the loops, each place once; casts that move nothing are left out."""
    every = [transfer for evaluation in evaluations for transfer in evaluation.transfers]
    every += [transfer for step in steps for transfer in step.transfers]
    found = {transfer.site: transfer for transfer in every if not transfer.dtype_only}
    return [found[site] for site in sorted(found)]


def _loader(loader: Loader, root: Path) -> Iterator[Answer]:
    for name in LOADER_ARGUMENTS:
        argument = loader.argument(name)
        state: State = "seen"
        if argument.state == "unknown" or (argument.state == "absent" and loader.open_mapping):
            state = "unknown"
        elif argument.state == "computed":
            state = "computed"
        yield Answer(
            "loader-argument", name, _below(loader.site.path, root), loader.site.line, state, _argument(argument)
        )


def _argument(argument: Argument) -> str:
    told = str(argument.state)
    if argument.values:
        told += " " + " or ".join(map(repr, argument.values))
    if argument.option:
        told += f" ({argument.option})"
    if argument.text:
        told += f" from {' '.join(argument.text.split())}"
    return told


# --- the table --------------------------------------------------------------------------------------------------------


def scripts(table: Path = SCRIPTS) -> list[tuple[str, str]]:
    """The scripts of the list: folder of the repository, path in it."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [((row.get("repository") or row["repo"]).replace("/", "+"), row["path"]) for row in rows]


def resolve_all(corpus: Path, chosen: list[tuple[str, str]], processes: int, *, alone: bool = False) -> list[Resolved]:
    """The scripts that are laid out, analysed in worker processes, in the order of the list."""
    jobs = [(str(corpus), folder, script, alone) for folder, script in chosen if (corpus / folder / script).is_file()]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(resolve, jobs, chunksize=4))


def table(resolved: list[Resolved]) -> Iterator[str]:
    """The rates, one line for each question."""
    every = [answer for each in resolved for answer in each.answers]
    analysed = [each for each in resolved if each.skipped is None]
    reasons = Counter("notebook" if each.skipped == "notebook" else "no Python 3" for each in resolved if each.skipped)
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    yield f"scripts: {len(resolved)}; analysed: {len(analysed)}" + (f" (left out: {skipped})" if skipped else "")
    rows: list[tuple[str, list[Answer]]] = [
        ("training loop found, of the scripts that have one", _of(every, "loop", "script")),
        ("backward passes in a loop that belong to a step", _of(every, "loop", "backward")),
        ("framework recognised, of the scripts that only make its trainer", _of(every, "loop", "framework")),
        *((f"step: {question}", _of(every, "values", question)) for question in ("loss", "source")),
        ("step: both", _of(every, "all-four")),
        *((f"loader: {name}", _of(every, "loader-argument", name)) for name in LOADER_ARGUMENTS),
        ("loader: arguments", _of(every, "loader-argument")),
        ("transfers classified, in steps", _of(every, "transfer", "in a step")),
        ("transfers classified, in steps and evaluations", _of(every, "transfer")),
    ]
    yield f"{'question':<66} {'seen':>5} {'+inf.':>6} {'of':>5} {'rate':>7}"
    for title, found in rows:
        seen = sum(answer.state == "seen" for answer in found)
        known = sum(not answer.missing for answer in found)
        rate = f"{known / len(found):7.1%}" if found else "      -"
        yield f"{title:<66} {seen:>5} {known:>6} {len(found):>5} {rate}"
    incomplete = [answer for answer in every if answer.question == "complete"]
    yield f"not read to the end: {len(incomplete)}"
    slowest = max(analysed, key=lambda each: each.seconds, default=None)
    if slowest is not None:
        total = sum(each.seconds for each in analysed)
        yield f"seconds: {total:.0f} in all, {slowest.seconds:.1f} for {slowest.path}"


def _of(every: list[Answer], kind: str, question: str | None = None) -> list[Answer]:
    return [answer for answer in every if answer.kind == kind and question in (None, answer.question)]


def misses(resolved: list[Resolved]) -> Iterator[str]:
    """Every answer that is missing."""
    for each in resolved:
        for answer in each.answers:
            if answer.missing and answer.kind != "all-four":
                yield f"{answer.path}:{answer.line}: {answer.kind} {answer.question}: {answer.answer}"


def drawn(resolved: list[Resolved], kind: str, number: int, seed: int) -> list[Answer]:
    """Answers of a kind, drawn at random; those of a file that several scripts share stand once."""
    left_out = ("script", "backward", "framework", "complete")
    every = {
        answer: None
        for each in resolved
        for answer in each.answers
        if answer.kind == kind and answer.question not in left_out and not answer.missing
    }
    return random.Random(seed).sample(list(every), min(number, len(every)))


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision.resolution", description=__doc__)
    parser.add_argument("corpus", type=Path, help="the folder with the laid-out repositories")
    parser.add_argument("kind", nargs="*", help=f"what --draw draws: {', '.join(KINDS)}")
    parser.add_argument("--misses", action="store_true", help="list every answer that is missing")
    parser.add_argument("--alone", action="store_true", help="do not ask the programs that import a file")
    parser.add_argument("--draw", type=int, metavar="N", help="print N answers, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scripts", type=Path, default=SCRIPTS, help="the list of the scripts")
    parser.add_argument("--only", default="", help="only scripts whose path holds this text")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_intermixed_args(arguments)
    if bool(given.kind) != (given.draw is not None) or set(given.kind) - set(KINDS):
        parser.error(f"--draw takes a number, and the kinds {', '.join(KINDS)} stand after it")
    chosen = (
        [each for each in scripts(given.scripts) if given.only in "/".join(each)] if given.scripts.is_file() else []
    )
    corpus = given.corpus.absolute()
    if not any((corpus / folder / script).is_file() for folder, script in chosen):
        print(f"skipped: none of the {len(chosen)} listed scripts is laid out below {given.corpus}")
        return 0
    resolved = resolve_all(corpus, chosen, given.processes, alone=given.alone)
    print("\n".join(table(resolved)))
    if given.misses:
        print("\n".join(misses(resolved)))
    if given.draw is not None:
        for answer in (each for kind in given.kind for each in drawn(resolved, kind, given.draw, given.seed)):
            told = (answer.kind, f"{answer.path}:{answer.line}", answer.question, answer.state, answer.answer)
            print("\t".join(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
