"""Where the program uses what ``torch.cuda.amp`` offers, under names that torch has deprecated.

They are resolved through the imports of each file, in functions too that this script does not call. Files without the
word ``amp`` are not looked into.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.exports import takers, takers_outside
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Made, members
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.site import Site
from turbofix.source.wording import Wording
from turbofix.training.model import OldName
from turbofix.training.told.removed import is_guarded

OLD, NEW = "torch.cuda.amp", "torch.amp"
NAMES = ("autocast", "GradScaler")
_SUBMODULES = ("", ".autocast_mode", ".grad_scaler")
_MENTIONS = regex(r"amp\b(?<=\bamp)")  # the word; a text is looked through faster for what begins with letters
_DEFAULTS = Wording(("set_autocast_",), regex(r"\bset_autocast_(gpu_)?dtype\b"))

Import = ast.Import | ast.ImportFrom
Chain = ast.Name | ast.Attribute


@dataclass(frozen=True, eq=False)
class _Root:
    """What a name of a file stands for: a dotted name of torch, and the import that brings it."""

    target: str
    statement: Import

    @property
    def is_of_amp(self) -> bool:
        """Whether the import itself names the old module, so that it is what has to change."""
        return self.target == OLD or _old_name(self.target) is not None


def old_names(analysis: Analysis) -> tuple[OldName, ...]:
    """Every use of the deprecated names in the program's files, in order."""
    modules = [each for each in analysis.execution.modules.values() if _MENTIONS.search(each.text)]
    found = [use for module in modules for use in _uses(analysis, module)]
    return tuple(sorted(found, key=lambda each: each.site))


def _uses(analysis: Analysis, module: ModuleFile) -> Iterator[OldName]:
    roots = _roots(analysis, module)
    names = {name for name, _ in roots}
    found: list[tuple[OldName, Import | None]] = []
    strange: dict[Import, str] = {}  # why an import cannot change
    for name in every(ast.Name, module.tree):
        owner = analysis.facts.bindings.owner(name.id, name, module) if name.id in names else None
        root = roots.get((name.id, owner)) if owner is not None else None
        if owner is None or root is None:
            continue
        chain, path = _chain(analysis, name, root.target, module)
        old = _old_name(path)
        if old is not None and isinstance(chain.ctx, ast.Load):
            use = _use(analysis, chain, old, module)
            if root.is_of_amp:
                use = replace(use, brought=analysis.facts.places.site(root.statement, module))
                use = replace(use, spelled=_in_import(analysis, root.statement, module))
            found.append((use, root.statement if root.is_of_amp else None))
        elif root.is_of_amp:
            strange[root.statement] = f"line {name.lineno} uses `{name.id}` for more than that"
        others = [each for each in analysis.facts.bindings.writes(owner, name.id) if each is not root.statement]
        if others and root.is_of_amp:
            strange[root.statement] = f"`{name.id}` is bound on line {getattr(others[0], 'lineno', 0)} too"
    for use, statement in found:
        reason = use.why_not
        if statement is not None and reason is None:
            reason = strange.get(statement) or _taken_further(analysis, statement, module)
        yield replace(use, why_not=reason)


def _roots(analysis: Analysis, module: ModuleFile) -> dict[tuple[str, ast.AST], _Root]:
    """What the imports of torch bind in each scope: the first of them, where several bind the same name."""
    found: dict[tuple[str, ast.AST], _Root] = {}
    imports: list[Import] = [*every(ast.Import, module.tree), *every(ast.ImportFrom, module.tree)]
    for statement in sorted(imports, key=lambda each: (each.lineno, each.col_offset)):
        for alias in statement.names:
            if isinstance(statement, ast.ImportFrom):
                target = f"{statement.module}.{alias.name}" if not statement.level else ""
            else:
                target = alias.name if alias.asname else alias.name.partition(".")[0]
            if target.partition(".")[0] == "torch" and alias.name != "*":
                name = alias.asname or (alias.name if isinstance(statement, ast.ImportFrom) else "torch")
                found.setdefault((name, analysis.facts.places.scope(statement, module)), _Root(target, statement))
    return found


def _old_name(path: str) -> str | None:
    """``autocast`` for ``torch.cuda.amp.autocast``, by whatever submodule."""
    package, _, name = path.rpartition(".")
    return name if name in NAMES and package in {OLD + each for each in _SUBMODULES} else None


def _in_import(analysis: Analysis, statement: Import, module: ModuleFile) -> tuple[Site, str]:
    """The module's name in an import, with its new spelling."""
    start = analysis.facts.places.site(statement, module)
    word = statement.module or "" if isinstance(statement, ast.ImportFrom) else OLD
    column = start.column + max(analysis.facts.places.text(statement, module).find(word), 0)
    place = start._replace(column=column, end_line=start.line, end_column=column + len(word), kind="Attribute")
    return place, NEW if word != "torch.cuda" else "torch"


def _taken_further(analysis: Analysis, statement: Import, module: ModuleFile) -> str | None:
    """Why an import must stay as it is."""
    for alias in statement.names:
        path = f"{statement.module}.{alias.name}" if isinstance(statement, ast.ImportFrom) else alias.name
        if path != OLD and _old_name(path) is None:
            return f"the import on line {statement.lineno} brings {alias.name} too, which has no new name"
    bound = {alias.asname or alias.name for alias in statement.names}
    for node, other in takers(analysis, module, bound):
        return f"{other.path.name} takes it from here (line {getattr(node, 'lineno', 0)})"
    for node, script in takers_outside(analysis, module, bound):
        return f"{script.name}, which this script does not run, takes it from here (line {getattr(node, 'lineno', 0)})"
    return None


def _chain(analysis: Analysis, name: ast.Name, target: str, module: ModuleFile) -> tuple[Chain, str]:
    """The longest chain of attributes on a name that leads to one of the names, else to a deprecated module."""
    chain: Chain = name
    path = target
    while _old_name(path) is None:
        parent = analysis.facts.places.parent(chain, module)
        if not isinstance(parent, ast.Attribute):
            break
        chain, path = parent, f"{path}.{parent.attr}"
    return chain, path


def _use(analysis: Analysis, chain: Chain, name: str, module: ModuleFile) -> OldName:
    """What a name is used for."""
    places = analysis.facts.places
    parent, site = places.parent(chain, module), places.site(chain, module)
    use = OldName(name, site, (site, f"{NEW}.{name}"), guarded=is_guarded(analysis, chain, module))
    if isinstance(parent, ast.Call) and parent.func is chain:
        takes = (*("" for _ in parent.args), *(each.arg or "**" for each in parent.keywords))
        use = replace(use, site=places.site(parent, module), takes=takes)
        several = len(parent.args) > 1 or any(isinstance(each, ast.Starred) for each in parent.args)
        if several and name == "autocast":
            return replace(use, why_not="give its arguments by their names: their order is another one in torch.amp")
        return replace(use, nested=name == "autocast" and _may_have_another_type(analysis, parent))
    if isinstance(parent, ast.ClassDef):
        return replace(use, why_not=f"{parent.name} derives from it, and calls it without a device")
    if _is_only_asked_for(analysis, chain, module):
        return replace(use, named=True)
    return replace(use, why_not="it is passed on without being called, so where it is called is not known")


def _is_only_asked_for(analysis: Analysis, chain: Chain, module: ModuleFile) -> bool:
    """Whether a class stands in an annotation, or is what ``isinstance`` asks for."""
    child: ast.AST = chain
    for each in analysis.facts.places.ancestors(chain, module):
        if not isinstance(each, (ast.Subscript, ast.Tuple, ast.BinOp)):
            told = child in (getattr(each, "annotation", None), getattr(each, "returns", None))
            asked = isinstance(each, ast.Call) and dotted(each.func) == "isinstance" and child is each.args[-1]
            return told or asked
        child = each
    return False


def _may_have_another_type(analysis: Analysis, call: ast.Call) -> bool:
    """Whether another type than float16 may be in force: that of a region around it, or a default that is set."""
    if any(_DEFAULTS.is_in(each.text) for each in analysis.execution.modules.values()):
        return True
    made = [each for event in analysis.facts.of("make") if event.node is not call for each in members(event.result)]
    return any(
        isinstance(each, Made) and each.kind == "autocast" and "dtype" in each.arguments.keywords for each in made
    )
