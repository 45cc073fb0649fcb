"""Tensors on disk, one record after another: what they are, then their bytes. ``torch.save`` takes many times as long.

Only what is not plain (sparse, quantised, a subclass) goes through ``torch.save``, tensor by tensor.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_load, _save = torch.load, torch.save

# bytes: where a tensor may begin in its record, so that every element is aligned
_STEP = 64
# of a record: the length of its head, and of the tensors behind it
_LENGTHS = struct.Struct("<QQ")
# buffers that one system call may take (IOV_MAX is 1024 or more wherever there is writev)
_MOST_BUFFERS = 1000


class Writer:
    """A file that records are appended to."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._end = 0

    def append(self, tensors: Sequence[Tensor], note: Any) -> None:
        """Write tensors on the CPU and a picklable ``note``. Raises ``OSError``, with no trace of the record left."""
        blobs = [_blob(tensor) for tensor in tensors]
        places: list[tuple[int, int, tuple[int, ...], torch.dtype | None]] = []
        end = 0
        for (content, kind, _), tensor in zip(blobs, tensors, strict=True):
            places.append((end, len(content), tuple(tensor.shape), kind))
            end += -(-len(content) // _STEP) * _STEP
        head = pickle.dumps((places, note))
        buffers: list[memoryview] = [memoryview(_LENGTHS.pack(len(head), end) + head)]
        for content, _, _ in blobs:
            buffers += [content, memoryview(bytes(-len(content) % _STEP))]
        try:
            self._end += _write_all(self._file, [buffer for buffer in buffers if len(buffer)])
        except OSError:
            os.ftruncate(self._file, self._end)
            os.lseek(self._file, self._end, os.SEEK_SET)
            raise


def _write_all(file: int, buffers: list[memoryview]) -> int:
    """Write it all and return its length."""
    whole = sum(map(len, buffers))
    while buffers:
        written = os.writev(file, buffers[:_MOST_BUFFERS])
        done = 0
        while done < len(buffers) and written >= len(buffers[done]):
            written -= len(buffers[done])
            done += 1
        buffers = buffers[done:]
        if written:
            buffers[0] = buffers[0][written:]
    return whole


def records(path: str) -> Iterator[tuple[list[Tensor], Any]]:
    """The tensors and the note of each record of a file, in their order; none where there is no file."""
    try:
        file = io.FileIO(path)
    except FileNotFoundError:
        return
    with file:
        while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
            length, end = _LENGTHS.unpack(lengths)
            places, note = pickle.loads(_read_all(file, length))
            memory = _read_all(file, end)
            yield [_tensor(memory, *place) for place in places], note


def _read_all(file: io.FileIO, size: int) -> bytearray:
    memory = bytearray(size)
    view, filled = memoryview(memory), 0
    while filled < size:
        count = file.readinto(view[filled:])
        if not count:
            raise EOFError(file.name)
        filled += count
    return memory


def _blob(tensor: Tensor) -> tuple[memoryview, torch.dtype | None, object]:
    """The bytes to write, the type of the elements (None for what only ``torch.save`` knows), and whose bytes."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor.is_quantized:
        saved = io.BytesIO()
        _save(tensor, saved)
        return saved.getbuffer(), None, saved
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    size = plain.numel() * plain.element_size()
    if not size:
        return memoryview(b""), plain.dtype, None
    # the tensor's own memory, without numpy, which need not be there
    memory = (ctypes.c_char * size).from_address(plain.data_ptr())
    return memoryview(memory).cast("B"), plain.dtype, plain


def _tensor(memory: bytearray, start: int, size: int, shape: tuple[int, ...], kind: torch.dtype | None) -> Tensor:
    if kind is None:
        found: Tensor = _load(io.BytesIO(memory[start : start + size]), map_location="cpu", weights_only=False)
        return found
    if not size:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start).view(kind).reshape(shape)
