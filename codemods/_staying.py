"""Which waits of a step neither codemod of this group can take out: as long as one stays, nothing is gained."""

from __future__ import annotations

from turbofix.edits import Edit, Refuse
from turbofix.program.model import Sync
from turbofix.records import dataclass

from ._deferring import deferral
from ._syncs import BatchLoop, loop_words, read_text, why_it_stays
from ._throttling import Throttling


@dataclass(frozen=True)
class Waiting:
    """One loop, its reads that make the host wait in every iteration, and how often messages are to be shown in it."""

    loop: BatchLoop
    syncs: tuple[Sync, ...]
    every: int | None


def stays(waiting: Waiting, but: Sync | None = None) -> str | None:
    """Why nothing is gained, as far as the model tells: another read of the step stays."""
    for sync in waiting.syncs:
        reason = why_it_stays(sync) if sync is not but else None
        if reason is not None:
            return sentence(waiting.loop, sync, reason)
    return None


def stays_in_text(edit: Edit, waiting: Waiting, shown: Throttling, but: Sync | None = None) -> str | None:
    """The same, with everything that the text of the program tells."""
    for sync in waiting.syncs:
        if sync is but:
            continue
        reason = why_it_stays(sync) or _why(edit, waiting.loop, sync, shown)
        if reason is not None:
            return sentence(waiting.loop, sync, reason)
    return None


def _why(edit: Edit, loop: BatchLoop, sync: Sync, shown: Throttling) -> str | None:
    if sync.use == "shown":
        assert sync.show is not None
        return shown.refused.get(sync.site) or shown.refused.get(sync.show.statement)
    try:
        deferral(edit, loop, sync, shown)
    except Refuse as refuse:
        return str(refuse)
    return None


def sentence(loop: BatchLoop, sync: Sync, reason: str) -> str:
    """What a message says of a read that stays."""
    return f"nothing is gained while {read_text(sync)} on line {sync.site.line} waits {loop_words(loop)} ({reason})"
