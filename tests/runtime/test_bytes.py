"""A binary linear layer with inputs rounded to 8 bits: exact integers, equal in every engine."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equalbits.runtime import Network, NetworkBuilder, native
from equalbits.runtime.engine import NativeEngine, run_numpy
from equalbits.runtime.format import from_bytes, to_chunks
from equalbits.runtime.ops.conv_linear import round_to_bytes

SETS = [] if native.BUILT is None else native.BUILT.instruction_sets()


def linear(width: int, filters: int, *, seed: int = 0, zeros: bool = False, bits: int = 8, **parts) -> Network:
    symbols = np.random.default_rng(seed).choice([-1, 0, 1] if zeros else [-1, 1], (filters, width))
    build = NetworkBuilder((width, 1, 1))
    build.add_binary("linear", build.add("flatten", build.image), symbols, name="fc", input_bits=bits, **parts)
    return build.finish()


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)[:, :, None, None]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.integers(1, 100),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([1e-44, 1e-37, 1.0, 1e34]),
)
def test_every_engine_gives_the_same_bits_for_any_shape(
    seed: int, width: int, filters: int, batch: int, zeros: bool, size: float
) -> None:
    random = np.random.default_rng(seed)
    scale, bias = random.standard_normal((2, filters)).astype(np.float32)
    network = linear(width, filters, seed=seed, zeros=zeros, scale=scale, bias=bias)
    images = (random.standard_normal((batch, width, 1, 1)) * size).astype(np.float32)
    images[random.random(images.shape) < 0.1] = 0
    truth = run_numpy(network, images)
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(network, name)(images), truth, err_msg=name)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("width", "filters"), [(4096, 64), (16383, 33), (16448, 96), (40_000, 5), (140_001, 32)])
@pytest.mark.parametrize("zeros", [False, True])
def test_long_rows_add_up_without_a_carry_lost(width: int, filters: int, zeros: bool, name: str) -> None:
    network = linear(width, filters, zeros=zeros)
    images = np.random.default_rng(1).choice(np.float32([-3, 3]), (2, width, 1, 1))
    images[1] = 3  # every table's largest entry, wherever a filter is +1
    truth = run_numpy(network, images)
    for threads in (1, 3):
        np.testing.assert_array_equal(NativeEngine(network, name)(images, threads), truth)


def test_a_row_of_equal_extremes_gives_the_largest_sum() -> None:
    build = NetworkBuilder((20_000, 1, 1))
    x = build.add("flatten", build.image)
    build.add_binary("linear", x, np.array([[1], [-1]]).repeat(20_000, axis=1), input_bits=8)
    images = np.full((1, 20_000, 1, 1), 127, np.float32)
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(build.finish(), name)(images), [[2_540_000, -2_540_000]])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=40))
def test_rounding_keeps_every_number_within_half_a_step(numbers: list[float]) -> None:
    value = np.array([numbers], np.float32)
    whole, step = round_to_bytes(value)
    assert np.abs(whole).max() == (127 if value.any() else 0)
    assert (np.abs(whole * np.float64(step) - value) <= step * 0.50001).all()


def test_the_output_is_the_integer_sum_times_the_step_and_the_scale() -> None:
    build = NetworkBuilder((3, 1, 1))
    scale, bias = np.float32([0.5]), np.float32([1, 2])
    symbols = np.array([[1, -1, 1], [1, 0, -1]])
    x = build.add("flatten", build.image)
    build.add_binary("linear", x, symbols, input_bits=8, scale=scale, bias=bias)
    # q = 127, 64 (63.5 rounds to even) and -1; the step is 2.
    found = run_numpy(build.finish(), rows([254, 127, -2]))
    np.testing.assert_array_equal(found, [[(127 - 64 - 1) * 2 * 0.5 + 1, (127 + 1) * 2 * 0.5 + 2]])


@pytest.mark.parametrize("engine", ["numpy", *SETS])
def test_zero_inputs_give_the_bias_and_non_finite_ones_give_nan(engine: str) -> None:
    network = linear(3, 2, bias=np.float32([1, -1]))
    images = rows([0, 0, 0], [1, np.nan, 2], [np.inf, 1, 0], [0, -np.inf, 0], [-0.0, 0, 0])
    with np.errstate(all="ignore"):
        found = run_numpy(network, images) if engine == "numpy" else NativeEngine(network, engine)(images)
    np.testing.assert_array_equal(found, [[1, -1], *[[np.nan] * 2] * 3, [1, -1]])


@pytest.mark.parametrize("name", SETS)
def test_signs_before_and_after_it_are_supported(name: str) -> None:
    random = np.random.default_rng(0)
    build = NetworkBuilder((70, 1, 1))
    x = build.add("sign", build.add("flatten", build.image))
    x = build.add_binary("linear", x, random.choice([-1, 1], (40, 70)), name="a", input_bits=8)
    x = build.add_binary("linear", build.add("sign", x), random.choice([-1, 1], (9, 40)), name="b")
    network, images = build.finish(), random.standard_normal((3, 70, 1, 1)).astype(np.float32)
    np.testing.assert_array_equal(NativeEngine(network, name)(images), run_numpy(network, images))


def test_the_file_states_rounded_inputs_only() -> None:
    rounded, whole = (b"".join(to_chunks(linear(9, 4, bits=bits))) for bits in (8, 32))
    assert b"linear fc input_bits=8" in rounded
    assert b"input_bits" not in whole
    assert from_bytes(rounded).operations[-1].settings["input_bits"] == 8
    assert from_bytes(whole).operations[-1].settings["input_bits"] == 32


@pytest.mark.parametrize("bits", [0, 1, 7, 16, 8.0, True, "8", None])
def test_any_other_number_of_bits_is_refused(bits: object) -> None:
    with pytest.raises(ValueError, match=r"has input_bits that is .*: it must be 32, or 8"):
        linear(4, 2, bits=bits)  # type: ignore[arg-type]


def test_only_weights_that_are_bits_may_have_their_input_rounded() -> None:
    build = NetworkBuilder((4, 1, 1))
    build.add("linear", build.add("flatten", build.image), weight=np.ones((2, 4), np.float32), input_bits=8)
    with pytest.raises(ValueError, match="input_bits=8 and weights that are not bits"):
        build.finish()
