"""Files and folders that processes would choose for themselves: by the clock, by what is there, by the next number."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, loads, stored
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, Places
from turbofix.source.site import Site

_CLOCK = regex(r"strftime\(|datetime\.(datetime\.)?(now|today|utcnow)\(|time\.time\(")
_TEXT = regex(r"strftime\(|isoformat\(|str\(|timestamp\(")
_OF_TEXT = regex(
    r"strftime|now|today|utcnow|(local|gm)?time|isoformat|timestamp|join|joinpath|abspath|dirname|basename|Path|str|int"
    r"|format|replace|split|strip|lower|upper|timezone|getenv|get|with_suffix|expanduser|resolve|round|hex|uuid\d"
)
_PATH = regex(r"\bjoin\(|Path\(|mkdir|makedirs|open\(|dir\b|folder|/ f?[\"']|/\{|path|checkpoint|run_id|run_name")
_THERE = regex(r"exists\(|isfile\(|is_file\(|isdir\(|is_dir\(")
_LISTED = regex(r"listdir\(|iterdir\(|glob\(")
_MAKES = regex(r"mkdir\(|makedirs\(")


def chosen_paths(analysis: Analysis, modules: Iterable[ModuleFile]) -> Iterator[Site]:
    """The expressions that name a folder by the clock, or make the next of a row of folders."""
    modules = list(modules)
    functions = [each for module in modules for each in every(ast.FunctionDef, module.tree)]
    numbering = {each.name for each in functions if is_numbering(each)}
    timing = {each.name for each in functions if _returns_clock(each)}
    for module in modules:
        for each in every(ast.Assign, module.tree):
            scope = analysis.facts.places.scope(each, module)
            if not (isinstance(scope, FUNCTIONS) or module is analysis.execution.entry) or is_numbering(scope):
                continue
            called = (dotted(each.value.func) or "").rpartition(".")[2] if isinstance(each.value, ast.Call) else ""
            by_clock = (_is_of_clock(each.value) or called in timing) and _names_a_path(each, scope)
            if by_clock or called in numbering:
                yield analysis.facts.places.site(each.value, module)


def _is_of_clock(node: ast.expr) -> bool:
    """Whether a text is made of the time, and of nothing that has to be made in each process."""
    if not isinstance(node, (ast.Call, ast.JoinedStr, ast.BinOp)):
        return False
    calls = (each.func for each in walk(node) if isinstance(each, ast.Call))
    names = [(dotted(each) or ast.unparse(each)).rpartition(".")[2] for each in calls]
    text = ast.unparse(node)
    written = any(isinstance(each, ast.JoinedStr) for each in walk(node)) or _TEXT.search(text)
    return written is not None and _CLOCK.search(text) is not None and all(map(_OF_TEXT.fullmatch, names))


def _returns_clock(function: ast.FunctionDef) -> bool:
    """Whether a function gives back a text that is made of the time."""
    return any(
        isinstance(each, ast.Return) and each.value is not None and _is_of_clock(each.value) for each in walk(function)
    )


def is_numbering(function: ast.AST) -> bool:
    """Whether a function makes a folder that is not there yet, and says which."""
    if not isinstance(function, ast.FunctionDef):
        return False
    text = ast.unparse(function)
    returns = any(isinstance(each, ast.Return) and each.value is not None for each in walk(function))
    tries = any(isinstance(each, ast.While) and _THERE.search(ast.unparse(each.test)) for each in walk(function))
    return returns and _MAKES.search(text) is not None and (tries or _LISTED.search(text) is not None)


def _names_a_path(assigned: ast.Assign, scope: ast.AST) -> bool:
    """Whether what is set is read in expressions that make a path."""
    names = stored([assigned])
    plain = (each for each in walk(scope) if isinstance(each, ast.stmt) and not hasattr(each, "body"))
    reading = (each for each in plain if each is assigned or any(dotted(one) in names for one in loads(each)))
    return any(_PATH.search(ast.unparse(each)) for each in reading)


def made_where_missing(
    analysis: Analysis, statements: Iterable[tuple[ast.stmt, ModuleFile]]
) -> Iterator[tuple[Site, Site]]:
    """The tests of whether a file is there under which it is written, each with its statement."""
    places, told = analysis.facts.places, set[ast.AST]()
    for statement, module in statements:
        if _MAKES.search(ast.unparse(statement)):
            continue
        for above in places.ancestors(statement, module):
            if isinstance(above, (*FUNCTIONS, ast.Module)):
                break
            if isinstance(above, ast.If) and above not in told and _THERE.search(ast.unparse(above.test)):
                told.add(above)
                yield places.site(above.test, module), places.site(above, module)


def in_front_of_tests(places: Places, statement: ast.stmt, module: ModuleFile) -> ast.stmt:
    """A statement, or the outermost test around it of whether a file is there."""
    found = statement
    for above in places.ancestors(statement, module):
        if isinstance(above, (*FUNCTIONS, ast.Module)):
            break
        if isinstance(above, ast.If) and _THERE.search(ast.unparse(above.test)):
            found = above
    return found
