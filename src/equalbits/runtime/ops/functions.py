"""Functions of single numbers in numpy: chains of float32 operations, the same as in ``native/functions.h``.

Both engines give the same bits, so no sign behind a function depends on the engine.
"""

import numpy as np

from equalbits.runtime.op_specs import Floats

_EXP = (0.001394112128764391, 0.008363179862499237, 0.04166637361049652, 0.16666576266288757, 0.5)
_TANH = (-0.006062236148864031, 0.02097501792013645, -0.05384669825434685, 0.13332746922969818, -0.333333283662796)
_ERFC = (
    *(0.06684846431016922, -0.24016372859477997, 0.20860733091831207, 0.040546003729104996),
    *(0.1884991079568863, 0.2281247079372406, 0.25362902879714966, 0.2539093792438507),
)
_LOG1P = (0.2323121577501297, 0.21705690026283264, 0.28592339158058167, 0.39999711513519287, 0.6666666865348816)

_F = np.float32
#: Added to a number, rounds it to an integer, which its lowest bits then hold.
_TO_INTEGER = _F(12582912.0)


def exp(x: Floats) -> Floats:
    """Return eˣ = 2ⁿ · eʳ with \\|r\\| ≤ ln 2 / 2; 2ⁿ as two factors, since it may lie outside the range of float32.

    >>> exp(np.array([0.0, -np.inf], np.float32))
    array([1., 0.], dtype=float32)
    """
    x = np.where(x > _F(89), _F(89), x)
    x = np.where(x < _F(-104), _F(-104), x)
    shifted = x * _F(1.44269504) + _TO_INTEGER
    n = shifted - _TO_INTEGER
    r = (x - n * _F(0.693359375)) - n * _F(-2.12194440e-4)
    power = (_polynomial(_EXP, r) * (r * r) + r) + _F(1)
    whole = shifted.view(np.int32) - _TO_INTEGER.view(np.int32)
    half = whole >> 1
    result: Floats = power * _power_of_two(half) * _power_of_two(whole - half)
    return result


def sigmoid(x: Floats) -> Floats:
    """Return 1 / (1 + e⁻ˣ)."""
    return _F(1) / (_F(1) + exp(-x))


def tanh(x: Floats) -> Floats:
    """Return the hyperbolic tangent: a polynomial near 0, else by :func:`exp`."""
    square, size = x * x, np.abs(x)
    near = x + x * (square * _polynomial(_TANH, square))
    far = _F(1) - _F(2) / (exp(size + size) + _F(1))
    return np.where(size < _F(0.625), near, np.where(x < 0, -far, far))


def silu(x: Floats) -> Floats:
    """Return x · sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Floats) -> Floats:
    """Return x times the normal distribution up to x; e^(−z²) · t · p(t) is erfc(z) for t = 1 / (1 + 0.45 z)."""
    z = np.abs(x) * _F(0.70710678)
    t = _F(1) / (_F(1) + _F(0.45) * z)
    tail = ((exp(-(z * z)) * t) * _polynomial(_ERFC, t)) * _F(0.5)
    share: Floats = np.where(x < 0, tail, _F(1) - tail)
    return x * share


def gelu_tanh(x: Floats) -> Floats:
    """Return torch's approximation of GELU by tanh, written with a sigmoid."""
    return x * sigmoid(_F(1.5957691216) * (x + _F(0.044715) * ((x * x) * x)))


def mish(x: Floats) -> Floats:
    """Return x · tanh(softplus(x)) = x · n / (n + 2) with n = eˣ (eˣ + 2)."""
    capped: Floats = np.where(x > _F(20), _F(20), x)
    power = exp(capped)
    n = power * (power + _F(2))
    share: Floats = np.true_divide(n, n + _F(2))
    return x * share


def softplus(x: Floats) -> Floats:
    """Return ln(1 + eˣ) = max(x, 0) + ln(1 + e^(−\\|x\\|)), the logarithm as a series of s = u / (2 + u)."""
    power = exp(-np.abs(x))
    s = power / (_F(2) + power)
    square = s * s
    result: Floats = np.where(x > 0, x, _F(0)) + s * (_F(2) + square * _polynomial(_LOG1P, square))
    return result


def elu(x: Floats, alpha: float) -> Floats:
    """Return x above 0, else α (eˣ − 1)."""
    return np.where(x > 0, x, _F(alpha) * (exp(x) - _F(1)))


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    """Return a polynomial, its highest coefficient first."""
    total: Floats = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _F(coefficient)
    return total


def _power_of_two(exponents: "np.typing.NDArray[np.int32]") -> Floats:
    return ((exponents + np.int32(127)) << np.int32(23)).view(np.float32)
