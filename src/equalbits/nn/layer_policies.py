"""Policies that select the layers to make binary: each accepts a candidate, or returns the reason to leave it real."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn


@dataclass(frozen=True)
class Candidate:
    """A layer that can become binary.

    ``position`` is its index among the ``count`` layers with weights that the model registers, including those that
    cannot become binary. ``within`` holds the class names of the enclosing modules, outermost first.
    """

    name: str
    layer: nn.Module
    position: int
    count: int
    within: tuple[str, ...] = ()


#: Returns True to make a layer binary; False, or the reason in a few words, to leave it real.
Policy = Callable[[Candidate], bool | str]


def all_layers(candidate: Candidate) -> bool | str:
    """Make every layer binary, as the paper does for its shallow nets, but for LoRA adapters.

    >>> all_layers(Candidate("attn.c_proj.lora_A.default", nn.Linear(8, 2), position=5, count=9))
    'a LoRA adapter'
    """
    return "a LoRA adapter" if re.search(r"(^|\.)lora_", candidate.name) else True


def inner_layers(candidate: Candidate) -> bool | str:
    """Leave the first, last, downsampling and gate layers real; the paper does so for its deep nets, but for gates.

    * First and last refer to the order in which the model registers its layers. A top-level layer named ``head``,
      ``head_…`` or ``classifier`` is an output layer too, at any position; so is ``fc`` or ``linear`` in it.
    * A downsampling layer is a convolution with a stride no smaller than its kernel (a 1×1 shortcut, a patch
      embedding), or has a name that contains ``downsample`` or ``shortcut``.
    * A gate is a layer of a squeeze-and-excite block. It has few weights, and scales whole channels.

    >>> inner_layers(Candidate("layer2.0.downsample.0", nn.Conv2d(8, 16, 1, stride=2), position=5, count=9))
    'a downsampling layer (by its name)'
    """
    if (verdict := all_layers(candidate)) is not True:
        return verdict
    if candidate.position == 0:
        return "the first layer"
    if candidate.position == candidate.count - 1:
        return "the last layer"
    unwrapped = re.sub(r"^((module|_orig_mod)\.)*", "", candidate.name)  # without torch's wrappers
    if re.fullmatch(r"(head(_\w+)?|classifier)(\.(fc|linear))?", unwrapped):
        return "an output layer (by its name)"
    if re.search(r"(^|[._])(downsample|shortcut)", candidate.name):
        return "a downsampling layer (by its name)"
    if _is_strided_patch(candidate.layer):
        return "a downsampling layer (its stride is no smaller than its kernel)"
    if re.search(r"(^|[._])se([._]|$)", candidate.name) or any(map(_is_gate_name, candidate.within)):
        return "a squeeze-and-excite gate"
    return True


def by_name(where: str | Iterable[str], model: nn.Module, layers: Iterable[nn.Module]) -> Policy:
    """Return the policy that selects layers of ``model`` by name patterns; a pattern that matches none raises."""
    if not isinstance(where, Iterable):
        raise ValueError(f"where={where!r} must be a policy such as all_layers, or names like 'layer1.*'")
    names: dict[nn.Module, list[str]] = {layer: [] for layer in layers}
    for name, module in model.named_modules(remove_duplicate=False):  # a layer used in two places has two names
        if module in names:
            names[module].append(name)
    patterns = [where] if isinstance(where, str) else list(where)
    known = [name for every in names.values() for name in every]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(f"where={pattern!r} matches no layer that can be binary; there are: {', '.join(known)}")
    return lambda candidate: any(fnmatchcase(name, p) for name in names[candidate.layer] for p in patterns)


def _is_strided_patch(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Conv1d | nn.Conv2d):
        return False
    return max(layer.stride) > 1 and all(k <= s for k, s in zip(layer.kernel_size, layer.stride, strict=True))


def _is_gate_name(class_name: str) -> bool:
    """Return whether a class name denotes squeeze-and-excite: SELayer does, DenseLayer does not."""
    words = r"(?i:squeeze_?excit)|(S[Ee]|(^|_)[Ee]?se)_?([Mm]odule|[Ll]ayer)"
    return re.search(words, class_name) is not None
