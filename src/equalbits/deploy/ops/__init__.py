"""Rules that translate ATen operations into packed ones. Importing this package registers all of them."""

from functools import partial

from equalbits.deploy.ops import activation as activation
from equalbits.deploy.ops import attention as attention
from equalbits.deploy.ops import comparison as comparison
from equalbits.deploy.ops import conv_linear as conv_linear
from equalbits.deploy.ops import elementwise as elementwise
from equalbits.deploy.ops import gather as gather
from equalbits.deploy.ops import normalization as normalization
from equalbits.deploy.ops import pool as pool
from equalbits.deploy.ops import reduce as reduce
from equalbits.deploy.ops import resize as resize
from equalbits.deploy.ops import shape as shape
from equalbits.deploy.traced_values import Known, Value
from equalbits.deploy.tracer import RULES as RULES
from equalbits.deploy.tracer import Tracer, rule
from equalbits.runtime import OPS, ElementwiseOp, Settings


def _same_operation(kind: str, settings: tuple[str, ...], tracer: Tracer, value: Known, *arguments: object) -> Value:
    """Translate an ATen operation that is an operation of the file; its arguments are settings."""
    given: Settings = dict(zip(settings, arguments, strict=False))
    return tracer.add(kind, tracer.value(value), **given)


for _spec in OPS.values():
    for _name, _settings in _spec.aten.items():
        _batch = "anywhere" if isinstance(_spec, ElementwiseOp) else ""
        rule(_name, batch=_batch)(partial(_same_operation, _spec.kind, _settings))
