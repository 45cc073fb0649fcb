"""Let torch's fused kernels compute attention that is written out.

Why slow
    ``softmax(q @ k.transpose(-2, -1)) @ v`` makes a score for every pair of positions. Each operation on the scores
    reads them from memory and writes them back. The fused kernels (FlashAttention, memory-efficient attention) compute
    the same block by block, and never write them.

Example
    ::

        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v

Use instead
    ::

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0 / math.sqrt(k.size(-1)))

    A mask that leaves out just what lies ahead of each query is ``is_causal``, for a mask that is passed keeps
    FlashAttention away. Others become ``attn_mask``: True where a key may be seen, the opposite of what ``masked_fill``
    is given. Dropout becomes ``dropout_p``. Modules and buffers stay, so checkpoints load as before.

    ``nn.MultiheadAttention`` whose weights are thrown away (``x, _ = attention(...)``, or by the callers of a function
    that returns them) gets ``need_weights=False``. A model of transformers that is loaded with
    ``attn_implementation="eager"`` gets ``"sdpa"``.

When refused
    Nothing is said where torch's own attention, or another fused kernel, stands in the same class. It is refused

    - where weights or scores are read by themselves as well, or the result is added up over the queries;
    - where the softmax runs over another axis than the last, or the scores themselves are dropped at random;
    - where gradients are differentiated once more: the kernels have no derivative for it.

Risk
    equivalent: sums are rounded in another order, and dropout draws other numbers. Gradients are the same in each run
    under ``torch.use_deterministic_algorithms(True)`` alone, where the kernels take the form for that.

Measured
    GPT-2 124M on an A100: 1.35 times beside torch.compile (Karpathy, build-nanogpt), 1.66 times before it (Raschka,
    LLMs-from-scratch).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import RECENT_TORCH, SAME_FORMULA, WEIGHTS_UNREAD
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, Gain, InPlace, Refusal, Risk, Worth
from turbofix.training.model import Attention, TrainingProgram, Unwanted

from ._precision import version

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.35, 1.66, "GPT-2 124M on an A100: Karpathy, build-nanogpt; Raschka, LLMs-from-scratch"),
    known_as=("FlashAttention", "scaled dot product attention", "memory-efficient attention"),
    assumes=(SAME_FORMULA, WEIGHTS_UNREAD, RECENT_TORCH),
    worth=Worth.HIGH,
)

SINCE = (2, 1)  # `scale=`, and masks beside dropout in the fused kernels
WIDEST, WIDER = 100, 120
MESSAGE = (
    "this attention is written out: a score for every pair of positions goes through memory at each of its operations"
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Products of softmax and values that torch has a fused kernel for, and weights that are asked for in vain."""
    for site in program.fused_attentions:
        yield codemod.in_place(site, "attention runs in torch's fused kernel")
    for each in program.unwanted:
        if each.done:
            yield codemod.in_place(each.call, each.message)
            continue
        unread = (Evidence("nobody reads the weights", each.call),) * (each.why_not is None)
        assumes = () if each.certain else (WEIGHTS_UNREAD,)
        yield codemod.offer(each.call, each.message, each.why_not, plan=each, evidence=unread, assumes=assumes)
    for attention in program.attentions:
        reason = attention.why_not or why_not(program)
        if reason is not None:
            yield codemod.refuse(attention.softmax, MESSAGE, reason)
            continue
        open_ones = [] if attention.certain else [SAME_FORMULA]
        open_ones += [WEIGHTS_UNREAD] if attention.unread else []
        seen = Evidence("its weights are multiplied by the values", attention.product)
        yield codemod.finding(attention.softmax, MESSAGE, plan=attention, evidence=(seen,), assumes=open_ones)


def why_not(program: TrainingProgram) -> str | None:
    """What makes the kernels unsafe for this program."""
    if program.target.torch < SINCE:
        return f"the project serves torch {version(program.target.torch)}; it needs torch {version(SINCE)}"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Replace the last product by a call, and take out what led to it."""
    attention = finding.plan
    if isinstance(attention, Unwanted):
        edit.argument(attention.call, attention.name, attention.value)
        return
    assert isinstance(attention, Attention)
    values = [attention.query, attention.key, attention.value]
    behind = attention.behind
    if attention.heads:
        values = [f"{operand(each)}.unsqueeze(0)" for each in values]
        behind = f".squeeze(0){behind}"
    if attention.mask is not None and not attention.causal:
        values.append(f"attn_mask={attention.mask}")
    if attention.dropout is not None:
        values.append(f"dropout_p={attention.dropout}")
    if attention.causal:
        values.append(f"is_causal={attention.mask}")
    values.append(f"scale={attention.scale}")
    name = edit.name("torch.nn.functional.scaled_dot_product_attention", attention.product)
    edit.replace(attention.product, laid_out(edit, attention, name, values, behind))
    for each in attention.unread:
        if each.site is not None:
            edit.replace(each.site, "None")
    for site in attention.removed:
        edit.delete(site)


def operand(text: str) -> str:
    """A source that a method may be called on."""
    plain = text.replace(".", "").replace("_", "").isalnum()
    return text if plain or (text.endswith(")") and " " not in text.partition("(")[0]) else f"({text})"


def indentation(edit: Edit, attention: Attention) -> tuple[str, str]:
    """How far the product's line stands in, and how far a block stands in more."""
    text = edit.before_text(attention.product.path)
    if text is None:
        raise Refuse("its file cannot be read")
    lines = text.splitlines()

    def lead(line: str) -> str:
        return line[: len(line) - len(line.lstrip())]

    own = lead(lines[attention.product.line - 1])
    outer = lead(lines[attention.function.line - 1])
    return own, "\t" if own.startswith("\t") else " " * (2 if len(own) - len(outer) == 2 else 4)


def laid_out(edit: Edit, attention: Attention, name: str, arguments: list[str], behind: str) -> str:
    """The call in one line where it fits, else with its arguments on a line of their own, or on one each."""
    plain = f"{name}({', '.join(arguments)}){behind}"
    text = edit.before_text(attention.product.path) or ""
    lines = text.splitlines()
    last = lines[attention.product.end_line - 1]
    around = attention.product.column + len(last) - attention.product.end_column
    widest = max(WIDEST, min(WIDER, max(map(len, lines))))
    if around + len(plain) <= widest or any("\n" in each for each in arguments):
        return plain
    own, unit = indentation(edit, attention)
    newline = "\r\n" if "\r\n" in text else "\n"
    inner = ", ".join(arguments)
    if len(own) + len(unit) + len(inner) <= widest:
        return f"{name}({newline}{own}{unit}{inner}{newline}{own}){behind}"
    listed = "".join(f"{own}{unit}{each},{newline}" for each in arguments)
    return f"{name}({newline}{listed}{own}){behind}"
