"""Pad each batch of texts to its own longest, not to a fixed length.

Why slow
    A tokenizer that pads to ``max_length`` has the model compute as much for ten words as for the longest text that it
    takes: attention over 512 positions where the batch has 60.

Example
    ::

        def collate(rows):
            texts = [row["text"] for row in rows]
            return tokenizer(texts, padding="max_length", truncation=True, max_length=256, return_tensors="pt")

Use instead
    ::

            return tokenizer(texts, padding="longest", pad_to_multiple_of=8, truncation=True, max_length=256,
                             return_tensors="pt")

    Lengths are multiples of eight, as the tensor cores like them, where the fixed length is one. Texts that are padded
    before there are batches (by a data set, by ``map``) stay as they are. Their loader or trainer gets a function that
    cuts off the columns in which the attention mask of all texts of the batch is 0. It calls the collate function that
    was there. Without a mask, or with texts of two kinds, it cuts off the columns in which all rows end alike, but one.

When refused
    It is refused

    - where the program compiles: each length would be compiled anew; where it speaks of TPUs, streams, joined batches;
    - where the call is given more than is written in it, or only some batches are padded;
    - where a trainer makes batches in its own way;
    - where what is padded was not followed to the items, or beside a collate function that makes no dict of their keys;
    - where nothing in the program tells padding from words: the model and its loss count it.

Risk
    equivalent: masked positions count for nothing, so losses differ by rounding, and dropout draws for fewer positions.
    What is kept for each position has the new length. A loss or a pooling that counts padding gives something else, as
    a comparison shows.

Measured
    Not measured in isolation: the gain is that of the lengths.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import PADDING_UNREAD
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site
from turbofix.training.model import Padding, TrainingProgram

from ._loaders import put_above

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    known_as=("padding to the longest of a batch",),
    assumes=(PADDING_UNREAD,),
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Texts that are padded to a fixed length."""
    for padding in program.paddings:
        if padding.dynamic:
            yield codemod.in_place(padding.site, "batches are padded to their own longest text")
            continue
        what = "every batch of texts" if padding.of == "batch" else "every text"
        length = "the longest of many" if padding.of == "all" else "a fixed length"
        message = f"{what} is padded to {length}, and the model computes for the padding, too"
        if padding.by_hand:
            message = "every sample is padded to a fixed length, however short all samples of its batch are"
        seen = (Evidence("padded here", padding.site),)
        rests = (PADDING_UNREAD,)
        yield codemod.offer(padding.site, message, padding.why_not, plan=padding, evidence=seen, assumes=rests)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Pad to the longest; beside a trainer, where it puts batches together."""
    padding = finding.plan
    assert isinstance(padding, Padding)
    if padding.helper is not None:
        cut_off(padding, edit, padding.helper)
        return
    assert padding.value is not None
    edit.replace(padding.value, edit.text(padding.value).replace("max_length", "longest"))
    if padding.in_eights:
        edit.argument(padding.site, "pad_to_multiple_of", "8")


def cut_off(padding: Padding, edit: Edit, above: Site) -> None:
    """Give what makes batches of padded texts a function that cuts off what is padding in all of them."""
    name, mask = edit.free_name("without_padding", above), edit.quoted(padding.mask or "", above)
    kept, labels = "kept" if padding.targets else "used", 'key == "labels" or key.startswith("decoder_")'
    made = "transformers.default_data_collator" if padding.trainer else "torch.utils.data.default_collate"
    keys = [edit.quoted(each, above) if isinstance(each, str) else str(each) for each in padding.keys]
    items = "batch.items()" if isinstance(next(iter(padding.keys), ""), str) else "enumerate(batch)"
    flat, cut = (" if text.dim() < 3", ":end, :end") if padding.squares else ("", ":end")
    varied = ".any(0)" if padding.squares else ".flatten(0, -2).any(0)"
    square = " if text.dim() > 2 and text.shape[-2] == length else text[..., :end]" * padding.squares
    alike = (
        f"    padded = ({', '.join(keys)}{',' if len(keys) == 1 else ''})",
        f"    texts = {{key: part for key, part in {items} if key in padded and part.dim() > 1}}",
        f"    for length in {{text.shape[-1] for text in texts.values(){flat}}}:",
        "        alike = {key: text for key, text in texts.items() if text.shape[-1] == length}",
        f"        used = sum((text != text.flatten()[-1]){varied} for text in alike.values(){flat}).nonzero()",
        "        end = int(used[-1]) + 2 if len(used) else length  # one column of what all rows end with stays",
        "        for key, text in alike.items():",
        f"            batch[key] = text[..., {cut}]{square}",
    )
    by_mask = (
        f"    used = batch[{mask}].flatten(0, -2).any(0)",
        *(['    told = (batch["labels"] != -100).flatten(0, -2).any(0)'] if padding.targets else ()),
        "    for key, part in batch.items():",
        *([f"        kept = told if {labels} else used"] if padding.targets else ()),
        f'        if hasattr(part, "dim") and part.dim() > 1 and part.shape[-1] == len({kept}):',
        f"            batch[key] = part[..., {kept}]",
    )
    put_above(
        edit,
        above,
        f"def {name}(texts, collate={edit.name(made, above)}):",
        '    """A batch of texts, without the columns that are padding in all of them."""',
        "    batch = collate(texts)",
        *(alike if padding.keys else by_mask),
        "    return batch",
    )
    keyword = "data_collator" if padding.trainer else "collate_fn"
    for reader, collate in padding.readers:
        if collate is None:
            edit.argument(reader, keyword, name, spelled_out=True)
        else:
            partial = edit.name("functools.partial", collate)
            edit.replace(collate, f"{partial}({name}, collate={edit.text(collate)})")
