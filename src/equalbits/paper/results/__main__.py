"""``python -m equalbits.paper.results``: keep measured items, then generate docs/results.md and the README's table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from equalbits._files import remove_partial_files
from equalbits.paper.keep import take
from equalbits.paper.results.page import write_results_page


def main(words: Sequence[str] | None = None) -> int:
    """Run in the root of the repository."""
    parser = argparse.ArgumentParser(prog="python -m equalbits.paper.results", description=__doc__)
    parser.add_argument("--take", metavar="DIR", type=Path, action="append", default=[], help="folder of an item")
    results, docs = Path("results"), Path("docs")
    folders, failed = parser.parse_args(words).take, False
    if not (results.is_dir() and docs.is_dir()):
        print("results: there is no results/ and docs/ here: run it beside README.md", file=sys.stderr)
        return 1
    remove_partial_files(results)
    remove_partial_files(docs)
    for folder in folders:
        try:
            print(f"{folder}: kept as {take(folder, results, docs, log=print)}")
        except ValueError as error:  # keep the others, and show them
            failed = True
            print(f"results: {' '.join(str(error).split())}", file=sys.stderr)
    write_results_page(results, docs)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
