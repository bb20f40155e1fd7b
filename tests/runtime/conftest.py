"""Random networks whose every sum is exact in float32, whatever the order: engines must then agree to the last bit.

Weights and images are small multiples of powers of two. A value remembers its grain (all its numbers are multiples of
it) and its bound; a real convolution is added only where no sum can leave the 24 bits of a float. Operations number by
number may round, since every engine rounds them alike.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from equalbits.runtime import Network, NetworkBuilder


@dataclass(frozen=True)
class Known:
    """Facts of a value: its number, shape, grain (None: it was rounded) and bound."""

    value: int
    shape: tuple[int, ...]
    grain: float | None
    bound: float


class Growing:
    """A network that grows by operations drawn at random."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.random = np.random.default_rng(self.draw(0, 2**32 - 1))
        shape = (self.draw(1, 40), self.draw(1, 11), self.draw(1, 11))
        self.build = NetworkBuilder(shape)
        self.known = [Known(0, shape, 0.25, 2.0)]

    def draw(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def flag(self) -> bool:
        return self.data.draw(st.booleans())

    def dyadic(self, *shape: int, grain: float = 0.125, bound: float = 1.0) -> np.ndarray:
        return (self.random.integers(-int(bound / grain), int(bound / grain) + 1, shape) * grain).astype(np.float32)

    def name(self) -> str:
        return f"op{len(self.build._operations)}"

    def add(self, kind: str, source: Known, *others: int, grain: float | None, bound: float, **parts: object) -> None:
        value = self.build.add(kind, source.value, *others, name=self.name(), **parts)
        shape = self.build.finish().shapes[-1]
        self.known.append(Known(value, shape, grain, bound))

    def elementwise(self, x: Known) -> None:
        kinds = ["affine", "prelu", "relu", "clamp", "sign", "quantize", "quantize", "add", "mul", "function"]
        kind = self.data.draw(st.sampled_from(kinds))
        channels = x.shape[0]
        if kind == "affine":
            self.add(kind, x, grain=None, bound=2 * x.bound + 1, gain_shift=self.dyadic(2, channels))
        elif kind == "prelu":
            slope = self.dyadic(self.data.draw(st.sampled_from([1, channels])))
            self.add(kind, x, grain=None, bound=x.bound, slope=slope)
        elif kind == "relu":
            self.add(kind, x, grain=x.grain, bound=x.bound)
        elif kind == "clamp":
            self.add(kind, x, grain=None, bound=x.bound, min=-0.5, max=self.data.draw(st.sampled_from([0.25, None])))
        elif kind == "sign":
            self.add(kind, x, grain=1.0, bound=1.0)
        elif kind == "quantize":
            low, high = self.data.draw(st.sampled_from([(0, 255), (-100, 155), (0, 15), (-8, 7)]))
            self.add(
                kind, x, grain=1.0, bound=255.0, gain=self.data.draw(st.sampled_from([1.0, 8.0])), min=low, max=high
            )
        elif kind == "function":
            name = self.data.draw(st.sampled_from(["sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "mish", "elu"]))
            self.add(name, x, grain=None, bound=x.bound + 1)
        elif kind == "mul":
            fits = [y for y in self.known if len(y.shape) == len(x.shape)]
            fits = [y for y in fits if all(a == b or b == 1 for a, b in zip(x.shape, y.shape, strict=True))]
            y = self.data.draw(st.sampled_from(fits))
            self.add(kind, x, y.value, grain=None, bound=x.bound * y.bound)
        else:
            same = [y for y in self.known if y.shape == x.shape]
            y = self.data.draw(st.sampled_from(same))
            grain = None if x.grain is None or y.grain is None else min(x.grain, y.grain)
            self.add(kind, x, y.value, grain=grain, bound=x.bound + y.bound)

    def moving(self, x: Known) -> None:
        kind = self.data.draw(st.sampled_from(["flatten", "reshape", "permute", "shuffle", "slice", "pad", "concat"]))
        facts = {"grain": x.grain, "bound": x.bound}
        if kind == "flatten":
            self.add(kind, x, **facts)
        elif kind == "reshape":
            numbers = int(np.prod(x.shape))
            first = self.data.draw(st.sampled_from([n for n in range(1, numbers + 1) if numbers % n == 0]))
            rest = numbers // first
            second = self.data.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
            self.add(kind, x, **facts, shape=(first, second, rest // second))
        elif kind == "permute":
            self.add(kind, x, **facts, axes=self.data.draw(st.permutations(range(len(x.shape)))))
        elif kind == "shuffle" and len(x.shape) == 3:
            groups = self.data.draw(st.sampled_from([n for n in range(1, x.shape[0] + 1) if x.shape[0] % n == 0]))
            self.add("channel_shuffle", x, **facts, groups=groups)
        elif kind == "slice":
            start = [self.draw(0, size - 1) for size in x.shape]
            stop = [self.draw(first + 1, size) for first, size in zip(start, x.shape, strict=True)]
            self.add(kind, x, **facts, start=start, stop=stop, step=[self.draw(1, 3) for _ in start])
        elif kind == "pad":
            around = [[self.draw(0, 2) for _ in x.shape] for _ in range(2)]
            self.add(kind, x, grain=x.grain, bound=max(x.bound, 1.0), before=around[0], after=around[1], value=1)
        elif kind == "concat":
            y = self.data.draw(st.sampled_from([y for y in self.known if y.shape[1:] == x.shape[1:]]))
            grain = None if x.grain is None or y.grain is None else min(x.grain, y.grain)
            self.add(kind, x, y.value, grain=grain, bound=max(x.bound, y.bound))

    def pooling(self, x: Known) -> None:
        if len(x.shape) != 3:
            return
        kind = self.data.draw(st.sampled_from(["max_pool", "avg_pool", "adaptive_avg_pool"]))
        if kind == "adaptive_avg_pool":
            self.add(kind, x, grain=None, bound=x.bound, size=(self.draw(1, 5), self.draw(1, 5)))
            return
        kernel = [self.draw(1, min(3, size)) for size in x.shape[1:]]
        padding = [self.draw(0, kernel[side // 2] - 1) for side in range(4)]
        parts = {"kernel": kernel, "stride": (self.draw(1, 3), self.draw(1, 3)), "padding": padding}
        if kind == "avg_pool":
            self.add(kind, x, grain=None, bound=x.bound, **parts, count_padding=self.flag())
        else:
            self.add(kind, x, grain=x.grain, bound=x.bound, **parts)

    def weighted(self, x: Known) -> None:
        """A convolution or linear layer: bits, pruned bits or reals, where the sums stay exact."""
        if len(x.shape) == 1:
            shape, parts, kind = (self.draw(1, 70), x.shape[0]), {}, "linear"
        elif len(x.shape) == 3:
            shape, parts = self.window(x.shape)
            kind = "conv"
        else:
            return
        binary = self.flag()
        bound = x.bound * int(np.prod(shape[1:]))
        grain = None if x.grain is None else x.grain * (1.0 if binary else 0.125)
        if grain is None or bound / grain >= 2**24:
            return
        rounds = self.flag()
        if rounds:
            parts |= {"scale": self.dyadic(shape[0]), "bias": self.dyadic(shape[0])}
        facts = {"grain": None if rounds else grain, "bound": bound + 1}
        if binary:
            symbols = self.random.choice([-1, 0, 1] if self.flag() else [-1, 1], shape)
            value = self.build.add_binary(kind, x.value, symbols, name=self.name(), **parts)
            self.known.append(Known(value, self.build.finish().shapes[-1], **facts))
        else:
            self.add(kind, x, weight=self.dyadic(*shape), **parts, **facts)

    def rounded(self, x: Known) -> None:
        """A linear layer that rounds its input to 8 bits: the same integers in every engine."""
        if len(x.shape) != 1:
            return
        symbols = self.random.choice([-1, 0, 1] if self.flag() else [-1, 1], (self.draw(1, 70), x.shape[0]))
        parts = {"scale": self.dyadic(1), "bias": self.dyadic(len(symbols))} if self.flag() else {}
        value = self.build.add_binary("linear", x.value, symbols, name=self.name(), input_bits=8, **parts)
        self.known.append(Known(value, (len(symbols),), None, 2 * x.bound * x.shape[0] + 1))

    def window(self, image: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, object]]:
        channels = image[0]
        groups = self.data.draw(st.sampled_from([n for n in range(1, channels + 1) if channels % n == 0]))
        groups = self.data.draw(st.sampled_from([1, groups]))
        kernel, stride, dilation = ([self.draw(1, most) for _ in range(2)] for most in (3, 3, 2))
        reach = [dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
        padding = [self.draw(0, 2) for _ in range(4)]
        for i in range(2):
            padding[2 * i] = max(padding[2 * i], reach[i] - image[1 + i] - padding[2 * i + 1])
        parts = {"kernel": kernel, "stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
        per_group = self.data.draw(st.sampled_from([1, 2, 16, 20, 32, 35]))
        return (groups * per_group if groups * per_group <= 160 else groups, channels // groups, *kernel), parts

    def grow(self) -> None:
        x = self.data.draw(st.sampled_from(self.known[-3:]))
        if int(np.prod(x.shape)) > 20_000:
            return
        self.data.draw(
            st.sampled_from(
                [
                    *(self.elementwise, self.elementwise, self.weighted, self.weighted),
                    *(self.pooling, self.moving, self.rounded),
                ]
            )
        )(x)


@st.composite
def _networks(draw: st.DrawFn) -> tuple[Network, np.ndarray]:
    growing = Growing(draw(st.data()))
    for _ in range(draw(st.integers(1, 9))):
        growing.grow()
    if not growing.build._operations:
        growing.add("flatten", growing.known[0], grain=None, bound=1)
    network = growing.build.finish()
    return network, growing.dyadic(draw(st.integers(1, 3)), *network.input_shape, grain=0.25, bound=2.0)


#: A network and a few images for it.
NETWORKS = _networks()


@pytest.fixture(scope="session")
def networks() -> st.SearchStrategy[tuple[Network, np.ndarray]]:
    return NETWORKS
