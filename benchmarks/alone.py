"""Every codemod by itself on a whole training: that it acts there, and that ``verify`` bears it out.

    python -m benchmarks.alone [--only NAME] [--python EXE] [--rows FILE] [--page FILE]

``CASES`` says on which training of ``fixtures/scripts`` each codemod is tried; where a framework has a setting for what
it changes, on a training under that framework too. What is run is ``turbofix verify SCRIPT --select NAME --risk recipe
-- ARGS``. The trainings in ``fixtures/scripts/libraries`` want packages beside torch: ``--python`` names an interpreter
that has them. Where it has not, they are told as not run.

With ``--rows`` the outcomes are appended to a file, and those that stand in it are not run again; ``--page`` writes
all of them as a page. Exits with 1 where a codemod does not act, or is not kept by a run that could tell.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.composition import QUICK, SCRIPTS, TIMEOUT
from turbofix.engine.project import Chosen
from turbofix.engine.verifying import NothingToChange, plan_verification
from turbofix.findings import Risk
from turbofix.source.files import Workspace
from turbofix.verify import Options, Request, verify
from turbofix.verify.result import DROPPED, INCONCLUSIVE, KEPT

SILENT = "silent"
"""The codemod rewrites nothing: the table is wrong, or the codemod is."""
NOT_RUN = "not run"
ASKED: dict[str, dict[str, Any]] = {
    "ddp": {"gpus": 2},
    "zero": {"gpus": 2, "zero": 1},
    "pipeline-parallel": {"pipeline": 2, "torch_version": (2, 6)},
}
"""What codemods are asked for by, beside their names."""
"""What a pipeline is asked for by."""


@dataclass(frozen=True)
class Case:
    """A codemod and the training that it is tried on. ``beside`` names codemods that must have gone before it."""

    codemod: str
    script: str
    args: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return SCRIPTS / self.script

    @property
    def name(self) -> str:
        return f"{self.codemod} on {self.script}"


def case(codemod: str, script: str, *args: str, beside: tuple[str, ...] = (), needs: tuple[str, ...] = ()) -> Case:
    """Short for the table."""
    return Case(codemod, script, args or QUICK.get(script, ()), beside, needs)


BERT, TRAINER, LIGHTNING, ACCELERATE = (
    f"libraries/{name}.py" for name in ("bert_reviews", "trainer_reviews", "lightning_reviews", "accelerate_tiles")
)

CASES = (
    # data
    case("hoist-loader", "tabular_mlp.py"),
    case("preload-dataset", "tabular_mlp.py"),
    case("larger-batch", "seq2seq.py", "--epochs", "2"),
    case("loader-workers", "mnist_functions.py"),
    case("pin-memory", "sentiment_trainer.py"),
    case("cache-preprocessing", "wide_reviews.py"),
    case("dynamic-padding", BERT, needs=("transformers",)),
    case("non-blocking", "sentiment_trainer.py"),
    case("device-tensors", "gan.py"),
    # compute
    case("use-cuda", "textures.py"),
    case("autocast", "wide_reviews.py"),
    case("modern-amp", "image_amp.py"),
    case("tf32", "wide_reviews.py"),
    case("channels-last", "residual_tiles.py", "--epochs", "2", beside=("autocast",)),
    case("compile-model", "residual_tiles.py", "--epochs", "2"),
    case("cudnn-benchmark", "residual_tiles.py", "--epochs", "2"),
    case("sdpa", "char_gpt.py"),
    case("native-ops", "char_gpt.py"),
    case("bias-before-norm", "mnist_flat.py"),
    # updates
    case("fused-optimizer", "spirals.py"),
    case("foreach-ema", "ema_bytes.py"),
    case("set-to-none", "spirals.py"),
    case("adam-8bit", "wide_reviews.py"),
    case("clip-gradients", "majority_transformer.py"),
    # its own rate is low enough to stay as it is: a schedule that ends at zero learns less then in four epochs
    case("warmup-schedule", "majority_transformer.py", "--lr", "6e-3"),
    case("skip-unused-gradients", "critic_points.py"),
    # several processes
    case("ddp", "mnist_flat.py"),
    case("no-sync", "ddp_points.py"),
    case("ddp-flags", "ddp_points.py"),
    case("zero", "ddp_points.py"),
    case("pipeline-parallel", "deep_points.py"),
    # waits and the rest
    case("defer-item", "rnn_lm.py"),
    case("throttle-logging", "seq2seq.py", "--epochs", "2"),
    case("no-grad-eval", "tabular_mlp.py"),
    case("no-debug-mode", "spirals.py"),
    case("no-empty-cache", "image_amp.py"),
    case("crash-checkpoint", "ema_bytes.py"),
    # the settings of frameworks
    *(
        case(name, TRAINER, needs=("transformers", "accelerate"))
        for name in ("autocast", "fused-optimizer", "loader-workers", "larger-batch", "activation-checkpointing")
    ),
    *(
        case(name, LIGHTNING, needs=("lightning",))
        for name in ("autocast", "fused-optimizer", "loader-workers", "clip-gradients", "tf32", "grad-accumulation")
    ),
    *(
        case(name, ACCELERATE, needs=("accelerate",))
        for name in ("non-blocking", "fused-optimizer", "loader-workers", "defer-item")
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What came of one case: what became of the codemod, and why."""

    codemod: str
    script: str
    args: tuple[str, ...]
    beside: tuple[str, ...]
    verdict: str
    reason: str

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the codemod: it acted, and no run that could tell dropped it."""
        return self.verdict not in (SILENT, DROPPED, INCONCLUSIVE)


def planned(case: Case, python: str | None = None) -> Request | None:
    """What the codemod makes of the training; None where it rewrites nothing there."""
    chosen = Chosen(select=(case.codemod, *case.beside), risk=Risk.RECIPE, likely=True, **ASKED.get(case.codemod, {}))
    try:
        request = plan_verification(case.path, case.args, chosen, Options(timeout=TIMEOUT, python=python), Workspace())
    except NothingToChange:
        return None
    return request if any(stage.codemod == case.codemod for stage in request.stages) else None


def missing(case: Case, python: str | None = None) -> tuple[str, ...]:
    """The packages that a training wants and the interpreter does not have."""
    asked = "import importlib.util, sys; print(*[each for each in sys.argv[1:] if not importlib.util.find_spec(each)])"
    if not case.needs:
        return ()
    told = subprocess.run(
        [python or sys.executable, "-c", asked, *case.needs], capture_output=True, text=True, check=True
    )
    return tuple(told.stdout.split())


def outcome(case: Case, python: str | None = None) -> Outcome:
    """Verify one case."""

    def told(verdict: str, reason: str) -> Outcome:
        return Outcome(case.codemod, case.script, case.args, case.beside, verdict, reason)

    request = planned(case, python)
    if request is None:
        return told(SILENT, "nothing is rewritten")
    if absent := missing(case, python):
        return told(NOT_RUN, f"{', '.join(absent)} not installed")
    found = verify(request)
    judged = next((each for each in found.codemods if each.codemod == case.codemod), None)
    if judged is None:
        return told(found.verdict, found.reason)
    return told(judged.verdict, judged.reason)


FIXTURES_ALONE = """
Settings of frameworks that no training here shows, so that fixtures alone hold them: of the `Trainer` of transformers
those for TF32, compiling, pinning, accumulation, 8-bit states and padding; of Lightning those for cuDNN's benchmark
and accumulation; Accelerate's `mixed_precision`.
"""


def page(outcomes: Iterable[Outcome], where: str) -> str:
    """All outcomes as Markdown."""
    words = {KEPT: "pass", DROPPED: "**fail**", SILENT: "**silent**", INCONCLUSIVE: "**inconclusive**"}
    rows = sorted(outcomes, key=lambda each: (each.codemod, each.script))
    counts = {
        word: sum(words.get(each.verdict, each.verdict) == word for each in rows)
        for word in dict.fromkeys(words.get(each.verdict, each.verdict) for each in rows)
    }
    lines = [
        f"# Every codemod by itself on a whole training, {datetime.datetime.now(tz=datetime.timezone.utc):%Y-%m-%d}",
        "",
        f"`python -m benchmarks.alone`, {where}. Each row is",
        "`turbofix verify SCRIPT --select CODEMOD --risk recipe` for a training of `fixtures/scripts`: "
        + ", ".join(f"{count} {word}" for word, count in counts.items())
        + ".",
        "",
        "*Unverified* means that the run does not reach what the codemod changed, or cannot tell; the reason stands",
        "there. A run without a GPU says nothing about speed.",
        "",
        "| codemod | script | verdict | what was seen |",
        "| --- | --- | --- | --- |",
    ]
    for each in rows:
        script = " ".join((each.script, *each.args))
        codemod = f"`{each.codemod}`" + "".join(f", after `{other}`" for other in each.beside)
        reason = each.reason.replace("|", "\\|")
        lines.append(f"| {codemod} | `{script}` | {words.get(each.verdict, each.verdict)} | {reason} |")
    return "\n".join(lines) + "\n" + FIXTURES_ALONE


def where_it_ran(python: str | None) -> str:
    """Versions, the machine and the commit."""
    asked = """
import importlib.metadata as there, sys, torch
found = {each.metadata["Name"]: each.version for each in there.distributions()}
print(torch.__version__)
print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else "")
print(*[f"{name} {found[name]}" for name in sys.argv[1:] if name in found], sep=", ")
"""
    packages = sorted({package for each in CASES for package in each.needs} | {"bitsandbytes"})
    told = subprocess.run(
        [python or sys.executable, "-c", asked, *packages], capture_output=True, text=True, check=True
    )
    torch, gpu, others = (*told.stdout.split("\n"), "", "")[:3]
    asked_git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked_git, cwd=SCRIPTS, capture_output=True, text=True, check=False).stdout.strip()
    device = gpu or f"CPU ({platform.machine()})"
    versions = ", ".join(filter(None, (f"torch {torch}", others)))
    return f"{versions}, {device}, CPython {platform.python_version()}, commit {commit or 'unknown'}"


def read(rows: Path) -> list[Outcome]:
    """The outcomes that a run wrote down."""
    found = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    return [Outcome(**{**row, "args": tuple(row["args"]), "beside": tuple(row["beside"])}) for row in found]


def main(
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="These codemods or scripts alone.")] = None,
    python: Annotated[str | None, typer.Option(metavar="EXE", help="The interpreter that runs the trainings.")] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append the outcomes, and go on from there.")
    ] = None,
    page_file: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Write all as a page.")] = None,
) -> None:
    """Verify every codemod by itself on a whole training."""
    found: list[Outcome] = []
    before = read(rows) if rows is not None and rows.exists() else []
    for each in CASES:
        if only and not {each.codemod, each.script} & set(only):
            continue
        done = [old for old in before if (old.codemod, old.script, old.args) == (each.codemod, each.script, each.args)]
        seen = done[-1] if done else outcome(each, python)
        found.append(seen)
        typer.echo(f"{each.name}: {seen.verdict}: {seen.reason}")
        if rows is not None and not done:
            with rows.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(asdict(seen)) + "\n")
    if page_file is not None:
        page_file.write_text(page(found, where_it_ran(python)), encoding="utf-8")
    raise typer.Exit(not all(each.holds for each in found))


if __name__ == "__main__":
    typer.run(main)
