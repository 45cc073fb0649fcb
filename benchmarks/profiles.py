"""``python -m benchmarks.profiles``: what ``turbofix profile --gpu h100`` says of whole trainings, and what that takes.

For each training of ``fixtures/scripts``, without rewrites: the seconds that it takes, what bounds the step, whether
the parts come to the whole, and the estimate, or why there is none. Exits with 1 where one could not be profiled.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.composition import QUICK
from turbofix.estimate.cards import cards
from turbofix.verify import Inconclusive, Options, Request
from turbofix.verify.profile import profile
from turbofix.verify.request import Progress

ROOT = Path(__file__).parent.parent
CARD = "h100"


def main() -> int:
    print("| training | seconds | bound | parts over the step | estimate (ms), or why there is none |")
    print("| --- | --- | --- | --- | --- |")
    failed = 0
    for script in sorted((ROOT / "fixtures" / "scripts").glob("*.py")):
        begun = time.perf_counter()
        try:
            request = Request(script, QUICK.get(script.name, ()), options=Options(device="cpu"))
            found = profile(request, cards()[CARD], _quiet)
        except Inconclusive as why:
            failed += 1
            print(f"| {script.name} | – | – | – | {why} |")
            continue
        took = time.perf_counter() - begun
        *parts, total = found.step_ms.values()
        step = found.estimate.step_ms
        told = step.in_words if step else f"none: {found.estimate.refused}"
        print(f"| {script.name} | {took:.1f} | {found.estimate.bound} | {sum(parts) / total:.2f} | {told} |")
    return 1 if failed else 0


def _quiet(progress: Progress) -> None:
    """No word of how it goes."""


if __name__ == "__main__":
    sys.exit(main())
