"""docs/results.md and the README's table, generated from results/: no number in them is typed by hand."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from equalbits._claim import HEADER, Claim
from equalbits._files import remove_partial_files, write_all_atomically
from equalbits._plotting import method_name
from equalbits._statistics import Difference, Sample, holm, welch
from equalbits._text import markdown_table, one_line
from equalbits.paper.claims import CaseCounts, accuracy, score_of
from equalbits.paper.grid_parameters import command, deciding_settings, ranges
from equalbits.paper.item import Item, get_item, list_items
from equalbits.paper.item_runs import by_method
from equalbits.paper.items.tab2_convnets import COMPARED
from equalbits.paper.keep_measurements import Block, Kept, all_asked, blocks, keep_item
from equalbits.paper.measurement_cost import cost, made_with
from equalbits.paper.published_numbers import TABLE_2

_BENCHMARKS = (
    *("gpu-step", "gpu-step-pruned", "gpu-stack", "gpu-low-bits", "cpu-quantizer"),
    *("decoder", "training-cost", "eager-host-time", "char-gpt"),
)
_BEGIN, _END = "<!-- results table: begin -->", "<!-- results table: end -->"


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
            refused.append(one_line(error, 1000))
    write_results_page(results, docs)
    return refused


def write_results_page(results: Path, docs: Path) -> None:
    """Write docs/results.md and the table in the README beside docs/."""
    readme = docs.resolve().parent / "README.md"
    table = replace_table(readme.read_text(), readme_table(results))
    write_all_atomically({docs / "results.md": results_page(results).encode(), readme: table.encode()})


def results_page(folder: Path) -> str:
    """Return docs/results.md."""
    return f"{item_sections(folder)}{benchmark_sections(folder)}\n"


def item_sections(folder: Path) -> str:
    """Return the head of the page, a section per item kept in ``folder``, and the table of what is missing."""
    kept = {name: json.loads(path.read_text()) for name in list_items() if (path := folder / f"{name}.json").exists()}
    rows = [row for name in list_items() if (row := _incomplete_row(get_item(name), kept.get(name)))]
    return _render(
        "items.md",
        sections=[_section(get_item(name), each) for name, each in kept.items()],
        last_and_best=last_and_best(kept),
        incomplete=markdown_table(("", "shows", "missing", "data", "command"), rows) if rows else "",
    )


def benchmark_sections(folder: Path) -> str:
    """Return the sections on the language model, speed and memory, from the benchmark results in ``folder``."""
    results = {name.replace("-", "_"): json.loads((folder / f"{name}.json").read_text()) for name in _BENCHMARKS}
    layers = results["gpu_low_bits"]["layers"].values()
    pairs = [(layer["bf16 convolution"]["median_us"], layer["fp8 with patches"]["median_us"]) for layer in layers]
    return _render(
        "benchmarks.md",
        **results,
        losses=list(_compared_losses(results["char_gpt"]["runs"])),
        cpu_inference=[json.loads(path.read_text()) for path in sorted(folder.glob("cpu-inference-*.json"))],
        faster_in_bf16=sum(bf16 < fp8 for bf16, fp8 in pairs),
        inexact=sum(not variant["exact"] for layer in layers for variant in layer.values()),
    )


def _render(template: str, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("equalbits.paper")
    templates = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {"mean": statistics.fmean, "median": statistics.median}
    templates.tests["our_engine"] = lambda name: name.startswith("equalbits") and "portable" not in name
    return templates.get_template(template).render(values)


def _compared_losses(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Sample, Difference | None, float]]:
    """Yield each method's held-out losses, how they differ from bi-half's, and the p value corrected by Holm."""
    methods = dict.fromkeys(run["method"] for run in runs)
    samples = {name: Sample.of([run["loss"] for run in runs if run["method"] == name]) for name in methods}
    tests = {name: welch(sample, samples["bihalf"]) for name, sample in samples.items() if name != "bihalf"}
    corrected = dict(zip(tests, holm([found.p for found in tests.values() if found]), strict=True))
    for name, sample in samples.items():
        yield name, sample, tests.get(name), corrected.get(name, 1.0)


def missing_parts(item: Item, kept: Kept) -> list[str]:
    """Describe what a measurement lacks to be the whole item in the paper's setting."""
    found = blocks(item, kept)
    held = {name: list(dict.fromkeys(value for each in found for value in each[name])) for name in found[0]}
    words = []
    for name, values in item.grid.items():
        if lacking := [value for value in values if value not in held[name]]:
            words.append(f"{name.rpartition('.')[2].replace('_', ' ')} {_listed(lacking)}")
    if item.uneven:
        words += _gaps(item, found, held)
    return words + setting_differences(item, kept)


def _gaps(item: Item, found: Sequence[Block], held: Block) -> list[str]:
    """Describe the combinations of the uneven parameters that no block holds, such as methods for some seeds."""
    first, second, *others = item.uneven
    needed = [one for one in held[first] if first != "seeds" or one in range(item.seeds)]
    measured = {cell for each in found for cell in product(*(each[name] for name in item.uneven))}
    listed = (lambda values: f"seeds {ranges(values)}") if first == "seeds" else _listed
    words = []
    for within in product(*(held[name] for name in others)):
        gaps: dict[str, list[object]] = {}
        for value in held[second]:
            if lacking := [one for one in needed if (one, value, *within) not in measured]:
                gaps.setdefault(listed(lacking), []).append(value)
        several = [(name, each) for name, each in zip(others, within, strict=True) if len(held[name]) > 1]
        where = "".join(f"seed {each}, " if name == "seeds" else f"{each}, " for name, each in several)
        words += [f"{where}{_listed(values)} for {lacking}" for lacking, values in gaps.items()]
    return words


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def setting_differences(item: Item, kept: Kept) -> list[str]:
    """Describe how the measured parts differ from the paper's setting: fewer seeds, other settings."""
    seeds = len(kept.get("seeds", range(item.seeds)))
    words = [f"{item.seeds - seeds} of {item.seeds} seeds"] if seeds < item.seeds else []
    others = [f"{name}={value}" for name, value in deciding_settings(kept["asked"]).items()]
    return words + ([f"the paper's setting: it ran with {', '.join(others)}"] if others else [])


def kept_claims(item: Item, kept: Kept) -> list[Claim]:
    """Compute the claims of a kept measurement from its counts."""
    return item.compare({**kept, **kept["measured"], "quick": False})


def _section(item: Item, kept: Kept) -> dict[str, Any]:
    """Return the values of an item's section."""
    kind = {"fig": "Figure", "tab": "Table"}.get(item.name[:3])
    in_paper = f"{kind} {item.name[3:].partition('-')[0]}" if kind else "Beyond the paper"
    methods = kept["asked"]["grid"].get("model.weight_quantizer", [])
    alone = f", {method_name(methods[0])} alone" if len(methods) == 1 and "asked_beside" not in kept else ""
    return {
        "name": item.name,
        "title": f"{in_paper}: {item.title}{alone}",
        "lacking": missing_parts(item, kept),
        "claims": markdown_table(HEADER, [claim.cells() for claim in kept_claims(item, kept)]),
        "notes": kept.get("notes", []),
        "origin": origin(kept),
    }


def origin(kept: Kept) -> str:
    """Describe what made a measurement: nets, time, device, versions, seeds, its file and the command."""
    seeds = kept.get("seeds", [])
    parts = [cost(kept), made_with(kept)]
    parts += [f"seed{'s' if len(seeds) > 1 else ''} {ranges(seeds)}"] if seeds else []
    calls = [_command(kept["item"], asked, number) for number, asked in enumerate(all_asked(kept), start=1)]
    return f"{'; '.join(parts)}. Counts: `results/{kept['item']}.json`; by {' and '.join(calls)}."


def _command(name: str, asked: Mapping[str, Any], number: int = 1) -> str:
    """Return the command that measures an item; later blocks have folders of their own."""
    out = f"runs/{name}" if number == 1 else f"runs/{name}-{number}"
    return f"`{command(name, asked, data='DIR' if get_item(name).needs else '', out=out)}`"


def last_and_best(kept: Mapping[str, Kept]) -> str:
    """Return the last and the best epoch side by side, over all runs of each item tested before the last epoch too."""
    rows = []
    for name, each in kept.items():
        ends = [(run["last"], run["best"]) for run in _runs(each["measured"]) if run.get("last") and run.get("best")]
        if _tested_before_the_end(each, ends):
            last, best = ([accuracy(epoch["test"]) for epoch in some] for some in zip(*ends, strict=True))
            others = sum(end["epoch"] != top["epoch"] for end, top in ends)
            means = [f"{statistics.fmean(scores):.3f} %" for scores in (last, best)]
            most = max(high - low for low, high in zip(last, best, strict=True))
            rows.append((name, *means, f"{others} of {len(ends)}", f"{most:.2f} points"))
    header = ("", "last epoch", "best epoch tested", "runs whose best is not the last", "most that a run gains")
    return markdown_table(header, rows) if rows else ""


def _tested_before_the_end(kept: Kept, ends: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> bool:
    """Return True if the settings or a best epoch before the last show that runs were tested before the end."""
    every = kept["asked"]["settings"].get("evaluate_every", math.inf)
    return any(every < last["epoch"] or best["epoch"] < last["epoch"] for last, best in ends)


def _runs(measured: Any) -> Iterator[dict[str, Any]]:
    """Yield the runs of all cases, at any depth, except those of tuning, which are not tested."""
    if isinstance(measured, list):
        for each in measured:
            yield from _runs(each)
    elif isinstance(measured, Mapping):
        yield from measured.get("runs", [])
        for name, each in measured.items():
            yield from _runs(each) if name not in ("runs", "tuning") else ()


def _incomplete_row(item: Item, kept: Kept | None) -> tuple[str, ...]:
    """Return the row of an item that is incomplete; empty where it is complete."""
    lacking = ["all of it"] if kept is None else missing_parts(item, kept)
    row = item.name, item.title, "; ".join(lacking), item.needs or "none", _command(item.name, {})
    return row if lacking else ()


def readme_table(folder: Path) -> str:
    """Return table 2 beside the paper's, the same with tuned settings, and what each took to measure.

    Only measurements in the paper's setting with all seeds are shown. Nets and methods may be missing.
    """
    parts = []
    for name in ("tab2", "tab2-tuned"):
        path = folder / f"{name}.json"
        kept = json.loads(path.read_text()) if path.exists() else None
        if kept is None or setting_differences(get_item(name), kept):
            continue
        nets = {net: by_method(cases) for net, cases in kept["measured"]["nets"].items()}
        methods = [method for method in COMPARED if any(method in cases for cases in nets.values())]
        if name == "tab2-tuned":
            who = " and ".join(map(method_name, methods)) + (" alone" if len(methods) == 1 else "")
            how = "with settings tuned on held-out training images; the paper's nets were not tuned this way"
            parts.append(f"{who}, {how}:")
        parts += [_beside_the_paper(nets, methods), f"{cost(kept)}.{_other_epochs(kept['measured'])}"]
    return "\n\n".join(parts)


def _other_epochs(measured: Mapping[str, Any]) -> str:
    """Name the tuned nets that were not trained for the paper's number of epochs."""
    tuned = measured.get("tuning", {})
    epochs = {net: {case["picked"].get("epochs", 100) for case in methods.values()} for net, methods in tuned.items()}
    others = [f"{net.capitalize()} {' or '.join(map(str, sorted(n)))}" for net, n in epochs.items() if n != {100}]
    return f" Epochs: {', '.join(others)}; else 100 as in the paper." if others else ""


def _beside_the_paper(nets: Mapping[str, Mapping[str, CaseCounts]], methods: Sequence[str]) -> str:
    """Return a table with two columns per method: the paper's accuracy and ours."""
    rows = []
    for net, cases in nets.items():
        row = [net.capitalize()]
        for method in methods:
            published = TABLE_2[net, method]
            ours = score_of(cases[method]).replace(" %", "") if method in cases else "–"
            row += [f"{published.mean:.2f} ± {published.spread:.2f}", ours]
        rows.append(row)
    header = [cell for method in methods for cell in (f"{method_name(method)}, paper", "equalbits")]
    return markdown_table(["", *header], rows)


def replace_table(readme: str, table: str) -> str:
    """Return the README with the text between its two markers replaced."""
    before, begin, rest = readme.partition(_BEGIN)
    if not begin or _END not in rest:
        raise ValueError(f"README.md has no {_BEGIN} and {_END}: put both around the place of the table")
    return f"{before}{_BEGIN}\n{table}\n\n{_END}{rest.partition(_END)[2]}"
