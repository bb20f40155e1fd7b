"""Image files decoded once and held as one tensor, for data sets that are small enough."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from equalbits.data.folder import Decoding, decode_image
from equalbits.data.records import DataError, Dataset, FolderDataset

#: The most bytes that the decoded images of one split may take.
MAX_BYTES = 2 << 30


def decode_whole(files: FolderDataset, decoding: Decoding, *, threads: int = 1) -> Dataset:
    """The files as a :class:`Dataset` on their device, each scaled as ``decoding`` says; batches hold its crop of them.

    >>> files = FolderDataset("pets", ("a.png",) * 50_000, torch.zeros(50_000).long(), ("cat",), (0.5,) * 3, (0.5,) * 3,
    ...                       torch.device("cpu"))
    >>> decode_whole(files, Decoding())
    Traceback (most recent call last):
    equalbits.data.records.DataError: pets: 50,000 images of 256×256 take 9.2 GiB in memory, and 2 GiB are the most: ...
    """
    if decoding.random != "crop":
        raise DataError(f"random={decoding.random!r} needs the files in every epoch: use 'crop' to hold them in memory")
    side = decoding.resize
    needed = len(files) * 3 * side * side
    if needed > MAX_BYTES:
        raise DataError(
            f"{files.name}: {len(files):,} images of {side}×{side} take {needed / 2**30:.1f} GiB in memory, and "
            f"{MAX_BYTES >> 30} GiB are the most: lower data.resize or data.limit, or train one by one from the files, "
            "as equalbits sweep --vary model.weight_quantizer=sign,bihalf does"
        )
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    # Pillow decodes and scales without holding Python's lock, and warns of odd tags and of pictures that are large.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(threads) as pool:
        for place, picture in enumerate(pool.map(partial(decode_image, decoding=decoding), files.paths)):
            images[place] = picture
    whole = Dataset(files.name, images, files.labels, files.classes, files.mean, files.std, crop=decoding.crop)
    return whole.to(files.device)
