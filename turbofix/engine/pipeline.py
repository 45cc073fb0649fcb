"""Source texts in, findings and rewritten texts out: the codemods one after another, each on what the last one left.

Nothing here touches the disk: texts come from a workspace (an overlay over the disk, see ``source``), new texts are
returned. The engine knows no codemod by name.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from turbofix.assumptions import OPTION_DEFAULT, READ_WHOLE, SCRIPT_MENDED, Assumption
from turbofix.codemod import Codemod
from turbofix.config import Suppressions, suppressions
from turbofix.engine.importers import followed
from turbofix.engine.moves import WayBack, move
from turbofix.engine.reports import Applied, FileReport, Rewriting, Trust, judged, name_of, place, refused
from turbofix.engine.workspace import Workspace
from turbofix.findings import Examined, Finding, InPlace, Refusal, Risk
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.nodes import newer_reads, unreadable
from turbofix.source.site import STUB

if TYPE_CHECKING:
    from types import FunctionType

    from turbofix.editing.edit import Edit
    from turbofix.training.model import Target, TrainingProgram

PASSES = 4
"""How often the whole sequence is run at most until it changes nothing any more."""

COLLIDES = "its edit collides with another one"
LOST = "its edit could not be made any more on the rewritten text"
FAILED_CHECK = "its edit did not pass turbofix's own check, a bug of turbofix: please report it"

TRAINING_WORDS = regex(
    r"\b(torch|lightning|pytorch_lightning|lightning_fabric|transformers|sentence_transformers|setfit|trl|accelerate"
    r"|deepspeed|ignite|timm|hydra|hydra_zen|import_module|__import__|locate)\b"
)

MOST_IMPORTS = 50
"""So many modules are looked through for these words."""


Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")
Said: TypeAlias = Finding | Refusal | InPlace

Keep = Callable[[Path, Codemod], bool]
"""Whether what a codemod says of a file is wanted (per-file-ignores). Suppression comments are read here."""


def keep_everything(path: Path, codemod: Codemod) -> bool:
    """The default ``Keep``."""
    return True


def on_one_piece(function: Function) -> Function:
    """Let the frames of all calls that a function makes lie on one piece of memory.

    CPython from 3.11 on keeps frames in pieces of 16 KB, or as much more as the frame that needs a new one asks for. A
    piece is given back to the system as soon as it is empty: a call that begins a piece, in a loop, gets and loses its
    memory each time, and calls nest so deep in an abstract execution that this was a sixth of its time. A frame that
    asks for a megabyte makes a piece of two; memory that is not used costs nothing.
    """
    plain = cast("FunctionType", function)
    plain.__code__ = plain.__code__.replace(co_stacksize=2**17)
    return function


@on_one_piece
def analyze(  # noqa: PLR0913
    entry: Path,
    workspace: Workspace,
    codemods: Sequence[Codemod],
    target: Target,
    keep: Keep = keep_everything,
    trust: Trust = Trust(),  # noqa: B008  (frozen)
    others: Sequence[Codemod] = (),
) -> FileReport:
    """Everything that the codemods have to say about the program that starts at ``entry``, and what they would say
    if one of ``others``, which were not chosen, had rewritten it.

    A finding is ``fixable`` only when its edit was prepared on this text and passed its self-check.
    """
    screened = screen(entry, workspace)
    if screened is not None:
        return screened
    with paused_gc():
        return Analysis(entry, workspace, codemods, target, keep, trust).report([*codemods, *others])


def screen(entry: Path, workspace: Workspace) -> FileReport | None:
    """The report on a file that cannot be analysed or has nothing to do with training; None for all others."""
    text = workspace.read(entry)
    if text is None:
        return FileReport(entry, "none", trains=False, error=f"{entry} cannot be read")
    error = syntax_error(entry, text)
    if error is not None or not worth_analysing(entry, text, workspace):
        return FileReport(entry, "none", trains=False, error=error)
    return None


@on_one_piece
def apply(  # noqa: PLR0913
    entry: Path,
    workspace: Workspace,
    codemods: Sequence[Codemod],
    target: Target,
    risk: Risk,
    keep: Keep = keep_everything,
    *,
    trust: Trust = Trust(),  # noqa: B008  (frozen)
    report: FileReport | None = None,
) -> Rewriting:
    """Rewrite the program that starts at ``entry`` with every codemod up to ``risk``, until nothing changes any more.

    Findings that rest on assumptions are left out, unless ``trust`` has them believed.

    ``report`` saves trying every edit first, where the caller has had that done on the same texts already.
    """
    screened = screen(entry, workspace)
    if screened is not None:
        return Rewriting(entry, {}, (), screened)
    with paused_gc():
        analysis = Analysis(entry, workspace, codemods, target, keep, trust)
        report = report or analysis.report()
        accepting = replace(report, risk=risk, likely=trust.likely)
        pending = [each for each in report.findings if accepting.accepts(each) and name_of(each) not in trust.without]
        named = {name_of(each): each for each in report.findings if each.fixable}  # each where it stands now
        if not pending:
            return Rewriting(entry, {}, (), report)
        stages: list[Applied] = []
        notes = list(report.notes)
        texts: dict[Path, str] = {}
        for _ in range(PASSES):
            before = len(stages)
            for codemod in codemods:
                names = {(each.codemod, *place(each)): name for name, each in named.items()}
                turn = analysis.turn(codemod, risk, names)
                notes += analysis.notes
                pending = [replace(p, why_not=turn.said_of(p) or p.why_not) for p in pending]
                if turn.edit is None or turn.after is None:
                    continue
                analysis = turn.after
                pending = without(pending, turn.findings)
                pending = [moved for p in pending if (moved := move(p, turn.edit)) is not None]
                pending = analysis.looked_up(pending, codemod.name)
                named = {name: moved for name, p in named.items() if (moved := move(p, turn.edit)) is not None}
                texts |= turn.texts
                worst = max(finding.risk for finding in turn.findings)
                done = tuple(names.get((each.codemod, *place(each)), "") for each in turn.findings)
                stages.append(Applied(codemod.name, worst, dict(texts), turn.findings, turn.unlocked, turn.lines, done))
            if len(stages) == before:
                break
    changed = {path: text for path, text in texts.items() if text != workspace.read(path)}
    void = tuple(replace(p, fixable=False, why_not=p.why_not or LOST) for p in pending)
    return Rewriting(entry, changed, tuple(stages), replace(report, notes=tuple(dict.fromkeys(notes))), void)


def without(pending: Sequence[Examined], done: Sequence[Finding]) -> list[Examined]:
    """What is left when these findings are dealt with: each takes the one of its codemod at its place away, or, where
    an earlier rewrite has given it another place, the first of its codemod in its file that no other one takes."""
    left = list(pending)
    moved: list[Finding] = []
    for finding in done:
        here = (finding.codemod, finding.site.path, finding.site.line, finding.site.column)
        same = [each for each in left if (each.codemod, *place(each)) == here]
        left = [each for each in left if each not in same]
        moved += [] if same else [finding]
    for finding in moved:
        other = next((p for p in left if (p.codemod, p.site.path) == (finding.codemod, finding.site.path)), None)
        left = [each for each in left if each is not other]
    return left


# --- one text, all codemods ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """What one codemod did to one state of the texts; ``edit`` is None when it did nothing."""

    edit: Edit | None
    texts: Mapping[Path, str]
    findings: tuple[Finding, ...]
    refused: Mapping[int, str]  # index in the candidates -> why not
    after: Analysis | None = None  # of the new texts
    candidates: tuple[Finding, ...] = ()
    unlocked: frozenset[str] = frozenset()  # the codemods that find more in the new texts
    lines: tuple[frozenset[tuple[Path, int]], ...] = ()  # of each finding, those that are changed for it

    def said_of(self, examined: Examined) -> str | None:
        """Why the edit of a finding could not be made."""
        return next(
            (
                reason
                for number, reason in self.refused.items()
                if (self.candidates[number].codemod, self.candidates[number].site) == (examined.codemod, examined.site)
            ),
            None,
        )


class Analysis:
    """One state of the texts, its program, and what the codemods say of it."""

    def __init__(  # noqa: PLR0913
        self,
        entry: Path,
        workspace: Workspace,
        codemods: Sequence[Codemod],
        target: Target,
        keep: Keep,
        trust: Trust,
    ) -> None:
        self.entry = entry
        self.workspace = workspace
        self.codemods = codemods
        self.target = target
        self.keep = keep
        self.trust = trust
        self.notes: list[str] = []
        self._said: dict[str, Sequence[Said]] = {}
        self._known: dict[str, Codemod] = {}
        self._suppressions: dict[Path, Suppressions] = {}
        self.program = self._program(workspace)

    def report(self, ahead: Sequence[Codemod] = ()) -> FileReport:
        """Findings of all codemods, each tried on this text; and those that a codemod among ``ahead`` opens the way
        for: on a GPU more is slow.
        """
        if self.program is None:
            return FileReport(self.entry, "none", trains=False, notes=tuple(self.notes))
        said = [each for codemod in self.codemods for each in self.examine(codemod)]
        in_place = [each for each in said if isinstance(each, InPlace)]
        examined = [refused(each) for each in said if isinstance(each, Refusal)]
        findings = [each for each in said if isinstance(each, Finding)]
        told = len(self.notes)
        # Nearly always all edits of all codemods pass together, which saves an edit for each codemod. What the program
        # is after them is looked at when they are applied: a second analysis costs as much as the first.
        turn = self._together(dict(enumerate(findings)), look_again=False)
        alone = {finding.codemod for finding in findings}
        if turn is not None:
            reasons = turn.refused if COLLIDES in turn.refused.values() else {}
            alone = {findings[number].codemod for number in reasons}  # the others' edits were made beside them
            examined += [
                judged(finding, turn.refused.get(number))
                for number, finding in enumerate(findings)
                if finding.codemod not in alone
            ]
        if alone:
            del self.notes[told:]
            for codemod in self.codemods:
                own = [finding for finding in findings if finding.codemod == codemod.name and codemod.name in alone]
                turn = self.attempt(own, look_again=False)
                examined += [judged(finding, turn.refused.get(number)) for number, finding in enumerate(own)]
        for codemod in ahead:
            examined, in_place = self._ahead(codemod, examined, in_place)
        return FileReport(
            self.entry,
            self.program.framework.value,
            self.program.trains,
            tuple(sorted(dict.fromkeys(examined), key=lambda each: (*place(each), each.codemod))),
            tuple(sorted(dict.fromkeys(in_place), key=lambda each: (each.site, each.codemod))),
            notes=tuple(dict.fromkeys(self.notes)),
            mended=self._is_mended(examined),
            defines=bool(self.program.steps) and not self.program.script.starts,
            acts_on=self.program.acts_on if self.program.trains else frozenset(),
            unfollowed=self.program.unfollowed,
        )

    def _ahead(
        self, codemod: Codemod, examined: list[Examined], in_place: list[InPlace]
    ) -> tuple[list[Examined], list[InPlace]]:
        """What is said, with what the codemods say where one that brings something to others has rewritten the text;
        they speak of the places that there are today, and of what is slow only then."""
        own = [each for each in self.examine(codemod) if isinstance(each, Finding)] if codemod.brings else []
        turn = self.attempt(own)
        if turn.edit is None or turn.after is None:
            return examined, in_place
        way = WayBack(turn.edit, turn.texts, codemod.name)
        later = turn.after.report()
        rests = dict.fromkeys(assumption for each in turn.findings for assumption in each.assumes)
        told = {(each.codemod, *place(each)) for each in examined if each.fixable}
        once = {each.name for each in self.codemods if each.once} & {name for name, *_ in told}
        waits = None if codemod in self.codemods else f"it waits for `{codemod.name}`, which was not chosen"
        more = [
            replace(
                each,
                message=f"after `{codemod.name}`: {each.message}",
                assumes=tuple(dict.fromkeys((*each.assumes, *rests))) if each.fixable else (),
                fixable=each.fixable and waits is None,
                why_not=each.why_not or waits,
            )
            for found in later.findings
            if (each := way.examined(found)) is not None
            and each.codemod != codemod.name
            and each.codemod not in once
            and (each.codemod, *place(each)) not in told
        ]
        right = [way.in_place(each) for each in later.in_place if each.codemod != codemod.name]
        here = [each for each in right if each is not None]
        spoken = {each.codemod for each in more} | {each.codemod for each in here}
        examined = [each for each in examined if each.fixable or each.codemod not in spoken] + more
        in_place = [each for each in in_place if each.codemod not in spoken] + here
        return examined, in_place

    def turn(self, codemod: Codemod, risk: Risk, names: Mapping[tuple[str, Path, int, int], str]) -> Turn:
        """Let one codemod rewrite what it can up to ``risk``; ``names`` are those of the findings, by their places."""
        candidates = [
            each
            for each in self.examine(codemod)
            if isinstance(each, Finding) and each.risk <= risk and self.trust.accepts(each)
            if names.get((each.codemod, *place(each))) not in self.trust.without
        ]
        return replace(self.attempt(candidates), candidates=tuple(candidates))

    def examine(self, codemod: Codemod) -> Sequence[Said]:
        """What one codemod says of this text, less what the user does not want to hear."""
        program = self.program
        if program is None or not (program.trains or codemod.everywhere):  # what only infers is not ours to speed up
            return ()
        if codemod.name not in self._said:
            self._known[codemod.name] = codemod
            what = f"{codemod.name} failed on {self.entry.name}"
            said = self._try(what, lambda: list(codemod.examine(program)))
            rests: tuple[Assumption, ...] = ()
            if not codemod.everywhere:
                unread = READ_WHOLE in codemod.assumes and not program.complete
                rests = (READ_WHOLE,) * unread + (SCRIPT_MENDED,) * self._is_broken
            self._said[codemod.name] = [self._told(each, rests) for each in said or [] if self._wanted(codemod, each)]
        return self._said[codemod.name]

    def _wanted(self, codemod: Codemod, said: Said) -> bool:
        """Whether the user wants to hear it: it is of the project, and no comment or setting says otherwise."""
        if said.site.path.suffix == STUB:
            return False
        if self._comments(said.site.path).cover(said.site.line, codemod.name, codemod.group):
            return False
        return self.keep(said.site.path, codemod)

    @property
    def _is_broken(self) -> bool:
        """Whether something stops the script today."""
        mending = [codemod for codemod in self.codemods if codemod.mends]
        return any(not isinstance(each, InPlace) for codemod in mending for each in self.examine(codemod))

    def _is_mended(self, examined: Iterable[Examined]) -> bool:
        """Whether all that stops the script is rewritten."""
        mending = {codemod.name for codemod in self.codemods if codemod.mends}
        return all(each.fixable for each in examined if each.codemod in mending)

    def _told(self, said: Said, rests: tuple[Assumption, ...]) -> Said:
        """What a codemod says, with what the user and the runs know of its assumptions, ``rests`` among them."""
        if isinstance(said, Finding) and self.program is not None:
            places = (said.site, *self.program.told_by.get(said.site, ()))
            guessed = any(each.path in self.program.guessed for each in places)
            rests = (*rests, *((OPTION_DEFAULT,) if guessed and OPTION_DEFAULT not in said.assumes else ()))
        if isinstance(said, Finding) and rests:
            said = replace(said, assumes=(*said.assumes, *rests))
        if not isinstance(said, Finding) or not (said.assumes or self.trust.observed):
            return said
        return self.trust.told(said, self._comments(said.site.path).assumed(said.site.line))

    def _comments(self, path: Path) -> Suppressions:
        if path not in self._suppressions:
            self._suppressions[path] = suppressions(self.workspace.read(path) or "")
        return self._suppressions[path]

    def attempt(self, candidates: Sequence[Finding], *, look_again: bool = True) -> Turn:
        """Prepare and self-check the edits of all candidates: together, and one by one where that fails."""
        told = len(self.notes)
        turn = self._together(dict(enumerate(candidates)), look_again=look_again)
        if turn is not None:
            return turn
        del self.notes[told:]  # what is wrong is told of the findings that fail alone
        refused: dict[int, str] = {}
        good: dict[int, Finding] = {}
        for number, candidate in enumerate(candidates):
            alone = self._together({number: candidate}, look_again=look_again)
            if alone is None or alone.edit is None:
                reason = alone.refused.get(number) if alone is not None else None
                refused[number] = reason or FAILED_CHECK
            elif self._together({**good, number: candidate}, look_again=look_again) is None:
                refused[number] = COLLIDES
            else:
                good[number] = candidate
        final = self._together(good, look_again=look_again)
        if final is None:  # cannot be: it passed as the last one was added
            return Turn(None, {}, (), dict.fromkeys(range(len(candidates)), FAILED_CHECK))
        return replace(final, refused={**refused, **final.refused})

    def _together(self, candidates: Mapping[int, Finding], *, look_again: bool = True) -> Turn | None:
        """One edit for all candidates; None when it does not pass its self-check, of which what the codemods say of
        the new texts is a part if ``look_again``."""
        if not candidates:
            return Turn(None, {}, (), {})
        from turbofix.editing.changes import Conflict
        from turbofix.editing.edit import Edit
        from turbofix.editing.selfcheck import check, unbound

        names = " ".join(sorted({finding.codemod for finding in candidates.values()}))
        edit = Edit(self.workspace.read, names, told=self.program.told_by if self.program is not None else None)
        refused: dict[int, str] = {}
        done: list[Finding] = []
        marks: dict[str, int] = {}  # where the edits of each codemod begin
        begun: dict[int, int] = {}  # and of each finding
        for number, finding in candidates.items():
            mark = edit.mark()
            marks.setdefault(finding.codemod, mark)
            reason = self._prepare(finding, edit)
            if reason is None:
                done.append(finding)
                begun[number] = mark
            else:
                edit.rollback(mark)
                refused[number] = reason
        if not done:
            return Turn(None, {}, (), refused)
        try:
            texts = edit.apply()
        except Conflict:
            if len(marks) == 1:
                return None
            dropped = edit.keep_apart([*marks.values()])
            lost = {name for number, name in enumerate(marks) if number in dropped}
            refused |= {number: COLLIDES for number, finding in candidates.items() if finding.codemod in lost}
            done = [finding for finding in done if finding.codemod not in lost]
            texts = edit.apply()
        problem, after = check(edit) or unbound(edit), None
        more: dict[str, int] = {}
        if problem is None and look_again:
            after = Analysis(
                self.entry, self.workspace.with_texts(texts), self.codemods, self.target, self.keep, self.trust
            )
            more = {each.name: after.count(each) - self.count(each) for each in self.codemods}
            problem = _still_there(done, after, more)
        if problem is None:
            unlocked = frozenset(name for name, number in more.items() if number > 0)
            ends = (*begun.values(), edit.mark())[1:]
            lines = tuple(edit.lines(*both) for both in zip(begun.values(), ends, strict=True)) if look_again else ()
            return Turn(edit, texts, tuple(done), refused, after, unlocked=unlocked, lines=lines)
        self.notes.append(f"{edit.codemod} in {self.entry.name}: {problem}")
        return None

    def _prepare(self, finding: Finding, edit: Edit) -> str | None:
        """Let the codemod prepare its edit; a sentence when it cannot."""
        from turbofix.editing.changes import Conflict, Refuse

        codemod = self._known[finding.codemod]

        def prepare() -> str:
            try:
                codemod.prepare(finding, edit)
            except Refuse as refuse:
                return str(refuse)
            except Conflict:
                return COLLIDES
            return ""

        reason = self._try(f"{codemod.name} could not prepare its edit in {finding.site.path.name}", prepare)
        return FAILED_CHECK if reason is None else reason or None

    def looked_up(self, pending: Sequence[Examined], last: str) -> list[Examined]:
        """The findings still to be fixed, each with why it cannot be where this text, the work of the codemod
        ``last``, does not have it any more; one that comes back loses the reason again."""
        found: list[Examined] = []
        for codemod in self.codemods:
            own = [each for each in pending if each.codemod == codemod.name]
            gone = without(own, [each for each in self.examine(codemod) if isinstance(each, Finding)]) if own else []
            for each in own:
                why = each.why_not or f"the rewrite by {last} has made it void"
                found.append(replace(each, why_not=why if each in gone else None))
        return found

    def count(self, codemod: Codemod) -> int:
        """How many findings the codemod has on this text."""
        return sum(isinstance(each, Finding) for each in self.examine(codemod))

    def _program(self, workspace: Workspace) -> TrainingProgram | None:
        from turbofix.training.program import analyse

        return self._try(
            f"the analysis of {self.entry.name} failed",
            lambda: analyse(
                self.entry,
                workspace.root(self.entry),
                workspace.read,
                self.target,
                lambda *suffixes: workspace.beside(self.entry, *suffixes),
            ),
        )

    def _try(self, what: str, function: Callable[[], Result]) -> Result | None:
        """Call; an exception (a bug of ours) becomes a note with its traceback. The engine's one broad ``except``."""
        try:
            return function()
        except Exception as error:
            import traceback

            trace = "".join(traceback.format_exception(error))
            self.notes.append(f"{what}: {type(error).__name__}: {error}\n{trace}")
            return None


# --- small questions ----------------------------------------------------------------------------------------------


def _still_there(done: Sequence[Finding], after: Analysis, more: Mapping[str, int]) -> str | None:
    """On the rewritten text these findings must be gone; what another codemod finds there waits for its turn."""
    if after.program is None:
        return "the rewritten program is no training program any more"
    left = (name for name, gone in Counter(each.codemod for each in done).items() if more.get(name, -gone) + gone > 0)
    return next((f"the rewritten text has a finding of {name} again" for name in left), None)


def syntax_error(path: Path, text: str) -> str | None:
    """A sentence that says what stopped Python from reading the text; None where it reads it."""
    error = unreadable(text)
    if not isinstance(error, SyntaxError):
        return f"{path}: Python cannot read this: {error}" if error else None
    where = f"{path}:{error.lineno or 1}:{error.offset or 1}"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if "print" in (error.msg or "") and "parentheses" in (error.msg or ""):
        return f"{where}: this is Python 2 (print without parentheses); convert it to Python 3 first"
    if newer_reads(text, error):
        return (
            f"{where}: Python {version} cannot read this ({error.msg}), a newer one can: "
            "run turbofix with the Python that runs the script"
        )
    return f"{where}: Python {version} cannot read this: {error.msg}"


def worth_analysing(entry: Path, text: str, workspace: Workspace) -> bool:
    """Whether the text, or a module of the project that it comes to by its imports, mentions a training library."""
    files = (workspace.read(path) or "" for path in islice(followed(entry, workspace), 1, MOST_IMPORTS))
    return any(map(TRAINING_WORDS.search, chain([text], files)))


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Without the cycle collector while trees are built: with it, parsing is superlinear."""
    global _left  # noqa: PLW0603  (there is one collector in a process, too)
    was_enabled = gc.isenabled()
    gc.disable()
    collect_what_is_left()
    before = gc.get_count()[0]
    try:
        yield
    finally:
        if was_enabled:
            # `gc.get_freeze_count` would walk over all of them, each time
            _left += max(0, gc.get_count()[0] - before)
            gc.freeze()
            gc.enable()


def collect_what_is_left() -> None:
    """Look through what earlier programs have left, when enough of it has come together.

    Never in a run over one program: with a million live objects that would be a tenth of the run.
    """
    global _left  # noqa: PLW0603  (as above)
    if _left > _MANY_OBJECTS:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _left = 0


_MANY_OBJECTS = 2_000_000
"""As many as some 40,000 lines leave; a look takes a second."""

_left = 0
"""How many objects the programs since the last look have left."""
