import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equalbits.nn import HORQ, XNOR, BinaryConv2d
from equalbits.nn.input_quantizers.horq import horq


@given(st.integers(1, 5), st.integers(0, 99))
def test_each_further_sign_lowers_the_squared_error(order, seed):
    inputs = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    errors = [(inputs - horq(inputs, n)).square().sum(dim=(1, 2)) for n in (order, order + 1)]
    assert (errors[1] < errors[0]).all()


def test_order_one_is_the_sign_times_each_images_mean_magnitude():
    inputs = torch.tensor([[[-1.0, 3.0]], [[0.5, 0.5]]])
    assert torch.equal(horq(inputs, 1), torch.tensor([[[-2.0, 2.0]], [[0.5, 0.5]]]))


def test_an_image_is_quantized_alike_in_any_batch():
    inputs = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(horq(inputs)[2:3], horq(inputs[2:3]))


def test_the_gradient_passes_inside_the_clip():
    inputs = torch.tensor([[-2.0, -0.5, 0.5, 2.0]], requires_grad=True)
    horq(inputs).sum().backward()
    assert inputs.grad.tolist() == [[0.0, 1.0, 1.0, 0.0]]


def test_a_layer_takes_it():
    layer = BinaryConv2d(3, 4, 3, weight_quantizer=XNOR(), input_quantizer=HORQ())
    assert layer(torch.randn(2, 3, 8, 8)).shape == (2, 4, 6, 6)


@pytest.mark.parametrize("order", [0, -1, 1.5, True])
def test_an_order_that_is_no_positive_integer_is_refused(order):
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        HORQ(order)
