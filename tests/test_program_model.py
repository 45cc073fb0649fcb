"""What the model says of small programs in many styles."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from turbofix.source.site import Site
from turbofix.training.model import Framework, Step, Target, TrainingProgram
from turbofix.training.program import analyse

ROOT = Path("/project")

HEAD = """
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


class Pictures(Dataset):
    def __init__(self, n):
        self.items = [torch.zeros(8) for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index], index % 2
"""

SETUP = """
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(Pictures(64), batch_size=4, shuffle=True)
model = Net().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
"""


def program(*files: str, **named: str) -> TrainingProgram:
    """Analyse a script (the parts of ``files``) with sibling modules ``named``; nothing touches the disk."""
    texts = {ROOT / f"{name}.py": textwrap.dedent(text) for name, text in named.items()}
    texts[ROOT / "train.py"] = "".join(textwrap.dedent(part) for part in files)
    found = analyse(ROOT / "train.py", ROOT, texts.get, Target())
    assert found is not None
    found_again = analyse(ROOT / "train.py", ROOT, texts.get, Target())
    assert found_again == found, "two analyses of one program differ"
    program.texts = texts  # type: ignore[attr-defined]
    return found


def source(site: Site | None) -> str:
    """The source text of a site in the last analysed program."""
    assert site is not None
    lines = program.texts[site.path].split("\n")[site.line - 1 : site.end_line]  # type: ignore[attr-defined]
    lines[-1] = lines[-1][: site.end_column]
    lines[0] = lines[0][site.column :]
    return "\n".join(lines)


def only_step(found: TrainingProgram) -> Step:
    assert len(found.steps) == 1, [source(step.loop.site) for step in found.steps]
    return found.steps[0]


FLAT = (
    HEAD
    + SETUP
    + """
for epoch in range(3):
    total = 0.0
    correct = 0
    for i, (x, y) in enumerate(loader):
        x = x.to(device)
        y = y.to(device, non_blocking=True)
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        correct += (out.argmax(1) == y).sum().item()
        if (i + 1) % 50 == 0:
            print("loss", loss.item())
    print(epoch, total / len(loader), correct)
"""
)


def test_a_flat_script_has_one_step_with_its_parts() -> None:
    step = only_step(program(FLAT))
    assert source(step.loop.site).startswith("for i, (x, y) in enumerate(loader)")
    assert (step.loop.counter, step.loop.counter_start, step.loop.sized) == ("i", 0, "len(loader)")
    assert step.epoch_loop is not None and step.epoch_loop.iterated == "range(3)"
    assert step.function is None and step.source == "loader" and step.certainty == "seen"
    assert [act.receiver_text for act in step.backwards] == ["loss"]
    assert [source(act.site) for act in step.updates] == ["optimizer.step()"]
    assert [source(act.site) for act in step.zero_grads] == ["optimizer.zero_grad()"]
    assert step.loss.qualnames == ("torch.nn.CrossEntropyLoss",)
    assert step.updates[0].optimizer == step.optimizers[0] and step.updates[0].alone


def test_what_a_model_file_tries_by_itself_hides_nothing_of_the_model() -> None:
    net = """
        import torch
        from torch import nn
        class Block(nn.Module):
            def __init__(self, inputs: int, outputs: int):
                super().__init__()
                self.convolution = nn.Conv2d(inputs, outputs, 3)
                self.drop, self.act, self.norm = nn.Dropout(), nn.ReLU(), nn.BatchNorm2d(outputs)
            def forward(self, x):
                return self.act(self.norm(self.drop(self.convolution(x))))
        class Blocks(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c, self.d = Block(3, 4), Block(4, 5), Block(5, 6), Block(6, 7)
            def forward(self, x):
                return self.d(self.c(self.b(self.a(x))))
        if __name__ == "__main__":
            print(Blocks()(torch.zeros(1, 3, 64, 64)), Blocks())
    """
    script = """
        import torch
        from net import Blocks
        from torch.utils.data import DataLoader
        from data import Pictures
        model = Blocks().cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for x in DataLoader(Pictures()):
            model(x.cuda()).mean().backward()
            optimizer.step()
    """
    (model,) = program(script, net=net).models
    assert {(each.inputs, each.outputs) for each in model.convolutions} == {(n, n + 1) for n in range(3, 7)}


def test_the_forward_region_leaves_transfers_and_clearing_outside() -> None:
    step = only_step(program(FLAT))
    assert step.forward is not None and step.forward.blockers == ()
    assert source(step.forward.first) == "out = model(x)"
    assert source(step.forward.last) == "loss = criterion(out, y)"


def test_transfers_tell_batch_device_and_non_blocking() -> None:
    found = program(FLAT)
    first, second = only_step(found).transfers
    assert (first.what, first.method, first.to.where, first.to.text, first.to.text_kind) == (
        "batch", "to", "conditional", "device", "device",
    )  # fmt: skip
    assert first.non_blocking.state == "absent" and second.non_blocking.values == (True,)
    assert first.loader == found.loaders[0].site
    assert found.loaders[0].copies == (first, second)


def test_sums_are_accumulators_and_prints_are_shows() -> None:
    step = only_step(program(FLAT))
    summed, counted, shown = step.syncs
    assert (summed.use, summed.how, summed.of, summed.of_text) == ("summed", "item", "loss", "loss")
    assert summed.accumulator is not None and summed.accumulator.simple
    assert [source(site) for site in summed.accumulator.inits] == ["total = 0.0"]
    assert [(source(read.site), read.when) for read in summed.accumulator.reads] == [("total", "after_loop")]
    assert counted.accumulator is not None and counted.accumulator.text == "correct"
    assert shown.use == "shown" and shown.guard.kind == "every_n" and shown.guard.every == 50
    assert step.shows[0].kind == "print" and step.shows[0].syncs == (shown.site,) and shown.show == step.shows[0]


def test_a_read_of_the_sum_in_every_step_is_told() -> None:
    text = FLAT.replace('print("loss", loss.item())', 'print("loss", total / (i + 1))').replace(
        "if (i + 1) % 50 == 0:", "if True:"
    )
    accumulator = only_step(program(text)).syncs[0].accumulator
    assert accumulator is not None
    assert sorted(read.when for read in accumulator.reads) == ["after_loop", "every_step"]


def test_a_sum_that_is_set_anew_does_not_leak_into_the_next_loop() -> None:
    text = (
        FLAT
        + """
total = 0.0
with torch.no_grad():
    for x, y in loader:
        total += criterion(model(x.to(device)), y.to(device)).item()
print(total)
"""
    )
    found = program(text)
    training = only_step(found).syncs[0].accumulator
    assert training is not None
    assert [source(read.statement) for read in training.reads] == ["print(epoch, total / len(loader), correct)"]
    (evaluation,) = found.evaluations
    accumulator = evaluation.syncs[0].accumulator
    assert accumulator is not None and [source(read.statement) for read in accumulator.reads] == ["print(total)"]
    assert evaluation.no_grad and evaluation.syncs[0].no_grad


def test_a_loss_that_is_kept_with_its_graph_is_a_leak() -> None:
    step = only_step(program(FLAT.replace("total += loss.item() * len(x)", "total += loss")))
    assert [leak.text for leak in step.leaks] == ["total"]
    assert only_step(program(FLAT)).leaks == ()


def test_a_weight_that_the_batch_brings_has_no_graph_to_keep() -> None:
    loop = """
    from torch_geometric.loader import DataLoader
    loader = DataLoader(Pictures(64), batch_size=4)
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    total = 0
    for batch in loader:
        batch = batch.cuda()
        loss = F.mse_loss(model(batch.x), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += {added} * batch["nodes"].batch_size
    """
    texts = [textwrap.dedent(loop).replace("{added}", added) for added in ("loss", "loss.detach().double()")]
    assert [len(only_step(program(HEAD, text)).leaks) for text in texts] == [1, 0]


@pytest.mark.parametrize(
    ("statements", "use"),
    [
        ("history.append(loss.item())", "stored"),
        ("value = loss.item()\n        print(value)", "shown"),
        ("value = loss.item()\n        if value > 5: break", "control"),
        ("import math\n        if not math.isfinite(loss.item()): raise SystemExit", "control"),
        ("history[i] = float(loss)", "stored"),
        ("value = loss.item()\n        history.append(value)\n        print(value)", "stored"),
    ],
)
def test_what_becomes_of_a_value_that_was_read(statements: str, use: str) -> None:
    text = FLAT.replace("total += loss.item() * len(x)", statements).replace("epoch, total / len(loader), ", "")
    text = text.replace("correct += (out.argmax(1) == y).sum().item()", "pass").replace(
        'print("loss", loss.item())', "pass"
    )
    step = only_step(program(text.replace("for epoch in range(3):", "history = []\nfor epoch in range(3):")))
    assert [sync.use for sync in step.syncs] == [use]


FUNCTIONS = (
    HEAD
    + """
def train(args, model, device, loader, optimizer, epoch):
    model.train()
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if i % args.log_interval == 0:
            print(epoch, loss.item())
        if args.save and i > 10:
            torch.save(model, "x")


@torch.no_grad()
def evaluate(model, device, loader):
    model.eval()
    losses = 0
    for x, y in loader:
        losses += F.cross_entropy(model(x.to(device)), y.to(device)).item()
    return losses / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)  # fits the small card
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()
    use_cuda = not args.no_cuda and torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")
    kwargs = {"batch_size": args.batch_size, "shuffle": True}
    if use_cuda:
        kwargs.update({"num_workers": 1, "pin_memory": True})
    train_loader = DataLoader(Pictures(640), **kwargs)
    test_loader = DataLoader(Pictures(64), batch_size=args.batch_size)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(5):
        train(args, model, device, train_loader, optimizer, epoch)
        evaluate(model, device, test_loader)


if __name__ == "__main__":
    main()
"""
)


def test_functions_with_argparse() -> None:
    found = program(FUNCTIONS)
    step = only_step(found)
    assert source(step.function).startswith("def train(")
    assert step.epoch_loop is not None and step.epoch_loop.iterated == "range(5)"
    assert step.syncs[0].guard.kind == "every_n" and step.syncs[0].guard.every == 10
    assert found.script.guarded and found.script.unguarded is None
    assert source(found.script.setup).startswith("use_cuda =")
    assert source(found.script.setup_function).startswith("def main(")
    (evaluation,) = found.evaluations
    assert evaluation.no_grad and source(evaluation.function).startswith("def evaluate(")
    assert evaluation.syncs[0].use == "summed"


def test_a_mapping_that_is_updated_under_a_condition() -> None:
    found = program(FUNCTIONS)
    train, test = found.loaders
    assert (train.role, test.role, train.name) == ("training", "evaluation", "train_loader")
    workers = train.argument("num_workers")
    assert (workers.state, workers.values, workers.may_be_absent) == ("may", (1,), True)
    assert source(workers.edit_at) == "1"
    assert not train.open_mapping and [source(site) for site in train.unpacks] == ["kwargs"]
    assert source(train.mapping_entries["pin_memory"]) == "True"
    batch = test.argument("batch_size")
    assert (batch.state, batch.values, batch.option) == ("option", (4,), "--batch-size")
    assert source(batch.edit_at) == "4" and batch.comment == "fits the small card"
    assert [source(site) for site in batch.reads] == ["args.batch_size"]  # the training loader's own
    assert test.argument("pin_memory").state == "absent"
    assert train.dataset.kind == "map"


def test_the_way_of_an_optimizer_through_calls() -> None:
    found = program(FUNCTIONS)
    (optimizer,) = found.optimizers
    assert optimizer.qualname == "torch.optim.AdamW" and optimizer.target_text == "optimizer"
    (hop,) = optimizer.passes
    assert optimizer.passes_complete and hop.parameter == "optimizer" and source(hop.argument) == "optimizer"
    assert source(hop.call).startswith("train(args") and source(hop.function).startswith("def train(")
    assert not optimizer.in_loop and not optimizer.before_move and optimizer.used and optimizer.trains == "model"


def test_an_optimizer_that_is_built_before_its_model_moves() -> None:
    text = FLAT.replace("model = Net().to(device)", "model = Net()").replace(
        "for epoch in range(3):", "model.to(device)\nfor epoch in range(3):"
    )
    assert program(text).optimizers[0].before_move


TRAINER = (
    HEAD
    + """
class Trainer:
    def __init__(self):
        self.device = torch.device("cuda")
        self.model = Net().to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(Pictures(64), 16, num_workers=2)
        self.losses = []

    def step(self, x, y):
        self.optimizer.zero_grad()
        out = self.model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self):
        for epoch in range(2):
            for batch in self.loader:
                x, y = (t.to(self.device) for t in batch)
                self.losses.append(self.step(x, y).item())


if __name__ == "__main__":
    Trainer().fit()
"""
)


def test_a_trainer_class_whose_step_is_a_method() -> None:
    found = program(TRAINER)
    step = only_step(found)
    assert source(step.function).startswith("def fit(")
    assert step.forward is not None and source(step.forward.first) == "out = self.model(x)"
    assert source(step.forward.function).startswith("def step(")
    assert step.updates[0].receiver_text == "self.optimizer"
    assert [sync.use for sync in step.syncs] == ["stored"]
    assert step.device.where == "cuda"
    (loader,) = found.loaders
    assert loader.argument("batch_size").values == (16,) and loader.argument("num_workers").values == (2,)
    assert loader.name == "self.loader"
    assert found.optimizers[0].passes == () and found.optimizers[0].target_text == "self.optimizer"


def test_a_loader_that_an_object_is_given_is_called_by_its_parameter() -> None:
    found = program(
        """
        from dataclasses import dataclass
        from torch.utils.data import DataLoader

        @dataclass
        class Data:
            train: DataLoader
            held: DataLoader

        def prepare(photos, more):
            return Data(train=DataLoader(photos, batch_size=8), held=DataLoader(more))

        data = prepare(read("photos"), read("more"))
        """
    )
    assert [each.name for each in found.loaders] == ["train", "held"]


def test_accumulation_under_a_modulo() -> None:
    text = FLAT.replace("        loss.backward()", "        loss = loss / accum\n        loss.backward()").replace(
        "        optimizer.step()",
        "        if (i + 1) % accum == 0 or i + 1 == len(loader):\n            optimizer.step()",
    )
    step = only_step(program(text.replace("for epoch in range(3):", "accum = 8  # 4 x 8 = 32\nfor epoch in range(3):")))
    found = step.accumulation
    assert found is not None and found.divided
    assert found.steps.values == (8,) and found.steps.comment == "4 x 8 = 32" and found.steps.reads == ()
    assert source(found.guard).startswith("if (i + 1) % accum == 0")
    assert step.updates[0].guard.kind == "every_n" and step.updates[0].guard.every == 8
    assert step.backwards[0].guard.kind == "always"


def test_no_accumulation_where_only_the_printing_is_guarded() -> None:
    assert only_step(program(FLAT)).accumulation is None


MICRO_STEPS = (
    HEAD
    + SETUP
    + """
accum = 5
scaler = torch.amp.GradScaler("cuda", enabled=True)
ctx = torch.autocast(device_type="cuda", dtype=torch.float16)
data = torch.randn(1000, 8)
X = data[:4].to(device)
it = 0
while True:
    for micro_step in range(accum):
        with ctx:
            loss = model(X).mean()
            loss = loss / accum
        X = data[4:8].to(device)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if it % 10 == 0:
        print(loss.item() * accum)
    it += 1
    if it > 100:
        break
"""
)


def test_micro_steps_with_a_scaler() -> None:
    found = program(MICRO_STEPS)
    step = only_step(found)
    assert source(step.loop.site).startswith("while True") and step.loop.counter == "it"
    assert step.forward is not None and source(step.forward.first) == source(step.forward.last)
    assert source(step.forward.first).startswith("with ctx:")
    assert step.autocast is not None and source(step.autocast) == "ctx"
    assert step.backwards[0].scaled and step.backwards[0].receiver_text == "loss"
    assert step.updates[0].scaled and step.updates[0].optimizer == found.optimizers[0].site
    assert len(step.unscales) == len(step.scaler_updates) == len(step.clips) == 1
    assert step.clips[0].receiver_text == "model.parameters()"
    assert step.accumulation is not None and step.accumulation.divided and step.accumulation.steps.values == (5,)
    assert [(each.kind, each.dtype) for each in found.precision] == [("scaler", None), ("autocast", "float16")]


GAN = (
    HEAD
    + """
device = "cuda"
G, D = Net().cuda(), Net().cuda()
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
bce = nn.BCEWithLogitsLoss()
loader = DataLoader(Pictures(64), batch_size=8)
for x, _ in loader:
    x = x.cuda()
    z = torch.randn(8, 8).cuda()
    opt_d.zero_grad()
    fake = G(z)
    d_loss = bce(D(x), torch.ones(8, 2, device=device)) + bce(D(fake.detach()), torch.zeros(8, 2, device=device))
    d_loss.backward()
    opt_d.step()
    opt_g.zero_grad()
    g_loss = bce(D(fake), torch.ones(8, 2, device=device))
    g_loss.backward()
    opt_g.step()
"""
)


def test_a_gan_has_one_step_with_several_acts() -> None:
    found = program(GAN)
    step = only_step(found)
    assert [act.receiver_text for act in step.backwards] == ["d_loss", "g_loss"]
    assert [act.receiver_text for act in step.updates] == ["opt_d", "opt_g"]
    assert len(step.optimizers) == 2 and step.updates[0].optimizer != step.updates[1].optimizer
    assert len(step.models) == 2
    assert step.forward is not None and step.forward.blockers
    first, second = step.forwards
    assert source(first.first) == "fake = G(z)" and source(first.last).startswith("d_loss =") and not first.blockers
    assert source(second.first) == source(second.last) and source(second.first).startswith("g_loss =")
    batch, noise = step.transfers
    assert batch.what == "batch" and noise.what in ("made", "input") and noise.loader is None
    assert step.device.where == "cuda" and batch.to.text is None


def test_a_closure_is_told() -> None:
    text = (
        HEAD
        + """
model = Net()
x = torch.randn(10, 8)
optimizer = torch.optim.LBFGS(model.parameters())
for i in range(10):
    def closure():
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss
    optimizer.step(closure)
"""
    )
    step = only_step(program(text))
    assert step.updates[0].closure and step.source == "tensors"
    assert step.forward is not None and source(step.forward.function).startswith("def closure(")


def test_a_device_test_around_cuda_calls() -> None:
    text = FLAT.replace("x = x.to(device)", "if use_cuda:\n            x = x.cuda()").replace(
        "for epoch in range(3):", "use_cuda = torch.cuda.is_available()\nfor epoch in range(3):"
    )
    first = only_step(program(text)).transfers[0]
    assert (first.method, first.to.where, first.to.test, first.to.text) == ("cuda", "conditional", "use_cuda", None)
    assert first.guard.kind == "config" and [source(site) for site in first.to.tests] == ["use_cuda"]


def test_a_cast_is_no_transfer() -> None:
    step = only_step(program(FLAT.replace("x = x.to(device)", "x = x.to(torch.float16)")))
    assert step.transfers[0].dtype_only


@pytest.mark.parametrize(
    ("test", "kind", "every"),
    [
        ("i % 100 == 0", "every_n", 100),
        ("not i % 20", "every_n", 20),
        ("i % 20 != 0", "condition", None),
        ("i % 20 == 0 and epoch > 1", "every_n", 20),
        ("epoch % 2 == 0", "condition", None),
        ("verbose", "config", None),
        ("device.type == 'cuda'", "config", None),
        ("loss > 3", "condition", None),
        ("i == 3", "condition", None),
        ("torch.distributed.get_rank() == 0", "rank", None),
        ("is_main", "rank", None),
    ],
)
def test_guards(test: str, kind: str, every: int | None) -> None:
    text = FLAT.replace("(i + 1) % 50 == 0", test).replace(
        "for epoch in range(3):",
        'import os\nverbose = bool(os.environ.get("VERBOSE"))\nis_main = int(os.environ["LOCAL_RANK"]) == 0\n'
        "for epoch in range(3):",
    )
    guard = only_step(program(text)).shows[0].guard
    assert (guard.kind, guard.every) == (kind, every)
    assert source(guard.tests[0]) == test


def test_an_early_continue_guards_what_follows() -> None:
    text = FLAT.replace(
        "        if (i + 1) % 50 == 0:\n            print",
        "        if i % 50 != 0:\n            continue\n        print",
    )
    guard = only_step(program(text)).shows[0].guard
    assert (guard.kind, guard.every) == ("every_n", 50)


def test_a_progress_bar() -> None:
    text = FLAT.replace(
        "for i, (x, y) in enumerate(loader):", "bar = tqdm(loader)\n    for i, (x, y) in enumerate(bar):"
    )
    text = text.replace('print("loss", loss.item())', "bar.set_postfix(loss=loss.item())").replace(
        "if (i + 1) % 50 == 0:", "if True:"
    )
    step = only_step(program("from tqdm import tqdm\n" + text))
    assert step.loop.progress_name == "bar" and source(step.loop.progress) == "tqdm(loader)"
    assert step.loaders and step.shows[0].kind == "progress" and step.shows[0].guard.kind in ("always", "config")
    assert step.syncs[-1].use == "shown"


def test_printing_a_tensor_is_a_read() -> None:
    step = only_step(program(FLAT.replace('print("loss", loss.item())', 'print("loss", loss)')))
    shown = step.syncs[-1]
    assert (shown.use, shown.how, shown.of) == ("shown", "print", "loss")


ENGINE = """
import torch.nn.functional as F

def train_one_epoch(model, loader, opt, device):
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


def test_a_loop_in_a_sibling_module() -> None:
    text = (
        HEAD
        + SETUP
        + """
from engine import train_one_epoch
for epoch in range(3):
    train_one_epoch(model, loader, optimizer, device)
"""
    )
    found = program(text, engine=ENGINE)
    step = only_step(found)
    assert step.loop.site.path == ROOT / "engine.py" and step.updates[0].receiver_text == "opt"
    assert step.loaders == (found.loaders[0].site,) and found.loaders[0].role == "training"
    assert found.files == (ROOT / "engine.py", ROOT / "train.py")
    assert found.optimizers[0].passes[0].parameter == "opt"
    assert not found.script.guarded


def test_an_unguarded_script_tells_what_would_have_to_move() -> None:
    script = program(FLAT).script
    assert not script.guarded and script.unguarded is not None
    assert source(script.unguarded.first).startswith("loader =")


def test_nothing_moves_where_something_is_defined_among_it() -> None:
    assert program(FLAT + "\n\ndef later():\n    pass\n").script.unguarded is None


LOOP = """
def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

"""


@pytest.mark.parametrize(
    ("top", "starts"),
    [
        ("torch.manual_seed(0)\n", False),
        ("if torch.cuda.is_available():\n    torch.backends.cudnn.benchmark = True\n", False),
        ("__all__ = ['train']\n", False),
        (SETUP + "train(model, loader, optimizer)\n", True),
        ("if __name__ == '__main__':\n    run()\n", True),
        ("launch(train)\n", True),  # what becomes of it is not known
        ("steps = {'plain': train}\n", True),
    ],
)
def test_a_file_of_definitions_starts_no_training(top: str, starts: bool) -> None:
    assert program(HEAD, LOOP, top).script.starts is starts


def test_a_script_starts_the_training_of_another_file() -> None:
    assert program(
        HEAD, SETUP, "from engine import train\ntrain(model, loader, optimizer)\n", engine=HEAD + LOOP
    ).script.starts


def test_a_guarded_script_tells_what_it_puts_on_the_gpu_all_the_same() -> None:
    text = FLAT + "\n\nif __name__ == '__main__':\n    pass\n"
    script = program(text).script
    assert not script.guarded and script.on_gpu is None
    head, _, loop = FLAT.partition("for epoch")
    guarded = "if __name__ == '__main__':\n    for epoch" + loop.replace("\n", "\n    ")
    script = program(head + guarded).script
    assert script.guarded and script.on_gpu is not None and ".to(" in source(script.on_gpu)


@pytest.mark.parametrize(
    ("dataset", "kind", "on_device"),
    [
        ("TensorDataset(torch.randn(64, 8), torch.zeros(64))", "tensors", False),
        ("TensorDataset(torch.randn(64, 8).to(device), torch.zeros(64, device=device))", "tensors", True),
        ("Pictures(64)", "map", False),
        ("undefined(64)", "unknown", False),
    ],
)
def test_datasets(dataset: str, kind: str, on_device: bool) -> None:
    found = program(FLAT.replace("Pictures(64)", dataset)).loaders[0].dataset
    assert (found.kind, found.on_device) == (kind, on_device)


def test_the_work_of_a_dataset_with_transforms() -> None:
    text = """
import random
from PIL import Image
from torchvision import transforms
class Photos(Dataset):
    def __init__(self):
        self.files = ["a.png", "b.png", "c.png"]
        self.transform = transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()])
    def __len__(self):
        return len(self.files)
    def __getitem__(self, i):
        return self.transform(Image.open(self.files[i])), 0
"""
    found = program(HEAD + text + FLAT[len(HEAD) :].replace("Pictures(64)", "Photos()")).loaders[0].dataset
    assert found.work == ("read", "decode", "transform", "compute") and found.random and found.length == 3
    assert found.qualname == "Photos"


@pytest.mark.parametrize(
    ("call", "tokenizes"),
    [
        ("tokenizer.encode(self.lines[i])", True),
        ('self.lines[i].encode("utf-8")', False),
        ("self.lines[i].encode()", False),
    ],
)
def test_bytes_of_a_string_are_no_tokens(call: str, tokenizes: bool) -> None:
    text = f"""
tokenizer = load_tokenizer()
class Lines(Dataset):
    def __init__(self):
        self.lines = ["one", "two"]
    def __len__(self):
        return len(self.lines)
    def __getitem__(self, i):
        return torch.tensor(list({call})), 0
"""
    found = program(HEAD + text + FLAT[len(HEAD) :].replace("Pictures(64)", "Lines()")).loaders[0].dataset
    assert ("tokenize" in found.work) == tokenizes


@pytest.mark.parametrize(
    ("given", "collate"),
    [("", "default"), (", collate_fn=lambda items: items", "lambda"), (", collate_fn=pad", "function")],
)
def test_collate_functions(given: str, collate: str) -> None:
    text = FLAT.replace("shuffle=True)", f"shuffle=True{given})").replace(
        "device =", "def pad(items):\n    return torch.stack(items), torch.zeros(1)\ndevice =", 1
    )
    assert program(text).loaders[0].collate == collate


def test_a_loader_that_is_rebuilt_in_every_epoch() -> None:
    text = FLAT.replace("    total = 0.0", "    loader = DataLoader(Pictures(64), batch_size=4)\n    total = 0.0", 1)
    found = program(text)
    assert [loader.built_in_loop for loader in found.loaders] == [False, True]


def test_models_layers_precision_and_wrappers() -> None:
    text = FLAT.replace(
        "model = Net().to(device)", "model = nn.DataParallel(nn.Sequential(Net(), nn.Sigmoid())).to(device)"
    )
    (model,) = program(text).models
    assert model.layers == {"torch.nn.Sequential", "torch.nn.Linear", "torch.nn.Sigmoid"} and model.layers_complete
    assert model.wrapped == "torch.nn.DataParallel" and model.device.where == "conditional"
    assert not model.half and model.compiled is None


def test_a_model_in_double_precision() -> None:
    (model,) = program(FLAT.replace("Net().to(device)", "Net().double().to(device)")).models
    assert model.half and model.dtype == "float64"


def test_settings_with_their_guards() -> None:
    text = FLAT.replace(
        "device =",
        "torch.backends.cudnn.benchmark = True\nif torch.cuda.is_available():\n"
        '    torch.set_float32_matmul_precision("high")\ndevice =',
        1,
    )
    found = program(text)
    (benchmark,) = found.setting("torch.backends.cudnn.benchmark")
    (precision,) = found.setting("torch.set_float32_matmul_precision")
    assert benchmark.value.values == (True,) and benchmark.guard.kind == "always"
    assert precision.value.values == ("high",) and precision.guard.kind == "config"


def test_text_that_is_executed_ends_all_certainty() -> None:
    found = program(FLAT.replace("device =", 'exec(open("configurator.py").read())\ndevice =', 1))
    assert not found.complete and found.incomplete_because is not None and "train.py" in found.incomplete_because


@pytest.mark.parametrize(
    ("lines", "framework"),
    [
        ("from accelerate import Accelerator\naccelerator = Accelerator()\n", Framework.ACCELERATE),
        ("from accelerate import Accelerator\n", Framework.PYTORCH),
        ("import deepspeed\nengine = deepspeed.initialize(model=None)\n", Framework.DEEPSPEED),
    ],
)
def test_frameworks_count_when_they_are_called(lines: str, framework: Framework) -> None:
    assert program(lines + FLAT).framework is framework


def test_a_script_without_training() -> None:
    found = program("import torch\nprint(torch.ones(3))\n")
    assert not found.trains and found.steps == () and found.loaders == ()


def test_columns_count_characters() -> None:
    found = program(FLAT.replace("optimizer.step()", 'print("größe"); optimizer.step()'))
    assert source(only_step(found).updates[0].site) == "optimizer.step()"


def test_schedulers_and_environments_are_no_optimizers() -> None:
    text = FLAT.replace("        optimizer.step()", "        optimizer.step()\n        scheduler.step()").replace(
        "for epoch in range(3):", "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)\nfor epoch in range(3):"
    )
    step = only_step(program(text))
    assert len(step.updates) == 1


def test_a_loss_in_the_statement_of_its_backward() -> None:
    text = FLAT.replace("loss = criterion(out, y)", "loss = out.sum()").replace(
        "loss.backward()", "criterion(model(x), y).backward()"
    )
    region = only_step(program(text)).forward
    assert region is not None and any("same statement" in blocker for blocker in region.blockers)


@pytest.mark.parametrize(
    ("body", "in_loop", "stateful"),
    [
        ("return self.items[i]", "pass", None),
        ("self.last = i; return self.items[i]", "pass", "its __getitem__ writes to self.last"),
        ("self.seen[i] = True; return self.items[i]", "pass", "its __getitem__ writes to self.seen"),
        ("return self.items[i]", "data.epoch = epoch", "its attribute epoch is set on line"),
        ("return self.items[i]", "data.set_epoch(epoch)", "set_epoch() changes it on line"),
    ],
)
def test_datasets_whose_copies_in_workers_go_stale(body: str, in_loop: str, stateful: str | None) -> None:
    cls = f"""
class Changing(Dataset):
    def __init__(self):
        self.items, self.seen, self.epoch = [1, 2, 3], {{}}, 0
    def __len__(self):
        return 3
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __getitem__(self, i):
        {body}
data = Changing()
"""
    text = FLAT.replace("Pictures(64)", "data").replace("    total = 0.0", f"    {in_loop}\n    total = 0.0")
    found = program(text.replace("device =", cls + "device =", 1)).loaders[0].dataset.stateful
    assert found is None if stateful is None else found is not None and found.startswith(stateful)


def test_checkpoints_take_and_give_the_optimizers_state() -> None:
    text = FLAT + 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "x.pt")\n'
    text += 'optimizer.load_state_dict(torch.load("x.pt")["optimizer"])\n'
    (optimizer,) = program(text).optimizers
    (save,) = optimizer.state_saves
    assert save.key == "optimizer" and source(save.mapping).startswith('{"model"')
    assert [act.receiver_text for act in optimizer.state_loads] == ["optimizer"]
    assert optimizer.branch is None


def test_an_optimizer_that_is_built_under_a_condition() -> None:
    text = FLAT.replace("optimizer = torch", "if device.type == 'cuda':\n    optimizer = torch")
    (optimizer,) = program(text).optimizers
    assert source(optimizer.branch).startswith("if device.type")


def test_results_that_leave_torch() -> None:
    text = "import sklearn.metrics\n" + FLAT.replace(
        "        optimizer.step()", "        optimizer.step()\n        sklearn.metrics.log_loss(y, out)"
    )
    found = program(text)
    assert [source(site) for site in only_step(found).forwards[0].escapes] == ["sklearn.metrics.log_loss(y, out)"]
    assert found.libraries == {"torch", "sklearn"}  # nothing is read of argparse


def test_a_step_that_is_guarded_by_what_its_caller_says() -> None:
    helper = """
def update(loss, optimizer, now):
    loss.backward()
    if now:
        optimizer.step()
        optimizer.zero_grad()
"""
    text = FLAT.replace("        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n", "")
    text = text.replace(
        "        total += ",
        "        loss = loss / 4\n        update(loss, optimizer, (i + 1) % 4 == 0)\n        total += ",
    )
    step = only_step(program(text.replace("device =", helper + "device =", 1)))
    assert (step.updates[0].guard.kind, step.updates[0].guard.every) == ("every_n", 4)
    assert step.accumulation is not None and step.accumulation.steps.values == (4,) and step.accumulation.divided
    assert step.forward is not None and source(step.forward.last) == "loss = loss / 4"


def test_a_tensor_type_moves_but_names_no_device() -> None:
    text = FLAT.replace("x = x.to(device)", "x = x.type(Kind)").replace(
        "device =", "Kind = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor\ndevice =", 1
    )
    first = only_step(program(text)).transfers[0]
    assert (first.method, first.what, first.to.where, first.to.text) == ("type", "batch", "conditional", None)


def test_layers_that_a_method_of_the_model_calls_are_the_model() -> None:
    text = FLAT.replace("out = model(x)", "out = model.encode(x)").replace(
        "    def forward(self, x):",
        "    def encode(self, x):\n        return self.fc2(self.fc1(x))\n\n    def forward(self, x):",
    )
    found = program(text)
    assert only_step(found).models == (found.models[0].site,) and found.models[0].name == "model"


def test_a_program_needs_the_torch_that_it_calls() -> None:
    chosen = "device = torch.accelerator.current_accelerator()\n"
    guarded = 'if hasattr(torch, "accelerator"):\n    ' + chosen
    assert program(FLAT).target == Target()
    assert program(FLAT.replace("\nmodel", f"\n{chosen}model", 1)).target.torch == (2, 6)
    assert program(FLAT.replace("\nmodel", f"\n{guarded}model", 1)).target == Target()


# --- how surely the parts of a step are known -------------------------------------------------------------------------


ALONE = """
def train(network, opt, batches, device, objective):
    network.train()
    for x, y in batches:
        opt.zero_grad()
        out = network(x)
        objective(out, y).backward()
        opt.step()
"""


def test_the_entries_of_a_state_dict_are_parameters() -> None:
    found = program(
        HEAD,
        SETUP,
        """
        for epoch in range(3):
            for i, (x, y) in enumerate(loader):
                loss = criterion(model(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if i % 1000 == 0:
                    torch.save({k: v.half().cpu() for k, v in model.state_dict().items()}, "model.pt")
        """,
    )
    moved = {source(each.site): each.what for each in only_step(found).transfers}
    assert moved["v.half().cpu()"] == "param" and moved["x.to(device)"] == "batch"


def test_a_number_of_workers_that_is_computed_from_the_machine_is_computed() -> None:
    found = program(
        HEAD,
        """
        import os

        def workers(share):
            number = None
            if hasattr(os, "sched_getaffinity"):
                try:
                    number = len(os.sched_getaffinity(0)) / share
                except OSError:
                    pass
            if number is None:
                number = os.cpu_count() / share
            return int(number)

        loader = DataLoader(Pictures(64), batch_size=4, num_workers=workers(2))
        """,
    )
    assert found.loaders[0].argument("num_workers").state == "computed"


def test_what_an_unknown_transfer_moves_is_only_likely() -> None:
    found = program(
        """
        def train(network, opt, batches, device, other):
            network.train()
            for i, (x, y) in enumerate(batches):
                x = x.to(device)
                z = other.to(device)
                opt.zero_grad()
                loss = network(x, y, z).mean()
                loss.backward()
                opt.step()
        """
    )
    told = {source(each.site): (each.what, each.likely) for each in only_step(found).transfers}
    assert told == {"x.to(device)": ("unknown", "batch"), "other.to(device)": ("unknown", None)}


def test_what_is_computed_from_parameters_and_data_is_an_output() -> None:
    found = program(
        HEAD,
        """
        device = "cuda"
        embedding = nn.Parameter(torch.zeros(8, 4, device=device))
        model = Net().to(device)
        optimizer = torch.optim.Adam([*model.parameters(), embedding], lr=0.1)
        for x, y in DataLoader(Pictures(64)):
            out = model(x.to(device))
            score = out @ embedding
            loss = F.cross_entropy(score, y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(score.cpu(), embedding.detach().cpu())
        """,
    )
    moved = {source(each.site): each.what for each in only_step(found).transfers}
    assert (moved["score.cpu()"], moved["embedding.detach().cpu()"]) == ("output", "param")


def test_where_a_lightning_module_is_its_trainer_decides() -> None:
    found = program(
        """
        import pytorch_lightning as pl
        import torch
        from torch.utils.data import DataLoader

        class Agent(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(4, 2)
                self.state = torch.zeros(4)

            def training_step(self, batch, index):
                for _ in range(8):
                    self.state = self.state.to(self.device)
                    self.net(self.state)
                return self.net(batch).mean()

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), lr=0.1)

        pl.Trainer().fit(Agent(), DataLoader(torch.zeros(64, 4)))
        """
    )
    moved = [each for evaluation in found.evaluations for each in evaluation.transfers]
    assert [each.to.where for each in moved] == ["conditional"]


def test_a_loop_through_optimizers_is_inside_the_step() -> None:
    found = program(
        HEAD,
        """
        loader = DataLoader(Pictures(64), batch_size=4)
        nets = [Net(), Net()]
        opts = [torch.optim.Adam(net.parameters()) for net in nets]
        for epoch in range(3):
            for x, y in loader:
                for net, opt in zip(nets, opts):
                    loss = F.cross_entropy(net(x), y)
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
        for net, opt in zip(nets, opts):
            F.cross_entropy(net(torch.zeros(1, 8)), torch.zeros(1).long()).backward()
            opt.step()
        """,
    )
    batches, alone = found.steps
    assert (batches.loop.iterated, batches.source) == ("loader", "loader") and batches.epoch_loop is not None
    assert batches.epoch_loop.iterated == "range(3)"
    assert alone.loop.iterated == "zip(nets, opts)" and alone.epoch_loop is None


def test_what_a_step_only_validates_on_is_no_source_of_it() -> None:
    found = program(
        HEAD,
        """
        def cycle(loader):
            while True:
                for batch in loader:
                    yield batch

        training = cycle(DataLoader(Pictures(64), batch_size=4))
        validation = cycle(DataLoader(Pictures(16), batch_size=2))
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        for i in range(100):
            x, y = next(training)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 10 == 0:
                with torch.no_grad():
                    x, y = next(validation)
                    print(F.cross_entropy(model(x), y))
        """,
    )
    step = only_step(found)
    assert [found.loader(site).argument("batch_size").values for site in step.loaders] == [(4,)]


def test_a_tensor_made_like_an_output_is_still_one_that_was_made() -> None:
    found = program(
        HEAD,
        SETUP,
        """
        import numpy as np

        for x, y in loader:
            out = model(x.to(device))
            scale = torch.from_numpy(np.ones(2)).type_as(out).to(out.device)
            loss = F.cross_entropy(out * scale, y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    )
    moved = {source(each.site): each.what for each in only_step(found).transfers}
    assert moved["torch.from_numpy(np.ones(2)).type_as(out).to(out.device)"] == "made"


FRAMEWORK = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

accelerator = Accelerator({arguments})
model = nn.Linear(784, 10)
optimizer = torch.optim.Adam(model.parameters())
later = torch.optim.Adam(model.parameters())
loader = DataLoader(datasets.ImageFolder("leaves", transforms.ToTensor()), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader{placement})
for images, labels in loader:
    loss = nn.functional.cross_entropy(model(images), labels)
    accelerator.backward(loss)
    optimizer.step()
"""


def test_what_a_framework_takes_over_is_on_a_device_that_its_user_chooses() -> None:
    found = program(FRAMEWORK.format(arguments='mixed_precision="bf16"', placement=""))
    assert [owner.argument("mixed_precision").values for owner in found.owners] == [("bf16",)]
    assert {site.line for site in found.placed} == {9, 10, 12}
    assert (found.device.where, found.device.mps) == ("conditional", True)
    assert [(each.owner, each.device.where) for each in found.optimizers] == [("accelerator", "conditional")] * 2


@pytest.mark.parametrize(
    ("arguments", "placement"), [("cpu=True", ""), ("device_placement=False", ""), ("", ", device_placement=False")]
)
def test_what_a_framework_does_not_move_stays(arguments: str, placement: str) -> None:
    found = program(FRAMEWORK.format(arguments=arguments, placement=placement))
    assert found.placed == frozenset()
    assert {each.device.where for each in found.models} == {"cpu"}


def test_a_framework_that_is_made_after_the_optimizer_has_no_name_there() -> None:
    text = FRAMEWORK.format(arguments="", placement="").replace("accelerator = Accelerator()\n", "", 1)
    found = program(text.replace("loader = Data", "accelerator = Accelerator()\nloader = Data"))
    assert [each.owner for each in found.optimizers] == [None, None]


def test_a_loss_that_an_option_chooses_is_every_one_of_them() -> None:
    chosen = """
    class Relative(nn.Module):
        def forward(self, out, y):
            return ((out - y) / y).abs().mean()

    def pick(name):
        if name == "mse":
            return nn.MSELoss()
        if name == "relative":
            return Relative()
        return nn.L1Loss(reduction="sum")
    """
    parser = "parser = argparse.ArgumentParser()\nparser.add_argument('--loss', default='mse')\n"
    text = FLAT.replace("criterion = nn.CrossEntropyLoss()", parser + "criterion = pick(parser.parse_args().loss)")
    loss = only_step(program(text.replace("class Net", textwrap.dedent(chosen) + "\n\nclass Net"))).loss
    assert set(loss.qualnames) >= {"torch.nn.MSELoss", "torch.nn.L1Loss"}


def test_what_a_collate_function_pads_is_a_batch_and_what_another_file_makes_is_likely_one() -> None:
    collate = """
    from torch.nn.utils.rnn import pad_sequence
    from elsewhere import batched

    def collate(samples):
        x = pad_sequence([torch.as_tensor(x) for x, _ in samples], batch_first=True)
        return x, batched([torch.as_tensor(y) for _, y in samples])
    """
    text = FLAT.replace("class Net", textwrap.dedent(collate) + "\n\nclass Net")
    found = program(text.replace("shuffle=True)", "collate_fn=collate)"))
    first, second = only_step(found).transfers
    assert (first.what, second.what, second.likely) == ("batch", "unknown", "batch")
    assert found.loaders[0].copies == (first, second)


def test_where_data_come_from_is_unknown_where_what_is_iterated_is() -> None:
    text = FLAT.replace("enumerate(loader)", "enumerate(globals()['batches'])")
    assert only_step(program(text)).source == "unknown"
    text = FLAT.replace("enumerate(loader)", "enumerate(batches)").replace("(x, y) in", "batch in")
    text = text.replace(
        "loader = DataLoader(Pictures(64), batch_size=4, shuffle=True)",
        "batches, others = data.BucketIterator.splits((one, other), batch_size=4)",
    )
    text = text.replace("        x = x.to(device)\n", "        x, y = batch.x, batch.y\n")
    found = program("from torchtext.legacy import data\n", text.replace("len(loader)", "len(batches)"))
    assert only_step(found).source == "loader"
    assert only_step(found).iterations is None, "two data sets are no two samples"
    assert found.loaders[0].subclass == "torchtext.legacy.data.BucketIterator.splits"


def test_a_comparison_with_the_cpu_is_a_test_of_the_device() -> None:
    text = FLAT.replace(
        "        x = x.to(device)\n", "        if place not in ['cpu']:\n            x = x.cuda(place)\n"
    )
    found = program(text.replace("criterion = ", "place = find_place()\ncriterion = "))
    assert next(transfer.to.where for transfer in only_step(found).transfers) == "conditional"


def test_an_item_of_what_an_unknown_model_returns_is_an_output() -> None:
    text = FLAT.replace("model = Net().to(device)", "model = build()")
    text = text.replace(
        "        out = model(x)\n", "        out = model(torch.zeros(4, 8))\n        last = out[-1].cuda()\n"
    )
    moved = {source(each.site): each.what for each in only_step(program(text)).transfers}
    assert moved["out[-1].cuda()"] == "output"


@pytest.mark.parametrize(
    "chosen", ["int(args.workers) if args.workers is not None else 2", "2 if args.workers is None else args.workers"]
)
def test_an_option_that_is_tested_for_none_is_a_number_that_the_user_gave(chosen: str) -> None:
    parser = (
        "parser = argparse.ArgumentParser()\nparser.add_argument('--workers', type=int)\nargs = parser.parse_args()\n"
    )
    text = FLAT.replace("loader = ", f"{parser}workers = {chosen}\nloader = ").replace(
        "shuffle=True", "num_workers=workers"
    )
    argument = program(text).loaders[0].argument("num_workers")
    assert (argument.state, argument.values, argument.option) == ("computed", (2,), "--workers")


@pytest.mark.parametrize(
    "layers",
    [
        '[(name + "_conv", nn.Conv2d(3, 8, 3)), (name + "_norm", nn.BatchNorm2d(8))]',
        '[(f"{n}", nn.Conv2d(3, 8, 3) if n else nn.BatchNorm2d(8)) for n in range(2)]',
    ],
)
def test_layers_in_an_ordered_dict_of_pairs_are_seen(layers: str) -> None:
    """How the U-Nets of many a project name their layers."""
    found = program(
        HEAD,
        f"""
        from collections import OrderedDict

        class UNet(nn.Module):
            def __init__(self):
                super().__init__()
                self.down = UNet.block("down")

            def forward(self, x):
                return self.down(x)

            @staticmethod
            def block(name):
                return nn.Sequential(OrderedDict({layers}))

        model = UNet().cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for x in DataLoader(Pictures(64)):
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
        """,
    )
    (model,) = found.models
    assert {"torch.nn.Conv2d", "torch.nn.BatchNorm2d"} <= set(model.layers)
    assert [(each.inputs, each.outputs) for each in model.convolutions] == [(3, 8)]


def test_what_is_none_where_reading_fails_holds_no_items() -> None:
    found = program(
        HEAD,
        """
        def read():
            try:
                return {"batch": 4}
            except OSError:
                print("nothing there")

        settings = read()
        loader = DataLoader(Pictures(64), batch_size=settings["batch"])
        """,
    )
    (loader,) = found.loaders
    batch = loader.argument("batch_size")
    assert (batch.state, batch.values) == ("value", (4,))


def test_what_may_be_complex_is_not_made_float32_behind_a_forward_pass() -> None:
    source = """
        import sys
        import torch
        from torch import nn
        class Gains(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 8)
            def forward(self, x):
                return self.net(x)
        class Filter(Gains):
            def forward(self, x):
                return {given}
        model = Gains() if len(sys.argv) > 1 else Filter()
        optimizer = torch.optim.Adam(model.parameters())
        for x in torch.ones(4, 2, 8):
            out = model(x)
            loss = out.abs().mean()
            loss.backward()
            optimizer.step()
        """
    spectrum = "torch.complex(self.net(x).float(), self.net(x).float())"
    found = [
        program(source.format(given=given)).steps[0].forwards[0].outputs
        for given in (spectrum, f"{spectrum}.real", "torch.fft.fft(x) * self.net(x)", "self.net(x)")
    ]
    assert [each is None for each in found] == [True, False, True, False]
