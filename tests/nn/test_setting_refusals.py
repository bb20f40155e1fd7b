"""Invalid settings raise at construction."""

import math

import pytest

from equalbits.nn import (
    AdaBin,
    BiHalfActivation,
    BNNPlus,
    GatedScale,
    IRNet,
    RBNNActivation,
    SwishSignActivation,
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IRNet(t_max=math.inf), "t_max=inf: the sharpness must grow from a value above 0 to a finite one"),
        (lambda: AdaBin(t_max=math.inf), "t_max=inf: the sharpness must grow"),
        (lambda: RBNNActivation(t_min=math.nan), "t_min=nan"),
        (lambda: BNNPlus(beta=math.inf), "beta=inf gives no slope"),
        (lambda: SwishSignActivation(0), "beta=0 gives no slope"),
        (lambda: BiHalfActivation(pull=math.nan), "pull=nan is not a strength"),
        (lambda: BiHalfActivation(pull="strong"), "pull='strong' is not a strength"),
        (lambda: GatedScale(16, 16, reduction=0), "reduction=0: the divisor of the channels"),
    ],
)
def test_an_invalid_setting_raises(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()
