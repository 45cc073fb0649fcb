"""How what one call of torch makes at once is written."""

from __future__ import annotations

import re

from turbofix.edits import Edit
from turbofix.program.model import Listed

NAMED = re.compile(r"\{(torch\.\w+)\}")


def named(made: Listed, edit: Edit) -> str:
    """The source, with torch's functions by the names that they have there."""
    return NAMED.sub(lambda name: edit.name(name[1], made.site), made.text)
