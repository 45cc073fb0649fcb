"""Bytes to text and back: reading sources as Python does, finding them in folders, writing them atomically.

A ``Source`` keeps the bytes it was read from, so that what an edit does not touch stays byte for byte: the text keeps
its own line endings, and encoding it again with the same codec gives the original bytes (tested on reading).
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofix.source.notebook import Cells, Notebook

from turbofix.records import dataclass

STDIN = "-"

# Folders that hold other people's code or generated code; hidden folders are skipped as well.
_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "__pypackages__", "node_modules", "site-packages", "venv", "build", "dist"}
)
PYTHON = (".py", ".ipynb")
_ROOT_MARKERS = (".git", "pyproject.toml", "setup.py")
_PACKS = re.compile(r"setuptools|distutils|skbuild")
ROOT_HINTS = (".gitignore", "requirements.txt", "environment.yml", "setup.cfg", "Pipfile")
"""What lies in a project's folder where it was downloaded without its history, and perhaps further down."""


@dataclass(frozen=True)
class SourceError:
    """Why a file could not be read or written: one sentence that says what, and what to do where that is known."""

    path: Path
    sentence: str


@dataclass(frozen=True)
class Source:
    """A Python file: its text without byte-order mark, and what is needed to write it back as it was.

    The text of a notebook is the code of its cells. ``new``: there is no such file yet.
    """

    path: Path
    text: str
    data: bytes
    encoding: str
    bom: bool
    notebook: Notebook | None = None
    new: bool = False

    @property
    def cells(self) -> Cells | None:
        """Where the lines of the text stand in the cells of the notebook, if it is one."""
        return self.notebook.places if self.notebook is not None else None

    def encode(self, text: str) -> bytes | SourceError:
        """``text`` as bytes of this file's encoding, with its byte-order mark; an error where it does not encode."""
        if self.notebook is not None:
            from turbofix.source.notebook import NotReadable

            try:
                text = self.notebook.rewritten(text)
            except NotReadable as error:
                return SourceError(self.path, str(error))
        try:
            encoded = text.encode(self.encoding)
        except UnicodeEncodeError as error:
            character = text[error.start]
            return SourceError(
                self.path,
                f"the new text holds {character!r}, which the file's encoding {self.encoding} cannot express; "
                "save the file as UTF-8 first",
            )
        return codecs.BOM_UTF8 + encoded if self.bom else encoded


def decode(path: Path, data: bytes) -> Source | SourceError:
    """The source that ``data`` holds, decoded as Python decodes it (PEP 263: cookie, byte-order mark, UTF-8)."""
    if path.suffix == ".ipynb":
        return _decode_notebook(path, data)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return SourceError(path, "it is encoded as UTF-16, which Python does not read; save it as UTF-8")
    bom = data.startswith(codecs.BOM_UTF8)
    try:
        encoding = _declared_encoding(data[len(codecs.BOM_UTF8) :] if bom else data)
    except LookupError as error:
        return SourceError(path, f"its encoding cannot be told ({error}); fix the coding line or save it as UTF-8")
    if bom and encoding != "utf-8":
        return SourceError(path, f"it has a UTF-8 byte-order mark and declares {encoding}; remove one of the two")
    body = data[len(codecs.BOM_UTF8) :] if bom else data
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        return SourceError(
            path,
            f"it is not valid {encoding} (byte 0x{body[error.start]:02x} on line {line}); "
            "declare its encoding in the first line, or save it as UTF-8",
        )
    except (LookupError, ValueError) as error:  # `coding: rot13` is a codec, but not of text
        return SourceError(path, f"its encoding {encoding} cannot be used ({error}); save it as UTF-8")
    if "\0" in text:
        return SourceError(path, "it holds null bytes, so it is not Python source")
    source = Source(path, text, data, encoding, bom)
    if source.encode(text) != data:
        # Some codecs read several byte sequences as one character; writing would change lines that no edit touched.
        return SourceError(path, f"its {encoding} bytes cannot be written back unchanged; save it as UTF-8")
    return source


def _decode_notebook(path: Path, data: bytes) -> Source | SourceError:
    from turbofix.source.notebook import NotReadable, read  # here, since most runs see none

    bom = data.startswith(codecs.BOM_UTF8)
    try:
        notebook = read(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return SourceError(path, "it is not UTF-8, as notebooks are; open and save it in Jupyter")
    except NotReadable as error:
        return SourceError(path, str(error))
    return Source(path, notebook.text, data, "utf-8", bom, notebook)


_COOKIE = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"[ \t\f]*(?:#.*)?$")


def _declared_encoding(data: bytes) -> str:
    """The codec that the first two lines declare, else UTF-8. Raises LookupError for an unknown one.

    ``tokenize.detect_encoding`` does the same, but refuses what Python runs: other bytes than UTF-8 beside the cookie.
    """
    for line in re.split(rb"\r\n|\r|\n", data, maxsplit=2)[:2]:
        if match := _COOKIE.match(line):
            name = codecs.lookup(match[1].decode("ascii")).name
            return "utf-8" if name.startswith("utf-8") else name
        if not _BLANK.match(line):
            break
    return "utf-8"


def read_source(path: Path) -> Source | SourceError:
    """Read a Python file or a notebook; what stops it comes back as a sentence, nothing is raised."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return SourceError(path, "it is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            # A pipe or device would block, and could not be written back.
            return SourceError(path, "it is not a regular file")
        return decode(path, path.read_bytes())
    except OSError as error:
        return SourceError(path, _because(error))


def read_stdin() -> Source | SourceError:
    """Read the source that comes in on standard input."""
    return decode(Path(STDIN), sys.stdin.buffer.read())


def why_not_writable(source: Source) -> SourceError | None:
    """What stops the file from being written (read-only, changed since it was read); None where nothing does."""
    target = Path(os.path.realpath(source.path))
    if source.new:
        if os.path.lexists(source.path):
            return SourceError(source.path, "it was not there before, so it was left alone; run the command again")
        return (
            None if os.access(target.parent, os.W_OK) else SourceError(source.path, "its folder cannot be written to")
        )
    try:
        # By its mode bits too: a privileged user may write anything, but the file's owner said otherwise.
        if not target.stat().st_mode & 0o222 or not os.access(target, os.W_OK):
            return SourceError(source.path, "it is read-only; allow writing (chmod u+w) to have it rewritten")
        if target.read_bytes() != source.data:
            return SourceError(source.path, "it changed since it was read, so it was left alone; run the command again")
    except OSError as error:
        return SourceError(source.path, _because(error))
    return None


def write_bytes(source: Source, data: bytes) -> SourceError | None:
    """Put ``data`` in the place of the file, atomically and with its mode; None when that was done.

    Refused when the file is read-only or changed since it was read. A symbolic link stays one: its target is written.
    """
    if (problem := why_not_writable(source)) is not None:
        return problem
    import tempfile  # here, since most runs write nothing

    target = Path(os.path.realpath(source.path))
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".turbofix", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if source.new:
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(temporary, 0o666 & ~mask)
            else:
                _keep_ownership(temporary, target.stat())
            if (problem := why_not_writable(source)) is not None:  # once more: writing took its time
                return problem
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        _sync_folder(target.parent)
    except OSError as error:
        return SourceError(source.path, _because(error))
    return None


def _keep_ownership(temporary: str, status: os.stat_result) -> None:
    if hasattr(os, "chown") and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(OSError):
            os.chown(temporary, status.st_uid, status.st_gid)
    os.chmod(temporary, stat.S_IMODE(status.st_mode))


def _sync_folder(folder: Path) -> None:
    """Make the new name durable; not every platform opens folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _because(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "permission denied; check who may read and write it and its folder"
    return (error.strerror or str(error)).lower()


# --- finding the files of a folder ------------------------------------------------------------------------------


def python_files(folder: Path, suffixes: tuple[str, ...] = PYTHON) -> list[Path]:
    """The Python files and notebooks below ``folder``, sorted, less what git ignores and virtual environments."""
    listed = _git_files(folder, suffixes)
    return sorted(set(_walk(folder, suffixes) if listed is None else listed))


def _git_files(folder: Path, suffixes: tuple[str, ...]) -> list[Path] | None:
    """Tracked and new files that git does not ignore, less virtual environments; None when git cannot say, or ignores
    the folder itself."""
    if not any((parent / ".git").exists() for parent in (folder.absolute(), *folder.absolute().parents)):
        return None
    import subprocess  # here, since most runs never need it

    # A repository's own configuration may name a command as its file monitor: it is not run.
    git = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotepath=false", "-C", os.fspath(folder)]
    try:
        if subprocess.run([*git, "check-ignore", "-q", "."], capture_output=True, check=False).returncode == 0:
            return None
        result = subprocess.run(
            [*git, "ls-files", "-z", "-co", "--exclude-standard", "--", *(f"*{each}" for each in suffixes)],
            capture_output=True,
            check=False,
        )
    except OSError:
        return None
    if result.returncode != 0:
        return None
    names = [name for name in map(os.fsdecode, result.stdout.split(b"\0")) if name]

    @functools.cache
    def skipped(parent: str) -> bool:
        return bool(parent) and (_skipped(folder / parent) or skipped(os.path.dirname(parent)))

    return [folder / name for name in names if not skipped(os.path.dirname(name)) and os.path.isfile(folder / name)]


def _walk(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _skipped(Path(parent, name))]
        yield from (Path(parent, name) for name in files if name.endswith(suffixes))


def _skipped(folder: Path) -> bool:
    name = folder.name
    return name.startswith(".") or name in _SKIPPED_FOLDERS or (folder / "pyvenv.cfg").is_file()


# --- the files of one run, as the stages see them ------------------------------------------------------------------


_SEARCHED = 1000
"""How many files of a project are looked into for what they import."""


def _hinted(folder: Path) -> Path:
    """The nearest folder, from this one upwards, that looks like a project's; else the folder itself."""
    above = (folder, *folder.parents)
    return next((each for each in above if any((each / hint).exists() for hint in ROOT_HINTS)), folder)


def is_root(folder: Path) -> bool:
    """Whether a project file lies in a folder; ``setup.py`` may be any module, unless it has to do with packages."""
    found = [marker for marker in _ROOT_MARKERS if (folder / marker).exists()]
    if found != ["setup.py"]:
        return bool(found)
    read = read_source(folder / "setup.py")
    return isinstance(read, Source) and _PACKS.search(read.text) is not None


def _root(folder: Path) -> Path:
    for candidate in filter(is_root, (folder, *folder.parents)):
        return candidate
    hinted = _hinted(folder)
    current = Path.cwd()
    return current if current in hinted.parents else hinted


class Workspace:
    """The texts of a project: files on disk, each read once, under an overlay of rewritten texts."""

    def __init__(self, given: Mapping[Path, Source] | None = None) -> None:
        """``given`` are sources that did not come from disk (standard input), by the path they go under."""
        self._sources: dict[Path, Source | SourceError] = dict(given or {})
        self._texts: dict[Path, str] = {}
        self._files: dict[str, Path | None] = {}
        self._roots: dict[Path, Path] = {}
        self._listed: dict[tuple[Path, tuple[str, ...]], list[Path]] = {}  # by folder
        self._beside: dict[tuple[Path, tuple[str, ...]], list[Path]] = {}  # by the folder of the script that asks

    def source(self, path: Path) -> Source | SourceError:
        """The file as it was first read, without the overlay."""
        if path not in self._sources:
            self._sources[path] = read_source(path)
        return self._sources[path]

    def place(self, path: Path) -> Source | SourceError:
        """The file as ``source`` has it; where there is none, an empty one that is to be written."""
        source = self.source(path)
        new = isinstance(source, SourceError) and not os.path.lexists(path)
        return Source(path, "", b"", "utf-8", bom=False, new=True) if new else source

    def read(self, path: Path) -> str | None:
        """The current text of a file, or None where there is none or it cannot be read."""
        if path in self._texts:
            return self._texts[path]
        source = self.source(path)
        return source.text if isinstance(source, Source) else None

    def file(self, place: str) -> Path | None:
        """The path of a file, where there is one that can be read: the same are looked for by many scripts."""
        if place not in self._files:
            self._files[place] = path if self.read(path := Path(place)) is not None else None
        return self._files[place]

    def cells(self, path: Path) -> Cells | None:
        """Where the lines of the current text of a notebook stand in its cells; None for any other file."""
        source = self.source(path)
        if path in self._texts and isinstance(source, Source) and source.notebook is not None:
            encoded = source.encode(self._texts[path])
            source = decode(path, encoded) if isinstance(encoded, bytes) else source
        return source.cells if isinstance(source, Source) else None

    def with_texts(self, texts: Mapping[Path, str]) -> Workspace:
        """The same files with other texts on top; what was read already is shared."""
        workspace = Workspace()
        workspace._sources, workspace._roots = self._sources, self._roots
        workspace._listed, workspace._beside = self._listed, self._beside
        workspace._texts = {**self._texts, **texts}
        return workspace

    def forget(self, paths: Iterable[Path]) -> None:
        """Read these files again when they are next asked for: they were written."""
        for path in paths:
            self._sources.pop(path, None)
            self._files.pop(str(path), None)

    def root(self, entry: Path) -> Path:
        """The project's folder: the nearest one above the script with a project file.

        Else the current folder, where the script lies below it (``python tools/train.py``), or one above the script
        that looks like a project's, whichever is higher; else the script's own.
        """
        folder = entry.absolute().parent
        if folder not in self._roots:
            self._roots[folder] = _root(folder)
        return self._roots[folder]

    def beside(self, entry: Path, *suffixes: str) -> list[Path]:
        """The Python files of the script's project, or those of some suffixes; without a project file, those below its
        own folder."""
        own = entry.absolute().parent
        if (own, suffixes) not in self._beside:
            root = self.root(entry)
            key = root if is_root(root) else _hinted(own) if suffixes else own, suffixes or (".py",)
            if key not in self._listed:
                self._listed[key] = python_files(*key)[:_SEARCHED]
            self._beside[own, suffixes] = self._listed[key]
        return self._beside[own, suffixes]
