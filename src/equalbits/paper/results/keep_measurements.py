"""Keep a measured item in results/: its counts as readable JSON, and its plot in docs/.

Kept are, of each run, the counts of the last epoch and the score of the best, but no weights and no curves of every
step. A measurement that was kept before is merged.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from equalbits._files import write_atomically
from equalbits.paper.item import from_file, get_item, read_result
from equalbits.paper.measurement_cost import cost, count_trained
from equalbits.paper.results.merge_measurements import END_KEPT, check_same_settings, covers, merge

#: Fields of result.json about how it was measured; the others are measurements.
FACTS = ("item", "title", "asked", "device", "versions", "seconds", "trained", "seeds", "notes")
#: A longer list is a curve of every step, which is not kept.
LONGEST = 1000
_WIDTH = 118


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
    measured = {name: value for name, value in result.items() if name not in (*FACTS, "quick")}
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
    with from_file(item, source), TemporaryDirectory() as drawn:
        item.compare(result)  # raise now for counts that no claim can be made of
        item.draw(result, Path(drawn))
        plot = (Path(drawn) / f"{item.name}.png").read_bytes()
    write_atomically(plots / f"{item.name}.png", plot)
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
        left_out.append(f"{name}{END_KEPT}")
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
