"""What one script would have rewritten and another one that runs the same lines would not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from turbofix.assumptions import ON_GPU, ONE_SIZE
from turbofix.engine.pipeline import FileReport
from turbofix.engine.project import Outcome
from turbofix.engine.sharing import objections
from turbofix.findings import Examined, InPlace, Risk
from turbofix.source.site import Site

ENGINE = Path("/project/engine.py")
SITE = Site(ENGINE, 4, 8, 5, 20, "Call")
FOUND = Examined("non-blocking", "data", SITE, "the host waits", Risk.EXACT, True, None, None)
REFUSED = replace(FOUND, fixable=False, why_not="the loader does not pin")
A = FileReport(Path("/project/a.py"), "pytorch", trains=True, findings=(FOUND,))
B = FileReport(Path("/project/b.py"), "pytorch", trains=True)


@pytest.mark.parametrize(
    ("other", "why_not"),
    [
        (replace(B, findings=(FOUND,)), None),
        (replace(B, findings=(REFUSED,)), "the loader does not pin"),
        (replace(B, findings=(replace(FOUND, risk=Risk.RECIPE),)), "its risk is *recipe*"),
        (replace(B, findings=(replace(FOUND, risk=Risk.RECIPE),), risk=Risk.RECIPE), None),
        (
            replace(B, in_place=(InPlace(FOUND.codemod, SITE, "it does not wait"),), acts_on=frozenset({(ENGINE, 4)})),
            None,
        ),
        # to say nothing of a line is an objection where the line does something, and none where it is not run
        (B, None),
        (replace(B, acts_on=frozenset({(ENGINE, 3), (ENGINE, 6), (B.path, 4)})), None),
        (replace(B, acts_on=frozenset({(ENGINE, 5)})), "it is not known to be right there"),
        # nor does it object where it leaves it to others, which are asked themselves
        (
            replace(B, findings=(replace(REFUSED, why_not="other scripts may call the function that returns it"),)),
            "it is not known to be right there",
        ),
        # a file that starts nothing, or trains nothing
        (replace(B, acts_on=frozenset({(ENGINE, 5)}), defines=True), None),
        (replace(B, acts_on=frozenset({(ENGINE, 5)}), trains=False), None),
    ],
)
def test_a_script_objects_to_what_is_not_right_for_it(other: FileReport, why_not: str | None) -> None:
    for found in (objections((A, other)), objections((other, A)), objections((A,), (other,))):
        assert {key: (each.script, each.line, each.why_not) for key, each in found.items()} == (
            {} if why_not is None else {("non-blocking", ENGINE): (B.path, 4, why_not)}
        )


def test_scripts_that_nobody_named_have_a_say_and_no_findings() -> None:
    own = replace(FOUND, site=SITE._replace(path=B.path))
    outcome = Outcome((A,), sharing=(replace(B, findings=(REFUSED, own)),))
    assert [(each.site.path, each.fixable) for each in outcome.findings] == [(ENGINE, False)]
    assert str(outcome.findings[0].why_not).endswith(
        "b.py, which runs line 4 too, rules it out: the loader does not pin"
    )
    assert outcome.fixable == 0


def test_what_is_likely_for_a_script_that_nobody_named_is_likely_for_all() -> None:
    sure = replace(A, findings=(FOUND,), acts_on=frozenset({(ENGINE, 4)}))
    unsure = replace(B, findings=(replace(FOUND, assumes=(ONE_SIZE, ON_GPU)),))
    outcome = Outcome((sure,), sharing=(unsure,))
    assert [(each.fixable, each.assumes) for each in outcome.findings] == [(True, (ONE_SIZE,))]
    assert outcome.objections, "`apply` alone leaves it"
    only_worth = replace(B, findings=(replace(FOUND, assumes=(ON_GPU,)),))
    outcome = Outcome((sure,), sharing=(only_worth,))
    assert [(each.fixable, each.assumes) for each in outcome.findings] == [(True, ())]
    assert not outcome.objections, "where it stays on the CPU nothing is lost by it"
    outcome = Outcome((sure,), sharing=(unsure, replace(B, findings=(REFUSED,))))
    assert [each.fixable for each in outcome.findings] == [False]


def test_all_that_a_codemod_would_do_in_a_disputed_file_is_left() -> None:
    further = replace(FOUND, site=SITE._replace(line=9, end_line=9))
    other = replace(FOUND, codemod="pin-memory")
    outcome = Outcome((replace(A, findings=(FOUND, further, other)), replace(B, findings=(REFUSED,))))
    assert [(each.codemod, each.fixable) for each in outcome.findings] == [
        ("non-blocking", False),
        ("pin-memory", True),
        ("non-blocking", False),
    ]


def test_what_is_likely_is_asked_of_unless_something_proven_would_be_lost() -> None:
    likely = replace(FOUND, assumes=(ONE_SIZE,), site=SITE._replace(line=9, end_line=9))
    silent = replace(B, acts_on=frozenset({(ENGINE, 9)}))
    assert objections((replace(A, findings=(likely,)), silent))
    assert not objections((replace(A, findings=(FOUND, likely)), silent))
    assert not objections((replace(A, findings=(likely,)), replace(B, findings=(likely,))))
