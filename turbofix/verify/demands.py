"""What a script must be to be run at all, and what is known of it before it is."""

from __future__ import annotations

import contextlib
import re

from turbofix.verify.request import Request
from turbofix.verify.result import Inconclusive

# files beside the script that are looked at for the word cuda
MOST_FILES_READ = 300


def demand_script(request: Request) -> None:
    """``Inconclusive`` where there is no script to run, or one that cannot be compiled."""
    script = request.script
    if script.is_dir():
        raise Inconclusive(f"{script} is a folder: name the script in it that is to be run")
    if not script.is_file():
        raise Inconclusive(f"there is no file {script}")
    try:
        content = request.content(script)
    except OSError as error:
        raise Inconclusive(f"{script.name} cannot be read: {error.strerror}") from error
    try:
        compile(content, str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        place = request.place(script, content, line) if line else script.name
        raise Inconclusive(f"{place} cannot be compiled: {error}") from error


def mentions_cuda(request: Request) -> bool:
    """Whether the script, a rewrite of it or a module beside it speaks of CUDA."""
    word = re.compile(rb"cuda|torch\.accelerator|accelerator\.is_available", re.IGNORECASE)
    contents = [content for stage in request.stages for content in stage.files.values()]
    for path in (request.script, *sorted(request.script.parent.rglob("*.py"))[:MOST_FILES_READ]):
        with contextlib.suppress(OSError):
            contents.append(path.read_bytes())
    return any(map(word.search, contents))
