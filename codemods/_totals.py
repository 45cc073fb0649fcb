"""How what each process counts of its share becomes that of all of them, behind the loop that counts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from turbofix.training.model import Counted, Totals

if TYPE_CHECKING:
    from ._ranks import Ranks

_WIDTH = 80
"""How long the names may be together that one line gathers."""


def add_up(ranks: Ranks, totals: Totals) -> None:
    """The lines behind one loop."""
    edit, at = ranks.edit, totals.loop
    world, numbers = ranks.word("world_size", at), [each for each in totals.counted if each.kind == "number"]
    lines: list[str] = []
    for each in numbers:
        if each.tensor:
            lines += [f"{each.text} = {each.text}.detach().clone()"] if each.carries else []
            lines += [f"{edit.name('torch.distributed.all_reduce', at)}({each.text})"]
            lines += [f"{each.text} = {each.text} / {world}"] if each.mean else []
    listed = [each for each in totals.counted if each.kind in ("figures", "entries")]
    samples = [each for each in totals.counted if each.kind == "samples"]
    plain = [each for each in samples if not each.tensor]
    gathered = [each for each in (*numbers, *samples, *listed) if not _reduced(each)]
    if gathered or listed:
        shares = edit.free_name("shares", at)
        gather = edit.name("torch.distributed.all_gather_object", at) if gathered else ""

        def shared(text: str) -> list[str]:
            return [f"{shares} = [None] * {world}", f"{gather}({shares}, {text})"]

        for some in _lines([each for each in numbers if not each.tensor]):
            names = ", ".join(each.text for each in some)
            given = ", ".join(f"float({each.text})" if each.unsure else each.text for each in some)
            added = f"map(sum, zip(*{shares}))" if len(some) > 1 else f"sum({shares})"
            lines += [*shared(f"({given})" if len(some) > 1 else given), f"{names} = {added}"]
            lines += [f"{each.text} /= {world}" for each in some if each.mean]
        for each in (one for one in plain if one.unsure):
            tensor = edit.name("torch.Tensor", at)
            lines += [f"{each.text} = [each.cpu() if isinstance(each, {tensor}) else each for each in {each.text}]"]
        for some in _lines(plain):
            names = ", ".join(each.text for each in some)
            joined = f"(sum(lists, []) for lists in zip(*{shares}))" if len(some) > 1 else f"sum({shares}, [])"
            lines += [*shared(f"({names})" if len(some) > 1 else names), f"{names} = {joined}"]
        for each in (one for one in samples if one.tensor):
            lines += shared(f"[each.detach().cpu() for each in {each.text}]")
            lines += [f"{each.text} = [each.to({each.text}[0].device) for share in {shares} for each in share]"]
        for each in listed:
            mean = f" / {world}" if each.mean else ""
            if each.kind == "entries":
                lines += [*shared(each.text), f"for key in {each.text}:"]
                lines += [f"    {each.text}[key] = sum(share[key] for share in {shares}){mean}"]
            elif each.tensor:
                lines += [f"{shares} = {edit.name('torch.stack', at)}({each.text}).detach()"]
                lines += [f"{edit.name('torch.distributed.all_reduce', at)}({shares})"]
                lines += [f"{each.text}[:] = {shares if not each.mean else f'({shares}{mean})'}.unbind()"]
            else:
                lines += shared(each.text)
                lines += [f"{each.text}[:] = [sum(each){mean} for each in zip(*{shares})]"]
    ranks.after(at, ranks.several(at), *(f"    {line}" for line in (*lines, *totals.anew)))


def _reduced(each: Counted) -> bool:
    return each.tensor and each.kind in ("number", "figures")


def _lines(counted: Sequence[Counted]) -> Iterator[list[Counted]]:
    """What is gathered at once: as much as a line holds."""
    some: list[Counted] = []
    for each in counted:
        if some and sum(len(one.text) + 2 for one in (*some, each)) > _WIDTH:
            yield some
            some = []
        some.append(each)
    if some:
        yield some
