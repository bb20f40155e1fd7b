"""``equalbits download``."""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``download`` takes."""
    parser.add_argument("name", metavar="NAME", help="a data set, as in cifar10 or cifar100")
    parser.add_argument("--data", metavar="DIR", help="where data sets lie (default: $EQUALBITS_DATA)")
    parser.add_argument("--json", action="store_true", help="print the folder as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Fetch what is missing, say where it lies."""
    from equalbits.data import download_dataset  # here, so that --help need not wait for torch

    folder = download_dataset(options.name, options.data, progress=not options.json)
    print(
        json.dumps({"name": options.name, "folder": str(folder)}) if options.json else f"{options.name} is in {folder}"
    )
