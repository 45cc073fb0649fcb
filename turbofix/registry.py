"""Which codemods there are: found through entry points, ordered, selected by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence

from turbofix.codemod import GROUPS, Codemod
from turbofix.packs import ENTRY_POINTS, installed_packs, row_folders_of


class PackError(Exception):
    """A pack of codemods is missing, empty or wrong; the argument is a sentence for the user."""


class UnknownName(Exception):  # noqa: N818  (an outcome, told to the user as a sentence)
    """A name that is neither a codemod nor a group; the argument is a sentence that offers the nearest one."""


def load() -> tuple[Codemod, ...]:
    """All codemods of all installed packs, in the order in which the pipeline runs them.

    Raises:
        PackError: no pack is installed, a pack is empty or cannot be imported, or two codemods share a name.
    """
    found: dict[str, Codemod] = {}
    packages = installed_packs()
    if not packages:
        raise PackError(
            f"no codemods are installed: no package offers the entry point {ENTRY_POINTS!r}; reinstall turbofix"
        )
    for package in packages:
        pack = list(load_pack(package))
        if not pack and not row_folders_of(package):
            raise PackError(f"the codemod pack {package!r} is empty; reinstall the package that brings it")
        for codemod in pack:
            other = found.get(codemod.name)
            if other is not None and other is not codemod:
                raise PackError(f"two codemods are called {codemod.name!r}: {other.module} and {codemod.module}")
            found[codemod.name] = codemod
    return order(found.values())


def load_pack(package: str) -> Iterable[Codemod]:
    """Import every public module of ``package`` and yield its codemod.

    Raises:
        PackError: the package or one of its modules cannot be imported, or a module has no codemod.
    """
    try:
        root = importlib.import_module(package)
        names = sorted(module.name for module in pkgutil.iter_modules(root.__path__) if not module.name.startswith("_"))
        modules = [importlib.import_module(f"{package}.{name}") for name in names]
    except ImportError as error:
        raise PackError(f"the codemod pack {package!r} cannot be imported: {error}") from error
    for module in modules:
        codemod = getattr(module, "codemod", None)
        if not isinstance(codemod, Codemod):
            raise PackError(f"{module.__name__} declares no codemod")
        yield codemod


def order(codemods: Iterable[Codemod]) -> tuple[Codemod, ...]:
    """What mends a script first, then what makes others' assumptions true, then by group and by name; and every codemod
    after those that it names in ``after``.

    Raises:
        PackError: the codemods wait for one another in a circle.
    """
    waiting = sorted(codemods, key=lambda each: (not each.mends, not each.brings, GROUPS.index(each.group), each.name))
    names = {codemod.name for codemod in waiting}
    done: list[Codemod] = []
    while waiting:
        placed = {codemod.name for codemod in done}
        ready = next((c for c in waiting if all(name in placed or name not in names for name in c.after)), None)
        if ready is None:
            raise PackError("these codemods wait for one another: " + ", ".join(c.name for c in waiting))
        waiting.remove(ready)
        done.append(ready)
    return tuple(done)


def by_group(codemods: Iterable[Codemod]) -> tuple[Codemod, ...]:
    """As people read them: group by group, in each as they came."""
    return tuple(sorted(codemods, key=lambda codemod: GROUPS.index(codemod.group)))


def select(codemods: Sequence[Codemod], chosen: Iterable[str] = (), ignored: Iterable[str] = ()) -> tuple[Codemod, ...]:
    """The codemods named in ``chosen`` (all when empty) less those in ``ignored``; names, groups, or ``all``.

    Raises:
        UnknownName: a name is neither a codemod nor a group.
    """
    chosen, ignored = set(chosen) or {"all"}, set(ignored)
    for name in sorted(chosen | ignored):
        if (sentence := unknown(codemods, name)) is not None:
            raise UnknownName(sentence)
    return tuple(c for c in codemods if matches(c, chosen) and not matches(c, ignored))


def unknown(codemods: Sequence[Codemod], name: str) -> str | None:
    """A sentence with the nearest name where ``name`` is no codemod, no group and not ``all``; None where it is one."""
    known = {codemod.name for codemod in codemods} | set(GROUPS) | {"all"}
    return None if name in known else f"{name!r} is no codemod and no group{did_you_mean(name, known)}"


def find(codemods: Sequence[Codemod], name: str) -> Codemod:
    """The codemod of that name (``_`` and ``-`` alike).

    Raises:
        UnknownName: there is none.
    """
    wanted = name.replace("_", "-").lower()
    for codemod in codemods:
        if codemod.name == wanted:
            return codemod
    raise UnknownName(f"there is no codemod {name!r}{did_you_mean(wanted, {c.name for c in codemods})}")


def matches(codemod: Codemod, names: set[str]) -> bool:
    """Whether the codemod goes by one of the names."""
    return bool({codemod.name, codemod.group, "all"} & names)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the nearest known name, or nothing."""
    import difflib

    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
