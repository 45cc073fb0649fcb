"""The self-check finds what an edit must never do, and lets through what it may."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from sites import BOM, PATH, at, edit_of

from turbofix.editing.changes import Change, Role, changed
from turbofix.editing.edit import Edit
from turbofix.editing.selfcheck import check, check_text, unbound
from turbofix.source.nodes import stretches


def problem(old: str, *changes: Change) -> str:
    """What the self-check says of changes that an engine with a bug might make."""
    return check_text(PATH, old, changed(old, changes), changes) or ""


def test_a_text_that_does_not_compile() -> None:
    assert "does not compile" in problem("x = 1\n", Change(4, 5, "("))
    assert "does not compile" in problem("if x:\n    a()\n", Change(6, 10, ""))
    assert "keyword argument repeated" in problem("f(a=1)\n", Change(5, 5, ", a=2", Role.ADDED))
    assert problem("x = 1\n", Change(4, 5, "2")) == ""


def test_what_did_not_compile_before_need_not_compile_now() -> None:
    assert problem("return x\n", Change(7, 8, "y")) == ""
    assert problem("await x\n", Change(6, 7, "y")) == ""


def test_invalid_escapes_of_the_user_are_no_error() -> None:
    assert problem('x = "\\d"\ny = 1\n', Change(13, 14, "2")) == ""


@pytest.mark.parametrize(
    ("old", "change"),
    [
        ("s = '''a\nb'''\n", Change(9, 9, "    ", Role.INDENT)),
        ("s = f'''{a}\nb'''\n", Change(12, 12, "    ", Role.INDENT)),
        ('s = "a \\\n  b"\n', Change(9, 11, "", Role.INDENT)),
    ],
)
def test_a_string_whose_contents_change(old: str, change: Change) -> None:
    assert problem(old, change) != ""


def test_indentation_put_into_a_string_is_named() -> None:
    assert "a string of train.py is not what it was" in problem("s = '''a\nb'''\n", Change(9, 9, " ", Role.INDENT))


def test_strings_that_were_replaced_may_go_and_expressions_in_f_strings_change() -> None:
    assert problem("x = f('high')\n", Change(6, 12, "'low'")) == ""
    text = "print(f'{x:.3f} {y}')\n"
    assert problem(text, Change(9, 10, "x.item()")) == ""
    assert problem(text, Change(10, 10, ".item()", Role.SUFFIX)) == ""


def test_a_comment_that_gets_lost() -> None:
    assert "a comment of train.py would be lost: # why" in problem("x = 1  # why\ny = 2\n", Change(0, 13, ""))
    assert problem("x = 1  # why\ny = 2\n", Change(0, 13, "# why\n", lines=True)) == ""
    assert "would be lost: # one" in problem("f(a,  # one\n  b)\n", Change(3, 14, ", "))
    rewritten = Change(0, 25, "z = 3", rewrites=True)
    assert problem("x = 1\n# about y\ny = 2  # why\n", Change(0, 21, "z = 3", rewrites=True)) == ""
    assert problem("x = 1\n# about y\ny = 2  # why\n", rewritten) != ""


def test_a_comment_that_swallows_code() -> None:
    assert "does not compile" in problem("x = f(a)\n", Change(7, 7, "  # b", Role.ADDED))
    assert "code of train.py is not what it was: ;" in problem("x = 1; y = 2\n", Change(5, 5, "  # b", Role.ADDED))


def test_a_string_that_is_opened_in_one_statement_and_ends_in_another() -> None:
    text = "a = 1\nb = 2\nc = 3  # '''\n"
    assert "code of train.py is not what it was: b" in problem(text, Change(4, 5, "'''"))


def test_what_is_lost_in_any_of_the_statements_that_change() -> None:
    text = "a = 1\nb = f(23, 4)\nc = 5  # why\n"
    assert "code of train.py is not what it was: 23" in problem(
        text, Change(4, 5, "6"), Change(13, 14, "", Role.INDENT)
    )
    assert problem(text, Change(4, 5, "6"), Change(12, 14, "7"), Change(23, 24, "8")) == ""


CLASS = """\
class Trainer(Base):  # of this file
    rate = 0.1

    # what a step is
    @timed
    def step(self, x):
        loss = self.model(x)  # why
        return loss

    def last(self):
        return "last"


def other(x):
    while x:
        try:
            x = f(x)  # first
            y = (x,
    2)
        except E: pass  # second
        else:
            # third
            return "found"
    return 1
"""


def test_what_is_lost_in_a_method() -> None:
    def put(old: str, new: str, *, text: str = CLASS, lines: bool = False) -> str:
        start = text.index(old)
        return problem(
            text, Change(start, start + len(old), new, Role.INDENT if not lines else Role.ADDED, lines=lines)
        )

    assert put("(x)  # why", "(x.half())  # why", lines=True) == ""
    assert "a comment of train.py would be lost: # why" in put("  # why", "", lines=True)
    assert "would be lost: # what a step is" in put("    # what a step is\n", "", lines=True)
    assert "code of train.py is not what it was: self" in put("self.model", "")
    assert 'a string of train.py is not what it was: "last"' in put('"last"', "")
    assert put("x = f(x)  #", "x = g(x)\n            z = 1  #", lines=True) == ""
    assert "would be lost: # first" in put("f(x)  # first", "f(x)", lines=True)
    assert "code of train.py is not what it was: 2" in put("2)", ")")
    assert "code of train.py is not what it was: pass" in put("pass", "0")
    assert "would be lost: # third" in put("            # third\n", "", lines=True)
    assert put("# third\n            ", "", lines=True).endswith("would be lost: # third")
    assert 'a string of train.py is not what it was: "found"' in put('"found"', "")
    opened = CLASS.replace("return 1", "return 1  # '''")
    assert "is not what it was" in put("0.1", "'''", text=opened)


@pytest.mark.parametrize(
    ("at", "lines"),
    [
        ("rate", "    rate = 0.1\n"),
        ("model", "        loss = self.model(x)  # why\n"),
        ("x):\n        loss", CLASS[CLASS.index("\n    # what") : CLASS.index("\n    def last")]),
        ("while", CLASS[CLASS.index("    while") : CLASS.index("    return 1")]),
        ("first", "            x = f(x)  # first\n"),
        ("2)", "            y = (x,\n    2)\n"),
        ("pass", CLASS[CLASS.index("        try") : CLASS.index("    return 1")]),
        ("found", '            return "found"\n'),
        ("return 1", CLASS[CLASS.index("    return 1") :]),
    ],
)
def test_the_least_that_needs_to_be_read(at: str, lines: str) -> None:
    start = CLASS.index(at)
    ((first, last),) = stretches(CLASS, [(start + 1, start + 2)])
    assert CLASS[first:last] == lines


def test_statements_that_share_a_last_line_without_an_end() -> None:
    text = "import a\nb = 1; c = 2; d = 3"
    ((first, last),) = stretches(text, [(text.index("c"), text.index("c") + 1)])
    assert text[first:last] == "b = 1; c = 2; d = 3"


def test_a_name_that_is_cut_in_two() -> None:
    assert "code of train.py is not what it was: loss" in problem("loss = 1\n", Change(2, 2, "_", Role.SUFFIX))


def test_line_endings() -> None:
    assert "line endings" in problem("x = 1\r\ny = 2\r\n", Change(0, 0, "z = 3\n", Role.BEFORE))
    assert "the end of train.py" in problem("x = 1", Change(5, 5, "\ny = 2\n", Role.AFTER))
    assert "the end of train.py" in problem("x = 1\ny = 2\n", Change(5, 12, ""))
    assert problem("x = 1", Change(5, 5, "\ny = 2", Role.AFTER)) == ""
    assert problem("x = 1\r\ny = 2\n", Change(0, 0, "z = 3\n", Role.BEFORE)) == ""


def test_byte_order_mark() -> None:
    assert "byte-order mark" in problem(f"{BOM}x = 1\n", Change(0, 0, "y = 2\n", Role.BEFORE))
    assert problem(f"{BOM}x = 1\n", Change(1, 1, "y = 2\n", Role.BEFORE)) == ""


def test_changes_that_do_not_lead_to_the_text() -> None:
    old, change = "x = 1\ny = 2\n", Change(4, 5, "3")
    assert "does not give the original" in (check_text(PATH, old, "x = 3\ny = 0\n", [change]) or "")
    assert "overlap" in (check_text(PATH, old, old, [Change(0, 5, "x = 1"), Change(4, 5, "1")]) or "")


FORWARD = "import torch\nloss = model(x)\nloss.backward()\n"


@pytest.mark.parametrize(
    ("header", "covers", "wrong"),
    [
        ("with torch.autocast('cuda'):", 2, True),
        ("with torch.autocast('cuda'):", 1, False),
        ("with torch.amp.autocast('cuda', enabled=amp):", 2, True),
        ("with torch.no_grad(), torch.autocast('cuda'):", 2, True),
        ("with torch.no_grad():", 2, False),
    ],
)
def test_backward_under_autocast(header: str, covers: int, wrong: bool) -> None:
    lines = FORWARD.splitlines(keepends=True)
    inside = "".join(f"    {line}" for line in lines[1 : 1 + covers])
    change = Change(len(lines[0]), len(lines[0] + "".join(lines[1 : 1 + covers])), f"{header}\n{inside}", lines=True)
    assert ("under autocast" in problem(FORWARD, change)) is wrong


def test_autocast_is_known_under_other_names() -> None:
    for head, name in (("from torch import autocast as ac\n", "ac('cuda')"), ("ctx = torch.autocast('cuda')\n", "ctx")):
        old = f"{head}optimizer.step()\n"
        change = Change(len(head), len(old), f"with {name}:\n    optimizer.step()\n", lines=True)
        assert "under autocast" in problem(old, change)


def test_steps_already_under_autocast_are_the_users() -> None:
    old = "with torch.autocast('cuda'):\n    loss.backward()\n    x = 1\n"
    assert problem(old, Change(old.index("1"), old.index("1") + 1, "2")) == ""
    nested = "with torch.autocast('cuda'):\n    pass\n"
    inner = "def closure():\n        loss.backward()"
    assert problem(nested, Change(nested.index("pass"), nested.index("pass") + 4, inner)) == ""


def test_check_looks_at_every_file_of_an_edit() -> None:
    edit = edit_of("x = 1\n", "y = 2\n")
    edit.replace(at("x = 1\n", "1"), "3")
    assert check(edit) is None

    other = PATH.with_name("module_1.py")

    class Broken(Edit):
        """An engine with a bug in its second file."""

        def apply(self) -> Mapping[Path, str]:
            return {**super().apply(), other: "y = (\n"}

        def changes(self) -> Mapping[Path, tuple[Change, ...]]:
            return {**super().changes(), other: (Change(4, 5, "("),)}

    broken = Broken({PATH: "x = 1\n", other: "y = 2\n"}.get)
    broken.replace(at("x = 1\n", "1"), "3")
    broken.text(at("y = 2\n", "2", path=other))
    assert "the rewritten module_1.py does not compile" in (check(broken) or "")


def test_a_name_that_nothing_binds_there() -> None:
    text = "pinned = 1\n\n\nclass Trainer:\n    def fit(self):\n        return self.pinned\n"
    for place, written, wrong in (
        ("1", "self.pinned", "self"),
        ("self.pinned", "self.other", ""),
        ("1", "len(())", ""),
    ):
        edit = edit_of(text)
        edit.replace(at(text, place), written)
        assert unbound(edit) == (f"`{wrong}` is not known where it would stand in {PATH.name}" if wrong else None)
