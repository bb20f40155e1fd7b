"""The Triton kernels for bits equal their slow twins to the bit, interpreted and on a GPU."""

import warnings

import pytest
import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional import sign_symbols
from equalbits.functional.packed_bits import pack_by_shifts, unpack_by_shifts

#: Channels, filters, kernel size, stride and padding; none fills a tile.
FORMS = ((40, 20, 3, 1, 1), (70, 20, 3, 2, 1), (33, 5, 1, 2, 0), (5, 17, 1, 1, 0))
MATRICES = ((0, 5), (1, 1), (3, 7), (2, 8), (5, 9), (4, 64), (600, 3))


def draw_symbols(*shape: int, zeros: bool = False) -> Tensor:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return torch.where(noise.abs() < 0.3 * zeros, 0.0, torch.where(noise >= 0, 1.0, -1.0))


def packing(device: str) -> None:
    from equalbits.functional.kernels import pack_bits as gpu

    for shape in MATRICES:
        bits = (draw_symbols(*shape) > 0).to(device)
        packed = gpu.pack(bits)
        assert torch.equal(packed, pack_by_shifts(bits)), shape
        for dtype in (torch.bool, torch.float32, torch.float16):
            assert torch.equal(gpu.unpack(packed, shape[1], dtype), unpack_by_shifts(packed, shape[1], dtype)), shape


def convolution(device: str) -> None:
    from equalbits.functional.kernels import int8_convolution as gpu

    # Triton's interpreter cannot multiply in bfloat16.
    dtypes = (torch.float8_e4m3fn, torch.int8, torch.float16, torch.bfloat16)[: 4 if device == "cuda" else 3]
    small = gpu.Tiles(positions=64, filters=16, channels=32)
    scale = torch.tensor(0.037, device=device)
    for number, (channels, filters, size, stride, padding) in enumerate(FORMS):
        signs = draw_symbols(2, channels, 7, 6).to(device, memory_format=torch.channels_last)
        symbols = draw_symbols(filters, channels, size, size, zeros=True).to(device)
        form = (stride, stride), (padding, padding)
        expected = nnf.conv2d(signs, symbols, None, *form) * scale
        tiles = small._replace(split=3 if number == 1 else 1)
        for dtype in dtypes if number == 0 or device == "cuda" else dtypes[:1]:
            answer = gpu.convolve(signs.to(dtype), symbols.to(dtype), scale, form, torch.float32, tiles)
            assert torch.equal(answer, expected), (number, dtype)
            assert answer.is_contiguous(memory_format=torch.channels_last)
    few = gpu.choose_tiles(2048, 512, 512, 9)
    many = gpu.choose_tiles(128 * 32 * 32, 64, 64, 9)
    assert few.split > 1 and many.split == 1
    for size in (1, 2):  # bytes of the operands of all stages; a multiprocessor has 227 KiB
        tiles = gpu.choose_tiles(2048, 512, 512, 9, size)
        assert (tiles.positions + tiles.filters) * tiles.channels * size * tiles.stages <= 227 * 2**10


def signs(device: str) -> None:
    from equalbits.functional.kernels import pack_bits as gpu

    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.999, float("nan"), float("inf"), -float("inf")])
    for shape in MATRICES:
        for dtype in (torch.float32, torch.float16):
            inputs = torch.randn(shape, generator=torch.Generator().manual_seed(shape[1]))
            inputs.view(-1)[: len(special)] = special[: inputs.numel()]
            inputs = inputs.to(device, dtype)
            values, positive, near = gpu.sign(inputs, shape[1], torch.float16)
            assert torch.equal(values, sign_symbols(inputs).half()), shape
            assert torch.equal(positive, pack_by_shifts(inputs >= 0)), shape
            assert torch.equal(near, pack_by_shifts(inputs.abs() < 1)), shape
            gradient = draw_symbols(*shape).to(device, dtype)
            assert torch.equal(gpu.mask(gradient, near, shape[1], torch.float32), gradient * (inputs.abs() < 1).float())


LAWS = {"packing": packing, "signs": signs, "convolution": convolution}


@pytest.mark.parametrize("law", LAWS)
def test_the_interpreted_kernels_equal_their_slow_twins(law: str, errors_interpreted: dict[str, str]) -> None:
    assert errors_interpreted[law] == ""


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
def test_the_compiled_kernels_equal_their_slow_twins(law: str) -> None:
    LAWS[law]("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "side"), [(64, 32), (128, 16), (256, 8), (512, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_layers_of_a_resnet_are_convolved_exactly_in_eight_bits(channels: int, side: int, stride: int) -> None:
    signs = draw_symbols(128, channels, side, side).cuda().to(memory_format=torch.channels_last)
    symbols = draw_symbols(channels, channels, 3, 3).cuda().to(memory_format=torch.channels_last)
    scale = torch.tensor(0.0417, device="cuda").bfloat16().float()
    from equalbits.functional.kernels.int8_convolution import convolve

    form = (stride, stride), (1, 1)
    expected = (nnf.conv2d(signs, symbols, None, *form) * scale).bfloat16()
    for dtype in (torch.float8_e4m3fn, torch.int8, torch.bfloat16):
        answer = convolve(signs.to(dtype), symbols.to(dtype), scale, form, torch.bfloat16)
        assert torch.equal(answer, expected), dtype


if __name__ == "__main__":  # in a new process: Triton selects its interpreter at import
    from interpreter import print_errors

    warnings.simplefilter("error")
    print_errors(LAWS)
