"""The page of ``--report`` in a browser: it needs no network, says nothing on the console, and fits phone, desk, paper.

Where there is no Chromium these tests are skipped; ``.ci/run`` sees to one.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

from turbofix.estimate.step import Estimate, Interval
from turbofix.report import charts, page
from turbofix.verify import Judgement, Measured, Options, Request, Stage, Verification
from turbofix.verify.agreement import Agreed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PLANTED = Path(__file__).with_name("planted.py")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
WIDTHS = {"phone": 390, "desktop": 1280}

pytest.importorskip("matplotlib")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    drives = pytest.importorskip("playwright.sync_api")
    with drives.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


def timed(**parts: float) -> Measured:
    return Measured((1.0, 0.5), 100.0, parts, 3 << 30)


def example(tmp_path: Path) -> tuple[Verification, Request]:
    """A verification with everything on it, of a script whose names and words try to leave their place."""
    script = tmp_path / "train <b>.py"
    script.write_text("loss.item()\n")
    rewritten = {script: b"loss_sum += loss.detach()  # <script>alert(1)</script>\n"}
    risk: Any = None
    request = Request(script, ("--name", "<i>"), (Stage("defer-item", risk, rewritten),), options=Options())
    bars = {"data": 9.0, "transfer": 1.0, "forward": 3.0, "backward": 6.0, "optimizer": 2.0, "other": 1.0}
    agreed = tuple(
        Agreed(step, 2 / step, 2 / step * 1.0001, 0.01, 1e-5 if step % 7 else None, 0.02) for step in range(1, 101)
    )
    brings = Estimate("h100", Interval(5.0, 4.0, 6.0), "memory", speedup=Interval(2.0, 1.5, 2.5))
    return Verification(
        "pass",
        "it learns the same over 100 steps; `autocast` was left out",
        "NVIDIA H100",
        100,
        Interval(1.8, 1.7, 1.9),
        timed(**bars),
        timed(**{**bars, "data": 1.0}),
        (
            Judgement("defer-item", "kept", "losses are the same & <bit> for bit", 1.2, estimate=brings),
            Judgement("autocast", "dropped", "the gradient points elsewhere"),
        ),
        notes=("a note",),
        agreement=agreed,
    ), request


def seen(browser: Any, file: Path, width: int, scheme: str) -> Any:
    """The page, opened; nothing of it may come from anywhere else, or be wrong."""
    opened = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: complaints.append(asked.url) if asked.url != file.as_uri() else None)
    opened.on("dialog", lambda dialog: complaints.append(dialog.message))
    opened.goto(file.as_uri())
    opened.screenshot(path=file.with_name(f"{width}-{scheme}.png"), full_page=True)
    assert [each for each in complaints if not each.startswith("data:")] == []
    return opened


def looks_right(opened: Any) -> None:
    """Nothing sticks out, every picture is there, and words stand out from what lies behind them."""
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    pictures = opened.locator("figure svg")
    for place in range(pictures.count()):
        box = pictures.nth(place).bounding_box()
        assert box["width"] > 150
        assert box["height"] > 40
    assert opened.evaluate(CONTRAST) == []


CONTRAST = """() => {
    const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const light = text => {
        const [r, g, b] = rgb(text).map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = node => {
        for (; node; node = node.parentElement) {
            const color = getComputedStyle(node).backgroundColor;
            if (color !== "rgba(0, 0, 0, 0)") return color;
        }
        return "rgb(255, 255, 255)";
    };
    const bad = [];
    const words = "h1,h2,h3,p,dt,dd,li,figcaption,summary,.badge,.gain,code,pre span,svg text";
    for (const node of document.querySelectorAll(words)) {
        const style = getComputedStyle(node), word = node.closest("svg") ? style.fill : style.color;
        const [a, b] = [light(word), light(behind(node))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) bad.push([node.textContent.slice(0, 30), word, behind(node)].join());
    }
    return bad;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_page_of_a_verification(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(page.of_verification(*example(tmp_path)), encoding="utf-8")
    opened = seen(browser, file, width, scheme)
    looks_right(opened)
    assert opened.locator(".verdict .badge").inner_text().lower() == "pass"
    assert opened.locator(".verdict code").inner_text() == "autocast"
    titles = ["A step, before and after", "What each change brings", "Loss, step by step", "Gradients, step by step"]
    assert opened.locator("figure h3").all_inner_texts() == titles
    assert "train <b>.py --name <i>" in opened.locator("dl").inner_text()
    assert "3,072 MiB before" in opened.locator("dl").inner_text()
    assert "<script>alert(1)</script>" in opened.locator("pre").inner_text()  # two changes: the diff is open
    background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(16, 20, 24)"}[scheme]


def test_the_page_on_paper_is_black_on_white(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page.of_verification(*example(tmp_path)), encoding="utf-8")
    opened = seen(browser, file, 1280, "dark")
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    looks_right(opened)


def test_the_page_of_a_profile(browser: Any, run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLANTED.read_text())
    options = ("--quiet", "--device", "cpu", "--select", "sdpa", "--report", "out.html")
    assert run("profile", "train.py", *options, "--", "attention").code == 0
    opened = seen(browser, tmp_path / "out.html", 390, "dark")
    looks_right(opened)
    assert opened.locator(".badge").first.inner_text().lower() == "memory-bound"
    assert "attention is computed in" in opened.locator("ol.causes").inner_text()
    assert opened.locator("figure h3").all_inner_texts() == ["A step", "What each change brings"]


def test_a_page_is_asked_for_before_the_runs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "train.py").write_text(PLANTED.read_text())
    ran = run("profile", "train.py", "--report", "out.html", "--", "attention")
    assert ran.code == 2
    assert "--report needs jinja2 and matplotlib: pip install 'turbofix[report]'" in ran.err
    assert "2 steps" not in ran.err


@pytest.mark.parametrize("option", ["--report", "--trace"])
def test_the_folder_of_a_page_is_looked_for_before_the_runs(run: Run, tmp_path: Path, option: str) -> None:
    (tmp_path / "train.py").write_text(PLANTED.read_text())
    ran = run("profile", "train.py", option, "none/out.html", "--", "attention")
    assert ran.code == 2
    assert "error: none/out.html cannot be written: there is no folder none" in ran.err
    assert "2 steps" not in ran.err


def test_gradients_that_are_the_same_are_said_to_be(tmp_path: Path) -> None:
    found, _ = example(tmp_path)
    drawn = charts.gradients([replace(each, angle=0.0) for each in found.agreement])
    assert drawn is not None
    assert drawn.described.startswith("at most 0, ")


def test_losses_that_are_no_numbers_are_drawn_all_the_same(tmp_path: Path) -> None:
    found, request = example(tmp_path)
    broken = [replace(each, after=math.nan, angle=math.nan) for each in found.agreement[:3]]
    assert charts.gradients(broken) is not None
    assert "<svg" in charts.losses(broken).svg
    assert "<svg" in page.of_verification(replace(found, agreement=tuple(broken)), request)
