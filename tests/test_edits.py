"""The vocabulary of edits: every guarantee as a text before and after, and round trips over real code."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from sites import BOM, PATH, at, edit_of, site_of, source_of

from turbofix.editing.changes import Conflict, Refuse, undone
from turbofix.editing.edit import Edit
from turbofix.editing.positions import Tree, Trees, Unreadable
from turbofix.editing.selfcheck import check
from turbofix.source.site import Site

Do = Callable[[Edit, str], None]


def rewritten(text: str, *steps: Do) -> str:
    """The text after some steps, each of which gets the edit and the text; self-checked."""
    edit = edit_of(text)
    for step in steps:
        with edit.attempt():
            step(edit, text)
    assert check(edit) is None
    return edit.apply().get(PATH, text)


def refused(text: str, *steps: Do) -> str:
    """The sentence with which the steps are refused; what was asked for in the refused step is forgotten."""
    edit = edit_of(text)
    for step in steps[:-1]:
        step(edit, text)
    before = edit.changes()
    with pytest.raises((Refuse, Conflict)) as caught, edit.attempt():
        steps[-1](edit, text)
    assert edit.changes() == before
    return str(caught.value)


def first(text: str, *kinds: type[ast.AST]) -> Site:
    return next(site_of(node, text) for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))


def keyword(name: str, value: str, position: int | None = None) -> Do:
    """The first call of the text gets an argument."""
    return lambda edit, text: edit.argument(first(text, ast.Call), name, value, position)


def without(name: str, position: int | None = None) -> Do:
    return lambda edit, text: edit.drop_argument(first(text, ast.Call), name, position)


def put_before(source: str, *lines: str, above_comments: bool = False) -> Do:
    return lambda edit, text: edit.before(at(text, source), *lines, above_comments=above_comments)


def put_after(source: str, *lines: str) -> Do:
    return lambda edit, text: edit.after(at(text, source), *lines)


def delete(source: str) -> Do:
    return lambda edit, text: edit.delete(at(text, source))


def swap(source: str, new: str, nth: int = 0) -> Do:
    return lambda edit, text: edit.replace(at(text, source, nth=nth), new)


def extend(source: str, new: str, kind: str | None = None) -> Do:
    return lambda edit, text: edit.insert_after(at(text, source, kind), new)


def wrap(start: str, end: str, header: str) -> Do:
    return lambda edit, text: edit.wrap(at(text, start), at(text, end), header)


def lines_for(start: str, end: str, *lines: str) -> Do:
    return lambda edit, text: edit.replace_lines(at(text, start), at(text, end), *lines)


# --- calls --------------------------------------------------------------------------------------------------------

ADDED = {
    "one line": ("x = Loader(ds)\n", "x = Loader(ds, workers=4, pin=True)\n"),
    "no arguments": ("x = Loader()\n", "x = Loader(workers=4, pin=True)\n"),
    "spaces around the sign": ("x = Loader(size = 3)\n", "x = Loader(size = 3, workers = 4, pin = True)\n"),
    "trailing comma stays": ("x = Loader(ds,)\n", "x = Loader(ds, workers=4, pin=True,)\n"),
    "trailing comma and space stay": ("x = Loader(ds, )\n", "x = Loader(ds, workers=4, pin=True, )\n"),
    "lone generator": ("x = total(a for a in b)\n", "x = total((a for a in b), workers=4, pin=True)\n"),
    "comment behind the call": ("x = Loader(ds)  # why\n", "x = Loader(ds, workers=4, pin=True)  # why\n"),
    "call in parentheses": ("x = (Loader(ds))\n", "x = (Loader(ds, workers=4, pin=True))\n"),
    "one per line, commented": (
        """
        x = Loader(
            ds,
            size=2,  # why, two
        )
        """,
        """
        x = Loader(
            ds,
            size=2,  # why, two
            workers=4,
            pin=True,
        )
        """,
    ),
    "one per line, no trailing comma": (
        """
        x = Loader(
            ds,
            size=2  # why, two
        )
        """,
        """
        x = Loader(
            ds,
            size=2,  # why, two
            workers=4,
            pin=True
        )
        """,
    ),
    "commented-out argument below": (
        """
        x = Loader(
            ds,
            # drop_last=True,
        )
        """,
        """
        x = Loader(
            ds,
            workers=4,
            pin=True,
            # drop_last=True,
        )
        """,
    ),
    "aligned, bracket behind the last": (
        """
        x = Loader(ds,
                   size=2)
        """,
        """
        x = Loader(ds,
                   size=2,
                   workers=4,
                   pin=True)
        """,
    ),
    "filled lines": (
        """
        x = Loader(
            ds, size=2
        )
        """,
        """
        x = Loader(
            ds, size=2, workers=4, pin=True
        )
        """,
    ),
    "filled lines, comma and comment": (
        """
        x = Loader(
            ds, size=2,  # c, d
        )
        """,
        """
        x = Loader(
            ds, size=2, workers=4, pin=True,  # c, d
        )
        """,
    ),
    "last value of several lines": (
        """
        x = Loader(ds, transform=Compose([
            A(),
        ]))
        """,
        """
        x = Loader(ds, transform=Compose([
            A(),
        ]), workers=4, pin=True)
        """,
    ),
    "nothing but a comment": (
        """
        x = Loader(
            # later
        )
        """,
        """
        x = Loader(
            # later
            workers=4,
            pin=True,
        )
        """,
    ),
    "too long a line is broken below the first argument": (
        """
        if fast:
            loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
        """,
        """
        if fast:
            loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True, drop_last=True,
                                workers=4, pin=True)
        """,
    ),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("case", ADDED.values(), ids=ADDED.keys())
def test_argument_is_added_in_the_calls_own_layout(case: tuple[str, str], newline: str) -> None:
    before, after = case
    before, after = (dedent(text).replace("\n", newline) for text in (before, after))
    assert rewritten(before, keyword("workers", "4"), keyword("pin", "True")) == after


def test_argument_follows_tabs() -> None:
    assert rewritten("x = f(\n\ta,\n)\n", keyword("b", "1")) == "x = f(\n\ta,\n\tb=1,\n)\n"


def test_argument_stays_on_a_line_that_is_no_longer_than_the_files_longest() -> None:
    head = f"# {'-' * 128}\n"
    call = "loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)"
    assert rewritten(f"{head}{call}\n", keyword("workers", "4")) == f"{head}{call[:-1]}, workers=4)\n"


def test_argument_replaces_the_keyword_or_its_position() -> None:
    assert rewritten("f(a, n=0, **kw)\n", keyword("n", "4")) == "f(a, n=4, **kw)\n"
    assert rewritten("f(a, 0, 2)\n", keyword("n", "4", 1)) == "f(a, 4, 2)\n"
    assert rewritten("f(a, (0))\n", keyword("n", "4", 1)) == "f(a, 4)\n"
    assert rewritten("f(a, 0)\n", keyword("n", "4", 2)) == "f(a, 0, n=4)\n"
    assert rewritten("f(a, n=4)\n", keyword("n", "4")) == "f(a, n=4)\n"
    assert rewritten("f(a, betas=(a, b))\n", keyword("betas", "(c, d)")) == "f(a, betas=(c, d))\n"


def test_argument_is_refused_where_an_unpacked_one_may_hold_it() -> None:
    assert "mapping that may hold `n`" in refused("f(a, **kw)\n", keyword("n", "4"))
    assert "unpacks positional" in refused("f(*a)\n", keyword("n", "4", 1))
    assert "unpacks positional" in refused("f(a, *b)\n", keyword("n", "4", 1))
    assert rewritten("f(a, 0, *b)\n", keyword("n", "4", 1)) == "f(a, 4, *b)\n"


def test_the_same_argument_twice_is_added_once_and_another_value_is_a_conflict() -> None:
    assert rewritten("f(a)\n", keyword("n", "4"), keyword("n", "4")) == "f(a, n=4)\n"
    assert "two values" in refused("f(a)\n", keyword("n", "4"), keyword("n", "5"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, b=1, c=2)\n", "f(a, c=2)\n"),
        ("f(b=1)\n", "f()\n"),
        ("f(b=1, c=2)\n", "f(c=2)\n"),
        ("f(a, b=1,)\n", "f(a,)\n"),
        ("f(x, b=1, **k)\n", "f(x, **k)\n"),
        ("f(b=1,\n  c=2)\n", "f(c=2)\n"),
        ("f(a,\n  b=1)\n", "f(a)\n"),
        ("f(a,\n  b=1,  # bb, b\n  c=2)\n", "f(a,\n  # bb, b\n  c=2)\n"),
        ("f(\n    a,\n    b=1,\n    c=2,  # cc\n)\n", "f(\n    a,\n    c=2,  # cc\n)\n"),
        ("f(\n    a,\n    b=1\n)\n", "f(\n    a\n)\n"),
        ("f(\n    b=1, c=2,\n    d=3)\n", "f(\n    c=2,\n    d=3)\n"),
        ("f(\n    c=2, b=1\n)\n", "f(\n    c=2\n)\n"),
        ("f(a, b=g(\n    1,\n), c=2)\n", "f(a, c=2)\n"),
    ],
)
def test_dropped_argument_takes_its_comma_and_line_and_leaves_comments(before: str, after: str) -> None:
    assert rewritten(before, without("b")) == after
    crlf = (before.replace("\n", "\r\n"), after.replace("\n", "\r\n"))
    assert rewritten(crlf[0], without("b")) == crlf[1]


def test_several_arguments_are_dropped_and_others_come() -> None:
    assert rewritten("f(a, b=1, c=2)\n", without("b"), without("c")) == "f(a)\n"
    assert rewritten("f(b=1, c=2)\n", without("b"), without("c")) == "f()\n"
    layout = "f(\n    a,\n    b=1,  # bb\n    c=2\n)\n"
    assert rewritten(layout, without("b"), without("c")) == "f(\n    a\n    # bb\n)\n"
    assert rewritten("f(a, b=1)\n", without("b"), keyword("d", "3"), keyword("e", "4")) == "f(a, d=3, e=4)\n"
    assert rewritten("f(a, b=1, c=2)\n", without("b"), keyword("d", "3")) == "f(a, c=2, d=3)\n"
    assert rewritten("f(a, 1)\n", without("b", 1)) == "f(a)\n"


def test_an_argument_is_not_dropped_where_that_changes_others() -> None:
    assert "move up" in refused("f(a, 1, 2)\n", without("b", 1))
    assert "no argument `b`" in refused("f(a, c=2)\n", without("b"))
    assert "comments inside" in refused("f(\n    a,\n    b=[  # x\n        1],\n)\n", without("b"))


def entry(key: str, value: str) -> Do:
    def do(edit: Edit, text: str) -> None:
        edit.entry(first(text, ast.Dict, ast.Call), key, value)

    return do


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("kw = {'a': 1}\n", "kw = {'a': 1, 'pin': True}\n"),
        ('kw = {"a": 1,}\n', 'kw = {"a": 1, "pin": True,}\n'),
        ("kw = {}\n", 'kw = {"pin": True}\n'),
        ("s = 'x'\nkw = {}\n", "s = 'x'\nkw = {'pin': True}\n"),
        ("kw = {**base, 'a': 1}\n", "kw = {**base, 'a': 1, 'pin': True}\n"),
        ("kw = {'pin': False, 'a': 1}\n", "kw = {'pin': True, 'a': 1}\n"),
        (
            'kw = {\n    "a": 1,  # one\n}\n',
            'kw = {\n    "a": 1,  # one\n    "pin": True,\n}\n',
        ),
        ('kw = {"a": 1,\n      "b": 2}\n', 'kw = {"a": 1,\n      "b": 2,\n      "pin": True}\n'),
        ("kw = dict(a=1)\n", "kw = dict(a=1, pin=True)\n"),
        ("kw = dict(pin=False)\n", "kw = dict(pin=True)\n"),
    ],
)
def test_entry_of_a_mapping(before: str, after: str) -> None:
    assert rewritten(before, entry("pin", "True")) == after


def test_entry_is_refused_where_another_mapping_may_overrule_it() -> None:
    assert "may overrule" in refused("kw = {'pin': False, **base}\n", entry("pin", "True"))
    assert "may hold" in refused("kw = dict(a=1, **base)\n", entry("pin", "True"))
    assert "no dict display" in refused("kw = make(a=1)\n", lambda e, t: e.entry(at(t, "kw", "Name"), "pin", "True"))


# --- functions ----------------------------------------------------------------------------------------------------


def parameter(name: str, beside: str) -> Do:
    return lambda edit, text: edit.parameter(first(text, ast.FunctionDef, ast.AsyncFunctionDef), name, beside)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(model, opt, n=0): pass\n", "def f(model, opt, scaler, n=0): pass\n"),
        ("def f(model, opt): pass\n", "def f(model, opt, scaler): pass\n"),
        ("def f(model, opt,): pass\n", "def f(model, opt, scaler,): pass\n"),
        ("def f(model, opt=None, n=0): pass\n", "def f(model, opt=None, scaler=None, n=0): pass\n"),
        ("def f(opt: O, *args, **kw) -> int: pass\n", "def f(opt: O, scaler, *args, **kw) -> int: pass\n"),
        ("def f(model, *, opt=1, n): pass\n", "def f(model, *, opt=1, scaler, n): pass\n"),
        ("def f(opt, /, n): pass\n", "def f(opt, scaler, /, n): pass\n"),
        ("@d(1)\nasync def f(self, opt): pass\n", "@d(1)\nasync def f(self, opt, scaler): pass\n"),
        (
            "def f(\n    model,\n    opt,  # o, p\n    n=0,\n): pass\n",
            "def f(\n    model,\n    opt,  # o, p\n    scaler,\n    n=0,\n): pass\n",
        ),
        ("def f(\n    model,\n    opt\n): pass\n", "def f(\n    model,\n    opt,\n    scaler\n): pass\n"),
        ("def f(model,\n      opt):\n    pass\n", "def f(model,\n      opt,\n      scaler):\n    pass\n"),
    ],
)
def test_parameter_stands_straight_after_another(before: str, after: str) -> None:
    assert rewritten(before, parameter("scaler", "opt")) == after


def test_parameter_is_refused_beside_what_is_missing_or_variadic() -> None:
    assert "no parameter `opt`" in refused("def f(a): pass\n", parameter("scaler", "opt"))
    assert "any number" in refused("def f(*opt): pass\n", parameter("scaler", "opt"))
    assert "already" in refused("def f(opt, scaler): pass\n", parameter("scaler", "opt"))
    assert "no function" in refused("f = lambda opt: 1\n", lambda e, t: e.parameter(first(t, ast.Lambda), "s", "opt"))


def pass_on(text_: str, beside: str, name: str | None = None) -> Do:
    return lambda edit, text: edit.pass_on(first(text, ast.Call), text_, at(text, beside), name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(model, opt, dev)\n", "f(model, opt, self.scaler, dev)\n"),
        ("f(model, opt)\n", "f(model, opt, self.scaler)\n"),
        ("f(opt, *rest, **kw)\n", "f(opt, self.scaler, *rest, **kw)\n"),
        ("f(model, o=opt, dev=d)\n", "f(model, o=opt, scaler=self.scaler, dev=d)\n"),
        ("f(\n    opt,\n    dev,\n)\n", "f(\n    opt,\n    self.scaler,\n    dev,\n)\n"),
    ],
)
def test_argument_is_passed_on_straight_after_another(before: str, after: str) -> None:
    assert rewritten(before, pass_on("self.scaler", "opt")) == after


def test_argument_is_passed_on_under_the_parameters_name() -> None:
    assert rewritten("f(o=opt)\n", pass_on("amp[0]", "opt", "scaler")) == "f(o=opt, scaler=amp[0])\n"


def test_argument_is_not_passed_on_beside_unpacked_ones() -> None:
    assert "unpacks" in refused("f(*model, opt)\n", pass_on("scaler", "opt"))
    assert "may hold" in refused("f(o=opt, **kw)\n", pass_on("scaler", "opt"))
    assert "already" in refused("f(opt, scaler=1)\n", pass_on("scaler", "opt"))
    assert "does not pass" in refused("f(model)\nopt\n", pass_on("scaler", "opt"))


def test_passed_on_goes_before_an_added_keyword() -> None:
    assert rewritten("f(opt)\n", keyword("n", "1"), pass_on("scaler", "opt")) == "f(opt, scaler, n=1)\n"


# --- expressions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("x = 2 * (a + b)\n", "a + b", "c", "x = 2 * c\n"),
        ("x = 2 * (a + b)\n", "a + b", "c + d", "x = 2 * (c + d)\n"),
        ("x = y.z\n", "y", "a + b", "x = (a + b).z\n"),
        ("x = f(y)\n", "y", "a if b else c", "x = f(a if b else c)\n"),
        ("x = f(y)\n", "y", "a, b", "x = f((a, b))\n"),
        ("return_ = y\n", "y", "a, b", "return_ = a, b\n"),
        ("x = not y\n", "y", "a and b", "x = not (a and b)\n"),
        ("x = f(betas=(a, b))\n", "(a, b)", "(a, b, c)", "x = f(betas=(a, b, c))\n"),
        ("x = -y ** 2\n", "y", "-1", "x = -(-1) ** 2\n"),
        ("print(f'{y:.3f} {z}')\n", "y", "y.item()", "print(f'{y.item():.3f} {z}')\n"),
        (
            "parser.add_argument('--n', default=0, type=int)\n",
            "0",
            "4",
            "parser.add_argument('--n', default=4, type=int)\n",
        ),
        ("x = (  # why\n    y +\n    z\n)\nw = x\n", "x", "v", "v = (  # why\n    y +\n    z\n)\nw = x\n"),
        ("x = y\n", "y", "a +\n    b", "x = (a +\n    b)\n"),
    ],
)
def test_replaced_expression_keeps_the_meaning_around_it(before: str, old: str, new: str, after: str) -> None:
    assert rewritten(before, swap(old, new)) == after


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("x += loss * n\n", "loss", ".detach()", "x += loss.detach() * n\n"),
        ("x = a + b\n", "a + b", ".detach()", "x = (a + b).detach()\n"),
        ("x = (a + b)\n", "a + b", ".detach()", "x = (a + b).detach()\n"),
        ("x = c / loss\n", "loss", " * n", "x = c / (loss * n)\n"),
        ("x = f(loss)\n", "loss", " * n", "x = f(loss * n)\n"),
        ("x = f(a + b)\n", "a + b", " * n", "x = f((a + b) * n)\n"),
        ("x = c / (a + b)\n", "a + b", " * n", "x = c / ((a + b) * n)\n"),
        ("x = f(q for q in r)\n", "(q for q in r)", ".x", "x = f((q for q in r).x)\n"),
        ("k = 3\n", "3", ".real", "k = (3).real\n"),
        ("x = await loss\n", "await loss", ".x", "x = (await loss).x\n"),
    ],
)
def test_text_put_after_an_expression_belongs_to_it_alone(before: str, old: str, new: str, after: str) -> None:
    assert rewritten(before, extend(old, new)) == after


def test_expressions_that_end_together_are_extended_inside_out() -> None:
    steps = (extend("b", ".x"), extend("a + b", ".y"))
    assert rewritten("z = a + b\n", *steps) == rewritten("z = a + b\n", *reversed(steps)) == "z = (a + b.x).y\n"
    assert rewritten("f(a)\n", extend("a", ".x"), keyword("n", "1")) == "f(a.x, n=1)\n"


def test_an_expression_is_changed_in_one_way() -> None:
    assert "meet on line 1" in refused("x = a\n", extend("a", ".x"), extend("a", ".y"))
    assert "meet on line 2" in refused("\nx = f(a)\n", swap("f(a)", "g"), swap("a", "b"))
    assert "meet on line 1" in refused("x = f(a)\n", swap("f(a)", "g"), extend("f", ".y"))
    assert rewritten("x = a\n", swap("a", "b"), swap("a", "b")) == "x = b\n"


def test_f_strings_that_older_pythons_could_not_read_are_refused() -> None:
    assert "f-string" in refused("print(f'{x}')\n", swap("x", "d['k']"))
    assert "shows the source" in refused("print(f'{x=}')\n", swap("x", "y"))


# --- statements ---------------------------------------------------------------------------------------------------


def test_lines_before_and_after_take_the_statements_indentation() -> None:
    before = """
    def f():
        # lead
        a()
        b(
            1)  # one
    """
    after = """
    def f():
        # lead
        zero()
        a()
        b(
            1)  # one
        if two:
            three()
    """
    steps = put_before("a()", "zero()"), put_after("b(", "if two:", "    three()")
    assert rewritten(dedent(before), *steps) == dedent(after)


def test_lines_take_the_files_unit_of_indentation() -> None:
    assert rewritten("if x:\n\ta()\n", put_after("a()", "if y:", "    b()")) == "if x:\n\ta()\n\tif y:\n\t\tb()\n"
    assert rewritten("if x:\n  a()\n", put_before("a()", "if y:", "    b()")) == "if x:\n  if y:\n    b()\n  a()\n"


def test_lines_go_above_decorators_and_on_request_above_comments() -> None:
    text = "# set up\n@one\n@two\ndef f():\n    pass\n"
    assert rewritten(text, put_before("def f", "x = 1")) == "# set up\nx = 1\n@one\n@two\ndef f():\n    pass\n"
    above = rewritten(text, put_before("def f", "x = 1", "", above_comments=True))
    assert above == "x = 1\n\n# set up\n@one\n@two\ndef f():\n    pass\n"
    shebang = "#!/usr/bin/env python\n# seed\nseed(1)\n"
    expected = "#!/usr/bin/env python\nx = 1\n# seed\nseed(1)\n"
    assert rewritten(shebang, put_before("seed(1)", "x = 1", above_comments=True)) == expected


def test_nothing_is_put_into_lines_that_statements_share() -> None:
    for text, step in (
        ("if x: y()\n", put_before("y()", "new()")),
        ("a(); b()\n", put_before("b()", "new()")),
        ("a(); b()\n", put_after("a()", "new()")),
        ("a(); b()\n", delete("b()")),
        ("a(); b()\n", lines_for("a()", "a()", "new()")),
    ):
        assert "holds other statements too" in refused(text, step)
    assert rewritten("a(); b()\n", put_before("a()", "n()"), put_after("b()", "m()")) == "n()\na(); b()\nm()\n"
    assert rewritten("for x in y: a()\n", put_after("for", "b()")) == "for x in y: a()\nb()\n"


def test_an_elif_belongs_to_its_if() -> None:
    text = "if a:\n    b()\nelif c:\n    d()\nelse:\n    e()\n"
    expected = "new()\nif a:\n    b()\nelif c:\n    d()\nelse:\n    f()\n    e()\nlast()\n"
    steps = put_before("c", "new()"), put_after("c", "last()"), put_before("e()", "f()")
    assert rewritten(text, *steps) == expected


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("final", [True, False], ids=["newline", "no newline"])
def test_statements_that_end_together_are_followed_inside_out(newline: str, final: bool) -> None:
    end = "\n" if final else ""
    text = ("for x in y:\n    if z:\n        a()" + end).replace("\n", newline)
    expected = ("for x in y:\n    if z:\n        a()\n        in_if()\n    in_for()\noutside()" + end).replace(
        "\n", newline
    )
    steps = put_after("for", "outside()"), put_after("if z", "in_for()"), put_after("a()", "in_if()")
    assert rewritten(text, *steps) == expected
    assert rewritten(text, *reversed(steps)) == expected


def test_after_a_block_comes_after_the_comments_of_its_body() -> None:
    text = "for x in y:\n    a()\n    # tail\n# next\nb()\n"
    assert rewritten(text, put_after("for", "c()")) == "for x in y:\n    a()\n    # tail\nc()\n# next\nb()\n"


def test_nothing_is_put_after_a_jump() -> None:
    assert "nothing runs after" in refused("def f():\n    return 1\n", put_after("return", "a()"))


def test_same_lines_for_two_findings_come_once() -> None:
    assert rewritten("a()\n", put_before("a()", "x = 1"), put_before("a()", "x = 1")) == "x = 1\na()\n"
    both = rewritten("a()\n", put_before("a()", "x = 1"), put_before("a()", "y = 1"))
    assert both == "x = 1\ny = 1\na()\n"


@pytest.mark.parametrize(
    ("before", "gone", "after"),
    [
        ("if x:\n    a()  # why\n    b()\n", ["a()"], "if x:\n    # why\n    b()\n"),
        ("if x:\n    a()  # why\n    # own\nb()\n", ["a()"], "if x:\n    pass  # why\n    # own\nb()\n"),
        ("if x:\n    a()  # why\n    b()\n", ["a()", "b()"], "if x:\n    # why\n    pass\n"),
        ("if x: a()\n", ["a()"], "if x: pass\n"),
        ("def f():\n    a()\n\n    b()\n\n    c()\n", ["b()"], "def f():\n    a()\n\n    c()\n"),
        ("a()\nb()", ["b()"], "a()"),
        ("a()\n\nb()  # why", ["b()"], "a()\n# why"),
        ("f(  # one\n    1)\ng()\n", ["f("], "# one\ng()\n"),
    ],
)
def test_deleted_statement_leaves_comments_and_a_body(before: str, gone: list[str], after: str) -> None:
    assert rewritten(before, *map(delete, gone)) == after


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        ("import torch\nfrom a import x\n\nf()\n", "x", "import torch\n\nf()\n"),
        ("from a import x, y as z\nf()\n", "x", "from a import y as z\nf()\n"),
        ("from a import x, y as z\nf()\n", "y", "from a import x\nf()\n"),
        ("from a import x, y, z\n", "y", "from a import x, z\n"),
        ("from a import (\n    x,\n    y,\n)\n", "x", "from a import (\n    y,\n)\n"),
        ("from a import (\n    x,\n    y,\n)\n", "y", "from a import (\n    x,\n)\n"),
        ("from a import (\n    x,  # why\n    y,\n)\n", "x", "from a import (\n    x,  # why\n    y,\n)\n"),
    ],
)
def test_unimported_name_takes_its_comma_or_the_statement(before: str, name: str, after: str) -> None:
    def take(edit: Edit, text: str) -> None:
        aliases = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.alias)]
        edit.unimport(next(site_of(each, text) for each in aliases if each.name == name))

    assert rewritten(before, take) == after


def test_replaced_lines_keep_comment_lines() -> None:
    before = """
    def f():
        # lead
        a = 1  # one
        # two
        b = 2

        c = 3  # three
        d = 4
    """
    after = """
    def f():
        # lead
        # one
        # two
        new = 1
        if x:
            y = 2  # three
        d = 4
    """
    assert rewritten(dedent(before), lines_for("a = 1", "c = 3", "new = 1", "if x:", "    y = 2")) == dedent(after)
    assert rewritten("if x:\n    a = 1\n    b = 2\n", lines_for("a = 1", "b = 2")) == "if x:\n    pass\n"


def test_lines_are_replaced_within_one_block() -> None:
    text = "a = 1\nif x:\n    b = 2\n"
    assert "not in one block" in refused(text, lines_for("a = 1", "b = 2", "c = 3"))
    assert "not in one block" in refused("a = 1\nb = 2\n", lines_for("b = 2", "a = 1", "c = 3"))
    assert "meet" in refused("for x in y:\n    a()\n", lines_for("for", "for", "b()"), put_after("a()", "c()"))


def test_wrapped_lines_move_with_all_that_belongs_to_them() -> None:
    before = '''
    def train():
        # the forward pass
        out = model(x)
      # less indented
        text = """one
        two"""
        loss = crit(
      out, y)
        total = 1 + \\
          2

        loss.backward()
    '''
    after = '''
    def train():
        # the forward pass
        zero()
        with autocast():
            out = model(x)
            seen()
          # less indented
            text = """one
        two"""
            loss = crit(
          out, y, w=1)
            total = 1 + \\
              2
        last()

        loss.backward()
    '''
    steps: list[Do] = [
        wrap("out = model(x)", "total = 1", "with autocast():"),
        put_before("out = model(x)", "zero()"),
        put_after("out = model(x)", "seen()"),
        put_after("total = 1", "last()"),
        lambda edit, text: edit.argument(at(text, "crit(\n  out, y)", "Call"), "w", "1"),
    ]
    assert rewritten(dedent(before), *steps) == dedent(after)
    assert rewritten(dedent(before), *reversed(steps)) == dedent(after)


@pytest.mark.parametrize("comma", [",", ""])
@pytest.mark.parametrize("close", ["\n)", ")"])
def test_arguments_added_under_a_wrap_move_along(comma: str, close: str) -> None:
    text = f"a = f(\n    1,\n    2{comma}{close}\nb = f()\n"
    inner = "        2,\n        n=3,\n        m=4" + comma + close.replace("\n", "\n    ")
    steps = wrap("a = f", "b = f", "with x():"), keyword("n", "3"), keyword("m", "4")
    assert rewritten(text, *steps) == f"with x():\n    a = f(\n        1,\n{inner}\n    b = f()\n"


def test_wrap_takes_one_unit_of_the_file() -> None:
    tabs = "def f():\n\tif x:\n\t\ta()\n\t\t# tail\n\tb()\n"
    expected = "def f():\n\twith c():\n\t\tif x:\n\t\t\ta()\n\t\t\tinside()\n\t\t\t# tail\n\toutside()\n\tb()\n"
    steps = wrap("if x", "if x", "with c():"), put_after("a()", "inside()"), put_after("if x", "outside()")
    assert rewritten(tabs, *steps) == expected
    two = "for x in y:\n  a()\n"
    assert rewritten(two, wrap("a()", "a()", "with c():")) == "for x in y:\n  with c():\n    a()\n"
    flat = "import a\nb = 1\nc = 2"
    assert rewritten(flat, wrap("b = 1", "c = 2", "if m:")) == "import a\nif m:\n    b = 1\n    c = 2"


def test_wraps_are_disjoint() -> None:
    text = "a()\nb()\nc()\n"
    first_two, last_two = wrap("a()", "b()", "with x():"), wrap("b()", "c()", "with x():")
    assert "meet on line 2" in refused(text, first_two, last_two)
    assert rewritten(text, first_two, first_two) == "with x():\n    a()\n    b()\nc()\n"
    assert "meet on line 1" in refused(text, delete("a()"), wrap("a()", "a()", "with x():"))
    assert rewritten(text, delete("a()"), first_two) == "with x():\n    b()\nc()\n"


def test_wrap_is_refused_where_it_would_split_a_line_or_take_backward_along() -> None:
    assert "holds other statements" in refused("a(); b()\n", wrap("b()", "b()", "with x():"))
    assert "holds other statements" in refused("if y: a()\n", wrap("a()", "a()", "with x():"))
    text = "loss = model(x)\nloss.backward()\n"
    assert "`backward` on line 2" in refused(text, wrap("loss =", "loss.backward()", "with torch.autocast('cuda'):"))
    assert "__future__" in refused("from __future__ import annotations\n", wrap("from", "from", "if x:"))


# --- names --------------------------------------------------------------------------------------------------------


def spelled(dotted: str, module: str | None = None) -> Do:
    """``HERE`` in the text becomes the spelling of the dotted name."""

    def do(edit: Edit, text: str) -> None:
        site = at(text, "HERE")
        edit.replace(site, edit.name(dotted, site, module))

    return do


NAMED = {
    "imported": ("import torch\nHERE\n", "torch.amp.autocast", "import torch\ntorch.amp.autocast\n"),
    "alias": ("import torch as th\nHERE\n", "torch.amp.autocast", "import torch as th\nth.amp.autocast\n"),
    "longest prefix": (
        "import torch\nimport torch.nn.functional as F\nHERE\n",
        "torch.nn.functional.gelu",
        "import torch\nimport torch.nn.functional as F\nF.gelu\n",
    ),
    "from": (
        "from torch import nn, autocast as ac\nHERE\n",
        "torch.autocast",
        "from torch import nn, autocast as ac\nac\n",
    ),
    "a submodule's alias is not the package": (
        "import torch.nn as nn\nHERE\n",
        "torch.cuda.is_available",
        "import torch\nimport torch.nn as nn\ntorch.cuda.is_available\n",
    ),
    "a submodule without alias is": ("import torch.nn\nHERE\n", "torch.cuda", "import torch.nn\ntorch.cuda\n"),
    "try": (
        "try:\n    import torch\nexcept ImportError:\n    torch = None\nHERE\n",
        "torch.x",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\ntorch.x\n",
    ),
    "type checking": (
        "import a\nif TYPE_CHECKING:\n    import torch\nHERE\n",
        "torch.x",
        "import torch\nimport a\nif TYPE_CHECKING:\n    import torch\ntorch.x\n",
    ),
    "another function's import": (
        "import a\ndef f():\n    import torch\nHERE\n",
        "torch.x",
        "import torch\nimport a\ndef f():\n    import torch\ntorch.x\n",
    ),
    "the function's own import": (
        "def f():\n    import torch\n    return HERE\n",
        "torch.x",
        "def f():\n    import torch\n    return torch.x\n",
    ),
    "star imports bring no package": (
        "from torch import *\nHERE\n",
        "torch.cuda",
        "import torch\nfrom torch import *\ntorch.cuda\n",
    ),
    "a name taken elsewhere": (
        "import torch\ndef f(torch):\n    pass\nHERE\n",
        "torch.x",
        "import torch\ndef f(torch):\n    pass\ntorch.x\n",
    ),
    "after the environment is set": (
        'from __future__ import division\nimport os\nos.putenv("A", "")\nfrom torch import nn\nHERE\n',
        "torch.x",
        'from __future__ import division\nimport os\nos.putenv("A", "")\nimport torch\nfrom torch import nn\ntorch.x\n',
    ),
    "after the environment is set, without torch": (
        'import os\nos.environ["A"] = ""\nfrom model import Net\nHERE\n',
        "torch.x",
        'import os\nos.environ["A"] = ""\nimport torch\nfrom model import Net\ntorch.x\n',
    ),
    "after docstring and standard library": (
        '"""Doc."""\n\nimport os\n\nx = HERE\n',
        "torch.x",
        '"""Doc."""\n\nimport os\n\nimport torch\n\nx = torch.x\n',
    ),
    "no imports, comment above": (
        '"""Doc."""\n\n# the thing\nx = HERE\n',
        "torch.x",
        '"""Doc."""\n\nimport torch\n\n# the thing\nx = torch.x\n',
    ),
    "no imports, comment at the top": (
        "#!/usr/bin/env python\n# About this file.\nx = HERE\n",
        "torch.x",
        "#!/usr/bin/env python\n# About this file.\nimport torch\n\nx = torch.x\n",
    ),
    "standard library, sorted in": (
        "import argparse\nimport sys\n\nimport torch\nHERE\n",
        "os.cpu_count",
        "import argparse\nimport os\nimport sys\n\nimport torch\nos.cpu_count\n",
    ),
    "standard library, last": (
        "import argparse\n\nimport torch\nHERE\n",
        "os.cpu_count",
        "import argparse\nimport os\n\nimport torch\nos.cpu_count\n",
    ),
    "standard library, none yet": (
        "import torch\nHERE\n",
        "os.cpu_count",
        "import os\n\nimport torch\nos.cpu_count\n",
    ),
    "standard library, only from": (
        "from math import sqrt\n\nimport torch\nHERE\n",
        "os.cpu_count",
        "import os\nfrom math import sqrt\n\nimport torch\nos.cpu_count\n",
    ),
    "a module's own thing of its name": (
        "from datetime import datetime\n\nimport torch\nHERE\n",
        "datetime.timedelta",
        "from datetime import timedelta\nfrom datetime import datetime\n\nimport torch\ntimedelta\n",
    ),
    "a file of the project passes it on": (
        "from ..config import nn, torch\nHERE\n",
        "torch.distributed.barrier",
        "from ..config import nn, torch\ntorch.distributed.barrier\n",
    ),
    "another package's thing of its name": (
        "from absl import logging\n\nimport torch\nHERE\n",
        "logging.disable",
        "from logging import disable\n\nfrom absl import logging\n\nimport torch\ndisable\n",
    ),
    "a class attribute is no global": (
        "import torch\nclass A:\n    os = 1\n    def f(self):\n        return HERE\n",
        "os.x",
        "import os\n\nimport torch\nclass A:\n    os = 1\n    def f(self):\n        return os.x\n",
    ),
    "a function imports it further down": (
        "import numpy\ndef f():\n    HERE\n    import os\n",
        "os.x",
        "from os import x\n\nimport numpy\ndef f():\n    x\n    import os\n",
    ),
    "CRLF": ("import torch\r\nHERE\r\n", "os.x", "import os\r\n\r\nimport torch\r\nos.x\r\n"),
    "byte-order mark": (f"{BOM}import numpy\nHERE\n", "torch.x", f"{BOM}import torch\nimport numpy\ntorch.x\n"),
}


@pytest.mark.parametrize("case", NAMED.values(), ids=NAMED.keys())
def test_name_is_spelled_as_the_file_has_it(case: tuple[str, str, str]) -> None:
    before, dotted, after = case
    assert rewritten(before, spelled(dotted)) == after


@pytest.mark.parametrize(
    "text",
    [
        "torch = 3\nHERE\n",
        "import jax as torch\nHERE\n",
        "import torch\ndef f(torch):\n    return HERE\n",
        "HERE\nimport os\nos.environ['HF_HOME'] = 'x'\nimport torch\n",
        "import torch\nfor torch in x:\n    HERE\n",
    ],
)
def test_name_is_refused_where_it_means_something_else(text: str) -> None:
    assert "torch" in refused(text, spelled("torch.x"))


def test_an_import_that_stands_further_down_is_made_once_more() -> None:
    expected = "import torch\nimport numpy\ntorch.x\nimport torch\n"
    assert rewritten("import numpy\nHERE\nimport torch\n", spelled("torch.x")) == expected


def test_name_loads_a_module_that_the_package_does_not() -> None:
    step = spelled("torch.distributed.fsdp.fully_shard", "torch.distributed.fsdp")
    expected = "from torch.distributed.fsdp import fully_shard\nimport torch\nfully_shard\n"
    assert rewritten("import torch\nHERE\n", step) == expected
    loaded = "import torch.distributed.fsdp as fsdp\nHERE\n"
    assert rewritten(loaded, step) == "import torch.distributed.fsdp as fsdp\nfsdp.fully_shard\n"


def test_imports_come_once_and_beside_other_new_lines() -> None:
    text = "import torch.nn as nn\nfirst = HERE\nsecond = THERE\n"

    def names(edit: Edit, text: str) -> None:
        for word in ("HERE", "THERE"):
            site = at(text, word)
            edit.replace(site, f"{edit.name('torch.tensor', site)}({edit.name('os.cpu_count', site)}())")

    expected = "import os\n\nimport torch\nimport torch.nn as nn\n"
    expected += "first = torch.tensor(os.cpu_count())\nsecond = torch.tensor(os.cpu_count())\n"
    assert rewritten(text, names) == expected


def test_free_name_and_is_bound() -> None:
    text = "import torch\nscaler = 1\nx.amp = print(use)\ndef f(scaler_2): pass\n"
    edit, site = edit_of(text), at(text, "scaler = 1")
    assert edit.free_name("scaler", site) == "scaler_3"
    assert edit.free_name("amp", site) == "amp"
    assert edit.free_name("amp", site, taken={"amp"}) == "amp_2"
    assert edit.free_name("use", site) == "use_2"
    assert edit.free_name("print", site) == "print_2"
    assert edit.is_bound("torch", site)
    assert edit.is_bound("scaler_2", site)
    assert not edit.is_bound("use", site)
    assert not edit.is_bound("amp", site)


# --- questions, files, all or nothing -----------------------------------------------------------------------------


def test_text_and_statement() -> None:
    text = "if x:\n    y = 2 * (a + b)  # why\n    a; b\n"
    edit = edit_of(text)
    assert edit.text(at(text, "a + b")) == "(a + b)"
    assert edit.statement(at(text, "a + b")) == at(text, "y = 2 * (a + b)")
    assert edit.statement(at(text, "x")) == first(text, ast.If)
    assert edit.statement(at(text, "b", "Name", nth=0)) == at(text, "b", "Expr")


def test_columns_are_characters_behind_wide_ones_tabs_and_form_feeds() -> None:
    text = 'x = 1\n\f\nif x:\n\ts = "wörter 世界"; t = f(s)\n'
    expected = 'x = 1\n\f\nif x:\n\ts = "wörter 世界"; t = f(s, n=1)\n'
    assert rewritten(text, lambda e, t: e.argument(at(t, "f(s)", "Call"), "n", "1")) == expected


def test_edit_over_two_files_is_all_or_nothing() -> None:
    texts = "def f(opt): pass\n", "f(opt)\nf(*opt)\n"
    other = PATH.with_name("module_1.py")
    edit = edit_of(*texts)
    with edit.attempt():
        edit.parameter(first(texts[0], ast.FunctionDef), "scaler", "opt")
        edit.pass_on(at(texts[1], "f(opt)", "Call", path=other), "scaler", at(texts[1], "opt", "Name", path=other))
    expected = {PATH: "def f(opt, scaler): pass\n", other: "f(opt, scaler)\nf(*opt)\n"}
    assert edit.apply() == expected
    with pytest.raises(Refuse), edit.attempt():
        edit.before(first(texts[0], ast.FunctionDef), "x = 1")
        edit.argument(at(texts[1], "f(*opt)", "Call", path=other), "n", "1")
    assert edit.apply() == expected


def test_a_new_file_is_made_once_and_never_over_another() -> None:
    new, text = PATH.with_name("new.py"), "x = 1\n"
    edit = edit_of("y = 2\n")
    edit.create(new, text)
    edit.create(new, text)
    assert (edit.apply(), check(edit)) == ({new: text}, None)
    there = edit_of("y = 2\n")
    there.create(PATH, "y = 2\n")
    assert not there.apply()
    with pytest.raises(Refuse, match="there is another"):
        there.create(PATH, text)


def test_a_conflict_is_found_by_the_attempt_that_makes_it() -> None:
    text = "x = f(a)\n"
    edit = edit_of(text)
    with edit.attempt():
        edit.replace(at(text, "a"), "b")
    mark = edit.mark()
    with pytest.raises(Conflict), edit.attempt():
        edit.replace(at(text, "a"), "c")
    assert edit.mark() == mark
    assert edit.apply() == {PATH: "x = f(b)\n"}


def test_files_that_cannot_be_edited_say_so() -> None:
    nowhere = Site(Path("/project/gone.py"), 1, 0, 1, 1, "Name")
    with pytest.raises(Refuse, match="cannot be read"):
        edit_of("x\n").text(nowhere)
    with pytest.raises(Unreadable, match="syntax"):
        Tree(PATH, "x = (\n")
    with pytest.raises(Refuse, match="no Call stands at line 1"):
        edit_of("x = 1\n").argument(Site(PATH, 1, 0, 1, 3, "Call"), "a", "1")
    with pytest.raises(Refuse, match="no line 7"):
        edit_of("x = 1\n").text(Site(PATH, 7, 0, 7, 3, "Name"))


def test_trees_are_parsed_once_per_text() -> None:
    trees = Trees(keep=2)
    tree = trees.get(PATH, "x = 1\n")
    assert trees.get(PATH, "x = 1\n") is tree
    trees.get(PATH, "x = 2\n")
    trees.get(PATH, "x = 3\n")
    assert trees.get(PATH, "x = 1\n") is not tree


STATEMENTS = """\
import os


@wrapped(
    1,  # one
)
class A:
\t@staticmethod
\t# about f
\tdef f(x: int = 1):
\t\t"Two\\
lines"
\t\tif x: y = f(x); z = g(y)
\t\telif (  # why
  h(x)
\t\t):
\t\t    # above
\t\t    async def g(): return [
\t\t        i
\t\t    ]
\t\telse:
\t\t\twith a as b, \\
\t\t\t\tc:

\t\t\t\td = "é", e
\t\ttry: k(); l()
\t\texcept E as error: m()
\t\tfinally:
\t\t  n()  # the end
"""


def test_a_statement_is_parsed_by_itself_when_something_in_it_is_asked_for() -> None:
    for text in (STATEMENTS, "\ufeff" + STATEMENTS, STATEMENTS.replace("\n", "\r\n")):
        for node in placed(ast.parse(text.removeprefix("\ufeff"))):
            site = site_of(node, text)
            tree = Tree(PATH, text)
            assert not tree.span  # nothing was asked for
            start, end = tree._as_ast(tree.node(site))
            assert tree.text[start:end] == source_of(node, text.removeprefix("\ufeff"))
            assert len(tree._there) == 1


def test_a_statement_that_cannot_be_edited_leaves_the_others() -> None:
    tree = Tree(PATH, "x = 1\n\nif x:\n\tif y:\n         z = 3\n")
    assert tree.source(tree.node(Site(PATH, 1, 0, 1, 1, "Name"))) == "x"
    with pytest.raises(Unreadable, match="mixes tabs"):
        tree.node(Site(PATH, 3, 3, 3, 4, "Name"))
    assert rewritten("x = 1\r", lambda edit, text: edit.before(at(text, "x"), "y = 2")) == "y = 2\rx = 1\r"


def test_vocabulary_is_imported_without_the_parser() -> None:
    code = "import sys, turbofix.editing.edit, turbofix.editing.selfcheck; sys.exit('libcst' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- real code ----------------------------------------------------------------------------------------------------


def standard_library(count: int, seed: int) -> Iterator[tuple[Path, str]]:
    """Some files of the running Python's own library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        path for folder in (".", "json", "email", "asyncio", "logging") for path in (root / folder).glob("*.py")
    )
    files = [path for path in files if path.stat().st_size < 25_000]
    assert len(files) > count
    for path in random.Random(seed).sample(files, count):
        yield path, path.read_bytes().decode("utf-8")


SITES = (ast.expr, ast.stmt, ast.arg, ast.keyword, ast.ExceptHandler)


def placed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes whose place ``ast`` knows for certain and LibCST has too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield child
            continue  # inside f-strings, older Pythons do not know it
        if isinstance(child, SITES) and not isinstance(child, ast.Slice):
            bare = isinstance(node, ast.Subscript) and isinstance(child, ast.Tuple)  # x[1, 2]
            if not bare:
                yield child
        yield from placed(child)


def test_every_node_of_real_code_is_found_at_its_site() -> None:
    seen = 0
    for path, text in standard_library(40, seed=1):
        tree = Tree(path, text)
        for node in placed(ast.parse(text)):
            site = site_of(node, text, path)
            start, end = tree._as_ast(tree.node(site))
            assert tree.text[start:end] == source_of(node, text)
            seen += 1
    assert seen > 10_000


ALL = tuple("argument drop entry before after delete wrap lines swap extend name".split())  # noqa: SIM905


class Vocabulary:
    """Random steps over one text; each is tried alone, and refusals and conflicts are counted."""

    def __init__(self, path: Path, text: str, random_: random.Random) -> None:
        self.path, self.text, self.random = path, text, random_
        self.nodes = list(placed(ast.parse(text)))
        self.edit = Edit({path: text}.get, "test")
        self.done: list[str] = []

    def one(self, *kinds: type[ast.AST]) -> ast.AST | None:
        nodes = [node for node in self.nodes if isinstance(node, kinds)]
        return self.random.choice(nodes) if nodes else None

    def site(self, node: ast.AST) -> Site:
        return site_of(node, self.text, self.path)

    def run(self, steps: int, names: tuple[str, ...] = ALL) -> None:
        for name in self.random.choices(names, k=steps):
            try:
                with self.edit.attempt():
                    getattr(self, name)()
            except (Refuse, Conflict):
                continue
            self.done.append(name)

    def argument(self) -> None:
        if node := self.one(ast.Call):
            self.edit.argument(self.site(node), self.random.choice(("new_a", "new_b")), "min(8, count())")

    def drop(self) -> None:
        node = self.one(ast.Call)
        if isinstance(node, ast.Call) and node.keywords and (name := self.random.choice(node.keywords).arg):
            self.edit.drop_argument(self.site(node), name)

    def entry(self) -> None:
        if node := self.one(ast.Dict):
            self.edit.entry(self.site(node), "new", "1")

    def before(self) -> None:
        if node := self.one(ast.stmt):
            self.edit.before(self.site(node), "new = 1", above_comments=self.random.random() < 0.5)

    def after(self) -> None:
        if node := self.one(ast.stmt):
            self.edit.after(self.site(node), *self.random.choice((("new = 2",), ("if new:", "    new = 3"))))

    def delete(self) -> None:
        if node := self.one(ast.Expr, ast.Assign):
            self.edit.delete(self.site(node))

    def block(self) -> tuple[Site, Site]:
        """The first and the last of some statements of one block."""
        node = self.one(ast.If, ast.For, ast.FunctionDef, ast.With) or ast.parse(self.text)
        body: list[ast.stmt] = getattr(node, "body")  # noqa: B009  (several types of node have one)
        start = self.random.randrange(len(body))
        return self.site(body[start]), self.site(body[self.random.randrange(start, len(body))])

    def wrap(self) -> None:
        self.edit.wrap(*self.block(), "with new():")

    def lines(self) -> None:
        self.edit.replace_lines(*self.block(), "new = 1", "if new:", "    pass")

    def swap(self) -> None:
        node = self.one(ast.BinOp, ast.Attribute, ast.Call, ast.Compare, ast.Constant)
        if node is not None and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            self.edit.replace(self.site(node), self.random.choice(("new", "a + b", "a if b else c", "a, b", "-1")))

    def extend(self) -> None:
        node = self.one(ast.BinOp, ast.Attribute, ast.Call, ast.Compare)
        if node is not None and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            self.edit.insert_after(self.site(node), self.random.choice((".detach()", " * new")))

    def name(self) -> None:
        if node := self.one(ast.FunctionDef):
            self.edit.name(self.random.choice(("torch.x", "os.cpu_count")), self.site(node))


@pytest.mark.parametrize("style", ["LF", "CRLF", "no final newline"])
def test_random_edits_of_real_code_pass_their_self_check(style: str) -> None:
    numbers = random.Random(style)
    done: list[str] = []
    for path, original in standard_library(35, seed=len(style)):
        text = original.rstrip() if style == "no final newline" else original
        text = text.replace("\n", "\r\n") if style == "CRLF" else text
        vocabulary = Vocabulary(path, text, numbers)
        vocabulary.run(numbers.choice((2, 5, 12)))
        problem = check(vocabulary.edit)
        if problem is not None and "does not compile" in problem:
            # Random steps may break rules of scope ("'x' is used prior to global declaration"), never of syntax.
            ast.parse(vocabulary.edit.apply()[path])
            problem = None
        assert problem is None, f"{path}: {vocabulary.done}"
        for changed_path, new in vocabulary.edit.apply().items():
            assert undone(text, new, vocabulary.edit.changes()[changed_path]) == text
        done += vocabulary.done
    assert len(done) > 80
    assert len(set(done)) >= 10


# --- leaving of an expression what it begins with


def cut(whole: str, part: str) -> Do:
    return lambda edit, text: edit.cut(at(text, whole), at(text, part))


def test_a_part_is_left_of_an_expression_and_may_be_given_an_argument() -> None:
    text = "x = -torch.zeros(2, *n).to(device)  # why\n"
    both = rewritten(
        text,
        lambda edit, text: edit.argument(at(text, "torch.zeros(2, *n)"), "device", "device", keyword_only=True),
        cut("torch.zeros(2, *n).to(device)", "torch.zeros(2, *n)"),
    )
    assert both == "x = -torch.zeros(2, *n, device=device)  # why\n"


def test_the_lines_of_what_goes_go_too() -> None:
    assert rewritten("x = (\n    f(a)\n    .to(b)\n)\n", cut("f(a)\n    .to(b)", "f(a)")) == "x = (\n    f(a)\n)\n"
    assert rewritten("x = (a + b).to(c)\n", cut("(a + b).to(c)", "a + b")) == "x = (a + b)\n"


def test_a_comment_in_what_would_go_is_refused() -> None:
    text = "x = (\n    f(a)  # here\n    .to(b)\n)\n"
    assert refused(text, cut("f(a)  # here\n    .to(b)", "f(a)")) == "a comment stands in what would go of line 2"


def test_an_expression_that_begins_with_something_else_is_refused() -> None:
    assert "does not begin with" in refused("x = g(f(a))\n", cut("g(f(a))", "f(a)"))


def test_unpacked_arguments_cannot_hold_what_is_passed_by_name_alone() -> None:
    assert "`device` may be one of them" in refused("zeros(*n)\n", keyword("device", "d"))
    text = "zeros(**n)\n"
    by_name: Do = lambda edit, text: edit.argument(first(text, ast.Call), "device", "d", keyword_only=True)  # noqa: E731
    assert "a mapping that may hold `device`" in refused(text, by_name)
