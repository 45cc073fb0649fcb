"""The README: short sentences, links that lead somewhere, and commands that ``benchmarks.readme`` runs in CI."""

import re
from pathlib import Path

from benchmarks.readme import commands

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LONGEST = 25


def sentences(text: str) -> list[str]:
    """The sentences of a page, without its tables, code and headings."""
    prose = re.sub(r"(?m)^(\||#|    |<!--|!\[).*$", "", text)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    paragraphs = re.split(r"\n\s*\n|\n(?=- |\d+\. )", prose)
    return [
        one for each in paragraphs for one in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", " ".join(each.split())) if one
    ]


def test_no_sentence_is_long() -> None:
    assert len(sentences(README)) > 30
    assert [each for each in sentences(README) if len(re.findall(r"\w[\w'’.-]*", each)) > LONGEST] == []


def test_long_sentences_are_found() -> None:
    assert [len(re.findall(r"\w+", each)) for each in sentences("One two. " + "Word " * 30 + "end.\n\n| a | b |")] == [
        2,
        31,
    ]


def test_links_lead_somewhere() -> None:
    targets = [each for each in re.findall(r"\]\(([^)]+)\)", README) if not each.startswith("http")]
    assert len(targets) > 8
    assert [each for each in targets if not (ROOT / each).exists()] == []


def test_the_four_commands_are_among_those_that_are_run() -> None:
    shown = commands(README)
    assert {"make demo", "make test", "pip install .", "turbofix analyze train.py"} <= set(shown)
    assert any(each.startswith("turbofix verify") for each in shown)
    assert "python -m benchmarks.picture" in shown
