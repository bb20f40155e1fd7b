"""A packed model can be copied, pickled and sent to worker processes, as the bytes of its file."""

import copy
import multiprocessing
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest

from equalbits.runtime import FormatError, PackedModel, load_packed, native
from equalbits.runtime.format import to_chunks

GOLDEN = Path(__file__).parents[1] / "golden"
ENGINES = ["auto", "numpy"] if native.BUILT is None else ["auto", "native", "numpy"]


@pytest.fixture(params=ENGINES)
def model(request: pytest.FixtureRequest) -> PackedModel:
    return load_packed(GOLDEN / "residual.ebits", threads=2, engine=request.param)


def images_for(model: PackedModel) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, *model.network.input_shape)).astype(np.float32)


def assert_same(ours: PackedModel, other: PackedModel) -> None:
    assert b"".join(to_chunks(ours.network)) == b"".join(to_chunks(other.network))
    assert (ours.threads, ours.engine, ours._requested) == (other.threads, other.engine, other._requested)
    images = images_for(ours)
    np.testing.assert_array_equal(ours(images), other(images))
    pixels = np.arange(images[0].size, dtype=np.uint8).reshape(images[0].shape)
    np.testing.assert_array_equal(ours(pixels), other(pixels))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_the_same_model(model: PackedModel, protocol: int) -> None:
    assert_same(pickle.loads(pickle.dumps(model, protocol)), model)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_the_same_model(model: PackedModel, copied: object) -> None:
    assert_same(copied(model), model)


def test_a_model_in_memory_travels_before_it_was_saved(model: PackedModel) -> None:
    again = PackedModel(model.network, threads=1, engine="numpy")
    assert_same(pickle.loads(pickle.dumps(again)), again)


def test_a_new_process_returns_the_same_outputs(model: PackedModel) -> None:
    images = images_for(model)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(model, (images,)), model(images))


def test_a_pickle_calls_one_function_on_plain_data_and_a_damaged_one_is_refused(model: PackedModel) -> None:
    pickled = pickle.dumps(model, 2)
    called = [name for code, name, _ in pickletools.genops(pickled) if code.name in ("GLOBAL", "STACK_GLOBAL")]
    assert [name for name in called if not name.startswith("_codecs")] == ["equalbits.runtime.engine _from_packed"]
    whole = bytearray(pickle.dumps(model))
    whole[whole.index(b"sha256") + 12] ^= 1
    with pytest.raises(FormatError, match="sha256"):
        pickle.loads(whole)
