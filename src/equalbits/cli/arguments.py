"""Arguments that several commands share."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equalbits.training import ProgressBar


def add_data(parser: argparse.ArgumentParser, *, default: str = "$EQUALBITS_DATA, else ~/.cache/equalbits") -> None:
    """Add ``--data``."""
    parser.add_argument("--data", metavar="DIR", help=f"directory of the data sets (default: {default})")


def add_device(parser: argparse.ArgumentParser, *, default: str = "auto") -> None:
    """Add ``--device``."""
    parser.add_argument("--device", default=default, help=f"cpu, cuda, cuda:1 or auto (default: {default})")


def add_settings(parser: argparse.ArgumentParser, *, more: str = "") -> None:
    """Add ``--set``."""
    example = "such as --set epochs=2 --set optimizer.lr=0.05"
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help=f"override a setting, {example}{more} (equalbits list --settings shows all)",
    )  # fmt: skip


def add_which(parser: argparse.ArgumentParser) -> None:
    """Add ``--which``."""
    parser.add_argument(
        "--which", choices=("last", "best"), default="last",
        help="weights of the last or the best epoch of a run (default: last)",
    )  # fmt: skip


def add_json(parser: argparse.ArgumentParser, *, text: str = "print one JSON object") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=text)


def execution_options(options: argparse.Namespace, bar: "ProgressBar") -> dict[str, Any]:
    """Return the fields of :class:`~equalbits.recipes.Execution` that a command was given."""
    if options.stack is not None and options.stack < 1:
        raise ValueError(f"--stack {options.stack} must be at least 1")
    return {
        "root": Path(options.data) if options.data else None,
        "device": options.device,
        "stack": options.stack,
        "ray": getattr(options, "ray", ""),
        "log": lambda line: print(line, file=sys.stderr, flush=True),
        "reporters_for": bar.start_run,
    }
