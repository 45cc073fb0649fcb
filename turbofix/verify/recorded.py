"""Record one training step of a script, and of rewrites of it: what the estimate of ``turbofix.estimate`` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turbofix.estimate.recording import Recording, recording_of
from turbofix.verify import isolation, signals
from turbofix.verify.demands import demand_script, mentions_cuda
from turbofix.verify.lease import scratch_folder
from turbofix.verify.request import OnProgress, Progress, Request
from turbofix.verify.result import Inconclusive
from turbofix.verify.runner import Child, Ended
from turbofix.verify.scratch import Scratch, trees_for

SKIPPED = 1
"""Steps before the one that is recorded: the first one makes the optimizer's state."""


class Recorder:
    """Runs a script as far as its second step, as it is or rewritten, and gives the recordings."""

    def __init__(  # noqa: PLR0913
        self, child: Child, scratch: Scratch, request: Request, *, remap: bool, pretend: bool, tell: OnProgress
    ) -> None:
        self.child, self._scratch, self._request, self._tell = child, scratch, request, tell
        self._remap, self._pretend = remap, pretend
        self.cuda = child.cuda and request.options.device != "cpu"
        self.device = (child.device_name or "cuda") if self.cuda else "cpu"

    def record(self, phase: str, files: Mapping[Path, bytes], cards: int = 1) -> Recording:
        """One step of the script with ``files`` in place of its own, or what one of several ``cards`` has of it.

        Where a GPU is stood in for, tensors on it have no numbers. What cannot do without is run with them, and where
        that is the script as it is, so is what is made of it.

        Raises:
            Inconclusive: it does not come to the end of a second step.
        """
        self._tell(Progress(phase, 0, SKIPPED + 1))
        if self._remap and self._pretend:
            ended = self._run(phase, files, cards, pretend=True)
            if ended.log.get("step"):
                return recording_of(ended.log)
        self._pretend = self._pretend and bool(files or cards > 1)
        ended = self._run(phase, files, cards, pretend=False)
        if not ended.log.get("step"):
            raise Inconclusive(self._scratch.told(_why_none(ended)))
        return recording_of(ended.log)

    def _run(self, phase: str, files: Mapping[Path, bytes], cards: int, *, pretend: bool) -> Ended:
        fetches = self._scratch.root / "logs" / "fetches.jsonl"
        fetches.unlink(missing_ok=True)
        order: dict[str, Any] = {
            "tally": True,
            "speed": False,
            "skip": SKIPPED,
            "remap": self._remap,
            "pretend": pretend,
            "monitor": not files and cards == 1,
            "cards": cards,
            "fetches": str(fetches),
        }
        ended = self.child.run(files, order, lambda step: self._tell(Progress(phase, step, SKIPPED + 1)))
        how = "; again with numbers" if pretend and not ended.log.get("step") else ""
        words = self._scratch.told(ended.in_words) + how
        self._tell(Progress(phase, ended.log.get("steps", 0), SKIPPED + 1, words, ended.output))
        return ended


@contextmanager
def recorder(request: Request, tell: OnProgress, *, pretend: bool = True) -> Iterator[Recorder]:
    """A recorder whose child ends, and whose scratch folder is removed, with the context.

    Without ``pretend`` every number is computed.

    Raises:
        Inconclusive: the script, torch or the folder cannot be had.
    """
    demand_script(request)
    options, cwd = request.options, Path.cwd()
    isolation.demand(options.isolation)
    trees = trees_for(request.script, cwd)
    with signals.unwinding(), scratch_folder(keep=options.keep_scratch, outside=trees) as lease:
        scratch = Scratch(lease.root, trees, isolation.reach(options.isolation, lease.root, trees), lease.lock)
        child = Child(scratch, request.script, request.args, cwd, options, request.texts)
        try:
            tell(Progress("importing torch", 0, None))
            child.start()
            cuda = child.cuda and options.device != "cpu"
            remap = not cuda and mentions_cuda(request)
            yield Recorder(child, scratch, request, remap=remap, pretend=pretend, tell=tell)
        finally:
            child.close()


def _why_none(ended: Ended) -> str:
    if ended.complaint:
        how = f'stopped with "{ended.complaint}"' if ended.how == "crashed" else ended.complaint
        return f"the script {how} after {ended.log.get('steps', 0)} optimizer steps"
    steps = ended.log.get("steps", 0)
    return f"the script takes {steps} optimizer steps, and the second is the one that is recorded"
