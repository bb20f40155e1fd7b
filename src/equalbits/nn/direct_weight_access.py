"""Detect layers whose ``.weight`` is accessed directly instead of calling the layer: a binary one would have no effect.

Torch's attention never calls its ``out_proj``; its encoder layer calls ``linear1`` in training and reads its weight in
eval mode; several vision transformers pass ``self.qkv.weight`` to ``F.linear``. The check reads the bytecode of
``forward`` and of the methods it calls.
"""

import dis
import inspect
from itertools import pairwise
from types import CodeType

from torch import nn

#: Attributes of a weight that do not depend on its values.
_METADATA = frozenset({"device", "dim", "dtype", "is_cuda", "ndim", "numel", "requires_grad", "shape", "size"})


def directly_accessed_layers(model: nn.Module) -> dict[nn.Module, str]:
    """Return the layers whose weight is read by the ``forward`` of an enclosing module, with that module's class.

    >>> list(directly_accessed_layers(nn.MultiheadAttention(8, 2)).values())
    ['MultiheadAttention']
    """
    read = {kind: _submodules_read(kind) for kind in {type(module) for module in model.modules()}}
    found: dict[nn.Module, str] = {}
    for parent in model.modules():
        paths = read[type(parent)]
        parts = dict(parent.named_modules(remove_duplicate=False)) if paths else {}
        found |= {parts[path]: type(parent).__name__ for path in paths if path in parts}
    return found


def _submodules_read(kind: type[nn.Module]) -> set[str]:
    """Return the names of submodules whose weight the class reads in ``forward`` or in a method that it calls."""
    bases = [base for base in kind.__mro__ if base not in (nn.Module, object)]
    found: set[str] = set()
    visited: set[CodeType] = set()
    stack: list[object] = [getattr(inspect.unwrap(kind.forward), "__code__", None)]
    while stack:
        code = stack.pop()
        if not isinstance(code, CodeType) or code in visited:
            continue
        visited.add(code)
        found |= _weights_read(code)
        names = [name for name in code.co_names if name != "forward" or "super" in code.co_names]
        methods = [vars(base)[name] for base in bases for name in names if inspect.isfunction(vars(base).get(name))]
        stack += [*code.co_consts, *(getattr(inspect.unwrap(method), "__code__", None) for method in methods)]
    return found


def _weights_read(code: CodeType) -> set[str]:
    """Return each dotted name whose ``.weight`` is read in ``code``, except for its shape, dtype or device."""
    found: set[str] = set()
    path: list[str] = []
    for instruction, following in pairwise(dis.get_instructions(code)):
        path = [*path, instruction.argval] if instruction.opname == "LOAD_ATTR" else []
        is_metadata = following.opname in ("LOAD_ATTR", "LOAD_METHOD") and following.argval in _METADATA
        if len(path) > 1 and path[-1] == "weight" and not is_metadata:
            found.add(".".join(path[:-1]))
    return found
