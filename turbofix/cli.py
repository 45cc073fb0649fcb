"""The command line: it parses, calls, and maps results to exit codes. Results go to stdout, messages to stderr."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from turbofix import __version__, registry, running, telling
from turbofix.config import ConfigError, parse_gpu, parse_torch_version
from turbofix.engine import project, verifying
from turbofix.engine.observed import read as read_observed
from turbofix.engine.project import Chosen, Outcome, shown
from turbofix.engine.verifying import NothingToVerify
from turbofix.findings import Risk
from turbofix.running import Wanted
from turbofix.source.files import STDIN, Source, SourceError, Workspace
from turbofix.telling import CLEAN, FAILED, FOUND, Format, say

if TYPE_CHECKING:
    from turbofix.verify import Options, Request

NAMED = 4  # codemods that a line names


def lighten(parameters: list[Any]) -> list[Any]:
    """Let parameters convert only what needs it.

    Newer typers load a validation library to turn "not given", strings and the words of an option into themselves: a
    quarter of the time that a whole analysis takes.
    """

    def process(parameter: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
        choices = getattr(getattr(parameter, "type_descriptor", None), "choices", None) or ()
        chosen = next((each for each in choices if getattr(each, "value", None) == value), None)
        given = isinstance(value, (tuple, list)) and all(isinstance(each, str) for each in value)
        if not given and chosen is None and (value is not None or parameter.required):
            return convert(context, value)
        value = list(value) if given else chosen
        return parameter.callback(context, parameter, value) if parameter.callback else value

    for parameter in parameters:
        if not isinstance(parameter.process_value, functools.partial):
            parameter.process_value = functools.partial(process, parameter, parameter.process_value)
    return parameters


class LightCommand(typer.core.TyperCommand):
    """A command with light parameters."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, the one for help among them."""
        return lighten(super().get_params(ctx))


USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for a command line that it cannot read."""

NEAR_ENOUGH = 0.85  # "--step" is near "--steps"; "--epochs" is not


class RunningCommand(LightCommand):
    """A command that runs the user's script: what it does not know is likely the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments as typer reads them; where it cannot, with a word on ``--``."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            if ctx.obj is None and ("--verify" in given or self.name in ("verify", "profile")):
                belongs_to_the_script(error, str(self.name))
            raise


def belongs_to_the_script(error: Any, command: str) -> None:
    """Add to an error about an option or argument that nobody knows where the script's own ones go."""
    unknown = getattr(error, "option_name", None)
    if unknown is not None:
        error.possibilities = difflib.get_close_matches(unknown, error.possibilities or (), cutoff=NEAR_ENOUGH)
    elif "extra argument" not in error.message:
        return
    flags = "--verify " if command == "apply" else ""
    error.message += f". The script's own arguments go behind `--`: turbofix {command} {flags}SCRIPT -- ARGS"


class LightGroup(typer.core.TyperGroup):
    """The program, with light parameters."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, the one for help among them."""
        return lighten(super().get_params(ctx))


app = typer.Typer(
    name="turbofix",
    cls=LightGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """The entry point. What follows the first ``--`` is the user's script's, before anything else reads it."""
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    rest = tuple(arguments[split + 1 :]) if split < len(arguments) else None
    app(args=arguments[:split], prog_name="turbofix", obj=rest)
    sys.exit(CLEAN)


def reporting(command: Callable[..., int]) -> Callable[..., None]:
    """Give a command its exit code from its result, and a sentence instead of a traceback for whatever stops it."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(telling.reported(command, *args, **kwargs))

    return run


# --- options --------------------------------------------------------------------------------------------------------


class VerifyFormat(str, enum.Enum):
    """The formats of a verification."""

    RICH = "rich"
    JSON = "json"


def checked(parse: Callable[[object], Any]) -> Callable[[str | None], str | None]:
    """An option's callback that turns a ValueError into a usage error."""

    def check(value: str | None) -> str | None:
        if value is not None:
            try:
                parse(value)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
        return value

    return check


Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATHS", help="Files, notebooks, folders, or - for standard input. [default: .]"),
]
Select = Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Codemods or groups to run (comma-separated).")]
Ignore = Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Codemods or groups to leave out.")]
MaximumRisk = Annotated[Risk | None, typer.Option("--risk", help="What rewrites may change. [default: equivalent]")]
Likely = Annotated[
    bool,
    typer.Option("--likely", help="Take findings that rest on assumptions as well, untried (--verify tries them)."),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        callback=checked(parse_gpu),
        help="The GPU to write for, and to estimate for: auto, ampere, t4, h100, … [default: auto]",
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="How many GPUs are to train together, one process each. [default: 1]"),
]
Zero = Annotated[
    int | None,
    typer.Option(
        metavar="STAGE",
        min=1,
        max=3,
        help="Share out among the GPUs the optimizer's state (1), gradients, too (2), or parameters, too (3).",
    ),
]
Stages = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="In how many stages, one process each, to keep a model's layers. [default: 1]"
    ),
]
TorchVersion = Annotated[
    str | None,
    typer.Option(
        metavar="X.Y",
        callback=checked(parse_torch_version),
        help="The oldest torch that the result must run on. [default: what the project requires, else 2.4]",
    ),
]
OutputFormat = Annotated[Format | None, typer.Option(help="How to show the findings. [default: rich]")]
OutputFile = Annotated[Path | None, typer.Option(metavar="F", help="Write results there instead of standard output.")]
Report = Annotated[
    Path | None,
    typer.Option(metavar="F", help="Also write a page with pictures there, in one file: HTML, for any browser."),
]
ObservedFile = Annotated[
    Path | None,
    typer.Option(
        "--observed", metavar="F", help="What `profile` or `verify` wrote as JSON: it settles assumptions, and ranks."
    ),
]
Statistics = Annotated[bool, typer.Option("--statistics", help="Show counts by codemod instead of findings.")]
ExitZero = Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 where findings would exit with 1.")]
Jobs = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Processes for many files. [default: all processors]")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages beside results and errors.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Also say what each finding was concluded from, and what a run that failed wrote."
    ),
]
FEWEST_STEPS = 3  # with fewer there is no verdict (turbofix.verify.original)


def number_of_seconds(value: float | None) -> float | None:
    """A time limit as given; not what is no number, which no limit would be below."""
    if value is not None and not (1 <= value < float("inf")):
        raise typer.BadParameter("a number of seconds from 1 on")
    return value


def device_name(value: object) -> None:
    """Raise ``ValueError`` for what is neither device."""
    if value not in ("cpu", "cuda"):
        raise ValueError(
            f"there is no device {value!r}; there are cpu and cuda (CUDA_VISIBLE_DEVICES chooses the card)"
        )


Steps = Annotated[
    int | None,
    typer.Option(
        min=FEWEST_STEPS,
        metavar="N",
        help="Optimizer steps to compare. [default: to the second epoch's end, at least 20; all of a shorter script]",
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Timed runs of each program on a GPU; from fewer than 5 no change in speed is told. [default: 5]",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        callback=number_of_seconds, metavar="SECONDS", help="The time limit of one run, from 1 on. [default: 600]"
    ),
]
Python = Annotated[
    str | None, typer.Option(metavar="EXE", help="The interpreter to run the script with. [default: this one]")
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        callback=checked(device_name),
        help="cpu, or cuda, where speed is measured, too. [default: cuda where there is one]",
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="The seed of both programs. [default: 0]")]
Memory = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="GIB", help="Memory that one run may use. [default: most of what is free]"),
]
Disk = Annotated[
    float | None, typer.Option(min=0.01, metavar="GIB", help="What one run may write. [default: half of the free disk]")
]
Isolation = Annotated[
    str | None,
    typer.Option(metavar="LEVEL", help="Run only at this level: overlay, landlock or guard. [default: the strongest]"),
]
Processes = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Run what trains in several processes where torchrun starts it as N, too; 0 or 1: never. [default: 2]",
    ),
]
KeepScratch = Annotated[bool, typer.Option("--keep-scratch", help="Keep the folder that the runs worked in.")]


def choose(  # noqa: PLR0913
    select: list[str] | None,
    ignore: list[str] | None,
    risk: Risk | None,
    gpu: str | None,
    torch_version: str | None,
    *,
    likely: bool = False,
    observed: Path | None = None,
    gpus: int | None = None,
    zero: int | None = None,
    pipeline: int | None = None,
) -> Chosen:
    """The command line's part of the settings."""
    version = parse_torch_version(torch_version) if torch_version else None
    seen = read_observed(observed) if observed is not None else None
    return Chosen(
        split_names(select),
        split_names(ignore),
        risk,
        gpu,
        version,
        likely=likely,
        observed=seen,
        gpus=gpus,
        zero=zero,
        pipeline=pipeline,
    )


def split_names(values: Sequence[str] | None) -> tuple[str, ...]:
    """Names given comma-separated or repeated."""
    return tuple(name for value in values or () for part in value.split(",") if (name := part.strip()))


def script_arguments(context: typer.Context) -> tuple[str, ...]:
    """What followed ``--``."""
    return context.obj or ()


def refuse_script_arguments(context: typer.Context) -> None:
    """Usage error for a command that runs no script."""
    if context.obj is not None:
        raise ConfigError("this command runs no script, so nothing may follow `--`")


# --- commands -------------------------------------------------------------------------------------------------------


@app.callback(invoke_without_command=True)
def turbofix(
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version and exit.")] = False,
) -> None:
    """Make a slow PyTorch training script fast, in a small diff, and prove by running that it learns the same."""
    if version:
        typer.echo(f"turbofix {__version__}")
        raise typer.Exit


@app.command(cls=LightCommand)
@reporting
def analyze(  # noqa: PLR0913
    context: typer.Context,
    paths: Paths = None,
    select: Select = None,
    ignore: Ignore = None,
    risk: MaximumRisk = None,
    likely: Likely = False,
    gpu: Gpu = None,
    gpus: Gpus = None,
    zero: Zero = None,
    pipeline: Stages = None,
    torch_version: TorchVersion = None,
    output_format: OutputFormat = None,
    output_file: OutputFile = None,
    statistics: Statistics = False,
    exit_zero: ExitZero = False,
    jobs: Jobs = None,
    observed: ObservedFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """List what slows the training program down, and what is already done right."""
    refuse_script_arguments(context)
    chosen = choose(
        select,
        ignore,
        risk,
        gpu,
        torch_version,
        likely=likely,
        observed=observed,
        gpus=gpus,
        zero=zero,
        pipeline=pipeline,
    )
    output = telling.Output(output_format or Format.RICH, output_file, statistics, verbose, quiet)
    return telling.told_findings(paths, chosen, output, jobs, exit_zero=exit_zero)


@app.command(cls=RunningCommand)
@reporting
def apply(  # noqa: PLR0913
    context: typer.Context,
    paths: Paths = None,
    write: Annotated[bool, typer.Option("--write", help="Rewrite the files in place.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Keep only what runs of the script bear out.")] = False,
    select: Select = None,
    ignore: Ignore = None,
    risk: MaximumRisk = None,
    likely: Likely = False,
    gpu: Gpu = None,
    gpus: Gpus = None,
    zero: Zero = None,
    pipeline: Stages = None,
    torch_version: TorchVersion = None,
    output_format: OutputFormat = None,
    output_file: OutputFile = None,
    statistics: Statistics = False,
    exit_zero: ExitZero = False,
    jobs: Jobs = None,
    observed: ObservedFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    steps: Steps = None,
    repeats: Repeats = None,
    timeout: Timeout = None,
    python: Python = None,
    device: Device = None,
    seed: Seed = None,
    memory: Memory = None,
    disk: Disk = None,
    isolation: Isolation = None,
    keep_scratch: KeepScratch = False,
    processes: Processes = None,
) -> int:
    """Print the rewrite as a diff, or write it (--write); with --verify SCRIPT -- ARGS only what runs bear out."""
    output = telling.Output(output_format or Format.RICH, output_file, statistics, verbose, quiet)
    chosen = choose(
        select,
        ignore,
        risk,
        gpu,
        torch_version,
        likely=likely,
        observed=observed,
        gpus=gpus,
        zero=zero,
        pipeline=pipeline,
    )
    if verify:
        if paths is None or len(paths) != 1 or Path(paths[0]).is_dir():
            raise ConfigError("--verify runs one script: turbofix apply --verify SCRIPT -- ARGS")
        options = options_of_runs(context)
        return running.apply_verified(Path(paths[0]), script_arguments(context), chosen, options, output, write)
    refuse_script_arguments(context)
    if paths is not None and STDIN in paths:
        if len(paths) > 1 or write:
            raise ConfigError("standard input is rewritten to standard output, alone and without --write")
        return apply_to_stdin(chosen, verbose)

    inputs, workspace, errors = telling.open_inputs(paths)
    outcome = project.rewrite(inputs, chosen, workspace, jobs)
    pending = bool(outcome.texts)
    written: list[Path] = []
    if write:
        written, problems = project.write(outcome, workspace)
        errors += problems
        pending = False
    if statistics or output.format is not Format.RICH:
        telling.show_findings(outcome, output)
    elif not write:
        errors += show_diff(outcome, workspace, output)
    telling.show_problems(outcome, errors, verbose)
    if not quiet:
        summarize(outcome, written, write)
        telling.advise(outcome, chosen, told=bool(outcome.texts))
    if errors or outcome.errors:
        return FAILED
    return FOUND if pending and not exit_zero else CLEAN


@app.command(cls=RunningCommand)
@reporting
def verify(  # noqa: PLR0913
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The training script as it is.")],
    candidate: Annotated[
        Path | None,
        typer.Argument(
            metavar="CANDIDATE", help="A file, or a folder to lay over the script's. [default: what apply makes]"
        ),
    ] = None,
    select: Select = None,
    ignore: Ignore = None,
    risk: MaximumRisk = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    zero: Zero = None,
    pipeline: Stages = None,
    torch_version: TorchVersion = None,
    steps: Steps = None,
    repeats: Repeats = None,
    timeout: Timeout = None,
    python: Python = None,
    device: Device = None,
    seed: Seed = None,
    memory: Memory = None,
    disk: Disk = None,
    isolation: Isolation = None,
    keep_scratch: KeepScratch = False,
    processes: Processes = None,
    output_format: Annotated[VerifyFormat, typer.Option(help="How to show the result.")] = VerifyFormat.RICH,
    output_file: OutputFile = None,
    report: Report = None,
    quiet: Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also say what a run that failed wrote.")] = False,
) -> int:
    """Run the script as it is and as rewritten, and compare learning, speed and memory; its arguments follow `--`."""
    chosen = choose(select, ignore, risk, gpu, torch_version, gpus=gpus, zero=zero, pipeline=pipeline)
    options = options_of_runs(context)
    arguments = script_arguments(context)

    def plan() -> Request:
        if candidate is None:
            return verifying.plan_verification(script, arguments, chosen, options, Workspace())
        if context.obj is None and not candidate.exists():
            raise NothingToVerify(
                f"there is no file {shown(candidate)} to compare with; if this is an argument of the script, put "
                "`--` before it"
            )
        request = verifying.plan_comparison(script, candidate, arguments, risk or project.DEFAULT_RISK, options)
        return dataclasses.replace(request, gpus=gpus or 1)

    output = telling.Output(Format(output_format.value), output_file, verbose=verbose, quiet=quiet)
    code, kept = running.verified(plan, options, output, gpu, Wanted(report))
    if candidate is None and kept and not quiet:
        say("`turbofix apply --verify --write` writes what was kept")
    return code


@app.command(cls=RunningCommand)
@reporting
def profile(  # noqa: PLR0913
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The training script.")],
    select: Select = None,
    ignore: Ignore = None,
    risk: MaximumRisk = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    zero: Zero = None,
    pipeline: Stages = None,
    torch_version: TorchVersion = None,
    timeout: Timeout = None,
    python: Python = None,
    device: Device = None,
    memory: Memory = None,
    disk: Disk = None,
    isolation: Isolation = None,
    keep_scratch: KeepScratch = False,
    output_format: Annotated[VerifyFormat, typer.Option(help="How to show the result.")] = VerifyFormat.RICH,
    output_file: OutputFile = None,
    report: Report = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="F", help="Write the step as a trace for Chrome or Perfetto there.")
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(metavar="F", help="Add the step's figures as a line of JSON, or to tensorboard:DIR or wandb:DIR."),
    ] = None,
    quiet: Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also say what each run took.")] = False,
) -> int:
    """Show where a training step's time goes, and what each change would bring; the script's arguments follow `--`."""
    chosen = choose(select, ignore, risk, gpu, torch_version, gpus=gpus, zero=zero, pipeline=pipeline)
    options = options_of_runs(context)
    request = verifying.plan_profile(script, script_arguments(context), chosen, options, Workspace())
    output = telling.Output(Format(output_format.value), output_file, verbose=verbose, quiet=quiet)
    return running.profiled(request, output, gpu, Wanted(report, trace, log))


@app.command(cls=LightCommand)
@reporting
def calibrate(
    python: Python = None,
    output_file: OutputFile = None,
    quiet: Quiet = False,
) -> int:
    """Measure the GPU that is here for a minute, so that estimates for it rest on it and not on a data sheet."""
    return running.calibrated(python, telling.Output(file=output_file, quiet=quiet))


@app.command(cls=LightCommand)
@reporting
def explain(
    context: typer.Context,
    codemod: Annotated[
        str | None, typer.Argument(metavar="CODEMOD", help="The codemod's name, or words to look for.")
    ] = None,
) -> int:
    """Print the page of one codemod; without a name, the list of all."""
    from turbofix.report import pages

    refuse_script_arguments(context)
    codemods = registry.load()
    if not codemod:
        telling.emit(pages.listing(codemods))
        return CLEAN
    try:
        telling.emit(pages.page(registry.find(codemods, codemod)))
    except registry.UnknownName:
        said = pages.found(codemods, codemod)
        if said is None:
            raise
        telling.emit(said)
    return CLEAN


# --- doing ----------------------------------------------------------------------------------------------------------


def apply_to_stdin(chosen: Chosen, verbose: bool) -> int:
    """Write the source from standard input, rewritten or not, to standard output."""
    inputs, workspace, errors = telling.open_inputs([STDIN])
    if errors:
        telling.show_problems(Outcome(()), errors, verbose)
        return FAILED
    place = Path.cwd() / STDIN
    source = workspace.source(place)
    assert isinstance(source, Source)
    outcome = project.rewrite(inputs, chosen, workspace)
    text = outcome.texts.get(place, source.text)
    if outcome.texts.keys() - {place}:
        say("note: the rewrite also changes other files, so it was left out; give the script's path instead")
        text = source.text
    data = source.encode(text)
    if isinstance(data, SourceError):
        errors, data = [data], source.data
    telling.emit(data)
    telling.show_problems(outcome, errors, verbose)
    return FAILED if errors or outcome.errors else CLEAN


def options_of_runs(context: typer.Context) -> Options:
    """How the runs are to be made: what the command line gives, and the defaults of ``Options``."""
    from turbofix.verify import Options

    given = {name: context.params[name] for name in vars(Options()) if context.params.get(name) is not None}
    return Options(**given | {name: int(given[name] * (1 << 30)) for name in ("memory", "disk") if name in given})


# --- showing --------------------------------------------------------------------------------------------------------


def show_diff(outcome: Outcome, workspace: Workspace, output: telling.Output) -> list[SourceError]:
    """The diff, and the files that it could not be made for."""
    from turbofix.report import diff

    contents, errors = project.encode(outcome.texts, workspace)
    made = diff.render(contents, workspace)
    running.tell_base(contents, workspace)
    telling.emit(diff.colored(made) if output.file is None and telling.use_color(sys.stdout) else made, output.file)
    return errors


def summarize(outcome: Outcome, written: Sequence[Path], write: bool) -> None:
    """What was or would be done, in a line, and what was not: it was made void, or a script rules it out."""
    applied = [applied for rewriting in outcome.rewritings for applied in rewriting.stages]
    names = ", ".join(dict.fromkeys(each.codemod for each in applied))
    if write:
        say(f"rewrote {', '.join(shown(path) for path in written)} ({names})" if written else "nothing was rewritten")
    elif outcome.texts:
        files = f"{len(outcome.texts)} file{'s' if len(outcome.texts) > 1 else ''}"
        say(f"would rewrite {files} ({names}); --write does, `turbofix verify SCRIPT -- ARGS` proves it")
    else:
        say("nothing to change")
    tell_untried(outcome)
    for rewriting in outcome.rewritings:
        for sentence in verifying.made_void(rewriting):
            say(sentence)
    for (codemod, path), objection in outcome.objections.items():
        say(f"{shown(path)}: {codemod} was not applied: {project.ruled_out(objection)}")


def tell_untried(outcome: Outcome) -> None:
    """What rests on assumptions, in a line, and the command that tries it."""
    untried = outcome.untried
    if not untried:
        return
    names = list(dict.fromkeys(each.codemod for each in sorted(untried, key=lambda each: each.worth)))
    shortened = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
    scripts = [report.path for report in outcome.reports if report.trains and not report.defines]
    script = shown(scripts[0]) if len(scripts) == 1 else "SCRIPT"
    many = f"{len(untried)} more are" if len(untried) > 1 else "1 more is"
    tries, takes = ("tries them", "takes them") if len(untried) > 1 else ("tries it", "takes it")
    say(f"{many} likely ({shortened}): turbofix apply --verify {script} -- ARGS {tries}; --likely {takes} untried")
