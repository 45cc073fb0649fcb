"""``python -m benchmarks.readme``: every command of the README, run as somebody would who has just cloned the project.

The commands are those of the indented blocks, and `python -m …` in the sentences. They run in a copy of what git
knows, with an environment of its own. Only ``make test`` is left out, which ``.ci/run`` runs beside this. It exits with
1 where a command ends otherwise than the README lets expect.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOUND = 1  # what analyze and apply exit with where they found something, which is what a demonstration is for


def commands(readme: str) -> list[str]:
    """The commands that a README shows, in their order."""
    found = re.findall(r"(?m)^    (\S.*)$|`(python -m benchmarks\S*)`", readme)
    return [block or inline for block, inline in found]


def main() -> int:
    """Run them all, say how each ended and how long it took; 1 where one failed."""
    subprocess.run(["make", ".venv/.ready"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as scratch:
        copy, home = Path(scratch, "turbofix"), Path(scratch, "project")
        home.mkdir()
        for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        shutil.copy(copy / "fixtures/scripts/seq2seq.py", home / "train.py")
        (copy / ".venv").symlink_to(ROOT / ".venv")  # the environment that `make` would set up again
        subprocess.run([sys.executable, "-m", "venv", f"{scratch}/venv"], check=True)
        installed = Path(sysconfig.get_path("purelib", vars={"base": f"{scratch}/venv"}))
        (installed / "torch.pth").write_text(sysconfig.get_path("purelib"))  # so that torch is not fetched once more
        environment = {
            **os.environ,
            "PATH": f"{scratch}/venv/bin{os.pathsep}{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(copy / "constraints.txt"),
        }

        def ended_well(command: str) -> bool:
            begun = time.perf_counter()
            ended = subprocess.run(
                command,
                shell=True,
                cwd=home if command.startswith("turbofix") else copy,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            searches = re.match(r"turbofix (analyze|apply)\b(?!.*--write)", command)
            right = ended.returncode == (FOUND if searches else 0)
            told = [f"{'ok' if right else 'FAILED'} {time.perf_counter() - begun:.0f} s  {command}"]
            told += [] if right else [ended.stdout, ended.stderr, f"exit status {ended.returncode}"]
            print("\n".join(told), flush=True)
            return right

        shown = [each for each in commands((ROOT / "README.md").read_text(encoding="utf-8")) if each != "make test"]
        installs = [each for each in shown if each.startswith("pip")]
        makes = [each for each in shown if each.startswith("make")]
        installed_ones = [each for each in shown if each.startswith("turbofix")]
        others = [each for each in shown if each not in (*installs, *makes, *installed_ones)]
        # two at a time, and nothing before what it needs is there
        right = [lanes(ended_well, installs, makes), lanes(ended_well, installed_ones, others)]
        return int(not all(right))


def lanes(ended_well: Callable[[str], bool], *each: list[str]) -> bool:
    """Whether the commands of every lane ended well: the lanes beside one another, those of one lane in their order."""
    with ThreadPoolExecutor(len(each)) as pool:
        ended = pool.map(lambda lane: [ended_well(command) for command in lane], each)
        return all(itertools.chain.from_iterable(ended))


if __name__ == "__main__":
    sys.exit(main())
