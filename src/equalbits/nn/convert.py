"""``binarize_``: turn the layers of any model binary, in place, and say what was done and what was left."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from equalbits.nn.layers import BINARY_FOR, BinaryLayer, binary_twin
from equalbits.nn.quantizers import WeightQuantizer


@dataclass(frozen=True)
class Candidate:
    """A layer that could become binary: its name, the layer, and its place among all such layers of the model."""

    name: str
    layer: nn.Module
    position: int
    count: int


#: Says True to make a layer binary; False, or the reason in a few words, to leave it real.
Policy = Callable[[Candidate], bool | str]


def all_layers(candidate: Candidate) -> bool | str:
    """Make every layer binary, as the paper does for its shallow nets."""
    return True


def inner_layers(candidate: Candidate) -> bool | str:
    """Leave the first, the last and the downsampling layers real, as the paper does for its deep nets.

    First and last go by the order in which the model registers its layers. A layer downsamples when it is a
    convolution of kernel 1 with a stride, or when a part of its name says so (downsample, shortcut).
    """
    if candidate.position == 0:
        return "the first layer"
    if candidate.position == candidate.count - 1:
        return "the last layer"
    kernel, stride = (getattr(candidate.layer, name, (1,)) for name in ("kernel_size", "stride"))
    if max(stride) > 1 and max(kernel) == 1:
        return "a downsampling layer (1×1 with a stride)"
    if re.search(r"(^|[._])(downsample|shortcut)", candidate.name):
        return "a downsampling layer (by its name)"
    return True


@dataclass(frozen=True)
class Conversion:
    """What :func:`binarize_` did: the names made binary, and those left real with the reason."""

    replaced: tuple[str, ...]
    left_real: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        width = max((len(name) for name in (*self.replaced, *(name for name, _ in self.left_real))), default=0)
        rows = [f"  binary  {name}" for name in self.replaced]
        rows += [f"  real    {name:<{width}}  {reason}" for name, reason in self.left_real]
        return "\n".join([f"{len(self.replaced)} layers made binary, {len(self.left_real)} left real", *rows])


def binarize_(
    model: nn.Module,
    weight_quantizer: WeightQuantizer,
    *,
    input_quantizer: nn.Module | None = None,
    where: Policy | str | Iterable[str] = inner_layers,
) -> Conversion:
    """Replace layers of ``model`` by binary ones in place; return what was replaced, what was left, and why.

    ``where`` is a policy (:func:`inner_layers`, :func:`all_layers` or any callable on a :class:`Candidate`), or names
    and patterns like ``"blocks.*.conv?"``. The latents are the model's own parameters, so an optimizer made before
    still holds them. A layer used in two places stays one layer. Nothing is changed when anything is refused.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> from equalbits.nn import BiHalf
    >>> print(binarize_(model, BiHalf()))
    1 layers made binary, 2 left real
      binary  2
      real    0  the first layer
      real    4  the last layer
    """
    if not isinstance(weight_quantizer, WeightQuantizer):
        raise TypeError(
            f"weight_quantizer is {type(weight_quantizer).__name__}: give a quantizer, as in binarize_(model, BiHalf())"
        )
    candidates, unsuited = _survey(model)
    policy = where if callable(where) else _named(where, [c.name for c in candidates])
    verdicts = [(candidate, policy(candidate)) for candidate in candidates]
    chosen = [candidate for candidate, verdict in verdicts if verdict is True]
    reasons = [(c.name, v if isinstance(v, str) else "not chosen") for c, v in verdicts if v is not True]
    if not chosen:
        what = f"{len(candidates)} layers could be, and the policy chose none" if candidates else "no layer could be"
        raise ValueError(f"nothing to make binary: {what}; pass where=all_layers or names like where='layer1.*'")
    for candidate in chosen:
        _refuse_unready(candidate)
    for candidate in chosen:
        _put(model, candidate.layer, binary_twin(candidate.layer, weight_quantizer, input_quantizer))
    return Conversion(tuple(c.name for c in chosen), (*reasons, *unsuited))


def _survey(model: nn.Module) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """The layers that could become binary, and those with weights like them that cannot, with the reason."""
    found: list[tuple[str, nn.Module]] = []
    unsuited: list[tuple[str, str]] = []
    inside_attention: set[nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            inside_attention.update(module.children())
        if isinstance(module, BinaryLayer):
            unsuited.append((name, "binary already"))
        elif type(module) in BINARY_FOR or _is_unready(module):
            found.append((name, module))
        elif isinstance(module, tuple(BINARY_FOR)):
            kind = type(module).__name__
            why = "torch's attention never calls it" if module in inside_attention else "may compute in its own way"
            unsuited.append((name, f"of class {kind}, which {why}"))
    if found and found[0][0] == "":
        raise ValueError(
            f"the model is itself one {type(found[0][1]).__name__}: it cannot be replaced in place; "
            f"use {BINARY_FOR.get(type(found[0][1]), BinaryLayer).__name__}, or wrap it in nn.Sequential"
        )
    return [Candidate(name, layer, i, len(found)) for i, (name, layer) in enumerate(found)], unsuited


def _is_unready(module: nn.Module) -> bool:
    return isinstance(module, tuple(BINARY_FOR)) and (
        parametrize.is_parametrized(module) or isinstance(module, nn.modules.lazy.LazyModuleMixin)
    )


def _refuse_unready(candidate: Candidate) -> None:
    layer = candidate.layer
    if isinstance(layer.weight, UninitializedParameter):
        raise ValueError(f"layer {candidate.name!r} has no weights yet: run one batch through the model, then binarize")
    if parametrize.is_parametrized(layer) or "weight" not in layer._parameters:
        raise ValueError(
            f"layer {candidate.name!r} computes its weight by a parametrization: take that off first with "
            f"torch.nn.utils.parametrize.remove_parametrizations, or leave the layer out with where="
        )


def _named(where: str | Iterable[str], names: list[str]) -> Policy:
    patterns = [where] if isinstance(where, str) else list(where)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"where={pattern!r} names no layer that could be binary; there are: {', '.join(names)}")
    return lambda candidate: any(fnmatchcase(candidate.name, pattern) for pattern in patterns)


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` wherever ``old`` stands, in every place that shares it."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
