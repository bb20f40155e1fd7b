"""``equalbits download``."""

import argparse
import json

import equalbits as eb
from equalbits._text import nearest_name
from equalbits.cli.arguments import add_data, add_json
from equalbits.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="DATASET", help="cifar10 or cifar100")
    add_data(parser)
    add_json(parser, text="print the directory as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Download missing files and print their directory."""
    if options.name not in eb.data.EDITIONS:
        if options.name in ("fashion", "synthetic"):
            raise ValueError(f"{options.name} needs no download: it is part of the package")
        nearest = nearest_name(options.name, eb.data.EDITIONS)
        hint = f"did you mean {nearest!r}?" if nearest else f"available are {', '.join(eb.data.EDITIONS)}"
        root = eb.data.data_root(options.data)
        raise ValueError(f"cannot download {options.name!r}; {hint} (copy other data sets to {root} yourself)")
    folder = eb.data.download_dataset(options.name, options.data, progress=not options.json)
    say(json.dumps({"name": options.name, "folder": str(folder)}) if options.json else f"{options.name}: {folder}")
