"""Settings: ``[tool.turbofix]`` of the nearest pyproject.toml, under the command line, merged into one frozen value.

Also what a file says about itself: the suppression comments, and what a project says about the torch that it needs.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from turbofix import assumptions
from turbofix.findings import Risk
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.training.model import Target


class ConfigError(Exception):
    """A setting is unknown or its value is wrong; the argument is a sentence that names it and where it stands."""


@dataclass(frozen=True)
class Settings:
    """What one run is asked to do.

    ``select`` and ``ignore`` hold names of codemods and groups; nothing selected means all. Patterns of ``exclude`` and
    ``per_file_ignores`` are relative to ``root``, the folder of the pyproject.toml. ``gpu`` and ``torch_version`` are
    None where nobody chose: the target is then read off the machine and the project. ``likely``: findings that rest on
    assumptions are applied, too; the assumptions named in ``assume`` are believed.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    risk: Risk | None = None
    likely: bool | None = None
    assume: tuple[str, ...] = ()
    gpu: str | None = None
    gpus: int | None = None
    zero: int | None = None
    pipeline: int | None = None
    torch_version: tuple[int, int] | None = None
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    root: Path | None = None

    def under(self, select: Sequence[str], ignore: Sequence[str], **chosen: Any) -> Settings:
        """These settings with the command line's on top.

        A selection on the command line starts afresh: the file's ``ignore`` does not hold against it.
        """
        given = {name: value for name, value in chosen.items() if value is not None}
        if select:
            return replace(self, select=tuple(select), ignore=tuple(ignore), **given)
        return replace(self, ignore=(*self.ignore, *ignore), **given)

    def excludes(self, path: Path) -> bool:
        """Whether ``exclude`` names this file or a folder above it."""
        return self.root is not None and any(_matches(path, pattern, self.root) for pattern in self.exclude)

    def ignored_in(self, path: Path) -> tuple[str, ...]:
        """The codemods and groups that ``per-file-ignores`` turns off in this file."""
        if self.root is None:
            return ()
        return tuple(
            name for pattern, names in self.per_file_ignores if _matches(path, pattern, self.root) for name in names
        )


def _matches(path: Path, pattern: str, root: Path) -> bool:
    """As ruff reads patterns: against the file's or a folder's name, or against its path from the project's folder."""
    path = path.absolute()
    try:
        inner = path.relative_to(root)
    except ValueError:
        return False
    pattern = pattern.rstrip("/")
    candidates = [inner, *(parent for parent in inner.parents if parent.parts)]
    return any(
        fnmatch.fnmatchcase(candidate.name, pattern) or fnmatch.fnmatchcase(candidate.as_posix(), pattern)
        for candidate in candidates
    )


# --- pyproject.toml -----------------------------------------------------------------------------------------------


def find_settings(folder: Path) -> Settings:
    """The settings that hold in ``folder``: those of the nearest pyproject.toml with a ``[tool.turbofix]`` table.

    Raises:
        ConfigError: the file cannot be read, or holds an unknown key or a wrong value.
    """
    folder = folder.absolute()
    for candidate in (folder, *folder.parents):
        table = _turbofix_table(candidate / "pyproject.toml")
        if table is not None:
            return read_table(table, candidate / "pyproject.toml")
    return Settings()


def _turbofix_table(file: Path) -> Mapping[str, object] | None:
    project = _load_toml(file)
    if project is None:
        return None
    table: object = project.get("tool", {}).get("turbofix")
    if table is None or isinstance(table, dict):
        return table
    raise ConfigError(f"{file}: [tool.turbofix] must be a table")


def _load_toml(file: Path) -> Mapping[str, Any] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return _parse_toml(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _parse_toml(file: Path, changed: int, size: int) -> Mapping[str, Any] | None:
    """The file's content; it is read again when its time or size changes."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        loaded: Mapping[str, Any] = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return loaded


def read_table(table: Mapping[str, object], file: Path) -> Settings:
    """The settings of one ``[tool.turbofix]`` table; ``file`` is where it stands.

    Raises:
        ConfigError: an unknown key, or a wrong value.
    """
    settings = Settings(root=file.parent.absolute())
    for key, value in table.items():
        parse = _KEYS.get(key)
        if parse is None:
            raise ConfigError(f"{file}: unknown key {key!r} in [tool.turbofix]; the keys are {', '.join(_KEYS)}")
        try:
            parsed: Any = parse(value)
        except ValueError as error:
            raise ConfigError(f"{file}: {key} in [tool.turbofix]: {error}") from error
        settings = replace(settings, **{key.replace("-", "_"): parsed})
    return settings


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{value!r} is not a list of strings")
    return tuple(value)


def _patterns(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table of patterns with lists of codemods")
    return tuple((pattern, _names(names)) for pattern, names in value.items())


def parse_risk(value: object) -> Risk:
    """The risk level of that name. Raises ValueError."""
    try:
        return Risk(value)
    except ValueError:
        raise ValueError(f"{value!r} is not one of {', '.join(risk.value for risk in Risk)}") from None


def _likely(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _assumed(value: object) -> tuple[str, ...]:
    names = _names(value)
    for name in names:
        if (sentence := assumptions.unknown(name)) is not None:
            raise ValueError(sentence)
    return names


def parse_gpu(value: object) -> str:
    """The name of a known GPU or architecture, or ``auto``, in its normal form. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    capability(value)
    return value


def parse_gpus(value: object) -> int:
    """A number of GPUs. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a number of GPUs: write 1 or more")
    return value


def parse_zero(value: object) -> int:
    """A stage of ZeRO. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value not in (1, 2, 3):
        raise ValueError(
            f"{value!r} is no stage of ZeRO: write 1 (the optimizer's state is shared out), 2 (gradients, too) or "
            "3 (parameters, too)"
        )
    return value


def parse_stages(value: object) -> int:
    """A number of stages of a pipeline. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a number of stages: write 1 or more")
    return value


def parse_torch_version(value: object) -> tuple[int, int]:
    """``"2.4"`` or ``"2.4.1"`` as ``(2, 4)``. Raises ValueError."""
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)*", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a torch version; write it as a string like '2.4'")
    return int(match[1]), int(match[2])


_KEYS: Mapping[str, Callable[[object], object]] = {
    "select": _names,
    "ignore": _names,
    "risk": parse_risk,
    "likely": _likely,
    "assume": _assumed,
    "gpu": parse_gpu,
    "gpus": parse_gpus,
    "zero": parse_zero,
    "pipeline": parse_stages,
    "torch-version": parse_torch_version,
    "exclude": _names,
    "per-file-ignores": _patterns,
}


# --- the target: which GPU, which torch ---------------------------------------------------------------------------

_AMPERE = (8, 0)

_CAPABILITIES = {
    "kepler": (3, 5), "k80": (3, 7), "maxwell": (5, 2), "m60": (5, 2),
    "pascal": (6, 0), "p100": (6, 0), "p4": (6, 1), "p40": (6, 1), "gtx1080": (6, 1), "gtx1080ti": (6, 1),
    "volta": (7, 0), "v100": (7, 0), "titanv": (7, 0),
    "turing": (7, 5), "t4": (7, 5), "rtx2060": (7, 5), "rtx2070": (7, 5), "rtx2080": (7, 5), "rtx2080ti": (7, 5),
    "ampere": _AMPERE, "a100": (8, 0), "a30": (8, 0), "a10": (8, 6), "a10g": (8, 6), "a40": (8, 6), "a6000": (8, 6),
    "rtx3060": (8, 6), "rtx3070": (8, 6), "rtx3080": (8, 6), "rtx3090": (8, 6),
    "ada": (8, 9), "l4": (8, 9), "l40": (8, 9), "l40s": (8, 9), "rtx4060": (8, 9), "rtx4070": (8, 9),
    "rtx4080": (8, 9), "rtx4090": (8, 9),
    "hopper": (9, 0), "h100": (9, 0), "h200": (9, 0), "gh200": (9, 0),
    "blackwell": (10, 0), "b100": (10, 0), "b200": (10, 0), "gb200": (10, 0), "b300": (10, 3),
    "rtx5080": (12, 0), "rtx5090": (12, 0),
}  # fmt: skip


def capability(gpu: str) -> tuple[int, int] | None:
    """The CUDA compute capability of an architecture, a card or ``8.6``; None for ``auto``.

    Raises:
        ValueError: the name is not known.
    """
    name = re.sub(r"[\s_-]|nvidia|geforce|tesla", "", gpu.lower())
    if name == "auto":
        return None
    if match := re.fullmatch(r"(\d{1,2})\.(\d)", name):
        return int(match[1]), int(match[2])
    if name not in _CAPABILITIES:
        architectures = "volta, turing, ampere, ada, hopper, blackwell"
        raise ValueError(
            f"{gpu!r} is not a GPU that turbofix knows; give auto, an architecture ({architectures}), "
            "a card (t4, a100, h100, rtx4090, …) or a compute capability like 8.6"
        )
    return _CAPABILITIES[name]


SHARDS_SINCE = (2, 6)
"""The torch that brought ``fully_shard``: who asks for stage 2 or 3, and names no version, has it."""


def target(settings: Settings, entry: Path, root: Path) -> Target:
    """What the rewritten ``entry`` must run on: the settings', else what machine and project say, else Ampere and 2.4.

    Raises:
        ConfigError: the project's pyproject.toml cannot be read.
    """
    chosen = capability(settings.gpu or "auto")
    folder, default = entry.absolute().parent, Target()
    required = required_version("torch", folder, root) if settings.torch_version is None else None
    return Target(
        chosen or installed_capability() or default.capability,
        settings.torch_version or required or (SHARDS_SINCE if (settings.zero or 0) > 1 else default.torch),
        default.torch if required is not None and required < default.torch else None,
        tuple((name, old) for name, pattern in OTHERS.items() if (old := required_version(pattern, folder, root))),
        settings.gpus or 1,
        settings.zero or 0,
        settings.pipeline or 1,
    )


@cache
def installed_capability() -> tuple[int, int] | None:
    """The lowest compute capability of this machine's GPUs, asked of the driver; None where there is none."""
    if sys.platform != "win32" and not any(Path("/dev", name).exists() for name in ("nvidiactl", "dxg", "nvmap")):
        return None  # no device of a driver: not worth loading anything to ask
    import ctypes

    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
        count = ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return None
        found = []
        for index in range(count.value):
            device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
            # 75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
            if (
                driver.cuDeviceGet(ctypes.byref(device), index)
                or driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
                or driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
            ):
                return None
            found.append((major.value, minor.value))
    except (OSError, AttributeError):
        return None
    return min(found, default=None)


def required_version(name: str, folder: Path, root: Path) -> tuple[int, int] | None:
    """The oldest version of a package that the project's own requirements allow; None where they set no lower bound.

    Looked for in pyproject.toml and the files of ``REQUIREMENTS`` from ``folder`` up to ``root``; the nearest that
    names it holds.

    Raises:
        ConfigError: a pyproject.toml on the way cannot be read.
    """
    for candidate in (folder, *folder.parents):
        bounds = [bound for line in _requirements(candidate, name) if (bound := lower_bound(line, name)) is not None]
        if bounds:
            return min(bounds)
        if candidate == root:
            break
    return None


REQUIREMENTS = ("*requirement*.txt", "*environment*.y*ml", "setup.py", "setup.cfg")
_ALIKE = ("accelerate", "transformers", "datasets", "pillow")
OTHERS = {"lightning": "(?:pytorch[-_])?lightning"} | {name: name for name in _ALIKE}
"""Packages whose oldest version matters beside torch's, as requirements write them."""


def _requirements(folder: Path, name: str) -> Iterable[str]:
    project = _load_toml(folder / "pyproject.toml")
    if project is not None:
        dependencies = project.get("project", {}).get("dependencies", ())
        yield from (line for line in dependencies if isinstance(line, str))
        poetry = project.get("tool", {}).get("poetry", {}).get("dependencies", {}).get(name)
        version = poetry.get("version") if isinstance(poetry, dict) else poetry
        if isinstance(version, str):
            exactly = "==" if version[:1].isdigit() else ""
            yield f"{name} {exactly}{version.replace('^', '>=').replace('~', '>=')}"
    yield from _required_lines(folder)


@lru_cache(256)
def _required_lines(folder: Path) -> tuple[str, ...]:
    """The lines of a folder's files of requirements: each script in it asks for them, for several packages."""
    lines: list[str] = []
    for file in sorted(each for pattern in REQUIREMENTS for each in folder.glob(pattern)):
        with contextlib.suppress(OSError):
            lines += file.read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(lines)


def lower_bound(requirement: str, name: str = "torch") -> tuple[int, int] | None:
    """The version that one line of requirements asks for at least, 0 for a commit; None where it asks for none.

    A line of a conda environment (``- pytorch=1.12.1=py3.10``) is one.
    """
    if re.search(rf"git\+\S*/{name}(\.git)?@", requirement):
        return (0, 0)
    called = rf"\s*(?:-\s+)?['\"]?(?:py(?=torch))?{name}"
    match = re.match(rf"{called}\s*(?:\[[^]]*\])?\s*(?![\w.-])([^;#]*)", requirement, re.IGNORECASE)
    if match is None:
        return None
    bounds = re.findall(r"(?:>=|(?<![<>!~=])={1,3}|~=|>)\s*v?(\d+)(?:\.(\d+))?", match[1])
    return max(((int(major), int(minor or 0)) for major, minor in bounds), default=None)


# --- what a file says about itself --------------------------------------------------------------------------------

_COMMENT = regex(
    r"#\s*turbofix:\s*(?:(?P<skip>skip-file)\b|assume\s*\[(?P<assumed>[^]]*)\]|ignore\b(?:\s*\[(?P<ignored>[^]]*)\])?)"
)
_SKIP_FILE_LINES = 10


@dataclass(frozen=True)
class Suppressions:
    """The comments for turbofix in one file: ``skip_file``, and per line the names ignored (None: all of them) and the
    assumptions declared."""

    skip_file: bool = False
    lines: tuple[tuple[int, frozenset[str] | None], ...] = ()
    declared: tuple[tuple[int, frozenset[str]], ...] = ()

    def cover(self, line: int, *names: str) -> bool:
        """Whether something called one of ``names`` (a codemod, its group) on that line (from 1) is suppressed."""
        return self.skip_file or any(
            where == line and (ignored is None or not ignored.isdisjoint((*names, "all")))
            for where, ignored in self.lines
        )

    def assumed(self, line: int) -> frozenset[str]:
        """The assumptions that a comment on that line (from 1) declares."""
        return frozenset(name for where, names in self.declared if where == line for name in names)


def suppressions(text: str) -> Suppressions:
    """The suppression comments in a file's text. Only comments count, not strings that look like one."""
    if "turbofix:" not in text:
        return Suppressions()
    skip_file = False
    lines: list[tuple[int, frozenset[str] | None]] = []
    declared: list[tuple[int, frozenset[str]]] = []
    for line, comment in _comments(text):
        for match in _COMMENT.finditer(comment):
            if match["skip"]:
                skip_file = skip_file or line <= _SKIP_FILE_LINES
            elif match["assumed"] is not None:
                declared.append((line, _split(match["assumed"])))
            else:
                lines.append((line, (match["ignored"] and _split(match["ignored"])) or None))
    return Suppressions(skip_file, tuple(lines), tuple(declared))


def _split(names: str) -> frozenset[str]:
    return frozenset(name.strip() for name in names.split(",") if name.strip())


def _comments(text: str) -> Iterable[tuple[int, str]]:
    # A lone carriage return ends a line in Python, but not for the tokenizer.
    tokens = tokenize.generate_tokens(io.StringIO(text, newline=None).readline)
    try:
        for token in tokens:
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError):
        return  # the file does not parse: that is reported elsewhere
