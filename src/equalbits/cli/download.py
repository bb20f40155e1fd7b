"""``equalbits download``."""

import argparse
import difflib
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``download`` takes."""
    parser.add_argument("name", metavar="NAME", help="a data set, as in cifar10 or cifar100")
    parser.add_argument("--data", metavar="DIR", help="where data sets lie (else $EQUALBITS_DATA, ~/.cache/equalbits)")
    parser.add_argument("--json", action="store_true", help="print the folder as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Fetch what is missing, say where it lies."""
    # Imported here, so that --help need not wait for torch.
    from equalbits.data import SOURCES, data_root, download_dataset

    if options.name not in SOURCES:
        if options.name in ("fashion", "synthetic"):
            raise ValueError(f"{options.name} needs no download: it comes with the package, and is always there")
        close = difflib.get_close_matches(options.name.lower(), SOURCES, n=1)
        meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(SOURCES)}"
        root = data_root(options.data)
        raise ValueError(f"cannot download {options.name!r}; {meant} (other data is put below {root} by hand)")
    folder = download_dataset(options.name, options.data, progress=not options.json)
    print(
        json.dumps({"name": options.name, "folder": str(folder)}) if options.json else f"{options.name} is in {folder}"
    )
