"""A rewrite that trains in several processes, held against the original in one: numbers in, sentences out."""

from __future__ import annotations

import math
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turbofix.records import dataclass
from turbofix.verify import printed, verdict
from turbofix.verify.probe.tolerances import CLOSE, Tolerance
from turbofix.verify.result import all_of

Log = Mapping[str, Any]

# by how much of its length the gradient of the typical step may differ where additions are in another order alone
SAME = 1e-5
# and by how much those of two processes, which are given the same one
ALIKE = 1e-6

_THEIR_WORDS = re.compile(rb"\b(?:WORLD_SIZE|LOCAL_RANK|init_process_group)\b|[\"']RANK[\"']")
# what a process says of the death of another
_LEFT_ALONE = re.compile(r"connection (?:closed|reset|refused)|broken pipe|peer|gloo|ncclremoteerror", re.IGNORECASE)
# what says that the machine lets no processes find each other
_UNREACHABLE = re.compile(
    r"EADDRINUSE|address already in use|connection refused|resolve|unable to find (?:address|interface)|"
    r"network is unreachable|client socket has timed out|don't have NCCL|permission denied",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Together:
    """What several processes do differently from one, or why nothing can be said, or neither."""

    difference: str | None = None
    unverifiable: str | None = None
    notes: tuple[str, ...] = ()


def speaks_of_them(content: bytes) -> bool:
    """Whether a program looks at what torchrun tells a process, or joins others."""
    return _THEIR_WORDS.search(content) is not None


def judge(original: Log, group: Log, tolerance: Tolerance, before: Sequence[Sequence[printed.Line]]) -> Together:
    """Hold the logs of a ``group`` of processes against the original's, whose printed lines are those ``before``."""
    logs: Sequence[Log] = group["ranks"]
    broken = _broken(group, logs)
    if broken is not None:
        return broken
    steps = [len(log["rows"]) for log in logs]
    if min(steps) != max(steps):
        few, many = steps.index(min(steps)), steps.index(max(steps))
        return Together(f"rank {few} takes {min(steps)} optimizer steps, and rank {many} takes {max(steps)}")
    orders = [log["shuffles"] for log in logs]
    if any(each != orders[0] for each in orders):
        return Together("the samplers shuffle by other numbers in each process, and so share out other samples")
    uneven = {place for log in logs for place, row in enumerate(log["rows"]) if row["uneven"]}
    ours = {**original, "rows": [row for place, row in enumerate(original["rows"]) if place not in uneven]}
    theirs = [
        {**log, "rows": [row for place, row in enumerate(log["rows"]) if place not in uneven]}
        for log in _as_one(original, logs)
    ]
    found = _first(ours, theirs, tolerance) or _inexact(ours, theirs, tolerance)
    if found is not None:
        drew = any(row["drew"] for row in ours["rows"])
        if drew and all(verdict.may_be_rounding(ours, each) for each in theirs):
            return Together(None, "the training step draws random numbers, and each of the processes draws its own")
        return Together(found)
    difference = next(_at_the_end(original, logs), None) or _printed_often(original, logs)
    if difference is not None:
        return Together(difference)
    unverifiable = None if ours["rows"] else "every step that was taken shares out its samples unevenly"
    return Together(None, unverifiable, tuple(_notes(ours, theirs, uneven, tolerance, before)))


# --- how they ended


def _broken(group: Log, logs: Sequence[Log]) -> Together | None:
    """What is to be said of processes of which not all came to their end."""
    counts = [len(log.get("rows", ())) for log in logs]
    ended = [rank for rank, log in enumerate(logs) if log.get("how") == "finished" and group["done"][rank]]
    waiting = [rank for rank in range(len(logs)) if not group["done"][rank]]
    died = group["died"]
    if died is not None:
        rank, status = died
        log = logs[rank]
        error = log.get("error") if log.get("how") == "crashed" else None
        if error and _LEFT_ALONE.search(error) and ended:
            return Together(f"{_ended(ended, counts)}, and {_ranks([rank])} goes on{_at(log.get('line'))} without it")
        after = f" after {counts[rank]} steps" if counts[rank] else " before its first step"
        if error is None:
            return Together(f"rank {rank} {_death(status)}{after}")
        if not counts[rank] and _UNREACHABLE.search(error):
            return Together(None, f'the processes cannot find each other here: "{error}"{_at(log.get("line"))}')
        return Together(f'rank {rank} stopped with "{error}"{_at(log.get("line"))}{after}')
    if group["stuck"] is None:
        return None
    where = group["where"]
    places = [f"rank {rank}{_at(where[rank]['line'])} after {where[rank]['steps']} steps" for rank in waiting]
    if group["stuck"] == "late":
        return Together(None, f"the processes ran past their time limit (--timeout): {all_of(places)}")
    if ended:
        return Together(f"{_ended(ended, counts)}, and {all_of(places)} waits for it")
    return Together(f"the processes wait for each other: {all_of(places)}")


def _ended(ranks: Sequence[int], counts: Sequence[int]) -> str:
    return f"{_ranks(ranks)} ends after {counts[ranks[0]]} steps"


def _ranks(ranks: Sequence[int]) -> str:
    return all_of([f"rank {rank}" for rank in ranks])


def _at(line: object) -> str:
    return f" at {line}" if line else ""


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.WEXITSTATUS(status)} and left no log"


# --- what they learned


def _as_one(original: Log, logs: Sequence[Log]) -> list[dict[str, Any]]:
    """The logs with the loss and the samples of all processes in each step, and what any of them saved."""
    saved: dict[str, Any] = {}
    for log in reversed(logs):
        saved.update(log["saved"])
    rows = [_of_all(old, rows) for old, *rows in zip(original["rows"], *(log["rows"] for log in logs), strict=False)]
    found = []
    for rank, log in enumerate(logs):
        mine = [{**row, **whole} for row, whole in zip(log["rows"], rows, strict=False)]
        found.append({**log, "saved": saved, "rows": [*mine, *log["rows"][len(mine) :]], "rank": rank})
    return found


def _of_all(old: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    losses = [math.fsum(row["losses"]) for row in rows if row["losses"]]
    samples = [row["samples"] for row in rows]
    # who is given the whole batch takes its part by hand
    whole = all(row["shares"] == 1 and row["samples"] == old["samples"] for row in rows)
    return {
        "losses": [math.fsum(losses) / len(losses)] if losses else [],
        "samples": old["samples"] if whole or None in samples else sum(samples),
        "drawn": old["drawn"] if whole else sum(row["drawn"] for row in rows),
    }


def _first(original: Log, logs: Sequence[Mapping[str, Any]], tolerance: Tolerance) -> str | None:
    """What differs first, in a sentence that says which process, where it is not all of them."""
    found = [(log["rank"], verdict.first_difference(original, log, tolerance, exact=False)) for log in logs]
    differing = [(rank, one) for rank, one in found if one is not None]
    if not differing:
        return None
    rank, first = min(differing, key=lambda each: math.inf if each[1].place is None else each[1].place)
    sentence = first.sentence
    if first.place is not None:
        step = f"at step {original['rows'][first.place]['step'] + 1}"
        rows = [log["rows"][first.place] for log in logs]
        if verdict.may_be_rounding(original, logs[rank]):
            if rows[0]["drawn"] != original["rows"][first.place]["drawn"]:
                return f"{step} the processes train on other samples than the one process does{_order(logs)}"
            if _apart(rows):
                return f"{step} the gradients are not the same in all processes: they are not reduced"
    whose = "" if len({each.sentence for _, each in differing}) == 1 and len(differing) == len(logs) else f"rank {rank}: "
    normalised = "; BatchNorm sees no more than its own process's share of a batch" if _normalises(original) else ""
    return f"{whose}{sentence}{normalised}"


def _order(logs: Sequence[Log]) -> str:
    """Why that may be, as far as the order of the samples tells."""
    passes = logs[0]["shuffles"]
    if len(passes) > 1 and len(set(passes)) == 1:
        return ": every pass over the data has the same order (`set_epoch` sets another)"
    return ""


def _apart(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the gradients of the processes differ from each other, by their lengths."""
    ratios = [row["compare"]["gradient"]["ratio"] for row in rows if row.get("compare") and not row["compare"]["mismatch"]]
    return bool(ratios) and not max(ratios) - min(ratios) <= ALIKE * max(ratios)


def _normalises(log: Log) -> bool:
    return any(name.startswith("BatchNorm") for name in log["layers"])


def _compared(logs: Sequence[Log]) -> Iterator[tuple[float, float]]:
    """By how much the gradient and the update of each step of each process are off, as shares of their lengths."""
    for log in logs:
        for row in log["rows"]:
            compare = row.get("compare")
            if compare and not compare["mismatch"] and not row["skipped"]:
                yield compare["gradient"]["off"], compare["update"]["off"]


def _inexact(original: Log, logs: Sequence[Log], tolerance: Tolerance) -> str | None:
    """What is more than the order of additions does, where nothing but that is another one."""
    gradients = sorted(gradient for gradient, _ in _compared(logs))
    if tolerance != CLOSE or _normalises(original) or not gradients:
        return None
    typical = gradients[len(gradients) // 2]
    if typical <= SAME:
        return None
    return f"the gradient of the typical step differs by {_small(typical)} of its length, and rounding by {_small(SAME)}"


def _small(number: float) -> str:
    return re.sub(r"e([-+])0?", r"e\1", f"{number:.0e}")


# --- what they saved and printed


def _at_the_end(original: Log, logs: Sequence[Log]) -> Iterator[str]:
    """What goes otherwise behind the comparison, and what more than one process writes."""
    for rank, log in enumerate(logs):
        if log["end"]["how"] == "crashed":
            yield f'rank {rank}: at the end of the training it stops with "{log["end"]["error"]}"{_at(log["end"].get("line"))}'
    saved = [{**log["saved"], **log["end"].get("saved", {})} for log in logs]
    twice = Counter(name for each in saved for name in each if name in {**original["saved"], **original["end"].get("saved", {})})
    for name, count in twice.items():
        if count > 1:
            yield f"{count} processes save {name}: one overwrites what the other writes"
    hows = {log["end"]["how"] for log in (original, *logs)}
    if hows == {"finished"} and "saved" in original["end"]:
        whole: dict[str, Any] = {}
        for log in reversed(logs):
            whole.update(log["end"].get("saved", log["saved"]))
        difference = verdict.saved_difference(original["end"]["saved"], whole)
        if difference is not None:
            yield difference


def _printed_often(original: Log, logs: Sequence[Log]) -> str | None:
    """What is printed more often than by one process, or not at all."""
    lines = printed.read_lines(original["lines"])
    ours = Counter(line.wording for line in lines)
    theirs = [Counter(line.wording for line in printed.read_lines(log["lines"])) for log in logs]
    for line in lines:
        ranks = [rank for rank, each in enumerate(theirs) if each[line.wording]]
        if sum(each[line.wording] for each in theirs) > ours[line.wording] and len(ranks) > 1:
            return f'{_ranks(ranks)} all print "{printed.show(line)}": one process prints it once'
    if ours and not any(each.keys() & ours.keys() for each in theirs):
        return f'none of the processes prints "{printed.show(lines[0])}"'
    return None


def _notes(
    original: Log,
    logs: Sequence[Log],
    uneven: set[int],
    tolerance: Tolerance,
    before: Sequence[Sequence[printed.Line]],
) -> Iterator[str]:
    worst = max((max(each) for each in _compared(logs)), default=0.0)
    many = "both" if len(logs) == 2 else f"all {len(logs)}"
    over = f" over {logs[0]['events']['backend']}" if "backend" in logs[0]["events"] else ""
    figure = f"largest relative difference {_small(worst)}" if worst else "bit for bit"
    yield (
        f"run as {len(logs)} processes{over}: the gradients and updates of {many} are those of one process "
        f"({figure} over {len(original['rows'])} steps)"
    )
    if uneven:
        left = f"{len(uneven)} step{'s were' if len(uneven) > 1 else ' was'} left out of that comparison"
        yield f"the last batch of an epoch is shared out unevenly: {left}"
    lines = printed.read_lines(logs[0]["lines"])
    differing = printed.compare_printed(before, lines, tolerance.printed, all_lines=False, decisions=False)
    if differing is not None:
        yield f"rank 0 prints what it knows of its own share: {differing}"
