"""Write the packed files that tests read: `python tests/golden/make_packed.py`. Only a new format version changes them.

All numbers are small multiples of powers of two, so every engine, in any order of addition, gives the same logits.
"""

from pathlib import Path

import numpy as np

from equalbits.runtime.engine import PackedModel
from equalbits.runtime.lengths import Lengths
from equalbits.runtime.network import Network
from equalbits.runtime.network_builder import NetworkBuilder

HERE = Path(__file__).parent


def symbols(*shape: int, step: int, zeros: int = 0) -> np.ndarray:
    """±1 in a fixed pattern that balances no filter in particular; every ``zeros``-th is 0."""
    numbers = np.arange(np.prod(shape)) * step % 11
    found = np.where(numbers < 5, -1, 1)
    if zeros:
        found[::zeros] = 0
    return found.reshape(shape)


def eighths(*shape: int, step: int) -> np.ndarray:
    """Multiples of ⅛ between −1 and 1, as float32."""
    return ((np.arange(np.prod(shape)) * step % 17 - 8) / 8).reshape(shape).astype(np.float32)


def residual() -> Network:
    """Binary on both sides: a real stem, a residual block with padding and a stride, one pruned layer."""
    build = NetworkBuilder((3, 8, 8))
    x = build.add("conv", build.image, weight=eighths(8, 3, 3, 3, step=5), kernel=3, padding=1, name="stem")
    x = build.add("prelu", x, slope=np.array([0.25], np.float32), name="stem.act")
    y = build.add("sign", x)
    y = build.add_binary("conv", y, symbols(8, 8, 3, 3, step=7), padding=1, name="block.conv1", scale=np.float32([0.5]))
    y = build.add("affine", y, gain_shift=eighths(2, 8, step=3), name="block.bn1")
    x = build.add("add", y, x)
    y = build.add("sign", x)
    y = build.add_binary("conv", y, symbols(16, 8, 3, 3, step=3, zeros=4), padding=1, stride=2, name="block.conv2")
    z = build.add("avg_pool", x, kernel=2, stride=2)
    z = build.add("conv", z, weight=eighths(16, 8, 1, 1, step=11), kernel=1, name="block.down")
    x = build.add("add", y, z)
    x = build.add("flatten", build.add("adaptive_avg_pool", x))
    build.add("linear", x, weight=eighths(4, 16, step=5), bias=eighths(4, step=7), name="head")
    return build.finish(
        mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), classes=("ant", "bee", "cat", "dog"), notes={"name": "residual"}
    )


def plain() -> Network:
    """Binary weights and real values, every layer binary, float16 and int8 where allowed, an exact p_pos."""
    build = NetworkBuilder((1, 6, 6))
    half = np.where(np.arange(4 * 9).reshape(4, 1, 3, 3) % 9 < 5, 1, -1)
    x = build.add_binary("conv", build.image, half, name="conv1", p_pos=0.5, scale=np.float16([0.5]))
    x = build.add("max_pool", build.add("relu", x), kernel=2, stride=2)
    x = build.add("flatten", x)
    x = build.add_binary("linear", x, symbols(6, 16, step=3), name="fc1", bias=eighths(6, step=5).astype(np.float16))
    weight = np.arange(18, dtype=np.int8).reshape(3, 6) - 9
    build.add("linear", build.add("clamp", x, min=-1, max=1), weight=weight, scale=np.float32([0.125]), name="fc2")
    return build.finish()


def moving() -> Network:
    """Everything that moves numbers, groups, a channel's own filter, windows that differ by side; half numbers."""
    build = NetworkBuilder((6, 7, 9))
    x = build.add("pad", build.image, before=(0, 1, 0), after=(0, 0, 1), value=-0.5)
    x = build.add_binary("conv", x, symbols(6, 1, 3, 3, step=5), groups=6, padding=(0, 1, 2, 0), name="own")
    x = build.add("clamp", x, min=-4)
    y = build.add("sign", x)
    y = build.add_binary("conv", y, symbols(64, 3, 2, 3, step=3), groups=2, stride=(1, 2), dilation=(2, 1), name="pair")
    y = build.add("affine", y, gain_shift=eighths(2, 64, step=3).astype(np.float16), name="norm")
    y = build.add("channel_shuffle", build.add("prelu", y, slope=eighths(64, step=7), name="act"), groups=4)
    y = build.add("slice", y, start=(1, 0, 0), stop=(64, 5, 4), step=(3, 1, 1))
    x = build.add("avg_pool", x, kernel=(2, 4), stride=(1, 2), count_padding=False)
    x = build.add("slice", x, start=(0, 0, 0), stop=(6, 5, 4), step=(1, 1, 1))
    z = build.add("concat", y, x)
    z = build.add("max_pool", z, kernel=2, stride=2, padding=(1, 0, 1, 0))
    z = build.add("permute", z, axes=(1, 2, 0))
    z = build.add("reshape", z, shape=(81, 2, 1))
    z = build.add("flatten", build.add("adaptive_avg_pool", z))
    weight = (np.arange(5 * 81) * 7 % 15 - 7).astype(np.int8).reshape(5, 81)
    build.add("linear", z, weight=weight, scale=np.float16([0.5, 0.25, 1, 2, 0.5]), name="head")
    return build.finish()


def rounded() -> Network:
    """Linear layers that round their input to 8 bits: one on reals, one pruned, one behind signs."""
    build = NetworkBuilder((2, 5, 7))
    x = build.add("flatten", build.image)
    x = build.add_binary("linear", x, symbols(40, 70, step=3), input_bits=8, scale=np.float32([0.5]), name="fc1")
    x = build.add("prelu", x, slope=np.array([0.25], np.float32), name="act")
    pruned = symbols(33, 40, step=7, zeros=3)
    x = build.add_binary("linear", x, pruned, input_bits=8, bias=eighths(33, step=5), name="fc2")
    build.add_binary("linear", build.add("sign", x), symbols(3, 33, step=5), input_bits=8, name="fc3")
    return build.finish()


def eight_bits() -> Network:
    """Convolutions of numbers rounded to 8 and to 4 bits: padded, pruned, in groups, and one read as floats, too."""
    build = NetworkBuilder((3, 6, 5))
    x = build.add("quantize", build.image, gain=24.0, min=-100, max=155)
    x = build.add_binary("conv", x, symbols(32, 3, 3, 3, step=7), padding=1, scale=np.float32([0.125]), name="conv1")
    x = build.add("relu", build.add("affine", x, gain_shift=eighths(2, 32, step=5), name="bn1"))
    whole = build.add("quantize", x, gain=0.5, max=15)
    x = build.add_binary("conv", whole, symbols(32, 16, 3, 3, step=5), groups=2, padding=1, name="conv2")
    pruned = symbols(20, 32, 1, 1, step=7, zeros=3)
    y = build.add_binary("conv", build.add("quantize", x, gain=0.0625, min=-128, max=127), pruned, name="conv3")
    z = build.add("concat", build.add("flatten", whole), build.add("flatten", y))
    build.add("slice", z, start=(0,), stop=(1560,), step=(7,))
    return build.finish()


def gated() -> Network:
    """A gate of channels, norms, attention and every function; rows of two numbers, whose sums no order changes."""
    build = NetworkBuilder((4, 3, 2))
    x = build.add_binary("conv", build.image, symbols(4, 4, 1, 1, step=7), name="conv", scale=np.float32([0.25]))
    x = build.add("mul", x, build.add("sigmoid", build.add("adaptive_avg_pool", x, size=(1, 1))))
    x = build.add("layer_norm", x, axis=2, scale=eighths(2, step=3), name="gate.norm")
    y = build.add("softplus", build.add("elu", build.add("tanh", x), alpha=0.5))
    y = build.add("reciprocal", build.add("sqrt", build.add("exp", build.add("mish", y))))
    x = build.add("add", build.add("silu", x), build.add("gelu_tanh", build.add("gelu", y)))
    x = build.add("reshape", build.add("clamp", x, min=-0.0, max=0.0), shape=(6, 2, 2))
    z = build.add("reshape", build.image, shape=(6, 2, 2))
    z = build.add("softmax", build.add("matmul", z, build.add("add", z, x)), axis=2, causal=True)
    z = build.add(
        "affine", build.add("reshape", z, shape=(12, 2)), gain_shift=eighths(2, 2, step=5), axis=1, name="last"
    )
    z = build.add("rms_norm", z, axis=1, eps=0.125, bias=eighths(2, step=7), name="rms")
    z = build.add("flatten", build.add("concat", z, build.add("reshape", y, shape=(12, 2))))
    build.add("slice", z, start=(0,), stop=(48,), step=(1,))
    return build.finish()


def lengths() -> Network:
    """Features of any length from 2 to 8: positions, a table of pairs, a sum, the last entry; all that may vary."""
    build = NetworkBuilder((4, 1, 8))
    x = build.add_binary("conv", build.image, symbols(4, 4, 1, 3, step=7), padding=(0, 0, 1, 1), name="conv")
    x = build.add("permute", build.add("reshape", x, shape=(4, 8)), axes=(1, 0))
    positions = np.stack([np.ones(32, np.float32), eighths(32, step=5)])
    x = build.add("affine", build.add("flatten", x), gain_shift=positions, name="positions")
    x = build.add("reshape", x, shape=(8, 4))
    pairs = build.add("matmul", x, build.add("permute", x, axes=(1, 0)))
    below = np.stack([np.ones(64, np.float32), np.tri(8, dtype=np.float32).reshape(-1)])
    pairs = build.add("affine", build.add("flatten", pairs), gain_shift=below, name="below")
    y = build.add("matmul", build.add("reshape", pairs, shape=(8, 8)), x)
    total = build.add("permute", y, axes=(1, 0))
    total = build.add("adaptive_avg_pool", build.add("reshape", total, shape=(4, 1, 8)), size=1)
    count = np.stack([np.full(4, 8, np.float32), np.zeros(4, np.float32)])
    total = build.add("flatten", build.add("affine", total, gain_shift=count, name="count"))
    last = build.add("flatten", build.add("slice", x, start=(7, 0), stop=(8, 4), step=(1, 1)))
    build.add("concat", total, last)
    settings = {1: {"shape": (4, -1)}, 5: {"shape": ((0, 1), 4)}, 10: {"shape": ((0, 1), (0, 1))}}
    settings |= {13: {"shape": (4, 1, -1)}, 17: {"start": (-2, 0), "stop": (-1, 4)}}
    cuts: dict[str, tuple[int | tuple[int, ...], ...]] = {"positions.gain_shift": (), "below.gain_shift": ((0, 1),)}
    scaled = {"count.gain_shift": ((0, 1),)}
    return build.finish(lengths=Lengths(2, 8, ((4, 1, (0, 1)),), (), settings, cuts, scaled))


def image(network: Network) -> np.ndarray:
    """The image whose logits are stored: multiples of ⅛."""
    return eighths(2, *network.input_shape, step=13)


if __name__ == "__main__":
    for make in (residual, plain, moving, rounded, gated, eight_bits, lengths):
        model = PackedModel(make(), engine="numpy")
        model.save(HERE / f"{make.__name__}.ebits")
        np.save(HERE / f"{make.__name__}.npy", model(image(model.network)))
