"""Measure speed and exactness of 8-bit products of ±1 in the forward pass of a binary ResNet-18 on a GPU.

    python benchmarks/gpu_low_bits.py [RESULT.json] [--rounds 15] [--tiles]

torch has 8-bit matrix products but no 8-bit convolutions. Each 3×3 convolution is therefore also computed as the
product of patches (im2col) and filters in FP8, INT8 and, for comparison, bfloat16, with and without the time to build
the patches; and by our own 8-bit convolution (``kernels/int8_convolution.py``), with ``--tiles`` also with
the three fastest of many tiles. Training uses the bfloat16 convolution. Gradients are real, so only the forward product
of a layer's three has ±1 on both sides.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import gpu_step
import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.kernels.int8_convolution import Tiles, convolve

#: Channels, side and number of ResNet-18's inner 3×3 convolutions on 32×32 images.
SHAPES = {(64, 32): 4, (128, 16): 3, (256, 8): 3, (512, 4): 3}
BATCH = 128


def patches(images: Tensor) -> Tensor:
    """Return patches of shape (position, connection) from images in ``channels_last``."""
    side = images.shape[2]
    framed = nnf.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    seen = [framed[:, row : row + side, column : column + side] for row in range(3) for column in range(3)]
    return torch.cat(seen, dim=3).flatten(0, 2)


def ways(channels: int, side: int, candidates: list[Tiles]) -> dict[str, Callable[[], Tensor]]:
    """Return a function for each variant; all return shape (position, filter)."""
    images = torch.randn(BATCH, channels, side, side, device="cuda").sign().to(torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(channels, channels, 3, 3, device="cuda").sign().to(torch.bfloat16)
    weight = weight.contiguous(memory_format=torch.channels_last)
    filters = weight.permute(0, 2, 3, 1).flatten(1)
    one = torch.ones((), device="cuda")
    fp8_images, fp8_filters = images.to(torch.float8_e4m3fn), filters.to(torch.float8_e4m3fn)
    ready, fp8_ready, int8_ready = patches(images), patches(fp8_images), patches(images.to(torch.int8))
    int8_filters = filters.to(torch.int8)

    def fp8(rows: Tensor) -> Tensor:
        return torch._scaled_mm(rows, fp8_filters.T, one, one, out_dtype=torch.bfloat16)

    fp8_weight, int8_weight = weight.to(torch.float8_e4m3fn), weight.to(torch.int8)
    int8_images = images.to(torch.int8)
    lay_out = torch.compile(patches, dynamic=False)
    tiled = {f"fp8 {tiles}": partial(our_convolution, fp8_images, fp8_weight, one, tiles) for tiles in candidates}
    return {
        "bf16 convolution": lambda: nnf.conv2d(images, weight, padding=1).permute(0, 2, 3, 1).flatten(0, 2),
        "bf16 product": lambda: ready @ filters.T,
        "fp8 product": lambda: fp8(fp8_ready),
        "int8 product": lambda: torch._int_mm(int8_ready, int8_filters.T),
        "fp8 with patches": lambda: fp8(lay_out(fp8_images)),
        "our fp8 convolution": lambda: as_rows(our_convolution(fp8_images, fp8_weight, one)),
        "our int8 convolution": lambda: as_rows(our_convolution(int8_images, int8_weight, one)),
        "our bf16 convolution": lambda: as_rows(our_convolution(images, weight, one)),
        **tiled,
    }


def our_convolution(images: Tensor, weight: Tensor, scale: Tensor, tiles: Tiles | None = None) -> Tensor:
    return as_rows(convolve(images, weight, scale, ((1, 1), (1, 1)), torch.bfloat16, tiles))


def as_rows(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).flatten(0, 2)


def tiles_to_try(channels: int) -> list[Tiles]:
    """Return tiles of many shapes: 24 at most, since each is compiled."""
    widths = [width for width in (64, 128) if width <= channels]
    shapes = product(widths, widths, (1, 2, 4), (4, 8))
    return [Tiles(filters=f, channels=c, split=split, warps=warps) for f, c, split, warps in shapes]


def replayed(call: Callable[[], Tensor]) -> Callable[[], None]:
    """Return the repeated call captured as one CUDA graph, so that launches cost almost nothing."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(gpu_step.STEPS):
            call()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tiles", action="store_true", help="also try our convolution with many tiles")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_low_bits: there is no CUDA device to measure")
    rows: dict[str, dict[str, dict[str, object]]] = {}
    for (channels, side), count in SHAPES.items():
        calls = ways(channels, side, tiles_to_try(channels) if options.tiles else [])
        exact = calls["int8 product"]().to(torch.bfloat16)  # whole numbers, rounded once
        runs = {name: replayed(call) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                times[name].append(1000 * gpu_step.milliseconds(run))
        found = {
            name: {
                "median_us": round(statistics.median(times[name]), 2),
                "exact": bool(torch.equal(call().to(torch.bfloat16), exact)),
            }
            for name, call in calls.items()
        }
        if options.tiles:  # keep the fastest
            tiled = sorted((name for name in found if "Tiles(" in name), key=lambda name: found[name]["median_us"])
            found = {name: timed for name, timed in found.items() if name not in tiled[3:]}
        rows[f"{channels} channels, {side}×{side}, {count} of them"] = found
        cells = [f"{name} {f['median_us']} µs{'' if f['exact'] else ' (not exact)'}" for name, f in found.items()]
        print(f"{channels:4} × {side}²: " + "; ".join(cells), flush=True)
    made = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version()}
    if options.result:
        record = {"what": "µs of one ±1 × ±1 layer, batch 128", **made, "rounds": options.rounds, "layers": rows}
        Path(options.result).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
