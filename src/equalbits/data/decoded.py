"""Decode an image folder once into one tensor, if it is small enough."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from equalbits.data.folder import decode_image
from equalbits.data.records import DataError, Dataset, FolderDataset

#: Most bytes that the decoded images of one split may take.
MAX_BYTES = 2 << 30


def decode_whole(files: FolderDataset, *, threads: int = 1) -> Dataset:
    """Decode all files into a :class:`Dataset` on their device.

    >>> files = FolderDataset("pets", ("a.png",) * 50_000, torch.zeros(50_000).long(), ("cat",), (0.5,) * 3, (0.5,) * 3,
    ...                       torch.device("cpu"))
    >>> decode_whole(files)
    Traceback (most recent call last):
    equalbits.data.records.DataError: pets: 50,000 images of 256×256 take 9.2 GiB in memory, more than 2 GiB: ...
    """
    decoding = files.decoding
    if decoding.random != "crop":
        raise DataError(f"random={decoding.random!r} needs the files in every epoch: use 'crop' to hold them in memory")
    side = decoding.resize
    needed = len(files) * 3 * side * side
    if needed > MAX_BYTES:
        raise DataError(
            f"{files.name}: {len(files):,} images of {side}×{side} take {needed / 2**30:.1f} GiB in memory, more than "
            f"{MAX_BYTES >> 30} GiB: lower data.resize or data.limit, or train one by one from the files, as "
            "equalbits sweep --vary model.weight_quantizer=sign,bihalf does"
        )
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    # Pillow decodes and scales without the GIL, and warns of odd tags and of large images.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(threads) as pool:
        for place, picture in enumerate(pool.map(partial(decode_image, decoding=decoding), files.paths)):
            images[place] = picture
    whole = Dataset(files.name, images, files.labels, files.classes, files.mean, files.std, crop=decoding.crop)
    return whole.to(files.device)
