"""Which layers become binary: a policy looks at one candidate and says yes, or why not."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn


@dataclass(frozen=True)
class Candidate:
    """A layer that could become binary.

    ``position`` is its place among the ``count`` layers with weights that the model registers, those that cannot
    become binary included. ``within`` holds the class names of the modules around it, the model's own first.
    """

    name: str
    layer: nn.Module
    position: int
    count: int
    within: tuple[str, ...] = ()


#: Says True to make a layer binary; False, or the reason in a few words, to leave it real.
Policy = Callable[[Candidate], bool | str]


def all_layers(candidate: Candidate) -> bool | str:
    """Make every layer binary, as the paper does for its shallow nets."""
    return True


def inner_layers(candidate: Candidate) -> bool | str:
    """Leave the first, the last and the downsampling layers real, as the paper does for its deep nets; and gates.

    * First and last go by the order in which the model registers its layers. A layer that the model itself holds
      as ``head``, ``head_…`` or ``classifier`` is an output, too, wherever it stands.
    * A layer downsamples when it is a convolution that reads each input once and has a stride (a 1×1 shortcut, a
      patch embedding), or when a part of its name says so (downsample, shortcut).
    * The layers of a squeeze-and-excite block weigh whole channels by a share between 0 and 1: they hold few
      weights, and all that follows depends on them.

    >>> inner_layers(Candidate("layer2.0.downsample.0", nn.Conv2d(8, 16, 1, stride=2), position=5, count=9))
    'a downsampling layer (by its name)'
    """
    if candidate.position == 0:
        return "the first layer"
    if candidate.position == candidate.count - 1:
        return "the last layer"
    if re.fullmatch(r"((module|_orig_mod)\.)*(head(_\w+)?|classifier)", candidate.name):  # torch's wrappers stand aside
        return "an output layer (by its name)"
    if re.search(r"(^|[._])(downsample|shortcut)", candidate.name):
        return "a downsampling layer (by its name)"
    if _reads_once_with_stride(candidate.layer):
        return "a downsampling layer (its stride is no smaller than its kernel)"
    if re.search(r"(^|[._])se([._]|$)", candidate.name) or any(map(_names_a_gate, candidate.within)):
        return "a squeeze-and-excite gate"
    return True


def by_name(where: str | Iterable[str], names: dict[nn.Module, list[str]]) -> Policy:
    """The policy that chooses the layers one of the patterns names; ``names`` holds every name each layer goes by.

    A layer used in two places has two. A pattern that names none is refused: it is likely a slip.
    """
    patterns = [where] if isinstance(where, str) else list(where)
    known = [name for every in names.values() for name in every]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(f"where={pattern!r} names no layer that could be binary; there are: {', '.join(known)}")
    return lambda candidate: any(fnmatchcase(name, p) for name in names[candidate.layer] for p in patterns)


def _reads_once_with_stride(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Conv1d | nn.Conv2d):
        return False
    return max(layer.stride) > 1 and all(k <= s for k, s in zip(layer.kernel_size, layer.stride, strict=True))


def _names_a_gate(class_name: str) -> bool:
    """Whether the words say so: SELayer and EffectiveSEModule do, DenseLayer and BaseModule hold the letters alone."""
    words = r"(?i:squeeze_?excit)|(S[Ee]|(^|_)[Ee]?se)_?([Mm]odule|[Ll]ayer)"
    return re.search(words, class_name) is not None
