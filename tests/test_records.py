"""Records behave as the standard library's dataclasses do: each case is run on both."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from turbofix import records

MAKERS = [pytest.param(dataclasses.dataclass, id="standard"), pytest.param(records.dataclass, id="records")]
Maker = Callable[..., Any]


def point(make: Maker) -> Any:
    class Point:
        """A doc string."""

        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list)

        @property
        def total(self) -> int:
            return self.x + self.y

    return make(frozen=True)(Point)


@pytest.mark.parametrize("make", MAKERS)
def test_values_and_defaults(make: Maker) -> None:
    made = point(make)
    assert (made(1).x, made(1).y, made(1, y=5).total, made(x=3).x) == (1, 2, 6, 3)
    assert made(1).tags == [] and made(1).tags is not made(1).tags
    assert repr(made(1)).endswith("Point(x=1, y=2, tags=[])")
    assert made.__doc__ == "A doc string."


@pytest.mark.parametrize("make", MAKERS)
def test_wrong_values_raise(make: Maker) -> None:
    made = point(make)
    for call in (made, lambda: made(1, 2, [], 4), lambda: made(1, z=3)):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("make", MAKERS)
def test_frozen(make: Maker) -> None:
    one = point(make)(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.x
    assert one.x == 1


@pytest.mark.parametrize("make", MAKERS)
def test_equality_and_hash(make: Maker) -> None:
    @make(frozen=True)
    class Pair:
        a: object = ()
        b: object = ()

    @make(frozen=True)
    class Other:
        a: object = ()
        b: object = ()

    assert Pair(1, 2) == Pair(1, b=2) and hash(Pair(1, 2)) == hash(Pair(1, 2))
    assert Pair(1, 2) != Pair(2, 1) and Pair() != Other() and Pair() != ((), ())
    assert len({Pair(1), Pair(1), Pair(2)}) == 2

    @make(eq=False)
    class Alone:
        a: int = 0

    assert Alone() != Alone() and len({Alone(), Alone()}) == 2

    @make
    class Loose:
        a: int = 0

    assert Loose() == Loose() and Loose.__hash__ is None


@pytest.mark.parametrize("make", MAKERS)
def test_the_standard_functions_take_them(make: Maker) -> None:
    one = point(make)(1)
    assert dataclasses.is_dataclass(one)
    assert [field.name for field in dataclasses.fields(one)] == ["x", "y", "tags"]
    changed = dataclasses.replace(one, y=7)
    assert (changed.x, changed.y, one.y) == (1, 7, 2)
    assert dataclasses.asdict(one) == {"x": 1, "y": 2, "tags": []}


@pytest.mark.parametrize("make", MAKERS)
def test_fields_of_the_base_and_what_is_made_afterwards(make: Maker) -> None:
    @make
    class Base:
        a: int

    @make
    class Derived(Base):
        b: int = 1
        c: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.c = self.a + self.b

    assert (Derived(1).c, Derived(1, 5).c, Derived(a=2, b=2).c) == (2, 6, 4)
    assert Derived.__match_args__ == ("a", "b")
    with pytest.raises(TypeError):
        Derived(1, c=3)


@pytest.mark.parametrize("make", MAKERS)
def test_slots(make: Maker) -> None:
    @make(eq=False, slots=True)
    class Value:
        """What is known."""

        name: str
        size: int = 1
        uses: set[str] = dataclasses.field(default_factory=set)

        @property
        def double(self) -> int:
            return 2 * self.size

    @make(eq=False, slots=True)
    class Longer(Value):
        more: int = 0

    one = Value("a", uses={"x"})
    assert (one.name, one.size, one.uses, one.double, Value("b").uses) == ("a", 1, {"x"}, 2, set())
    assert Value("a") != Value("a") and Value("a").uses is not Value("a").uses
    assert repr(Value("a")).endswith("Value(name='a', size=1, uses=set())")
    assert (Longer("a", 2, set(), 3).more, Longer("a", more=4).size, Longer.__match_args__[-1]) == (3, 1, "more")
    assert not hasattr(one, "__dict__") and not hasattr(Longer("a"), "__dict__")
    one.size = 5
    assert dataclasses.replace(one, name="c").size == 5
    with pytest.raises(AttributeError):
        one.other = 1
    with pytest.raises(TypeError):
        Value()
    with pytest.raises(TypeError):
        Value("a", other=1)


@records.dataclass(frozen=True)
class Sent:
    a: int
    b: tuple[int, ...] = ()


def test_a_record_goes_through_pickle() -> None:
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))


@pytest.mark.parametrize("make", MAKERS)
def test_a_field_may_have_any_name(make: Maker) -> None:
    class Index:
        _names: list[str] | None = None
        _key: int = 1
        _defaults: int = 2

    index = make(Index)
    assert dataclasses.astuple(index(_key=3)) == (None, 3, 2)
    assert index() == index(None, 1, 2)
    assert index() != index(["a"])


NODES = """
import dataclasses, re

{load}
from libcst.metadata import CodePosition, CodeRange

def shown(cls):
    fields = [
        (each.name, each.init, each.default, getattr(each.default_factory, "__qualname__", each.default_factory))
        for each in dataclasses.fields(cls)
    ]
    said = cls.__qualname__, fields, cls.__match_args__, cls.__dataclass_params__
    return re.sub(" at 0x[0-9a-f]+", "", str(said))

for cls in sorted(vars(libcst).values(), key=str):
    if isinstance(cls, type) and issubclass(cls, libcst.CSTNode):
        print(shown(cls))
text = "@a\\nclass A(B, c=1):\\n    def f(self, *a, b: int = 1) -> f'{{x!r}}':\\n        return [-i for i in a]\\n"
tree = libcst.parse_module(text)
assert tree.code == tree.deep_clone().code == text and tree.deep_equals(tree.deep_clone())
print(tree, tree.body[0].with_changes(decorators=()))
name = libcst.Name("x")
print(name, name == libcst.Name("x"), hash(name) == id(name), name.lpar, name.lpar is libcst.Name("y").lpar)
here = CodePosition(1, 2)
print(here, here == CodePosition(1, 2), hash(here) == hash(CodePosition(1, 2)), CodeRange(here, here), here == (1, 2))
for wrong in (
    lambda: libcst.Name(),
    lambda: libcst.Name("x", nothing=1),
    lambda: libcst.Name(""),
    lambda: setattr(name, "value", "y"),
    lambda: delattr(name, "value"),
    lambda: libcst.BaseExpression().code,
):
    try:
        wrong()
    except Exception as error:
        print(type(error).__name__)
"""


def test_nodes_of_libcst_are_the_same_when_they_are_compiled_later() -> None:
    loads = ["import libcst", "from turbofix.editing.cst import cst as libcst"]
    told = [
        subprocess.run([sys.executable, "-c", NODES.format(load=load)], capture_output=True, text=True, check=False)
        for load in loads
    ]
    assert [each.stderr for each in told] == ["", ""]
    plain, later = (each.stdout.splitlines() for each in told)
    assert len(plain) > 200 and plain == later


@pytest.mark.parametrize(
    ("module", "fields", "later"),
    [
        ("libcst", "    a: int\n    b: int = 2", True),
        ("libcst", "    a: int\n    b: dataclasses.InitVar[int] = 2", False),
        ("libcst", "    a: int\n    _: dataclasses.KW_ONLY\n    b: int = 2", False),
        ("libcst", "    a: int\n    b: int = dataclasses.field(default=2, kw_only=True)", False),
        ("typer", "    a: int\n    b: int = 2", False),
    ],
)
def test_only_plain_frozen_classes_of_the_library_itself_are_compiled_later(
    module: str, fields: str, later: bool
) -> None:
    importlib.import_module(module)  # the standard library asks for the module of a class
    names: dict[str, Any] = {"__name__": module, "dataclasses": dataclasses}
    with records.compiled_when_needed("libcst"):
        text = f"@dataclasses.dataclass(frozen=True)\nclass A:\n{fields}"
        exec(compile(text, "", "exec", dont_inherit=True), names)
    assert ("_init_later" in names["A"].__init__.__qualname__) is later
    assert names["A"](1, b=3).a == 1
    assert dataclasses.dataclass.__qualname__ == "dataclass"


METADATA = """
from turbofix.editing.cst import cst
class Names(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (__import__("libcst.metadata").metadata.PositionProvider,)
    def visit_Name(self, node):
        print(node.value, self.get_metadata(self.METADATA_DEPENDENCIES[0], node).start.column)
cst.MetadataWrapper(cst.parse_module("a = b")).visit(Names())
"""


def test_metadata_of_libcst_is_there_when_it_is_asked_for() -> None:
    told = subprocess.run([sys.executable, "-c", METADATA], capture_output=True, text=True, check=False)
    assert (told.stdout, told.stderr) == ("a 0\nb 4\n", "")
