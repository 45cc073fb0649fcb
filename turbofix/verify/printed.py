"""Compare what two runs printed: the numbers in lines of the same wording, as far as they are results and not times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from turbofix.records import dataclass

# not the 5 of `Acc@5`, which is part of a name
NUMBER = re.compile(r"(?<![\w.@])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\d:])")
CLOCK = re.compile(r"\d+:\d\d(?::\d\d)?(?:[.,]\d+)?")
# what stands around a number that is a time, a speed or a size of memory
TIMING = re.compile(
    r"\b(time|times|timing|sec|secs|second|seconds|elapsed|eta|took|speed|throughput|dur|duration|mem|memory|ms|"
    r"milliseconds|minutes|hours|dt|fps|mfu|date)\b|/s\b|it/s|s/it|/sec\b|\d\s?(ms|s|sec|mins?|h|us|µs|[kKMG]i?B)\b",
    re.IGNORECASE,
)
# what counts decisions: rounding turns a close one, and of many close ones many
DECISION = re.compile(
    r"(acc|correct|error|prec|recall|iou|auc|roc|bleu|dice|score|top|map|mrr|ndcg|\bhr|\bhits?|f1|exact|wer|cer|rouge)"
    r"[\w@ ]*\W*$",
    re.IGNORECASE,
)
UNIT = re.compile(
    r"\s?(ms|s|sec|secs|seconds|mins?|minutes|h|hours|us|µs|[kKMG]i?B|[\w ]*/\s?(s|sec|second|it|step|epoch|batch))\b"
)
# the blanks that a format fills up with: `ms/batch  8.28` and `ms/batch 11.28` are one wording
PADDING = re.compile(r"(?<=[(\[{|/=:,])\s+(?=#)|(?<=\s)\s+(?=#)")


@dataclass(frozen=True)
class Line:
    """A printed line as its wording and its numbers, and the steps taken before it."""

    step: int
    wording: str
    numbers: tuple[str, ...]


def read_lines(lines: Iterable[Sequence[object]]) -> list[Line]:
    found = []
    for step, text in lines:
        plain = CLOCK.sub("<clock>", str(text))
        wording = PADDING.sub("", NUMBER.sub("#", plain)).lstrip()
        found.append(Line(int(str(step)), wording, tuple(NUMBER.findall(plain))))
    return found


def _agree(old: str, new: str, tolerance: float) -> bool:
    """Whether two printed numbers are the same within ``tolerance`` and two units of their last decimal."""
    if old == new:
        return True
    a, b = float(old), float(new)
    fraction = old.lower().partition("e")[0].partition(".")[2]
    exponent = old.lower().partition("e")[2]
    # A count that hangs on rounding (correct answers) may move by as much.
    unit = 10.0 ** -len(fraction) * 10.0 ** (int(exponent) if exponent else 0)
    return abs(a - b) <= tolerance * max(abs(a), abs(b)) + (2 * unit if tolerance else 0)


def compare_printed(
    originals: Sequence[Sequence[Line]],
    candidate: Sequence[Line],
    tolerance: float,
    *,
    all_lines: bool,
    decisions: bool = True,
) -> str | None:
    """The first difference in a sentence, or None.

    ``originals`` are runs of the same program: a number that differs among them is no result, and a wording that one of
    them does not print (a file's name made of the time) need not be printed. Lines are matched by
    wording and order; where one program prints a wording more often (it prints every n-th step only) the lines after
    the same step are compared. With ``all_lines``, a wording that the original printed must still be printed. Without
    ``decisions``, counts and accuracies are left out: in another precision they follow the close calls.
    """
    first = originals[0]
    noisy = _noisy(originals)
    ours, theirs = _by_wording(first), _by_wording(candidate)
    others = [_by_wording(each) for each in originals[1:] if each]
    for wording, lines in ours.items():
        if wording not in theirs:
            if all_lines and all(wording in each for each in others):
                return f'it no longer prints "{show(lines[0])}"'
            continue
        if TIMING.search(show(lines[0])) and not lines[0].numbers:
            continue
        for old, new in _pairs(lines, theirs[wording]):
            for position, (a, b) in enumerate(zip(old.numbers, new.numbers, strict=False)):
                if (wording, position) in noisy or _is_timing(old, position):
                    continue
                if not decisions and _is_decision(old, position):
                    continue
                if not _agree(a, b, tolerance):
                    return f'it prints "{show(new)}" where the original prints "{show(old)}"'
    return None


def _noisy(originals: Sequence[Sequence[Line]]) -> set[tuple[str, int]]:
    """The places of numbers that are not the same in every run of the original."""
    noisy = set()
    first = _by_wording(originals[0])
    for other in map(_by_wording, originals[1:]):
        for wording, lines in first.items():
            for old, new in zip(lines, other.get(wording, ()), strict=False):
                noisy |= {
                    (wording, i) for i, (a, b) in enumerate(zip(old.numbers, new.numbers, strict=False)) if a != b
                }
    return noisy


def _by_wording(lines: Iterable[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.wording, []).append(line)
    return found


def _pairs(ours: Sequence[Line], theirs: Sequence[Line]) -> Iterable[tuple[Line, Line]]:
    if len(ours) == len(theirs):
        return zip(ours, theirs, strict=False)
    steps = [line.step for line in (*ours, *theirs)]
    # The same line twice after one step leaves no way to tell which is which.
    if len(set(steps[: len(ours)])) < len(ours) or len(set(steps[len(ours) :])) < len(theirs):
        return ()
    by_step = {line.step: line for line in theirs}
    return [(line, by_step[line.step]) for line in ours if line.step in by_step]


def _is_timing(line: Line, position: int) -> bool:
    """Whether the words next to the number say that it is a time."""
    pieces = line.wording.split("#")
    before = re.split(r"[,|;()\[\]]|\s{2,}|#", pieces[position])[-1] if position < len(pieces) else ""
    after = re.split(r"[,|;()\[\]]|\s{2,}", pieces[position + 1])[0] if position + 1 < len(pieces) else ""
    unit = UNIT.match(after)
    return bool(unit) or bool(TIMING.search(before))


def _is_decision(line: Line, position: int) -> bool:
    pieces = line.wording.split("#")
    whole = line.numbers[position].lstrip("+-").isdigit()
    if whole or pieces[position + 1].lstrip().startswith("%") or DECISION.search(pieces[position]):
        return True
    # the average behind it, in brackets: `Acc@1 87.50 (33.52)`
    return position > 0 and pieces[position].strip() == "(" and _is_decision(line, position - 1)


def show(line: Line) -> str:
    """The line as it was printed."""
    text = line.wording
    for number in line.numbers:
        text = text.replace("#", number, 1)
    return text.strip()[:120]
