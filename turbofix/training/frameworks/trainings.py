"""The trainings that a framework runs by itself: what its trainer is told, which model it is given, who decides."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from turbofix.dataflow.facts import settled
from turbofix.dataflow.placements import is_none
from turbofix.dataflow.provenance import argument_from, reads_in
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import Class, Const, External, Function, Instance, Made, Sequence, Value, members
from turbofix.source.names import is_main_test
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.data.datasets import dataset_of
from turbofix.training.data.loaders import collate_kind
from turbofix.training.frameworks.lightning import lightning_trainings
from turbofix.training.frameworks.unread import wish_at
from turbofix.training.model import ABSENT, Argument, Dataset, Framework, Precision, Training
from turbofix.training.objects import models_given

_CLASSES = (
    *("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments", "trl.SFTConfig"),
    "sentence_transformers.SentenceTransformerTrainingArguments",
    "sentence_transformers.cross_encoder.CrossEncoderTrainingArguments",
)
"""What tells a trainer of transformers how to train."""

_TRAINERS = (
    *("transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer"),
    *("sentence_transformers.SentenceTransformerTrainer", "sentence_transformers.cross_encoder.CrossEncoderTrainer"),
)
_STARTS = tuple(f"{name}.train" for name in _TRAINERS)

_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")

_READ = ("bf16", "tf32", "dataloader_num_workers", "gradient_checkpointing", *_SIZES)
"""Settings that scripts read for something else, too: ``torch_dtype=torch.bfloat16 if args.bf16 else None``."""

SETTINGS = (
    *("bf16", "fp16", "tf32", "optim", "dataloader_num_workers", "dataloader_persistent_workers"),
    *("dataloader_pin_memory", "gradient_checkpointing", "torch_compile", *_SIZES),
)
"""Settings that are looked after: an assignment to one of them decides, wherever it stands."""

SIXTEEN_SINCE = {"trl.SFTConfig": "trl 0.19"}
"""What computes in bfloat16 unless it is told otherwise, from a version of its library on."""

_SETTERS = ("set_training", "set_optimizer", "set_dataloader", "set_evaluate")
"""Methods of the settings that change them afterwards."""

_STACKING = ("transformers.default_data_collator", "transformers.data.data_collator.default_data_collator")

_PRECISIONS = ("torch_dtype", "dtype")
_QUANTIZING = ("quantization_config", "load_in_8bit", "load_in_4bit")
_FULL = ("torch.float32", "torch.float", "float32", "None")


def trainings(analysis: Analysis, framework: Framework) -> tuple[Training, ...]:
    """Every training that a trainer of transformers or Lightning is asked for, by its settings."""
    if framework is Framework.LIGHTNING:
        return lightning_trainings(analysis)
    if framework is not Framework.TRANSFORMERS:
        return ()
    found: dict[Site, Training] = {}
    for trainer, overrides, resumes in _started(analysis):
        settings = trainer.arguments.get("args", 1)
        for each in members(settings.value) if settings is not None else ():
            training = _training(analysis, each, trainer.arguments, overrides)
            if training is not None:
                training = replace(training, resumes=resumes)
                known = found.get(training.site)
                found[training.site] = training if known is None else _joined(known, training)
    parsed = sorted(site for site in found if found[site].parsed)
    for site in parsed[:-1]:  # from the command line or from a file: the same settings, filled in another way
        del found[site]
    return tuple(found[site] for site in sorted(found))


def _started(analysis: Analysis) -> Iterator[tuple[Made, frozenset[str], bool]]:
    """The trainers that are told to train, with the methods of the project's own class; others only evaluate.

    The last of each says whether it may go on from a checkpoint.
    """
    started = [event for event in analysis.facts.of("call") if event.name in _STARTS]
    if not started:
        return
    own = {
        id(each.base): _methods(each)
        for event in analysis.facts.of("construct")
        for each in members(event.result)
        if isinstance(each, Instance)
    }
    for event in started:
        resumed = event.arguments.get("resume_from_checkpoint", 0) if event.arguments is not None else None
        resumes = resumed is not None and settled(resumed.value) is not False and not _is_nothing(resumed.value)
        for trainer in members(event.receiver):
            made = trainer.base if isinstance(trainer, Instance) else trainer
            if isinstance(made, Made) and made.qualname in _TRAINERS:
                yield made, own.get(id(made), frozenset()), resumes


def _methods(trainer: Instance) -> frozenset[str]:
    """The methods that the project's own class of trainer brings."""
    return frozenset(
        name
        for base in trainer.cls.mro()
        if isinstance(base, Class)
        for name, value in base.names.items()
        if any(isinstance(each, Function) for each in members(value))
    )


def _class_of(settings: Value) -> str | None:
    """The class of settings, if it is one: of the library, or what the project's own class derives from."""
    names: tuple[str, ...] = (settings.qualname,) if isinstance(settings, Made) else ()
    if isinstance(settings, Instance):
        names = settings.cls.externals()
    return next((name for name in names if name in _CLASSES), None)


def _training(analysis: Analysis, settings: Value, given: Arguments, overrides: frozenset[str]) -> Training | None:
    facts = analysis.facts
    qualname = _class_of(settings)
    if qualname is None or not isinstance(settings, (Made, Instance)):
        return None
    origin = settings.origin
    site = facts.origin_site(origin)
    if site is None:
        return None
    passed = settings.arguments
    call = origin.node
    is_parsed = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr[:5] == "parse"
    bound: dict[str, Passed] = dict(passed.keywords) if passed is not None else {}
    if isinstance(settings, Instance):  # what the project's own class sets by its fields
        for name, value in settings.attributes.items():
            if name not in bound and settings.cls.find(name) is not None:
                bound[name] = Passed(value)
    arguments = {
        name: argument_from(each, origin.module, facts, analysis.reads) for name, each in sorted(bound.items())
    }
    model = given.get("model", 0)
    values = list(members(model.value)) if model is not None else []
    models = models_given(analysis, values)
    optimizers = (given.get("optimizers"), given.get("optimizer_cls_and_kwargs"))
    return Training(
        site=site,
        qualname=qualname,
        arguments=arguments,
        open_mapping=passed is None or passed.open or passed.star or len(passed.positions) > 1,
        parsed="--" if is_parsed else None,
        own=isinstance(settings, Instance),
        reads=_reads(analysis, call),
        changed=_changed(analysis, settings),
        models=models,
        precision="other" if any(each.half for each in models) else precision_of(values),
        overrides=overrides,
        own_optimizer=given.open or given.star or any(_is_given(each) for each in optimizers),
        sixteen_since=SIXTEEN_SINCE.get(qualname) if not {"bf16", "fp16"} & bound.keys() else None,
        dataset=_data(analysis, given.get("train_dataset", 3)),
        evaluated=_data(analysis, given.get("eval_dataset", 4)),
        collate=collate_kind(analysis, given.get("data_collator", 2)),  # type: ignore[arg-type]
        wish=wish_at(analysis, call),
        stacks=_stacks(given),
        imported=_is_imported(analysis, call, origin.module),
        again=_has_epochs(arguments) and not any("loader" in each or each == "train" for each in overrides),
    )


def _stacks(given: Arguments) -> bool:
    """Whether a trainer is given no collator and no tokenizer, by which it would pad each batch to its longest."""
    if given.open or given.star:
        return False
    collate = given.get("data_collator", 2)
    if collate is not None and not all(is_none(each) or _names(each) in _STACKING for each in members(collate.value)):
        return False
    tokenizers = (given.get("processing_class", 5), given.get("tokenizer", 5))
    is_default = collate is None or all(is_none(each) for each in members(collate.value))
    return not is_default or all(each is None or all(map(is_none, members(each.value))) for each in tokenizers)


def _names(value: Value) -> str | None:
    return value.qualname if isinstance(value, External) else None


def _is_imported(analysis: Analysis, node: ast.AST, module: ModuleFile) -> bool:
    """Whether a call stands on the top level of a file, under no guard."""
    above = list(analysis.facts.places.ancestors(node, module))
    inner = (*FUNCTIONS, ast.Lambda)
    return not any(isinstance(each, inner) or (isinstance(each, ast.If) and is_main_test(each.test)) for each in above)


def _data(analysis: Analysis, passed: Passed | None) -> Dataset | None:
    """The data that a trainer is given; None where it is given none."""
    if passed is None or all(is_none(each) for each in members(passed.value)):
        return None
    return dataset_of(analysis, passed.value)


def _has_epochs(arguments: Mapping[str, Argument]) -> bool:
    """Whether a trainer of transformers goes through its data more than once: three times unless it is told."""
    if "max_steps" in arguments:
        return False
    epochs = arguments.get("num_train_epochs", ABSENT)
    return epochs.state == "absent" or (
        epochs.known and all(isinstance(each, (int, float)) and each > 1 for each in epochs.values)
    )


def _joined(first: Training, second: Training) -> Training:
    """The same settings, given to two trainers."""
    same = first.precision == second.precision
    return replace(
        first,
        models=tuple(dict.fromkeys((*first.models, *second.models))),
        precision=first.precision if same else "unknown",
        overrides=first.overrides | second.overrides,
        resumes=first.resumes or second.resumes,
        own_optimizer=first.own_optimizer or second.own_optimizer,
        dataset=first.dataset if first.dataset == second.dataset else Dataset("unknown"),
        evaluated=first.evaluated if first.evaluated == second.evaluated else Dataset("unknown"),
        stacks=first.stacks and second.stacks,
        collate=first.collate if first.collate == second.collate else "unknown",
        again=first.again and second.again,
    )


def _is_given(passed: Passed | None) -> bool:
    """Whether an argument that is None by default may be something else."""
    if passed is None:
        return False
    return any(
        not isinstance(each, Sequence)
        or each.items is None
        or any(not is_none(one) for item in each.items for one in members(item))
        for each in members(passed.value)
        if not is_none(each)
    )


def _is_nothing(value: Value) -> bool:
    """Whether an argument is certainly None."""
    return all(is_none(each) for each in members(value))


def _changed(analysis: Analysis, settings: Value) -> tuple[tuple[str, Site], ...]:
    """What is set on settings after they were made, by name; "" where a method may set anything."""
    found: set[tuple[str, Site]] = set()
    for name in SETTINGS:
        for node, _, module in analysis.facts.attribute_writes(name):
            found.add((name, analysis.facts.places.site(node, module)))
    for event in analysis.facts.of("call", "unknown_call"):
        if event.name.rpartition(".")[2] in _SETTERS and any(each is settings for each in members(event.receiver)):
            found.add(("", analysis.facts.site(event)))
    return tuple(sorted(found))


def _reads(analysis: Analysis, call: ast.AST) -> tuple[tuple[str, Site], ...]:
    """Where settings are read, by name, other than in the call that makes them."""
    inside = {id(node) for node in walk(call)}
    return tuple(
        (name, analysis.facts.places.site(node, module))
        for name in _READ
        for module in analysis.execution.modules.values()
        for node in reads_in(module.tree).attributes.get(name, ())
        if id(node) not in inside
    )


# --- the model's own precision ------------------------------------------------------------------------------------


def precision_of(values: list[Value]) -> Precision:
    """The precision that models are made in."""
    found = {_made_in(each) for each in values}
    return found.pop() if len(found) == 1 else "unknown"


def _made_in(model: Value) -> Precision:
    """The precision that a model of transformers is made in; "own" for a class of the project."""
    if isinstance(model, Instance):
        return "own"
    if not isinstance(model, Made) or model.kind != "module" or "transformers." not in model.qualname:
        return "unknown"
    if model.arguments.open:
        return "unknown"
    for name in _QUANTIZING:
        passed = model.arguments.get(name)
        if passed is not None and not all(isinstance(each, Const) and not each.value for each in members(passed.value)):
            return "other"
    named = {
        each.qualname if isinstance(each, External) else str(each.value) if isinstance(each, Const) else "?"
        for name in _PRECISIONS
        if (passed := model.arguments.get(name)) is not None
        for each in members(passed.value)
    }
    if named <= set(_FULL):
        return "float32"
    return "unknown" if "?" in named or named & set(_FULL) else "other"
