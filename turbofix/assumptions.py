"""What a rewrite may rest on without proof: a name, a sentence for the user, and how a run settles it.

A codemod declares the assumptions that it makes. A finding that rests on one that analysis cannot settle is *likely*;
``verify`` observes or compares, and drops what is refuted. What no run could show is no assumption: it is refused.
"""

from __future__ import annotations

from turbofix.records import dataclass


@dataclass(frozen=True)
class Check:
    """How a run settles an assumption.

    ``kind`` is ``"observe"``: a monitor in the run of the original tells (``of`` names the fact); or ``"compare"``: the
    original and the rewritten program are compared step by step (``of`` says how closely: ``"bitwise"``, ``"rounded"``
    or ``"printed"``). ``coverage`` is what the run must have seen before the check counts, for the user.
    """

    kind: str
    of: str
    coverage: str = "the changed statements"


def observe(fact: str, coverage: str = "the training's steps") -> Check:
    """Settled by what a monitor saw in the run of the original."""
    return Check("observe", fact, coverage)


def compare(how: str, coverage: str = "the changed statements") -> Check:
    """Settled by comparing the rewritten program with the original."""
    return Check("compare", how, coverage)


@dataclass(frozen=True)
class Assumption:
    """Something that a rewrite rests on. ``name`` is public: in JSON, in ``explain``, in settings and comments."""

    name: str
    sentence: str
    check: Check


ON_GPU = Assumption("on-gpu", "the training runs on a GPU where there is one", observe("device"))
WIDE_ENOUGH = Assumption(
    "wide-enough", "its matrix products and convolutions are large enough to gain", observe("products")
)
ONE_SIZE = Assumption("one-size", "nearly every batch has the same size", observe("sizes", "two epochs"))
FEW_SIZES = Assumption(
    "few-sizes",
    "batches have few sizes: from a second one on, torch compiles for any size",
    observe("few sizes", "two epochs"),
)
CONVOLVED_ALIKE = Assumption(
    "convolved-alike",
    "convolutions are given the same few sizes again and again, each of which is measured once",
    observe("convolved", "two epochs"),
)
PICTURES = Assumption("pictures", "the model is given batches of pictures: four dimensions", observe("dimensions"))
BATCHES_ON_HOST = Assumption("batches-on-host", "the loader hands out tensors in the host's memory", observe("batches"))
PICKLED = Assumption(
    "pickled", "the data set and its collate function can be sent to a worker process", observe("pickling")
)
EVERY_GRADIENT = Assumption(
    "every-gradient", "every parameter gets a gradient in every step", observe("gradients", "two epochs")
)
LONG_ENOUGH = Assumption(
    "long-enough",
    "the training takes so long that a minute more at its start, or a checkpoint, is worth it",
    observe("length"),
)
NO_OLD_CHECKPOINT = Assumption(
    "no-old-checkpoint",
    "no checkpoint that was made before the change is loaded, to go on from it or to use it",
    observe("restored", "the training's start"),
)
RECENT_TORCH = Assumption(
    "recent-torch",
    "it runs with torch 2.5 or newer, whatever the project's requirements ask for",
    observe("torch", "the run"),
)
OLDER_TORCH = Assumption("older-torch", "it runs with torch older than 2.8", observe("old torch", "the run"))
SAME_ITEMS = Assumption(
    "same-items",
    "an item of the data set is made the same each time, whatever was loaded before it",
    compare("rounded", "two epochs"),
)
ALIKE_ITEMS = Assumption(
    "alike-items",
    "the parts of all items that an agent remembers have the same shapes, and what reads a batch of them takes arrays",
    compare("rounded"),
)
LEARNS_IN_16_BITS = Assumption("learns-in-16-bits", "it learns the same with 16-bit products", compare("rounded"))
LEARNS_IN_TF32 = Assumption("learns-in-tf32", "it learns the same with TF32 products", compare("rounded"))
LEARNS_IN_LARGER = Assumption(
    "learns-in-larger-batches",
    "one larger batch does what the small ones did, and fits into memory",
    compare("rounded"),
)
PADDING_UNREAD = Assumption(
    "padding-unread", "the model and its loss leave padding out, at whatever length", compare("rounded")
)
COMPILES = Assumption(
    "compiles",
    "torch can compile the forward pass, and no gradient is asked for twice or differentiated again",
    compare("rounded"),
)
LAYOUT_FREE = Assumption(
    "layout-free", "nothing relies on how the numbers of a picture lie in memory", compare("rounded")
)
SAME_FORMULA = Assumption(
    "same-formula", "the hand-written expression is what torch's function computes", compare("rounded")
)
DISPLAY_ONLY = Assumption(
    "display-only", "what is read is only shown, summed or stored", compare("printed", "an interval of the display")
)
UNUSED_GRADIENTS = Assumption(
    "unused-gradients", "the gradients that are not computed any more are read by nobody", compare("bitwise")
)
NO_GRAPH_NEEDED = Assumption(
    "no-graph-needed", "nothing goes backward through what the evaluation computes", compare("bitwise")
)
OPTION_DEFAULT = Assumption(
    "option-default",
    "every option has its default (a switch that it does not train without, as `--train`, is taken to be given), and"
    " the configuration file is the one that was read",
    compare("rounded", "the options of this run"),
)
WEIGHTS_UNREAD = Assumption("weights-unread", "nobody reads the attention weights", compare("rounded"))
SHARED_OUT = Assumption(
    "shared-out",
    "the first dimension of a batch counts its samples, and a loss is a mean over them",
    compare("rounded", "a run in two processes"),
)
ALL_MOVED = Assumption("all-moved", "all tensors that meet the model were found, and move with it", compare("rounded"))
READ_WHOLE = Assumption(
    "read-whole",
    "what could not be read of the program (code that it makes and runs, or that calls it) changes nothing here",
    compare("rounded"),
)
SCRIPT_MENDED = Assumption(
    "script-mended",
    "what stops the script with the libraries of today is mended first (`modern-api` says what it is)",
    compare("bitwise"),
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Assumption))
BY_NAME = {assumption.name: assumption for assumption in ALL}


def unknown(name: str) -> str | None:
    """A sentence that offers the nearest name, where there is no assumption of that name."""
    if name in BY_NAME:
        return None
    import difflib

    near = difflib.get_close_matches(name, BY_NAME, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(BY_NAME)}"
    return f"there is no assumption {name!r}{hint}"
