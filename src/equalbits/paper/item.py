"""An item is a figure or table of the paper: how it is measured, plotted, and compared with the paper.

:func:`reproduce` measures into result.json, and plots and claims are made from that file. So a second call does not
train again, and an interrupted measurement resumes with the runs that are missing.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from equalbits._claim import HEADER, Claim
from equalbits._files import write_atomically
from equalbits._plotting import Figure, save_figure
from equalbits._text import markdown_table, unknown_name
from equalbits.paper.claims import correct
from equalbits.paper.grid_parameters import Grid, command, deciding_settings, split
from equalbits.paper.measurement_cost import cost, count_trained, made_with
from equalbits.recipes import Execution, check_kind, check_one_process, device_and_versions, lock_dir, pick_device

#: Name of an item to its module, which is imported when it is needed, and its name there if not ITEM.
ITEMS = {
    "fig1": "items.fig1_entropy",
    "fig2": "items.fig2_flips",
    "fig3": "items.fig3_hyperparameters",
    "fig4": "items.fig4_repetitions",
    "fig5": "items.fig5_bit_ratio",
    "fig6": "items.fig6_toy_boundaries",
    "fig7": "items.fig7_architectures",
    "fig8": "items.fig8_pruning",
    "tab1": "items.tab1_update_rules",
    "tab2": "items.tab2_convnets",
    "tab2-irnet": "items.tab2_convnets:IRNET",
    "tab2-kaiming": "items.tab2_convnets:KAIMING",
    "tab2-tuned": "items.tab2_convnets:TUNED_ITEM",
    "tab3": "items.tab3_imagenet",
    "tab3-tiny": "items.tab3_imagenet:TINY",
    "entropy": "items.entropy_or_mean",
    "best": "items.best_nets",
    "flip-rate": "items.flip_rate",
}

NO_CLAIM = "The paper makes no claim that these numbers could be compared with."

#: The measurements of an item: plain data fit for JSON, counts rather than shares.
Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options(Execution):
    """Options of a measurement: its size, settings and grid, and where it runs (:class:`~equalbits.recipes.Execution`).

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
        given = {"quick": self.quick, "seeds": self.seeds, "settings": dict(self.settings), "grid": dict(self.grid)}
        plain: dict[str, Any] = json.loads(json.dumps(given))  # lists for tuples, as it is read back
        return plain


@dataclass(frozen=True, kw_only=True)
class Item:
    """A figure or table of the paper.

    - ``measure(out, options)``: train with ``options.seeds`` and return the measurements
    - ``draw(result)``: plot them
    - ``claims(result)``: compare them with the paper, a row per claim; :meth:`compare` corrects the tests of all rows
    - ``needs``: data sets of the full version; empty where there are none
    - ``grid``: grid parameters and their values
    - ``uneven``: grid parameters, such as nets and methods, that may be combined in part only
    - ``seeds``, ``quick_seeds``: number of seeds unless others are asked for; 0 where nothing is trained
    - ``watched``: each net is trained once, with watchers
    - ``decides``: recipe settings that the item sets itself
    """

    name: str
    title: str
    needs: str
    measure: Callable[[Path, Options], Result]
    draw: Callable[[Result], Figure]
    claims: Callable[[Result], list[Claim]]
    grid: Grid = field(default_factory=dict)
    uneven: tuple[str, ...] = ()
    seeds: int = 1
    quick_seeds: int = 2
    watched: bool = False
    decides: Sequence[str] = ()

    def compare(self, result: Result) -> list[Claim]:
        """Return the claims with their p values corrected over the rows of the item."""
        return correct(self.claims(result))


def list_items() -> list[str]:
    """List the names of all items.

    >>> "fig6" in list_items()
    True
    """
    return list(ITEMS)


def get_item(name: str) -> Item:
    """Return the item of this name.

    >>> get_item("fig6").title
    'Decision boundaries of a toy net with binary weights'
    >>> get_item("figure6")
    Traceback (most recent call last):
    ValueError: item 'figure6' is not known: did you mean 'fig6'? There are: ...
    """
    if name not in ITEMS:
        raise unknown_name("item", name, ITEMS)
    module, _, attribute = ITEMS[name].partition(":")
    item: Item = getattr(import_module(f"equalbits.paper.{module}"), attribute or "ITEM")
    return item


def reproduce(item: str | Item, out: Path | str, *, options: Options | None = None, **settings: Any) -> list[Claim]:
    """Measure an item into ``out`` unless that is done, then plot it and write a row per claim.

    ``settings`` are those of :class:`Options`, as in ``reproduce("fig2", "runs/fig2", quick=True, device="cpu")``.
    The directory then holds result.json, plots as PNG and SVG, claims.md and claims.json, and the runs.
    """
    item = item if isinstance(item, Item) else get_item(item)
    options = options or Options(**settings)
    own, grid = split(options.settings, options.grid, whole=item.grid, item=item.name)
    options = replace(options, settings=own, grid=grid, seeds=tuple(dict.fromkeys(options.seeds)))
    _check(item, options)
    if item.seeds:
        check_one_process("reproduce")
    out = Path(out)
    check_kind(out, "item")
    with lock_dir(out):
        earlier = _earlier_result(item, out / "result.json", options)
        result = earlier or _measured(item, out, options)
        with from_file(item, out / "result.json") if earlier else nullcontext():
            save_figure(item.draw(result), out, item.name)
            claims = item.compare(result)
            _write_claims(item, claims, result, out)
    return claims


@contextmanager
def from_file(item: Item, path: Path) -> Iterator[None]:
    """Raise a readable error where a stored result lacks what this version reads."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, json.JSONDecodeError) as error:
        what = f"{path} is not a complete result of {item.name} ({type(error).__name__}: {error})"
        raise ValueError(f"{what}, perhaps of another version: delete it to measure again") from error


def _describe_setting(item: Item, asked: Mapping[str, Any]) -> str:
    """Describe how a measurement differs from the paper's setting; empty where it does not."""
    if not item.needs:
        return ""
    if asked["quick"]:
        return "A quick measurement: small nets on the embedded Fashion-MNIST, not the paper's setting."
    others = [f"{name}={value}" for name, value in deciding_settings(asked).items()]
    return f"Not the paper's setting: it ran with {', '.join(others)}." if others else ""


def read_result(path: Path) -> Result:
    """Read a result.json that :func:`reproduce` wrote."""
    try:
        result: Result = json.loads(path.read_text())
        if lacking := [name for name in ("item", "quick", "asked") if name not in result]:
            raise ValueError(f"it lacks {', '.join(lacking)}")
        _deciding(result["asked"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a result of reproduce ({error}): delete it to measure again") from None
    return result


def _write_claims(item: Item, claims: Sequence[Claim], result: Result, out: Path) -> None:
    """Write claims.json, and claims.md with devices, versions, and how the setting differs from the paper's."""
    rows = [asdict(claim) for claim in claims]
    write_atomically(out / "claims.json", (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode())
    seeds = f"; seeds {', '.join(map(str, result['seeds']))}" if result.get("seeds") else ""
    paragraphs = [
        f"# {item.name}: {item.title}",
        result.get("setting", ""),
        markdown_table(HEADER, [claim.cells() for claim in claims]) if claims else NO_CLAIM,
        f"{cost(result)}; {made_with(result)}{seeds}.",
        "\n".join(f"- {note}" for note in result.get("notes", [])),
    ]
    write_atomically(out / "claims.md", ("\n\n".join(filter(None, paragraphs)) + "\n").encode())


def _check(item: Item, options: Options) -> None:
    """Raise for options that the item does not use."""
    if item.seeds == 0 and (options.seeds or options.settings):
        raise ValueError(f"{item.name} trains nothing: leave --seeds and --set out")
    if item.watched and options.seeds:
        raise ValueError(f"{item.name} trains each net once: instead of --seeds give one by --set seed=3, or none")
    if not item.watched and "seed" in options.settings:
        raise ValueError(f"{item.name} trains several seeds: write --seeds {options.settings['seed']}, not --set seed")
    for name in item.decides:
        if name in options.settings:
            raise ValueError(f"{name} is set by {item.name} itself: leave --set {name}={options.settings[name]} out")


def _earlier_result(item: Item, path: Path, options: Options) -> Result | None:
    """Return the result of an earlier call; None where other parts are asked for. Raise for one with other settings."""
    if not path.exists():
        return None
    result = read_result(path)
    before = {"item": result["item"], **_deciding(result["asked"])}
    now = {"item": item.name, **_deciding(options.asked())}
    for what in ("item", "quick", "settings"):
        if before[what] != now[what]:
            was = f"{path} was measured with {what}={before[what]}, not {now[what]}"
            raise ValueError(f"{was}: ask for the same, or use another --out")
    if before == now:
        return {"trained": count_trained(path.parent), **result}
    options.log(f"{path} holds other parts: measuring what is missing")
    return None


def _deciding(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without settings that change no result; seeds count as a grid parameter."""
    seeds = {"seeds": asked["seeds"]} if asked["seeds"] else {}
    return {"quick": asked["quick"], "settings": deciding_settings(asked), "parts": {**asked["grid"], **seeds}}


def _measured(item: Item, out: Path, options: Options) -> Result:
    began = time.perf_counter()
    device = "cpu" if options.ray else pick_device(options.device)
    seeds = options.seeds or range(item.quick_seeds if options.quick else item.seeds)
    measured = item.measure(out, replace(options, seeds=tuple(seeds)))
    nets = count_trained(out)
    result = {
        "item": item.name,
        "title": item.title,
        "quick": options.quick,
        "asked": (asked := options.asked()),
        "setting": _describe_setting(item, asked),
        "command": command(item.name, asked, out=str(out)),
        **device_and_versions(device),
        **({"device": ", ".join(nets["devices"])} if nets["devices"] else {}),
        "seconds": round(time.perf_counter() - began, 2),
        "trained": nets,
        **({"seeds": list(seeds)} if item.seeds and not item.watched else {}),
        **measured,
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items())
    write_atomically(out / "result.json", f"{{\n{lines}\n}}\n".encode())
    return read_result(out / "result.json")  # so that the first call plots from the same values as later ones
