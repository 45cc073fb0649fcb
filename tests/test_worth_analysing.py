"""Which scripts are looked at: those that come to a training library by what they import."""

from __future__ import annotations

from memory import ROOT, MemoryWorkspace

from turbofix.engine.pipeline import worth_analysing


def test_training_behind_the_imports_of_its_own_package() -> None:
    texts = {
        ROOT / "speech" / "run.py": "from speech.loop import train\ntrain()\n",
        ROOT / "speech" / "loop.py": "from speech import epochs\n",
        ROOT / "speech" / "epochs.py": "import torch\n",
        ROOT / "speech" / "count.py": "from speech import words\nfrom speech import count\n",
        ROOT / "speech" / "words.py": "import json\n",
        ROOT / "by_name.py": "import importlib\nimportlib.import_module(input()).run()\n",
        ROOT / "by_file.py": "import hydra\n",
    }
    workspace = MemoryWorkspace(texts)
    run, count = ROOT / "speech" / "run.py", ROOT / "speech" / "count.py"
    assert worth_analysing(run, texts[run], workspace)
    assert not worth_analysing(count, texts[count], workspace)
    for chosen in (ROOT / "by_name.py", ROOT / "by_file.py"):
        assert worth_analysing(chosen, texts[chosen], workspace)
