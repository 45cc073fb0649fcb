"""What the run of the original says of the assumptions: which hold, which do not, and what was seen.

One function for each fact that ``turbofix.assumptions`` has observed. It answers with whether the assumption holds
(None: the run does not tell) and with the figure, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from turbofix.assumptions import ALL, Assumption
from turbofix.records import dataclass

WIDE = 64
"""Rows and columns of a product below which tensor cores have next to nothing to do."""

MANY_PRODUCTS = 1 << 18
"""Multiplications of a product below which the launch of its kernel takes longer than the product."""

MOST_OTHER_SIZES = 0.34
"""The share of batches that may have another size than most: the last ones of short passes."""

FEW_SIZES = 3
"""Sizes that come again and again: of acting and of updating, and of the last batch of a pass."""

SHORT, LONG = 200, 500
"""Steps up to which a training is over before it has earned back a minute, and from which it may have."""

OBSERVED, COMPARED, REFUTED, NOT_EXERCISED = "observed", "compared", "refuted", "not exercised"


@dataclass(frozen=True)
class Settled:
    """What became of one assumption (``how`` is one of the words above), and what was seen, in words."""

    assumption: Assumption
    how: str
    figure: str

    def to_json(self) -> dict[str, str]:
        """As the JSON document of a verification tells it."""
        name, sentence = self.assumption.name, self.assumption.sentence
        return {"name": name, "sentence": sentence, "settled": self.how, "figure": self.figure}


Answer = tuple[bool | None, str]


def observed(assumptions: Iterable[Assumption], log: Mapping[str, Any]) -> dict[str, Settled]:
    """What the log of the original says of those assumptions that a monitor settles, by name."""
    found = {}
    for assumption in assumptions:
        if assumption.check.kind != "observe":
            continue
        holds, figure = FACTS[assumption.check.of](log)
        how = NOT_EXERCISED if holds is None else OBSERVED if holds else REFUTED
        found[assumption.name] = Settled(assumption, how, figure)
    return found


def of_two_steps(log: Mapping[str, Any]) -> tuple[Settled, ...]:
    """What the first steps alone settle, of all assumptions that a monitor settles."""
    if "facts" not in log:
        return ()
    few = [each for each in ALL if each.check.kind == "observe" and each.check.of in SEEN_AT_ONCE]
    return tuple(one for one in observed(few, log).values() if one.how != NOT_EXERCISED)


def in_words(bad: Iterable[Settled]) -> str:
    """Why something that rests on these is not kept."""
    told = []
    for one in bad:
        name, sentence = one.assumption.name, one.assumption.sentence
        if one.how == REFUTED:
            told.append(f"it assumes that {sentence}, and `{name}` is {one.how}: {one.figure}")
        else:
            sure = f'where you know that it holds, say `assume = ["{name}"]` in [tool.turbofix]'
            told.append(f"it assumes that {sentence}, and the run does not show it: {one.figure} ({sure})")
    return "; ".join(told)


def names_of(assumptions: Iterable[Assumption]) -> str:
    """The names of assumptions, for a sentence."""
    return " or ".join(f"`{one.name}`" for one in assumptions)


SEEN_AT_ONCE = frozenset({"device", "products", "dimensions", "batches", "pickling", "restored", "torch", "old torch"})
"""Facts that need no more than two steps."""


def _device(log: Mapping[str, Any]) -> Answer:
    if log["facts"]["cuda"] or log.get("remapped"):
        return True, "its parameters are on a GPU" if log["facts"]["cuda"] else "it asks for a GPU"
    return False, "its parameters stay on the CPU"


def _products(log: Mapping[str, Any]) -> Answer:
    facts = log["facts"]
    if not facts["products"]:
        return False, "no product of matrices in a training step"
    figure = f"the widest product has a side of {facts['widest']}, the largest {facts['work']:,} multiplications"
    return facts["widest"] >= WIDE or facts["work"] >= MANY_PRODUCTS, figure


def _sizes(log: Mapping[str, Any], fact: str = "sizes") -> Answer:
    counts = log["facts"][fact]
    if sum(counts) < 2:
        return None, "too few batches"
    other = 1 - counts[0] / sum(counts)
    figure = f"{len(counts)} size{'s' if len(counts) > 1 else ''} in {sum(counts)} batches"
    return len(counts) <= 2 and other <= MOST_OTHER_SIZES, figure


def _few_sizes(log: Mapping[str, Any], fact: str = "sizes") -> Answer:
    _, figure = _sizes(log, fact)
    counts = log["facts"][fact]
    return len(counts) <= FEW_SIZES if sum(counts) > 1 else None, figure


def _dimensions(log: Mapping[str, Any]) -> Answer:
    dimensions = log["facts"]["dimensions"]
    if not dimensions:
        return False, "no convolution in a training step"
    return 4 in dimensions, f"convolutions over tensors of {' and '.join(map(str, dimensions))} dimensions"


def _batches(log: Mapping[str, Any]) -> Answer:
    counts = log["facts"]["batches"]
    if not counts:
        return None, "no loader handed out a tensor"
    if counts.get("cuda"):
        return False, "a loader hands out tensors on the GPU"
    return True, "tensors in the host's memory"


def _pickling(log: Mapping[str, Any]) -> Answer:
    refused = log["facts"]["unpickled"]
    return (False, refused[0]) if refused else (True, "they were pickled")


def _gradients(log: Mapping[str, Any]) -> Answer:
    missing = log["facts"]["without_gradient"]
    if missing:
        return False, f"{missing} times a parameter had none"
    return True, f"in {len(log['rows'])} steps"


def _length(log: Mapping[str, Any]) -> Answer:
    steps, ended, end = len(log["rows"]), log.get("epochs_ended", 0), log.get("end", {})
    whole, about = steps, ""
    if log["how"] != "finished" and ended:  # stopped for what was to be seen of it: the passes to its end were counted
        begun = ended + 1 + end.get("passes", 0)
        share = max((whole / kept for whole, kept in log.get("shortened", {}).items()), default=1.0)
        whole, about = max(steps, round(log["steps_of_passes"] / ended * begun * share)), "about "
    if log["how"] != "finished" and whole >= LONG:
        return True, f"it goes on for {about}{whole} steps{'' if end.get('how') == 'finished' else ' at least'}"
    if "finished" not in (log["how"], end.get("how")) or (log["how"] != "finished" and not (ended and whole <= SHORT)):
        return None, f"it was stopped after {steps} steps, and is not known to go on for long"
    if log["arguments"]:  # a run that was made short for the verification says nothing of the others
        return None, f"with these arguments the training ends after {about}{whole} steps"
    return False, f"the training ends after {about}{whole} steps"


def _restored(log: Mapping[str, Any]) -> Answer:
    loads = log["facts"]["restored"]
    return (False, "it loads an optimizer's state") if loads else (True, "no optimizer's state is loaded")


def _torch(log: Mapping[str, Any], least: tuple[int, int] = (2, 5), most: tuple[int, int] = (99, 0)) -> Answer:
    found = log["facts"]["torch"]
    return least <= tuple(map(int, found.split(".")[:2])) < most, f"torch {found}"


FACTS: Mapping[str, Callable[[Mapping[str, Any]], Answer]] = {
    "device": _device,
    "products": _products,
    "sizes": _sizes,
    "few sizes": _few_sizes,
    "convolved": lambda log: _few_sizes(log, "convolved"),
    "dimensions": _dimensions,
    "batches": _batches,
    "pickling": _pickling,
    "gradients": _gradients,
    "length": _length,
    "restored": _restored,
    "torch": _torch,
    "old torch": lambda log: _torch(log, (0, 0), (2, 8)),
}
