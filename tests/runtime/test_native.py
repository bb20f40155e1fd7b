"""The native engine equals numpy to the bit, on every instruction set, network, batch and thread count."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equalbits.runtime import Network, NetworkBuilder, PackedModel, native
from equalbits.runtime.engine import NativeEngine, run_numpy
from equalbits.runtime.lower import lower

if native.BUILT is None:
    pytest.skip(native.REASON, allow_module_level=True)

SETS = native.BUILT.instruction_sets()
GOLDEN = Path(__file__).parents[1] / "golden"
RANDOM = np.random.default_rng(0)


def signs_of(*shape: int, zeros: bool = False) -> np.ndarray:
    return RANDOM.choice([-1, 0, 1] if zeros else [-1, 1], shape)


def reals(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_native_and_numpy_agree_to_the_last_bit_on_any_network(
    networks: st.SearchStrategy[tuple[Network, np.ndarray]], data: st.DataObject
) -> None:
    network, images = data.draw(networks)
    truth = run_numpy(network, images)
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(network, name)(images), truth, err_msg=name)
    threads = data.draw(st.integers(2, 4))
    np.testing.assert_array_equal(NativeEngine(network)(images, threads), truth)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("channels", "size", "filters", "kernel", "window"),
    [
        (16, 33, 16, 3, {"padding": 1}),
        (32, 9, 11, 3, {"stride": 2}),
        (96, 9, 16, 3, {"padding": 1}),
        (64, 56, 64, 3, {"padding": 1}),
        (64, 15, 70, 3, {"padding": 1, "stride": 2}),
        (256, 14, 32, 3, {"padding": 1}),
        (512, 7, 40, 3, {"padding": 1}),
        (96, 9, 33, 5, {"padding": 2, "stride": 3, "dilation": 2}),
        (96, 8, 96, 1, {"groups": 3}),
        (3000, 2, 35, 3, {"padding": 1}),
        (17000, 1, 50, 1, {}),
    ],
)
@pytest.mark.parametrize("pruned", [False, True])
def test_large_binary_convolutions_are_exact(
    channels: int, size: int, filters: int, kernel: int, window: dict[str, int], pruned: bool, name: str
) -> None:
    build = NetworkBuilder((channels, size, size))
    symbols = signs_of(filters, channels // window.get("groups", 1), kernel, kernel, zeros=pruned)
    build.add_binary("conv", build.add("sign", build.image), symbols, **window)
    images = reals(1, channels, size, size)
    network = build.finish()
    np.testing.assert_array_equal(NativeEngine(network, name)(images), run_numpy(network, images))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_binary_convolution_of_any_shape_is_exact(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    channels, filters = groups * draw(1, 150), groups * draw(1, 80)
    kernel, stride, dilation = [(draw(1, most), draw(1, most)) for most in (5, 3, 2)]
    padding = tuple(draw(0, 3) for _ in range(4))
    reach = [dilation[i] * (kernel[i] - 1) + 1 - padding[2 * i] - padding[2 * i + 1] for i in (0, 1)]
    size = [max(1, least) + draw(0, 9) for least in reach]
    build = NetworkBuilder((channels, *size))
    symbols = signs_of(filters, channels // groups, *kernel, zeros=data.draw(st.booleans()))
    window = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    x = build.add_binary("conv", build.add("sign", build.image), symbols, name="first", **window)
    if data.draw(st.booleans()):  # then it ends in bits, and another reads them
        x = build.add("affine", x, gain_shift=reals(2, filters), name="norm")
        build.add_binary("conv", build.add("sign", x), signs_of(7, filters, 1, 1), name="second")
    network, images = build.finish(), reals(draw(1, 3), channels, *size)
    truth = run_numpy(network, images)
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(network, name)(images), truth, err_msg=name)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("size", [7, 8, 9, 12])
def test_a_convolution_may_be_pooled_by_windows_of_any_size(size: int, name: str) -> None:
    build = NetworkBuilder((3, 12, 12))
    x = build.add_binary("conv", build.add("sign", build.image), signs_of(40, 3, 3, 3), padding=1, name="conv")
    build.add("max_pool", x, kernel=size, stride=2, padding=2)
    network, images = build.finish(), reals(2, 3, 12, 12)
    np.testing.assert_array_equal(NativeEngine(network, name)(images), run_numpy(network, images))


def test_numpy_runs_operations_that_the_native_engine_lacks() -> None:
    build = NetworkBuilder((4, 4, 8))
    x = build.add("reshape", build.image, shape=(2,) * 7)
    build.add("permute", x, axes=(6, 5, 4, 3, 2, 1, 0))
    network, images = build.finish(), reals(2, 4, 4, 8)
    model = PackedModel(network)
    assert model.engine == "numpy"
    np.testing.assert_array_equal(
        model(images).ravel(), images.reshape(2, *[2] * 7).transpose(0, 7, 6, 5, 4, 3, 2, 1).ravel()
    )
    with pytest.raises(ValueError, match=r"engine='native' is not available: .* more axes than the native engine"):
        PackedModel(network, engine="native")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("pruned", [False, True])
def test_every_kind_of_border_is_exact(pruned: bool, name: str) -> None:
    """A window wider than the image, with so much padding that some windows see only the border."""
    build = NetworkBuilder((5, 6, 4))
    symbols = signs_of(33, 5, 9, 7, zeros=pruned)
    build.add_binary("conv", build.add("sign", build.image), symbols, padding=(11, 9, 8, 12), name="wide")
    network, images = build.finish(), reals(2, 5, 6, 4)
    np.testing.assert_array_equal(NativeEngine(network, name)(images), run_numpy(network, images))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("channels", "groups", "filters"), [(8, 2, 10), (12, 12, 12), (12, 4, 4), (6, 3, 96), (40, 2, 80)]
)
@pytest.mark.parametrize("binary", [False, True])
def test_a_grouped_convolution_before_a_sign_is_exact(
    channels: int, groups: int, filters: int, binary: bool, name: str
) -> None:
    build = NetworkBuilder((channels, 6, 6))
    x = build.add("sign", build.image) if binary else build.add("clamp", build.image, min=-1, max=1)
    symbols = signs_of(filters, channels // groups, 3, 3)
    x = build.add_binary("conv", x, symbols, groups=groups, padding=1, name="grouped")
    build.add_binary("conv", build.add("sign", x), signs_of(5, filters, 3, 3), name="after")
    images = RANDOM.integers(-8, 9, (2, channels, 6, 6)).astype(np.float32) / 8
    network = build.finish()
    np.testing.assert_array_equal(NativeEngine(network, name)(images), run_numpy(network, images))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("channels", "size"), [(2, 1), (40, 1), (40, 2), (40, 3)])
def test_depthwise_binary_filters_on_real_inputs_are_exact(channels: int, size: int, name: str) -> None:
    build = NetworkBuilder((channels, size, size))
    build.add_binary("conv", build.image, signs_of(channels, 1, 1, 1), groups=channels, name="depthwise")
    images = RANDOM.integers(-8, 9, (2, channels, size, size)).astype(np.float32) / 8
    network = build.finish()
    np.testing.assert_array_equal(NativeEngine(network, name)(images), run_numpy(network, images))


def test_a_residual_block_is_one_step_for_each_convolution() -> None:
    build = NetworkBuilder((64, 8, 8))
    x = build.add("relu", build.image)
    for i in range(2):
        y = build.add_binary("conv", build.add("sign", x), signs_of(64, 64, 3, 3), padding=1, name=f"conv{i}")
        y = build.add("prelu", y, slope=reals(64), name=f"prelu{i}")
        y = build.add("affine", y, gain_shift=reals(2, 64), name=f"bn{i}")
        x = build.add("add", y, x)
    recipe, _ = lower(build.finish(), native.BUILT.FIELDS, native.BUILT.KINDS)
    kinds = recipe.tables()[1][:, native.BUILT.FIELDS["KIND"]].tolist()
    known = native.BUILT.KINDS
    assert kinds == [known[name] for name in ("LOAD", "CHAIN", "CONV_BITS", "CONV_BITS", "COPY")]


def test_a_pooled_convolution_keeps_nothing_but_bits() -> None:
    build = NetworkBuilder((32, 8, 8))
    x = build.add_binary("conv", build.add("sign", build.image), signs_of(64, 32, 3, 3), padding=1, name="conv1")
    x = build.add("affine", build.add("max_pool", x, kernel=2, stride=2), gain_shift=reals(2, 64), name="bn1")
    x = build.add_binary("conv", build.add("sign", x), signs_of(32, 64, 4, 4), name="conv2")
    build.add("flatten", x)
    recipe, _ = lower(build.finish(), native.BUILT.FIELDS, native.BUILT.KINDS)
    values, steps, _ = recipe.tables()
    assert len(steps) == 4
    assert [tuple(value[1:]) for value in values if value[0] == 1] == [(32, 8, 8), (32, 1, 1)]


def test_placing_thousands_of_long_lived_values_is_fast() -> None:
    """Once it took minutes, and a file may demand it."""
    program = (
        "from equalbits.runtime import NetworkBuilder, PackedModel\n"
        "build = NetworkBuilder((1, 2, 2))\n"
        "values = [build.add('sign', build.add('channel_shuffle', build.image, groups=1)) for _ in range(7000)]\n"
        "while len(values) > 1:\n"
        "    values = [build.add('concat', *values[i : i + 64]) for i in range(0, len(values), 64)]\n"
        "PackedModel(build.finish(), engine='native')\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_table_of_steps_makes_the_engine_read_or_write_outside(
    networks: st.SearchStrategy[tuple[Network, np.ndarray]], data: st.DataObject
) -> None:
    network, images = data.draw(networks)
    recipe, answer = lower(network, native.BUILT.FIELDS, native.BUILT.KINDS)
    values, steps, tensors = recipe.tables()
    numbers = st.one_of(st.integers(-3, 70), st.sampled_from([2**20, 2**28, 2**31, 2**62, -(2**62)]))
    for _ in range(data.draw(st.integers(1, 3))):
        table = data.draw(st.sampled_from([values[1:], steps])) if len(values) > 1 else steps
        row, column = (data.draw(st.integers(0, size - 1)) for size in table.shape)
        table[row, column] = data.draw(numbers)
    try:
        plan = native.BUILT.Plan(values, steps, tensors, answer, data.draw(st.sampled_from(SETS)))
    except ValueError as refusal:
        assert str(refusal) and "\n" not in str(refusal)
        return
    size = int(np.prod(values[answer, 1:]))
    if size * len(images) < 2**22:
        plan.run(images.reshape(-1), np.empty(size * len(images), np.float32), 2)


def test_no_single_number_of_a_step_makes_the_engine_fault() -> None:
    build = NetworkBuilder((2, 8, 8))
    x = build.add("adaptive_avg_pool", build.add("sigmoid", build.image), size=(4, 4))
    x = build.add("mul", x, build.add("tanh", x))
    rows = build.add("reshape", x, shape=(2, 4, 4))
    x = build.add("matmul", build.add("layer_norm", rows, axis=2), build.add("softmax", rows, axis=2))
    build.add("flatten", build.add("elu", x))
    recipe, answer = lower(build.finish(), native.BUILT.FIELDS, native.BUILT.KINDS)
    values, steps, tensors = recipe.tables()
    assert {"ADAPTIVE", "SIGMOID", "MUL", "MATMUL", "NORM", "SOFTMAX", "ELU"} <= set(recipe.step_kinds)
    image, found, refused = reals(128), np.empty(32, np.float32), 0
    threads = 1  # a table may let rows overlap: two threads would then write one place
    for place in np.ndindex(steps.shape):
        kept = steps[place]
        for number in (-2, -1, 0, 1, 3, 2**20, 2**31, 2**62):
            steps[place] = number
            try:
                native.BUILT.Plan(values, steps, tensors, answer, SETS[0], 1 << 24).run(image, found, threads)
            except (ValueError, OverflowError):
                refused += 1
        steps[place] = kept
    assert refused > 500


def test_without_the_native_module_numpy_runs_with_a_message() -> None:
    program = (
        "import logging, sys; sys.modules['equalbits.runtime.native._native'] = None\n"
        "logging.basicConfig(level=logging.DEBUG, format='%(message)s')\n"
        "import numpy as np\n"
        "from equalbits.runtime import load_packed\n"
        "model = load_packed(sys.argv[1])\n"
        "print(model.engine, model(np.zeros((3, 8, 8), np.float32)).shape)\n"
        "try: load_packed(sys.argv[1], engine='native')\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, GOLDEN / "residual.ebits"], capture_output=True, text=True)
    assert done.stdout.startswith("numpy (4,)\nengine='native' is not available: the native engine is not built")
    assert done.stderr.startswith("the native engine is not built")
    assert len(done.stderr.splitlines()) == 1
