"""``einsum`` packs to what torch computes, or is refused in one line."""

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.deploy import PackError, pack


class Equation(nn.Module):
    """Apply an equation to the image, to a part of it or to constants."""

    def __init__(self, equation: str, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.equation, self.constants = equation, nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = [images, images[:, :, :, :3].relu(), images[:, 0]]
        count = self.equation.partition("->")[0].count(",") + 1 - len(self.constants)
        return torch.einsum(self.equation, *values[:count], *self.constants).flatten(1)


EQUATIONS = [
    ("bhwc,bhwk->bhck",),
    ("bhwc,bhwk->bkc",),
    ("bhwc,bhwk,bwc->bhk",),
    ("bhwc->bchw",),
    ("bhwc->bc",),
    ("bhwc",),
    ("...c,...k->...ck",),
    ("bhwc,hck->bhwk", (4, 6, 5)),
    ("bhwc,wkc->bhwk", (3, 5, 6)),
    ("bhwc,kc->bkhw", (5, 6)),
    ("bhwc,c->bhw", (6,)),
    ("b...c,kc->b...k", (5, 6)),
    ("bhwc,hk,ckm->bwm", (4, 5), (6, 5, 2)),
]


@pytest.mark.parametrize("given", EQUATIONS, ids=lambda given: given[0])
def test_equations_pack(given, kind=Equation):
    torch.manual_seed(0)
    model, images = kind(*given).eval(), torch.randn(3, 4, 3, 6)
    packed = pack(model, images[:2])
    with torch.no_grad():
        expected = model(images).numpy()
    np.testing.assert_allclose(packed(images.numpy()), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "given", [("kc,bhwc->bkhw", (5, 6)), ("hkc,bhwc->bhwk", (4, 5, 6))], ids=lambda given: given[0]
)
def test_constants_multiply_from_the_left(given):
    class FromLeft(Equation):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.einsum(self.equation, self.constants[0], images).flatten(1)

    test_equations_pack(given, FromLeft)


class Left(nn.Module):
    """Multiply images by a constant from the left."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(sizes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (self.left @ (images if self.left.dim() > 2 else images.flatten(1))).flatten(1)


def test_a_matrix_for_each_channel_multiplies_from_the_left():
    model, images = Left(4, 5, 3).eval(), torch.randn(3, 4, 3, 6)
    packed = pack(model, images[:2])
    np.testing.assert_allclose(packed(images.numpy()), model(images).detach().numpy(), atol=1e-5)


def test_a_matrix_that_mixes_images_is_refused():
    with pytest.raises(PackError, match="layer 'matmul' multiplies along the batch"):
        pack(Left(2, 2).eval(), torch.randn(2, 4, 3, 6))


class Heads(nn.Module):
    """Add position scores to images that are folded with the batch, as SAM's attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(3, 5, 6))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts = images.flatten(0, 1)
        scores = torch.einsum("bhc,hkc->bhk", parts, self.rows) + torch.einsum("bhc,bkc->bhk", parts, parts[:, :1])
        return scores.reshape(len(images), -1)


def test_equations_of_a_folded_batch_pack():
    torch.manual_seed(0)
    model, images = Heads().eval(), torch.randn(3, 4, 3, 6)
    packed = pack(model, images[:2])
    with torch.no_grad():
        expected = model(images).numpy()
    np.testing.assert_allclose(packed(images.numpy()), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("bhwc->hbwc", "layer '0' needs .* but gets a value whose batch is not the first axis"),
        ("bhwc,bhwk->hck", "layer '0' does bmm.default on values whose batch axes are in different places"),
        ("bhhw->bhw", r"layer '0' \(Equation\) does aten.diagonal.default, which a packed network cannot"),
    ],
)
def test_other_equations_are_refused_in_one_line(equation, words):
    with pytest.raises(PackError, match=words):
        pack(nn.Sequential(Equation(equation)), torch.randn(4, 4, 4, 6))


def test_padding_by_minus_infinity_before_a_maximum_packs():
    model = nn.Sequential(nn.ConstantPad2d((0, 1, 0, 1), -float("inf")), nn.MaxPool2d(2, 2), nn.Flatten())
    images = torch.randn(3, 4, 5, 5)
    np.testing.assert_array_equal(pack(model, images)(images.numpy()), model(images).numpy())
