"""A linear layer over the last of several axes: each row by itself, rounded or not, in every engine."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equalbits.runtime import Network, NetworkBuilder, native
from equalbits.runtime.engine import NativeEngine, run_numpy
from equalbits.runtime.format import from_bytes, to_chunks

SETS = [] if native.BUILT is None else native.BUILT.instruction_sets()


def network(shape: tuple[int, ...], filters: int, *, seed: int = 0, zeros: bool = False, bits: int = 8) -> Network:
    """Two linear layers with all that may join the first: scale, bias, an affine per entry, a sum and a clamp."""
    random = np.random.default_rng(seed)
    symbols = random.choice([-1, 0, 1] if zeros else [-1, 1], (filters, shape[-1]))
    vectors = random.standard_normal((4, filters)).astype(np.float32)
    build = NetworkBuilder((int(np.prod(shape)), 1, 1))
    x = build.add("reshape", build.image, shape=shape)
    scale, bias = vectors[:2]
    made = build.add_binary("linear", x, symbols, input_bits=bits, scale=scale, bias=bias)
    if len(shape) == 2:
        made = build.add("affine", made, gain_shift=vectors[2:], axis=1)
    made = build.add("clamp", build.add("add", made, made), min=-3.0)
    build.add_binary("linear", made, np.ones((3, filters), np.int8), input_bits=bits)
    return build.finish()


def images(shape: tuple[int, ...], batch: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    made = random.standard_normal((batch, int(np.prod(shape)), 1, 1)).astype(np.float32)
    made[random.random(made.shape) < 0.1] = 0
    return made


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 30), min_size=1, max_size=2),
    st.integers(1, 200),
    st.integers(1, 70),
    st.booleans(),
)
def test_rounded_rows_give_the_same_bits_in_every_engine(
    seed: int, rows: list[int], width: int, filters: int, zeros: bool
) -> None:
    shape = (*rows, width)
    made, batch = network(shape, filters, seed=seed, zeros=zeros), images(shape, 2, seed)
    truth = run_numpy(made, batch)
    assert truth.shape == (2, *rows, 3)
    for name in SETS:
        for threads in (1, 3):
            np.testing.assert_array_equal(NativeEngine(made, name)(batch[:1], threads), truth[:1], err_msg=name)
        np.testing.assert_array_equal(NativeEngine(made, name)(batch), truth, err_msg=name)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("rows", "width"), [(2, 20_000), (13, 4096), (5, 4097), (25, 768)])
def test_long_rows_add_up_without_a_carry_lost(rows: int, width: int, name: str, zeros: bool) -> None:
    made = network((rows, width), 40, zeros=zeros)
    batch = np.random.default_rng(1).choice(np.float32([-3, 3]), (1, rows * width, 1, 1))
    np.testing.assert_array_equal(NativeEngine(made, name)(batch), run_numpy(made, batch))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("bits", [8, 32])
def test_every_row_is_the_layer_of_that_row_alone(name: str, bits: int) -> None:
    """Rows with NaN, infinity and zeros only change no other row."""
    batch = images((6, 50), 1, 0).reshape(1, 6, 50)
    batch[0, 1, 7], batch[0, 3, 2], batch[0, 4] = np.nan, -np.inf, 0
    many, one = network((6, 50), 40, bits=bits), network((1, 50), 40, bits=bits)
    made = NativeEngine(many, name)(batch.reshape(1, 300, 1, 1))[0]
    for row in range(6):
        alone = NativeEngine(one, name)(batch[:, row].reshape(1, 50, 1, 1))[0, 0]
        np.testing.assert_allclose(made[row], alone, rtol=1e-4, atol=1e-4, err_msg=str(row))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 130), st.integers(1, 70), st.booleans())
def test_exact_rows_agree_with_numpy(seed: int, rows: int, width: int, filters: int, zeros: bool) -> None:
    made = network((rows, width), filters, seed=seed, zeros=zeros, bits=32)
    batch = images((rows, width), 2, seed)
    truth = run_numpy(made, batch)
    for name in SETS:
        np.testing.assert_allclose(NativeEngine(made, name)(batch), truth, rtol=1e-4, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("name", SETS)
def test_a_layer_whose_rows_are_an_image_elsewhere_keeps_their_order(name: str) -> None:
    """Its input is pooled, its output convolved: both lie in memory channels last."""
    random = np.random.default_rng(0)
    build = NetworkBuilder((3, 4, 8))
    x = build.add("max_pool", build.image, kernel=2, stride=2)
    x = build.add("linear", x, weight=random.standard_normal((6, 4)).astype(np.float32))
    build.add("conv", x, weight=random.standard_normal((2, 3, 1, 1)).astype(np.float32), kernel=1)
    made, batch = build.finish(), images((3, 4, 8), 2, 0).reshape(2, 3, 4, 8)
    np.testing.assert_allclose(NativeEngine(made, name)(batch), run_numpy(made, batch), rtol=1e-4, atol=1e-5)


def test_a_file_holds_such_a_layer() -> None:
    made = network((4, 33), 5)
    assert from_bytes(b"".join(to_chunks(made))).operations == made.operations
    with pytest.raises(ValueError, match="take uint8"):
        build = NetworkBuilder((12, 1, 1))
        build.add_binary("linear", build.add("reshape", build.image, shape=(12, 1)), np.ones((2, 12), np.int8))
        build.finish()
