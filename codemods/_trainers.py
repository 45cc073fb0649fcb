"""What the settings of a framework's own trainer say (``TrainingArguments(...)``), and how a codemod changes them."""

from __future__ import annotations

from turbofix.assumptions import ON_GPU, OPTION_DEFAULT, Assumption
from turbofix.codemod import Codemod, SharedPlan
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Site
from turbofix.records import dataclass
from turbofix.training.evidence import of_value
from turbofix.training.model import Argument, Called, Training, TrainingProgram

from ._loaders import mend_help
from ._options import turned_on
from ._precision import filled, said
from ._sixteen import keep_wide

CAPABLE = "{torch.cuda.is_available}() and {torch.cuda.get_device_capability}() >= (8, 0)"
"""A test for a GPU that computes in bfloat16: transformers raises for ``bf16=True`` where there is none."""

STEPPING = frozenset(
    ("compute_loss", "training_step", "train", "_inner_training_loop", "autocast_smart_context_manager")
)
"""Methods of a trainer that run the model."""

LOADING = frozenset(("get_train_dataloader", "get_eval_dataloader", "_get_dataloader"))
"""Methods of a trainer that build its loaders."""

OPTIMIZING = frozenset(("create_optimizer", "create_optimizer_and_scheduler", "get_optimizer_cls_and_kwargs"))


@dataclass(frozen=True)
class Switch(SharedPlan):
    """One setting and the value that it is to get; qualified names in braces are written as the file calls them.

    ``value_at`` is where the value stands, outside the call or in it; None where it is added: to the call, or to the
    project's own class of settings, some fields of which may stand at ``beside``, as may the call that fills the
    settings in from the command line, whose defaults are set first. ``islands`` keep 32 bits.
    """

    name: str
    value: str
    value_at: Site | None = None
    beside: tuple[Site, ...] = ()
    islands: tuple[Called, ...] = ()

    def write(self, site: Site, edit: Edit) -> None:
        """Write a setting's value; ``why_not`` has refused calls that unpack what was not read."""
        for kept in self.islands:
            keep_wide(kept, edit)
        stands = {each: edit.statement(each) for each in self.beside if self.value_at is None}
        fields = [each for each, line in stands.items() if line.kind == "AnnAssign" and line.column > 0]
        value = filled(self.value, edit, self.value_at or max(fields, default=site))
        if stands and not fields:
            parser, _, method = (edit.call(site).name if site.kind == "Call" else "").rpartition(".")
            if not parser.isidentifier() or method != "parse_args_into_dataclasses":
                raise Refuse(f"the command line decides over the settings: pass --{self.name}")
            edit.before(site, f"{parser}.set_defaults({self.name}={value})")
            return
        if fields:
            kind = "str" if value.startswith(('"', "'")) else "bool"
            edit.after(max(fields), f"{self.name}: {kind} = {value}")
            return
        if self.value_at is not None:
            old, new = edit.text(self.value_at).strip("'\""), value.partition(" if ")[0].strip("'\"")
            edit.replace(self.value_at, value)
            mend_help(edit, self.value_at, old, f"{new} where there is a GPU")
        else:
            edit.argument(site, self.name, value, spelled_out=True)


MIXED = (16, "16", "bf16", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "transformer-engine")
"""What Lightning's trainer takes for a precision other than full."""

FULL = (32, "32", "32-true")


def on_gpu(training: Training) -> bool | None:
    """Whether Lightning trains on a GPU where there is one; None where that is left to somebody else."""
    given = training.argument("accelerator")
    if given.state == "absent" or (given.known and set(given.values) <= {"auto", "gpu", "cuda"}):
        return True
    never = given.known and given.option is None and not {"auto", "gpu", "cuda"} & set(given.values)
    return False if never else None


def is_sharded(training: Training) -> bool:
    """Whether a strategy or plugin may have a precision, and a way to step, of its own."""
    return shards(training) is not False


def shards(training: Training) -> bool | None:
    """Whether a strategy or plugin takes the model to pieces; None where an option or a test may choose one that does
    not."""
    given = training.argument("strategy")
    if given.state in ("computed", "unknown") or not is_off(training.argument("plugins")):
        return True
    whole = [str(each).startswith(PLAIN) for each in given.values]
    return False if all(whole) else None if any(whole) or given.may_be_absent else True


PLAIN = ("auto", "ddp", "dp")
"""How the strategies of Lightning begin that leave the model whole."""


def called(training: Training) -> str:
    """How a message calls the settings."""
    return f"`{training.qualname.rpartition('.')[2]}`"


def is_off(given: Argument, unless_passed: bool = False) -> bool:
    """Whether a setting is certainly off: not passed, or None, False or an empty text; an option by its default."""
    states = ("value", "option") if unless_passed else ("value",)
    return given.state == "absent" or (given.state in states and given.known and not any(given.values))


def is_on(given: Argument) -> bool:
    """Whether a setting is certainly on, unless the user of the script says otherwise."""
    return given.state in ("value", "option") and bool(given.values) and all(given.values)


_ELSEWHERE = ("use_cpu", "no_cuda", "use_mps_device")


def stays_on_cpu(training: Training) -> bool:
    """Whether the trainer is told to leave the GPU alone."""
    return any(is_on(training.argument(name)) for name in _ELSEWHERE)


def limit(training: Training, setting: str) -> int | None:
    """The largest number that a setting may be, where it is a limit (-1 is none)."""
    given = [each for each in training.argument(setting).values if isinstance(each, (int, float))]
    return int(max(given)) if training.argument(setting).known and given and min(given) > 0 else None


def rests_on_gpu(training: Training) -> tuple[Assumption, ...]:
    """What it rests on that the trainer takes the GPU, where an option or a test of the script's decides."""
    left = [given for given in map(training.argument, _ELSEWHERE) if not is_off(given)]
    return (ON_GPU,) if any(each.text != "not torch.cuda.is_available()" for each in left) else ()


def by_deepspeed(training: Training) -> bool:
    """Whether DeepSpeed may step the model, with a configuration of its own."""
    return not is_off(training.argument("deepspeed"))


def judged(  # noqa: PLR0913
    codemod: Codemod,
    training: Training,
    name: str,
    slow: str,
    right: str,
    value: str = "True",
    assumes: tuple[Assumption, ...] = (),
) -> Finding | Refusal | InPlace | None:
    """What to say of a switch that the settings have; None where nothing sets it.

    An option that is off is turned on, to ``value``, which rests on ``assumes``.
    """
    given = training.argument(name)
    site = given.edit_at or given.site or training.site
    if is_on(given):
        return codemod.in_place(site, right)
    seen = (of_value(name, given, training.site),)
    plan = turned_on(given, value) if OPTION_DEFAULT in codemod.assumes and given.values == (False,) else None
    if plan is not None:
        return codemod.finding(site, slow, plan=plan, evidence=seen, assumes=(OPTION_DEFAULT, *assumes))
    chosen = given.state in ("computed", "unknown", "may")
    if chosen and training.own and training.parsed:
        return codemod.in_place(site, f"{right}, where the settings' own class says so")
    if training.parsed and not chosen:
        return None
    if given.option is not None and given.state == "option":
        return codemod.refuse(site, slow, f"the script leaves it to {said(given)}: pass it", evidence=seen)
    if chosen and given.site is not None:
        return codemod.in_place(site, f"{right}, where `{given.text or '...'}` says so")
    if given.state == "value" and given.values != (None,):
        reason = f"the script sets {name}={given.text or given.values[0]} itself, on purpose as it seems"
        return codemod.refuse(site, slow, reason, evidence=seen)
    return None


def beside(training: Training) -> tuple[Site, ...]:
    """Where settings have their defaults that the command line decides over: the project's own class, or the parser."""
    fields = [
        each.edit_at for each in training.arguments.values() if each.state == "option" and each.edit_at is not None
    ]
    return () if not training.parsed else tuple(fields) if training.own else (training.site,)


def why_not(
    program: TrainingProgram, training: Training, name: str, value: str = "True", as_a_field: bool = False
) -> str | None:
    """Why a setting cannot be changed where it stands, or be added ``as_a_field``, whichever it is."""
    if not program.complete:
        return program.incomplete_because or "the program could not be read to its end"
    added = as_a_field and bool(beside(training))
    absent = training.argument(name).edit_at is None and not added
    if training.parsed and training.site not in program.told_by and absent:
        return f"the command line decides over the settings: pass {training.parsed}{name} {value}"
    if training.open_mapping and not added:
        return f"the call unpacks a mapping that may already hold {name}"
    for setting, site in training.changed:
        if setting in ("", name):
            return f"the script changes the settings afterwards ({site.line_from(training.site.path)})"
    for setting, site in training.reads:
        if setting == name:
            return f"the script reads {name} for something else too ({site.line_from(training.site.path)})"
    return None


def evidence(training: Training, *names: str) -> tuple[Evidence, ...]:
    """The settings in question, and the model."""
    made = tuple(
        Evidence(f"`{model.name}`, built" if model.name else "the model, built", model.site)
        for model in training.models[:2]
    )
    return (*(of_value(name, training.argument(name), training.site) for name in names), *made)
