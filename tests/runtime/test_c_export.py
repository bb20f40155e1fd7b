"""A network exported to C is numpy's twin: the same logits from plain C99, by any compiler, under sanitizers."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ordered_sums import run_in_order

from equalbits.runtime import Network, NetworkBuilder, PackedModel, Port, export_c, find_packed, load_packed, run_numpy

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
GOLDEN = Path(__file__).parents[1] / "golden"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror")
RANDOM = np.random.default_rng(0)

needs_compiler = pytest.mark.skipif(not COMPILERS, reason="no C compiler")


def compiled(network: Network, folder: Path, compiler: str = "", *flags: str) -> Callable[[np.ndarray], np.ndarray]:
    """Export, compile as a shared library, and return a function of a batch."""
    export_c(PackedModel(network, engine="numpy"), folder / "net.c")
    library = folder / f"net{len(list(folder.iterdir()))}.so"
    command = [
        compiler or COMPILERS[0],
        *STRICT,
        *(flags or ("-O1",)),
        "-fPIC",
        "-shared",
        "-o",
        library,
        folder / "net.c",
    ]
    subprocess.run(command, check=True)
    run = ctypes.CDLL(str(library)).equalbits_run
    kind = np.uint8 if network.mean is not None else np.float32

    def classify(images: np.ndarray) -> np.ndarray:
        logits = np.empty((len(images), *network.shapes[-1]), np.float32)
        for image, row in zip(np.ascontiguousarray(images, kind), logits, strict=True):
            assert run(image.ctypes.data_as(ctypes.c_void_p), row.ctypes.data_as(ctypes.c_void_p)) == 0
        return logits

    return classify


@needs_compiler
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_c_and_numpy_agree_to_the_last_bit_on_any_network(networks, data) -> None:
    network, images = data.draw(networks)
    with TemporaryDirectory() as folder:
        try:
            export_c(PackedModel(network, engine="numpy"), Path(folder, "net.c"))
        except ValueError as error:
            assert "has no C form" in str(error)
            assume(False)
        np.testing.assert_array_equal(compiled(network, Path(folder))(images), run_numpy(network, images))


@needs_compiler
@pytest.mark.parametrize("name", ["residual", "rounded"])
def test_stored_files_give_the_same_logits_in_c_to_the_last_bit(name: str, tmp_path: Path) -> None:
    model = load_packed(GOLDEN / f"{name}.ebits", engine="numpy")
    images = RANDOM.standard_normal((20, *model.input_shape)).astype(np.float32)
    if model.network.mean is not None:
        images = RANDOM.integers(0, 256, images.shape).astype(np.uint8)
    expected = run_in_order(model.network, images)
    for compiler in COMPILERS:
        np.testing.assert_array_equal(compiled(model.network, tmp_path, compiler, "-O2")(images), expected)


@needs_compiler
def test_numbers_that_overflow_are_nan_where_numpy_has_nan(tmp_path: Path) -> None:
    build = NetworkBuilder((2, 4, 4))
    huge = np.array([[3e38, 3e38], [0, 0]], np.float32)
    above = build.add("affine", build.image, gain_shift=huge, name="above")
    below = build.add("affine", build.image, gain_shift=-huge, name="below")
    x = build.add("max_pool", build.add("relu", build.add("add", above, below)), kernel=2, stride=2)
    x = build.add("flatten", build.add("add", x, build.add("max_pool", above, kernel=2, stride=2)))
    build.add_binary("linear", x, RANDOM.choice([-1, 1], (3, 8)), name="last", input_bits=8)
    network = build.finish()
    images = np.zeros((4, *network.input_shape), np.float32)
    images[1, 0, 0, 0], images[2, 1, 3, 3], images[3] = 2, -2, 0.1
    with np.errstate(all="ignore"):
        expected = run_numpy(network, images)
    assert np.isnan(expected).any(axis=1).tolist() == [False, True, True, False]
    np.testing.assert_array_equal(compiled(network, tmp_path)(images), expected)


def resnet_net(binary_inputs: bool) -> Network:
    """Two residual blocks of a net of bytes, the second with an int8 shortcut: batch norms folded, PReLU."""
    build = NetworkBuilder((3, 10, 10))

    def norm(x: int, channels: int, name: str) -> int:
        return build.add("affine", x, gain_shift=RANDOM.standard_normal((2, channels)).astype(np.float32), name=name)

    first = RANDOM.standard_normal((16, 3, 3, 3)).astype(np.float32)
    x = norm(build.add("conv", build.image, weight=first, name="first", kernel=3, padding=1), 16, "norm0")
    for place, (inputs, filters) in enumerate(((16, 16), (16, 48)), 1):
        read = build.add("sign", x) if binary_inputs else x
        weight, stride = RANDOM.choice([-1, 1], (filters, inputs, 3, 3)), 1 if inputs == filters else 2
        y = build.add_binary("conv", read, weight, name=f"conv{place}", kernel=3, padding=1, stride=stride)
        y = norm(y, filters, f"norm{place}")
        if stride == 2:
            pooled = build.add("avg_pool", x, kernel=2, stride=2)
            int8 = RANDOM.integers(-127, 128, (filters, inputs, 1, 1)).astype(np.int8)
            scale = np.full(filters, 0.01, np.float32)
            x = norm(build.add("conv", pooled, weight=int8, scale=scale, name="shortcut", kernel=1), filters, "norm")
        slope = RANDOM.random(filters).astype(np.float32)
        x = build.add("prelu", build.add("add", y, x), slope=slope, name=f"prelu{place}")
    x = build.add("flatten", build.add("adaptive_avg_pool", x, size=1))
    build.add_binary("linear", x, RANDOM.choice([-1, 1], (10, 48)), name="last", bias=np.arange(10, dtype=np.float32))
    return replace(build.finish(), mean=(0.5, 0.4, 0.3), std=(0.25, 0.5, 0.2))


@needs_compiler
@pytest.mark.parametrize("binary_inputs", [True, False])
def test_residual_nets_equal_the_reference_to_the_last_bit(binary_inputs: bool, tmp_path: Path) -> None:
    network = resnet_net(binary_inputs)
    images = RANDOM.integers(0, 256, (4, *network.input_shape)).astype(np.uint8)
    expected = run_in_order(network, images)
    for compiler in COMPILERS:
        np.testing.assert_array_equal(compiled(network, tmp_path, compiler, "-O2")(images), expected)


def small_net() -> Network:
    """A net of bytes with binary, pruned, int8 and pooled layers, and a residual."""
    build = NetworkBuilder((3, 12, 12))
    x = build.add_binary("conv", build.image, RANDOM.choice([-1, 1], (40, 3, 3, 3)), name="first", kernel=3, padding=1)
    x = build.add("max_pool", x, kernel=2, stride=2)
    bits = build.add("sign", x)
    y = build.add_binary("conv", bits, RANDOM.choice([-1, 0, 1], (40, 40, 3, 3)), name="pruned", kernel=3, padding=1)
    y = build.add("add", y, x)
    y = build.add("affine", y, gain_shift=RANDOM.standard_normal((2, 40)).astype(np.float32), name="norm")
    y = build.add("relu", build.add("avg_pool", y, kernel=3, stride=2, padding=1))
    y = build.add("flatten", y)
    weight = RANDOM.integers(-127, 128, (10, 360)).astype(np.int8)
    y = build.add("linear", y, weight=weight, scale=np.full(10, 0.01, np.float32), name="last")
    return replace(build.finish(), mean=(0.5, 0.4, 0.3), std=(0.25, 0.5, 0.2), classes=tuple('a"\\éfghijk')[:10])


@needs_compiler
def test_c_of_bytes_is_clean_under_sanitizers(tmp_path: Path) -> None:
    network = small_net()
    images = RANDOM.integers(0, 256, (4, *network.input_shape)).astype(np.uint8)
    export_c(PackedModel(network), tmp_path / "net.c")
    (tmp_path / "main.c").write_text(
        '#include "net.h"\n#include <stdio.h>\nint main(void) { static uint8_t pixels[3 * 12 * 12]; float logits[10];\n'
        "const char *names[] = EQUALBITS_CLASS_NAMES;\n"
        "while (fread(pixels, 1, sizeof pixels, stdin) == sizeof pixels) {\n"
        "if (equalbits_run(pixels, logits) || !equalbits_run(0, logits) || !names[9]) return 1;\n"
        "fwrite(logits, 4, 10, stdout); } return 0; }\n"
    )
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    links = [subprocess.run([compiler, *flags, "-o", tmp_path / "empty", empty]).returncode for compiler in COMPILERS]
    if all(links):
        pytest.skip("no compiler here has the sanitizers' libraries")
    sources = (tmp_path / "net.c", tmp_path / "main.c")
    for compiler in [name for name, failed in zip(COMPILERS, links, strict=True) if not failed]:
        subprocess.run([compiler, *STRICT, *flags, "-o", tmp_path / "main", *sources], check=True)
        ran = subprocess.run([tmp_path / "main"], input=images.tobytes(), capture_output=True, check=True)
        logits = np.frombuffer(ran.stdout, np.float32).reshape(4, 10)
        np.testing.assert_array_equal(logits, run_in_order(network, images))


def test_int8_weights_and_bits_stay_small_and_values_share_memory(tmp_path: Path) -> None:
    sizes = export_c(PackedModel(small_net()), tmp_path / "net.c")
    planes = 4 * (40 * 1 + 2 * 40 * 9 * 2)
    assert sizes.flash == planes + 10 * 360 + 4 * 3 * 256 + 4 * 80
    assert sizes.ram < 4 * 40 * (36 + 36 + 36)
    assert str(sizes) in f"{sizes.flash:,} bytes of constants in flash, {sizes.ram:,} bytes of static RAM"


def test_an_operation_without_a_c_form_is_refused_in_one_line(tmp_path: Path) -> None:
    build = NetworkBuilder((1, 2, 2))
    build.add("softmax", build.add("flatten", build.image), axis=0)
    with pytest.raises(ValueError, match=r"^softmax #1 has no C form: export to onnx instead$"):
        export_c(PackedModel(build.finish()), tmp_path / "net.c")
    tokens = replace(small_net(), outputs=(Port("scores", (10,)),), classes=())
    with pytest.raises(ValueError, match=r"^C takes one image and gives its logits, not scores: run the file with"):
        export_c(PackedModel(tokens), tmp_path / "net.c")
    assert not list(tmp_path.iterdir())


def test_a_network_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    model = load_packed("zoo:fashion-conv4", engine="numpy")
    for limits, line in (
        ({"max_ram": 32768}, r"^conv conv2 needs 62,724 bytes of RAM, more than --max-ram 32,768: use fewer channels"),
        ({"max_flash": 16384}, r"^the constants need 18,128 bytes of flash, more than --max-flash 16,384: use fewer"),
    ):
        with pytest.raises(ValueError, match=line):
            export_c(model, tmp_path / "net.c", **limits)
    assert not list(tmp_path.iterdir())
    assert export_c(model, tmp_path / "net.c", max_flash=18128, max_ram=62724).ram == 62724


@needs_compiler
def test_the_zoo_gives_the_same_logits_in_c_to_the_last_bit(tmp_path: Path) -> None:
    network = load_packed("zoo:fashion-conv4", engine="numpy").network
    with np.load(find_packed("zoo:fashion-conv4").with_suffix(".npz")) as stored:
        images = stored["images"][:4]
    np.testing.assert_array_equal(compiled(network, tmp_path)(images), run_in_order(network, images))
    lines = (tmp_path / "net.c").read_text()
    assert "/* conv conv2: 16x28x28 to floats 16x14x14 */" in lines and "step_1(); /* conv conv2 */" in lines


@needs_compiler
@pytest.mark.parametrize("binary", [False, True])
def test_rows_of_a_linear_layer_are_exported(binary: bool, tmp_path: Path) -> None:
    build = NetworkBuilder((40, 1, 1))
    x = build.add("reshape", build.image, shape=(5, 8))
    bias = np.float32([1, 2, 3])
    symbols = RANDOM.choice([-1, 1], (3, 8))
    if binary:
        x = build.add_binary("linear", x, symbols, bias=bias)
    else:
        x = build.add("linear", x, weight=symbols.astype(np.float32), bias=bias)
    build.add("relu", build.add("add", x, x))
    network, images = build.finish(), (RANDOM.integers(-8, 8, (3, 40, 1, 1)) / 4).astype(np.float32)
    np.testing.assert_array_equal(compiled(network, tmp_path)(images), run_numpy(network, images))


def test_several_rounded_rows_are_refused(tmp_path: Path) -> None:
    build = NetworkBuilder((40, 1, 1))
    build.add_binary("linear", build.add("reshape", build.image, shape=(5, 8)), np.ones((2, 8), np.int8), input_bits=8)
    with pytest.raises(ValueError, match="the C export rounds one row: pack with linear_inputs='float32'"):
        export_c(PackedModel(build.finish(), engine="numpy"), tmp_path / "net.c")
