"""Section of docs/results.md on the paper's figures and tables: those measured, and those not yet measured in full."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits._plotting import method_name
from equalbits._text import markdown_table
from equalbits.paper.claims import HEADER, Claim
from equalbits.paper.cost import cost, made_with
from equalbits.paper.grid_parts import command, missing, ranges
from equalbits.paper.item import Item, get_item, list_items
from equalbits.paper.results.blocks import all_asked, blocks, bounds, holes
from equalbits.recipes import FREE

#: Content of results/ITEM.json.
Kept = Mapping[str, Any]

_HEAD = """
## The paper's figures and tables

Each was measured by `equalbits reproduce`. *n* is the number of nets behind a number of ours.
A difference is tested by Welch's t over seeds, two-sided. Of its two p values the second is corrected by Holm's
procedure over all tests of the same table, and must be at most 0.05. Counts need no test; anything else that rests on
one seed is not decided. That a mean is within 0.3 points of the paper's is no test either: the equivalence test (TOST)
beside it says whether the seeds show it.
In commands, `DIR` is the folder of the data sets. Times are wall-clock times; several commands shared the GPU, so most
would take less alone.
"""

_LAST_AND_BEST = """
### Last epoch and best epoch

The authors' released trainer reports the best test epoch, on 9,984 of the 10,000 images, and so selects by the test
images. Every number on this page is of the last epoch, on all images. Here are both, as means over all nets and seeds
of an item. Most nets were tested every 25 epochs or at the end only, so their best is the best of few.

"""

_INCOMPLETE_HEAD = """
### Not yet measured in full

A folder that holds a part is resumed: trained nets are kept. A part measured in another folder, such as one more net,
is merged by `--keep`.

"""

_DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}


def item_sections(folder: Path) -> str:
    """Return a section per item kept in ``folder``, and the table of items that are incomplete."""
    kept = {name: json.loads(path.read_text()) for name in list_items() if (path := folder / f"{name}.json").exists()}
    used = {data for each in kept.values() for data in each["trained"].get("data", [])}
    rows = [row for name in list_items() if (row := _incomplete_row(get_item(name), kept.get(name), used))]
    table = markdown_table(("", "shows", "missing", "data", "command"), rows)
    incomplete = f"{_INCOMPLETE_HEAD}{table}\n" if rows else ""
    sections = "".join(_section(get_item(name), each) for name, each in kept.items())
    return _HEAD + sections + last_and_best(kept) + incomplete


def missing_parts(item: Item, kept: Kept) -> list[str]:
    """Describe what a measurement lacks to be the whole item in the paper's setting."""
    found = blocks(item, kept)
    parts = missing(bounds(found), item.grid)
    words = [f"{name.rpartition('.')[2].replace('_', ' ')} {_listed(values)}" for name, values in parts.items()]
    gaps = holes(found, item.uneven) if item.uneven else {}
    listed = _seeds if item.uneven[:1] == ("seeds",) else _listed
    words += [f"{value} for {listed(values)}" for value, values in gaps.items()]
    return words + setting_differences(item, kept)


def setting_differences(item: Item, kept: Kept) -> list[str]:
    """Describe how the measured parts differ from the paper's setting: fewer seeds, other settings."""
    seeds = len(kept.get("seeds", range(item.seeds)))
    words = [f"{item.seeds - seeds} of {item.seeds} seeds"] if seeds < item.seeds else []
    others = [f"{name}={value}" for name, value in kept["asked"]["settings"].items() if name not in FREE]
    return words + ([f"the paper's setting: it ran with {', '.join(others)}"] if others else [])


def _section(item: Item, kept: Kept) -> str:
    title = f"{_name_in_paper(item.name)}: {item.title}{_alone(kept)}"
    lacking = missing_parts(item, kept)
    paragraphs = [
        f"### {title}",
        f"**Incomplete.** Missing: {'; '.join(lacking)}." if lacking else "",
        markdown_table(HEADER, [claim.cells() for claim in kept_claims(item, kept)]),
        f"![{title}; the table says what it shows]({item.name}.png)",
        "\n".join(f"- {note}" for note in kept.get("notes", [])),
        origin(kept),
    ]
    return "\n" + "\n\n".join(filter(None, paragraphs)) + "\n"


def kept_claims(item: Item, kept: Kept) -> list[Claim]:
    """Compute the claims of a kept measurement from its counts."""
    return item.compare({**kept, **kept["measured"], "quick": False})


def _alone(kept: Kept) -> str:
    """Name the method of a measurement that has only one of several."""
    methods = kept["asked"]["grid"].get("model.weight_quantizer", [])
    return f", {method_name(methods[0])} alone" if len(methods) == 1 and "asked_beside" not in kept else ""


def last_and_best(kept: Mapping[str, Kept]) -> str:
    """Return the last and the best epoch side by side, over all runs of each item that holds both."""
    rows = []
    for name, each in kept.items():
        runs = [run for run in _runs(each["measured"]) if run.get("last") is not None]
        if runs:
            last, best = ([_accuracy(run[which]) for run in runs] for which in ("last", "best"))
            others = sum(run["best"]["epoch"] != run["last"]["epoch"] for run in runs)
            means = [f"{statistics.fmean(scores):.3f} %" for scores in (last, best)]
            most = max(high - low for low, high in zip(last, best, strict=True))
            rows.append((name, *means, f"{others} of {len(runs)}", f"{most:.2f} points"))
    header = ("", "last epoch", "best epoch tested", "runs whose best is not the last", "most that a run gains")
    return f"{_LAST_AND_BEST}{markdown_table(header, rows)}\n" if rows else ""


def _runs(measured: Any) -> Iterator[dict[str, Any]]:
    """Yield the runs of all cases, at any depth, except those of tuning, which are not tested."""
    if isinstance(measured, list):
        for each in measured:
            yield from _runs(each)
    elif isinstance(measured, Mapping):
        yield from measured.get("runs", [])
        for name, each in measured.items():
            yield from _runs(each) if name not in ("runs", "tuning") else ()


def _accuracy(epoch: Mapping[str, Any]) -> float:
    return float(100 * epoch["test"]["correct"] / epoch["test"]["total"])


def origin(kept: Kept) -> str:
    """Describe what made a measurement: nets, time, device, versions, seeds, its file and the command."""
    seeds = kept.get("seeds", [])
    parts = [cost(kept), made_with(kept)]
    parts += [f"seed{'s' if len(seeds) > 1 else ''} {ranges(seeds)}"] if seeds else []
    calls = [_command(kept["item"], asked, number) for number, asked in enumerate(all_asked(kept), start=1)]
    commands = " and ".join(f"`{call}`" for call in calls)
    return f"{'; '.join(parts)}. Counts: `results/{kept['item']}.json`; by {commands}."


def _incomplete_row(item: Item, kept: Kept | None, used: set[str]) -> tuple[str, ...]:
    """Return the row of an item that is incomplete; empty where it is complete."""
    lacking = ["all of it"] if kept is None else missing_parts(item, kept)
    if not lacking:
        return ()
    needs = [name for name in item.needs.split(" and ") if name]
    data = " and ".join(_DATA[name] for name in needs) or "none"
    if unused := [_DATA[name] for name in needs if name not in used]:
        data += f"; {' and '.join(unused)} not available to any run so far"
    return item.name, item.title, "; ".join(lacking), data, f"`{_command(item.name, {})}`"


def _command(name: str, asked: Mapping[str, Any], number: int = 1) -> str:
    """Return the command that measures an item; later blocks have folders of their own."""
    out = f"runs/{name}" if number == 1 else f"runs/{name}-{number}"
    return command(name, asked, data="DIR" if get_item(name).needs else "", out=out)


def _name_in_paper(name: str) -> str:
    """Return ``fig6`` as the paper writes it; other items are our own."""
    kind = {"fig": "Figure", "tab": "Table"}.get(name[:3])
    return f"{kind} {name[3:].partition('-')[0]}" if kind else "Beyond the paper"


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _seeds(values: Sequence[int]) -> str:
    return f"seeds {ranges(values)}"
