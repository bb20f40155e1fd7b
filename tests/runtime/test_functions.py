"""Functions, norms, softmax and products of two values: numpy equals torch, and native equals numpy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as nnf

from equalbits.runtime import FUNCTIONS, NativeEngine, Network, NetworkBuilder, native, run_numpy

SETS = native.BUILT.instruction_sets() if native.BUILT else []
RANDOM = np.random.default_rng(0)
TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": nnf.silu,
    "gelu": nnf.gelu,
    "gelu_tanh": lambda x: nnf.gelu(x, approximate="tanh"),
    "mish": nnf.mish,
    "elu": nnf.elu,
    "softplus": nnf.softplus,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
}


def reals(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def answers(network: Network, images: np.ndarray) -> np.ndarray:
    """Numpy's output; those of every instruction set, on one and two threads, equal it up to rounding."""
    truth = run_numpy(network, images)
    for name in SETS:
        for threads in (1, 2):
            found = NativeEngine(network, name)(images, threads)
            np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-5 * np.abs(truth).max(), err_msg=name)
    return truth


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_is_torchs_up_to_rounding_and_the_same_bits_everywhere(kind: str) -> None:
    special = [0, -0.0, 1e-30, 88.5, -88.5, 30, -30, np.inf, -np.inf, np.nan, 3e38, -3e38]
    numbers = [*np.linspace(-120, 120, 2001), *np.linspace(-1, 1, 2001), *special]
    images = np.array(numbers, np.float32).reshape(1, 1, 1, -1)
    build = NetworkBuilder(images.shape[1:])
    build.add(kind, build.image)
    found = run_numpy(build.finish(), images)
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(build.finish(), name)(images), found)
    exact = TORCH[kind](torch.from_numpy(images).double()).float().numpy()
    finite = np.isfinite(exact) & (np.abs(exact) < 1e38)
    np.testing.assert_allclose(found[finite], exact[finite], rtol=5e-7, atol=5e-7)
    assert np.isnan(found[np.isnan(images)]).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("images", [(6, 5, 37), (33, 1, 2)])
def test_norms_and_softmax_are_torchs_along_every_axis(axis: int, images: tuple[int, ...]) -> None:
    given, scale, bias = reals(2, *images), reals(images[axis]), reals(images[axis])
    last = torch.from_numpy(given).movedim(axis + 1, -1)
    expected = {
        "softmax": last.softmax(-1),
        "layer_norm": nnf.layer_norm(last, [images[axis]], torch.from_numpy(scale), torch.from_numpy(bias)),
        "rms_norm": nnf.rms_norm(last, [images[axis]], torch.from_numpy(scale), 1e-5) + torch.from_numpy(bias),
    }
    for kind, truth in expected.items():
        build = NetworkBuilder(images)
        parts = {} if kind == "softmax" else {"scale": scale, "bias": bias}
        build.add(kind, build.image, axis=axis, **parts)
        found = answers(build.finish(), given)
        np.testing.assert_allclose(found, truth.movedim(-1, axis + 1).numpy(), rtol=1e-5, atol=2e-6)


def test_a_causal_softmax_masks_later_positions() -> None:
    build = NetworkBuilder((3, 4, 6))
    build.add("softmax", build.image, axis=2, causal=True)
    given = reals(2, 3, 4, 6)
    masked = torch.from_numpy(given).masked_fill(~torch.ones(4, 6, dtype=torch.bool).tril(), -torch.inf)
    np.testing.assert_allclose(answers(build.finish(), given), masked.softmax(-1).numpy(), atol=1e-6)


@pytest.mark.parametrize("other", [(6, 1, 1), (1, 5, 7), (6, 5, 1), (1, 1, 1), (6, 5, 7)])
def test_a_product_repeats_axes_of_size_one_on_either_side(other: tuple[int, ...]) -> None:
    given = reals(2, 6, 5, 7)
    for swapped in (False, True):
        build = NetworkBuilder((6, 5, 7))
        part = build.add("slice", build.image, start=(0, 0, 0), stop=other, step=(1, 1, 1))
        build.add("mul", *((part, build.image) if swapped else (build.image, part)))
        expected = given * given[:, : other[0], : other[1], : other[2]]
        np.testing.assert_array_equal(answers(build.finish(), given), expected)


@pytest.mark.parametrize(("rows", "deep", "columns"), [(5, 7, 3), (1, 1, 1), (90, 1100, 33), (3, 64, 100)])
def test_products_of_matrices_are_numpys(rows: int, deep: int, columns: int) -> None:
    build, numbers = NetworkBuilder((1, 2 * deep, rows + columns)), reals(2, 1, 2 * deep, rows + columns)
    both = build.add("reshape", build.image, shape=(2, deep, rows + columns))
    first = build.add("slice", both, start=(0, 0, 0), stop=(2, deep, rows), step=(1, 1, 1))
    second = build.add("slice", both, start=(0, 0, rows), stop=(2, deep, rows + columns), step=(1, 1, 1))
    build.add("matmul", build.add("permute", first, axes=(0, 2, 1)), second)
    apart = numbers.reshape(2, 2, deep, -1).astype(np.float64)
    expected = apart[..., :rows].swapaxes(2, 3) @ apart[..., rows:]
    np.testing.assert_allclose(answers(build.finish(), numbers), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "shapes", "parts", "words"),
    [
        ("softmax", [(2, 3, 4)], {"axis": 3}, "works along axis 3 of a value of shape"),
        ("softmax", [(2, 3, 4)], {"axis": 0, "causal": True}, "it must be the last of several"),
        ("layer_norm", [(2, 3, 4)], {"axis": 2, "eps": -1.0}, "eps=-1.0: it must lie in"),
        ("layer_norm", [(2, 3, 4)], {"axis": 2, "scale": np.ones(3, np.float32)}, r"scale of float32 and shape \(3,\)"),
        ("mul", [(2, 3, 4), (2, 3)], {}, "each axis must be the same, or 1 in one"),
        ("mul", [(2, 3, 4), (2, 2, 4)], {}, "each axis must be the same, or 1 in one"),
        ("matmul", [(2, 3, 4), (2, 3, 4)], {}, r"give \(…, M, K\) and \(…, K, N\)"),
        ("matmul", [(24,), (24,)], {}, r"give \(…, M, K\) and \(…, K, N\)"),
        ("affine", [(2, 3, 4)], {"axis": 2, "gain_shift": np.ones((2, 4), np.float32)}, "has axis=2 on a value"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    kind: str, shapes: list[tuple[int, ...]], parts: dict[str, object], words: str
) -> None:
    build = NetworkBuilder((2, 3, 4))
    values = []
    for shape in shapes:
        flat = build.add("flatten", build.image)
        part = build.add("slice", flat, start=(0,), stop=(int(np.prod(shape)),), step=(1,))
        values.append(build.add("reshape", part, shape=shape))
    build.add(kind, *values, **parts)
    with pytest.raises(ValueError, match=words):
        build.finish()
