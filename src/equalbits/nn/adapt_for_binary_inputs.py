"""``adapt_for_binary_inputs_``: replace the ReLUs that make a binary input constant."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from equalbits.nn.binary_layer import check_module, layers_by_name
from equalbits.nn.forward_checks import RECTIFIERS, Example, watch_forward
from equalbits.nn.replace_modules import replace_modules
from equalbits.nn.shortcuts import add_shortcuts_


@dataclass(frozen=True)
class Adaptation:
    """Report of :func:`adapt_for_binary_inputs_`: activations replaced, and layers whose input is constant still.

    ``shortcuts`` names the layers with a new real path around them.
    """

    replaced: tuple[str, ...]
    activation: str
    constant: tuple[str, ...] = ()
    shortcuts: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [f"{len(self.replaced)} activations replaced by {self.activation}"]
        rows += [f"  replaced  {name}" for name in self.replaced]
        rows += [f"  shortcut  {name}" for name in self.shortcuts]
        rows += [f"  constant  {name}  its input has one sign, and no ReLU module makes it" for name in self.constant]
        return "\n".join(rows)


def adapt_for_binary_inputs_(
    model: nn.Module,
    example: Example | None = None,
    *,
    activation: Callable[[], nn.Module] | None = None,
    shortcuts: bool = False,
) -> Adaptation:
    """Replace ReLU and ReLU6 modules before binary inputs in place, so that signs differ; return a report.

    The sign of a ReLU's output is always +1, so a layer with binary inputs behind it learns nothing. PReLU, as in
    ReActNet, keeps negative values; ``activation=nn.Hardtanh`` is the choice of the first binary nets, and
    ``activation=nn.Identity`` that of Bi-Real Net, whose only activation is the sign; it is the default with
    ``shortcuts``.

    ``shortcuts=True`` adds the inputs of each convolution with binary inputs to its outputs after batch norm, as
    Bi-Real Net and ReActNet do. A deep net with few of its own, such as MobileNetV2, learns nothing without.
    It needs an ``example``, and moves the layers, so load weights before.

    With an ``example`` only those activations are replaced whose output reaches a binary input without negative values,
    through any operation, and layers that remain constant are reported: their ``forward`` may call ``F.relu``. Without
    it all are. Call this after :func:`binarize_` and before you create the optimizer, which needs the new parameters.

    >>> from equalbits.nn import BiHalf, BinaryLinear, SignActivation
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), BinaryLinear(8, 2, input_quantizer=SignActivation()))
    >>> print(adapt_for_binary_inputs_(model))
    1 activations replaced by PReLU
      replaced  1
    """
    check_module(model)
    if all(layer.input_quantizer is None for layer in layers_by_name(model).values()):
        raise ValueError("no layer has binary inputs: call binarize_(model, …, input_quantizer=SignActivation()) first")
    if shortcuts and example is None:
        raise ValueError("shortcuts=True needs an example: it runs the model to find the batch norm of each layer")
    activation = activation or (nn.Identity if shortcuts else nn.PReLU)
    added = add_shortcuts_(model, example) if shortcuts and example is not None else ()
    names = {module: name for name, module in model.named_modules()}
    if example is None:
        rectifiers = {module for module in names if isinstance(module, RECTIFIERS)}
        replaced, constant = _replace(model, rectifiers, activation), frozenset[nn.Module]()
    else:
        replaced, observed = set[nn.Module](), watch_forward(model, example)
        while rectifiers := {source for sources in observed.constant.values() for source in sources}:
            replaced |= _replace(model, rectifiers, activation)
            observed = watch_forward(model, example)
        constant = frozenset(observed.constant)
    return Adaptation(
        tuple(name for module, name in names.items() if module in replaced),
        type(activation()).__name__,
        tuple(name for module, name in names.items() if module in constant),
        added,
    )


def _replace(model: nn.Module, rectifiers: set[nn.Module], activation: Callable[[], nn.Module]) -> set[nn.Module]:
    """Replace these modules by new activations on the device and in the dtype of the model; return them."""
    reference = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    made = {old: activation().to(reference.device, reference.dtype).train(old.training) for old in rectifiers}
    replace_modules(model, made)
    return rectifiers
