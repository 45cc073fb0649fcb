"""Regular expressions that are compiled when they are first used: an analysis asks for a part of those it loads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def regex(text: str, flags: int = 0) -> re.Pattern[str]:
        """A pattern with these flags, not compiled yet."""

else:

    class regex:  # noqa: N801  (stands for re.compile)
        """Stands for a compiled pattern, whose methods it has from their first use on."""

        def __init__(self, text: str, flags: int = 0) -> None:
            self.pattern, self.flags = text, flags

        def __getattr__(self, name: str) -> Any:
            value = getattr(re.compile(self.pattern, self.flags), name)
            setattr(self, name, value)
            return value


NEWLINE = regex(r"\r\n|\n|\r")
