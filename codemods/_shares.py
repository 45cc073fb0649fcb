"""How the data of a training are shared out among processes: a sampler for each loader, a part of each batch."""

from __future__ import annotations

import re

from turbofix.editing.edit import Refuse
from turbofix.findings import Site
from turbofix.training.model import Beside, Divided

from ._definitions import BATCHES, CHOSEN, SHARD, SHARE, SHARED
from ._precision import requote
from ._ranks import Ranks, grouped

_KEPT = ("num_workers", "collate_fn", "pin_memory", "drop_last", "worker_init_fn", "persistent_workers")
"""What a loader of shares has of the whole one."""


def share_data(ranks: Ranks) -> None:
    """A sampler for each loader, and a part of what is drawn by hand."""
    for each in ranks.plan.loaders:
        _share(ranks, each)
    passes = (one for each in ranks.plan.loaders if not each.stream for one in each.passes)
    for one in dict.fromkeys(passes):
        read = f"{one.loader}.sampler"
        epoch = one.epoch or f"{read}.epoch + 1"
        ranks.before(one.at, ranks.several(one.at, one.only), f"    {read}.set_epoch({epoch})")
    for beside in ranks.plan.beside:
        _share_beside(ranks, beside)
    for site in ranks.plan.sizes:
        ranks.edit.replace(site, ranks.divided(site))
    for site in ranks.plan.lengths:
        ranks.edit.replace(site, f"({ranks.edit.text(site)} * {ranks.word('world_size', site)})")
    for drawn in ranks.plan.drawn:
        share = ranks.help(drawn.at, "share", SHARE)
        (ranks.before if drawn.inside else ranks.after)(drawn.at, *(f"{n} = {share}({n})" for n in drawn.names))


def _share_beside(ranks: Ranks, beside: Beside) -> None:
    """A loader of shares beside one that keeps its name, and what the training takes of it."""
    edit, at = ranks.edit, ranks.plan.loop
    base = edit.name("torch.utils.data.distributed.DistributedSampler", at)
    chosen = ranks.help(at, "Chosen", CHOSEN, base=base)
    told = edit.quoted("the batch size is no multiple of the number of processes", at)
    loader = edit.name("torch.utils.data.DataLoader", at)
    kept = f"({', '.join(edit.quoted(each, at) for each in _KEPT)})"
    shared = ranks.help(at, "shared", SHARED, chosen=chosen, told=told, loader_class=loader, kept=kept)
    name = edit.free_name(f"ddp_{beside.text.rpartition('.')[2].lstrip('_')}", at)
    ranks.before(at, f"{name} = {beside.text}", ranks.several(at), f"    {name} = {shared}({beside.text})")
    for site in beside.uses:
        edit.replace(site, name)


def _share(ranks: Ranks, data: Divided) -> None:
    """A loader of which each process reads its share."""
    if data.stream:
        _share_stream(ranks, data)
    elif data.inside:
        _sample_inside(ranks, data)
    elif data.sampler is not None:
        _share_choice(ranks, data, data.sampler)
    else:
        _sample(ranks, data)


def _passed(ranks: Ranks, data: Divided, name: str, site: Site | None, default: str) -> str:
    """The text of an argument, or of what is unpacked."""
    if name in data.in_mapping and data.mapping is not None:
        return f"{ranks.edit.text(data.mapping)}.get({ranks.edit.quoted(name, data.loader)}, {default})"
    return ranks.edit.text(site) if site is not None else default


def _check(ranks: Ranks, data: Divided) -> list[str]:
    """The lines, under a test of whether there are several processes, that end a training which cannot be shared."""
    size, world = _passed(ranks, data, "batch_size", data.batch, "1"), ranks.word("world_size", data.loader)
    told = ranks.edit.quoted("the batch size is no multiple of the number of processes", data.loader)
    return [f"    if {grouped(size)} % {world}:", f"        raise SystemExit({told})"]


def _numbers(ranks: Ranks, data: Divided) -> list[str]:
    """What a sampler is told that is made in front of the group of processes."""
    return [ranks.word(each, data.loader) for each in ("world_size", "rank")] if data.early else []


def _divide(ranks: Ranks, data: Divided) -> tuple[list[str], list[str]]:
    """The batch size for each process: the lines for all loaders that the call makes, and those for what is shared."""
    if data.batch is None:
        return [], []
    if not data.only:
        ranks.edit.replace(data.batch, ranks.divided(data.batch))
        return [], []
    own = ranks.edit.free_name("per_process", data.loader)
    size = ranks.edit.text(data.batch)
    ranks.edit.replace(data.batch, own)
    return [f"{own} = {size}"], [f"    {own} //= {ranks.word('world_size', data.loader)}"]


def _share_stream(ranks: Ranks, data: Divided) -> None:
    edit, at, world = ranks.edit, data.loader, ranks.word("world_size", data.loader)
    if data.batch is None:
        raise Refuse("the batch size of a stream is not written in the call of its loader")
    given = edit.text(data.dataset)
    only = f" and {requote(data.only, edit, at)}" if data.only else ""
    before, under = _divide(ranks, data)
    ranks.before(at, *before, ranks.several(at, data.only), *_check(ranks, data), *under)
    shard = ranks.help(at, "Shard", SHARD, base=edit.name("torch.utils.data.IterableDataset", at))
    edit.replace(data.dataset, f"{shard}({given}) if {world} > 1{only} else {given}")


def _sample_inside(ranks: Ranks, data: Divided) -> None:
    """A loader of a comprehension, all in its call."""
    edit, at, world = ranks.edit, data.loader, ranks.word("world_size", data.loader)
    given, shuffle = edit.text(data.dataset), edit.text(data.shuffle) if data.shuffle is not None else "False"
    only = requote(data.only, edit, at)
    several = f"{world} > 1 and {only}" if only else f"{world} > 1"
    ordered = data.shuffled or shuffle == only
    options = [given, *([] if ordered else [f"shuffle={shuffle}"])]
    options += [f"drop_last={edit.text(data.drop_last)}"] if data.drop_last is not None else []
    options[1:1] = _numbers(ranks, data)
    name = edit.name("torch.utils.data.distributed.DistributedSampler", at)
    ranks.before(at, *(line.removeprefix("    ") for line in _check(ranks, data)))
    if data.batch is not None:
        size = edit.text(data.batch)
        edit.replace(
            data.batch, f"{ranks.divided(data.batch)} if {only} else {size}" if only else ranks.divided(data.batch)
        )
    if data.shuffle is not None and data.shuffled is not False:
        alone = f"{world} == 1" if shuffle == only or not only else f"not ({several})"
        edit.replace(data.shuffle, alone if data.shuffled else f"{grouped(shuffle)} and {alone}")
    edit.argument(at, "sampler", f"{name}({', '.join(options)}) if {several} else None", spelled_out=True)


def _share_choice(ranks: Ranks, data: Divided, sampler: Site) -> None:
    """What a sampler of the script's own chooses, in the first process for all."""
    edit, at, world = ranks.edit, data.loader, ranks.word("world_size", data.loader)
    if data.batches:
        chosen = ranks.help(at, "Batches", BATCHES, share=ranks.help(at, "share", SHARE))
    else:
        base = edit.name("torch.utils.data.distributed.DistributedSampler", at)
        chosen = ranks.help(at, "Chosen", CHOSEN, base=base)
    given, only = edit.text(sampler), f" and {requote(data.only, edit, at)}" if data.only else ""
    before, under = _divide(ranks, data)
    check = [] if data.batches else _check(ranks, data)
    under = [*check, *under]
    if re.fullmatch(r"[\w.]+", given):
        edit.replace(sampler, f"{chosen}({given}) if {world} > 1{only} else {given}")
    else:
        own = edit.free_name("train_sampler", at)
        before, under = [*before, f"{own} = {given}"], [*under, f"    {own} = {chosen}({own})"]
        edit.replace(sampler, own)
    if under == check and not data.only:  # any number is a multiple of one
        under = [line.removeprefix("    ") for line in check]
    elif under:
        under = [ranks.several(at, data.only), *under]
    ranks.before(at, *before, *under)


def _sample(ranks: Ranks, data: Divided) -> None:
    edit, at, world = ranks.edit, data.loader, ranks.word("world_size", data.loader)
    given, size = edit.text(data.dataset), _passed(ranks, data, "batch_size", data.batch, "1")
    shuffle = _passed(ranks, data, "shuffle", data.shuffle, "False")
    drop = _passed(ranks, data, "drop_last", data.drop_last, "False")
    check = _check(ranks, data)
    own = [] if re.fullmatch(r"[\w.]+", given) else [f"{edit.free_name('train_data', at)}"]
    lines = [f"{own[0]} = {given}"] if own else []
    if own:
        edit.replace(data.dataset, own[0])
    sampler = edit.free_name("train_sampler", at)
    options = [own[0] if own else given]
    options += [] if data.shuffled or data.only.strip("()") == shuffle.strip("()") else [f"shuffle={shuffle}"]
    options += [f"drop_last={drop}"] if drop != "False" else []
    options[1:1] = _numbers(ranks, data)
    name = edit.name("torch.utils.data.distributed.DistributedSampler", at)
    made = [f"    {sampler} = {name}({', '.join(options)})"]
    if data.mapping is not None and data.in_mapping:
        mapping = edit.text(data.mapping)
        changed = {"batch_size": f"{size} // {world}", "shuffle": "False"}
        new = [f"{edit.quoted(key, at)}: {text}" for key, text in changed.items() if key in data.in_mapping]
        apart = edit.free_name("train_options", at)
        lines += [f"{apart} = {mapping}"]
        made += [f"    {apart} = {{**{mapping}, {', '.join(new)}}}"]
        edit.replace(data.mapping, apart)
    before, under = _divide(ranks, data)
    several = ranks.several(at, data.only)
    ranks.before(at, *lines, *before, f"{sampler} = None", several, *check, *made, *under)
    if data.shuffle is not None and data.shuffled is not False:
        own_order = f"{sampler} is None"
        edit.replace(data.shuffle, own_order if data.shuffled else f"{shuffle} and {own_order}")
    edit.argument(at, "sampler", sampler, spelled_out=True)
