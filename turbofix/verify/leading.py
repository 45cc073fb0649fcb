"""The libraries that a script imports before it does anything else: its runs may begin with them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

_CHANGES = ("environ", "putenv", "chdir", "sys.path", "exec(")
"""What a module that changes what an import finds, or what it does, has in its text."""


def leading_imports(script: Path, content: Callable[[Path], bytes]) -> tuple[str, ...]:
    """Modules of libraries that the first statements import, and those of the script's own modules that they import.

    ``content`` gives what is run from a file. It ends where the script, or a module of its own, may change what the
    next import does.
    """
    names: list[str] = []
    _goes_on(script, script.parent, content, names, set())
    return tuple(dict.fromkeys(names))


def _goes_on(file: Path, home: Path, content: Callable[[Path], bytes], names: list[str], seen: set[Path]) -> bool:
    """Add the names; whether nothing that follows the import of this file has to wait for what it does."""
    seen.add(file)
    text = content(file).decode(errors="replace")
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    for name in _imported(body):
        ends, folders = (".py", "/__init__.py"), (home, file.parent)
        own = [folder / f"{name.replace('.', '/')}{end}" for folder in folders for end in ends]
        found = next((each for each in own if each.is_file()), None)
        if found is None and any(any(each.glob(f"{name.partition('.')[0]}*")) for each in folders):
            return False
        if found is None:
            names.append(name)
        elif found not in seen and not _goes_on(found, home, content, names, seen):
            return False
    return not any(each in text for each in _CHANGES)


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return
