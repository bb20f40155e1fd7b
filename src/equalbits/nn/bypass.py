"""Layers whose weight is read past them, so that making the layer binary would change nothing, or only half.

Torch's attention never calls its ``out_proj``; its encoder layer calls ``linear1`` in training and reads its weight in
eval mode; several vision transformers hand ``self.qkv.weight`` to ``F.linear``. All of it stands in their ``forward``.
"""

import dis
import inspect
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

from torch import nn

#: What may be asked of a weight without multiplying with it.
_HARMLESS = frozenset({"device", "dim", "dtype", "is_cuda", "ndim", "numel", "requires_grad", "shape", "size"})


def layers_read_past(model: nn.Module) -> dict[nn.Module, str]:
    """The layers whose weight is read by the ``forward`` of a module around them, with that module's class.

    >>> list(layers_read_past(nn.MultiheadAttention(8, 2)).values())
    ['MultiheadAttention']
    """
    found: dict[nn.Module, str] = {}
    for parent in model.modules():
        paths = _parts_whose_weight_is_read(type(parent).forward)
        parts = dict(parent.named_modules(remove_duplicate=False)) if paths else {}
        found |= {parts[path]: type(parent).__name__ for path in paths if path in parts}
    return found


@cache
def _parts_whose_weight_is_read(forward: Callable[..., Any]) -> frozenset[str]:
    """Each ``part.within`` whose ``.weight`` a function reads off a variable, unless only for its shape or type."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    if code is None:
        return frozenset()
    found: set[str] = set()
    path: list[str] = []
    for step, following in pairwise(dis.get_instructions(code)):
        path = [*path, step.argval] if step.opname == "LOAD_ATTR" else []
        harmless = following.opname in ("LOAD_ATTR", "LOAD_METHOD") and following.argval in _HARMLESS
        if len(path) > 1 and path[-1] == "weight" and not harmless:
            found.add(".".join(path[:-1]))
    return frozenset(found)
