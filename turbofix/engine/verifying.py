"""What it takes to verify a script: against what ``apply`` would make of it, or against a file of the user's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turbofix import registry
from turbofix.assumptions import compare
from turbofix.engine import pipeline
from turbofix.engine.importers import imported_files
from turbofix.engine.project import Chosen, encode, error_in_cell, rewrite, shown
from turbofix.engine.reports import FileReport, Rewriting
from turbofix.findings import Risk
from turbofix.source.files import Source, SourceError, Workspace, read_source

if TYPE_CHECKING:
    from turbofix.verify import Options, Request, Stage


class NothingToVerify(Exception):  # noqa: N818  (an outcome, told to the user as a sentence)
    """There is no rewritten program to compare with; the argument is a sentence."""


class NothingToChange(NothingToVerify):
    """The script is as ``apply`` would leave it."""


def plan_verification(
    script: Path, args: Sequence[str], chosen: Chosen, options: Options, workspace: Workspace
) -> Request:
    """What it takes to verify a script against what ``apply`` would make of it, codemod by codemod.

    Raises:
        NothingToVerify: the script cannot be read; ``NothingToChange``: nothing would be rewritten.
        ConfigError, UnknownName, PackError: nothing can be done with these settings.
    """
    from turbofix.verify import Request, Stage
    from turbofix.verify.request import ASSUMPTION, FINDING, Piece

    path = Path(os.path.abspath(script))
    codemods = {codemod.name: codemod for codemod in registry.load()}

    source = workspace.source(path)
    notebook = source.notebook if isinstance(source, Source) else None
    sharing: tuple[FileReport, ...] | None = None

    @cache  # a verification asks for one set several times, and each answer is an analysis of the program
    def stages(without: frozenset[str]) -> tuple[Stage, ...]:
        nonlocal sharing
        fewer = replace(
            chosen,
            likely=True,
            ignore=(*chosen.ignore, *sorted(name for name in without if ":" not in name)),
            refuted=_behind(ASSUMPTION, without),
            without=_behind(FINDING, without),
        )
        outcome = rewrite([path], fewer, workspace, sharing=sharing)
        sharing = outcome.sharing if sharing is None else sharing
        if outcome.errors:
            raise NothingToVerify("; ".join(report.error or "" for report in outcome.errors))
        made = []
        for rewriting in outcome.rewritings:
            for number, applied in enumerate(rewriting.stages):
                contents, errors = encode(applied.texts, workspace)
                if errors:
                    raise NothingToVerify("; ".join(f"{shown(each.path)}: {each.sentence}" for each in errors))
                if path in contents and notebook is not None:
                    contents[path] = applied.texts[path].encode()
                codemod = codemods[applied.codemod]
                unlocking = [each.codemod for each in rewriting.stages[:number] if codemod.name in each.unlocked]
                gains = [finding.gain for finding in applied.findings if finding.gain is not None]
                made.append(
                    Stage(
                        codemod.name,
                        applied.risk,
                        contents,
                        gain=max(gains, key=lambda gain: (gain.high, gain.low), default=None),
                        after=(*codemod.after, *unlocking),
                        together=codemod.together,
                        for_speed=all(finding.for_speed for finding in applied.findings),
                        assumes=tuple(dict.fromkeys(each for f in applied.findings for each in f.assumes)),
                        pieces=tuple(
                            Piece(FINDING + name if name else "", lines, bool(finding.assumes))
                            for finding, name, lines in zip(applied.findings, applied.names, applied.lines, strict=True)
                        ),
                        claims=tuple(each for each in codemod.assumes if each.check == compare("rounded")),
                        void=tuple(made_void(rewriting)),
                        mends=codemod.mends,
                        processes=codemod.processes,
                        shares=codemod.shares,
                    )
                )
        return tuple(made)

    first = stages(frozenset())
    if not first:
        raise NothingToChange(f"{shown(path)}: there is nothing to verify, since apply would change nothing")
    gpus = chosen.settings(path.parent).gpus or 1
    request = Request(path, tuple(args), first, options, stages, gpus=gpus, joins=_joins(path, workspace))
    return replace(request, **_as_a_script(source))


def plan_profile(script: Path, args: Sequence[str], chosen: Chosen, options: Options, workspace: Workspace) -> Request:
    """What it takes to profile a script: as ``plan_verification``, with no stages where nothing would be rewritten."""
    from turbofix.verify import Request

    try:
        return plan_verification(script, args, chosen, options, workspace)
    except NothingToChange:
        path = Path(os.path.abspath(script))
        gpus = chosen.settings(path.parent).gpus or 1
        return replace(Request(path, tuple(args), options=options, gpus=gpus), **_as_a_script(workspace.source(path)))


def made_void(rewriting: Rewriting) -> Iterator[str]:
    """What an earlier rewrite has made void, in sentences."""
    for each in rewriting.void:
        where = rewriting.report.spot(each.site).start
        yield f"{shown(each.site.path)}:{where}: {each.codemod} was not applied: {each.why_not}"


def _behind(mark: str, names: Iterable[str]) -> frozenset[str]:
    """The names that stand behind a mark."""
    return frozenset(name.removeprefix(mark) for name in names if name.startswith(mark))


def plan_comparison(script: Path, candidate: Path, args: Sequence[str], risk: Risk, options: Options) -> Request:
    """What it takes to verify a script against a file of the user's, or a folder that is laid over the script's.

    Raises:
        NothingToVerify: script or candidate cannot be read.
    """
    from turbofix.verify import Request, Stage
    from turbofix.verify.processes import speaks_of_them

    path = Path(os.path.abspath(script))
    inner = (
        {path.parent / file.relative_to(candidate): file for file in sorted(candidate.rglob("*")) if file.is_file()}
        if candidate.is_dir()
        else {path: candidate}
    )
    if not inner:
        raise NothingToVerify(f"{shown(candidate)}: there are no files in this folder")
    ours = read_source(path)
    texts: dict[Path, bytes] = {}
    for file in (path, *inner.values()):
        if file.suffix in (".py", ".ipynb") or file == candidate:
            source = ours if file == path else read_source(file)
            if isinstance(source, SourceError):
                raise NothingToVerify(f"{shown(file)}: {source.sentence}")
            problem = pipeline.syntax_error(Path(shown(file)), source.text)
            if problem is not None:
                cells = source.cells
                raise NothingToVerify(error_in_cell(problem, Path(shown(file)), cells) if cells else problem)
            if source.notebook is not None:
                texts[file] = source.text.encode()
    contents = {place: file.read_bytes() for place, file in inner.items()}
    contents |= {place: texts[file] for place, file in inner.items() if file in texts}
    joins = _joins(path, Workspace())
    several = joins or bool(options.processes) or any(map(speaks_of_them, contents.values()))
    stage = Stage(None, risk, contents, processes=several)
    return replace(Request(path, tuple(args), (stage,), options, joins=joins), **_as_a_script(ours))


def _joins(script: Path, workspace: Workspace) -> bool:
    """Whether the script, or a file of its project that it imports, trains in several processes under torchrun."""
    from turbofix.verify.processes import speaks_of_them

    sources = (workspace.source(path) for path in imported_files(script, workspace))
    return any(isinstance(source, Source) and speaks_of_them(source.data) for source in sources)


def _as_a_script(source: Source | SourceError) -> dict[str, Any]:
    """What a request needs for a notebook to be run: its code, and where the lines of such code are."""
    if isinstance(source, SourceError) or (notebook := source.notebook) is None:
        return {}

    def told(content: bytes, line: int) -> str:
        cell, line = notebook.place(content.decode(), line)
        return f"cell {cell}, line {line}"

    return {"texts": {source.path: source.text.encode()}, "told": told}


def as_files(kept: Mapping[Path, bytes], workspace: Workspace) -> dict[Path, bytes]:
    """What survived a verification as it is written: a notebook's code goes back into the notebook."""
    sources = {path: workspace.source(path) for path in kept}
    texts = {
        path: kept[path].decode()
        for path, source in sources.items()
        if isinstance(source, Source) and source.notebook is not None
    }
    return {**kept, **encode(texts, workspace)[0]}
