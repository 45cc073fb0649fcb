"""What is put into a file: a function that keeps what another one gives, one that makes the items of a loader once, and
a memory of items in arrays."""

from __future__ import annotations

from turbofix.editing.edit import Edit, WrittenCall
from turbofix.findings import Site
from turbofix.training.model import Augment, Preload

from ._loaders import put_above

EACH = {"CropEach": "RandomCrop", "MirrorEach": "RandomHorizontalFlip", "FlipEach": "RandomVerticalFlip"}
"""The classes that draw for each picture of a batch, with those of torchvision that they are kinds of."""
ROOM = "; they are kept where they take two gigabytes or an eighth of the GPU's memory at most"


def take_whole(plan: Preload, edit: Edit) -> None:
    """Hand a loader to a function that makes its items once and takes whole batches of them."""
    helper = put_preloaded(edit, plan.helper)
    where = "" if plan.on_device else f", {edit.quoted('cpu', plan.loader)}"
    whole = f"{helper}({edit.text(plan.loader)}{where})"
    edit.replace(plan.loader, augmented(plan, plan.augment, whole, edit) if plan.augment is not None else whole)


def augmented(plan: Preload, augment: Augment, whole: str, edit: Edit) -> str:
    """Let whole batches go through the random transforms of pictures, and the pictures through the others once."""
    batched = []
    for place, (site, does) in enumerate(augment.parts):
        if does == "once":
            continue
        text = edit.text(site)
        given, border = parted(edit.call(site)) if does == "CropEach" else (text[text.index("(") + 1 : -1], "")
        batched.append(f"{put_each(edit, plan.helper, does)}({given})")
        if border:
            edit.replace(site, f"{edit.name('torchvision.transforms.Pad', site)}({border})")
        else:
            edit.drop_element(augment.listed, place)
    return f"{put_augmented(edit, plan.helper)}({whole}, {', '.join(batched)})"


def parted(crop: WrittenCall) -> tuple[str, str]:
    """The size of a ``RandomCrop``, and what it pads with before."""
    given = [f"{name}={text}" if name else text for name, text in crop.given]
    size = given.pop(next((number for number, (name, _) in enumerate(crop.given) if name == "size"), 0))
    return size, ", ".join(given)


def put_each(edit: Edit, above: Site, does: str) -> str:
    """Define a random transform that draws for each picture of a batch, and return its name."""
    name, base = edit.free_name(does, above), EACH[does]
    lines = [
        f"class {name}({edit.name(f'torchvision.transforms.{base}', above)}):",
        f'    """{base} by a draw for each picture of a batch."""',
        "",
        "    def forward(self, pictures):",
    ]
    if does == "CropEach":
        at, draw = edit.name("torch.arange", above), edit.name("torch.randint", above)
        lines += [
            "        windows = pictures.unfold(2, self.size[0], 1).unfold(3, self.size[1], 1)",
            "        (count, _, rows, columns), device = windows.shape[:4], pictures.device",
            f"        top, left = ({draw}(places, (count,), device=device) for places in (rows, columns))",
            f"        return windows[{at}(count, device=device), :, top, left]",
        ]
    else:
        draw, where = edit.name("torch.rand", above), edit.name("torch.where", above)
        lines += [
            f"        chosen = {draw}(len(pictures), 1, 1, 1, device=pictures.device) < self.p",
            f"        return {where}(chosen, pictures.flip({-1 if does == 'MirrorEach' else -2}), pictures)",
        ]
    put_above(edit, above, *lines, below=True)
    return name


def put_augmented(edit: Edit, above: Site) -> str:
    """Define the function that lets whole batches go through random transforms, and return its name."""
    name = edit.free_name("augmented", above)
    put_above(
        edit,
        above,
        f"def {name}(loader, *changes):",
        '    """The loader, with batches whose pictures are changed as a whole."""',
        "    collate = loader.collate_fn",
        "",
        "    def take(chosen):",
        "        pictures, *others = collate(chosen)",
        "        for change in changes:",
        "            pictures = change(pictures)",
        "        return [pictures, *others]",
        "",
        "    loader.collate_fn = take",
        "    return loader",
        below=True,
    )
    return name


def put_preloaded(edit: Edit, above: Site) -> str:
    """Define the function that makes the items once, and return its name."""
    name = edit.free_name("preloaded", above)
    loader = edit.name("torch.utils.data.DataLoader", above)
    cat, is_tensor = edit.name("torch.cat", above), edit.name("torch.is_tensor", above)
    available, free = edit.name("torch.cuda.is_available", above), edit.name("torch.cuda.mem_get_info", above)
    gpu, cpu = edit.quoted("cuda", above), edit.quoted("cpu", above)
    how = f"sampler=range(len(data)), generator={edit.name('torch.Generator', above)}(), **how"
    put_above(
        edit,
        above,
        f"def {name}(loader, device={gpu}):",
        '    """The loader, with items that are made once, and batches that are taken of them as a whole."""',
        "",
        "    def join(do, *batches):",
        "        first = batches[0]",
        "        if isinstance(first, dict):",
        "            return {name: join(do, *(batch[name] for batch in batches)) for name in first}",
        "        if isinstance(first, (list, tuple)):",
        "            return [join(do, *parts) for parts in zip(*batches)]",
        "        return do(*batches)",
        "",
        "    data, parts = loader.dataset, []",
        "    if len(data) and loader.batch_size:",
        "        join(parts.append, loader.collate_fn([data[0]]))",
        f"    if not parts or not all(map({is_tensor}, parts)):",
        "        return loader",
        "    size = len(data) * sum(part.numel() * part.element_size() for part in parts)",
        f"    free = {free}()[0] if {available}() else 0",
        "    if size > max(2 << 30, free // 8):",
        "        return loader",
        "    if parts[0].is_cuda:",
        "        device = parts[0].device",
        "    elif 8 * size > free:",
        f"        device = {cpu}",
        '    how = {"num_workers": loader.num_workers, "collate_fn": loader.collate_fn}',
        f"    chunks = type(loader)(data, loader.batch_size, {how})",
        "    chunks = [join(lambda part: part.to(device, copy=True), chunk) for chunk in chunks]",
        f"    kept = join(lambda *parts: {cat}(parts), *chunks)",
        "",
        "    def take(chosen):",
        "        return join(lambda part: part[chosen], kept)",
        "",
        '    order = {"sampler": loader.sampler, "drop_last": loader.drop_last, "generator": loader.generator}',
        f"    return {loader}(range(len(data)), loader.batch_size, collate_fn=take, **order)",
    )
    return name


def put_remembered(edit: Edit, above: Site, *, pictures: bool) -> str:
    """Define the function that keeps what another one gives, and return its name."""
    name = edit.free_name("remembered", above)
    wraps, measure = edit.name("functools.wraps", above), edit.name("sys.getsizeof", above)
    own = edit.quoted("nbytes", above)
    mapping = edit.name("collections.abc.Mapping", above, module="collections.abc")
    picture = (
        f"        if hasattr(item, {edit.quoted('getbands', above)}):  # a picture of PIL's",
        "            return item.width * item.height * len(item.getbands())",
    )
    put_above(
        edit,
        above,
        f"def {name}(make):",
        '    """Keep what a function gives for the same arguments, as long as it takes less than a gigabyte."""',
        "    kept, taken = {}, 0",
        "",
        "    def size(item):",
        f"        if hasattr(item, {edit.quoted('element_size', above)}):  # a tensor",
        "            return item.element_size() * item.nelement()",
        *(picture if pictures else ()),
        f"        if isinstance(item, {mapping}):",
        "            item = list(item.values())",
        "        parts = item if isinstance(item, (list, tuple)) else ()",
        f"        return {measure}(item) + getattr(item, {own}, 0) + sum(map(size, parts))",
        "",
        f"    @{wraps}(make)",
        "    def remember(*given, **named):",
        "        nonlocal taken",
        "        key = (*given, *named.items())",
        "        if key in kept:",
        "            return kept[key]",
        "        item = make(*given, **named)",
        "        if taken < 1 << 30:",
        "            taken += size(item)",
        "            kept[key] = item",
        "        return item",
        "",
        "    return remember",
    )
    return name


def put_columns(edit: Edit, above: Site) -> str:
    """Define the class of such memories, and return its name."""
    name = edit.free_name("Columns", above)
    array, asarray, empty = (edit.name(f"numpy.{each}", above) for each in ("array", "asarray", "empty"))
    promote, kinds = edit.name("numpy.promote_types", above), edit.name("numpy.ndarray", above)
    sample = edit.name("random.sample", above)
    put_above(
        edit,
        above,
        f"class {name}:",
        '    """The last items that were added: each of their parts in an array, out of which batches are taken."""',
        "",
        "    def __init__(self, size):",
        "        self.size, self.added, self.parts = int(size), 0, []",
        "",
        "    def __len__(self):",
        "        return min(self.added, self.size)",
        "",
        "    def append(self, item):",
        "        self.added += 1",
        "        if item is not None:",
        "            self[(self.added - 1) % self.size] = item",
        "",
        "    def __setitem__(self, place, item):",
        "        if not self.parts:",
        f"            self.parts = [self.column({asarray}(part)) for part in item]",
        "        for number, part in enumerate(item):",
        "            kept = self.parts[number]",
        f"            if isinstance(kept, {kinds}):",
        f"                part = {asarray}(part)",
        "                if kept.shape[1:] != part.shape:",
        '                    raise ValueError(f"part {number} of an item has another shape than before")',
        "                if kept.dtype != part.dtype:",
        f"                    kept = self.parts[number] = kept.astype({promote}(kept.dtype, part.dtype))",
        "            kept[place] = part",
        "",
        "    def column(self, part):  # what is large is kept as it is",
        "        large = part.nbytes > min(1 << 14, (1 << 30) // self.size)",
        f"        return [None] * self.size if large else {empty}((self.size, *part.shape), part.dtype)",
        "",
        "    def sample(self, count):",
        "        first = self.added - len(self)",
        f"        chosen = (first + {asarray}({sample}(range(len(self)), count))) % self.size",
        "        return [",
        f"            part[chosen] if isinstance(part, {kinds}) else {array}([part[each] for each in chosen])",
        "            for part in self.parts",
        "        ]",
    )
    return name
