"""How what each process counts of its share becomes that of all of them, behind the loop that counts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from turbofix.training.model import Figure, Totals

if TYPE_CHECKING:
    from ._ranks import Ranks

_WIDTH = 120


def add_up(ranks: Ranks, totals: Totals) -> None:
    """The lines behind one loop."""
    lines = [*_reduced(ranks, totals), *_gathered(ranks, totals)]
    for each in (one for one in totals.figures if one.padded):
        of_all = ranks.word("of_all", totals.loop)
        lines += [f"{each.text} = {of_all}({each.text}, {totals.loader})"]
    lines += totals.anew
    ranks.after(totals.loop, ranks.several(totals.loop), *(f"    {line}" for line in lines))


def _reduced(ranks: Ranks, totals: Totals) -> Iterator[str]:
    """What lies on the device, and is added up there."""
    edit, at, world = ranks.edit, totals.loop, ranks.word("world_size", totals.loop)
    for each in totals.figures:
        if each.tensor and each.kind == "number":
            if each.carries:
                yield f"{each.text} = {each.text}.detach().clone()"
            yield f"{edit.name('torch.distributed.all_reduce', at)}({each.text})"
            if each.mean:
                yield f"{each.text} = {each.text} / {world}"
        elif each.tensor and each.kind == "batches":
            stacked = edit.free_name("shares", at)
            yield f"{stacked} = {edit.name('torch.stack', at)}({each.text}).detach()"
            yield f"{edit.name('torch.distributed.all_reduce', at)}({stacked})"
            yield f"{each.text}[:] = {f'({stacked} / {world})' if each.mean else stacked}.unbind()"


def _gathered(ranks: Ranks, totals: Totals) -> Iterator[str]:
    """What lies on the host: numbers are added, lists of samples put one behind the other."""
    edit, at, world = ranks.edit, totals.loop, ranks.word("world_size", totals.loop)
    rest = [each for each in totals.figures if not each.tensor]
    on_device = [each for each in totals.figures if each.tensor and each.kind == "samples"]
    if not rest and not on_device:
        return
    gather, shares = edit.name("torch.distributed.all_gather_object", at), edit.free_name("shares", at)

    def shared(given: Sequence[str]) -> Iterator[str]:
        yield f"{shares} = [None] * {world}"
        packed = f"({', '.join(given)})" if len(given) > 1 else given[0]
        yield f"{gather}({shares}, {packed})"

    width = _WIDTH - at.column - len(f"    {gather}({shares}, ())")
    for each in (one for one in rest if one.unsure and one.kind == "number"):
        yield from shared([f"float({each.text})"])
        whole = f"sum({shares}){f' / {world}' if each.mean else ''}"
        like = ranks.word("like", at)
        yield f"{each.text} = {like}({each.text}, {whole})"
    for some in _lines([each for each in rest if not each.unsure], "number", width):
        yield from shared([each.text for each in some])
        yield f"{_names(some)} = {f'map(sum, zip(*{shares}))' if len(some) > 1 else f'sum({shares})'}"
        yield from (f"{each.text} /= {world}" for each in some if each.mean)
    for each in (one for one in rest if one.unsure and one.kind == "samples"):
        tensor = edit.name("torch.Tensor", at)
        yield f"{each.text} = [each.cpu() if isinstance(each, {tensor}) else each for each in {each.text}]"
    for some in _lines(rest, "samples", width):
        yield from shared([each.text for each in some])
        joined = f"(sum(lists, []) for lists in zip(*{shares}))" if len(some) > 1 else f"sum({shares}, [])"
        yield f"{_names(some)} = {joined}"
    for each in on_device:
        yield from shared([f"[each.detach().cpu() for each in {each.text}]"])
        yield f"{each.text} = [each.to({each.text}[0].device) for share in {shares} for each in share]"
    for some in (each for mean in (True, False) for each in _lines(rest, "batches", width, mean=mean)):
        yield from shared([each.text for each in some])
        each_of = f"[sum(each){f' / {world}' if some[0].mean else ''} for each in zip(*"
        yield (
            f"{_names(some, '[:]')} = ({each_of}lists)] for lists in zip(*{shares}))"
            if len(some) > 1
            else f"{_names(some, '[:]')} = {each_of}{shares})]"
        )
    for each in (one for one in rest if one.kind == "entries"):
        yield from shared([each.text])
        added = f"sum(each.get(key, 0) for each in {shares}){f' / {world}' if each.mean else ''}"
        yield f"{each.text}.update({{key: {added} for share in {shares} for key in share}})"


def _names(some: Sequence[Figure], part: str = "") -> str:
    return ", ".join(each.text + part for each in some)


def _lines(rest: Sequence[Figure], kind: str, width: int, *, mean: bool | None = None) -> Iterator[list[Figure]]:
    """What is gathered at once: as much of a kind as a line holds."""
    some: list[Figure] = []
    for each in (one for one in rest if one.kind == kind and mean in (None, one.mean)):
        if some and len(_names([*some, each])) > width:
            yield some
            some = []
        some.append(each)
    if some:
        yield some
