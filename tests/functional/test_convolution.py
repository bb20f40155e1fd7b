"""Convolutions as matrix products equal torch's convolution, forward and backward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as nnf

from equalbits.functional.conv_as_matmul import conv1x1_as_matmul, conv_as_matmul, convolve

SIZES = st.integers(1, 6)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, *leaves: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, leaves, upstream), torch.autograd.grad(theirs, leaves, upstream)
    )


@settings(deadline=None, max_examples=50)
@given(batch=SIZES, channels=SIZES, filters=SIZES, kernel=st.tuples(SIZES, SIZES), stride=st.tuples(SIZES, SIZES),
       padding=st.tuples(st.integers(0, 3), st.integers(0, 3)), biased=st.booleans())  # fmt: skip
def test_conv_as_matmul_equals_conv2d(batch, channels, filters, kernel, stride, padding, biased) -> None:
    inputs = torch.randn(batch, channels, 9, 8, dtype=torch.float64)
    weight = torch.randn(filters, channels, *kernel, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(filters, dtype=torch.float64) if biased else None
    ours = conv_as_matmul(inputs, weight, bias, stride=stride, padding=padding)
    assert_same(ours, nnf.conv2d(inputs, weight, bias, stride, padding), weight)
    assert ours.is_contiguous(memory_format=torch.channels_last)


@settings(deadline=None, max_examples=50)
@given(batch=SIZES, channels=SIZES, filters=SIZES, stride=st.tuples(SIZES, SIZES), biased=st.booleans())
def test_conv1x1_as_matmul_equals_conv2d(batch, channels, filters, stride, biased) -> None:
    inputs = torch.randn(batch, channels, 7, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(filters, channels, 1, 1, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(filters, dtype=torch.float64) if biased else None
    ours = conv1x1_as_matmul(inputs, weight, bias, stride=stride)
    assert_same(ours, nnf.conv2d(inputs, weight, bias, stride), weight, inputs)


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "kernel", "stride"), [(3, 3, 1), (64, 1, 2), (64, 3, 1), (1, 5, 2)])
def test_convolve_on_a_gpu_equals_conv2d(channels: int, kernel: int, stride: int) -> None:
    inputs = torch.randn(8, channels, 16, 16, dtype=torch.float64)
    weight = torch.randn(32, channels, kernel, kernel, dtype=torch.float64)
    padding = (kernel // 2, kernel // 2)
    ours = convolve(inputs.cuda(), weight.cuda(), None, stride=(stride, stride), padding=padding)
    torch.testing.assert_close(ours.cpu(), nnf.conv2d(inputs, weight, None, stride, padding))


def test_the_gradient_of_conv1x1_as_matmul_keeps_the_memory_layout() -> None:
    """Otherwise the next operation would convert the layout, which takes longer than the product itself."""
    inputs = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    product = conv1x1_as_matmul(inputs, torch.randn(4, 8, 1, 1), None, stride=(2, 2))
    (gradient,) = torch.autograd.grad(product.sum(), inputs)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
