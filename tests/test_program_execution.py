"""The abstract execution of a program: what its values are, and which acts it logs, idiom by idiom."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from turbofix.domain.trace import Event, Passed
from turbofix.domain.values import (
    Computed,
    Const,
    Function,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Namespace,
    Opaque,
    Option,
    Sequence,
    Tensor,
    Union,
    Unknown,
    Value,
    members,
)
from turbofix.interpreter.execution import Execution, execute
from turbofix.library import tables as libraries

ROOT = Path("/project")
HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
"""
LOOP = """
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def run(text: str, **files: str) -> Execution:
    """Execute a script ``train.py``, with other files of the project by path (``pkg__mod`` is ``pkg/mod.py``)."""
    texts = {ROOT / "train.py": dedent(text)}
    for name, each in files.items():
        texts[ROOT / (name.replace("__", "/") + ".py")] = dedent(each)
    execution = execute(ROOT / "train.py", ROOT, texts.get)
    assert execution is not None
    assert execution.complete, execution.incomplete_because
    return execution


def run_torch(text: str) -> Execution:
    return run(HEAD + dedent(text))


def events(execution: Execution, kind: str, name: str | None = None) -> list[Event]:
    return [event for event in execution.events if event.kind == kind and name in (None, event.name)]


def only(execution: Execution, kind: str, name: str | None = None) -> Event:
    found = events(execution, kind, name)
    assert len(found) == 1, [ast.unparse(event.node) for event in found]
    return found[0]


def named(execution: Execution, name: str) -> Value:
    """The value that a name of the script's module has at the end."""
    return execution.entry.scope.names[name]


def text(node: ast.AST | None) -> str:
    assert node is not None
    return ast.unparse(node)


def passed(event: Event, name: str, position: int | None = None) -> Passed:
    assert event.arguments is not None
    found = event.arguments.get(name, position)
    assert found is not None
    return found


def constant(value: Value | None) -> object:
    assert isinstance(value, Const), value
    return value.value


def option(value: Value | None) -> Option:
    assert isinstance(value, Option), value
    return value


def tensor(value: Value | None) -> Tensor:
    assert isinstance(value, Tensor), value
    return value


def loader(execution: Execution) -> Event:
    return only(execution, "make", "torch.utils.data.DataLoader")


def levels(event: Event) -> list[str]:
    return [level.kind for level in event.control.chain()]


# --- a whole script ---------------------------------------------------------------------------------------------------


def test_a_flat_script_gives_its_acts_in_program_order() -> None:
    execution = run_torch(
        """
        loader = DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8)), batch_size=4)
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            for x, y in loader:
                x = x.cuda()
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
        """
    )
    kinds = [
        e.kind
        for e in execution.events
        if e.kind in ("transfer", "zero_grad", "forward", "criterion", "backward", "step")
    ]
    assert kinds == ["transfer", "zero_grad", "forward", "criterion", "backward", "step"]
    orders = [event.order for event in execution.events]
    assert orders == sorted(set(orders))
    backward = only(execution, "backward")
    assert levels(backward) == ["root", "module", "loop", "loop"]
    assert "loss" in tensor(backward.receiver).roles
    transfer = only(execution, "transfer")
    assert tensor(transfer.receiver).roles == {"batch"}
    assert tensor(transfer.receiver).device == "cpu"
    assert tensor(transfer.result).device == "cuda"
    step = only(execution, "step")
    assert isinstance(step.receiver, Made)
    assert (step.receiver.qualname, step.receiver.kind) == ("torch.optim.SGD", "optimizer")


def test_a_trainer_class_reaches_its_loader_model_and_optimizer_through_self() -> None:
    execution = run_torch(
        """
        class Trainer:
            def __init__(self, model, loader):
                self.model = model.cuda()
                self.loader = loader
                self.optimizer = torch.optim.Adam(self.model.parameters())
            def step(self, x, y):
                loss = F.mse_loss(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                return loss.item()
            def fit(self):
                for x, y in self.loader:
                    self.step(x, y)
        if __name__ == "__main__":
            Trainer(nn.Linear(1, 1), DataLoader([1, 2])).fit()
        """
    )
    step = only(execution, "step")
    assert isinstance(step.receiver, Made)
    assert step.receiver.kind == "optimizer"
    assert levels(step) == ["root", "module", "if", "call", "loop", "call"]
    forward = only(execution, "forward")
    assert isinstance(forward.receiver, Made)
    assert forward.receiver.device == "cuda"
    assert tensor(only(execution, "sync", "item").receiver).device == "cuda"


def test_no_text_and_no_python_give_nothing() -> None:
    assert execute(ROOT / "train.py", ROOT, lambda path: None) is None
    assert execute(ROOT / "train.py", ROOT, lambda path: "print 'old'") is None


# --- options ----------------------------------------------------------------------------------------------------------

ARGPARSE = """
import argparse
from torch.utils.data import DataLoader
base = argparse.ArgumentParser(add_help=False)
base.add_argument("--workers", type=int, default=4)
parser = argparse.ArgumentParser(parents=[base])
group = parser.add_argument_group("data")
group.add_argument("-b", "--batch-size", type=int, default="32")
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--pin", action="store_false", dest="pinned")
parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--shuffle", type=bool, default=False)
parser.add_argument("data")
sub = parser.add_subparsers(dest="command")
fit = sub.add_parser("fit")
fit.add_argument("--epochs", default=3, type=int)
parser.set_defaults(epochs=5)
args = parser.parse_args()
args.cuda = not args.no_cuda
DataLoader([], batch_size=args.batch_size, num_workers=args.workers, pin_memory=args.pinned)
"""


def test_argparse_options_carry_their_default_and_where_it_stands() -> None:
    execution = run(ARGPARSE)
    made = loader(execution)
    batch = option(passed(made, "batch_size").value)
    assert (batch.name, constant(batch.default), batch.how, batch.flag, batch.derived) == (
        "--batch-size",
        32,
        "argparse",
        False,
        False,
    )
    assert batch.origin is not None
    assert text(batch.origin.node) == "'32'"
    workers = option(passed(made, "num_workers").value)
    assert (workers.name, constant(workers.default)) == ("--workers", 4)
    pinned = option(passed(made, "pin_memory").value)
    assert (pinned.name, constant(pinned.default), pinned.flag) == ("--pin", True, True)


def test_argparse_flags_positionals_subparsers_and_set_defaults() -> None:
    args = named(run(ARGPARSE), "args")
    assert isinstance(args, Namespace)
    amp = option(args.attributes["amp"])
    assert (amp.flag, constant(amp.default)) == (True, True)
    shuffle = option(args.attributes["shuffle"])
    assert (shuffle.flag, constant(shuffle.default)) == (False, False)
    assert isinstance(option(args.attributes["data"]).default, Unknown)
    epochs = option(args.attributes["epochs"])
    assert constant(epochs.default) == 5
    assert epochs.origin is not None
    assert text(epochs.origin.node) == "5"
    cuda = option(args.attributes["cuda"])
    assert (cuda.name, constant(cuda.default), cuda.derived) == ("--no-cuda", True, True)


def test_arithmetic_on_an_option_is_marked_and_int_is_not() -> None:
    execution = run(
        """
        import argparse, os
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch", default=8, type=int)
        args = parser.parse_args()
        doubled = args.batch * 2
        same = int(args.batch)
        shared = args.batch // os.cpu_count()
        """
    )
    doubled = option(named(execution, "doubled"))
    assert (constant(doubled.default), doubled.derived) == (16, True)
    assert option(named(execution, "same")).derived is False
    assert isinstance(named(execution, "shared"), Computed)


def test_click_options_fill_the_parameters() -> None:
    execution = run(
        """
        import click
        from torch.utils.data import DataLoader
        @click.command()
        @click.option("--batch-size", "-b", default=16)
        @click.option("--pin/--no-pin", default=False)
        def main(batch_size, pin):
            for x in DataLoader([], batch_size=batch_size, pin_memory=pin):
                x.cuda()
        if __name__ == "__main__":
            main()
        """
    )
    made = loader(execution)
    batch = option(passed(made, "batch_size").value)
    assert (batch.name, constant(batch.default), batch.how) == ("--batch-size", 16, "click")
    pin = option(passed(made, "pin_memory").value)
    assert (pin.name, pin.flag) == ("--pin", True)


@pytest.mark.parametrize(
    ("head", "call", "how"),
    [
        ("import fire", "fire.Fire(main)", "fire"),
        ("import tyro", "tyro.cli(main)", "tyro"),
        ("import typer", "typer.run(main)", "typer"),
    ],
)
def test_a_function_as_command_line(head: str, call: str, how: str) -> None:
    default = "typer.Option(8)" if how == "typer" else "8"
    execution = run(
        f"""
from torch.utils.data import DataLoader
{head}
def main(batch: int = {default}, pin: bool = False):
    DataLoader([], batch_size=batch, pin_memory=pin)
{call}
"""
    )
    batch = option(passed(loader(execution), "batch_size").value)
    assert (batch.name, constant(batch.default), batch.how) == ("batch", 8, how)
    assert batch.origin is not None
    assert text(batch.origin.node) == "8"


NESTED = """
import dacite, tyro
from dataclasses import dataclass
@dataclass
class Loading:
    batch: int
    workers: int = 4
    def twice(self):
        return 2
@dataclass
class Config:
    loading: Loading
    again: "Config"
config = {}
a, b, c = config.loading.batch, config.loading.workers, config.loading.twice()
"""


def test_a_field_that_is_a_dataclass_is_filled_too() -> None:
    execution = run(NESTED.format("tyro.cli(Config)"))
    assert option(named(execution, "a")).name == "batch"
    assert constant(option(named(execution, "b")).default) == 4
    assert constant(named(execution, "c")) == 2


def test_a_mapping_may_have_another_value_for_a_default() -> None:
    execution = run(NESTED.format("dacite.from_dict(data_class=Config, data=read())"))
    assert isinstance(named(execution, "a"), Unknown)
    assert isinstance(named(execution, "b"), Unknown)
    assert constant(named(execution, "c")) == 2


def test_a_dataclass_from_the_command_line_has_options_and_one_from_code_has_constants() -> None:
    execution = run(
        """
        from dataclasses import dataclass, field
        from transformers import HfArgumentParser
        @dataclass
        class Config:
            batch: int = 8
            names: list = field(default_factory=list)
            rate: float = field(default=0.5, metadata={"help": "rate"})
        parsed, = HfArgumentParser(Config).parse_args_into_dataclasses()
        plain = Config(rate=0.1)
        a, b, c, d = parsed.batch, parsed.rate, plain.batch, plain.rate
        """
    )
    assert (option(named(execution, "a")).how, constant(option(named(execution, "a")).default)) == ("dataclass", 8)
    rate = option(named(execution, "b"))
    assert constant(rate.default) == 0.5
    assert rate.origin is not None
    assert text(rate.origin.node) == "0.5"
    batch = named(execution, "c")
    assert constant(batch) == 8
    assert isinstance(batch, Const)
    assert batch.origin is not None
    assert batch.origin.node.lineno == 6  # type: ignore[attr-defined]
    assert constant(named(execution, "d")) == 0.1


def test_absl_flags() -> None:
    execution = run(
        """
        from absl import app, flags
        FLAGS = flags.FLAGS
        flags.DEFINE_integer("batch_size", 64, "size")
        def main(argv):
            global size
            size = FLAGS.batch_size
        app.run(main)
        """
    )
    size = option(named(execution, "size"))
    assert (size.name, constant(size.default), size.how) == ("--batch_size", 64, "absl")


# --- constants and dicts ----------------------------------------------------------------------------------------------


def test_a_constant_keeps_the_place_where_it_was_written_through_calls() -> None:
    execution = run(
        """
        from torch.utils.data import DataLoader
        SIZE = 4 * 8
        WORKERS = 2
        def make(data, size, **options):
            return DataLoader(data, size, **options)
        make([], SIZE, num_workers=WORKERS)
        """
    )
    made = loader(execution)
    size = passed(made, "batch_size", 1).value
    assert constant(size) == 32
    workers = passed(made, "num_workers")
    assert constant(workers.value) == 2
    assert isinstance(workers.value, Const)
    assert workers.value.origin is not None
    assert (workers.value.origin.node.lineno, workers.must) == (4, True)  # type: ignore[attr-defined]
    assert workers.node is None
    assert text(workers.entry) == "WORKERS"


def test_a_dict_changed_under_a_condition_has_entries_that_may_be_there() -> None:
    execution = run_torch(
        """
        import sys
        kwargs = {"batch_size": 64}
        if torch.cuda.is_available():
            more = {"num_workers": 1, "batch_size": 128}
            kwargs.update(more)
        loader = DataLoader([], **kwargs)
        """
    )
    made = loader(execution)
    workers = passed(made, "num_workers")
    assert (workers.must, constant(workers.value), text(workers.entry)) == (False, 1, "1")
    size = passed(made, "batch_size")
    assert size.must is True
    assert sorted(constant(member) for member in members(size.value)) == [64, 128]  # type: ignore[type-var]
    assert made.arguments is not None
    assert made.arguments.open is False


def test_either_of_two_dicts_gives_what_both_have() -> None:
    execution = run_torch(
        """
        kwargs = dict(num_workers=1, pin_memory=True) if torch.cuda.is_available() else {"num_workers": 0}
        DataLoader([], **kwargs)
        """
    )
    made = loader(execution)
    assert passed(made, "num_workers").must is True
    assert passed(made, "pin_memory").must is False


def test_an_unknown_dict_leaves_the_arguments_open() -> None:
    execution = run_torch(
        """
        import json
        DataLoader([], batch_size=2, **json.load(open("config.json")))
        """
    )
    made = loader(execution)
    assert made.arguments is not None
    assert made.arguments.open is True


def test_dict_methods() -> None:
    execution = run(
        """
        d = {"a": 1, "b": 2, **{"c": 3}}
        d["d"] = 4
        del d["a"]
        popped = d.pop("b")
        missing = d.get("zz", 9)
        unset = d.setdefault("e", 5)
        has = "c" in d
        other = dict(d, f=6)
        """
    )
    found = named(execution, "d")
    assert isinstance(found, Mapping)
    assert list(found.entries) == ["c", "d", "e"]
    assert (constant(named(execution, "popped")), constant(named(execution, "missing"))) == (2, 9)
    assert constant(named(execution, "unset")) == 5
    assert constant(named(execution, "has")) is True
    other = named(execution, "other")
    assert isinstance(other, Mapping)
    assert list(other.entries) == ["c", "d", "e", "f"]


def test_exec_ends_the_facts_of_a_module() -> None:
    execution = run(
        """
        batch_size = 12
        compile = True
        exec(open("configurator.py").read())
        size = batch_size
        """
    )
    only(execution, "destroy", "exec")
    size = option(named(execution, "size"))
    assert (size.name, constant(size.default), size.how) == ("batch_size", 12, "exec")
    assert option(named(execution, "compile")).flag is True


def test_globals_update_ends_them_too() -> None:
    execution = run("import json\nn = 1\nglobals().update(json.load(open('c')))\nm = n\n")
    only(execution, "destroy", "globals().update")
    assert option(named(execution, "m")).how == "exec"


# --- control ----------------------------------------------------------------------------------------------------------


def test_names_join_where_two_paths_meet() -> None:
    execution = run(
        """
        import sys
        n = 1
        if sys.argv:
            n = 2
        if False:
            n = 3
        if __name__ == "__main__":
            m = 4
        """
    )
    assert {constant(member) for member in members(named(execution, "n"))} == {1, 2}
    assert constant(named(execution, "m")) == 4


def test_the_dead_side_of_a_decided_test_is_walked_and_marked() -> None:
    execution = run_torch(
        """
        DEBUG = False
        settings = {}
        if DEBUG:
            print(torch.zeros(1).item())
            settings["a"] = 1
        else:
            torch.zeros(1).tolist()
        """
    )
    dead = only(execution, "sync", "item").control
    assert (dead.kind, dead.detail, dead.decided) == ("if", "dead", True)
    live = only(execution, "sync", "tolist").control
    assert (live.kind, live.detail, live.decided) == ("if", 1, True)
    settings = named(execution, "settings")
    assert isinstance(settings, Mapping)
    assert settings.entries == {}


def test_a_loop_widens_what_it_assigns() -> None:
    execution = run(
        """
        import sys
        step = 0
        best = None
        fixed = 7
        for x in sys.argv:
            if step == 0:
                y = 1
            step += 1
            best = x
        """
    )
    test = only(execution, "test")
    assert not isinstance(test.receiver, Const)
    assert isinstance(named(execution, "step"), (Unknown, Union))
    assert constant(named(execution, "fixed")) == 7


def test_counters_of_an_object_are_not_their_first_value() -> None:
    execution = run(
        """
        class Trainer:
            def __init__(self):
                self.step = 0
                self.size = 4
            def advance(self):
                if self.step == 0:
                    pass
                self.step += 1
        t = Trainer()
        for i in range(3):
            t.advance()
        size = t.size
        """
    )
    assert not isinstance(only(execution, "test").receiver, Const)
    assert constant(named(execution, "size")) == 4


def test_break_and_continue_and_return_cut_their_path() -> None:
    execution = run_torch(
        LOOP
        + """
for x in DataLoader([]):
    if x is None:
        kind = "none"
        continue
    loss = model(x).sum()
    if not torch.isfinite(loss):
        break
    loss.backward()
def first(flag):
    if flag:
        return 1
    return 2
value = first(torch.cuda.is_available())
"""
    )
    assert tensor(only(execution, "backward").receiver).roles >= {"output"}
    assert {constant(member) for member in members(named(execution, "value"))} == {1, 2}
    tests = events(execution, "test")
    assert isinstance(tests[0].receiver, Const)  # a batch is not None
    assert "output" in tensor(tests[1].receiver).roles


def test_try_except_finally() -> None:
    execution = run_torch(
        LOOP
        + """
for x in DataLoader([]):
    try:
        model(x).sum().backward()
        done = 1
    except RuntimeError as error:
        done = 2
        torch.cuda.empty_cache()
    finally:
        optimizer.step()
"""
    )
    assert levels(only(execution, "backward")) == ["root", "module", "loop", "try"]
    caught = only(execution, "call", "torch.cuda.empty_cache")
    assert (caught.control.kind, caught.control.detail) == ("if", "except")
    assert levels(only(execution, "step")) == ["root", "module", "loop"]
    assert {constant(m) for m in members(named(execution, "done")) if isinstance(m, Const)} == {1, 2}


def test_with_and_its_value_and_the_no_grad_decorator() -> None:
    execution = run_torch(
        LOOP
        + """
@torch.no_grad()
def evaluate(x):
    return model(x)
with torch.autocast("cuda", dtype=torch.bfloat16) as context:
    model(torch.zeros(1, 4))
evaluate(torch.zeros(1, 4))
"""
    )
    inside, decorated = events(execution, "forward")
    level = inside.control
    assert level.kind == "with"
    assert isinstance(level.detail, tuple)
    assert isinstance(level.detail[1], Made)
    assert level.detail[1].kind == "autocast"
    assert levels(decorated) == ["root", "module", "call", "no_grad"]
    entered = only(execution, "enter")
    assert isinstance(entered.receiver, Made)


def test_what_nobody_calls_is_run_with_unknowns() -> None:
    execution = run_torch(
        """
        def train(model, loader, optimizer, device, clip=1.0):
            model.train()
            for x, y in loader:
                x = x.to(device, non_blocking=True)
                loss = model(x, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item(), clip)
        """
    )
    step = only(execution, "step")
    assert isinstance(step.receiver, Opaque)
    assert {"zero_grad", "step"} <= step.receiver.uses
    call = step.control.up
    assert call is not None
    assert (call.kind, call.node) == ("call", None)
    assert isinstance(call.detail, Function)
    transfer = only(execution, "transfer")
    assert isinstance(transfer.receiver, Opaque)
    assert transfer.receiver.how == "element"
    assert "maybe_output" in tensor(only(execution, "backward").receiver).roles
    assert isinstance(only(execution, "unknown_call").receiver, Opaque)
    clip = passed(only(execution, "show", "print"), "", 1)
    assert option(clip.value).how == "parameter"


# --- functions and classes --------------------------------------------------------------------------------------------


def test_closures_lambdas_partial_and_generators() -> None:
    execution = run(
        """
        from functools import partial
        def outer(n):
            def inner():
                return n
            return inner
        a = outer(5)()
        b = (lambda x: x)(6)
        def add(x, y):
            return y
        c = partial(add, 1)(y=7)
        def produce():
            for i in range(3):
                yield "batch"
        d = produce()
        for e in produce():
            pass
        """
    )
    assert [constant(named(execution, name)) for name in "abc"] == [5, 6, 7]
    generator = named(execution, "d")
    assert isinstance(generator, Iterated)
    assert (generator.wrapper, constant(generator.element)) == ("generator", "batch")
    assert isinstance(generator.source, Function)
    assert constant(named(execution, "e")) == "batch"


def test_recursion_ends() -> None:
    execution = run(
        """
        import sys
        def f(n):
            return g(n - 1)
        def g(n):
            if sys.argv:
                return f(n)
            return 0
        x = f(10)
        """
    )
    assert 0 in [constant(m) for m in members(named(execution, "x")) if isinstance(m, Const)]


def test_decorators_of_the_project_and_context_managers() -> None:
    execution = run(
        """
        import functools
        from contextlib import contextmanager
        def logged(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs)
            return wrapper
        @logged
        def f(x, y=1):
            return x
        @contextmanager
        def opened():
            yield 3
        a = f(2)
        with opened() as b:
            pass
        """
    )
    assert constant(named(execution, "a")) == 2
    assert constant(named(execution, "b")) == 3


def test_a_wrapper_in_a_wrapper_is_no_recursion() -> None:
    execution = run(
        """
        def timed(message):
            def decorator(function):
                def wrapper(*args):
                    result = function(*args)
                    print(message)
                    return result
                return wrapper
            return decorator
        @timed("f")
        def f(): return 1
        @timed("g")
        def g(): return 2
        @timed("h")
        def h(): return 3
        @timed("i")
        def i(): return 4
        @timed("j")
        def j(): return 5
        @timed("k")
        def k(): return f() + g() + h() + i() + j()
        a = k()
        """
    )
    assert constant(named(execution, "a")) == 15


def test_a_function_that_calls_itself_with_something_else_is_followed_once_more() -> None:
    execution = run(
        """
        def build(name):
            if name == "outer":
                return build("inner")
            return 7 if name == "inner" else build(name)
        a = build("outer")
        """
    )
    assert constant(named(execution, "a")) == 7


def test_inheritance_super_properties_and_class_methods() -> None:
    execution = run(
        """
        class Base:
            kind = "base"
            def __init__(self, n):
                self.n = n
            @property
            def twice(self):
                return self.n * 2
            @classmethod
            def create(cls):
                return cls(3)
            @staticmethod
            def five():
                return 5
        class Child(Base):
            kind = "child"
            def __init__(self, n):
                super().__init__(n + 1)
        a = Child.create().twice
        b = Child(1).kind
        c = Base.five()
        """
    )
    assert [constant(named(execution, name)) for name in "abc"] == [8, "child", 5]


def test_a_subclass_of_dataloader_makes_a_loader() -> None:
    execution = run_torch(
        LOOP
        + """
class Loader(DataLoader):
    def __init__(self, data, size):
        self.options = {"batch_size": size, "shuffle": True}
        super().__init__(data, **self.options)
for x in Loader([], 4):
    model(x)
"""
    )
    made = loader(execution)
    assert constant(passed(made, "batch_size").value) == 4
    batch = tensor(passed(only(execution, "forward"), "", 0).value)
    assert batch.roles == {"batch"}
    assert batch.source is made.result


# --- imports ----------------------------------------------------------------------------------------------------------


def test_modules_of_the_project_are_read_when_they_are_used() -> None:
    read: list[str] = []
    texts = {
        "/project/train.py": """
import engine
from pkg.models import Net as Model, build
from pkg import data as d
from constants import *
import never_used
engine.train(Model(), d.make(SIZE), build)
""",
        "/project/engine.py": "def train(model, loader, build):\n    for x in loader:\n        model(x).backward()\n",
        "/project/pkg/__init__.py": "",
        "/project/pkg/models.py": (
            "import torch.nn as nn\nfrom . import layers\nfrom .layers import Layer\n"
            "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.l = Layer()\n"
            "    def forward(self, x):\n        return self.l(x)\ndef build():\n    return Net()\n"
        ),
        "/project/pkg/layers.py": (
            "import torch.nn\nclass Layer(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
        ),
        "/project/pkg/data.py": (
            "import torch.utils.data as Data\ndef make(n):\n    return Data.DataLoader([], batch_size=n)\n"
        ),
        "/project/constants.py": "SIZE = 16\n_HIDDEN = 1\n",
        "/project/never_used.py": "undefined_thing()\n",
    }

    def reader(path: Path) -> str | None:
        read.append(str(path))
        return texts.get(str(path))

    execution = execute(ROOT / "train.py", ROOT, reader)
    assert execution is not None
    assert constant(passed(loader(execution), "batch_size").value) == 16
    backward = only(execution, "backward")
    assert backward.module.path == ROOT / "engine.py"
    assert [event.name for event in events(execution, "forward")] == ["Net", "Layer"]
    assert not execution.modules[ROOT / "never_used.py"].executed
    assert "_HIDDEN" not in execution.entry.scope.names
    assert len(read) == len(set(read))
    assert not any("torch" in path for path in read)


def test_circular_imports_end() -> None:
    execution = run("import a\nx = a.value\n", a="import b\nvalue = 1\n", b="from a import value\nother = value\n")
    assert constant(named(execution, "x")) == 1


def test_a_folder_without_init_is_a_package() -> None:
    execution = run(
        """
        import utils.misc
        from utils.more import thing
        from utils import misc as m
        a, b, c = utils.misc.value, thing, m.value
        """,
        utils__misc="value = 1\n",
        utils__more="thing = 2\n",
    )
    assert [constant(named(execution, name)) for name in "abc"] == [1, 2, 1]


def test_star_imports_and_aliases_of_torch() -> None:
    execution = run(
        """
        from torch.nn import *
        from torch.utils.data.dataloader import DataLoader as DL
        from torch.optim.adam import Adam
        import torch.utils.data as Data
        layer = Linear(1, 1)
        DL([])
        Data.TensorDataset()
        opt = Adam(layer.parameters())
        """
    )
    made = {event.name for event in events(execution, "make")}
    assert made == {
        "torch.nn.Linear",
        "torch.utils.data.DataLoader",
        "torch.utils.data.TensorDataset",
        "torch.optim.Adam",
    }


def test_a_class_of_the_project_is_not_the_library_class_of_its_name() -> None:
    execution = run(
        """
        class DataLoader:
            def next(self):
                return 1
        class Adam:
            pass
        DataLoader()
        Adam()
        """
    )
    assert events(execution, "make") == []
    assert [event.name for event in events(execution, "construct")] == ["DataLoader", "Adam"]


def test_a_member_chosen_by_name_is_not_taken_for_the_default() -> None:
    execution = run_torch(
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--optim", default="Adam")
        args = parser.parse_args()
        certain = getattr(torch.optim, "SGD")([])
        open = getattr(torch.optim, args.optim)([])
        """
    )
    certain = named(execution, "certain")
    assert isinstance(certain, Made)
    assert certain.qualname == "torch.optim.SGD"
    chosen = {member.qualname for member in members(named(execution, "open")) if isinstance(member, Made)}
    assert chosen == {"torch.optim.Adam", "torch.optim.*"}


def test_a_class_of_a_module_that_is_chosen_by_a_name_from_outside_may_be_any_of_its_classes() -> None:
    execution = run(
        """
        import json
        import parts
        settings = json.load(open("settings.json"))
        chosen = getattr(parts, settings["loader"])([1, 2])
        """,
        parts="from loading import Batches, Samples",
        loading="""
        class Batches:
            def __init__(self, data):
                self.data = data

        class Samples(Batches):
            pass
        """,
    )
    chosen = members(named(execution, "chosen"))
    assert {each.cls.node.name for each in chosen if isinstance(each, Instance)} == {"Batches", "Samples"}


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ('"cuda"', "cuda"),
        ('"cuda:1"', "cuda"),
        ("0", "cuda"),
        ('"cpu"', "cpu"),
        ('torch.device("cuda" if torch.cuda.is_available() else "cpu")', "conditional"),
        (
            '"cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"',
            "conditional",
        ),
        ('torch.device("cuda", 0)', "cuda"),
        ("torch.accelerator.current_accelerator()", "conditional"),
        ('f"cuda:{torch.cuda.current_device()}"', "cuda"),
        ('"cuda:%d" % torch.cuda.current_device()', "cuda"),
        ("torch.zeros(1).cuda().device", "cuda"),
        ("torch.distributed.get_rank()", "cuda"),
        ('__import__("somewhere").device', "unknown"),
    ],
)
def test_where_a_device_expression_leads(device: str, place: str) -> None:
    execution = run_torch(f"device = {device}\nx = torch.zeros(1).to(device)\n")
    assert tensor(named(execution, "x")).device == place


def test_a_device_option_is_conditional_and_a_move_under_a_test_too() -> None:
    execution = run_torch(
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")
        args = parser.parse_args()
        a = torch.zeros(1).to(torch.device(args.device))
        b = torch.zeros(1)
        model = nn.Linear(1, 1)
        if torch.cuda.is_available():
            b = b.cuda()
            model.cuda()
        Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
        c = Tensor(2, 3)
        """
    )
    for name in "abc":
        assert tensor(named(execution, name)).device == "conditional", name
    model = named(execution, "model")
    assert isinstance(model, Made)
    assert model.device == "conditional"


def test_casts_are_no_transfers() -> None:
    execution = run_torch(
        """
        x = torch.zeros(1)
        x.to(torch.float16)
        x.to(x.dtype)
        x.to(dtype=torch.long)
        model = nn.Linear(1, 1).half()
        x.to("cuda", torch.float16)
        """
    )
    assert [text(event.node) for event in events(execution, "transfer")] == ["x.to('cuda', torch.float16)"]
    assert len(events(execution, "cast")) == 4


def test_factories_and_where_their_tensors_are() -> None:
    execution = run_torch(
        """
        import numpy as np
        a = torch.zeros(2, 3)
        b = torch.from_numpy(np.zeros(3))
        c = torch.randn(3, device="cuda")
        d = torch.zeros_like(c)
        """
    )
    a, b, c, d = (tensor(named(execution, name)) for name in "abcd")
    assert a.roles == b.roles == {"made"}
    assert a.device == "cpu"
    assert b.pageable is True
    assert (c.device, d.device) == ("cuda", "cuda")


# --- reading tensors --------------------------------------------------------------------------------------------------


def test_a_value_read_from_a_tensor_stays_known_as_such() -> None:
    execution = run_torch(
        LOOP
        + """
best = float("inf")
total = 0.0
for x in DataLoader([]):
    loss = model(x).sum()
    total += loss.item() * 2
    if total / 3 < best:
        best = total
"""
    )
    sync = only(execution, "sync", "item")
    assert "output" in tensor(sync.receiver).roles
    added = only(execution, "sum")
    assert isinstance(added.result, Host)
    assert [text(origin.node) for origin in added.result.syncs] == ["loss.item()"]
    test = only(execution, "test")
    assert isinstance(test.receiver, Host)


@pytest.mark.parametrize(
    ("line", "name", "node"),
    [
        ("float(loss)", "float", "float(loss)"),
        ("int(loss)", "int", "int(loss)"),
        ("loss.tolist()", "tolist", "loss.tolist()"),
        ("loss.detach().cpu()", "cpu", "loss.detach().cpu()"),
        ("loss.detach().cpu().numpy()", "numpy", "loss.detach().cpu().numpy()"),
        ("loss.cpu().item()", "item", "loss.cpu().item()"),
        ("float(loss.cpu())", "float", "float(loss.cpu())"),
        ("print('loss', loss)", "print", "loss"),
        ("print(f'{loss:.3f}')", "format", "loss"),
        ("print('%.3f' % loss)", "format", "loss"),
        ("print('%d %.3f' % (epoch, loss))", "format", "loss"),
        ("print('{}'.format(loss))", "format", "loss"),
        ("str(loss)", "format", "loss"),
        ("math.isfinite(loss)", "float", "loss"),
        ("np.mean(loss)", "numpy", "loss"),
        ("writer.add_scalar('loss', loss, epoch)", "print", "loss"),
        ("bar.set_postfix(loss=loss)", "print", "loss"),
    ],
)
def test_every_way_to_read_a_tensor_is_one_sync(line: str, name: str, node: str) -> None:
    execution = run_torch(
        f"""
        import math
        import numpy as np
        from tqdm import tqdm
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter()
        bar = tqdm(range(3))
        model = nn.Linear(1, 1).cuda()
        for epoch in range(3):
            loss = F.mse_loss(model(torch.zeros(1).cuda()), torch.zeros(1).cuda())
            {line}
        """
    )
    sync = only(execution, "sync")
    assert (sync.name, text(sync.node)) == (name, node)
    assert tensor(sync.receiver).device == "cuda"


@pytest.mark.parametrize(
    "line", ["loss.detach()", "loss.shape[0]", "len(loss)", "loss is None", "loss.size(0)", "type(loss)"]
)
def test_what_reads_nothing_is_no_sync(line: str) -> None:
    execution = run_torch(f"loss = torch.zeros(1).cuda()\nvalue = {line}\n")
    assert events(execution, "sync") == []


def test_a_test_on_a_tensor_is_a_sync_and_a_test() -> None:
    execution = run_torch("x = torch.zeros(3).cuda()\nif (x > 0).all():\n    y = 1\n")
    sync, test = only(execution, "sync", "bool"), only(execution, "test")
    assert text(sync.node) == text(test.node) == "(x > 0).all()"


# --- models, losses, steps --------------------------------------------------------------------------------------------


def test_an_unknown_never_swallows_an_act() -> None:
    execution = run(
        """
        from somewhere import make, thing
        import other
        x = make()[0].y(thing)
        for i in range(3):
            x.backward()
            x.step()
            x.zero_grad()
            x.to("cuda")
            x.item()
            other.pick(i).nested.step()
            (i + 1).backward()
        """
    )
    found = [event.kind for event in execution.events if event.kind not in ("call", "iterate", "unknown_call")]
    assert found == ["backward", "step", "zero_grad", "transfer", "sync", "step", "backward"]


def test_the_loss_of_an_output_is_a_value_and_its_backward_a_method() -> None:
    execution = run(
        """
        import torch
        from transformers import AutoModelForCausalLM
        from torch.utils.data import DataLoader
        model = AutoModelForCausalLM.from_pretrained("gpt2").to("cuda")
        for batch in DataLoader([]):
            batch = {k: v.to("cuda") for k, v in batch.items()}
            outputs = model(**batch)
            outputs.loss.backward()
            loss = outputs["loss"] / 4
            loss.backward()
        """
    )
    first, second = events(execution, "backward")
    assert {"loss", "output"} <= tensor(first.receiver).roles
    assert {"loss", "output"} <= tensor(second.receiver).roles
    forward = only(execution, "forward")
    assert forward.arguments is not None
    assert tensor(forward.arguments.rest).roles == {"batch"}
    assert tensor(forward.arguments.rest).device == "cuda"
    model, batch = events(execution, "transfer")
    assert isinstance(model.receiver, Made)
    assert tensor(batch.receiver).roles == {"batch"}


def test_criteria_by_object_function_and_project_class() -> None:
    execution = run_torch(
        """
        class FocalLoss(nn.Module):
            def forward(self, x, y):
                return F.cross_entropy(x, y).mean()
        x, y = torch.zeros(2, 3), torch.zeros(2)
        a = nn.CrossEntropyLoss()(x, y)
        b = F.nll_loss(x, y)
        c = FocalLoss()(x, y)
        """
    )
    assert [event.name for event in events(execution, "criterion")] == [
        "torch.nn.CrossEntropyLoss",
        "torch.nn.functional.nll_loss",
        "FocalLoss",
        "torch.nn.functional.cross_entropy",
    ]
    for name in "abc":
        assert "loss" in tensor(named(execution, name)).roles


def test_a_gradient_scaler() -> None:
    execution = run_torch(
        LOOP
        + """
scaler = torch.cuda.amp.GradScaler(enabled=True)
for x in DataLoader([]):
    loss = F.mse_loss(model(x), x)
    scaler.scale(loss / 4).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
"""
    )
    backward = only(execution, "backward")
    assert backward.name == "scaled"
    loss = tensor(backward.receiver)
    assert "loss" in loss.roles
    assert loss.scaled_from is None
    step = only(execution, "step")
    assert isinstance(step.receiver, Made)
    assert step.receiver.kind == "scaler"
    stepped = passed(step, "optimizer", 0).value
    assert isinstance(stepped, Made)
    assert stepped.kind == "optimizer"
    only(execution, "scale")
    only(execution, "unscale")
    only(execution, "clip", "torch.nn.utils.clip_grad_norm_")
    only(execution, "update")


def test_timms_loss_scaler_is_a_backward_and_a_step() -> None:
    execution = run(
        """
        import torch
        from timm.utils import NativeScaler
        from torch.utils.data import DataLoader
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = NativeScaler()
        def train(loss_scaler, max_norm=1.0):
            for x in DataLoader([]):
                loss = model(x).mean()
                loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters())
        train(scaler)
        """
    )
    assert tensor(only(execution, "backward", "lossscaler").receiver).roles >= {"output"}
    optimizer = only(execution, "step").receiver
    assert isinstance(optimizer, Made)
    assert optimizer.kind == "optimizer"
    only(execution, "clip", "lossscaler")


def test_accelerate_deepspeed_and_fabric() -> None:
    accelerate = run(
        """
        import torch
        from accelerate import Accelerator
        from torch.utils.data import DataLoader
        accelerator = Accelerator(mixed_precision="bf16")
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader([]))
        for batch in loader:
            loss = model(batch).sum()
            accelerator.backward(loss)
            optimizer.step()
        """
    )
    backward = only(accelerate, "backward")
    assert (backward.name, tensor(backward.receiver).device) == ("accelerator", "conditional")
    stepped = only(accelerate, "step").receiver
    assert isinstance(stepped, Made)
    assert stepped.qualname == "torch.optim.AdamW"
    deepspeed = run(
        """
        import torch, deepspeed
        net = torch.nn.Linear(1, 1)
        engine, optimizer, _, _ = deepspeed.initialize(model=net, config={})
        for batch in []:
            loss = engine(batch)
            engine.backward(loss)
            engine.step()
        """
    )
    backward = only(deepspeed, "backward")
    assert backward.name == "engine"
    assert "output" in tensor(backward.receiver).roles
    engine = only(deepspeed, "step").receiver
    assert isinstance(engine, Made)
    assert (engine.kind, engine.inner) == ("engine", named(deepspeed, "net"))


def test_gradients_by_hand_and_closures() -> None:
    execution = run_torch(
        LOOP
        + """
optimizer = torch.optim.LBFGS(model.parameters())
for x in DataLoader([]):
    def closure():
        loss = model(x).sum()
        loss.backward()
        return loss
    optimizer.step(closure)
    for p in model.parameters():
        p.grad.clamp_(-1, 1)
    grads = torch.autograd.grad(model(x).sum(), model.parameters(), create_graph=True)
"""
    )
    assert levels(only(execution, "backward")) == ["root", "module", "loop", "call"]
    assert passed(only(execution, "step"), "", 0).value is not None
    assert "param" in tensor(only(execution, "grad_read").receiver).roles
    only(execution, "autograd_grad")
    only(execution, "call", "Tensor.clamp_")


def test_wrapping_and_compiling_keep_the_model_in_sight() -> None:
    execution = run_torch(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(1, 1) for _ in range(3)])
                self.head = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid())
            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return self.head(x)
        model = nn.DataParallel(torch.compile(Net()))
        y = model(torch.zeros(1))
        inner = model.module
        """
    )
    assert isinstance(only(execution, "compile").receiver, Instance)
    assert isinstance(only(execution, "wrap").receiver, Instance)
    assert [event.name for event in events(execution, "forward")] == [
        "torch.nn.DataParallel",
        "torch.nn.Linear",
        "torch.nn.Sequential",
        "torch.nn.Linear",
        "torch.nn.Sigmoid",
    ]
    assert tensor(named(execution, "y")).roles == {"output"}
    assert isinstance(named(execution, "inner"), Instance)


# --- loops over data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "wrapper"),
    [
        ("for x in loader:", None),
        ("for i, x in enumerate(loader):", "enumerate"),
        ("for i, x in enumerate(tqdm(loader), 1):", "enumerate"),
        ("for i, x in tqdm(enumerate(loader)):", "progress"),
        ("for x in islice(loader, 3):", "islice"),
        ("for x, z in zip(loader, range(9)):", "zip"),
        ("for x in cycle(loader):", "cycle"),
        ("for x in tqdm(loader, desc='x'):", "progress"),
    ],
)
def test_wrapped_loaders_give_batches(loop: str, wrapper: str | None) -> None:
    execution = run_torch(
        f"""
        from itertools import cycle, islice
        from tqdm.auto import tqdm
        loader = DataLoader([])
        model = nn.Linear(1, 1)
        {loop}
            model(x)
        """
    )
    batch = tensor(passed(only(execution, "forward"), "", 0).value)
    assert batch.roles == {"batch"}
    assert batch.source is loader(execution).result
    iterated = execution.loops[0].iterated
    if wrapper is None:
        assert isinstance(iterated, Made)
    elif wrapper == "progress":
        assert isinstance(iterated, Made)
        assert iterated.kind == "progress"
        assert iterated.inner is not None
    else:
        assert isinstance(iterated, Iterated)
        assert iterated.wrapper == wrapper
        assert iterated.start == (1 if "1)" in loop and "enum" in loop else 0)


def test_next_of_an_iterator() -> None:
    execution = run_torch(
        """
        loader = DataLoader([])
        iterator = iter(loader)
        for i in range(9):
            x, y = next(iterator)
            x.cuda()
        """
    )
    following = only(execution, "next")
    assert isinstance(following.receiver, Iterated)
    assert following.receiver.source is named(execution, "loader")
    assert tensor(only(execution, "transfer").receiver).roles == {"batch"}


def test_what_the_workers_run_stands_apart_from_the_loop() -> None:
    execution = run_torch(
        """
        class Data(torch.utils.data.Dataset):
            def __getitem__(self, i):
                return torch.zeros(3).cuda(), i.item()
        def collate(items):
            return torch.stack([x for x, _ in items])
        for x in DataLoader(Data(), collate_fn=collate):
            pass
        """
    )
    transfer = only(execution, "transfer")
    assert levels(transfer) == ["root", "call"]
    root = transfer.control.chain()[0]
    assert root.detail == "worker"
    assert tensor(named(execution, "x")).device == "cuda"
    assert tensor(named(execution, "x")).roles == {"batch"}


def test_a_progress_bar_shows_and_is_no_update_of_an_optimizer() -> None:
    execution = run_torch(
        """
        from tqdm import tqdm
        bar = tqdm(DataLoader([]))
        for x in bar:
            bar.set_postfix(n=1)
            bar.set_description("x")
            bar.update(1)
        """
    )
    assert [event.name for event in events(execution, "show")] == ["set_postfix", "set_description", "update"]
    assert events(execution, "update") == []


def test_switches_of_the_process() -> None:
    execution = run_torch(
        """
        import os
        torch.backends.cudnn.benchmark = True
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        torch.set_float32_matmul_precision("high")
        torch.autograd.set_detect_anomaly(True)
        torch.manual_seed(1)
        """
    )
    assert [(event.name, constant(event.result)) for event in events(execution, "set")] == [
        ("torch.backends.cudnn.benchmark", True),
        ('os.environ["CUDA_LAUNCH_BLOCKING"]', "1"),
        ("torch.set_float32_matmul_precision", "high"),
        ("torch.autograd.set_detect_anomaly", True),
        ("torch.manual_seed", 1),
    ]


def test_a_worker_process_is_executed() -> None:
    execution = run_torch(
        """
        import torch.multiprocessing as mp
        def worker(rank, world, data):
            model = nn.Linear(1, 1).to(rank)
            for x in DataLoader(data):
                model(x.to(rank)).sum().backward()
        if __name__ == "__main__":
            mp.spawn(worker, args=(2, []), nprocs=2)
        """
    )
    batch = events(execution, "transfer")[1]
    assert tensor(batch.result).device == "cuda"
    only(execution, "backward")


def test_an_execution_that_is_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbofix.interpreter.state.STATEMENTS", 10)
    execution = execute(ROOT / "train.py", ROOT, {ROOT / "train.py": "x = 1\n" * 11}.get)
    assert execution is not None
    assert execution.complete is False
    assert execution.incomplete_because is not None
    assert "statements" in execution.incomplete_because


def test_a_program_that_nests_too_deep_says_so() -> None:
    chain = "x = " + " + ".join(["y.z"] * 2000) + "\n"
    execution = execute(ROOT / "train.py", ROOT, {ROOT / "train.py": "y = 1\n" + chain}.get)
    assert execution is not None
    assert execution.complete is False
    assert execution.incomplete_because is not None
    assert "nest" in execution.incomplete_because


# --- what is known of libraries ---------------------------------------------------------------------------------------


def test_canonical_names_and_kinds() -> None:
    cases = {
        "torch.utils.data.dataloader.DataLoader": ("torch.utils.data.DataLoader", "loader"),
        "torch.optim.adam.Adam": ("torch.optim.Adam", "optimizer"),
        "torch.optim.lr_scheduler.StepLR": ("torch.optim.lr_scheduler.StepLR", "scheduler"),
        "torch.nn.modules.loss.CrossEntropyLoss": ("torch.nn.CrossEntropyLoss", "criterion"),
        "torch.nn.modules.conv.Conv2d": ("torch.nn.Conv2d", "module"),
        "torch.nn.parallel.DataParallel": ("torch.nn.DataParallel", "wrapper"),
        "torch.nn.parallel.distributed.DistributedDataParallel": (
            "torch.nn.parallel.DistributedDataParallel",
            "wrapper",
        ),
        "torch.cuda.amp.grad_scaler.GradScaler": ("torch.cuda.amp.GradScaler", "scaler"),
        "torch.cuda.amp.autocast_mode.autocast": ("torch.cuda.amp.autocast", "autocast"),
        "torchvision.models.resnet.resnet18": ("torchvision.models.resnet18", "module"),
        "torchvision.datasets.folder.ImageFolder": ("torchvision.datasets.ImageFolder", "dataset"),
        "tqdm.auto.tqdm": ("tqdm.tqdm", "progress"),
        "torch.nn.functional.relu": ("torch.nn.functional.relu", None),
    }
    found = {name: (libraries.canonical(name), libraries.kind_of(libraries.canonical(name))) for name in cases}
    assert found == cases


def test_what_a_star_brings_is_in_torch() -> None:
    torch = pytest.importorskip("torch")
    for name in ("torch.nn", "torch.nn.functional", "torch.optim", "torch.utils.data", "torch"):
        module = torch
        for part in name.split(".")[1:]:
            module = getattr(module, part)
        missing = [each for each in libraries.star_names()[name] if not hasattr(module, each)]
        assert missing == []


def test_sequences_unpack_by_position() -> None:
    execution = run("a, *rest, b = [1, 2, 3, 4]\nc, d = (5, 6)\npair = [(1, 'x')]\nfor e, f in pair:\n    pass\n")
    assert [constant(named(execution, name)) for name in ("a", "b", "c", "d", "e", "f")] == [1, 4, 5, 6, 1, "x"]
    rest = named(execution, "rest")
    assert isinstance(rest, Sequence)
    assert rest.items is not None
    assert [constant(item) for item in rest.items] == [2, 3]


def test_a_state_that_is_changed_elsewhere_decides_nothing_in_a_loop() -> None:
    execution = run(
        """
        seen = 0
        class State:
            stop = False
            size = 4
        state = State()
        counts = {"n": 0}
        def advance():
            global seen
            seen += 1
            state.stop = True
            counts["n"] += 1
        for i in range(3):
            if seen == 0:
                pass
            if state.stop:
                pass
            if counts["n"] == 0:
                pass
            if state.size == 4:
                pass
            advance()
        """
    )
    tests = [event.receiver for event in events(execution, "test")]
    assert [isinstance(value, Const) for value in tests] == [False, False, False, True]


def test_tensors_made_for_the_model_are_inputs() -> None:
    execution = run_torch(
        LOOP
        + """
for i in range(3):
    z = torch.randn(2, 4).to("cuda")
    other = torch.randn(2).to("cuda")
    model(z.view(2, 4))
"""
    )
    given, other = events(execution, "transfer")
    assert tensor(given.receiver).roles == {"made", "input"}
    assert tensor(other.receiver).roles == {"made"}


def test_an_optimizer_of_the_projects_own() -> None:
    execution = run_torch(
        """
        class Mine(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {})
            def step(self):
                for group in self.param_groups:
                    pass
        optimizer = Mine(nn.Linear(1, 1).parameters())
        for i in range(3):
            optimizer.zero_grad()
            optimizer.step()
        """
    )
    step = only(execution, "step")
    assert isinstance(step.receiver, Instance)
    assert step.receiver.base is not None
    assert step.receiver.base.kind == "optimizer"
    only(execution, "zero_grad")


def test_a_lightning_trainer_calls_the_models_hooks() -> None:
    execution = run(
        """
        import torch
        import pytorch_lightning as pl
        from torch.utils.data import DataLoader
        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(1, 1)
            def training_step(self, batch, index):
                return self.net(batch).mean()
            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())
        class Data(pl.LightningDataModule):
            def train_dataloader(self):
                return DataLoader([], batch_size=2)
        pl.Trainer(max_epochs=1).fit(Model(), datamodule=Data())
        """
    )
    only(execution, "make", "torch.optim.Adam")
    batch = tensor(passed(only(execution, "forward"), "", 0).value)
    assert batch.roles == {"batch"}
    assert batch.source is loader(execution).result


def test_a_configuration_file_may_override_what_code_sets() -> None:
    execution = run(
        """
        from yacs.config import CfgNode as CN
        _C = CN()
        _C.DATA = CN()
        _C.DATA.BATCH = 8
        before = _C.DATA.BATCH
        _C.merge_from_file("x.yaml")
        after = _C.DATA.BATCH
        """
    )
    assert constant(named(execution, "before")) == 8
    after = option(named(execution, "after"))
    assert (constant(after.default), after.how) == (8, "file")


def test_a_write_after_a_return_that_may_have_happened_is_not_certain() -> None:
    execution = run(
        """
        import argparse, os
        def init(args):
            if "RANK" in os.environ:
                args.rank = 0
            else:
                args.distributed = False
                return
            args.distributed = True
        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        init(args)
        found = args.distributed
        """
    )
    assert {constant(member) for member in members(named(execution, "found"))} == {True, False}


def test_a_prefetcher_ends_with_none() -> None:
    execution = run_torch(
        """
        class Prefetcher:
            def __init__(self, loader):
                self.loader = iter(loader)
                self.preload()
            def preload(self):
                try:
                    self.batch = next(self.loader)
                except StopIteration:
                    self.batch = None
                    return
                self.batch = self.batch.cuda(non_blocking=True)
            def next(self):
                batch = self.batch
                self.preload()
                return batch
        prefetcher = Prefetcher(DataLoader([]))
        batch = prefetcher.next()
        while batch is not None:
            batch = prefetcher.next()
        """
    )
    test = only(execution, "test")
    assert not isinstance(test.receiver, Const)
    for transfer in events(execution, "transfer"):
        assert any(isinstance(each, Tensor) and each.roles == {"batch"} for each in members(transfer.receiver))


def test_a_part_of_an_output_may_be_none() -> None:
    execution = run(
        """
        from transformers import AutoModel
        model = AutoModel.from_pretrained("x")
        outputs = model(1)
        if outputs.loss is not None:
            a = 1
        if outputs is None:
            a = 2
        """
    )
    first, second = events(execution, "test")
    assert not isinstance(first.receiver, Const)
    assert constant(second.receiver) is False


def test_a_cast_gives_what_is_cast() -> None:
    execution = run("import typing\na = typing.cast(int, 3)\nb = typing.cast(typ=str, val=4)\n")
    assert [constant(named(execution, name)) for name in "ab"] == [3, 4]


def test_a_return_in_a_dead_branch_returns_nothing() -> None:
    execution = run("DEBUG = False\ndef f():\n    if DEBUG:\n        return 1\n    return 2\nx = f()\n")
    assert constant(named(execution, "x")) == 2


@pytest.mark.parametrize(
    "choice",
    [
        "if __import__('sys').argv[1:]:\n    from small import Net\nelse:\n    from large import Net\n",
        "try:\n    from small import Net\nexcept ImportError:\n    from large import Net\n",
    ],
)
def test_a_class_imported_from_one_of_two_modules_is_either(choice: str) -> None:
    module = "from torch import nn\nclass Net(nn.Module):\n    pass\n"
    execution = run(choice + "net = Net()\nunused = 1\n", small=module, large=module)
    found = members(named(execution, "net"))
    assert {each.cls.module.name for each in found if isinstance(each, Instance)} == {"small", "large"}
    assert all(isinstance(each, Instance) for each in found)


def test_a_model_that_may_be_wrapped_runs_once_in_a_call() -> None:
    execution = run_torch("""
        import sys
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 2)
            def forward(self, x):
                parts = []
                parts.append(self.layer(x))
                return parts
        model = Net()
        if len(sys.argv) > 1:
            model = nn.DataParallel(model)
        first = model(torch.ones(3, 4))
        second = model(torch.zeros(3, 4))
    """)
    calls = events(execution, "call", "list.append")
    assert len(calls) == 2
    assert all(isinstance(call.receiver, Sequence) for call in calls)  # one list each, not the lists of two calls
    assert len([each for each in events(execution, "forward") if each.name == "Net"]) == 2
    assert len([each for each in events(execution, "forward") if each.name == "torch.nn.DataParallel"]) == 2


def test_values_have_no_classes_below_theirs() -> None:
    """They are asked for by ``type(value) is``, which takes a fifth of the time of ``isinstance``."""
    kinds = Value.__subclasses__()
    assert {Tensor, Const, Mapping} <= {*kinds}
    assert not {kind for kind in kinds if kind.__subclasses__()}


HANDED = """
def once(rate=0.1):
    loss.backward()

def whole(rate=0.1):
    for batch in data:
        loss.backward()
"""


@pytest.mark.parametrize(
    ("given", "loops"),
    [
        ("search.optimize(task.whole, trials=3)", 1),  # a function is called as it is
        ("library.tune(lambda trial: task.whole(trial.rate))", 1),
        ("task.whole()\nsearch.optimize(task.whole)", 1),  # reached anyway
        ("print(task.whole)", 0),
    ],
)
def test_what_is_handed_to_a_call_that_is_not_followed_is_entered_where_nothing_trains(given: str, loops: int) -> None:
    found = run(f"import library, task\nsearch = library.search()\n{given}\n", task=HANDED)
    assert len([each for each in found.events if each.kind == "backward"]) == loops


@pytest.mark.parametrize(
    ("given", "loops"),
    [
        ("@search.command()\ndef learn():\n    task.whole()", 1),
        ("@search.group()\ndef cli(): pass\n@cli.command\ndef learn():\n    from task import whole\n    whole()", 1),
        ("def learn():\n    task.whole()", 0),
        ("@search.command()\ndef learn():\n    task.whole()\nfor x in y:\n    loss.backward()", 1),
    ],
)
def test_what_a_decorator_may_hand_over_is_called_where_nothing_trains(given: str, loops: int) -> None:
    found = run(f"import library, task\nfrom library import loss, y\nsearch = library.search()\n{given}\n", task=HANDED)
    assert len([each for each in found.events if each.kind == "backward"]) == loops


@pytest.mark.parametrize(("decorator", "loops"), [("@app.command()", 1), ("@app.command", 1), ("@app.hook()", 0)])
def test_a_command_of_an_application_may_stand_in_another_file(decorator: str, loops: int) -> None:
    commands = f"import library, task\napp = library.App()\n{decorator}\ndef learn():\n    task.whole()\n"
    found = run("from commands import app\napp()\n", task=HANDED, commands=commands)
    assert len([each for each in found.events if each.kind == "backward"]) == loops


@pytest.mark.parametrize(
    ("name", "text", "loops"),
    [
        ("pyproject.toml", '[project.scripts]\nlearn = "mine.train:learn"\n', 1),
        ("setup.py", 'setup(entry_points={"console_scripts": ["go=mine.train:learn"]})', 1),
        ("pyproject.toml", '[project.scripts]\nlearn = "mine.train:other"\n', 0),
        ("pyproject.toml", '[project.scripts]\nlearn = "mine.other:learn"\n', 0),
    ],
)
def test_what_a_package_installs_as_a_command_is_called_where_nothing_trains(name: str, text: str, loops: int) -> None:
    texts = {
        ROOT / "train.py": "import task\n\n\ndef learn():\n    task.whole()\n",
        ROOT / "task.py": HANDED,
        ROOT / name: text,
    }
    found = execute(ROOT / "train.py", ROOT, texts.get)
    assert found is not None
    assert len([each for each in found.events if each.kind == "backward"]) == loops


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("def __init__(self, folds=1): pass", True),
        ("pass", False),
        ("def __init__(self): pass\n    @abc.abstractmethod\n    def train(self): pass", False),
    ],
)
def test_a_class_that_a_library_makes_from_a_file(body: str, made: bool) -> None:
    text = f"import abc, library\nclass A(library.Base):\n    {body}\na = A.from_config('a.yaml', debug=True)\n"
    assert isinstance(named(run(text), "a"), Instance) is made


def test_a_step_that_is_handed_over_is_told_of() -> None:
    found = run("import library, task\nlibrary.Engine(task.once).run()\n", task=HANDED)
    assert "What line 2 of train.py calls (`library.Engine`) was not followed." in found.unfollowed


def test_where_nothing_trains_it_is_told_what_may() -> None:
    found = run("import library, task\nclass A(library.Base): pass\nA().fit(3)\n", task=HANDED + "\nx = 1")
    assert found.unfollowed == ("What line 3 of train.py calls (`A().fit`) was not followed.",)
    found = run("import task\nprint(task.data)\n", task=HANDED)
    assert [each[:18] for each in found.unfollowed] == ["`once` (line 2 of ", "`whole` (line 5 of"]
    texts = {ROOT / "train.py": "import library\nlibrary.train('task')\n", ROOT / "task.py": HANDED}
    alone = execute(ROOT / "train.py", ROOT, texts.get, lambda *_: [*texts])
    assert alone is not None
    assert alone.unfollowed == ("A part of a training stands on line 3 of task.py: no way to it was seen from here.",)


def test_each_subparser_may_say_what_is_called() -> None:
    execution = run(
        """
        import argparse
        import torch

        def train(size, run):
            torch.zeros(size)

        def test(size, run):
            torch.ones(size)

        parser = argparse.ArgumentParser()
        commands = parser.add_subparsers()
        first = commands.add_parser("train")
        first.set_defaults(run=train)
        first.add_argument("--size", type=int, default=3)
        second = commands.add_parser("test")
        second.set_defaults(run=test)
        second.add_argument("--size", type=int, default=3)
        args = parser.parse_args()
        args.run(**vars(args))
        """
    )
    assert {"torch.zeros", "torch.ones"} <= {each.name for each in execution.events}
