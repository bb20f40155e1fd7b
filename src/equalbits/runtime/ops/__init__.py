"""The operations of a packed file by name. To add one, write its :class:`OpSpec` in the module of its family."""

from collections.abc import Mapping
from types import MappingProxyType

from equalbits.runtime.op_specs import OpSpec
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
