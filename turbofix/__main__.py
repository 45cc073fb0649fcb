"""The entry point of ``turbofix`` and of ``python -m turbofix``."""

from __future__ import annotations

import gc
import os
import sys

# Loading code makes many objects and no garbage: with its defaults the collector looks for some all the time. Hence it
# is told before anything else is loaded.
gc.set_threshold(50_000)


def main() -> None:
    """Run the command line; for ``analyze`` with nothing but paths, without a library that reads options."""
    command, *paths = sys.argv[1:] or ["--help"]
    try:
        if command == "analyze" and os.name == "posix" and not any(each.startswith("-") for each in paths):
            from turbofix.engine.project import Chosen
            from turbofix.telling import Output, reported, told_findings

            sys.exit(reported(told_findings, paths, Chosen(), Output()))
        from turbofix import cli

        cli.main()
    finally:
        gc.freeze()  # the process ends: nothing is left that is worth a last look for garbage


if __name__ == "__main__":
    main()
