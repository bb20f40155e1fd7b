"""The server returns the model's predictions for pictures and arrays, and refuses all else in one line."""

import io
import json
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.exceptions import HTTPException

from equalbits.runtime import PackedModel
from equalbits.serving import RequestLimits
from equalbits.serving.body import decode


def encoded(kind: str = "PNG", size: tuple[int, int] = (9, 7)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (10, 20, 200)).save(file, kind)
    return file.getvalue()


def saved(array: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def test_a_picture_as_a_file_and_as_an_array_gets_the_answer_of_the_model(model, post) -> None:
    expected = model.predict(encoded(), top=2)
    pixels = model.prepare(encoded())
    normalized = (pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.25)
    for body in (
        *(encoded(), saved(pixels), saved(pixels[None]), saved(normalized)),
        *(json.dumps(pixels.tolist()), " " + json.dumps(normalized.tolist())),
    ):
        status, answer = post(body, "/predict?top=2")
        assert status == 200 and answer.pop("ms") >= 0
        assert answer["logits"] == pytest.approx([each.logit for each in expected], rel=1e-5)
        assert answer["scores"] == pytest.approx([each.probability for each in expected], abs=1e-5)
        assert (answer["classes"], len(answer)) == (["blue", "green"], 3)
    assert post(encoded("JPEG"))[1]["classes"] == ["blue", "green", "red"]


def test_several_images_get_a_list_each(model, post) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 6), np.uint8)
    status, answer = post(saved(images))
    order = np.argsort(-model(images), axis=1, kind="stable")
    assert status == 200 and answer["classes"] == [[model.classes[i] for i in row] for row in order]


def test_floats_from_0_to_1_get_advice_with_the_answer(post) -> None:
    status, answer = post(saved(np.linspace(0, 1, 72, dtype=np.float32).reshape(3, 4, 6)))
    assert status == 200 and answer["warning"].startswith("images are floats from 0 to 1")


NAN = np.full((3, 4, 6), np.nan, np.float32)
REFUSED = {
    "empty": (b"", 400, "the body is empty: send a picture"),
    "text": (b"hello", 422, "the picture is not a readable image"),
    "truncated": (encoded("BMP")[:60], 422, "the picture is truncated or damaged"),
    "large": (b"x" * 100_001, 413, "the body is over 100000 bytes"),
    "chunked": (iter([b"x" * 60_000] * 2), 413, "the body is over 100000 bytes"),
    "pixels": (encoded(size=(200, 100)), 422, "the picture is too large: 200×100 pixels are more than 10000"),
    "pickle": (saved(np.array([{}]), allow_pickle=True), 422, "the array is not an array of numbers"),
    "cut": (saved(NAN)[:-1], 422, "the array is truncated or damaged"),
    "nan": (saved(NAN), 422, "image 0 holds numbers that are not finite"),
    "huge": (saved(np.full((3, 4, 6), 3e38, np.float32)), 422, "the logits overflow float32"),
    "shape": (saved(NAN[:2]), 422, "images have shape (2, 4, 6): the model takes (batch, 3, 4, 6)"),
    "many": (saved(np.zeros((9, 3, 4, 6), np.uint8)), 413, "the body holds 9 images: send 1 to 8 at a time"),
    "json": (b"[[1, 2]", 422, "the body is not valid JSON"),
    "deep": (b"[" * 50_000, 422, "the body is not valid JSON"),
    "object": (b'{"image": []}', 422, "the body is a JSON object"),
    "ragged": (b"[[1, 2], [3]]", 422, "the lists have unequal lengths"),
    "words": (b'[["a"]]', 422, "the lists hold no numbers"),
    "range": (b"[[256]]", 422, "integers are pixels from 0 to 255"),
    "no numbers": (b"[]", 422, "the image is float64 of shape (0,)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_upload_is_refused_in_one_line(case: str, post) -> None:
    body, expected, line = REFUSED[case]
    status, answer = post(body)
    assert status == expected and line in answer["error"]
    assert "\n" not in answer["error"] and len(answer["error"]) <= 500


def test_a_form_is_refused_with_the_command_that_sends_the_picture(post) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + encoded() + b"\r\n--x--\r\n"
    line = "the body is a form: send the picture itself, as curl --data-binary @cat.jpg does"
    assert post(form, kind="multipart/form-data; boundary=x") == (415, {"error": line})


@pytest.mark.parametrize("top", ["0", "-1", "x", "", "1e3", "9" * 400])
def test_top_must_be_a_small_integer(top: str, post) -> None:
    status, answer = post(encoded(), f"/predict?top={top}")
    assert status == 400 and "must be an integer from 1 to 1000" in answer["error"]


def test_a_list_of_strings_takes_no_memory(model) -> None:
    body = json.dumps(["x" * 50_000, *[""] * 15_000]).encode()  # in an array of numpy: 3 GB
    tracemalloc.start()
    with pytest.raises(HTTPException):
        decode(model, body, RequestLimits())
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_body_that_does_not_fit_into_memory_is_refused(model, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(PackedModel, "prepare", full)
    with pytest.raises(HTTPException) as refused:
        decode(model, encoded(), RequestLimits())
    assert refused.value.status_code == 413


def mutated(data: st.DataObject, whole: bytes) -> bytes:
    """A file with some bytes replaced, perhaps cut."""
    body = bytearray(whole[: data.draw(st.integers(1, len(whole)))])
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=6)):
        body[place] = byte
    return bytes(body)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_bytes_never_break_the_server(data: st.DataObject, post) -> None:
    files = [encoded(kind) for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP")]
    files += [saved(np.zeros((3, 4, 6), np.uint8)), saved(NAN), b"[[[0.5, 1], [2, 3]]]"]
    whole = data.draw(st.sampled_from(files))
    body = data.draw(st.one_of(st.binary(), st.builds(lambda: mutated(data, whole))))
    status, answer = post(body)
    assert status == 200 or (400 <= status < 500 and "\n" not in answer["error"]), answer


def test_health_page_and_unknown_paths(get, post) -> None:
    status, text = get("/health")
    assert status == 200 and json.loads(text)["classes"] == ["red", "green", "blue"]
    status, text = get("/")
    assert status == 200 and "<h1>colors</h1>" in text and "scaled to 6 × 4 pixels." in text
    assert get("/nothing") == (404, '{"error":"Not Found"}') and get("/predict")[0] == 405


def test_metrics_count_requests_by_status_with_latency_and_batch_sizes(get, post) -> None:
    def counts() -> dict[str, float]:
        found = re.findall(r"^(\w+(?:\{[^}]*\})?) ([-+.\de]+)$", get("/metrics")[1], re.MULTILINE)
        return {name: float(value) for name, value in found}

    post(encoded()), post(b"hello")
    before = counts()
    post(saved(np.zeros((3, 3, 4, 6), np.uint8))), post(b"hello")
    gained = {name: value - before[name] for name, value in counts().items()}
    assert gained['equalbits_requests_total{status="200"}'] == gained['equalbits_requests_total{status="422"}'] == 1
    assert gained["equalbits_request_seconds_count"] == 2 and gained["equalbits_request_seconds_sum"] > 0
    assert gained["equalbits_batch_images_sum"] == 3 and gained['equalbits_batch_images_bucket{le="2"}'] == 0
    assert gained['equalbits_batch_images_bucket{le="4"}'] == gained["equalbits_batch_images_count"] == 1
    assert before["equalbits_requests_in_flight"] == 0
