"""Layers whose weight is read past them, so that making the layer binary would change nothing, or only half.

Torch's attention never calls its ``out_proj``; its encoder layer calls ``linear1`` in training and reads its weight in
eval mode; several vision transformers hand ``self.qkv.weight`` to ``F.linear``. All of it stands in their ``forward``.
"""

import dis
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

#: What may be asked of a weight without multiplying with it.
_HARMLESS = frozenset({"device", "dim", "dtype", "is_cuda", "ndim", "numel", "requires_grad", "shape", "size"})


def layers_read_past(model: nn.Module) -> dict[nn.Module, str]:
    """The layers whose weight is read by the ``forward`` of the module around them, with that module's class.

    >>> list(layers_read_past(nn.MultiheadAttention(8, 2)).values())
    ['MultiheadAttention']
    """
    return {
        child: type(parent).__name__
        for parent in model.modules()
        for name, child in parent.named_children()
        if name in _parts_whose_weight_is_read(type(parent).forward)
    }


@cache
def _parts_whose_weight_is_read(forward: Callable[..., Any]) -> frozenset[str]:
    """Each ``part`` for which ``….part.weight`` occurs in a function, unless only its shape or type is asked for."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    if code is None:
        return frozenset()
    steps = [(step.opname, step.argval) for step in dis.get_instructions(code)]
    return frozenset(
        part
        for (first, part), (second, weight), (third, asked) in zip(steps, steps[1:], steps[2:], strict=False)
        if (first, second, weight) == ("LOAD_ATTR", "LOAD_ATTR", "weight")
        and not (third in ("LOAD_ATTR", "LOAD_METHOD") and asked in _HARMLESS)
    )
