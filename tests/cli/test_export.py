"""A packed file or a run is exported to other runtimes; errors are one line."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from equalbits._extras import install_hint
from equalbits.cli.export import _verify
from equalbits.cli.pack import replace_when_done, written_files
from equalbits.runtime import PackedModel, load_packed

RESIDUAL = Path(__file__).parents[1] / "golden" / "residual.ebits"
ROUNDED = RESIDUAL.with_name("rounded.ebits")
KINDS = [("onnx", "net.onnx"), ("openvino", "net.xml")]


def test_exported_c_is_written_compiled_and_compared(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed, errors = call("export", RESIDUAL, "--to", "c")
    assert code == 0, errors
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert printed.startswith(f"residual.c and residual.h: C source, {written:,} bytes; ")
    assert "bytes of constants in flash" in printed and "4 of 4 images" in printed
    code, printed, errors = call("export", ROUNDED, "net.c", "--json")
    assert code == 0, errors
    assert json.loads(printed)["compared"].startswith("the same logits as the packed network, ")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not compiled: there is no C compiler (cc)" in call("export", RESIDUAL, "--to", "c")[1]


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_a_packed_file_and_a_run_are_exported_if_the_package_is_installed(kind, name, trained, tmp_path, call):
    for source in (RESIDUAL, trained):
        code, printed, errors = call("export", source, "--to", kind, "--out", tmp_path / name)
        if find_spec(kind) is None:
            assert (code, errors) == (1, f"equalbits export: this needs {kind}: {install_hint(kind)}\n")
            assert not list(tmp_path.iterdir())
        else:
            assert code == 0, errors
            written = sum(path.stat().st_size for path in tmp_path.iterdir())
            title = {"onnx": "ONNX", "openvino": "OpenVINO IR"}[kind]
            assert printed.startswith(f"{written_files(tmp_path / name)}: {title}, {written:,} bytes; ")
            assert "4 of 4 images" in printed
            assert ("batch size 1 only" in printed) == (kind == "openvino")


def test_different_logits_are_rejected_and_rounding_is_reported():
    packed = load_packed(RESIDUAL)
    assert _verify(packed, packed) == "the same logits as the packed network, the same class for 4 of 4 images"
    assert _verify(packed, lambda image: packed(image) * np.float32(1.01)).startswith("logits within 1.00% of")
    for factor in (1.5, np.nan):
        with pytest.raises(ValueError, match="no file was kept"):
            _verify(packed, lambda image, factor=factor: packed(image) * np.float32(factor))
    with pytest.raises(ValueError, match="shape"):
        _verify(packed, lambda image: packed(image)[:, 1:])


def test_exports_do_not_round_inputs_and_are_verified_without_it():
    packed = load_packed(ROUNDED)
    plain = (operation.settings | {"input_bits": 32} for operation in packed.network.operations)
    operations = tuple(
        replace(operation, settings={name: settings[name] for name in operation.settings})
        for operation, settings in zip(packed.network.operations, plain, strict=True)
    )
    elsewhere = PackedModel(replace(packed.network, operations=operations))
    images = np.random.default_rng(0).standard_normal((4, *packed.network.input_shape)).astype(np.float32)
    assert not np.allclose(elsewhere(images), packed(images), rtol=1e-4)
    assert "the same logits as the packed network before it rounds inputs of linear layers" in _verify(
        packed, elsewhere
    )


def test_an_existing_file_is_replaced_completely_or_kept(tmp_path):
    (tmp_path / "net.xml").write_text("old")
    (tmp_path / "link.bin").symlink_to("elsewhere.bin")
    for name in ("net.xml", "link.xml"):
        with pytest.raises(ValueError, match="no file was kept"), replace_when_done(tmp_path / name) as beside:
            beside.write_text("new")
            raise ValueError("no file was kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.bin", "net.xml"]
    assert (tmp_path / "net.xml").read_text() == "old"
    for name in ("net.xml", "link.xml"):
        with replace_when_done(tmp_path / name) as beside:
            beside.write_text("new")
            beside.with_suffix(".bin").write_text("weights")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    weights = dict.fromkeys(["net.bin", "link.bin", "elsewhere.bin"], "weights")
    assert found == {"net.xml": "new", "link.xml": "new"} | weights
    assert (tmp_path / "link.bin").is_symlink()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs another disk")
def test_a_symbolic_link_to_another_disk_is_followed(tmp_path):
    with TemporaryDirectory(dir="/dev/shm") as other:
        (tmp_path / "net.onnx").symlink_to(Path(other, "there.onnx"))
        with replace_when_done(tmp_path / "net.onnx") as beside:
            beside.write_text("new")
        assert Path(other, "there.onnx").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "net.xml").mkdir()
    with pytest.raises(IsADirectoryError) as refused, replace_when_done(tmp_path / "net.xml") as beside:
        beside.write_text("new")
        beside.with_suffix(".bin").write_text("weights")
    assert refused.value.filename == str(tmp_path / "net.xml")
    assert [path.name for path in tmp_path.iterdir()] == ["net.xml"]
    with pytest.raises(FileNotFoundError), replace_when_done(tmp_path / "no" / "net.xml"):
        pass


@pytest.mark.parametrize(("kind", "name"), [("onnx", "net.xml"), ("openvino", "net.onnx"), ("onnx", "net")])
def test_the_suffix_must_match_the_format(kind, name, tmp_path, call):
    code, _, errors = call("export", RESIDUAL, "--to", kind, "--out", tmp_path / name)
    assert (code, errors.count("\n")) == (1, 1)
    assert "as net." in errors


def test_a_missing_source_is_reported_in_one_line(tmp_path, call):
    code, _, errors = call("export", tmp_path / "no.ebits", "--to", "onnx", "--out", tmp_path / "net.onnx")
    assert (code, errors.count("\n")) == (1, 1)
    assert "does not exist" in errors


def test_both_files_of_openvino_are_named():
    assert written_files(Path("a/net.xml")) == f"{Path('a/net.xml')} and net.bin"
    assert written_files(Path("a/net.onnx")) == str(Path("a/net.onnx"))
    assert written_files(Path("a/net.ebits")) == str(Path("a/net.ebits"))


def test_the_runtime_follows_from_the_suffix_and_one_file_is_named(tmp_path, call):
    packed = tmp_path / "net.ebits"
    packed.write_bytes((Path(__file__).parents[1] / "golden" / "plain.ebits").read_bytes())
    for words, line in (
        ((), "give one file to write, such as net.onnx, as the second argument or with --out"),
        (("a.onnx", "--out", "b.onnx"), "give one file to write"),
        (("a.bin",), "a.bin: unknown suffix .bin; use .onnx, .xml, .c, .html, or give --to"),
        (("a.xml", "--to", "onnx"), "a.xml: --to onnx writes a file that ends in .onnx, as a.onnx"),
    ):
        code, _, errors = call("export", packed, *words)
        assert (code, errors.count("\n")) == (1, 1) and line in errors
    if find_spec("onnx"):
        code, printed, _ = call("export", packed, tmp_path / "net.onnx", "--json")
        facts = json.loads(printed)
        assert (code, facts["runtime"]) == (0, "onnx") and facts["bytes"] == (tmp_path / "net.onnx").stat().st_size
