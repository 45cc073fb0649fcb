"""Watch a training run: every optimizer step, what led to it, and what was printed, without touching the script.

A row is written for each attempt of an optimizer to step. Losses are the roots of the backward passes since the last
attempt, as they were before any scaling; gradients are taken where the optimizer uses them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import lockstep, processes, store
from .neutral import Epoch
from .patience import Patience, line_of_main_thread
from .tolerances import FEWEST_STEPS

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
        self.drawn: Counter[str] = Counter()  # which samples, by loader
        self.shares: dict[str, int] = {}  # among so many processes
        self.whole: Counter[str] = Counter()  # the samples of loaders that are not shared out,
        self.drawn_whole: Counter[str] = Counter()  # and which
        self.uneven = False


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
        self._leave: Callable[[], Any] = order.get("leave", processes.leave)
        self._names: dict[int, lockstep.Names] = {}
        self._optimizers: dict[int, tuple[int, Any]] = {}
        self._counts: Counter[int] = Counter()
        self._watched: list[nn.Module] = []
        self._current: Epoch | None = None
        self._sizes: dict[str, int] = {}
        self._pending: Any = None
        self._stepping: Any = None
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
        self.window.drawn[epoch.loader] += epoch.drawn
        self.window.shares[epoch.loader] = epoch.shares
        if epoch.shares == 1:
            self.window.whole[epoch.loader] += size
            self.window.drawn_whole[epoch.loader] += epoch.drawn
        self.window.uneven = self.window.uneven or epoch.uneven
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
        if self._idle() or self._within(optimizer):
            return None
        with self._apart():
            self._stepping = optimizer
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
        if self._idle() or self._pending is None or self._within(optimizer):
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

    def _within(self, optimizer: Any) -> bool:
        """Whether it only carries out a part of another's step (as ``ZeroRedundancyOptimizer`` has a process do)."""
        return self._pending is not None and optimizer is getattr(self._stepping, "optim", None)

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
                part = self.order.get("processes", 0) > 1
                row["compare"] = lockstep.compare(reference, moment, every=self._disturbing, part=part)
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
            "class": type(getattr(optimizer, "optim", optimizer)).__name__,
            "losses": losses[:1] if closure else losses,
            "closure": closure,
            "samples": window.samples[trained_on] if trained_on is not None else None,
            "drawn": window.drawn[trained_on] if trained_on is not None else 0,
            "shares": window.shares[trained_on] if trained_on is not None else 1,
            "whole": [window.whole[trained_on], window.drawn_whole[trained_on]] if trained_on is not None else [0, 0],
            "uneven": window.uneven,
            "batches": window.batches,
            "hyper": [_hyper(group) for group in optimizer.param_groups],
            "clips": window.clips,
            "schedules": window.schedules,
            "skipped": moment.skipped,
            "modes": sorted(window.modes),
            "dropouts": sorted(window.dropouts),
            "drew": window.drew,
            "chance": self.order["chance"]() if "chance" in self.order else 0,
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
        self._leave()

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
            self._leave()
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
            self._leave()
        self._give_up()

    def _give_up(self) -> None:
        if self.hurrying:
            self._log["end"]["passes"] = self._passes
        self._dump()
        self._leave()

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
            handle.write(json.dumps({**self._log, **self.order["extra"]()}, default=int))
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


def shape_of(value: Any, depth: int = 3) -> Any:
    """The keys of what is saved, three levels deep."""
    if isinstance(value, dict) and depth:
        return {str(key): shape_of(one, depth - 1) for key, one in value.items()}
    return type(value).__name__ if not isinstance(value, nn.Module) else "Module"


def flat_keys(shape: Any, prefix: str = "") -> list[str]:
    if not isinstance(shape, dict):
        return [prefix or shape]
    return sorted(key for name, one in shape.items() for key in flat_keys(one, f"{prefix}.{name}" if prefix else name))
