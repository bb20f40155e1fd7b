"""An exported network runs on a microcontroller: logits of an emulated Cortex-M are numpy's; and so by any compiler."""

import shutil
from dataclasses import replace
from pathlib import Path

import cortex_m
import native_c
import numpy as np
import pytest
from ordered_sums import run_in_order

from equalbits.runtime import Network, NetworkBuilder, PackedModel, export_c, find_packed, list_zoo, load_packed

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
RANDOM = np.random.default_rng(1)


def fashion_net() -> Network:
    """The shape of a small convnet for 28×28 images: every layer binary, int8 last."""
    build = NetworkBuilder((1, 28, 28))
    x = build.image
    for name, shape in (("first", (32, 1, 3, 3)), ("second", (64, 32, 3, 3))):
        x = build.add_binary("conv", x, RANDOM.choice([-1, 1], shape), name=name, kernel=3, padding=1)
        x = build.add("max_pool", x, kernel=2, stride=2)
        x = build.add(
            "sign", build.add("affine", x, gain_shift=RANDOM.standard_normal((2, shape[0])), name=f"{name}.norm")
        )
    x = build.add_binary("linear", build.add("flatten", x), RANDOM.choice([-1, 1], (128, 3136)), name="hidden")
    weight = RANDOM.integers(-127, 128, (10, 128)).astype(np.int8)
    build.add("linear", x, weight=weight, scale=np.full(10, 0.01, np.float32), name="last")
    return replace(build.finish(), mean=(0.25,), std=(0.5,))


@pytest.mark.embedded
@pytest.mark.skipif(bool(cortex_m.MISSING), reason=f"not installed: {', '.join(cortex_m.MISSING)}")
@pytest.mark.parametrize("processor", cortex_m.BOARDS)
@pytest.mark.parametrize("name", ["fashion", "residual", "rounded"])
def test_logits_of_a_cortex_m_are_those_of_numpy(name: str, processor: str, tmp_path: Path) -> None:
    network = fashion_net() if name == "fashion" else load_packed(GOLDEN / f"{name}.ebits").network
    images = RANDOM.standard_normal((20, *network.input_shape)).astype(np.float32)
    if network.mean is not None:
        images = RANDOM.integers(0, 256, images.shape).astype(np.uint8)
    measured = cortex_m.run(network, images, tmp_path, processor)
    np.testing.assert_array_equal(measured.logits, run_in_order(network, images))


def stored_pictures(name: str) -> tuple[PackedModel, np.ndarray, np.ndarray]:
    """Return a network of the zoo, its 100 stored pictures and their logits."""
    with np.load(find_packed(f"zoo:{name}").with_suffix(".npz")) as stored:
        assert len(stored["images"]) == 100
        return load_packed(f"zoo:{name}", engine="numpy"), stored["images"], stored["logits"]


@pytest.mark.embedded
@pytest.mark.parametrize("name", list_zoo())
def test_every_compiler_gives_a_hundred_pictures_the_same_logits_sanitized_or_not(name: str, tmp_path: Path) -> None:
    model, images, logits = stored_pictures(name)
    made = native_c.run(model.network, images, tmp_path, "gcc", *native_c.SANITIZERS)
    np.testing.assert_array_equal(made[:2], run_in_order(model.network, images[:2]))
    np.testing.assert_allclose(made, logits, rtol=1e-5, atol=1e-5 * np.abs(logits).max())
    for compiler in filter(shutil.which, ("gcc", "clang")):
        np.testing.assert_array_equal(native_c.run(model.network, images, tmp_path, compiler, "-O2"), made)


@pytest.mark.embedded
@pytest.mark.skipif(bool(cortex_m.MISSING), reason=f"not installed: {', '.join(cortex_m.MISSING)}")
@pytest.mark.parametrize("name", ["cifar10-resnet18", "fashion-conv4"])  # Conv nets add reals, slowly under emulation
def test_stored_pictures_of_the_zoo_give_the_same_logits_and_the_sizes_of_the_page(name: str, tmp_path: Path) -> None:
    model, images, logits = stored_pictures(name)
    sizes = export_c(model, tmp_path / "net.c", max_flash=3 << 20, max_ram=3 << 20)
    measured, plain = (cortex_m.run(model.network, images, tmp_path, name) for name in ("cortex-m7", "cortex-m3"))
    np.testing.assert_array_equal(measured.logits, plain.logits)
    np.testing.assert_array_equal(measured.logits, native_c.run(model.network, images, tmp_path, "gcc", "-O2"))
    np.testing.assert_allclose(measured.logits, logits, rtol=1e-5, atol=1e-5 * np.abs(logits).max())
    assert measured.ram == sizes.ram and measured.flash > sizes.flash
    numbers = (sizes.flash, measured.flash, measured.ram, measured.instructions, plain.instructions)
    row = f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} |"
    assert row in PAGE, row
