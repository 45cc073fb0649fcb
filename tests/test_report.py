"""The output formats, from outcomes made by hand: what they must say, and that other programs take them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from turbofix.assumptions import ONE_SIZE, WIDE_ENOUGH
from turbofix.engine.pipeline import FileReport
from turbofix.engine.project import Outcome
from turbofix.findings import Evidence, Examined, Gain, InPlace, Risk, Worth
from turbofix.report import concise, diff, github, markdown, renderer, rich, sarif, statistics
from turbofix.report import json as json_report
from turbofix.report.text import Style
from turbofix.source.files import Source, Workspace, decode
from turbofix.source.site import Site


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def site(path: str, line: int, column: int = 4) -> Site:
    return Site(Path.cwd() / path, line, column, line, column + 10, "Call")


def example() -> Outcome:
    pin = Examined(
        "pin-memory",
        "data",
        site("train.py", 8),
        "pageable [memory]",
        Risk.EXACT,
        True,
        None,
        Gain(1.0, 1.1, "Raschka"),
    )
    item = Examined(
        "defer-item", "sync", site("train.py", 30), "waits", Risk.EXACT, True, None, Gain(1.05, 1.07, "fvdb")
    )
    cast = Examined(
        "autocast", "precision", site("engine.py", 5), "32 bits", Risk.EQUIVALENT, True, None, Gain(1.5, 2.0, "NVIDIA")
    )
    workers = Examined(
        "loader-workers",
        "data",
        site("train.py", 8),
        "one process",
        Risk.EQUIVALENT,
        False,
        "a lambda|here",
        None,
        (
            Evidence("`num_workers` is 0", site("train.py", 3), (Evidence("`workers = 0`", site("settings.py", 2)),)),
            Evidence("two processes"),
        ),
    )
    done = InPlace("tf32", site("engine.py", 2, 0), "tensor cores are on")
    train = FileReport(Path.cwd() / "train.py", "pytorch", True, (pin, workers, item, cast), (done,))
    broken = FileReport(Path.cwd() / "bad.py", "none", False, error="bad.py:1:1: Python cannot read this")
    return Outcome((broken, train))


def test_json_is_the_contract_to_the_letter() -> None:
    document = json.loads(json_report.render(example()))
    assert list(document) == ["version", "files", "findings"]
    assert document["version"] == 1
    assert document["files"] == [
        {
            "path": "bad.py",
            "framework": "none",
            "error": "bad.py:1:1: Python cannot read this",
            "in_place": [],
        },
        {
            "path": "engine.py",
            "framework": "pytorch",
            "error": None,
            "in_place": [{"codemod": "tf32", "line": 2, "message": "tensor cores are on"}],
        },
        {"path": "train.py", "framework": "pytorch", "error": None, "in_place": []},
    ]
    assert [(f["path"], f["line"], f["codemod"]) for f in document["findings"]] == [
        ("engine.py", 5, "autocast"),
        ("train.py", 8, "loader-workers"),
        ("train.py", 8, "pin-memory"),
        ("train.py", 30, "defer-item"),
    ]
    assert document["findings"][0] == {
        "codemod": "autocast",
        "group": "precision",
        "message": "32 bits",
        "path": "engine.py",
        "line": 5,
        "column": 5,
        "end_line": 5,
        "end_column": 15,
        "risk": "equivalent",
        "fixable": True,
        "why_not": None,
        "certainty": "proven",
        "assumes": [],
        "worth": "some",
        "gain": [1.5, 2.0],
        "gain_source": "NVIDIA",
        "evidence": [],
    }
    refused = document["findings"][1]
    assert (refused["fixable"], refused["why_not"], refused["gain"]) == (False, "a lambda|here", None)
    assert refused["evidence"] == [
        {
            "text": "`num_workers` is 0",
            "path": "train.py",
            "line": 3,
            "steps": [{"text": "`workers = 0`", "path": "settings.py", "line": 2, "steps": []}],
        },
        {"text": "two processes", "path": None, "line": None, "steps": []},
    ]


def test_a_shared_finding_is_listed_once_and_a_refusal_wins() -> None:
    outcome = example()
    other = FileReport(
        Path.cwd() / "other.py",
        "pytorch",
        True,
        (replace(outcome.reports[1].findings[3], fixable=False, why_not="called under no_grad here"),),
    )
    both = replace(outcome, reports=(*outcome.reports, other))
    shared = [each for each in both.findings if each.codemod == "autocast"]
    assert [each.why_not for each in shared] == [
        f"other.py, which runs line {shared[0].site.line} too, rules it out: called under no_grad here"
    ]


def test_concise_lines() -> None:
    assert concise.render(example()).splitlines() == [
        "engine.py:5:5: autocast [*] 32 bits",
        "train.py:8:5: loader-workers one process (not rewritten: a lambda|here)",
        "train.py:8:5: pin-memory [*] pageable [memory]",
        "train.py:30:5: defer-item [*] waits",
    ]


def test_only_what_the_user_accepts_is_marked() -> None:
    reports = tuple(replace(report, risk=Risk.EXACT) for report in example().reports)
    outcome = Outcome(reports)
    assert (example().fixable, outcome.fixable) == (3, 2)
    above = "autocast 32 bits (not rewritten: its risk needs --risk equivalent)"
    assert concise.render(outcome).splitlines()[0] == f"engine.py:5:5: {above}"
    assert statistics.render(outcome).splitlines()[0] == "    1  autocast"
    assert "| 32 bits | no: its risk needs --risk equivalent |" in markdown.render(outcome)
    assert "::notice title=turbofix (autocast)" in github.render(outcome)
    results = json.loads(sarif.render(outcome))["runs"][0]["results"]
    assert {each["ruleId"]: each["level"] for each in results}["autocast"] == "note"
    assert json.loads(json_report.render(outcome))["findings"][0]["fixable"], "safe all the same"
    lines = rich.render(outcome, verbose=True).splitlines()
    assert "  some  autocast  1.5–2×, equivalent, needs --risk equivalent" in lines
    assert "    equivalent  1 change (autocast): up to here 1.58–2.35×; needs --risk equivalent" in lines
    assert "needs" not in rich.render(example())


def test_statistics_count() -> None:
    assert statistics.render(example()).splitlines()[0] == "    1  autocast  [*]"
    assert "    1  loader-workers" in statistics.render(example()).splitlines()


def test_github_escapes() -> None:
    outcome = example()
    hard = replace(outcome.reports[1].findings[0], message="100 %\nslow", site=site("a,b:c.py", 3))
    lines = github.render(Outcome((replace(outcome.reports[1], findings=(hard,)),))).splitlines()
    assert lines == [
        "::warning title=turbofix (pin-memory),file=a%2Cb%3Ac.py,line=3,endLine=3,col=5,endColumn=15::100 %25%0Aslow"
    ]


def test_markdown_keeps_its_table_whole() -> None:
    lines = markdown.render(example()).splitlines()
    row = next(line for line in lines if "loader-workers" in line)
    assert r"a lambda\|here" in row
    assert "- `engine.py:2` `tf32`: tensor cores are on" in lines
    assert "- bad.py:1:1: Python cannot read this" in lines


def test_sarif_names_rules_places_and_failures() -> None:
    run = json.loads(sarif.render(example()))["runs"][0]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} >= {
        result["ruleId"] for result in run["results"]
    } - {
        "defer-item",
        "loader-workers",
    }
    first = run["results"][0]
    assert first["level"] == "warning"
    assert first["locations"][0]["physicalLocation"]["region"]["startColumn"] == 5
    assert run["invocations"][0]["executionSuccessful"] is False


@pytest.mark.parametrize("name", ["concise", "json", "sarif", "github", "markdown"])
def test_every_format_has_something_to_say_about_nothing(name: str) -> None:
    text = renderer(name)(Outcome(()))
    assert text == "" or text.endswith("\n")


# --- for people -----------------------------------------------------------------------------------------------------


def test_rich_says_findings_refusals_what_is_right_and_the_ladder() -> None:
    text = rich.render(example())
    assert "\x1b" not in text
    assert "8:5  pageable [memory]" in text
    assert "engine.py:5:5  32 bits" in text
    assert "why not: a lambda|here" in text
    assert "tf32  engine.py:2  tensor cores are on" in text
    assert "seen:" not in text
    assert text.endswith("\nnext: turbofix apply --verify train.py -- ARGS\n")
    chain = "          seen: `num_workers` is 0 on line 3\n            `workers = 0` on line 2 of settings.py\n"
    assert chain in rich.render(example(), verbose=True)
    assert "\x1b[" in rich.render(example(), Style(color=True))


def test_the_highest_worth_comes_first_and_what_is_assumed_has_a_line() -> None:
    report = example().reports[1]
    pin, _, autocast = (replace(each, fixable=True) for each in report.findings[:3])
    likely = replace(autocast, worth=Worth.HIGH, assumes=(ONE_SIZE, WIDE_ENOUGH), gain=None)
    lines = rich.render(Outcome((replace(report, findings=(pin, likely)),))).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  high "))
    assert "gain unknown" in lines[first]
    assert lines[first + 2].startswith(f"        assumes:  {ONE_SIZE.sentence}; {WIDE_ENOUGH.sentence[:9]}")
    assert any(line.startswith("  some ") for line in lines[first + 1 :])


def test_the_ladder_multiplies_each_codemod_s_gain_once_and_calls_it_an_estimate() -> None:
    outcome = example()
    twice = replace(outcome.reports[1].findings[2], site=site("train.py", 31))
    report = replace(outcome.reports[1], findings=(*outcome.reports[1].findings, twice))
    lines = [line.strip() for line in rich.render(Outcome((report,)), verbose=True).splitlines()]
    assert "exact       3 changes (pin-memory, defer-item): up to here 1.05–1.18×" in lines
    assert "equivalent  1 change (autocast): up to here 1.58–2.35×" in lines
    assert "recipe      nothing more" in lines
    text = " ".join(lines)
    assert "not a promise" in text
    for source in ("Raschka", "fvdb", "NVIDIA"):
        assert source in text


def test_the_ladder_leaves_out_a_gain_that_another_one_covers() -> None:
    first = example().reports[1].findings[0]
    covered = replace(first, codemod="tf32", gain=Gain(1.0, 3.0, "one"))
    covering = replace(first, codemod="autocast", gain=Gain(1.1, 2.6, "other", instead_of=("tf32",)))
    assert rich.combined([covered, covering]) == (1.1, 2.6)
    assert rich.combined([covered]) == (1.0, 3.0)


def test_a_gain_that_nobody_measured_is_not_invented() -> None:
    outcome = example()
    bare = replace(outcome.reports[1].findings[0], gain=None)
    text = rich.render(Outcome((replace(outcome.reports[1], findings=(bare,)),)), verbose=True)
    assert "no measured gain to name" in text
    assert "estimate" not in text


def test_rich_tells_the_kinds_of_nothing_apart() -> None:
    report = FileReport(Path.cwd() / "a.py", "none", False)
    assert "No training loop" in rich.render(Outcome((report,)))
    unfollowed = replace(report, unfollowed=("What line 3 of a.py calls (`brain.fit`) was not followed.",))
    assert "\nWhat line 3 of a.py calls (`brain.fit`) was not followed.\n" in rich.render(Outcome((unfollowed,)))
    assert rich.render(Outcome((replace(report, trains=True),))) == "Nothing to fix.\n"
    defines = replace(report, trains=True, defines=True)
    alone = "a.py starts no training by itself: it holds a training loop that other code calls"
    assert alone in rich.render(Outcome((defines,))).replace("\n", " ")
    by = replace(defines, started_by=tuple(Path.cwd() / f"{name}.py" for name in "bcdef"))
    assert "the script that runs it: b.py, c.py, d.py (or one of 2 more)" in rich.render(Outcome((by,))).replace(
        "\n", " "
    )
    only_refused = replace(report, trains=True, findings=(example().reports[1].findings[1],))
    assert "the reasons are above" in rich.render(Outcome((only_refused,)))


def test_rich_says_of_a_framework_only_what_is_left_to_it() -> None:
    report = replace(example().reports[1], framework="accelerate")
    text = rich.render(Outcome((report,)))
    assert "Accelerate runs this training: mixed precision, placement and accumulation are left to it" in text
    whole = rich.render(Outcome((replace(report, framework="lightning"),)))
    assert "Lightning runs this training: precision, placement and stepping are left to it" in whole
    assert "left to it" not in rich.render(Outcome((replace(report, framework="pytorch"),)))


# --- diffs ----------------------------------------------------------------------------------------------------------

OLD = "".join(f"line {number}\n" for number in range(1, 30)).encode()

CHANGES = {
    "middle": (OLD, OLD.replace(b"line 9\n", b"line nine\nmore\n").replace(b"line 25\n", b"")),
    "first and last line": (OLD, b"top\n" + OLD + b"end\n"),
    "crlf": (OLD.replace(b"\n", b"\r\n"), OLD.replace(b"\n", b"\r\n").replace(b"line 3\r\n", b"x\r\n")),
    "lone cr": (b"a = 1\rb = 2\rc = 3\r", b"a = 1\rb = 5\rc = 3\r"),
    "no final newline": (b"a\nb", b"a\nc"),
    "final newline comes": (b"a\nb", b"a\nb\n"),
    "final newline goes": (b"a\nb\n", b"a\nb"),
    "latin-1": (
        "# coding: latin-1\nx = 'é'\ny = 1\n".encode("latin-1"),
        "# coding: latin-1\nx = 'é'\ny = 2\n".encode("latin-1"),
    ),
    "byte-order mark": (b"\xef\xbb\xbfx = 1\n", b"\xef\xbb\xbfx = 2\n"),
    "tabs and form feed": (b"\tx\n\x0c\n\ty\n", b"\tx\n\x0c\n\tz\n"),
    "one line": (b"x\n", b"y\n"),
}
NAMES = ("train.py", "my project/train me.py", "größe/漢.py", 'a"b.py', "back\\slash.py", "ta\tb.py")
TOOLS = (["git", "apply", "--whitespace=nowarn"], ["patch", "-p1", "-s", "--binary"])


@pytest.mark.parametrize("tool", TOOLS, ids=["git", "patch"])
@pytest.mark.parametrize("change", CHANGES)
def test_git_and_patch_take_the_diff(in_a_folder: Path, tool: list[str], change: str) -> None:
    old, new = CHANGES[change]
    assert patched(in_a_folder, tool, "train.py", old, new) == new


@pytest.mark.parametrize("tool", TOOLS, ids=["git", "patch"])
@pytest.mark.parametrize("name", NAMES)
def test_git_and_patch_take_the_names(in_a_folder: Path, tool: list[str], name: str) -> None:
    assert patched(in_a_folder, tool, name, b"x = 1\n", b"x = 2\n") == b"x = 2\n"


def patched(folder: Path, tool: list[str], name: str, old: bytes, new: bytes) -> bytes:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(old)
    result = subprocess.run(tool, input=diff.unified(old, new, name), capture_output=True, cwd=folder, check=False)
    assert result.returncode == 0, result.stderr.decode()
    return path.read_bytes()


def test_git_takes_it_in_a_folder_of_a_repository(in_a_folder: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], check=True)
    inner = in_a_folder / "inner"
    inner.mkdir()
    assert patched(inner, TOOLS[0], "train.py", b"x = 1\n", b"x = 2\n") == b"x = 2\n"


def test_no_change_is_no_diff() -> None:
    assert diff.unified(b"x\n", b"x\n", "a.py") == b""


def test_the_diff_of_many_equal_lines_stays_small() -> None:
    """A file with more than 200 lines, most of them alike, must not come out as one big replacement."""
    old = b"".join(b"    x = step(x)\n\n" for _ in range(300))
    new = old.replace(b"    x = step(x)\n\n" * 150, b"    x = step(x)\n\n" * 149 + b"    y = 1\n    x = step(x)\n\n", 1)
    changed = [line for line in diff.unified(old, new, "a.py").splitlines() if line[:1] in b"+-"]
    assert changed == [b"--- a/a.py", b"+++ b/a.py", b"+    y = 1"]


def test_the_diff_of_several_files_is_sorted_and_relative(in_a_folder: Path) -> None:
    for name in ("b.py", "a.py"):
        (in_a_folder / name).write_text("x = 1\n")
    made = diff.render({in_a_folder / name: b"x = 2\n" for name in ("b.py", "a.py")}, Workspace())
    assert [line for line in made.splitlines() if line.startswith(b"---")] == [b"--- a/a.py", b"--- a/b.py"]


def test_a_colored_diff_has_the_same_lines() -> None:
    made = diff.unified(OLD, OLD.replace(b"line 9\n", b"x\n"), "a.py")
    colored = diff.colored(made)
    assert b"\x1b[31m-line 9\x1b[0m\n" in colored
    assert b"\x1b[32m+x\x1b[0m\n" in colored
    for code in (b"\x1b[31m", b"\x1b[32m", b"\x1b[36m", b"\x1b[1m", b"\x1b[0m"):
        colored = colored.replace(code, b"")
    assert colored == made


def test_source_of_a_file_with_a_mark_is_diffed_with_it() -> None:
    source = decode(Path("a.py"), b"\xef\xbb\xbfx = 1\n")
    assert isinstance(source, Source)
    new = source.encode("x = 2\n")
    assert isinstance(new, bytes)
    assert b"-\xef\xbb\xbfx = 1\n+\xef\xbb\xbfx = 2\n" in diff.unified(source.data, new, "a.py")


def test_what_is_hardly_noticed_takes_one_line_for_each_codemod_unless_all_is_asked_for() -> None:
    outcome = example()
    broken, train = outcome.reports
    pin, workers, item, cast = train.findings
    small = (replace(pin, worth=Worth.SMALL), workers, replace(item, worth=Worth.SMALL, assumes=(ONE_SIZE,)), cast)
    outcome = Outcome((broken, replace(train, findings=small)))
    text, full = rich.render(outcome), rich.render(outcome, verbose=True)
    assert "pageable [memory]" not in text
    assert "waits" not in text
    assert "32 bits" in text
    lines = [line.strip() for line in text.splitlines()]
    assert lines[lines.index("small hardly noticed (--verbose tells more)") + 1 :][:2] == [
        "pin-memory  8:5",
        "defer-item (likely)  30:5",
    ]
    assert "pageable [memory]" in full
    assert ONE_SIZE.sentence in " ".join(full.split())
