"""Let torch's fused kernels compute attention that is written out.

Why slow
    ``softmax(q @ k.transpose(-2, -1)) @ v`` makes a matrix of scores for every pair of positions, and each operation on
    it (scale, mask, softmax, dropout, the backward of each) reads it from memory and writes it back. The fused kernels
    (FlashAttention, memory-efficient attention) compute the same block by block, and never write it.

Example
    ::

        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v

Use instead
    ::

        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.attn_dropout.p if self.attn_dropout.training else 0.0,
            is_causal=True,
        )

    Scores that are multiplied by anything but one over the root of their width get ``scale=``, unscaled ones
    ``scale=1.0``. A mask that leaves out just what lies ahead of each query (``tril``, ``triu``, of whole squares) is
    ``is_causal``, for a mask that is passed keeps FlashAttention away; only of more than one query
    (``q.size(-2) > 1``) where there may be more keys than queries, as with a cache: a square of one hides nothing. Of
    others, ``attn_mask`` is True where a key may be seen: the opposite of what ``masked_fill`` is given. A bias that is
    added is passed as it is. What may have one dimension only gets a second one (``torch.atleast_2d``), for torch's
    function raises for it.

    A mask that fills with a finite number (``-1e9``) weighs all keys alike where a query may see none of them, as a row
    of padding does; torch's kernels give NaN there before 2.5, and 0 since. Such queries are made zeros, and see all:
    that gives the same output and the same gradients. Where the fill is minus infinity, such rows are NaN as written,
    and so is every weight after one step: a program that trains has none.

    The kernels read the numbers of one position side by side, and torch makes the matrix of scores as before, without a
    word, where they lie otherwise. What has its widths before its positions is copied there (``.contiguous()``).

    Modules of the softmax, and buffers that hold the mask, stay, so that checkpoints load as before. Tensors of three
    dimensions get one of one head for a moment: torch's kernels only take four. What the kernels give lies in memory
    with its heads behind its positions: ``.contiguous()`` follows where something may ``view`` it as it is.

When refused
    Nothing is said where torch's own attention, or another fused kernel, stands in the same class (this is the way
    without it then), where the softmax does not run over the keys (linear attention), and where something else happens
    to the scores. It is refused where weights or scores are used by themselves as well, returned or kept; where the
    softmax is computed in another precision on purpose; where the scale is a tensor, is not known to be a number, or
    is left out under a test; where a docstring says that it is written out on purpose, to be read; where what is added
    to the scores is not known to hold floats; where several masks differ in how they leave out; where it is not known
    that there are four dimensions; where gradients are differentiated once more, for which the kernels have no
    derivative; where hooks are registered that may read the weights; where TorchScript compiles a model, or one is
    exported to an ONNX opset before 14, which has no attention; and where the script asks for deterministic
    results, for the kernels' gradients are summed in any order.

Risk
    equivalent: sums are rounded in another order, and dropout draws other numbers.

Measured
    GPT-2 124M on an A100: 1.35 times beside torch.compile (Karpathy, build-nanogpt), 1.66 times before it (Raschka,
    LLMs-from-scratch).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Evidence, Finding, Gain, InPlace, Refusal, Risk
from turbofix.program.model import Attention, AttentionMask, TrainingProgram

from ._precision import deterministic, version

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.35, 1.66, "GPT-2 124M on an A100: Karpathy, build-nanogpt; Raschka, LLMs-from-scratch"),
    known_as=("FlashAttention", "scaled dot product attention", "memory-efficient attention"),
)

SINCE = (2, 1)  # `scale=`, and masks beside dropout in the fused kernels
WIDEST, WIDER = 100, 120
MESSAGE = (
    "this attention is written out: a score for every pair of positions goes through memory at each of its operations"
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Products of softmax and values that torch has a fused kernel for."""
    for site in program.fused_attentions:
        yield codemod.in_place(site, "attention runs in torch's fused kernel")
    for attention in program.attentions:
        reason = attention.why_not or why_not(program, attention)
        if reason is not None:
            yield codemod.refuse(attention.softmax, MESSAGE, reason)
            continue
        seen = Evidence("its weights are multiplied by the values, and by nothing else", attention.product)
        yield codemod.finding(attention.softmax, MESSAGE, plan=attention, evidence=(seen,))


def why_not(program: TrainingProgram, attention: Attention) -> str | None:
    """What makes the kernels unsafe for this program."""
    if program.target.torch < SINCE:
        return f"the project serves torch {version(program.target.torch)}; it needs torch {version(SINCE)}"
    for name, site in deterministic(program):
        where = site.line_from(attention.softmax.path)
        return f"the script asks for reproducible results ({name.removeprefix('torch.')}, {where})"
    if weighs_alike(attention) and any(each.test for each in attention.masks) and not attention.query_is_free:
        said = attention.masks[0].said
        return f"rows without any key are weighed alike by {said}, under a test, and its queries are needed afterwards"
    return None


def is_causal(attention: Attention) -> bool:
    """Whether the masks leave out just what lies ahead, and torch can be told so."""
    told = attention.as_long or attention.query.isidentifier()
    return bool(attention.masks) and all(each.causal for each in attention.masks) and told


def weighs_alike(attention: Attention) -> bool:
    """Whether a query that may see no key may occur, and then sees all of them."""
    return not is_causal(attention) and any(each.fill == "finite" for each in attention.masks)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Replace the last product by a call, and take out what led to it."""
    attention = finding.plan
    assert isinstance(attention, Attention)
    query, more = attention.query, list[str]()
    if weighs_alike(attention):
        query, mask = made_visible(attention, edit)
        more.append(f"attn_mask={mask}")
    elif is_causal(attention):
        test = attention.masks[0].test
        tests = [truth(test)] if test is not None else []
        if not attention.as_long:
            # a single query before a cache sees all keys as written; torch would show it the first one alone
            tests.append(f"{attention.query}.size(-2) > 1")
        more.append(f"is_causal={' and '.join(tests) or True}")
    elif attention.masks:
        kept = deep(attention, edit)
        test = attention.masks[0].test
        more.append(f"attn_mask={f'{kept} if {test} else None' if test is not None else kept}")
    if attention.dropout is not None:
        more.insert(0 if is_causal(attention) else len(more), f"dropout_p={attention.dropout}")
    if attention.scale is not None:
        more.append(f"scale={attention.scale}")
    values = [query, attention.key, attention.value]
    behind = ".transpose(1, 2)" if attention.transposed else ".contiguous()" if attention.contiguous else ""
    if attention.rank == 3:
        values = [f"{operand(each)}.unsqueeze(1)" for each in values]
        behind = ".squeeze(1)"
    name = edit.name("torch.nn.functional.scaled_dot_product_attention", attention.product)
    edit.replace(attention.product, laid_out(edit, attention, name, [*values, *more], behind))
    for site in attention.removed:
        edit.delete(site)


def deep(attention: Attention, edit: Edit) -> str:
    """What the masks let through or add, with two dimensions at least: torch raises for one."""
    text = together(attention.masks)
    if any(not each.flat for each in attention.masks):
        return text
    return f"{edit.name('torch.atleast_2d', attention.product)}({text})"


def together(masks: tuple[AttentionMask, ...]) -> str:
    """What all masks let through."""
    if len(masks) == 1:
        return masks[0].keep
    return " & ".join(
        each.keep if each.keep.startswith("~") and is_simple(each.keep[1:]) else operand(each.keep) for each in masks
    )


def operand(text: str) -> str:
    """A source that may stand beside an operator."""
    return text if is_simple(text) else f"({text})"


def is_simple(text: str) -> bool:
    """Whether a source is a name, an attribute or one call."""
    plain = text.replace(".", "").replace("_", "")
    if plain.isalnum():
        return True
    if not text.endswith((")", "]")) or not (text[0].isalpha() or text[0] == "_"):
        return False
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and not (character.isalnum() or character in "._"):
            return False
    return True


def truth(test: str) -> str:
    """A test as True or False, which is all that torch takes."""
    return test if " is " in test or "==" in test or "!=" in test or test.startswith("not ") else f"bool({test})"


def made_visible(attention: Attention, edit: Edit) -> tuple[str, str]:
    """Queries and mask with which a query that may see no key weighs all alike: as zeros, and seeing all."""
    site = attention.product
    keep = edit.free_name("keep", site)
    some = edit.free_name("some", site)
    test, said = attention.masks[0].test, attention.masks[0].said
    note = f"# where a query may see no key, {said} weighs all of them alike: so does a query of zeros that sees all"
    lines = [note, f"{keep} = {deep(attention, edit)}", f"{some} = {keep}.any(dim=-1, keepdim=True)"]
    if test is None:
        edit.before(site, *lines)
        return f"{operand(attention.query)} * {some}", f"{keep} | ~{some}"
    mask = edit.free_name("attn_mask", site)
    unit = indentation(edit, attention)[1]
    lines.append(f"{attention.query}, {mask} = {attention.query} * {some}, {keep} | ~{some}")
    edit.before(site, f"{mask} = None", f"if {test}:", *(unit + line for line in lines))
    return attention.query, mask


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
