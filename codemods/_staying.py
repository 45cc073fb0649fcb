"""Which waits of a step neither codemod of this group can take out: as long as one stays, nothing is gained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Evidence, Refusal, Site
from turbofix.program.model import Step, Sync
from turbofix.records import dataclass

from ._deferring import deferral
from ._syncs import BatchLoop, loop_words, read_text, shows_in, why_it_stays
from ._throttling import Throttling


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
    if total is None or total.loop == loop.site or total.loop not in sync.loops or total.loop.path != loop.site.path:
        return waiting
    groups = waiting.loop.accumulation if isinstance(waiting.loop, Step) else None
    if groups is not None and groups.guard == total.loop and groups.steps.values == (1,):
        return waiting  # one micro-batch a step, unless somebody asks for more
    if not total.inits or not all(is_inside(each, loop.site) for each in total.inits):
        return waiting
    inner = replace(waiting.loop, loop=replace(loop, site=total.loop))
    return Waiting(inner, tuple(each for each in waiting.syncs if total.loop in each.loops), None)


def is_inside(inner: Site, outer: Site) -> bool:
    """Whether a place lies in another one."""
    return inner.path == outer.path and outer.line <= inner.line and inner.end_line <= outer.end_line


def stays(waiting: Waiting, but: Sync | None = None) -> str | None:
    """Why nothing is gained, as far as the model tells: another read of the step stays."""
    for sync in waiting.syncs:
        reason = why_it_stays(sync) or shown_seldom(waiting, sync) if sync is not but else None
        if reason is not None:
            return sentence(waiting.loop, sync, reason)
    for sync in waiting.loop.syncs:
        if sync.asked and sync not in waiting.syncs and waiting.loop.loop.site in sync.loops:
            return sentence(waiting.loop, sync, "it is read wherever there is a value")
    return None


def stays_in_text(edit: Edit, waiting: Waiting, shown: Throttling, but: Sync | None = None) -> str | None:
    """The same, with everything that the text of the program tells."""
    for sync in waiting.syncs:
        if sync is but:
            continue
        reason = why_it_stays(sync) or shown_seldom(waiting, sync) or _why(edit, waiting, sync, shown)
        if reason is not None:
            return sentence(waiting.loop, sync, reason)
    return None


def shown_seldom(waiting: Waiting, sync: Sync) -> str | None:
    """Why a read stays that no message of every step shows, only one under a test that does not count the steps."""
    if sync.use != "shown" or is_shown_now_and_then(waiting, sync):
        return None
    if any(sync.site in show.syncs for show in shows_in(waiting.loop, waiting.syncs)):
        return None
    return "it is shown only now and then, and could be read there"


def is_shown_now_and_then(waiting: Waiting, sync: Sync) -> bool:
    """Whether all messages that show a read are shown every so many steps, so that it can be read there."""
    guards = [show.guard for show in waiting.loop.shows if sync.site in show.syncs]
    counted = all(guard.kind == "every_n" and guard.every != 1 for guard in guards)
    return sync.use == "shown" and bool(guards) and counted


def _why(edit: Edit, waiting: Waiting, sync: Sync, shown: Throttling) -> str | None:
    loop = waiting.loop
    if sync.use == "shown" and not is_shown_now_and_then(waiting, sync):
        assert sync.show is not None
        return shown.refused.get(sync.site) or shown.refused.get(sync.show.statement)
    try:
        deferral(edit, loop, sync, shown)
    except Refuse as refuse:
        return str(refuse)
    return None


def sentence(loop: BatchLoop, sync: Sync, reason: str) -> str:
    """What a message says of a read that stays."""
    where = sync.site.line_from(loop.loop.site.path)
    return f"nothing is gained while {read_text(sync)} on {where} waits {loop_words(loop)} ({reason})"


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
