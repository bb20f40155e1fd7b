"""Values rounded to 8 bits or fewer: the same whole numbers in every engine, and exact sums over them."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equalbits.runtime import Network, NetworkBuilder, build_openvino, export_c, export_onnx, native
from equalbits.runtime.engine import NativeEngine, PackedModel, run_numpy
from equalbits.runtime.format import from_bytes, to_chunks

SETS = [] if native.BUILT is None else native.BUILT.instruction_sets()
RANGES = [(0, 255), (-128, 127), (0, 15), (-8, 7), (-3, 12), (-255, 0), (0, 1)]


def steps_of(network: Network, name: str) -> list[str]:
    return NativeEngine(network, name).step_kinds


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_engine_gives_the_same_bits_for_any_shape(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    random = np.random.default_rng(draw(0, 2**32 - 1))
    low, high = data.draw(st.sampled_from(RANGES))
    groups = data.draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels, filters = groups * draw(1, 40), groups * data.draw(st.sampled_from([1, 5, 16, 31, 32, 33, 64, 70]))
    kernel, stride, dilation = [(draw(1, 3), draw(1, 3)) for _ in range(3)]
    padding = [draw(0, 2) for _ in range(4)]
    rows, columns = (draw(max(1, dilation[i] * (kernel[i] - 1) + 1), 20) for i in range(2))
    build = NetworkBuilder((channels, rows, columns))
    x = build.add("affine", build.image, gain_shift=random.standard_normal((2, channels)).astype(np.float32))
    x = first = build.add("quantize", x, gain=float(np.float32(3.3)), min=low, max=high)
    window = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    symbols = random.choice([-1, 0, 1] if draw(0, 1) else [-1, 1], (filters, channels // groups, *kernel))
    vectors = {part: random.standard_normal(filters).astype(np.float32) for part in ("scale", "bias") if draw(0, 1)}
    x = build.add_binary("conv", x, symbols, name="a", **window, **vectors)
    if draw(0, 1):
        x = build.add("relu", x)
    if draw(0, 1):
        x = build.add("quantize", x, gain=0.5, min=low, max=high)
        x = build.add_binary("conv", x, random.choice([-1, 1], (20, filters, 1, 1)), name="b")
    elif draw(0, 1):
        x = build.add("max_pool", x, kernel=1, stride=2)
    if draw(0, 1):  # the whole numbers are read as floats, too
        x = build.add("concat", build.add("flatten", x), build.add("flatten", first))
    network = build.finish()
    images = (2 * random.standard_normal((2, channels, rows, columns))).astype(np.float32)
    truth = run_numpy(network, images)
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(network, name)(images), truth, err_msg=name)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("low", "high"), [(0, 255), (0, 15), (-7, 8)])
@pytest.mark.parametrize("side", [7, 14, 19, 30])
def test_large_layers_add_up_without_a_carry_lost(side: int, low: int, high: int, name: str) -> None:
    build = NetworkBuilder((512, side, side))
    x = build.add("quantize", build.image, gain=1.0, min=low, max=high)
    symbols = np.random.default_rng(0).choice([-1, 1], (33, 512, 3, 3))
    symbols[0], symbols[1] = 1, -1
    build.add_binary("conv", x, symbols, padding=1)
    images = np.random.default_rng(1).integers(low, high + 1, (2, 512, side, side)).astype(np.float32)
    images[1] = high
    truth = run_numpy(build.finish(), images)
    assert "CONV_BYTES" in steps_of(build.finish(), name)
    for threads in (1, 3):
        np.testing.assert_array_equal(NativeEngine(build.finish(), name)(images, threads), truth)


def test_a_value_between_two_roundings_is_never_written_as_floats() -> None:
    build = NetworkBuilder((32, 8, 8))
    x = build.add("quantize", build.image, gain=10.0)
    x = build.add_binary("conv", x, np.ones((32, 32, 3, 3), int), padding=1, name="a")
    x = build.add("relu", x)
    x = build.add("quantize", x, gain=0.001)
    build.add_binary("conv", x, np.ones((32, 32, 3, 3), int), padding=1, name="b")
    for name in SETS:
        assert steps_of(build.finish(), name) == ["LOAD", "CONV_BYTES", "CONV_BYTES", "COPY"]


def test_sums_that_float32_cannot_hold_stay_floats() -> None:
    build = NetworkBuilder((66_000, 1, 2))
    x = build.add("quantize", build.image, gain=1.0, max=255)
    build.add_binary("conv", x, np.ones((16, 66_000, 1, 1), int))
    assert SETS == [] or "CONV_BYTES" not in steps_of(build.finish(), SETS[0])


@pytest.mark.parametrize("engine", ["numpy", *SETS])
def test_rounding_is_to_the_nearest_even_number_and_what_is_no_number_becomes_the_least(engine: str) -> None:
    build = NetworkBuilder((1, 1, 9))
    build.add("quantize", build.image, gain=2.0, min=-2, max=5)
    given_numbers = [0.25, 0.75, -0.25, -0.75, 9, -9, np.inf, -np.inf, np.nan]
    images = np.array(given_numbers, np.float32).reshape(1, 1, 1, 9)
    found = run_numpy(build.finish(), images) if engine == "numpy" else NativeEngine(build.finish(), engine)(images)
    np.testing.assert_array_equal(found.reshape(-1), [0, 2, 0, -2, 5, -2, 5, -2, -2])
    assert not np.signbit(found.reshape(-1)[[0, 2]]).any()


def test_the_settings_are_written_and_checked() -> None:
    build = NetworkBuilder((1, 1, 1))
    build.add("quantize", build.image, gain=0.1, min=-3)
    with pytest.raises(ValueError, match=r"quantize.*has min=-3 and max=255: the range must hold 0"):
        build.finish()
    build = NetworkBuilder((1, 1, 1))
    build.add("quantize", build.image, gain=0.1, max=15)
    packed = b"".join(to_chunks(build.finish()))
    assert b"quantize gain=0.1 max=15" in packed
    assert from_bytes(packed).operations[0].settings == {"gain": 0.1, "min": 0, "max": 15}
    for wrong in (0, -1.0, 1e-40, float("nan"), "x", None, True):
        build = NetworkBuilder((1, 1, 1))
        with pytest.raises(ValueError, match="gain"):
            build.add("quantize", build.image, gain=wrong)


@pytest.fixture(scope="module")
def two_layers() -> Network:
    random = np.random.default_rng(0)
    build = NetworkBuilder((3, 7, 6))
    x = build.add("quantize", build.image, gain=20.0, min=-100, max=155)
    x = build.add_binary(
        "conv", x, random.choice([-1, 1], (16, 3, 3, 3)), padding=1, scale=np.float32([0.0625]), name="a"
    )
    x = build.add("quantize", build.add("relu", x), gain=0.5, max=15)
    x = build.add_binary("conv", x, random.choice([-1, 0, 1], (5, 16, 3, 3)), stride=2, name="b")
    build.add("flatten", x)
    return build.finish()


@pytest.mark.parametrize("runtime", ["onnx", "openvino", "c"])
def test_exported_networks_round_alike(runtime: str, two_layers: Network, tmp_path: Path) -> None:
    model = PackedModel(two_layers, engine="numpy")
    images = np.random.default_rng(1).integers(-40, 40, (3, 1, *two_layers.input_shape)).astype(np.float32) / 8
    run = runner(runtime, model, tmp_path)
    for image in images:
        np.testing.assert_array_equal(run(image).reshape(-1), model(image).reshape(-1))


def runner(runtime: str, model: PackedModel, folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    if runtime == "onnx":
        session = pytest.importorskip("onnxruntime")
        export_onnx(model, folder / "net.onnx")
        opened = session.InferenceSession(str(folder / "net.onnx"), providers=["CPUExecutionProvider"])
        return lambda image: np.asarray(opened.run(None, {opened.get_inputs()[0].name: image})[0])
    if runtime == "openvino":
        openvino = pytest.importorskip("openvino")
        compiled = openvino.Core().compile_model(
            build_openvino(model.network), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        return lambda image: np.asarray(compiled(image)[0])
    compiler = shutil.which("gcc") or shutil.which("clang") or pytest.skip("no C compiler")
    export_c(model, folder / "net.c")
    library = folder / "net.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-ffp-contract=off", folder / "net.c", "-o", library], check=True
    )
    call, logits = ctypes.CDLL(str(library)).equalbits_run, np.empty(30, np.float32)

    def run(image: np.ndarray) -> np.ndarray:
        assert call(image.ctypes.data_as(ctypes.c_void_p), logits.ctypes.data_as(ctypes.c_void_p)) == 0
        return logits

    return run


@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize(("channels", "groups", "kernel"), [(3, 1, 7), (5, 1, 3), (64, 1, 1), (32, 2, 3)])
def test_int8_weights_times_rounded_numbers_are_exact(channels: int, groups: int, kernel: int, pixels: bool) -> None:
    random = np.random.default_rng(0)
    build = NetworkBuilder((channels, 19, 61))
    x = build.add("quantize", build.image, gain=48.0, min=-128, max=127)
    weight = random.integers(-127, 128, (40, channels // groups, kernel, kernel)).astype(np.int8)
    scale, padding = random.random(40).astype(np.float16), kernel // 2
    parts = {"kernel": kernel, "stride": 2, "padding": padding, "groups": groups, "scale": scale}
    x = build.add("relu", build.add("conv", x, weight=weight, **parts))
    if kernel == 7:
        x = build.add("max_pool", x, kernel=3, stride=2, padding=1)
    network = build.finish(mean=(0.4,) * channels, std=(0.25,) * channels)
    images = random.integers(0, 256, (2, channels, 19, 61)).astype(np.uint8)
    reals = (images.astype(np.float32) / 255 - np.float32(0.4)) / np.float32(0.25)
    for name in SETS:
        given = images if pixels else reals
        expected = PackedModel(network, engine="numpy")(given)
        for threads in (1, 3):
            np.testing.assert_array_equal(NativeEngine(network, name)(given, threads), expected, err_msg=name)
    assert not SETS or SETS[0] != "avx512" or NativeEngine(network).step_kinds[:2] == ["LOAD", "CONV_INT8"]
