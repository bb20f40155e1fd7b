"""The web page: one file that fetches nothing, prepares pictures to the byte as Pillow does, and classifies them."""

import json
import re
import shutil
import subprocess
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equalbits.cli import main
from equalbits.runtime import NetworkBuilder, PackedModel, Port, web_page
from equalbits.runtime.export import web
from equalbits.runtime.export.web import plan
from equalbits.runtime.resize_pictures import scaled_square

WEB = Path(web.__file__).parent
HOSTILE = '</script><script>document.title="run"</script>{{script}}<img src=x onerror=alert(1)>"\'&\u2028'


def test_export_writes_one_file_that_names_no_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["export", "zoo:fashion-conv4", str(page)]) == 0
    text = page.read_text()
    assert f"{page.stat().st_size:,} bytes" in capsys.readouterr().out
    assert "connect-src" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|src=[\"']", text)
    assert page.stat().st_size < 140_000
    assert "<title>fashion-conv4</title>" in text


def small(shape: tuple[int, int, int] = (1, 2, 2), **settings: Any) -> PackedModel:
    """A linear layer of bits."""
    build = NetworkBuilder(shape)
    x = build.add("sign", build.add("flatten", build.image))
    build.add_binary("linear", x, np.ones((2, prod(shape)), int), name="fc")
    return PackedModel(build.finish(**settings))


def test_huge_filters_are_not_shown() -> None:
    build = NetworkBuilder((1, 400, 400))
    x = build.add_binary(
        "conv", build.add("sign", build.image), np.ones((128, 1, 400, 400), np.int8), kernel=(400, 400)
    )
    build.add("flatten", x)  # 2.5 MB of bits, of which the page would hold 20 million numbers
    assert len(web_page(PackedModel(build.finish(mean=(0.5,), std=(0.5,))))) < 2_000_000


def test_names_cannot_end_the_script_or_fill_another_part() -> None:
    text = web_page(small(mean=(0.5,), std=(0.5,), classes=(HOSTILE, "{{title}}")), title=HOSTILE)
    assert text.count("<script") == 2 and text.count("</script>") == 2 and "<img" not in text
    data = re.search(r'id="data">(.*?)</script>', text)
    assert data and json.loads(data[1])["classes"] == [HOSTILE, "{{title}}"]


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (small((2, 2, 2)), r"maps \(2, 2, 2\) to \(2,\): a web page needs 1 or 3 channels, and one logit per class"),
        (small(), "no mean and std to normalize pictures with"),
        (small(inputs=(Port("tokens", (4,), below=9),)), r"has named inputs or outputs \(tokens\)"),
        (small(inputs=(Port("a", (1,)), Port("b", (3,)))), r"has named inputs or outputs \(a, b\)"),
    ],
)
def test_networks_that_do_not_take_one_picture_are_refused_in_one_line(model: PackedModel, line: str) -> None:
    with pytest.raises(ValueError, match=line) as refusal:
        web_page(model)
    assert "\n" not in str(refusal.value)


def test_a_network_that_is_too_large_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_MOST_BYTES", 1)
    with pytest.raises(ValueError, match="takes more than 256 MiB in the engine, which is too large for a web page"):
        web_page(small(mean=(0.5,), std=(0.5,)))


def test_examples_must_be_images_of_the_network() -> None:
    with pytest.raises(ValueError, match=r"float64 of shape \(1, 1, 2, 2\): give uint8 of \(n, 1, 2, 2\)"):
        web_page(small(mean=(0.5,), std=(0.5,)), examples=np.zeros((1, 1, 2, 2)))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_pictures_are_scaled_to_the_byte_as_in_training(tmp_path: Path) -> None:
    """Pillow 13 scales the rows of tall pictures first, which rounds some of their pixels to the next level."""
    image = pytest.importorskip("PIL.Image")
    ops = pytest.importorskip("PIL.ImageOps")
    random, jobs, expected = np.random.default_rng(0), [], []
    for width, height, side, fit in [
        (64, 40, 28, "stretch"), (37, 91, 32, "crop"), (33, 90, 32, "pad"), (90, 33, 32, "pad"), (9, 7, 32, "crop"),
        (28, 28, 28, "stretch"), (301, 200, 64, "none"), (28, 28, 28, "none"), (5, 300, 10, "none"),
    ]:  # fmt: skip
        for channels, mode in ((1, "L"), (3, "RGB")):
            rgba = random.integers(0, 256, (height, width, 4)).astype(np.uint8)
            rgba[..., 3] = 255
            picture = image.fromarray(rgba[..., :3])
            if fit == "none":
                pixels = np.asarray(ops.fit(picture.convert(mode), (side, side), image.Resampling.BILINEAR))
            else:
                pixels = scaled_square(picture, side, mode=mode, fit=fit)
            expected.append(pixels.reshape(-1).tolist())
            how = {"width": side, "height": side, "resize": None if fit == "none" else side, "fit": fit}
            jobs.append({"rgba": rgba.reshape(-1).tolist(), "size": [width, height], "channels": channels, "how": how})
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    script = (WEB / "picture.js").read_text() + (
        "console.log(JSON.stringify(JSON.parse(require('fs').readFileSync(process.argv[2])).map(({rgba, size, channels,"
        " how}) => Array.from(prepare(fromCanvas(rgba, ...size, channels), how).pixels))))"
    )
    (tmp_path / "run.js").write_text(script)
    done = subprocess.run(
        ["node", tmp_path / "run.js", tmp_path / "jobs.json"], check=True, capture_output=True, text=True
    )
    for job, ours, theirs in zip(jobs, json.loads(done.stdout), expected, strict=True):
        width, height = job["size"]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1 if height > width else 0)
