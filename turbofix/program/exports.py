"""Which of a file's names the other files of the program use."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from turbofix.program.analysis import Analysis
from turbofix.program.answers import every
from turbofix.program.execution import ModuleFile
from turbofix.program.names import dotted


def takers(analysis: Analysis, module: ModuleFile, names: Set[str]) -> Iterator[tuple[ast.AST, ModuleFile]]:
    """Where other files take these names of a file: ``from common import scaler``, ``common.scaler``.

    Files are told apart by the last part of their name alone, so that there may be some too many.
    """
    own = {module.path.stem, module.path.parent.name}
    for other in analysis.execution.modules.values():
        if other is module:
            continue
        holding: set[str] = set()  # what the file may be called there
        for statement in every(ast.ImportFrom, other.tree):
            if not statement.level and (statement.module or "").partition(".")[0] == "torch":
                continue
            brought = {alias.name for alias in statement.names}
            here = (statement.module or "").rpartition(".")[2] in own or not statement.module
            if here and (brought & names or "*" in brought):
                yield statement, other
            holding |= {alias.asname or alias.name for alias in statement.names if alias.name in own}
        for plain in every(ast.Import, other.tree):
            for alias in plain.names:
                if own & set(alias.name.split(".")):
                    holding.add(alias.asname or alias.name.partition(".")[0])
        for used in every(ast.Attribute, other.tree) if holding else ():
            if used.attr in names and (dotted(used.value) or "").partition(".")[0] in holding:
                yield used, other
