"""What a script leaves to whoever starts it: how an option that is off by default is turned on."""

from __future__ import annotations

import ast

from turbofix.edits import Edit, Refuse
from turbofix.findings import Evidence, Site
from turbofix.program.model import Argument
from turbofix.records import dataclass

from ._loaders import mend_help, node_of
from ._precision import filled, said

THERE = "{torch.cuda.is_available}()"


@dataclass(frozen=True)
class TurnedOn:
    """A literal, an option's default, or the flag that has none: where it stands, what it is to be, and its name."""

    site: Site
    option: str
    value: str = THERE

    @property
    def is_option(self) -> bool:
        """Whether the user of the script may say otherwise."""
        return self.option.startswith("the option")


def turned_on(argument: Argument, value: str = THERE) -> TurnedOn | None:
    """How what decides is turned on: a flag or a literal; None where that was not seen.

    ``value`` is written where False stands, what the script itself compares with where another value does.
    """
    site, wanted = argument.edit_at or argument.flag, argument.wanted
    if wanted is not None and not isinstance(wanted, bool):
        value = f'"{wanted}"' if isinstance(wanted, str) else repr(wanted)
    named = argument.option is not None or (argument.values == (False,) and site != argument.site)
    return TurnedOn(site, said(argument), value) if site is not None and (named or wanted is not None) else None


def off_by_default(plan: TurnedOn) -> Evidence:
    """What turns it on, and does not."""
    return Evidence(f"{plan.option} is off by default" if plan.is_option else "this is off", plan.site)


def turn_on(plan: TurnedOn, edit: Edit) -> None:
    """Give the option another default; a flag also gets its opposite (``--no-cuda``), so that it can be turned off.

    Raises Refuse where another kind of value stands there, or what makes the option is no call of ``argparse``.
    """
    site, node = plan.site, node_of(edit, plan.site)
    value = filled(plan.value, edit, site)
    if edit.in_data(site):
        edit.replace(site, value)
        return
    old = node.value if isinstance(node, ast.Constant) else None
    if old is False or (isinstance(old, str) and plan.value.startswith('"')):
        edit.replace(site, value)
        mend_help(edit, site, str(old), value.strip("'\""))
        return
    given = {each.arg: each.value for each in node.keywords} if isinstance(node, ast.Call) else {}
    action = given.get("action")
    adds = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    if not adds or not isinstance(action, ast.Constant) or action.value != "store_true" or "default" in given:
        raise Refuse(f"the script leaves it to {plan.option}: {'pass it' if plan.is_option else 'turn it on there'}")
    edit.argument(site, "action", edit.name("argparse.BooleanOptionalAction", site))
    edit.argument(site, "default", value)
