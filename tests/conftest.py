"""What tests of several rooms take."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest
import warm

from turbofix.verify import runner

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is there: other tests keep their core


@pytest.fixture(scope="session")
def kept_interpreters() -> Iterator[warm.Kept]:
    kept = warm.Kept()
    yield kept
    kept.close()


@contextlib.contextmanager
def forking(kept: warm.Kept) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform.startswith("linux"):
            patch.setattr(runner, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "Popen": kept.start}))
        yield


@pytest.fixture(scope="module")
def warm_interpreters(kept_interpreters: warm.Kept) -> Iterator[None]:
    """Verifications of this module go on in forks of an interpreter that has imported torch, see ``warm``."""
    with forking(kept_interpreters):
        yield


@pytest.fixture
def warm_interpreter(kept_interpreters: warm.Kept) -> Iterator[None]:
    """As ``warm_interpreters``, for one test."""
    with forking(kept_interpreters):
        yield
