"""The processes of a training, one for each GPU: the first one runs the script, the others compute for it.

turbofix has written this file beside a script, which calls ``begin()`` before all else. Without torchrun nothing here
changes what the script does. Where torchrun starts it, it needs torch 2.4, Python 3.10 and cloudpickle.
"""

import atexit
import collections
import contextlib
import datetime
import functools
import io
import itertools
import logging
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import types
import warnings
import weakref
import zlib

import torch

rank = int(os.environ.get("RANK", 0))  # torchrun tells each process
world_size = int(os.environ.get("WORLD_SIZE", 1))


class Process:
    """What this process is at."""

    group = None  # of all processes
    pid = None  # of the first one; those that it forks are none of them
    sharing = False  # it computes its rows of a batch
    parted = False  # it was interrupted where the others wait for it: it goes on alone


def begin():
    """Join the other processes, where torchrun has started several: of these, the first one alone goes on."""
    if world_size == 1 or multiprocessing.parent_process() is not None:
        return
    try:
        find_cloudpickle()
    except ImportError:
        why = "several processes need cloudpickle, by which they have the model: pip install cloudpickle"
        sys.exit(1 if rank > 0 else why)
    local = int(os.environ["LOCAL_RANK"])
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    if gpus:
        gpus = gpus.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[local:] + gpus[:local])  # what the script calls cuda:0
    if torch.cuda.is_available():
        torch.cuda.init()  # so that it stays as it is
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, timeout=datetime.timedelta(days=30))  # of an evaluation, say
    Process.group, Process.pid = torch.distributed.group.WORLD, os.getpid()
    torch.distributed.group.WORLD = None  # the script and its libraries are one process
    for name in [name for name in os.environ if name in VARIABLES or name.startswith("TORCHELASTIC_")]:
        del os.environ[name]
    if rank > 0:
        serve()
    atexit.register(end)


VARIABLES = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"


def find_cloudpickle():
    """What pickles classes and functions of a script by what they are, not by their names."""
    try:
        import cloudpickle
    except ImportError:
        from joblib.externals import cloudpickle  # scikit-learn brings it
    return cloudpickle


def serve():
    """Compute for the first process until it ends."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):  # after which the first one may still save
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.stdout = open(os.devnull, "w")
    logging.disable()
    warnings.simplefilter("ignore")
    commands = {"take": take, "try": try_out, "slopes": try_slopes, "compute": compute, "back": differentiate}
    while True:
        try:
            command, given = tell()
        except RuntimeError:  # the first one has ended without a word
            os._exit(0)
        if command == "end":
            os._exit(0)
        try:
            commands[command](**given)
        except BaseException as error:
            if "Connection" in str(error):  # the first one has ended, which says why
                os._exit(0)
            traceback.print_exc()
            os._exit(1)


def end():
    """Let the others end, too."""
    if os.getpid() == Process.pid and not Process.parted:
        with contextlib.suppress(RuntimeError):  # they have ended already
            tell("end")
        torch.distributed.group.WORLD = Process.group
        torch.distributed.destroy_process_group()
        time.sleep(0.2)  # for its threads, which Python does not wait for


# --- what processes tell each other


def tell(*message):
    """What the first process tells the others; they get it here."""
    data = torch.frombuffer(bytearray(pickle.dumps(message)), dtype=torch.uint8) if message else None
    size = torch.tensor([len(data) if message else 0], device="cpu")
    Process.group.broadcast(size, 0).wait()
    data = data if message else torch.empty(int(size), dtype=torch.uint8, device="cpu")
    Process.group.broadcast(data, 0).wait()
    message = message or pickle.loads(data.numpy().tobytes())
    return message[0], message[1] if len(message) > 1 else {}


def gathered(value):
    """What all processes say, in their order."""
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.long, device="cpu") for _ in range(world_size)]
    Process.group.allgather(sizes, torch.tensor([len(data)], device="cpu")).wait()
    longest = max(map(int, sizes))
    parts = [torch.empty(longest, dtype=torch.uint8, device="cpu") for _ in sizes]
    Process.group.allgather(parts, torch.nn.functional.pad(data, (0, longest - len(data)))).wait()
    return [pickle.loads(each[: int(size)].numpy().tobytes()) for each, size in zip(parts, sizes)]


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


MOST = 1 << 28  # bytes that travel together


@torch.no_grad()
def spread(tensors):
    """Have these tensors of the first process in all."""
    for device in sorted({str(each.device) for each in tensors}):
        some = [each for each in tensors if str(each.device) == device and each.numel()]
        ends = itertools.accumulate(each.numel() * each.element_size() for each in some)
        for _, group in itertools.groupby(zip(some, ends), lambda each: each[1] // MOST):
            group = [each for each, _ in group]
            flat = torch.cat([bits(each) for each in group])
            Process.group.broadcast(flat, 0).wait()
            parts = flat.split([each.numel() * each.element_size() for each in group])
            for each, part in zip(group, parts) if rank > 0 else ():
                each.data.copy_(part.clone().view(each.dtype).view(each.shape))  # calls may wait to go backward


@torch.no_grad()
def whole(part, dim, lengths):
    """The rows of all processes, for the first one."""
    padded = part.new_zeros((*part.shape[:dim], max(lengths), *part.shape[dim + 1 :]))
    padded.narrow(dim, 0, lengths[rank]).copy_(part)
    flat = bits(padded)
    parts = [torch.empty_like(flat) for _ in lengths] if rank == 0 else []
    Process.group.gather(parts, flat, 0).wait()
    parts = [each.view(part.dtype).view(padded.shape) for each in parts]
    return torch.cat([each.narrow(dim, 0, count) for each, count in zip(parts, lengths)], dim) if parts else None


@torch.no_grad()
def added_up(tensors):
    """The sums over all processes, for the first one."""
    found = dict.fromkeys(range(len(tensors)))
    kinds = {(each.dtype, each.device) for each in tensors}
    for dtype, device in sorted(kinds, key=str):
        some = [(at, each) for at, each in enumerate(tensors) if (each.dtype, each.device) == (dtype, device)]
        ends = itertools.accumulate(each.numel() * each.element_size() for _, each in some)
        for _, group in itertools.groupby(zip(some, ends), lambda each: each[1] // MOST):
            group = [each for each, _ in group]
            flat = torch.cat([each.reshape(-1) for _, each in group])
            Process.group.reduce(flat, 0).wait()
            for (at, each), part in zip(group, flat.split([each.numel() for _, each in group])):
                found[at] = part.view(each.shape)
    return [*found.values()]


@contextlib.contextmanager
def exchanging():
    """Between what one process says and what the others do: whoever is interrupted there goes on alone."""
    try:
        yield
    except BaseException:
        Process.parted = True
        raise


# --- what the others have of a model

tensors = weakref.WeakValueDictionary()  # those of models, by their numbers
numbered = {}  # the numbers of the first process, by identity: what it is of, and the number
counted = itertools.count()
had = {}  # how each tensor was when the others got it
sent = weakref.WeakKeyDictionary()  # what the others have of each model


def number_of(tensor):
    known = numbered.get(id(tensor))
    if known is None or known[0]() is not tensor:
        numbered[id(tensor)] = known = weakref.ref(tensor), next(counted)
    return known[1]


class Sent:
    """What the others have of a model."""

    look, pickled, likes, held, rows, anew, ways = None, None, {}, {}, {}, (), (True, False)
    latest, flags = None, None

    def __init__(self):
        self.number = next(counted)

    def stays(self, tensor):
        """Whether a tensor is what a call has left for those who ask: no other call begins with it."""
        hangs = tensor.requires_grad and not tensor.is_leaf and id(tensor) not in self.anew
        return hangs or self.rows.get(id(tensor), type(None))() is tensor


def is_of_project(module):
    """Whether a module is of the script's own, not of a library."""
    file = getattr(module, "__file__", None)
    library = os.path.dirname(os.__file__)
    own = isinstance(file, str) and file.endswith(".py") and file != is_of_project.__code__.co_filename
    return own and "-packages" not in file and not file.startswith(library)


def computed_anew(owner):
    """The weights that a model computes in front of each call, of what is trained."""
    hooks = [(each, hook) for each in owner.modules() for hook in each._forward_pre_hooks.values()]
    hooks = [(each, hook.name) for each, hook in hooks if type(hook).__module__.startswith("torch.nn.utils.")]
    return {id(getattr(each, name, None)) for each, name in hooks}


def pickled(given, state, by_value=True):
    """How the others get something: bytes, and its tensors, which go by themselves. The script's own modules go
    ``by_value``, as they are now; else by their names, as they are when they are imported."""
    cloudpickle, found, file = find_cloudpickle(), {}, io.BytesIO()

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, one):
            if isinstance(one, torch.Generator):  # which pickles in no way of its own
                return str(one.device), one.get_state().numpy().tobytes()
            if not isinstance(one, torch.Tensor):
                return None
            if state.stays(one):
                return "missing"
            if one.layout != torch.strided or one.is_quantized:
                raise ValueError("it keeps a tensor that does not go to other processes")
            found[number_of(one)] = one
            return number_of(one)

        def reducer_override(self, one):
            if isinstance(one, LOCKS):
                return (threading.Lock if isinstance(one, LOCKS[0]) else threading.RLock), ()
            if isinstance(one, (io.IOBase, threading.Thread)):
                return Missing, ()
            if isinstance(one, torch.nn.Module) and torch.nn.utils.parametrize.is_parametrized(one):
                return parametrized, (type(one).__bases__[0], [*one.parametrizations]), vars(one)
            return super().reducer_override(one)

    modules = [each for name, each in [*sys.modules.items()] if name != "__main__" and is_of_project(each)]
    try:
        for each in modules if by_value else ():
            cloudpickle.register_pickle_by_value(each)
        Pickler(file, 5).dump(given)
    finally:
        for each in modules if by_value else ():
            with contextlib.suppress(ValueError):
                cloudpickle.unregister_pickle_by_value(each)
    return file.getvalue(), found


LOCKS = type(threading.Lock()), type(threading.RLock())


class Missing:
    """What stays with the first process: a file, a thread."""

    def __getattr__(self, name):
        raise ValueError("it stays with the first process")


def parametrized(kind, names):
    """A module of which some weights are computed of what is trained."""
    module = kind.__new__(kind)
    torch.nn.utils.parametrize._inject_new_class(module)
    for name in names:
        torch.nn.utils.parametrize._inject_property(module, name)
    return module


def unpickled(data, of):
    """What the first process has pickled."""

    def found(name):
        if name == "missing":
            return Missing()
        if isinstance(name, int):
            return of[name]
        generator = torch.Generator(name[0])
        generator.set_state(torch.frombuffer(bytearray(name[1]), dtype=torch.uint8))
        return generator

    loader = pickle.Unpickler(io.BytesIO(data))
    loader.persistent_load = found
    return loader.load()


def looked(one, seen, state):
    """What would not be the same if something of a model had changed; tensors count by what they are."""
    if one is None or isinstance(one, (bool, int, float, str, bytes)):
        return one
    if isinstance(one, torch.Tensor):
        return None if state.stays(one) else (id(one), one.shape, one.dtype, str(one.device))
    if id(one) in seen or len(seen) > 100000:
        return id(one)
    seen[id(one)] = one
    if isinstance(one, torch.nn.Module):
        return id(one), looked(vars(one), seen, state)
    if isinstance(one, dict):
        return [
            len(one),
            *((looked(key, seen, state), looked(value, seen, state)) for key, value in [*one.items()][:1000]),
        ]
    if isinstance(one, (list, tuple, collections.deque)):
        return [len(one), *(looked(each, seen, state) for each in [*one][:1000])]
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(one, numpy.ndarray):
        return id(one), zlib.crc32(one.tobytes()) if one.dtype != object else len(one)
    if isinstance(one, functools.partial):
        return id(one), looked((one.args, one.keywords), seen, state)
    if isinstance(one, set):
        return id(one), looked([*one], seen, state)
    if isinstance(one, NO_STATE):
        return id(one)
    names = [
        each for kind in type(one).__mro__ for each in (vars(kind).get("__slots__") or ()) if each != "__weakref__"
    ]
    slots = [getattr(one, each, None) for each in names]
    return id(one), looked([getattr(one, "__dict__", None), *slots], seen, state)


NO_STATE = type, types.FunctionType, types.MethodType, types.ModuleType, logging.Logger, io.IOBase, threading.Thread


class Cells:
    """The variables of functions around one."""

    def __init__(self, function):
        self.function = function

    def get(self, name):
        cell = self.function.__closure__[self.function.__code__.co_freevars.index(name)]
        return getattr(cell, "cell_contents", None)


reads = {}  # what the code of each class reads of its module's variables


def variables(kind):
    """The variables of modules that the methods of a class read, and what the project's functions that these call do:
    dictionaries, and names."""
    if kind not in reads:
        found, seen, waiting = [], set(), [*vars(kind).values()]
        plain = [name for name, each in vars(kind).items() if not callable(each) and not hasattr(each, "__get__")]
        found += [(vars(kind), name) for name in plain if not name.startswith("__")]
        while waiting:
            one = waiting.pop()
            one = getattr(one, "__wrapped__", getattr(one, "__func__", getattr(one, "fget", one)))
            if isinstance(one, type) and is_of_project(sys.modules.get(one.__module__)) and one not in seen:
                seen.add(one)
                waiting += vars(one).values()
            if not isinstance(one, types.FunctionType) or one in seen or "-packages" in one.__code__.co_filename:
                continue
            seen.add(one)
            found += [(Cells(one), name) for name in one.__code__.co_freevars if name != "__class__"]
            codes = [one.__code__]
            while codes:
                code = codes.pop()
                codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
                places = [one.__globals__]
                places += [
                    vars(one.__globals__[each]) for each in code.co_names if is_of_project(one.__globals__.get(each))
                ]
                for place, name in itertools.product(places, code.co_names):
                    value = place.get(name)
                    if isinstance(value, (types.FunctionType, type)):
                        waiting.append(value)
                    elif name in place and not isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
                        found.append((place, name))
        reads[kind] = found
    return reads[kind]


def read_by(owner):
    """The variables that the classes of a model's layers read."""
    kinds = dict.fromkeys(each for module in owner.modules() for each in type(module).__mro__)
    kinds = [each for each in kinds if each.__module__ == "__main__" or is_of_project(sys.modules.get(each.__module__))]
    return [each for kind in kinds for each in variables(kind)]


def globals_of(owner, seen, state):
    """What would not be the same if a variable had changed that a model reads."""
    return [(name, looked(place.get(name), seen, state)) for place, name in read_by(owner)]


def flags(look):
    """What of a model may choose what it computes: what is on, said, there, or nothing."""
    if isinstance(look, bool) or look is None or isinstance(look, (str, bytes)):
        return look
    if isinstance(look, (int, float)):
        return bool(look)
    if type(look) in (list, tuple):
        return type(look).__name__, frozenset(map(flags, look))
    return str(look)


def like(tensor):
    """What it takes to make such a tensor."""
    kind = torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else torch.Tensor
    dense = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    stride = tensor.stride() if dense else torch.empty(tensor.shape, device="meta").stride()
    return kind, tensor.shape, stride, tensor.dtype, str(tensor.device)


def made(kind, shape, stride, dtype, device):
    """Such a tensor, with nothing in it."""
    empty = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    return torch.nn.Parameter(empty, requires_grad=False) if kind is torch.nn.Parameter else empty


def checksum(tensor):
    """A number that another tensor is not likely to have, or the same one with its parts in other places."""
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = flat.detach().reshape(-1)
    dtype = torch.float64 if flat.is_floating_point() else torch.long
    rows = len(flat) // 256 * 256
    weights = torch.arange(1, 257, device=flat.device, dtype=dtype)
    found = (flat[:rows].view(-1, 256).sum(0, dtype=dtype) * weights).sum()
    return found + (flat[rows:].to(dtype) * weights[: len(flat) - rows]).sum()


@torch.no_grad()
def changed(held):
    """Those of a model's tensors that the others have as they were."""
    found, same = [], []
    for number, each in held.items():
        state = like(each), each.data_ptr(), None if each.is_inference() else each._version
        (same if state == had.get(number, [None])[0] else found).append((number, each))
        had[number] = [state, had.get(number, [None, None])[1]]
    apart = []
    for number, each in [(number, each) for number, each in same if each.numel()]:
        was, had[number][1] = had[number][1], checksum(each)  # `.data` may have changed without a trace
        apart.append((number, each, was is not None and was != had[number][1]))
    for number, each in found:
        had[number][1] = checksum(each) if each.numel() else None
    found += [(number, each) for number, each, other in apart if bool(other)]
    return dict(found)


# --- batch normalisation, over all processes

plain_norm = torch.nn.functional.batch_norm


class Normalised(torch.autograd.Function):
    """A batch, normalised by the figures of all its rows."""

    @staticmethod
    def forward(ctx, batch, weight, bias, eps, figures):
        mean, variance, count = figures
        ctx.save_for_backward(batch, weight, mean, (variance + eps).rsqrt())
        ctx.count, ctx.biased = count, bias is not None
        return plain_norm(batch, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx, grad):
        batch, weight, mean, scale = ctx.saved_tensors
        dims, shape = [dim for dim in range(batch.dim()) if dim != 1], [1, -1] + [1] * (batch.dim() - 2)
        normal = (batch.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        wide = grad.to(mean.dtype)
        own = torch.stack([wide.sum(dims), (wide * normal).sum(dims)])
        all_rows = own.clone()
        Process.group.allreduce(all_rows).wait()
        one, other = (all_rows / ctx.count).view(2, *shape)
        scale = scale if weight is None else scale * weight.to(scale.dtype)
        found = ((wide - one - normal * other) * scale.view(shape)).to(batch.dtype)
        of_weight = own[1].to(weight.dtype) if weight is not None else None
        return found, of_weight, own[0].to(mean.dtype) if ctx.biased else None, None, None


def batch_norm(batch, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """That of torch, but in training over the rows of all processes."""
    if not training:
        return plain_norm(batch, running_mean, running_var, weight, bias, training, momentum, eps)
    with torch.no_grad():
        dims = [dim for dim in range(batch.dim()) if dim != 1]
        wide = batch.float() if batch.element_size() < 4 else batch
        variance, mean = torch.var_mean(wide, dims, correction=0) if len(wide) else wide.new_zeros(2, batch.shape[1])
        count = torch.full_like(mean, batch.numel() // batch.shape[1])
        own = torch.stack([mean, variance, count])
        flat = own.new_empty(world_size, *own.shape)
        Process.group.allgather([*flat], own).wait()
        means, variances, counts = flat.unbind(1)
        total = counts.sum(0)
        mean = (means * counts).sum(0) / total
        variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
        if running_mean is not None:
            running_mean.data.lerp_(mean.to(running_mean.dtype), momentum)
            unbiased = variance * total / (total - 1).clamp(min=1)
            running_var.data.lerp_(unbiased.to(running_var.dtype), momentum)
    return Normalised.apply(batch, weight, bias, eps, (mean, variance, total))


def fixed_norm(batch, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """Each row by itself, to see whether nothing else hangs on the others."""
    kind = torch.float if batch.element_size() < 4 else batch.dtype
    mean = batch.new_zeros(batch.shape[1], dtype=kind) if running_mean is None else running_mean
    variance = torch.ones_like(mean) if running_var is None else running_var
    return plain_norm(batch, mean, variance, weight, bias, False, momentum, eps)


@contextlib.contextmanager
def unhooked(tensors):
    """Without what is to see the gradients of these, which it is to see the sum of."""
    hooks = [getattr(each, kind, None) for each in tensors for kind in HOOKS]
    hooks = [(each, dict(each)) for each in hooks if each]
    for each, _ in hooks:
        each.clear()
    try:
        yield
    finally:
        for each, was in hooks:
            each.update(was)


HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"


@contextlib.contextmanager
def no_hooks():
    """What a model has hooks for, in what it computes, is to be seen of all rows."""

    def refused(*given, **told):
        raise ValueError("it looks at gradients of what it computes")

    old = torch.Tensor.register_hook, torch.Tensor.retain_grad
    torch.Tensor.register_hook = torch.Tensor.retain_grad = refused
    try:
        yield
    finally:
        torch.Tensor.register_hook, torch.Tensor.retain_grad = old


@contextlib.contextmanager
def normalising(norm):
    """Normalise batches so, and share no call out inside of one that is."""
    torch.nn.functional.batch_norm = norm
    Process.sharing = True
    try:
        yield
    finally:
        torch.nn.functional.batch_norm = plain_norm
        Process.sharing = False


def over_all():
    return normalising(batch_norm)


def by_rows():
    return normalising(fixed_norm)


# --- whether rows go without each other


def cards(owner):
    """The GPUs whose random numbers a model may draw."""
    found = {each.device.index for each in owner.parameters() if each.is_cuda}
    return sorted(found | {torch.cuda.current_device()}) if torch.cuda.is_available() else []


def apart(owner):
    """Random numbers that leave those of the script as they are."""
    return torch.random.fork_rng(cards(owner))


def numbers(owner):
    """How far the generators are that a model draws from."""
    states = torch.get_rng_state(), *map(torch.cuda.get_rng_state, cards(owner))
    return [each.numpy().tobytes() for each in states]


class Fixed(torch.utils._python_dispatch.TorchDispatchMode):
    """Computes without dropout, and with one number in place of random ones, whose shapes it keeps."""

    drawn = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded not in func.tags or "dropout_state" in str(func):
            return func(*args, **(kwargs or {}))
        if (kwargs or {}).get("generator") is not None:
            raise ValueError("it draws from a generator of its own")
        names = [each.name for each in func._schema.arguments]
        lows = [each for name, each in zip(names, args) if name in ("low", "from")]
        off = {"dropout", "dropout_p", "p" if "dropout" in str(func) else "dropout"}
        args = [0.0 if name in off else each for name, each in zip(names, args)]
        answer = func(*args, **(kwargs or {}))
        if off & {*names}:
            self.drawn += (torch.utils._pytree.tree_leaves(answer)[0].shape,)
            return answer
        least = max([0, *lows])
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda each: self.set(each, least), answer)

    def set(self, tensor, least):
        self.drawn += (tensor.shape,)
        return tensor.fill_(0.5 if tensor.is_floating_point() or tensor.is_complex() else least)


def values(state):
    return state.values() if isinstance(state, dict) else state


def as_tensor(kept):
    """What a model keeps beside its parameters, and may change: a tensor, or an array of NumPy's as one; else None."""
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(kept, numpy.ndarray) and kept.dtype.kind in "biuf" and kept.flags.writeable:
        return torch.as_tensor(kept)
    return kept if torch.is_tensor(kept) and not isinstance(kept, torch.nn.Parameter) else None


def containers(modules):
    """What modules keep other things in, and what is kept in that: lists, dictionaries, the project's own objects."""
    kinds = list, dict, set, collections.deque, collections.defaultdict, collections.OrderedDict
    waiting = [part for one in modules for part in (vars(one), one._buffers, *vars(one).values())]
    seen, found, library, most = set(), [], os.path.dirname(os.__file__), len(waiting) + 10000
    while waiting and len(seen) < most:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, torch.nn.Module):
            continue
        seen.add(id(one))
        home = getattr(sys.modules.get(type(one).__module__), "__file__", None) or library
        if type(one) in kinds:
            found.append(one)
            waiting += values(one)
        elif "-packages" not in home and not home.startswith(library) and hasattr(one, "__dict__"):
            waiting.append(vars(one))
    return found


def is_as_before(now, was):
    """Whether a list or a dictionary has in it what it had."""
    pairs = zip([*now, *values(now)], [*was, *values(was)])
    return len(now) == len(was) and all(one is other for one, other in pairs)


def states_of(owner):
    """The lists and dictionaries that a model may write into, and what is in them."""
    found = containers([*owner.modules()])
    found += [place.get(name) for place, name in read_by(owner)]
    kinds = list, dict, set, collections.deque, collections.Counter, collections.defaultdict, collections.OrderedDict
    return [(each, each.copy()) for each in {id(each): each for each in found if type(each) in kinds}.values()]


def put_back(states):
    """Have in lists and dictionaries what was in them."""
    for now, was in [(now, was) for now, was in states if not is_as_before(now, was)]:
        now.clear()
        now.extend(was) if isinstance(now, (list, collections.deque)) else now.update(was)


def is_figure(one):
    return torch.is_tensor(one) or type(one) in (int, float)


def kept_by(states):
    """What a call has put into what a model keeps: into which, where, and what, which has tensors in it."""
    found = []
    for now, was in states:
        if not is_as_before(now, was):
            items = [*now.items()] if isinstance(now, dict) else [*enumerate(now)]
            old = was if isinstance(was, dict) else dict(enumerate(was))
            items = [(key, value) for key, value in items if key not in old or old[key] is not value]
            items = [(now, key, *torch.utils._pytree.tree_flatten(value)) for key, value in items]
            found += [each for each in items if any(map(is_figure, each[2]))]
    objects = [
        value for now, was in states if isinstance(now, dict) and not is_as_before(now, was) for value in now.values()
    ]
    objects = [
        each for each in objects if not isinstance(each, (torch.Tensor, torch.nn.Module)) and hasattr(each, "__dict__")
    ]
    if any(torch.is_tensor(part) and part.grad_fn for each in objects for part in vars(each).values()):
        raise ValueError("it keeps an object with tensors in it")
    if any(isinstance(leaf, torch.nn.Parameter) for each in found for leaf in each[2]):
        raise ValueError("it makes weights")
    if not all(isinstance(each[0], (dict, list)) for each in found):
        raise ValueError("it keeps a queue")
    return found


def kinds_of(leaves, form, kept):
    """What an answer is made of, and what is kept."""
    kinds = [each.dim() if torch.is_tensor(each) else type(each) for each in leaves]
    return f"{form} {kinds} {[(key if isinstance(key, str) else '', form) for _, key, _, form in kept]}"


def chances():
    """How far the generators of Python and of NumPy are."""
    numpy = sys.modules.get("numpy")
    kind, keys, *rest = numpy.random.get_state() if numpy else (None, None)
    return random.getstate(), keys is not None and (kind, keys.tolist(), *rest)


def set_chances(states):
    """Put them back."""
    random.setstate(states[0])
    if states[1]:
        sys.modules["numpy"].random.set_state(states[1])


def tried(model, owner, given, form, anew=False, asked=None):
    """What a model answers, with weights drawn ``anew`` or its own, the shapes of what it draws, and its tensors then,
    or what is ``asked`` of its answer and of what it is given; it is left as it was."""
    model = owner if isinstance(model, torch.nn.Module) else model  # not one that is compiled
    given = [each.clone() if torch.is_tensor(each) else each for each in given]  # which a model may change
    if asked:
        given = [each.detach().requires_grad_(each.requires_grad) if torch.is_tensor(each) else each for each in given]
    args, kwargs = torch.utils._pytree.tree_unflatten(given, form)
    held = [*owner.parameters(), *owner.buffers()]
    count, states = len([*owner.parameters()]), states_of(owner)
    places = [(place, name, place[name]) for place, name in read_by(owner) if type(place) is dict and name in place]
    leaves = [each for _, was in states for each in torch.utils._pytree.tree_leaves([*values(was)])]
    held += [one for one in map(as_tensor, leaves) if one is not None]
    old, chance = [each.detach().clone() for each in held], chances()
    kind, sixteen = held[0].device.type, torch.is_autocast_enabled(held[0].device.type)
    torch.set_autocast_enabled(kind, False)
    if sixteen:  # what comes from another model is in sixteen bits
        halves = torch.float16, torch.bfloat16
        given = [each.float() if getattr(each, "dtype", None) in halves else each for each in given]
        args, kwargs = torch.utils._pytree.tree_unflatten(given, form)
    silent, loguru = logging.root.manager.disable, sys.modules.get("loguru")
    logging.disable()
    if loguru:
        loguru.logger.disable("")
    data = [(each, each.data) for each in held]
    own.manual_seed(0)
    for each in [each for each in owner.parameters() if anew and each.dim() > 1]:
        drawn = torch.randn(each.shape, generator=own, device="cpu") * (each.shape[0] / each.numel()) ** 0.5
        drawn = drawn.to(each.device, each.dtype)
        each.data = torch.copysign(drawn, each.data) if each.is_floating_point() else drawn
    try:
        printed = io.StringIO()
        with apart(owner), by_rows(), no_hooks(), contextlib.redirect_stdout(printed), Fixed() as fixed:
            answer, answers = torch.utils._pytree.tree_flatten(model(*args, **kwargs))
        if len([*owner.parameters()]) != count:
            raise ValueError("it makes layers")
        changed = any(torch.is_tensor(each) and not each.is_inference() and each._version for each in given)
        now = torch.utils._pytree.tree_leaves((args, kwargs))
        if changed or len(now) != len(given) or any(one is not other for one, other in zip(now, given)):
            raise ValueError("it changes what it is given")
        kept = kept_by(states)
        answer += [each for *_, leaves, _ in kept for each in leaves]
        if asked:
            with apart(owner), by_rows(), unhooked(owner.parameters()), Fixed():
                return asked(answer, given)
        others = [now for now, was in states if not is_as_before(now, was)]
        arrays = [as_tensor(each) for now in others for each in values(now) if not torch.is_tensor(each)]
        arrays = [each.clone() for each in arrays if each is not None]
        unchanged = [each.shape == was.shape and torch.equal(each, was) for each, was in zip(held, old)]
        steps = [None if same else each.detach().double() - was for each, was, same in zip(held, old, unchanged)]
        then = [(kinds_of(answer, answers, kept), bool(kept)), *steps, *arrays, printed.getvalue()]
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, answer), fixed.drawn, then
    finally:
        torch.set_autocast_enabled(kind, sixteen)
        logging.disable(silent)
        if loguru:
            loguru.logger.enable("")
        for place, name, was in places:
            if place[name] is not was:
                place[name] = was
        for each, was in data:
            if (each.data_ptr(), each.shape) != (was.data_ptr(), was.shape):
                each.data = was
        put_back(states)
        for each, was in zip(held, old):
            if not torch.equal(each, was):
                each.detach().copy_(was)
        set_chances(chance)


def is_near(one, other, slack=None):
    """Whether two answers are the same but for rounding."""
    if not isinstance(other, (torch.Tensor, float)):
        return one == other
    rough = torch.is_tensor(other) and other.dtype in (torch.float16, torch.bfloat16)
    one, other = (torch.as_tensor(each).detach().double().nan_to_num(0.0, 0.0, 0.0) for each in (one, other))
    exact = not (other.dim() or torch.cuda.is_available())
    slack = slack or (1e-2 if rough or (other.is_cuda and other.dim()) else 2e-5 if exact else 1e-4)
    slack *= Plans.slack
    return one.shape == other.shape and bool((one - other).norm() <= slack * other.norm() + 1e-6)


def rows_of(given, axis):
    """How many rows of a batch are each process's, by the first tensor."""
    size = next((each.shape[axis] for each in given if torch.is_tensor(each) and each.dim() > axis), 0)
    return [size // world_size + (each < size % world_size) for each in range(world_size)]


def squares(given):
    """The tensors but the first that may be masks over steps in time, which happen to be as many as there are rows."""
    tensors = [each for each in given if torch.is_tensor(each)]
    return {id(each) for each in tensors[1:] if each.dim() == 2 and each.shape[0] == each.shape[1]}


def hooked(owner):
    """Whether a hook is to see whole batches: any but torch's and those that a library sets up in its own layers."""
    kinds = "_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"
    hooks = [(each, hook) for each in owner.modules() for kind in kinds for hook in getattr(each, kind).values()]
    homes = [{"torch", type(each).__module__.partition(".")[0]} for each, _ in hooks]
    codes = [getattr(hook, "__code__", getattr(type(hook).__call__, "__code__", None)) for _, hook in hooks]
    files = [getattr(code, "co_filename", "") for code in codes]
    return not all(any(os.path.join("-packages", one, "") in file for one in some) for some, file in zip(homes, files))


def beside(model, owner, given, form, dims, rows):
    """What a model answers where this process's rows stand as they do, and once more in place of the others: as many
    rows are rounded alike. None where it does not take them so."""
    first, places = sum(rows[:rank]), range(sum(rows))
    order = [each if 0 <= each - first < rows[rank] else first + each % rows[rank] for each in places]
    orders = [torch.tensor(order, device=getattr(each, "device", None)) for each in given]
    try:
        some = zip(given, dims, orders)
        some = [each if dim is None else each.index_select(dim, order) for each, dim, order in some]
        return tried(model, owner, some, form)[0]
    except Exception:  # lengths that are to fall from row to row, say
        return None


def few(model, owner, given, form, dims, rows):
    """What a model answers to two rows of this process, and to two of each, with weights drawn anew: a mean over other
    things than rows may look like one over rows where there are many, and where nothing has been learnt yet."""
    count = min(2, *rows)
    picked = [sum(rows[:one]) + each for one in range(world_size) for each in range(count)]
    answers = []
    for some in (picked[rank * count :][:count], picked):
        places = [torch.tensor(some, device=getattr(each, "device", None)) for each in given]
        parts = zip(given, dims, places)
        parts = [each if dim is None else each.index_select(dim, places) for each, dim, places in parts]
        answers.append(tried(model, owner, parts, form, anew=True)[0])
    return answers


def keeps(one, other, rows):
    """Whether this process's rows of an answer are what they were, with other ones beside them. What counts rows by
    their numbers is not: on a GPU it could not even be tried with some of them."""
    if not torch.is_tensor(one) or not torch.is_tensor(other) or one.shape != other.shape:
        return True
    dims = [dim for dim in range(one.dim()) if one.shape[dim] == sum(rows)]
    slack = 1e-3 if one.element_size() < 4 else 1e-5
    pairs = [(other.split(rows, dim)[rank], one.split(rows, dim)[rank]) for dim in dims]
    return not dims or any(is_near(*pair, slack) for pair in pairs)


def compared(model, owner, given, form, axis, rows, left, turned):
    """How a call is shared out: the dimensions of what it is given and of what it answers, whether it draws a number
    for all rows, and what it answers. None where its answer to some rows is none of what it answers to the batch. What
    is ``left`` is given as a whole, and what has as many dimensions as ``turned`` says may count its rows in the other
    one of the first two."""
    sizes = [each.dim() if torch.is_tensor(each) else 0 for each in given]
    places = [[dim for dim in (axis, 1 - axis) if dim < n and (dim == axis or n in turned)] for n in sizes]
    dims = [next((dim for dim in some if each.shape[dim] == sum(rows)), None) for each, some in zip(given, places)]
    dims = [None if id(each) in left else dim for each, dim in zip(given, dims)]
    if axis and any(dim is None and n == 1 for dim, n in zip(dims, sizes)):
        return None  # one number for each sample counts them in the other dimension
    whole = [each for each, dim in zip(given, dims) if dim is None and torch.is_tensor(each) and each.numel()]
    whole = [each for each in whole if not (each.is_floating_point() or each.is_complex() or each.dtype == torch.bool)]
    if any(min(rows) <= int(each.max()) < sum(rows) for each in whole) or "PackedSequence" in str(form):
        return None  # they may be numbers of rows, of which there would not be so many
    whole, drawn, then = tried(model, owner, given, form)
    found = [each for each in whole if torch.is_tensor(each)]
    if found and not any(each.numel() for each in found):
        return None  # nothing shows what would come of some rows
    mixed = beside(model, owner, given, form, dims, rows) or whole
    if not all(map(keeps, whole, mixed, [rows] * len(whole))):
        return None
    parts = [each if dim is None else each.split(rows, dim)[rank] for each, dim in zip(given, dims)]
    answer, again, now = tried(model, owner, parts, form)
    ways, fewer = [], None
    for at, (one, each, other) in enumerate(zip(answer, whole, mixed)):
        number = isinstance(each, (int, float)) or (torch.is_tensor(each) and not each.dim())
        if number or (torch.is_tensor(each) and each.numel() == 1 and one.shape == each.shape):
            fewer = fewer or few(model, owner, given, form, dims, rows)
            ways.append((float(one), float(each), float(fewer[0][at]), float(fewer[1][at])))
            continue
        if type(each).__name__.endswith("Cache"):  # of keys and values, which each process has for its rows
            if "past_key_values" in str(form):
                return None
            ways.append(None)
            continue
        sizes = zip(one.shape, each.shape) if torch.is_tensor(each) else ()
        shorter = [dim for dim, (part, batch) in enumerate(sizes) if part != batch]
        if len(shorter) > 1:
            return None  # each row is compared with all of them
        for dim in shorter:
            lengths = [each.shape[dim] * count // sum(rows) for count in rows]
            if not keeps(each, other, lengths):
                return None
            each = each.split(lengths, dim)[rank]
        ways.append(shorter[0] if shorter else None)
        if not is_near(one, each) or (torch.is_tensor(each) and not shorter and not torch.equal(one, each)):
            return None  # what is as long for some rows hangs on none of them
    if len(answer) != len(whole) or len(now) != len(then) or not all(map(is_near, now, then)):
        return None
    return dims, ways, any(map(tuple.__eq__, drawn, again)), then[0]


def pattern(shape, device):
    """Numbers to weigh gradients by, the same in all processes."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, device=device) * 40503 % 65536 / 32768 - 1).view(shape)


def slope(task, found, part):
    """What comes of one gradient of the answer, for each weight and for what the model is given: of the whole batch,
    or of a ``part`` that this process computes."""
    axis, dims, ways, *_ = found
    rows = rows_of(task.given, axis)

    def narrowed(full, dim, lengths):
        return full if dim is None or not part else full.narrow(dim, sum(lengths[:rank]), lengths[rank])

    def asked(answer, given):
        pairs = []
        for value, way in zip(answer, ways):
            if not torch.is_tensor(value) or not value.requires_grad or (part and way is None and rank > 0):
                continue
            shape, lengths = [*value.shape], rows
            if part and isinstance(way, int):
                lengths = [shape[way] // rows[rank] * count for count in rows]
                shape[way] = sum(lengths)
            grad = narrowed(pattern(shape, value.device), way if isinstance(way, int) else None, lengths)
            grad = grad * (rows[rank] / sum(rows) if part and way in ("mean", "zero") else 1)
            pairs.append((value, grad.to(value.dtype)))
        tensors = [(each, dim) for each, dim in zip(given, dims) if torch.is_tensor(each) and each.requires_grad]
        leaves = [*tensors, *((each, None) for each in task.weights)]
        grads = [None] * len(leaves)
        if pairs and leaves:
            values, asking = zip(*pairs)
            grads = torch.autograd.grad(values, [each for each, _ in leaves], asking, allow_unused=True)
        told = []
        for (leaf, dim), grad in zip(leaves, grads):
            if grad is None:
                told.append((0.0, 0.0))
                continue
            grad, shape = grad.to_dense() if grad.is_sparse else grad, [*leaf.shape]
            if part and dim is not None:
                shape[dim] = sum(rows)
            grad = grad.double()
            weighed = (grad * narrowed(pattern(shape, grad.device), dim, rows)).sum()
            told.append((float(weighed), float(grad.norm())))
        return told

    given = task.given
    if part:
        given = [each if dim is None else each.split(rows, dim)[rank] for each, dim in zip(given, dims)]
    return tried(task.model, task.owner, given, task.form, asked=asked)


def try_slopes(found, chance, told):
    """What `slope` says in each process, and in the first one of the whole batch, too; None where it cannot be told."""
    task, own = Task.now, None
    if rank > 0:
        set_chances(chance)
    try:
        with set_as(told):
            own = slope(task, found, True), slope(task, found, False) if rank == 0 else None
    except ValueError:  # it looks at gradients itself
        own = False
    except Exception:  # it goes backward in a way of its own
        pass
    return gathered(own)


def are_slopes_right(task, found):
    """Whether gradients add up: what goes backward through an answer may hang on more than that shows."""
    given = {"found": found, "chance": chances(), "told": settings()}
    tell("slopes", given)
    told = try_slopes(**given)
    if not all(told):
        return False not in told
    whole = told[0][1]
    most = max((norm for _, norm in whole), default=0.0)
    rough = 20 if any(each.element_size() < 4 for each in task.weights) else 1
    slack = 2e-3 * rough * (1 if Plans.slack == 1 else 10)
    for parts, (weighed, norm) in zip(zip(*(one[0] for one in told)), whole):
        if not abs(sum(each for each, _ in parts) - weighed) <= slack * norm + 1e-5 * most:
            return False
    return True


def joined(told, rows):
    """How the answers of all processes become one, by what each has told; None where they do not."""
    ways = []
    for each in zip(*(one[1] for one in told)):
        totals = ()
        if isinstance(each[0], tuple):
            one, all_rows, two, fewer = zip(*each)
            mean = sum(one * count for one, count in zip(one, rows)) / sum(rows)
            totals = ("mean", mean, sum(two) / world_size), ("sum", sum(one), sum(two))
        elif len({*each}) == 1:
            ways.append(each[0])
            continue
        fits = [way for way, much, less in totals if is_near(much, all_rows[0]) and is_near(less, fewer[0])]
        if not fits:
            return None
        ways.append(fits[0] if len(fits) == 1 else "zero")  # which is a mean as well as a sum
    return told[rank][0], ways, any(one[2] for one in told), told[rank][3]


# --- one call


class Plans(list):
    """Those that a call was found to have; now and then it is looked at again."""

    calls, slack = 0, 1


plans = weakref.WeakKeyDictionary()  # how the calls of each model are shared out


class Task:
    """A call of a model."""

    now = None  # the one that the first process has told of last
    models = {}  # what the others have, by their numbers: a model, and its tensors
    open = {}  # those that are to be differentiated, by their numbers
    closed, dropped = [], []  # the numbers of calls that are not any more, and of models that are gone

    def __init__(self, owner, model, given, form, held):
        self.owner, self.model, self.given, self.form = owner, model, given, form
        self.states = ()
        self.weights = [each for each in held.values() if each.requires_grad and each.is_leaf]


FLAGS = [(torch.backends.cudnn, each) for each in ("allow_tf32", "benchmark", "deterministic", "enabled")]
FLAGS.append((torch.backends.cuda.matmul, "allow_tf32"))


def flag(home, name):
    try:
        return getattr(home, name)
    except RuntimeError:  # set in a newer way
        return None


def settings():
    """How this process computes."""
    kinds = "cpu", "cuda"
    sixteen = [(each, torch.get_autocast_dtype(each), torch.is_autocast_enabled(each)) for each in kinds]
    flags = [flag(*each) for each in FLAGS]
    sure = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.is_grad_enabled(), sixteen, torch.get_default_dtype(), flags, sure


@contextlib.contextmanager
def set_as(told):
    """Compute as the first process does."""
    grad, sixteen, dtype, flags, (sure, warn) = told
    if rank > 0:
        torch.set_default_dtype(dtype)
        for (home, name), value in zip(FLAGS, flags):
            if value not in (None, flag(home, name)):
                setattr(home, name, value)
        torch.use_deterministic_algorithms(sure, warn_only=warn)
    with contextlib.ExitStack() as stack, torch.set_grad_enabled(grad):
        for kind, kind_dtype, on in sixteen:
            if torch.is_autocast_enabled(kind) != on:
                stack.enter_context(torch.autocast(kind, kind_dtype, on))
        yield


def look_at(owner):
    """What the others have of a model, and how it looks now."""
    if owner not in sent:
        sent[owner] = Sent()
        weakref.finalize(owner, Task.dropped.append, sent[owner].number).atexit = False
    state, seen = sent[owner], {}
    state.anew = computed_anew(owner)
    look = looked(owner, seen, state), globals_of(owner, seen, state)
    if look != state.latest:
        state.latest, state.flags = look, hash(flags(look))
    return state


def bring(owner, model, given, form):
    """Let the others have a call of a model, as it is now."""
    state, failed = sent[owner], None
    look, name = state.latest, None if isinstance(model, torch.nn.Module) else model.__name__
    if name is not None and getattr(owner, name, None) != model:
        raise ValueError(f"`{name}` is not what it is called by")
    for by_value in state.ways:
        try:
            if look == state.look:
                message = {}
            else:
                data, held = pickled(owner, state, by_value)
                likes = {number: like(each) for number, each in held.items()}
                message = {"data": data, "likes": likes, "path": [os.path.abspath(each) for each in sys.path]}
                if (data, likes) == (state.pickled, state.likes):
                    message = {}
                for number in {*held} ^ {*state.held}:
                    had.pop(number, None)  # they may have dropped it
                state.pickled, state.likes, state.held = data, likes, held
            slots = [(*like(each), each.requires_grad) if torch.is_tensor(each) else None for each in given]
            rest, beside = pickled(([None if torch.is_tensor(each) else each for each in given], form), state, by_value)
        except Exception as error:
            failed = error
            continue
        beside = {number: each for number, each in beside.items() if number not in state.held}
        held = {**state.held, **beside}
        for number in beside:
            had.pop(number, None)
        news = changed(held)
        message.update(number=state.number, name=name, rest=rest, slots=slots)
        message.update(fresh=[*news], beside={number: like(each) for number, each in beside.items()})
        message.update(graded=[each.requires_grad and each.is_leaf for each in held.values()])
        for name, gone in (("closed", Task.closed), ("dropped", Task.dropped)):  # to which more may come at any time
            message[name] = [gone.pop() for _ in range(len(gone))]
        with exchanging():
            tell("take", message)
            told = [each for each in gathered(None) if each]
            if not told:
                spread([*news.values(), *(each for each in given if torch.is_tensor(each))])
        if told:
            had.clear()
            state.pickled, failed = None, ValueError(told[0])
            continue
        state.look, state.ways = look, (by_value,)
        Task.now = Task(owner, model, given, form, held)
        return Task.now
    raise failed


def take(number, name, rest, slots, fresh, beside, graded, closed, dropped, data=None, likes=None, path=None):
    """Have a call that the first process has brought."""
    for each in closed:
        Task.open.pop(each, None)
    for each in dropped:
        Task.models.pop(each, None)
    failed = None
    try:
        if data is not None:
            sys.path[:] = path
            held = held_as(likes)
            Task.models[number] = unpickled(data, held), held
            for each in Task.models[number][0].modules():
                if isinstance(each, torch.nn.RNNBase):
                    each.flatten_parameters()
        owner, held = Task.models[number]
        held = {**held, **held_as(beside)}
        rest, form = unpickled(rest, held)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
    if any(gathered(failed)):
        return
    for each, on in zip(held.values(), graded):
        each.requires_grad_(on)
    given = [other if slot is None else made(*slot[:-1]) for slot, other in zip(slots, rest)]
    spread([*(held[each] for each in fresh), *(each for each, slot in zip(given, slots) if slot)])
    given = [each.requires_grad_(slot[-1]) if slot else each for each, slot in zip(given, slots)]
    Task.now = Task(owner, owner if name is None else getattr(owner, name), given, form, held)


def held_as(likes):
    """The tensors of these numbers, as they are in the first process."""
    held = {each: tensors.get(each) for each in likes}
    for each, form in likes.items():
        if getattr(held[each], "made_as", None) != form:
            held[each] = made(*form)
            held[each].made_as = form
    tensors.update(held)
    return held


def try_out(axis, left, turned, slack, chance, told):
    """Whether the rows of each process answer as they do in the whole batch; None, or an error, where not."""
    task, own, Plans.slack = Task.now, None, slack
    if rank > 0:
        set_chances(chance)
    rows, left = rows_of(task.given, axis), {id(task.given[each]) for each in left}
    for grad in (False, True)[: 1 + told[0]]:  # it may ask for gradients itself
        try:
            with set_as(told), torch.set_grad_enabled(grad):
                own = compared(task.model, task.owner, task.given, task.form, axis, rows, left, turned)
            break
        except Exception as error:  # some rows are not what it takes
            own = str(error).partition("\n")[0] or type(error).__name__
    return gathered(own)


def plan(task):
    """How all processes share out a call; None where it has to be computed as a whole, and why."""
    masks, why = squares(task.given), None
    places = [at for at, each in enumerate(task.given) if id(each) in masks]
    tries = [
        (0, [], (3,)),
        *[(0, places, (3,))] * bool(masks),
        (1, [], (1, 2)),
    ]  # samples, or steps in time, come first
    if any(torch.is_tensor(each) and each.dim() == 2 for each in task.given):
        tries.insert(-1, (0, [], (2, 3)))
    for axis, left, turned in tries:
        if min(rows_of(task.given, axis)):
            given = {"axis": axis, "left": left, "turned": turned, "slack": Plans.slack}
            given.update(chance=chances(), told=settings())
            tell("try", given)
            told = try_out(**given)
            if (axis, left, turned) == tries[0]:
                why = next((each for each in told if isinstance(each, str)), None)
            fits = all(isinstance(each, tuple) for each in told)
            found = joined(told, rows_of(task.given, axis)) if fits else None
            if found is not None:
                found = axis, *found
                if torch.is_grad_enabled() and not are_slopes_right(task, found):
                    return None, "gradients of its rows hang on each other"
                return found, None
    return None, why


def reached(task):
    """Which weights get a gradient through an answer, by their places."""
    waiting, seen, found = [each.grad_fn for each in task.values if torch.is_tensor(each)], {None}, set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            waiting += [each for each, _ in node.next_functions]
    return [at for at, each in enumerate(task.weights) if id(each) in found]


def compute(number, found, seed, chance, told):
    """Compute the rows of this process; whether all could, and what they answer."""
    task, (axis, dims, ways, common, (kinds, keeps)) = Task.now, found
    task.ways, task.dims, task.told, task.rows, ok, lengths = ways, dims, told, rows_of(task.given, axis), False, None
    if rank > 0:
        set_chances(chance)
    try:
        task.parts = [
            each if dim is None else each.narrow(dim, sum(task.rows[:rank]), task.rows[rank])
            for each, dim in zip(task.given, dims)
        ]
        task.parts = [
            each.detach().clone().requires_grad_(each.requires_grad and told[0]) if torch.is_tensor(each) else each
            for each in task.parts
        ]
        args, kwargs = torch.utils._pytree.tree_unflatten(task.parts, task.form)
        task.states = states = states_of(task.owner) if keeps else ()
        with apart(task.owner), over_all(), set_as(told):
            torch.manual_seed(seed + (0 if common else rank))
            before = numbers(task.owner)
            task.values, task.answer = torch.utils._pytree.tree_flatten(task.model(*args, **kwargs))
            moved = [one != other for one, other in zip(numbers(task.owner), before)]
            cpu_or_gpu = ["cpu", *(f"cuda:{each}" for each in cards(task.owner))]
            task.drew = next((each for each, on in zip(cpu_or_gpu, moved) if on), None)
        task.count, task.kept = len(task.values), kept_by(states)
        task.values += [each for *_, leaves, _ in task.kept for each in leaves]
        zeros = [float(each) for each, way in zip(task.values, ways) if way == "zero"]
        long = [(each, way) for each, way in zip(task.values, ways) if isinstance(way, int)]
        fit = all(each.dim() > way and each.shape[way] % task.rows[rank] == 0 for each, way in long)
        ok = (
            fit
            and kinds_of(task.values, task.answer, task.kept) == kinds
            and not any(abs(each) > 1e-6 for each in zeros)
        )
        shapes = [(way, each.shape) for each, way in zip(task.values, ways) if torch.is_tensor(each)]
        lengths = [n / task.rows[rank] if at == way else n for way, shape in shapes for at, n in enumerate(shape)]
        lengths += reached(task)  # no layer may be left out by some
    except Exception:  # some rows are not what it takes
        pass
    said = gathered((ok, lengths))
    if not all(ok and said[0] == (ok, lengths) for ok, lengths in said):
        return None
    task.lengths = [
        [each.shape[way] // task.rows[rank] * count for count in task.rows] if isinstance(way, int) else None
        for each, way in zip(task.values, ways)
    ]
    if told[0] and any(torch.is_tensor(each) and each.requires_grad for each in task.values):
        Task.open[number] = task
    return [*map(joined_up, task.values, ways, task.lengths, itertools.repeat(task.rows))]


@torch.no_grad()
def joined_up(value, way, lengths, rows):
    """Of what all processes answer: the whole, for the first one."""
    if isinstance(way, int):
        return whole(value, way, lengths)
    if way is None:
        return value.detach().clone() if torch.is_tensor(value) else value
    weight = 1 if way == "sum" else rows[rank] / sum(rows)
    number = torch.as_tensor(value).double().reshape(-1)[:1].cpu() * weight
    number = added_up([number])[0]
    if torch.is_tensor(value):
        number = number if value.is_floating_point() or value.is_complex() else number.round()
        return number.to(value.device, value.dtype).reshape(value.shape)
    return number.item() if isinstance(value, float) else type(value)(round(number.item()))


def differentiate(number, slots, task=None, values=None):
    """The gradients of one call over all processes: of what it is given, and of its weights."""
    task = task or Task.open[number]
    grads = [each if each is None or rank == 0 else made(*each) for each in slots]
    spread([each for each in grads if each is not None])
    outputs, given = [], []
    for value, way, lengths, grad in zip(values or task.values, task.ways, task.lengths, grads):
        if grad is None or not value.requires_grad or (way is None and rank > 0):  # the first one's counts
            continue
        if isinstance(way, int):
            grad = grad.narrow(way, sum(lengths[:rank]), lengths[rank])
        elif way in ("mean", "zero"):
            grad = grad * (task.rows[rank] / sum(task.rows))
        outputs.append(value)
        given.append(grad.to(value.device, value.dtype).reshape(value.shape))
    parts = [each for each in task.parts if torch.is_tensor(each) and each.requires_grad]
    leaves = parts + task.weights
    kept = [(each, each.grad) for each in leaves]
    for each in leaves:
        each.grad = None
    try:
        if outputs:
            with over_all(), unhooked(leaves):
                torch.autograd.backward(outputs, given, retain_graph=True)
        found = [each.grad for each in leaves]
    finally:
        for each, grad in kept:
            each.grad = grad
    used = torch.tensor([each is not None for each in found], dtype=torch.int32, device="cpu")
    Process.group.allreduce(used).wait()
    sparse = [each is not None and each.is_sparse for each in found]
    found = [each.to_dense() if dense else each for each, dense in zip(found, sparse)]
    found = [torch.zeros_like(leaf) if each is None else each for each, leaf in zip(found, leaves)]
    dims = [dim for each, dim in zip(task.parts, task.dims) if torch.is_tensor(each) and each.requires_grad]
    answers = [None] * len(leaves)
    for at, dim in enumerate(dims):
        answers[at] = None if dim is None else whole(found[at], dim, task.rows)
    summed = [at for at in range(len(leaves)) if int(used[at]) and (at >= len(dims) or dims[at] is None)]
    for at, total in zip(summed, added_up([found[at].contiguous() for at in summed])):
        answers[at] = total.to_sparse(1) if total is not None and sparse[at] else total
    return answers


class Shared(torch.autograd.Function):
    """A call, whose gradients all processes compute."""

    @staticmethod
    def forward(ctx, task, number, answers, *leaves):
        ctx.task, ctx.number, values = task, number, [each for each in task.values if torch.is_tensor(each)]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(each for each, value in zip(answers, values) if not value.requires_grad))
        ctx.save_for_backward(*values)
        first = next(each for each in values if each.requires_grad)
        weakref.finalize(first, Task.closed.append, number).atexit = False  # with what it was computed by
        task.tensors, task.values = [torch.is_tensor(each) for each in task.values], None
        return tuple(answers)

    @staticmethod
    def backward(ctx, *grads):
        task, saved, grads = ctx.task, iter(ctx.saved_tensors), iter(grads)
        values = [next(saved) if tensor else None for tensor in task.tensors]
        grads = [next(grads) if tensor else None for tensor in task.tensors]
        if torch.is_grad_enabled():  # to be differentiated again
            task.known.append(None)  # such calls are computed whole from now on
            warned(task.owner, "its gradients are differentiated again")
            return None, None, None, *again(task, task.given, grads)
        if Process.parted:
            raise RuntimeError("what other processes computed is lost: this one was interrupted")
        with exchanging():
            tell("back", {"number": ctx.number, "slots": [None if each is None else like(each) for each in grads]})
            return None, None, None, *differentiate(ctx.number, grads, task, values)


def again(task, given, grads):
    """The gradients of a call that are differentiated in turn: one process computes all of it once more."""
    args, kwargs = torch.utils._pytree.tree_unflatten(given, task.form)
    kept = [(each, each.clone()) for each in task.owner.buffers()]
    with normalising(plain_norm), set_as(task.told):
        values = torch.utils._pytree.tree_leaves(task.model(*args, **kwargs))
    with torch.no_grad():
        for each, was in kept:
            if not torch.equal(each, was):
                each.copy_(was)
    leaves = [each for each in given if torch.is_tensor(each) and each.requires_grad] + task.weights
    pairs = [(value, grad) for value, grad in zip(values, grads) if grad is not None and value.requires_grad]
    outputs, grads = zip(*pairs)
    return torch.autograd.grad(outputs, leaves, grads, create_graph=True, allow_unused=True)


def warned(owner, why):
    """Say that a model is not shared out, once."""
    if str(why) not in plans.setdefault(owner, {}):
        plans[owner][str(why)] = ()
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # whatever the script filters
            warnings.warn(f"one process computes the whole batch of {type(owner).__name__}: {why}")


def signs(given):
    """Whether whole numbers are below nothing, or nothing, and what is not true: such may be left out of a mean."""
    some = [each for each in given if torch.is_tensor(each) and each.numel() and each.layout == torch.strided]
    some = [each for each in some if not (each.is_floating_point() or each.is_complex())]
    found = [one for each in some for one in ((each < 0).any(), (each == 0).any()) if each.dtype != torch.bool]
    found += [each.all() for each in some if each.dtype == torch.bool]
    some = [
        each for each in given if torch.is_tensor(each) and each.is_floating_point() and each.layout == torch.strided
    ]
    found += [(each == 0).any() for each in some if each.dim() in (1, 2) and each.numel()]  # a mask, a weight
    return [bool(each) for each in found]


def shared(model):
    """A model of which each process computes its rows of a batch, and the first one answers with those of all."""
    if world_size > 1 and Process.group is None and multiprocessing.parent_process() is None:
        raise RuntimeError("no group of processes: torchrun has to start the script itself")
    there = Process.pid == os.getpid() and threading.current_thread() is threading.main_thread()
    if not there or Process.sharing or Process.parted:
        return model
    spread_out = isinstance(model, torch.nn.DataParallel)  # which other processes do instead
    model = model.module if spread_out else model
    whole = vars(model).get("_modules", {}).get("_orig_mod") if isinstance(model, torch.nn.Module) else None
    owner = model.__self__ if isinstance(model, types.MethodType) else model if whole is None else whole
    if not isinstance(owner, torch.nn.Module):
        return model
    compiled = whole is not None or getattr(owner, "_compiled_call_impl", None) is not None
    normed = any(isinstance(each, torch.nn.modules.batchnorm._BatchNorm) for each in owner.modules())

    def called(*args, **kwargs):
        given, form = torch.utils._pytree.tree_flatten((args, kwargs))
        if spread_out:
            device = next(owner.parameters()).device
            given = [each.to(device) if torch.is_tensor(each) else each for each in given]
            args, kwargs = torch.utils._pytree.tree_unflatten(given, form)
        devices = {each.device for each in owner.parameters()}
        fits = len(devices) == 1 and not any(map(torch.nn.parameter.is_lazy, owner.parameters()))
        least = min(rows_of(given, 0))
        if not fits or not least:
            if fits and owner.training and torch.is_grad_enabled():
                warned(owner, "it has fewer rows than there are processes")
            return model(*args, **kwargs)
        if hooked(owner):
            warned(owner, "a hook is to see it")
            return model(*args, **kwargs)
        told = [each for each in (*args, *kwargs.values()) if isinstance(each, str)]  # not the texts of a batch
        told += [each for each in given if each is None or isinstance(each, bool)][:8]
        told += [not each for each in given if type(each) in (int, float)][:8]
        told += [(each.dtype, each.dim(), each.requires_grad, each.is_leaf) for each in given if torch.is_tensor(each)]
        told += [look_at(owner).flags, *signs(given)]
        state = owner.training, torch.is_grad_enabled(), min(least, 2), str(form)
        kind = ("" if isinstance(model, torch.nn.Module) else model.__name__, *state, *told)
        known = plans.setdefault(owner, {}).setdefault(kind, Plans())
        known.calls += 1
        if None not in known:
            try:
                if compiled and normed and owner.training:
                    raise ValueError("batch normalisation that is compiled does not go over processes")
                task = bring(owner, model, given, form)
            except Exception as error:
                if Process.parted:
                    raise
                known.append(None)
                warned(owner, error)
        if None in known:
            return model(*args, **kwargs)
        task.known, chance, why = known, chances(), None
        with exchanging():
            if len(known) < 3 or known.calls in (10, 100, 1000, 10000):
                Plans.slack = 1 if len(known) < 3 else 100  # what has learnt is rounded more
                found, why = plan(task)
                known.append(found)
            answers = share(task, known[-1], chance) if known[-1] else None
        if answers is None:
            set_chances(chance)
            if known[-1] and "zero" in known[-1][2]:
                known.clear()  # to be tried again
            else:
                known.append(None)
                warned(owner, why or "its rows hang on each other, or were not seen to go apart")
            return model(*args, **kwargs)
        return torch.utils._pytree.tree_unflatten(answers, task.answer)

    return called


own = torch.Generator("cpu")  # for what is drawn beside the script


def share(task, found, chance):
    """What all processes answer to a call; None where some cannot."""
    if min(rows_of(task.given, found[0])) < 1:
        return None
    own.manual_seed(zlib.crc32(b"".join(numbers(task.owner))))  # by how far the script's own numbers are
    seed, number = int(torch.randint(2**31, (), generator=own, device="cpu")), next(counted)
    given = {"number": number, "found": found, "seed": seed, "chance": chance, "told": settings()}
    tell("compute", given)
    buffers = [(each, each.clone()) for each in task.owner.buffers()]
    answers = compute(**given)
    if answers is None:  # it is called once more
        put_back(task.states)
        with torch.no_grad():
            for each, was in buffers:
                each.copy_(was)
        return None
    if task.drew:
        torch.rand((), device=task.drew)  # so that the next call draws others
    if number in Task.open:
        del Task.open[number]
        leaves = [each for each in task.given if torch.is_tensor(each) and each.requires_grad]
        whole = [each for each in answers if torch.is_tensor(each)]
        whole = iter(Shared.apply(task, number, whole, *leaves, *task.weights))
        answers = [next(whole) if torch.is_tensor(each) else each for each in answers]
    rest, rows = iter(answers[task.count :]), iter(task.ways[task.count :])
    sent[task.owner].rows = {}
    for now, key, leaves, form in task.kept:  # what it keeps is that of all rows
        leaves = [next(rest) for _ in leaves]
        now[key] = torch.utils._pytree.tree_unflatten(leaves, form)
        for each in [each for each, way in zip(leaves, rows) if isinstance(way, int)]:
            sent[task.owner].rows[id(each)] = weakref.ref(each)
    return answers[: task.count]
