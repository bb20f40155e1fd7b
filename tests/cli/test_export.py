"""A packed file or a run is written for other runtimes, and refused in one line where that cannot be."""

import errno
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from equalbits._extras import install_hint
from equalbits.cli import _one_line
from equalbits.cli.export import _check, put_in_place, written_files
from equalbits.runtime import PackedModel, load_packed

RESIDUAL = Path(__file__).parents[1] / "golden" / "residual.ebits"
ROUNDED = RESIDUAL.with_name("rounded.ebits")
KINDS = [("onnx", "net.onnx"), ("openvino", "net.xml")]


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_a_packed_file_and_a_run_are_written_where_the_package_is(kind, name, trained, tmp_path, call):
    for source in (RESIDUAL, trained):
        code, printed, errors = call("export", source, "--to", kind, "--out", tmp_path / name)
        if find_spec(kind) is None:
            assert (code, errors) == (1, f"equalbits export: this needs {kind}: {install_hint(kind)}\n")
            assert not list(tmp_path.iterdir())
        else:
            assert code == 0, errors
            written = sum(path.stat().st_size for path in tmp_path.iterdir())
            assert printed.startswith(f"{written_files(tmp_path / name)}: {written:,} bytes for {kind}; ")
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


def test_inputs_that_a_packed_file_rounds_are_not_rounded_elsewhere_and_that_is_no_fault():
    packed = load_packed(ROUNDED)
    plain = (operation.settings | {"input_bits": 32} for operation in packed.network.operations)
    operations = tuple(
        replace(operation, settings={name: settings[name] for name in operation.settings})
        for operation, settings in zip(packed.network.operations, plain, strict=True)
    )
    elsewhere = PackedModel(replace(packed.network, operations=operations))
    images = np.random.default_rng(0).standard_normal((4, *packed.network.input_shape)).astype(np.float32)
    assert not np.allclose(elsewhere(images), packed(images), rtol=1e-4)
    assert "the same logits as the packed network before it rounds inputs of linear layers" in _check(packed, elsewhere)


def test_an_older_file_is_replaced_by_a_whole_new_one_or_not_at_all(tmp_path):
    (tmp_path / "net.xml").write_text("old")
    (tmp_path / "link.bin").symlink_to("elsewhere.bin")
    for name in ("net.xml", "link.xml"):
        with pytest.raises(ValueError, match="not kept"), put_in_place(tmp_path / name) as beside:
            beside.write_text("new")
            raise ValueError("it was not kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.bin", "net.xml"]
    assert (tmp_path / "net.xml").read_text() == "old"
    for name in ("net.xml", "link.xml"):
        with put_in_place(tmp_path / name) as beside:
            beside.write_text("new")
            beside.with_suffix(".bin").write_text("weights")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    weights = dict.fromkeys(["net.bin", "link.bin", "elsewhere.bin"], "weights")
    assert found == {"net.xml": "new", "link.xml": "new"} | weights
    assert (tmp_path / "link.bin").is_symlink()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs another disk")
def test_a_link_to_another_disk_is_written_through(tmp_path):
    with TemporaryDirectory(dir="/dev/shm") as other:
        (tmp_path / "net.onnx").symlink_to(Path(other, "there.onnx"))
        with put_in_place(tmp_path / "net.onnx") as beside:
            beside.write_text("new")
        assert Path(other, "there.onnx").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_a_place_where_no_file_can_be_written_is_named(tmp_path):
    (tmp_path / "net.xml").mkdir()
    with pytest.raises(IsADirectoryError) as refused, put_in_place(tmp_path / "net.xml") as beside:
        beside.write_text("new")
        beside.with_suffix(".bin").write_text("weights")
    assert refused.value.filename2 == str(tmp_path / "net.xml")
    assert [path.name for path in tmp_path.iterdir()] == ["net.xml"]
    with pytest.raises(FileNotFoundError), put_in_place(tmp_path / "no" / "net.xml"):
        pass


@pytest.mark.parametrize("file", [None, "beside"])
def test_a_disk_that_is_full_is_told_with_the_file_that_was_asked_for(file, tmp_path):
    with pytest.raises(OSError, match="no room") as refused, put_in_place(tmp_path / "net.xml") as beside:
        raise OSError(errno.ENOSPC, "no room", *([str(beside)] if file else []))
    assert _one_line(refused.value).startswith(f"{tmp_path / 'net.xml'} does not fit: the disk is full")
    with (
        pytest.raises(OSError, match=r"^libonnx.so: cannot open shared object file$"),
        put_in_place(tmp_path / "net.xml"),
    ):
        raise OSError("libonnx.so: cannot open shared object file")  # a library's own, with no number
    with pytest.raises(FileNotFoundError) as other, put_in_place(tmp_path / "net.xml"):
        Path(tmp_path / "weights").read_bytes()
    assert other.value.filename == str(tmp_path / "weights")


@pytest.mark.parametrize(("kind", "name"), [("onnx", "net.xml"), ("openvino", "net.onnx"), ("onnx", "net")])
def test_a_file_must_be_called_what_it_is(kind, name, tmp_path, call):
    code, _, errors = call("export", RESIDUAL, "--to", kind, "--out", tmp_path / name)
    assert (code, errors.count("\n")) == (1, 1)
    assert "is called net." in errors


def test_what_is_not_there_is_refused_in_one_line(tmp_path, call):
    code, _, errors = call("export", tmp_path / "no.ebits", "--to", "onnx", "--out", tmp_path / "net.onnx")
    assert (code, errors.count("\n")) == (1, 1)
    assert "is not there" in errors


def test_a_disk_that_openvino_finds_full_is_told_in_one_line_and_nothing_else_is_taken_for_it(tmp_path):
    (tmp_path / "net.xml").write_text("old")
    with pytest.raises(ValueError, match=r"net\.xml does not fit: make room"), put_in_place(tmp_path / "net.xml"):
        raise RuntimeError("basic_ios::clear: iostream error")
    with pytest.raises(RuntimeError, match="no plugin"), put_in_place(tmp_path / "net.xml"):
        raise RuntimeError("no plugin")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("net.xml", "old")]


def test_the_file_of_openvinos_numbers_is_named_beside_the_one_that_was_asked_for():
    assert written_files(Path("a/net.xml")) == f"{Path('a/net.xml')} and net.bin"
    assert written_files(Path("a/net.onnx")) == str(Path("a/net.onnx"))
    assert written_files(Path("a/net.ebits")) == str(Path("a/net.ebits"))
