"""``python -m equalbits.paper.results``: generate docs/results.md and the README's table from results/ again."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from equalbits.paper.results.results_page import keep_items


def main(words: Sequence[str] | None = None) -> int:
    """Run in the root of the repository."""
    parser = argparse.ArgumentParser(prog="python -m equalbits.paper.results", description=__doc__)
    parser.add_argument(
        "--take", metavar="DIR", type=Path, action="append", default=[], help="also keep the item measured in DIR"
    )
    try:
        refused = keep_items(parser.parse_args(words).take, Path(), log=print)
    except ValueError as error:
        refused = [str(error)]
    for line in refused:
        print(f"results: {line}", file=sys.stderr)
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
