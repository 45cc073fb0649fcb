"""What a command tells: findings to stdout, messages to stderr, and an exit code."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from turbofix import registry
from turbofix.config import ConfigError
from turbofix.engine import project
from turbofix.engine.project import Chosen, Outcome, shown
from turbofix.engine.verifying import NothingToVerify
from turbofix.records import dataclass
from turbofix.report import renderer
from turbofix.report.text import Style
from turbofix.source.files import STDIN, SourceError, Workspace, read_stdin

if TYPE_CHECKING:
    from turbofix.verify.request import OnProgress, Progress

Result = TypeVar("Result")

CLEAN, FOUND, FAILED = 0, 1, 2
INTERRUPTED = 130


EXPECTED = (ConfigError, registry.PackError, registry.UnknownName, NothingToVerify)
"""Errors whose argument is a sentence for the user."""


class Format(str, enum.Enum):
    """The formats of findings."""

    RICH = "rich"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    MARKDOWN = "markdown"


@dataclass(frozen=True)
class Output:
    """Where and how results are shown."""

    format: Format = Format.RICH
    file: Path | None = None
    statistics: bool = False
    verbose: bool = False
    quiet: bool = False


def reported(command: Callable[..., int], *args: Any, **kwargs: Any) -> int:
    """A command's exit code, with a sentence instead of a traceback for whatever stops it."""
    try:
        code = command(*args, **kwargs)
    except EXPECTED as error:
        say(f"error: {error}")
        code = FAILED
    except KeyboardInterrupt:
        say("interrupted")
        code = INTERRUPTED
    except Exception as error:
        if os.environ.get("TURBOFIX_DEBUG"):
            import traceback

            traceback.print_exc()
        say(
            f"error: turbofix stopped on a mistake of its own ({type(error).__name__}: {error}). Please report it, "
            "with the command and, if you may, the script; TURBOFIX_DEBUG=1 shows where it happened."
        )
        code = FAILED
    return code


def told_findings(
    paths: Sequence[str] | None, chosen: Chosen, output: Output, jobs: int | None = None, *, exit_zero: bool = False
) -> int:
    """Analyze, tell what was found, and what could not be done."""
    inputs, workspace, errors = open_inputs(paths)
    outcome = project.analyze(inputs, chosen, workspace, jobs)
    show_findings(outcome, output)
    show_problems(outcome, errors, output.verbose)
    if not output.quiet:
        advise(outcome, chosen, told=output.format is Format.RICH and not output.statistics)
    if errors or outcome.errors:
        return FAILED
    return FOUND if outcome.fixable and not exit_zero else CLEAN


def open_inputs(paths: Sequence[str] | None) -> tuple[list[Path], Workspace, list[SourceError]]:
    """The inputs, with standard input read where ``-`` is among them, and what could not be read of it."""
    inputs = [Path(path) for path in paths or (".",)]
    if Path(STDIN) not in inputs:
        return inputs, Workspace(), []
    source = read_stdin()
    if isinstance(source, SourceError):
        return [path for path in inputs if path != Path(STDIN)], Workspace(), [source]
    return inputs, Workspace({Path.cwd() / STDIN: source}), []


def show_findings(outcome: Outcome, output: Output) -> None:
    """Findings in the chosen format."""
    if output.statistics:
        from turbofix.report import statistics

        emit(statistics.render(outcome), output.file)
    elif output.format is Format.RICH:
        from turbofix.report import rich

        style = Style(columns(), output.file is None and use_color(sys.stdout))
        emit(rich.render(outcome, style, verbose=output.verbose), output.file)
    else:
        emit(renderer(output.format.value)(outcome), output.file)


def show_problems(outcome: Outcome, errors: Sequence[SourceError], verbose: bool) -> None:
    """What could not be done, for people."""
    for report in outcome.errors:
        say(f"error: {report.error}")
    for error in errors:
        say(f"error: {shown(error.path)}: {error.sentence}")
    debug = verbose or bool(os.environ.get("TURBOFIX_DEBUG"))
    for note in outcome.notes:
        say(f"warning: a mistake of turbofix: {note if debug else note.partition(chr(10))[0]}")


def advise(outcome: Outcome, chosen: Chosen, *, told: bool) -> None:
    """What the user may have got wrong; ``told``: the results say already what starts no training by itself."""
    seen = chosen.observed
    if seen is not None and not any(seen.speaks_of(report.path) for report in outcome.reports):
        say(f"warning: --observed tells of {shown(seen.script)}, which is none of these scripts")
    for warning in outcome.warnings:
        say(f"warning: {warning}")
    for hint in () if told else project.hints(outcome):
        say(f"note: {hint}")


def emit(result: str | bytes, file: Path | None = None) -> None:
    """Write a result to standard output, or to ``file``; a reader that has gone away is no error."""
    if file is not None:
        try:
            file.write_bytes(result.encode() if isinstance(result, str) else result)
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error
        return
    try:
        sys.stdout.flush()
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.buffer.write(result.encode(encoding, "backslashreplace") if isinstance(result, str) else result)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # What is left in the buffers must not raise again when the interpreter closes them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(message: str) -> None:
    """A message for people, on standard error."""
    sys.stderr.write(message.rstrip("\n") + "\n")


def watched(command: str, run: Callable[[OnProgress], Result], *, quiet: bool, verbose: bool) -> Result:
    """What ``run`` gives, with a progress bar on a terminal; elsewhere, or with ``verbose``, a line for each run."""
    if quiet:
        return run(lambda progress: None)

    def tell(progress: Progress) -> None:
        if progress.ended:
            lines = [f"{command}: {progress.phase} … {progress.ended}"]
            say("\n".join([*lines, *(f"  | {line}" for line in progress.output)] if verbose else lines))

    if not sys.stderr.isatty():
        return run(tell)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True, redirect_stderr=True) as bars:
        task = bars.add_task("starting", total=None)

        def advance(progress: Progress) -> None:
            bars.update(task, description=progress.phase, completed=progress.done, total=progress.total)
            if verbose:
                tell(progress)

        return run(advance)


def use_color(stream: Any) -> bool:
    """Whether the stream is a terminal whose user wants color."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns() -> int:
    """The width to write for: the terminal's, within what reads well."""
    try:
        return min(max(os.get_terminal_size(sys.stdout.fileno()).columns, 60), 120)
    except (OSError, ValueError):
        return 100
