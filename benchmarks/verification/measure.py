"""Verify rewrites the way ``turbofix verify SCRIPT CANDIDATE`` does, many against one watched original.

What the command does for one candidate is done here with the same objects in the same order: a child of the
interpreter, the original run against itself, then the candidate against it, judged by ``Blame`` and put into a verdict
by ``conclude``. Only the child and the original's runs are shared, which is where the time goes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.verification.rewrites import Rewrite, Subject
from turbofix.engine.verifying import plan_comparison
from turbofix.verify import Inconclusive, Options, Request, isolation
from turbofix.verify.blame import Blame
from turbofix.verify.lease import scratch_folder
from turbofix.verify.original import Original
from turbofix.verify.runner import Child
from turbofix.verify.scratch import Scratch, trees_for
from turbofix.verify.verification import conclude

# seconds a run may take: compiling takes its time on a busy machine
TIMEOUT = 600.0


@dataclass(frozen=True)
class Verified:
    """One verification: the verdict of one rewrite with one seed. ``seconds`` leaves out the original's own runs."""

    kind: str
    subject: str
    seed: int
    verdict: str
    reason: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify_all(tasks: Iterable[tuple[Rewrite, int]], steps: int | None = None) -> Iterator[Verified]:
    """A verdict for each rewrite and seed, in the order subject, seed, risk; after ``steps`` where they are given."""
    ordered = sorted(tasks, key=lambda task: (task[0].subject.name, task[1], task[0].risk.value, task[0].kind))
    for subject, of_subject in groupby(ordered, key=lambda task: task[0].subject):
        with _child(subject, steps) as bench:
            for (seed, _), group in groupby(of_subject, key=lambda task: (task[1], task[0].risk)):
                yield from bench.verify(tuple(rewrite for rewrite, _ in group), seed)


@dataclass(frozen=True)
class _Bench:
    """A child with one script, and where the script and its candidates lie."""

    child: Child
    scratch: Scratch
    script: Path
    steps: int | None

    def verify(self, rewrites: tuple[Rewrite, ...], seed: int) -> Iterator[Verified]:
        requests = [self._request(rewrite, seed) for rewrite in rewrites]
        remap = not self.child.cuda
        original = Original(self.child, self.scratch, requests[0], remap=remap, tell=lambda progress: None)
        try:
            original.watch()
            original.demand_repeatable()
        except Inconclusive as why:
            yield from (_row(rewrite, seed, "inconclusive", str(why), 0.0) for rewrite in rewrites)
            return
        rows, epochs = original.log["rows"], original.log["epochs_ended"]
        for rewrite, request in zip(rewrites, requests, strict=True):
            began = time.monotonic()
            learned = Blame(original, self.scratch, request, cuda=self.child.cuda).sort_out()
            verdict, reason = conclude(learned, request, len(rows), epochs)
            yield _row(rewrite, seed, verdict, reason, time.monotonic() - began)

    def _request(self, rewrite: Rewrite, seed: int) -> Request:
        # outside the script's folder: what lies in it is copied for every run
        with tempfile.TemporaryDirectory() as folder:
            candidate = Path(folder) / self.script.name
            candidate.write_text(rewrite.text, encoding="utf-8")
            options = Options(seed=seed, timeout=TIMEOUT, steps=self.steps)
            return plan_comparison(self.script, candidate, (), rewrite.risk, options)


def _row(rewrite: Rewrite, seed: int, verdict: str, reason: str, seconds: float) -> Verified:
    return Verified(rewrite.kind, rewrite.subject.name, seed, verdict, reason, round(seconds, 2))


@contextmanager
def _child(subject: Subject, steps: int | None) -> Iterator[_Bench]:
    with tempfile.TemporaryDirectory() as project:
        script = Path(project).resolve() / subject.script
        script.write_text(subject.text, encoding="utf-8")
        trees = trees_for(script, script.parent)
        with scratch_folder(keep=False, outside=trees) as lease:
            scratch = Scratch(lease.root, trees, isolation.reach(None, lease.root, trees), lease.lock)
            child = Child(scratch, script, (), script.parent, Options(timeout=TIMEOUT))
            try:
                child.start()
                yield _Bench(child, scratch, script, steps)
            finally:
                child.close()
