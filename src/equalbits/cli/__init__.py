"""The command ``equalbits``: each subcommand is the module of its name, with ``add_arguments`` and ``run``.

Packages are loaded at their first use, as ``eb.recipes``, so that ``--help`` is quick and what needs no torch runs
without it.
"""

from equalbits.cli.commands import COMMANDS as COMMANDS
from equalbits.cli.commands import main as main
