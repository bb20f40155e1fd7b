"""Parse the command line and run one subcommand."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn

import equalbits as eb
from equalbits._text import nearest_name
from equalbits.cli.errors import run_reporting_errors
from equalbits.cli.suggestions import suggest_option
from equalbits.cli.terminal import ignore_closed_terminal

#: Each command with its line of help; its module has the same name.
COMMANDS = {
    "demo": "compare three methods on embedded data in two minutes",
    "train": "train a recipe or a TOML file, or resume a run",
    "sweep": "train every combination of settings and seeds",
    "compare": "train several methods under equal conditions",
    "reproduce": "measure a figure or table of the paper, check its claims",
    "report": "write an HTML report of an output directory",
    "evaluate": "evaluate a run on the whole test set",
    "list": "list recipes, models, methods, data sets or settings",
    "inspect": "show layers, sizes and shares of +1 of a run or packed file",
    "pack": "convert a run to a packed 1-bit file and verify it",
    "run": "classify images with a packed file, without torch",
    "serve": "answer HTTP requests with a packed file, without torch",
    "bench": "measure the speed of a packed file",
    "export": "export a packed file or run to ONNX, OpenVINO, C or a web page",
    "download": "download a data set",
    "completion": "print a completion script for your shell",
}

#: Commands whose time torch decides. `bench` measures torch as users start it.
_IN_TORCH = ("demo", "train", "sweep", "compare", "reproduce", "evaluate")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Align the help of all commands; argparse alone leaves too little space for the longest name."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = max(map(len, COMMANDS)) + 4


class _Parser(argparse.ArgumentParser):
    """Report a usage error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def print_help(self, file: object = None) -> None:
        if code := run_reporting_errors(self.prog, lambda: print(self.format_help(), end="")):
            self.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 success, 1 error, 2 usage error, 128 + n stopped by signal n."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print a question mark for characters the terminal cannot encode
    words = sys.argv[1:] if arguments is None else list(arguments)
    wanted = next((word for word in words if not word.startswith("-")), None)
    parser, commands = make_parser(() if wanted is None else (wanted,))
    if wanted is not None and wanted not in COMMANDS:
        nearest = nearest_name(wanted, COMMANDS)
        hint = f"did you mean {nearest!r}?" if nearest else f"the commands are {', '.join(COMMANDS)}"
        parser.error(f"unknown command {wanted!r}; {hint}")
    options, unknown = parser.parse_known_args(words)
    subparser = commands.get(wanted or "", parser)
    if unknown:
        subparser.error(f"unrecognized arguments: {' '.join(unknown)}{suggest_option(unknown, subparser)}")
    for action in subparser._actions:  # argparse has no public way to list them
        if getattr(options, action.dest, None) == "" != action.default:  # such as an unset shell variable
            subparser.error(f"argument {'/'.join(action.option_strings) or action.metavar}: the value is empty")
    if options.version:
        return run_reporting_errors(parser.prog, lambda: print(f"equalbits {eb.__version__}"))
    if options.command is None:
        parser.print_help()
        return 0
    command = import_module(f"equalbits.cli.{options.command}")
    if options.command in _IN_TORCH:
        _limit_spinning()
    with ignore_closed_terminal():
        return run_reporting_errors(f"{parser.prog} {options.command}", lambda: command.run(options))


def _limit_spinning() -> None:
    """Let torch's threads wait for each other in short loops, unless the user has set how they wait.

    By default OpenMP's threads spin for milliseconds. On a busy machine they then hold the core that the thread they
    wait for needs, and an epoch can take ten times as long.
    """
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def make_parser(names: Sequence[str]) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser and its subparsers; only the commands in ``names`` are imported and get their arguments."""
    parser = _Parser(
        prog="equalbits",
        description="Binary neural networks whose share of +1 and -1 weights is exact.",
        formatter_class=_HelpFormatter,
        epilog="start with:  equalbits demo   ·   equalbits train fashion-conv2 --out runs/a   ·   equalbits list",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    for name, line in COMMANDS.items():
        command = subparsers.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name in names:
            import_module(f"equalbits.cli.{name}").add_arguments(command)
    return parser, subparsers.choices
