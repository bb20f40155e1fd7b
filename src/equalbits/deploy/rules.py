"""Every operation of torch's that a packed network can do, with the rule that says how."""

from equalbits.deploy import arithmetic, moves, places, reduce, resize, transposed, windows
from equalbits.deploy.walk import Rule

_TABLES = (windows, transposed, arithmetic, moves, places, reduce, resize)

#: By torch's name: ``"aten.conv2d.default"``.
RULES: dict[str, Rule] = {f"aten.{name}": rule for table in _TABLES for name, rule in table.RULES.items()}
