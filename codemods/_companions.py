"""What goes along with an optimizer from its construction to the step: a schedule."""

from __future__ import annotations

from turbofix.editing.edit import Refuse
from turbofix.training.model import Act, Optimizer

from ._scaler import holds


def companion_names(optimizer: Optimizer, update: Act, word: str) -> tuple[str, str]:
    """What goes along with an optimizer is called so beside its construction, and so in the step.

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


def beside(optimizer: str, word: str) -> str:
    """The name of what goes along beside an optimizer's: ``self.optimizer`` gives ``self.scaler``."""
    owner, dot, _ = optimizer.rpartition(".")
    return f"{owner}{dot}{word}"
