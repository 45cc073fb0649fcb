"""Take chance out of a run: whatever draws random numbers draws the same ones in every run, in whatever process.

Three things are done, and only together do they make two runs equal bit for bit. Samplers draw from a stream of their
own, reseeded in every epoch. Each sample is drawn under a seed made from the epoch and its index, which travels with
the index to whichever worker loads it. The main process is reseeded after each batch, from the epoch and the number of
samples before it, so that prefetching and other batch sizes change nothing.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import importlib
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler, Subset, get_worker_info
from torch.utils.data import dataloader as loading
from torch.utils.data._utils import fetch as fetching

from .patching import wrap
from .shorten import pieces_of, plain_batches, reads_once, shares, size_of


class Chance:
    """The random number generators of this process, seeded and swapped together."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # the size of a process's share of the batch, of how many it is one, and whether it lies in one piece
        self.share: tuple[int, int, bool] | None = None
        self.shuffles: list[int] = []  # what each pass that several processes share is shuffled by
        self._number, self._seeds_given = seed, 0

    def new_seed(self, bits: int) -> int:
        """A seed for a generator that was given none; it depends on the last reseeding and the seeds given since."""
        self._seeds_given += 1
        return random.Random(hash((self._number, self._seeds_given))).getrandbits(bits)

    def number(self, *key: object) -> int:
        return hash((self.seed, *key)) & 0x7FFFFFFFFFFFFFFF

    def reseed(self, *key: object) -> None:
        number = self.number(*key)
        self._number, self._seeds_given = number, 0
        random.seed(number)
        torch.default_generator.manual_seed(number)
        cuda: Any = torch.cuda
        if cuda.is_initialized():
            cuda.manual_seed_all(number)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(number & 0xFFFFFFFF)

    def state(self) -> tuple[Any, Any, Any, Any]:
        numpy = sys.modules.get("numpy")
        drawn = None if numpy is None else numpy.random.get_state()
        return torch.default_generator.get_state(), random.getstate(), drawn, (self._number, self._seeds_given)

    def digest(self) -> int:
        """A number for where the generators are: two programs that have drawn as much have the same."""
        drawn, plain, arrays, _ = self.state()
        where = None if arrays is None else (arrays[2], zlib.crc32(arrays[1].tobytes()))
        return hash((zlib.crc32(ctypes.string_at(drawn.data_ptr(), drawn.numel())), plain, where))

    def restore(self, state: tuple[Any, Any, Any, Any]) -> None:
        self._number, self._seeds_given = state[3]
        torch.default_generator.set_state(state[0])
        random.setstate(state[1])
        if state[2] is not None:
            sys.modules["numpy"].random.set_state(state[2])

    def differs(self, state: tuple[Any, Any, Any, Any]) -> bool:
        """Whether anything has been drawn since ``state`` was taken."""
        now = self.state()
        same = bool(torch.equal(now[0], state[0])) and now[1] == state[1] and now[3] == state[3]
        if now[2] is not None and state[2] is not None:
            same = same and now[2][2] == state[2][2] and bool((now[2][1] == state[2][1]).all())
        return not same


@dataclass
class Epoch:
    """One pass over a loader: which one over its data, how far it is, and its sampler's own random state."""

    loader: str
    number: int
    position: int = 0
    batches: int = 0
    sampler_state: Any = None
    shares: int = 1  # processes among which its samples are shared out, and after how many of them unequally
    uneven_after: int | None = None
    pieces: bool = False  # each share is one piece of a batch
    drawn: int = 0  # of the batch that was handed out last: which samples are in it, in one number

    @property
    def uneven(self) -> bool:
        """Whether the batch that was handed out last is another share of the whole than the other processes have."""
        return self.uneven_after is not None and self.position >= self.shares * self.uneven_after


class _Tagged:
    """Indices on their way to a worker, with the epoch that they belong to."""

    def __init__(self, epoch: int, ordinal: int, indices: Any) -> None:
        self.epoch, self.ordinal, self.indices = epoch, ordinal, indices


def batch_size(batch: Any) -> int:
    """The number of samples in a batch: the length of the first tensor found in it (0 when there is none)."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else 1
    if hasattr(batch, "num_graphs"):
        return int(batch.num_graphs)
    values = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    return next((size for size in map(batch_size, values) if size), 0)


def seed_everything(chance: Chance, shift: int = 0) -> None:
    """Seed all generators, and make seeding without a number reproducible too.

    With a ``shift`` the numbers that the script seeds them with are moved by so much: a training with another seed.
    """
    with contextlib.suppress(ImportError):  # where it is installed the script may draw from it
        importlib.import_module("numpy")
    chance.reseed("start")
    if shift:
        _shift_seeds(shift)

    def seeded(original: Any) -> Callable[..., Any]:
        def seed(*arguments: Any, **keywords: Any) -> Any:
            if not keywords and all(argument is None for argument in arguments):
                arguments = (chance.new_seed(32),)
            return original(*arguments, **keywords)

        return seed

    wrap(random, "seed", seeded)
    wrap(torch, "seed", lambda original: lambda: torch.manual_seed(chance.new_seed(32)).initial_seed())

    def seeded_object(original: Any) -> Callable[..., Any]:
        def seed(self: Any, a: Any = None, *version: Any, **keywords: Any) -> Any:
            # names of temporary files are drawn at any time, by any thread
            if a is None and sys._getframe(2).f_globals.get("__name__") != "tempfile":
                a = chance.new_seed(32)
            return original(self, a, *version, **keywords)

        return seed

    wrap(random.Random, "seed", seeded_object)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        wrap(numpy.random, "seed", seeded)
        # what every generator asks that is made without a seed (environments of gym among them)
        bits = sys.modules.get("numpy.random.bit_generator")
        if hasattr(bits, "randbits"):
            setattr(bits, "randbits", chance.new_seed)  # noqa: B010 (unknown to the type checker)


def draw_in_order() -> None:
    """Draw the numbers of a tensor in the order of its indices, in whatever order it has them in memory."""

    def filled(original: Any) -> Callable[..., Any]:
        def fill(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.is_contiguous():
                return original(self, *arguments, **keywords)
            plain = torch.empty_like(self, memory_format=torch.contiguous_format)
            return self.copy_(original(plain, *arguments, **keywords))

        return fill

    def alike(fill: str) -> Callable[[Any], Callable[..., Any]]:
        @torch.no_grad()
        def made(input: Any, **keywords: Any) -> Any:  # noqa: A002 (its name in torch)
            return getattr(torch.empty_like(input, **keywords), fill)()

        return lambda original: made

    for name in ("normal_", "uniform_", "bernoulli_", "random_", "exponential_"):
        wrap(torch.Tensor, name, filled)
    wrap(torch, "rand_like", alike("uniform_"))
    wrap(torch, "randn_like", alike("normal_"))


def draw_for_all(chance: Chance, rank: int) -> None:
    """Where a step draws numbers for each sample of its share of a batch, draw what one process draws for these.

    The shares are those of a ``DistributedSampler``, every so manieth sample of the batch, or pieces of it.
    """

    def part(whole: Any, share: tuple[int, int, bool]) -> Any:
        size, count, pieces = share
        return whole[rank * size : (rank + 1) * size] if pieces else whole[rank::count]

    def filled(original: Any) -> Callable[..., Any]:
        def fill(self: Any, *given: Any, **named: Any) -> Any:
            share = chance.share
            apart = "generator" in named or any(isinstance(each, torch.Tensor) for each in given)
            if share is None or apart or not self.dim() or len(self) != share[0]:
                return original(self, *given, **named)
            whole = self.new_empty((share[0] * share[1], *self.shape[1:]))
            return self.copy_(part(original(whole, *given, **named), share))

        return fill

    def made(original: Any) -> Callable[..., Any]:
        def make(*given: Any, **named: Any) -> Any:
            share, last = chance.share, given[-1] if given else None
            in_row = original is not integers and all(type(each) is int for each in given)
            size = named.get("size", given if in_row else last)
            plain = isinstance(size, (tuple, list, torch.Size)) and "generator" not in named and "out" not in named
            if share is None or not plain or not size or size[0] != share[0]:
                return original(*given, **named)
            whole = (share[0] * share[1], *size[1:])
            if "size" in named:
                drawn = original(*given, **{**named, "size": whole})
            else:
                drawn = original(*(() if in_row else given[:-1]), whole, **named)
            return part(drawn, share).clone()

        return make

    integers = torch.randint
    for name in ("normal_", "uniform_", "bernoulli_", "random_", "exponential_"):
        wrap(torch.Tensor, name, filled)
    for name in ("rand", "randn", "randint"):
        wrap(torch, name, made)


def _shift_seeds(shift: int) -> None:
    def shifted(original: Any) -> Callable[..., Any]:
        def seed(*numbers: Any, **keywords: Any) -> Any:
            if numbers and type(numbers[0]) is int:
                numbers = ((numbers[0] + shift) % (1 << 32), *numbers[1:])
            elif type(keywords.get("seed")) is int:
                keywords["seed"] = (keywords["seed"] + shift) % (1 << 32)
            return original(*numbers, **keywords)

        return seed

    for owner in (random, sys.modules.get("numpy.random")):
        if owner is not None:
            wrap(owner, "seed", shifted)
    wrap(torch, "manual_seed", shifted)
    torch.random.manual_seed = torch.manual_seed


def watch_loaders(
    chance: Chance,
    on_batch: Callable[[Epoch, int, bool], None],
    on_end: Callable[[Epoch], None],
    name_loader: Callable[[Any], str],
    hurrying: Callable[[], bool],
) -> None:
    """Neutralise every ``DataLoader`` and report its batches and the ends of its epochs.

    ``on_batch`` gets the epoch, the number of samples in the batch, and whether the main process drew random numbers
    since the last batch; ``on_end`` gets the epoch. While ``hurrying`` an epoch ends after its first batch.
    """
    passes: dict[tuple[object, ...], tuple[Any, int]] = {}
    begun: dict[tuple[object, ...], Epoch] = {}
    handed: list[Any] = [None]
    drawing: list[Epoch | None] = [None]
    first_pass: dict[tuple[int, int], int] = {}
    main_process = os.getpid()

    def begin(iterator: Any, loader: Any) -> None:
        name = name_loader(loader)  # which counts the workers of any
        if reads_once(loader):
            return
        drawn = _drawn_from(loader)
        _, number = passes.get(drawn, (None, -1))
        # the data set is kept alive so that its identity is not used again
        passes[drawn] = (loader.dataset, number + 1)
        if (left := begun.pop(drawn, None)) is not None:
            on_end(left)  # it was left in the middle
        count, uneven_after = shares(loader)
        iterator._turbofix_drawn = collections.deque()
        iterator._turbofix_epoch = begun[drawn] = Epoch(name, number + 1, shares=count, uneven_after=uneven_after)
        begun[drawn].pieces = pieces_of(loader._index_sampler) > 1

    def seed_own(iterator: Any, loader: Any) -> None:
        """A sampler with a generator of its own draws what it would draw without."""
        epoch: Epoch | None = getattr(iterator, "_turbofix_epoch", None)
        if epoch is not None:
            for generator in _own_generators(loader):
                generator.manual_seed(seed_of(epoch.number))

    def seed_of(number: int) -> int:
        """What torch's samplers seed the generator with that they shuffle a pass by."""
        before = chance.state()
        chance.reseed("sampler", number)
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        chance.restore(before)
        return seed

    @contextmanager
    def apart(epoch: Epoch) -> Iterator[None]:
        """The sampler's own random stream, for as long as the context lasts."""
        outside = chance.state()
        if epoch.sampler_state is None:
            chance.reseed("sampler", epoch.number)
        else:
            chance.restore(epoch.sampler_state)
        drawing[0] = epoch
        try:
            yield
        finally:
            drawing[0] = None
            epoch.sampler_state = chance.state()
            chance.restore(outside)

    def initialise(original: Any) -> Callable[..., None]:
        def __init__(self: Any, loader: Any, *rest: Any) -> None:
            begin(self, loader)
            original(self, loader, *rest)
            seed_own(self, loader)

        return __init__

    def start_workers(original: Any) -> Callable[..., None]:
        def __init__(self: Any, loader: Any, *rest: Any) -> None:
            with _forked_workers(loader):
                original(self, loader, *rest)

        return __init__

    def reset(original: Any) -> Callable[..., None]:
        def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter:
                begin(self, loader)
                seed_own(self, loader)
            original(self, loader, first_iter)

        return _reset

    def iterate(original: Any) -> Callable[..., Any]:
        def __iter__(self: Any) -> Any:
            before = chance.state()
            chance.reseed("iter", passes.get(_drawn_from(self), (None, -1))[1] + 1)
            try:
                return original(self)
            finally:
                chance.restore(before)

        return __iter__

    def next_index(original: Any) -> Callable[..., Any]:
        def _next_index(self: Any) -> Any:
            epoch: Epoch | None = getattr(self, "_turbofix_epoch", None)
            if epoch is None:
                return original(self)
            with apart(epoch):
                indices = original(self)
            epoch.batches += 1
            self._turbofix_drawn.append(_which(self._dataset, indices))
            return _Tagged(epoch.number, epoch.batches, indices)

        return _next_index

    def following(original: Any) -> Callable[..., Any]:
        def __next__(self: Any) -> Any:
            epoch: Epoch | None = getattr(self, "_turbofix_epoch", None)
            if os.getpid() != main_process or epoch is None:
                return original(self)
            if hurrying() and epoch.position:
                raise StopIteration
            drew = handed[0] is not None and chance.differs(handed[0])
            try:
                batch = original(self)
            except StopIteration:
                chance.reseed("end", epoch.number)
                handed[0] = None
                for drawn in [each for each, one in begun.items() if one is epoch]:
                    del begun[drawn]
                on_end(epoch)
                raise
            size = batch_size(batch)
            chance.reseed("batch", epoch.number, epoch.position)
            epoch.position += size * epoch.shares
            chance.share = (size, epoch.shares, epoch.pieces) if epoch.shares > 1 else None
            epoch.drawn = self._turbofix_drawn.popleft() if self._turbofix_drawn else 0
            handed[0] = chance.state()
            on_batch(epoch, size, drew)
            return batch

        return __next__

    def share_out(original: Any) -> Callable[..., Any]:
        def __iter__(self: Any) -> Any:
            if drawing[0] is None or not self.shuffle:
                return original(self)
            given = self.seed, self.epoch
            chance.shuffles.append(sum(given))
            # in the order in which the sampler of one process shuffles the pass in which this number came first
            number = first_pass.setdefault((id(self.dataset), sum(given)), drawing[0].number)
            self.seed, self.epoch = seed_of(number), 0
            try:
                return original(self)
            finally:
                self.seed, self.epoch = given

        return __iter__

    wrap(DistributedSampler, "__iter__", share_out)
    wrap(DataLoader, "__iter__", iterate)
    wrap(loading._BaseDataLoaderIter, "__init__", initialise)
    wrap(loading._MultiProcessingDataLoaderIter, "__init__", start_workers)
    wrap(loading._BaseDataLoaderIter, "_reset", reset)
    wrap(loading._BaseDataLoaderIter, "_next_index", next_index)
    wrap(loading._BaseDataLoaderIter, "__next__", following)
    wrap(fetching._MapDatasetFetcher, "fetch", lambda original: _fetch_by_index(chance, original))
    wrap(fetching._IterableDatasetFetcher, "fetch", lambda original: _fetch_in_order(chance, original))


def _drawn_from(loader: Any) -> tuple[object, ...]:
    """What two loaders have in common of which one goes on where the other stopped: the data set, and what is drawn.

    A loader may be made anew for each pass. And two that draw other parts of one data set (training and validation)
    are two, for a rewrite may give each of them a data set of its own.
    """
    batches = plain_batches(getattr(loader, "batch_sampler", None))
    sampler = getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
    chosen = getattr(sampler, "dataset", None)
    sampler = chosen if isinstance(chosen, Sampler) else sampler  # of which several processes take parts
    part: object = size_of(sampler)
    indices: Any = getattr(sampler, "indices", None)
    indices = indices.tolist() if hasattr(indices, "tolist") else indices
    if isinstance(indices, (list, tuple, range)):
        with contextlib.suppress(TypeError):  # they may be lists themselves
            part = hash(frozenset(indices))  # in whatever order: a sampler may shuffle them in place
    return id(loader.dataset), type(batches), type(sampler), part


@contextmanager
def _forked_workers(loader: Any) -> Iterator[None]:
    """Workers are forked, whatever the start method: only a fork has what was done here to its random numbers.

    What another method would have to send to a worker is pickled all the same, and fails as it would.
    """
    name = "_DataLoader__multiprocessing_context"
    given = getattr(loader, name, None)
    if not loader.num_workers or (given or torch.multiprocessing).get_start_method() == "fork":
        yield
        return
    ForkingPickler(_Nowhere()).dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    setattr(loader, name, torch.multiprocessing.get_context("fork"))
    try:
        yield
    finally:
        setattr(loader, name, given)


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


def _own_generators(loader: Any) -> Iterator[torch.Generator]:
    batches, sampler = plain_batches(getattr(loader, "batch_sampler", None)), getattr(loader, "sampler", None)
    chosen = getattr(sampler, "dataset", None)  # a sampler whose choice several processes share out
    shared = chosen if isinstance(chosen, Sampler) else None
    inner = (getattr(sampler, "sampler", None), getattr(batches, "sampler", None))
    for owner in (loader, sampler, batches, shared, *inner):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator


def _fetch_by_index(chance: Chance, original: Any) -> Callable[..., Any]:
    def load(dataset: Any, epoch: int, index: Any) -> Any:
        chance.reseed("sample", epoch, _plain(index))
        return dataset[index]

    def fetch(self: Any, tagged: Any) -> Any:
        if not isinstance(tagged, _Tagged):
            return original(self, tagged)
        epoch, indices, dataset = tagged.epoch, tagged.indices, self.dataset
        if not self.auto_collation:
            data = load(dataset, epoch, indices)
        elif _loads_batches(dataset):
            chance.reseed("sample", epoch, _plain(indices[0]) if len(indices) else 0)
            data = dataset.__getitems__(indices)
        else:
            data = [load(dataset, epoch, index) for index in indices]
        chance.reseed("collate", epoch, tagged.ordinal)
        numbers = [chance.number("sample", epoch, _plain(index)) for index in indices] if self.auto_collation else []
        with _one_for_each(numbers):
            return self.collate_fn(data)

    return fetch


@contextmanager
def _one_for_each(numbers: list[int]) -> Iterator[None]:
    """Where a random number is drawn for each sample of a batch, draw what each would have drawn by itself."""
    streams = [torch.Generator().manual_seed(each) for each in numbers]
    originals: dict[str, Any] = {"rand": torch.rand, "randint": torch.randint}

    def drawing(name: str) -> Callable[..., Any]:
        def draw(*given: Any, **named: Any) -> Any:
            drawn = originals[name](*given, **named)
            if drawn.dim() == 0 or not len(streams) == len(drawn) == drawn.numel() or "generator" in named:
                return drawn
            limits = [] if name == "rand" else [each for each in given if isinstance(each, int)]
            limits += [named[each] for each in ("low", "high") if each in named]
            own = [originals[name](*limits, (1,), generator=stream) for stream in streams]
            return drawn.copy_(torch.cat(own).view_as(drawn))

        return draw

    for name in originals:
        setattr(torch, name, drawing(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def _fetch_in_order(chance: Chance, original: Any) -> Callable[..., Any]:
    def fetch(self: Any, tagged: Any) -> Any:
        if not isinstance(tagged, _Tagged):
            return original(self, tagged)
        # one stream for the whole pass: who takes a part of what is drawn gets the same numbers as who takes all
        state = getattr(self, "_turbofix_stream", None)
        outside = chance.state()
        if state is None:
            worker = get_worker_info()
            chance.reseed("stream", tagged.epoch, worker.id if worker is not None else 0)
        else:
            chance.restore(state)
        try:
            return original(self, tagged.indices)
        finally:
            self._turbofix_stream = chance.state()
            chance.restore(outside)

    return fetch


def _loads_batches(dataset: Any) -> bool:
    """Whether the data set itself loads a batch at once (a ``Subset`` only passes the request on)."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


def _which(dataset: Any, indices: Any) -> int:
    """A number for the samples of a batch, whatever their order: those of the parts of a batch add up to its own."""
    while isinstance(dataset, Subset) and isinstance(indices, (list, tuple)):
        dataset, indices = dataset.dataset, [dataset.indices[index] for index in indices]
    return sum(hash((_plain(index),)) for index in indices) if isinstance(indices, (list, tuple)) else 0


def _plain(index: Any) -> object:
    if isinstance(index, torch.Tensor):
        return int(index)
    try:
        hash(index)
    except TypeError:
        return repr(index)
    return index
