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


$own = $torch.Generator().manual_seed($rank)  # for dropout, of which each process has its own


def $average(parameter):
    """Make a gradient that of all processes."""
    parameter.grad /= $world_size
    $torch.distributed.all_reduce(parameter.grad)


def $each_tensor(change, value):
    """A value with its tensors changed; None for what may have some where nobody sees them."""
    if isinstance(value, $torch.Tensor):
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
    fresh = [each for each in owner.parameters() if each.requires_grad and not hasattr(each, "averaged")]
    for parameter in fresh:
        parameter.register_post_accumulate_grad_hook($average)
        parameter.averaged = True
@NORMED@
    def called(*args, **kwargs):
        given = [*args, *kwargs.values()]
        given += [each for value in given if isinstance(value, dict) for each in value.values()]
        given += [each for value in given if isinstance(value, tuple) for each in value]
        sizes = [each.shape[0] for each in given if isinstance(each, $torch.Tensor) and each.dim()]
        known = ($torch.Tensor, dict, list, tuple, int, float, str, type(None))
        plain = all(isinstance(each, known) and not hasattr(each, "_fields") for each in given)
        rows = sizes[0] // $world_size if sizes else 0
        if rows < 2 or sizes[0] % $world_size or not plain:
            return model(*args, **kwargs)

        def part(tensor):
            dims = [dim for dim, size in enumerate(tensor.shape[:2]) if size == sizes[0]]
            return $Part.apply(tensor, dims[0]) if dims else tensor

        def whole(tensor):
            if not tensor.dim():
                return $Whole.apply(tensor[None], 0).mean()  # a loss, which is a mean
            dims = [dim for dim, size in enumerate(tensor.shape) if size == rows]
            if not dims and tensor.dim() > 1 and not tensor.shape[0] % rows:
                dims = [0]  # several for each sample
            return $Whole.apply(tensor, dims[0]) if dims else None

        args, kwargs = $each_tensor(part, [args, kwargs])
        seed = int($torch.randint(2**31, (), generator=$own))
        with $torch.random.fork_rng([$torch.cuda.current_device()] if $torch.cuda.is_available() else []):
            $torch.manual_seed(seed)
            answer = model(*args, **kwargs)
@BUFFERS@        return $each_tensor(whole, answer)

    return called
'''

BUFFERS = """        if owner.training and not next(owner.parameters()).is_cuda:  # where nothing synchronises them
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
        result = call(*args, **kwargs)
        if several and $rank == 0:
            $torch.distributed.barrier()
        return result

    return made
'''

LEAVE = '''
def $leave():
    """Leave the other processes when all have come to the end; at once where this one has failed."""
    if not hasattr(sys, "last_type"):
        $torch.distributed.barrier()
    $torch.distributed.destroy_process_group()
'''
