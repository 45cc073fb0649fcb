"""Calls of the project's functions, classes and models: their bodies are executed where the call stands."""

from __future__ import annotations

import ast
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

from turbofix.domain.scopes import Frame, Scope
from turbofix.domain.tensors import (
    NO_ROLES,
    device_of,
    elements_passed,
    hosts_passed,
    joined_hosts,
    reduces_all,
    surest,
    tensors_in,
    tensors_passed,
    unknown_of,
    with_roles,
)
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import (
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Class,
    Computed,
    Const,
    Device,
    Entry,
    External,
    Function,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Method,
    ModuleValue,
    Opaque,
    Option,
    Origin,
    Partial,
    Sequence,
    Tensor,
    Union,
    Unknown,
    Value,
    join,
    join_all,
    members,
)
from turbofix.interpreter import access, externals, imports, methods
from turbofix.interpreter.brains import command_line as options
from turbofix.interpreter.brains import config_files
from turbofix.library import tables as libraries
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import once_per_node

if TYPE_CHECKING:
    from turbofix.interpreter.walk import Interpreter

DEEPEST = 12
CONTEXTS = 5
CONTEXTS_OF_TRAINING = 15
CONTEXTS_OF_REGISTRY, FEW = 60, 3
"""A function is executed in so many contexts, one of a training step, or that looks something up, in more."""
CONSTRUCTIONS = 12
_USES_OF_MODELS = frozenset({"parameters", "named_parameters", "modules", "children"})
"""Methods that only modules have."""
_HALF = attrgetter("half")
_OUTPUT, _LOSS, _HOLDER = frozenset({"output"}), frozenset({"output", "loss"}), frozenset({"object"})
_BASES_MADE = frozenset(
    {"loader", "dataset", "sampler", "argparse", "optimizer", "scheduler", "accelerator", "trainer"}
)


@dataclass(eq=False, slots=True)
class Super(Value):
    """``super()`` in a method of ``cls``."""

    receiver: Value
    cls: Class


# --- arguments --------------------------------------------------------------------------------------------------------


def evaluate_arguments(interp: Interpreter, node: ast.Call) -> Arguments:
    """The arguments of a call, with its stars unpacked."""
    positions: list[Passed] = []
    keywords: dict[str, Passed] = {}
    arguments = Arguments(positions, keywords)
    evaluate = interp.eval
    for each in node.args:
        if not isinstance(each, ast.Starred):
            positions.append(Passed(evaluate(each), True, each))
            continue
        value = interp.eval(each.value)
        if type(value) is Sequence and value.items is not None:
            positions.extend(Passed(item) for item in value.items)
        else:
            arguments.star = True
            positions.append(Passed(access.iterate(interp, value, each)))
    for keyword in node.keywords:
        name, given = keyword.arg, keyword.value
        value = evaluate(given)
        if name is not None:
            keywords[name] = Passed(value, True, given)
            continue
        mapping = Mapping(None)
        access.merge(interp, mapping, value, strong=True)
        for key, entry in mapping.entries.items():
            if isinstance(key, str) and key not in keywords:
                origin = entry.origin
                place = origin.node if origin is not None and isinstance(origin.node, ast.expr) else None
                keywords[key] = Passed(entry.value, entry.must, None, place, origin.module if origin else None)
        arguments.open = arguments.open or mapping.open
        arguments.rest = join(arguments.rest, mapping.element)
    return arguments


def evaluate_call(interp: Interpreter, node: ast.Call) -> Value:
    """``f(...)``."""
    function = node.func
    if isinstance(function, ast.Attribute):
        callee = access.read_attribute(interp, interp.eval(function.value), function.attr, function, called=True)
        if function.attr == "forward" and type(callee) is Bound and type(callee.receiver) is Instance:
            model = callee.receiver
            if model.cls.find("forward") is callee.function and is_module(model):
                return forward(interp, model, evaluate_arguments(interp, node), node)
    else:
        callee = interp.eval(function)
        if type(callee) is External and callee.qualname == "builtins.super":
            return _super(interp, node)
    return call(interp, callee, evaluate_arguments(interp, node), node)


def _super(interp: Interpreter, node: ast.Call) -> Value:
    function = interp.frame.function
    if function is None or function.cls is None or isinstance(function.node, ast.Lambda):
        return UNKNOWN
    parameters = [*function.node.args.posonlyargs, *function.node.args.args]
    receiver = interp.frame.scope.names.get(parameters[0].arg) if parameters else None
    return Super(receiver or UNKNOWN, function.cls)


def read_super(interp: Interpreter, value: Super, name: str, node: ast.AST) -> Value:
    """``super().name``: looked up behind the class in the order of the receiver's bases."""
    receiver = next((each for each in members(value.receiver) if isinstance(each, (Instance, Class))), None)
    owner = receiver.cls if type(receiver) is Instance else receiver if type(receiver) is Class else value.cls
    order = owner.mro()
    behind = order[order.index(value.cls) + 1 :] if value.cls in order else value.cls.mro()[1:]
    for base in behind:
        if type(base) is Class and name in base.names:
            found = base.names[name]
            return Bound(value.receiver, found) if type(found) is Function else found
    return Method(receiver, "super." + name) if receiver is not None else UNKNOWN


# --- calls ------------------------------------------------------------------------------------------------------------


def call(interp: Interpreter, callee: Value, arguments: Arguments, node: ast.AST) -> Value:
    """What calling a value gives."""
    if type(callee) is Union:
        found: Value | None = None
        up = interp.control
        refused = [member for member in callee.values if type(member) is Class and not _takes(member, arguments)]
        for number, member in enumerate(callee.values):
            if type(member) is not Const and (member not in refused or len(refused) == len(callee.values)):
                interp.enter("choice", node, number)
                found = join(found, call(interp, member, arguments, node))
                interp.control = up
        _log_move_of_objects(interp, callee, arguments, node)
        return found or UNKNOWN
    if type(callee) is Method:
        return methods.call_method(interp, callee.receiver, callee.name, arguments, node)
    if type(callee) is External:
        return externals.call_external(interp, callee.qualname, arguments, node)
    if type(callee) is Function:
        return invoke(interp, callee, arguments, node)
    if type(callee) is Bound:
        if callee.function.name in ("step", "zero_grad"):
            _log_own_optimizer(interp, callee, arguments, node)
        return invoke(interp, callee.function, prepended(callee.receiver, arguments), node)
    if type(callee) is Class:
        return construct(interp, callee, arguments, node)
    if type(callee) is Partial:
        return call(interp, callee.function, completed(callee.arguments, arguments), node)
    if type(callee) is Instance:
        return _call_instance(interp, callee, arguments, node)
    if type(callee) is Made:
        return _call_made(interp, callee, arguments, node)
    if type(callee) is Opaque:
        return call_opaque(interp, callee, arguments, node)
    if type(callee) is Tensor:
        return with_roles(callee, frozenset(), interp.origin(node))
    tensors = tensors_passed(arguments)
    if tensors:
        if interp.loop_depth:
            interp.event("unknown_call", node, "", callee, arguments)
        return unknown_of(tensors, interp.origin(node))
    if callee is UNKNOWN and isinstance(node, ast.Call):
        # what a class that nobody knows makes may be a model or an optimizer, one for each way to this call
        return interp.opaque(f"<made by {interp.control.path}>", "call", node)
    return UNKNOWN


def _takes(cls: Class, arguments: Arguments) -> bool:
    """Whether a class can be made with arguments: one of several that cannot is not the one that is meant."""
    init = cls.find("__init__")
    if arguments.open or arguments.star or type(init) is not Function or isinstance(init.node, ast.Lambda):
        return True
    given = init.node.args
    if init.node.decorator_list or given.vararg is not None:
        return True
    named = [each.arg for each in (*given.args, *given.kwonlyargs)]
    if given.kwarg is None and not arguments.keywords.keys() <= {*named}:
        return False
    by_position = [*given.posonlyargs, *given.args][1:]
    if len(arguments.positions) > len(by_position):
        return False
    needed = [each.arg for each in by_position[: len(by_position) - len(given.defaults)]]
    needed = needed[len(arguments.positions) :]
    needed += [each.arg for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return arguments.keywords.keys() >= {*needed}


def _log_own_optimizer(interp: Interpreter, callee: Bound, arguments: Arguments, node: ast.AST) -> None:
    """An optimizer of the project's own steps as any other does."""
    receiver = callee.receiver
    if type(receiver) is Instance and any(
        libraries.kind_of(name) in ("optimizer", "scheduler") for name in receiver.cls.externals()
    ):
        name = callee.function.name
        interp.event("step" if name == "step" else "zero_grad", node, name, receiver, arguments)


def prepended(receiver: Value, arguments: Arguments) -> Arguments:
    """The arguments with one more in front."""
    return Arguments(
        [Passed(receiver), *arguments.positions], arguments.keywords, arguments.open, arguments.star, arguments.rest
    )


def completed(first: Arguments, second: Arguments) -> Arguments:
    """The arguments of a partial with those of its call."""
    return Arguments(
        [*first.positions, *second.positions],
        {**first.keywords, **second.keywords},
        first.open or second.open,
        first.star or second.star,
        join(first.rest, second.rest),
    )


def positional(*values: Value) -> Arguments:
    """Arguments by position."""
    return Arguments([Passed(value) for value in values])


def _call_instance(interp: Interpreter, callee: Instance, arguments: Arguments, node: ast.AST) -> Value:
    method = callee.cls.find("__call__")
    if type(method) is Function:
        return call(interp, Bound(callee, method), arguments, node)
    if is_module(callee):
        return forward(interp, callee, arguments, node)
    return _unknown_result(interp, callee, arguments, node)


def _call_made(interp: Interpreter, callee: Made, arguments: Arguments, node: ast.AST) -> Value:
    kind = callee.kind
    if callee.qualname == "torch.nn.*" and len(tensors_passed(arguments)) > 1:
        kind = "criterion"  # one that a file or an option names
    if kind in ("module", "wrapper", "engine"):
        return forward(interp, callee, arguments, node)
    if kind == "criterion":
        tensors = tensors_passed(arguments)
        result = Tensor(frozenset({"loss", "output"}), device_of(tensors), interp.origin(node))
        one = len(callee.arguments.positions) <= 1 and reduces_all(callee.arguments)
        one = one and not callee.attributes.keys() & {"reduction", "reduce"}
        result.scalar = one and libraries.is_scalar_loss(callee.qualname)
        interp.event("criterion", node, callee.qualname, callee, arguments, result)
        return result
    if kind in ("transform", "tokenizer"):
        interp.event("call", node, callee.qualname, callee, arguments)
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), callee)
    if kind == "lossscaler":
        return externals.call_loss_scaler(interp, callee, arguments, node)
    if kind == "progress":
        return access.iterate(interp, callee, node)
    if kind in ("gradmode", "autocast"):  # as a decorator of a value
        return arguments.positions[0].value if arguments.positions else UNKNOWN
    interp.event("call", node, callee.qualname, callee, arguments)
    return _unknown_result(interp, callee, arguments, node)


def call_opaque(interp: Interpreter, callee: Opaque, arguments: Arguments, node: ast.AST) -> Value:
    """A call of something unknown: with tensors it may be a model, a loss, anything that gives a tensor."""
    callee.uses.add("()")
    if tensors_passed(arguments) or elements_passed(arguments):
        callee.uses.add("(tensor)")
        if len(tensors_passed(arguments)) > 1:
            callee.uses.add("(tensors)")
    if interp.loop_depth and (arguments.positions or arguments.keywords or arguments.open):
        interp.event("unknown_call", node, callee.name, callee, arguments)
    result = _unknown_result(interp, callee, arguments, node)
    if type(result) is Tensor and result.foreign and callee.uses & _USES_OF_MODELS:
        result = with_roles(result, frozenset({"output"}))
        if callee.how == "call":
            interp.event("forward", node, callee.name, callee, arguments, result)
    return result


def _unknown_result(interp: Interpreter, callee: Value, arguments: Arguments, node: ast.AST) -> Value:
    tensors = tensors_passed(arguments)
    if tensors or elements_passed(arguments):
        return unknown_of(tensors, interp.origin(node))
    hosts = hosts_passed(arguments)
    if hosts and type(callee) is not Opaque:
        return joined_hosts(hosts)
    hand(interp, arguments, node)
    return access.child(interp, callee, f"()@{getattr(node, 'lineno', 0)}", node, "call")


def hand(interp: Interpreter, arguments: Arguments, node: ast.AST, *, objects: bool = True) -> None:
    """Give values to a call that is not followed: it may call functions, and methods of ``objects``."""
    for value in arguments.values():
        for member in members(value):
            if type(member) in (Function, Bound) or (objects and type(member) in (Instance, Class)):
                interp.handed.append((member, node, interp.control, interp.frame))


def named_member(interp: Interpreter, owner: Value, key: Value | None, node: ast.AST) -> Value:
    """``getattr(owner, key)``: an option's value may be any member of a module."""
    if type(key) is Union:  # a text that something unknown may have replaced is what is meant, where it names one
        named = tuple(each for each in key.values if type(each) is Const) or (UNKNOWN,)
        return join_all(named_member(interp, owner, each, node) for each in named) or UNKNOWN
    name, known = imports.text_of(key), None
    if name is not None and name.isidentifier():
        known = access.read_attribute(interp, owner, name, node)
        if type(key) is not Option or (key.how == config_files.HOW and not isinstance(known, (Unknown, Opaque))):
            return known  # the text or the file names it
    for member in members(owner):
        if type(member) is External:
            known = join(known, External(f"{member.qualname}.*"))
        elif type(member) is ModuleValue:
            imports.run(interp, member.module)
            values = [imports.member(interp, member.module, name) for name in list(member.module.scope.names)]
            own: list[Value] = [each for each in values if isinstance(each, (Function, Class))]
            known = join(known, join_all((own or [each for each in values if type(each) is External])[:8]))
        else:
            held = join_all(member.attributes.values()) if type(member) is Instance else None
            known = join(join(known, held), UNKNOWN)
    return known or UNKNOWN


# --- functions --------------------------------------------------------------------------------------------------------


def decorator(interp: Interpreter, node: ast.expr) -> Value:
    """A decorator's value; of a library's decorator that is called, the name of what is called."""
    if isinstance(node, ast.Call):
        callee = interp.eval(node.func)
        if type(callee) is External:
            arguments = evaluate_arguments(interp, node)
            if libraries.kind_of(callee.qualname) in ("gradmode", "autocast"):
                return externals.call_external(interp, callee.qualname, arguments, node)
            return callee
    return interp.eval(node)


def decorate(interp: Interpreter, function: Function) -> Value:
    """The function behind its decorators: those of libraries change nothing, the project's are executed."""
    value: Value = function
    for each in reversed(function.decorators):
        if type(each) is External and each.qualname in ("torch.compile", "torch.jit.script"):
            if each.qualname == "torch.compile":
                interp.event("compile", function.node, each.qualname, function)
            continue
        under_way = type(each) is Function and interp.active.get(each.node)
        if isinstance(each, (Function, Bound, Partial)) and not under_way:
            changed = call(interp, each, positional(value), function.node)
            if isinstance(changed, (Function, Bound, Partial)):
                value = changed
    return value


def invoke(interp: Interpreter, function: Function, arguments: Arguments, node: ast.AST | None) -> Value:
    """Execute a function's body. ``node`` is the call; None for a function that nobody calls."""
    body = function.node
    interp.called.add(body)
    outer = [given for scope, given in interp.active.get(body, ()) if scope is function.scope]
    if interp.call_depth > DEEPEST or len(outer) > 1 or (outer and _passes_the_same(outer[0], arguments)):
        return interp.summaries.get(body, UNKNOWN)
    count = interp.count(body)
    closure = (body, function.scope)
    is_wrapper = function.scope.parent is not None and closure not in interp.closures  # which wraps what no other does
    is_first = is_wrapper or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))  # or makes one
    interp.closures.add(closure)
    is_long = isinstance(body, ast.Lambda) or len(body.body) > FEW
    most = CONTEXTS_OF_TRAINING if is_long and not is_first else CONTEXTS_OF_REGISTRY
    if count >= CONTEXTS and (count >= most or not (is_first or interp.glance.differs_by_call(body, function.module))):
        if node is not None:
            interp.summarized.append((interp.frame, node, body))
        return interp.summaries.get(body, UNKNOWN)
    result = _execute(interp, function, arguments, node)
    interp.summaries[body] = join(interp.summaries.get(body), result) or result
    return result


def _passes_the_same(first: Arguments, second: Arguments) -> bool:
    """Whether a function that calls itself is given nothing else by which it would take another way."""
    pairs = [(passed, second.keywords.get(name, passed)) for name, passed in first.keywords.items()]
    pairs += zip(first.positions, second.positions, strict=False)
    return not any(_differ(one.value, two.value) for one, two in pairs)


def _differ(one: Value, two: Value) -> bool:
    if isinstance(one, Const) and isinstance(two, Const):
        return one.value != two.value
    return type(one) is type(two) in _TELLING and one is not two


_TELLING = (Instance, Mapping, Class, Function, Bound)


def _execute(interp: Interpreter, function: Function, arguments: Arguments, node: ast.AST | None) -> Value:
    body = function.node
    if access.has_decorator(function, "click.option", "click.argument", "rich_click.option"):
        arguments = completed(options.click_options(interp, function), arguments)
    if access.has_decorator(function, "hydra.main") and not arguments.positions:
        arguments = config_files.given_by_hydra(interp, function)
    up, outer = interp.control, interp.frame
    scope = Scope(function.scope, function.module)
    level = interp.enter("call", node, function)
    interp.frame = frame = interp.frames[level] = Frame(function, scope, function.module, arguments=arguments)
    interp.call_depth += 1
    active = interp.active.get(body, ())
    interp.active[body] = (*active, (function.scope, arguments))
    bind_parameters(interp, function, arguments, scope, node)
    for value, place in zip(function.decorators, getattr(body, "decorator_list", ()), strict=True):
        if stops_gradients(value):
            interp.enter("no_grad", place)
        elif any(type(each) is Made and each.kind == "autocast" for each in members(value)):
            interp.enter("with", place, (None, value))
    if isinstance(body, ast.Lambda):
        frame.returned = interp.eval(body.body)
    elif interp.block(body.body):
        frame.returned = join(frame.returned, NONE)
    interp.active[body] = active
    interp.call_depth -= 1
    interp.control, interp.frame = up, outer
    if interp.glance.is_generator(body, function.module):
        yielded = frame.yielded or UNKNOWN
        if access.has_decorator(function, "contextlib.contextmanager", "contextlib.asynccontextmanager"):
            return yielded
        return Iterated(yielded, function, "generator", Origin(node or body, level.module or function.module))
    return frame.returned or UNKNOWN


def stops_gradients(value: Value) -> bool:
    """Whether a decorator switches gradients off."""
    for member in members(value):
        if type(member) is External and member.qualname in ("torch.no_grad", "torch.inference_mode"):
            return True
        if type(member) is Made and member.kind == "gradmode":
            if member.qualname in ("torch.no_grad", "torch.inference_mode"):
                return True
            mode = member.arguments.get("mode", 0)
            if member.qualname == "torch.set_grad_enabled" and mode is not None:
                return type(mode.value) is Const and mode.value.value is False
    return False


def bind_parameters(
    interp: Interpreter, function: Function, arguments: Arguments, scope: Scope, node: ast.AST | None
) -> None:
    """Give a function's parameters their values."""
    declared = function.node.args
    ordinary, parameters = _parameters(declared)
    names = scope.names
    positions = arguments.positions
    used: set[str] = set()
    maybe = arguments.open or arguments.star
    for index, (name, parameter, default) in enumerate(parameters):
        passed = positions[index] if index < len(positions) and index < ordinary else None
        if passed is None:
            passed = arguments.keywords.get(name)
            if passed is not None:
                used.add(name)
        if passed is None:
            names[name] = _default(interp, function, parameter, default, node, maybe, arguments)
        elif passed.must:
            names[name] = passed.value
        else:
            otherwise = _default(interp, function, parameter, default, node, maybe, arguments)
            names[name] = join(passed.value, otherwise) or UNKNOWN
    if declared.vararg is not None:
        rest = [passed.value for passed in positions[ordinary:]]
        unknown = arguments.star or node is None
        names[declared.vararg.arg] = Sequence(
            None if unknown else rest, interp.control, None, "tuple", join_all(rest) if unknown else None
        )
    if declared.kwarg is not None:
        mapping = Mapping(interp.control, None, {}, arguments.open or node is None, arguments.rest)
        for name, passed in arguments.keywords.items():
            if name not in used:
                place = passed.node or passed.entry
                module = passed.entry_module or interp.control.module or function.module
                origin = Origin(place, module) if place is not None else None
                mapping.entries[name] = Entry(passed.value, passed.must, origin)
        names[declared.kwarg.arg] = mapping


def parameters_given(function: Function, arguments: Arguments) -> dict[str, list[ast.expr]]:
    """The expressions that are passed for each parameter of a function; none for one out of ``*values``."""
    declared = function.node.args
    ordinary, known = _parameters(declared)
    given: dict[str, list[ast.expr]] = {}
    for index, passed in enumerate(arguments.positions):
        name = known[index][0] if index < ordinary else getattr(declared.vararg, "arg", None)
        if name is not None:
            given.setdefault(name, []).extend([passed.node] if passed.node is not None else [])
    names = {name for name, _, _ in known}
    for keyword, passed in arguments.keywords.items():
        name = keyword if keyword in names else getattr(declared.kwarg, "arg", None)
        if name is not None:
            given.setdefault(name, []).extend([passed.node] if passed.node is not None else [])
    return given


@once_per_node
def _parameters(declared: ast.arguments) -> tuple[int, list[tuple[str, ast.arg, ast.expr | None]]]:
    """How many parameters may be passed by position; and all that have a name of their own, with their defaults."""
    ordinary = [*declared.posonlyargs, *declared.args]
    defaults = [*[None] * (len(ordinary) - len(declared.defaults)), *declared.defaults, *declared.kw_defaults]
    named = [*ordinary, *declared.kwonlyargs]
    return len(ordinary), [(each.arg, each, default) for each, default in zip(named, defaults, strict=True)]


def _default(  # noqa: PLR0913
    interp: Interpreter,
    function: Function,
    parameter: ast.arg,
    default: ast.expr | None,
    node: ast.AST | None,
    maybe: bool,
    arguments: Arguments,
) -> Value:
    """The value of a parameter that is not passed, as far as one sees."""
    if default is None:
        unknown = interp.opaque(parameter.arg, "parameter", parameter)
        if maybe and arguments.rest is not None:
            return join(arguments.rest, unknown) or unknown
        return unknown
    value = default_value(interp, function, default)
    if node is not None and not maybe:
        return value
    unwrapped = externals.option_default(value)
    if type(unwrapped) is Const and unwrapped.value is not None:
        how = "parameter" if unwrapped is value else "typer"
        origin = unwrapped.origin if unwrapped is not value else Origin(default, function.module)
        return Option(parameter.arg, unwrapped, origin, how, isinstance(unwrapped.value, bool))
    return join(value, interp.opaque(parameter.arg, "parameter", parameter)) or UNKNOWN


def default_value(interp: Interpreter, function: Function, default: ast.expr) -> Value:
    """A default, evaluated where the function was defined."""
    if isinstance(default, ast.Constant):
        return Const(default.value, Origin(default, function.module))
    outer = interp.frame
    interp.frame = Frame(None, function.scope, function.module)
    value = interp.eval(default)
    interp.frame = outer
    return value


# --- classes ----------------------------------------------------------------------------------------------------------


def is_module(value: Instance) -> bool:
    """Whether an object of the project is a torch module: by its bases, or a ``forward`` beside a library's base."""
    bases = value.cls.externals()
    if _has_module(bases):
        return True
    return type(value.cls.find("forward")) is Function and any(map(_may_be_module, bases))


@lru_cache(maxsize=1024)
def _has_module(bases: tuple[str, ...]) -> bool:
    return any(
        name in libraries.MODULE_BASES or libraries.kind_of(name) in ("module", "criterion", "wrapper")
        for name in bases
    )


def _may_be_module(base: str) -> bool:
    """Whether a class may derive from a module: it is another library's, and nothing else that is known."""
    own = base.startswith(("torch.", "builtins.", "abc.", "typing.", "enum."))
    return not own and libraries.kind_of(base) is None


_OF_LOSSES = regex(r"(Loss(?!Net)|Criterion|CrossEntropy|LabelSmoothing)(?=[A-Z0-9_]|$)")


def is_criterion(value: Instance) -> bool:
    """Whether a module of the project computes a loss, by its bases or the name of its class."""
    if "criterion" in map(libraries.kind_of, value.cls.externals()):
        return True
    name = value.cls.node.name
    return (name.lower().endswith(("loss", "criterion")) or _OF_LOSSES.search(name) is not None) and is_module(value)


def new_instance(interp: Interpreter, cls: Class, node: ast.AST) -> Instance:
    """An object of the class, before its ``__init__``."""
    instance = Instance(cls, interp.origin(node), interp.control)
    for qualname in cls.externals():
        if libraries.kind_of(qualname) == "argparse":
            instance.base = interp.make(qualname, "argparse", Arguments(), node, log=False)
    return instance


def construct(interp: Interpreter, cls: Class, arguments: Arguments, node: ast.AST) -> Instance:
    """Make an object of a class of the project."""
    instance = new_instance(interp, cls, node)
    instance.arguments = arguments
    interp.event("construct", node, cls.node.name, None, arguments, instance)
    init = cls.find("__init__")
    if type(init) is Function:
        key = cls.node
        count = interp.count(key)
        earlier = interp.instances.get(key)
        if count >= CONSTRUCTIONS and earlier is not None:
            instance.attributes.update(earlier.attributes)
            instance.base = earlier.base
            return instance
        call(interp, Bound(instance, init), arguments, node)
        interp.instances[key] = instance
        return instance
    interp.instances[cls.node] = instance
    if fields := fields_of(cls):
        _fill_fields(interp, instance, fields, arguments)
        finish = cls.find("__post_init__")
        if type(finish) is Function:
            call(interp, Bound(instance, finish), Arguments(), node)
    elif instance.base is None:
        make_base(interp, instance, arguments, node)
    return instance


def make_base(interp: Interpreter, instance: Instance, arguments: Arguments, node: ast.AST) -> None:
    """What the constructor of the external base makes: a loader for DataLoader's, layers for Sequential's."""
    for qualname in instance.cls.externals():
        if qualname in externals.LAYERED:
            inner = externals.layers(interp, qualname, arguments, node)
            instance.attributes[LAYERS] = interp.make(qualname, "module", arguments, node, inner, log=False)
        if is_module(instance):
            continue
        kind = libraries.kind_of(qualname)
        if qualname in config_files.COMMAND_LINES:
            instance.base = config_files.command_line(interp, qualname, arguments, node)
            instance.attributes |= instance.base.attributes
            return
        if kind in _BASES_MADE and qualname not in ("torch.utils.data.Dataset", "torch.utils.data.IterableDataset"):
            if kind == "argparse":
                return
            instance.base = interp.make(qualname, kind, arguments, node)
            return


def fields_of(cls: Class) -> list[tuple[ast.AnnAssign, Class]]:
    """The fields of a dataclass, its bases' first; nothing for other classes."""
    if not cls.is_dataclass:
        return []
    found: dict[str, tuple[ast.AnnAssign, Class]] = {}
    for owner in reversed(cls.mro()):
        if type(owner) is Class:
            for statement in owner.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    found[statement.target.id] = (statement, owner)
    return list(found.values())


def _fill_fields(
    interp: Interpreter, instance: Instance, fields: list[tuple[ast.AnnAssign, Class]], arguments: Arguments
) -> None:
    for index, (statement, owner) in enumerate(fields):
        assert isinstance(statement.target, ast.Name)
        name = statement.target.id
        passed = arguments.get(name, index)
        default = field_default(interp, statement, owner)
        if passed is not None and passed.must:
            instance.attributes[name] = passed.value
        elif passed is not None:
            instance.attributes[name] = join(passed.value, default) or UNKNOWN
        elif arguments.open or arguments.star:
            instance.attributes[name] = join(default, UNKNOWN) or UNKNOWN
        elif default is not None:
            instance.attributes[name] = default
        else:
            instance.attributes[name] = interp.opaque(name, "parameter", statement)


def field_default(interp: Interpreter, statement: ast.AnnAssign, owner: Class) -> Value | None:
    """The default of a dataclass field, through ``field(default=...)``."""
    assert isinstance(statement.target, ast.Name)
    value = owner.names.get(statement.target.id)
    if isinstance(statement.value, ast.Call):
        for keyword in statement.value.keywords:
            if keyword.arg == "default":
                return default_in_class(interp, keyword.value, owner)
            if keyword.arg in ("default_factory", "factory"):
                factory = default_in_class(interp, keyword.value, owner)
                return call(interp, factory, Arguments(), statement.value)
        if statement.value.args and isinstance(statement.value.args[0], ast.Constant):
            return default_in_class(interp, statement.value.args[0], owner)  # pydantic's Field(...)
        return None if isinstance(value, (Opaque, Unknown)) else value
    return value


def default_in_class(interp: Interpreter, node: ast.expr, owner: Class) -> Value:
    """An expression of a class body, evaluated in its module."""
    outer = interp.frame
    interp.frame = Frame(None, owner.module.scope, owner.module)
    value = interp.eval(node)
    interp.frame = outer
    return value


def _log_move_of_objects(interp: Interpreter, callee: Union, arguments: Arguments, node: ast.AST) -> None:
    """Where ``x.to(device)`` moves a tensor or an object whose class has its own ``to``, log that it moves both."""
    names = {each.name for each in callee.values if type(each) is Method and type(each.receiver) is Tensor}
    for name in names & {"to", "cuda"}:
        for member in callee.values:
            if type(member) is Bound:
                interp.event("transfer", node, name, member.receiver, arguments)


LAYERS = "<layers>"
"""Where an object keeps what it gave the constructor of ``Sequential``."""

# --- models and loaders -----------------------------------------------------------------------------------------------


def forward(interp: Interpreter, model: Instance | Made, arguments: Arguments, node: ast.AST) -> Value:
    """Call a model."""
    tensors = tensors_passed(arguments)
    place = surest(device_of(tensors), model.device)
    bases = _unwrapped(model)
    loss, holds = False, not bases  # what wraps a model that nobody knows gives what that gives
    for base in bases:
        if isinstance(base, Instance):
            loss = loss or is_criterion(base)
        else:
            holds = holds or not libraries.returns_tensor(base.qualname)
    qualname = model.qualname if isinstance(model, Made) else model.cls.node.name
    roles = (_LOSS if loss else _OUTPUT) | (_HOLDER if holds else NO_ROLES)
    half = True in map(_HALF, tensors)
    half = half if loss else True in [gives_half(base, half=half) for base in bases]
    result = Tensor(roles, place, interp.origin(node), model, False, False, None, half)
    event = interp.event("criterion" if loss else "forward", node, qualname, model, arguments, result)
    returned: Value | None = None
    up = interp.control
    for number, base in enumerate(bases):
        if isinstance(base, Instance):
            method = base.cls.find("forward")
            if type(method) is Function:
                if len(bases) > 1:
                    interp.enter("choice", node, number)
                given = _run_forward(interp, Bound(base, method), arguments, node)
                interp.control = up
                returned = join(returned, given)
                place = surest(place, base.device)
            elif type(layers := base.attributes.get(LAYERS)) is Made:
                _forward_layers(interp, layers, arguments, node)
        elif base.kind == "module" and base.inner is not None:
            _forward_layers(interp, base, arguments, node)
    if returned is None:
        event.returned = join(event.returned, result)
        return result
    if model.device in ("cuda", "conditional"):
        place = model.device
    output = _as_output(returned, Tensor(roles, place, interp.origin(node), model, False, False, None, half))
    event.returned = join(event.returned, output)
    return output


def _run_forward(interp: Interpreter, forward: Bound, arguments: Arguments, node: ast.AST) -> Value:
    """Execute the code of a model's call; once where a name is the model or the same model in one of several wrappers.

    Whichever it is that is called, the same code runs there. The calls in it count as often as they are made, so that
    fewer contexts of a function are executed in a program that has many.
    """
    key = forward.receiver, arguments
    if key in interp.forwarded:
        value, counted = interp.forwarded[key]
        for body in counted:
            interp.counts[body] = interp.counts.get(body, 0) + 1
        return value
    before = len(interp.counted)
    value = call(interp, forward, arguments, node)
    interp.forwarded[key] = value, interp.counted[before:]
    return value


def gives_half(model: Value, *, half: bool) -> bool:
    """Whether a module's result has 16 bits under autocast, where ``half`` says so of its input; yes if unknown."""
    if type(model) is not Made or not model.qualname.startswith("torch.nn."):
        return True
    if model.qualname != "torch.nn.Sequential":
        return libraries.precision_of(model.qualname, half=half)
    if type(model.inner) is not Sequence or model.inner.items is None:
        return True
    for layer in model.inner.items:
        half = any(gives_half(member, half=half) for member in members(layer))
    return half


def _unwrapped(model: Value, depth: int = 4) -> list[Instance | Made]:
    """The modules inside wrappers (DataParallel, an engine)."""
    if type(model) is Made and model.kind in ("wrapper", "engine") and model.inner is not None and depth:
        return [base for member in members(model.inner) for base in _unwrapped(member, depth - 1)]
    return [model] if isinstance(model, (Instance, Made)) else []


def _forward_layers(interp: Interpreter, model: Made, arguments: Arguments, node: ast.AST) -> None:
    """The project's own layers in a ``Sequential``, so that what they do is seen."""
    tensors = tensors_passed(arguments)
    value: Value = tensors[0] if tensors else UNKNOWN
    for inner in members(model.inner):
        if type(inner) is Sequence:
            for layer in (*(inner.items or ()), *members(inner.element)):
                for member in members(layer):
                    if type(member) is Instance and is_module(member):
                        value = forward(interp, member, positional(value), node)
                    elif type(member) is Made and member.kind == "module":
                        interp.event("forward", node, member.qualname, member, positional(value))
                        if member.inner is not None:
                            _forward_layers(interp, member, positional(value), node)


def _as_output(value: Value, output: Tensor, depth: int = 0) -> Value:
    """What a project's ``forward`` returned, as a model's output."""
    if type(value) is Tensor:
        roles = (value.roles - {"batch", "data", "maybe_output"}) | output.roles
        half = value.half or (output.half and "maybe_output" in value.roles)
        roles |= {"object"} if value.roles & {"object", "maybe_output"} else frozenset()
        return Tensor(
            roles, output.device, output.origin, output.source, value.detached, False, value.scaled_from, half
        )
    if type(value) is Sequence and value.items is not None and depth < 2:
        return Sequence(
            [_as_output(item, output, depth + 1) for item in value.items], value.made_at, value.origin, value.kind
        )
    if type(value) is Union:
        return join_all(_as_output(member, output, depth + 1) for member in value.values) or output
    if isinstance(value, (Mapping, Instance, Iterated, Const, Sequence, Host, Computed)):
        return value
    return output


def batch_of(interp: Interpreter, loader: Made, node: ast.AST) -> Value:
    """What iterating a loader gives: tensors on the CPU, unless its dataset or collate function says otherwise."""
    prepared = loader.attributes.get("prepared")
    place: Device = "conditional" if prepared is not None else "cpu"
    batch = Tensor(frozenset({"batch"}), place, interp.origin(node), loader)
    dataset = loader.arguments.get("dataset", 0)
    collate = loader.arguments.get("collate_fn", libraries.loader_parameters().index("collate_fn"))
    items: Value | None = None
    for member in members(dataset.value) if dataset is not None else ():
        items = join(items, _item_of(interp, loader, member, node))
    devices = {tensor.device for tensor in tensors_in(items)}
    if devices in ({"cuda"}, {"conditional"}, {"cuda", "conditional"}):
        place = "cuda" if devices == {"cuda"} else "conditional"
        batch = Tensor(batch.roles, place, batch.origin, loader)
    if collate is None or not any(
        isinstance(each, (Function, Bound, Instance, Partial)) for each in members(collate.value)
    ):
        return batch
    several = Sequence(None, None, interp.origin(node), "list", items or UNKNOWN)
    collated = _in_worker(interp, (loader, "collate"), collate.value, positional(several), node)
    return _as_batch(collated, batch) if collated is not None else batch


def _item_of(interp: Interpreter, loader: Made, dataset: Value, node: ast.AST) -> Value | None:
    """An item of a dataset: what its ``__getitem__`` or ``__iter__`` gives."""
    if type(dataset) is Instance:
        method = dataset.cls.find("__getitem__")
        if type(method) is Function:
            return _in_worker(interp, dataset, Bound(dataset, method), positional(NUMBER), node)
        method = dataset.cls.find("__iter__")
        if type(method) is Function:
            found = _in_worker(interp, dataset, Bound(dataset, method), Arguments(), node)
            return found.element if type(found) is Iterated else found
    if type(dataset) is Made:
        if dataset.qualname == "torch.utils.data.TensorDataset":
            return Sequence([passed.value for passed in dataset.arguments.positions], None)
        if (
            dataset.qualname in ("torch.utils.data.Subset", "torch.utils.data.ConcatDataset")
            and dataset.arguments.positions
        ):
            inner = dataset.arguments.positions[0].value
            found = None
            for member in members(access.element_of(inner) if type(inner) is Sequence else inner):
                if member is not dataset:
                    found = join(found, _item_of(interp, loader, member, node))
            return found
        if dataset.kind == "dataset" and dataset.inner is not None:
            return join_all(_item_of(interp, loader, member, node) for member in members(dataset.inner))
    if type(dataset) is Sequence:
        return access.element_of(dataset)
    if type(dataset) is Tensor:
        return dataset
    return None


def _in_worker(interp: Interpreter, key: object, function: Value, arguments: Arguments, node: ast.AST) -> Value | None:
    """Run what a loader's workers run, once, apart from the loop that reads the loader."""
    known = interp.fetched.get(key)
    if known is not None:
        return known
    interp.fetched[key] = UNKNOWN
    up, depth = interp.control, interp.loop_depth
    interp.control, interp.loop_depth = interp.new_root("worker"), 0
    value: Value | None = None
    for member in members(function):
        if type(member) is Bound:
            value = join(value, invoke(interp, member.function, prepended(member.receiver, arguments), None))
        elif type(member) is Function:
            value = join(value, invoke(interp, member, arguments, None))
        else:
            value = join(value, call(interp, member, arguments, node))
    interp.control, interp.loop_depth = up, depth
    interp.fetched[key] = value or UNKNOWN
    return value


def _as_batch(value: Value, batch: Tensor, depth: int = 0, alone: bool = True) -> Value:
    """What a collate function returned, as a batch of the loader; ``alone``: it is that on every path."""
    if type(value) is Tensor:
        place = value.device if value.device in ("cuda", "conditional") else batch.device
        # what a model, or a call that is not seen through, made may be an object that holds tensors
        roles = batch.roles | {"object"} if alone and (value.foreign or "object" in value.roles) else batch.roles
        return Tensor(roles, place, batch.origin, batch.source)
    if type(value) is Opaque and value.how == "call" and _is_made_by_class(value):
        return Opaque(value.name, value.how, value.origin, value.depth, batch.source)
    if type(value) is Sequence and value.items is not None and depth < 3:
        items = [_as_batch(item, batch, depth + 1) for item in value.items]
        return Sequence(items, value.made_at, value.origin, value.kind)
    if type(value) is Sequence and depth < 3 and any(True for _ in tensors_in(value.element)):
        each = _as_batch(value.element or UNKNOWN, batch, depth + 1)
        return Sequence(None, value.made_at, value.origin, value.kind, each)
    if isinstance(value, Mapping) and depth < 3:
        entries = {
            key: Entry(_as_batch(entry.value, batch, depth + 1), entry.must, entry.origin)
            for key, entry in value.entries.items()
        }
        element = _as_batch(value.element, batch, depth + 1) if value.element is not None else None
        return Mapping(value.made_at, value.origin, entries, value.open, element)
    if type(value) is Union:
        # a container beside it shows what it is: the call that is not seen through is a blank path then
        alone = not any(isinstance(member, (Sequence, Mapping)) for member in value.values)
        return join_all(_as_batch(member, batch, depth + 1, alone) for member in value.values) or batch
    if isinstance(value, (Instance, Sequence)):
        return value
    return batch


def _is_made_by_class(value: Opaque) -> bool:
    """Whether an unknown is an object of a class that the project does not hold: ``boxlib.Boxes()``."""
    is_class = value.name.endswith("()") and value.name[:-2].rpartition(".")[2][:1].isupper()
    return is_class and not value.name.startswith(libraries.LIKE_TENSORS)
