"""Notebooks: their code as one text, what of it is not Python, the way back into the JSON, and what results say."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import SLOW, Ran, Run, runner

from turbofix.editing.edit import Edit, Refuse
from turbofix.editing.selfcheck import check_text
from turbofix.engine import project
from turbofix.engine.moves import shift
from turbofix.engine.project import Chosen
from turbofix.engine.reports import FileReport
from turbofix.findings import InPlace
from turbofix.report import diff, renderer
from turbofix.source.files import Source, SourceError, Workspace, decode, python_files
from turbofix.source.magics import MARK, mask, unmask
from turbofix.source.notebook import FENCE, split
from turbofix.source.site import Site

FIXTURES = Path(__file__).parent.parent / "fixtures" / "notebooks"
CHOSEN = Chosen(gpu="ampere", torch_version=(2, 4))
HERE = Path("/project/book.ipynb")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


def code(source: str | list[str], **fields: object) -> dict[str, object]:
    lines = source.splitlines(keepends=True) if isinstance(source, str) else source
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines} | fields


def text_cell(source: str) -> dict[str, object]:
    return {"cell_type": "markdown", "metadata": {}, "source": source.splitlines(keepends=True)}


def book(*cells: dict[str, object], **metadata: object) -> dict[str, object]:
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def written(*cells: dict[str, object], **metadata: object) -> bytes:
    return (json.dumps(book(*cells, **metadata), indent=1, ensure_ascii=False) + "\n").encode()


def good(data: bytes) -> Source:
    source = decode(HERE, data)
    assert isinstance(source, Source), source
    return source


def wrong(data: bytes) -> str:
    source = decode(HERE, data)
    assert isinstance(source, SourceError)
    return source.sentence


def encoded(source: Source, text: str) -> bytes:
    data = source.encode(text)
    assert isinstance(data, bytes), data
    return data


# --- what is not Python -------------------------------------------------------------------------------------------

# Every mark is written `_` here; no cell holds one of its own.
MASKED = [
    ("%matplotlib inline", "__________________"),
    ("x = 1\n!ls -l\ny = 2\n", "x = 1\n______\ny = 2\n"),
    ("for x in y:\n\t%time f(x)\n\t!ls\n", "for x in y:\n\t__________\n\t___\n"),
    ("if x:\n    %run setup.py\n    %run a\ny", "if x:\n    exec(_______)\n    ______\ny"),
    ("files = !ls data", "files = ________"),
    ("a, b = %sql select 1", "a, b = _____________"),
    ("!pip install a \\\n    b\nimport b", "________________\n_____\nimport b"),
    ("if x:\n    !a \\\nb \\\n    c\n    d", "if x:\n    ____\n#__\n    _\n    d"),
    ("out = !a \\\r\n  b\r\nc", "out = ____\r\n___\r\nc"),
    ("model.fit?", "__________"),
    ("model??\nx", "_______\nx"),
    ("?print\nx", "______\nx"),
    ("/f x\n,f a\n;f a\n", "____\n____\n____\n"),
    ("%%time\nx = 1\n!ls", "#%%___\nx = 1\n___"),
    ("\n%%capture out\nx", "\n#%%__________\nx"),
    ("%%bash\nls 'a\n\nls", "#_____\n#____\n\n#_"),
    ("%%writefile a.py\r\nimport torch\r\n", "#_______________\r\n#___________\r\n"),
    ("%%html", "#_____"),
    ("pip install torch", "_________________"),
    ("cd data\n", "_______\n"),
]
PYTHON = [
    "x = (a\n     % b)",
    "x = a \\\n    % b",
    'text = """\n%matplotlib inline\n!ls\n"""',
    "x = '''a\\'''\n!ls'''",
    'print(f"{x=!r}", "why?")  # why?',
    "x %= 3\ny = x != 4",
    "f(x, y='a?')  # !ls",
    "a = [\n    1,  # %%\n    '%d' % 2,\n]",
    "pip = 1",
    "cd (1)",
    "ls",
    "",
]


@pytest.mark.parametrize(("cell", "expected"), MASKED)
def test_what_ipython_adds_is_masked(cell: str, expected: str) -> None:
    masked = mask(cell)
    assert masked.replace(MARK, "_") == expected
    assert len(masked) == len(cell)
    ast.parse(masked)
    assert unmask(masked, cell) == cell
    if not re.match(r"\s*%%(?!time|capture)|pip|cd", cell):
        assert unmask(f"{masked}\nnew = 1", cell) == f"{cell}\nnew = 1"


@pytest.mark.parametrize("cell", PYTHON)
def test_what_python_reads_is_not(cell: str) -> None:
    ast.parse(cell)
    assert mask(cell) == cell


def test_a_mark_that_was_touched_is_not_put_back() -> None:
    cell = "!ls\nx = 1\n!pwd\n"
    masked = mask(cell)
    assert unmask(masked.replace("x = 1", "x = 2"), cell) == "!ls\nx = 2\n!pwd\n"
    assert unmask(masked.replace("\n", "\n\n", 1), cell) == "!ls\n\nx = 1\n!pwd\n"
    assert unmask(masked.replace(MARK, "", 1), cell) is None
    assert unmask(masked[4:], cell) is None
    assert unmask(masked + masked, cell) is None
    assert unmask("y = 1\n" + mask("%%bash\nls"), "%%bash\nls") is None, "a cell magic stays the first line"
    assert unmask(mask("%%bash\nls") + "\ny = 1", "%%bash\nls") is None


# --- reading ------------------------------------------------------------------------------------------------------


def test_the_code_cells_are_one_text() -> None:
    source = good(written(text_cell("# Title"), code("a = 1\nb = 2"), code(""), text_cell("x"), code("%time\nc = 3\n")))
    assert source.text == f"a = 1\nb = 2{FENCE}{FENCE}{MARK * 5}\nc = 3\n"
    assert split(source.text) == ["a = 1\nb = 2", "", f"{MARK * 5}\nc = 3\n"]
    cells = source.cells
    assert cells is not None
    lines = source.text.split("\n")
    assert cells.place(lines.index("a = 1") + 1) == (2, 1)
    assert cells.place(lines.index("b = 2") + 1) == (2, 2)
    assert cells.place(lines.index("c = 3") + 1) == (5, 2)
    assert source.data.decode().split("\n")[cells.file_line(lines.index("c = 3") + 1) - 1].strip() == '"c = 3\\n"'


def test_a_script_has_no_cells() -> None:
    source = decode(Path("/project/a.py"), b"x = 1\n")
    assert isinstance(source, Source)
    assert source.cells is None
    assert split(source.text) == [source.text]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"{", "line 1, column 2"),
        (b"[]", "no list of cells"),
        (b'{"cells": {}}', "no list of cells"),
        (b'{"worksheets": [{"cells": []}], "nbformat": 3}', "nbformat 3"),
        (b'{"cells": [1]}', "cell 1 is not"),
        (b'{"cells": [{"cell_type": "code"}]}', "cell 1 has no source"),
        (b'{"cells": [{"cell_type": "code", "source": null}]}', "cell 1 has no source"),
        (b'{"cells": [{"cell_type": "code", "source": ["a", 1]}]}', "cell 1 has no source"),
        (json.dumps(book()).encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, "cannot be read"),
        (written(code("x = 1"), code(f"{MARK} = 1")), "cell 2 holds the character"),
    ],
)
def test_what_is_no_notebook_is_a_sentence(data: bytes, sentence: str) -> None:
    assert sentence in wrong(data)


def test_code_in_other_languages_is_left_alone() -> None:
    for metadata in ({"kernelspec": {"language": "R"}}, {"language_info": {"name": "julia"}, "kernelspec": {}}):
        assert good(written(code("x <- 1"), **metadata)).text == ""
    for metadata in ({"kernelspec": {"language": "python"}}, {"kernelspec": {}}, {"language_info": {}}, {}):
        assert good(written(code("x = 1"), **metadata)).text == "x = 1"
    other = code("select 1", metadata={"vscode": {"languageId": "sql"}})
    assert good(written(other, code("x = 1", metadata={"vscode": {"languageId": "python"}}))).text == "x = 1"


# --- writing ------------------------------------------------------------------------------------------------------

CELLS = [
    text_cell("# Ünïcode, “quoted” \\ and a /slash/"),
    code("import torch\n\nx = 'ä'  # <b>\ny = 2"),
    code(""),
    code("%%time\ny = '\\\\ \t \"\\x7f 😀'\nz = 3\n"),
]
NEW = [
    ("y = 2", "y = 2\nw = '<ä>'"),
    ("import torch", "import os\nimport torch"),
    ("x = 'ä'  # <b>", "x = 'ä'  # <b> 2"),
    ("z = 3\n", "with y:\n    z = 3\n"),
    ("x = 'ä'  # <b>\n", ""),
]


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(("ends", "bom", "newline"), [("\n", "", "\n"), ("", "\ufeff", "\n"), ("\r\n", "", "\r\n")])
def test_only_the_lines_that_changed_are_written_anew(  # noqa: PLR0913
    indent: int | str | None, ascii_only: bool, single: bool, ends: str, bom: str, newline: str
) -> None:
    def dumped(cells: list[dict[str, object]]) -> bytes:
        shown = [cell | {"source": "".join(cell["source"])} for cell in cells] if single else cells  # type: ignore[arg-type]
        text = json.dumps(book(*shown), indent=indent, ensure_ascii=ascii_only).replace("<", "\\u003C")
        return (bom + text.replace("\n", newline) + ends).encode()

    data = dumped(CELLS)
    source = good(data)
    assert encoded(source, source.text) == data
    for old, new in NEW:
        assert source.text.count(old) == 1
        changed = [
            cell | {"source": "".join(cell["source"]).replace(old, new).splitlines(keepends=True)}  # type: ignore[arg-type]
            if cell["cell_type"] == "code"
            else cell
            for cell in CELLS
        ]
        assert encoded(source, source.text.replace(old, new)).decode() == dumped(changed).decode()


def test_lists_of_other_pieces_than_lines() -> None:
    pieces = ["a", " = 1\nb = 2\n", "c = 3\n", "d", " = 4"]
    source = good(written(code(pieces)))

    def after(old: str, new: str) -> object:
        document = json.loads(encoded(source, source.text.replace(old, new)))
        return document["cells"][0]["source"]

    assert after("c = 3", "c = 5") == ["a", " = 1\nb = 2\n", "c = 5\n", "d", " = 4"]
    assert after("b = 2", "b = 5") == ["a", " = 1\n", "b = 5\n", "c = 3\n", "d", " = 4"]
    assert after("a = 1", "a = 5") == ["a = 5\n", "b = 2\n", "c = 3\n", "d", " = 4"]
    assert after("d = 4", "d = 4\ne = 5") == ["a", " = 1\nb = 2\n", "c = 3\n", "d = 4\n", "e = 5"]
    assert after("c = 3\nd = 4", "") == ["a", " = 1\nb = 2\n"]


def test_the_file_s_own_spelling_and_spacing_are_kept() -> None:
    data = b'{"cells":[{"cell_type":"code","source":[ "a = \\"\\u00E9\\/\\"\\n" ,  "b = \'\\u00E9\'" ]}] }'
    source = good(data)
    assert encoded(source, source.text.replace("b = 'é'", "b = 'é/'\nc")) == data.replace(
        b"\"b = '\\u00E9'\"", b'"b = \'\\u00E9\\/\'\\n" ,  "c"'
    )
    one = b'{"cells": [{"cell_type": "code", "source": ["a = 1"]}]}'
    assert encoded(good(one), "a = 1\nb = 2") == one.replace(b'["a = 1"]', b'["a = 1\\n", "b = 2"]')
    assert encoded(good(one), "") == one.replace(b'["a = 1"]', b"[]")


def test_a_text_that_lost_a_fence_or_a_magic_is_not_written() -> None:
    source = good(written(code("a = 1"), code("!ls\nb = 2")))
    for text in (source.text.replace(FENCE, "\n"), source.text + FENCE, source.text.replace(MARK * 3, "ls")):
        error = source.encode(text)
        assert isinstance(error, SourceError)
        assert "the new text" in error.sentence
        assert check_text(HERE, source.text, text, ()) is not None


# --- edits ----------------------------------------------------------------------------------------------------------


def line(source: Source, text: str) -> Site:
    """The site of the statement that is the whole of a line."""
    number = source.text.split("\n").index(text) + 1
    node = next(each for each in ast.walk(ast.parse(source.text)) if getattr(each, "lineno", 0) == number)
    indent = len(text) - len(text.lstrip())
    return Site(HERE, number, indent, number, len(text), type(node).__name__)


def edited(source: Source) -> Edit:
    return Edit({HERE: source.text}.get)


def test_edits_stay_in_their_cell() -> None:
    source = good(written(code("import torch"), code("# about a\na = 1\n"), code("b = 2"), code("%%time\nc = 3")))
    edit = edited(source)
    edit.after(line(source, "import torch"), "first()")
    edit.before(line(source, "a = 1"), "second()", above_comments=True)
    edit.after(line(source, "a = 1"), "third()")
    edit.before(line(source, "b = 2"), "fourth()", above_comments=True)
    edit.before(line(source, "c = 3"), "fifth()", above_comments=True)
    edit.after(line(source, "c = 3"), "sixth()")
    edit.name("os.path", line(source, "c = 3"))
    text = edit.apply()[HERE]
    assert check_text(HERE, source.text, text, edit.changes()[HERE]) is None
    cells = [cell["source"] for cell in json.loads(encoded(source, text))["cells"]]
    assert cells == [
        ["import os\n", "\n", "import torch\n", "first()"],
        ["second()\n", "\n", "# about a\n", "a = 1\n", "third()\n"],
        ["fourth()\n", "b = 2"],
        ["%%time\n", "fifth()\n", "c = 3\n", "sixth()"],
    ]


def test_edits_that_would_cross_cells_are_refused() -> None:
    source = good(written(code("a = 1"), code("b = 2"), code("if c:\n    !ls\n    d = 4")))
    first, second = line(source, "a = 1"), line(source, "b = 2")
    with pytest.raises(Refuse, match="spread over several cells"):
        edited(source).wrap(first, second, "with x:")
    with pytest.raises(Refuse, match="spread over several cells"):
        edited(source).replace_lines(first, second, "c = 3")
    condition = Site(HERE, source.text.split("\n").index("if c:") + 1, 0, source.text.count("\n") + 1, 9, "If")
    with pytest.raises(Refuse, match="a magic or a shell line"):
        edited(source).replace_lines(condition, condition, "c = 3")
    with pytest.raises(Refuse, match="a magic or a shell line"):
        edited(source).delete(condition)
    edit = edited(source)
    edit.wrap(condition, condition, "with x:")
    new = json.loads(encoded(source, edit.apply()[HERE]))["cells"][2]["source"]
    assert "".join(new) == "with x:\n    if c:\n        !ls\n        d = 4"


@pytest.mark.parametrize("gone", [["a = 1"], ["b = 2"], ["c = 3"], ["a = 1", "b = 2"], ["b = 2", "c = 3"]])
def test_statements_of_several_cells_are_deleted_cell_by_cell(gone: list[str]) -> None:
    source = good(written(code("a = 1"), code("b = 2"), code("# about c\nc = 3\nd = 4")))
    edit = edited(source)
    for each in gone:
        edit.delete(line(source, each))
    text = edit.apply()[HERE]
    assert check_text(HERE, source.text, text, edit.changes()[HERE]) is None
    cells = ["".join(cell["source"]) for cell in json.loads(encoded(source, text))["cells"]]
    assert cells == ["" if "a = 1" in gone else "a = 1", "" if "b = 2" in gone else "b = 2", cells[2]]
    assert cells[2].splitlines() == ["# about c", *(["c = 3"] if "c = 3" not in gone else []), "d = 4"]


# --- codemods -------------------------------------------------------------------------------------------------------


def rewritten(data: bytes, folder: Path, chosen: Chosen = CHOSEN) -> tuple[bytes, project.Outcome]:
    path = folder / "book.ipynb"
    path.write_bytes(data)
    workspace = Workspace()
    outcome = project.rewrite([path], chosen, workspace, 1)
    assert not outcome.errors
    assert not outcome.notes
    contents, errors = project.encode(outcome.texts, workspace)
    assert not errors
    assert contents.keys() <= {path}
    return contents.get(path, data), outcome


@pytest.mark.parametrize(
    ("name", "codemods"),
    [
        (
            "digits",
            "loader-workers pin-memory non-blocking autocast fused-optimizer defer-item",
        ),
        ("names", "fused-optimizer defer-item"),
        ("dataset", "loader-workers pin-memory"),
    ],
)
def test_fixtures_are_rewritten_as_expected_and_only_once(name: str, codemods: str, tmp_path: Path) -> None:
    before, after = ((FIXTURES / f"{name}.{kind}.ipynb").read_bytes() for kind in ("in", "out"))
    assert before != after
    new, outcome = rewritten(before, tmp_path)
    assert {each.codemod for rewriting in outcome.rewritings for each in rewriting.stages} == set(codemods.split())
    assert new.decode() == after.decode()
    assert rewritten(after, tmp_path)[0] == after, "a second run must change nothing"
    old_cells, new_cells = json.loads(before)["cells"], json.loads(after)["cells"]
    kept = [{**cell, "source": None} for cell in old_cells]
    assert kept == [{**cell, "source": None} for cell in new_cells], "only sources may change"


@pytest.mark.parametrize("name", ["digits", "writefile"])
def test_twins_are_left_alone(name: str, tmp_path: Path) -> None:
    data = (FIXTURES / f"{name}.noop.ipynb").read_bytes()
    new, outcome = rewritten(data, tmp_path)
    assert new == data
    assert not [each for each in outcome.findings if each.fixable and each.certainty == "proven"]


def test_a_dataset_of_the_notebook_s_own_is_not_sent_to_spawned_workers(tmp_path: Path) -> None:
    _, outcome = rewritten((FIXTURES / "dataset.in.ipynb").read_bytes(), tmp_path)
    finding = next(each for each in outcome.findings if each.codemod == "loader-workers")
    assert "defined in the notebook" in finding.message
    assert (outcome.spot(finding.site).cell, outcome.spot(finding.site).line) == (3, 1)


# --- what results say -----------------------------------------------------------------------------------------------

SLOW_LINES = SLOW.splitlines(keepends=True)
# The imports, the device, the data and the model; text and a magic between them; the loop.
PARTS = ["".join(SLOW_LINES[:4]), "%time\n" + "".join(SLOW_LINES[5:10]), "".join(SLOW_LINES[10:])]


def slow(*, third: str = PARTS[2]) -> bytes:
    return written(text_cell("# Title"), code(PARTS[0]), code(PARTS[1]), text_cell("so"), code(third))


def analyzed(run: Run, tmp_path: Path, form: str, data: bytes | None = None) -> Ran:
    (tmp_path / "book.ipynb").write_bytes(data or slow())
    return run("analyze", "--gpu", "ampere", "--output-format", form, "book.ipynb")


def file_line(data: bytes, start: str) -> int:
    return next(number for number, line in enumerate(data.decode().split("\n"), 1) if line.strip().startswith(start))


def test_json_has_the_cell_and_the_line_in_it(run: Run, tmp_path: Path) -> None:
    ran = analyzed(run, tmp_path, "json")
    assert ran.code == 1
    found = {each["codemod"]: each for each in json.loads(ran.out)["findings"]}
    pin = found["pin-memory"]
    assert (pin["cell"], pin["line"], pin["column"], pin["end_line"]) == (3, 4, 10, 4)
    assert "(cell 5, line 3)" in pin["message"]
    cast = found["autocast"]
    assert (cast["cell"], cast["line"]) == (5, 5)
    right = (FIXTURES / "digits.noop.ipynb").read_bytes()
    places = json.loads(analyzed(run, tmp_path, "json", right).out)["files"][0]["in_place"]
    assert ("pin-memory", 4, 2) in {(each["codemod"], each["cell"], each["line"]) for each in places}


def test_a_script_s_json_has_no_cell(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW)
    for each in json.loads(run("analyze", "--output-format", "json", "train.py").out)["findings"]:
        assert "cell" not in each


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("concise", "book.ipynb:cell 3:4:10: pin-memory [*] "),
        ("markdown", "| `book.ipynb:cell 3:4:10` | `pin-memory` |"),
        ("rich", "cell 3:4:10  "),
    ],
)
def test_the_other_formats_name_the_cell(form: str, text: str, run: Run, tmp_path: Path) -> None:
    analyzed(run, tmp_path, form)
    ran = run("analyze", "--verbose", "--output-format", form, "book.ipynb")
    assert text in ran.out
    assert re.search(r"\(cell\s+5,\s+line\s+3\)", ran.out)
    assert MARK not in ran.out


def test_annotations_stand_on_the_lines_of_the_file(run: Run, tmp_path: Path) -> None:
    place = file_line(slow(), '"loader = ')
    ran = analyzed(run, tmp_path, "github")
    pin = next(each for each in ran.out.splitlines() if "(pin-memory)" in each)
    assert f"file=book.ipynb,line={place},endLine={place}::cell 3, line 4: " in pin
    results = json.loads(analyzed(run, tmp_path, "sarif").out)["runs"][0]["results"]
    found = next(each for each in results if each["ruleId"] == "pin-memory")
    assert found["locations"][0]["physicalLocation"]["region"] == {"startLine": place, "endLine": place}
    assert found["message"]["text"].startswith("Cell 3, line 4: ")


def test_lines_are_named_in_cells_but_not_in_quoted_code() -> None:
    cells = good(slow()).cells
    assert cells is not None
    lines = good(slow()).text.split("\n")
    assert (lines[0], lines[8][:6], lines[16][:3]) == ("import torch", "device", "for")
    sentence = "`print('line 9')` on line 9; lines 1 and 17; (timeline 3, line 17)"
    place = Site(HERE, 8, 0, 8, 1, "Call")
    elsewhere = Site(HERE.with_name("engine.py"), 8, 0, 8, 1, "Call")
    right = tuple(InPlace("autocast", site, sentence) for site in (place, elsewhere))
    told = project.told_in_cells(FileReport(HERE, "pytorch", True, in_place=right), cells)
    assert [each.message for each in told.in_place] == [
        "`print('line 9')` in cell 3, line 2; cell 2, line 1 and cell 5, line 1; (timeline 3, cell 5, line 1)",
        sentence,
    ]


def test_a_cell_that_is_not_python_is_a_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(SLOW)
    for cell, sentence in (
        ("import torch\nprint 'x'", "book.ipynb:cell 2:2:1: this is Python 2"),
        ("import torch\nfor x in y:\npass", "book.ipynb:cell 2:3:1: Python"),
        ("  x = 1\n", "book.ipynb:cell 2:1:"),
    ):
        data = written(text_cell("a"), code(cell))
        (tmp_path / "book.ipynb").write_bytes(data)
        for command in ("analyze", "apply"):
            ran = run(command, "book.ipynb", "good.py")
            assert ran.code == 2, sentence
            assert sentence in ran.err
            assert "good.py" in ran.out
        assert (tmp_path / "book.ipynb").read_bytes() == data


@pytest.mark.parametrize("broken", ["  x = 1\n y", ")", "print 'so far'\n\n%time\n", '"""', "@decorated"])
def test_a_cell_that_no_python_reads_is_left_out(broken: str, run: Run, tmp_path: Path) -> None:
    cells = [broken, PARTS[0], broken, PARTS[1], PARTS[2], broken]
    new, outcome = rewritten(cells_of(cells), tmp_path)
    assert b"torch.autocast" in new
    sources = ["".join(cell["source"]) for cell in json.loads(new)["cells"]]
    assert [each for each in sources if each not in PARTS].count(broken) == 3
    assert rewritten(new, tmp_path)[0] == new
    said = "book.ipynb:cell {}: Python cannot read this cell, so it cannot run: it was left out"
    assert [warning.endswith(said.format(n)) for warning, n in zip(outcome.warnings, (1, 3, 6), strict=True)] == [
        True
    ] * 3
    assert f"warning: {said.format(1)}" in run("analyze", "book.ipynb").err
    assert run("analyze", "book.ipynb").code != 2


def test_a_cell_that_is_left_out_is_never_written() -> None:
    source = good(written(code("a = 1"), code(")")))
    assert split(source.text) == ["a = 1", "#"]
    assert "cell 2" in getattr(source.encode(source.text + "\nb = 2"), "sentence", "")


def test_the_diff_is_one_that_git_takes(run: Run, tmp_path: Path) -> None:
    data = slow().rstrip(b"\n")
    (tmp_path / "book.ipynb").write_bytes(data)
    ran = run("apply", "--gpu", "ampere", "book.ipynb")
    assert ran.code == 1
    (tmp_path / "change.diff").write_bytes(ran.raw)
    ran = run("apply", "--gpu", "ampere", "--write", "book.ipynb")
    assert ran.code == 0
    by_us = (tmp_path / "book.ipynb").read_bytes()
    (tmp_path / "book.ipynb").write_bytes(data)
    subprocess.run(["git", "apply", "change.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "book.ipynb").read_bytes() == by_us
    assert "pin_memory" in by_us.decode()
    ran = run("apply", "--gpu", "ampere", "book.ipynb")
    assert (ran.code, ran.out) == (0, "")


def test_comments_suppress_in_cells(run: Run, tmp_path: Path) -> None:
    def codemods(data: bytes) -> set[str]:
        return {each["codemod"] for each in json.loads(analyzed(run, tmp_path, "json", data).out)["findings"]}

    everything = codemods(slow())
    assert {"autocast", "non-blocking"} <= everything
    silenced = re.sub(r"(images, labels = .*)", r"\1  # turbofix: ignore[non-blocking]", PARTS[2])
    assert codemods(slow(third=silenced)) == everything - {"non-blocking"}
    skipping = written(code("# turbofix: skip-file\n" + PARTS[0]), code(PARTS[1]), code(PARTS[2]))
    assert codemods(skipping) == set()


def test_folders_are_searched_for_notebooks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a" / ".ipynb_checkpoints").mkdir(parents=True)
    for place in ("a/book.ipynb", "a/.ipynb_checkpoints/book-checkpoint.ipynb"):
        (tmp_path / place).write_bytes(slow())
    assert python_files(tmp_path) == [tmp_path / "a" / "book.ipynb"]
    assert "a/book.ipynb:cell 3:4:10: pin-memory" in run("analyze", "--output-format", "concise").out
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert python_files(tmp_path) == [tmp_path / "a" / "book.ipynb"]


def test_a_module_beside_the_notebook_changes_with_it(run: Run, tmp_path: Path) -> None:
    epoch = "".join(SLOW_LINES[11:])
    (tmp_path / "engine.py").write_text(
        f"from torch import nn\n\n\ndef train(model, loader, optimizer, device):\n{epoch}"
    )
    call = "from engine import train\nfor epoch in range(3):\n    train(model, loader, optimizer, device)"
    (tmp_path / "book.ipynb").write_bytes(slow(third=call))
    ran = run("analyze", "--gpu", "ampere", "--output-format", "concise", "book.ipynb")
    assert re.search(r"^engine\.py:\d+:\d+: non-blocking", ran.out, re.MULTILINE)
    assert "book.ipynb:cell 3:4:10: pin-memory" in ran.out


def test_places_move_with_the_edits_before_them() -> None:
    source = good(slow())
    edit = edited(source)
    edit.name("os.path", line(source, SLOW_LINES[6].rstrip("\n")))
    number = source.text.split("\n").index(SLOW_LINES[7].rstrip("\n")) + 1
    moved = shift(source.text, edit.changes()[HERE], number, 0)[0]
    new = decode(HERE, encoded(source, edit.apply()[HERE]))
    assert isinstance(new, Source)
    assert new.cells is not None
    assert new.cells.place(moved) == (3, 4)
    workspace = Workspace({HERE: source}).with_texts(edit.apply())
    assert workspace.cells(HERE) == new.cells
    assert diff.render({HERE: new.data}, Workspace({HERE: source})).count(b"\n+") == 2 + 1


def test_every_format_renders_nothing() -> None:
    for name in ("concise", "json", "sarif", "github", "markdown"):
        assert isinstance(renderer(name)(project.Outcome(())), str)


def cells_of(parts: Sequence[str]) -> bytes:
    return written(*(code(part) for part in parts))


def test_a_file_that_is_run_in_the_notebook_may_change_any_name(tmp_path: Path) -> None:
    new, outcome = rewritten(cells_of([PARTS[0], PARTS[1], "%run settings.py", PARTS[2]]), tmp_path)
    assert b"torch.autocast" not in new
    found = next(each for each in outcome.findings if each.codemod == "autocast")
    assert [each.name for each in found.assumes] == ["learns-in-16-bits"]


def test_what_follows_an_exit_is_not_looked_at(tmp_path: Path) -> None:
    _, outcome = rewritten(cells_of([PARTS[0], PARTS[1], "exit()", PARTS[2]]), tmp_path)
    assert not outcome.findings


def test_a_switch_goes_behind_the_imports_where_torch_is_only_called_by_helpers(tmp_path: Path) -> None:
    helper = "def make(n):\n    return torch.zeros(n)"
    wide = PARTS[1].replace("nn.Linear(", "nn.Linear(4096, 4096), nn.Linear(")
    chosen = Chosen(
        select=("tf32",), gpu="ampere", torch_version=(2, 4)
    )  # autocast, which brings more, would make it void
    new, _ = rewritten(cells_of([PARTS[0], "n = 3", helper, "make(n)", wide, PARTS[2]]), tmp_path, chosen)
    cells = ["".join(cell["source"]) for cell in json.loads(new)["cells"]]
    assert cells[1] == 'torch.set_float32_matmul_precision("high")\nn = 3'
    new, _ = rewritten(cells_of([PARTS[0], helper, "make(n)", wide, PARTS[2]]), tmp_path, chosen)
    cells = ["".join(cell["source"]) for cell in json.loads(new)["cells"]]
    assert cells[2] == 'torch.set_float32_matmul_precision("high")\nmake(n)', "no statement stands behind the imports"


def test_a_name_that_a_later_cell_binds_anew(tmp_path: Path) -> None:
    """The cell that runs last wins: the optimizer that steps is the second one, which is fused already."""
    again = "optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)"
    new, _ = rewritten(cells_of([PARTS[0], PARTS[1], again, PARTS[2]]), tmp_path)
    assert b"lr=1e-3)" in new
    assert b"lr=1e-4, fused=True)" in new
