"""LSTMs, GRUs and plain RNNs as a GPU runs them: all layers and steps of one call are one operation.

A CPU takes them apart into thousands of small ones, which nobody starts on a GPU. Here nothing is computed: the results
are tensors without numbers, of the right sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .patching import wrap
from .pretended import is_pretended

Note = Callable[[str, int, Sequence[Tensor], Sequence[Tensor]], None]
"""Told of an operation: its name, the steps that follow on each other, what it is given, and what it makes."""


def install(note: Note) -> None:
    """Have recurrent layers on the GPU that is not there run like this from now on."""
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        wrap(torch._VF, name, functools.partial(_in_one, name, note))


def _in_one(name: str, note: Note, original: Any) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        data, second = args[:2]
        if not is_pretended(data):
            return original(*args)
        if isinstance(second, Tensor) and not second.is_floating_point():  # packed: how many sequences a step still has
            states, weights, layers, both = args[2], args[3], args[5], args[8]
            length = second.numel()
        else:
            states, weights, layers, both = second, args[2], args[4], args[7]
            length = data.shape[1 if args[8] else 0]
        states = states if isinstance(states, tuple) else (states,)
        width = states[0].shape[-1] * (2 if both else 1)
        told = (
            functools.partial(note, name, length * layers),
            functools.partial(note, f"{name}_backward", length * layers),
        )
        apply: Any = _Layers.apply
        return apply(told, width, len(states), data, *states, *weights)

    return run


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, told: Any, width: int, states: int, data: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        lowered = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if lowered else data.dtype
        made = (
            data.new_empty((*data.shape[:-1], width), dtype=dtype),
            *(each.new_empty(each.shape, dtype=dtype) for each in given[:states]),
        )
        there, ctx.back = told
        ctx.given, ctx.made = (data, *given), made
        there(ctx.given, made)
        return made

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        gradients = [torch.empty_like(each) for each in ctx.given]
        ctx.back((*ctx.given, *ctx.made), gradients)
        return (None, None, None, *gradients)
