"""Exported web pages in headless Chromium: ``make test-browser``."""

import io
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equalbits.runtime import NetworkBuilder, PackedModel, list_zoo, load_packed, stored_images, web_page
from equalbits.runtime.zoo import ZOO

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api")
image = pytest.importorskip("PIL.Image")

HOSTILE = '</script><script>document.title="run"</script>{{script}}<img src=x onerror=alert(1)>"\'&\u2028'
DROP = """([name, text]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytesOf(text)], name));
  delete document.body.dataset.logits;
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
}"""
LOGITS = "JSON.parse(document.body.dataset.logits)"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium with a camera that shows a moving test picture."""
    with playwright.sync_playwright() as started:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        try:
            opened = started.chromium.launch(executable_path=path, args=["--no-sandbox", *camera])
        except playwright.Error:
            pytest.skip("Chromium is not installed")
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page of a network; check at the end that no error was raised and nothing but the file was fetched."""
    contexts, requests, errors = [], [], []

    def show(model: PackedModel, *, title: str = "net", examples: np.ndarray | None = None, **settings: Any) -> Any:
        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        file = tmp_path / f"{len(contexts)}.html"
        file.write_text(web_page(model, title=title, examples=examples), encoding="utf-8")
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    yield show
    for context in contexts:
        context.close()
    assert errors == []
    assert {address.partition(":")[0] for address in requests} <= {"file", "data"} and len(requests) <= 2 * len(
        contexts
    )


def drop(page: Any, name: str, content: bytes) -> None:
    page.evaluate(DROP, [name, b64encode(content).decode()])


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def toy(classes: tuple[str, ...] = ("first", "second"), **settings: Any) -> PackedModel:
    """A net of 3×8×8 pixels."""
    build = NetworkBuilder((3, 8, 8))
    symbols = np.where(np.random.default_rng(0).random((4, 3, 3, 3)) < 0.5, 1, -1)
    x = build.add_binary("conv", build.image, symbols, name="conv1", kernel=3, padding=1)
    x = build.add("flatten", x)
    build.add_binary("linear", x, np.where(np.arange(512).reshape(2, 256) % 3, 1, -1), name="fc")
    return PackedModel(build.finish(mean=(0.5,) * 3, std=(0.25,) * 3, classes=classes, **settings), engine="numpy")


@pytest.mark.parametrize("name", list_zoo())
def test_logits_of_a_hundred_pictures_are_those_of_numpy(name: str, show: Open) -> None:
    model = load_packed(f"zoo:{name}", engine="numpy")
    stored = stored_images(ZOO / f"{name}.ebits")
    assert stored is not None
    variants = [stored, stored[..., ::-1], stored[..., ::-1, :], 255 - stored, np.roll(stored, 3, axis=-1)]
    images = np.concatenate(variants)[: max(100, len(stored))]
    page = show(model, examples=stored)
    run = "(texts) => texts.map((text) => Array.from(engine.run(bytesOf(text))))"
    logits = page.evaluate(run, [b64encode(each.tobytes()).decode() for each in images])
    np.testing.assert_allclose(logits, model(images), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(page.evaluate(LOGITS), model(stored[:1])[0], rtol=1e-5, atol=1e-5)


def test_a_dropped_picture_gets_the_five_classes_that_the_packed_file_predicts(show: Open) -> None:
    model = load_packed("zoo:fashion-conv4", engine="numpy")
    stored = stored_images(ZOO / "fashion-conv4.ebits")
    assert stored is not None
    content = png(np.kron(stored[3, 0], np.ones((3, 3), np.uint8)))
    page = show(model)
    assert page.is_visible("#empty") and page.locator("#classes li").count() == 0
    drop(page, "shoe.png", content)
    page.wait_for_selector("body[data-logits]")
    np.testing.assert_allclose(page.evaluate(LOGITS), model(model.prepare(content)), rtol=1e-5, atol=1e-5)
    expected = [[each.label, f"{100 * each.probability:.1f} %"] for each in model.predict(content)]
    assert [line.split("\n") for line in page.locator("#classes li").all_inner_texts()] == expected
    assert page.inner_text("#status") == "shoe.png, 84 × 84"
    assert "ms an image" in page.inner_text("#time") and "17.7 kB" in page.inner_text("#facts")
    assert page.locator("#layers .bar").count() == len(model.audit().layers)
    assert page.locator("#filters canvas").count() == 16


@pytest.mark.parametrize("resize", [None, 9])
def test_a_rotated_photo_is_turned_upright(resize: int | None, show: Open) -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (8, 24, 3)).astype(np.uint8)
    photo = image.fromarray(blocks.repeat(8, 0).repeat(8, 1))
    rotated, file = image.Exif(), io.BytesIO()
    rotated[0x0112] = 6
    photo.save(file, "png", exif=rotated)
    model = toy(resize=resize)
    page = show(model)
    drop(page, "photo.png", file.getvalue())
    page.wait_for_selector("body[data-logits]")
    expected = model(model.prepare(photo.transpose(image.Transpose.ROTATE_270)))
    np.testing.assert_allclose(page.evaluate(LOGITS), expected, rtol=1e-2, atol=0.5)


def test_a_file_that_is_no_picture_is_refused_in_one_line_and_the_next_one_is_read(show: Open) -> None:
    page = show(toy())
    drop(page, "<b>notes</b>.txt", b"hello")
    page.wait_for_selector("#status:not(:empty)")
    assert page.inner_text("#status") == "<b>notes</b>.txt is not a picture that this browser can read"
    black = png(np.zeros((9, 9, 3), np.uint8))
    page.set_input_files("#file", [{"name": "a.png", "mimeType": "image/png", "buffer": black}])
    page.wait_for_selector("body[data-logits]")
    assert page.inner_text("#status") == "a.png, 9 × 9"


def test_drawing_and_the_camera_change_the_prediction(show: Open) -> None:
    page = show(toy())
    page.click("#draw")
    empty = page.evaluate(LOGITS)
    box = page.locator("#shown").bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 180, steps=4)
    page.mouse.up()
    assert page.evaluate(LOGITS) != empty
    corner = "Array.from(context.getImageData({0}, {0}, 1, 1).data.slice(0, 3))"
    assert page.evaluate(corner.format(47)) == [255] * 3 and page.evaluate(corner.format(5)) == [0] * 3
    page.click("#camera")
    page.wait_for_selector("#camera[aria-pressed=true]")
    assert page.evaluate("[drawing, shown.width > 280]") == [False, True]
    page.click("#camera")
    page.wait_for_selector("#camera[aria-pressed=false]")
    assert page.evaluate("stream") is None


def test_names_with_markup_are_shown_as_text(show: Open) -> None:
    page = show(toy((HOSTILE, "{{data}}")), title=HOSTILE, examples=np.zeros((1, 3, 8, 8), np.uint8))
    assert page.title() == page.inner_text("h1") == HOSTILE.replace("\u2028", page.title()[-1])
    assert {HOSTILE, "{{data}}"} == set(page.locator("#classes li > span:first-child").all_text_contents())
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2


def test_it_follows_the_color_scheme_and_fits_a_phone(show: Open) -> None:
    model = load_packed(f"zoo:{list_zoo()[0]}")
    for scheme, width, dark in (("dark", 390, True), ("light", 390, False), ("light", 1000, False)):
        page = show(model, title="n" * 60, color_scheme=scheme, viewport={"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        with image.open(io.BytesIO(page.screenshot())) as seen:
            shade = seen.convert("L").getpixel((2, 2))
        assert shade < 60 if dark else shade > 200
