"""The memory of an agent, out of which a step puts its batches together item by item (``zip(*random.sample(...))``).

What is read is the class that holds the memory. That the items' parts are alike, and that what reads a batch takes
arrays, is left to a run.
"""

from __future__ import annotations

import ast
import re

from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.scopes import ModuleFile
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.data.preloading import place_of_helper
from turbofix.training.model import Remembered
from turbofix.training.told.overlooked import replayed
from turbofix.training.told.written import meaning, written_of

_JOINING = ("numpy.array", "numpy.asarray", "numpy.stack")
"""What makes one array of a tuple of parts; of an array it makes the same."""

_OF_TENSORS = regex(r"torch\.(stack|cat|concat|hstack|vstack|tensor|as_tensor)")
"""What takes tensors alone, or gives an array another type than the numbers in it."""

_USED_AS_LIST = (
    r"\.{}(\[|\.(append|extend|pop|popleft|clear|insert|index|remove)\b)|(sample|choices?|list|sorted)\({}\b"
)

_Texts = tuple[tuple[Site, str], ...]


def remembered(analysis: Analysis) -> tuple[Remembered, ...]:
    """The memories that batches are drawn of in a step, and that could lie in arrays."""
    found = (_Memory(analysis, module).of(call) for call, module in replayed(written_of(analysis)))
    return tuple(each for each in found if each is not None)


class _Memory:
    """The file of one of them."""

    def __init__(self, analysis: Analysis, module: ModuleFile) -> None:
        self.analysis, self.module, self.places = analysis, module, analysis.facts.places

    def parent(self, node: ast.AST | None) -> ast.AST | None:
        """What holds a node."""
        return self.places.parent(node, self.module) if node is not None else None

    def text(self, node: ast.AST) -> str:
        """The source of a node."""
        return self.places.text(node, self.module)

    def site(self, node: ast.AST) -> Site:
        """The site of a node."""
        return self.places.site(node, self.module)

    def meaning(self, node: ast.AST) -> str:
        """The qualified name of a function."""
        return meaning(node, self.module.tree)

    def of(self, call: ast.AST) -> Remembered | None:
        """The memory that a call draws of, where all that its class does with it is seen."""
        around = list(self.places.ancestors(call, self.module))
        cls = next((each for each in around if isinstance(each, ast.ClassDef)), None)
        if not isinstance(call, ast.Call) or len(call.args) != 2 or call.keywords or cls is None:
            return None
        memory = call.args[0]
        if not isinstance(memory, ast.Attribute) or dotted(memory.value) != "self":
            return None
        made: ast.expr | None = None
        added: list[ast.AST] = []
        for use in walk(cls):
            if not isinstance(use, ast.Attribute) or dotted(use) != f"self.{memory.attr}":
                continue
            above = self.parent(use)
            if isinstance(use.ctx, ast.Store):
                if made is not None or not isinstance(above, ast.Assign) or above.targets != [use]:
                    return None
                made = above.value
            elif isinstance(above, (ast.Attribute, ast.Subscript)):
                added.append(above)
            elif use is not memory and not (isinstance(above, ast.Call) and dotted(above.func) == "len"):
                return None
        size = self._size(made, added) if made is not None else None
        becomes = self._texts(call, f"{self.text(memory)}.sample({self.text(call.args[1])})")
        if made is None or size is None or becomes is None or self._is_used_elsewhere(cls, memory.attr):
            return None
        return Remembered(
            self.site(call), self.site(made), size, place_of_helper(self.analysis, cls, self.module), becomes
        )

    def _size(self, made: ast.expr, added: list[ast.AST]) -> str | None:
        """How many items are kept: ``deque(maxlen=size)``, or a list that is tested to be shorter before it grows."""
        grown = [each for each in added if isinstance(each, ast.Attribute) and each.attr == "append"]
        if isinstance(made, ast.Call) and self.meaning(made.func) == "collections.deque":
            given = [*made.args[1:], *(each.value for each in made.keywords if each.arg == "maxlen")]
            empty = not made.args or self.text(made.args[0]) in ("[]", "()")
            sizes = [each for each in map(self.text, given) if each != "None"]
            return sizes[0] if len(sizes) == 1 and empty and grown == added else None
        if not isinstance(made, ast.List) or made.elts:
            return None
        tested = {self._capacity(each) for each in grown}
        placed = [each for each in added if isinstance(each, ast.Subscript) and self._is_placed(each)]
        size = tested.pop() if len(tested) == 1 else None
        if size is None or not placed or len(grown) + len(placed) < len(added):
            return None
        scope = self.places.scope(made, self.module)
        told = [each for each in walk(scope) if isinstance(each, ast.Assign) and size in map(self.text, each.targets)]
        if len(told) != 1:
            return None
        value = told[0].value
        return size if told[0].lineno < made.lineno else self.text(value) if isinstance(value, ast.Name) else None

    def _is_placed(self, item: ast.Subscript) -> bool:
        """``self.memory[place] = ...``."""
        above = self.parent(item)
        return isinstance(above, ast.Assign) and above.targets == [item] and not isinstance(item.slice, ast.Slice)

    def _capacity(self, append: ast.Attribute) -> str | None:
        """``self.capacity`` of ``if len(self.memory) < self.capacity: self.memory.append(None)``."""
        line = self.places.statement(append, self.module)
        test = self.parent(line)
        if not isinstance(test, ast.If) or test.body != [line]:
            return None
        begins, text = f"len({self.text(append.value)}) < ", " ".join(self.text(test.test).split())
        return text[len(begins) :] if re.fullmatch(rf"{re.escape(begins)}self\.\w+", text) else None

    def _texts(self, call: ast.Call, drawn: str) -> _Texts | None:
        """What is written for the call that draws items, and for what takes these apart."""
        above = self.parent(call)
        if isinstance(above, ast.Starred):
            return self._apart(above, drawn)
        batch = above.targets[0] if isinstance(above, ast.Assign) and len(above.targets) == 1 else None
        if not isinstance(batch, ast.Name):
            return None
        found: _Texts = ((self.site(call), drawn),)
        for read in self._reads(batch):
            around = self.parent(read)
            apart = isinstance(around, ast.Starred)
            more = self._apart(around, batch.id) if apart else self._listed(around, batch.id)  # type: ignore[arg-type]
            if more is None:
                return None
            found += more
        return found

    def _reads(self, name: ast.Name) -> list[ast.Name]:
        """What reads a name as it is given here."""
        return readers(self.places.scope(name, self.module)).get(name, [])

    def _listed(self, around: ast.AST | None, batch: str) -> _Texts | None:
        """``np.array([item[2] for item in batch])``: of one part."""
        whole = self.parent(around) if isinstance(around, ast.comprehension) else None
        if not isinstance(whole, ast.ListComp) or len(whole.generators) != 1 or whole.generators[0].ifs:
            return None
        part, joined = whole.elt, self.parent(whole)
        if not isinstance(part, ast.Subscript) or not isinstance(part.slice, ast.Constant):
            return None
        item = self.text(part.value) == self.text(whole.generators[0].target) and type(part.slice.value) is int
        if not item or not isinstance(joined, ast.Call) or joined.args[:1] != [whole]:
            return None
        text = f"{batch}[{self.text(part.slice)}]"
        return ((self.site(whole), text),) if self.meaning(joined.func) in _JOINING else None

    def _apart(self, star: ast.Starred, batch: str) -> _Texts | None:
        """``zip(*batch)``, whose parts are named, or made arrays one by one."""
        zipped = self.parent(star)
        if not isinstance(zipped, ast.Call) or dotted(zipped.func) != "zip" or len(zipped.args) != 1 or zipped.keywords:
            return None
        whole, above = zipped, self.parent(zipped)
        if isinstance(above, ast.Call) and dotted(above.func) == "map" and above.args[1:] == [zipped]:
            if self.meaning(above.args[0]) not in _JOINING:
                return None
            whole, above = above, self.parent(above)
        if not isinstance(above, ast.Assign) or above.value is not whole or len(above.targets) != 1:
            return None
        names = above.targets[0].elts if isinstance(above.targets[0], ast.Tuple) else []
        known = [each for each in names if isinstance(each, ast.Name)]
        if not names or len(known) < len(names):
            return None
        found: _Texts = ((self.site(whole), batch),)
        for read in (one for each in known for one in self._reads(each)):
            taking = self.parent(read)
            if isinstance(taking, ast.comprehension):
                return None  # (it may leave out what is None)
            if not isinstance(taking, ast.Call) or taking.args[:1] != [read]:
                continue
            function = self.meaning(taking.func)
            if _OF_TENSORS.fullmatch(function) and not any(word.arg == "dtype" for word in taking.keywords):
                return None
            if function == "numpy.stack" and len(taking.args) == 1 and not taking.keywords:
                found += ((self.site(taking), read.id),)
        return found

    def _is_used_elsewhere(self, cls: ast.ClassDef, name: str) -> bool:
        """Whether other code takes the memory of an object for a list, or a class that is made of this one does."""
        as_list = re.compile(_USED_AS_LIST.format(name, rf"(?!self\.)\w+\.{name}"))
        for module in self.analysis.execution.modules.values():
            if as_list.search(re.sub(rf"\bself\.{name}\b", "", module.text)):
                return True
            for other in (each for each in every(ast.ClassDef, module.tree) if each is not cls):
                bases = [(dotted(base) or "").rpartition(".")[2] for base in other.bases]
                if cls.name in bases and f"self.{name}" in ast.unparse(other):
                    return True
        return False
