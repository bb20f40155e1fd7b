"""TensorBoard and Weights & Biases get the entropy and the flips of a run's bits after every epoch."""

import sys
import types
from pathlib import Path

import pytest

import equalbits as eb
from equalbits.analysis import FlipWatcher
from equalbits.training import WeightsAndBiases

SMALL = {"data.limit": 128, "data.batch_size": 32, "model.options.width": 0.1, "schedule.name": "constant"}
STEPS = 4  # of an epoch


def curves(folder: Path) -> dict[str, list[float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {name: [event.value for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def train(out: Path, epochs: int, quantizer: str = "bihalf", **options) -> eb.training.History:
    settings = SMALL | {"epochs": epochs, "model.weight_quantizer": quantizer}
    recipe = eb.get_recipe("fashion-conv2").with_settings(settings)
    return eb.run_recipe(recipe, out, device="cpu", **options).history


def test_tensorboard_has_the_flips_of_each_epoch(tmp_path):
    flips = FlipWatcher(every=STEPS)
    train(tmp_path / "a", 3, watchers=[flips])
    counted = [sum(layer.to_positive[epoch] for layer in flips.layers.values()) for epoch in range(3)]
    found = curves(tmp_path / "a")
    assert found["bits/to_positive"] == found["bits/to_negative"] == counted and min(counted) > 0
    assert all(0.99 < value <= 1 for value in found["bits/entropy"])


def test_a_resumed_run_counts_from_its_checkpoint(tmp_path):
    for method in ("bihalf", "sign"):
        whole, parts = tmp_path / method, tmp_path / f"{method}-parts"
        train(whole, 3, method)
        train(parts, 2, method)
        train(parts, 3, method, allow_changes=True)
        assert curves(parts) == curves(whole)


def test_weights_and_biases_gets_them_and_a_real_network_has_none(tmp_path, monkeypatch):
    logged: list[dict[str, float]] = []
    run = types.SimpleNamespace(log=lambda values, step: logged.append(values))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(login=bool, init=lambda **settings: run))
    for quantizer in ("bihalf", ""):
        out = tmp_path / f"run{quantizer}"
        out.mkdir()
        train(out, 1, quantizer, reporters=[WeightsAndBiases(tmp_path, project="p")])
    bits, real = logged
    assert bits["bits/to_positive"] == bits["bits/to_negative"] > 0
    assert set(bits) - set(real) == {"bits/entropy", "bits/to_positive", "bits/to_negative"}
