"""YAML and JSON files as codemods change them: a value or an entry, and everything else as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Run, runner

from turbofix.editing.edit import Edit, Refuse
from turbofix.editing.selfcheck import check
from turbofix.source.datafile import DataText, NotPlainError
from turbofix.source.datafile import lost as found_lost
from turbofix.source.site import Site

PATH = Path("/project/zero.json")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


def given(text: str, before: str | None = None) -> str:
    edit = Edit({PATH: text}.get)
    top = DataText(PATH, text).site()
    assert top is not None
    edit.setting(top, "bf16", '{"enabled": True}', before)
    assert check(edit) is None
    return edit.apply()[PATH]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", '{"bf16": {"enabled": true}}'),
        ('{"a": 1}\n', '{"a": 1, "bf16": {"enabled": true}}\n'),
        ('{"a":{"b":1}}', '{"a":{"b":1},"bf16":{"enabled":true}}'),
        ('{\n  "a": 1\n}\n', '{\n  "a": 1,\n  "bf16": {\n    "enabled": true\n  }\n}\n'),
        ('{\n\t"a": {"b": [1, {}]}\n}', '{\n\t"a": {"b": [1, {}]},\n\t"bf16": {"enabled": true}\n}'),
        ('{\r\n  "a": "}\\"{"\r\n}\r\n', '{\r\n  "a": "}\\"{",\r\n  "bf16": {\r\n    "enabled": true\r\n  }\r\n}\r\n'),
        ('{ "a": 1\n, "b": 2 }', '{ "a": 1\n, "b": 2, "bf16": {"enabled": true} }'),
    ],
)
def test_an_entry_is_laid_out_as_the_others(text: str, expected: str) -> None:
    assert given(text) == expected
    assert json.loads(expected)["bf16"] == {"enabled": True}


def test_an_entry_comes_before_another_one() -> None:
    assert given('{\n "z": 1,\n "a": 2\n}', "a") == '{\n "z": 1,\n "bf16": {\n  "enabled": true\n },\n "a": 2\n}'
    assert given('{"z": 1, "a": 2}', "z") == '{"bf16": {"enabled": true}, "z": 1, "a": 2}'


def test_values_are_found_by_their_keys() -> None:
    file = DataText(PATH, '{\n  "é": [1, 2],\n  "fp16": {"enabled": false}\n}')
    site = file.site("fp16", "enabled")
    assert site is not None
    assert (site.line, site.column, site.end_column, site.kind) == (3, 22, 27, "value")
    assert file.site("fp16", "loss_scale") is None
    assert file.site("é", "fp16") is None


@pytest.mark.parametrize("text", ['{"a": 1, // why\n"b": 2}', "[1]", '{"a": 1, "a": 2}', "", "{'a': 1}"])
def test_what_is_not_plain_json_is_left_alone(text: str) -> None:
    with pytest.raises(NotPlainError):
        DataText(PATH, text)


def test_an_entry_that_is_there_is_not_given_again() -> None:
    text = '{"bf16": {}}'
    top = DataText(PATH, text).site()
    assert top is not None
    with pytest.raises(Refuse):
        Edit({PATH: text}.get).setting(top, "bf16", "{}")


def test_a_value_that_is_lost_is_seen() -> None:
    def lost(old: str, new: str) -> bool:
        return found_lost(DataText(PATH, old).top, DataText(PATH, new).top)

    assert not lost('{"a": {"b": 1}}', '{"n": 0, "a": {"b": 1, "c": 2}}')
    assert lost('{"a": 1, "b": 2}', '{"b": 2, "a": 1}')
    assert lost('{"a": 1}', '{"a": true}')
    assert lost('{"a": {"b": 1}}', '{"a": {}}')


YAML = Path("/project/base.yaml")


def replaced(text: str, keys: str, value: str) -> str:
    """A YAML text with another value under a path of keys, checked."""
    edit = Edit({YAML: text}.get)
    site = DataText(YAML, text).site(*keys.split("."))
    assert site is not None
    edit.replace(site, value)
    assert check(edit) is None
    return edit.apply().get(YAML, text)


def added(text: str, keys: str, key: str, value: str) -> str:
    """A YAML text with an entry behind the value under a path of keys, checked."""
    edit = Edit({YAML: text}.get)
    site = DataText(YAML, text).site(*keys.split("."))
    assert site is not None
    edit.setting(site, key, value)
    assert check(edit) is None
    return edit.apply()[YAML]


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("a:\n  b: 0  # why\n  c: 1\n", "4", "a:\n  b: 4  # why\n  c: 1\n"),
        ("a:\r\n  b: 0\r\n", "4", "a:\r\n  b: 4\r\n"),
        ("a: {b: 0, c: '0'}", "4", "a: {b: 4, c: '0'}"),
        ("a:\n  b: 'adam'\n", "'it''s'", "a:\n  b: 'its'\n"),
        ("a:\n  b: 'adam'\n", '"it\'s"', "a:\n  b: 'it''s'\n"),
        ('a:\n  b: "adam"\n', "'adamw'", 'a:\n  b: "adamw"\n'),
        ("a:\n  b: adam\n", "'adamw'", "a:\n  b: adamw\n"),
        ("a:\n  b: adam\n", "'32'", 'a:\n  b: "32"\n'),
        ("a:\n  b: 32\n", "'bf16-mixed'", "a:\n  b: bf16-mixed\n"),
        ("a:\n  b: false\n", "True", "a:\n  b: true\n"),
        ("a:\n  b: False\n", "True", "a:\n  b: True\n"),
        ("a:\n  b:  # not yet\n  c: 1", "4", "a:\n  b: 4  # not yet\n  c: 1"),
        ("a:\n  b: 0", "0", "a:\n  b: 0"),
    ],
)
def test_a_value_is_written_as_the_file_writes_it(text: str, value: str, expected: str) -> None:
    assert replaced(text, "a.b", value) == expected


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("a:\n    b: 0  # why\n    c: 1\nd: 2\n", "a.b", "a:\n    b: 0  # why\n    new: true\n    c: 1\nd: 2\n"),
        ("a:\n  b: 0\n\n# the end", "a.b", "a:\n  b: 0\n  new: true\n\n# the end"),
        ("a:\r\n  b: 0\r\n", "a.b", "a:\r\n  b: 0\r\n  new: true\r\n"),
        ("a:\n  b: 0", "a.b", "a:\n  b: 0\n  new: true"),
        ("a: {b: 0, c: 1}  # x\n", "a.b", "a: {b: 0, new: true, c: 1}  # x\n"),
        ("a: {}\n", "a", "a: {new: true}\n"),
        ("a:\n  b: {c: 1}\n  d: 'x'\n", "a.d", "a:\n  b: {c: 1}\n  d: 'x'\n  new: true\n"),
    ],
)
def test_an_entry_of_yaml_stands_as_its_siblings(text: str, at: str, expected: str) -> None:
    assert added(text, at, "new", "True") == expected


def test_an_item_of_a_list_keeps_its_dash() -> None:
    text = "many:\n  - b: 0\n    c: 1\n"
    edit = Edit({YAML: text}.get)
    node = DataText(YAML, text).top.entries[0][2].entries[0][2].entries[0][2]
    assert text[node.start : node.end] == "0"
    edit.setting(Site(YAML, 2, 7, 2, 8, "value"), "new", "4")
    assert check(edit) is None
    assert edit.apply()[YAML] == "many:\n  - b: 0\n    new: 4\n    c: 1\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: {b: &n 0, c: *n}", "4"),  # another value follows it
        ("a:\n  b: !!int 0\n", "4"),
        ("a:\n  b: |\n    x\n", "4"),
        ("a:\n  b: 0\n", "min(16, cpus)"),  # no literal
        ("a: {b: 0}\n---\nc: 1\n", "4"),
    ],
)
def test_what_cannot_be_written_is_refused(text: str, value: str) -> None:
    edit = Edit({YAML: text}.get)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "b:" in each)
    column = text.splitlines()[line - 1].index("b:") + 3
    with pytest.raises(Refuse):
        edit.replace(Site(YAML, line, column, line, column + 1, "Constant"), value)


def test_an_entry_behind_a_long_text_is_refused() -> None:
    text = "a:\n  b: |\n    x\n"
    site = DataText(YAML, text).site("a", "b")
    assert site is not None
    with pytest.raises(Refuse):
        Edit({YAML: text}.get).setting(site, "new", "4")


def test_a_key_that_comes_twice_is_seen() -> None:
    text = "a:\n  b: 0\n  c: 1\n"
    edit = Edit({YAML: text}.get)
    for at in ("b", "c"):
        site = DataText(YAML, text).site("a", at)
        assert site is not None
        edit.setting(site, "new", "4")
    assert "lost something" in (check(edit) or "")
