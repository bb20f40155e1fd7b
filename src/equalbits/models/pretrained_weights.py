"""Start a binary network from a trained real one: of the same names, or of the same layers under other names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import torch
from torch import Tensor, nn

from equalbits._text import html_table, one_line
from equalbits.models.timm_models import PREFIX, timm_creator
from equalbits.nn import check_module
from equalbits.runtime import find_checkpoint

_NONE = torch.empty(0)
#: Tensors of one module by their last name, as {"weight": …, "bias": …}.
Group = dict[str, Tensor]


@dataclass(frozen=True)
class RealWeights:
    """Report of :func:`load_real`: modules that got weights, with the name in the source, and modules left new."""

    loaded: tuple[tuple[str, str], ...]
    left_new: tuple[str, ...]

    def __str__(self) -> str:
        names = f": {', '.join(self.left_new)}" if self.left_new else ""
        loaded, new = len(self.loaded), len(self.left_new)
        return f"{loaded} module{'s' * (loaded != 1)} got weights, {new} {'is' if new == 1 else 'are'} new{names}"

    def _repr_html_(self) -> str:
        rows = [*self.loaded, *((name, "new") for name in self.left_new)]
        return html_table(("module", "weights of"), rows, left=(0, 1), note=str(self))


def load_real(model: nn.Module, source: nn.Module | Mapping[str, Tensor] | str | os.PathLike[str]) -> RealWeights:
    """Copy the weights of a trained real network into ``model``, whose binary layers take them as latents.

    ``source`` is a model, its state dict, the directory of a run, a ``.safetensors`` file, ``"timm:resnet18"`` for
    pretrained weights of timm, or ``"zoo:NAME"``. Modules are paired by name; where most names differ, by order and
    shape, as of a ResNet-18 of timm and one of this package. Modules of other shapes, such as a classifier of other
    classes, stay new, and so do modules without weights in the source, such as learned scales. Raises for another
    network: by order, all layers but the first and the last must be found.

    >>> real = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.PReLU(), nn.Linear(8, 3))
    >>> print(load_real(model, real))
    1 module got weights, 2 are new: 1, 2
    """
    check_module(model)
    theirs, ours = _groups(_state_dict(source)), _groups(model.state_dict())
    pairs = {name: name for name, own in ours.items() if name in theirs and _fits(own, theirs[name])}
    if 2 * _count(ours, pairs) < _count(ours, ours):
        pairs = _by_order(ours, theirs)
        layers = [name for name, group in ours.items() if group.get("weight", _NONE).dim() > 1]
        if missing := [name for name in (layers[1:-1] if pairs else layers) if name not in pairs]:
            raise ValueError(f"{_name(source)} has no weights for {missing[0]}: use one of the same network")
    state = {
        f"{name}.{part}".lstrip("."): theirs[other][part]
        for name, other in pairs.items()
        for part in ours[name].keys() & theirs[other].keys()
    }
    model.load_state_dict(state, strict=False)
    return RealWeights(tuple(pairs.items()), tuple(name for name in ours if name not in pairs))


def _name(source: object) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else f"the {type(source).__name__}"


def _state_dict(source: nn.Module | Mapping[str, Tensor] | str | os.PathLike[str]) -> Mapping[str, Tensor]:
    if isinstance(source, nn.Module):
        return source.state_dict()
    if isinstance(source, Mapping):
        return source
    word = os.fspath(source)
    if word.startswith(PREFIX):
        return _timm_weights(word)
    if word.startswith("zoo:"):
        word = str(find_checkpoint(word))
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if Path(word, "last.safetensors").is_file():  # the directory of a run
        word = str(Path(word, "last.safetensors"))
    if not Path(word).is_file():
        what = "is no run" if Path(word).is_dir() else "does not exist"
        raise ValueError(
            f"{word} {what}: give the directory of a run, a .safetensors file, or timm:NAME for weights of timm"
        )
    try:
        tensors = load_file(word)
    except (SafetensorError, ValueError) as error:
        hint = "save the state dict with safetensors.torch.save_file"
        raise ValueError(f"{word} is not a safetensors file ({one_line(error)}): {hint}") from None
    for prefix in ("average.", "model."):  # a checkpoint of this package, with the state of its optimizer
        if own := {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}:
            return own
    return tensors


def _timm_weights(name: str) -> Mapping[str, Tensor]:
    create = timm_creator(name)
    try:
        return create(pretrained=True).state_dict()
    except (OSError, RuntimeError) as error:  # there are none, or the Hub was not reached
        reason = one_line(error).rstrip(".")
        raise ValueError(f"{name}: its pretrained weights could not be loaded: {reason}") from error


def _groups(state: Mapping[str, Tensor]) -> dict[str, Group]:
    """Return the floating-point tensors by module, in order."""
    groups: dict[str, Group] = {}
    for name, tensor in state.items():
        module, _, part = name.rpartition(".")
        if tensor.is_floating_point():
            groups.setdefault(module, {})[part] = tensor
    return groups


def _fits(own: Group, other: Group) -> bool:
    """Return whether two modules have a weight of one shape, and agree in what else both have."""
    shared = own.keys() & other.keys()
    return "weight" in shared and all(own[part].shape == other[part].shape for part in shared)


def _by_order(ours: Mapping[str, Group], theirs: Mapping[str, Group]) -> dict[str, str]:
    """Pair modules in order: the longest common subsequence of weight shapes, convolutions apart from norms."""
    pairs: dict[str, str] = {}
    for is_norm in (False, True):
        mine, others = (
            [name for name, group in groups.items() if "weight" in group and ("running_mean" in group) == is_norm]
            for groups in (ours, theirs)
        )
        ours_in_order = [str(ours[name]["weight"].shape) for name in mine]
        theirs_in_order = [str(theirs[name]["weight"].shape) for name in others]
        for block in SequenceMatcher(None, ours_in_order, theirs_in_order, autojunk=False).get_matching_blocks():
            places = range(block.size)
            pairs |= {mine[block.a + i]: others[block.b + i] for i in places}
    return {name: other for name, other in pairs.items() if _fits(ours[name], theirs[other])}


def _count(ours: Mapping[str, Group], names: Mapping[str, object]) -> int:
    """Return the number of weights of the named modules."""
    return sum(ours[name]["weight"].numel() for name in names if "weight" in ours[name])
