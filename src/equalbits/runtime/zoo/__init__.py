"""Trained networks that ship with the package: packed files by name, each with a generated card.

An entry is three files: ``NAME.ebits``; ``NAME.json``, its card; and ``NAME.npz``, some test images with their labels
and the logits that the file must give for them. Some have ``NAME.safetensors`` as well, the latent weights to train on.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from equalbits._text import unknown_name
from equalbits.runtime.op_specs import Array

#: Prefix of a name in place of a path.
PREFIX = "zoo:"
#: Directory of the entries.
ZOO = Path(__file__).parent


def list_zoo() -> list[str]:
    """Return the names of all entries."""
    return sorted(path.stem for path in ZOO.glob("*.ebits"))


def zoo_card(name: str) -> dict[str, Any]:
    """Return the card of an entry: data, accuracy with counts, seed, settings, bytes, date, milliseconds and CPU."""
    card: dict[str, Any] = json.loads(_entry(name).with_suffix(".json").read_text(encoding="utf-8"))
    return card


def find_packed(path: str | os.PathLike[str]) -> Path:
    """Return a path as it is, and the packed file of an entry for ``zoo:NAME``.

    >>> find_packed("zoo:cifar")
    Traceback (most recent call last):
    ValueError: zoo entry 'cifar' is not known: ...
    """
    word = os.fspath(path)
    return _entry(word.removeprefix(PREFIX)) if word.startswith(PREFIX) else Path(path)


def find_checkpoint(word: str) -> Path:
    """Return the latent weights of the entry ``zoo:NAME``; raise where it ships without them."""
    name = word.removeprefix(PREFIX)
    path = _entry(name).with_suffix(".safetensors")
    if not path.is_file():
        trainable = ", ".join(f"{PREFIX}{each}" for each in list_zoo() if (ZOO / f"{each}.safetensors").is_file())
        raise ValueError(f"{word} ships packed only, without latent weights to train on: use one of {trainable}")
    return path


def has_weights(word: str) -> bool:
    """Return whether the entry ``zoo:NAME`` ships its latent weights as well, to train on."""
    return _entry(word.removeprefix(PREFIX)).with_suffix(".safetensors").is_file()


def stored_images(path: Path) -> Array | None:
    """Return the test images stored beside the packed file of an entry; None for a file that is no entry."""
    if path.parent != ZOO:
        return None
    with np.load(path.with_suffix(".npz")) as stored:
        images: Array = stored["images"]
        return images


def _entry(name: str) -> Path:
    if name not in list_zoo():
        raise unknown_name("zoo entry", name, list_zoo())
    return ZOO / f"{name}.ebits"
