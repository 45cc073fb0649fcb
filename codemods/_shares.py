"""How the data of a training are shared out among processes: a sampler for its loader."""

from __future__ import annotations

import re

from turbofix.training.model import Divided

from ._ranks import Ranks, grouped


def share_data(ranks: Ranks) -> None:
    """A sampler for each loader, which is told of each epoch."""
    for each in ranks.plan.loaders:
        _sample(ranks, each)
    for one in dict.fromkeys(one for each in ranks.plan.loaders for one in each.passes):
        read = f"{one.loader}.sampler"
        ranks.before(one.at, ranks.several(one.at), f"    {read}.set_epoch({one.epoch or f'{read}.epoch + 1'})")


def _sample(ranks: Ranks, data: Divided) -> None:
    edit, at, world = ranks.edit, data.loader, ranks.word("world_size", data.loader)
    given, size = edit.text(data.dataset), edit.text(data.batch)
    shuffle = edit.text(data.shuffle) if data.shuffle is not None else "False"
    own = edit.free_name("train_data", at) if not re.fullmatch(r"[\w.]+", given) else None
    lines = [f"{own} = {given}"] if own else []
    if own:
        edit.replace(data.dataset, own)
    sampler = edit.free_name("train_sampler", at)
    options = [own or given]
    options += [] if data.shuffled else [f"shuffle={shuffle}"]
    options += [f"drop_last={edit.text(data.drop_last)}"] if data.drop_last is not None else []
    name = edit.name("torch.utils.data.distributed.DistributedSampler", at)
    told = edit.quoted("the batch size is no multiple of the number of processes", at)
    check = [f"    if {grouped(size)} % {world}:", f"        raise SystemExit({told})"]
    edit.replace(data.batch, ranks.divided(data.batch))
    made = f"    {sampler} = {name}({', '.join(options)})"
    ranks.before(at, *lines, f"{sampler} = None", ranks.several(at), *check, made)
    if data.shuffle is not None and data.shuffled is not False:
        own_order = f"{sampler} is None"
        edit.replace(data.shuffle, own_order if data.shuffled else f"{shuffle} and {own_order}")
    edit.argument(at, "sampler", sampler, spelled_out=True)
