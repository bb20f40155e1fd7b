"""Errors of the ranking name the value, the rule and the remedy."""

import math

import pytest
import torch
from torch import Tensor

from equalbits.functional import positive_count, transport_symbols


def with_one(value: float, *, dtype: torch.dtype = torch.float32) -> Tensor:
    latents = torch.zeros(2, 5, dtype=dtype)
    latents[1, 3] = value
    return latents


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("value", "name"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_nonfinite_weights_raise(value: float, name: str, dtype: torch.dtype) -> None:
    latents = with_one(value, dtype=dtype)
    message = rf"latents hold {name}: only finite weights have symbols; lower the learning rate or clip the gradients"
    for rank in (
        transport_symbols,
        lambda w: transport_symbols(w, mask=torch.ones_like(w, dtype=torch.bool)),
        lambda w: transport_symbols(w, 0.0),
    ):
        with pytest.raises(ValueError, match=message):
            rank(latents)


@pytest.mark.parametrize("p_pos", [-0.1, 1.0001, 50, math.nan, math.inf])
def test_a_share_outside_zero_to_one_raises(p_pos: float) -> None:
    latents, mask = torch.zeros(2, 4), torch.ones(2, 4, dtype=torch.bool)
    for rank in (
        lambda: transport_symbols(latents, p_pos),
        lambda: transport_symbols(latents, p_pos, mask=mask),
        lambda: positive_count(4, p_pos),
    ):
        with pytest.raises(ValueError, match=rf"p_pos={p_pos} .* must be a number in \[0, 1\]; one half"):
            rank()


@pytest.mark.parametrize(
    ("mask", "named"),
    [
        (torch.ones(2, 3, dtype=torch.bool), r"\(2, 3\)"),
        (torch.ones(4, dtype=torch.bool), r"\(4,\)"),
        (torch.ones(2, 4), "float32"),
        (torch.ones(2, 4, dtype=torch.uint8), "uint8"),
    ],
)
def test_a_mask_of_the_wrong_shape_or_dtype_raises(mask: Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=rf"mask has .*{named}.*must be bool.*\(2, 4\); True keeps a weight"):
        transport_symbols(torch.zeros(2, 4), mask=mask)


@pytest.mark.parametrize(
    ("latents", "named"),
    [
        (torch.tensor(1.0), r"shape \(\)"),
        (torch.arange(4), "int64"),
        (torch.ones(2, 2, dtype=torch.bool), "bool"),
        (torch.ones(2, 2, dtype=torch.complex64), "complex64"),
    ],
)
def test_latents_without_an_axis_or_not_floating_raise(latents: Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=rf"{named}.*must be floating.*call \.float\(\) or add an axis"):
        transport_symbols(latents)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 4, 0)])
def test_a_filter_without_connections_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a filter needs at least one connection; leave the layer out"):
        transport_symbols(torch.empty(shape))
