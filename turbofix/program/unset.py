"""Attributes of the program's own objects that nothing ever sets: reading one raises AttributeError.

An object counts only where its class and all of its bases are known: classes of the project, without a hook into how
attributes are looked up, and few of the libraries', whose attributes are listed here. Whatever may set an attribute
under a name that the text does not tell leaves the question open.
"""

from __future__ import annotations

import ast
from functools import partial

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node, parents_in
from turbofix.program.events import Event
from turbofix.program.evidence import short
from turbofix.program.libraries import words
from turbofix.program.values import Class, External, Instance, members

_OF_MODULES = words(
    """
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval
    extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules
    mtia named_buffers named_children named_modules named_parameters parameters register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory
    state_dict to to_empty train training type xpu zero_grad
    """
)
_OF_LIGHTNING = words(
    """
    CHECKPOINT_HYPER_PARAMS_KEY CHECKPOINT_HYPER_PARAMS_NAME CHECKPOINT_HYPER_PARAMS_TYPE all_gather
    allow_zero_length_dataloader_with_multiple_devices automatic_optimization backward clip_gradients current_epoch
    datamodule device device_mesh dtype example_input_array fabric freeze global_rank global_step grad_norm hparams
    hparams_initial load_from_checkpoint loaded_optimizer_states_dict local_rank log log_dict log_grad_norm logger
    loggers lr_scheduler_step lr_schedulers manual_backward metrics_to_scalars model_size optimizer_step
    optimizer_zero_grad optimizers precision prepare_data prepare_data_per_node print remove_ignored_hparams
    root_device save_hyperparameters setup strict_loading summarize tbptt_split_batch teardown to_onnx to_tensorrt
    to_torchscript toggle_optimizer toggled_optimizer trainer transfer_batch_to_device truncated_bptt_steps unfreeze
    untoggle_optimizer use_amp use_ddp use_ddp2 use_dp use_tpu
    """
)
_HOOKS = ("configure_", "on_", "training_", "validation_", "test_", "predict_", "train_", "val_", "get_")
"""How the names begin of what Lightning calls, of which its versions had many."""

_BASES = {
    "builtins.object": frozenset[str](),
    "abc.ABC": frozenset[str](),
    "torch.nn.Module": _OF_MODULES,
    "lightning.pytorch.LightningModule": _OF_MODULES | _OF_LIGHTNING,
    "pytorch_lightning.LightningModule": _OF_MODULES | _OF_LIGHTNING,
}
"""Classes of the libraries that may be derived from, with the public attributes of their objects."""

_LOOKING_UP = words("__getattr__ __getattribute__ __setattr__ __new__ __slots__ __init_subclass__ __setstate__")
"""What a class decides by how its objects' attributes are found, or set."""

_SETTING = words("setattr exec locals globals importlib __import__ store_attr")
_OPENING = words("__dict__ __setattr__ __setstate__ _modules _parameters _buffers import_module store_attr")
_REGISTERING = words("register_buffer register_parameter register_module add_module")
_BY_TEXT = _SETTING | _OPENING | _REGISTERING | {"vars"}
_LOOKING = words("super isinstance type id print len hasattr getattr")
"""Functions that set no attribute of what they are given."""


def unset(analysis: Analysis, event: Event) -> tuple[str, str] | None:
    """The error that reading an attribute raises for certain, and why."""
    node, name = event.node, event.name
    found = members(event.receiver)
    if not isinstance(node, ast.Attribute) or node.attr != name or not isinstance(node.ctx, ast.Load) or not found:
        return None
    if name.startswith("_") or name.startswith(_HOOKS):
        return None
    if not all(isinstance(each, Instance) for each in found):
        return None
    for cls in {each.cls for each in found if isinstance(each, Instance)}:
        if not analysis.once(("is closed", cls, name), partial(_is_closed, cls, name)):
            return None
    if analysis.once(("is set somewhere", name), lambda: _is_set_somewhere(analysis, name)):
        return None
    text = short(analysis.facts.places.text(node, event.module))
    return "AttributeError", f"on every version: nothing sets `{text}`"


def _is_closed(cls: Class, name: str) -> bool:
    """Whether the objects of a class have the attributes that the program sets, and no other one of that name."""
    for base in cls.mro():
        if isinstance(base, External):
            if base.qualname not in _BASES or name in _BASES[base.qualname]:
                return False
            continue
        sources = [members(each) for each in base.bases]
        if any(not each or not all(isinstance(one, (Class, External)) for one in each) for each in sources):
            return False
        if base.node.decorator_list or base.node.keywords or _LOOKING_UP & set(base.names):
            return False
        if name in base.names or _leaves_open(base.node, name):
            return False
    return True


def _leaves_open(node: ast.ClassDef, name: str) -> bool:
    """Whether a class declares an attribute, or one of its methods hands the object to what may set some."""
    if any(isinstance(each, ast.AnnAssign) and getattr(each.target, "id", "") == name for each in node.body):
        return True
    return _hands_itself_on(node)


@once_per_node
def _hands_itself_on(node: ast.ClassDef) -> bool:
    """Whether a method gives the object to a call."""
    for method in node.body:
        given = method.args.args[:1] if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        for own in (each.arg for each in given):
            for call in walk(method):
                if not isinstance(call, ast.Call) or getattr(call.func, "id", "") in _LOOKING:
                    continue
                passed = [*call.args, *(each.value for each in call.keywords)]
                if any(isinstance(each, ast.Name) and each.id == own for each in passed):
                    return True
    return False


def _is_set_somewhere(analysis: Analysis, name: str) -> bool:
    """Whether some file may set an attribute of this name, or says it as a text; all, where one sets by texts."""
    files = analysis.execution.modules.values()
    by_text = analysis.once(
        "attributes set by their texts",
        lambda: any(_sets_by_text(each.tree) for each in files if any(word in each.text for word in _BY_TEXT)),
    )
    return by_text or any(name in _settable(each.tree) for each in files if name in each.text)


@once_per_node
def _settable(tree: ast.Module) -> frozenset[str]:
    """The attributes that a file sets, and the texts that it says."""
    attributes = {each.attr for each in every(ast.Attribute, tree) if each.ctx.__class__ is not ast.Load}
    return frozenset(attributes | {each.value for each in every(ast.Constant, tree) if isinstance(each.value, str)})


@once_per_node
def _sets_by_text(tree: ast.Module) -> bool:
    """Whether a file may set attributes whose names it does not write."""
    for call in every(ast.Call, tree):
        said = call.args[0] if call.args else None
        if getattr(call.func, "id", "") == "setattr":
            said = call.args[1] if len(call.args) > 1 else None
        elif not (isinstance(call.func, ast.Attribute) and call.func.attr in _REGISTERING):
            continue
        if not isinstance(said, ast.Constant):
            return True
    parents = parents_in(tree)
    for name in every(ast.Name, tree):
        above = parents.get(name)
        is_callee = isinstance(above, ast.Call) and above.func is name
        if name.id == "vars" and not (is_callee and _is_unpacked(parents.get(above) if above else None)):
            return True
        if name.id in _SETTING and not (name.id == "setattr" and is_callee):
            return True
    return any(each.attr in _OPENING for each in every(ast.Attribute, tree))


def _is_unpacked(node: ast.AST | None) -> bool:
    """Whether it is the keyword of ``Model(**vars(args))``."""
    return isinstance(node, ast.keyword) and node.arg is None
