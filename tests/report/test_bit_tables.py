"""The tables of bits are counted from the stored weights; runs without weights are left out."""

import html
import re
import shutil
from pathlib import Path

import pytest

from equalbits.analysis import audit, summarize
from equalbits.functional import positive_count
from equalbits.recipes import Execution, Recipe, load_run, run_recipe, sweep
from equalbits.report import report_page, tables

CPU = Execution(device="cpu")
RECIPE = Recipe.from_dict(
    {
        "name": "own",
        "epochs": 1,
        "model": {"name": "conv2", "options": {"width": 0.05}},
        "data": {"name": "synthetic:1x8x8:4:24", "batch_size": 8},
    }
)


def words_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run and a sweep."""
    out = tmp_path_factory.mktemp("bits")
    run_recipe(RECIPE, out / "one", device="cpu")
    sweep(
        RECIPE,
        out / "sweep",
        vary={"model.weight_quantizer": ["sign", "bihalf"]},
        seeds=[0, 1],
        execution=CPU,
    )
    return out


def test_the_bits_of_a_run_are_counted_from_its_weights(folder: Path) -> None:
    model = load_run(folder / "one").model
    text = report_page(folder / "one")
    words = words_of(text)
    for layer in audit(model).layers:
        half = positive_count(layer.connections, 0.5)
        share, entropy = 100 * half / layer.connections, float(layer.entropy.mean())
        sizes = f"{layer.filters} {layer.connections:,} {half:,} (50 %) {half:,} ({share:.1f} %)"
        assert f"{layer.name} {sizes} yes {entropy:.5f} " in words
    total = summarize(model, (1, 1, 8, 8)).total
    filters = sum(layer.filters for layer in audit(model).layers)
    assert f"exactly the requested share of +1: {filters} of {filters}." in words
    assert f"Packed size: {total['packed_bytes']:,} bytes" in words
    assert "&lt;" not in text


def test_a_sweep_lists_exact_filters_and_tolerates_missing_or_damaged_weights(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sweep", tmp_path / "sweep")
    words = words_of(report_page(tmp_path / "sweep"))
    assert re.search(r"bihalf/seed0 (\d+) of \1 0\.9", words) and "sign/seed1 none requested 0." in words
    (tmp_path / "sweep" / "bihalf" / "seed0" / "last.safetensors").write_bytes(b"no weights")
    words = words_of(report_page(tmp_path / "sweep"))
    assert "Weights that could not be read: bihalf/seed0: " in words and "sign/seed1 none requested 0." in words
    for weights in tmp_path.rglob("last.safetensors"):
        weights.unlink()
    words = words_of(report_page(tmp_path / "sweep"))
    assert "Bits of the last epoch" not in words and "could not be read" not in words


def test_runs_beyond_the_size_limit_are_counted_but_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (folder / "sweep" / "sign" / "seed0" / "last.safetensors").stat().st_size
    monkeypatch.setattr(tables, "MAX_BYTES", int(2.5 * size))
    words = words_of(report_page(folder / "sweep"))
    assert "Not counted because of their size: 2 more." in words and "bihalf/seed1" in words


def test_a_net_without_binary_layers_has_no_table_of_bits(tmp_path: Path) -> None:
    run_recipe(RECIPE.with_settings({"model.weight_quantizer": ""}), tmp_path / "real", device="cpu")
    words = words_of(report_page(tmp_path / "real"))
    assert "Bits of the last epoch" not in words and "Last epoch, and best epoch" in words
