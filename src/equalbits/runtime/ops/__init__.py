"""The operations of a packed file by name. To add one, write its :class:`OpSpec` in the module of its family."""

from collections.abc import Mapping
from types import MappingProxyType

from equalbits.runtime.op_specs import Operation, OpSpec, Settings
from equalbits.runtime.ops import (
    activation,
    conv_linear,
    elementwise,
    embedding,
    normalization,
    pool,
    product,
    quantize,
    shape,
)

OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        spec.kind: spec
        for family in (conv_linear, elementwise, pool, shape, activation, normalization, product, embedding, quantize)
        for spec in family.OPS
    }
)


def make_operation(kind: str, inputs: tuple[int, ...], tensors: Mapping[str, str], settings: Settings) -> Operation:
    """Validate an operation and fill in the defaults of its settings.

    >>> make_operation("max_pool", (0,), {}, {"kernel": 2, "stride": 2}).settings["padding"]
    (0, 0, 0, 0)
    """
    if kind not in OPS:
        raise ValueError(f"is of kind {kind[:80]!r}, which is not known: there are {', '.join(OPS)}")
    return OPS[kind].make(inputs, tensors, settings)
