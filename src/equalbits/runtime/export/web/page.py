"""One HTML file with the engine, the network and the page: it fetches nothing."""

import html
import json
import re
import zlib
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from equalbits.runtime.export.web.plan import plan_block
from equalbits.runtime.format import to_chunks
from equalbits.runtime.lengths import longest
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array

if TYPE_CHECKING:
    from equalbits.runtime.engine import PackedModel

#: Most filters, pixels of a filter and examples that are shown, and most bytes of the examples together.
_MOST_FILTERS, _MOST_PIXELS, _MOST_EXAMPLES, _EXAMPLE_BYTES = 128, 4096, 10, 200_000


def web_page(model: "PackedModel", *, title: str = "Binary network", examples: Array | None = None) -> str:
    """Return a page that classifies pictures dropped on it, from the camera or drawn.

    ``examples`` are uint8 images (image, channel, row, column) to begin with: the first ten, or fewer large ones.
    """
    network, read = longest(model.network), files(__package__).joinpath
    _check(network)
    data = _data(model, read("engine.wasm").read_bytes()) | {"examples": _examples(network, examples)}
    style = read("page.css").read_text("utf-8")
    script = "".join(read(f"{name}.js").read_text("utf-8") for name in ("engine", "picture", "page"))
    parts = {
        "title": html.escape(title),
        "data": json.dumps(data).replace("<", "\\u003c"),  # a class name may hold </script>
        "style": style,
        "style_hash": _policy_hash(style),
        "script": script,
        "script_hash": _policy_hash(script),
    }
    return re.sub("{{([a-z_]+)}}", lambda found: parts[found[1]], read("page.html").read_text("utf-8"))


def _policy_hash(text: str) -> str:
    """Return the digest by which the page's policy allows this text alone."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _compressed(data: bytes) -> str:
    return b64encode(zlib.compress(data, 9)).decode()


def _check(network: Network) -> None:
    """Raise for a network that a page cannot show pictures to."""
    if network.inputs or network.outputs:
        names = ", ".join(port.name for port in (*network.inputs, *network.outputs))
        raise ValueError(f"the network has named inputs or outputs ({names}): a web page takes one picture to logits")
    if network.input_shape[0] not in (1, 3) or len(network.shapes[-1]) != 1:
        shapes = f"{network.input_shape} to {network.shapes[-1]}"
        raise ValueError(f"the network maps {shapes}: a web page needs 1 or 3 channels, and one logit per class")
    if network.mean is None:
        raise ValueError("the file has no mean and std to normalize pictures with: pack again with preprocessing=")


def _data(model: "PackedModel", engine: bytes) -> dict[str, Any]:
    """Return what the script of the page reads; bytes are compressed and in base64."""
    network = model.network
    channels, height, width = network.input_shape
    layers = [
        {"name": layer.name, "share": float(layer.positive.sum() / total), "weights": total}
        for layer in model.audit().layers
        if (total := int(layer.positive.sum() + layer.negative.sum() + layer.zero.sum()))
    ]
    return {
        "channels": channels,
        "height": height,
        "width": width,
        "resize": network.resize,
        "fit": network.fit,
        "classes": network.classes,
        "layers": layers,
        "filters": _filters(network),
        "packed_bytes": sum(map(len, to_chunks(network))),
        "engine_bytes": len(engine),
        "engine": _compressed(engine),
        "plan": _compressed(plan_block(network)),
    }


def _examples(network: Network, images: Array | None) -> str:
    """Return images row by row, column by column, channel by channel."""
    if images is None:
        images = np.empty((0, *network.input_shape), np.uint8)
    if images.dtype != np.uint8 or images.shape[1:] != network.input_shape:
        shape = ", ".join(map(str, network.input_shape))
        raise ValueError(f"the examples are {images.dtype} of shape {images.shape}: give uint8 of (n, {shape})")
    count = min(_MOST_EXAMPLES, max(1, _EXAMPLE_BYTES // prod(network.input_shape)))
    return _compressed(images[:count].transpose(0, 2, 3, 1).tobytes())


def _filters(network: Network) -> dict[str, Any]:
    """Return the filters of the first layer as pictures of bytes; none where they do not look at a picture."""
    nothing = {"pictures": [], "filters": 0, "binary": False, "width": 0, "height": 0, "channels": 1}
    for place, operation in enumerate(network.operations):
        if "weight" not in operation.tensors:
            continue
        channels = network.shapes[operation.inputs[0]][0]
        if operation.kind != "conv" or operation.settings["groups"] != 1 or channels not in (1, 3):
            return nothing
        rows, columns = operation.settings["kernel"]
        if rows * columns > _MOST_PIXELS:
            return nothing
        weight = network.arrays(operation)["weight"]
        binary = weight.dtype == np.uint8
        weights = network.symbols(place) if binary else weight
        shape = (len(weights), channels, rows, columns)
        numbers = weights.reshape(shape)[:_MOST_FILTERS].astype(np.float32).transpose(0, 2, 3, 1)
        largest = np.abs(numbers).max(axis=(1, 2, 3), keepdims=True)
        pixels = np.round(127.5 + 127.5 * numbers / np.maximum(largest, 1e-30)).astype(np.uint8)
        return {
            "pictures": pixels.reshape(len(pixels), -1).tolist(),
            "filters": len(weights),
            "binary": bool(binary),
            "width": columns,
            "height": rows,
            "channels": channels,
        }
    return nothing
