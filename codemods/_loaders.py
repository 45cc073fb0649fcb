"""What several codemods ask of a loader."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path

from turbofix.editing.edit import Edit
from turbofix.findings import Site
from turbofix.regex import regex
from turbofix.source.datafile import is_data
from turbofix.source.nodes import parse, walk
from turbofix.training.model import Argument, Evaluation, Framework, Loader, Step, TrainingProgram, Transfer

LITTLE = ("MNIST", "FashionMNIST", "KMNIST", "QMNIST", "USPS", "CIFAR10", "CIFAR100")
SMALL_IMAGES = {f"torchvision.datasets.{name}" for name in LITTLE}
"""Datasets of small pictures in memory, whose epochs take seconds."""


def copies_itself(program: TrainingProgram) -> bool:
    """Whether the script's own loops copy the batches of its own loaders: DeepSpeed moves none, and beside a training
    by transformers' trainer there may be one by hand."""
    by_hand = program.framework is Framework.TRANSFORMERS and bool(program.steps)
    return by_hand or program.framework in (Framework.PYTORCH, Framework.DEEPSPEED)


def may_be_non_blocking(transfer: Transfer) -> bool:
    """Whether a copy of a batch can be given ``non_blocking``."""
    can = transfer.what in ("batch", "object") or transfer.likely == "batch"
    can = can and transfer.method in ("to", "cuda", "type")
    return can and blocks(transfer)


def blocks(transfer: Transfer) -> bool:
    """Whether a copy says nothing of waiting, or that it waits."""
    given = transfer.non_blocking
    return given.state == "absent" or (given.state == "value" and given.values == (False,))


def is_in_the_way(given: Argument) -> bool:
    """Whether an argument is passed and not known to be false."""
    return given.state != "absent" and (not given.known or any(given.values))


def is_timed(loader: Loader) -> bool:
    """Whether timed steps of the training show what a change of the loader brings; an evaluation's they do not."""
    return loader.role in ("training", "both")


def unfollowed(program: TrainingProgram, loader: Loader) -> str:
    """Why the samples of a loader of which nothing else is known are not made once."""
    if loader.dataset.kind == "iterable":
        return "its data come in a stream: prepare them once, into a file, or a tensor where they fit into memory"
    if loader.dataset.random:
        return (
            "its samples are drawn at random each time: keep what they are made of as one tensor, and draw for a batch"
        )
    if program.steps and not any(step.passes is None or step.passes > 1 for step in program.steps):
        return "the training reads its data once, so that nothing that is kept is used again"
    return "its data are not known to lie in memory: where they fit, keep what is made of them as one tensor"


def is_read_again(program: TrainingProgram, loader: Loader) -> bool:
    """Whether the loader is read in more than one pass, as far as that can be seen, and never while it is being read.

    Workers that are kept serve one reader: a second one would set the first back.
    """
    if loader.fed != "no":
        return loader.fed == "again" and not loader.built_in_loop
    steps = {step.loop.site for step in program.steps if loader.site in step.loaders}
    inner = [each.around for each in program.evaluations if loader.site in each.loaders]
    if is_built_each_time(loader) or any(each & steps for each in inner):
        return False
    in_steps = any(loader.site in step.loaders and step.epoch_loop for step in program.steps)
    return in_steps or any(inner) or (loader.cycled and loader.role == "training")


MANY = 3
"""Passes of a training beside which a single one of an evaluation is hardly noticed."""

ONCE = "it is done in one pass of an evaluation, beside a training of many: nothing of it is noticed"


def is_once(program: TrainingProgram, loop: Step | Evaluation | None) -> bool:
    """Whether a loop is an evaluation that runs once for each training of many passes."""
    repeated = [step for step in program.steps if step.epoch_loop is not None]
    training = {each.site for step in repeated for each in (step.loop, step.epoch_loop) if each is not None}
    many = any((step.passes or MANY) >= MANY for step in repeated)
    return many and isinstance(loop, Evaluation) and not loop.around & training


def is_read_once(program: TrainingProgram, loader: Loader) -> bool:
    """Whether the loader only serves evaluations that run once, as that of a trainer's ``test`` does."""
    loops: tuple[Step | Evaluation, ...] = (*program.steps, *program.evaluations)
    reading = [is_once(program, each) for each in loops if loader.site in each.loaders]
    return all(reading) if reading else loader.role in ("unknown", "unused") and loader.fed == "once"


def is_built_each_time(loader: Loader) -> bool:
    """Whether the loader is built anew for each time that it is read."""
    return loader.built_in_loop and not loader.again


def called(loader: Loader) -> str:
    """How a message calls the loader."""
    return f"`{loader.name}`" if loader.name else "this loader"


def at(line: int) -> str:
    """A line, in a message."""
    return f"line {line}"


def is_inside(inner: Site, outer: Site) -> bool:
    """Whether a place lies within another one of the same file."""
    starts = (outer.line, outer.column) <= (inner.line, inner.column)
    ends = (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)
    return inner.path == outer.path and starts and ends


def whole(edit: Edit, site: Site) -> str:
    """The text of the file of ``site``."""
    edit.statement(site)  # the edit has looked at the file now
    return edit.before_text(site.path) or ""


def put_above(edit: Edit, site: Site, *lines: str, below: bool = False) -> None:
    """Put lines above a statement of the file, ``below`` others that were put there, with two blank ones around."""
    above = whole(edit, site).splitlines()[: site.line - 1]
    spaced = not below and above and above[-1].strip() and not above[-1].lstrip().startswith(("#", "@"))
    edit.before(site, *(["", ""] if spaced else []), *lines, "", "", above_comments=True)


def earlier_in_its_block(edit: Edit, places: tuple[Site, ...], site: Site) -> Site:
    """The first of the places whose statement always runs before ``site``: what it defines can be used at ``site``."""
    own = edit.statement(site)
    lines = whole(edit, site).splitlines()
    for place in places:
        first = edit.statement(place)
        if first.line > own.line:
            continue
        between = [line for line in lines[first.line : own.line] if line.strip() and not line.lstrip().startswith("#")]
        if all(len(line) - len(line.lstrip()) >= first.column for line in between):
            return place
    return site


def dict_of(edit: Edit, entry: Site) -> Site | None:
    """The dict display, or the call of ``dict``, that holds an entry with its value at ``entry``."""
    text = whole(edit, entry)
    for node in walk(parse(text)):
        values: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            values = node.values
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
            values = [keyword.value for keyword in node.keywords]
        if isinstance(node, (ast.Dict, ast.Call)) and any(begins(each, entry, text) for each in values):
            return site_of(node, entry.path, text)
    return None


def mend_help(edit: Edit, default: Site, old: str, new: str) -> None:
    """Change the old default in the help of the option whose default stands at ``default``: ``(default: 4)``."""
    text = whole(edit, default)
    for node in walk(parse(text)) if not is_data(default.path) else ():
        given = {each.arg: each.value for each in node.keywords} if isinstance(node, ast.Call) else {}
        if "default" in given and "help" in given and begins(given["default"], default, text):
            site = site_of(given["help"], default.path, text)
            written = edit.text(site) if site.kind in ("Constant", "JoinedStr") else ""
            mended = re.sub(rf"(?i)(default\w*\W{{1,4}}){re.escape(old)}\b(?![.\d])", rf"\g<1>{new}", written)
            if mended != written:
                edit.replace(site, mended)


def node_of(edit: Edit, site: Site) -> ast.AST | None:
    """The node of the file's tree that stands at a site."""
    text = whole(edit, site)
    for node in walk(parse(text)) if not is_data(site.path) else ():
        if type(node).__name__ == site.kind and isinstance(node, (ast.expr, ast.stmt)) and begins(node, site, text):
            return node
    return None


def begins(node: ast.expr | ast.stmt, site: Site, text: str) -> bool:
    """Whether a node stands where a site begins."""
    return node.lineno == site.line and site_of(node, site.path, text).column == site.column


def site_of(node: ast.expr | ast.stmt | ast.alias, path: Path, text: str) -> Site:
    """The site of a node of the text's tree; ``ast`` counts bytes, sites count characters."""
    lines = text.removeprefix("\ufeff").splitlines()

    def column(line: int, offset: int) -> int:
        return len(lines[line - 1].encode()[:offset].decode(errors="ignore"))

    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    start = node.lineno, column(node.lineno, node.col_offset)
    return Site(path, *start, end_line, column(end_line, end), type(node).__name__)


def comment_above(edit: Edit, site: Site) -> str:
    """The comments above the statement of ``site``, up to a blank line, in one line; empty where there are none."""
    above: list[str] = []
    for line in reversed(whole(edit, site).splitlines()[: edit.statement(site).line - 1]):
        if not line.strip():
            break
        if line.strip().startswith("#"):
            above.insert(0, line.strip().lstrip("# "))
    return " ".join(above)


REASON = regex(
    r"(?i)\b(must|needs?|because|since|due|too|so that|avoid\w*|errors?|bugs?|crash\w*|fail\w*|wrong|memory|oom|keep"
    r"|reproduc\w*|determin\w*|do not|don't|doesn't|never|only|old|broken|breaks?|unsupported|not support\w*|slower"
    r"|driver|fits?|scarce|limit\w*|v?ram|shm|hangs?|deadlock\w*|stuck|freez\w*|fork\w*|spawn\w*|pickl\w*|h5py|hdf5"
    r"|lmdb)\b"
)


def gives_reason(comment: str) -> bool:
    """Whether a comment may give a reason for what stands there: not one that is code, or only names it."""
    text = comment.strip("# ")
    with contextlib.suppress(SyntaxError):
        if not text.isidentifier() and ast.parse(text):
            return False
    return REASON.search(text) is not None


def reason_beside(*given: Argument) -> str | None:
    """What a refusal says of a comment beside a value that gives a reason for it."""
    comment = next((each.comment for each in given if each.comment and gives_reason(each.comment)), None)
    return f"a comment beside the value may say why it is so: {comment.strip()}" if comment else None


def said_beside(*given: Argument) -> str:
    """What a message adds of any other comment there, which the user has to judge."""
    said = (each.comment.strip() for each in given if each.comment and is_telling(each.comment))
    return "".join(f"; the comment beside it says: {each}" for each in said)


def is_telling(comment: str) -> bool:
    """Whether a comment may say why a value is as it is, rather than what it is ("number of workers")."""
    words = set(re.findall(r"[^\W\d_]+", comment.lower()))
    return bool(words - DESCRIBING) and "turbofix" not in words


DESCRIBING = frozenset(
    re.findall(
        r"\w+",
        """
        a accumulate accumulation and as batch batches before cpu data dataloader dataloaders default each epoch every
        for gradient gradients how in int is load loader loaders loading many micro mini minibatch num number of one
        optimizer or per process processes sample samples size step steps subprocess subprocesses test the thread
        threads to train training update use used val validation with worker workers
        """,
    )
)
"""Words of comments that only say what a number is."""
