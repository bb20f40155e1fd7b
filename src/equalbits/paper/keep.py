"""Takes the folder of a measured item into results/: its counts and claims as readable JSON, its picture beside.

What is kept is small: of each run the counts of its last epoch and the score of its best, no weights, no curves of
every step. The picture is drawn anew from the whole result.json. What was measured elsewhere before is joined to it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from equalbits._files import write_atomically
from equalbits.paper.item import Item, from_file, get_item, read_result
from equalbits.paper.join import END_KEPT, check_same_settings, covers, joined
from equalbits.paper.trained import cost, trained

#: What says how a measurement was made; the rest of result.json is what was measured.
FACTS = ("item", "title", "asked", "device", "versions", "seconds", "trained", "seeds", "notes")
#: A longer list is a curve of every step, which a picture shows and nobody reads.
LONGEST = 1000
_WIDTH = 118


def take(folder: Path, results: Path, pictures: Path, *, log: Callable[[str], None] = lambda line: None) -> Path:
    """Store the item measured in ``folder`` as ``results/ITEM.json`` and ``pictures/ITEM.png``.

    One that was taken before is replaced where the folder holds all of it, else joined to it; which, is told. A folder
    of a quick measurement, of one that has not ended, or of other settings than the one before is refused.
    """
    item, result = _read(folder)
    path = results / f"{item.name}.json"
    left_out: list[str] = []
    facts = {"trained": trained(folder), **result}
    with from_file(item, folder / "result.json"):
        kept = {
            **{name: facts[name] for name in FACTS if name in facts},
            "claims": [],
            "measured": {
                name: _short(value, name, left_out) for name, value in result.items() if name not in (*FACTS, "quick")
            },
            "left_out": left_out,
        }
    with from_file(item, path):
        before = _kept_before(path)
        if before is not None:
            check_same_settings(item, before, kept)
            if covers(item, kept, before):
                log(f"{path} is replaced, all of it was measured anew: {cost(before)} before, now {cost(kept)}")
            else:
                kept = joined(item, before, kept)
                result = {**kept, **kept["measured"], "quick": False}
                log(f"{path} is joined with what it lacked")
    with from_file(item, folder / "result.json"), TemporaryDirectory() as drawn:
        kept["claims"] = [asdict(claim) for claim in item.claims(result)]
        item.draw(result, Path(drawn))
        picture = (Path(drawn) / f"{item.name}.png").read_bytes()
    write_atomically(pictures / f"{item.name}.png", picture)
    write_atomically(path, (readable(kept) + "\n").encode())
    return path


def renew(path: Path) -> None:
    """Hold the counts kept in a file against the paper by the rules of now, unless curves are left out of them."""
    kept = json.loads(path.read_text())
    if all(name.endswith(END_KEPT) for name in kept["left_out"]):
        item = get_item(kept["item"])
        with from_file(item, path):
            claims = item.claims({**kept, **kept["measured"], "quick": False})
        write_atomically(path, (readable({**kept, "claims": [asdict(claim) for claim in claims]}) + "\n").encode())


def _kept_before(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read ({error}): delete it, or get it back, to take in what is new"
        ) from None


def _read(folder: Path) -> tuple[Item, dict[str, Any]]:
    path = folder / "result.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no result.json: it is not an item's, or not finished; reproduce goes on with it"
        )
    result = read_result(path)
    item = get_item(result["item"])
    if result["quick"] and item.needs:
        raise ValueError(
            f"{folder} holds a quick measurement, not the paper's setting: reproduce {item.name} without --quick"
        )
    return item, result


def _short(value: Any, name: str, left_out: list[str]) -> Any:
    """The value less what is long, which is named in ``left_out``."""
    if isinstance(value, Mapping):
        if {"epoch", "train", "test"} <= set(value):
            return _counts(value, best=name.endswith(".best"))
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


def _counts(epoch: Mapping[str, Any], *, best: bool) -> dict[str, Any]:
    """An epoch's counts; of the best, which claims nothing, the test images alone."""
    if best:
        return {"epoch": epoch["epoch"], "test": {name: epoch["test"][name] for name in ("correct", "total")}}
    return {name: epoch[name] for name in ("epoch", "train", "test")}


def readable(value: Any, indent: int = 0) -> str:
    """JSON with a line for whatever fits in one, and for every list of plain values.

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
