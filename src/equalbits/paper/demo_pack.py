"""The demo's last step: the trained bi-half net as a file of bits, run without torch on every test image."""

from dataclasses import dataclass
from pathlib import Path

import torch

from equalbits.data import load_dataset
from equalbits.deploy import Preprocessing, pack
from equalbits.recipes import ImageSpec, load_run
from equalbits.runtime import load_packed


@dataclass(frozen=True)
class Packed:
    """A packed file and how its answers compare with the model's."""

    path: Path
    packed_bytes: int
    float32_bytes: int
    same: int
    total: int

    def __str__(self) -> str:
        return (
            f"Packed: {self.path} holds the bi-half net in {self.packed_bytes:,} bytes, "
            f"{self.float32_bytes / self.packed_bytes:.1f} times fewer than its weights in float32; run without torch "
            f"it gives the model's class for {self.same:,} of {self.total:,} test images."
        )


def pack_run(run: Path, path: Path) -> Packed:
    """Pack the model of a run's folder into ``path``, and ask both for the class of every test image."""
    _, model = load_run(run)
    known = ImageSpec.read(run / "model.json")
    test = load_dataset("fashion", split="test")
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (known.mean, known.std))
    images = (test.images.float() / 255 - mean) / std
    preprocessing = Preprocessing(mean=known.mean, std=known.std)
    pack(model, images[:8], class_names=known.classes, preprocessing=preprocessing).save(path)
    answers = load_packed(path)(test.images.numpy()).argmax(axis=1)  # from the file alone, bytes in
    with torch.no_grad():
        expected = model(images).argmax(dim=1).numpy()
    return Packed(
        path=path,
        packed_bytes=path.stat().st_size,
        float32_bytes=4 * sum(parameter.numel() for parameter in model.parameters()),
        same=int((answers == expected).sum()),
        total=len(expected),
    )
