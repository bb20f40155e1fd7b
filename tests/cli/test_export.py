"""A packed file or a run is written for other runtimes, and refused in one line where that cannot be."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from equalbits.cli.export import _check
from equalbits.extras import with_extra
from equalbits.runtime import load_packed

RESIDUAL = Path(__file__).parents[1] / "golden" / "residual.ebits"
KINDS = [("onnx", "net.onnx"), ("openvino", "net.xml")]


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_a_packed_file_and_a_run_are_written_where_the_package_is(kind, name, trained, tmp_path, call):
    for source in (RESIDUAL, trained):
        code, printed, errors = call("export", source, "--to", kind, "--out", tmp_path / name)
        if find_spec(kind) is None:
            assert (code, errors) == (1, f"equalbits export: this needs {kind}: {with_extra(kind)}\n")
            assert not list(tmp_path.iterdir())
        else:
            assert code == 0, errors
            written = sum(path.stat().st_size for path in tmp_path.iterdir())
            assert printed.startswith(f"{tmp_path / name}: {written:,} bytes for {kind}; ")
            assert "4 of 4 images" in printed
            assert ("it takes one image at a time" in printed) == (kind == "openvino")


def test_logits_that_differ_are_refused_and_those_that_rounding_moved_are_told():
    packed = load_packed(RESIDUAL)
    assert _check(packed, packed) == "the same logits as the packed network, the same class for 4 of 4 images"
    assert _check(packed, lambda image: packed(image) * np.float32(1.01)).startswith("logits within 1.00% of")
    for factor in (1.5, np.nan):
        with pytest.raises(ValueError, match="it was not kept"):
            _check(packed, lambda image, factor=factor: packed(image) * np.float32(factor))
    with pytest.raises(ValueError, match="shape"):
        _check(packed, lambda image: packed(image)[:, 1:])


@pytest.mark.parametrize(("kind", "name"), [("onnx", "net.xml"), ("openvino", "net.onnx"), ("onnx", "net")])
def test_a_file_must_be_called_what_it_is(kind, name, tmp_path, call):
    code, _, errors = call("export", RESIDUAL, "--to", kind, "--out", tmp_path / name)
    assert (code, errors.count("\n")) == (1, 1)
    assert "is called net." in errors


def test_what_is_not_there_is_refused_in_one_line(tmp_path, call):
    code, _, errors = call("export", tmp_path / "no.ebits", "--to", "onnx", "--out", tmp_path / "net.onnx")
    assert (code, errors.count("\n")) == (1, 1)
    assert "is not there" in errors
