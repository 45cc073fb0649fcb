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
from turbofix.domain.trace import Event
from turbofix.domain.values import Made, members
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.source.wording import Wording
from turbofix.training.model import OldName
from turbofix.training.objects import autocasts_around
from turbofix.training.told.removed import is_guarded

OLD, NEW = "torch.cuda.amp", "torch.amp"
NAMES = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
_PARAMETERS = {
    "autocast": ("enabled", "dtype", "cache_enabled"),
    "GradScaler": ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"),
    "custom_fwd": ("fwd",),
    "custom_bwd": ("bwd",),
}
_SUBMODULES = ("", ".autocast_mode", ".grad_scaler")
_MENTIONS = regex(r"amp\b(?<=\bamp)")  # the word; a text is looked through faster for what begins with letters
_DEFAULTS = Wording(
    ("set_autocast_", "cache_enabled"),
    regex(r"\bset_autocast_(gpu_)?dtype\b|\b(set_autocast_)?cache_enabled\b"),
)

Import = ast.Import | ast.ImportFrom
Chain = ast.Name | ast.Attribute


@dataclass(frozen=True, eq=False)
class _Root:
    """What a name of a file stands for: a dotted name of torch, the import that brings it, and its entry there."""

    target: str
    statement: Import
    alias: ast.alias


def old_names(analysis: Analysis) -> tuple[OldName, ...]:
    """Every use of the deprecated names in the program's files, in order."""
    modules = [each for each in analysis.execution.modules.values() if _MENTIONS.search(each.text)]
    found = [use for module in modules for use in _uses(analysis, module)]
    return tuple(sorted(found, key=lambda each: each.site))


def _uses(analysis: Analysis, module: ModuleFile) -> Iterator[OldName]:
    roots = {key: root for key, root in _roots(analysis, module).items() if root is not None}
    if not roots:
        return
    names = {name for name, _ in roots}
    found: list[tuple[OldName, Import | None]] = []
    strange: dict[Import, str] = {}  # what an import is used for beside the names that have a new home
    for name in every(ast.Name, module.tree):
        if name.id not in names:
            continue
        owner = analysis.facts.bindings.owner(name.id, name, module)
        root = roots.get((name.id, owner))
        if root is None:
            continue
        chain, path = _chain(analysis, name, root.target, module)
        old = _old_name(path)
        renamed = _is_of_amp(root)
        if old is None:
            if renamed:
                strange[root.statement] = (
                    f"line {name.lineno} uses {path.removeprefix('torch.')}, which has no new name"
                )
            continue
        use = _use(analysis, chain, old, module)
        if use is None:
            continue
        if renamed:
            spelled = _in_import(analysis, root, module)
            use = replace(use, brought=analysis.facts.places.site(root.statement, module), spelled=spelled)
            others = [each for each in analysis.facts.bindings.writes(owner, name.id) if each is not root.statement]
            if others and use.why_not is None:
                use = replace(use, why_not=f"`{name.id}` is bound on line {getattr(others[0], 'lineno', 0)} too")
        found.append((use, root.statement if renamed else None))
    for use, statement in found:
        reason = use.why_not
        if statement is not None and reason is None:
            reason = strange.get(statement) or _taken_further(analysis, statement, module)
        yield replace(use, why_not=reason)


# --- imports ----------------------------------------------------------------------------------------------------------


def _roots(analysis: Analysis, module: ModuleFile) -> dict[tuple[str, ast.AST], _Root | None]:
    """What the imports of torch bind in each scope; None for a name that several of them bind to different things."""
    found: dict[tuple[str, ast.AST], _Root | None] = {}
    imports: list[Import] = [*every(ast.Import, module.tree), *every(ast.ImportFrom, module.tree)]
    for statement in sorted(imports, key=lambda each: (each.lineno, each.col_offset)):
        for alias in statement.names:
            if isinstance(statement, ast.ImportFrom):
                target = f"{statement.module}.{alias.name}" if not statement.level else ""
            else:
                target = alias.name if alias.asname else alias.name.partition(".")[0]
            if target.partition(".")[0] != "torch" or alias.name == "*":
                continue
            name = alias.asname or (alias.name if isinstance(statement, ast.ImportFrom) else "torch")
            key = name, analysis.facts.places.scope(statement, module)
            known = found.get(key)
            if key not in found:
                found[key] = _Root(target, statement, alias)
            elif known is not None and (known.target != target or _is_of_amp(known)):
                found[key] = None
    return found


def _is_of_amp(root: _Root) -> bool:
    """Whether the import itself names the old module, so that it is what has to change."""
    return root.target == OLD or _old_name(root.target) is not None


def _old_name(path: str) -> str | None:
    """``autocast`` for ``torch.cuda.amp.autocast``, by whatever submodule."""
    package, _, name = path.rpartition(".")
    return name if name in NAMES and package in {OLD + each for each in _SUBMODULES} else None


def _in_import(analysis: Analysis, root: _Root, module: ModuleFile) -> tuple[Site, str]:
    """The module's name in an import, with its new spelling."""
    site = analysis.facts.places.site(root.alias, module)
    if isinstance(root.statement, ast.Import):
        end = site.column + len(root.alias.name)
        return site._replace(end_line=site.line, end_column=end, kind="Attribute"), NEW
    start = analysis.facts.places.site(root.statement, module)
    text = analysis.facts.places.text(root.statement, module)
    word = root.statement.module or ""
    column = start.column + max(text.find(word), 0)
    place = start._replace(column=column, end_line=start.line, end_column=column + len(word), kind="Attribute")
    return place, NEW if word != "torch.cuda" else "torch"


def _taken_further(analysis: Analysis, statement: Import, module: ModuleFile) -> str | None:
    """Why an import must stay as it is."""
    if isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            path = f"{statement.module}.{alias.name}"
            if path != OLD and _old_name(path) is None:
                return f"the import on line {statement.lineno} brings {alias.name} too, which has no new name"
    bound = {alias.asname or alias.name for alias in statement.names}
    for node, other in takers(analysis, module, bound):
        verb = "imports" if isinstance(node, ast.ImportFrom) else "takes"
        return f"{other.path.name} {verb} it from here (line {getattr(node, 'lineno', 0)})"
    for node, script in takers_outside(analysis, module, bound):
        return f"{script.name}, which this script does not run, takes it from here (line {getattr(node, 'lineno', 0)})"
    return None


# --- uses -------------------------------------------------------------------------------------------------------------


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


def _use(analysis: Analysis, chain: Chain, name: str, module: ModuleFile) -> OldName | None:
    """What a name is used for; None where nothing needs to change."""
    places = analysis.facts.places
    if isinstance(chain, ast.Name) and not isinstance(chain.ctx, ast.Load):
        return None
    parent = places.parent(chain, module)
    site = places.site(chain, module)
    spelled = (site, f"{NEW}.{name}")
    guarded = is_guarded(analysis, chain, module)
    use = OldName(name, site, spelled, guarded=guarded)
    if isinstance(chain.ctx, (ast.Store, ast.Del)):
        return replace(use, why_not=f"line {chain.lineno} binds it anew")
    if isinstance(parent, ast.Call) and parent.func is chain:
        use = replace(use, site=places.site(parent, module), takes=_takes(parent, name))
        if "*" in use.takes and name == "autocast":
            return replace(use, why_not="its arguments are unpacked, and their order is another one in torch.amp")
        return replace(use, nested=name == "autocast" and _may_be_nested(analysis, parent, module))
    if isinstance(parent, FUNCTIONS) and chain in getattr(parent, "decorator_list", ()):
        broken = name in ("autocast", "GradScaler")
        return replace(use, bare=True, why_not="it decorates a function without being called" if broken else None)
    if isinstance(parent, ast.ClassDef):
        return replace(use, why_not=f"{parent.name} derives from it, and calls it without a device")
    if name in ("autocast", "GradScaler") and _is_only_asked_for(analysis, chain, module):
        return replace(use, named=True)
    return replace(use, why_not="it is passed on without being called, so where it is called is not known")


def _takes(call: ast.Call, name: str) -> tuple[str, ...]:
    """The names of the arguments that a call gives; ``*`` and ``**`` for what is unpacked."""
    found: list[str] = []
    for index, each in enumerate(call.args):
        known = _PARAMETERS[name]
        found.append("*" if isinstance(each, ast.Starred) or index >= len(known) else known[index])
    return (*found, *(keyword.arg or "**" for keyword in call.keywords))


def _is_only_asked_for(analysis: Analysis, chain: Chain, module: ModuleFile) -> bool:
    """Whether a class stands in an annotation, or is what ``isinstance`` asks for."""
    child: ast.AST = chain
    for each in analysis.facts.places.ancestors(chain, module):
        if isinstance(each, ast.arg):
            return True
        if isinstance(each, ast.AnnAssign):
            return child is each.annotation
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return child is each.returns
        if isinstance(each, ast.Call):
            return dotted(each.func) in ("isinstance", "issubclass") and child is each.args[-1]
        if not isinstance(each, (ast.Subscript, ast.Tuple, ast.BinOp)):
            return False
        child = each
    return False


# --- regions in regions -----------------------------------------------------------------------------------------------


def _may_be_nested(analysis: Analysis, call: ast.Call, module: ModuleFile) -> bool:
    """Whether a region is entered inside another one: without a dtype of its own, the new one takes over that one's.

    So it does where the program sets torch's defaults itself.
    """
    enabled = [each.value for each in call.keywords if each.arg == "enabled"] or call.args[:1]
    if enabled and isinstance(enabled[0], ast.Constant) and not enabled[0].value:
        return False
    files = analysis.execution.modules.values()
    if analysis.once("sets defaults of autocast", lambda: any(_DEFAULTS.is_in(each.text) for each in files)):
        return True
    own = analysis.facts.places.site(call, module)
    made = [each for each in analysis.facts.at(call) if each.kind == "make"]
    if not made or isinstance(analysis.facts.places.parent(call, module), FUNCTIONS):  # a decorator is entered later
        return any(_has_dtype(each) for each in analysis.facts.of("make") if each.node is not call)
    entered = [
        event
        for event in analysis.facts.of("enter")
        for each in members(event.receiver)
        if isinstance(each, Made) and each.origin is not None and each.origin.node is call
    ]
    for event in (*made, *entered):
        here = {own, analysis.facts.site(event)}
        if any(site not in here for site in autocasts_around(analysis, event)):
            return True
    return False


def _has_dtype(event: Event) -> bool:
    return any(
        isinstance(each, Made) and each.kind == "autocast" and "dtype" in each.arguments.keywords
        for each in members(event.result)
    )
