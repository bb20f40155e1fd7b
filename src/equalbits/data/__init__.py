"""Data sets as tensors: loaded, synthetic or downloaded; augmented in batches on the device; sharded."""

from equalbits.data.augment import Augmentation as Augmentation
from equalbits.data.augment import centre_crop as centre_crop
from equalbits.data.augment import erase_squares as erase_squares
from equalbits.data.augment import normalise as normalise
from equalbits.data.augment import random_crop as random_crop
from equalbits.data.cifar import EDITIONS as EDITIONS
from equalbits.data.dataset import DataError as DataError
from equalbits.data.dataset import Dataset as Dataset
from equalbits.data.dataset import Decoding as Decoding
from equalbits.data.dataset import FolderDataset as FolderDataset
from equalbits.data.dataset import spread as spread
from equalbits.data.download import download_dataset as download_dataset
from equalbits.data.image_folder_loader import FolderLoader as FolderLoader
from equalbits.data.loader import Loader as Loader
from equalbits.data.named_datasets import NAMES as NAMES
from equalbits.data.named_datasets import WITHOUT_FILES as WITHOUT_FILES
from equalbits.data.named_datasets import check_root_is_read as check_root_is_read
from equalbits.data.named_datasets import data_root as data_root
from equalbits.data.named_datasets import load_dataset as load_dataset
from equalbits.data.normalization import STATISTICS as STATISTICS
from equalbits.data.sampling import Shard as Shard
