"""The engine in WebAssembly equals numpy, and the shipped module is built from these sources."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tile_networks import SHAPES, network_of

from equalbits.runtime import Network, list_zoo, load_packed, native, read_network, run_numpy
from equalbits.runtime.export import web
from equalbits.runtime.export.web import build
from equalbits.runtime.zoo import ZOO

WEB = Path(web.__file__).parent
GOLDEN = Path(__file__).parents[1] / "golden"

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def run_in_node(pairs: Sequence[tuple[Network, np.ndarray]], folder: Path) -> list[np.ndarray]:
    """Run each network on its images; return the logits."""
    folder.mkdir(exist_ok=True)
    for number, (network, images) in enumerate(pairs):
        stem = folder / str(number)
        stem.with_suffix(".block").write_bytes(web.plan_block(network))
        stem.with_suffix(".bytes" if images.dtype == np.uint8 else ".images").write_bytes(images.tobytes())
        stem.with_suffix(".count").write_text(str(len(images)))
    subprocess.run(["node", str(Path(__file__).with_name("run_web.js")), str(WEB), str(folder)], check=True)
    return [
        np.fromfile(folder / f"{number}.logits", np.float32).reshape(len(images), *network.shapes[-1])
        for number, (network, images) in enumerate(pairs)
    ]


@needs_node
def test_it_agrees_with_numpy_to_the_last_bit_on_any_network(
    networks: st.SearchStrategy[tuple[Network, np.ndarray]], tmp_path: Path
) -> None:
    drawn: list[tuple[Network, np.ndarray]] = []

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(pair=networks)
    def draw(pair: tuple[Network, np.ndarray]) -> None:
        drawn.append(pair)

    draw()
    for (network, images), logits in zip(drawn, run_in_node(drawn, tmp_path), strict=True):
        np.testing.assert_array_equal(logits, run_numpy(network, images))


@needs_node
def test_binary_convolutions_of_every_shape_are_exact_pruned_and_pooled(tmp_path: Path) -> None:
    pairs = [network_of(shape, pruned=pruned) for shape in SHAPES for pruned in (False, True)]
    pairs += [network_of(shape, pool={"kernel": 3, "stride": 2, "padding": 1}) for shape in SHAPES[:7]]
    for (network, images), logits in zip(pairs, run_in_node(pairs, tmp_path), strict=True):
        np.testing.assert_array_equal(logits, run_numpy(network, images))


@needs_node
@pytest.mark.parametrize("name", list_zoo())
def test_it_gives_the_logits_of_every_network_of_the_zoo(name: str, tmp_path: Path) -> None:
    network = load_packed(f"zoo:{name}").network
    with np.load(ZOO / f"{name}.npz") as stored:
        (logits,) = run_in_node([(network, stored["images"])], tmp_path)
        np.testing.assert_allclose(logits, stored["logits"], rtol=1e-5, atol=1e-5)


@needs_node
def test_it_gives_the_logits_of_packed_files_of_every_kind(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pairs = []
    for path in sorted(GOLDEN.glob("*.ebits")):
        network = read_network(path)
        pairs.append((network, random.standard_normal((3, *network.input_shape)).astype(np.float32)))
    assert pairs
    for (network, images), logits in zip(pairs, run_in_node(pairs, tmp_path), strict=True):
        np.testing.assert_allclose(logits, run_numpy(network, images), rtol=1e-4, atol=1e-4)


def test_the_shipped_module_was_built_from_these_sources() -> None:
    facts = json.loads((WEB / "engine.json").read_text())
    assert facts["sources"] == build.engine_digest(), "run make web"
    if native.BUILT is not None:
        assert facts == {"compiler": facts["compiler"], **build.engine_facts()}


@pytest.mark.skipif(
    shutil.which("clang") is None or shutil.which("wasm-ld") is None, reason="clang and lld are missing"
)
def test_building_the_module_again_gives_the_same_bytes(tmp_path: Path) -> None:
    built_by = json.loads((WEB / "engine.json").read_text())["compiler"]
    if build.compiler_version() != built_by:
        pytest.skip(f"the module was built by {built_by}")
    build.compile_engine(tmp_path / "engine.wasm")
    assert (tmp_path / "engine.wasm").read_bytes() == (WEB / "engine.wasm").read_bytes(), "run make web"
