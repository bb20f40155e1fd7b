import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from equalbits.data import DataError, Decoding, FolderLoader, Loader, Shard, load_dataset, normalise
from equalbits.data.image_folder import decode_image

SMALL = Decoding(resize=16, crop=12, workers=0)


def cores():
    return len(os.sched_getaffinity(0))


def loader(root, split="train", decoding=SMALL, workers=0, **options):
    data = replace(load_dataset("imagefolder", root, split=split), decoding=replace(decoding, workers=workers))
    return FolderLoader(data, **{"batch_size": 5, **options})


def test_evaluation_sees_every_file_once_in_order_cut_from_the_middle(tmp_path, image_tree):
    found = loader(image_tree(tmp_path))
    assert len(found) == 3 and found.sizes == (5, 5, 2)
    images, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    assert tuple(images.shape) == (12, 3, 12, 12) and labels.tolist() == found.dataset.labels.tolist()
    shades = torch.tensor([[40 * (i % 4), 80 * (i // 4), 200] for i in range(12)], dtype=torch.uint8)
    wanted = normalise(shades[:, :, None, None].expand(-1, -1, 12, 12), found.mean, found.std)
    assert torch.equal(images, wanted)  # each image has one colour, which no scaling changes


def test_an_epoch_can_be_resumed_and_shared_among_processes(tmp_path, image_tree):
    image_tree(tmp_path)
    rng = np.random.default_rng(0)
    for path in tmp_path.glob("train/*/*.png"):
        Image.fromarray(rng.integers(0, 256, (18, 20, 3), dtype=np.uint8)).save(path)
    decoding = Decoding(resize=16, crop=12)
    options = {"shuffle": True, "augment": True, "seed": 4, "decoding": decoding}
    whole = list(loader(tmp_path, batch_size=4, **options).epoch(1))
    rest = list(loader(tmp_path, batch_size=4, **options).epoch(1, start_batch=2))
    assert torch.equal(rest[0][0], whole[2][0]) and torch.equal(rest[0][1], whole[2][1]) and len(rest) == 1
    ranks = [loader(tmp_path, batch_size=2, shard=Shard(rank, 2), **options).epoch(1) for rank in range(2)]
    for (images, labels), *parts in zip(whole, *ranks, strict=True):
        torch.testing.assert_close(torch.cat([part[0] for part in parts]), images, atol=0, rtol=0)
        assert torch.equal(torch.cat([part[1] for part in parts]), labels)
    other = list(loader(tmp_path, batch_size=4, **options).epoch(2))
    assert not torch.equal(other[0][0], whole[0][0])


def test_worker_processes_give_the_same_batches_and_stay_for_the_next_epoch(tmp_path, image_tree):
    image_tree(tmp_path)
    options = {"shuffle": True, "augment": True, "batch_size": 4}
    alone, helped = loader(tmp_path, **options), loader(tmp_path, workers=2, **options)
    before = torch.random.get_rng_state()
    next(helped.epoch(5))  # left in the middle
    workers = {child.pid for child in multiprocessing.active_children()}
    for epoch in (0, 1):
        for (images, labels), (theirs, their_labels) in zip(alone.epoch(epoch), helped.epoch(epoch), strict=True):
            assert torch.equal(images, theirs) and torch.equal(labels, their_labels)
    assert {child.pid for child in multiprocessing.active_children()} == workers
    assert len(workers) == min(2, cores())
    assert torch.equal(torch.random.get_rng_state(), before)
    (tmp_path / "train/dog/2.png").write_bytes(b"no image")
    with pytest.raises(DataError) as error:
        list(helped.epoch(2))
    assert "train/dog/2.png: not a readable image" in str(error.value) and "\n" not in str(error.value)


def test_a_worker_that_dies_is_reported_in_one_line(tmp_path, image_tree):
    found = loader(image_tree(tmp_path), batch_size=1, workers=1)
    batches, others = found.epoch(0), set(multiprocessing.active_children())
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - others
    worker.kill()
    with pytest.raises(
        DataError, match=r"a worker that decodes images has died \(.*\); try again, with data.workers=0"
    ):
        list(batches)


READS = """
import sys
from dataclasses import replace
from equalbits.data import Decoding, FolderLoader, load_dataset

data = load_dataset("imagefolder", sys.argv[1], split="train")
loader = FolderLoader(replace(data, decoding=Decoding(resize=16, crop=12, workers=1)), batch_size=5)
next(loader.epoch(0))
print("read", flush=True)
sys.stdin.read()
"""


def test_decoding_workers_end_with_a_killed_parent(tmp_path, image_tree):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", READS, str(image_tree(tmp_path))], **pipes) as process:
        assert process.stdout.readline() == b"read\n"
        process.kill()
        assert process.communicate(timeout=60)[0] == b""  # it comes to an end when no process is left to write there


@pytest.mark.parametrize("keep", [0, 1, 0.5])
def test_a_corrupt_image_is_named_in_one_line(tmp_path, image_tree, keep):
    image_tree(tmp_path, suffix=".JPEG")
    path = tmp_path / "train/owl/3.JPEG"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)] if keep < 1 else b"\x89PNG\r\n\x1a\nand then nothing")
    with pytest.raises(DataError) as error:
        list(loader(tmp_path))
    text = str(error.value)
    assert text.startswith(f"{path}: not a readable image (") and "\n" not in text
    assert text.endswith("replace or remove the file")


def test_a_picture_in_postscript_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/run\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(DataError, match=r"a\.png: not a readable image"):
        decode_image(str(tmp_path / "a.png"), SMALL)
    assert not (tmp_path / "run").exists()


def test_a_picture_whose_suffix_does_not_match_its_format_is_read(tmp_path):
    Image.new("RGB", (9, 9), (10, 20, 30)).save(tmp_path / "a.png", "GIF")
    assert decode_image(str(tmp_path / "a.png"), SMALL)[:, 0, 0].tolist() == [10, 20, 30]


def test_a_deleted_file_is_named(tmp_path, image_tree):
    found = loader(image_tree(tmp_path))
    (tmp_path / "train/cat/0.png").unlink()
    with pytest.raises(DataError, match=r"cat/0.png: not a readable image \(.*No such file"):
        list(found)


def test_an_older_iteration_ends_with_an_error_when_a_new_one_begins(tmp_path, image_tree):
    found = loader(image_tree(tmp_path))
    older = found.epoch(0)
    next(older)
    next(found.epoch(0))
    with pytest.raises(DataError, match="ended when a later one began"):
        next(older)


def gradient(path, size, mode="RGB", **options):
    """An image whose red grows to the right and green downwards."""
    across, down = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    pixels = np.stack([across, down, np.zeros_like(across)], axis=-1).round().astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, **options)
    return str(path)


def test_all_of_a_wide_image_is_shown(tmp_path):
    whole = decode_image(gradient(tmp_path / "wide.png", (128, 64)), Decoding(resize=32, crop=32))
    assert tuple(whole.shape) == (3, 32, 32) and whole.dtype == torch.uint8
    assert all(whole[channel].min() < 10 and whole[channel].max() > 245 for channel in (0, 1))


def test_large_jpeg_files_are_decoded_in_full_before_they_are_scaled(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (256, 200, 3), dtype=np.uint8)).save(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        wanted = np.asarray(image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR))
    assert np.array_equal(decode_image(str(tmp_path / "a.jpg"), SMALL).permute(1, 2, 0).numpy(), wanted)


def test_fit_keeps_the_aspect_ratio_by_cutting_or_by_padding(tmp_path):
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, :4], wide[:, 4:12], wide[:, 12:] = 50, 100, 150
    Image.fromarray(wide).save(tmp_path / "wide.png")
    columns = {
        fit: decode_image(str(tmp_path / "wide.png"), Decoding(8, 8, 0, fit=fit))[0]
        for fit in ("stretch", "crop", "pad")
    }
    assert columns["stretch"][0, 0] == 50 and columns["stretch"][0, -1] == 150
    assert (columns["crop"] == 100).all()
    assert (columns["pad"][:2] == 0).all() and (columns["pad"][-2:] == 0).all() and columns["pad"][4, 0] == 50
    with pytest.raises(DataError, match="fit='square' must be one of stretch, crop, pad"):
        Decoding(fit="square")


def test_loader_is_the_one_loader_of_all_data_sets(tmp_path, image_tree):
    data = replace(load_dataset("imagefolder", image_tree(tmp_path), split="train"), decoding=SMALL)
    found = Loader(data, batch_size=5, shuffle=True, augment=True, seed=3)
    assert isinstance(found, FolderLoader)
    for (ours, labels), (theirs, others) in zip(
        found.epoch(1), FolderLoader(data, batch_size=5, shuffle=True, augment=True, seed=3).epoch(1), strict=True
    ):
        assert torch.equal(ours, theirs) and torch.equal(labels, others)
    with pytest.raises(DataError, match="batch_size=0 must be an integer"):
        Loader(data, batch_size=0)


@pytest.mark.parametrize(
    ("suffix", "mode", "options"),
    [
        ("png", "L", {}),
        ("png", "RGBA", {}),
        ("png", "P", {"transparency": b"\x00\x80"}),
        ("png", "1", {}),
        ("jpg", "CMYK", {}),
        ("jpg", "L", {}),
        ("webp", "RGB", {}),
        ("bmp", "RGB", {}),
    ],
)
def test_every_kind_of_image_becomes_three_channels(tmp_path, suffix, mode, options):
    path = gradient(tmp_path / f"image.{suffix}", (20, 30), mode, **options)
    assert tuple(decode_image(path, SMALL).shape) == (3, 16, 16)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"resize": 10, "crop": 11}, "crop=11 must be 1 to resize=10"),
        ({"crop": 0}, "crop=0 must be 1 to resize=256"),
    ],
)
def test_an_invalid_decoding_is_refused_at_construction(settings, says):
    with pytest.raises(DataError, match=says):
        Decoding(**settings)


def test_invalid_loader_settings_are_refused_at_construction(tmp_path, image_tree, monkeypatch):
    image_tree(tmp_path)
    with pytest.raises(DataError, match="workers=-1 must be 0 or more"):
        loader(tmp_path, workers=-1)
    with pytest.raises(DataError, match="start_batch=4 must be 0 to 3"):
        loader(tmp_path).epoch(0, start_batch=4)
    with pytest.raises(DataError, match=r"loader.epoch\(number\)"):
        iter(loader(tmp_path, shuffle=True))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"need Pillow: install equalbits with the extra images \("):
        loader(tmp_path)


def test_more_workers_than_cores_are_not_started_and_nobody_warns(tmp_path, image_tree):
    found = loader(image_tree(tmp_path), workers=cores() + 3)  # a warning of torch's would be an error here
    assert len(list(found)) == 3
    assert found._decoded.num_workers == cores()


@pytest.mark.parametrize("kind", ["png", "tiff", "ppm"])
def test_a_picture_of_16_bits_keeps_its_greys(kind, tmp_path):
    greys = np.arange(256, dtype=np.uint16).reshape(16, 16)
    fine = greys * 256 + 255 - greys
    if kind == "ppm":
        (tmp_path / "ramp.ppm").write_bytes(b"P5 16 16 65535 " + fine.astype(">u2").tobytes())
    else:
        Image.fromarray(fine).save(tmp_path / f"ramp.{kind}")
    found = decode_image(str(tmp_path / f"ramp.{kind}"), Decoding(resize=16, crop=16))
    assert (found.numpy() == greys).all()


@pytest.mark.parametrize(("numbers", "kind"), [(np.float32, "floats"), (np.int32, "32-bit integers")])
def test_a_picture_without_a_known_value_range_is_refused(numbers, kind, tmp_path):
    Image.fromarray(np.ones((16, 16), numbers)).save(tmp_path / "x.tif")
    with pytest.raises(
        DataError, match=rf"x.tif: not a readable image \(its pixels are {kind}, whose white level is not defined"
    ):
        decode_image(str(tmp_path / "x.tif"), SMALL)


def test_a_script_without_a_guard_reads_images_in_processes_and_is_run_once(tmp_path, image_tree):
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "from dataclasses import replace\n"
        "from equalbits.data import Decoding, FolderLoader, load_dataset\n"
        "print('begun', flush=True)\n"
        "files = load_dataset('imagefolder', sys.argv[1], split='train')\n"
        "files = replace(files, decoding=Decoding(resize=16, crop=12, workers=1))\n"
        "found = FolderLoader(files, batch_size=4)\n"
        "print(len(list(found)), found._decoded.num_workers, __spec__, __file__, flush=True)\n"
    )
    words = [sys.executable, tmp_path / "script.py", image_tree(tmp_path / "tree")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["begun", f"3 1 None {tmp_path / 'script.py'}"]
