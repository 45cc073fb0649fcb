"""The gradient scaler that float16 needs: where it is made, how it travels to the step, and what it does there."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.records import dataclass
from turbofix.training.model import Act, Optimizer, Passing, Step, TrainingProgram

from ._loaders import put_above, whole
from ._precision import THERE, autocast_of, requote, test_beside, written


@dataclass(frozen=True)
class Scaling:
    """Where the scaler is made, how it travels, and what it does in the step.

    ``at_home`` is its name beside the optimizer's construction (``made_after``), ``in_step`` in the step. Where it
    cannot go along with the optimizer, it is a name of the step's file. The scale is updated after the statement
    ``update_after``, or after the block that this test heads (``update_after_block``). ``saved_in`` are the mappings
    that hold the optimizer's state in checkpoints, ``loads`` the calls that load it.
    """

    made_after: Site | None
    test: str
    at_home: str
    in_step: str
    travels: tuple[Passing, ...]
    backwards: tuple[Act, ...]
    unscale: tuple[tuple[Site, str], ...]
    updates: tuple[Act, ...]
    update_after: Site
    update_after_block: bool
    saved_in: tuple[Site, ...]
    loads: tuple[Site, ...]


def scaling_for(program: TrainingProgram, step: Step, test: str) -> Scaling:
    """Where the scaler is made, how it travels and what it does; Refuse where that is not known for sure.

    ``test`` is the device test at the forward pass.
    """
    if sum(autocast_of(program, other) is None for other in program.steps) > 1:
        raise Refuse("several training loops would have to share one gradient scaler")
    if "horovod" in program.libraries:
        raise Refuse("horovod's optimizer has to be told before gradients are unscaled")
    if program.processes:
        raise Refuse("the script starts processes of its own, which would not share the gradient scaler")
    for act in (*step.backwards, *step.updates):
        if not act.alone or act.certainty != "seen":
            raise Refuse(f"line {act.site.line} is not a plain call that the scaler could take over")
    if not step.updates or any(update.function != step.updates[0].function for update in step.updates):
        raise Refuse("the optimizers step in different functions")
    if any(backward.function != step.updates[0].function for backward in step.backwards):
        raise Refuse("backward and the optimizer's step stand in different functions")
    position, block = end_of_updates(step.updates)
    # A scaler that starts afresh skips a few updates, until it has found its scale: no reason to go without.
    done = step.backwards, unscalings(program, step), step.updates, position, block
    try:
        optimizers = [optimizer_of(program, update) for update in step.updates]
        last = home_of(optimizers)
        update = next(u for u, o in zip(step.updates, optimizers, strict=True) if o is last)
        at_home, in_step = companion_names(last, update, "scaler")
    except Refuse:
        return Scaling(None, test if test == "True" else THERE, "scaler", "scaler", (), *done, (), ())
    saved = why_not_saved(optimizers, last, step.loop.site.path) is None
    return Scaling(
        last.statement,
        test_at_home(program, last, step, test),
        at_home,
        in_step,
        last.passes,
        *done,
        tuple(save.mapping for save in last.state_saves if save.mapping is not None and saved),
        tuple(load.site for load in last.state_loads if saved),
    )


def home_of(optimizers: list[Optimizer]) -> Optimizer:
    """The optimizer that a scaler can be made beside; Refuse where one is built elsewhere, or not always."""
    home = max(optimizers, key=lambda optimizer: optimizer.statement)
    here = home.function, home.site.path
    if any((o.function, o.site.path) != here or o.in_loop or o.branch is not None for o in optimizers):
        raise Refuse("the optimizers are built in different places, again and again, or under a condition")
    return home


def test_at_home(program: TrainingProgram, optimizer: Optimizer, step: Step, test: str) -> str:
    """The device test where the scaler is made: that of the parameters, else that of the step beside it."""
    home = test_beside(program, optimizer)
    if home is None and (test == "True" or optimizer.function == step.forwards[0].function):
        home = test
    return home or THERE


def why_not_saved(optimizers: list[Optimizer], home: Optimizer, here: Path) -> str | None:
    """Where the state of what goes along cannot be put beside the optimizers' in checkpoints, if anywhere."""
    for optimizer in optimizers:
        if optimizer.state_loads and not optimizer.state_saves:
            return ""
        for save in optimizer.state_saves:
            if save.mapping is None or not within_reach(save.function, home):
                return f" on {save.site.line_from(here)}"
        for load in optimizer.state_loads:
            if not load.alone or not within_reach(load.function, home):
                return f" on {load.site.line_from(here)}"
    return None


def within_reach(function: Site | None, home: Optimizer) -> bool:
    """Whether the scaler's name beside the optimizer's construction is valid in a function."""
    return function == home.function or (home.function is None and "." not in (home.target_text or "."))


def optimizer_of(program: TrainingProgram, update: Act) -> Optimizer:
    """The one optimizer that an update steps; Refuse where it is not known."""
    optimizer = program.optimizer(update.optimizer)
    text = optimizer.target_text if optimizer is not None else None
    twins = [each for each in program.optimizers if each.target_text == text and each.used]
    if optimizer is None or not optimizer.passes_complete or text is None or len(twins) > 1:
        raise Refuse("the optimizer could not be followed from its construction to the step, so no scaler can go along")
    return optimizer


def companion_names(optimizer: Optimizer, update: Act, word: str) -> tuple[str, str]:
    """What goes along with an optimizer is called so beside its construction, and so in the step: ``scaler``.

    It goes along only where the optimizer keeps its name: through parameters, as an attribute, as a global, or not at
    all. Raises Refuse where it is returned, stored or renamed on the way.
    """
    lost = Refuse(f"the optimizer is returned, stored or renamed on its way to the step, so the {word} cannot go along")
    here, there = optimizer.target_text or "", update.concerns
    home = beside(here, word)
    if not optimizer.passes:
        global_ = optimizer.function is None and update.site.path == optimizer.site.path
        if here == there and (here.startswith("self.") or global_ or update.function == optimizer.function):
            return home, home
        raise lost
    holder = optimizer.function
    for hop in optimizer.passes:
        if hop.outside is not None:
            raise Refuse(f"{hop.outside.name} calls the function of the step, too, and would hand it no {word}")
        same_file = holder is None and hop.call.path == optimizer.site.path
        if not same_file and (holder is None or not holds(holder, hop.call)):
            raise lost
        holder = hop.function
    if optimizer.passes[-1].parameter != there or update.function != holder or "." in here:
        raise lost
    return home, word


def holds(function: Site, inner: Site) -> bool:
    """Whether something stands in the text of a function."""
    return function.path == inner.path and function.line <= inner.line <= function.end_line


def beside(optimizer: str, word: str) -> str:
    """The name of what goes along beside an optimizer's: ``self.optimizer`` gives ``self.scaler``."""
    owner, dot, _ = optimizer.rpartition(".")
    return f"{owner}{dot}{word}"


def unscalings(program: TrainingProgram, step: Step) -> tuple[tuple[Site, str], ...]:
    """The backward pass behind which, or the clips before which, gradients are unscaled, with the optimizer's name.

    That happens once between two steps: behind a backward pass that each step follows. Else a clip must run at most
    when its optimizer steps, and the first of several exactly then. Raises Refuse where this is not known.
    """
    sole, names = step.backwards[0], dict.fromkeys(each.receiver_text for each in step.updates)
    there = {each.site for each in program.optimizers if each.branch is None}
    follow = all(
        each.guard.tests == sole.guard.tests or (each.guard.kind == "config" and each.optimizer in there)
        for each in step.updates
    )
    if follow and len(step.backwards) == 1 and step.accumulation is None:
        return tuple((sole.statement, name) for name in names if step.clips or step.grad_reads)
    if step.grad_reads:
        where = step.grad_reads[0].line_from(step.loop.site.path)
        raise Refuse(f"{where} reads gradients by hand, which the scaler would have multiplied")
    first: dict[str, Site] = {}
    for clip in step.clips:
        updates = [update for update in step.updates if clip.optimizer in (None, update.optimizer)]
        named = {update.receiver_text for update in updates}
        if len(named) != 1 or clip.function != updates[0].function:
            raise Refuse(f"it is not known which optimizer's gradients are clipped on line {clip.site.line}")
        tests = updates[0].guard.tests
        if clip.guard.tests[: len(tests)] != tests:
            raise Refuse(
                f"gradients are clipped on line {clip.site.line} under another condition than the step: "
                "unscaling them twice before a step raises"
            )
        if len(step.clips) > 1 and clip.guard.tests != tests:
            raise Refuse(f"gradients are clipped under several conditions (line {clip.site.line})")
        first.setdefault(named.pop(), clip.statement)
    return tuple((site, name) for name, site in first.items())


def end_of_updates(updates: tuple[Act, ...]) -> tuple[Site, bool]:
    """The statement after which the scale is updated, or the test that heads the block after which it is.

    It is the end of the deepest block that holds all updates: a scaler that is not updated after a step raises.
    """
    last = max(updates, key=lambda update: update.statement)
    if len(updates) == 1 or not last.guard.tests:
        return last.statement, False
    if any(update.guard.tests[:1] == last.guard.tests[:1] for update in updates if update is not last):
        raise Refuse("several optimizers step under the same condition, maybe in different branches of it")
    return last.guard.tests[0], True


def scale(scaling: Scaling, edit: Edit, *, old_torch: bool) -> None:
    """Make the scaler, send it along with the optimizer, and let it take over backward, clipping and step."""
    here = scaling.updates[0].site
    home = scaling.made_after or here
    if scaling.made_after is None:
        name = edit.free_name("scaler", here)
        scaling = replace(scaling, at_home=name, in_step=name)
    for place, name in ((home, scaling.at_home), (here, scaling.in_step)):
        if "." not in name and edit.is_bound(name, place):
            raise Refuse(f"the name {name} is taken")
    arguments = [] if old_torch else ['"cuda"']
    test = written(scaling.test, edit, home)
    arguments += [] if test == "True" else [f"enabled={test}"]
    maker = edit.name("torch.cuda.amp.GradScaler" if old_torch else "torch.amp.GradScaler", home)
    line = requote(f"{scaling.at_home} = {maker}({', '.join(arguments)})", edit, home)
    if scaling.made_after is None:
        put_above(edit, top_of(edit, here), line)
    else:
        edit.after(home, line)
    name = scaling.at_home
    for hop in scaling.travels:
        edit.pass_on(hop.call, name, beside=hop.argument)
        edit.parameter(hop.function, "scaler", beside=hop.parameter)
        name = "scaler"
    for backward in scaling.backwards:
        text = edit.text(backward.site)
        receiver, found, rest = text.rpartition(".backward(")
        if not found:
            raise Refuse(f"line {backward.site.line} is not a plain call that the scaler could take over")
        inner = receiver[1:-1] if receiver.startswith("(") and receiver.endswith(")") else receiver
        edit.replace(backward.site, f"{scaling.in_step}.scale({inner}){found}{rest}")
    backwards = {each.statement for each in scaling.backwards}
    for place, optimizer in scaling.unscale:
        put = edit.after if place in backwards else edit.before
        put(place, f"{scaling.in_step}.unscale_({optimizer})")
    for update in scaling.updates:
        if edit.text(update.site) != f"{update.receiver_text}.step()":
            raise Refuse(f"line {update.site.line} is not a plain call that the scaler could take over")
        edit.replace(update.site, f"{scaling.in_step}.step({update.receiver_text})")
    last = scaling.update_after
    if scaling.update_after_block:
        last = edit.statement(last)
        if not edit.text(last).startswith("if "):
            raise Refuse(f"the condition on line {last.line}, under which an optimizer steps, is not a plain if")
    edit.after(last, f"{scaling.in_step}.update()")
    for mapping in scaling.saved_in:
        edit.entry(mapping, "scaler", f"{scaling.at_home}.state_dict()")
    for load in scaling.loads:
        load_state(load, scaling.at_home, edit)


def top_of(edit: Edit, site: Site) -> Site:
    """The statement of the file's top level that holds a place."""
    tops = ast.parse(whole(edit, site)).body
    top = next(each for each in tops if (each.end_lineno or 0) >= site.line)
    return Site(site.path, top.lineno, 0, top.lineno, 1, type(top).__name__)


def load_state(load: Site, scaler: str, edit: Edit) -> None:
    """Load the scaler's state after the optimizer's, where the checkpoint has one.

    A checkpoint that was written before there was a scaler has none; one that was written without a GPU an empty one.
    """
    call = ast.parse(edit.text(load), mode="eval").body
    state = call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None
    if not isinstance(state, ast.Subscript) or not isinstance(state.value, (ast.Name, ast.Attribute)):
        raise Refuse(f"the checkpoint that line {load.line} loads the optimizer's state from has no name")
    checkpoint = ast.unparse(state.value)
    key = edit.quoted("scaler", load)
    edit.after(load, f"if {checkpoint}.get({key}):", f"    {scaler}.load_state_dict({checkpoint}[{key}])")
