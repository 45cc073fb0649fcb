"""What analysis knows of one value, one condition or one variable: the smallest answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.findings import Evidence
    from turbofix.source.site import Site


@dataclass(frozen=True)
class Argument:
    """What one argument of a call can be.

    ``absent``: not passed, the callee's default holds. ``value``: always ``values[0]``. ``option``: the user of the
    script chooses, ``values[0]`` is the default (what stands in a configuration file is a ``value`` that has an
    option's name). ``may``: one of ``values``, or absent on some paths (``may_be_absent``). ``computed``: a number or
    object made at run time (``os.cpu_count()``). ``unknown``: nothing is known, it may even be absent (an unpacked
    mapping that may hold it).
    """

    state: Literal["absent", "value", "option", "may", "computed", "unknown"]
    values: tuple[object, ...] = ()
    may_be_absent: bool = False
    site: Site | None = None  # the argument's expression in the call, where it is written there
    text: str | None = None  # that expression's source
    edit_at: Site | None = None  # the literal, dict entry or option default that a person would change
    option: str | None = None  # the option's name as the user of the script writes it: "--batch-size"
    reads: tuple[Site, ...] = ()  # every other place that reads the name (or option) which carries this value
    comment: str | None = None  # the comment on the line of edit_at or of the call's argument, if any
    way: tuple[Evidence, ...] = ()  # the statements that carry the value from edit_at to the call
    flag: Site | None = None  # the call that makes the option, where that has no default of its own
    wanted: object = None  # what would have to stand at edit_at for a switch to stand otherwise, where that is known
    written: tuple[tuple[object, Site], ...] = ()  # several values, each with the place where it is written

    @property
    def off(self) -> bool:
        """Whether it is certainly false, as the program stands."""
        return self.state in ("value", "option") and not any(self.values)

    @property
    def known(self) -> bool:
        """Whether every possible value is in ``values``."""
        return self.state in ("value", "option") or (self.state == "may" and not self.may_be_absent)


ABSENT = Argument("absent")


@dataclass(frozen=True)
class Guard:
    """Under which condition something inside a loop runs.

    ``always``: in every iteration. ``every_n``: under ``step % n``-like tests (``every`` is n where known). ``rank``:
    on one process only. ``config``: under a test that does not change during the run (a flag). ``step``: under tests
    that decide over the loop's backward passes as well. ``condition``: any other test. ``except``: in an exception
    handler. ``tests`` are the sites of the tests, outermost first.
    """

    kind: Literal["always", "every_n", "rank", "config", "step", "condition", "except"] = "always"
    tests: tuple[Site, ...] = ()
    every: int | None = None


ALWAYS = Guard()


@dataclass(frozen=True)
class Placement:
    """Where tensors go.

    ``cuda``: always a GPU (hard-coded). ``conditional``: a GPU where there is one or where the user asks for it.
    ``text`` is the source of the device expression at this place (``device``, ``self.device``, ``"cuda"``), None for
    ``.cuda()``; ``text_kind`` says what kind of object that text is. ``test`` is the source of a test, valid at this
    place, that is true exactly when a GPU is used (``use_cuda``, from ``if use_cuda: x = x.cuda()``); ``tests`` their
    sites.
    """

    where: Literal["cpu", "cuda", "conditional", "unknown"]
    text: str | None = None
    text_kind: Literal["device", "string", "index", "tensor", "unknown"] = "unknown"
    test: str | None = None
    tests: tuple[Site, ...] = ()
    mps: bool = False  # it may also be a device that is neither CPU nor CUDA (mps, xpu, torch.accelerator's choice)

    @property
    def reaches_cuda(self) -> bool:
        """Whether the program may run on a GPU here."""
        return self.where in ("cuda", "conditional")


class Told:
    """What is made with arguments, by their names."""

    arguments: Mapping[str, Argument]

    def argument(self, name: str) -> Argument:
        """The argument of that name; ``absent`` when nothing passes it."""
        return self.arguments.get(name, ABSENT)


@dataclass(frozen=True)
class Read:
    """One place where an accumulating variable is read, and when that is."""

    site: Site
    statement: Site
    when: Literal["every_step", "every_n", "condition", "after_loop"]
    show: Site | None = None  # the statement that shows it, where it is only shown (directly, or through names)


@dataclass(frozen=True)
class Accumulator:
    """A variable or attribute that sums what a sync reads: ``total += loss.item() * n``.

    ``update`` is the augmented assignment. ``inits`` are the statements that set it before the loop (``total = 0.0``).
    ``simple`` is False where it is aliased, captured by a closure, global, unpacked or returned inside the loop.
    """

    text: str
    update: Site
    inits: tuple[Site, ...]
    reads: tuple[Read, ...]
    loop: Site
    simple: bool = True
    why_not_simple: str | None = None
