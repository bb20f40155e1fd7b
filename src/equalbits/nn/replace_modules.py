"""Replace modules of a model in place, wherever it holds them."""

from collections import deque
from collections.abc import Mapping
from operator import is_not
from typing import Any

from torch import nn


def replace_modules(model: nn.Module, made: Mapping[nn.Module, nn.Module]) -> None:
    """Replace each module wherever the model holds it, also in plain containers, which a ``forward`` may loop over."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in made:
                parent._modules[name] = made[child]
        own = vars(parent)
        for name in own.keys() - _TORCH_ATTRIBUTES:
            own[name] = _replace_in(own[name], made, set())


_TORCH_ATTRIBUTES = frozenset(vars(nn.Module()))


def _replace_in(held: Any, made: Mapping[nn.Module, nn.Module], seen: set[int]) -> Any:
    """Return ``held`` with modules replaced, at any depth of Python's containers; tuples and frozensets are rebuilt."""
    if isinstance(held, nn.Module):
        return made.get(held, held)
    if isinstance(held, tuple | frozenset):
        parts = [_replace_in(part, made, seen) for part in held]
        kind: Any = tuple if isinstance(held, tuple) else frozenset  # __new__ of either makes a subclass, too
        return kind.__new__(type(held), parts) if any(map(is_not, parts, held)) else held
    if isinstance(held, list | deque | set | dict) and id(held) not in seen:  # seen: containers may be cyclic
        seen.add(id(held))
        before = list(held.items() if isinstance(held, dict) else held)
        parts = [_replace_in(part, made, seen) for part in before]
        if any(map(is_not, parts, before)):
            held.clear()
            (held.update if isinstance(held, set | dict) else held.extend)(parts)
    return held
