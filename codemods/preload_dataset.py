"""Keep small data that are tensors in memory on the GPU, and take whole batches from there.

Why slow
    A loader over a ``TensorDataset`` takes every sample by itself, stacks a batch of them, and the step copies it to
    the GPU: hundreds of small operations on the host and a wait, for what is one indexing of a tensor on the device.

Example
    ::

        train_set = TensorDataset(x, y)
        train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
        for inputs, targets in train_loader:
            inputs, targets = inputs.to(device), targets.to(device)

Use instead
    ::

        train_set = TensorDataset(*preloaded(device, x, y))
        train_loader = DataLoader(train_set, batch_size=None, sampler=BatchSampler(RandomSampler(train_set), 64, False))

    ``preloaded``, a function of seven lines that is put into the file, measures the tensors when the script runs: what
    takes a tenth of the GPU's free memory at most is moved there, anything else stays as it is, and its batches are
    still taken as a whole. The loader is torch's own, told to ask for whole batches (``batch_size=None``): its sampler
    draws in the order in which it drew before, so that every batch is the same bit for bit. The copies in the loop find
    their tensors on the device and do nothing. Workers and pinned memory are given up: they would only be in the way.

When refused
    It speaks of a ``TensorDataset`` that is made on the host, read through loaders (whole, or its parts by
    ``random_split`` and ``Subset``), and whose batches are copied to a GPU. Data with a ``__getitem__`` of the script's
    own may transform each sample, and nothing is said of them, unless it only takes a sample out of arrays in memory:
    then it is refused, and could be a ``TensorDataset``, as could torchvision's small data sets (MNIST, CIFAR) where no
    transform draws by chance. It is refused where the tensors may be changed in place
    later (by a function that they are handed to, through another name for the same memory), where the data or a loader
    are used for anything else than reading batches (an item, an attribute, a call that is handed them), where a loop
    uses a part of a batch on the host, before it is copied or without, where one loader is read together with another
    one, where the loader has a ``collate_fn``, a ``batch_sampler`` or a setting that is not written in its call, and
    where the device has no name at the place where the data are made.

Risk
    exact: the same batches in the same order, of the same bits. Equivalent where workers stayed for all passes
    (``persistent_workers``): without them each pass draws a number more, and the second comes in another order.

Measured
    Not measured in isolation.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site
from turbofix.program.evidence import of_data, of_loader
from turbofix.program.model import Argument, Framework, Loader, Preload, TrainingProgram
from turbofix.records import dataclass

from ._loaders import called

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    known_as=("data on the GPU", "TensorDataset"),
)

KNOWN = frozenset(
    (
        *("dataset", "batch_size", "shuffle", "sampler", "drop_last", "generator"),
        *("num_workers", "pin_memory", "persistent_workers", "prefetch_factor"),
    )
)
GIVEN_UP = {"num_workers": 5, "pin_memory": 7, "prefetch_factor": None, "persistent_workers": None}
"""What only serves samples that are put together on the host, with its position."""


@dataclass(frozen=True)
class Reader:
    """A loader's call, the source of its data (None: made in the call), and what becomes of its arguments."""

    call: Site
    data: str | None
    name: str | None
    batch_size: str
    sampler: str | None
    generator: str | None
    shuffle: bool
    drop_last: str
    given_up: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The data, and everything that reads them."""

    preload: Preload
    readers: tuple[Reader, ...]


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Tensors in memory that loaders hand out sample by sample for a GPU."""
    if program.framework is not Framework.PYTORCH or not program.trains:
        return
    for preload in program.preloads:
        loaders = [(loader, data) for site, data in preload.loaders if (loader := program.loader(site)) is not None]
        reason = preload.why_not or next(filter(None, (why_not(loader) for loader, _ in loaders)), None)
        plan = Plan(preload, tuple(reader(loader, data) for loader, data in loaders))
        # (workers that stay have drawn the seed of their pass once, others draw one for each: it moves the sequence on)
        staying = any(is_in_the_way(loader.argument("persistent_workers")) for loader, _ in loaders)
        risk = Risk.EQUIVALENT if staying else Risk.EXACT
        for loader, _ in loaders:
            message = (
                f"{called(loader)} stacks its batches sample by sample from tensors in memory, and each is copied to "
                "the GPU: the tensors could be there"
            )
            seen = (*of_loader(program, loader, "batch_size"), *of_data(loader))
            if reason is not None:
                yield codemod.refuse(loader.site, message, reason, risk=risk, evidence=seen)
            else:
                yield codemod.finding(loader.site, message, plan=plan, risk=risk, evidence=seen)


def why_not(loader: Loader) -> str | None:
    """What the arguments of a loader say against it."""
    name = called(loader)
    if loader.subclass is not None or loader.unpacks or loader.open_mapping:
        return f"{name} is given settings that are not written in its call"
    for key, given in loader.arguments.items():
        if given.state == "absent":
            continue
        if key not in KNOWN:
            return f"{name} has a `{key}` of its own"
        known = given.state not in ("unknown", "may") or key in ("dataset", "sampler", "generator")
        if not known or given.site is None or given.text is None:
            return f"{name} is given settings that are not written in its call"
    for key in ("shuffle", "drop_last"):
        given = loader.argument(key)
        if given.state != "absent" and (given.state != "value" or type(given.values[0]) is not bool):
            return f"whether {name} has `{key}` is decided elsewhere"
    generator = loader.argument("generator")
    if not all(part.isidentifier() for part in (generator.text or "none").split(".")):
        return f"{name} and its sampler share a generator that has no name"
    workers, size = loader.argument("num_workers"), loader.argument("batch_size")
    if workers.state not in ("absent", "value") or workers.comment:
        return f"the workers of {name}, which would be in the way, are chosen elsewhere"
    if size.state != "absent" and None in size.values:
        return f"{name} makes no batches"
    return None


def reader(loader: Loader, data: str | None) -> Reader:
    """What becomes of a loader's call."""

    def text(key: str) -> str | None:
        return loader.argument(key).text

    return Reader(
        call=loader.site,
        data=data,
        name=loader.name,
        batch_size=text("batch_size") or "1",
        sampler=text("sampler"),
        generator=text("generator"),
        shuffle=is_on(loader.argument("shuffle")),
        drop_last=text("drop_last") or "False",
        given_up=tuple(key for key in GIVEN_UP if is_in_the_way(loader.argument(key))),
    )


def is_on(given: Argument) -> bool:
    """Whether an argument is passed and true."""
    return given.state == "value" and bool(given.values[0])


def is_in_the_way(given: Argument) -> bool:
    """Whether an argument is passed and not known to be false."""
    return given.state != "absent" and not (given.state == "value" and not given.values[0])


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Move the tensors where they are taken, and let the loaders ask for whole batches."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    preload = plan.preload
    helper = put_helper(edit, preload.helper)
    device = edit.quoted("cuda", preload.data) if preload.device == "cuda" else preload.device
    function = edit.text(preload.data).partition("(")[0]
    made = f"{function}(*{helper}({device}, {preload.tensors}))"
    inside = [each for each in plan.readers if each.data is None]
    if not inside:
        edit.replace(preload.data, made)
    for each in plan.readers:
        data = each.data
        if data is None:
            if len(inside) > 1 or "\n" in made:
                raise Refuse("the data are made in the call of the loader, in several lines")
            data = edit.free_name(name_of_data(each.name), each.call)
            edit.before(each.call, f"{data} = {made}")
            edit.replace(preload.data, data)
        elif not all(part.isidentifier() for part in data.split(".")):
            raise Refuse("the data have no name in the call of the loader")
        rewrite_loader(edit, each, data, next((one for one in preload.imports if one.path == each.call.path), None))


def rewrite_loader(edit: Edit, each: Reader, data: str, imports: Site | None) -> None:
    """Let a loader ask for whole batches, in the order of its sampler."""
    sampler = each.sampler
    if sampler is None:
        kind = "RandomSampler" if each.shuffle else "SequentialSampler"
        drawn = f", generator={each.generator}" if each.shuffle and each.generator is not None else ""
        sampler = f"{named(edit, kind, each.call, imports)}({data}{drawn})"
    batches = named(edit, "BatchSampler", each.call, imports)
    edit.argument(each.call, "batch_size", "None", 1)
    edit.argument(each.call, "sampler", f"{batches}({sampler}, {each.batch_size}, {each.drop_last})", 3)
    for key in ("shuffle", "drop_last", *each.given_up):
        position = {"shuffle": 2, "drop_last": 8}.get(key, GIVEN_UP.get(key))
        if has(edit, each.call, key, position):
            edit.drop_argument(each.call, key, position)


def named(edit: Edit, kind: str, call: Site, imports: Site | None) -> str:
    """How to write a class of ``torch.utils.data``, brought by the statement that imports the others."""
    if imports is None or edit.is_bound(kind, call):
        return edit.name(f"torch.utils.data.{kind}", call)
    edit.also_import(imports, kind)
    return kind


def has(edit: Edit, call: Site, key: str, position: int | None) -> bool:
    """Whether a call passes an argument."""
    mark = edit.mark()
    try:
        edit.drop_argument(call, key, position)
    except Refuse as refusal:
        if "has no argument" in str(refusal):
            return False
        raise
    finally:
        edit.rollback(mark)
    return True


def name_of_data(loader: str | None) -> str:
    """What to call the data of a loader: ``train_set`` for ``train_loader``."""
    stem = (loader or "").rpartition(".")[2]
    for ending in ("_dataloader", "_loader", "dataloader", "loader", "_dl"):
        if stem.endswith(ending):
            stem = stem[: -len(ending)]
            break
    return f"{stem}_set" if stem else "data_set"


def put_helper(edit: Edit, above: Site) -> str:
    """Define the function that moves the tensors, and return its name."""
    name = edit.free_name("preloaded", above)
    device = edit.name("torch.device", above)
    free = edit.name("torch.cuda.mem_get_info", above)
    unit = "    "
    edit.before(
        above,
        f"def {name}(device, *tensors):",
        f'{unit}"""The tensors on the device where they take a tenth of its free memory at most, else as they are."""',
        f"{unit}tensors = [tensor.contiguous() for tensor in tensors]",
        f"{unit}size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)",
        f'{unit}if {device}(device).type != "cuda" or 10 * size > {free}(device)[0]:',
        f"{unit}{unit}return tensors",
        f"{unit}return [tensor.to(device) for tensor in tensors]",
        "",
        "",
        above_comments=True,
    )
    return name
