"""A subset of Fashion-MNIST inside the package, so that everything runs without a download.

README.md in this directory describes the files.
"""

import hashlib
import struct
import zlib
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from equalbits.data.dataset import DataError

Bytes = NDArray[np.uint8]

CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
SHA256 = {
    "train": "736da9e871cf089bca2e1ca168ca79266b5773d3fc29aa31b017c6cf61121d05",
    "test": "280f207c17ae1c8c550371f790d5092fcf2314aa4af0410e6f5f7fdbaa3634e4",
}
_HEAD = struct.Struct("<III")  # images, rows, columns


def decode(packed: bytes) -> tuple[Bytes, Bytes]:
    """Return the images (image, row, column) and labels of a file."""
    body = zlib.decompress(packed)
    count, rows, columns = _HEAD.unpack_from(body)
    labels = np.frombuffer(body, np.uint8, count, _HEAD.size)
    rest = np.frombuffer(body, np.uint8, count * rows * columns, _HEAD.size + count)
    images = np.add.accumulate(rest.reshape(count, rows, columns), axis=1, dtype=np.uint8)
    return images, labels.copy()


def read(split: str) -> tuple[Bytes, Bytes]:
    """Return images (image, 28, 28) and labels of ``train`` (10,000) or ``test`` (2,000); verify the checksum."""
    packed = files(__name__).joinpath(f"fashion-{split}.bin").read_bytes()
    found = hashlib.sha256(packed).hexdigest()
    if found != SHA256[split]:
        raise DataError(f"fashion-{split}.bin: sha256 is {found}, not {SHA256[split]}; install equalbits again")
    return decode(packed)
