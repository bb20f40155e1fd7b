"""A packed file comes back as it was written, byte for byte the same each time, and other programs can read it."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from equalbits.runtime.build import NetworkBuilder
from equalbits.runtime.engine import PackedModel, load_packed
from equalbits.runtime.format import read_network, to_chunks, write_network
from equalbits.runtime.network import Network

GOLDEN = Path(__file__).parents[1] / "golden"
MAKE: dict[str, Any] = runpy.run_path(str(GOLDEN / "make_packed.py"))


def network(name: str) -> Network:
    made: Network = MAKE[name]()
    return made


@pytest.mark.parametrize("name", ["residual", "plain"])
def test_the_format_has_not_changed_by_a_byte(name: str) -> None:
    assert b"".join(to_chunks(network(name))) == (GOLDEN / f"{name}.ebits").read_bytes()


@pytest.mark.parametrize("name", ["residual", "plain"])
def test_a_stored_file_still_gives_the_logits_it_gave(name: str) -> None:
    model = load_packed(GOLDEN / f"{name}.ebits")
    np.testing.assert_array_equal(model(MAKE["image"](model.network)), np.load(GOLDEN / f"{name}.npy"))


@pytest.mark.parametrize("name", ["residual", "plain"])
def test_a_network_comes_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    written = network(name)
    write_network(written, tmp_path / "net.ebits")
    found = read_network(tmp_path / "net.ebits")
    for part in ("input_shape", "operations", "mean", "std", "classes", "notes", "shapes"):
        assert getattr(found, part) == getattr(written, part)
    assert set(found.tensors) == set(written.tensors)
    for key, tensor in found.tensors.items():
        assert tensor.dtype == written.tensors[key].dtype
        np.testing.assert_array_equal(tensor, written.tensors[key])
    assert [path.name for path in tmp_path.iterdir()] == ["net.ebits"]


def test_the_safetensors_package_reads_the_tensors() -> None:
    found = safetensors.numpy.load_file(GOLDEN / "residual.ebits")
    expected = read_network(GOLDEN / "residual.ebits").tensors
    assert set(found) == set(expected)
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor, expected[name])


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
