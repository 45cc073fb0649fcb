"""Commands that run the user's script: what ``verify``, ``profile`` and ``apply --verify`` do, and show of it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix import telling
from turbofix.config import ConfigError
from turbofix.engine import project, verifying
from turbofix.engine.project import Chosen, Outcome, shown
from turbofix.engine.verifying import NothingToVerify
from turbofix.records import dataclass
from turbofix.report.text import Style
from turbofix.source.files import Workspace
from turbofix.telling import CLEAN, FAILED, FOUND, Format, say

if TYPE_CHECKING:
    from turbofix.estimate.cards import Card
    from turbofix.verify import Options, Request, Verification


@dataclass(frozen=True)
class Wanted:
    """What a command is to write beside its result: a page to look at, a trace of the step, a line of figures."""

    page: Path | None = None
    trace: Path | None = None
    log: str | None = None


def verified(
    plan: Callable[[], Request], options: Options, output: telling.Output, gpu: str | None, wanted: Wanted
) -> tuple[int, bool]:
    """Verify what ``plan`` gives, and show the result: the verdict's exit code, and whether something was kept.

    Raises:
        NothingToVerify: it gives nothing, and nobody asked for JSON, which tells of that too.
    """
    demand_packages(wanted)
    try:
        request = plan()
    except NothingToVerify as reason:
        if output.format is not Format.JSON:
            raise
        verification = no_verdict(str(reason), options)
    else:
        verification = run_verification(request, output.quiet, output.verbose, gpu)
        if wanted.page is not None:
            from turbofix.report import page

            telling.emit(page.of_verification(verification, request), wanted.page)
    show_verification(verification, output)
    return {"pass": CLEAN, "fail": FOUND}.get(verification.verdict, FAILED), bool(verification.kept)


def profiled(request: Request, output: telling.Output, gpu: str | None, wanted: Wanted) -> int:
    """Profile a script, and show where the time goes.

    Raises:
        NothingToVerify: the script does not come as far as that.
    """
    from turbofix.report import log as logs
    from turbofix.report import profile as report
    from turbofix.report import trace as traces
    from turbofix.verify import Inconclusive
    from turbofix.verify import profile as profiling

    demand_packages(wanted)
    card = card_named(gpu or "auto")
    try:
        found = telling.watched(
            "profile", lambda tell: profiling.profile(request, card, tell), quiet=output.quiet, verbose=output.verbose
        )
    except Inconclusive as why:
        raise NothingToVerify(f"{shown(request.script)} cannot be profiled: {why}") from why
    if output.format is Format.JSON:
        telling.emit(report.render_json(found), output.file)
    else:
        color = output.file is None and telling.use_color(sys.stdout)
        telling.emit(report.render(found, Style(telling.columns(), color)), output.file)
    if wanted.page is not None:
        from turbofix.report import page

        telling.emit(page.of_profile(found, request), wanted.page)
    if wanted.trace is not None:
        telling.emit(traces.render_trace(found, card), wanted.trace)
    if wanted.log is not None:
        try:
            logs.write(found, wanted.log)
        except OSError as error:
            raise ConfigError(f"{wanted.log} cannot be written: {error.strerror or error}") from error
    return CLEAN


def calibrated(python: str | None, output: telling.Output) -> int:
    """Measure the GPU that is here, keep the figures, and show them beside the data sheet's.

    Raises:
        NothingToVerify: there is none.
    """
    from turbofix.estimate import calibrated as kept
    from turbofix.estimate.cards import cards
    from turbofix.report import calibration as report
    from turbofix.verify import Inconclusive
    from turbofix.verify.calibrate import calibrate

    try:
        found = calibrate(python)
        file = kept.save(found)
    except Inconclusive as why:
        raise NothingToVerify(f"this machine cannot be calibrated: {why}") from why
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from error
    telling.emit(report.render(found, cards().get(kept.card_of(found).name)), output.file)
    if not output.quiet:
        say(f"kept in {file}: estimates for this card rest on it from now on")
    return CLEAN


def demand_packages(wanted: Wanted) -> None:
    """``ConfigError`` where what writes a page or a log is missing: better now than after the runs."""
    from importlib.util import find_spec

    from turbofix.report.log import NEEDS

    for file in (wanted.page, wanted.trace):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{file} cannot be written: there is no folder {file.parent}")
    needs = [("--report", name) for name in ("jinja2", "matplotlib") if wanted.page is not None]
    needs += [("--log", name) for begins, name in NEEDS.items() if (wanted.log or "").startswith(begins)]
    missing = [(option, name) for option, name in needs if find_spec(name) is None]
    if missing:
        names = " and ".join(name for option, name in missing if option == missing[0][0])
        raise ConfigError(f"{missing[0][0]} needs {names}: pip install 'turbofix[report]'")


def apply_verified(  # noqa: PLR0913
    script: Path, arguments: tuple[str, ...], chosen: Chosen, options: Options, output: telling.Output, write: bool
) -> int:
    """Verify the rewrite of a script, and write (or print) what survived."""
    workspace = Workspace()
    try:
        request = verifying.plan_verification(script, arguments, chosen, options, workspace)
    except verifying.NothingToChange as reason:
        say(str(reason))
        return CLEAN
    verification = run_verification(request, output.quiet, output.verbose, chosen.gpu)
    show_verification(verification, output if output.format is Format.JSON else telling.Output(), to_stderr=not write)
    if verification.verdict not in ("pass", "fail"):
        return FAILED
    if not verification.kept:
        say("nothing survived the verification, so nothing was changed")
        return FOUND
    kept = verifying.as_files(verification.kept, workspace)
    if not write:
        from turbofix.report import diff

        tell_base(kept, workspace)
        telling.emit(diff.render(kept, workspace), output.file)
        return FOUND
    written, errors = project.write_together(kept, workspace)
    telling.show_problems(Outcome(()), errors, output.verbose)
    if not output.quiet:
        say(f"rewrote {', '.join(shown(path) for path in written)}" if written else "nothing was written")
    return FAILED if errors else CLEAN


def run_verification(request: Request, quiet: bool, verbose: bool = False, gpu: str | None = None) -> Verification:
    """Verify, and show how it goes; with an estimate for ``gpu`` where one was named and its data sheet is known."""
    from turbofix.estimate.calibrated import card_for
    from turbofix.verify import verify as run

    request = dataclasses.replace(request, card=card_for(gpu) if gpu else None)
    return telling.watched("verify", lambda tell: run(request, tell), quiet=quiet, verbose=verbose)


def no_verdict(reason: str, options: Options) -> Verification:
    """The verification that could not begin, for programs that read the verdict."""
    from turbofix.verify import Verification

    return Verification("inconclusive", reason, options.device or "none")


def card_named(gpu: str) -> Card:
    """The card to estimate for; ``ConfigError`` where no data sheet of it is known."""
    from turbofix.estimate.calibrated import card_for
    from turbofix.estimate.cards import cards

    card = card_for(gpu)
    if card is None:
        raise ConfigError(f"there is no estimate for {gpu!r}; there is one for {', '.join(cards())}")
    return card


def show_verification(verification: Verification, output: telling.Output, to_stderr: bool = False) -> None:
    """The result of a verification."""
    from turbofix.report import verification as report

    if output.format is Format.JSON:
        telling.emit(report.render_json(verification), output.file)
        if verification.scratch is not None:
            say(f"the folder that the runs worked in was kept: {verification.scratch}")
        return
    stream = sys.stderr if to_stderr else sys.stdout
    text = report.render(verification, Style(telling.columns(), output.file is None and telling.use_color(stream)))
    if to_stderr:
        say(text)
    else:
        telling.emit(text, output.file)


def tell_base(paths: Iterable[Path], workspace: Workspace) -> None:
    """Where the diff applies, when that is not the current folder."""
    from turbofix.report import diff

    base = diff.base_of(paths, workspace)
    if base != Path.cwd():
        say(f"the diff is for {base}: apply it there, as with `git -C {base} apply`")
