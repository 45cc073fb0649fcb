"""Several inputs in one run: paths to scripts, each with its settings; their reports and rewritings, merged.

One cause is one finding: a module that several scripts import is reported once, and it is rewritten only where no
script that uses it has a reason against it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix import assumptions, registry
from turbofix.codemod import Codemod
from turbofix.config import Settings, find_settings, suppressions, target
from turbofix.engine import pipeline
from turbofix.engine.importers import Importers, imported_files, searched
from turbofix.engine.observed import Observed
from turbofix.engine.pipeline import Keep
from turbofix.engine.reports import FileReport, Rewriting, Trust
from turbofix.engine.sentences import examined_retold, in_place_retold, with_lines
from turbofix.engine.sharing import Objection, objections
from turbofix.findings import Examined, InPlace, Risk
from turbofix.records import dataclass
from turbofix.source.files import STDIN, Source, SourceError, Workspace, python_files, why_not_writable, write_bytes
from turbofix.source.site import Site, Spot, spot

if TYPE_CHECKING:
    from turbofix.source.notebook import Cells


DEFAULT_RISK = Risk.EQUIVALENT
_FILES_PER_WORKER = 12  # below some dozen files a second process costs more than it saves


@dataclass(frozen=True)
class Chosen:
    """What the command line says of the settings; None and empty where it says nothing.

    ``refuted`` are assumptions that a run of the script has refuted, ``without`` findings that it has left out: a
    verification says so. ``observed`` is what a run has shown of one of the scripts.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    risk: Risk | None = None
    gpu: str | None = None
    torch_version: tuple[int, int] | None = None
    likely: bool | None = None
    refuted: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    observed: Observed | None = None
    gpus: int | None = None
    zero: int | None = None
    pipeline: int | None = None

    def settings(self, folder: Path) -> Settings:
        """The settings that hold in ``folder``, with the command line's on top. Raises ConfigError."""
        return find_settings(folder).under(
            self.select,
            self.ignore,
            risk=self.risk,
            gpu=self.gpu,
            gpus=self.gpus,
            zero=self.zero,
            pipeline=self.pipeline,
            torch_version=self.torch_version,
            likely=self.likely or None,
        )

    def trust(self, settings: Settings, path: Path) -> Trust:
        """What is believed of assumptions of this script under these settings."""
        seen = self.observed if self.observed is not None and self.observed.speaks_of(path) else None
        return Trust(bool(settings.likely), frozenset(settings.assume), self.refuted, self.without, seen)


@dataclass(frozen=True)
class Script:
    """One input: a file, by absolute path. ``named``: the user named it, it was not found in a folder."""

    path: Path
    settings: Settings
    named: bool
    trust: Trust = Trust()

    @property
    def risk(self) -> Risk:
        """The highest risk that the user accepts."""
        return self.settings.risk or DEFAULT_RISK


@dataclass(frozen=True)
class Outcome:
    """What came of all inputs. ``warnings`` are sentences about what the user wrote amiss in the files.

    ``sharing`` are scripts that nobody named and that run files which would be rewritten.
    """

    reports: tuple[FileReport, ...]
    rewritings: tuple[Rewriting, ...] = ()
    warnings: tuple[str, ...] = ()
    sharing: tuple[FileReport, ...] = ()

    @property
    def fixable(self) -> int:
        """How many findings ``apply`` would fix at each script's risk."""
        return sum(map(self.applies, self.findings))

    def applies(self, examined: Examined) -> bool:
        """Whether ``apply`` would fix a finding: its edit is safe, and its risk is one that the user accepts."""
        return examined.fixable and (examined.codemod, examined.site) in self._accepted

    def why_not(self, examined: Examined) -> str | None:
        """Why ``apply`` does not fix a finding: what makes it unsafe, or what the user has not accepted."""
        if not examined.fixable or self.applies(examined):
            return examined.why_not
        if self.accepts_risk(examined):
            return f"it assumes that {' and '.join(each.sentence for each in examined.assumes)}"
        return f"its risk needs --risk {examined.risk.value}"

    @property
    def untried(self) -> tuple[Examined, ...]:
        """What ``apply`` leaves out only because it rests on assumptions."""
        return tuple(
            each
            for each in self.findings
            if each.fixable and each.assumes and not self.applies(each) and self.accepts_risk(each)
        )

    def accepts_risk(self, examined: Examined) -> bool:
        """Whether the user accepts the risk of a finding, for one of the scripts."""
        return any(examined.risk <= report.risk for report in self.reports)

    @cached_property
    def _accepted(self) -> frozenset[tuple[str, Site]]:
        return frozenset(
            (each.codemod, each.site) for report in self.reports for each in report.findings if report.accepts(each)
        )

    @property
    def shown(self) -> tuple[Examined, ...]:
        """The findings, less those that only say that nothing was seen."""
        return tuple(each for each in self.findings if not each.is_unseen)

    @property
    def findings(self) -> tuple[Examined, ...]:
        """Every finding once, by path, line, column, codemod; refused where it is wrong for any script that runs it."""
        merged: dict[tuple[str, Site], Examined] = {}
        for report in self.reports:
            for finding in report.findings:
                known = merged.get((finding.codemod, finding.site))
                if known is None or finding.fixable > known.fixable:
                    merged[finding.codemod, finding.site] = finding
                elif known.fixable and finding.fixable:  # it rests on what it rests on for each script
                    assumes = tuple(dict.fromkeys((*known.assumes, *finding.assumes)))
                    merged[finding.codemod, finding.site] = replace(known, assumes=assumes)
        for key, finding in merged.items():
            objection = self.objections.get((finding.codemod, finding.site.path)) if finding.fixable else None
            if objection is not None and objection.assumes:  # it is likely for a script that shares the file
                assumes = tuple(dict.fromkeys((*finding.assumes, *objection.assumes)))
                merged[key] = replace(finding, assumes=assumes)
            elif objection is not None:
                merged[key] = replace(finding, fixable=False, why_not=ruled_out(objection))
        return tuple(sorted(merged.values(), key=_sort_key))

    @cached_property
    def objections(self) -> Mapping[tuple[str, Path], Objection]:
        """Codemod and file, where what is right for one script is not for another one."""
        return objections(self.reports, self.sharing)

    @property
    def in_place(self) -> tuple[InPlace, ...]:
        """What is right already, each once."""
        found = {each for report in self.reports for each in report.in_place}
        return tuple(sorted(found, key=_sort_key))

    def spot(self, site: Site) -> Spot:
        """Where a site is, as results tell it."""
        return spot(site, self._cells.get(site.path))

    @cached_property
    def _cells(self) -> Mapping[Path, Cells]:
        return {report.path: report.cells for report in self.reports if report.cells is not None}

    @property
    def errors(self) -> tuple[FileReport, ...]:
        """The inputs that could not be served."""
        return tuple(report for report in self.reports if report.error is not None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong inside turbofix, first line for people, then a traceback."""
        sources = (*self.reports, *(rewriting.report for rewriting in self.rewritings))
        return tuple(dict.fromkeys(note for report in sources for note in report.notes))

    @property
    def texts(self) -> Mapping[Path, str]:
        """The final text of every changed file."""
        return {path: text for rewriting in self.rewritings for path, text in rewriting.texts.items()}


def ruled_out(objection: Objection) -> str:
    """Why a file that several scripts run is left as it is."""
    return f"{shown(objection.script)}, which runs line {objection.line} too, rules it out: {objection.why_not}"


def _sort_key(said: Examined | InPlace) -> tuple[str, int, int, str]:
    return shown(said.site.path), said.site.line, said.site.column, said.codemod


def shown(path: Path) -> str:
    """A path as results name it: relative to the current folder, ``-`` for standard input."""
    if path.name == STDIN:
        return STDIN
    return _shown(path, os.getcwd())


@lru_cache(maxsize=4096)
def _shown(path: Path, here: str) -> str:
    try:
        return Path(os.path.relpath(path, here)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


# --- inputs -------------------------------------------------------------------------------------------------------


def find_scripts(paths: Sequence[Path], chosen: Chosen) -> tuple[list[Script], list[FileReport]]:
    """The scripts that the paths name, and an error report for each path that names none.

    Raises:
        ConfigError: a pyproject.toml holds something that it must not.
    """
    scripts: dict[Path, Script] = {}
    errors = []
    for path in paths:
        if path.is_dir():
            files = [Path(os.path.abspath(file)) for file in python_files(path)]
            if not files:
                errors.append(_failed(path, f"{shown(path)}: there are no Python files in this folder"))
            for file in files:
                settings = chosen.settings(file.parent)
                script = Script(file, settings, named=False, trust=chosen.trust(settings, file))
                if not script.settings.excludes(file):
                    scripts.setdefault(file, script)
        else:
            # Not resolved: a link's own folder is where its imports are looked for first.
            file = Path(os.path.abspath(path))
            settings = chosen.settings(file.parent)
            scripts[file] = Script(file, settings, named=True, trust=chosen.trust(settings, file))
    return list(scripts.values()), errors


def _failed(path: Path, sentence: str) -> FileReport:
    return FileReport(path, "none", trains=False, error=sentence)


def keep_wanted(settings: Settings, blocked: frozenset[tuple[str, Path]] = frozenset()) -> Keep:
    """Which codemods the user wants to hear of in which file: not excluded, not turned off for it, not ``blocked``."""

    def keep(path: Path, codemod: Codemod) -> bool:
        unwanted = {codemod.name, codemod.group, "all"} & set(settings.ignored_in(path))
        return not (unwanted or settings.excludes(path) or (codemod.name, path) in blocked)

    return keep


# --- analysis -----------------------------------------------------------------------------------------------------


def analyze(paths: Sequence[Path], chosen: Chosen, workspace: Workspace, jobs: int | None = None) -> Outcome:
    """Analyze every script that the paths name.

    Raises:
        ConfigError, UnknownName, PackError: nothing can be done with these settings; the argument is a sentence.
    """
    scripts, errors = find_scripts(paths, chosen)
    reports = _reports(scripts, workspace, jobs)
    pairs = _without_imported(list(zip(scripts, reports, strict=True)), workspace)
    found = tuple(sorted((*errors, *(report for _, report in pairs)), key=lambda each: shown(each.path)))
    warnings = tuple(dict.fromkeys(warning for report in reports for warning in report.warnings))
    return Outcome(tuple(_with_starters(found, workspace)), warnings=warnings)


def _reports(scripts: Sequence[Script], workspace: Workspace, jobs: int | None) -> list[FileReport]:
    codemods = registry.load()
    for script in scripts:  # a wrong name is told before any work is done
        registry.select(codemods, script.settings.select, script.settings.ignore)
    workers = min(jobs or os.cpu_count() or 1, len(scripts) // _FILES_PER_WORKER)
    if workers <= 1:
        return [_report(script, workspace, codemods) for script in scripts]
    import multiprocessing
    import threading
    from concurrent.futures import ProcessPoolExecutor

    # Forked, what is loaded is loaded once; in a process that has threads that is not safe, nor everywhere to be had.
    way = "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"
    if way == "fork":
        pass
    with ProcessPoolExecutor(workers, multiprocessing.get_context(way)) as pool:
        return list(pool.map(_report_alone, scripts, chunksize=4))


def _report_alone(script: Script) -> FileReport:
    """One script in another process, which reads the disk for itself (standard input is never one of many)."""
    return _report(script, *_of_this_process())


@cache
def _of_this_process() -> tuple[Workspace, tuple[Codemod, ...]]:
    """What such a process has read, for all of its scripts."""
    return Workspace(), registry.load()


def _report(script: Script, workspace: Workspace, codemods: Sequence[Codemod]) -> FileReport:
    source = workspace.source(script.path)
    if isinstance(source, SourceError):
        return _failed(script.path, f"{shown(script.path)}: {source.sentence}")
    goal = target(script.settings, script.path, workspace.root(script.path))
    selected = registry.select(codemods, script.settings.select, script.settings.ignore)
    others = [each for each in registry.select(codemods, (), script.settings.ignore) if each not in selected]
    how = selected, goal, keep_wanted(script.settings), script.trust
    report = pipeline.analyze(script.path, workspace, *how, others)
    error = report.error
    if error is None and report.notes and report.framework == "none":
        # The analysis itself broke: to say "nothing found" would be a lie.
        error = f"{shown(script.path)}: turbofix failed on this file ({report.notes[0].splitlines()[0]})"
    cells = source.cells
    if cells is not None:
        report, error = told_in_cells(report, cells), error and error_in_cell(error, script.path, cells)
    return replace(
        report,
        error=error and error.replace(str(script.path), shown(script.path)),
        cells=cells,
        risk=script.risk,
        likely=script.trust.likely,
        warnings=(*_left_out(source), *_unknown_names(report, cells, workspace, codemods)),
    )


def _left_out(source: Source) -> Iterator[str]:
    """The cells of a notebook that were not read."""
    for cell in source.notebook.left_out if source.notebook is not None else ():
        yield f"{shown(source.path)}:cell {cell}: Python cannot read this cell, so it cannot run: it was left out"


def _unknown_names(
    report: FileReport, cells: Cells | None, workspace: Workspace, codemods: Sequence[Codemod]
) -> Iterable[str]:
    """What is wrong with the suppression comments of a script and of the modules that something was found in."""
    sites = [each.site for each in report.findings] + [each.site for each in report.in_place]
    for path in sorted({report.path, *(site.path for site in sites)}, key=shown):
        comments = suppressions(workspace.read(path) or "")
        wrong = [
            (line, sentence)
            for line, names in comments.lines
            for name in sorted(names or ())
            if (sentence := registry.unknown(codemods, name)) is not None
        ]
        wrong += [
            (line, sentence)
            for line, names in comments.declared
            for name in sorted(names)
            if (sentence := assumptions.unknown(name)) is not None
        ]
        for line, sentence in sorted(wrong):
            where = f"{shown(path)}:{line}"
            if cells is not None and path == report.path:
                where = "{}:cell {}:{}".format(shown(path), *cells.place(line))
            yield f"{where}: in the comment for turbofix, {sentence}"


def _with_starters(reports: Sequence[FileReport], workspace: Workspace) -> Iterable[FileReport]:
    """Give files that start no training by itself the scripts of their project that import them, nearest first."""
    importers: dict[Path, Importers] = {}
    for report in reports:
        scripts: tuple[Path, ...] = ()
        for folder in searched(report.path, workspace) if report.defines else ():
            if folder not in importers:
                importers[folder] = Importers(folder, workspace)
            scripts = tuple(importers[folder].scripts(report.path))
            if scripts:
                break
        yield replace(report, started_by=scripts)


def hints(outcome: Outcome) -> list[str]:
    """What to do instead, for inputs that only define what others run."""
    return [hint for report in outcome.reports if (hint := hint_of(report)) is not None]


_NAMED = 3


def hint_of(report: FileReport) -> str | None:
    """What to do instead, where a file only defines what others run; None where it runs."""
    if not report.defines:
        return None
    said = f"{shown(report.path)} starts no training by itself: it holds a training loop that other code calls"
    if not report.started_by:
        return f"{said}, which decides what it trains with; analyze the script that runs it"
    names = ", ".join(map(shown, report.started_by[:_NAMED]))
    more = len(report.started_by) - _NAMED
    return f"{said}; analyze the script that runs it: {names}" + (f" (or one of {more} more)" if more > 0 else "")


def told_in_cells(report: FileReport, cells: Cells) -> FileReport:
    """A notebook's report with the lines that its sentences name counted in cells; its sites stay as they are."""

    def told(sentence: str, site: Site) -> str:
        return _in_cells(sentence, cells) if site.path == report.path else sentence

    findings = tuple(examined_retold(each, told) for each in report.findings)
    in_place = tuple(in_place_retold(each, told) for each in report.in_place)
    return replace(report, findings=findings, in_place=in_place)


def _in_cells(sentence: str, cells: Cells) -> str:
    """A sentence of ours (never the code that it quotes) with ``cell 3, line 5`` for ``line 25``."""

    def named(lines: Sequence[int], file: str | None) -> str | None:
        places = map(cells.place, lines)
        return None if file else " and ".join(f"cell {cell}, line {line}" for cell, line in places)

    return with_lines(sentence, named)


def error_in_cell(error: str, path: Path, cells: Cells) -> str:
    """The sentence that says where Python stopped reading a notebook."""
    rest = error.removeprefix(f"{path}:")
    match = re.match(r"(\d+):", rest)
    if rest == error or match is None:
        return error
    cell, line = cells.place(int(match[1]))
    return f"{path}:cell {cell}:{line}:{_in_cells(rest[match.end() :], cells)}"


Pair = tuple[Script, FileReport]


def _without_imported(pairs: list[Pair], workspace: Workspace) -> list[Pair]:
    """Leave out modules that were found in a folder and that a training script imports: its report covers them, and
    knows what they are called with."""
    if len(pairs) < 2:
        return pairs
    covered: set[Path] = set()
    for script, report in pairs:
        if report.trains:
            covered |= imported_files(script.path, workspace) - {script.path}
    return [
        (script, report)
        for script, report in pairs
        if script.named
        or report.error is not None
        or script.path not in covered
        or "__main__" in (workspace.read(script.path) or "")
    ]


# --- rewriting ----------------------------------------------------------------------------------------------------


def rewrite(
    paths: Sequence[Path],
    chosen: Chosen,
    workspace: Workspace,
    jobs: int | None = None,
    *,
    sharing: tuple[FileReport, ...] | None = None,
) -> Outcome:
    """Analyze and rewrite every script that the paths name, each on the texts that the ones before it left.

    ``sharing`` saves analysing the scripts that share files with these, where that has been done.

    Raises:
        ConfigError, UnknownName, PackError: nothing can be done with these settings; the argument is a sentence.
    """
    outcome = analyze(paths, chosen, workspace, jobs)
    if not outcome.fixable:
        return outcome
    outcome = replace(outcome, sharing=_sharing(outcome, chosen, workspace, jobs) if sharing is None else sharing)
    scripts = {script.path: script for script in find_scripts(paths, chosen)[0]}
    blocked = frozenset(outcome.objections)
    codemods = registry.load()
    rewritings: list[Rewriting] = []
    texts: dict[Path, str] = {}
    for report in outcome.reports:
        script = scripts.get(report.path)
        if script is None or report.error is not None:
            continue
        current = workspace.with_texts(texts)
        looked_at = imported_files(script.path, current) | {each.site.path for each in report.findings}
        fresh = not blocked and texts.keys().isdisjoint(looked_at)
        rewriting = pipeline.apply(
            script.path,
            current,
            registry.select(codemods, script.settings.select, script.settings.ignore),
            target(script.settings, script.path, workspace.root(script.path)),
            script.risk,
            keep_wanted(script.settings, blocked),
            trust=script.trust,
            report=report if fresh else None,
        )
        after = current.with_texts(rewriting.texts)
        rewritings.append(replace(rewriting, report=replace(rewriting.report, cells=after.cells(script.path))))
        texts |= rewriting.texts
    return replace(outcome, rewritings=tuple(rewritings))


def _sharing(outcome: Outcome, chosen: Chosen, workspace: Workspace, jobs: int | None) -> tuple[FileReport, ...]:
    """What there is to say of the project's other scripts that run a file which would be rewritten."""
    named = {report.path for report in outcome.reports}
    importers: dict[Path, Importers] = {}
    users: set[Path] = set()
    for file in {each.site.path for each in outcome.findings if outcome.applies(each)}:
        for folder in searched(file, workspace):
            if folder not in importers:
                importers[folder] = Importers(folder, workspace)
            users |= {*importers[folder].scripts(file)} - named
    scripts = [
        Script(path, settings, named=False, trust=chosen.trust(settings, path))
        for path in sorted(users)
        for settings in (chosen.settings(path.parent),)
    ]
    return tuple(_reports([each for each in scripts if not each.settings.excludes(each.path)], workspace, jobs))


def encode(texts: Mapping[Path, str], workspace: Workspace) -> tuple[dict[Path, bytes], list[SourceError]]:
    """The texts as bytes of their files' encodings, and what stopped others."""
    contents: dict[Path, bytes] = {}
    errors: list[SourceError] = []
    for path, text in texts.items():
        source = workspace.place(path)
        encoded = source.encode(text) if isinstance(source, Source) else source
        if isinstance(encoded, SourceError):
            errors.append(encoded)
        else:
            contents[path] = encoded
    return contents, errors


def write(outcome: Outcome, workspace: Workspace) -> tuple[list[Path], list[SourceError]]:
    """Write what was rewritten: the files written, and what stopped others."""
    written: list[Path] = []
    errors: list[SourceError] = []
    for rewriting in outcome.rewritings:
        contents, problems = encode(rewriting.texts, workspace)
        if not problems:
            done, problems = write_together(contents, workspace)
            written += done
        errors += problems
    return sorted(set(written)), errors


def write_together(contents: Mapping[Path, bytes], workspace: Workspace) -> tuple[list[Path], list[SourceError]]:
    """Write files that belong together: when one of them may not be written, none is, and nothing ends it half-way."""
    from turbofix.verify import signals  # here, since most runs write nothing

    sources = {path: source for path in contents if isinstance(source := workspace.place(path), Source)}
    problems = [problem for source in sources.values() if (problem := why_not_writable(source)) is not None]
    if problems:
        return [], problems
    written = []
    with signals.undisturbed():
        for path, source in sources.items():
            problem = write_bytes(source, contents[path])
            if problem is None:
                written.append(path)
            else:
                problems.append(problem)
    workspace.forget(written)  # the next script's rewriting goes on from these
    return written, problems
