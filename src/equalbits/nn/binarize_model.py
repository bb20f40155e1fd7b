"""``binarize_``: replace layers of any model by binary ones in place, and report every decision."""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import UninitializedParameter, is_lazy
from torch.nn.utils import parametrize

from equalbits._text import html_table
from equalbits.nn.binary_layer import BinaryLayer, check_module, check_quantizers
from equalbits.nn.direct_weight_access import directly_accessed_layers
from equalbits.nn.forward_checks import Example, watch_forward
from equalbits.nn.layer_policies import Candidate, Policy, by_name, inner_layers
from equalbits.nn.layers import BINARY_CLASSES, as_binary_layer
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.registry import input_quantizer_by_name, quantizer_by_name
from equalbits.nn.replace_modules import replace_modules


@dataclass(frozen=True)
class Conversion:
    """Report of :func:`binarize_`: layers made binary, layers left real with the reason, and layers binary before.

    ``constant`` names the layers whose binary input was constant for the example: they learn nothing.
    """

    replaced: tuple[str, ...]
    left_real: tuple[tuple[str, str], ...]
    already: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        rows = [("binary", name, "constant input" * (name in self.constant)) for name in self.replaced]
        rows += [("before", name, "") for name in self.already]
        rows += [("real", name, reason) for name, reason in self.left_real]
        return html_table(("layer is", "name", "reason"), rows, left=(0, 1, 2), note=self._heading())

    def _heading(self) -> str:
        layers, before = "layer" if len(self.replaced) == 1 else "layers", len(self.already)
        heading = f"{len(self.replaced)} {layers} made binary, {len(self.left_real)} left real"
        heading = f"{heading}, {before} binary before" if before else heading
        if not self.constant:
            return heading
        return f"{heading}; {len(self.constant)} have a constant binary input: call adapt_for_binary_inputs_"

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.left_real), default=0)
        rows = [f"  binary  {name}{'  (constant input)' * (name in self.constant)}" for name in self.replaced]
        rows += [f"  before  {name}" for name in self.already]
        rows += [f"  real    {name:<{width}}  {reason}" for name, reason in self.left_real]
        return "\n".join([self._heading(), *rows])


def binarize_(
    model: nn.Module,
    weight_quantizer: WeightQuantizer | str,
    *,
    input_quantizer: nn.Module | str | None = None,
    where: Policy | str | Iterable[str] = inner_layers,
    example: Example | None = None,
) -> Conversion:
    """Replace layers of ``model`` by binary ones in place; return which were replaced, which were left, and why.

    A quantizer may be given by its name, such as ``"bihalf:p_pos=0.25"``. ``where`` is a policy (:func:`inner_layers`,
    :func:`all_layers` or any callable on a :class:`Candidate`), or names and patterns like ``"blocks.*.conv?"``. The
    latents are the model's own parameters, so existing optimizers stay valid. A layer used in two places stays one
    layer, also in plain lists of the model. An error leaves the model unchanged.

    A layer is binary when it is called; code that accesses ``layer.weight`` directly gets the real latents. A layer
    whose weight is accessed by an enclosing ``forward``, as in torch's attention, is therefore left real.
    :func:`equalbits.summarize` shows layers that were never called.

    With an ``example`` (a batch of inputs, a tuple of them, or a dict of them by name) the model is run on it, before
    and after the conversion. Layers whose weight any function reads stay real, and the report names layers whose binary
    input is constant, as the sign of a ReLU's output is (:func:`adapt_for_binary_inputs_`).

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> from equalbits.nn import BiHalf
    >>> print(binarize_(model, BiHalf()))
    1 layer made binary, 2 left real
      binary  2
      real    0  the first layer
      real    4  the last layer
    """
    check_module(model)
    weight_quantizer = quantizer_by_name(weight_quantizer) if isinstance(weight_quantizer, str) else weight_quantizer
    input_quantizer = input_quantizer_by_name(input_quantizer) if isinstance(input_quantizer, str) else input_quantizer
    check_quantizers(weight_quantizer, input_quantizer)
    candidates, unsuited, already = _survey(model, {} if example is None else watch_forward(model, example).read)
    if not candidates:
        usual = "the model needs nn.Linear or convolutions that it calls"
        raise _nothing_chosen("no layer can be binary", unsuited, already, usual)
    policy = where if callable(where) else by_name(where, model, [candidate.layer for candidate in candidates])
    verdicts = [(candidate, policy(candidate)) for candidate in candidates]
    chosen = [candidate for candidate, verdict in verdicts if verdict is True]
    reasons = [(c.name, v if isinstance(v, str) else "not chosen") for c, v in verdicts if v is not True]
    if not chosen:
        usual = "pass where=all_layers or names like where='layer1.*'"
        raise _nothing_chosen(f"where= selects none of {len(candidates)} layers", unsuited, already, usual)
    for candidate in chosen:
        _check_plain_weight(candidate)
    replace_modules(model, _make_binary(chosen, weight_quantizer, input_quantizer))
    constant = {} if example is None or input_quantizer is None else watch_forward(model, example).constant
    constant_names = tuple(name for name, layer in model.named_modules() if layer in constant)
    return Conversion(tuple(c.name for c in chosen), (*reasons, *unsuited), already, constant_names)


#: Layers with weights but without a binary class. They appear in the report, and count as first or last.
_NO_BINARY_CLASS: tuple[type[nn.Module], ...] = (
    *(nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose3d, nn.Bilinear, nn.Embedding, nn.EmbeddingBag),
    *(nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention),
)
_LAYERS = (*BINARY_CLASSES, *_NO_BINARY_CLASS)


def _survey(
    model: nn.Module, read: Container[nn.Module]
) -> tuple[list[Candidate], list[tuple[str, str]], tuple[str, ...]]:
    """Return layers that can become binary, layers that cannot with the reason, and names of those that are.

    ``read`` are the layers whose weight was read from outside when the model ran.
    """
    layers = [(name, module) for name, module in model.named_modules() if _is_layer(module)]
    accessed = directly_accessed_layers(model)
    embeddings = {layer.weight: name for name, layer in layers if isinstance(layer, nn.Embedding | nn.EmbeddingBag)}
    compiled = {module._modules.get("_orig_mod") for module in model.modules()}

    def reason_against(layer: nn.Module) -> str | None:
        kind, weight = type(layer).__name__, layer._parameters.get("weight")
        refused_later = parametrize.is_parametrized(layer) or isinstance(layer, nn.modules.lazy.LazyModuleMixin)
        if layer in accessed:
            return f"{accessed[layer]} accesses its .weight directly instead of calling the layer"
        if isinstance(layer, _NO_BINARY_CLASS):
            return f"of class {kind}, which has no binary version"
        if not isinstance(layer, _LAYERS):
            return f"of class {type(layer).__module__}.{kind}, {_FOREIGN}"
        if weight in embeddings:
            return f"tied to the embedding {embeddings[weight]!r}, which reads the weight as it is"
        if layer in read:
            return "a function reads its .weight, past the layer"
        if weight is not None and not weight.is_floating_point():
            return f"its weights are {weight.dtype}: only real numbers have a sign"
        if type(layer) not in BINARY_CLASSES and not refused_later:
            return f"of class {type(layer).__module__}.{kind}, {_OVERRIDING}"
        if layer in compiled:
            return "compiled separately, so the real layer would still run: binarize, then compile"
        if "forward" in vars(layer):  # the replacement would copy it and still compute with real weights
            return "its forward was replaced"
        return None

    candidates: list[Candidate] = []
    unsuited: list[tuple[str, str]] = []
    already: list[str] = []
    for position, (name, layer) in enumerate(layers):
        if isinstance(layer, BinaryLayer):
            already.append(name)
        elif reason := reason_against(layer):
            unsuited.append((name, reason))
        elif name == "":
            raise ValueError(
                f"the model is a single {type(layer).__name__}, which cannot be replaced in place: wrap it in "
                f"nn.Sequential, or create a binary layer such as BinaryLinear"
            )
        else:
            path = name.split(".")[:-1]
            enclosing = [model.get_submodule(".".join(path[:depth])) for depth in range(len(path) + 1)]
            within = tuple(type(module).__name__ for module in enclosing)
            candidates.append(Candidate(name, layer, position, len(layers), within))
    return candidates, unsuited, tuple(already)


_FOREIGN, _OVERRIDING = "which is no layer of torch", "which may override forward"


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module is a layer of torch, or has a matrix of weights itself, as transformers' Conv1D has."""
    weight, is_norm = module._parameters.get("weight"), "Norm" in type(module).__name__
    is_matrix = weight is not None and not is_lazy(weight) and weight.dim() > 1
    return isinstance(module, _LAYERS) or (is_matrix and not is_norm)


def _nothing_chosen(what: str, unsuited: list[tuple[str, str]], already: tuple[str, ...], usual: str) -> ValueError:
    """Return the error where no layer was chosen: each reason with the first layer it applies to, and the way out."""
    first: dict[str, str] = {}
    for name, reason in unsuited:
        first.setdefault(reason, f"{name!r} is left real: {reason}")
    reasons = f" ({'; '.join(first.values())})" if first else ""
    before = f"; {len(already)} are binary already" if already else ""
    foreign = [name for name, reason in unsuited if reason.endswith((_FOREIGN, _OVERRIDING))]
    way_out = f"replace layers such as {foreign[0]!r} by nn.Linear or a convolution first" if foreign else usual
    return ValueError(f"nothing to make binary: {what}{reasons}{before}; {way_out}")


def _check_plain_weight(candidate: Candidate) -> None:
    """Raise if the weight is not an initialized parameter of the layer itself."""
    layer = candidate.layer
    if isinstance(layer.weight, UninitializedParameter):
        raise ValueError(f"layer {candidate.name!r} is lazy and not initialized: run one batch, then binarize")
    if parametrize.is_parametrized(layer):
        way_out = "torch.nn.utils.parametrize.remove_parametrizations"
    elif "weight" not in layer._parameters:
        way_out = "torch.nn.utils.remove_weight_norm, remove_spectral_norm or prune.remove"
    else:
        return
    raise ValueError(
        f"layer {candidate.name!r} computes its weight from other parameters: make that permanent first with "
        f"{way_out}; or leave the layer out with where="
    )


def _make_binary(
    chosen: list[Candidate], weight_quantizer: WeightQuantizer, input_quantizer: nn.Module | None
) -> dict[nn.Module, BinaryLayer]:
    """Return the binary version of each layer; on an error restore weights that ``fit_`` changed, as that of Bits."""
    writes = type(weight_quantizer).fit_ is not WeightQuantizer.fit_
    before = [(c.layer.weight, c.layer.weight.detach().clone()) for c in chosen if writes]  # type: ignore[operator]
    try:
        return {c.layer: as_binary_layer(c.layer, weight_quantizer, input_quantizer) for c in chosen}
    except Exception:
        for weight, values in before:
            weight.detach().copy_(values)  # type: ignore[operator]
        raise
