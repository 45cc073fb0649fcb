"""Functions that do nothing but print: which tests around the print may be asked less often."""

from __future__ import annotations

import ast

import pytest

from turbofix.program.printers import inner_print


@pytest.mark.parametrize(
    ("test", "prints"),
    [
        ("rank == 0", True),
        ("torch.distributed.get_rank() == 0", True),
        ("int(os.environ.get('RANK', 0)) == 0", True),
        ("questions.get()", False),
        ("next(turns)", False),
        ("text", False),
    ],
)
def test_a_print_under_a_test_that_changes_nothing_only_prints(test: str, prints: bool) -> None:
    (function,) = ast.parse(f"def say(text):\n    if {test}:\n        print(text)\n").body
    assert (inner_print(function) is not None) is prints
