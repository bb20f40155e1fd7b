"""The part of docs/results.md on the paper's figures and tables: what came of those run, and which were not yet."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits.paper.blocks import all_asked, blocks, bounds, holes
from equalbits.paper.claims import HEADER, Claim
from equalbits.paper.item import Item, get_item, list_items
from equalbits.paper.parts import command, missing, ranges
from equalbits.paper.trained import cost, made_with
from equalbits.recipes import FREE

_HEAD = """
## The paper's figures and tables

Each was measured by `equalbits reproduce`, and taken in by `python -m equalbits.paper.results_page --take runs/ITEM`.
*n* says how many nets stand behind a number of ours; *agrees* holds it against the paper within what the row says. In
commands `DIR` is the folder where the data sets lie. Times are those that passed: several commands shared the one GPU,
so most would take less alone.
"""

_NOT_YET = """
### Not yet run in full

A folder that holds a part is gone on with: what is trained stays. A part that was measured in another folder, such as
one more net, is joined when it is taken in.

| | shows | lacks | data | command |
|---|---|---|---|---|
"""

_DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}


def outcomes(folder: Path) -> str:
    """Sections of the items taken into ``folder``, and the list of those that lack something."""
    taken = {name: json.loads(path.read_text()) for name in list_items() if (path := folder / f"{name}.json").exists()}
    seen = {data for kept in taken.values() for data in kept["trained"].get("data", [])}
    rows = [_row(get_item(name), taken.get(name), seen) for name in list_items()]
    not_yet = _NOT_YET + "".join(rows) if any(rows) else ""
    return _HEAD + "".join(_section(get_item(name), kept) for name, kept in taken.items()) + not_yet


def lacks(item: Item, kept: Mapping[str, Any]) -> list[str]:
    """What keeps a measurement from being the whole item in the paper's setting, in words."""
    found = blocks(item, kept)
    parts = missing(bounds(found), item.grid)
    words = [f"{name.rpartition('.')[2].replace('_', ' ')} {_listed(values)}" for name, values in parts.items()]
    gaps = holes(found, item.uneven) if item.uneven else {}
    words += [f"{value} for {_listed(values)}" for value, values in gaps.items()]
    return words + falls_short(item, kept)


def falls_short(item: Item, kept: Mapping[str, Any]) -> list[str]:
    """What keeps even the parts that were measured from standing beside the paper's, in words."""
    seeds = len(kept.get("seeds", range(item.seeds)))
    words = [f"{item.seeds - seeds} of {item.seeds} seeds"] if seeds < item.seeds else []
    others = [f"{name}={value}" for name, value in kept["asked"]["settings"].items() if name not in FREE]
    return words + ([f"the paper's setting: it ran with {', '.join(others)}"] if others else [])


def _section(item: Item, kept: Mapping[str, Any]) -> str:
    lines = [f"\n### {_words(item.name)}: {item.title}", ""]
    if lacking := lacks(item, kept):
        lines += [f"**Not the whole of it.** It lacks {'; '.join(lacking)}.", ""]
    lines += [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    rows = [Claim(**claim).cells() for claim in kept["claims"]]
    lines += [f"| {' | '.join(cell.replace('|', '∣') for cell in row)} |" for row in rows]
    lines += ["", f"![{_words(item.name)}: {item.title}; the table says what it shows]({item.name}.png)", ""]
    lines += [*(f"- {note}" for note in kept.get("notes", [])), ""] if kept.get("notes") else []
    return "\n".join([*lines, made(kept), ""])


def made(kept: Mapping[str, Any]) -> str:
    """What made a measurement: nets, time, device, versions, seeds, where its counts are, and the command."""
    seeds = kept.get("seeds", [])
    parts = [cost(kept), made_with(kept)]
    parts += [f"seed{'s' if len(seeds) > 1 else ''} {ranges(seeds)}"] if seeds else []
    calls = [_command(kept["item"], asked, place) for place, asked in enumerate(all_asked(kept), start=1)]
    commands = " and ".join(f"`{call}`" for call in calls)
    return f"{'; '.join(parts)}. Counts: `results/{kept['item']}.json`; by {commands}."


def _row(item: Item, kept: Mapping[str, Any] | None, seen: set[str]) -> str:
    lacking = ["all of it"] if kept is None else lacks(item, kept)
    if not lacking:
        return ""
    needs = [name for name in item.needs.split(" and ") if name]
    data = " and ".join(_DATA[name] for name in needs) or "none"
    if never := [_DATA[name] for name in needs if name not in seen]:
        data += f"; waits for {' and '.join(never)}, which no run has had yet"
    return f"| {item.name} | {item.title} | {'; '.join(lacking)} | {data} | `{_command(item.name, {})}` |\n"


def _command(name: str, asked: Mapping[str, Any], place: int = 1) -> str:
    """The command that measures an item; what was measured beside it has a folder of its own."""
    out = f"runs/{name}" if place == 1 else f"runs/{name}-{place}"
    return command(name, asked, data="DIR" if get_item(name).needs else "", out=out)


def _words(name: str) -> str:
    """``fig6`` as it is called in the paper."""
    return f"{ {'fig': 'Figure', 'tab': 'Table'}[name[:3]] } {name[3:].partition('-')[0]}"


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
