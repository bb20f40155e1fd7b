"""Convolutions of packed inputs equal torch's to the bit: by unpacking, interpreted in Triton, and on a GPU."""

import warnings

import pytest
import torch
from torch import Tensor

from equalbits.functional.bit_convolution import _convolve_op, convolve_bits, convolve_by_unpacking
from equalbits.functional.packed_bits import BitLayout

#: Batch, channels, height, width, filters, stride and padding.
CASES = (
    ((2, 16, 5, 6), 8, (3, 3), (1, 1), (1, 1)),
    ((1, 40, 7, 5), 24, (3, 3), (2, 2), (1, 1)),
    ((3, 64, 3, 3), 20, (1, 1), (2, 1), (0, 0)),
    ((2, 136, 4, 4), 10, (3, 1), (1, 1), (1, 0)),
)


def draw(case: tuple, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, tuple, tuple, Tensor]:
    """Draw the arguments of ``convolve_bits``, and return what torch's convolution in float64 rounds to."""
    shape, filters, kernel, *form = case
    noise = torch.Generator().manual_seed(sum(shape))
    signs = torch.randint(0, 2, shape, generator=noise).mul(2).sub(1)
    weight = torch.randint(0, 2, (filters, shape[1], *kernel), generator=noise).mul(2).sub(1)
    weight = (weight * torch.linspace(0.01, 0.3, filters)[:, None, None, None]).to(dtype)
    expected = torch.conv2d(signs.double(), weight.double(), None, *form).to(dtype)
    packed = BitLayout(shape, channels_last=True).pack(signs > 0)
    strided = weight.contiguous(memory_format=torch.channels_last)
    return packed.to(device), strided.to(device), shape, tuple(form), expected.to(device)


def every_case(device: str) -> None:
    from equalbits.functional.kernels import bit_convolution as gpu

    dtypes = (torch.float32,) if device == "cpu" else (torch.float16, torch.bfloat16)
    for case in CASES:
        for dtype in dtypes:  # the interpreter rounds 16-bit numbers incorrectly
            packed, weight, shape, form, expected = draw(case, device, dtype)
            for first in (False, True):
                answer = gpu.convolve(packed, weight, shape, form, unpack_first=first)
                assert torch.equal(answer, expected) and answer.is_contiguous(memory_format=torch.channels_last)


def every_tile(device: str) -> None:
    from equalbits.functional.kernels import bit_convolution as gpu

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    packed, weight, shape, form, expected = draw(CASES[1], device, dtype)
    for sizes in ((16, 16, 32), (32, 32, 64), (64, 16, 32)):
        tiles = gpu.Tiles(*sizes, stages=2)
        assert torch.equal(gpu.convolve(packed, weight, shape, form, tiles), expected)


LAWS = {law.__name__: law for law in (every_case, every_tile)}


@pytest.mark.parametrize("law", LAWS)
def test_the_interpreted_kernel_equals_torch_to_the_bit(law: str, errors_interpreted: dict[str, str]) -> None:
    assert errors_interpreted[law] == ""


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
def test_the_compiled_kernel_equals_torch_to_the_bit(law: str) -> None:
    LAWS[law]("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "side"), [(64, 32), (128, 16), (256, 8), (512, 4)])
def test_sums_of_a_large_layer_equal_those_of_cudnn_to_the_bit(channels: int, side: int) -> None:
    case = ((128, channels, side, side), channels, (3, 3), (1, 1), (1, 1))
    packed, weight, shape, form, _ = draw(case, "cuda", torch.bfloat16)
    assert torch.equal(convolve_bits(packed, weight, shape, form), convolve_by_unpacking(packed, weight, shape, *form))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unpacking_equals_torch_and_passes_opcheck(case: tuple) -> None:
    packed, weight, shape, form, expected = draw(case, "cpu", torch.float64)
    assert torch.equal(convolve_bits(packed, weight, shape, form), expected)
    torch.library.opcheck(_convolve_op, (packed, weight, shape, *form))


if __name__ == "__main__":  # in a new process: Triton selects its interpreter at import
    from interpreter import print_errors

    warnings.simplefilter("error")
    print_errors(LAWS)
