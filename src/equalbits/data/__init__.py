"""Data sets as tensors: loaded, synthetic or downloaded; augmented in batches on the device; sharded."""

from equalbits.data.augment import (
    Augmentation,
    BoxRandoms,
    Randoms,
    Squares,
    centre_crop,
    erase_squares,
    make_batch,
    normalise,
    random_crop,
    resized_crop,
)
from equalbits.data.datasets import NAMES, data_root, load_dataset
from equalbits.data.download import SOURCES, Source, download_dataset
from equalbits.data.folder_loader import FolderLoader
from equalbits.data.loader import Loader
from equalbits.data.plan import Shard
from equalbits.data.records import STATISTICS, DataError, Dataset, Decoding, FolderDataset, Statistics

__all__ = [
    "NAMES",
    "SOURCES",
    "STATISTICS",
    "Augmentation",
    "BoxRandoms",
    "DataError",
    "Dataset",
    "Decoding",
    "FolderDataset",
    "FolderLoader",
    "Loader",
    "Randoms",
    "Shard",
    "Source",
    "Squares",
    "Statistics",
    "centre_crop",
    "data_root",
    "download_dataset",
    "erase_squares",
    "load_dataset",
    "make_batch",
    "normalise",
    "random_crop",
    "resized_crop",
]
