"""Settings that measure an item in a second or two."""

import numpy as np
import pytest

from equalbits.paper import Options

TINY = {"data.name": "synthetic:1x16x16:10:96", "data.limit": 0, "data.batch_size": 32, "epochs": 1}


@pytest.fixture(scope="session")
def tiny():
    """Smaller quick options; further settings, seeds and grids by name."""

    def make(settings=None, **options):
        return Options(**{"quick": True, "device": "cpu", "settings": {**TINY, **(settings or {})}, **options})

    return make


@pytest.fixture(scope="session")
def drawn():
    """Assert that an item wrote its plots and rows."""

    def check(out, name):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{name}.svg").read_text().count("<svg") == 1
        assert (out / "claims.md").read_text().startswith(f"# {name}: ")
        assert (out / "claims.json").exists()

    return check


@pytest.fixture(scope="session")
def cifar100(tmp_path_factory):
    """Two hundred images of noise, in the files that CIFAR-100 comes in."""
    root = tmp_path_factory.mktemp("cifar100")
    folder = root / "cifar-100-binary"
    folder.mkdir()
    for seed, name in enumerate(("train.bin", "test.bin")):
        random = np.random.default_rng(seed)
        fine = np.arange(100, dtype=np.uint8)[:, None]
        pixels = random.integers(0, 256, (100, 3072), dtype=np.uint8)
        (folder / name).write_bytes(np.concatenate([fine // 5, fine, pixels], axis=1).tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"kind{number}" for number in range(100)) + "\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(f"group{number}" for number in range(20)) + "\n")
    return root


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory):
    """Sixty images of noise, in the files that CIFAR-10 comes in."""
    root = tmp_path_factory.mktemp("cifar10")
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for seed, name in enumerate(names):
        random = np.random.default_rng(seed)
        labels = np.arange(10, dtype=np.uint8)[:, None]
        pixels = random.integers(0, 256, (10, 3072), dtype=np.uint8)
        (folder / name).write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"kind{number}" for number in range(10)) + "\n")
    return root
