"""A library's module that is called as one of the project's own is not taken for it."""

from __future__ import annotations

from memory import ENTRY, MemoryWorkspace

from turbofix.interpreter.execution import execute

SCRIPT = "from gensim.models import {name}\nprint({name})\n"
OWN = "class Pairs:\n    pass\n"


def modules(name: str) -> set[str]:
    own = ENTRY.with_name("models.py")
    workspace = MemoryWorkspace({ENTRY: SCRIPT.format(name=name), own: OWN})
    found = execute(ENTRY, ENTRY.parent, workspace.read, lambda *_: [ENTRY, own])
    assert found is not None
    return {each.path.name for each in found.modules.values()}


def test_a_library_beside_a_file_of_its_name() -> None:
    assert modules("KeyedVectors") == {ENTRY.name}


def test_a_package_that_is_installed_under_another_name() -> None:
    assert modules("Pairs") == {ENTRY.name, "models.py"}
