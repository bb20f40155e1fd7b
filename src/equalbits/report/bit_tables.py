"""The bits of trained nets, counted anew from their weights: shares of +1, exactness, entropy, packed size.

Weights are safetensors: reading them runs nothing. Where a run keeps none, as when many are trained side by side,
nothing is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from equalbits._text import format_range
from equalbits.analysis import Audit, LayerAudit, Summary, audit, summarize
from equalbits.nn import BinaryLayer
from equalbits.report.scan import Run
from equalbits.report.html import Html, join, table, tag
from equalbits.recipes import ImageSpec, last_weights, load_run

#: So much is read for one table, that a page of many large nets is still quick.
MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Bits:
    """What was counted of a run's last epoch."""

    audit: Audit
    summary: Summary


def bits_of(folder: Path) -> Bits | None:
    """The bits of a run's last weights; None where it has none. What cannot be read is a ValueError."""
    if not all(path.is_file() for path in (last_weights(folder), folder / "model.json", folder / "recipe.toml")):
        return None
    try:
        _, model = load_run(folder)
        if not any(isinstance(layer, BinaryLayer) for layer in model.modules()):
            return None
        images = ImageSpec.read(folder / "model.json")
        return Bits(audit(model, strict=False), summarize(model, (1, images.channels, images.size, images.size)))
    except (TypeError, RuntimeError, MemoryError, OSError) as error:  # weights that do not fit take no page down
        raise ValueError(f"{type(error).__name__}: {error}") from error


def bits_of_run(run: Run) -> Html:
    """A row for each binary layer of one run, and the size of the file it packs into."""
    try:
        found = bits_of(run.path)
    except ValueError as error:
        return _unread([str(error)])
    if found is None:
        return Html("")
    packed = {layer.name: layer.size.packed_bytes for layer in found.summary.layers}
    header = ("layer", "filters", "weights each", "of +1, asked", "of +1, found", "exact", "entropy, bits", "bytes")
    rows = [
        [
            layer.name or "(model)",
            f"{layer.filters:,}",
            f"{layer.connections:,}",
            "nothing"
            if layer.expected is None
            else f"{format_range(layer.expected)} ({100 * (layer.p_pos or 0.0):g} %)",
            f"{format_range(layer.positive)} ({_shares(layer)})",
            _exact(layer),
            f"{float(layer.entropy.nanmean()):.5f}",
            f"{packed[layer.name]:,}",
        ]
        for layer in found.audit.layers
    ]
    listed = table(header, rows, caption="Bits of the last epoch; a range where filters differ")
    return join([listed, tag("p", _verdict(found.audit), _size(found.summary))])


def bits_of_runs(runs: Sequence[Run], within: Path) -> Html:
    """A row for each run that has weights; large ones beyond :data:`MOST_BYTES` are left out, and counted."""
    rows, left, taken, trouble = [], 0, 0, []
    for run in runs:
        path = last_weights(run.path)
        taken += path.stat().st_size if path.is_file() else 0
        if taken > MOST_BYTES:
            left += path.is_file()
            continue
        name = run.path.relative_to(within).as_posix()
        try:
            if (found := bits_of(run.path)) is not None:
                rows.append([name, *_row(found)])
        except ValueError as error:
            trouble.append(f"{name}: {error}")
    header = ("run", "filters as asked", "entropy, bits", "packed bytes", "times smaller")
    parts = [table(header, rows, caption="Bits of the last epoch")] if rows else []
    parts += [_unread(trouble)] if trouble else []
    parts += [tag("p", f"Not counted here, for their size: {left} more. equalbits inspect counts one.")] if left else []
    return join(parts)


def _row(found: Bits) -> list[str]:
    layers = found.audit.layers
    filters = sum(layer.filters for layer in layers)
    entropy = sum(float(layer.entropy.nansum()) for layer in layers) / max(1, filters)
    smaller = f"{found.summary.compression:.1f}"
    return [_held(found.audit), f"{entropy:.5f}", f"{found.summary.total['packed_bytes']:,}", smaller]


def _held(report: Audit) -> Html:
    """How many filters hold what was promised."""
    promised = [layer for layer in report.layers if layer.expected is not None]
    filters, off = sum(layer.filters for layer in promised), sum(len(layer.inexact) for layer in promised)
    if not promised:
        return tag("span", "nothing asked")
    return tag("span", f"{filters - off:,} of {filters:,}", class_="no" if off else "yes")


def _verdict(report: Audit) -> Html:
    if all(layer.expected is None for layer in report.layers):
        return join(["The method promises no share of +1."])
    return join(["Filters with exactly the share of +1 that was asked: ", _held(report), "."])


def _size(summary: Summary) -> str:
    total = summary.total
    return (
        f" Packed, its numbers will take {total['packed_bytes']:,} bytes, beside the file's table of names: "
        f"{summary.compression:.1f} times less than the {total['float32_bytes']:,} in float32."
    )


def _exact(layer: LayerAudit) -> Html:
    words = {None: "–", True: "yes", False: f"no: {len(layer.inexact)}"}[layer.exact]
    return tag("span", words, class_={None: None, True: "yes", False: "no"}[layer.exact])


def _shares(layer: LayerAudit) -> str:
    """The shares of +1 among what is not cut, in per cent."""
    shares: Tensor = 100 * layer.positive / (layer.negative + layer.positive)
    known = shares[~shares.isnan()]
    if not len(known):
        return "–"
    low, high = f"{float(known.min()):.1f}", f"{float(known.max()):.1f}"
    return f"{low} %" if low == high else f"{low}…{high} %"


def _unread(lines: Sequence[str]) -> Html:
    words = "; ".join(" ".join(line.split()) for line in lines)
    return tag("p", tag("strong", "Weights that could not be read: "), words, class_="no")
