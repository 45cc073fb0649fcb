"""What a recorder is told: backward passes, optimizers, clipping, schedulers, dropout and precision, all patched."""

from __future__ import annotations

import multiprocessing.process
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .lowered import Lowered
from .patching import wrap

# The learning rate and its like, not how a step is carried out: a fused step is the same step.
from .record import MOST_LINES, Recorder, flat_keys, shape_of


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
                recorder.saved[name] = sorted({*recorder.saved.get(name, []), *flat_keys(shape_of(obj))})
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
