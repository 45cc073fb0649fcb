"""What a spawned worker needs of the script that it imports."""

from __future__ import annotations

import ast

from turbofix.source.nodes import parse, walk

MAKERS = ("__getitem__", "__getitems__", "__iter__", "__call__")
"""The methods of datasets, samplers and transforms, which run in the workers."""

GIVEN = ("collate_fn", "worker_init_fn", "transform", "target_transform")
"""Arguments that name functions which run in the workers."""

HARMLESS = ("Module", "Sequential", "ModuleList", "Function", "object", "Enum", "NamedTuple", "Exception")
"""Bases of classes that do not run in the workers."""

WRAPPING = ("Lambda", "partial")
"""What makes a transform, or what is passed as a function, of a function."""


def left_behind(text: str, line: int) -> str | None:
    """A name that is set from ``line`` on at the top level, or by a function, and that the code of samples reads.

    A spawned worker imports the script without what stands under its guard, and calls none of its functions.
    """
    body = parse(text).body
    moving = [each for each in body if each.lineno >= line]
    stored = {
        node.id
        for each in moving
        for node in walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    stored |= {each.name for each in moving if isinstance(each, (ast.FunctionDef, ast.ClassDef))}
    stored |= {
        alias.asname or alias.name.partition(".")[0]
        for each in moving
        for node in walk(each)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    stored |= {name for each in body for node in walk(each) if isinstance(node, ast.Global) for name in node.names}
    defined = {each.name: each for each in body if isinstance(each, (ast.FunctionDef, ast.ClassDef))}
    classes = {name: each for name, each in defined.items() if isinstance(each, ast.ClassDef)}
    waiting = [name for name, each in classes.items() if makes_samples(each, classes)]
    for node in (each for statement in body for each in walk(statement)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in WRAPPING:
            waiting += [each.id for argument in node.args for each in walk(argument) if isinstance(each, ast.Name)]
        if isinstance(node, ast.keyword) and node.arg in GIVEN:
            waiting += [each.id for each in walk(node.value) if isinstance(each, ast.Name)]
    inside = {
        node.name
        for each in moving
        if not isinstance(each, (ast.FunctionDef, ast.ClassDef))
        for node in walk(each)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    if behind := inside & set(waiting):  # defined under a test or in a loop, which goes under the guard as a whole
        return min(behind)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in defined and name not in seen:
            seen.add(name)
            read = {node.id for node in walk(defined[name]) if isinstance(node, ast.Name)}
            missing = (read & stored) - own_names(defined[name])
            if missing:
                return min(missing)
            waiting += read
    return None


def on_gpu_above(text: str, line: int) -> int | None:
    """The line of a top-level statement above ``line`` that moves something to a device: every worker would, too."""
    for statement in parse(text).body:
        if statement.lineno >= line or isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(statement, ast.If) and "__main__" in ast.dump(statement.test):
            continue
        for node in walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda"):
                return node.lineno
    return None


def makes_samples(cls: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether a class is a dataset or a transform: by its methods, or by its bases, if they are no part of a model."""
    if any(isinstance(each, ast.FunctionDef) and each.name in MAKERS for each in cls.body):
        return True
    for base in (ast.unparse(each).rpartition(".")[2] for each in cls.bases):
        known = classes.get(base)
        if known is not cls and (makes_samples(known, classes) if known is not None else base not in HARMLESS):
            return True
    return False


def own_names(definition: ast.AST) -> set[str]:
    """The names that a function or class sets itself, parameters included."""
    nodes = list(walk(definition))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}
