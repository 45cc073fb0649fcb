"""The entry point of ``turbofix`` and of ``python -m turbofix``."""

from __future__ import annotations

import gc
from typing import NoReturn

# Loading code makes many objects and no garbage: with its defaults the collector looks for some all the time. Hence it
# is told before anything else is loaded.
gc.set_threshold(50_000)


def main() -> NoReturn:
    """Run the command line."""
    from turbofix import cli

    try:
        cli.main()
    finally:
        gc.freeze()  # the process ends: nothing is left that is worth a last look for garbage


# CPython from 3.11 on keeps the frames of calls in pieces of 16 KB, or as much more as the frame that needs a new one
# asks for. A piece is given back to the system as soon as it is empty: a call that begins a piece, in a loop, gets and
# loses its memory each time, and calls nest so deep here that this was a sixth of the time of an abstract execution.
# Hence the first frame asks for a megabyte, which makes a piece of two; memory that is not used costs nothing.
main.__code__ = main.__code__.replace(co_stacksize=2**17)


if __name__ == "__main__":
    main()
