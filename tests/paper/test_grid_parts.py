"""An item can be measured in parts, and lists what is missing."""

import json

import pytest

from equalbits.cli import main
from equalbits.paper import Options, get_item, list_items, reproduce
from equalbits.paper.grid_parameters import command, split
from equalbits.paper.measurement_cost import cost, made_with
from equalbits.paper.results_page import missing_parts
from equalbits.recipes import parse_settings
from equalbits.report.html_page import report_page


def test_a_grid_parameter_takes_a_list_of_values():
    asked = parse_settings(["epochs=2", "p_pos=0.4,0.5", 'data=["CIFAR-10"]'])
    own, grid = split(asked, {}, whole=get_item("fig5").grid, item="fig5")
    assert own == {"epochs": 2}
    assert grid == {"p_pos": [0.4, 0.5], "data": ["CIFAR-10"]}


def test_a_number_spelt_otherwise_is_the_same_part(tmp_path, tiny):
    settings = {"model.options.width": 0.05, **parse_settings(["sparsity=0,0.0,1e0"])}
    assert str(split(settings, {}, whole=get_item("fig8").grid, item="fig8")[1]) == "{'sparsity': [0.0, 1.0]}"
    reproduce("fig8", tmp_path, options=tiny({**settings, "sparsity": "0"}, seeds=(0,)))
    reproduce("fig8", tmp_path, options=tiny(settings | {"sparsity": "0.0,0.5"}, seeds=(0,)))
    folders = {path.parents[1].name for path in tmp_path.glob("runs/conv2/kaiming-start/mpt*/**/run.json")}
    assert len(folders) == 2 and any("sparsity=0.0" in name for name in folders), folders


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"net": ["conv2"]}, "grid parameter of tab2 'net' is not known: did you mean 'nets'?"),
        ({"nets": ["conv3"]}, "nets of tab2 'conv3' is not known: did you mean 'conv2'?"),
        ({"nets": []}, "nets of tab2 is empty"),
    ],
)
def test_a_value_that_the_item_lacks_is_refused_before_training(tmp_path, grid, words):
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        reproduce("tab2", tmp_path / "out", grid=grid, device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_setting_that_the_item_varies_itself_is_refused(tmp_path, tiny):
    options = tiny({"model.weight_quantizer": "sign"})
    with pytest.raises(ValueError, match=r"model\.weight_quantizer is varied by this item"):
        reproduce("fig8", tmp_path, options=options)


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        *((name, {"seeds": (0, 1)}, f"{name} trains each net once") for name in ("fig1", "fig2", "fig3", "tab1")),
        ("fig6", {"seeds": (0,)}, "fig6 trains nothing"),
        ("fig6", {"settings": {"epochs": 2}}, "fig6 trains nothing"),
        ("tab2", {"settings": {"seed": 3}}, "tab2 trains several seeds: write --seeds 3"),
        *(
            (name, {"settings": {"model.weight_quantizer": "sign"}}, r"model\.weight_quantizer is set by")
            for name in ("fig1", "fig2", "tab1")
        ),
        ("fig3", {"settings": {"schedule.name": "constant"}}, r"schedule\.name is set by fig3 itself"),
        ("fig5", {"settings": {"model.options.batch_norm": True}}, r"model\.options\.batch_norm is set by fig5 itself"),
        ("tab1", {"settings": {"optimizer.tau": 0.1}}, r"optimizer\.tau is set by tab1 itself"),
        ("tab2-tuned", {"settings": {"data.hold_out": 10}}, r"data\.hold_out is set by tab2-tuned itself"),
        ("fig5", {"quick": True, "grid": {"data": ["CIFAR-10"]}}, "a quick measurement has data of its own"),
        ("fig7", {"quick": True, "settings": {"nets": "VGG16 1/32"}}, "a quick measurement has nets of its own"),
    ],
)
def test_settings_that_an_item_would_ignore_are_refused(tmp_path, name, asked, words):
    with pytest.raises(ValueError, match=words) as refusal:
        reproduce(name, tmp_path / "out", options=Options(device="cpu", **asked))
    assert "\n" not in str(refusal.value) and not (tmp_path / "out").exists()


def test_an_item_that_is_refused_does_not_stop_the_others(tmp_path, capsys):
    words = ["reproduce", "all", "--seeds", "0", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("equalbits reproduce: ")]
    assert [line.split()[2].rstrip(":") for line in lines] == list_items()
    assert sum("trains each net once" in line for line in lines) == 4


def test_a_seed_named_twice_is_one(tmp_path, tiny):
    grid = {"nets": ["conv2"], "model.weight_quantizer": ["sign"]}
    reproduce("tab2", tmp_path, options=tiny({"model.options.width": 0.05}, seeds=(1, 0, 1), grid=grid))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["seeds"] == result["asked"]["seeds"] == [1, 0]
    assert [run["seed"] for run in result["nets"]["conv2"][0]["runs"]] == [1, 0]


@pytest.mark.parametrize("value", ["abc", "", True, [0.1]])
def test_a_value_that_is_not_a_number_is_refused_for_a_numeric_parameter(tmp_path, value):
    with pytest.raises(ValueError, match=r"optimizer\.weight_decay of fig3 is .*: it must be a number"):
        reproduce("fig3", tmp_path / "out", grid={"optimizer.weight_decay": [value]}, quick=True, device="cpu")


def test_a_value_that_is_named_twice_is_measured_once():
    for item, asked, kept in (
        ("fig8", {"rules": "mpt,mpt", "sparsity": "0,0.0"}, {"rules": ["mpt"], "sparsity": [0.0]}),
        ("tab2", {"nets": ["conv2", "conv4", "conv2"]}, {"nets": ["conv2", "conv4"]}),
    ):
        assert split(asked, {}, whole=get_item(item).grid, item=item)[1] == kept


@pytest.mark.parametrize("name", list_items())
def test_the_complete_item_lacks_nothing(name):
    item = get_item(name)
    for grid in ({}, {part: list(values) for part, values in item.grid.items()}):
        assert missing_parts(item, {"asked": {"grid": grid, "seeds": [], "settings": {}}}) == []


def test_values_that_were_not_requested_are_missing():
    asked = {"grid": {"model.weight_quantizer": ["irnet-identity"], "nets": ["conv2"]}, "seeds": [], "settings": {}}
    lacking = ["nets conv4, conv6, conv8", "weight quantizer irnet-through"]
    assert missing_parts(get_item("tab2-irnet"), {"asked": asked}) == lacking


def test_the_command_reproduces_the_requested_options(tmp_path, capsys):
    settings = ["--set", "epochs=1", "--set", "data.limit=64", "--set", "model.options.width=0.05"]
    parts = ["--set", "nets=conv2", "--set", "model.weight_quantizer=sign,irnet-identity"]
    words = ["reproduce", "tab2", "--quick", "--seeds", "3", *settings, *parts]
    assert main([*words, "--out", str(tmp_path), "--device", "cpu", "--json"]) == 0
    capsys.readouterr()
    result = json.loads((tmp_path / "result.json").read_text())
    again = command("tab2", result["asked"], out="runs/tab2").split()
    assert again[0] == "equalbits" and again[-2:] == ["--out", "runs/tab2"]
    assert again[1:4] == ["reproduce", "tab2", "--quick"]
    assert main([*again[1:-2], "--out", str(tmp_path), "--json"]) == 0  # the same: nothing is refused, nothing trained


def test_a_value_with_a_comma_is_given_as_a_list():
    asked = {"grid": {"model.weight_quantizer": ["sign", "pruned-bihalf:sparsity=0.5,by=score"]}}
    words = command("tab2", asked, out="x")
    assert """'model.weight_quantizer=["sign", "pruned-bihalf:sparsity=0.5,by=score"]'""" in words


def test_the_result_states_the_cost_of_its_nets(tmp_path, tiny):
    options = tiny({"model.options.width": 0.05}, seeds=(0, 1), stack=2, grid={"nets": ["conv2"]})
    reproduce("tab2", tmp_path, options=options)
    result = json.loads((tmp_path / "result.json").read_text())
    runs = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
    assert result["trained"]["nets"] == len(runs) == 6
    assert result["trained"]["side_by_side"] == 2 and result["trained"]["diverged"] == 0
    assert result["trained"]["seconds"] == pytest.approx(sum(run["seconds"] for run in runs))
    assert result["trained"]["devices"] == [result["device"]]
    assert result["trained"]["versions"] == [" · ".join(f"{k} {v}" for k, v in result["versions"].items())]


def test_the_cost_includes_earlier_calls(tmp_path, tiny):
    options = tiny({"model.options.width": 0.05}, seeds=(0,), grid={"nets": ["conv2"]})
    reproduce("tab2", tmp_path, options=options)
    path = tmp_path / "result.json"
    result = json.loads(path.read_text())
    long = {**result["trained"], "seconds": 754.0}
    path.write_text(json.dumps({**result, "seconds": 0.1, "trained": long}))  # as of one that was killed at the end
    reproduce("tab2", tmp_path, options=options)
    assert (
        f"\n3 nets in 12 m 34 s of training on one {result['device']}; equalbits "
        in (tmp_path / "claims.md").read_text()
    )
    assert "<dt>time</dt><dd>754.0 s</dd>" in report_page(tmp_path)
    path.write_text(json.dumps({name: value for name, value in result.items() if name != "trained"}))
    reproduce("tab2", tmp_path, options=options)  # a file that does not say it
    assert "\n3 nets in " in (tmp_path / "claims.md").read_text()


def test_the_cost_includes_nets_that_diverged():
    nets = {"nets": 1, "diverged": 1, "seconds": 0, "side_by_side": 0, "devices": [], "versions": []}
    facts = {"seconds": 2.0, "device": "Some CPU", "versions": {"torch": "2"}, "trained": nets}
    assert cost(facts) == "1 net in 2.0 s of one Some CPU, 1 of which diverged" and made_with(facts) == "torch 2"
    assert made_with({**facts, "trained": {**nets, "versions": ["torch 1", "torch 2"]}}) == "torch 1 and torch 2"


def test_further_values_are_measured_in_the_same_directory(tmp_path, tiny):
    settings = {"model.options.width": 0.05}
    for nets, seeds in ((["conv6"], (0,)), (["conv2", "conv6"], (0, 1)), (["conv2"], (0,))):
        grid = {"nets": nets, "model.weight_quantizer": ["sign"]}
        reproduce("tab2", tmp_path, options=tiny(settings, seeds=seeds, grid=grid))
        result = json.loads((tmp_path / "result.json").read_text())
        assert list(result["nets"]) == nets and result["seeds"] == list(seeds)
    assert len(list(tmp_path.rglob("run.json"))) == 4  # all that was trained is still there
