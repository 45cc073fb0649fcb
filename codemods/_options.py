"""What a script leaves to whoever starts it: how an option that is off by default is turned on."""

from __future__ import annotations

from turbofix.assumptions import OPTION_DEFAULT, Assumption
from turbofix.codemod import Codemod, SharedPlan
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, Refusal, Site
from turbofix.records import dataclass
from turbofix.training.model import Argument

from ._loaders import mend_help, reason_beside
from ._precision import filled, said

THERE = "{torch.cuda.is_available}()"


@dataclass(frozen=True)
class TurnedOn(SharedPlan):
    """A literal, an option's default, or the flag that has none: where it stands, what it is to be, and its name."""

    site: Site
    option: str
    value: str = THERE

    def write(self, _: Site, edit: Edit) -> None:
        """Give the option another default; a flag also gets its opposite (``--no-cuda``), so that it can be turned off.

        Raises Refuse where another kind of value stands there, or what makes the option is no call of ``argparse``.
        """
        site = self.site
        value = filled(self.value, edit, site)
        if edit.in_data(site):
            edit.replace(site, value)
            return
        old = edit.text(site)
        if old == "False" or (old[:1] in ("'", '"') and self.value.startswith('"')):
            edit.replace(site, value)
            mend_help(edit, site, old.strip("'\""), value.strip("'\""))
            return
        call = edit.call(site) if site.kind == "Call" else None
        flag = call is not None and (call.value("action") or "").strip("'\"") == "store_true"
        if call is None or not flag or not call.name.endswith(".add_argument") or call.value("default") is not None:
            raise Refuse(f"the script leaves it to {self.option}: pass it, or turn it on there")
        edit.argument(site, "action", edit.name("argparse.BooleanOptionalAction", site))
        edit.argument(site, "default", value)


def turned_on(argument: Argument, value: str = THERE) -> TurnedOn | None:
    """How what decides is turned on: a flag or a literal; None where that was not seen.

    ``value`` is written where False stands, what the script itself compares with where another value does.
    """
    site, wanted = argument.edit_at or argument.flag, argument.wanted
    if wanted is not None and not isinstance(wanted, bool):
        value = f'"{wanted}"' if isinstance(wanted, str) else repr(wanted)
    if site is None or not (decides(argument) or wanted is not None):
        return None
    return TurnedOn(site, said(argument), value)


def decides(argument: Argument) -> bool:
    """Whether an option, or what stands elsewhere than in the call, says what an argument is."""
    return argument.option is not None or argument.edit_at not in (None, argument.site)


def on_defaults(*given: object) -> tuple[Assumption, ...]:
    """What is assumed where an option says what one of some arguments is, or what else is given holds: that nobody
    passes another value."""
    rests = (each.option is not None if isinstance(each, Argument) else bool(each) for each in given)
    return (OPTION_DEFAULT,) if any(rests) else ()


def left_off(  # noqa: PLR0913
    codemod: Codemod,
    site: Site,
    slow: str,
    off: Argument,
    assumes: tuple[Assumption, ...],
    value: str = THERE,
    why_not: str | None = None,
) -> Finding | Refusal:
    """What to say of something slow for whose remedy the script has a switch, which is off."""
    message = f"{slow} unless an option is passed" if off.option else f"{slow}: the script's own switch for it is off"
    plan, off_at = turned_on(off, value), off.edit_at or off.flag
    seen = (Evidence(f"`{off.text}` decides", off.site), Evidence(f"{said(off)}: off by default", off_at))
    reason = why_not or reason_beside(off)
    if plan is None or reason is not None:
        return codemod.refuse(site, message, reason or f"the script leaves it to {said(off)}: pass it", evidence=seen)
    place = site if plan.site.kind == "Call" else plan.site
    return codemod.finding(place, message, plan=plan, evidence=seen, assumes=(*assumes, *on_defaults(off)))
