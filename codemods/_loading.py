"""What is asked of a loader before it is given workers: what it has, what it would gain, what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turbofix.assumptions import ON_GPU, PICKLED, READ_WHOLE, SAME_ITEMS, Assumption
from turbofix.findings import Site, Worth
from turbofix.source.datafile import is_data
from turbofix.training.model import Argument, Dataset, Framework, Loader, Training, TrainingProgram

from ._copies import is_kept
from ._loaders import SMALL_IMAGES, called, is_built_each_time, is_read_again, reason_beside, said_beside
from ._trainers import on_gpu
from ._workers import FEW, Extra

PASSING_ON = ("torch_geometric.", "dgl.dataloading.")
"""Libraries whose loaders give torch's the arguments that are not their own: their data may be read from files."""

GRAPHS = ("torch_geometric.loader.DataLoader", "dgl.dataloading.GraphDataLoader")
"""Put a batch of graphs together in Python, attribute by attribute, wherever they come from."""

TRAINERS = "dataloader_"
"""How the settings of transformers' trainer for its loaders begin."""

SMALL_BATCH, HANDFUL, SHORT_EPOCH = 64, 64, 10_000
KEEPING = (Framework.ACCELERATE, Framework.FABRIC, Framework.LIGHTNING)
"""The frameworks that make the script's loaders anew, and keep their workers."""

HEAVY = {"decode": "files are decoded", "tokenize": "text is tokenised"}
WORK = {**HEAVY, "read": "files are read", "transform": "samples are transformed", "compute": "samples are computed"}
ELSEWHERE = "the number comes from elsewhere than the call: add persistent_workers beside it"


AT_MODULE_LEVEL = "the script trains at module level, which every spawned worker would do once more"


def place(loader: Loader) -> Site:
    """Where a person would change the number: the call, or the option, constant or entry that decides it."""
    workers = loader.argument("num_workers")
    return next((each for each in written_at(workers) if each != workers.site), loader.site)


def written_at(workers: Argument) -> tuple[Site, ...]:
    """Where the number is written: in one place, or in several of configuration files, one for each loader."""
    several = tuple(site for _, site in workers.written)
    return (workers.edit_at,) if workers.edit_at else several if all(is_data(each.path) for each in several) else ()


def is_own(loader: Loader) -> bool:
    """Whether it is torch's loader, or one that passes on what is not its own, and batches graphs or reads files."""
    kind = loader.subclass
    return kind is None or kind in GRAPHS or (kind.startswith(PASSING_ON) and "read" in loader.dataset.work)


def is_waiting(program: TrainingProgram, loader: Loader) -> bool:
    """Whether a loader has no workers, or too few, and would gain by them."""
    few = has_none(loader.argument("num_workers")) or has_too_few(loader)
    return is_own(loader) and not loader.open_mapping and few and worth(program, loader) is not None


def has_none(workers: Argument) -> bool:
    """Whether the loader loads in the training process, unless the user of the script says otherwise."""
    return workers.state == "absent" or (workers.state in ("value", "option", "may") and workers.values == (0,))


def has_too_few(loader: Loader) -> bool:
    """Whether the script has a few workers, by default, for work that keeps more of them busy."""
    workers = loader.argument("num_workers")
    heavy = any(kind in HEAVY for kind in loader.dataset.work) and loader.role != "evaluation" and not loader.first_only
    few = workers.state in ("value", "option") and workers.values in [(each,) for each in range(1, FEW)]
    return few and heavy and bool(written_at(workers))


def positive(workers: Argument) -> bool:
    """Whether every number that is known of is one of workers."""
    return bool(workers.values) and all(type(each) is int and each > 0 for each in workers.values)


def has_any(workers: Argument) -> bool:
    """Whether there are workers, in some cases (`4 if use_cuda else 0`), or as far as somebody else says."""
    some = workers.state in ("may", "option") and any(type(each) is int and each > 1 for each in workers.values)
    return positive(workers) or some or workers.state in ("computed", "unknown")


def worth(program: TrainingProgram, loader: Loader) -> Worth | None:
    """What workers may bring: what is known of the work for each sample; None where there is certainly nothing.

    On a CPU the workers take from the training what they give, so that reading, decoding and tokenising count most.
    """
    data, evaluates = loader.dataset, loader.role == "evaluation"
    waits = any(kind in data.work for kind in (*HEAVY, "read"))
    handful = not waits and data.length is not None and data.length <= HANDFUL
    made = bool(data.work) or "." in (data.qualname or "")  # of what lies in memory otherwise
    free = not made and loader.collating is None and loader.subclass not in GRAPHS
    once = evaluates and not waits and not is_read_again(program, loader)
    if (loader.first_only and not loader.asked_again) or once or (data.kind == "map" and (handful or free)):
        return None
    trainings = under_lightning(program)
    if not waits and not (program.device.reaches_cuda or any(map(on_gpu, trainings))):
        return Worth.SMALL if may_reach_gpu(program) else None
    if is_kept(program, loader) and {*data.work} <= {"compute", "numpy"}:
        return Worth.SMALL  # whole batches of what lies in memory are better
    cheap = data.kind == "map" and not waits and "transform" not in data.work and data.qualname not in SMALL_IMAGES
    return Worth.SOME if evaluates or cheap or has_too_few(loader) else Worth.HIGH


def may_reach_gpu(program: TrainingProgram) -> bool:
    """Whether a training that is not seen to reach a GPU may be brought to one: by the script, or by its settings."""
    told = under_lightning(program)
    return any(on_gpu(each) is None for each in told) if told else program.framework is Framework.PYTORCH


def under_lightning(program: TrainingProgram) -> tuple[Training, ...]:
    """The trainings of Lightning, which takes model and batches to a GPU by itself where there is one."""
    return program.trainings if program.framework is Framework.LIGHTNING else ()


def open_ones(program: TrainingProgram, loader: Loader) -> Iterator[Assumption]:
    """What workers for a loader rest on, and the text does not tell."""
    data, workers = loader.dataset, loader.argument("num_workers")
    changes = may_change([loader])
    if said_beside(workers) or changes:
        yield SAME_ITEMS
    if (changes or loader.collate == "unknown") and only_forked(program, loader) is None:
        yield PICKLED
    if workers.state == "absent" and not loader.spelled_out and loader.site not in program.told_by:
        yield READ_WHOLE  # (what it unpacks may hold the number elsewhere)
    waits = any(kind in data.work for kind in (*HEAVY, "read"))
    on_it = program.device.reaches_cuda or any(map(on_gpu, under_lightning(program)))
    if not waits and not on_it and may_reach_gpu(program):
        yield ON_GPU


def may_change(loaders: Iterable[Loader]) -> bool:
    """Whether samples may be others from epoch to epoch, which the copies of workers do not show."""
    return any(made.kind == "unknown" or made.stateful is not None for each in loaders for made in made_by(each))


def change_of(loader: Loader) -> str | None:
    """What changes its data between the epochs, which workers that are kept would not see."""
    told = loader.dataset.stateful or ""
    return told if told.endswith("while the program trains") else None


def made_by(loader: Loader) -> list[Dataset]:
    """What makes the samples and puts them together."""
    return [each for each in (loader.dataset, loader.collating) if each is not None]


def restarts(program: TrainingProgram, loader: Loader) -> bool:
    """Whether a loader that may have workers starts them anew in each pass over its data, and is seen to keep none."""
    workers, entry = loader.argument("num_workers"), loader.mapping_entries.get("num_workers")
    if loader.argument("persistent_workers").state != "absent" or loader.first_only:
        return False
    written = workers.site is not None or (entry is not None and 0 not in workers.values)
    return written and is_read_again(program, loader)


def has_short_epochs(loader: Loader) -> bool:
    """Whether the start of workers is a part of its epochs: the data are few, or lie in memory."""
    data = loader.dataset
    at_once = data.qualname in SMALL_IMAGES or data.table or data.kind == "tensors"
    return at_once or loader.cycled or (data.length or SHORT_EPOCH + 1) <= SHORT_EPOCH


def why_not(program: TrainingProgram, loader: Loader) -> str | None:
    """What no run would show to go wrong or to be slower, and what keeps the number from being changed."""
    workers, data = loader.argument("num_workers"), loader.dataset
    unseeded = (loader.argument("worker_init_fn").text or "None") == "None"
    drawn = next((each.generator for each in made_by(loader) if each.generator is not None and unseeded), None)
    shared = next((each.shared for each in made_by(loader) if each.shared is not None), None)
    if data.kind == "tensors":
        return (
            "its samples are tensors in memory already, which workers would only send back and forth, "
            "10 to 100 times slower: move them to the GPU once, before the loop, instead"
        )
    if data.on_device or loader.collate_on_device:
        return "its dataset or collate_fn uses the GPU, which worker processes must not"
    if data.kind == "iterable" and not data.worker_aware:
        return "its dataset is iterated and does not ask get_worker_info: every worker would yield all of the data"
    if drawn is not None:
        return (
            f"its samples are drawn from the generator `{drawn}`, of which every worker would have the same "
            "copy and draw the same numbers: seed it for each worker in a worker_init_fn"
        )
    if shared is not None:
        return f"{shared}: all forked workers would share its place in the file"
    if loader.asked_again:
        return "batches are taken by next(iter(...)), which would start all workers for each of them"
    if is_built_each_time(loader) and has_short_epochs(loader):
        return "it is built anew in each epoch, as its workers would be: build it once, before the loop"
    apart = program.framework is Framework.FABRIC or not program.distributed
    if "horovod" in program.libraries or (program.processes and apart):
        return "the script's ranks are started in a way of their own, and how many of them share the CPUs is not known"
    if workers.state != "absent" and not written_at(workers):
        return f"the script has an option for it: pass {workers.option or 'it'}"
    return reason_beside(workers)


def only_forked(program: TrainingProgram, loader: Loader) -> str | None:
    """What a spawned worker (macOS, Windows, Python 3.14) could not do, where a forked one can."""
    script, spawned = program.script, "cannot be sent to a spawned worker"
    if positive(loader.argument("num_workers")):
        return None  # it starts them already
    if loader.collate in ("lambda", "local"):
        kind = "is a lambda" if loader.collate == "lambda" else "is defined inside a function"
        return f"its collate_fn {kind}, which {spawned}"
    if "lambda" in (loader.argument("worker_init_fn").text or ""):
        return f"its worker_init_fn is a lambda, which {spawned}"
    for made in made_by(loader):
        if made.unpicklable is not None:
            return f"{made.unpicklable}, which {spawned}"
    if is_notebook(program):
        own = "." not in (loader.dataset.qualname or ".") or loader.collate != "default"
        return f"its dataset or collate_fn is defined in the notebook, which {spawned}" if own else None
    if script.on_gpu is not None:
        line = script.on_gpu.line_from(loader.site.path)
        return (
            f"the script works on the GPU outside of its guard ({line}), which every spawned worker would do once more"
        )
    return None if script.guarded or script.unguarded is not None else AT_MODULE_LEVEL


def said_of_forks(forked: str | None) -> str:
    """What a message adds where there are workers only on some machines."""
    return (
        f"; {forked}: it stays as it is where processes are not forked (macOS, Windows, Python 3.14)" if forked else ""
    )


def message_of(loaders: list[Loader]) -> str:
    """What is slow, why, and where the number comes from."""
    verb = "prepare" if " and " in listed(loaders) else "prepares"
    kinds = {kind for loader in loaders for kind in loader.dataset.work}
    implied = {"read"} if "decode" in kinds else set()
    implied |= {"compute"} if kinds - {"compute"} else set()
    done = [said for kind, said in WORK.items() if kind in kinds - implied]
    waiting = f"every step waits while {' and '.join(done) or 'samples are made'}"
    workers = loaders[0].argument("num_workers")
    if has_none(workers):
        said = f"{listed(loaders)} {verb} batches in the training process: {waiting}"
    else:
        said = f"{listed(loaders)} {verb} batches in {numbers(workers)}, which may be too few: {' and '.join(done)}"
    if any(loader.dataset.random for loader in loaders):
        said += " (random draws for each sample change with workers)"
    return said + "; it is built anew for each pass, and its workers with it" * is_built_each_time(loaders[0])


def listed(loaders: list[Loader]) -> str:
    """The loaders by name."""
    return " and ".join(dict.fromkeys(called(loader) for loader in loaders))


def numbers(workers: Argument) -> str:
    """How many workers there are."""
    if not positive(workers):
        return f"as many worker processes as `{workers.text or 'num_workers'}` says"
    said = " or ".join(str(each) for each in workers.values)
    return f"{said} worker process" if said == "1" else f"{said} worker processes"


def extra(program: TrainingProgram, loader: Loader) -> Extra:
    """What the loader gets beside the number."""
    workers, entry = loader.argument("num_workers"), loader.mapping_entries.get("num_workers")
    batch = loader.argument("batch_size")
    small = batch.known and all(type(each) is int and each <= SMALL_BATCH for each in batch.values)
    inline = workers.state == "absent" or workers.edit_at == (workers.site or entry)
    fetches = inline and small and entry is None and loader.role != "evaluation"
    stays = loader.argument("persistent_workers").state == "absent" and change_of(loader) is None
    return Extra(
        call=loader.site,
        number=None if inline else workers.site or entry,
        entry=entry is not None,
        persistent=stays and is_read_again(program, loader),
        prefetch=fetches and loader.argument("prefetch_factor").state == "absent",
    )


def is_notebook(program: TrainingProgram) -> bool:
    """Whether the program is a notebook, which workers do not import and which needs no guard."""
    return program.entry.suffix == ".ipynb"


def by_devices(program: TrainingProgram) -> bool:
    """Whether a rank for each GPU is started without saying in the environment how many there are."""
    if (program.processes and program.distributed) or program.framework is Framework.DEEPSPEED:
        return True
    devices = [each.argument("devices").values for each in under_lightning(program)]
    return program.framework is Framework.LIGHTNING and not all(each in ((1,), ("1",), ([0],)) for each in devices)


def is_shared(program: TrainingProgram) -> bool:
    """Whether several ranks may share the machine's CPUs."""
    if program.framework is Framework.LIGHTNING:
        return by_devices(program)
    return program.distributed or program.framework is not Framework.PYTORCH
