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


if __name__ == "__main__":
    main()
