"""Keep a measured item in results/, merged with what was kept before: its counts as readable JSON, its plot in docs/.

Kept are, of each run, the counts of the last epoch and the score of the best, but no weights and no curves of every
step. One call of ``reproduce`` measures a block: every value of each grid parameter combined with every value of the
others and every seed. Blocks measured in several places, such as Conv8 and Conv2, 4 and 6, are merged. They must form a
full grid again, except in the ``uneven`` parameters of an item, such as one more method for two of four nets.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, product
from operator import itemgetter
from pathlib import Path
from typing import Any

from equalbits._files import write_atomically
from equalbits._plotting import save_figure
from equalbits.paper.grid_parameters import deciding_settings
from equalbits.paper.item import Item, from_file, get_item, read_result
from equalbits.paper.measurement_cost import cost, count_trained

#: Content of results/ITEM.json.
Kept = Mapping[str, Any]
#: Name of a grid parameter, or "seeds", to its values.
Block = dict[str, list[Any]]

#: Fields of result.json about how it was measured; the others are measurements.
FACTS = ("item", "title", "asked", "device", "versions", "seconds", "trained", "seeds", "notes")
#: A longer list is a curve of every step, which is not kept.
LONGEST = 1000
_WIDTH = 118
_NUMBER = re.compile(r"(\d+\.?\d*(?:e[-+]?\d+)?)")
#: Suffix of a curve of which only the last epoch is kept; plots and claims need no more.
_END_KEPT = ", but for the last"
_WAY_OUT = "measure the whole in one folder, or delete the older one to replace it"


def keep_item(folder: Path, results: Path, plots: Path, *, log: Callable[[str], None] = lambda line: None) -> Path:
    """Store the item measured in ``folder`` as ``results/ITEM.json`` and ``plots/ITEM.png``.

    An item kept before is replaced if the folder holds all of it, else merged. Raise for a quick or unfinished
    measurement, and for one with other settings than the item kept before.
    """
    source = folder / "result.json"
    if not source.is_file():
        raise ValueError(f"{folder} holds no result.json: it is not an item's, or not finished; reproduce resumes it")
    result = read_result(source)
    item = get_item(result["item"])
    if result["quick"] and item.needs:
        what = "a quick measurement, not the paper's setting"
        raise ValueError(f"{folder} holds {what}: reproduce {item.name} without --quick")
    path = results / f"{item.name}.json"
    left_out: list[str] = []
    facts = {"trained": count_trained(folder), **result}
    measured = {name: value for name, value in result.items() if name not in (*FACTS, "quick", "setting", "command")}
    kept = {
        **{name: facts[name] for name in FACTS if name in facts},
        "measured": {name: _short(value, name, left_out) for name, value in measured.items()},
        "left_out": left_out,
    }
    if path.exists():
        with from_file(item, path):
            before = json.loads(path.read_text())
            check_same_settings(item, before, kept)
            if covers(item, kept, before):
                log(f"{path} is replaced, all of it was measured again: {cost(before)} before, now {cost(kept)}")
            else:
                kept = merge(item, before, kept)
                result = {**kept, **kept["measured"], "quick": False}
                log(f"{path} is merged with this measurement")
    with from_file(item, source):
        item.compare(result)  # raise now for counts that no claim can be made of
        figure = item.draw(result)
    save_figure(figure, plots, item.name, kinds=("png",))
    write_atomically(path, (readable(kept) + "\n").encode())
    return path


def _short(value: Any, name: str, left_out: list[str]) -> Any:
    """Return a value without long lists, whose names are added to ``left_out``."""
    if isinstance(value, Mapping):
        if {"epoch", "train", "test"} <= set(value):
            if name.endswith(".best"):  # which no claim uses
                return {"epoch": value["epoch"], "test": {key: value["test"][key] for key in ("correct", "total")}}
            return {key: value[key] for key in ("epoch", "train", "test")}
        shown = {key: _short(each, f"{name}.{key}", left_out) for key, each in value.items()}
        return {key: each for key, each in shown.items() if each is not ...}
    if not isinstance(value, list):
        return value
    if name.endswith(".epochs") and len(value) > 1:
        left_out.append(f"{name}{_END_KEPT}")
        value = value[-1:]
    if len(value) > LONGEST:
        left_out.append(name)
        return ...
    return [_short(each, f"{name}.{at}", left_out) for at, each in enumerate(value)]


def readable(value: Any, indent: int = 0) -> str:
    """Format JSON with one line for each value that fits in it, and for each list of plain values.

    >>> print(readable({"seeds": [0, 1], "long": {"a": "x" * 60, "b": "y" * 60}}))
    {
     "seeds": [0, 1],
     "long": {
      "a": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
      "b": "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
     }
    }
    """
    line = json.dumps(value, ensure_ascii=False)
    plain = not isinstance(value, list | dict) or (
        isinstance(value, list) and not any(isinstance(each, list | dict | str) for each in value)
    )
    if plain or (indent and len(line) + indent <= _WIDTH):
        return line
    inner, pad = " " * (indent + 1), " " * indent
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {readable(each, indent + 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{pad}}}"
    return "[\n" + ",\n".join(inner + readable(each, indent + 1) for each in value) + f"\n{pad}]"


def all_asked(kept: Kept) -> list[dict[str, Any]]:
    """Return the options of each block of a measurement."""
    return [kept["asked"], *kept.get("asked_beside", [])]


def blocks(item: Item, kept: Kept) -> list[Block]:
    """Return the blocks of a measurement."""
    return [
        {
            **{name: list(values) for name, values in {**item.grid, **asked["grid"]}.items()},
            "seeds": list(asked["seeds"] or range(item.seeds)),
        }
        for asked in all_asked(kept)
    ]


def cells(found: Iterable[Block]) -> set[tuple[Any, ...]]:
    """Return the combinations of values that some block holds."""
    return {cell for block in found for cell in product(*block.values())}


def covers(item: Item, kept: Kept, before: Kept) -> bool:
    """Return True if a measurement contains all of the one before, and so can replace it."""
    return cells(blocks(item, kept)) >= cells(blocks(item, before))


def check_same_settings(item: Item, one: Kept, other: Kept) -> None:
    """Raise where two measurements ran with different settings."""
    first, second = (deciding_settings(kept["asked"]) for kept in (one, other))
    if first != second:
        both = f"results of {item.name} ran with different settings, {first} and {second}"
        way_out = f"measure with the same, or delete {item.name}.json, the older one, to replace it"
        raise ValueError(f"{both}, so they cannot be merged: {way_out}")


def merge(item: Item, one: Kept, other: Kept) -> dict[str, Any]:
    """Return both measurements as one, in the form of results/."""
    check_same_settings(item, one, other)
    asked, *beside = (_asked_for(item, block, other["asked"]["settings"]) for block in _merged_blocks(item, one, other))
    trained = _added(one["trained"], other["trained"])
    notes = [one.get("notes", []), other.get("notes", [])]
    shared = [note for note in notes[0] if note in notes[1]]
    own = _ordered({*notes[0], *notes[1]} - {*shared}, item)
    facts = {
        "asked": asked,
        **({"asked_beside": beside} if beside else {}),
        "device": ", ".join(trained["devices"]) or other["device"],
        "seconds": round(one["seconds"] + other["seconds"], 2),
        "trained": trained,
        **{name: _both(one[name], other[name], name, item) for name in ("seeds", "measured") if name in one},
        "left_out": list(dict.fromkeys([*one["left_out"], *other["left_out"]])),
        **({"notes": [*own, *shared]} if own or shared else {}),
    }
    return {**{name: value for name, value in other.items() if name != "asked_beside"}, **facts}


def _merged_blocks(item: Item, one: Kept, other: Kept) -> list[Block]:
    """Merge blocks that differ in one parameter. Raise where two overlap, or still differ in one that is not uneven."""
    what = f"results of {item.name} cannot be merged"
    if not all(name.endswith(_END_KEPT) for name in (*one["left_out"], *other["left_out"])):
        raise ValueError(f"{what}, since its curves of every step are not kept: {_WAY_OUT}")
    was, now = blocks(item, one), blocks(item, other)
    if twice := cells(was) & cells(now):
        shown = ", ".join(map(str, min(twice, key=str)))
        raise ValueError(f"{what} that both hold {shown} (the last is a seed): {_WAY_OUT}")
    found = [*was, *now]
    while pair := next((pair for pair in combinations(found, 2) if len(_differing(*pair)) == 1), None):
        (part,) = _differing(*pair)
        whole = {**pair[0], part: _ordered([*pair[0][part], *pair[1][part]], item)}
        found = [whole if each is pair[0] else each for each in found if each is not pair[1]]
    for pair in combinations(found, 2):
        if set(parts := _differing(*pair)) - set(item.uneven):
            raise ValueError(f"{what} that differ in {' and '.join(parts)}: {_WAY_OUT}")
    return found


def _differing(one: Block, other: Block) -> list[str]:
    return [name for name in one if set(one[name]) != set(other[name])]


def _asked_for(item: Item, block: Block, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that measure a block; parameters with all values are left out."""
    grid = {name: values for name, values in block.items() if name != "seeds" and set(values) != set(item.grid[name])}
    seeds = block["seeds"] if block["seeds"] != list(range(item.seeds)) else []
    return {"quick": False, "seeds": seeds, "settings": dict(settings), "grid": grid}


def _added(one: Kept, other: Kept) -> dict[str, Any]:
    """Add up the cost of both (:func:`~equalbits.paper.measurement_cost.count_trained`)."""
    sums = {name: round(one[name] + other[name], 2) for name in ("nets", "diverged", "seconds")}
    lists = {name: sorted({*one[name], *other[name]}) for name in ("data", "devices", "versions")}
    return {**sums, "side_by_side": max(one["side_by_side"], other["side_by_side"]), **lists}


def _both(one: Any, other: Any, name: str, item: Item) -> Any:
    """Merge two values: dictionaries by name, cases by their settings, runs by their seed, lists as a union."""
    if one == other:
        return one
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if not (one and other):
            return {**one, **other}
        shared = {key: _both(one[key], other[key], f"{name}.{key}", item) for key in one if key in other}
        found = {**one, **other, **shared}
        return found if len(found) == len(shared) else {key: found[key] for key in _ordered(found, item)}
    if isinstance(one, list) and isinstance(other, list):
        entries = [each for each in (*one, *other) if isinstance(each, Mapping)]
        if not entries:
            return _ordered(dict.fromkeys([*one, *other]), item)
        if key := next((key for key in ("settings", "seed") if all(key in each for each in entries)), None):
            was, now = ({str(each[key]): each for each in some} for some in (one, other))
            return sorted(_both(was, now, name, item).values(), key=lambda each: _order(each[key], item))
    what = f"{name} is {one!r} in one and {other!r} in the other"
    raise ValueError(f"results of {item.name} cannot be merged: {what}; {_WAY_OUT}")


def _ordered(values: Iterable[Any], item: Item) -> list[Any]:
    return sorted(values, key=lambda value: _order(value, item))


def _order(value: Any, item: Item) -> tuple[Any, ...]:
    """Sort key: names in the order of the item, then others; numbers, also within names, by size."""
    if isinstance(value, Mapping):
        return tuple(sorted((_order(each, item) for each in value.values()), key=itemgetter(0)))
    names = [name for values in item.grid.values() for name in values if isinstance(name, str)]
    place = names.index(value) if value in names else len(names)
    pieces = _NUMBER.split(str(value))
    return place, [(float(piece), "") if at % 2 else (0.0, piece) for at, piece in enumerate(pieces)]
