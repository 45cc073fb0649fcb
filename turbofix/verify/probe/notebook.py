"""What the code of a notebook finds there and nowhere else: names for what was masked, ``display``, IPython."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from typing import Any


class _Nothing:
    """Whatever is asked of it is that again, and it does nothing."""

    config: dict[str, Any] = {}  # noqa: RUF012 (asked for, never written)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


def furnish(names: dict[str, Any], text: str, mark: str) -> None:
    """Give the code its ``names``: each row of ``mark`` is what a magic or a shell line says, which is nothing."""
    nothing = _Nothing()
    names.update(dict.fromkeys(re.findall(f"{mark}+", text), ""))
    names.update(display=nothing, get_ipython=nothing)
    if importlib.util.find_spec("IPython") is None:
        for name in ("IPython", "IPython.display"):
            module = types.ModuleType(name)
            module.__dict__["__getattr__"] = nothing.__getattr__
            sys.modules[name] = module
        sys.modules["IPython"].__dict__.update(display=sys.modules["IPython.display"], version_info=(9, 0))
    if importlib.util.find_spec("ipywidgets") is None and importlib.util.find_spec("tqdm") is not None:
        # its bars for notebooks need those
        sys.modules["tqdm.notebook"] = importlib.import_module("tqdm.std")
