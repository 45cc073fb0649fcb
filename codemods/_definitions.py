"""What is written at the head of a file that several processes run: functions that its new lines call."""

from __future__ import annotations

SHARD = '''
class {name}({base}):
    """Of so many samples as there are processes, the one of this process."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        for group in zip(*[iter(self.samples)] * {world_size}):
            yield group[{rank}]
'''

SHARE = '''
def {name}(batch):
    """What this process takes of a batch: as many samples as each other one, some twice where it does not divide."""
    count = -(-len(batch) // {world_size})
    first = min({rank} * count, len(batch) - count)
    return batch[first : first + count]
'''

CALLED = '''
class {name}({base}):
    """A model, called by one of its methods: DistributedDataParallel sees its own call alone."""

    def __init__(self, model, method):
        super().__init__()
        self.model, self.method = model, method

    def forward(self, *args, **kwargs):
        return getattr(self.model, self.method)(*args, **kwargs)
'''

AGREED = '''
def {name}(decision):
    """What the first process decides, for all of them."""
    if {world_size} == 1:
        return decision
    decided = [decision]
    {broadcast_object_list}(decided)
    return decided[0]
'''

ANYWHERE = '''
def {name}(found):
    """Whether a process found it: what one leaves out, all leave out."""
    if {world_size} == 1:
        return found
    each = [None] * {world_size}
    {all_gather_object}(each, bool(found))
    return any(each)
'''

EVERYWHERE = '''
def {name}(found):
    """Whether all processes found it: what one leaves out, all leave out."""
    if {world_size} == 1:
        return found
    each = [None] * {world_size}
    {all_gather_object}(each, bool(found))
    return all(each)
'''

WEIGHT = '''
def {name}(counts):
    """How much a mean over what counts here weighs in the one over all processes, as gradients are averaged."""
    if {world_size} == 1:
        return 1
    own = counts.sum()
    total = own.clone()
    {all_reduce}(total)
    return own * {world_size} / total
'''

LIKE = '''
def {name}(figure, number):
    """A number, on a device where the figure is."""
    return figure.new_full(figure.shape, number) if isinstance(figure, {tensor}) else number
'''

CHOSEN = '''
class {name}({base}):
    """A part, as large as those of the other processes, of what the sampler of the first one chooses."""

    def __init__(self, sampler):
        super().__init__(sampler, {world_size}, {rank}, shuffle=False)

    def __iter__(self):
        chosen = [list(self.dataset)]
        {broadcast_object_list}(chosen)
        return iter([chosen[0][place] for place in super().__iter__()])
'''

SHARED = '''
def {name}(loader):
    """A loader of what this process takes of each batch."""
    if loader.batch_size % {world_size}:
        raise SystemExit({told})
    kept = {kept}
    options = {{each: getattr(loader, each) for each in kept}}
    size = loader.batch_size // {world_size}
    return {loader_class}(loader.dataset, size, sampler={chosen}(loader.sampler), **options)
'''

BATCHES = '''
class {name}:
    """A part of each batch that the sampler of the first process chooses."""

    def __init__(self, batch_sampler):
        self.batch_sampler, self.num_replicas = batch_sampler, {world_size}

    def __len__(self):
        return len(self.batch_sampler)

    def __iter__(self):
        chosen = [list(self.batch_sampler)]
        {broadcast_object_list}(chosen)
        return map({share}, chosen[0])
'''
