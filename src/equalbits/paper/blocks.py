"""What a measurement went through, as blocks: every value of a part with every value of all other parts.

One call of reproduce measures one block. Several, made in several places, grow together: two blocks that differ in one
part alone are one block. Those that do not fit stay side by side, where an item allows it, as when of four nets only
two were trained by one more method.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from equalbits.paper.item import Item

#: Name of a part, or "seeds", to the values that were gone through.
Block = dict[str, list[Any]]


def blocks(item: Item, kept: Mapping[str, Any]) -> list[Block]:
    """The blocks of a measurement."""
    return [_block(item, asked) for asked in all_asked(kept)]


def all_asked(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was asked for, once for every block."""
    return [kept["asked"], *kept.get("asked_beside", [])]


def _block(item: Item, asked: Mapping[str, Any]) -> Block:
    grid = {name: list(values) for name, values in {**item.grid, **asked["grid"]}.items()}
    return {**grid, "seeds": list(asked["seeds"] or range(item.seeds))}


def asked_for(item: Item, block: Block, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked for to measure a block; parts that are whole are not named."""
    grid = {name: values for name, values in block.items() if name != "seeds" and set(values) != set(item.grid[name])}
    seeds = block["seeds"] if block["seeds"] != list(range(item.seeds)) else []
    return {"quick": False, "seeds": seeds, "settings": dict(settings), "grid": grid}


def hold(many: Sequence[Block], few: Sequence[Block]) -> bool:
    """Whether each of the few lies in one of the many."""
    return all(any(all(set(each[name]) <= set(one[name]) for name in each) for one in many) for each in few)


def differing(one: Block, other: Block) -> list[str]:
    """The parts in which two blocks differ."""
    return [name for name in {**one, **other} if set(one.get(name, ())) != set(other.get(name, ()))]


def overlap(one: Block, other: Block) -> bool:
    """Whether something was measured in both blocks."""
    return all(set(one[name]) & set(other[name]) for name in one)


def grown_together(found: Sequence[Block], ordered: Callable[[list[Any]], list[Any]]) -> list[Block]:
    """Blocks that share nothing, those that differ in one part alone as one; ``ordered`` sorts the values of a part.

    >>> grown_together([{"nets": [2], "rules": ["a"]}, {"nets": [4], "rules": ["b"]}, {"nets": [4], "rules": ["a"]},
    ...                 {"nets": [2], "rules": ["b"]}], sorted)
    [{'nets': [2, 4], 'rules': ['a', 'b']}]
    """
    found = list(found)
    while pair := next((pair for pair in combinations(found, 2) if len(differing(*pair)) == 1), None):
        (part,) = differing(*pair)
        whole = {**pair[0], part: ordered([*pair[0][part], *pair[1][part]])}
        found = [whole if each is pair[0] else each for each in found if each is not pair[1]]
    return found


def bounds(found: Sequence[Block]) -> Block:
    """The values of each part that one block or another holds."""
    return {name: list(dict.fromkeys(value for each in found for value in each[name])) for name in found[0]}


def holes(found: Sequence[Block], parts: Sequence[str]) -> dict[Any, list[Any]]:
    """What blocks lack of all that they span in two parts: values of the second to those of the first without them.

    >>> holes([{"nets": [2, 4], "rules": ["a", "b"]}, {"nets": [2], "rules": ["c"]}], ("nets", "rules"))
    {'c': [4]}
    """
    spans = bounds(found)
    there = {pair for each in found for pair in product(*(each[name] for name in parts))}
    lacking = {each: [one for one in spans[parts[0]] if (one, each) not in there] for each in spans[parts[1]]}
    return {each: values for each, values in lacking.items() if values}
