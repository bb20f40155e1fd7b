"""The web page: one file that fetches nothing, prepares pictures to the byte as Pillow does, and classifies them."""

import base64
import io
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from equalbits.cli import main
from equalbits.runtime import NetworkBuilder, PackedModel, load_packed, web_page
from equalbits.runtime.export import web
from equalbits.runtime.resize_pictures import scaled_square
from equalbits.runtime.zoo import ZOO

WEB = Path(web.__file__).parent
DROP = """<script>
const name = setInterval(() => {
  if (!document.body.dataset.ready) return;
  clearInterval(name);
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytesOf("PICTURE")], "shoe.png", { type: "image/png" }));
  dispatchEvent(new DragEvent("drop", { dataTransfer: transfer }));
}, 20);
</script></body>"""


def test_export_writes_one_file_that_names_no_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["export", "zoo:fashion-conv4", str(page)]) == 0
    text = page.read_text()
    assert f"{page.stat().st_size:,} bytes" in capsys.readouterr().out
    assert "connect-src" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|src=[\"']", text)
    assert page.stat().st_size < 120_000


def test_networks_that_take_no_picture_are_refused_in_one_line() -> None:
    build = NetworkBuilder((2, 2, 2))
    x = build.add("sign", build.add("flatten", build.image))
    build.add_binary("linear", x, np.ones((1, 8), int), name="fc")
    with pytest.raises(ValueError, match="needs 1 or 3 channels"):
        web_page(PackedModel(build.finish()))


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


@pytest.mark.browser
def test_a_picture_dropped_on_the_page_gets_the_logits_of_the_packed_network(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser is installed")
    model = load_packed("zoo:fashion-conv4", engine="numpy")
    with np.load(ZOO / "fashion-conv4.npz") as stored:
        pixels = stored["images"][0, 0]
    file = io.BytesIO()
    image.fromarray(np.kron(pixels, np.ones((3, 3), np.uint8))).save(file, "png")
    expected = model(model.prepare(image.open(file)))
    page = tmp_path / "page.html"
    drop = DROP.replace("PICTURE", base64.b64encode(file.getvalue()).decode())
    page.write_text(web_page(model, title="fashion-conv4").replace("</body>", drop))
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*words, "--virtual-time-budget=10000", "--dump-dom", page.as_uri()],
        check=True, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    found = re.search(r'data-logits="([^"]*)"', done.stdout)
    assert found, done.stdout[-2000:]
    np.testing.assert_allclose(json.loads(unescape(found.group(1))), expected, rtol=1e-5, atol=1e-5)
    assert done.stdout.count("<li>") == 5
    for scheme, width in ((0, 500), (1, 1000)):
        shot = tmp_path / f"{scheme}.png"
        look = [f"--blink-settings=preferredColorScheme={scheme}", f"--window-size={width},1000"]
        look += [f"--screenshot={shot}", "--virtual-time-budget=5000", page.as_uri()]
        subprocess.run([*words, *look], check=True, capture_output=True, timeout=90)
        with image.open(shot) as seen:
            shade = seen.convert("L").getpixel((2, 2))
        assert shade < 60 if scheme == 0 else shade > 200
