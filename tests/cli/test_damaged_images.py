"""Damaged, invalid or too large images are rejected in one line, whatever numpy or Pillow raise."""

import io
import json
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equalbits.runtime import NetworkBuilder, PackedModel, load_packed

PACKED = Path(__file__).parents[1] / "golden" / "residual.ebits"


def array_that_claims(shape: str, *, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


@pytest.mark.parametrize(
    ("whole", "rule"),
    [
        (array_that_claims("(3, 8, 8"), "is truncated or damaged: save the array again"),  # numpy's tokenizer gives up
        (array_that_claims("(3, 8, 8), b'x': 1"), "is truncated or damaged: save the array again"),  # and its sort
        (array_that_claims("(9000000, 3, 9000, 9000)"), "does not fit into memory"),
        (array_that_claims("(-1, 3, 8, 8)"), "is truncated or damaged"),
        (b"PK\x03\x04 no zip", "is truncated or damaged"),
    ],
)
def test_a_damaged_array_is_rejected(whole, rule, tmp_path, call):
    (tmp_path / "x.npy").write_bytes(whole)
    code, printed, errors = call("run", PACKED, tmp_path / "x.npy")
    assert (code, printed, errors.count("\n")) == (1, "", 1)
    assert errors.startswith(f"equalbits run: {tmp_path / 'x.npy'} {rule}")


def test_results_before_a_damaged_image_are_printed(tmp_path, call):
    np.save(tmp_path / "good.npy", np.zeros((2, *load_packed(PACKED).network.input_shape), np.float32))
    (tmp_path / "x.npy").write_bytes(b"PK")
    shown = call("run", PACKED, tmp_path / "good.npy", "--top", 1)[1]
    assert len(shown.splitlines()) == 4
    code, printed, errors = call("run", PACKED, tmp_path / "good.npy", tmp_path / "x.npy", "--top", 1)
    assert (code, printed, errors.count("\n")) == (1, shown, 1)
    assert call("run", PACKED, tmp_path / "good.npy", tmp_path / "x.npy", "--json")[:2] == (1, "")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits here")
def test_out_of_memory_is_reported_with_a_remedy(tmp_path):
    build = NetworkBuilder((1, 2, 2))
    x = build.add("pad", build.image, before=(0, 1 << 12, 1 << 14), after=(0, 0, 0))
    build.add("adaptive_avg_pool", build.add("add", build.add("sign", x), x))
    PackedModel(build.finish()).save(tmp_path / "net.ebits")
    np.save(tmp_path / "x.npy", np.zeros((3, 1, 2, 2), np.float32))
    code = (
        "import resource, sys; from equalbits.cli import main; import equalbits.runtime\n"
        "resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20)); sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "run", tmp_path / "net.ebits", tmp_path / "x.npy"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    rule = "not enough memory for a batch of 3: give fewer images at a time, or lower --threads"
    assert (done.returncode, done.stderr) == (1, f"equalbits run: {tmp_path / 'x.npy'}: {rule}\n")


def test_too_many_pixels_are_rejected_and_a_large_image_is_read_without_warning(tmp_path, call, monkeypatch):
    Image.new("1", (300, 200)).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    code, printed, errors = call("run", PACKED, tmp_path / "x.png")
    assert (code, printed) == (1, "")
    rule = "exceeds Pillow's pixel limit or is damaged: make the image smaller"
    assert errors == f"equalbits run: {tmp_path / 'x.png'} {rule}\n"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000)
    code, printed, errors = call("run", PACKED, tmp_path / "x.png")
    assert (code, errors) == (0, "")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF"])
def test_a_damaged_image_is_classified_or_rejected_in_one_line(kind, tmp_path, call):
    if f".{kind.lower()}" not in Image.registered_extensions():
        pytest.skip(f"this Pillow does not know {kind}")
    pixels, saved, draw = (
        np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8),
        io.BytesIO(),
        random.Random(0),
    )
    Image.fromarray(pixels).save(saved, kind)
    for _ in range(60):
        changed = bytearray(saved.getvalue())
        for _ in range(draw.choice([1, 2, 4])):
            changed[draw.randrange(min(len(changed), draw.choice([30, 200, len(changed)])))] = draw.randrange(256)
        (tmp_path / "x.png").write_bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            code, printed, errors = call("run", PACKED, tmp_path / "x.png")
        if code:
            assert (code, printed, errors.count(f"equalbits run: {tmp_path / 'x.png'} ")) == (1, "", 1)


def test_an_image_of_floats_is_rejected(tmp_path, call):
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(tmp_path / "x.tif")
    code, printed, errors = call("run", PACKED, tmp_path / "x.tif")
    rule = "its pixels are floats, whose white level is not defined: save it with 8 or 16 bits"
    assert (code, printed, errors) == (1, "", f"equalbits run: {tmp_path / 'x.tif'}: {rule}\n")


def test_a_16_bit_ppm_gives_the_result_of_an_8_bit_one(tmp_path, call):
    greys = np.arange(64, dtype=np.uint16).reshape(8, 8) * 4
    (tmp_path / "8.ppm").write_bytes(b"P5 8 8 255 " + greys.astype(np.uint8).tobytes())
    (tmp_path / "16.ppm").write_bytes(b"P5 8 8 65535 " + (greys * 256).astype(">u2").tobytes())
    answers = [json.loads(call("run", PACKED, tmp_path / name, "--json")[1]) for name in ("8.ppm", "16.ppm")]
    assert list(answers[0].values()) == list(answers[1].values())
