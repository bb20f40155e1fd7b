"""A packed model: images it accepts, its description, and its refusals."""

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from equalbits.runtime import NetworkBuilder, PackedModel, load_packed, native

GOLDEN = Path(__file__).parents[1] / "golden"
MAKE = runpy.run_path(str(GOLDEN / "make_packed.py"))


@pytest.fixture
def model() -> PackedModel:
    return load_packed(GOLDEN / "residual.ebits")


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("c++")), reason="there is no C compiler here")
def test_the_native_engine_is_built_where_there_is_a_compiler() -> None:
    """Its own tests are skipped without it: an error in its sources would pass unnoticed."""
    assert native.BUILT is not None, native.REASON


def test_bytes_are_normalised_as_in_training(model: PackedModel) -> None:
    pixels = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8)
    reals = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.25)
    np.testing.assert_array_equal(model(pixels), model(reals))


def test_one_image_needs_no_batch(model: PackedModel) -> None:
    images = MAKE["image"](model.network)
    assert model(images[1]).shape == (4,)
    np.testing.assert_array_equal(model(images[1]), model(images)[1])


def test_every_image_of_a_long_batch_gets_its_own_answer(model: PackedModel) -> None:
    images = np.concatenate([MAKE["image"](model.network)] * 20)[1:]
    np.testing.assert_array_equal(model(images)[::2], np.broadcast_to(model(images[0]), (20, 4)))
    assert model(images[:0]).shape == (0, 4)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((2, 8, 8, 3), np.float32), r"the model takes \(batch, 3, 8, 8\)"),
        (np.zeros((3, 8), np.float32), r"the model takes \(batch, 3, 8, 8\)"),
        (np.zeros((1, 1, 3, 8, 8), np.float32), r"the model takes \(batch, 3, 8, 8\)"),
        (np.zeros((1, 3, 8, 8), np.int64), "give float32, or uint8"),
        (np.zeros((1, 3, 8, 8), np.complex64), "give float32, or uint8"),
    ],
)
def test_images_of_another_kind_are_refused(model: PackedModel, images: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model(images)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e39])
def test_an_image_that_is_not_finite_is_refused_and_not_answered_by_its_signs(
    model: PackedModel, number: float, dtype: type
) -> None:
    images = MAKE["image"](model.network).astype(dtype)
    model(images)
    with np.errstate(over="ignore"):
        images[1, 2, 3, 4] = number
    for engine in (model, PackedModel(model.network, engine="numpy")):
        with pytest.raises(ValueError, match=r"^image 1 holds numbers that are not finite in float32"):
            engine(images)
        with pytest.raises(ValueError, match=r"^image 0 holds"):
            engine(images[1])


@pytest.mark.parametrize(
    "otherwise",
    [
        np.asfortranarray,
        lambda images: images.astype(np.float64),
        lambda images: images.astype(">f4"),
        lambda images: np.flip(np.flip(images, 3).copy(), 3),
        lambda images: np.repeat(images, 2, axis=0)[::2],
        lambda images: images.tolist(),
        lambda images: _frozen(images),
    ],
)
def test_the_memory_layout_of_an_image_changes_no_output(
    model: PackedModel, otherwise: Callable[[np.ndarray], np.ndarray]
) -> None:
    images = MAKE["image"](model.network)
    np.testing.assert_array_equal(model(otherwise(images)), model(images))
    pixels = np.arange(images.size).astype(np.uint8).reshape(images.shape)
    turned = np.asfortranarray(pixels)[:, :, ::-1]
    np.testing.assert_array_equal(model(turned), model(np.ascontiguousarray(turned)))


def _frozen(images: np.ndarray) -> np.ndarray:
    images = images.copy()
    images.flags.writeable = False
    return images


def test_bytes_are_refused_if_the_file_has_no_mean() -> None:
    plain = load_packed(GOLDEN / "plain.ebits")
    with pytest.raises(ValueError, match="no mean and std"):
        plain(np.zeros((1, 6, 6), np.uint8))


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"threads": 1.5}, {"threads": True}, {"engine": "gpu"}])
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        load_packed(GOLDEN / "plain.ebits", **wrong)  # type: ignore[arg-type]


def test_the_audit_counts_every_filter_from_the_file_alone(model: PackedModel) -> None:
    conv1, conv2 = model.audit().layers
    assert (conv1.name, conv1.connections, len(conv1.positive)) == ("block.conv1", 72, 8)
    assert (conv1.positive + conv1.negative == 72).all()
    assert (conv2.zero == 18).all()
    plain = load_packed(GOLDEN / "plain.ebits").audit()
    assert plain.exact
    assert plain.layers[0].positive.tolist() == [5] * 4
    assert "1 of 2 layers promise a share of +1; all 4 filters are exact" in str(plain)


def test_the_audit_finds_one_bit_too_many() -> None:
    symbols = np.tile([1, -1], (3, 8))
    symbols[1, 1] = 1
    build = NetworkBuilder((16, 1, 1))
    build.add_binary("linear", build.add("flatten", build.image), symbols, name="fc", p_pos=0.5)
    audit = PackedModel(build.finish()).audit()
    assert not audit.exact
    assert audit.layers[0].inexact.tolist() == [1]
    assert "no: 1" in str(audit) and "1 of 3 filters are not exact" in str(audit)


def test_the_audit_of_pruned_layers_counts_the_share_among_the_kept() -> None:
    symbols = np.array([[1, 1, -1, -1, 0, 0, 0], [1, 1, -1, 0, 0, 0, 0], [0] * 7])
    build = NetworkBuilder((7, 1, 1))
    build.add_binary("linear", build.add("flatten", build.image), symbols, name="fc", p_pos=0.5)
    audit = PackedModel(build.finish()).audit()
    assert audit.exact
    assert audit.layers[0].zero.tolist() == [3, 4, 7]


def test_the_summary_counts_weights_bytes_and_products(model: PackedModel) -> None:
    summary = model.summary()
    assert summary.total("binary_weights") == 8 * 72 + 16 * 72
    assert summary.total("binary_macs") == 8 * 72 * 64 + 16 * 72 * 16
    assert summary.total("real_macs") == 8 * 27 * 64 + 16 * 8 * 16 + 16 * 4
    assert summary.total("stored_bytes") == sum(tensor.nbytes for tensor in model.network.tensors.values())
    assert "block.conv2" in str(summary) and str(summary).splitlines()[-2].startswith("total")
    assert model.network.layer_name(2) == "#2"


def test_the_summary_names_the_bits_of_both_factors_of_its_products() -> None:
    """Images in bytes, then 4 bits, then bytes again; ±1 stays one bit where bytes are allowed."""
    eight = load_packed(GOLDEN / "eight_bits.ebits").summary()
    assert {layer.name: layer.factors for layer in eight.layers if layer.kind == "conv"} == {
        "conv1": (1, 8),
        "conv2": (1, 4),
        "conv3": (1, 8),
    }
    assert "MACs 1×4  MACs 1×8\n" in str(eight) and "138,240    45,120\n" in str(eight)
    rounded = load_packed(GOLDEN / "rounded.ebits").summary()
    assert [layer.factors for layer in rounded.layers if layer.kind == "linear"] == [(1, 8), (1, 8), (1, 1)]


def test_a_model_saved_again_is_the_same_file(model: PackedModel, tmp_path: Path) -> None:
    model.save(tmp_path / "again.ebits")
    assert (tmp_path / "again.ebits").read_bytes() == (GOLDEN / "residual.ebits").read_bytes()


@pytest.mark.parametrize("threads", [0, -1, 1025, 1.0, True])
def test_an_invalid_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads={threads} must be an integer from 1 to 1024"):
        load_packed(GOLDEN / "residual.ebits", threads=threads)


def test_anything_but_a_packed_file_is_refused_in_one_line(model: PackedModel, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.ebits does not exist: give a packed file"):
        load_packed(tmp_path / "no.ebits")
    with pytest.raises(ValueError, match=f"^{tmp_path} is a directory: give a file$"):
        load_packed(tmp_path)
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(ValueError, match=f"is a directory: pack it first: equalbits pack {tmp_path} net.ebits"):
        load_packed(str(tmp_path))
    for keep in (5, 100, -1):
        (tmp_path / "cut.ebits").write_bytes((GOLDEN / "residual.ebits").read_bytes()[:keep])
        with pytest.raises(ValueError, match=f"^{tmp_path / 'cut.ebits'}: "):
            load_packed(tmp_path / "cut.ebits")


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(model: PackedModel, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        model.save(tmp_path / "no" / "x.ebits")
    assert refused.value.filename == str(tmp_path / "no" / "x.ebits")
    (tmp_path / "folder.ebits").mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        model.save(tmp_path / "folder.ebits")
    assert refused.value.filename == str(tmp_path / "folder.ebits")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.ebits"]
