"""Watchers count flips and entropy in any loop, with bounded memory."""

import json
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from equalbits import functional as F
from equalbits.analysis import EntropyWatcher, FlipWatcher, activation_bits, audit, summarize
from equalbits.analysis.watchers import StepTable
from equalbits.nn import (
    BiHalf,
    BinaryConnect,
    BinaryConv2d,
    BinaryLinear,
    PrunedSign,
    Sign,
    WeightQuantizer,
    list_quantizers,
    quantizer_by_name,
    set_global_masks_,
)


def small_net(quantizer: nn.Module) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        BinaryConv2d(3, 4, 3, weight_quantizer=quantizer),
        nn.Flatten(),
        nn.Linear(64, 8),
        BinaryLinear(8, 5, weight_quantizer=quantizer),
    )


def train(model: nn.Module, watchers: list, steps: int = 12) -> list[dict[str, torch.Tensor]]:
    """A plain torch loop; the symbols before it and after every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(steps + 1):
        if step:
            optimizer.zero_grad()
            model(torch.randn(4, 3, 6, 6)).tanh().square().sum().backward()
            optimizer.step()
        for watcher in watchers:
            watcher(model, step)
        seen.append({name: model[int(name)].symbols() for name in ("0", "3")})
    return seen


@pytest.mark.parametrize("quantizer", [BiHalf(0.4), Sign()])
def test_flips_are_those_between_one_step_and_the_next(quantizer):
    watcher = FlipWatcher(filters={"0": 2, "3": 4})
    seen = train(small_net(quantizer), [watcher])
    for name, index in (("0", 2), ("3", 4)):
        expected = [F.count_flips(before[name], after[name]) for before, after in pairwise(seen)]
        layer, single = watcher.layers[name], watcher.filters[name]
        assert layer.steps == single.steps == list(range(1, 13))
        assert layer.to_positive == [int(flips.to_positive.sum()) for flips in expected]
        assert layer.to_negative == [int(flips.to_negative.sum()) for flips in expected]
        assert single.to_positive == [int(flips.to_positive[index]) for flips in expected]
        assert single.to_negative == [int(flips.to_negative[index]) for flips in expected]
        assert layer.symbols == seen[0][name].numel()
        assert single.symbols == seen[0][name][0].numel()
    assert sum(watcher.layers["0"].to_positive) > 0


def test_with_an_exact_share_flips_to_both_signs_are_equally_many():
    watcher = FlipWatcher(filters={"0": 1})
    train(small_net(BiHalf()), [watcher])
    for series in (*watcher.layers.values(), *watcher.filters.values()):
        assert series.to_positive == series.to_negative
        assert set(series.difference) == {0}


def test_cumulative_flips_and_their_difference():
    watcher = FlipWatcher()
    train(small_net(Sign()), [watcher])
    series = watcher.layers["0"]
    up, down = series.cumulative
    assert up[-1] == sum(series.to_positive)
    assert down[4] == sum(series.to_negative[:5])
    assert series.difference == [a - b for a, b in zip(up, down, strict=True)]


def test_silent_weights_are_those_that_never_flipped():
    watcher = FlipWatcher()
    seen = train(small_net(Sign()), [watcher])
    for name, silent in watcher.silent.items():
        moved = torch.stack([symbols[name] != seen[0][name] for symbols in seen]).any(dim=0)
        assert silent == int((~moved).sum())


def test_every_3_counts_flips_between_every_third_step():
    watcher = FlipWatcher(every=3)
    seen = train(small_net(Sign()), [watcher])
    series = watcher.layers["0"]
    assert series.steps == [3, 6, 9, 12]
    expected = [F.count_flips(seen[at - 3]["0"], seen[at]["0"]) for at in series.steps]
    assert series.to_positive == [int(flips.to_positive.sum()) for flips in expected]


def test_a_full_table_of_flips_sums_rows_and_loses_none():
    short, full = FlipWatcher(limit=4), FlipWatcher()
    train(small_net(Sign()), [short, full], steps=23)
    coarse, fine = short.layers["0"], full.layers["0"]
    assert len(coarse.steps) <= 5
    assert coarse.steps[-1] == fine.steps[-1] == 23
    for step, up, down in zip(coarse.steps, *coarse.cumulative, strict=True):
        place = fine.steps.index(step)
        assert (up, down) == (fine.cumulative[0][place], fine.cumulative[1][place])


def test_the_flips_of_all_layers_are_read_from_the_table_once(monkeypatch):
    watcher, reads, rows = FlipWatcher(filters={"0": 0, "3": 1}), [], StepTable.rows
    train(small_net(Sign()), [watcher], steps=3)
    monkeypatch.setattr(StepTable, "rows", lambda self: reads.append(self) or rows(self))
    assert len(watcher.layers) == len(watcher.filters) == len(reads) == 2  # a table of 50,000 rows takes a while


def test_pruning_and_unpruning_are_not_counted_as_flips():
    class Given(WeightQuantizer):
        def symbols(self, latents):
            return latents.detach().sign()

    layer = BinaryLinear(4, 1, weight_quantizer=Given())
    watcher, model = FlipWatcher(), nn.Sequential(layer)
    for step, row in enumerate([[1.0, 0.0, -1.0, 1.0], [0.0, 1.0, -1.0, -1.0], [1.0, 1.0, 0.0, 1.0]]):
        layer.weight.data = torch.tensor([row])
        watcher(model, step)
    assert watcher.layers["0"].to_positive == [0, 1]
    assert watcher.layers["0"].to_negative == [1, 0]


@pytest.mark.parametrize("quantizer", [BiHalf(0.4), Sign()])
def test_entropy_is_the_mean_over_filters_of_each_layer_and_of_the_net(quantizer):
    watcher = EntropyWatcher()
    seen = train(small_net(quantizer), [watcher])
    assert watcher.steps == list(range(13))
    for at, symbols in enumerate(seen):
        for name in ("0", "3"):
            assert watcher.layers[name][at] == pytest.approx(float(F.filter_entropy(symbols[name]).mean()))
        everything = torch.cat([F.filter_entropy(symbols[name]) for name in ("0", "3")])
        assert watcher.network[at] == pytest.approx(float(everything.mean()))


def test_a_full_table_of_entropies_keeps_the_last_step_of_each_row():
    short, full = EntropyWatcher(limit=4), EntropyWatcher()
    train(small_net(Sign()), [short, full], steps=20)
    assert len(short.steps) <= 5
    for step, value in zip(short.steps, short.network, strict=True):
        assert value == full.network[full.steps.index(step)]


@pytest.mark.parametrize("quantizer", [BiHalf(), BinaryConnect(stochastic=True)], ids=str)
@pytest.mark.parametrize("make", [FlipWatcher, EntropyWatcher])
def test_watching_changes_neither_training_nor_the_model(make, quantizer):
    alone, watched = small_net(quantizer), small_net(quantizer)
    torch.manual_seed(3)
    train(alone, [])
    torch.manual_seed(3)
    train(watched, [watcher := make()])
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), watched.parameters(), strict=True))
    json.dumps(watcher.as_dict(), allow_nan=False)


def test_the_entropy_of_a_fully_pruned_layer_is_none_in_json():
    model = nn.Sequential(*(BinaryLinear(8, 8, weight_quantizer=PrunedSign(0.5, scope="global")) for _ in "ab"))
    torch.nn.init.constant_(model[0].weight, 1e-6)
    with pytest.warns(UserWarning, match="leaves no weight in '0'"):
        set_global_masks_(model)
    watcher = EntropyWatcher()
    watcher(model, 0)
    read = json.loads(json.dumps(watcher.as_dict(), allow_nan=False))
    assert read["layers"]["0"] == [None]
    assert read["network"] == watcher.network == watcher.layers["1"]
    read = json.loads(json.dumps(summarize(model, (1, 8)).as_dict(), allow_nan=False))
    assert read["layers"][0]["entropy"] is None


@pytest.mark.parametrize("make", [FlipWatcher, EntropyWatcher])
def test_calls_inside_and_outside_inference_mode_can_be_mixed(make):
    watcher, model = make(), small_net(BiHalf())
    for step, inference in enumerate((True, False, True, False)):
        with torch.inference_mode(inference):
            watcher(model, step)
    assert len(watcher._table.steps) == (3 if make is FlipWatcher else 4)


@pytest.mark.parametrize("make", [FlipWatcher, EntropyWatcher])
def test_a_watcher_called_with_another_model_raises(make):
    watcher = make()
    watcher(small_net(Sign()), 0)
    with pytest.raises(ValueError, match="use a separate watcher for each model"):
        watcher(nn.Sequential(BinaryLinear(8, 5)), 1)


@pytest.mark.parametrize("make", [FlipWatcher, EntropyWatcher])
def test_invalid_arguments_and_models_raise(make):
    with pytest.raises(ValueError, match="every=0 must be at least 1"):
        make(every=0)
    with pytest.raises(ValueError, match="limit=1 is too small"):
        make(limit=1)
    with pytest.raises(ValueError, match="has no binary layer"):
        make()(nn.Sequential(nn.Linear(2, 2)), 0)


@pytest.mark.parametrize("filters", [{"conv": 0}, {"0": 4}, {"0": -1}])
def test_a_missing_filter_raises(filters):
    with pytest.raises(ValueError, match=r"no such filter; layers and filter counts: '0' \(4\), '3' \(5\)"):
        FlipWatcher(filters=filters)(small_net(Sign()), 0)


def test_results_are_empty_before_the_first_step():
    watcher = FlipWatcher(filters={"0": 1})
    assert watcher.as_dict() == {"layers": {}, "filters": {}, "silent": {}}
    watcher(small_net(Sign()), 0)
    assert watcher.layers["3"].to_positive == watcher.filters["0"].steps == []
    assert EntropyWatcher().network == EntropyWatcher().steps == []


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 700), limit=st.integers(2, 40), reads=st.sets(st.integers(0, 700)))
def test_a_table_stays_within_its_limit_and_keeps_its_sums(count, limit, reads):
    table = StepTable(limit=limit, adds=True)
    for step in range(1, count + 1):
        table.add(step, torch.tensor([step, 1]))
        if step in reads:
            assert int(deepcopy(table).rows()[:, 1].sum()) == step
            assert table.rows()[:, 1].sum() == step
    rows, steps = table.rows(), table.steps
    assert len(rows) == len(steps) <= limit + 1
    if count:
        assert steps[-1] == count
        assert rows[:, 1].cumsum(0).tolist() == steps
        assert rows[:, 0].cumsum(0).tolist() == [step * (step + 1) // 2 for step in steps]
        assert set(rows[:-1, 1].tolist()) <= {table.steps_per_row}


def test_a_table_read_while_it_fills_keeps_adding_on_the_device():
    with FakeTensorMode():  # checks devices without a GPU
        table = StepTable(limit=4, adds=True)
        for step in range(1, 9):
            table.add(step, torch.empty(3, dtype=torch.int64, device="cuda"))
            if step == 5:
                table.rows()  # merges five rows: the odd one starts the next row
        assert table.rows().shape == (4, 3) and table.rows().device.type == "cpu"


@pytest.mark.parametrize("make", [FlipWatcher, EntropyWatcher])
def test_a_model_may_move_to_another_device_between_steps(make):
    with FakeTensorMode():
        watcher, model = make(), nn.Sequential(BinaryLinear(8, 4), BinaryLinear(4, 4))
        for step, device in enumerate(("cpu", "cpu", "cuda", "cuda", "cpu")):
            model[0].weight = nn.Parameter(torch.empty(4, 8, device=device))
            watcher(model, step)
        assert len(watcher._table.rows()) == len(watcher._table.steps)
        if make is FlipWatcher:
            assert {flipped.device.type for flipped in watcher._flipped.values()} == {"cpu"}


@pytest.mark.parametrize("quantizer", [BiHalf(), BiHalf(1.0), BiHalf(0.0), PrunedSign(0.5)], ids=str)
def test_measurements_do_not_depend_on_the_default_device(quantizer):
    model, inputs = small_net(quantizer), torch.randn(2, 3, 6, 6)
    expected = [audit(model).as_dict(), summarize(model, (2, 3, 6, 6)).as_dict(), F.attainable_entropy(27)]
    with torch.device("meta"):
        for watcher in (FlipWatcher(), EntropyWatcher()):
            watcher(model, 0)
            watcher(model, 1)
            json.dumps(watcher.as_dict())
        assert activation_bits(model, [inputs])["0"].total == 72
        assert [audit(model).as_dict(), summarize(model, (2, 3, 6, 6)).as_dict(), F.attainable_entropy(27)] == expected


@pytest.mark.parametrize("name", [*list_quantizers(), "abc-net:bases=3"])
def test_every_method_can_be_summarized_in_half_precision(name):
    model = small_net(quantizer_by_name(name))
    precise = summarize(model, (2, 3, 6, 6)).total
    assert summarize(model.bfloat16(), (2, 3, 6, 6)).total["symbols"] == precise["symbols"]


@pytest.mark.parametrize("name", list_quantizers())
def test_every_method_can_be_watched_audited_and_summarized(name):
    model, watchers = small_net(quantizer_by_name(name)), [FlipWatcher(), EntropyWatcher()]
    train(model, watchers, steps=2)
    json.dumps([watcher.as_dict() for watcher in watchers], allow_nan=False)
    json.dumps([audit(model).as_dict(), summarize(model, (2, 3, 6, 6)).as_dict()], allow_nan=False)
    assert activation_bits(model, [torch.randn(2, 3, 6, 6)]).keys() == {"0", "3"}
