"""Which waits of a step the codemods of this group take out, and which stay: as long as one does, little is gained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from turbofix.codemod import Codemod
from turbofix.editing.edit import Refuse
from turbofix.findings import Evidence, Refusal, Site
from turbofix.records import dataclass
from turbofix.training.model import ALWAYS, Guard, Step, Sync, TrainingProgram

from ._deferring import APART, Deferral, deferral
from ._kept_as_tensors import carried
from ._loaders import is_inside
from ._pages import Pages, pages_of
from ._syncs import BatchLoop, loop_words, read_text, runs_each_time, shows_in, why_it_stays
from ._throttling import Throttling, throttling


@dataclass(frozen=True)
class Waiting:
    """One loop, its reads that make the host wait in every iteration, and how often messages are to be shown in it."""

    loop: BatchLoop
    syncs: tuple[Sync, ...]
    every: int | None


def within(waiting: Waiting, sync: Sync) -> Waiting:
    """The inner loop of a step (over micro-batches), if the sum starts anew in each step and runs over that loop.

    The read is taken out of that loop, whatever waits once a step beside it.
    """
    total, loop = sync.accumulator, waiting.loop.loop
    if total is None or total.loop == loop.site or total.loop not in sync.loops or not total.inits:
        return waiting
    groups = waiting.loop.accumulation if isinstance(waiting.loop, Step) else None
    if groups is not None and groups.guard == total.loop and groups.steps.values == (1,):
        return waiting  # one micro-batch a step, unless somebody asks for more
    apart = not is_inside(total.loop, loop.site) and not is_inside(loop.site, total.loop)  # in a function of its own
    if not ("." not in total.text if apart else all(is_inside(each, loop.site) for each in total.inits)):
        return waiting
    inner = replace(waiting.loop, loop=replace(loop, site=total.loop))
    return Waiting(inner, tuple(each for each in waiting.syncs if total.loop in each.loops), None)


@dataclass(frozen=True)
class Outlook:
    """What becomes of the reads of a loop: how its messages are shown less often, and how each read is put off, or
    the reason why it stays as it is."""

    waiting: Waiting
    shown: Throttling
    reads: Mapping[Site, Deferral | str]

    def put_off(self, sync: Sync) -> Deferral | str:
        """How a read is put off; the reason why it is not."""
        return self.reads[sync.site]

    def is_put_off(self, site: Site) -> bool:
        """Whether a place is a read that can be put off."""
        return isinstance(self.reads.get(site), Deferral)

    def staying(self, but: Iterable[Site] = ()) -> Iterator[tuple[Sync, str]]:
        """The other reads of the step that stay, whatever is done about these, and why."""
        for sync in self.waiting.syncs:
            outcome = self.reads[sync.site]
            if isinstance(outcome, str) and sync.site not in but:
                yield sync, outcome

    def beside(self, but: Iterable[Site], under: Guard = ALWAYS) -> str:
        """What a message adds of what still waits in the step, in the loop itself if there is: then little is gained.

        ``under``: the tests that the message itself is under: what they let by beside it is certain.
        """
        loop, always = self.waiting.loop.loop.site, self.waiting.loop
        certain = [each for each in self.staying(but) if is_certain(each[0].guard, under)]
        found = min(certain, key=lambda other: not is_inside(other[0].site, loop), default=None)
        if found is not None:
            return f"; {sentence(always, *found)}"
        needed = (each for each in always.chores if each.purpose is not None and each.kind == "synchronize")
        chore = next((each for each in needed if is_certain(each.guard, under)), None)
        if chore is None:
            return ""
        return f"; {chore.site.line_from(loop.path)} waits for all work of the GPU {loop_words(always)} as well"


def is_certain(guard: Guard, under: Guard) -> bool:
    """Whether something happens in each step, or in each that lets something else by; settings may decide over it."""
    return runs_each_time(guard) and (guard.kind != "config" or {*guard.tests} <= {*under.tests})


def outlook(program: TrainingProgram, waiting: Waiting) -> Outlook:
    """What becomes of the reads of a loop."""
    shown = throttling(pages_of(program), waiting.loop, waiting.syncs, waiting.every)
    return Outlook(waiting, shown, {each.site: _outcome(program, waiting, each, shown) for each in waiting.syncs})


def _outcome(program: TrainingProgram, waiting: Waiting, sync: Sync, shown: Throttling) -> Deferral | str:
    """How a read is put off: as the text of its loop tells, else as what looks at it does; the reason why it is not."""
    pages = pages_of(program)
    reason = _plain(pages, waiting, sync, shown)
    if isinstance(reason, Deferral) or sync.plain:
        return reason
    try:
        plan = carried(pages, waiting.loop, sync, program.entry)
    except Refuse as refuse:
        return str(refuse) if sync.looks and (sync.use in ("returned", "other") or reason == APART) else reason
    lines = {
        each.statement.line for each in shows_in(waiting.loop, waiting.syncs) if each.statement not in shown.refused
    }
    return plan if plan.too_early is None or plan.too_early in lines else reason


def _plain(pages: Pages, waiting: Waiting, sync: Sync, shown: Throttling) -> Deferral | str:
    if (reason := why_it_stays(sync)) is not None:
        return reason
    if sync.use == "shown" and sync.show is not None and not is_shown_now_and_then(waiting, sync):
        if not any(sync.site in show.syncs for show in shows_in(waiting.loop, waiting.syncs)):
            return "it is shown only now and then, and could be read there"
        reason = shown.refused.get(sync.site) or shown.refused.get(sync.show.statement)
        return reason or Deferral(too_early=sync.show.statement.line)
    try:
        return deferral(pages, waiting.loop, sync, shown)
    except Refuse as refuse:
        return str(refuse)


def is_shown_now_and_then(waiting: Waiting, sync: Sync) -> bool:
    """Whether all messages that show a read are shown every so many steps, so that it can be read there."""
    guards = [show.guard for show in waiting.loop.shows if sync.site in show.syncs]
    counted = all(guard.kind == "every_n" and guard.every != 1 for guard in guards)
    return sync.use == "shown" and bool(guards) and counted


def sentence(loop: BatchLoop, sync: Sync, reason: str) -> str:
    """What a message says of a read that stays."""
    where = sync.site.line_from(loop.loop.site.path)
    return f"{read_text(sync)} on {where} still waits {loop_words(loop)} ({reason})"


@dataclass
class Told:
    """What is refused for a cause that stands elsewhere: told once for each cause, with all its lines."""

    places: dict[str, list[tuple[Site, str, tuple[Evidence, ...]]]] = field(default_factory=dict)

    def add(self, reason: str, site: Site, message: str, evidence: tuple[Evidence, ...]) -> None:
        """Note one more place that a cause stands in the way of."""
        self.places.setdefault(reason, []).append((site, message, evidence))

    def refusals(self, codemod: Codemod) -> Iterator[Refusal]:
        """One refusal for each cause, at its first place."""
        for reason, told in self.places.items():
            (site, message, seen), *others = sorted(told, key=lambda each: each[:2])
            lines = ", ".join(dict.fromkeys(other.line_from(site.path) for other, _, _ in others))
            yield codemod.refuse(site, f"{message} (and {lines} as well)" if lines else message, reason, evidence=seen)
