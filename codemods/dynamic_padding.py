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

    Lengths are multiples of eight, as the tensor cores like them, where the fixed length is one: no batch is longer
    than it was. For the ``Trainer`` of transformers the padding leaves the function that tokenizes, and its batches are
    put together by ``DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)``. Batches of texts of like length
    (``group_by_length=True``) gain more, and are another order.

    A data set that pads each text by itself keeps doing so: its loaders get a ``collate_fn`` that cuts off the columns
    in which the attention mask of all texts of the batch is 0, whatever an item calls it.

When refused
    Refused where the program compiles, as each length would be compiled anew; where the call says more than is written
    in it; where only some batches are padded; where the trainer has a collator, cuts no texts, or keeps columns that
    have no common length; where the loaders have a ``collate_fn`` already, or no mask tells what is padding: there the
    padding belongs into it, as in ``DataCollatorWithPadding(tokenizer)`` or ``pad_sequence``. So are samples that a
    data set or a collate function pads by hand to a length that is written down or an option (``ids + [0] * (length -
    len(ids))``). Nothing is said of programs for TPUs, of exported models, of streams, and where ``padding_side`` is
    chosen: positions count from the front.

Risk
    equivalent: masked positions count for nothing, so that losses differ by rounding, and dropout draws for fewer
    positions. What is shown or kept for each position (hidden states, attentions) has the new length. A loss or a
    pooling that counts padding gives something else, as a comparison shows.

Measured
    Not measured in isolation: the gain is that of the lengths.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import PADDING_UNREAD
from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site
from turbofix.program.model import Framework, Padding, TrainingProgram
from turbofix.records import dataclass

from ._loaders import put_above

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    known_as=("padding to the longest of a batch",),
    assumes=(PADDING_UNREAD,),
)

COLLATOR = "DataCollatorWithPadding"
BY_HAND = (
    "leave the padding to the loader, as in `collate_fn=DataCollatorWithPadding(tokenizer)`, "
    "where the model and its loss leave padding out"
)


@dataclass(frozen=True)
class Plan:
    """The call that pads."""

    padding: Padding


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Texts that are padded to a fixed length."""
    if program.framework not in (Framework.PYTORCH, Framework.ACCELERATE, Framework.TRANSFORMERS):
        return
    for padding in program.paddings:
        if padding.dynamic:
            yield codemod.in_place(padding.site, "batches are padded to their own longest text")
            continue
        what = "every batch of texts" if padding.of == "batch" else "every text"
        message = f"{what} is padded to a fixed length, and the model computes for the padding, too"
        if padding.by_hand:
            message = "every sample is padded to a fixed length, however short all samples of its batch are"
        seen = (Evidence("padded here", padding.site),)
        if padding.why_not is not None:
            one_by_one = padding.of == "item" and padding.why_not.startswith(("it pads", "the samples"))
            reason = f"{padding.why_not}: {BY_HAND}" if one_by_one else padding.why_not
            yield codemod.refuse(padding.site, message, reason, evidence=seen)
        else:
            rests = (PADDING_UNREAD,)
            yield codemod.finding(padding.site, message, plan=Plan(padding), evidence=seen, assumes=rests)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Pad to the longest; beside a trainer, where it puts batches together."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    padding = plan.padding
    if padding.helper is not None:
        cut_off(padding, edit, padding.helper)
        return
    if padding.trainer is not None:
        edit.drop_argument(padding.site, "padding")
        eights = ", pad_to_multiple_of=8" if padding.in_eights else ""
        collator = COLLATOR
        if padding.imports is None:
            collator = edit.name(f"transformers.{COLLATOR}", padding.trainer)
        elif not edit.is_bound(COLLATOR, padding.trainer):
            edit.also_import(padding.imports, COLLATOR)
        elif edit.name(f"transformers.{COLLATOR}", padding.trainer) != COLLATOR:
            raise Refuse(f"`{COLLATOR}` means something else here")
        edit.argument(padding.trainer, "data_collator", f"{collator}({padding.tokenizer}{eights})")
        return
    assert padding.value is not None
    edit.replace(padding.value, edit.text(padding.value).replace("max_length", "longest"))
    if padding.in_eights:
        edit.argument(padding.site, "pad_to_multiple_of", "8")


def cut_off(padding: Padding, edit: Edit, above: Site) -> None:
    """Give the loaders of texts that are padded one by one a function that cuts off what is padding in all of them."""
    name, mask = edit.free_name("without_padding", above), edit.quoted(padding.mask or "", above)
    collate = edit.name("torch.utils.data.default_collate", above)
    put_above(
        edit,
        above,
        f"def {name}(texts):",
        '    """A batch of texts, without the columns that are padding in all of them."""',
        f"    batch = {collate}(texts)",
        f"    used = batch[{mask}].flatten(0, -2).any(0)",
        '    tensors = {key: part for key, part in batch.items() if hasattr(part, "shape")}',
        "    wide = {key for key, part in tensors.items() if part.dim() > 1 and part.shape[-1] == len(used)}",
        "    return {key: part[..., used] if key in wide else part for key, part in batch.items()}",
    )
    for loader in padding.loaders:
        edit.argument(loader, "collate_fn", name, spelled_out=True)
