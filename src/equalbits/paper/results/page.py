"""docs/results.md and the README's table, generated from results/: no number in them is typed by hand."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits._files import remove_partial_files, write_all_atomically
from equalbits._plotting import method_name
from equalbits._text import markdown_table
from equalbits.paper.claims import CaseCounts, score_of
from equalbits.paper.cost import cost
from equalbits.paper.item import get_item
from equalbits.paper.published import TABLE_2
from equalbits.paper.results.benchmarks import benchmark_sections
from equalbits.paper.results.items import item_sections, setting_differences
from equalbits.paper.results.keep import keep_item
from equalbits.paper.runs import by_method
from equalbits.paper.tables.tab2_convnets import COMPARED

_BEGIN, _END = "<!-- results table: begin -->", "<!-- results table: end -->"

_HEAD = """# Results

Generated from `results/` by `equalbits reproduce ITEM --keep`; every number was measured.
Accuracy is the share of all test images that the model of the **last** epoch classifies correctly, mean ± sample
standard deviation over seeds.
"""


def keep_items(folders: Iterable[Path], repository: Path, *, log: Callable[[str], None]) -> list[str]:
    """Keep the items measured in these folders in results/, then write docs/results.md; return what was refused."""
    results, docs = repository / "results", repository / "docs"
    if not (results.is_dir() and docs.is_dir()):
        raise ValueError(f"{repository.resolve()} has no results/ and docs/: run this beside README.md")
    for folder in (results, docs):
        remove_partial_files(folder)
    refused = []
    for folder in folders:
        try:
            log(f"{folder}: kept as {keep_item(folder, results, docs, log=log)}")
        except ValueError as error:  # the others are kept and shown
            refused.append(" ".join(str(error).split()))
    write_results_page(results, docs)
    return refused


def write_results_page(results: Path, docs: Path) -> None:
    """Write docs/results.md and the table in the README beside docs/."""
    readme = docs.resolve().parent / "README.md"
    table = replace_table(readme.read_text(), readme_table(results))
    write_all_atomically({docs / "results.md": results_page(results).encode(), readme: table.encode()})


def results_page(folder: Path) -> str:
    """Return docs/results.md."""
    return _HEAD + item_sections(folder) + benchmark_sections(folder)


def readme_table(folder: Path) -> str:
    """Return table 2 beside the paper's, the same with tuned settings, and what each took to measure.

    Only measurements in the paper's setting with all seeds are shown. Nets and methods may be missing.
    """
    parts = []
    for name in ("tab2", "tab2-tuned"):
        path = folder / f"{name}.json"
        kept = json.loads(path.read_text()) if path.exists() else None
        if kept is not None and not setting_differences(get_item(name), kept):
            measured = kept["measured"]
            intro = f"{_tuned_methods(measured)}\n\n" if name == "tab2-tuned" else ""
            parts.append(f"{intro}{_beside_the_paper(measured['nets'])}\n\n{cost(kept)}.{_other_epochs(measured)}")
    return "\n\n".join(parts)


def _tuned_methods(measured: Mapping[str, Any]) -> str:
    """Title the table of tuned nets by the methods that were tuned."""
    methods = [method for method in COMPARED if any(method in by_method(cases) for cases in measured["nets"].values())]
    names = " and ".join(method_name(method) for method in methods)
    alone = " alone" if len(methods) == 1 else ""
    return f"{names}{alone}, with settings tuned on held-out training images; the paper's nets were not tuned this way:"


def _other_epochs(measured: Mapping[str, Any]) -> str:
    """Name the tuned nets that were not trained for the paper's number of epochs."""
    tuned = measured.get("tuning", {})
    epochs = {net: {case["picked"].get("epochs", 100) for case in methods.values()} for net, methods in tuned.items()}
    others = [f"{net.capitalize()} {' or '.join(map(str, sorted(n)))}" for net, n in epochs.items() if n != {100}]
    return f" Epochs: {', '.join(others)}; else 100 as in the paper." if others else ""


def _beside_the_paper(nets: Mapping[str, Sequence[CaseCounts]]) -> str:
    """Return a table with two columns per trained method: the paper's accuracy and ours."""
    cases = {net: by_method(some) for net, some in nets.items()}
    trained = [method for method in COMPARED if any(method in methods for methods in cases.values())]
    rows = []
    for net, methods in cases.items():
        row = [net.capitalize()]
        for method in trained:
            published = TABLE_2[net, method]
            ours = score_of(methods[method]).replace(" %", "") if method in methods else "–"
            row += [f"{published.mean:.2f} ± {published.spread:.2f}", ours]
        rows.append(row)
    return markdown_table(
        ["", *(cell for name in trained for cell in (f"{method_name(name)}, paper", "equalbits"))], rows
    )


def replace_table(readme: str, table: str) -> str:
    """Return the README with the text between its two markers replaced."""
    before, begin, rest = readme.partition(_BEGIN)
    if not begin or _END not in rest:
        raise ValueError(f"README.md has no {_BEGIN} and {_END}: put both around the place of the table")
    return f"{before}{_BEGIN}\n{table}\n\n{_END}{rest.partition(_END)[2]}"
