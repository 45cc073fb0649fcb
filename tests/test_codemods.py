"""Every case of every codemod: rewritten as expected, left alone, or refused with the reason."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import cases
import pytest
from cases import Case
from memory import ENTRY, ROOT, MemoryWorkspace

from turbofix import config, registry
from turbofix.codemod import Codemod
from turbofix.editing.changes import Change
from turbofix.engine import pipeline
from turbofix.engine.moves import shift
from turbofix.findings import Risk
from turbofix.training.model import FIRST_LINE, Target

CODEMODS = {codemod.name: codemod for codemod in registry.load()}
CASES = [case for name in CODEMODS for case in cases.folder(name.replace("-", "_")).values()]

BESIDE = [Path(__file__).parent.parent / "codemods" / f"_written_{name}.py" for name in ("ranks", "workers")]


def of_kind(kind: str) -> list[object]:
    return [pytest.param(each, id=f"{each.folder}/{each.name}") for each in CASES if each.kind == kind]


def texts_of(name: str) -> dict[Path, str]:
    """The texts of a case, laid out in memory."""
    return laid_out(cases.case(name).before)


def laid_out(files: dict[str, str]) -> dict[Path, str]:
    return {ROOT / name: text for name, text in files.items()}


def target_of(case: Case) -> tuple[Target, Risk]:
    words = shlex.split(" ".join(case.header("options")))
    options = dict(zip(words[::2], words[1::2], strict=True))
    known = {"--gpu", "--gpus", "--zero", "--pipeline", "--torch-version", "--accelerate-version", "--risk"}
    unknown = options.keys() - known
    assert not unknown, f"unknown options {unknown}"
    return (
        Target(
            config.capability(options.get("--gpu", "ampere")) or Target().capability,
            config.parse_torch_version(options.get("--torch-version", "2.4")),
            others=(("accelerate", config.parse_torch_version(options.get("--accelerate-version", "1.0"))),),
            gpus=int(options.get("--gpus", "1")),
            zero=int(options.get("--zero", "0")),
            pipeline=int(options.get("--pipeline", "1")),
        ),
        Risk(options.get("--risk", "equivalent")),
    )


def check_evidence(report: pipeline.FileReport, texts: dict[Path, str]) -> None:
    """What is fixable says what it rests on, and what is said of a place is said of one that there is."""
    for each in report.findings:
        assert each.evidence or not each.fixable, f"line {each.site.line}: {each.message}"
        for seen in (*each.evidence, *(step for one in each.evidence for step in one.steps)):
            assert seen.site is None or seen.site.line <= len(texts[seen.site.path].splitlines())


def rewrite(case: Case, texts: dict[Path, str]) -> pipeline.Rewriting:
    target, risk = target_of(case)
    trust = pipeline.Trust(likely=bool(case.header("assumes")))
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace(texts), [CODEMODS[case.codemod]], target, risk, trust=trust)
    assert not rewriting.report.notes, "\n".join(rewriting.report.notes)
    assert rewriting.report.error is None, rewriting.report.error
    return rewriting


@pytest.mark.parametrize("case", of_kind("rewrite"))
def test_rewrites_as_expected_and_only_once(case: Case) -> None:
    before, expected = laid_out(case.before), laid_out(case.after)
    rewriting = rewrite(case, before)
    check_evidence(rewriting.report, before)
    assumed = {each.name for finding in rewriting.report.findings if finding.fixable for each in finding.assumes}
    declared = {name.strip() for line in case.header("assumes") for name in line.split(",")}
    assert assumed == declared, "a case says what its rewrite rests on, and only that (`# assumes: name, name`)"
    worth = {each.worth.value for each in rewriting.report.findings if each.fixable and each.worth is not None}
    assert case.header("worth") in ([], sorted(worth)), "a case may say what its rewrite is worth (`# worth: small`)"
    said = " / ".join(each.message for each in rewriting.report.findings if each.fixable)
    for text in case.header("says"):
        assert text in said, "a case may say what is said of it (`# says: words of the message`)"
    after = before | dict(rewriting.texts)
    beside = {path: text for path, text in after.items() if path not in before}  # which a case does not repeat
    assert set(beside.values()) <= {FIRST_LINE + each.read_text("utf-8") for each in BESIDE}
    assert after == expected | beside, "\n" + "".join(differences(expected | beside, after))
    assert after != before, "a case of a rewrite must rewrite"
    for path, text in after.items():
        if path.suffix == ".py":
            compile(text, str(path), "exec", dont_inherit=True)
    assert not rewrite(case, after).texts, "a second run must change nothing"


@pytest.mark.parametrize("case", of_kind("noop"))
def test_leaves_alone(case: Case) -> None:
    texts = laid_out(case.before)
    rewriting = rewrite(case, texts)
    assert not rewriting.texts, "".join(differences(texts, dict(rewriting.texts)))
    told = [
        f"{each.site.line}: {each.message} ({each.why_not})" for each in rewriting.report.findings if not each.is_unseen
    ]
    assert not told, told


@pytest.mark.parametrize("case", of_kind("refuse"))
def test_refuses_with_the_reason(case: Case) -> None:
    texts = laid_out(case.before)
    rewriting = rewrite(case, texts)
    assert not rewriting.texts, "".join(differences(texts, dict(rewriting.texts)))
    check_evidence(rewriting.report, texts)
    reasons = [each.why_not or "FIXABLE: " + each.message for each in rewriting.report.findings]
    expected = case.header("refuse")
    assert expected, "a refused case names its reasons"
    assert len(reasons) == len(expected), reasons
    for reason, text in zip(reasons, expected, strict=True):
        assert text in reason


@pytest.mark.parametrize(
    ("name", "kept"), [("cropped", "files that are read do not change"), ("pictures", "is made the same each time")]
)
def test_what_is_kept_is_what_must_stay_as_it_is(name: str, kept: str) -> None:
    case = cases.case(f"cache_preprocessing/{name}")
    found = rewrite(case, laid_out(case.before)).report.findings
    assert kept in found[0].assumes[0].sentence


def test_files_of_one_name_are_told_apart() -> None:
    loop = """
from torch import nn, optim
def train(loader):
    model = nn.Linear(8, 8).cuda()
    optimizer = optim.SGD(model.parameters(), 0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        optimizer.step()
"""
    start = """
from torch.utils.data import DataLoader
from here import Data
from src.train import train
train(DataLoader(Data(), 8))
"""
    texts = {ENTRY: start, ROOT / "src" / "__init__.py": "", ROOT / "src" / ENTRY.name: loop}
    found = rewrite(cases.case("pin_memory/flat"), texts).report.findings
    assert f"line 8 of src{os.sep}{ENTRY.name}" in found[0].message


def test_a_place_is_followed_through_changes_at_its_own_offset() -> None:
    text = "a = 1  # \x0c is no newline\nf(a)\n"
    start = text.index("f(a)")
    changes = [Change(start, start, "b = 2\n"), Change(start, start, "    ")]
    assert shift(text, changes, 2, 0) == (3, 4)
    assert shift(text, changes, 1, 0) == (1, 0)


def test_tf32_and_autocast_are_judged_alone_and_applied_in_one_order() -> None:
    texts = texts_of("autocast/hard_cuda")
    both = [CODEMODS["tf32"], CODEMODS["autocast"]]
    for codemods in (registry.order(both), registry.order(reversed(both))):
        rewriting = pipeline.apply(ENTRY, MemoryWorkspace(texts), codemods, Target(), Risk.EQUIVALENT)
        assert {each.codemod for each in rewriting.report.findings if each.fixable} == {"tf32", "autocast"}
        assert dict(rewriting.texts) == laid_out(cases.case("autocast/hard_cuda").after)
        assert [(each.codemod, each.why_not) for each in rewriting.void] == [
            ("tf32", "the rewrite by autocast has made it void")
        ]


@pytest.mark.parametrize(
    ("made", "risk"),
    [
        ("torch.arange(3)", Risk.EXACT),
        ("torch.arange(0, 2)", Risk.EXACT),
        ("torch.zeros(3)", Risk.EXACT),
        ("torch.arange(0, 1, 0.1)", Risk.EQUIVALENT),
        ("torch.linspace(0, 1, 3)", Risk.EQUIVALENT),
        ("torch.rand(3)", Risk.EQUIVALENT),
        ("torch.empty(3).normal_()", Risk.EQUIVALENT),
    ],
)
def test_what_another_generator_draws_or_a_kernel_rounds_is_not_exact(made: str, risk: Risk) -> None:
    text = cases.case("device_tensors/packed_behind").text
    text = text.replace("torch.arange(256)[None, :].repeat(2, 1)[:1]", made)
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace.of(text), [CODEMODS["device-tensors"]], Target(), Risk.EQUIVALENT)
    assert made in text
    assert [each.risk for each in rewriting.report.findings if each.fixable] == [Risk.EXACT, risk]


@pytest.mark.parametrize(("name", "risk"), [("flat", Risk.EXACT), ("divided", Risk.EQUIVALENT)])
def test_a_sum_of_quotients_is_not_exact(name: str, risk: Risk) -> None:
    texts = texts_of(f"defer_item/{name}")
    report = pipeline.analyze(ENTRY, MemoryWorkspace(texts), [CODEMODS["defer-item"]], Target())
    assert {each.risk for each in report.findings if each.fixable} == {risk}


def test_a_void_finding_names_the_rewrite_that_made_it_void() -> None:
    """Not those of the other codemods that have acted before or after it."""
    texts = texts_of("autocast/hard_cuda")
    codemods = registry.order(CODEMODS.values())
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace(texts), codemods, Target(), Risk.EQUIVALENT)
    assert len({stage.codemod for stage in rewriting.stages}) > 1
    assert [(each.codemod, each.why_not) for each in rewriting.void] == [
        ("tf32", "the rewrite by autocast has made it void")
    ]


@pytest.mark.parametrize("codemod", list(CODEMODS.values()), ids=list(CODEMODS))
def test_every_codemod_is_shown_rewriting_and_leaving_alone(codemod: Codemod) -> None:
    kinds = [case.kind for case in CASES if case.codemod == codemod.name]
    assert kinds.count("rewrite") >= 3
    assert len(kinds) - kinds.count("rewrite") >= 2


@pytest.mark.parametrize("codemod", list(CODEMODS.values()), ids=list(CODEMODS))
def test_every_codemod_has_a_whole_page(codemod: Codemod) -> None:
    headings = ["Why slow", "Example", "Use instead", "When refused", "Risk", "Measured"]
    positions = [codemod.page.find(f"\n{heading}\n") for heading in headings]
    assert -1 not in positions, dict(zip(headings, positions, strict=True))
    assert positions == sorted(positions)


@pytest.mark.parametrize(("name", "case"), [("fused-optimizer", "old_torch"), ("modern-amp", "flat")])
def test_what_only_an_old_requirement_refuses_is_likely(name: str, case: str) -> None:
    """The torch in a project's requirements may be years old; the one that the user asks for is a requirement."""
    texts = texts_of(f"{name.replace('-', '_')}/{case}")
    for recent, rests in (((2, 4), ["recent-torch"]), (None, None)):
        target = Target(torch=(1, 11), recent=recent)
        report = pipeline.analyze(ENTRY, MemoryWorkspace(texts), [CODEMODS[name]], target)
        assert report.findings
        for found in report.findings:
            assert ([each.name for each in found.assumes] if found.fixable else None) == rests


def differences(expected: dict[Path, str], got: dict[Path, str]) -> Iterator[str]:
    for path in sorted(expected.keys() | got.keys()):
        yield from difflib.unified_diff(
            expected.get(path, "").splitlines(keepends=True),
            got.get(path, "").splitlines(keepends=True),
            f"expected/{path.name}",
            f"got/{path.name}",
        )


def test_samples_that_workers_would_forget_are_made_once_for_the_loader() -> None:
    text = cases.case("cache_preprocessing/workers").text
    trust = pipeline.Trust(likely=True)
    workspace = MemoryWorkspace.of(text)
    done = pipeline.apply(ENTRY, workspace, registry.load(), Target(), Risk.EQUIVALENT, trust=trust)
    assert done.report.notes == ()
    assert done.stages[0].codemod == "preload-dataset"
    assert not {"loader-workers", "cache-preprocessing"} & {each.codemod for each in done.stages}
