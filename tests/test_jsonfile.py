"""JSON files as codemods change them: an entry more, and everything else as it was."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from commands import Run, runner

from turbofix.edits import Edit, Refuse
from turbofix.jsonfile import JsonText, NotPlainError, lost
from turbofix.selfcheck import check

PATH = Path("/project/zero.json")
FIXTURE = Path(__file__).parent.parent / "fixtures" / "autocast" / "deepspeed_config.in"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


def given(text: str, before: str | None = None) -> str:
    edit = Edit({PATH: text}.get)
    top = JsonText(PATH, text).site()
    assert top is not None
    edit.setting(top, "bf16", '{"enabled": true}', before)
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
    file = JsonText(PATH, '{\n  "é": [1, 2],\n  "fp16": {"enabled": false}\n}')
    site = file.site("fp16", "enabled")
    assert site is not None
    assert (site.line, site.column, site.end_column, site.kind) == (3, 22, 27, "value")
    assert file.site("fp16", "loss_scale") is None
    assert file.site("é", "fp16") is None


@pytest.mark.parametrize("text", ['{"a": 1, // why\n"b": 2}', "[1]", '{"a": 1, "a": 2}', "", "{'a': 1}"])
def test_what_is_not_plain_json_is_left_alone(text: str) -> None:
    with pytest.raises(NotPlainError):
        JsonText(PATH, text)


def test_an_entry_that_is_there_is_not_given_again() -> None:
    text = '{"bf16": {}}'
    top = JsonText(PATH, text).site()
    assert top is not None
    with pytest.raises(Refuse):
        Edit({PATH: text}.get).setting(top, "bf16", "{}")


def test_a_value_that_is_lost_is_seen() -> None:
    assert not lost({"a": {"b": 1}}, {"n": 0, "a": {"b": 1, "c": 2}})
    assert lost({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert lost({"a": 1}, {"a": True})
    assert lost({"a": {"b": 1}}, {"a": {}})


def test_a_configuration_is_written_and_its_diff_applies(tmp_path: Path, run: Run) -> None:
    for file in FIXTURE.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    config = tmp_path / "ds_config.json"
    before = config.read_bytes()
    diff = run("apply", "--select", "autocast", "train.py")
    assert diff.code == 1
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "--check", "-"], cwd=tmp_path, input=diff.raw, check=True)
    written = run("apply", "--write", "--select", "autocast", "train.py")
    assert written.code == 0, written.err
    assert config.read_bytes() == before.replace(
        b'  "zero_optimization"', b'  "bf16": {\r\n    "enabled": true\r\n  },\r\n  "zero_optimization"'
    )
    again = run("apply", "--select", "autocast", "train.py")
    assert (again.code, again.out) == (0, "")
    found = json.loads(run("analyze", "--output-format", "json", "train.py").out)
    place = {"codemod": "autocast", "line": 11}
    assert [each["in_place"] for each in found["files"] if each["path"] == "ds_config.json"] == [
        [{**place, "message": "DeepSpeed computes in the precision that its configuration names (bf16)"}]
    ]


def test_a_configuration_of_two_scripts_is_changed_once(tmp_path: Path, run: Run) -> None:
    for file in FIXTURE.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "again.py").write_bytes((tmp_path / "train.py").read_bytes())
    found = json.loads(run("analyze", "--select", "autocast", "--output-format", "json", ".").out)["findings"]
    assert [(each["path"], each["fixable"]) for each in found] == [("ds_config.json", True)]
    done = run("apply", "--write", "--select", "autocast", ".")
    assert done.code == 0
    assert "not applied" not in done.err
    assert (tmp_path / "ds_config.json").read_text().count("bf16") == 1


def test_a_configuration_that_may_not_be_written_is_told(tmp_path: Path, run: Run) -> None:
    for file in FIXTURE.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "ds_config.json").chmod(0o444)
    done = run("apply", "--write", "--select", "autocast", "train.py")
    assert done.code == 2
    assert "read-only" in done.err
