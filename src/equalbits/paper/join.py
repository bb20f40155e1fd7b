"""Joins two measurements of one item that were made in two places, such as Conv8 to Conv2, 4 and 6.

They must differ in one part only (nets, methods, shares, seeds, …), so that together they are a measurement with
nothing missing in between; where an item allows it, in both of its ``uneven`` parts. The nets themselves need not be
there any more: the counts of every run are enough.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from operator import itemgetter
from typing import Any

from equalbits.paper.blocks import Block, asked_for, blocks, differing, grown_together, hold, overlap
from equalbits.paper.item import Item
from equalbits.recipes import FREE

_NUMBER = re.compile(r"(\d+\.?\d*(?:e[-+]?\d+)?)")
#: By what the entries of a list are told apart.
_KEYS = ("settings", "seed")
#: How what is left out ends where its end is kept, which is all that pictures and claims are made from.
END_KEPT = ", but for the last"
_WAY_OUT = "measure the whole in one folder, or delete the older one to replace it"


def covers(item: Item, kept: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a measurement holds every part of the one before, so that it can stand in its place."""
    return hold(blocks(item, kept), blocks(item, before))


def check_same_settings(item: Item, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse to have a measurement with other settings replace one, or be joined to it."""
    settings = [
        {name: value for name, value in kept["asked"]["settings"].items() if name not in FREE} for kept in (one, other)
    ]
    if settings[0] != settings[1]:
        what = f"results of {item.name} that ran with other settings, {settings[0]} and {settings[1]}"
        way_out = f"measure with the same, or delete {item.name}.json, the older one, to replace it"
        raise ValueError(f"{what}, are neither joined nor does one replace the other: {way_out}")


def joined(item: Item, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both as one, in the form that results/ keeps, but for its claims; what cannot be joined is refused."""
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
    """First what is said of the parts, then what both say."""
    shared = [note for note in one if note in other]
    return [*_ordered({*one, *other} - {*shared}, item), *shared]


def _blocks_of_both(item: Item, one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Block]:
    """Blocks that share nothing, and stay apart in the item's uneven parts only."""
    what = f"results of {item.name} cannot be joined"
    if not all(name.endswith(END_KEPT) for name in (*one["left_out"], *other["left_out"])):
        raise ValueError(f"{what}, for its curves of every step are not kept: {_WAY_OUT}")
    was, now = blocks(item, one), blocks(item, other)
    for first, second in product(was, now):
        if overlap(first, second):
            parts = differing(first, second)
            if len(parts) > 1:
                raise _differs(what, parts)
            part = parts[0] if parts else "seeds"
            twice = ", ".join(str(value) for value in first[part] if value in second[part])
            raise ValueError(f"{what} that both hold {part} {twice}: {_WAY_OUT}")
    found = grown_together([*was, *now], lambda values: _ordered(values, item))
    for pair in combinations(found, 2):
        if set(parts := differing(*pair)) - set(item.uneven):
            raise _differs(what, parts)
    return found


def _differs(what: str, parts: Iterable[str]) -> ValueError:
    return ValueError(f"{what} that differ in {' and '.join(parts)}, not in one part alone: {_WAY_OUT}")


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What both cost, see :func:`~equalbits.paper.trained.trained`."""
    sums = {name: round(one[name] + other[name], 2) for name in ("nets", "diverged", "seconds")}
    lists = {name: sorted({*one[name], *other[name]}) for name in ("data", "devices", "versions")}
    return {**sums, "side_by_side": max(one["side_by_side"], other["side_by_side"]), **lists}


def _both(one: Any, other: Any, name: str, item: Item) -> Any:
    """Dictionaries name by name, cases by their settings, runs by their seed, plain lists as the values of both."""
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
    raise ValueError(f"results of {item.name} cannot be joined: {what}; {_WAY_OUT}")


def _entries(one: list[Any], other: list[Any], name: str, item: Item) -> list[Any]:
    key = next((key for key in _KEYS if all(key in each for each in (*one, *other))), None)
    if key is None:
        what = f"{name} is a list without settings or seeds"
        raise ValueError(f"results of {item.name} cannot be joined: {what}; {_WAY_OUT}")
    was, now = ({str(each[key]): each for each in some} for some in (one, other))
    found = _both(was, now, name, item)
    return sorted(found.values(), key=lambda each: _order(each[key], item))


def _union(one: Iterable[Any], other: Iterable[Any], item: Item) -> list[Any]:
    return _ordered(dict.fromkeys([*one, *other]), item)


def _ordered(values: Iterable[Any], item: Item) -> list[Any]:
    return sorted(values, key=lambda value: _order(value, item))


def _order(value: Any, item: Item) -> tuple[Any, ...]:
    """Names as the item goes through them, then others; numbers, in names too, by their size."""
    if isinstance(value, Mapping):
        return tuple(sorted((_order(each, item) for each in value.values()), key=itemgetter(0)))
    names = [name for values in item.grid.values() for name in values if isinstance(name, str)]
    place = names.index(value) if value in names else len(names)
    pieces = _NUMBER.split(str(value))
    return place, [(float(piece), "") if at % 2 else (0.0, piece) for at, piece in enumerate(pieces)]
