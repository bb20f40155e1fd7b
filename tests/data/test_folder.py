"""Image folders in the wild: skipped files are reported, and unreadable ones are named once."""

import os
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from equalbits.data import DataError, Decoding, FolderLoader, load_dataset
from equalbits.data.image_folder import decode_image

SMALL = Decoding(resize=16, crop=12, workers=0)


def test_skipped_files_of_a_tree_are_counted_and_reported_once(tmp_path, image_tree, caplog):
    train = image_tree(tmp_path) / "train"
    load_dataset("imagefolder", tmp_path, split="train")
    assert caplog.messages == []
    (train / "cat" / "more").mkdir()
    (train / "owl" / "7.gif").touch()
    (train / "dog" / ".hidden.gif").touch()
    (train / "README").touch()
    Image.new("RGB", (16, 16)).save(train / "8.png")
    for _ in range(2):
        assert len(load_dataset("imagefolder", tmp_path, split="train")) == 12
    [line] = caplog.messages
    assert line.startswith(f"{train}: 3 files or folders are skipped, such as {train / '8.png'}: images end in .bmp ")


def test_naming_the_training_folder_suggests_its_parent(tmp_path, image_tree):
    image_tree(tmp_path)
    with pytest.raises(DataError, match=rf"no train/ in it; name its parent folder \(--data {tmp_path}\)"):
        load_dataset("imagefolder", tmp_path / "train", split="train")


def test_a_link_to_nowhere_is_named_once(tmp_path):
    (tmp_path / "x.png").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError) as raised:
        decode_image(str(tmp_path / "x.png"), SMALL)
    assert str(raised.value) == (
        f"{tmp_path / 'x.png'}: not a readable image (No such file or directory); replace or remove the file"
    )


def test_the_size_of_pictures_is_given_when_they_are_loaded(tmp_path, image_tree):
    data = load_dataset("imagefolder", image_tree(tmp_path), split="train", decoding=SMALL)
    assert data.decoding == SMALL
    with pytest.raises(DataError, match=r"is for image files: fashion has images of one size; omit it"):
        load_dataset("fashion", split="train", decoding=SMALL)


def test_a_large_picture_is_read_without_a_warning_and_one_too_large_is_refused_in_one_line(
    tmp_path, image_tree, monkeypatch
):
    files = load_dataset("imagefolder", image_tree(tmp_path), split="train")
    found = FolderLoader(replace(files, decoding=SMALL), batch_size=4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with warnings.catch_warnings(action="error"):
        assert len(list(found)) == 3
        assert len(list(found.in_memory())) == 3
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 230)
    with pytest.raises(DataError, match=r"3.png: more pixels than Pillow reads, or damaged; make it smaller"):
        list(found)


def test_a_picture_with_more_pixels_than_allowed_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    Image.new("1", (9000, 9000)).save(path)  # 10 KB
    tracemalloc.start()
    with pytest.raises(DataError, match=r"huge.png: 9000×9000 pixels are more than 67108864: .* raise data.max_pixels"):
        decode_image(str(path), SMALL)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()
    with pytest.raises(DataError, match="9000×9000 pixels are more than 80000000"):
        decode_image(str(path), replace(SMALL, max_pixels=80_000_000))
    Image.new("1", (100, 100)).save(path)
    assert decode_image(str(path), replace(SMALL, max_pixels=10_000)).shape == (3, 16, 16)


def test_a_pipe_named_as_a_picture_is_skipped_with_a_warning_and_its_name_is_escaped(
    tmp_path: Path, image_tree, caplog
) -> None:
    root = image_tree(tmp_path)
    os.mkfifo(root / "train" / "cat" / "\x1b[2Jx.png")
    assert len(load_dataset("imagenet", root, split="train")) == 12
    assert "1 file or folder is skipped" in caplog.text
    assert "\\x1b[2Jx.png" in caplog.text and "\x1b" not in caplog.text


def test_a_link_that_leads_to_itself_is_skipped_with_a_warning(tmp_path: Path, image_tree, caplog) -> None:
    link = image_tree(tmp_path) / "train" / "cat" / "loop.png"
    link.symlink_to(link)
    assert len(load_dataset("imagenet", tmp_path, split="train")) == 12
    assert "1 file or folder is skipped" in caplog.text
