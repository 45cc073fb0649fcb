"""The pure parts of the verification: numbers and texts in, sentences out. No torch."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from turbofix.assumptions import ONE_SIZE
from turbofix.verify import Interval, Judgement, Measured, Verification, changes, printed, speed
from turbofix.verify.probe import coverage, tolerances
from turbofix.verify.settle import Settled
from turbofix.verify.verdict import (
    closeness,
    drew_differently,
    first_difference,
    floors,
    saved_difference,
    too_few_compared,
)


def differs(
    old: list[str], new: list[str], tolerance: float = 0.01, again: list[str] | None = None, *, every: bool = False
) -> str | None:
    def lines(texts: list[str]) -> list[printed.Line]:
        return printed.read_lines(enumerate(texts))

    return printed.compare_printed([lines(old), lines(again or old)], lines(new), tolerance, all_lines=every)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loss 1.2345", "loss 1.2346"),  # a unit of the last decimal
        ("loss 0.01", "loss 0.02"),  # coarse print of nearly the same
        ("correct 57/100", "correct 58/100"),  # one sample on the edge
        ("epoch 1 loss 2.0 time 3.1s", "epoch 1 loss 2.0 time 9.9s"),
        ("epoch 1: 12.3 samples/s", "epoch 1: 99.3 samples/s"),
        ("elapsed 0:01:02", "elapsed 0:03:04"),
        ("memory 120 MB", "memory 60 MB"),
        ("[12.5 ms/step] loss 2.0", "[7.5 ms/step] loss 2.0"),
        ("lr 5e-05", "lr 5e-05"),
        ("lr 10.00 | ms/batch  8.28 | loss  3.28", "lr 10.00 | ms/batch 11.28 | loss  3.28"),  # one width, other blanks
        ("[  9.5 ms] loss 2.0", "[ 10.5 ms] loss 2.0"),
        ("   9.5 s, loss 2.0", "  10.5 s, loss 2.0"),
    ],
)
def test_these_lines_say_the_same(old: str, new: str) -> None:
    assert differs([old], [new]) is None


@pytest.mark.parametrize(
    ("old", "new", "tolerance"),
    [
        ("loss 1.2345", "loss 1.3345", 0.01),
        ("loss 1.2345", "loss 1.2346", 0.0),
        ("accuracy 57.00 %", "accuracy 0.57 %", 0.01),
        ("time 3.1s loss 2.0", "time 3.1s loss 4.0", 0.01),
        ("lr 5e-05", "lr 5.5e-05", 0.0),
        ("ms/batch 8.28 | loss 3.28", "ms/batch 11.28 | loss 3.88", 0.01),
        ("acc 5.0  sec 3.1", "acc 9.0  sec 3.1", 0.01),  # two blanks part columns
        ("loss 5.00e-05", "loss 5.50e-05", 0.01),
    ],
)
def test_these_lines_differ(old: str, new: str, tolerance: float) -> None:
    difference = differs([old], [new], tolerance)
    assert difference == f'it prints "{new}" where the original prints "{old}"'


def test_a_number_that_the_original_does_not_repeat_is_no_result() -> None:
    assert differs(["epoch 1 took 2.0 of 3.5"], ["epoch 1 took 2.0 of 7.5"], again=["epoch 1 took 2.0 of 3.6"]) is None
    assert differs(["id 77"], ["id 12"], again=["id 78"]) is None


def test_words_that_the_original_does_not_repeat_need_not_be_printed() -> None:
    old, again, new = (f"writing to logs/run_17954629{moment}" for moment in (29, 31, 36))
    assert differs([old, "saved"], [new, "saved"], again=[again, "saved"], every=True) is None
    assert differs([old, "saved"], [new], again=[again, "saved"], every=True) == 'it no longer prints "saved"'
    assert differs([old], [new], again=[old], every=True) is not None


def test_lines_may_be_rarer_unless_all_are_asked_for() -> None:
    every_step = [f"loss {value}" for value in (1.0, 2.0, 3.0, 4.0)]
    old = [(step, text) for step, text in enumerate(every_step)]
    new = [old[1], old[3]]
    lines = printed.read_lines(old)
    assert printed.compare_printed([lines], printed.read_lines(new), 0.0, all_lines=True) is None
    wrong = [(1, "loss 2.0"), (3, "loss 8.0")]
    assert printed.compare_printed([lines], printed.read_lines(wrong), 0.0, all_lines=True) is not None
    assert differs(["saved"], [], every=True) == 'it no longer prints "saved"'
    assert differs(["saved"], []) is None


def test_another_precision_may_decide_close_calls_otherwise() -> None:
    def said(text: str) -> list[printed.Line]:
        return printed.read_lines([(1, text)])

    old = said("loss: 2.2880, accuracy: 20/200 (10.0 %), mean IoU 0.31, NDCG@10:0.0295, HR@10: 0.08, total 5.5")
    flipped = said("loss: 2.2875, accuracy: 40/200 (20.0 %), mean IoU 0.42, NDCG@10:0.0309, HR@10: 0.09, total 5.5")
    wrong = said("loss: 4.2875, accuracy: 20/200 (10.0 %), mean IoU 0.31, NDCG@10:0.0295, HR@10: 0.08, total 5.5")
    assert printed.compare_printed([old], flipped, 0.05, all_lines=False, decisions=False) is None
    assert printed.compare_printed([old], flipped, 0.05, all_lines=False) is not None
    assert printed.compare_printed([old], wrong, 0.05, all_lines=False, decisions=False) is not None


OLD = b"""import torch
# a comment
x = f(
    1,
    2,
)
if x:
    y = 1
else:
    y = 2
"""


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (OLD, []),
        (OLD.replace(b"a comment", b"another"), []),
        (OLD.replace(b"    2,\n", b"    3,\n"), [range(3, 7)]),
        (OLD.replace(b"    y = 2\n", b"    y = 3\n"), [range(10, 11)]),
        (OLD.replace(b"if x:", b"if not x:"), [range(7, 8)]),
        (OLD.replace(b"# a comment\n", b""), []),
        (OLD.replace(b"# a comment\n", b"z = 1\nw = 2\n"), [range(2, 4)]),
        (OLD + b"def (:\n", []),
    ],
)
def test_changed_statements(new: bytes, expected: list[range]) -> None:
    assert list(changes.changed_statements(OLD, new)) == expected


def test_what_was_only_indented_is_not_new() -> None:
    old = b'x = 1\nif x:\n    print(\n        f"{x} \\\n said"\n    )\n    y = 2\n'
    new = b"z = 0\nif not z:\n" + b"".join(b"    " + line for line in old.splitlines(keepends=True))
    new = new.replace(b"     said", b" said")
    found = changes.changed_statements(old, new)
    assert [list(each) for each in found] == [[1, 2]]


def test_a_decorator_has_run_when_what_it_decorates_has() -> None:
    old = b"def f(x):\n    return x\n"
    found = changes.changed_statements(old, b"@g\n" + old)
    assert [list(each) for each in found] == [[1, 2], [3]]


def first_missed(
    before: dict[Path, bytes], after: dict[Path, bytes], ran: dict[Path, set[int]]
) -> tuple[Path, int] | None:
    """The first changed statement that did not run, of those that a run is asked to reach."""
    found = changes.reached(before, after, ran)
    return next(((one.path, one.lines[0]) for one in found if not one.ran and not one.waived), None)


def test_no_run_is_asked_for_an_exception_or_for_a_new_option() -> None:
    path = Path("/p/train.py")
    old = b"for e in range(9):\n    train(e)\n"
    new = (
        b"first = 0\nresume = os.environ.get('RESUME')\nif resume:\n    first = load(resume)\n"
        b"try:\n    for e in range(first, 9):\n        train(e)\nexcept BaseException:\n    save(e)\n    raise\n"
    )
    found = list(changes.reached({path: old}, {path: new}, {path: {1, 2, 3, 5, 6, 7}}))
    assert [(list(one.lines), one.ran) for one in found if one.waived] == [([4], False), ([9, 10], False)]
    assert all(one.ran for one in found if not one.waived)
    # an option that was there may be given, and what it switches on is another program
    there = b"resume = os.environ.get('RESUME')\n" + old
    more = there + b"if resume:\n    halve(rate)\n"
    assert first_missed({path: there}, {path: more}, {path: {1, 2, 3, 4}}) == (path, 5)


def test_lines_are_traced_back_to_where_they_came_from() -> None:
    old, new = b"a\nb\nc\nd\n", b"a\nx\nc\ny\nd\n"
    assert changes.lines_before(old, new, [2]) == {2}
    assert changes.lines_before(old, new, [4]) == {3, 4}
    assert changes.lines_before(old, new, [1]) == set()


def test_what_stands_where_the_original_did_not_come_does_not_run() -> None:
    old = b"a = 1\nif a > 1:\n    b = 2\n\n    c = 3\nd = 4\n"
    ran = {1, 2, 6}
    assert changes.may_run(old, old.replace(b"b = 2", b"b = 5"), ran) == {1, 2, 6}
    assert changes.may_run(old, old.replace(b"d = 4", b"d = 5"), ran) == {1, 2, 6}
    # put in between two that did not run, and beside one that did
    assert changes.may_run(old, old.replace(b"\n\n", b"\n    e = 5\n"), ran) == {1, 2, 6}
    assert changes.may_run(old, old.replace(b"d = 4", b"e = 5\nd = 4"), ran) == {1, 2, 6, 7}
    # what is put into a statement runs with it, whatever stands behind
    old = b"if a:\n    b = f(\n        1,\n    )\nelif c:\n    d = 2\n"
    new = old.replace(b"1,\n", b"1,\n        e=5,\n")
    assert changes.may_run(old, new, {1, 5, 6}) == {1, 6, 7}
    assert changes.may_run(old, new, {1, 2, 3}) == {1, 2, 3, 4}


def test_what_differs_where_nothing_ran_is_no_difference() -> None:
    new = b"a = 1\nif a > 1:\n    b = 2\n    c = 3\nd = 4\n"
    old = new.replace(b"b = 2", b"b = 5\n    e = 6")
    assert not changes.runs_otherwise(old, new, {1, 2, 6})
    assert changes.runs_otherwise(old, new, {1, 2, 3, 4, 5, 6})
    assert changes.runs_otherwise(old, new.replace(b"d = 4", b"d = 5"), {1, 2, 6})
    assert changes.runs_otherwise(old, new.replace(b"d = 4\n", b""), {1, 2, 6})
    assert changes.moved(old, new) == {1: 1, 2: 2, 5: 4, 6: 5}


def test_a_compiler_at_work_is_not_traced() -> None:
    before, trace = sys.gettrace(), lambda *_: None
    sys.settrace(trace)
    try:
        seen = coverage._untraced(sys.gettrace)()
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert seen is None
    assert after is trace


def test_a_changed_statement_ran_when_one_of_its_lines_did() -> None:
    path = Path("/p/train.py")
    new = OLD.replace(b"    2,\n", b"    3,\n").replace(b"    y = 2\n", b"    y = 3\n")
    assert first_missed({path: OLD}, {path: new}, {path: {3, 10}}) is None
    assert first_missed({path: OLD}, {path: new}, {path: {3, 8}}) == (path, 10)
    assert first_missed({path: OLD}, {path: new}, {}) == (path, 3)


def test_the_other_branch_must_run_where_one_keeps_what_was_there() -> None:
    path = Path("/p/train.py")
    old = b"o = Adam(\n    p,\n)\no.step()\n"
    new = (
        b"try:\n    import b\nexcept Exception:\n    b = None\n"
        b"if b:\n    o = b.Adam8(p)\nelse:\n    o = Adam(\n        p,\n    )\no.step()\n"
    )
    assert first_missed({path: old}, {path: new}, {path: {1, 2, 3, 4, 5, 8, 11}}) == (path, 6)
    assert first_missed({path: old}, {path: new}, {path: {1, 2, 5, 6, 11}}) is None
    turned = b"if not b:\n    o = Adam(\n        p,\n    )\nelse:\n    o = b.Adam8(p)\no.step()\n"
    assert first_missed({path: old}, {path: turned}, {path: {1, 2, 7}}) == (path, 6)
    # both branches are new, or both are old: one that ran speaks for the other
    both = b"if b:\n    o = b.Adam8(p)\nelse:\n    o = Adam(p, fused=True)\no.step()\n"
    assert first_missed({path: old}, {path: both}, {path: {1, 4, 5}}) is None
    same = b"if b:\n    o = Adam(\n        p,\n    )\nelse:\n    o = Adam(\n        p,\n    )\no.step()\n"
    assert first_missed({path: old}, {path: same}, {path: {1, 6, 9}}) is None


@pytest.mark.parametrize(
    ("new", "ran", "missed"),
    [
        ("m = make()\nif d == 'cuda':\n    m.compile()\ntrain(m)\n", {1, 2, 4}, 3),
        ("m = make()\nif d == 'cuda':\n    m.compile()\ntrain(m)\n", {1, 2, 3, 4}, None),
        ("m = make()\nif d == 'cuda':\n    m.compile()\nelse:\n    m.script()\ntrain(m)\n", {1, 2, 5, 6}, None),
        ("m = make()\nfor each in m:\n    each.compile()\ntrain(m)\n", {1, 2, 4}, 3),
        ("m = make()\nwith x:\n    if y:\n        m.compile()\ntrain(m)\n", {1, 2, 3, 5}, 4),
        ("m = make()\ntry:\n    m.compile()\nexcept E:\n    m.plain()\ntrain(m)\n", {1, 2, 3, 6}, None),
        ("def f(a):\n    if a:\n        return 1\n    return 2\nm = make(f)\ntrain(m)\n", {1, 5, 6}, 2),
        ("def f(a):\n    if a:\n        return 1\n    return 2\nm = make(f)\ntrain(m)\n", {1, 2, 4, 5, 6}, None),
        ("class C:\n    def f(s):\n        a()\n    def g(s):\n        b()\nm = C()\ntrain(m)\n", {1, 5}, None),
        ("class C:\n    def f(s):\n        a()\n    def g(s):\n        b()\nm = C()\ntrain(m)\n", {1, 2, 4, 6, 7}, 3),
        # what was only indented is not new
        ("with x:\n    m = make()\n    train(m)\n    if rare:\n        stop()\n", {1, 2, 3, 4}, None),
        ("with x:\n    m = make()\n    train(m)\n    if rare:\n        halt()\n", {1, 2, 3, 4}, 5),
    ],
)  # fmt: skip
def test_a_header_that_ran_says_nothing_of_its_body(new: str, ran: set[int], missed: int | None) -> None:
    path = Path("/p/train.py")
    old = "m = make()\ntrain(m)\n" + ("if rare:\n    stop()\n" if "rare" in new else "")
    found = first_missed({path: old.encode()}, {path: new.encode()}, {path: ran})
    assert found == (None if missed is None else (path, missed))


def test_an_indented_body_is_found_by_itself_in_the_last_text() -> None:
    middle, last = b"if a:\n    b()\n", b"with c:\n    if a:\n        b()\n"
    assert changes.carried_lines(middle, last, {1, 2}) == {1}
    assert changes.carried_lines(middle, last, {1, 2, 3}) == {1, 2}


@pytest.mark.parametrize("added", ["m.to( non_blocking=", "DataLoader( persistent_workers="])
def test_what_is_on_under_a_condition_was_off(added: str) -> None:
    assert changes.asleep(added, {"workers": 0}, cuda=False, remapped=False)
    assert changes.asleep(added, {"workers": 2}, cuda=False, remapped=True) is None


def test_lines_of_a_stage_are_found_in_the_last_text() -> None:
    middle = b"a = 1\nb = 2\nc = 3\n"
    last = b"import x\na = 1\nb = x(2)\nc = 3\n"
    assert changes.carried_lines(middle, last, {2, 3}) == {1, 2}
    assert changes.carried_lines(middle, last, {4}) == {3}


@pytest.mark.parametrize(
    ("added", "events", "cuda", "words"),
    [
        ("with torch.autocast('cuda'):", {"autocast": ["bfloat16"]}, False, None),
        ("with torch.autocast('cuda'):", {"autocast": []}, False, "autocast"),
        ("s = GradScaler('cuda')", {"scaler": False}, True, "scaler"),
        ("autocast(); GradScaler(enabled=half)", {"autocast": ["bfloat16"], "scaler": False}, True, None),
        ("autocast(); GradScaler(enabled=half)", {"autocast": ["float16"], "scaler": False}, True, "scaler"),
        ("Adam(p, fused=True)", {"fused": False}, False, "fused"),
        ("DataLoader(d, num_workers=2)", {"workers": 2}, False, None),
        ("torch.set_float32_matmul_precision('high')", {}, False, "TF32"),
        ("torch.set_float32_matmul_precision('high')", {}, True, None),
        ("x = 1", {}, False, None),
    ],
)
def test_what_was_asleep(added: str, events: dict[str, object], cuda: bool, words: str | None) -> None:
    found = changes.asleep(added, events, cuda=cuda)
    assert (found is None) if words is None else (found is not None and words in found)


@pytest.mark.parametrize(
    ("old", "new", "added"),
    [
        ("a()", "a()\n# autocast(\nb()", "b("),
        # what stands on a changed line is not for that reason new
        ("x = load(d, num_workers=0)", "x = load(d, num_workers=0, pin_memory=True)", " pin_memory=True"),
        ("load(d, num_workers=0)", "load(d, num_workers=2)", " num_workers=2"),
        ("f('--num_workers', default=0)", "f('--num_workers', default=2)", "--num_workers default=2"),
        ("k = {'num_workers': 0, 'a': 1}", "k = {'num_workers': 2, 'a': 1}", "num_workers=2"),
        ("y = f(x)", "with torch.autocast('cuda'):\n    y = f(x)", "torch.autocast("),
        ("x = 1", "x = 1\nbackends.cudnn.benchmark = True", "backends.cudnn.benchmark = True"),
    ],
)
def test_what_a_change_switches_on(old: str, new: str, added: str) -> None:
    path = Path("/p/train.py")
    assert added in changes.added_switches({path: old.encode()}, {path: new.encode()}).split("\n")
    assert ("num_workers" in changes.added_switches({path: old.encode()}, {path: new.encode()})) == (
        "num_workers" in added
    )


TRACED = """
def f(x):
    if x:
        return 1
    return 2
def g():
    return 3
def h():
    return 4
f(1)
import os, threading
thread = threading.Thread(target=g)
thread.start()
thread.join()
if not os.fork():
    h()
    os._exit(0)
os.wait()
"""


def test_lines_that_ran_are_noted_in_threads_and_forks_too(tmp_path: Path) -> None:
    (tmp_path / "traced.py").write_text(TRACED)
    program = (
        "import sys; from turbofix.verify.probe.coverage import Lines; p = sys.argv[1]\n"
        "lines = Lines({p: (19, range(1, 20))})\n"
        "lines.watch(); exec(compile(open(p).read(), p, 'exec'), {}); sys.settrace(None)\n"
        "print(sorted(set(range(2, 19)) - set(lines.ran()[p])))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "traced.py")]
    root = str(Path(__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    # the branch not taken
    assert done.stdout.strip() == "[5]"


def test_steps_that_a_scaler_leaves_out_are_not_compared() -> None:
    def log(skipped: int, steps: int = 20) -> dict[str, object]:
        return {"rows": [{"skipped": step < skipped, "compare": {"mismatch": None}} for step in range(steps)]}

    assert too_few_compared(log(0), log(6), 3) is None
    assert too_few_compared(log(0), log(18), 3) == (
        "the gradient scaler left out all but 2 of 20 steps, too few to compare"
    )
    assert too_few_compared(log(20), log(0), 3) is not None


def test_the_closeness_says_what_it_measures() -> None:
    def row(angle: float, ratio: float) -> dict[str, object]:
        whole = {"angle": angle, "ratio": ratio}
        return {"compare": {"mismatch": None, "gradient": whole, "update": {"angle": 0.0, "ratio": 1.0}}}

    told = closeness({"rows": [row(0.002, 1.0), row(0.0, math.exp(-0.01)), {"compare": None}]})
    assert told == (
        "gradients agree to 0.01 and updates to 0 over 2 steps "
        "(1 - cosine or the relative change of the norm, whichever is larger, in the worst step)"
    )


def test_saved_keys() -> None:
    assert saved_difference({"a.pt": ["model", "epoch"]}, {"a.pt": ["model", "epoch"]}) is None
    assert saved_difference({"a.pt": ["w"]}, {"a.pt": ["_orig_mod.w"]}) == (
        "what it saves in a.pt has other keys (_orig_mod.w, w)"
    )
    assert saved_difference({"a.pt": ["w"]}, {}) == "it no longer saves a.pt"
    # a file more, as what is kept of an interrupted training, takes nothing from those that there were
    assert saved_difference({}, {"a.pt": ["w"]}) is None


@pytest.mark.parametrize("tolerance", [tolerances.ROUNDED, tolerances.CLOSE])
def test_a_gradient_below_the_noise_is_measured_by_the_whole(tolerance: tolerances.Tolerance) -> None:
    # a bias before a normalisation: another direction, but nothing beside the whole gradient
    assert tolerances.severity(1.3, 4.0, 1e-6, tolerance) < 1
    # the same in a parameter that carries weight
    assert tolerances.severity(1.3, 4.0, 0.3, tolerance) > 1
    assert tolerances.severity(0.0, 1.0, 0.0, tolerance) == 0
    assert tolerances.severity(math.nan, 1.0, 0.0, tolerance) == math.inf
    assert tolerances.distance(0.0) == tolerances.distance(math.nan) == math.inf


def test_a_speed_up_is_found_with_its_interval() -> None:
    baseline = [100.0, 101.0, 99.0, 100.5, 99.5]
    candidate = [speed * 2.3 for speed in (101.0, 100.0, 99.5, 100.0, 100.5)]
    interval = speed.ratio_interval(baseline, candidate)
    assert interval.low <= interval.median <= interval.high
    assert interval.median == pytest.approx(2.3, rel=0.02)
    assert interval.high / interval.low < 1.05
    assert speed.claim(interval, speed.noise_floor(baseline)) == interval


def test_a_drift_of_the_machine_cancels() -> None:
    drifting = [100.0, 90.0, 80.0, 70.0, 60.0]
    interval = speed.ratio_interval(drifting, [1.5 * value for value in drifting])
    assert (interval.low, interval.high) == (pytest.approx(1.5), pytest.approx(1.5))


def test_a_no_op_is_no_gain() -> None:
    baseline = [100.0, 103.0, 98.0, 101.0, 99.0]
    candidate = [101.0, 102.0, 99.0, 102.0, 98.0]
    floor = speed.noise_floor(baseline)
    assert floor == pytest.approx(103 / 98)
    assert speed.noise_floor(baseline, [1.0, 1.2]) == 1.2
    assert speed.claim(speed.ratio_interval(baseline, candidate), floor) is None
    # every pair a hair faster, and still within what the original differs from itself
    steady = speed.ratio_interval(baseline, [1.01 * value for value in baseline])
    assert steady.low > 1
    assert speed.claim(steady, floor) is None
    assert speed.noise_floor([5.0]) == 1.0


def test_speeds_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="pairs"):
        speed.ratio_interval([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="pairs"):
        speed.ratio_interval([], [])


def test_runs_are_summarised() -> None:
    def log(seconds: float, samples: int, peak: int | None) -> dict[str, object]:
        return {
            "seconds": seconds, "samples": samples, "steps": 60, "peak_memory_bytes": peak,
            "warm_up_seconds": 3.0, "parts_ms": {"data": 1.0, "backward": seconds},
        }  # fmt: skip

    timed = speed.summarise([log(2.0, 640, 5), log(4.0, 640, 7), log(3.2, 640, 6)], counted=True)
    assert timed.speeds == (320.0, 160.0, 200.0)
    assert timed.measured.samples_per_second == 200.0
    assert timed.measured.step_ms == {"data": 1.0, "backward": 3.2}
    assert timed.measured.peak_memory_bytes == 7
    without_loader = speed.summarise([log(2.0, 0, None)], counted=False)
    assert without_loader.speeds == (30.0,)
    assert without_loader.measured.samples_per_second is None
    assert without_loader.measured.peak_memory_bytes is None


def test_the_json_is_the_contract() -> None:
    found = Verification(
        "pass", "it learns the same", "NVIDIA A100", steps=50, speedup=Interval(2.31, 2.2, 2.4),
        baseline=Measured((1.0, math.nan), 100.0, {"data": 1.0, "backward": 2.0}, 5),
        codemods=(Judgement("autocast", "kept", "gradients agree", 1.8, (Settled(ONE_SIZE, "observed", "1 size"),)),),
    )  # fmt: skip
    answer = found.to_json()
    assert answer["version"] == 1
    assert answer["speedup"] == {"median": 2.31, "low": 2.2, "high": 2.4}
    assert answer["baseline"] == {
        "samples_per_second": 100.0,
        "step_ms": {
            "data": 1.0, "transfer": None, "forward": None, "backward": 2.0, "optimizer": None, "other": None,
        },
        "peak_memory_bytes": 5,
        "losses": [1.0, None],
    }  # fmt: skip
    assert answer["codemods"] == [
        {
            "codemod": "autocast",
            "verdict": "kept",
            "reason": "gradients agree",
            "speedup": 1.8,
            "assumes": [
                {
                    "name": "one-size",
                    "sentence": "nearly every batch has the same size",
                    "settled": "observed",
                    "figure": "1 size",
                }
            ],
            "estimate": None,
        }
    ]


def test_importing_it_costs_no_torch() -> None:
    program = (
        "import sys, turbofix.verify; print([m for m in ('torch', 'numpy', 'rich', 'libcst') if m in sys.modules])"
    )
    root = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


def step_row(step: int, **changes: object) -> dict[str, object]:
    """A step's row in which nothing differs, but for ``changes``."""
    compare = {
        "mismatch": None,
        "gradient": {"angle": 0.0, "ratio": 1.0, "norm": 1.0},
        "update": {"angle": 0.0, "ratio": 1.0, "norm": 1.0},
        "updates": [],
        "parameters": [],
        "lost": [],
        "lost_count": 0,
        "zeroed": [],
        "not_finite": [],
        "drift": 0.0,
        "buffers": [],
        "unequal": {},
    }
    row = {
        "optimizer": 0, "step": step, "class": "Adam", "losses": [1.0], "samples": 8, "batches": 1, "hyper": [],
        "clips": [], "schedules": 0, "skipped": False, "modes": [], "dropouts": [], "drew": False, "compiled": False,
    }  # fmt: skip
    more = {name: changes.pop(name) for name in tuple(changes) if name in compare}
    return {**row, **changes, "compare": {**compare, **more}}


def run_of(rows: list[dict[str, object]]) -> dict[str, object]:
    return {"rows": rows, "layers": {}, "saved": {}, "epochs_ended": 2}


STEPS = 20
ORIGINAL = run_of([step_row(step) for step in range(STEPS)])


def strays(count: int, **off: object) -> dict[str, object]:
    """A run that is off by so much in so many of its steps, from the fifth on."""
    return run_of([step_row(step, **(off if 4 <= step < 4 + count else {})) for step in range(STEPS)])


OFF: dict[str, tuple[dict[str, object], str]] = {
    # each is past its bound for rounding, by less than ``stray`` times
    "gradient": ({"gradient": {"angle": 0.0, "ratio": 1.06, "norm": 1.0}}, "the gradient is 1.06 times"),
    "direction": ({"gradient": {"angle": 0.06, "ratio": 1.0, "norm": 1.0}}, "the gradient points elsewhere"),
    "parameter": ({"parameters": [("bias", 0.0, 1.9, 0.011, 0.012)]}, "the gradient of `bias` is 1.9 times"),
    "update": ({"update": {"angle": 0.0, "ratio": 1.1, "norm": 1.0}}, "the update of the weights is 1.1 times"),
    "loss": ({"losses": [1.03]}, "the loss is 1.03 instead of 1"),
    "buffer": ({"buffers": [("running_mean", 0.15)]}, "the buffer `running_mean` differs"),
    "single number": ({"zeroed": ["bias"]}, "`bias` has a gradient of zero where"),
}


@pytest.mark.parametrize("name", OFF)
def test_rounding_may_stray_in_a_few_steps_and_no_more(name: str) -> None:
    off, words = OFF[name]
    few, many = strays(5, **off), strays(6, **off)
    assert first_difference(ORIGINAL, few, tolerances.ROUNDED, exact=False) is None
    found = first_difference(ORIGINAL, many, tolerances.ROUNDED, exact=False)
    assert found is not None
    assert found.sentence.startswith(f"at step 5 {words}")
    assert found.sentence.endswith("and so in 6 of 20 steps")
    # programs of the same precision have no strays
    found = first_difference(ORIGINAL, strays(1, **off), tolerances.CLOSE, exact=False)
    assert found is not None
    assert (found.sentence.startswith(f"at step 5 {words}"), found.place) == (True, 4)


def test_strays_are_counted_by_measure() -> None:
    """Seven steps in which another measure strays each time are rounding; in six steps the same one is a rule."""
    rows = [step_row(step) for step in range(STEPS)]
    for step, (off, _) in enumerate(OFF.values()):
        rows[step] = step_row(step, **off)
    assert first_difference(ORIGINAL, run_of(rows), tolerances.ROUNDED, exact=False) is None


FAR: dict[str, dict[str, object]] = {
    "gradient": {"gradient": {"angle": 0.0, "ratio": 1.25, "norm": 1.0}},
    "parameter": {"parameters": [("bias", 0.0, 0.5, 0.04, 0.08)]},
    "update": {"update": {"angle": 0.0, "ratio": 1.4, "norm": 1.0}},
    "loss": {"losses": [1.08]},
    "not a number": {"gradient": {"angle": math.nan, "ratio": math.nan, "norm": 1.0}},
    "drift": {"drift": 1e-4},
    "rate": {"hyper": [{"lr": 0.1}]},
}


@pytest.mark.parametrize("name", FAR)
def test_one_step_that_is_far_off_is_enough(name: str) -> None:
    assert first_difference(ORIGINAL, strays(1, **FAR[name]), tolerances.ROUNDED, exact=False) is not None


def disturbed(angles: dict[int, float]) -> dict[str, object]:
    """The control: how far disturbed weights turn the gradient of a bias, by step."""
    return run_of(
        [step_row(step, parameters=[("bias", angles.get(step, 0.0), 1.0, 0.1, 0.1)]) for step in range(STEPS)]
    )


def test_a_bias_that_rounding_turns_may_stray_by_a_length() -> None:
    control = disturbed(dict.fromkeys(range(STEPS), 0.02))  # 1 - cosine may be nine times that
    turned = {"parameters": [("bias", 0.9, 1.0, 0.1, 0.1)]}  # five times its bound, and a stray of the root of that
    halved = {"parameters": [("bias", 0.0, 0.5, 0.1, 0.1)]}
    for count, off, passes in ((5, turned, True), (6, turned, False), (1, halved, False)):
        found = first_difference(ORIGINAL, strays(count, **off), tolerances.ROUNDED, exact=False, control=control)
        assert (found is None) is passes
    further = {"parameters": [("bias", 1.9, 1.0, 0.1, 0.1)]}
    calm = disturbed({})  # whose bound is the usual one, 0.05
    assert first_difference(ORIGINAL, strays(1, **further), tolerances.ROUNDED, exact=False, control=calm) is not None


def test_the_steps_at_the_ends_have_as_many_neighbours_as_the_others() -> None:
    last = STEPS - 1
    found = floors(ORIGINAL, disturbed({last - 6: 0.05, 7: 0.04}), tolerances.ROUNDED)
    bounds = {step: round(found[0, step].parameters["bias"][0], 6) for step in (0, 1, 4, 5, 10, 11, last - 3, last)}
    # the first step has nothing to be disturbed
    assert bounds == {0: 0.36, 1: 0.36, 4: 0.36, 5: 0.36, 10: 0.45, 11: 0.45, last - 3: 0.45, last: 0.45}


def test_other_samples_are_a_difference_though_the_step_draws() -> None:
    drawing = run_of([step_row(step, drew=True) for step in range(STEPS)])
    halved = run_of([step_row(step, drew=True, batches=2) for step in range(STEPS)])
    doubled = run_of([step_row(step, drew=True, batches=2, samples=16) for step in range(STEPS)])
    again = run_of([step_row(0, drew=True), step_row(1, batches=0, samples=None)])
    assert drew_differently(drawing, halved)
    assert not drew_differently(ORIGINAL, halved)
    for candidate in (doubled, again):
        assert not drew_differently(drawing, candidate)
        found = first_difference(drawing, candidate, tolerances.CLOSE, exact=False)
        assert found is not None
        assert "the optimizer steps after" in found.sentence


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        # an evaluation that built graphs, and does not any more
        ([[0.1, False], [0.1, True]], [[0.1, True]], False),
        ([[0.1, True]], [[0.1, False]], True),
        ([[0.1, True]], [[0.1, False], [0.1, True]], True),
        ([[0.1, False], [0.1, True]], [[0.1, False]], True),
        ([[0.1, True]], [], True),
    ],
)
def test_dropout_that_is_off_may_be_missing_and_no_other(old: object, new: object, differs: bool) -> None:
    runs = [run_of([step_row(step, dropouts=found) for step in range(STEPS)]) for found in (old, new)]
    assert (first_difference(*runs, tolerances.CLOSE, exact=True) is not None) is differs
