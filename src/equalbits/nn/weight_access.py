"""Layers whose weight is read past them, so that making the layer binary would change nothing, or only half.

Torch's attention never calls its ``out_proj``; its encoder layer calls ``linear1`` in training and reads its weight in
eval mode; several vision transformers hand ``self.qkv.weight`` to ``F.linear``. All of it stands in their ``forward``,
or in what that calls.
"""

import dis
import inspect
from itertools import pairwise
from types import CodeType
from typing import Any

from torch import nn

#: What may be asked of a weight without multiplying with it.
_HARMLESS = frozenset({"device", "dim", "dtype", "is_cuda", "ndim", "numel", "requires_grad", "shape", "size"})


def directly_accessed_layers(model: nn.Module) -> dict[nn.Module, str]:
    """The layers whose weight is read by the ``forward`` of a module around them, with that module's class.

    >>> list(directly_accessed_layers(nn.MultiheadAttention(8, 2)).values())
    ['MultiheadAttention']
    """
    read = {kind: _parts_whose_weight_is_read(kind) for kind in {type(module) for module in model.modules()}}
    found: dict[nn.Module, str] = {}
    for parent in model.modules():
        paths = read[type(parent)]
        parts = dict(parent.named_modules(remove_duplicate=False)) if paths else {}
        found |= {parts[path]: type(parent).__name__ for path in paths if path in parts}
    return found


def _parts_whose_weight_is_read(kind: type[nn.Module]) -> set[str]:
    """Each ``part.within`` whose weight the class reads in its ``forward``, or in what that calls of its own."""
    bases = [base for base in kind.__mro__ if base not in (nn.Module, object)]
    found: set[str] = set()
    asked: set[CodeType] = set()
    ahead: list[Any] = [getattr(inspect.unwrap(kind.forward), "__code__", None)]
    while ahead:
        code = ahead.pop()
        if not isinstance(code, CodeType) or code in asked:
            continue
        asked.add(code)
        found |= _weights_read(code)
        names = [name for name in code.co_names if name != "forward" or "super" in code.co_names]
        methods = [vars(base)[name] for base in bases for name in names if inspect.isfunction(vars(base).get(name))]
        ahead += [*code.co_consts, *(getattr(inspect.unwrap(method), "__code__", None) for method in methods)]
    return found


def _weights_read(code: CodeType) -> set[str]:
    """Each ``part.within`` whose ``.weight`` is read off a variable, unless only for its shape or type."""
    found: set[str] = set()
    path: list[str] = []
    for step, following in pairwise(dis.get_instructions(code)):
        path = [*path, step.argval] if step.opname == "LOAD_ATTR" else []
        harmless = following.opname in ("LOAD_ATTR", "LOAD_METHOD") and following.argval in _HARMLESS
        if len(path) > 1 and path[-1] == "weight" and not harmless:
            found.add(".".join(path[:-1]))
    return found
