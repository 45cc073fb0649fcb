"""Watch a training run: every optimizer step, what led to it, and what was printed, without touching the script.

A row is written for each attempt of an optimizer to step. Losses are the roots of the backward passes since the last
attempt, as they were before any scaling; gradients are taken where the optimizer uses them.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing.process
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import lockstep, processes, store
from .lowered import Lowered
from .neutral import Epoch
from .patching import wrap
from .patience import Patience, line_of_main_thread
from .thresholds import FEWEST_STEPS

# The learning rate and its like, not how a step is carried out: a fused step is the same step.
_MANNER = {
    "params", "fused", "foreach", "capturable", "differentiable", "param_names", "initial_lr", "swap_tensors", "min_lr",
    "max_lr", "base_momentum", "max_momentum",
}  # fmt: skip
_NORMALISING = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)

SHORT_EPOCH = 12  # steps: an epoch up to here is run whole
EPOCH_KEPT = 10  # whole steps kept of a longer one, beside its tail
OTHERS_KEPT = 256  # samples kept of a long data set that is not trained on, beside the tail
MOST_STEPS = 400
MOST_STEPS_WITHOUT_EPOCHS = 100
MOST_LINES = 5000
MOST_HURRIED = 200  # batches, one of each epoch, on the way to the end behind the comparison
MOST_HURRIED_SECONDS = 5.0


class Window:
    """What has happened since the last attempt to step."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.samples: Counter[str] = Counter()
        self.batches = 0
        self.clips: list[dict[str, Any]] = []
        self.schedules = 0
        self.modes: set[tuple[str, bool, int]] = set()
        self.dropouts: set[tuple[float, bool]] = set()
        self.drew = False


class Recorder:
    """One run's log. ``order`` says what to do; see ``turbofix.verify.runner``."""

    def __init__(
        self,
        order: dict[str, Any],
        say: Callable[[dict[str, Any]], None],
        on_step: Callable[[Any, list[Any]], None] | None = None,
    ) -> None:
        self.order, self._say, self._on_step = order, say, on_step
        self.main_process = os.getpid()
        self.started = time.monotonic()
        self.rows: list[dict[str, Any]] = []
        self.window = Window()
        self.events: dict[str, Any] = {
            "autocast": [],
            "regions": {},  # of autocast, by the line that enters it: whether anything in it ran in 16 bits
            "halved": False,  # parameters of 16 bits are trained
            "scaler": False,
            "fused": False,
            "workers": 0,
            "compiled": False,
        }
        self.layers: dict[str, int] | None = None
        self.saved: dict[str, list[str]] = {}
        self.lines: list[tuple[int, str]] = []
        self.epochs_ended = 0
        self._evaluations, self._evaluated = 0, 0  # how many, and after how many steps the last one
        self._steps_of_passes = 0  # taken when the last epoch ended
        self._trained_on: set[str] = set()  # loaders
        self.backwards = 0
        self.started_processes: list[str] = []
        self.parameters: dict[int, list[str]] = {}
        self._replaying = order["replay"]
        self._disturbing = order.get("disturb", False)
        self._store = store.Store(order["tensors"], order["tensor_bytes"])
        # what is compared by its losses alone is not to overwrite what others are compared with
        self._learning = order.get("learn")
        self._storing = self._learning is None
        self._seen = 0
        self._names: dict[int, lockstep.Names] = {}
        self._optimizers: dict[int, tuple[int, Any]] = {}
        self._counts: Counter[int] = Counter()
        self._watched: list[nn.Module] = []
        self._current: Epoch | None = None
        self._sizes: dict[str, int] = {}
        self._pending: Any = None
        self._log: dict[str, Any] = {}
        self.hurrying = False
        self._hurried = 0
        self._passes = 0  # over what is trained on, behind the comparison
        self._patience = Patience(order["patience"] or math.inf, self._wait_no_longer)
        if order["patience"]:
            self._patience.start()
        self._busy = False
        self._told = 0.0

    # --- what the data loaders report

    def on_batch(self, epoch: Epoch, size: int, drew: bool) -> None:
        self._current = epoch
        self._stir()
        if self.hurrying:
            self._hurried += 1
            self._passes += epoch.loader in self._trained_on
            if self._hurried > MOST_HURRIED:
                self._give_up()
        self.window.samples[epoch.loader] += size
        self.window.batches += 1
        self.window.drew = self.window.drew or drew

    def on_end(self, epoch: Epoch) -> None:
        if getattr(epoch, "stepped", False):
            self.epochs_ended += 1
            self._steps_of_passes = max(self._counts.values())

    def on_evaluation(self) -> Any:
        """A model goes into evaluation mode: where no loader tells of epochs, that parts one pass from the next."""
        if len(self.rows) > self._evaluated:
            self._evaluations += 1
        self._evaluated = len(self.rows)

    # --- backward passes

    def on_backward(self, root: Any, gradient: Any) -> None:
        self.backwards += 1
        self._stir()
        roots = root if isinstance(root, (tuple, list)) else [root]
        weights = gradient if isinstance(gradient, (tuple, list)) else [gradient] * len(roots)
        for one, weight in zip(roots, weights, strict=False):
            if isinstance(one, Tensor):
                value = getattr(one, "_turbofix_unscaled", one).detach()
                if isinstance(weight, Tensor):
                    value = value * weight.detach()
                self.window.losses.append(value.clone() if value.numel() == 1 else value.sum())
        if self.layers is None:
            self._find_layers()
        modes = Counter((_family(module), module.training) for module in self._watched)
        self.window.modes |= {(family, training, count) for (family, training), count in modes.items()}

    def _find_layers(self) -> None:
        alive = lockstep.modules_alive()
        inner = {id(child) for module in alive for child in module._modules.values() if child is not None}
        seen: dict[int, nn.Module] = {}
        for root in alive:
            if id(root) not in inner and any(parameter.requires_grad for parameter in root.parameters()):
                seen.update((id(m), m) for m in root.modules() if isinstance(m, _NORMALISING))
        self._watched = list(seen.values())
        self.layers = dict(Counter(_describe(module) for module in self._watched))

    # --- optimizers

    def before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        if self._idle():
            return None
        with self._apart():
            number, moment = self._begin(optimizer)
            found = getattr(optimizer, "found_inf", None)
            moment.skipped = isinstance(found, Tensor) and float(found) > 0
            closure = arguments[1] if len(arguments) > 1 else keywords.get("closure")
            reference = self._store.read(number, self._counts[number]) if self._replaying else None
            self._pending = (number, moment, reference, ())
            if not callable(closure):
                moment.gradients = lockstep.gradients_of(optimizer)
                if reference is not None and not moment.skipped and not reference.skipped:
                    self._pending = (number, moment, reference, lockstep.lend(optimizer, moment, reference))
                return None

        def watched_closure() -> Any:
            result = closure()
            if not moment.gradients:
                moment.gradients = lockstep.gradients_of(optimizer)
            return result

        if len(arguments) > 1:
            return (arguments[0], watched_closure, *arguments[2:]), keywords
        return arguments, {**keywords, "closure": watched_closure}

    def after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if self._idle() or self._pending is None:
            return
        number, moment, reference, lent = self._pending
        self._pending = None
        with self._apart():
            lockstep.give_back(lent)
        closure = len(arguments) > 1 or keywords.get("closure") is not None
        self._attempt(optimizer, number, moment, reference, closure=closure)

    def skipped_step(self, optimizer: Any) -> None:
        """A scaler found gradients that are not finite and left the step out."""
        if self._idle():
            return
        number, moment = self._begin(optimizer)
        moment.gradients = lockstep.gradients_of(optimizer)
        moment.skipped = True
        reference = self._store.read(number, self._counts[number]) if self._replaying else None
        self._attempt(optimizer, number, moment, reference, closure=False)

    def _begin(self, optimizer: Any) -> tuple[int, lockstep.Moment]:
        """The optimizer's number, and its parameters as they are before the step."""
        number, _ = self._optimizers.setdefault(id(optimizer), (len(self._optimizers), optimizer))
        parameters = lockstep.parameters_of(optimizer)
        if number not in self._names:
            self._names[number] = lockstep.Names()
            self.parameters[number] = self._names[number].of(optimizer)
        elif len(self.parameters[number]) != len(parameters):
            self.parameters[number] = self._names[number].of(optimizer)
        return number, lockstep.Moment(self.parameters[number], lockstep.copies(parameters))

    def _idle(self) -> bool:
        """Whether steps are not to be recorded: the recorder's own, a worker's, or those after the comparison."""
        return self._busy or self.hurrying or os.getpid() != self.main_process

    def attempts(self, optimizer: Any) -> int:
        number, _ = self._optimizers.get(id(optimizer), (-1, None))
        return self._counts[number]

    def _attempt(
        self, optimizer: Any, number: int, moment: lockstep.Moment, reference: lockstep.Moment | None, *, closure: bool
    ) -> None:
        self._busy = True
        step = self._counts[number]
        self._counts[number] += 1
        window, self.window = self.window, Window()
        with self._apart():
            buffers = self._names[number].buffers()
            moment.after = lockstep.copies(lockstep.parameters_of(optimizer))
            moment.buffers = dict(zip(buffers, lockstep.copies(buffers.values()), strict=False))
            moment.gradients = moment.gradients or [None] * len(moment.names)
            if self._on_step is not None:
                self._on_step(optimizer, moment.gradients)
            row = self._row(optimizer, window, moment, closure=closure)
        row = {"optimizer": number, "step": step, **row}
        if reference is not None:
            if moment.skipped and not reference.skipped:
                self._advance(optimizer, moment.names, reference)
            with self._apart():
                row["compare"] = lockstep.compare(reference, moment, every=self._disturbing)
                lockstep.reset(optimizer, moment.names, buffers, reference)
                if self._disturbing:
                    lockstep.disturb(optimizer, step)
        elif self._storing and not self._replaying:
            with self._apart():
                self._storing = self._store.write(number, moment)
        row["recorded"] = self._storing
        self.rows.append(row)
        self._seen += (row["samples"] or 0) if self._learning and self._learning["samples"] else len(row["losses"])
        self._busy = False
        self._stir()
        self._tell()
        self._consider_stopping()

    def _row(self, optimizer: Any, window: Window, moment: lockstep.Moment, *, closure: bool) -> dict[str, Any]:
        """What the log says of a step, but for the comparison."""
        losses = [float(loss) for loss in window.losses]
        epoch = self._current
        trained_on = epoch.loader if epoch is not None and window.samples[epoch.loader] else None
        if epoch is not None and trained_on is not None:
            epoch.stepped = True  # type: ignore[attr-defined]
            self._trained_on.add(trained_on)
        halved = any(value.dtype in (torch.float16, torch.bfloat16) for value in moment.before)
        self.events["halved"] = self.events["halved"] or halved
        self.events["fused"] = self.events["fused"] or any(group.get("fused") for group in optimizer.param_groups)
        return {
            "class": type(optimizer).__name__,
            "losses": losses[:1] if closure else losses,
            "closure": closure,
            "samples": window.samples[trained_on] if trained_on is not None else None,
            "batches": window.batches,
            "hyper": [_hyper(group) for group in optimizer.param_groups],
            "clips": window.clips,
            "schedules": window.schedules,
            "skipped": moment.skipped,
            "modes": sorted(window.modes),
            "dropouts": sorted(window.dropouts),
            "drew": window.drew,
            "compiled": self.events["compiled"],
        }

    def _apart(self) -> Any:
        """What the recorder computes for itself passes by whatever looks at every operation."""
        looked_at = self.order["remap"] or self.order.get("monitor")
        return torch._C.DisableTorchFunction() if looked_at else contextlib.nullcontext()

    def _advance(self, optimizer: Any, names: list[str], reference: lockstep.Moment) -> None:
        kept = {name: getattr(optimizer, name) for name in ("grad_scale", "found_inf") if hasattr(optimizer, name)}
        for name in kept:
            delattr(optimizer, name)
        lockstep.advance(optimizer, names, reference)
        for name, value in kept.items():
            setattr(optimizer, name, value)

    # --- when it is enough

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told > 0.1:
            self._told = now
            self._say({"step": len(self.rows)})

    def _consider_stopping(self) -> None:
        steps = max(self._counts.values())
        if self._learning is not None:
            if self._has_learned(self._learning, steps):
                self.stop("stopped")
            return
        exact = self.order["stop_after"]
        if exact is not None:
            if len(self.rows) >= exact:
                self.stop("stopped")
            return
        if self.order["steps"] is not None:
            if steps >= self.order["steps"]:
                self.stop("stopped")
            return
        if self.order["may_shorten"] and steps == 2:
            self._consider_shortening()
        enough = self.order["minimum"]
        # this step is the first after the second epoch's end: what stands between them has run too
        if steps >= enough and (self.epochs_ended if self._current is not None else self._evaluations) >= 2:
            self.stop("stopped")
        most = MOST_STEPS if self._current is not None else MOST_STEPS_WITHOUT_EPOCHS
        if steps >= most or (steps >= enough and time.monotonic() - self.started > self.order["seconds"]):
            self.stop("stopped")

    def _has_learned(self, goal: dict[str, Any], steps: int) -> bool:
        """Whether as much was seen (in samples, or in backward passes) as is asked, or the steps or the time are up."""
        if goal["seen"] is not None:
            return bool(self._seen >= goal["seen"])
        late = time.monotonic() - self.started > goal["seconds"]
        return bool(steps >= goal["steps"] or (late and steps >= goal["minimum"]))

    def _consider_shortening(self) -> None:
        counts = [row["samples"] for row in self.rows if row["samples"]]
        if not counts or self._current is None:
            return
        loader, per_step = self._current.loader, max(counts)
        whole = self._sizes.get(loader)
        if whole is None or whole <= SHORT_EPOCH * per_step:
            return
        self.finish("shorten", {"shorten": {str(whole): whole % per_step + EPOCH_KEPT * per_step}})
        processes.leave()

    def name_loader(self, loader: Any) -> str:
        from .shorten import entries

        self.events["workers"] = max(self.events["workers"], loader.num_workers)
        dataset = getattr(loader, "dataset", None)
        count = entries(loader)
        name = type(dataset).__name__ if count is None else f"{type(dataset).__name__} of {count}"
        if count is not None:
            self._sizes[name] = count
        return name

    # --- the end

    def stop(self, how: str) -> None:
        """End the comparison. The script goes on to its end, with epochs of one batch, where that is near.

        It may take as long as all before it did, or as ``finish_seconds`` tells, and so many batches.
        """
        seconds = self.order["finish_seconds"]
        self._write(how)
        if not seconds or self._current is None:
            processes.leave()
        self.hurrying, self._hurry = True, time.monotonic()
        self._log["end"] = {"how": "out of time"}
        self._stir()
        self._patience.start(min(max(seconds, self._log["seconds"]), MOST_HURRIED_SECONDS))

    def _stir(self) -> None:
        self._patience.stir(ready=self.hurrying or len(self.rows) >= FEWEST_STEPS)

    def _wait_no_longer(self, waits: bool) -> None:
        """From the thread that looks: the script ``waits``, or its time is up."""
        if waits:
            self.finish("waiting", {"line": line_of_main_thread(self.order)})
            processes.leave()
        self._give_up()

    def _give_up(self) -> None:
        if self.hurrying:
            self._log["end"]["passes"] = self._passes
        self._dump()
        processes.leave()

    def finish(self, how: str, more: dict[str, Any] | None = None) -> None:
        """Write the log down; ``how`` is stopped, finished, crashed, waiting or shorten."""
        if os.getpid() != self.main_process:
            return
        if self.hurrying:
            seconds = time.monotonic() - self._hurry
            end = {"how": how, "saved": self.saved, "seconds": seconds, "passes": self._passes}
            self._log["end"] = {**end, **(more or {})}
            self._dump()
        else:
            self._write(how, more)

    def _write(self, how: str, more: dict[str, Any] | None = None) -> None:
        self._log = {
            "how": how,
            "rows": self.rows,
            "events": self.events,
            "layers": self.layers or {},
            "saved": dict(self.saved),
            "lines": list(self.lines),
            "epochs_ended": self.epochs_ended,
            "steps_of_passes": self._steps_of_passes,
            "backwards": self.backwards,
            "processes": self.started_processes,
            "parameters": self.parameters,
            "seconds": time.monotonic() - self.started,
            "end": {"how": how, **(more or {})},
            **(more or {}),
        }
        self._dump()

    def _dump(self) -> None:
        # written beside it first: a reader never finds half a log
        part = self.order["log"] + ".part"
        with open(part, "w", encoding="utf-8") as handle:
            # all at once: only so is it written by json's C code
            handle.write(json.dumps({**self._log, **self.order["extra"]()}))
        os.replace(part, self.order["log"])


def _family(module: nn.Module) -> str:
    return "Dropout" if isinstance(module, nn.modules.dropout._DropoutNd) else "BatchNorm"


def _describe(module: nn.Module) -> str:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return f"{type(module).__name__}(p={module.p})"
    kept: Any = module
    return f"{type(module).__name__}(momentum={kept.momentum}, eps={kept.eps}, track={kept.track_running_stats})"


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    return {key: _value(value) for key, value in group.items() if key not in _MANNER}


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else [float(v) for v in value.reshape(-1)[:8]]
    if isinstance(value, (list, tuple)):
        return [_value(one) for one in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def _shape_of(value: Any, depth: int = 3) -> Any:
    """The keys of what is saved, three levels deep."""
    if isinstance(value, dict) and depth:
        return {str(key): _shape_of(one, depth - 1) for key, one in value.items()}
    return type(value).__name__ if not isinstance(value, nn.Module) else "Module"


def _flat_keys(shape: Any, prefix: str = "") -> list[str]:
    if not isinstance(shape, dict):
        return [prefix or shape]
    return sorted(key for name, one in shape.items() for key in _flat_keys(one, f"{prefix}.{name}" if prefix else name))


def install(recorder: Recorder, *, dropout: bool) -> None:
    """Hook the recorder into torch. With ``dropout`` false, nothing is dropped, and what would be is noted."""
    _watch_backward(recorder)
    _watch_optimizers(recorder)
    _watch_clipping(recorder)
    _watch_schedulers(recorder)
    _watch_saving(recorder)
    _watch_dropout(recorder, dropout=dropout)
    _watch_precision(recorder)
    _watch_processes(recorder)
    wrap(nn.Module, "eval", lambda original: lambda self: recorder.on_evaluation() or original(self))
    sys.stdout = _Echo(sys.stdout, recorder)


def _watch_backward(recorder: Recorder) -> None:
    inside = [False]

    def watched(original: Any) -> Callable[..., Any]:
        def backward(*arguments: Any, **keywords: Any) -> Any:
            if not arguments:  # torch's own name for them
                arguments = (keywords.pop("tensors"),)
            if inside[0] or recorder.hurrying or os.getpid() != recorder.main_process:
                return original(*arguments, **keywords)
            root, *rest = arguments
            gradient = rest[0] if rest else keywords.get("gradient", keywords.get("grad_tensors"))
            recorder.on_backward(root, gradient)
            inside[0] = True
            try:
                return original(*arguments, **keywords)
            finally:
                inside[0] = False

        return backward

    wrap(torch.Tensor, "backward", watched)
    wrap(torch.autograd, "backward", watched)


def _watch_optimizers(recorder: Recorder) -> None:
    register_optimizer_step_pre_hook(recorder.before_step)
    register_optimizer_step_post_hook(recorder.after_step)
    from torch.amp import grad_scaler

    def scaling(original: Any) -> Callable[..., Any]:
        def scale(self: Any, outputs: Any) -> Any:
            scaled = original(self, outputs)
            if isinstance(scaled, Tensor) and scaled is not outputs:
                scaled._turbofix_unscaled = outputs.detach()  # type: ignore[attr-defined]
            return scaled

        return scale

    def stepping(original: Any) -> Callable[..., Any]:
        def step(self: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            before = recorder.attempts(optimizer)
            recorder.events["scaler"] = recorder.events["scaler"] or bool(self.is_enabled())
            result = original(self, optimizer, *arguments, **keywords)
            if recorder.attempts(optimizer) == before:
                recorder.skipped_step(optimizer)
            return result

        return step

    wrap(grad_scaler.GradScaler, "scale", scaling)
    wrap(grad_scaler.GradScaler, "step", stepping)


def _watch_clipping(recorder: Recorder) -> None:
    from torch.nn.utils import clip_grad

    def watched(original: Any) -> Callable[..., Any]:
        def clip(parameters: Any, bound: float, *arguments: Any, **keywords: Any) -> Any:
            result = original(parameters, bound, *arguments, **keywords)
            norm = float(result) if isinstance(result, Tensor) else None
            recorder.window.clips.append({"kind": original.__name__, "bound": float(bound), "norm": norm})
            return result

        def clip_by_keyword(parameters: Any, *arguments: Any, **keywords: Any) -> Any:
            for name in ("max_norm", "clip_value"):
                if name in keywords:
                    arguments = (keywords.pop(name), *arguments)
            return clip(parameters, *arguments, **keywords)

        return clip_by_keyword

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrap(clip_grad, name, watched)
        setattr(torch.nn.utils, name, getattr(clip_grad, name))


def _watch_schedulers(recorder: Recorder) -> None:
    depth = [0]

    def watched(original: Any) -> Callable[..., Any]:
        def step(self: Any, *arguments: Any, **keywords: Any) -> Any:
            # the first step is the constructor's own
            if not depth[0] and not getattr(self, "_is_initial", False):
                recorder.window.schedules += 1
            depth[0] += 1
            try:
                return original(self, *arguments, **keywords)
            finally:
                depth[0] -= 1

        return step

    for kind in {kind for kind in vars(lr_scheduler).values() if isinstance(kind, type) and "step" in vars(kind)}:
        wrap(kind, "step", watched)


def _watch_saving(recorder: Recorder) -> None:
    def watched(original: Any) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *arguments: Any, **keywords: Any) -> Any:
            if os.getpid() == recorder.main_process and isinstance(f, (str, os.PathLike)):
                name = re.sub(r"\d+", "0", os.path.basename(os.fspath(f)))
                recorder.saved[name] = sorted({*recorder.saved.get(name, []), *_flat_keys(_shape_of(obj))})
            try:
                return original(obj, f, *arguments, **keywords)
            except RuntimeError as error:
                error.filename = f  # type: ignore[attr-defined]  # torch's own words do not name it
                raise

        return save

    wrap(torch, "save", watched)


def _watch_dropout(recorder: Recorder, *, dropout: bool) -> None:
    def note(probability: float, training: bool) -> None:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled() and os.getpid() == recorder.main_process:
            recorder.window.dropouts.add((float(probability), bool(training)))

    _watch_dropout_functions(note, dropout=dropout)
    _watch_attention(note, dropout=dropout)
    _watch_recurrent(note, dropout=dropout)


def _watch_dropout_functions(note: Callable[[float, bool], None], *, dropout: bool) -> None:
    inside = [False]

    def watched(original: Any) -> Callable[..., Any]:
        default = 0.5

        def drop(
            input: Tensor,  # noqa: A002 (torch's own name for it)
            p: float = default,
            training: bool = True,
            inplace: bool = False,
            **keywords: Any,
        ) -> Any:
            if inside[0]:  # under a function mode torch calls it a second time
                return original(input, p, training, inplace, **keywords)
            note(p, training)
            inside[0] = True
            try:
                return original(input, p if dropout else 0.0, training and dropout, inplace, **keywords)
            finally:
                inside[0] = False

        return drop

    for name in ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"):
        wrap(torch.nn.functional, name, watched)


def _watch_attention(note: Callable[[float, bool], None], *, dropout: bool) -> None:
    def attention(original: Any) -> Callable[..., Any]:
        def attend(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attn_mask: Any = None,
            dropout_p: float = 0.0,
            *rest: Any,
            **more: Any,
        ) -> Any:
            if dropout_p:
                note(dropout_p, True)
            return original(query, key, value, attn_mask, dropout_p if dropout else 0.0, *rest, **more)

        return attend

    wrap(torch.nn.functional, "scaled_dot_product_attention", attention)


def _watch_recurrent(note: Callable[[float, bool], None], *, dropout: bool) -> None:
    def recurrent(original: Any) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            # after the list of weights come: has_biases, num_layers, dropout, train
            place = next((i for i, argument in enumerate(arguments) if isinstance(argument, list)), None)
            if place is None or len(arguments) < place + 5 or not isinstance(arguments[place + 3], float):
                return original(*arguments)
            probability, training = arguments[place + 3], arguments[place + 4]
            if probability:
                note(probability, training)
            if not dropout:
                arguments = (*arguments[: place + 3], 0.0, *arguments[place + 4 :])
            return original(*arguments)

        return run

    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        wrap(torch._VF, name, recurrent)


def _watch_precision(recorder: Recorder) -> None:
    watches: list[Lowered] = []  # one for each region that is entered, the inner ones last

    def entering(original: Any) -> Callable[..., Any]:
        def __enter__(self: Any) -> Any:
            enabled = bool(getattr(self, "_enabled", False))
            if enabled:
                entry = str(self.fast_dtype).replace("torch.", "")
                if entry not in recorder.events["autocast"]:
                    recorder.events["autocast"].append(entry)
            found = original(self)
            if not torch.compiler.is_compiling():
                watches.append(Lowered(recorder.events, self.fast_dtype if enabled else None))
            return found

        return __enter__

    def leaving(original: Any) -> Callable[..., Any]:
        def __exit__(self: Any, *exception: Any) -> Any:
            if watches and not torch.compiler.is_compiling():
                watches.pop().leave()
            return original(self, *exception)

        return __exit__

    def compiling(original: Any) -> Callable[..., Any]:
        def compiled(*arguments: Any, **keywords: Any) -> Any:
            recorder.events["compiled"] = True
            for watch in reversed(watches):  # the compiler compiles nothing below a mode
                watch.leave()
            # in the place of a GPU: its kernels would be others than those that take minutes to make for a CPU
            if recorder.order["remap"] and keywords.get("backend", "inductor") == "inductor":
                keywords = {name: keywords[name] for name in keywords if name not in ("mode", "options")}
                keywords["backend"] = "aot_eager"
            return original(*arguments, **keywords)

        return compiled

    wrap(torch.autocast, "__enter__", entering)
    wrap(torch.autocast, "__exit__", leaving)
    wrap(torch, "compile", compiling)


def _watch_processes(recorder: Recorder) -> None:
    def starting(original: Any) -> Callable[..., Any]:
        def start(self: Any) -> Any:
            target = getattr(self, "_target", None) or self.run
            module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "?")
            if os.getpid() == recorder.main_process and not str(module).startswith("torch.utils.data"):
                recorder.started_processes.append(name)
            return original(self)

        return start

    wrap(multiprocessing.process.BaseProcess, "start", starting)


class _Echo:
    """Standard output that remembers its lines, each with the number of steps before it."""

    def __init__(self, stream: Any, recorder: Recorder) -> None:
        self._stream, self._recorder, self._rest = stream, recorder, ""

    def write(self, text: str) -> int:
        recorder = self._recorder
        if os.getpid() == recorder.main_process and len(recorder.lines) < MOST_LINES:
            *lines, self._rest = (self._rest + text)[-100_000:].split("\n")
            recorder.lines += [(len(recorder.rows), line[:1000]) for line in lines if line.strip() and "\r" not in line]
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
