"""Figure 3 records every epoch of every run, draws the requested ones, and makes each claim once."""

import json

import torch

from equalbits.nn import BiHalf, BinaryLinear
from equalbits.paper import reproduce
from equalbits.paper.items import fig3_hyperparameters
from equalbits.paper.items.fig3_hyperparameters import MagnitudeWatcher

NARROW = {"model.options.width": 0.05}


def finished(out, options):
    claims = reproduce("fig3", out, options=options)
    return claims, json.loads((out / "result.json").read_text())


def test_the_watcher_records_latents_gradients_and_flips_of_every_epoch(tmp_path, tiny, drawn):
    options = tiny({**NARROW, "epochs": 2}, grid={"optimizer.weight_decay": [0.0, 0.1]})
    claims, result = finished(tmp_path, options)
    drawn(tmp_path, "fig3")
    assert len(result["runs"]) == 4
    for run in result["runs"]:
        assert len(run["latent"]) == len(run["cut"]) == 3
        assert len(run["gradient"]) == len(run["flips"]) == 2
        assert min(run["gradient"]) > 0 and sum(run["flips"]) > 0
    assert {claim.agrees for claim in claims} == {None}  # one seed
    ends = {run["weight_decay"]: run["latent"][-1] for run in result["runs"] if run["schedule"] == "cosine"}
    assert ends[0.1] < ends[0.0] and claims[0].ours == f"{ends[0.1]:.4g} against {ends[0.0]:.4g}"


def test_a_diverged_run_is_recorded_and_skipped_in_the_plot(tmp_path, tiny, drawn):
    options = tiny(NARROW, grid={"optimizer.weight_decay": [0.0, 1e30]})
    claims, result = finished(tmp_path, options)
    drawn(tmp_path, "fig3")
    assert [run["weight_decay"] for run in result["runs"] if "diverged" in run] == [1e30, 1e30]
    assert (claims[0].ours, claims[0].agrees, claims[0].n) == ("diverged", None, 0)
    assert (result["trained"]["nets"], result["trained"]["diverged"]) == (4, 2)


def test_the_cut_is_the_smallest_latent_that_is_positive():
    layer = BinaryLinear(5, 1, bias=False, weight_quantizer=BiHalf())
    layer.weight.data = torch.tensor([[3.0, -1.0, 0.5, 9.0, -4.0]])
    watcher = MagnitudeWatcher()
    watcher.measure(torch.nn.Sequential(layer), 0)
    assert layer.symbols().tolist() == [[1, -1, 1, 1, -1]]
    assert (watcher.cuts, watcher.latents) == ([0.5], [3.5])


def test_a_rise_before_the_fall_is_detected_and_one_seed_decides_nothing():
    def run(schedule, gradient, flips):
        test = {"correct": 1, "total": 2}
        curves = {"latent": [1.0, 1.0], "cut": [1.0, 1.0], "gradient": gradient, "flips": flips}
        return {"schedule": schedule, "weight_decay": 1e-4, "epochs": [{"test": test}], **curves}

    runs = [run("constant", [4.0, 1.0, 1.5], [5, 5, 5]), run("cosine", [4.0, 1.0, 2.0], [5, 9, 1])]
    rows = {row.claim: row for row in fig3_hyperparameters.claims({"weight_decays": [1e-4], "runs": runs})}
    row = rows["(b) gradients smaller under cosine than under constant, at the end, weight decay 0.0001"]
    assert (row.agrees, row.paper, row.ours) == (None, "implied", "2 against 1.5")
    row = rows["(d) cosine: flips fall gradually, weight decay 0.0001"]
    assert row.ours == "Kendall's τ −0.33 over 3 windows, p = 1 (5 to 1, 9 at most)"
    assert (row.agrees, row.decided_by) == (None, "a trend within one run; one seed: undecided")


def test_a_trend_is_taken_over_ten_windows():
    run = {"flips": [100 - epoch for epoch in range(100)]}
    row = fig3_hyperparameters._falls("", run, "flips")
    assert row.ours.startswith("Kendall's τ −1.00 over 10 windows, p = 5.5e-07 (100 to 1,")


def test_more_weight_decays_than_there_are_shades_are_drawn(tmp_path, tiny, drawn):
    decays = [0.0, 1e-5, 2e-5, 1e-4, 2e-4, 5e-4, 1e-3]
    finished(tmp_path, tiny(NARROW, grid={"optimizer.weight_decay": decays}))
    drawn(tmp_path, "fig3")


def test_a_single_weight_decay_makes_each_claim_once(tmp_path, tiny, drawn):
    claims, _ = finished(tmp_path, tiny({**NARROW, "epochs": 2}, grid={"optimizer.weight_decay": [1e-4]}))
    drawn(tmp_path, "fig3")
    names = [claim.claim for claim in claims]
    assert len(names) == len(set(names)) == 5
    assert not [name for name in names if "more weight decay" in name]
