"""Write docs/timm.md from the rows of ``timm_families.py`` and the times of ``timm_speed.py``."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Rows = Mapping[str, Mapping[str, Any]]

#: Differences above this are compared with those of torch's own float32 logits from float64.
_USUAL = 5e-5

_LEAD = """
**{packed} of {measured} families of timm pack** with binary inner layers, and the native engine runs all of these. A
network of the others is exported to ONNX with its [frozen](freeze.md) weights ([below](#refused)).
"""

_HEADING = """
`benchmarks/timm_families.py` takes one net of each of the {modules} model modules of timm: the one with the fewest
parameters, without the `test_…` nets of timm's own tests, with 10 classes, at the smallest image of 64, 96, 112, 128,
160, 192, 224 and 256 that it accepts (or else its own). {left_out} are left out, because their smallest net has more
than {most_parameters:,} parameters or takes more than {minutes} minutes: {names}. The other {measured} get binary
inner layers (`eb.binarize_(model, eb.BiHalf())`, real inputs) and one training step; they are frozen, packed on two
images, and compared on two others. NF-Nets get plain convolutions first: theirs standardize their weights, so
`binarize_` leaves them real ([how](own_model.md)).
"""

_SUMMARY = """
The frozen net gives the same logits as
the model to the bit in {frozen}. The columns native and numpy hold the largest difference of a logit from torch's,
relative to the largest logit; the last column holds the difference of torch's own float32 logits from those of the
frozen net in float64. Besides the bits, files are float32, so a net with few binary layers stays large.
"""

_LARGE = """
Differences above {usual:.0e} are rounding that the net itself amplifies: torch's own float32 logits are as far from
float64, within a factor of {factor:.1f}, as the packed ones. Distance from the float64 logits:
"""

_REFUSED = """
Each with the first reason, and how far the logits of ONNX Runtime are from torch's after the way out,
`torch.onnx.export(eb.freeze(model), …)` ([freeze](freeze.md)). Sequencer runs an LSTM along rows and columns. CSATv2
multiplies queries and keys of shape (batch, tokens), which mixes the images of a batch.
"""

_BINARY_INPUTS = """
The same with `input_quantizer=eb.SignActivation()` and `eb.adapt_for_binary_inputs_` (`--inputs sign`), for
{families} families: {packed} pack. All columns are distances from the float64 logits, relative to the largest: a sum
near 0 may take either sign by rounding, in torch's float32 as well, and a net of one training step has many such
sums.
"""

_SPEED = """
`benchmarks/timm_speed.py`: milliseconds for one image of 224² on one thread, the median of {rounds} rounds in which
the engines alternate ({processor}, {instruction_set}). W1A32 has binary inner layers, W1A1 signs as their inputs as
well; ONNX Runtime runs the real net, in float32 and in int8 (static quantization, QDQ). In brackets: times as fast as
ONNX Runtime in float32, and in int8.
"""

#: From `equalbits bench --layers` on the same files.
_READING = """
MobileNetV3 is slower than in ONNX Runtime with real inputs, and about as fast with signs: 0.9 of its 2.8 or 3.3 ms
are depthwise convolutions, where a bit saves no product, and most of the rest are products of few channels. With real
inputs, int8 is faster on ResNet-18, and a little faster on ConvNeXt and the mixer: a float32 input is looked up, an
int8 one multiplied with VNNI (`pack(..., activations="int8")` rounds the inputs of binary convolutions, too). With
binary inputs most of the time goes to what is real: in ConvNeXt GELU (1.8 of 5.0 ms) and 7×7 depthwise convolutions
(1.1 ms), in the ViT attention, softmax and GELU (3.1 of 9.6 ms). Over tokens, W1A1 adds biases and shortcuts and
takes signs in passes of their own (1.9 ms in the ViT, where W1A32 needs 0.3), which is why its file is the slower of
the two.
"""


def page(rows: Rows, most_parameters: int, most_seconds: int, results: Path) -> str:
    """Return the page as Markdown; other results lie in the same directory."""
    packed = {family: row for family, row in rows.items() if "native_difference" in row}
    refused = {family: row for family, row in rows.items() if "refused" in row}
    left_out = {family: row for family, row in rows.items() if "left_out" in row}
    counts = {
        "modules": len(rows),
        "measured": len(packed) + len(refused),
        "packed": len(packed),
        "left_out": len(left_out),
        "frozen": sum(bool(row.get("frozen_equal")) for row in rows.values()),
        "names": ", ".join(f"{family} (`{row.get('variant', 'any')}`)" for family, row in left_out.items()) or "none",
    }
    lines = [
        "# Families of timm",
        *_paragraph(_LEAD, **counts),
        *_paragraph(_HEADING, most_parameters=most_parameters, minutes=most_seconds // 60, **counts),
        *_paragraph(_SUMMARY, **counts),
        "",
        "| family | net | image | parameters | binary layers | file, bytes | native | numpy | torch from float64 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family, row in packed.items():
        sizes = f"{row['parameters']:,} | {row['binary_layers']} | {row['bytes']:,}"
        differences = f"{row['native_difference']:.1e} | {row['numpy_difference']:.1e} | {_far(row, 'torch')}"
        lines.append(f"| {family} | `{row['variant']}` | {row['image']}² | {sizes} | {differences} |")
    lines += [*_large(packed), *_refusals(refused)]
    for name, section in (("timm-binary-inputs.json", _binary_inputs), ("timm-speed.json", _speed)):
        if (results / name).exists():
            lines += section(json.loads((results / name).read_text()))
    return "\n".join(lines) + "\n"


def _paragraph(template: str, **values: object) -> list[str]:
    text = " ".join(template.format(**values).split())
    return ["", *textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)]


def _far(row: Mapping[str, Any], engine: str) -> str:
    """Return the distance from the float64 logits; a dash for a net that makes float32 numbers by itself."""
    return f"{row['from_float64'][engine]:.1e}" if "from_float64" in row else "–"


def _large(packed: Rows) -> list[str]:
    """Compare each large difference with the distance of torch's own logits from float64."""
    large = {
        family: row
        for family, row in packed.items()
        if max(row["native_difference"], row["numpy_difference"]) > _USUAL and "from_float64" in row
    }
    if not large:
        return []
    far = [row["from_float64"] for row in large.values()]
    factor = max(max(each["native"], each["numpy"]) / each["torch"] for each in far)
    lines = [*_paragraph(_LARGE, usual=_USUAL, factor=factor), ""]
    lines += ["| family | native | numpy | torch, float32 |", "|---|---|---|---|"]
    for family, row in large.items():
        lines.append(f"| {family} | {_far(row, 'native')} | {_far(row, 'numpy')} | {_far(row, 'torch')} |")
    return lines


def _refusals(refused: Rows) -> list[str]:
    if not refused:
        return []
    lines = ["", "## Refused", *_paragraph(_REFUSED), ""]
    lines += ["| family | net | reason | ONNX Runtime |", "|---|---|---|---|"]
    for family, row in refused.items():
        way_out = row.get("onnx_difference", "–")
        way_out = f"{way_out:.1e}" if isinstance(way_out, float) else way_out
        lines.append(f"| {family} | `{row['variant']}` | {row['refused'].replace('|', '/')} | {way_out} |")
    return lines


def _binary_inputs(rows: Rows) -> list[str]:
    packed = {family: row for family, row in rows.items() if "native_difference" in row}
    lines = ["", "## Binary inputs", *_paragraph(_BINARY_INPUTS, families=len(rows), packed=len(packed)), ""]
    lines += ["| family | net | binary layers | file, bytes | native | numpy | torch, float32 |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for family, row in packed.items():
        cells = " | ".join(_far(row, engine) for engine in ("native", "numpy", "torch"))
        lines.append(f"| {family} | `{row['variant']}` | {row['binary_layers']} | {row['bytes']:,} | {cells} |")
    return lines + [f"\nRefused: {family}, {row['refused']}" for family, row in rows.items() if "refused" in row]


def _speed(found: Mapping[str, Any]) -> list[str]:
    lines = ["", "## Speed", *_paragraph(_SPEED, **found["made_with"]), ""]
    lines += ["| net | W1A32 | W1A1 | ONNX Runtime float32 | ONNX Runtime int8 |", "|---|---|---|---|---|"]
    peers = [f"ONNX Runtime, {kind}" for kind in ("float32", "int8")]
    for name, engines in found["nets"].items():
        cells = []
        for ours in ("equalbits, W1A32", "equalbits, W1A1"):
            first, second = (engines[peer]["times_as_long_as"][ours]["median"] for peer in peers)
            cells.append(f"{engines[ours]['ms']['median']:.1f} ({first:.2f}, {second:.2f})")
        cells += [f"{engines[peer]['ms']['median']:.1f}" for peer in peers]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return [*lines, *_paragraph(_READING)]
