"""The memory of an agent, out of which batches are put together item by item: each part of its items in an array.

What is read is the class that holds the memory. That the items' parts are alike, and that what reads a batch takes
arrays, is assumed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.assumptions import ALIKE_ITEMS
from turbofix.codemod import Codemod, SharedPlan
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, Site, Worth
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.training.model import TrainingProgram
from turbofix.training.told.written import meaning

from ._once import put_columns
from ._pages import Page, pages_of

JOINING = ("numpy.array", "numpy.asarray", "numpy.stack")
"""What makes one array of a tuple of parts; of an array it makes the same."""

OF_TENSORS = regex(r"torch\.(stack|cat|concat|hstack|vstack|tensor|as_tensor)")
"""What takes tensors alone, or gives an array another type than the numbers in it."""

USED_AS_LIST = r"\.{}(\[|\.(append|extend|pop|popleft|clear|insert|index|remove)\b)|(sample|choices?|list|sorted)\({}\b"


@dataclass(frozen=True)
class Replay(SharedPlan):
    """A memory that is made at ``made`` for ``size`` items, and the texts of what reads a batch of it."""

    made: Site
    size: str
    above: Site
    becomes: tuple[tuple[Site, str], ...]

    def write(self, place: Site, edit: Edit) -> None:
        """Put another memory in its place."""
        edit.replace(self.made, f"{put_columns(edit, self.above)}({self.size})")
        for site, text in self.becomes:
            edit.replace(site, text)


def replayed(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding]:
    """The batches that a step draws out of a memory of tuples, which could lie in arrays."""
    pages = pages_of(program)
    for each in program.overlooked:
        if each.codemod != codemod.name:
            continue
        try:
            page = pages(each.site)
            plan = plan_of(program, page, page.node(each.site))
        except Refuse:
            continue
        if plan is not None:
            message = f"{each.message}; in arrays, one for each part of an item, it is one indexing of each"
            seen = (Evidence("the memory", plan.made),)
            yield codemod.finding(
                each.site, message, plan=plan, evidence=seen, assumes=(ALIKE_ITEMS,), worth=Worth.SOME
            )


def plan_of(program: TrainingProgram, page: Page, call: ast.AST) -> Replay | None:
    """How the memory that a call draws of is kept in arrays, where all that its class does with it is seen."""
    if not isinstance(call, ast.Call) or len(call.args) != 2 or call.keywords:
        return None
    memory = call.args[0]
    cls = next((each for each in page.above(call) if isinstance(each, ast.ClassDef)), None)
    if cls is None or not isinstance(memory, ast.Attribute) or dotted(memory.value) != "self":
        return None
    made: ast.expr | None = None
    added: list[ast.AST] = []
    uses = [each for each in walk(cls) if isinstance(each, ast.Attribute) and dotted(each) == f"self.{memory.attr}"]
    for use in uses:
        above = page.parent(use)
        if isinstance(use.ctx, ast.Store):
            if made is not None or not isinstance(above, ast.Assign) or above.targets != [use]:
                return None
            made = above.value
        elif isinstance(above, (ast.Attribute, ast.Subscript)):
            added.append(above)
        elif use is not memory and not (isinstance(above, ast.Call) and dotted(above.func) == "len"):
            return None
    size = size_of(page, made, added) if made is not None else None
    becomes = texts_of(page, call, f"{page.text(memory)}.sample({page.text(call.args[1])})")
    if made is None or size is None or becomes is None or is_used_elsewhere(program, cls, memory.attr):
        return None
    body = page.module.tree.body
    top = next(each for each in body if page.holds(each, cls))
    first = next(each for each in body if isinstance(each, (ast.ClassDef, ast.FunctionDef)) or each is top)
    between = body[body.index(first) : body.index(top)]
    imports = any(isinstance(each, (ast.Import, ast.ImportFrom)) for each in between)
    return Replay(page.site(made), size, page.site(top if imports else first), becomes)


def size_of(page: Page, made: ast.expr, added: list[ast.AST]) -> str | None:
    """How many items are kept: ``deque(maxlen=size)``, or a list that is tested to be shorter before it grows."""
    grown = [each for each in added if isinstance(each, ast.Attribute) and each.attr == "append"]
    if isinstance(made, ast.Call) and meaning(made.func, page.module.tree) == "collections.deque":
        given = [*made.args[1:], *(each.value for each in made.keywords if each.arg == "maxlen")]
        empty = not made.args or page.text(made.args[0]) in ("[]", "()")
        sizes = [each for each in map(page.text, given) if each != "None"]
        return sizes[0] if len(sizes) == 1 and empty and grown == added else None
    if not isinstance(made, ast.List) or made.elts:
        return None
    tested = {capacity(page, each) for each in grown}
    placed = [each for each in added if isinstance(each, ast.Subscript) and is_placed(page, each)]
    size = tested.pop() if len(tested) == 1 else None
    if size is None or not placed or len(grown) + len(placed) < len(added):
        return None
    scope = page.scope(made)
    told = [each for each in walk(scope) if isinstance(each, ast.Assign) and size in map(page.text, each.targets)]
    if len(told) != 1:
        return None
    value = told[0].value
    return size if told[0].lineno < made.lineno else page.text(value) if isinstance(value, ast.Name) else None


def is_placed(page: Page, item: ast.Subscript) -> bool:
    """``self.memory[place] = ...``."""
    above = page.parent(item)
    return isinstance(above, ast.Assign) and above.targets == [item] and not isinstance(item.slice, ast.Slice)


def capacity(page: Page, append: ast.AST) -> str | None:
    """``self.capacity`` of ``if len(self.memory) < self.capacity: self.memory.append(None)``."""
    line = page.statement(append)
    test = page.parent(line)
    if not isinstance(test, ast.If) or test.body != [line] or not isinstance(append, ast.Attribute):
        return None
    begins, text = f"len({page.text(append.value)}) < ", " ".join(page.text(test.test).split())
    return text[len(begins) :] if re.fullmatch(rf"{re.escape(begins)}self\.\w+", text) else None


def texts_of(page: Page, call: ast.Call, drawn: str) -> tuple[tuple[Site, str], ...] | None:
    """What is written for the call that draws items, and for what takes these apart."""
    above = page.parent(call)
    if isinstance(above, ast.Starred):
        return apart(page, above, drawn)
    if not isinstance(above, ast.Assign) or not isinstance(above.targets[0], ast.Name) or len(above.targets) > 1:
        return None
    batch, found = above.targets[0].id, [(page.site(call), drawn)]
    scope = page.owner(batch, call)
    if len(page.writes(batch, scope)) != 1:
        return None
    for read in page.reads(batch, scope):
        around = page.parent(read)
        more = apart(page, around, batch) if isinstance(around, ast.Starred) else listed(page, around, batch)
        if more is None:
            return None
        found += more
    return tuple(found)


def listed(page: Page, around: ast.AST | None, batch: str) -> tuple[tuple[Site, str], ...] | None:
    """``np.array([item[2] for item in batch])``: of one part."""
    whole = page.parent(around) if isinstance(around, ast.comprehension) else None
    if not isinstance(whole, ast.ListComp) or len(whole.generators) != 1 or whole.generators[0].ifs:
        return None
    part, joined = whole.elt, page.parent(whole)
    plain = isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant) and type(part.slice.value) is int
    if not plain or page.text(part.value) != page.text(whole.generators[0].target):  # type: ignore[attr-defined]
        return None
    if not isinstance(joined, ast.Call) or joined.args[:1] != [whole]:
        return None
    if meaning(joined.func, page.module.tree) not in JOINING:
        return None
    return ((page.site(whole), f"{batch}[{part.slice.value}]"),)  # type: ignore[attr-defined]


def apart(page: Page, star: ast.Starred, batch: str) -> tuple[tuple[Site, str], ...] | None:
    """``zip(*batch)``, whose parts are named, or made arrays one by one."""
    zipped = page.parent(star)
    if not isinstance(zipped, ast.Call) or dotted(zipped.func) != "zip" or len(zipped.args) != 1 or zipped.keywords:
        return None
    whole, above = zipped, page.parent(zipped)
    if isinstance(above, ast.Call) and dotted(above.func) == "map" and above.args[1:] == [zipped]:
        if meaning(above.args[0], page.module.tree) not in JOINING:
            return None
        whole, above = above, page.parent(above)
    if not isinstance(above, ast.Assign) or above.value is not whole or len(above.targets) != 1:
        return None
    names = above.targets[0].elts if isinstance(above.targets[0], ast.Tuple) else ()
    if not names or not all(isinstance(each, ast.Name) for each in names):
        return None
    scope, found = page.scope(above), [(page.site(whole), batch)]
    for each in names:
        for read in page.reads(each.id, scope):  # type: ignore[attr-defined]
            taking = page.parent(read)
            if isinstance(taking, ast.comprehension):
                return None  # (it may leave out what is None)
            if not isinstance(taking, ast.Call) or taking.args[:1] != [read]:
                continue
            function = meaning(taking.func, page.module.tree)
            if OF_TENSORS.fullmatch(function) and not any(word.arg == "dtype" for word in taking.keywords):
                return None
            if function == "numpy.stack" and len(taking.args) == 1 and not taking.keywords:
                found.append((page.site(taking), each.id))  # type: ignore[attr-defined]
    return tuple(found)


def is_used_elsewhere(program: TrainingProgram, cls: ast.ClassDef, name: str) -> bool:
    """Whether other code takes the memory of an object for a list, or a class that is made of this one does."""
    as_list = re.compile(USED_AS_LIST.format(name, rf"(?!self\.)\w+\.{name}"))
    for module in program.modules.by_path.values():
        if as_list.search(re.sub(rf"\bself\.{name}\b", "", module.text)):
            return True
        others = (each for each in walk(module.tree) if isinstance(each, ast.ClassDef) and each is not cls)
        bases = ((each, [(dotted(base) or "").rpartition(".")[2] for base in each.bases]) for each in others)
        if any(cls.name in names and f"self.{name}" in ast.unparse(each) for each, names in bases):
            return True
    return False
