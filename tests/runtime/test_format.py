"""A packed file survives a round trip byte for byte, and other programs can read it."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equalbits.runtime import native
from equalbits.runtime.engine import PackedModel, load_packed
from equalbits.runtime.format import from_bytes, read_network, to_chunks, write_network
from equalbits.runtime.network import Network
from equalbits.runtime.network_builder import NetworkBuilder
from equalbits.runtime.op_specs import VECTORS
from equalbits.runtime.ops import make_operation

GOLDEN = Path(__file__).parents[1] / "golden"
MAKE: dict[str, Any] = runpy.run_path(str(GOLDEN / "make_packed.py"))
NAMES = ["residual", "plain", "moving", "rounded", "gated", "eight_bits", "lengths"]
ENGINES = ["numpy"] if native.BUILT is None else ["numpy", "native"]


def network(name: str) -> Network:
    made: Network = MAKE[name]()
    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_format_has_not_changed_by_a_byte(name: str) -> None:
    assert b"".join(to_chunks(network(name))) == (GOLDEN / f"{name}.ebits").read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stored_file_still_gives_the_logits_it_gave(name: str, engine: str) -> None:
    model = load_packed(GOLDEN / f"{name}.ebits", engine=engine)
    np.testing.assert_array_equal(model(MAKE["image"](model.network)), np.load(GOLDEN / f"{name}.npy"))


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    written = network(name)
    write_network(written, tmp_path / "net.ebits")
    found = read_network(tmp_path / "net.ebits")
    for part in ("input_shape", "operations", "mean", "std", "classes", "notes", "resize", "shapes", "lengths"):
        assert getattr(found, part) == getattr(written, part)
    assert set(found.tensors) == set(written.tensors)
    for key, tensor in found.tensors.items():
        assert tensor.dtype == written.tensors[key].dtype
        np.testing.assert_array_equal(tensor, written.tensors[key])
    assert [path.name for path in tmp_path.iterdir()] == ["net.ebits"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_network_survives_a_round_trip_with_equal_bytes(
    networks: st.SearchStrategy[tuple[Network, np.ndarray]], data: st.DataObject
) -> None:
    written, _ = data.draw(networks)
    whole = b"".join(to_chunks(written))
    found = from_bytes(whole)
    assert found.operations == written.operations
    assert b"".join(to_chunks(found)) == whole


def test_tensors_shared_between_layers_are_named_in_full() -> None:
    tensors = {"a.weight": np.ones((2, 2), np.float32), "a.bias": np.ones(2, np.float32)}
    first = make_operation("linear", (1,), {"weight": "a.weight", "bias": "a.bias"}, {})
    second = make_operation("linear", (2,), {"weight": "a.weight"}, {})  # without the bias that stands beside it
    third = make_operation("linear", (3,), {"weight": "a.weight", "bias": "a.bias"}, {})
    other = make_operation("linear", (4,), {"weight": "a.weight", "bias": "b.bias"}, {})
    operations = (make_operation("flatten", (0,), {}, {}), first, second, third, other)
    network = Network((2, 1, 1), operations, tensors | {"b.bias": np.zeros(2, np.float32)})
    found = from_bytes(whole := b"".join(to_chunks(network)))
    lines = "linear a bias=2", "linear weight=a.weight", "linear a", "linear weight=a.weight bias=2:b.bias"
    assert "\\n".join(lines).encode() in whole
    assert found.operations == network.operations
    np.testing.assert_array_equal(found.tensors["b.bias"], 0)


def test_vectors_and_weights_may_share_a_tensor() -> None:
    shared = {"a.gain_shift": np.array([[1, 2], [3, 4]], np.float32)}
    operations = (
        make_operation("flatten", (0,), {}, {}),
        make_operation("affine", (1,), {"gain_shift": "a.gain_shift"}, {}),
        make_operation("linear", (2,), {"weight": "a.gain_shift"}, {}),
    )
    found = from_bytes(b"".join(to_chunks(Network((2, 1, 1), operations, shared))))
    assert found.operations == operations


@pytest.mark.parametrize("name", ["two words", "a=b", "a\nb", "a:b"])
def test_a_tensor_name_that_needs_several_lines_is_refused(name: str) -> None:
    build = NetworkBuilder((2, 1, 1))
    build.add("prelu", build.image, slope=np.ones(2, np.float32), name=name)
    with pytest.raises(ValueError, match="rename the layer"):
        to_chunks(build.finish())


@pytest.mark.parametrize("name", ["vectors", "halves"])
def test_a_tensor_with_a_reserved_name_is_refused(name: str) -> None:
    linear = make_operation("linear", (1,), {"weight": name}, {})
    network = Network((2, 1, 1), (make_operation("flatten", (0,), {}, {}), linear), {name: np.ones((2, 2), np.float32)})
    with pytest.raises(ValueError, match="a reserved name"):
        to_chunks(network)


@pytest.mark.parametrize("name", NAMES)
def test_the_safetensors_package_reads_the_tensors(name: str) -> None:
    found = safetensors.numpy.load_file(GOLDEN / f"{name}.ebits")
    expected = dict(read_network(GOLDEN / f"{name}.ebits").tensors)
    vectors = [expected.pop(key) for key in list(expected) if key.rpartition(".")[2] in VECTORS]
    for row, dtype in (("vectors", np.float32), ("halves", np.float16)):
        numbers = [vector.ravel() for vector in vectors if vector.dtype == dtype]
        if numbers:
            np.testing.assert_array_equal(found.pop(row), np.concatenate(numbers))
    assert set(found) == set(expected)
    for key, tensor in found.items():
        np.testing.assert_array_equal(tensor, expected[key])


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_predicts_the_size_of_the_file(name: str) -> None:
    path = GOLDEN / f"{name}.ebits"
    summary = load_packed(path).summary()
    assert summary.file_bytes == path.stat().st_size
    assert f"the file: {path.stat().st_size:,} bytes" in str(summary)


def test_a_tensor_used_twice_is_stored_once() -> None:
    build = NetworkBuilder((2, 1, 1))
    slope = np.array([0.25], np.float32)
    build.add("prelu", build.add("prelu", build.image, slope=slope, name="act"), slope=slope, name="act")
    assert list(build.finish().tensors) == ["act.slope"]
    with pytest.raises(ValueError, match="give the operation another name"):
        build.add("prelu", build.image, slope=2 * slope, name="act")


def test_a_binary_weight_takes_one_bit() -> None:
    build = NetworkBuilder((64, 4, 4))
    build.add_binary("conv", build.add("sign", build.image), np.ones((64, 64, 3, 3)), padding=1, name="conv")
    summary = PackedModel(build.finish()).summary()
    assert summary.total("binary_weights") == 64 * 64 * 9
    assert summary.total("stored_bytes") == 64 * 64 * 9 // 8
    assert summary.total("binary_macs") == 64 * 64 * 9 * 16


def test_the_runtime_reads_and_runs_a_file_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['safetensors'] = None\n"
        "import numpy as np\n"
        "from equalbits.runtime import load_packed\n"
        "print(load_packed(sys.argv[1])(np.zeros((3, 8, 8), np.uint8)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", program, GOLDEN / "residual.ebits"], capture_output=True, text=True)
    assert done.stdout == "(4,)\n", done.stderr


def test_concat_joins_up_to_the_limit_of_values_at_any_position() -> None:
    build = NetworkBuilder((2, 1, 1))
    values = [build.image]
    for _ in range(10_100):
        values.append(build.add("relu", values[-1]))
    build.add("concat", *values[-64:])
    network = build.finish()
    assert from_bytes(b"".join(to_chunks(network))).operations == network.operations
