"""A packed model classifies image files, Pillow images and arrays, and states its input."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from equalbits.runtime import NetworkBuilder, PackedModel, load_packed


def packed(*, resize: int | None = None, mean: tuple[float, ...] | None = (0.5,) * 3) -> PackedModel:
    """A net whose logits compare the sums of red, green and blue in a picture of 4×6."""
    build = NetworkBuilder((3, 4, 6))
    x = build.add("flatten", build.image)
    signs = np.kron(np.eye(3, dtype=np.int8) * 2 - 1, np.ones((1, 24), np.int8))
    build.add_binary("linear", x, signs, name="fc")
    std = None if mean is None else (0.25,) * 3
    return PackedModel(build.finish(mean=mean, std=std, classes=("red", "green", "blue"), resize=resize))


def picture(color: tuple[int, int, int], size: tuple[int, int] = (9, 7)) -> Image.Image:
    return Image.new("RGB", size, color)


def test_a_model_states_its_inputs_and_outputs() -> None:
    model = packed()
    assert model.classes == ("red", "green", "blue") and model.input_shape == (3, 4, 6)


@pytest.mark.parametrize("resize", [None, 8])
def test_files_images_and_arrays_of_one_picture_get_the_same_answer(resize, tmp_path) -> None:
    model, image = packed(resize=resize), picture((10, 20, 200))
    image.save(tmp_path / "blue.png")
    np.save(tmp_path / "blue.npy", model.prepare(image))
    given = [tmp_path / "blue.png", str(tmp_path / "blue.npy"), image, np.asarray(image), model.prepare(image)]
    answers = model.predict_batch(given, top=2)
    assert [answer[0].label for answer in answers] == ["blue"] * 5 and answers == [model.predict(image, top=2)] * 5
    assert [each.label for each in answers[0]] == ["blue", "green"] and answers[0][0].number == 2
    assert sum(each.probability for each in model.predict(image)) == pytest.approx(1)
    assert model.prepare(image).dtype == np.uint8 and model.prepare(image).shape == model.input_shape


def test_a_picture_the_model_cannot_take_is_refused_in_one_line(tmp_path) -> None:
    model = packed()
    for given, line in (
        (tmp_path / "no.png", "no.png does not exist: give an image file or a .npy file"),
        (np.zeros((3, 4, 5), np.float32), "the image is float32 of shape (3, 4, 5): give (3, 4, 6), or uint8 pixels"),
        (np.zeros((2, 3, 4, 6), np.uint8), "predict takes one image, not shape (2, 3, 4, 6): give several to"),
    ):
        with pytest.raises(ValueError) as caught:
            model.predict(given)
        assert line in str(caught.value)
    with pytest.raises(ValueError, match="top=0 must be an integer, at least 1"):
        model.predict(picture((0, 0, 0)), top=0)


def test_a_file_stores_how_pictures_become_square(tmp_path) -> None:
    model = packed(resize=8)
    cropping = PackedModel(replace(model.network, fit="crop"))
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, 4:12] = 255
    assert model.prepare(wide).min() < 100 and cropping.prepare(wide).min() == 255
    cropping.save(tmp_path / "net.ebits")
    assert load_packed(tmp_path / "net.ebits").network.fit == "crop" and model.network.fit == "stretch"
    with pytest.raises(ValueError, match="fit is 'square': it must be one of stretch, crop, pad, beside a resize"):
        replace(model.network, fit="square")


def test_floats_from_0_to_1_give_a_warning_if_the_file_normalizes_bytes() -> None:
    pixels = np.random.default_rng(0).random((2, 3, 4, 6), np.float32)
    with pytest.warns(UserWarning, match=r"floats from 0 to 1, which are not normalized .* give uint8, or"):
        packed()(pixels)
    packed(mean=None)(pixels)  # no normalization to miss
    packed()((pixels - 0.5) / 0.25)
    model = packed()
    model(np.zeros_like(pixels))  # as in a warm-up: says nothing yet
    with pytest.warns(UserWarning, match="floats from 0 to 1"):
        model(pixels)
    model((pixels - 0.5) / 0.25)
    model(pixels)  # one normalized batch shows that the caller normalizes
