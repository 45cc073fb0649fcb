"""A rewrite that trains in several processes, held against the original in one: numbers in, sentences out."""

from __future__ import annotations

import math
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from turbofix.records import dataclass
from turbofix.verify import printed, verdict
from turbofix.verify.probe.tolerances import CLOSE, FEWEST_STEPS, Tolerance
from turbofix.verify.result import all_of

Log = Mapping[str, Any]

# by how much of its length the gradient of the typical step may differ where additions are in another order alone
SAME = 1e-5
# or, in a deep network, by this times what rounding its weights to bfloat16 does: float32 has 16 bits more
FINER = 2.0**-13
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


def judge(
    original: Log,
    group: Log,
    tolerance: Tolerance,
    before: Sequence[Sequence[printed.Line]],
    turned: Callable[[], float],
) -> Together:
    """Hold a ``group`` of processes against the original in one, whose runs printed what is in ``before``.

    ``turned`` tells by how much (1 - cosine) the original's gradient turns when its weights are rounded to bfloat16.
    """
    logs: Sequence[Log] = group["ranks"]
    broken = broken_off(group) or _unlike(logs) or _untrained(original, logs)
    if broken is not None:
        return broken
    uneven = {place for log in logs for place, row in enumerate(log["rows"]) if row["uneven"]}
    ours = _even({**original, "layers": _layers(original)}, uneven)
    theirs = [_even(log, uneven) for log in _as_one(original, logs)]
    alone = len(logs) > 1 and any(name.startswith("BatchNorm") for name in logs[0]["layers"])
    found = (
        _first([ours] * len(logs), theirs, tolerance, alone=alone)
        or (None if alone else _inexact(theirs, tolerance, turned))
        or _at_the_end([original], logs)
        or _printed_often([original], logs)
        or _too_few(theirs)
    )
    if found is not None:
        return found
    notes = _reached(original, theirs, "those of one process")
    if _in_parts(logs):
        notes.append("each process trains a part of the parameters")
    if _do_the_same(logs):
        notes.append(
            "all processes have the same losses: each does the work of one, but for what they share of a model"
        )
    if uneven:
        left = f"{len(uneven)} step{'s were' if len(uneven) > 1 else ' was'} left out of that comparison"
        notes.append(f"the last batch of an epoch is shared out unevenly: {left}")
    return Together(notes=(*notes, *_printed_otherwise(logs, before, tolerance)))


def judge_beside(reference: Log, group: Log, tolerance: Tolerance) -> Together:
    """Hold a ``group`` of processes against the original in as many, each against its own."""
    ours, theirs = reference["ranks"], group["ranks"]
    found = (
        broken_off(group)
        or _unlike(theirs)
        or _first(ours, theirs, tolerance, alone=False)
        or _at_the_end(ours, theirs)
        or _printed_often(ours, theirs)
        or _too_few(theirs)
    )
    if found is not None:
        return found
    before = [printed.read_lines(ours[0]["lines"])]
    notes = _reached(ours[0], theirs, "those of the script as it is")
    return Together(notes=(*notes, *_printed_otherwise(theirs, before, tolerance)))


def _unlike(logs: Sequence[Log]) -> Together | None:
    """What the processes do differently from each other, and no process may."""
    steps = [len(log["rows"]) for log in logs]
    if min(steps) != max(steps):
        few, many = steps.index(min(steps)), steps.index(max(steps))
        return Together(f"rank {few} takes {min(steps)} optimizer steps, and rank {many} takes {max(steps)}")
    # one may have come further than another on its way to the end
    if any(len(set(each)) > 1 for each in zip(*(log["shuffles"] for log in logs), strict=False)):
        return Together("the samplers shuffle by other numbers in each process, and so share out other samples")
    return None


def _in_parts(logs: Sequence[Log]) -> bool:
    """Whether each process has parameters of its own."""
    return any(log["parameters"] != logs[0]["parameters"] for log in logs)


def _untrained(original: Log, logs: Sequence[Log]) -> Together | None:
    """A parameter that none of the processes trains."""
    trained = {name for log in logs for names in log["parameters"].values() for name in names}
    names = [name for names in original["parameters"].values() for name in names]
    if not trained < set(names):
        return None
    return Together(f"none of the processes trains `{next(name for name in names if name not in trained)}`")


def _do_the_same(logs: Sequence[Log]) -> bool:
    """Whether each process has the very losses of the others."""
    return all(
        row["losses"] == logs[0]["rows"][place]["losses"] for log in logs for place, row in enumerate(log["rows"])
    )


def _even(log: Log, uneven: set[int]) -> dict[str, Any]:
    """The log without the steps in which the processes have shares of unequal size."""
    return {**log, "rows": [row for place, row in enumerate(log["rows"]) if place not in uneven]}


# --- how they ended


def broken_off(group: Log) -> Together | None:
    """What is to be said of processes of which not all came to their end."""
    logs = group["ranks"]
    ends = [log.get("end", {}).get("how") for log in logs]
    seen = all(log.get("how") in ("stopped", "finished") for log in logs)
    if seen and not (group["stuck"] == "still" and "finished" in ends):
        return None  # what is compared has been seen of each, and none waits for another that is through
    counts = [len(log.get("rows", ())) for log in logs]
    ended = [rank for rank, how in enumerate(ends) if how == "finished" and group["done"][rank]]
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
        who = "each" if len({one.get("error") for one in logs}) == 1 else f"rank {rank}"
        return Together(f'{who} stopped with "{error}"{_at(log.get("line"))}{after}')
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
    """The logs with the loss, the samples and the layers of all processes, and what any of them saved."""
    parts = _in_parts(logs)
    whole = {"saved": _saved(log["saved"] for log in logs)}
    if parts:  # the layers of all parts are the model's
        whole["layers"] = _layers(*([original] if any(log["layers"] == original["layers"] for log in logs) else logs))
    rows = [
        _of_all(old, rows, parts=parts)
        for old, *rows in zip(original["rows"], *(log["rows"] for log in logs), strict=False)
    ]
    found = []
    for log in logs:
        mine = [{**row, **more} for row, more in zip(log["rows"], rows, strict=False)]
        found.append({**log, "layers": _layers(log), **whole, "rows": [*mine, *log["rows"][len(mine) :]]})
    return found


def _layers(*logs: Log) -> dict[str, int]:
    """The layers by their settings, whichever BatchNorm it is."""
    found: Counter[str] = Counter()
    for log in logs:
        for name, count in log["layers"].items():
            found[re.sub(r"^(?:Sync)?BatchNorm(?:\dd)?", "BatchNorm", name)] += count
    return dict(found)


def _of_all(old: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, parts: bool) -> dict[str, Any]:
    """What all processes do in a step, beside what the original does."""
    losses = [sum(row["losses"]) for row in rows if row["losses"]]
    samples = [row["samples"] for row in rows]
    # who is given the whole batch takes its part by hand
    whole = all(row["shares"] == 1 and row["samples"] == old["samples"] for row in rows)
    # and beside what is shared out, each may read the same for an evaluation
    count, drawn = rows[0]["whole"] if any(row["shares"] > 1 for row in rows) else (0, 0)
    again = len(rows) - 1
    found = {
        "losses": [sum(losses) / len(losses)] if losses else [],
        "samples": old["samples"] if whole or None in samples else sum(samples) - again * count,
        "drawn": old["drawn"] if whole else sum(row["drawn"] for row in rows) - again * drawn,
    }
    # one process alone has the loss, and each some of the layers: the gradients of all tell whether they are right
    return {**found, **({"losses": old["losses"], "modes": old["modes"]} if parts else {})}


def _first(originals: Sequence[Log], logs: Sequence[Log], tolerance: Tolerance, *, alone: bool) -> Together | None:
    """What differs first, in a sentence that says which process, where it is not all of them.

    ``alone``: in each there is a BatchNorm that sees no more than its own share of a batch.
    """
    found = [
        verdict.first_difference(old, new, tolerance, exact=False) for old, new in zip(originals, logs, strict=True)
    ]
    places = [math.inf if each is None or each.place is None else each.place for each in found]
    differing = [rank for rank, each in enumerate(found) if each is not None]
    if not differing:
        return None
    rank = min(differing, key=lambda each: places[each])
    first = found[rank]
    assert first is not None
    if first.place is not None and verdict.may_be_rounding(originals[rank], logs[rank]):
        old, rows = originals[rank]["rows"][first.place], [log["rows"][first.place] for log in logs]
        step = f"at step {old['step'] + 1}"
        if rows[rank]["drawn"] != old["drawn"]:
            return Together(f"{step} the processes train on other samples than the original{_order(logs)}")
        if any(row["chance"] != old["chance"] for row in rows):
            return Together(None, "the training step draws random numbers, and each of the processes draws its own")
        if _apart(rows) and not _in_parts(logs):
            return Together(f"{step} the gradients of the processes are not the same: they are not reduced")
    everywhere = len(differing) == len(logs) and len({each.sentence for each in found if each is not None}) == 1
    normalised = "; BatchNorm sees no more than its own process's share of a batch" if alone else ""
    return Together(f"{'' if everywhere else f'rank {rank}: '}{first.sentence}{normalised}")


def _order(logs: Sequence[Log]) -> str:
    """Why that may be, as far as the order of the samples tells."""
    passes = logs[0]["shuffles"]
    if len(passes) > 1 and len(set(passes)) == 1:
        return ": every pass over the data has the same order (`set_epoch` sets another)"
    return ""


def _apart(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the gradients of the processes differ from each other, by their lengths."""
    ratios = [
        row["compare"]["gradient"]["ratio"] for row in rows if row.get("compare") and not row["compare"]["mismatch"]
    ]
    return bool(ratios) and not max(ratios) - min(ratios) <= ALIKE * max(ratios)


def _compared(logs: Sequence[Log]) -> Iterator[tuple[float, float]]:
    """By how much the gradient and the update of each step of each process are off, as shares of their lengths."""
    for log in logs:
        for row in log["rows"]:
            compare = row.get("compare")
            if compare and not compare["mismatch"] and not row["skipped"]:
                gradient, update = compare["off"]
                yield gradient, update


def _too_few(logs: Sequence[Log]) -> Together | None:
    """That nothing can be said of processes that differ in nothing."""
    compared = len(list(_compared(logs))) // len(logs)
    return None if compared >= FEWEST_STEPS else Together(None, f"{compared} steps could be compared, too few")


def _inexact(logs: Sequence[Log], tolerance: Tolerance, turned: Callable[[], float]) -> Together | None:
    """What is more than the order of additions does, where nothing but that is another one."""
    gradients = sorted(gradient for gradient, _ in _compared(logs))
    if tolerance != CLOSE or not gradients:
        return None
    typical = gradients[len(gradients) // 2]
    if typical <= SAME or typical <= FINER * math.sqrt(2 * turned()):
        return None
    return Together(
        f"the gradient of the typical step differs by {_small(typical)} of its length, and rounding is less"
    )


def _small(number: float) -> str:
    return re.sub(r"e([-+])0?", r"e\1", f"{number:.0e}")


# --- what they saved and printed


def _at_the_end(originals: Sequence[Log], logs: Sequence[Log]) -> Together | None:
    """What goes otherwise behind the comparison, and what more processes write than did."""
    for rank, log in enumerate(logs):
        if log["end"]["how"] == "crashed" and originals[0]["end"]["how"] == "finished":
            place = _at(log["end"].get("line"))
            return Together(f'rank {rank}: at the end of the training it stops with "{log["end"]["error"]}"{place}')
    ours, theirs = Counter(_files(originals)), Counter(_files(logs))
    for name, count in theirs.items():
        if count > ours[name] > 0:
            return Together(f"{count} processes save {name}: one overwrites what the other writes")
    difference = None
    if {log["end"]["how"] for log in (*originals, *logs)} == {"finished"}:
        ends = [_saved(log["end"].get("saved", log["saved"]) for log in each) for each in (originals, logs)]
        difference = verdict.saved_difference(*ends)
    return Together(difference) if difference else None


def _files(logs: Sequence[Log]) -> Iterator[str]:
    for log in logs:
        yield from log["saved"].keys() | log["end"].get("saved", {}).keys()


def _saved(by_process: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The keys of the files that any of the processes has saved; the first of them counts."""
    whole: dict[str, Any] = {}
    for saved in by_process:
        whole = {**saved, **whole}
    return whole


def _printed_often(originals: Sequence[Log], logs: Sequence[Log]) -> Together | None:
    """What is printed more often than in the original, or not at all."""
    lines = [line for log in originals for line in printed.read_lines(log["lines"])]
    ours = Counter(line.wording for line in lines)
    theirs = [Counter(line.wording for line in printed.read_lines(log["lines"])) for log in logs]
    for line in lines:
        ranks = [rank for rank, each in enumerate(theirs) if each[line.wording]]
        if sum(each[line.wording] for each in theirs) > ours[line.wording] and len(ranks) > 1:
            return Together(f'{_ranks(ranks)} print "{printed.show(line)}", each for itself')
    if ours and not any(each.keys() & ours.keys() for each in theirs):
        return Together(f'none of the processes prints "{printed.show(lines[0])}"')
    return None


def _reached(original: Log, logs: Sequence[Log], whose: str) -> list[str]:
    """How close the processes came, and which of them were not seen to end where the original was."""
    worst = max((max(each) for each in _compared(logs)), default=0.0)
    many = "both" if len(logs) == 2 else f"all {len(logs)}"
    over = f" over {logs[0]['events']['backend']}" if "backend" in logs[0]["events"] else ""
    figure = f"largest relative difference {_small(worst)}" if worst else "bit for bit"
    told = f"{figure} over {len(logs[0]['rows'])} steps"
    notes = [f"run as {len(logs)} processes{over}: the gradients and updates of {many} are {whose} ({told})"]
    if len(logs) == 1:
        notes = [f"run as several processes{over}, of which one trains: its gradients and updates are {whose} ({told})"]
    going = [rank for rank, log in enumerate(logs) if log["end"]["how"] != "finished"]
    if going and original["end"]["how"] == "finished":
        places = [f"rank {rank}{_at(logs[rank]['end'].get('line'))}" for rank in going]
        notes.append(f"the end of the training was seen in the original, and not in all processes: {all_of(places)}")
    return notes


def _printed_otherwise(
    logs: Sequence[Log], before: Sequence[Sequence[printed.Line]], tolerance: Tolerance
) -> Iterator[str]:
    lines = printed.read_lines(logs[0]["lines"])
    differing = printed.compare_printed(before, lines, tolerance.printed, all_lines=False, decisions=False)
    if differing is not None:
        of = "what it knows of its own share" if len(logs) > 1 else "otherwise"
        yield f"rank 0 prints {of}: {differing}"
