"""How a training of several processes shares out its optimizer's state (stage 1), or its whole model (2 and 3)."""

from __future__ import annotations

import textwrap
from pathlib import Path

from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.training.model import Saved, Sharding

LONGEST = 110
OPTIM, FSDP, TENSOR = "torch.distributed.optim", "torch.distributed.fsdp", "torch.distributed.tensor"

_AGREED = """
def {name}(decision):
    \"\"\"What the first process decides, for all of them.\"\"\"
    decided = [decision]
    if {there}():
        {broadcast}(decided)
    return decided[0]
"""

_FULL = """
def {name}(optimizer):
    \"\"\"The state of an optimizer, in the first process: all that have a share of it have to ask.\"\"\"
    if not hasattr(optimizer, {only}):
        return optimizer.state_dict()
    optimizer.consolidate_state_dict(to=0)
    return optimizer.state_dict() if {rank}() == 0 else None
"""

_SHARD = """
def {name}(model):
    \"\"\"Share out each block's parameters, then what is left of them, of those that the first process has.\"\"\"
    for each in [*model.parameters(), *model.buffers()]:
        {broadcast}(each.detach(), 0)
    parts = [model]
    for part in parts:
        for child in part.children():
            block = isinstance(part, ({listed}, {sequential})) and not isinstance(child, ({listed}, {mapped}))
            if block and list(child.children()):
                {fully_shard}(child, reshard_after_forward={again})
            else:
                parts.append(child)
    return {fully_shard}(model, reshard_after_forward={again})
"""

_WHOLE = """
def {name}(state):
    \"\"\"A state with whole tensors in the place of shares, in the first process: all of them have to ask.\"\"\"
    if isinstance(state, dict):
        return {{key: {name}(value) for key, value in state.items()}}
    if not hasattr(state, {full}):
        return state
    full = state.full_tensor()
    return full.cpu() if {rank}() == 0 else None
"""

_SHARES = """
def {name}(state, owner):
    \"\"\"A whole state in the shares that this process has of a model's, or an optimizer's, parameters.\"\"\"

    def share(value, like):
        shared = hasattr(like, {places}) and not hasattr(value, {places})
        if not shared or not {is_tensor}(value) or value.shape != like.shape:
            return value
        return {distribute}(value, like.device_mesh, like.placements)

    if not hasattr(owner, {groups}):
        own = owner.state_dict()
        return {{key: share(value, own.get(key)) for key, value in state.items()}}
    own = [each for group in owner.param_groups for each in group[{params}]]
    names = [each for group in state[{groups}] for each in group[{params}]]
    parts = {{
        name: {{key: share(value, like) for key, value in state[{kept}].get(name, {{}}).items()}}
        for name, like in zip(names, own)
    }}
    return {{**state, {kept}: parts}}
"""


class Shares:
    """One edit of an optimizer, and of what it takes where that is saved and loaded."""

    def __init__(self, edit: Edit, plan: Sharding) -> None:
        self.edit, self.plan = edit, plan
        self.heads = {last.path: (last, following) for last, following in plan.heads}
        self.helpers: dict[Path, list[str]] = {}

    def there(self, at: Site) -> str:
        """The test of whether there are several processes."""
        return f"{self.edit.name('torch.distributed.is_initialized', at)}()"

    # --- stage 1

    def share_state(self, target: str | None) -> None:
        """The optimizer or its shared form, chosen where it is built; its state is put together where it is saved."""
        edit, site = self.edit, self.plan.optimizer
        start = f"{target} = " if target is not None else "return "
        call = self._shared(site, len(start))
        edit.before(site, f"if {self.there(site)}:", *textwrap.indent(f"{start}{call}", "    ").split("\n"))
        statement = edit.statement(site)
        edit.wrap(statement, statement, "else:")
        for each in self.plan.states:
            self._put_together(each)
        self._agree(self.plan.decisions)

    def _shared(self, site: Site, before: int) -> str:
        """The call of the shared form, with what the optimizer is given."""
        edit, call = self.edit, self.edit.call(site)
        given, names = [], self.plan.names
        for position, (name, text) in enumerate(call.given):
            if name == "*" or (not name and position >= len(names)):
                raise Refuse("it is given something by its position whose name is not known")
            if position == 0 and not name:
                given += [text, f"optimizer_class={call.name}"]
            elif name == "params":
                given += [f"params={text}", f"optimizer_class={call.name}"]
            else:
                given.append(f"**{text}" if name == "**" else f"{name or names[position]}={text}")
        function = edit.name(f"{OPTIM}.ZeroRedundancyOptimizer", site, OPTIM)
        line = f"{function}({', '.join(given)})"
        if before + len(line) <= LONGEST and "\n" not in line:
            return line
        return "\n".join((f"{function}(", *(f"    {each}," for each in given), ")"))

    def _put_together(self, saved: Saved) -> None:
        edit, at, text = self.edit, saved.at, saved.text
        if saved.apart:
            has = f"hasattr({text}, {edit.quoted('consolidate_state_dict', at)})"
            edit.before(at, f"if {' and '.join((*saved.tests, has))}:", f"    {text}.consolidate_state_dict(to=0)")
            return
        rank, only = edit.name("torch.distributed.get_rank", at), edit.quoted("consolidate_state_dict", at)
        edit.replace(saved.call, f"{self._help(at, 'full_state', _FULL, rank=rank, only=only)}({text})")

    # --- stages 2 and 3

    def share_all(self, stage: int) -> None:
        """The model in shares in the place of copies of it, before its optimizer is built."""
        edit, plan = self.edit, self.plan
        wrap = plan.wrap
        assert wrap is not None
        site = wrap.call if wrap.before else plan.optimizer
        shard = self._shard(site, stage)
        if wrap.before:
            edit.replace(wrap.call, f"{shard}({edit.text(wrap.module)})")
        else:
            edit.before(site, f"if {self.there(site)}:", f"    {shard}({plan.model})")
            if wrap.alone is not None:
                edit.delete(wrap.alone)
            else:
                edit.replace(wrap.call, edit.text(wrap.module))
        calls = [each.call for each in (*plan.states, *plan.weights)]
        for each in plan.modules:
            if not any(call.path == each.path and _holds(call, each) for call in calls):
                edit.replace(each, edit.text(each).removesuffix(".module"))
        for saved in (*plan.states, *plan.weights):
            self._save_whole(saved)
        for loaded in plan.loads:
            name = self._shares(loaded.state)
            edit.replace(loaded.state, f"{name}({edit.text(loaded.state)}, {loaded.text})")
        self._agree(plan.all_decisions)

    def _save_whole(self, saved: Saved) -> None:
        edit, at = self.edit, saved.at
        if saved.far:
            line = saved.call.line_from(at.path)
            raise Refuse(f"a function that one process alone calls asks for what all have shares of ({line})")
        state = f"{self._whole(saved.call)}({saved.text.removesuffix('.module')}.state_dict())"
        if not saved.apart:
            edit.replace(saved.call, state)
            return
        kind = "state" if saved in self.plan.states else "weights"
        name = edit.free_name(f"{saved.text.removesuffix('.module').rpartition('.')[2]}_{kind}", at)
        test = " and ".join(saved.tests)
        edit.before(at, *((f"{name} = {state} if {test} else None",) if test else (f"{name} = {state}",)))
        edit.replace(saved.call, name)

    # --- helpers

    def _agree(self, decisions: tuple[Site, ...]) -> None:
        edit = self.edit
        known = {site.path: name for site, name in self.plan.agreeing}
        for site in decisions:
            if site.path in known:
                edit.replace(site, f"{known[site.path]}({edit.text(site)})")
                continue
            broadcast = edit.name("torch.distributed.broadcast_object_list", site)
            there = edit.name("torch.distributed.is_initialized", site)
            name = self._help(site, "agreed", _AGREED, there=there, broadcast=broadcast)
            edit.replace(site, f"{name}({edit.text(site)})")

    def _shard(self, at: Site, stage: int) -> str:
        edit = self.edit
        nn = {
            key: edit.name(f"torch.nn.{name}", at)
            for key, name in (("listed", "ModuleList"), ("sequential", "Sequential"), ("mapped", "ModuleDict"))
        }
        broadcast = edit.name("torch.distributed.broadcast", at)
        sharding = edit.name(f"{FSDP}.fully_shard", at, FSDP)
        return self._help(at, "shard", _SHARD, broadcast=broadcast, fully_shard=sharding, again=str(stage == 3), **nn)

    def _whole(self, at: Site) -> str:
        rank, full = self.edit.name("torch.distributed.get_rank", at), self.edit.quoted("full_tensor", at)
        return self._help(at, "whole", _WHOLE, full=full, rank=rank)

    def _shares(self, at: Site) -> str:
        edit = self.edit
        words = {
            "places": edit.quoted("placements", at),
            "distribute": edit.name(f"{TENSOR}.distribute_tensor", at, TENSOR),
            "is_tensor": edit.name("torch.is_tensor", at),
            "groups": edit.quoted("param_groups", at),
            "params": edit.quoted("params", at),
            "kept": edit.quoted("state", at),
        }
        return self._help(at, "own_shares", _SHARES, **words)

    def _help(self, at: Site, wanted: str, text: str, **words: str) -> str:
        """A definition at the head of a file, once: its name."""
        if at.path not in self.heads:
            raise Refuse(f"{at.path.name} has no import at its head, behind which a function could be defined")
        name = self.edit.free_name(wanted, at)
        lines = self.helpers.setdefault(at.path, [])
        if f"def {name}(" not in "\n".join(lines):
            lines += ["", *text.format(name=name, **words).rstrip().split("\n")]
        return name

    def finish(self) -> None:
        """Write the definitions."""
        for path, lines in self.helpers.items():
            last, following = self.heads[path]
            blank = [""] * (2 - (following.line - last.end_line - 1))
            self.edit.after(last, *lines, *blank)


def _holds(outer: Site, inner: Site) -> bool:
    """Whether an expression lies in another one of its file."""
    start, end = (outer.line, outer.column), (outer.end_line, outer.end_column)
    return start <= (inner.line, inner.column) and (inner.end_line, inner.end_column) <= end
