"""What is written at the head of a file that several processes run: functions that its new lines call."""

from __future__ import annotations

AGREED = '''
def $agreed(decision):
    """What the first process decides, for all of them."""
    if $world_size == 1:
        return decision
    decided = [decision]
    $torch.distributed.broadcast_object_list(decided)
    return decided[0]
'''

LIKE = '''
def $like(figure, number):
    """A number, on a device where the figure is."""
    return figure.new_full(figure.shape, number) if isinstance(figure, $torch.Tensor) else number
'''

IN_STEP = '''
class $Part($torch.autograd.Function):
    """The rows of a batch that this process computes."""

    @staticmethod
    def forward(ctx, batch, dim):
        ctx.dim = dim
        return batch.chunk($world_size, dim)[$rank].clone()

    @staticmethod
    def backward(ctx, grad):
        return $Whole.apply(grad, ctx.dim) / $world_size, None


class $Whole($torch.autograd.Function):
    """The rows of all processes, over which gradients are averaged: each one's weigh as many times as much."""

    @staticmethod
    def forward(ctx, part, dim):
        ctx.dim = dim
        part = part.contiguous()
        parts = [$torch.empty_like(part) for _ in range($world_size)]
        $torch.distributed.all_gather(parts, part)
        return $torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, grad):
        return $Part.apply(grad, ctx.dim) * $world_size, None


$own = $torch.Generator("cpu")  # for dropout, of which each process has its own
$averaged = {}  # the parameters whose gradients are, by their numbers


def $average(parameter):
    """Make a gradient that of all processes."""
    parameter.grad /= $world_size
    $torch.distributed.all_reduce(parameter.grad)


def $each_tensor(change, value):
    """A value with its tensors and fractions changed; None for what may have some where nobody sees them."""
    if isinstance(value, ($torch.Tensor, float)):
        return change(value)
    if isinstance(value, dict):
        values = {key: $each_tensor(change, each) for key, each in value.items()}
        return values if type(value) is dict else type(value)(**values)
    if isinstance(value, (list, tuple)):
        values = [$each_tensor(change, each) for each in value]
        return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
    if hasattr(value, "__dataclass_fields__"):
        return type(value)(**{name: $each_tensor(change, each) for name, each in vars(value).items()})
    return value if isinstance(value, (int, str)) else None


def $shared(model):
    """A model of which each process computes its rows of a batch, and has those of all; whole where they differ."""
    if $world_size == 1 or not $torch.distributed.is_initialized():
        return model
    owner = getattr(model, "__self__", model)
    trained = [each for each in owner.parameters() if each.requires_grad and $torch.is_grad_enabled()]
    fresh = [each for each in trained if $averaged.get(id(each), type(None))() is not each]
    if not $averaged:
        $own.manual_seed(($torch.initial_seed() + $rank) % 2**63)
    for parameter in fresh:
        parameter.register_post_accumulate_grad_hook($average)
        $averaged[id(parameter)] = $weakref.ref(parameter)
@NORMED@
    def called(*args, **kwargs):
        given = [*args, *kwargs.values()]
        given += [each for value in given if isinstance(value, dict) for each in value.values()]
        given += [each for value in given if isinstance(value, tuple) for each in value]
        tensors = [each for each in given if isinstance(each, $torch.Tensor) and each.dim()]
        known = ($torch.Tensor, dict, list, tuple, int, float, str, type(None))
        plain = all(isinstance(each, known) and not hasattr(each, "_fields") for each in given)
        size = tensors[0].shape[0] if tensors else 0
        rows, unclear = size // $world_size, []
        listed = any(isinstance(each, (list, tuple)) and len(each) == size for each in given)
        if rows < 2 or size % $world_size or listed or not plain:
            return model(*args, **kwargs)

        def places(tensor, size):  # of a state of three dimensions, samples may be in the second one
            return [dim for dim in range(1 + (tensor.dim() == 3)) if tensor.shape[dim] == size] if tensor.dim() else []

        def part(value):
            dims = places(value, size) if isinstance(value, $torch.Tensor) else []
            return $Part.apply(value, dims[0]) if dims else value

        def whole(value):
            if isinstance(value, float):
                return whole(tensors[0].new_tensor(value, dtype=$torch.float64)).item()
            if not value.dim():
                return $Whole.apply(value[None], 0).mean()  # a loss, which is a mean
            dims = places(value, rows)
            if len(dims) > 1 and tensors[0].shape[1:2] != (rows,):
                unclear.append(value)
            if not dims and tensors[0].dim() > 1 and value.shape[0] == rows * tensors[0].shape[1]:
                dims = [0]  # one for each place of each sample
            return $Whole.apply(value, dims[0]) if dims else None

        parts, options = $each_tensor(part, [args, kwargs])
        seed = int($torch.randint(2**31, (), generator=$own, device="cpu"))
@NUMPY@        with $torch.random.fork_rng([$torch.cuda.current_device()] if $torch.cuda.is_available() else []):
            $torch.manual_seed(seed)
            answer = model(*parts, **options)
@RESTORED@@BUFFERS@        answer = $each_tensor(whole, answer)
        return model(*args, **kwargs) if unclear else answer

    return called
'''

BUFFERS = """        if owner.training@HERE@:  # where nothing synchronises them
            for buffer in owner.buffers():
                $torch.distributed.broadcast(buffer, 0)
"""

NORMED = """    if fresh and fresh[0].is_cuda:
        $torch.nn.SyncBatchNorm.convert_sync_batchnorm(owner)
"""

ONCE = '''
def $once(call):
    """A call that the first process makes for all: they wait for it, and have what it returns, or raises."""

    def made(*args, **kwargs):
        several = $world_size > 1 and $torch.distributed.is_initialized()
        several = several and $torch.utils.data.get_worker_info() is None
        answer = [None, None]
        if several:
            $torch.distributed.barrier()
        if $rank == 0 or not several:
            try:
                answer[0] = call(*args, **kwargs)
            except Exception as error:
                answer[1] = error
        if several:
            $torch.distributed.broadcast_object_list(answer)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    return made
'''

FIRST = '''
def $first(call):
    """A call that the first process makes before the others do, which then find what it fetched."""

    def made(*args, **kwargs):
        several = $world_size > 1 and $torch.distributed.is_initialized()
        if several and $rank > 0:
            $torch.distributed.barrier()
        try:
            return call(*args, **kwargs)
        finally:
            if several and $rank == 0:
                $torch.distributed.barrier()

    return made
'''

LEAVE = '''
def $leave():
    """Leave the other processes when all have come to the end; at once where this one has failed."""
    if not hasattr(sys, "last_type"):
        $torch.distributed.barrier()
    $torch.distributed.destroy_process_group()
'''

ALONE = '''
def $alone():
    """Whether this is the process that writes. All come so far first: what was there is seen by all."""
    several = $world_size > 1 and $torch.distributed.is_initialized()
    if several and $torch.utils.data.get_worker_info() is None:
        $torch.distributed.barrier()
    return $rank == 0
'''

SILENT = '''
class $Silent:
    """A writer that takes whatever it is given, and writes nothing."""

    def __init__(self, log_dir=None):
        self.log_dir, self.get_logdir = log_dir, lambda: log_dir

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        return None
'''

NUMPY = """        state = $numpy.random.get_state()
        $numpy.random.seed(seed % 2**32)
"""
"""What a model draws by NumPy is another thing in each process, too."""
