"""Arguments that several commands share."""

import argparse


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
