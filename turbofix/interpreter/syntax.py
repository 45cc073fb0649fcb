"""What the text of a function, class or loop says at a glance: asked often, so remembered per node."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from turbofix.domain.scopes import ModuleFile
from turbofix.regex import regex
from turbofix.source.answers import every, kept, once_per_node
from turbofix.source.nodes import children, walk

Member = tuple[str, object, bool]
_ACTS_OF_TRAINING = regex(r"\.(?:backward|to|cuda|fit|item|step|train|zero_grad|no_grad|training_step)\b")
_LOOKUPS = regex(r"\b(?:(?:getattr|import_module|locate)\(|_?[A-Z][A-Z_]+\[[a-z])")
_OBJECTS_OF_TRAINING = ("DataLoader", "loss_scaler", "training_step")
_NAMES_OF_TRAINING = regex(rf"\b(?:{'|'.join(_OBJECTS_OF_TRAINING)})\b")
# A dot is found sooner than what is not before it. A word that a lookahead finds is not tried again without its end.
_AUGMENTED = regex(r"""\.(?=(\w+))\1\s*(?:[-+*/%|&@]|//|\*\*)=()""")
_SET_FROM_OUTSIDE = regex(r"""\.(?<!\bself\.)(?=(\w+))\1\s*=(?!=) *((?:[^\n#]*[^\s#])?)""")
_SET_KEY = regex(r"""\[['"](\w+)['"]\]\s*(?:[-+*/%|&@]|//|\*\*)?=(?!=)()""")
_TARGETS = frozenset((ast.Name, ast.Attribute, ast.Subscript))
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below ``node``, without those of functions and classes nested in it, and without marks."""
    waiting = [node]
    while waiting:
        parent = waiting.pop()
        if parent is not node:
            yield parent
            if isinstance(parent, _SCOPES):
                continue
        waiting += children(parent)


def changed_members(text: str) -> set[tuple[str, str]]:
    """Attributes and keys that a module's text changes in objects, each with the text of what it becomes on its line.

    Roughly: in doubt, they are changed.
    """
    return {*_AUGMENTED.findall(text), *_SET_FROM_OUTSIDE.findall(text), *_SET_KEY.findall(text)}


class Glance:
    """The answers about nodes of modules; those that need a module's text split it once."""

    def __init__(self) -> None:
        self._starts: dict[ModuleFile, list[int]] = {}  # of the lines of each text, less the line breaks before them

    def assigned(self, loop: ast.AST) -> tuple[frozenset[str], frozenset[Member]]:
        """What a loop assigns: names; and in objects (the object's name, attribute or constant key, whether a key)."""
        return _assigned(loop)

    def is_generator(self, function: ast.AST, module: ModuleFile) -> bool:
        """Whether a function yields."""
        return kept(function, "is_generator", lambda: self._yields(function, module))

    def _yields(self, function: ast.AST, module: ModuleFile) -> bool:
        return (
            not isinstance(function, ast.Lambda)
            and "yield" in module.text
            and module.text.find("yield", *self._lines(function, module)) >= 0
            and any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(function))
        )

    def mentions_training(self, node: ast.AST, module: ModuleFile) -> bool:
        """Whether a word of a training step stands in a function or class."""
        return kept(node, "mentions_training", lambda: self._speaks_of_training(node, module))

    def differs_by_call(self, node: ast.AST, module: ModuleFile) -> bool:
        """Whether each call of a function counts: it trains, or looks up what it gives by a name (``load(path)``)."""
        found = kept(node, "looks_up", lambda: _LOOKUPS.search(module.text, *self._lines(node, module)) is not None)
        return found or self.mentions_training(node, module)

    def _speaks_of_training(self, node: ast.AST, module: ModuleFile) -> bool:
        text, (first, end) = module.text, self._lines(node, module)
        if _ACTS_OF_TRAINING.search(text, first, end) is not None:
            return True
        named = any(text.find(name, first, end) >= 0 for name in _OBJECTS_OF_TRAINING)
        return named and _NAMES_OF_TRAINING.search(text, first, end) is not None

    def _lines(self, node: ast.AST, module: ModuleFile) -> tuple[int, int]:
        """Where the lines that a node stands on begin and end in the module's text."""
        starts = self._starts.get(module)
        if starts is None:
            starts = self._starts[module] = [*itertools.accumulate(map(len, module.text.split("\n")), initial=0)]
        last = len(starts) - 1  # a text whose lines end otherwise has more of them
        first, end = min(getattr(node, "lineno", 1) - 1, last), min(getattr(node, "end_lineno", last), last)
        return starts[first] + first, starts[end] + end - 1

    def changing_attributes(self, cls: ast.ClassDef) -> frozenset[str]:
        """Attributes of ``self`` that a class changes after it set them: their first value is not their value."""
        return _changing_attributes(cls)

    def changing_names(self, module: ModuleFile) -> frozenset[str]:
        """Names of a module that its functions assign outside themselves (``global``, ``nonlocal``)."""
        return kept(module.tree, "changing_names", lambda: frozenset(_declared_outside(module)))


def _declared_outside(module: ModuleFile) -> Iterator[str]:
    if any(word in module.text for word in ("global ", "nonlocal ")):
        declared: list[ast.Global | ast.Nonlocal] = [*every(ast.Global, module.tree), *every(ast.Nonlocal, module.tree)]
        for node in declared:
            yield from node.names


@once_per_node
def _assigned(loop: ast.AST) -> tuple[frozenset[str], frozenset[Member]]:
    names: set[str] = set()
    inside: set[Member] = set()
    for node in own_nodes(loop):
        if type(node) not in _TARGETS or type(getattr(node, "ctx", None)) is not ast.Store:
            continue
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            inside.add((node.value.id, node.attr, False))
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and isinstance(node.slice, ast.Constant)
        ):
            inside.add((node.value.id, node.slice.value, True))
    return frozenset(names), frozenset(inside)


@once_per_node
def _changing_attributes(cls: ast.ClassDef) -> frozenset[str]:
    return frozenset(_changed_again(cls))


def _changed_again(cls: ast.ClassDef) -> Iterator[str]:
    written: dict[str, set[str]] = {}
    for statement in cls.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name) and statement.value is not None:
                    written.setdefault(target.id, set()).add("class")
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in walk(statement):
            if type(node) is ast.Attribute:
                if type(node.ctx) is ast.Store:
                    written.setdefault(node.attr, set()).add(statement.name)
            elif type(node) is ast.AugAssign and isinstance(node.target, ast.Attribute):
                yield node.target.attr
    for name, places in written.items():
        if len(places) > 1 and places != {"class", "__init__"}:
            yield name
