"""How worker processes are written: the number, what keeps them, and the guard that a spawned one needs."""

from __future__ import annotations

import ast

from turbofix.codemod import SharedPlan
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.datafile import is_data
from turbofix.source.nodes import parse
from turbofix.training.model import Region
from turbofix.training.script import is_guard

from ._guard import left_behind, on_gpu_above
from ._loaders import comment_above, dict_of, earlier_in_its_block, gives_reason, mend_help, whole

MOST = 16
FEW = 8
"""Half of the CPUs that a rank has on a machine for training: fewer workers than that cannot keep up with decoding. A
configuration file, which cannot count CPUs, is told so many."""
WORDS = ("sched_getaffinity", "LOCAL_WORLD_SIZE")
OPERANDS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp)
ACTS = regex(r"\n|\b(next|pop|input|read\w*)\(")
"""What a number is not asked for twice by."""


@dataclass(frozen=True)
class Extra:
    """What one loader gets beside the number.

    ``number`` is where the call or the mapping that it unpacks names the number; None where the number is added.
    ``entry``: that stands in a mapping. ``persistent``: keep the workers.
    """

    call: Site
    number: Site | None
    entry: bool
    persistent: bool
    prefetch: bool = False


@dataclass(frozen=True)
class Plan(SharedPlan):
    """``values`` are where the number stands; none where it is added to the call, or stays as it is (not ``counted``).

    ``anchors`` are all places of this file where a number goes: they share one line that counts the CPUs.
    ``devices``: as many ranks as there are GPUs may share the CPUs. ``share``: as many loaders, read by one loop,
    divide the number among them. ``prefix``: how the names of the arguments begin. ``forked``: there are workers only
    where processes are forked; else the statements ``unguarded`` get a guard.
    """

    values: tuple[Site, ...]
    counted: bool
    extras: tuple[Extra, ...]
    anchors: tuple[Site, ...] = ()
    ranks: bool = False
    devices: bool = False
    unguarded: Region | None = None
    forked: bool = False
    share: int = 1
    prefix: str = ""

    def write(self, site: Site, edit: Edit) -> None:
        """Set the number, keep the workers, and guard the script where nothing does."""
        refuse_comments(edit, self)
        forked, unguarded = self.forked, None if self.forked else self.unguarded
        first = unguarded.first if unguarded is not None else None
        line = first.line if first is not None else guard_line(edit, site)
        if line is not None and not forked:
            text = whole(edit, first or site)
            forked = left_behind(text, line) is not None or (first is not None and on_gpu_above(text, line) is not None)
            unguarded = None if forked else unguarded
        if unguarded is not None:
            header = f"if __name__ == {edit.quoted('__main__', unguarded.first)}:"
            edit.wrap(unguarded.first, unguarded.last, header, above_comments=True)
        where = next(iter(self.values), site)
        if forked and edit.in_data(where):
            raise Refuse(f"the number stands in {where.path.name}, and no worker could be spawned (macOS, Windows)")
        forks = fork_test(edit, self, where) if forked else ""
        if self.counted:
            number = str(FEW) if edit.in_data(where) else count(edit, self, where, unguarded)
            number += f" if {forks} else 0" if forks else ""
            for value in self.values:
                edit.replace(value, number)
                mend_help(edit, value, "0", f"one per CPU, at most {MOST}")
            if not self.values:
                edit.argument(self.extras[0].call, f"{self.prefix}num_workers", number, spelled_out=True)
        for each in self.extras:
            if each.persistent:
                keep(edit, each, self, forks)
            if each.prefetch and not forks:
                edit.argument(each.call, "prefetch_factor", "4", spelled_out=True)


def guard_line(edit: Edit, site: Site) -> int | None:
    """Where a file has its guard, of what stands behind which a spawned worker knows nothing."""
    body = parse(whole(edit, site)).body if not edit.in_data(site) else []
    return next((each.lineno for each in body if is_guard(each)), None)


def kept_if(number: str) -> str | None:
    """The test under which workers can be kept: that there are any, by what says how many; None: not to be repeated."""
    if not number or ACTS.search(number):
        return None
    tree = ast.parse(number, mode="eval").body
    if isinstance(tree, ast.Constant):
        return "True" if tree.value else None
    if number.endswith("cpu_count()"):
        return "True"
    return f"{number} > 0" if isinstance(tree, OPERANDS) else f"({number}) > 0"


def fork_test(edit: Edit, plan: Plan, site: Site) -> str:
    """A test of whether processes are forked here, by a name that is set above the places of the numbers."""
    head = earlier_in_its_block(edit, plan.anchors, site)
    methods = edit.name("multiprocessing.get_all_start_methods", head)
    test = f"{methods}()[0] == {edit.quoted('fork', head)}"  # the first one is the platform's default
    if is_in_class(edit, head):
        return test
    forks = edit.free_name("forks", head)
    edit.before(head, f"{forks} = {test}", above_comments=True)
    return forks


def refuse_comments(edit: Edit, plan: Plan) -> None:
    """Raise Refuse where a comment above the call, or above the number, speaks of workers: it may say why."""
    for site in (*(each.call for each in plan.extras), *plan.values):
        comment = comment_above(edit, site)
        if "worker" in comment.lower() and gives_reason(comment):
            raise Refuse(f"the comment above may say why it is so: {comment}")


def count(edit: Edit, plan: Plan, site: Site, unguarded: Region | None) -> str:
    """The number of workers as an expression; a line above counts the CPUs that the process may use."""
    head = earlier_in_its_block(edit, plan.anchors, site)
    if is_in_class(edit, head):  # no place for a line of its own: it would become an attribute
        cpus = f"{edit.name('os.cpu_count', site)}() or 1"
        return f"min({MOST}, {cpus})" if plan.share == 1 else f"max(1, min({MOST}, ({cpus}) // {plan.share}))"
    affinity, everything = edit.name("os.sched_getaffinity", head), edit.name("os.cpu_count", head)
    os = affinity.removesuffix(".sched_getaffinity")
    cpus, name, ranks = edit.free_name("cpus", head), *(edit.quoted(word, head) for word in WORDS)
    lines = [f"{cpus} = len({affinity}(0)) if hasattr({os}, {name}) else {everything}() or 1"]
    if plan.devices:
        lines.append(f"{cpus} //= max(1, {edit.name('torch.cuda.device_count', head)}())")
    elif plan.ranks:
        lines.append(f"{cpus} //= int({os}.environ.get({ranks}, 1))")
    begins = edit.statement(head)
    if unguarded is not None and begins == edit.statement(unguarded.first):
        above = whole(edit, head).splitlines()[: begins.line - 1][-1:]
        lines += [""] if above and not above[0].strip() else []  # the guard follows
    edit.before(head, *lines, above_comments=True)
    number = f"min({MOST}, {cpus})" if plan.share == 1 else f"min({MOST}, {cpus} // {plan.share})"
    return f"max(1, {number})" if plan.ranks or plan.share > 1 else number


def is_in_class(edit: Edit, site: Site) -> bool:
    """Whether the number is the default of a dataclass's field or of a method's parameter."""
    statement = edit.statement(site)
    return statement.column > 0 and statement.kind in ("AnnAssign", "FunctionDef", "AsyncFunctionDef")


def keep(edit: Edit, each: Extra, plan: Plan, forks: str) -> None:
    """Give the loader ``persistent_workers``: true, or as long as there are workers where the user says how many."""
    value = kept_if(edit.text(each.number)) if each.number is not None else forks or "True"
    if value is None and plan.counted:
        return
    if value is None:
        raise Refuse("the number comes from elsewhere than the call: add persistent_workers beside it")
    if not each.entry:
        edit.argument(each.call, f"{plan.prefix}persistent_workers", value, spelled_out=True)
        return
    entry = each.number or next(iter(plan.values), None)
    if entry is not None and is_data(entry.path):
        edit.setting(entry, "persistent_workers", "True")
        return
    display = dict_of(edit, entry) if entry is not None else None
    if display is None:
        raise Refuse("the number is put into a mapping by a statement of its own: add persistent_workers beside it")
    edit.entry(display, "persistent_workers", value)
