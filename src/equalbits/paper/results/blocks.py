"""Blocks of a measurement: full grids, every value of each grid parameter combined with every value of the others.

One call of ``reproduce`` measures one block. Blocks measured in several places are merged: two that differ in one
parameter form one block. Others stay separate, where an item allows it, such as one more method for two of four nets.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from equalbits.paper.item import Item

#: Name of a grid parameter, or "seeds", to its values.
Block = dict[str, list[Any]]


def blocks(item: Item, kept: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of a measurement."""
    return [_block(item, asked) for asked in all_asked(kept)]


def all_asked(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options of each block."""
    return [kept["asked"], *kept.get("asked_beside", [])]


def _block(item: Item, asked: Mapping[str, Any]) -> Block:
    grid = {name: list(values) for name, values in {**item.grid, **asked["grid"]}.items()}
    return {**grid, "seeds": list(asked["seeds"] or range(item.seeds))}


def asked_for(item: Item, block: Block, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that measure a block; parameters with all values are left out."""
    grid = {name: values for name, values in block.items() if name != "seeds" and set(values) != set(item.grid[name])}
    seeds = block["seeds"] if block["seeds"] != list(range(item.seeds)) else []
    return {"quick": False, "seeds": seeds, "settings": dict(settings), "grid": grid}


def contain(many: Sequence[Block], few: Sequence[Block]) -> bool:
    """Return True if each of the few blocks lies in one of the many."""
    return all(any(all(set(each[name]) <= set(one[name]) for name in each) for one in many) for each in few)


def differing(one: Block, other: Block) -> list[str]:
    """Return the parameters in which two blocks differ."""
    return [name for name in {**one, **other} if set(one.get(name, ())) != set(other.get(name, ()))]


def overlap(one: Block, other: Block) -> bool:
    """Return True if two blocks have a combination in common."""
    return all(set(one[name]) & set(other[name]) for name in one)


def merge_blocks(found: Sequence[Block], ordered: Callable[[list[Any]], list[Any]]) -> list[Block]:
    """Merge disjoint blocks that differ in one parameter; ``ordered`` sorts the values of a parameter.

    >>> merge_blocks([{"nets": [2], "rules": ["a"]}, {"nets": [4], "rules": ["b"]}, {"nets": [4], "rules": ["a"]},
    ...               {"nets": [2], "rules": ["b"]}], sorted)
    [{'nets': [2, 4], 'rules': ['a', 'b']}]
    """
    found = list(found)
    while pair := next((pair for pair in combinations(found, 2) if len(differing(*pair)) == 1), None):
        (part,) = differing(*pair)
        whole = {**pair[0], part: ordered([*pair[0][part], *pair[1][part]])}
        found = [whole if each is pair[0] else each for each in found if each is not pair[1]]
    return found


def bounds(found: Sequence[Block]) -> Block:
    """Return the values of each parameter over all blocks."""
    return {name: list(dict.fromkeys(value for each in found for value in each[name])) for name in found[0]}


def holes(found: Sequence[Block], parts: Sequence[str]) -> dict[Any, list[Any]]:
    """Return the combinations of two parameters that no block holds: second value to missing first values.

    >>> holes([{"nets": [2, 4], "rules": ["a", "b"]}, {"nets": [2], "rules": ["c"]}], ("nets", "rules"))
    {'c': [4]}
    """
    spans = bounds(found)
    there = {pair for each in found for pair in product(*(each[name] for name in parts))}
    lacking = {each: [one for one in spans[parts[0]] if (one, each) not in there] for each in spans[parts[1]]}
    return {each: values for each, values in lacking.items() if values}
