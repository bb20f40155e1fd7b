"""``binarize_``: turn the layers of any model binary, in place, and say what was done and what was left."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import is_not
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from equalbits.nn.binary_layer import BinaryLayer, check_quantizers
from equalbits.nn.layer_policies import Candidate, Policy, by_name, inner_layers
from equalbits.nn.layers import BINARY_CLASSES, as_binary_layer
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.weight_access import directly_accessed_layers


@dataclass(frozen=True)
class Conversion:
    """What :func:`binarize_` did: the names made binary, those left real with the reason, those binary before."""

    replaced: tuple[str, ...]
    left_real: tuple[tuple[str, str], ...]
    already: tuple[str, ...] = ()

    def __str__(self) -> str:
        layers = "layer" if len(self.replaced) == 1 else "layers"
        heading = f"{len(self.replaced)} {layers} made binary, {len(self.left_real)} left real"
        width = max((len(name) for name, _ in self.left_real), default=0)
        rows = [f"  binary  {name}" for name in self.replaced]
        rows += [f"  before  {name}" for name in self.already]
        rows += [f"  real    {name:<{width}}  {reason}" for name, reason in self.left_real]
        return "\n".join([f"{heading}, {len(self.already)} binary before" if self.already else heading, *rows])


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
    still holds them. A layer used in two places stays one layer, in plain lists of the model's too. Nothing is changed
    when anything is refused.

    A layer is binary when it is called; code that reads ``layer.weight`` past it gets the real latents. So a layer
    whose weight is read by the ``forward`` around it, as in torch's attention, is left real.
    :func:`equalbits.summarize` shows which layers were never called.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> from equalbits.nn import BiHalf
    >>> print(binarize_(model, BiHalf()))
    1 layer made binary, 2 left real
      binary  2
      real    0  the first layer
      real    4  the last layer
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is a {type(model).__name__}: give a torch.nn.Module")
    check_quantizers(weight_quantizer, input_quantizer)
    candidates, unsuited, already = _survey(model)
    if not candidates:
        what = f"no layer could be{_told(unsuited)}{_count(already)}"
        raise ValueError(f"nothing to make binary: {what}; give the model nn.Linear or convolutions that it calls")
    policy = where if callable(where) else by_name(where, _names(model, candidates))
    verdicts = [(candidate, policy(candidate)) for candidate in candidates]
    chosen = [candidate for candidate, verdict in verdicts if verdict is True]
    reasons = [(c.name, v if isinstance(v, str) else "not chosen") for c, v in verdicts if v is not True]
    if not chosen:
        what = f"{len(candidates)} layers could be, and where= chose none{_told(unsuited)}{_count(already)}"
        raise ValueError(f"nothing to make binary: {what}; pass where=all_layers or names like where='layer1.*'")
    for candidate in chosen:
        _refuse_unready(candidate)
    _put(model, _twins(chosen, weight_quantizer, input_quantizer))
    return Conversion(tuple(c.name for c in chosen), (*reasons, *unsuited), already)


#: Layers with weights that have no binary twin here. They are named in the report, and count as first or last.
_NO_TWIN: tuple[type[nn.Module], ...] = (
    *(nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose3d, nn.Bilinear, nn.Embedding, nn.EmbeddingBag),
    *(nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention),
)
_LAYERS = (*BINARY_CLASSES, *_NO_TWIN)


def _survey(model: nn.Module) -> tuple[list[Candidate], list[tuple[str, str]], tuple[str, ...]]:
    """The layers that could become binary, those that cannot with the reason, and the names of those that are."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, _LAYERS)]
    read_past = directly_accessed_layers(model)
    compiled = {module._modules.get("_orig_mod") for module in model.modules()}
    candidates: list[Candidate] = []
    unsuited: list[tuple[str, str]] = []
    already: list[str] = []
    for position, (name, layer) in enumerate(layers):
        kind = type(layer).__name__
        if isinstance(layer, BinaryLayer):
            already.append(name)
        elif layer in read_past:
            unsuited.append((name, f"{read_past[layer]} reads its weight past it"))
        elif isinstance(layer, _NO_TWIN):
            unsuited.append((name, f"of class {kind}, which has no binary form here"))
        elif type(layer) not in BINARY_CLASSES and not _is_unready(layer):
            unsuited.append((name, f"of class {type(layer).__module__}.{kind}, which may compute in its own way"))
        elif layer in compiled:
            unsuited.append((name, "compiled by itself, which holds on to the real one: make it binary, then compile"))
        elif "forward" in vars(layer):  # a twin would take it over, and go on computing with real weights
            unsuited.append((name, "its forward was replaced, so it computes in its own way"))
        elif name == "":
            raise ValueError(
                f"the model is itself one {kind}: it cannot be replaced in place; wrap it in nn.Sequential, or make "
                f"it binary from the start, as with BinaryLinear"
            )
        else:
            candidates.append(Candidate(name, layer, position, len(layers), _within(model, name)))
    return candidates, unsuited, tuple(already)


def _told(unsuited: list[tuple[str, str]]) -> str:
    """The reasons, each told once with the first layer that it holds for."""
    first: dict[str, str] = {}
    for name, reason in unsuited:
        first.setdefault(reason, f"{name!r} is left: {reason}")
    return f" ({'; '.join(first.values())})" if first else ""


def _count(already: tuple[str, ...]) -> str:
    return f"; {len(already)} are binary already" if already else ""


def _within(model: nn.Module, name: str) -> tuple[str, ...]:
    """The class names of the modules around a layer, outermost first."""
    parts = name.split(".")[:-1]
    return tuple(type(model.get_submodule(".".join(parts[:depth]))).__name__ for depth in range(len(parts) + 1))


def _names(model: nn.Module, candidates: list[Candidate]) -> dict[nn.Module, list[str]]:
    """Every name each candidate goes by; a layer used in two places has two."""
    names: dict[nn.Module, list[str]] = {candidate.layer: [] for candidate in candidates}
    for name, module in model.named_modules(remove_duplicate=False):
        if module in names:
            names[module].append(name)
    return names


def _is_unready(layer: nn.Module) -> bool:
    return parametrize.is_parametrized(layer) or isinstance(layer, nn.modules.lazy.LazyModuleMixin)


def _refuse_unready(candidate: Candidate) -> None:
    layer = candidate.layer
    if isinstance(layer.weight, UninitializedParameter):
        raise ValueError(f"layer {candidate.name!r} has no weights yet: run one batch through the model, then binarize")
    if parametrize.is_parametrized(layer):
        way_out = "torch.nn.utils.parametrize.remove_parametrizations"
    elif "weight" not in layer._parameters:
        way_out = "torch.nn.utils.remove_weight_norm, remove_spectral_norm or prune.remove, whichever put it there"
    else:
        return
    raise ValueError(
        f"layer {candidate.name!r} computes its weight from other parameters: make that permanent first with "
        f"{way_out}; or leave the layer out with where="
    )


def _twins(
    chosen: list[Candidate], weight_quantizer: WeightQuantizer, input_quantizer: nn.Module | None
) -> dict[nn.Module, BinaryLayer]:
    """The twin of each layer; weights that some wrote to, as Bits does, are put back when a later one is refused."""
    writes = type(weight_quantizer).fit_ is not WeightQuantizer.fit_
    before = [(c.layer.weight, c.layer.weight.detach().clone()) for c in chosen if writes]  # type: ignore[operator]
    try:
        return {c.layer: as_binary_layer(c.layer, weight_quantizer, input_quantizer) for c in chosen}
    except Exception:
        for weight, values in before:
            weight.detach().copy_(values)  # type: ignore[operator]
        raise


def _put(model: nn.Module, twins: dict[nn.Module, BinaryLayer]) -> None:
    """Put each twin wherever its layer stands: in every place that shares it, and in plain lists beside them.

    A ``forward`` that goes through such a list would otherwise go on computing with the real layers.
    """
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in twins:
                parent._modules[name] = twins[child]
        own = vars(parent)
        for name in own.keys() - _TORCHS_OWN:
            own[name] = _exchanged(own[name], twins, set())


_TORCHS_OWN = frozenset(vars(nn.Module()))


def _exchanged(held: Any, twins: dict[nn.Module, BinaryLayer], seen: set[int]) -> Any:
    """``held`` with twins for their layers, however deep in Python's own containers and what is made from them."""
    if isinstance(held, nn.Module):
        return twins.get(held, held)
    if isinstance(held, tuple | frozenset):  # not noted: where it stands twice, each is made anew
        parts = [_exchanged(part, twins, seen) for part in held]
        kind: Any = tuple if isinstance(held, tuple) else frozenset  # which make a namedtuple, too, from its parts
        return kind.__new__(type(held), parts) if any(map(is_not, parts, held)) else held
    if not isinstance(held, list | deque | dict | set) or id(held) in seen:
        return held
    seen.add(id(held))
    if isinstance(held, dict | set):
        keys = [_exchanged(key, twins, seen) for key in held]
        if any(map(is_not, keys, held)):
            anew: Any = dict(zip(keys, held.values(), strict=True)) if isinstance(held, dict) else keys
            held.clear()
            held.update(anew)
    if isinstance(held, set):
        return held
    for place in list(held) if isinstance(held, dict) else range(len(held)):
        new = _exchanged(held[place], twins, seen)
        if new is not held[place]:
            held[place] = new
    return held
