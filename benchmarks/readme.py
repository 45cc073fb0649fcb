"""``python -m benchmarks.readme``: every command of the README, run as somebody would who has just cloned the project.

The commands are those of the indented blocks, and `python -m …` in the sentences. They run in a copy of what git
knows, with an environment of its own. Only ``make test`` is left out, which ``.ci/run`` runs beside this. It exits with
1 where a command ends otherwise than the README lets expect.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOUND = 1  # what analyze and apply exit with where they found something, which is what a demonstration is for


def commands(readme: str) -> list[str]:
    """The commands that a README shows, in their order."""
    found = re.findall(r"(?m)^    (\S.*)$|`(python -m benchmarks\S*)`", readme)
    return [block or inline for block, inline in found]


def main() -> int:
    """Run them all, say how each ended and how long it took; 1 where one failed."""
    failed = False
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
        for command in commands((ROOT / "README.md").read_text(encoding="utf-8")):
            if command == "make test":
                continue
            of_script = command.startswith("turbofix")
            begun = time.perf_counter()
            ended = subprocess.run(
                command,
                shell=True,
                cwd=home if of_script else copy,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            searches = re.match(r"turbofix (analyze|apply)\b(?!.*--write)", command)
            right = ended.returncode == (FOUND if searches else 0)
            failed = failed or not right
            print(f"{'ok' if right else 'FAILED'} {time.perf_counter() - begun:.0f} s  {command}", flush=True)
            if not right:
                print(ended.stdout, ended.stderr, f"exit status {ended.returncode}", sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
