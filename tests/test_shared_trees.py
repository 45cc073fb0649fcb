"""A text has one tree as long as somebody holds it: nodes are told apart by identity."""

from __future__ import annotations

import gc
import weakref

from turbofix.source.nodes import parse


def read_many() -> None:
    for number in range(2 * (parse.cache_info().maxsize or 0)):
        parse(f"another = {number}\n")


def test_a_tree_in_use_is_given_again_after_many_others() -> None:
    held = parse("kept = 'in use'\n")
    read_many()
    assert parse("kept = 'in use'\n") is held


def test_a_tree_that_nobody_holds_goes() -> None:
    gone = weakref.ref(parse("kept = 'by nobody'\n"))
    read_many()
    gc.collect()
    assert gone() is None
