"""Bits packed by numpy and by torch's own operations are the same bytes; ``test_bit_kernels`` has those of a GPU."""

import pytest
import torch

from equalbits.functional.packed_bits import BitLayout, pack_bits, pack_by_shifts, unpack_bits, unpack_by_shifts

SHAPES = ((0, 5), (1, 1), (3, 7), (2, 8), (5, 9), (4, 64), (600, 3))
DTYPES = (torch.bool, torch.float32, torch.bfloat16, torch.float64)


def draw(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) < 0.4


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_keeps_every_bit_and_equals_its_slow_twin(shape: tuple[int, int]) -> None:
    bits = draw(*shape)
    packed = pack_bits(bits)
    assert packed.shape == (shape[0], (shape[1] + 7) // 8) and torch.equal(packed, pack_by_shifts(bits))
    assert pack_bits(bits.T.contiguous().T).is_contiguous()  # the kernels read rows
    for dtype in DTYPES:
        expected = bits if dtype == torch.bool else torch.where(bits, 1.0, -1.0).to(dtype)
        for values in (unpack_bits(packed, shape[1], dtype), unpack_by_shifts(packed, shape[1], dtype)):
            assert values.dtype == dtype and torch.equal(values, expected)


def test_a_tensor_returns_with_its_shape_and_memory_format() -> None:
    whole = draw(2, 5, 3, 4)
    strided = whole.contiguous(memory_format=torch.channels_last)
    for bits in (whole, strided, whole[0, 0, 0], whole[:, 0], whole.transpose(0, 1)):
        layout = BitLayout.of(bits)
        again = layout.unpack(layout.pack(bits), torch.bool)
        assert torch.equal(again, bits)
    assert again.is_contiguous()  # of a memory format that is not kept
    assert BitLayout.of(strided).unpack(BitLayout.of(strided).pack(strided), torch.bool).stride() == strided.stride()
