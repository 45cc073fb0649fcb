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
    """An option's default, or the flag that has none: where it stands, what it is to be, and how the user knows it."""

    site: Site
    option: str
    value: str = THERE


def turned_on(argument: Argument, value: str = THERE) -> TurnedOn | None:
    """How an option that decides is turned on; None where no option does, or its default was not seen."""
    site = argument.edit_at or argument.flag
    return TurnedOn(site, said(argument), value) if argument.option is not None and site is not None else None


def off_by_default(plan: TurnedOn) -> Evidence:
    """The option, which is off."""
    return Evidence(f"{plan.option} is off by default", plan.site)


def turn_on(plan: TurnedOn, edit: Edit) -> None:
    """Give the option another default; a flag also gets its opposite (``--no-cuda``), so that it can be turned off.

    Raises Refuse where the default is no plain False, or what makes the option is no call of ``argparse``.
    """
    site, node = plan.site, node_of(edit, plan.site)
    value = filled(plan.value, edit, site)
    if edit.in_data(site):
        edit.replace(site, value)
        return
    if isinstance(node, ast.Constant) and node.value is False:
        edit.replace(site, value)
        mend_help(edit, site, "False", value)
        return
    given = {each.arg: each.value for each in node.keywords} if isinstance(node, ast.Call) else {}
    action = given.get("action")
    adds = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    if not adds or not isinstance(action, ast.Constant) or action.value != "store_true" or "default" in given:
        raise Refuse(f"the script leaves it to {plan.option}: pass it")
    edit.argument(site, "action", edit.name("argparse.BooleanOptionalAction", site))
    edit.argument(site, "default", value)
