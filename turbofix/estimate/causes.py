"""What a step's time goes to, as causes that a person can do something about, the dearest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from turbofix.estimate import clock, updates
from turbofix.estimate.cards import Card, constants
from turbofix.estimate.recording import POINTWISE, PRODUCT, Operation, Recording
from turbofix.estimate.step import PAGEABLE, Estimate
from turbofix.records import dataclass

# a share of the step below which a cause is not worth a line
LEAST = 0.03
# keys that attention looks at from which it is bound by the memory of its weights
LONG = 256


@dataclass(frozen=True)
class Cause:
    """What takes ``ms`` of a step (estimated; of data, measured), in a sentence, and the codemods for it."""

    name: str
    ms: float
    sentence: str
    codemods: tuple[str, ...] = ()


def causes(recording: Recording, card: Card, found: Estimate) -> list[Cause]:
    """The causes of a step's time, the dearest first; what takes too little to matter is left out."""
    total = sum(found.parts.values()) or 1.0
    some = [*_waiting(recording, card, found), *_computing(recording, card)]
    return sorted((each for each in some if each.ms >= LEAST * total), key=lambda each: -each.ms)


def _waiting(recording: Recording, card: Card, found: Estimate) -> Iterator[Cause]:
    """Time in which the GPU has nothing to do."""
    parts = found.parts
    if recording.loading:
        made = f"making a step's batch takes one process {recording.loading * 1e3:.3g} ms (measured)"
        by = f", {recording.workers} make them" if recording.workers else ", and the training waits for it"
        yield Cause("data", parts["data"], made + by, ("loader-workers", "cache-preprocessing", "preload-dataset"))
    waiting = [each for each in recording.copies if each.waits or not each.pinned]
    if waiting:
        size = sum(each.size for each in waiting) / 2**20
        words = f"{len(waiting)} copies to the GPU ({size:.3g} MB) are not from pinned memory, or wait"
        seconds = sum(each.size for each in waiting) / (card.link * 1e9 * PAGEABLE)
        yield Cause("copies", seconds * 1e3, words, ("pin-memory", "non-blocking"))
    reads = Counter(_place(each.path, each.line) for each in recording.reads)
    if reads:
        places = ", ".join(f"{place} ({count} times)" if count > 1 else place for place, count in reads.most_common(3))
        often = f"{len(recording.reads)} times" if len(recording.reads) > 1 else "once"
        words = f"the host waits for the GPU {often} a step: {places}"
        yield Cause("reads", parts["syncs"], words, ("defer-item", "throttle-logging"))
    # what a kernel takes to begin with counts here, and not where it computes
    starting = parts["other"] + len(recording.operations) * constants()["kernel"] * 1e-3
    words = f"{len(recording.operations)} operations are started, many of them too small for the GPU"
    yield Cause("host", starting, words, ("larger-batch", *_compiling(recording), *_fusing(recording)))


def _compiling(recording: Recording) -> tuple[str, ...]:
    """The codemod that compiles, where nothing is compiled yet."""
    return () if recording.compiled else ("compile-model",)


def _fusing(recording: Recording) -> tuple[str, ...]:
    """The codemod for an update in one kernel, where there is one that is not."""
    return ("fused-optimizer",) if any(not each.fused for each in recording.updates) else ()


def _place(path: str | None, line: int | None) -> str:
    return f"{path}:{line}" if path else "in a library"


def _computing(recording: Recording, card: Card) -> Iterator[Cause]:
    """Time that the GPU computes, by what could be done about it."""
    fitted = constants()

    def took(some: Sequence[Operation]) -> float:
        starting = fitted["kernel"] * 1e-6 * len(some)
        return (sum(clock.seconds(each, card, recording, fitted) for each in some) - starting) * 1e3

    spent = sum(updates.seconds(each, card, fitted)[0] for each in recording.updates) * 1e3
    words = ", ".join(f"{each.kind} of {each.numbers / 1e6:.3g} million numbers" for each in recording.updates)
    eight = ("adam-8bit",) if any(each.kind in ("Adam", "AdamW") for each in recording.updates) else ()
    yield Cause("optimizer", spent, f"the update takes {spent:.3g} ms: {words}", (*_fusing(recording), *eight))
    attention = _attention(recording.operations)
    yield Cause(
        "attention",
        took(attention),
        f"attention is computed in {len(attention)} operations, which write all its weights to memory",
        ("sdpa",),
    )
    rest = [each for each in recording.operations if each not in attention]
    wide = [each for each in rest if each.flops and each.bits > 16]
    tf32 = () if recording.tf32 else ("tf32",)
    yield Cause("precision", took(wide), f"{len(wide)} products are computed in float32", ("autocast", *tf32))
    turned = [each for each in rest if each.turned and each not in wide]
    turning = sum(clock.parts(each, card, recording, fitted)[2] for each in turned) * 1e3
    yield Cause("layout", turning, f"{len(turned)} convolutions turn their layout round", ("channels-last",))
    small = [each for each in rest if not each.flops]
    narrow = [each for each in rest if each.flops and each.bits <= 16]
    yield Cause(
        "pointwise",
        took(small),
        f"{len(small)} operations between the products read and write memory",
        (*_compiling(recording), *(("autocast",) if any(each.bits == 32 for each in small) and not narrow else ())),
    )
    yield Cause("products", took(narrow), f"{len(narrow)} products in 16 bits: what the step is for")


def _attention(operations: Sequence[Operation]) -> list[Operation]:
    """The operations of attention that is written out: those on as many numbers as its weights are."""
    softmaxes = [
        each
        for each in operations
        if each.name in ("_softmax", "_softmax_backward_data") and _keys(each, operations) >= LONG
    ]
    # precisions differ on the way, so that sizes are compared in numbers
    weights = {_numbers(each, each.written) for each in softmaxes}

    def takes_part(each: Operation) -> bool:
        if each.kind == PRODUCT:
            sizes = {_numbers(each, size) for _, size in (*each.inputs, *each.outputs)}
            return each.shape[0] > 1 and not weights.isdisjoint(sizes)
        return each in softmaxes or (each.kind == POINTWISE and _numbers(each, each.written) in weights)

    return [each for each in operations if takes_part(each)] if softmaxes else []


def _numbers(operation: Operation, size: float) -> float:
    return size * 8 / operation.bits


def _keys(softmax: Operation, operations: Sequence[Operation]) -> int:
    """Keys that a softmax runs over: those of a batched product of its size."""
    numbers = _numbers(softmax, softmax.written)
    for each in operations:
        if each.kind == PRODUCT and each.shape[0] > 1:
            count, rows, columns, *_ = each.shape
            if count * rows * columns == numbers:
                return columns
    return 0
