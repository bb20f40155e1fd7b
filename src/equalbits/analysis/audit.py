"""Count the symbols of every filter and check that each promised share of +1 is exact."""

import warnings

import torch
from torch import nn

from equalbits.analysis.layer_hooks import binary_layers
from equalbits.functional import as_filters, check_finite
from equalbits.nn import BinaryLayer, parametrization_in_eval
from equalbits.runtime import Audit, LayerAudit, PackedModel


class AuditError(ValueError):
    """A filter does not have the share of +1 that its quantizer promises."""


def audit(model: nn.Module | PackedModel, *, strict: bool = True) -> Audit:
    """Count −1, 0 and +1 in every filter of every binary layer, and check the share that each quantizer promises.

    A quantizer promises a share when its ``p_pos`` is not None. Each filter must then have exactly
    ``floor(p_pos · D + ½)`` of +1 among its ``D`` symbols other than 0, and the weight of the forward pass must have
    these signs. With ``strict`` a violation raises :class:`AuditError`; otherwise the report lists it. Methods that
    promise no share are only counted. Latents that are not finite always raise. A constant scale more than ten times
    smaller or larger than the layer's initial one is a violation too (a warning if not ``strict``): a loader left it
    uninitialized. A packed model is audited from its bits.

    >>> from equalbits.nn import BinaryLinear, Sign
    >>> print(audit(nn.Sequential(BinaryLinear(9, 4), BinaryLinear(4, 2, weight_quantizer=Sign()))))
    layer  filters×weights  of −1  of 0  of +1  expected  entropy  exact
    0                  4×9      4     0      5         5   0.9911  yes
    1                  2×4    ...
    1 of 2 layers promise a share of +1; all 4 filters are exact
    """
    if isinstance(model, PackedModel):
        report = model.audit()
        layers = {}
    else:
        layers = binary_layers(model)
        report = Audit(tuple(_count(name, layer) for name, layer in layers.items()))
    if strict and not report.exact:
        raise AuditError(_first_violation(report))
    for name, layer in layers.items():
        if (problem := _scale_problem(layer)) is not None:
            if strict:
                raise AuditError(f"layer {name!r} {problem}")
            warnings.warn(f"layer {name!r} {problem}", stacklevel=2)
    return report


@torch.no_grad()
def _count(name: str, layer: BinaryLayer) -> LayerAudit:
    try:
        symbols = layer.symbols()
        check_finite(layer.latents())  # the sign alone would count NaN as -1
    except ValueError as error:
        raise AuditError(f"layer {name!r}: {error}") from error
    rows, p_pos, signs_agree = as_filters(symbols), layer.weight_quantizer.p_pos, None
    negative, zero, positive = ((rows.sign() == symbol).sum(dim=1).cpu().numpy() for symbol in (-1, 0, 1))
    if p_pos is not None:
        with parametrization_in_eval(layer):
            values = as_filters(layer.to_filters(layer.binary_weight()))
        signs_agree = (values.sign() == rows).all(dim=1).cpu().numpy()
    return LayerAudit(name, p_pos, negative, zero, positive, repr(layer.weight_quantizer), signs_agree)


def _scale_problem(layer: BinaryLayer) -> str | None:
    """Return the problem of a constant scale far from the initial one, and its remedy."""
    with parametrization_in_eval(layer):
        initial = layer.initial_scale()
    ratio = layer.scale.detach().double() / initial
    if isinstance(layer.scale, nn.Parameter) or bool(((ratio >= 0.1) & (ratio <= 10)).all()):
        return None
    method = type(layer.weight_quantizer).__name__
    return (
        f"has scale {float(ratio.flatten()[0] * initial):g}, but {method} starts at {initial:g}: a loader left it "
        f"uninitialized; repair it by scale.fill_({initial:g}), or make a scale of your own an nn.Parameter"
    )


def _first_violation(report: Audit) -> str:
    """Return the error text: the first filter that is not exact, and the number of them."""
    broken = [layer for layer in report.layers if layer.exact is False]
    layer, filter_ = broken[0], int(broken[0].inexact[0])
    assert layer.expected is not None
    cause = layer.quantizer or "a packed file that equalbits did not write"
    if layer.signs_agree is None or layer.signs_agree[filter_]:
        kept, expected = layer.negative[filter_] + layer.positive[filter_], layer.expected[filter_]
        problem = (
            f"has {layer.positive[filter_]} of +1 among {kept} weights, but p_pos={layer.p_pos} requires {expected}"
        )
    else:
        problem = "has a weight whose signs differ from its symbols"
        cause += ", or a layer scale that is not positive"
    return (
        f"layer {layer.name!r}, filter {filter_} {problem}; {report.inexact_filters} filters in {len(broken)} layers "
        f"are not exact. Likely cause: {cause}. audit(model, strict=False) shows all counts"
    )
