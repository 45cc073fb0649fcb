"""Measure the GPU that is here, so that the estimate for it rests on the card and the processor themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from turbofix.verify.isolation import PROBE
from turbofix.verify.result import Inconclusive

LONGEST = 300.0
"""Seconds after which something is wrong."""


def calibrate(python: str | None = None, device: str = "cuda") -> dict[str, Any]:
    """What was measured on the card that is here, as ``turbofix.estimate.calibrated`` reads it.

    Raises:
        Inconclusive: there is none, or torch cannot be had.
    """
    command = [python or sys.executable, str(PROBE / "calibration.py"), device]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except OSError as error:
        raise Inconclusive(f"the interpreter {command[0]} could not be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Inconclusive(f"the measurements take longer than {LONGEST:.0f} seconds: is the GPU busy?") from error
    if ran.returncode:
        last = ran.stderr.strip().splitlines()
        raise Inconclusive(last[-1] if last else f"{command[0]} ended with {ran.returncode} and without a word")
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found
