"""Exporting a small file to another runtime takes no more memory than running it: constants are shared, and bounded."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from equalbits.runtime import (
    LimitError,
    NetworkBuilder,
    PackedModel,
    build_openvino,
    export_c,
    export_onnx,
    export_openvino,
)

MIB = 1 << 20


def causal(times: int) -> PackedModel:
    """Softmaxes of one shape, each of which leaves out the same entries."""
    build = NetworkBuilder((1, 1024, 1024))
    x = build.image
    for _ in range(times):
        x = build.add("softmax", x, axis=2, causal=True)
    return PackedModel(build.finish())


def test_onnx_stores_the_mask_of_many_softmaxes_once(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    export_onnx(causal(20), tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size < 1.1 * MIB


def test_openvino_holds_the_mask_of_many_softmaxes_once() -> None:
    pytest.importorskip("openvino")
    constants = [node for node in build_openvino(causal(20).network).get_ops() if node.get_type_name() == "Constant"]
    assert sum(node.get_byte_size() for node in constants) < 1.1 * MIB


@pytest.mark.parametrize(("tool", "name"), [("onnx", "net.onnx"), ("openvino", "net.xml")])
def test_constants_that_a_small_file_asks_for_are_refused_before_they_are_made(
    tool: str, name: str, tmp_path: Path
) -> None:
    pytest.importorskip(tool)
    build = NetworkBuilder((1, 1, 1))
    x = build.add("pad", build.image, before=(0, 0, 0), after=(0, 32_767, 0))
    build.add("adaptive_avg_pool", x, size=(32_768, 1))  # a matrix of 4 GiB
    model = PackedModel(build.finish())
    tracemalloc.start()
    with pytest.raises(LimitError, match="the exported graph takes too much memory for constants"):
        (export_onnx if tool == "onnx" else export_openvino)(model, tmp_path / name)
    assert tracemalloc.get_traced_memory()[1] < 10 * MIB
    tracemalloc.stop()
    assert not list(tmp_path.iterdir())


def test_openvino_holds_the_weight_of_many_layers_once() -> None:
    pytest.importorskip("openvino")
    build = NetworkBuilder((1, 64, 64))
    x = build.image
    for _ in range(40):
        x = build.add("conv", x, weight=np.ones((1, 1, 256, 256), np.int8), kernel=256, padding=128, name="tied")
        x = build.add("slice", x, start=(0, 0, 0), stop=(1, 64, 64), step=(1, 1, 1))
    constants = [node for node in build_openvino(build.finish()).get_ops() if node.get_type_name() == "Constant"]
    assert sum(node.get_byte_size() for node in constants) < 1.1 * 256 * 256


def test_constants_that_a_small_file_asks_for_are_refused_in_c(tmp_path: Path) -> None:
    build = NetworkBuilder((1, 1, 1))
    x = build.add("pad", build.image, before=(0, 0, 0), after=(0, 0, (1 << 20) - 1))
    x = build.add("reshape", x, shape=(1, 1, 1, 1 << 20))
    for _ in range(30):  # 8 MiB each, of two numbers in the file
        x = build.add("affine", x, gain_shift=np.ones((2, 1), np.float32), name="a")
    with pytest.raises(ValueError, match="the constants take more than 128 MiB"):
        export_c(PackedModel(build.finish()), tmp_path / "net.c")
