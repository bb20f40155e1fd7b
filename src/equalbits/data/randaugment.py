"""RandAugment (Cubuk et al. 2019, arXiv:1909.13719) of a whole batch at once: an operation of its own for each image.

Pure functions of images and random choices, as in ``augment``. Histogram equalization and sharpness are left out.
"""

import torch
from torch import Tensor
from torch.nn import functional as nnf

GEOMETRIC = ("rotate", "shear x", "shear y", "translate x", "translate y")
OPERATIONS = (*GEOMETRIC, "brightness", "contrast", "color", "solarize", "posterize", "autocontrast", "identity")
#: Largest rotation in radians, shear, and translation as a share of half the side.
_LARGEST = torch.tensor([0.5236, 0.3, 0.3, 0.6, 0.6])


def random_operation(images: Tensor, choices: Tensor, magnitudes: Tensor) -> Tensor:
    """Apply operation ``choices[i]`` of :data:`OPERATIONS` with magnitude −1 to 1 to image i; pixels are 0 to 255.

    >>> bright = random_operation(torch.full((1, 3, 2, 2), 100.0), torch.tensor([5]), torch.tensor([0.5]))
    >>> bright.unique()
    tensor([145.])
    """
    moved = _moved(images.float(), choices, magnitudes)
    size, factor = magnitudes.abs().view(-1, 1, 1, 1), (1 + 0.9 * magnitudes).view(-1, 1, 1, 1)
    grey = moved.mean(dim=1, keepdim=True)
    low, high = moved.amin(dim=(2, 3), keepdim=True), moved.amax(dim=(2, 3), keepdim=True)
    step = 2 ** (4 * size).round()
    changed = {
        "brightness": moved * factor,
        "contrast": grey.mean(dim=(2, 3), keepdim=True) * (1 - factor) + moved * factor,
        "color": grey * (1 - factor) + moved * factor,
        "solarize": torch.where(moved >= 256 * (1 - size), 255 - moved, moved),
        "posterize": (moved / step).floor() * step,
        "autocontrast": torch.where(high > low, (moved - low) * (255 / (high - low).clamp(min=1)), moved),
    }
    for name, result in changed.items():
        moved = torch.where((choices == OPERATIONS.index(name)).view(-1, 1, 1, 1), result, moved)
    return moved.clamp(0, 255)


def _moved(images: Tensor, choices: Tensor, magnitudes: Tensor) -> Tensor:
    """Rotate, shear or translate the images that chose so, bilinearly, with black beyond the border."""
    chosen = nnf.one_hot(choices, len(OPERATIONS))[:, : len(GEOMETRIC)].to(images.dtype)
    angle, shear_x, shear_y, right, down = (chosen * _LARGEST.to(images.device) * magnitudes[:, None]).unbind(1)
    cos, sin = angle.cos(), angle.sin()
    rows = torch.stack([cos, shear_x - sin, right, shear_y + sin, cos, down], dim=1).view(-1, 2, 3)
    grid = nnf.affine_grid(rows, list(images.shape), align_corners=False)
    sampled = nnf.grid_sample(images, grid, align_corners=False)
    return torch.where(chosen.any(dim=1).view(-1, 1, 1, 1), sampled, images)
