"""Whether a class of the project only computes with the values that it is given, so that a tensor will do as well."""

from __future__ import annotations

import ast

from turbofix.domain.values import Class, Function
from turbofix.library.tables import words
from turbofix.source.names import dotted, parameters, targets
from turbofix.source.nodes import walk

_SURVIVED = words("format len abs sum super tensor as_tensor isinstance hasattr keys values items")


def computes_only(cls: Class, call: ast.Call) -> bool | None:
    """Whether a class does only what a tensor survives with what ``call`` gives to an object of it.

    None where that call itself does more with it than arithmetic, assignment and formatting.
    """
    name = call.func.attr if isinstance(call.func, ast.Attribute) else "__call__"
    method = cls.find(name)
    if not isinstance(method, Function) or set(cls.externals()) - {"builtins.object"}:
        return None
    methods = [value for value in cls.names.values() if isinstance(value, Function)]
    if method not in methods:
        return None
    tainted = {each.arg for each in parameters(method.node)[1:2]}
    attributes: set[str] = set()
    for _ in range(3):  # a value may pass through two attributes before it comes to rest
        for each in methods:
            own = tainted if each is method else set()
            for node in walk(each.node):
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                    found = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if _touches(node.value, own, attributes) and not _copies(node.value):
                        for target in found:
                            for single in targets(target):
                                text = dotted(single)
                                if text is None:
                                    return None  # stored in a container
                                (attributes if "." in text else own).add(text)
    if _changes_what_is_kept(methods, attributes) or not _harmless(method, tainted, attributes):
        return None
    return all(_harmless(each, set(), attributes) for each in methods if each is not method)


def _changes_what_is_kept(methods: list[Function], attributes: set[str]) -> bool:
    """Whether a method adds to an attribute that another one was set to: of tensors, both would then change."""
    same: list[set[str]] = []
    changed: set[str] = set()
    for method in methods:
        for node in walk(method.node):
            if isinstance(node, ast.AugAssign):
                changed.add(dotted(node.target) or "")
            elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
                texts = {dotted(each) or "" for each in (*node.targets, *_chosen(node.value))} - {""}
                group = {f"{method.name} {text}" if "." not in text else text for text in texts}
                near = [each for each in same if each & group]
                same = [each for each in same if not each & group] + [group.union(*near)]
    kept = changed & attributes
    return any(len(group & attributes) > 1 and group & kept for group in same)


def _chosen(node: ast.expr) -> list[ast.expr]:
    """The expressions that a value may be as it is: both arms of a condition."""
    return [*_chosen(node.body), *_chosen(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _copies(node: ast.expr) -> bool:
    """``torch.tensor([self.sum, self.count])``: a tensor of its own, whatever the values were."""
    return isinstance(node, ast.Call) and (dotted(node.func) or "").rpartition(".")[2] in ("tensor", "as_tensor")


def _touches(node: ast.AST, names: set[str], attributes: set[str]) -> bool:
    """Whether an expression reads the value, under whatever name."""
    for each in walk(node):
        if isinstance(each, ast.Name) and each.id in names:
            return True
        if isinstance(each, ast.Attribute) and dotted(each) in attributes:
            return True
    return False


def _harmless(function: Function, names: set[str], attributes: set[str]) -> bool:
    """Whether a method does with the value only what a tensor survives."""
    for node in walk(function.node):
        test = node.test if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) else None
        if test is not None and _touches(test, names, attributes):
            return False
        if isinstance(node, ast.Compare) and _touches(node, names, attributes):
            return False
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if any(_touches(each, names, attributes) for each in given) and called not in _SURVIVED:
                return False
            if isinstance(node.func, ast.Attribute) and _touches(node.func.value, names, attributes):
                return False  # a method of the value itself
        if isinstance(node, ast.Subscript) and _touches(node, names, attributes):
            return False
    return True
