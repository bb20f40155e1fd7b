"""Every operation of torch's that a packed network can do, with the rule that says how."""

from equalbits.deploy.ops import conv, conv_transpose, elementwise, gather, reduce, resize, shape
from equalbits.deploy.tracer import Rule

_TABLES = (conv, conv_transpose, elementwise, shape, gather, reduce, resize)

#: By torch's name: ``"aten.conv2d.default"``.
RULES: dict[str, Rule] = {f"aten.{name}": rule for table in _TABLES for name, rule in table.RULES.items()}
