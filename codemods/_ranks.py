"""How a script of one process is written for several: what each is called, what it wraps, shares, counts and leaves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.training.model import Copied, Parallel

from ._definitions import AGREED, ANYWHERE, CALLED, EVERYWHERE, WEIGHT
from ._precision import requote
from ._totals import add_up

_VARIABLES = {"rank": ("RANK", 0), "local_rank": ("LOCAL_RANK", 0), "world_size": ("WORLD_SIZE", 1)}
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
        own = () if plan.owner is not None else ("atexit.register",)
        for name in (*own, "os.environ", "sys.stdout"):  # imports in this order
            edit.name(name, plan.setup)

    # --- words

    def word(self, name: str, at: Site) -> str:
        """What a file calls one of torchrun's numbers."""
        if at.path not in self.imports:
            raise Refuse(f"{at.path.name} has no import at its head, behind which its rank could be set")
        known = self.used.setdefault(at.path, {})
        if name not in known:
            known[name] = self.edit.free_name(name, at)
        return known[name]

    def several(self, at: Site, only: str = "") -> str:
        """The test of whether there are several processes, and of what else it takes."""
        more = f" and {requote(only, self.edit, at)}" if only else ""
        return f"if {self.word('world_size', at)} > 1{more}:"

    def first(self, at: Site) -> str:
        """The test of whether this is the process that speaks for all."""
        return f"if {self.word('rank', at)} == 0:"

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
            alike = [each for each in plan.models if (each.at, each.becomes) == (at, model.becomes)]
            ddp = edit.name("torch.nn.parallel.DistributedDataParallel", at)
            called = self._called(at, model.text, model.method) if model.method else model.text
            lines = [f"{model.becomes} = {called}", self.several(at)]
            if at == plan.loop and not model.behind:
                lines, own = [*lines, *own], []
            given = model.becomes if model.method else model.text
            if any(each.normed for each in alike):
                lines += [f"    if next({model.text}.parameters()).is_cuda:"]
                lines += [f"        {edit.name('torch.nn.SyncBatchNorm', at)}.convert_sync_batchnorm({model.text})"]
                given += ", broadcast_buffers=False"  # they are the same in all
            given += ", find_unused_parameters=True" if any(each.idle for each in alike) else ""
            lines += [f"    {model.becomes} = {ddp}({given})"]
            if model.behind:
                self.after(at, *lines)
            else:
                self.before(at, *lines)
            for site, text in model.uses:
                edit.replace(site, text)
            self._unwrap(model.unwraps, ".model" if model.method else "")
        if plan.owner is not None:
            told = edit.name("accelerate.utils.DataLoaderConfiguration", plan.owner, "accelerate.utils")
            edit.argument(plan.owner, "dataloader_config", f"{told}(split_batches=True)")
            self._unwrap(plan.unwraps)
        if own:
            self.before(plan.loop, self.several(plan.loop), *own)
        alone = all(each.apart for each in plan.copied)
        for test in dict.fromkeys(each.tests[-1] for each in plan.copied if alone):  # several processes copy nothing
            edit.replace(test, f"{self.word('world_size', test)} == 1 and {_operand(edit.text(test))}")
        for each in plan.copied if not alone else ():
            self._replace_copies(each)

    def _own_seeds(self) -> list[str]:
        """The lines by which each process draws its own numbers."""
        edit, at = self.edit, self.plan.loop
        seed = f"{edit.name('torch.initial_seed', at)}()"
        first = f"{edit.name('torch.manual_seed', at)}({seed} + {self.word('rank', at)})"
        lines = [f"    if {self.word('rank', at)} > 0:  # dropout and augmentation of its own", f"        {first}"]
        for name, rest in (_SEEDS[each] for each in self.plan.apart if each != "torch"):
            lines += [f"        {edit.name(name, at)}({seed}{rest})"]
        return lines

    def _called(self, at: Site, model: str, method: str) -> str:
        """A model, in what is called in place of one of its methods."""
        name = self.help(at, "Called", CALLED, base=self.edit.name("torch.nn.Module", at))
        return f"{name}({model}, {self.edit.quoted(method, at)})"

    def _unwrap(self, sites: Iterable[Site], inner: str = "") -> None:
        for site in sites:
            text, module = self.edit.text(site), self.edit.quoted("module", site)
            self.edit.replace(site, f"getattr({text}, {module}, {text}){inner}")

    def _replace_copies(self, copied: Copied) -> None:
        edit, at, world = self.edit, copied.call, self.word("world_size", copied.call)
        ddp, module = edit.name("torch.nn.parallel.DistributedDataParallel", at), edit.text(copied.module)
        there = f"{edit.name('torch.cuda.is_available', at)}()"
        if copied.moved:
            module += f".to({edit.quoted('cuda', at)} if {there} else {edit.quoted('cpu', at)})"
        if copied.normed:
            sync = edit.name("torch.nn.SyncBatchNorm", at)
            self.before(at, f"if {world} > 1 and {there}:", f"    {sync}.convert_sync_batchnorm({module})")
            module += ", broadcast_buffers=False"
        module += ", find_unused_parameters=True" if copied.idle else ""
        edit.replace(at, f"{ddp}({module}) if {world} > 1 else {edit.text(at)}")
        for test in copied.tests:
            edit.replace(test, f"{world} > 1 or {edit.text(test)}")

    # --- what is written at the head of a file

    def help(self, at: Site, wanted: str, text: str, **words: str) -> str:
        """A definition at the head of a file, once: its name."""
        name, lines = self.edit.free_name(wanted, at), self.helpers.setdefault(at.path, [])
        for each in ("rank", "world_size"):
            words |= {each: self.word(each, at)} if f"{{{each}}}" in text else {}
        for each in ("broadcast_object_list", "all_gather_object", "all_reduce"):
            words |= {each: self.edit.name(f"torch.distributed.{each}", at)} if f"{{{each}}}" in text else {}
        if not any(re.match(rf"(def|class) {name}\b", each) for each in lines):
            lines += ["", *text.format(name=name, **words).rstrip().split("\n")]
        return name

    # --- what a process counts

    def add_up(self) -> None:
        """The sums of all processes behind the loops that count a share each."""
        for each in self.plan.totals:
            add_up(self, each)

    def scale_sums(self) -> None:
        """Gradients are averaged over the processes: of losses that are sums, each has a part of one."""
        for each in self.plan.summed:
            world = self.word("world_size", each.loss)
            if each.at is None:
                self.edit.insert_after(each.loss, f" * {world}")
            else:
                self.after(each.at, f"{each.name} = {each.name} * {world}  # gradients are averaged, not summed")

    def weigh(self) -> None:
        """Means over what counts in a batch, of which each process has another number."""
        for each in self.plan.counted:
            weight = self.help(each.call, "weight", WEIGHT)
            self.edit.insert_after(each.call, f" * {weight}({each.weights})")

    def agree(self) -> None:
        """What one process decides holds for all: numbers that are read may differ in their last digits."""
        for site in self.plan.decisions:
            self.edit.replace(site, f"{self.help(site, 'agreed', AGREED)}({self.edit.text(site)})")
        for site, one in self.plan.skips:
            name = self.help(site, "anywhere", ANYWHERE) if one else self.help(site, "everywhere", EVERYWHERE)
            self.edit.replace(site, f"{name}({self.edit.text(site)})")

    # --- what one does for all

    def do_once(self) -> None:
        """Files, logs, bars and downloads of one process."""
        edit, plan = self.edit, self.plan
        taken = {
            *plan.decisions,
            *(site for site, _ in plan.skips),
            *(test for each in plan.copied for test in each.tests),
        }
        narrowed = {first: test for first, test in plan.narrowed if test not in taken}
        for first, last in plan.once:
            test = narrowed.get(first)
            if test is None:
                edit.wrap(first, last, self.first(first))
            else:
                edit.replace(test, f"{_operand(edit.text(test))} and {self.word('rank', test)} == 0")
        for site in plan.opened:
            null = edit.name("os.devnull", site)
            edit.replace(site, f"{edit.text(site)} if {self.word('rank', site)} == 0 else {null}")
        for site in plan.receivers:
            null = f"{edit.name('pathlib.Path', site)}({edit.name('os.devnull', site)})"
            edit.replace(site, f"({edit.text(site)} if {self.word('rank', site)} == 0 else {null})")
        for site in plan.writers:
            place = edit.call(site).value("log_dir", 0)
            own = f"{edit.name('tempfile.mkdtemp', site)}()"
            edit.argument(site, "log_dir", f"{place} if {self.word('rank', site)} == 0 else {own}", position=0)
        for site in plan.disabled:
            old = edit.call(site).value("mode")
            off = edit.quoted("disabled", site)
            edit.argument(site, "mode", f"{old} if {self.word('rank', site)} == 0 else {off}")
        for site in plan.contexts:
            others = f"{edit.name('contextlib.nullcontext', site)}()"
            edit.replace(site, f"{edit.text(site)} if {self.word('rank', site)} == 0 else {others}")
        for site in plan.bars:
            old, others = edit.call(site).value("disable"), f"{self.word('rank', site)} > 0"
            edit.argument(site, "disable", others if old in (None, "False") else f"{old} or {others}")
        for first, last in plan.downloads:
            barrier = f"    {edit.name('torch.distributed.barrier', first)}()"
            local = self.word("local_rank", first)
            self.before(first, f"if {local} > 0:  # one process fetches the data, the others find them", barrier)
            self.after(last, f"if {self.word('world_size', first)} > 1 and {local} == 0:", barrier)
        for site in plan.loads:
            self.before(site, self.several(site), f"    {edit.name('torch.distributed.barrier', site)}()")
        for site in plan.on_one_gpu:
            edit.argument(site, "map_location", edit.quoted("cpu", site))
        for site in plan.fetched:
            self.after(site, self.several(site), f"    {edit.name('torch.distributed.barrier', site)}()")
        for site, text in plan.indexed:
            new = text.replace("local_rank", self.word("local_rank", site))
            edit.replace(site, requote(new, edit, site))

    # --- the group

    def set_up(self) -> None:
        """The group of processes in front of all else, and torchrun's numbers at the head of each file that asks."""
        edit, plan, at = self.edit, self.plan, self.plan.setup
        lines = self._start() if plan.owner is None else []
        lines += [f"if {self.word('rank', at)} > 0:"]
        null = f"open({edit.name('os.devnull', at)}, {edit.quoted('w', at)})"
        lines += [f"    {edit.name('sys.stdout', at)} = {null}  # one process prints"]
        if "logging" in plan.loggers:
            lines += [f"    {edit.name('logging.disable', at)}({edit.name('logging.WARNING', at)})"]
        if "loguru" in plan.loggers:
            lines += [f"    {edit.name('loguru.logger', at)}.remove()"]
        self._write(lines)

    def _start(self) -> list[str]:
        """The lines that start the group of processes."""
        edit, plan, at = self.edit, self.plan, self.plan.setup
        there = f"{edit.name('torch.cuda.is_available', at)}()"
        several = self.several(at)
        if plan.repeated:
            several = f"{several[:-1]} and not {edit.name('torch.distributed.is_initialized', at)}():"
        lines = [several, f"    if {there}:"]
        lines += [f"        {edit.name('torch.cuda.set_device', at)}({self.word('local_rank', at)})"]
        start = edit.name("torch.distributed.init_process_group", at)
        lines += [f"    {start}()"]
        end = edit.name("torch.distributed.destroy_process_group", at)
        lines += [f"    {edit.name('atexit.register', at)}({end})"]
        if plan.unseeded:
            seed, share = edit.free_name("seed", at), edit.name("torch.distributed.broadcast_object_list", at)
            lines += [f"    {seed} = [{edit.name('torch.initial_seed', at)}()]"]
            lines += [f"    {share}({seed})  # what draws numbers draws the same ones in all"]
        for name, rest in (_SEEDS[each] for each in plan.unseeded):
            lines += [f"    {edit.name(name, at)}({seed}[0]{rest})"]
        return lines

    def _write(self, lines: list[str]) -> None:
        """Write these lines, and what the files ask for."""
        edit, at = self.edit, self.plan.setup
        behind = at.path in self.imports and self.imports[at.path][1] == at
        for path, words in self.used.items():
            last, following = self.imports[path]
            get = edit.name("os.environ", following)
            numbers = [
                f"{word} = int({get}.get({edit.quoted(variable, last)}, {default}))"
                for name, (variable, default) in _VARIABLES.items()
                if (word := words.get(name)) is not None
            ]
            numbers[0] += "  # torchrun tells each process, of which there is one for each GPU"
            more = ["", *lines] if behind and path == at.path else []
            helpers = self.helpers.get(path, [])
            blank = [""] * (2 - (following.line - last.end_line - 1) if helpers else 0)
            edit.after(last, "", *numbers, *more, *helpers, *blank)
        if not behind:
            self.before(at, *lines)


def _operand(test: str) -> str:
    """A test, as a part of a longer one."""
    return f"({test})" if re.search(r" or | if |:=|lambda|\n", test) else test
