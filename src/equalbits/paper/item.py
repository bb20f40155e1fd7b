"""An item is a figure or table of the paper: how it is measured, drawn, and held against what the paper says.

Numbers come first: :func:`reproduce` measures into result.json, and everything else is made from that file. So a second
call draws without training, and a measurement that was cut off goes on with the runs that are missing.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from equalbits._files import write_atomically
from equalbits._text import unknown_name
from equalbits.paper.claims import Claim, write_claims
from equalbits.paper.parts import Grid, holds, split
from equalbits.paper.trained import trained
from equalbits.recipes import (
    FREE,
    Execution,
    check_kind,
    check_one_process,
    command_line,
    lock_dir,
    pick_device,
    where_and_with,
)

#: Name of an item to the module that holds it; each is imported when it is asked for.
ITEMS = {
    "fig1": "figures.fig1_entropy",
    "fig2": "figures.fig2_flips",
    "fig3": "figures.fig3_hyperparameters",
    "fig4": "figures.fig4_repetitions",
    "fig5": "figures.fig5_bit_ratio",
    "fig6": "figures.fig6_toy_boundaries",
    "fig7": "figures.fig7_architectures",
    "fig8": "figures.fig8_pruning",
    "tab1": "tables.tab1_update_rules",
    "tab2": "tables.tab2_convnets",
    "tab2-irnet": "tables.tab2_irnet",
    "tab2-kaiming": "tables.tab2_kaiming",
    "tab2-tuned": "tables.tab2_tuned",
    "tab3": "tables.tab3_imagenet",
}

#: What an item measured: plain data fit for JSON, counts before shares.
Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options(Execution):
    """What of an item is measured, and where it runs (:class:`~equalbits.recipes.Execution`).

    - ``quick``: small nets on the embedded data instead of the paper's setting
    - ``settings``: recipe settings that replace the item's own; one named like a grid parameter counts as ``grid``
    - ``grid``: values of the item's grid parameters, such as nets or methods
    - ``seeds``: seeds instead of the item's own

    By default up to 16 nets are stacked on a GPU, and none on a CPU. Items with watchers ignore ``stack`` and ``ray``.
    """

    quick: bool = False
    seeds: Sequence[int] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def asked(self) -> dict[str, Any]:
        """The options that decide the numbers, as plain data."""
        grid = {name: list(values) for name, values in self.grid.items()}
        return {"quick": self.quick, "seeds": list(self.seeds), "settings": dict(self.settings), "grid": grid}


@dataclass(frozen=True, kw_only=True)
class Item:
    """A figure or table: its name, and three functions of which only the first may train.

    ``measure(out, options)`` gives the numbers; ``draw(result, out)`` the pictures; ``claims(result)`` the rows that
    hold them against the paper. ``needs`` names the data of the full version, empty where there is none. ``grid`` is
    what the whole item goes through and how a part of it is asked for, ``full_only`` what of it a quick measurement
    does not choose. Of two ``uneven`` parts, such as nets and methods, one may be measured with some of the other only.
    ``seeds`` is with how many seeds, 0 where nothing is trained; one that is ``watched`` trains each net once.
    ``decides`` names settings of the recipe that are not for others to choose.
    """

    name: str
    title: str
    needs: str
    measure: Callable[[Path, Options], Result]
    draw: Callable[[Result, Path], None]
    claims: Callable[[Result], list[Claim]]
    grid: Grid = field(default_factory=dict)
    full_only: Sequence[str] = ()
    uneven: tuple[str, str] | tuple[()] = ()
    seeds: int = 1
    watched: bool = False
    decides: Sequence[str] = ()


def list_items() -> list[str]:
    """The names of all items.

    >>> "fig6" in list_items()
    True
    """
    return list(ITEMS)


def get_item(name: str) -> Item:
    """The item of this name.

    >>> get_item("fig6").title
    'Decision boundaries of a toy net with binary weights'
    >>> get_item("figure6")
    Traceback (most recent call last):
    ValueError: item 'figure6' is not known: did you mean 'fig6'? There are: ...
    """
    if name not in ITEMS:
        raise unknown_name("item", name, ITEMS)
    item: Item = import_module(f"equalbits.paper.{ITEMS[name]}").ITEM
    return item


def reproduce(item: str | Item, out: Path | str, *, options: Options | None = None, **settings: Any) -> list[Claim]:
    """Measure an item into ``out``, unless it was, then draw it and write a row per claim.

    ``settings`` are those of :class:`Options`, as in ``reproduce("fig2", "runs/fig2", quick=True, device="cpu")``.
    The folder then holds result.json, pictures as PNG and SVG, claims.md and claims.json, and the runs themselves.
    """
    item = get_item(item) if isinstance(item, str) else item
    options = options or Options(**settings)
    own, grid = split(options.settings, options.grid, whole=item.grid, item=item.name)
    options = replace(options, settings=own, grid=grid, seeds=tuple(dict.fromkeys(options.seeds)))
    _check(item, options)
    if item.seeds:
        check_one_process("reproduce")
    out = Path(out)
    check_kind(out, "item")
    with lock_dir(out, command=command_line()):
        known = _known(item, out / "result.json", options)
        result = known or _measured(item, out, options)
        with from_file(item, out / "result.json") if known else nullcontext():
            item.draw(result, out)
            claims = item.claims(result)
            write_claims(claims, result, out, setting=setting_in_words(item, result))
    return claims


@contextmanager
def from_file(item: Item, path: Path) -> Iterator[None]:
    """Where an item is drawn from a file that lacks what this version reads, say so in one line."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"{path} is no whole result of {item.name} ({type(error).__name__}: {error})"
        raise ValueError(f"{what}, perhaps of another version: delete it to measure again") from error


def setting_in_words(item: Item, result: Mapping[str, Any]) -> str:
    """What of a measurement is not the paper's setting, in a sentence; nothing where it is."""
    if not item.needs:
        return ""
    if result["quick"]:
        return "A quick measurement: small nets on the embedded Fashion-MNIST, not the paper's setting."
    others = [f"{name}={value}" for name, value in _deciding(result["asked"])["settings"].items()]
    return f"Not the paper's setting: it ran with {', '.join(others)}." if others else ""


def read_result(path: Path) -> Result:
    """What :func:`reproduce` stored; a file of something else is refused."""
    try:
        result: Result = json.loads(path.read_text())
        lacking = [name for name in ("item", "quick", "asked") if name not in result]
        lacking += [f"asked.{name}" for name in Options().asked() if name not in result.get("asked", {})]
        if lacking or not isinstance(result["item"], str):
            raise ValueError(f"it lacks {', '.join(lacking) or 'the name of an item'}")
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no result of reproduce ({error}): delete it to measure again") from None
    return result


def _check(item: Item, options: Options) -> None:
    """Refuse what the item would pass over."""
    if item.seeds == 0 and (options.seeds or options.settings):
        raise ValueError(f"{item.name} trains nothing: leave --seeds and --set away")
    if item.watched and options.seeds:
        raise ValueError(f"{item.name} trains each net once: in place of --seeds give one by --set seed=3, or none")
    if not item.watched and "seed" in options.settings:
        raise ValueError(f"{item.name} goes through seeds: write --seeds {options.settings['seed']}, not --set seed")
    for name in item.decides:
        if name in options.settings:
            raise ValueError(f"{name} is what {item.name} decides: leave --set {name}={options.settings[name]} away")
    for name in item.full_only if options.quick else ():
        if name in options.grid:
            raise ValueError(f"a quick {item.name} has {name} of its own: leave --set {name}=… away, or --quick")


def _known(item: Item, path: Path, options: Options) -> Result | None:
    """What an earlier call measured; None where more is asked for; a folder of something else is refused."""
    if not path.exists():
        return None
    result = read_result(path)
    before = {"item": result["item"], **_deciding(result["asked"])}
    now = {"item": item.name, **_deciding(_plain(options.asked()))}
    # What a quick item goes through where nothing is asked for, its measurement alone knows.
    whole: Grid = {} if options.quick else {**item.grid, "seeds": range(item.seeds)}
    for what, wanted in now.items():
        was = before[what]
        if was != wanted and not (what == "parts" and holds(wanted, was, whole)):
            more = f"{', naming each part,' if options.quick else ''} or more" if what == "parts" else ""
            raise ValueError(
                f"{path} was measured with {what}={was}, not {wanted}: ask for the same{more}, or use another --out"
            )
    if holds(before["parts"], now["parts"], whole):
        return {"trained": trained(path.parent), **result}
    options.log(f"{path} holds a part: going on with what it lacks")
    return None


def _deciding(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, less settings that change no result; seeds are a part like others."""
    settings = {name: value for name, value in asked["settings"].items() if name not in FREE}
    seeds = {"seeds": asked["seeds"]} if asked["seeds"] else {}
    return {"quick": asked["quick"], "settings": settings, "parts": {**asked["grid"], **seeds}}


def _measured(item: Item, out: Path, options: Options) -> Result:
    began = time.perf_counter()
    device = "cpu" if options.ray else pick_device(options.device)
    measured = item.measure(out, options)
    nets = trained(out)
    result = {
        "item": item.name,
        "title": item.title,
        "quick": options.quick,
        "asked": options.asked(),
        **where_and_with(device),
        **({"device": ", ".join(nets["devices"])} if nets["devices"] else {}),
        "seconds": round(time.perf_counter() - began, 2),
        "trained": nets,
        **measured,
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items())
    write_atomically(out / "result.json", f"{{\n{lines}\n}}\n".encode())
    return _plain(result)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """As it reads after a trip through JSON, so that the first call draws from what the second will find."""
    return json.loads(json.dumps(value))
