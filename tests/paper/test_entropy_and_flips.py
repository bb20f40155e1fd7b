"""Figures 1 and 2: their laws hold to the bit, and plots are drawn from stored results."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equalbits.analysis import FlipSeries
from equalbits.functional import attainable_entropy
from equalbits.nn import BiHalf, IRNet, Sign
from equalbits.paper import reproduce
from equalbits.paper.items.fig1_entropy import attainable, channel_entropies
from equalbits.paper.items.fig2_flips import halved
from equalbits.recipes import read_recipe


@pytest.fixture(scope="module")
def flips(tmp_path_factory, tiny):
    out = tmp_path_factory.mktemp("fig2")
    options = tiny({"data.name": "synthetic:1x16x16:10:256", "data.batch_size": 16, "model.options.width": 0.1})
    claims = reproduce("fig2", out, options=options)
    return out, claims, json.loads((out / "result.json").read_text())["methods"], options


def test_bihalf_flips_evenly_at_every_step_in_every_layer(flips):
    found = flips[2]["bihalf"]
    assert FlipSeries(**found["filter"]).difference == [0] * 16
    assert found["filter"]["to_positive"] == found["filter"]["to_negative"]
    assert set(found["uneven_steps"].values()) == {0}
    assert all(up == down for up, down in found["flips"].values())
    assert sum(up for up, _ in found["flips"].values()) > 0


@pytest.mark.parametrize("method", ["sign", "irnet-stable"])
def test_sign_and_irnet_flip_unevenly(flips, method):
    found = flips[2][method]
    assert sum(found["uneven_steps"].values()) > 0
    assert any(up != down for up, down in found["flips"].values())


def test_all_three_start_half_and_half(flips):
    assert {found["filters_off_half_at_start"] for found in flips[2].values()} == {0}
    assert len({found["filters"] for found in flips[2].values()}) == 1


def test_the_rows_of_the_flips_show_the_measurements(flips, drawn):
    out, claims, methods, _ = flips
    drawn(out, "fig2")
    (row,) = (row for row in claims if row.claim == "Bi-half: greatest difference of accumulated flips, one filter")
    assert row.ours == "0 over 16 steps" and row.agrees
    (row,) = (row for row in claims if row.claim == "Sign: steps at which a layer flips unevenly")
    assert row.ours == f"{sum(methods['sign']['uneven_steps'].values())} of {16 * 5}"


def test_without_the_result_file_flips_are_read_back_instead_of_trained_again(flips):
    out, claims, _, options = flips
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/seed*/run.json")}
    (out / "result.json").unlink()
    assert reproduce("fig2", out, options=options) == claims
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/seed*/run.json")} == before
    assert len(before) == 3


@given(st.integers(2, 40), st.integers(0, 2**31))
def test_a_halved_start_gives_the_same_bits_under_all_three(connections, seed):
    latents = torch.randn(5, connections, generator=torch.Generator().manual_seed(seed))
    moved, expected = halved(latents), BiHalf().symbols(latents)
    for quantizer in (Sign(), IRNet("fixed"), BiHalf()):
        assert torch.equal(quantizer.symbols(moved), expected)


def test_a_halved_start_keeps_the_order_of_the_weights():
    latents = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(halved(latents).argsort(dim=1), latents.argsort(dim=1))


@pytest.fixture(scope="module")
def entropy(tmp_path_factory, tiny):
    out = tmp_path_factory.mktemp("fig1")
    options = tiny({"model.options.width": 0.05, "epochs": 2})
    claims = reproduce("fig1", out, options=options)
    return out, claims, json.loads((out / "result.json").read_text()), options


def test_bihalfs_weights_hold_the_attainable_entropy_at_every_epoch(entropy):
    found = entropy[2]["weights"]["bihalf"]
    assert found["steps"] == [0, 1, 2]
    assert found["network"] == pytest.approx([attainable(found["shapes"])] * 3, abs=1e-6)
    for name, (_, connections) in found["shapes"].items():
        assert found["layers"][name] == pytest.approx([attainable_entropy(connections)] * 3, abs=1e-6)


def test_the_entropy_of_sign_weights_is_below_the_attainable_one(entropy):
    found = entropy[2]["weights"]["sign"]
    assert max(found["network"]) < attainable(found["shapes"]) - 1e-4


def test_activations_are_counted_over_every_test_image(entropy):
    for found in entropy[2]["activations"].values():
        totals = [layer["total"] for layer in found["layers"].values()]
        assert all(total % 24 == 0 for total in totals)
        assert len(found["layers"]) == 16
        for values in channel_entropies(found["layers"]):
            assert all(0 <= value <= 1 for value in values)


def test_the_rows_of_the_entropy_agree_for_the_weights(entropy, drawn):
    out, claims = entropy[:2]
    drawn(out, "fig1")
    assert [row.agrees for row in claims] == [True, True, True, None, None]  # activations: one seed


@pytest.mark.parametrize(("part", "rows"), [("weights", 3), ("activations", 2)])
def test_one_half_of_figure_1_can_be_measured_alone(entropy, tmp_path, drawn, part, rows):
    shutil.copytree(entropy[0], tmp_path / "part")
    (tmp_path / "part" / "result.json").unlink()
    claims = reproduce("fig1", tmp_path / "part", options=replace(entropy[3], grid={"parts": [part]}))
    drawn(tmp_path / "part", "fig1")
    whole = entropy[1]
    assert claims == (whole[:rows] if part == "weights" else whole[-rows:])


def test_figure_1_counts_the_activations_of_figure_7s_nets(tmp_path, tiny):
    options = tiny({"model.options.width": 0.05, "epochs": 1})
    reproduce("fig7", tmp_path / "fig7", options=replace(options, seeds=(0, 1)))
    runs = tmp_path / "fig7" / "runs" / "resnet-18-1w1"
    inputs = {path.name: read_recipe(path / "seed0" / "recipe.toml").model.input_quantizer for path in runs.iterdir()}
    assert inputs == {"sign": "sign", "irnet": "ede", "bihalf": "sign"}
    claims = reproduce("fig1", tmp_path / "fig1", options=replace(options, grid={"parts": ["activations"]}))
    assert [claim.n for claim in claims] == [2, 2]
    assert not list(tmp_path.glob("fig1/activations/*"))


def test_a_finished_net_whose_activations_were_not_counted_is_not_trained_again(entropy):
    out, claims, result, options = entropy
    (out / "result.json").unlink()
    for path in out.glob("activations/*/seed*/run.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "measured": None}))
    before = {path: path.stat().st_mtime_ns for path in out.glob("activations/*/seed*/last.safetensors")}
    assert reproduce("fig1", out, options=options) == claims
    assert {path: path.stat().st_mtime_ns for path in out.glob("activations/*/seed*/last.safetensors")} == before
    assert len(before) == 3
    again = json.loads((out / "result.json").read_text())
    assert again["activations"] == result["activations"]
