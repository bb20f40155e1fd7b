"""The speed of a packed file is measured, per layer and compared with torch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from equalbits.cli.bench_torch import torch_call
from equalbits.runtime import NetworkBuilder, PackedModel, native, read_network

GOLDEN = Path(__file__).parents[1] / "golden"
#: Rounds its inputs, which torch leaves as they are.
ROUNDED = GOLDEN / "rounded.ebits"
RESIDUAL = GOLDEN / "residual.ebits"
needs_native = pytest.mark.skipif(native.BUILT is None, reason="the native engine is not built")


def test_an_unlimited_benchmark_is_rejected(call) -> None:
    for seconds in ("inf", "1e9"):
        code, printed, errors = call("bench", RESIDUAL, "--seconds", seconds)
        assert (code, printed) == (1, "")
        assert errors.startswith("equalbits bench: --seconds ") and errors.endswith(" must be 0 to 3600\n")


def test_a_file_is_measured_as_text_and_as_json(call):
    code, printed, errors = call("bench", RESIDUAL, "--seconds", 0, "--batch", 3)
    assert (code, errors) == (0, "")
    assert f"{RESIDUAL}: {RESIDUAL.stat().st_size:,} bytes" in printed
    assert "ms per image (median; minimum" in printed
    facts = json.loads(call("bench", RESIDUAL, "--seconds", 0, "--batch", 3, "--json")[1])
    assert facts["batch"] == 3
    assert facts["rounds"] == 3
    assert 0 < facts["ms_per_image"]["least"] <= facts["ms_per_image"]["median"]
    assert facts["images_per_second"] == pytest.approx(1e3 / facts["ms_per_image"]["median"])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_peak_memory_excludes_the_parent_process():
    much = np.ones(400_000_000, np.uint8)
    words = [sys.executable, "-m", "equalbits", "bench", RESIDUAL, "--seconds", "0", "--json"]
    facts = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert 0 < facts["peak_memory_bytes"] < much.nbytes


def test_numpy_and_two_threads_can_be_selected(call):
    assert json.loads(call("bench", RESIDUAL, "--engine", "numpy", "--seconds", 0, "--json")[1])["engine"] == "numpy"
    facts = json.loads(call("bench", RESIDUAL, "--threads", 2, "--seconds", 0, "--json")[1])
    assert facts["threads"] == 2


@needs_native
def test_only_supported_instruction_sets_can_be_selected(call):
    assert native.BUILT is not None
    there = native.BUILT.instruction_sets()
    for name in ("avx512", "avx2", "neon", "portable"):
        code, printed, errors = call("bench", RESIDUAL, "--engine", name, "--seconds", 0)
        if name in there:
            assert f"native ({name})" in printed
        else:
            assert (code, errors.count("\n")) == (1, 1)
            assert "this machine supports auto" in errors


@needs_native
def test_layers_are_named_in_order_with_their_times(call):
    layers = json.loads(call("bench", RESIDUAL, "--layers", "--seconds", 0, "--json")[1])["layers"]
    named = [layer["step"].split(" (")[0] for layer in layers if " (" in layer["step"]]
    network = read_network(RESIDUAL)
    weights = [operation.tensors["weight"] for operation in network.operations if "weight" in operation.tensors]
    assert named == [name.rpartition(".")[0] for name in weights]
    assert all(layer["ms"] >= 0 for layer in layers)
    assert layers[0]["step"] in call("bench", RESIDUAL, "--layers", "--seconds", 0)[1]


def test_torch_is_measured_alternately_with_the_packed_file(call):
    facts = json.loads(call("bench", RESIDUAL, "--torch", "--seconds", 0, "--json")[1])
    assert facts["torch_ms_per_image"]["median"] > 0
    assert "same network in torch, float32" in call("bench", RESIDUAL, "--torch", "--seconds", 0)[1]


@pytest.mark.parametrize("path", sorted(set(GOLDEN.glob("*.ebits")) - {ROUNDED}), ids=lambda path: path.stem)
def test_torch_runs_the_same_network(path):
    network = read_network(path)
    images = np.random.default_rng(0).integers(-8, 9, (2, *network.input_shape)).astype(np.float32) / 8
    expected = PackedModel(network, engine="numpy")(images)
    np.testing.assert_allclose(torch_call(network, images, 1)().numpy(), expected, rtol=1e-4, atol=1e-4)


def test_every_data_movement_operation_runs_in_torch():
    build = NetworkBuilder((4, 6, 5))
    x = build.add("pad", build.image, before=(0, 1, 0), after=(2, 0, 1), value=0.5)
    x = build.add("slice", x, start=(0, 1, 0), stop=(6, 7, 6), step=(1, 2, 1))
    x = build.add("channel_shuffle", x, groups=3)
    x = build.add("concat", x, build.add("relu", x))
    x = build.add("avg_pool", x, kernel=2, padding=(1, 0, 0, 1), count_padding=True)
    x = build.add("max_pool", x, kernel=2, padding=(0, 1, 1, 0))
    x = build.add("clamp", build.add("permute", x, axes=(0, 2, 1)), min=-0.5, max=None)
    x = build.add("adaptive_avg_pool", x, size=(2, 2))
    build.add("reshape", build.add("flatten", x), shape=(4, 12))
    network = build.finish()
    images = np.random.default_rng(0).standard_normal((2, 4, 6, 5)).astype(np.float32)
    expected = PackedModel(network, engine="numpy")(images)
    np.testing.assert_allclose(torch_call(network, images, 1)().numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("words", [("--threads", 0), ("--batch", 0), ("--seconds", -1), ("--seconds", "nan")])
def test_invalid_numbers_are_rejected(words, call):
    code, _, errors = call("bench", RESIDUAL, *words)
    assert (code, errors.count("\n")) == (1, 1)
    assert "must be at least" in errors


def test_a_file_that_is_not_a_packed_model_is_rejected_in_one_line(tmp_path, call):
    (tmp_path / "x.ebits").write_bytes(b"nothing")
    code, _, errors = call("bench", tmp_path / "x.ebits")
    assert (code, errors.count("\n")) == (1, 1)


@needs_native
def test_layers_are_timed_with_a_monotonic_clock(call):
    layers = json.loads(call("bench", RESIDUAL, "--layers", "--seconds", 0, "--json")[1])["layers"]
    steps = [layer["ms"] / 1e3 * 2**22 for layer in layers]  # differences of such doubles are whole numbers of these
    assert any(abs(step - round(step)) > 1e-3 for step in steps)


@needs_native
def test_layers_that_round_their_input_are_named(call):
    layers = json.loads(call("bench", ROUNDED, "--layers", "--seconds", 0, "--json")[1])["layers"]
    network = read_network(ROUNDED)
    weighted = [network.layer_name(i) for i, op in enumerate(network.operations) if op.kind in ("conv", "linear")]
    named = [layer["step"].split(" (")[0] for layer in layers if " (" in layer["step"]]
    assert named == weighted and any(layer["step"].endswith("(1×8 bit)") for layer in layers)


def test_layer_times_of_numpy_are_rejected_before_measuring(call, monkeypatch):
    monkeypatch.setattr(PackedModel, "__call__", lambda *_: pytest.fail("measured"))
    code, _, errors = call("bench", RESIDUAL, "--engine", "numpy", "--layers")
    assert (code, errors.count("\n")) == (1, 1)
    assert "--layers needs the native engine" in errors


def test_medians_of_a_busy_machine_are_not_compared(call, monkeypatch):
    for ours, torch, shown in (
        ([0.5, 1.0], [2.0, 3.0], "2.500 ms per image (median; minimum 2.000), 3.3 times as long"),
        ([0.5, 1.0], [2.0, 13.0], "4.0 times as long (ratio of minima: the machine is busy; measure again"),
    ):
        times = {"ms_per_image": ours, "torch_ms_per_image": torch}
        monkeypatch.setattr("equalbits.cli.bench._measure_alternately", lambda calls, _, times=times: times)
        assert json.loads(call("bench", RESIDUAL, "--torch", "--json")[1])["busy"] is ("busy" in shown)
        assert shown in call("bench", RESIDUAL, "--torch")[1]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--threads", 1025), "--threads 1025 must be 1 to 1024"),
        *(
            (("--batch", batch), f"--batch {batch} does not fit into memory: lower --batch")
            for batch in (10**15, 2**62, 10**30)
        ),
    ],
)
def test_impossible_sizes_are_rejected_in_one_line(words, rule, call):
    code, printed, errors = call("bench", RESIDUAL, *words)
    assert (code, printed, errors) == (1, "", f"equalbits bench: {rule}\n")
