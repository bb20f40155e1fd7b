"""With a hold-out set a run is scored on held-out training images and reads no test image."""

from dataclasses import replace

import pytest
import torch

from equalbits.recipes import DataConfig, get_recipe, run_recipe
from equalbits.recipes.build import make_loader
from equalbits.training.distributed import ProcessRank

ALONE = ProcessRank()


def _loaders(**settings):
    data = DataConfig(name="synthetic:1x8x8:3:30", **settings)
    return [make_loader(data, split, root=None, device="cpu", seed=0, place=ALONE) for split in ("train", "test")]


def test_held_out_images_are_training_images_that_training_does_not_see():
    whole = _loaders()[0].dataset
    train, test = (loader.dataset for loader in _loaders(hold_out=7))
    assert (len(train), len(test)) == (23, 7)
    seen = {bytes(image.flatten().tolist()) for image in train.images}
    held = {bytes(image.flatten().tolist()) for image in test.images}
    assert not seen & held
    assert seen | held == {bytes(image.flatten().tolist()) for image in whole.images}


def test_without_a_hold_out_set_the_test_images_are_used():
    train, test = (loader.dataset for loader in _loaders())
    assert (len(train), len(test)) == (30, 7)


def test_a_limit_takes_images_of_every_class(tmp_path):
    from PIL import Image

    for split in ("train", "val"):
        for kind in "abc":
            (tmp_path / split / kind).mkdir(parents=True)
            for number in range(6):
                Image.new("RGB", (8, 8), (9 * number, 0, 0)).save(tmp_path / split / kind / f"{number}.png")
    data = DataConfig(name="imagefolder", hold_out=6, resize=8, crop=8, workers=0)
    parts = [make_loader(data, split, root=tmp_path, device="cpu", seed=0, place=ALONE) for split in ("train", "test")]
    assert [torch.bincount(part.dataset.labels).tolist() for part in parts] == [[4, 4, 4], [2, 2, 2]]
    assert all("train" in path for path in parts[1].dataset.paths)
    few = make_loader(replace(data, limit=3), "train", root=tmp_path, device="cpu", seed=0, place=ALONE)
    assert few.dataset.labels.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="cannot take 13 files; choose 1 to 12"):
        make_loader(replace(data, limit=13), "train", root=tmp_path, device="cpu", seed=0, place=ALONE)


def test_a_run_is_scored_on_the_hold_out_set(tmp_path):
    settings = {"data.name": "synthetic:1x8x8:3:40", "data.hold_out": 9, "epochs": 1, "model.options.width": 0.05}
    result = run_recipe(get_recipe("fashion-conv2").with_settings(settings), tmp_path, device="cpu")
    assert result.history.last.test.total == 9
    assert result.history.last.train.total == 31


def test_holding_out_everything_is_refused():
    with pytest.raises(ValueError, match=r"hold_out=30 leaves nothing"):
        _loaders(hold_out=30)
    with pytest.raises(ValueError, match=r"data.hold_out=-1"):
        DataConfig(name="fashion", hold_out=-1)
