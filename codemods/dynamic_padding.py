"""Pad each batch of texts to its own longest, not to a fixed length.

Why slow
    A tokenizer that pads to ``max_length`` has the model compute as much for ten words as for the longest text that it
    takes: attention over 512 positions where the batch has 60.

Example
    ::

        class Reviews(Dataset):
            def __getitem__(self, index):
                return tokenizer(self.texts[index], padding="max_length", max_length=256, return_tensors="pt")

        loader = DataLoader(Reviews(), batch_size=32, shuffle=True)

Use instead
    ::

        loader = DataLoader(Reviews(), batch_size=32, shuffle=True, collate_fn=without_padding)

    ``without_padding``, a function that is put into the file, calls the collate function that was there, and cuts off
    the columns in which all rows of all parts of a length end alike, but one. Where texts are padded at their front,
    it cuts nothing off.

When refused
    Where who makes the batches was not followed, where a trainer makes them in its own way, and where nothing in the
    program tells padding from words: the model and its loss count it.

Risk
    equivalent: masked positions count for nothing, so losses differ by rounding, and dropout draws for fewer positions.
    What is kept for each position has the new length. A loss or a pooling that counts padding gives something else, as
    a comparison shows. A model that is compiled is compiled once more, for any length.

Measured
    Not measured in isolation: the gain is that of the lengths.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import PADDING_UNREAD
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
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
        message = "every text is padded to a fixed length, and the model computes for the padding, too"
        if padding.by_hand:
            message = "every sample is padded to a fixed length, however short all samples of its batch are"
        if padding.of_all:
            message = "all texts are padded to the longest of them, however short all texts of a batch are"
        seen = (Evidence("padded here", padding.site),)
        rests = (PADDING_UNREAD,)
        yield codemod.offer(padding.site, message, padding.why_not, plan=padding, evidence=seen, assumes=rests)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Give what makes batches of padded texts a function that cuts off what is padding in all of them."""
    padding = finding.plan
    assert isinstance(padding, Padding)
    assert padding.helper is not None
    above = padding.helper
    name, flag = edit.free_name("without_padding", above), edit.name("torch.is_tensor", above)
    made = "transformers.default_data_collator" if padding.trainer else "torch.utils.data.default_collate"
    put_above(
        edit,
        above,
        f"def {name}(texts, collate={edit.name(made, above)}):",
        '    """A batch of texts, without the columns that are padding in all of them."""',
        "    batch = collate(texts)",
        f"    named = batch.items() if hasattr(batch, {edit.quoted('items', above)}) else enumerate(batch)",
        f"    parts = {{key: part for key, part in named if {flag}(part) and part.dim() > 1}}",
        "    flat = [part for part in parts.values() if part.dim() < 3 or part.shape[-2] != part.shape[-1]]",
        "    for length in {part.shape[-1] for part in flat if not part.is_floating_point()}:",
        "        alike = {key: part for key, part in parts.items() if part.shape[-1] == length}",
        "        texts = [part.flatten(0, -2) for part in flat if part.shape[-1] == length]",
        "        used = sum((text != text[-1, -1]).any(0) for text in texts).nonzero()",
        "        end = int(used[-1]) + 2 if len(used) else length  # one column of what all rows end with stays",
        "        for key, part in alike.items():",
        "            square = part.dim() > 2 and part.shape[-2] == length",
        "            batch[key] = part[..., :end, :end] if square else part[..., :end]",
        "    return batch",
    )
    keyword = "data_collator" if padding.trainer else "collate_fn"
    for reader, collate in padding.readers:
        if collate is None:
            edit.argument(reader, keyword, name, spelled_out=True)
        else:
            partial = edit.name("functools.partial", collate)
            edit.replace(collate, f"{partial}({name}, collate={edit.text(collate)})")
