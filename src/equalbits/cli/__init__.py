"""The command ``equalbits``: each subcommand is the module of its name, with ``add_arguments`` and ``run``.

Torch is imported inside ``run``, so that ``--help`` is quick.
"""

from equalbits.cli.commands import COMMANDS as COMMANDS
from equalbits.cli.commands import main as main
