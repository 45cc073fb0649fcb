"""How a script of one process is written for several: what each is called, what it wraps, shares, counts and leaves."""

from __future__ import annotations

import re
from pathlib import Path

from turbofix.editing.edit import Edit
from turbofix.findings import Site
from turbofix.training.model import FIRST_LINE, Parallel

from ._totals import add_up

_WRITTEN = {name: Path(__file__).with_name(f"_written_{name}.py") for name in ("ranks", "workers")}
_SEEDS = {"random": ("random.seed", ""), "numpy": ("numpy.random.seed", " % 2**32")}
_PLAIN = re.compile(r"[\w.]+(\[[^][]*\])*|[\w.]+\([^()]*\)|'[^'\"\\]*'|\"[^'\"\\]*\"")


def grouped(text: str) -> str:
    """An expression as an operand."""
    return text if _PLAIN.fullmatch(text) else f"({text})"


class Ranks:
    """One edit of a program."""

    def __init__(self, edit: Edit, plan: Parallel) -> None:
        assert plan.beside is not None
        self.edit, self.plan, self.beside = edit, plan, plan.beside

    # --- words

    def word(self, name: str, at: Site) -> str:
        """How a file says what the file beside the script has."""
        package, _, module = self.beside.module.rpartition(".")
        if at.path == self.beside.at.path:  # which begins with it
            return f"{module}.{name}"
        return self.edit.name(f"{self.beside.module}.{name}", at, package or None)

    def several(self, at: Site) -> str:
        """The test of whether there are several processes."""
        return f"if {self.word('world_size', at)} > 1:"

    def divided(self, site: Site) -> str:
        """A number's text, shared out."""
        return f"{grouped(self.edit.text(site))} // {self.word('world_size', site)}"

    def before(self, at: Site, *lines: str) -> None:
        """Lines in front of a statement."""
        self.edit.before(at, *lines, above_comments=True)

    def after(self, at: Site, *lines: str) -> None:
        """Lines behind a statement."""
        self.edit.after(at, *lines)

    # --- models

    def wrap_models(self) -> None:
        """The wrapped models beside the models, and the calls that take them; random numbers of their own before."""
        edit, plan = self.edit, self.plan
        own = self._own_seeds() if plan.apart else []
        done: set[tuple[Site, str]] = set()
        for model in plan.models:
            at = model.at
            if (at, model.becomes) in done:  # one name for what several calls make
                continue
            done.add((at, model.becomes))
            ddp = edit.name("torch.nn.parallel.DistributedDataParallel", at)
            lines = [f"{model.becomes} = {model.text}", self.several(at)]
            if at == plan.loop and not model.behind:
                lines, own = [*lines, *own], []
            given = model.text
            if model.normed:
                lines += [f"    if next({model.text}.parameters()).is_cuda:"]
                lines += [f"        {self.word('synchronise', at)}({model.text})"]
                given += ", broadcast_buffers=False"  # they are the same in all
            lines += [f"    {model.becomes} = {ddp}({given})"]
            (self.after if model.behind else self.before)(at, *lines)
            for site, text in model.uses:
                edit.replace(site, text)
        if own:
            self.before(plan.loop, self.several(plan.loop), *own)

    def _own_seeds(self) -> list[str]:
        """The lines by which each process draws its own numbers."""
        edit, at = self.edit, self.plan.loop
        seed = f"{edit.name('torch.initial_seed', at)}()"
        first = f"{edit.name('torch.manual_seed', at)}({seed} + {self.word('rank', at)})"
        lines = [f"    if {self.word('rank', at)} > 0:  # dropout and augmentation of its own", f"        {first}"]
        for name, rest in (_SEEDS[each] for each in self.plan.apart if each != "torch"):
            lines += [f"        {edit.name(name, at)}({seed}{rest})"]
        return lines

    def share_calls(self) -> None:
        """The calls of models of which each process computes some rows."""
        for site in self.plan.shared:
            self.edit.replace(site, f"{self.word('shared', site)}({self.edit.text(site)})")

    # --- what a process counts

    def add_up(self) -> None:
        """The sums of all processes behind the loops that count a share each."""
        for each in self.plan.totals:
            add_up(self, each)

        for loop, model in self.plan.buffers:
            send = self.edit.name("torch.distributed.broadcast", loop)
            lines = f"    for buffer in {model}.buffers():  # each has those of its share", f"        {send}(buffer, 0)"
            self.after(loop, self.several(loop), *lines)

    def agree(self) -> None:
        """What one process decides holds for all: numbers that are read may differ in their last digits."""
        for site in self.plan.decisions:
            self.edit.replace(site, f"{self.word('agreed', site)}({self.edit.text(site)})")

    # --- what one does for all

    def do_once(self) -> None:
        """Files, logs and bars of one process."""
        edit, plan = self.edit, self.plan
        for site in plan.made:
            edit.replace(site, f"{self.word('once', site)}({edit.text(site)})")
        for site in plan.fetching:
            edit.replace(site, f"{self.word('first', site)}({edit.text(site)})")
        for site in plan.bars:
            old, others = edit.call(site).value("disable"), f"{self.word('rank', site)} > 0"
            edit.argument(site, "disable", others if old in (None, "False") else f"{old} or {others}")

    # --- the group

    def set_up(self) -> None:
        """The file beside the script, and its first call: in front of all that may differ."""
        edit, plan, at = self.edit, self.plan, self.beside.at
        package, _, module = self.beside.module.rpartition(".")
        lines = [
            f"from {package} import {module}" if package else f"import {module}",
            "",
            f"if __name__ == {edit.quoted('__main__', at)}:",
            f"    {module}.begin()  # where torchrun starts it",
        ]
        edit.before(at, *lines, "")
        written = _WRITTEN["workers" if plan.shared else "ranks"]
        edit.create(self.beside.path, FIRST_LINE + written.read_text("utf-8"))
