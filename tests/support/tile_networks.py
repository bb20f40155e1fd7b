"""Networks of one binary convolution, whose pixels fill tiles and vectors in every way."""

import numpy as np

from equalbits.runtime import Network, NetworkBuilder

#: Channels, image, filters, kernel and settings of the convolution.
SHAPES = [
    (64, (12, 56), 64, 3, {"padding": 1}),  # tiles end inside rows
    (32, (3, 160), 32, 1, {}),  # and with them
    (36, (3, 165), 33, 3, {"padding": 1}),  # rows longer than a tile
    (64, (15, 15), 70, 3, {"padding": 1, "stride": 2}),
    (40, (9, 33), 96, 3, {"stride": (1, 2), "dilation": 2}),
    (32, (16, 16), 33, 3, {"padding": 1}),  # two rows fill a vector
    (8, (21, 20), 40, 3, {"stride": (3, 4), "padding": (2, 0, 1, 3)}),
    (96, (8, 8), 96, 3, {"groups": 3, "padding": 1}),
    (512, (7, 7), 40, 3, {"padding": 1}),  # more entries than a byte can count
    (16, (4, 4), 32, 1, {}),  # the fewest pixels that make a tile
    (16, (3, 5), 32, 1, {}),  # and fewer
    (16, (2, 3), 32, 1, {}),  # fewer than half of the smallest vector
]


def network_of(shape: tuple, *, pruned: bool = False, pool: dict[str, int] | None = None) -> tuple[Network, np.ndarray]:
    """Return the network and two images."""
    random = np.random.default_rng(0)
    channels, size, filters, kernel, window = shape
    build = NetworkBuilder((channels, *size))
    connections = (filters, channels // window.get("groups", 1), kernel, kernel)
    symbols = random.choice([-1, 0, 1] if pruned else [-1, 1], connections)
    x = build.add_binary("conv", build.add("sign", build.image), symbols, **window)
    x = build.add("max_pool", x, **pool) if pool else x
    build.add("affine", x, gain_shift=np.stack([np.full(filters, 0.5), np.arange(filters)]).astype(np.float32))
    return build.finish(), random.standard_normal((2, channels, *size)).astype(np.float32)
