"""Tables of cases: how they are read, and that they stay few."""

from __future__ import annotations

import cases
import pytest
from cases import Case, TableError

TABLE = """\
What is above the first case is for readers.
=== flat: rewrite
worth: small
import torch
for x in data:
    step(x)
    step(x)
--- becomes
-    step(x)
+    step(x, fast=True)
=== twice: rewrite, from flat
assumes: one-size
says: words
+import os
     step(x)
-    step(x)
+    step(x, 2)
--- becomes as flat
=== short: refuse, from twice
refuse: a reason
 import torch
-...
+pass
=== two: rewrite
import engine
--- file engine.py
f()

--- becomes engine.py
+import torch
=== two_again: noop, from two
--- without engine.py
--- file other.py
=== last: noop, from two
--- change engine.py
+g()
"""


def read(text: str) -> dict[str, Case]:
    found: dict[str, Case] = {}
    cases.read("pin_memory", text, found)
    return found


def test_a_table_is_read_as_whole_texts() -> None:
    script = "import torch\nfor x in data:\n    step(x)\n    step(x)\n"
    found = read(TABLE.replace("-...\n", "-...\n-    step(x, 2)\n"))
    assert list(found) == ["flat", "twice", "short", "two", "two_again", "last"]
    flat, twice = found["flat"], found["twice"]
    assert flat.codemod == "pin-memory"
    assert flat.before == {"train.py": "# worth: small\n" + script}
    assert flat.after == {"train.py": "# worth: small\n" + script.replace("(x)", "(x, fast=True)", 1)}
    assert twice.text == "# assumes: one-size\n# says: words\nimport os\n" + script[:-4] + "(x, 2)\n"
    assert twice.after == {"train.py": twice.text.replace("(x)", "(x, fast=True)")}
    assert (twice.header("says"), twice.header("worth"), flat.header("worth")) == (["words"], [], ["small"])
    assert found["short"].after == {"train.py": "# refuse: a reason\nimport os\nimport torch\npass\n"}
    assert found["two"].before == {"train.py": "import engine\n", "engine.py": "f()\n\n"}
    assert found["two"].after == {"train.py": "import engine\n", "engine.py": "import torch\nf()\n\n"}
    assert found["two_again"].before == {"train.py": "import engine\n", "other.py": ""}
    assert found["last"].before == {"train.py": "import engine\n", "engine.py": "g()\nf()\n\n"}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("=== a: rewritten\n", "no header"),
        ("=== a: noop\nx = 1\n=== a: noop\nx = 1\n", "there twice"),
        ("=== a: noop, from b\n", "no b above"),
        ("=== a: rewrite\nx = 1\n", "says what the program becomes"),
        ("=== a: noop\nx = 1\n--- becomes\n+x = 2\n", "says what the program becomes"),
        ("=== a: noop\nx = 1\n--- changes\n", "no section"),
        ("=== a: noop\nx = 1\n=== b: noop, from a\n-x = 2\n", "pin_memory/b: no line 'x = 2' is there"),
        ("=== a: noop\nx = 1\n=== b: noop, from a\nx = 2\n", "no line of a change"),
        ("=== a: noop\nx = 1\n=== b: noop, from a\n-x = 1\n-...\n", "stands before the line"),
        ("=== a: noop\nx = 1\n=== b: noop, from a\n--- change c.py\n+x\n", "no file c.py"),
    ],
)
def test_a_mistake_in_a_table_is_told(table: str, told: str) -> None:
    with pytest.raises(TableError, match=told):
        read(table)


def test_fixtures_stay_few() -> None:
    files = [path for path in cases.FIXTURES.rglob("*") if path.suffix in (".py", ".txt", ".tsv", ".md", ".ipynb")]
    assert sum(path.read_bytes().count(b"\n") for path in files) <= 16500
