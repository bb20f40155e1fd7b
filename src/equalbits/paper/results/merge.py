"""Merge two measurements of one item that were made in two places, such as Conv8 and Conv2, 4 and 6.

They may differ in one grid parameter (nets, methods, shares, seeds, …), so that the merged grid is full, or in both
``uneven`` parameters of an item. The counts of the runs suffice; the nets are not needed.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from operator import itemgetter
from typing import Any

from equalbits.paper.item import Item
from equalbits.paper.results.blocks import Block, asked_for, blocks, contain, differing, merge_blocks, overlap
from equalbits.recipes import FREE

_NUMBER = re.compile(r"(\d+\.?\d*(?:e[-+]?\d+)?)")
#: Keys that identify the entries of a list.
_KEYS = ("settings", "seed")
#: Suffix of a curve of which only the last epoch is kept; plots and claims need no more.
END_KEPT = ", but for the last"
_WAY_OUT = "measure the whole in one folder, or delete the older one to replace it"


def covers(item: Item, kept: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return True if a measurement contains all of the one before, and so can replace it."""
    return contain(blocks(item, kept), blocks(item, before))


def check_same_settings(item: Item, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise where two measurements ran with different settings."""
    settings = [
        {name: value for name, value in kept["asked"]["settings"].items() if name not in FREE} for kept in (one, other)
    ]
    if settings[0] != settings[1]:
        both = f"results of {item.name} ran with different settings, {settings[0]} and {settings[1]}"
        way_out = f"measure with the same, or delete {item.name}.json, the older one, to replace it"
        raise ValueError(f"{both}, so they cannot be merged: {way_out}")


def merge(item: Item, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both measurements as one, in the form of results/ but without claims."""
    check_same_settings(item, one, other)
    asked, *beside = (asked_for(item, block, other["asked"]["settings"]) for block in _blocks_of_both(item, one, other))
    trained = _added(one["trained"], other["trained"])
    facts = {
        "asked": asked,
        **({"asked_beside": beside} if beside else {}),
        "device": ", ".join(trained["devices"]) or other["device"],
        "seconds": round(one["seconds"] + other["seconds"], 2),
        "trained": trained,
        **{name: _both(one[name], other[name], name, item) for name in ("seeds", "measured") if name in one},
        "left_out": list(dict.fromkeys([*one["left_out"], *other["left_out"]])),
    }
    notes = _notes(one.get("notes", []), other.get("notes", []), item)
    rest = {name: value for name, value in other.items() if name != "asked_beside"}
    return {**rest, **facts, **({"notes": notes} if notes else {})}


def _notes(one: list[str], other: list[str], item: Item) -> list[str]:
    """Return the notes of one measurement only, then those of both."""
    shared = [note for note in one if note in other]
    return [*_ordered({*one, *other} - {*shared}, item), *shared]


def _blocks_of_both(item: Item, one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Block]:
    """Return the merged blocks; raise where they overlap, or differ in other than the item's uneven parameters."""
    what = f"results of {item.name} cannot be merged"
    if not all(name.endswith(END_KEPT) for name in (*one["left_out"], *other["left_out"])):
        raise ValueError(f"{what}, since its curves of every step are not kept: {_WAY_OUT}")
    was, now = blocks(item, one), blocks(item, other)
    for first, second in product(was, now):
        if overlap(first, second):
            parts = differing(first, second)
            if len(parts) > 1:
                raise _differs(what, parts)
            part = parts[0] if parts else "seeds"
            twice = ", ".join(str(value) for value in first[part] if value in second[part])
            raise ValueError(f"{what} that both hold {part} {twice}: {_WAY_OUT}")
    found = merge_blocks([*was, *now], lambda values: _ordered(values, item))
    for pair in combinations(found, 2):
        if set(parts := differing(*pair)) - set(item.uneven):
            raise _differs(what, parts)
    return found


def _differs(what: str, parts: Iterable[str]) -> ValueError:
    return ValueError(f"{what} that differ in {' and '.join(parts)}: {_WAY_OUT}")


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Add up the cost of both (:func:`~equalbits.paper.cost.count_trained`)."""
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
        if all(isinstance(each, Mapping) for each in (*one, *other)):
            return _entries(one, other, name, item)
        return _union(one, other, item)
    what = f"{name} is {one!r} in one and {other!r} in the other"
    raise ValueError(f"results of {item.name} cannot be merged: {what}; {_WAY_OUT}")


def _entries(one: list[Any], other: list[Any], name: str, item: Item) -> list[Any]:
    key = next((key for key in _KEYS if all(key in each for each in (*one, *other))), None)
    if key is None:
        what = f"{name} is a list without settings or seeds"
        raise ValueError(f"results of {item.name} cannot be merged: {what}; {_WAY_OUT}")
    was, now = ({str(each[key]): each for each in some} for some in (one, other))
    found = _both(was, now, name, item)
    return sorted(found.values(), key=lambda each: _order(each[key], item))


def _union(one: Iterable[Any], other: Iterable[Any], item: Item) -> list[Any]:
    return _ordered(dict.fromkeys([*one, *other]), item)


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
