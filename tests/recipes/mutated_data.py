"""Mutated data: CIFAR files and picture trees that are damaged, odd, or not files."""

import io
import os
import random
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from equalbits.data import Decoding, FolderLoader, load_dataset


def damaged(r: random.Random, whole: bytes) -> bytes:
    """Bytes that are cut off, flipped, put in or repeated."""
    way, place = r.randrange(5), r.randrange(len(whole) or 1)
    if way == 0:
        return whole[:place]
    if way == 1:
        return whole[:place] + r.randbytes(r.randrange(1, 20)) + whole[place + r.randrange(3) :]
    if way == 2:
        return r.choice([b"", b"\x00", b"\xff" * 100, whole * 2, whole + b"\x00"])
    changed = bytearray(whole or b"\x00")
    for _ in range(r.choice([1, 1, 2, 8, 64])):
        changed[r.randrange(len(changed))] ^= 1 << r.randrange(8)
    return bytes(changed)


class Cifar:
    """CIFAR-10 and CIFAR-100 in both editions, with files damaged, gone, linked, or of another dtype."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        numbers = np.random.default_rng(0)
        self.files: dict[str, dict[str, bytes]] = {}
        for name, folder_name, widths, files in (
            (
                "cifar10",
                "cifar-10-batches-bin",
                [10],
                [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"],
            ),
            ("cifar100", "cifar-100-binary", [20, 100], ["train.bin", "test.bin"]),
        ):
            labels = np.stack([numbers.integers(0, width, 3, dtype=np.uint8) for width in widths], 1)
            records = np.concatenate([labels, numbers.integers(0, 256, (3, 3072), dtype=np.uint8)], 1).tobytes()
            classes = "\n".join(f"kind {i}" for i in range(widths[-1])).encode()
            meta = "batches.meta.txt" if name == "cifar10" else "fine_label_names.txt"
            self.files[name] = {f"{folder_name}/{file}": records for file in files} | {f"{folder_name}/{meta}": classes}
        images, labels = numbers.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8), np.array([0, 9, 4])
        self.files["numpy"] = {"classes.txt": "\n".join(f"kind {i}" for i in range(10)).encode()}
        for split in ("train", "test"):
            self.files["numpy"] |= {f"{split}_images.npy": _npy(images), f"{split}_labels.npy": _npy(labels)}

    def case(self, r: random.Random) -> str:
        shutil.rmtree(self.folder)
        name = r.choice(["cifar10", "cifar100", "numpy"])
        files = dict(self.files[name])
        for _ in range(r.choice([1, 1, 2])):
            victim = r.choice(sorted(files))
            files[victim] = damaged(r, files[victim])
            if victim.endswith(".npy") and r.random() < 0.6:
                files[victim] = _odd_array(r)
        for path, content in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(content)
        victim = self.folder / r.choice(sorted(files))
        odd = r.randrange(12)
        if odd < 4:
            victim.unlink()
        if odd == 0:
            victim.mkdir()
        elif odd == 1:
            victim.symlink_to(victim)
        elif odd == 2:
            os.mkfifo(victim)
        split = r.choice(["train", "test"])
        found = load_dataset("cifar10" if name == "numpy" else name, self.folder, split=split)
        assert found.images.dtype == torch.uint8 and found.images.shape == (len(found.labels), 3, 32, 32)
        assert int(found.labels.min()) >= 0 and int(found.labels.max()) < len(found.classes)
        return "read"


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _odd_array(r: random.Random) -> bytes:
    """A whole numpy file of an odd dtype, shape or claim."""
    dtype = r.choice(["u1", "i1", "<i8", ">i8", "f4", "?", "S3", "M8[s]", "c8", "u1,u1"])
    shape = r.choice([(3, 32, 32, 3), (3,), (), (0,), (3, 1), (0, 32, 32, 3), (2, 32, 32, 3)])
    whole = _npy(np.zeros(shape, dtype))
    claim = r.choice([b"(3,", b"(9999999999999,", b"(-3,", b"(" * 500 + b"3,"])
    return whole if r.random() < 0.6 else whole.replace(b"(3,", claim, 1)


class Pictures:
    """Trees of pictures of every format: damaged files, checksums of PNG refitted, odd entries and odd names."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.pictures: list[tuple[str, bytes]] = []
        colours = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
        for suffix in ("png", "jpg", "bmp", "ppm", "tif", "webp"):
            for mode in ("RGB", "L", "1", "P", "RGBA") if suffix in ("png", "tif") else ("RGB",):
                path = folder / f"x.{suffix}"
                Image.fromarray(colours).convert(mode).save(path)
                self.pictures.append((suffix, path.read_bytes()))
                path.unlink()

    def case(self, r: random.Random) -> str:
        shutil.rmtree(self.folder)
        for split, label in (("train", "a"), ("train", "b"), ("val", "a")):
            home = self.folder / split / label
            home.mkdir(parents=True)
            suffix, whole = r.choice(self.pictures)
            (home / f"0.{suffix}").write_bytes(whole)
        home = self.folder / "train" / r.choice("ab")
        suffix, whole = r.choice(self.pictures)
        path = home / (r.choice(["1", "\x1b[2J", "é\udcff", "a" * 240, " ", "[red]"]) + "." + suffix)
        odd = r.randrange(16)
        if odd == 0:
            os.mkfifo(path)
        elif odd == 1:
            path.symlink_to(r.choice([path, home, "/dev/zero", "/nowhere"]))
        elif odd == 2:
            path.mkdir()
        elif odd == 3:
            path.symlink_to(home / ".." / "..")
        elif odd == 4:
            (self.folder / r.choice(["train", "val"]) / r.choice(["c", "\x1b[2J", ".hidden"])).mkdir()
        elif odd == 5:
            shutil.rmtree(self.folder / r.choice(["train", "val", "train/a", "val/a"]))
        else:
            damage = _refitted if suffix == "png" and r.random() < 0.7 else damaged
            path.write_bytes(damage(r, whole))
        found = load_dataset("imagefolder", self.folder, split=r.choice(["train", "train", "train", "test"]))
        decoding = Decoding(resize=8, crop=8, workers=0, fit=r.choice(["stretch", "crop", "pad"]))
        loader = FolderLoader(_with_decoding(found, decoding), batch_size=2)
        count = 0
        for images, labels in loader:
            assert images.shape[1:] == (3, 8, 8) and bool(images.isfinite().all())
            assert int(labels.min()) >= 0 and int(labels.max()) < len(found.classes)
            count += len(images)
        assert count == len(found)
        return "decoded"


def _with_decoding(dataset: Any, decoding: Decoding) -> Any:
    return replace(dataset, decoding=decoding)


def _refitted(r: random.Random, whole: bytes) -> bytes:
    """A PNG with one chunk changed, its checksum refitted, so that the decoder has to judge it."""
    chunks, place = [], 8
    while place < len(whole):
        length = int.from_bytes(whole[place : place + 4], "big")
        chunks.append((whole[place + 4 : place + 8], whole[place + 8 : place + 8 + length]))
        place += 12 + length
    number = r.randrange(len(chunks))
    kind, body = chunks[number]
    chunks[number] = (r.choice([kind, kind, b"tEXt", b"zTXt", b"iCCP", b"fdAT"]), damaged(r, body))
    if r.random() < 0.3:
        chunks.insert(number, (r.choice([b"tRNS", b"acTL", b"eXIf", b"PLTE", b"IHDR"]), r.randbytes(r.randrange(30))))
    return whole[:8] + b"".join(
        len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big") for kind, body in chunks
    )
