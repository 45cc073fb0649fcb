"""The progress bar of Lightning's trainer, which by default is drawn in every step, and reads what is logged for it."""

from __future__ import annotations

import ast

from turbofix.assumptions import DISPLAY_ONLY, ON_GPU
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, Refusal, Site
from turbofix.records import dataclass
from turbofix.training.evidence import of_value
from turbofix.training.model import Training, TrainingProgram

from ._pages import Page, page_of, pages_of
from ._syncs import INTERVAL
from ._trainers import on_gpu as trains_on_gpu

BAR = "enable_progress_bar"
SLOWER = f"TQDMProgressBar(refresh_rate={INTERVAL})"


@dataclass(frozen=True)
class Slower:
    """Lightning's trainer, its callbacks, and the bar that it is to get."""

    trainer: Site
    callbacks: Site | None
    bar: str


def bar_of(codemod: Codemod, program: TrainingProgram, training: Training, unknown: str | None) -> Finding | Refusal:
    """The bar of Lightning's trainer, which by default is drawn in every step, and reads what is logged for it."""
    message = "the progress bar reads this value back in every step: the host waits for the GPU"
    given, bar = training.argument("callbacks"), training.argument(BAR)
    old = training.module is not None and training.module.old is not None
    reason = unknown
    if training.parsed or training.open_mapping:
        reason = "what callbacks there are is said elsewhere"
    elif old or (bar.state != "absent" and bar.values != (True,)):
        reason = "whether there is such a bar is not known"
    elif given.state != "absent" and (given.site is None or list_at(pages_of(program)(given.site), given.site) is None):
        reason = "its callbacks are no list that is written down"
    if reason is not None:
        return codemod.refuse(training.in_bar[0], message, f"{reason}; give the trainer `{SLOWER}` among its callbacks")
    seen = (of_value("callbacks", given, training.site),)
    rests = (DISPLAY_ONLY,) if trains_on_gpu(training) else (DISPLAY_ONLY, ON_GPU)
    plan = Slower(training.site, given.site, f"{training.qualname.rpartition('.')[0]}.callbacks.TQDMProgressBar")
    return codemod.finding(training.in_bar[0], message, plan=plan, evidence=seen, assumes=rests)


def list_at(page: Page, site: Site) -> ast.expr | None:
    """The list that an expression is, as it stands there or as the one statement that makes it has it."""
    node = page.node(site)
    made = page.writes(node.id, page.scope(node)) if isinstance(node, ast.Name) else []
    value = made[0].value if len(made) == 1 and isinstance(made[0], ast.Assign) else node
    while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        value = value.left  # `[a, b] + more`
    return node if isinstance(node, ast.expr) and isinstance(value, ast.List) else None


def slow_down(edit: Edit, plan: Slower) -> None:
    """Give a trainer a bar that is drawn every so many steps."""
    given = plan.callbacks
    shown = f"{edit.name(plan.bar, plan.trainer)}(refresh_rate={INTERVAL})"
    if given is None:
        edit.argument(plan.trainer, "callbacks", f"[{shown}]")
        return
    node = list_at(page_of(edit, given), given)
    text = edit.text(given)
    if isinstance(node, ast.List):
        text = f"{text[:-1].rstrip().rstrip(',')}, {shown}]" if node.elts else f"[{shown}]"
    edit.replace(given, text if isinstance(node, ast.List) else f"[*{text}, {shown}]")
