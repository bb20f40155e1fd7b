"""Rules that translate ATen operations into packed ones. Importing this package registers all of them."""

from functools import partial

from equalbits.deploy.graph import Value
from equalbits.deploy.ops import (
    activation,
    attention,
    comparison,
    composite,
    conv_linear,
    elementwise,
    gather,
    normalization,
    pool,
    reduce,
    resize,
    shape,
)
from equalbits.deploy.traced_values import Known
from equalbits.deploy.tracer import RULES, Tracer
from equalbits.runtime import OPS, Settings

__all__ = [
    "RULES",
    "activation",
    "attention",
    "comparison",
    "composite",
    "conv_linear",
    "elementwise",
    "gather",
    "normalization",
    "pool",
    "reduce",
    "resize",
    "shape",
]


def _same_operation(kind: str, settings: tuple[str, ...], tracer: Tracer, value: Known, *arguments: object) -> Value:
    """Translate an ATen operation that is an operation of the file; its arguments are settings."""
    given: Settings = dict(zip(settings, arguments, strict=False))
    return tracer.add(kind, tracer.value(value), **given)


for _kind, _spec in OPS.items():
    for _name, _settings in _spec.aten.items():
        RULES[f"aten.{_name}"] = partial(_same_operation, _kind, _settings)
