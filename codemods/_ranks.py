"""How a script of one process is written for several: what each is called, what it wraps, shares, counts and leaves."""

from __future__ import annotations

import re
from pathlib import Path

from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.training.model import Parallel

from ._definitions import (
    AGREED,
    ALONE,
    CHANCES,
    FIRST,
    IN_STEP,
    LEAVE,
    MET,
    NOTHING,
    ONCE,
    OWN_FILE,
    SAME,
    SILENT,
    SYNCHRONISE,
    SYNCHRONISED,
    TOGETHER,
    TWICE,
    VISIBLE,
    WRITTEN,
)
from ._precision import requote
from ._totals import add_up

_NEEDED = {"together": TOGETHER, "met": MET, "alone": ALONE, "chances": CHANCES}
"""What others call."""
_VARIABLES = {"rank": ("RANK", 0), "world_size": ("WORLD_SIZE", 1)}
_SEEDS = {
    "torch": ("torch.manual_seed", ""),
    "random": ("random.seed", ""),
    "numpy": ("numpy.random.seed", " % 2**32"),
}
_PLAIN = re.compile(r"[\w.]+(\[[^][]*\])*|[\w.]+\([^()]*\)")


def grouped(text: str) -> str:
    """An expression as an operand."""
    return text if _PLAIN.fullmatch(text) else f"({text})"


class Ranks:
    """One edit of a program."""

    def __init__(self, edit: Edit, plan: Parallel) -> None:
        self.edit, self.plan = edit, plan
        self.imports = {last.path: (last, following) for last, following in plan.imports}
        self.used: dict[Path, dict[str, str]] = {}
        self.helpers: dict[Path, list[str]] = {}
        self.defined: dict[Path, dict[str, str]] = {}
        own = () if plan.owner is not None else ("atexit.register",)
        for name in (*own, "os.environ", "sys.stdout"):  # imports in this order
            edit.name(name, plan.setup)

    # --- words

    def word(self, name: str, at: Site) -> str:
        """What a file calls one of torchrun's numbers."""
        if at.path not in self.imports:
            raise Refuse(f"{at.path.name} has no import at its head, behind which its rank could be set")
        if at.end_line <= self.imports[at.path][0].line:
            raise Refuse(f"{at.path.name} does {at.line_from(at.path)}, between its imports, what one process is to do")
        known = self.used.setdefault(at.path, {})
        if name not in known:
            known[name] = self.edit.free_name(name, at)
        return known[name]

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
                lines += [f"        {self.define(at, 'synchronise', SYNCHRONISE)}({model.text})"]
                given += ", broadcast_buffers=False"  # they are the same in all
            lines += [f"    {model.becomes} = {ddp}({given})"]
            (self.after if model.behind else self.before)(at, *lines)
            for site, text in model.uses:
                edit.replace(site, text)
        if plan.owner is not None:
            told = edit.name("accelerate.utils.DataLoaderConfiguration", plan.owner, "accelerate.utils")
            edit.argument(plan.owner, "dataloader_config", f"{told}(split_batches=True)")
            for site in plan.unwraps:
                text, module = edit.text(site), edit.quoted("module", site)
                edit.replace(site, f"getattr({text}, {module}, {text})")
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

    # --- what is written at the head of a file

    def define(self, at: Site, wanted: str, text: str) -> str:
        """Definitions at the head of a file, once: the name of the one that is wanted."""
        done = self.defined.setdefault(at.path, {})
        if wanted not in done:
            for name, needed in _NEEDED.items():
                if name != wanted and f"${name}()" in text:
                    self.define(at, name, needed)
            at = self.imports[at.path][1] if at.path in self.imports else at  # where they will stand
            named = re.findall(r"(?m)^(?:def |class |)\$(\w+)\b", text)
            done.update({each: self.edit.free_name(each, at) for each in named})
            dotted = {*re.findall(r"\$([a-z]+\.[\w.]*\w)", text), "os.environ"}
            brought: list[str] = []
            for each in sorted(dotted, key=lambda name: (name.split(".")[0], name)):  # imports in this order
                head = each.partition(".")[0]
                if head not in done:
                    try:
                        self.edit.name(each, at)
                    except Refuse:  # the script has something else of that name
                        done[head] = self.edit.free_name(f"{head}_module", at)
                        brought.append(f"import {head} as {done[head]}")

            def spelled(found: re.Match[str]) -> str:
                word = found[1]
                head, dot, rest = word.partition(".")
                if head in done:
                    return f"{done[head]}{dot}{rest}"
                return self.word(word, at) if word in _VARIABLES else self.edit.name(word, at)

            lines = self.helpers.setdefault(at.path, [])
            lines += ["", *brought, ""] if brought else []
            lines += ["", *re.sub(r"\$(\w+(?:\.\w+)*)", spelled, text).rstrip().split("\n")]
        return done[wanted]

    def in_step(self) -> None:
        """What all processes do together, where each does the same but for its rows."""
        edit, plan = self.edit, self.plan
        text = IN_STEP.replace("@SYNCHRONISED@", SYNCHRONISED if plan.synchronised else TWICE)
        text = text.replace("$own =", SYNCHRONISE.lstrip() + "\n\n$own =") if plan.synchronised else text
        for site in plan.shared:
            edit.replace(site, f"{self.define(site, 'shared', text)}({edit.text(site)})")
        for site in plan.same:
            if site.path in self.imports and site.end_line > self.imports[site.path][0].line:  # behind the helpers
                edit.replace(site, f"{self.define(site, 'same', SAME)}({edit.text(site)})")
        for site in plan.copied:
            old, world = edit.call(site).value("device_ids", 1), self.word("world_size", site)
            own = f"[0] if {world} > 1 else {old}"
            edit.argument(site, "device_ids", own, position=1)

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
            self.edit.replace(site, f"{self.define(site, 'agreed', AGREED)}({self.edit.text(site)})")

    # --- what one does for all

    def do_once(self) -> None:
        """Files, logs and bars of one process."""
        edit, plan = self.edit, self.plan
        for site in plan.made:
            edit.replace(site, f"{self.define(site, 'once', ONCE)}({edit.text(site)})")
        for site in plan.alone:
            edit.replace(site, f"({edit.text(site)} if {self.word('rank', site)} == 0 else print)")
        for site in plan.fetching:
            edit.replace(site, f"{self.define(site, 'first', FIRST)}({edit.text(site)})")
        for site in plan.settled:
            wait = (
                f"if {self.define(site, 'together', TOGETHER)}():",
                f"    {self.define(site, 'met', MET)}()",
            )
            tried = site.kind == "Try"  # what fails in one process alone
            self.after(site, *(("finally:", *(f"    {each}" for each in wait)) if tried else wait))
        for site in plan.both:
            edit.hand_to(self.define(site, "own_file", OWN_FILE), site)
        for site in plan.opened:
            mode = dict(plan.told).get(site)
            more = ", wait=False" if site in plan.logs else f", {mode}" if mode else ""
            edit.hand_to(self.define(site, "written", WRITTEN), site, more)
        for site in plan.receivers:
            edit.hand_to(self.define(site, "written", WRITTEN), site)
        for site in plan.writers:
            silent, alone = self.define(site, "Silent", SILENT), self.define(site, "alone", ALONE)
            edit.replace(site, f"({edit.text(site)} if {alone}() else {silent})")
        for site in plan.disabled:
            mode = grouped(edit.call(site).value("mode") or "None")
            off = edit.quoted("disabled", site)
            edit.argument(site, "mode", f"{mode} if {self.word('rank', site)} == 0 else {off}")
        for site in plan.contexts:
            others = self.define(site, "nothing", NOTHING)
            edit.replace(site, f"({edit.text(site)} if {self.word('rank', site)} == 0 else {others})")
        for site in plan.bars:
            old, others = edit.call(site).value("disable"), f"{self.word('rank', site)} > 0"
            edit.argument(site, "disable", others if old in (None, "False") else f"{old} or {others}")
        for site in plan.streams:
            null = f"open({edit.name('os.devnull', site)}, {edit.quoted('w', site)})"
            error = edit.name("sys.stderr", site)
            edit.argument(site, "file", f"{error} if {self.word('rank', site)} == 0 else {null}")
        for site in plan.metrics:
            edit.argument(site, "sync_on_compute", "False")
        for site, text in plan.indexed:
            new = requote(text, edit, site).replace("world_size", self.word("world_size", site))
            if "visible" in text:
                new = new.replace("visible", self.define(site, "visible", VISIBLE))
            if text == "OLD(DRAWN)":  # a call that seeds by chance
                once, drawn = self.define(site, "once", ONCE), edit.name("os.urandom", site)
                seed = f"int.from_bytes({once}({drawn})(4), {edit.quoted('big', site)})"
                called = edit.text(site).partition("(")[0]
                torch_s = not re.search(r"random\.seed$|^seed$", called)
                new = f"{re.sub(r'seed$', 'manual_seed', called) if torch_s else called}({seed})"
            edit.replace(site, new.replace("OLD", edit.text(site)))
        for site in plan.hiding:
            test = f"if {edit.quoted('WORLD_SIZE', site)} not in {edit.name('os.environ', site)}:"
            edit.wrap(site, site, f"{test}  # torchrun's processes have a GPU each")

    # --- the group

    def set_up(self) -> None:
        """The group of processes in front of all that may differ, and torchrun's numbers at the head of each file."""
        edit, plan, at = self.edit, self.plan, self.plan.setup
        own = plan.owner is None
        environ, executable = edit.name("os.environ", at), edit.name("sys.executable", at)
        begin, given = edit.name("os.execv", at), edit.name("sys.orig_argv", at)
        words = ("WORLD_SIZE", "PYTHONHASHSEED", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "RANK", "__main__", "0")
        size, hashes, local, seen, rank, script, zero = (edit.quoted(each, at) for each in words)
        gpus, seed = edit.free_name("gpus", at), edit.free_name("shared_seed", at)
        lines = [
            f"if int({environ}.get({size}, 1)) > 1 and __name__ == {script}:  # one of torchrun's processes",
            f"    if {hashes} not in {environ}:  # of which all are to go through sets in one order",
            f"        {environ}[{hashes}] = {zero}",
            f"        {begin}({executable}, [{executable}, *{given}[1:]])",
        ]
        if own:
            pair, one = edit.quoted("cpu:gloo,cuda:nccl", at), edit.quoted("gloo", at)
            waits = f", timeout={edit.name('datetime.timedelta', at)}(days=1)" if plan.shown else ""  # for who looks
            backend = f"{pair} if torch.cuda.is_available() else {one}{waits}"
            lines += [
                f"    {gpus} = {environ}.get({seen}, {environ}[{local}]).split({edit.quoted(',', at)})",
                f"    {environ}[{seen}] = {gpus}[int({environ}[{local}]) % len({gpus})]  # each sees one GPU",
                "    import torch",
                "",
                f"    torch.distributed.init_process_group({backend})",
            ]
        if own and plan.unseeded:
            lines += [
                f"    {seed} = [torch.initial_seed()]",
                f"    torch.distributed.broadcast_object_list({seed})  # what draws numbers draws the same ones in all",
            ]
            for name, rest in (_SEEDS[each] for each in plan.unseeded):
                lines += ["    import numpy"] * name.startswith("numpy.")
                lines += [f"    {edit.name(name, at) if name == 'random.seed' else name}({seed}[0]{rest})"]
        if own and "hydra" in plan.loggers:
            clock, began = edit.name("datetime.datetime", at), edit.free_name("began", at)
            kind, now = edit.quoted("Clock", at), edit.quoted("now", at)
            lines += [
                f"    {began} = [{clock}.now()]",
                f"    torch.distributed.broadcast_object_list({began})",
                "    import hydra.core.utils",
                "",
                f"    hydra.core.utils.datetime = type({kind}, (), {{{now}: lambda: {began}[0]}})  # one folder",
            ]
        null = f"open({edit.name('os.devnull', at)}, {edit.quoted('w', at)})"
        lines += [
            f"    if {environ}[{rank}] != {zero}:",
            f"        {edit.name('sys.stdout', at)} = {null}  # one prints",
            f"        {environ}[{edit.quoted('TQDM_DISABLE', at)}] = {edit.quoted('1', at)}",
        ]
        if "logging" in plan.loggers:
            lines += [f"        {edit.name('logging.disable', at)}({edit.name('logging.WARNING', at)})"]
        if "loguru" in plan.loggers:
            lines += ["        import loguru", "", "        loguru.logger.remove()"]
        edit.before(at, *lines, "")
        ending = []
        if own:
            following = self.imports[at.path][1] if at.path in self.imports else at
            leave = self.define(following, "leave", LEAVE)
            catch, interrupt = edit.name("signal.signal", at), edit.name("signal.SIGINT", at)
            ending = [self.several(following), f"    {edit.name('atexit.register', at)}({leave})"]
            ending += [f"    {catch}({interrupt}, {self.define(following, 'interrupted', LEAVE)})"]
        self._write(ending)

    def _write(self, lines: list[str]) -> None:
        """Write these lines, and what the files ask for."""
        edit, at = self.edit, self.plan.setup
        for path, words in self.used.items():
            last, following = self.imports[path]
            get = edit.name("os.environ", following)
            numbers = [
                f"{word} = int({get}.get({edit.quoted(variable, last)}, {default}))"
                for name, (variable, default) in _VARIABLES.items()
                if (word := words.get(name)) is not None
            ]
            numbers[0] += "  # torchrun tells each process"
            more = lines if path == at.path else []
            helpers = self.helpers.get(path, [])
            between = ["", ""] if helpers and more else [""] if more else []
            blank = [""] * (2 - (following.line - last.end_line - 1) if helpers and not more else 0)
            if last == following:  # a definition, with no import before it
                edit.after(last, "", "", *numbers, *helpers)
            else:
                edit.after(last, "", *numbers, *helpers, *between, *more, *blank)
