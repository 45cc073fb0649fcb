"""The first look at a fresh draw: what turbofix says of scripts that were labelled before it was run on them.

    python -m benchmarks.precision.fresh DRAW            # the score, as a row for ../results/fresh.md
    python -m benchmarks.precision.fresh DRAW --misses   # and every miss with what was said instead
    python -m benchmarks.precision.fresh DRAW --open     # findings that no label speaks of, to be judged by a reader

DRAW holds ``labels.tsv`` (``repository commit script path line codemod kind worth reason``; those of the draws so far
are in ``fresh/``, without the reasons) and one folder for each repository, ``<owner>+<name>``, at the commit. ``kind``
is ``want`` (an expert would make the change), ``wrong`` (tempting, and wrong or pointless here) or ``right`` (done
already); ``worth`` is ``high``, ``some`` or ``nil``. What readers said of other findings is in ``judged.tsv``:
``script path line codemod verdict reason``.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turbofix.findings import UNSEEN

NEAR = 3
"""Lines that a label may lie beside a finding on an expression."""

EXPRESSIONS = frozenset(
    ("defer-item", "throttle-logging", "device-tensors", "no-empty-cache", "set-to-none", "modern-amp", "modern-api",
     "no-debug-mode", "non-blocking", "native-ops")
)  # fmt: skip
"""Codemods with one finding for each expression; the others speak of a loader, a model or the program as a whole."""

READS = frozenset(("defer-item", "throttle-logging"))
"""What stands on a read may be called by either name: which one comes first is the tool's to say."""

LABELS = Path(__file__).with_name("fresh")

Place = tuple[int, int]
"""Cell (0 in a script) and line."""


@dataclass(frozen=True)
class Label:
    """One row of the labels."""

    repository: str
    script: str
    path: str
    places: tuple[Place, ...]
    codemod: str
    kind: str
    worth: str
    reason: str


@dataclass(frozen=True)
class Said:
    """Something that the tool says of a script: ``kind`` is "proven", "likely", "refusal" or "right"."""

    repository: str
    script: str
    path: str
    place: Place
    last: int
    codemod: str
    kind: str
    text: str

    def meets(self, label: Label) -> bool:
        """Whether the label speaks of this."""
        same = self.codemod == label.codemod or {self.codemod, label.codemod} <= READS
        if (self.repository, self.script) != (label.repository, label.script) or not same:
            return False
        if label.codemod not in EXPRESSIONS:
            return True
        return self.path == label.path and any(
            cell == self.place[0] and self.place[1] - NEAR <= line <= self.last + NEAR for cell, line in label.places
        )


@dataclass
class Score:
    """Counts over a draw."""

    wanted: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    silent: int = 0
    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    right: int = 0
    right_told: int = 0


def read_labels(draw: Path) -> list[Label]:
    """The labels of a draw, its own or those in ``fresh/``; one row for each cause."""
    own = draw / "labels.tsv"
    with (own if own.exists() else LABELS / f"{draw.name}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        Label(
            row["repository"],
            row["script"],
            row["path"],
            tuple(_places(row["line"])),
            row["codemod"],
            row["kind"],
            row["worth"] or "",
            row.get("reason") or "",
        )
        for row in rows
    ]


def _places(text: str) -> Iterator[Place]:
    for part in text.replace(" ", "").split(","):
        cell, _, line = part.rpartition(":")
        if line.isdigit():
            yield int(cell or 0), int(line)


def ask(draw: Path, repository: str, script: str, python: str, options: Sequence[str]) -> list[Said]:
    """What the tool says of a script."""
    folder = draw / repository.replace("/", "+")
    command = [python, "-m", "turbofix", "analyze", script, "--risk", "recipe", "--output-format", "json", *options]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not ran.stdout.strip():
        sys.stderr.write(f"{repository} {script}: {ran.stderr.strip()[-300:]}\n")
        return []
    document = json.loads(ran.stdout)
    said = [_finding(repository, script, each) for each in document["findings"] if not _is_unseen(each)]
    for file in document["files"]:
        said += [
            Said(
                repository, script, file["path"], _place(each), each["line"], each["codemod"], "right", each["message"]
            )
            for each in file["in_place"]
        ]
        if file["error"]:
            sys.stderr.write(f"{repository} {script}: {file['error']}\n")
    return said


def _finding(repository: str, script: str, each: dict[str, Any]) -> Said:
    kind = each.get("certainty", "proven") if each["fixable"] else "refusal"
    text = each["message"] if each["fixable"] else f"{each['message']} ({each['why_not']})"
    names = ", ".join(assumption["name"] for assumption in each.get("assumes", ()))
    text += f" [{names}]" if names else ""
    return Said(repository, script, each["path"], _place(each), each["end_line"], each["codemod"], kind, text)


def _is_unseen(each: dict[str, Any]) -> bool:
    """Whether a refusal only says that nothing was recognised, which tells a user no more than silence."""
    return bool(each["why_not"] == UNSEEN.format(each["codemod"]))


def _place(each: dict[str, Any]) -> Place:
    return each.get("cell", 0), each["line"]


def read_judged(draw: Path) -> dict[tuple[str, str, str, str], str]:
    """The verdicts of readers on findings without a label: script, path, line, codemod -> verdict."""
    file = draw / "judged.tsv"
    file = file if file.exists() else LABELS / f"{draw.name}-judged.tsv"
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as handle:
        rows = csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {(row["script"], row["path"], row["line"], row["codemod"]): row["verdict"] for row in rows}


def score(labels: Sequence[Label], said: Sequence[Said], judged: dict[tuple[str, str, str, str], str]) -> Score:
    """The draw's figures. Rows without a codemod (``other``) count nowhere."""
    found = Score()
    offered = [each for each in said if each.kind in ("proven", "likely")]
    for label in labels:
        if label.kind == "right" and label.codemod != "other":
            found.right += 1
            found.right_told += any(each.kind == "right" and each.meets(label) for each in said)
        if label.kind != "want" or label.codemod == "other":
            continue
        found.wanted[label.worth] += 1
        if any(each.meets(label) for each in offered):
            found.met[label.worth] += 1
        elif not any(each.meets(label) for each in said):
            found.silent += 1
    for each in offered:
        verdict = verdict_of(each, labels, judged)
        found.verdicts.setdefault(each.kind, Counter())[verdict] += 1
    return found


def verdict_of(said: Said, labels: Iterable[Label], judged: dict[tuple[str, str, str, str], str]) -> str:
    """``right``, ``wrong``, ``arguable`` or ``open`` where nobody has spoken of it."""
    key = (said.script, said.path, _text(said.place), said.codemod)
    if key in judged:
        return judged[key]
    kinds = {label.kind for label in labels if said.meets(label)}
    return "right" if "want" in kinds else "open" if not kinds else "arguable" if kinds == {"right"} else "wrong"


def _text(place: Place) -> str:
    return f"{place[0]}:{place[1]}" if place[0] else str(place[1])


def row(draw: Path, found: Score) -> str:
    """The figures in one line of a table."""
    wanted, met = sum(found.wanted.values()), sum(found.met.values())
    cells = [
        draw.name,
        _share(met, wanted),
        _share(found.met["high"], found.wanted["high"]),
        *(_precision(found.verdicts.get(kind, Counter())) for kind in ("proven", "likely")),
        _share(found.right_told, found.right),
        _share(found.silent, wanted),
    ]
    return "| " + " | ".join(cells) + " |"


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({part / whole:.2f})" if whole else "0/0"


def _precision(verdicts: Counter[str]) -> str:
    judged = sum(count for verdict, count in verdicts.items() if verdict != "open")
    good = verdicts["right"] + verdicts["arguable"]
    rest = f", {verdicts['open']} not judged" if verdicts["open"] else ""
    return _share(good, judged) + f", {verdicts['arguable']} arguable{rest}"


def main(arguments: Sequence[str]) -> int:
    """Score a draw, and print what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision.fresh")
    parser.add_argument("draw", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the turbofix to be measured")
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--wrong", action="store_true")
    given = parser.parse_args(arguments)
    labels = read_labels(given.draw)
    scripts = dict.fromkeys((label.repository, label.script) for label in labels)
    said = [each for pair in scripts for each in ask(given.draw, *pair, given.python, ())]
    judged = read_judged(given.draw)
    print("| draw | recall | of high worth | proven right | likely right | right already told | silent |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(row(given.draw, score(labels, said, judged)))
    for label in labels if given.misses else ():
        _tell_miss(label, said)
    for each in said:
        verdict = verdict_of(each, labels, judged) if each.kind in ("proven", "likely") else ""
        if (given.open and verdict == "open") or (given.wrong and verdict == "wrong"):
            place = f"{each.repository}\t{each.script}\t{each.path}\t{_text(each.place)}"
            print(f"{place}\t{each.codemod}\t{each.kind}\t{verdict}\t{each.text}")
    return 0


def _tell_miss(label: Label, said: Sequence[Said]) -> None:
    mine = [each for each in said if each.meets(label)]
    if label.kind == "want" and label.codemod != "other" and not any(e.kind in ("proven", "likely") for e in mine):
        kind = "refused" if mine else "silent"
    elif label.kind == "right" and label.codemod != "other" and not any(e.kind == "right" for e in mine):
        kind = "untold"
    else:
        return
    lines = ",".join(map(_text, label.places))
    print(f"{kind}\t{label.repository}\t{label.path}:{lines}\t{label.codemod}\t{label.worth}\t{label.reason}")
    for each in mine:
        print(f"\t\t{each.kind} {each.path}:{_text(each.place)} {each.text}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
