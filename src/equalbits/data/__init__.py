"""Data sets as tensors: loaded, synthetic or downloaded; augmented in batches on the device; sharded."""

from equalbits.data.augment import Augmentation, centre_crop, erase_squares, normalise, random_crop
from equalbits.data.cifar import EDITIONS
from equalbits.data.dataset import DataError, Dataset, Decoding, FolderDataset, spread
from equalbits.data.download import download_dataset
from equalbits.data.image_folder_loader import FolderLoader
from equalbits.data.loader import Loader
from equalbits.data.named_datasets import NAMES, data_root, load_dataset
from equalbits.data.normalization import STATISTICS, Statistics
from equalbits.data.sampling import Shard

__all__ = [
    "EDITIONS",
    "NAMES",
    "STATISTICS",
    "Augmentation",
    "DataError",
    "Dataset",
    "Decoding",
    "FolderDataset",
    "FolderLoader",
    "Loader",
    "Shard",
    "Statistics",
    "centre_crop",
    "data_root",
    "download_dataset",
    "erase_squares",
    "load_dataset",
    "normalise",
    "random_crop",
    "spread",
]
