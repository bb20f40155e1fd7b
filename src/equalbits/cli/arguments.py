"""Arguments that several commands share."""

import argparse
from pathlib import Path
from typing import Any

import equalbits as eb
from equalbits.cli.terminal import say


def add_data(parser: argparse.ArgumentParser, *, default: str = "$EQUALBITS_DATA, else ~/.cache/equalbits") -> None:
    parser.add_argument("--data", metavar="DIR", help=f"directory of the data sets (default: {default})")


def add_device(parser: argparse.ArgumentParser, *, default: str = "auto") -> None:
    parser.add_argument("--device", default=default, help=f"cpu, cuda, cuda:1 or auto (default: {default})")


def add_settings(parser: argparse.ArgumentParser, *, more: str = "") -> None:
    example = "such as --set epochs=2 --set optimizer.lr=0.05"
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help=f"override a setting, {example}{more} (equalbits list --settings shows all)",
    )  # fmt: skip


def add_which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--which", choices=("last", "best"), default="last",
        help="weights of the last or the best epoch of a run (default: last)",
    )  # fmt: skip


def add_packing(parser: argparse.ArgumentParser) -> None:
    """Add the options of packing a run."""
    parser.add_argument(
        "--rest", choices=("float32", "float16", "int8"), default="float32",
        help="dtype of the non-binary tensors (default: float32; the others round)",
    )  # fmt: skip
    parser.add_argument(
        "--linear-inputs", choices=("float32", "int8"), default="float32",
        help="dtype of the real inputs of binary linear layers (default: float32; int8 rounds and is faster)",
    )  # fmt: skip
    parser.add_argument(
        "--activations", choices=("float32", "int8", "int4"), default="float32",
        help="dtype of the real inputs of binary convolutions (default: float32; the others round, with ranges from "
        "training images of the run)",
    )  # fmt: skip
    add_which(parser)
    add_data(parser, default="where the run found them, else $EQUALBITS_DATA, else ~/.cache/equalbits")


def add_output(parser: argparse.ArgumentParser, *, text: str) -> None:
    """Add the file to write, as an argument or as ``--out``."""
    parser.add_argument("file", metavar="PATH", nargs="?", help=text)
    parser.add_argument("--out", metavar="PATH", help="the file to write, in place of PATH")


def given_output(options: argparse.Namespace, *, example: str, needed: bool = True) -> Path | None:
    """Return the file to write, which is given once; None where it is not and need not be."""
    given = [name for name in (options.file, options.out) if name]
    if len(given) > 1 or (needed and not given):
        raise ValueError(f"give one file to write, such as {example}, as the second argument or with --out")
    return Path(given[0]) if given else None


def add_json(parser: argparse.ArgumentParser, *, text: str = "print one JSON object") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def execution_options(options: argparse.Namespace, bar: "eb.training.ProgressBar") -> dict[str, Any]:
    """Return the fields of :class:`~equalbits.recipes.Execution` that a command was given."""
    if options.stack is not None and options.stack < 1:
        raise ValueError(f"--stack {options.stack} must be at least 1")
    return {
        "root": Path(options.data) if options.data else None,
        "device": options.device,
        "stack": options.stack,
        "ray": getattr(options, "ray", ""),
        "log": lambda line: say(line, error=True),
        "reporters_for": bar.start_run,
    }
