"""Rows of a million connections, and 10⁹ weights packed layer by layer in little memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from equalbits.runtime import NetworkBuilder, PackedModel, load_packed, native
from equalbits.runtime.format import write_network

ENGINES = ["numpy"] if native.BUILT is None else ["numpy", "native"]

PROGRAM = """
import sys, numpy as np
from pathlib import Path
from equalbits.runtime import NetworkBuilder, load_packed
from equalbits.runtime.format import write_network
sys.path.insert(0, sys.argv[2])
from fuzz import peak_mib

path, wide, narrow, pairs = Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
random = np.random.default_rng(0)
build = NetworkBuilder((narrow, 1, 1))
x = build.add("flatten", build.image)
for _ in range(pairs):
    for shape in ((wide, narrow), (narrow, wide)):
        x = build.add("sign", x)
        symbols = random.integers(0, 2, shape, dtype=np.int8)
        symbols *= 2
        symbols -= 1
        x = build.add_binary("linear", x, symbols)
        del symbols
write_network(build.finish(), path)
del build
model = load_packed(path)
answer = model(np.ones((1, narrow, 1, 1), np.float32))
assert np.isfinite(answer).all() and answer.any()
print(peak_mib())
"""


def peak_of_packing(path: Path, wide: int, narrow: int, pairs: int) -> int:
    """Pack linear layers of wide × narrow and back, load and run them; return the peak memory in MiB."""
    words = [sys.executable, "-c", PROGRAM, path, Path(__file__).parent, wide, narrow, pairs]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_many_weights_are_packed_layer_by_layer_in_memory_of_one_layer_and_the_bits(tmp_path: Path) -> None:
    weights = 2 * 8 * 4096 * 1024
    peak = peak_of_packing(tmp_path / "net.ebits", 4096, 1024, 8)
    assert (tmp_path / "net.ebits").stat().st_size < weights / 8 * 1.01
    assert peak < 220  # 67 M weights: as int8 they would take 64 MiB, as float32 256


@pytest.mark.slow
@pytest.mark.soak
def test_a_billion_weights_are_packed_within_two_gibibytes(tmp_path: Path) -> None:
    peak = peak_of_packing(tmp_path / "net.ebits", 65_536, 4096, 2)
    assert (tmp_path / "net.ebits").stat().st_size > 2**30 // 8
    print(f"peak {peak} MiB")
    assert peak < 2048


@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_of_a_million_connections_is_exact(engine: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    symbols = np.where(random.integers(0, 2, (2, 1_000_003)), 1, -1).astype(np.int8)
    build = NetworkBuilder((1, 1, 1_000_003))
    build.add_binary("linear", build.add("flatten", build.add("sign", build.image)), symbols)
    write_network(build.finish(), tmp_path / "net.ebits")
    image = random.standard_normal((1, 1, 1, 1_000_003), dtype=np.float32)
    signs = np.where(image.reshape(-1) >= 0, 1, -1)
    np.testing.assert_array_equal(load_packed(tmp_path / "net.ebits", engine=engine)(image)[0], symbols @ signs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("p_pos", [0.0, 1.0])
def test_one_connection_per_filter_with_all_symbols_alike_is_exact(engine: str, p_pos: float) -> None:
    build = NetworkBuilder((3, 1, 1))
    symbols = np.full((3, 1, 1, 1), 1 if p_pos else -1)
    x = build.add_binary("conv", build.image, symbols, groups=3, p_pos=p_pos)
    build.add("flatten", x)
    model = PackedModel(build.finish(), engine=engine)
    np.testing.assert_array_equal(model(np.array([1, 2, 3], np.float32).reshape(3, 1, 1)), symbols.ravel() * [1, 2, 3])
    assert model.audit().exact
