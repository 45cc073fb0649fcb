"""What the text of a training loop tells about the pace of its batches."""

from __future__ import annotations

import ast

from turbofix.regex import regex

PACED = regex(r"param_groups|(adjust|set|update)_(lr|learning_rate)|lr_?sched\w*|warm_?up\w*|(\w+_)?ema(_\w+)?")
"""Names that set the learning rate by hand, or keep an average of the weights."""


def is_paced(node: ast.Name | ast.Attribute) -> bool:
    """Whether a name speaks of something that a loop does at its own pace, once per batch."""
    return PACED.fullmatch((node.id if isinstance(node, ast.Name) else node.attr).lower()) is not None
