"""Prove a rewrite by running it: ``verify`` runs a script as it is and as rewritten, and compares learning and speed.

``request`` says what is asked and ``result`` what is answered. ``isolation`` finds out how well the user's files can be
held, ``scratch`` makes what the script sees of them, under ``layers`` or as a mirror, in a folder that ``lease`` takes
and gives back. ``runner`` runs the script in a child of the user's interpreter with the ``probe`` in it and within
``limits``, ``learning`` compares and blames (``verdict``, ``printed`` and ``changes`` are its pure parts), ``speed``
times, ``selection`` drops what brings nothing on a GPU (``worth`` is its pure part), ``recipes`` judges changes of the
recipe by what they learn (``curves`` is its pure part), ``signals`` sees to a clean end.
Only the probe imports torch, in the child.
"""

from turbofix.verify.request import Options, Progress, Request, Stage
from turbofix.verify.result import Inconclusive, Interval, Judgement, Measured, Verification
from turbofix.verify.verification import verify

__all__ = [
    "Inconclusive",
    "Interval",
    "Judgement",
    "Measured",
    "Options",
    "Progress",
    "Request",
    "Stage",
    "Verification",
    "verify",
]
