"""Parts of an item that were measured separately merge to the whole, and only those."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equalbits.paper import Options, get_item, reproduce
from equalbits.paper.keep_measurements import all_asked, check_same_settings, covers, keep_item, merge
from equalbits.paper.results_page import kept_claims, missing_parts, origin

RESULTS = Path(__file__).parents[2] / "results"
WHOLE: dict[str, Any] = json.loads((RESULTS / "tab2.json").read_text())
ITEM = get_item("tab2")
PARTS = {
    "nets": list(ITEM.grid["nets"]),
    "model.weight_quantizer": list(ITEM.grid["model.weight_quantizer"]),
    "seeds": [0, 1, 2, 3, 4],
}
SMALL = {"epochs": 1, "data.batch_size": 10, "speed": "plain", "model.options.width": 0.05}


def only(part: str, values: list[Any]) -> dict[str, Any]:
    """Content of results/ if only these values had been measured."""
    nets = {
        net: [
            {**case, "runs": [run for run in case["runs"] if part != "seeds" or run["seed"] in values]}
            for case in cases
            if part != "model.weight_quantizer" or case["settings"][part] in values
        ]
        for net, cases in WHOLE["measured"]["nets"].items()
        if part != "nets" or net in values
    }
    runs = [run for cases in nets.values() for case in cases for run in case["runs"]]
    asked = {**WHOLE["asked"], "seeds": values} if part == "seeds" else {**WHOLE["asked"], "grid": {part: values}}
    cost = {"nets": len(runs), "seconds": sum(run["seconds"] for run in runs)}
    seeds = {"seeds": values} if part == "seeds" else {}
    measured = {**WHOLE["measured"], "nets": nets}
    return {**WHOLE, "asked": asked, "trained": {**WHOLE["trained"], **cost}, "measured": measured, **seeds}


@given(data=st.data(), part=st.sampled_from(list(PARTS)))
def test_parts_merge_to_the_whole_in_any_order(data: st.DataObject, part: str) -> None:
    values = data.draw(st.permutations(PARTS[part]))
    cut = data.draw(st.integers(1, len(values) - 1))
    one, other = only(part, values[:cut]), only(part, values[cut:])
    assert not covers(ITEM, one, other) and covers(ITEM, WHOLE, one)
    both = merge(ITEM, one, other)
    assert json.dumps(both["measured"]) == json.dumps(WHOLE["measured"])  # the order of nets and methods is the item's
    assert both["asked"] == WHOLE["asked"] and both["seeds"] == WHOLE["seeds"]
    assert both["trained"]["nets"] == WHOLE["trained"]["nets"] == 60
    assert both["trained"]["seconds"] == pytest.approx(WHOLE["trained"]["seconds"], abs=0.1)
    assert kept_claims(ITEM, both) == kept_claims(ITEM, WHOLE) != []


def test_merged_notes_are_listed_once_and_seconds_are_added() -> None:
    one = {**only("nets", ["conv2"]), "notes": ["of conv2", "of all"], "seconds": 1.5}
    other = {**only("nets", ["conv4", "conv6", "conv8"]), "notes": ["of all", "of others"], "seconds": 2.25}
    both = merge(ITEM, one, other)
    assert both["notes"] == ["of conv2", "of others", "of all"] and both["seconds"] == 3.75
    assert "notes" not in merge(ITEM, only("nets", ["conv2"]), only("nets", ["conv4"]))


def test_devices_are_listed_once_however_often_parts_are_merged() -> None:
    both = only("nets", ["conv2"])
    for net, device in {"conv4": "B", "conv6": "A", "conv8": "B"}.items():
        part = only("nets", [net])
        both = merge(ITEM, both, {**part, "device": device, "trained": {**part["trained"], "devices": [device]}})
    assert both["device"] == "A, B, NVIDIA H200" and both["trained"]["devices"] == ["A", "B", "NVIDIA H200"]


def test_separately_tuned_parts_are_listed_by_net_and_method() -> None:
    item, whole = get_item("tab2-tuned"), json.loads((RESULTS / "tab2-tuned.json").read_text())

    def of(nets: list[str]) -> dict[str, Any]:
        measured = {name: {net: found[net] for net in nets} for name, found in whole["measured"].items()}
        notes = [note for note in whole["notes"] if not note.startswith("Conv") or note[:5].lower() in nets]
        asked = {**whole["asked"], "grid": {**whole["asked"]["grid"], "nets": nets}}
        return {**whole, "asked": asked, "measured": measured, "notes": notes}

    both = merge(item, of(["conv4", "conv8"]), of(["conv2", "conv6"]))
    assert [both[name] for name in ("asked", "measured", "notes")] == [
        whole[name] for name in ("asked", "measured", "notes")
    ]
    sign = json.loads(json.dumps(whole).replace('"bihalf"', '"sign"').replace('"epochs": 100', '"epochs": 300'))
    for cases in merge(item, whole, sign)["measured"]["nets"].values():
        assert [case["settings"]["model.weight_quantizer"] for case in cases] == ["sign", "bihalf"]


FIGURE_8: dict[str, Any] = json.loads((RESULTS / "fig8.json").read_text())
NETS, RULES = ["Conv2", "Conv4", "Conv6", "Conv8"], ["pruned-bihalf", "pruned-sign", "pruned-sign-slow"]


def figure_8(nets: list[str], rules: list[str]) -> dict[str, Any]:
    """Content of results/ if only these rules had been measured, on these nets."""
    measured = {net: {rule: FIGURE_8["measured"]["nets"][net][rule] for rule in rules} for net in nets}
    grid = {"sparsity": FIGURE_8["measured"]["sparsities"], "nets": nets, "rules": rules}
    count = sum(len(cases) for each in measured.values() for cases in each.values())
    return {
        **{name: value for name, value in FIGURE_8.items() if name != "asked_beside"},
        "asked": {**FIGURE_8["asked"], "grid": grid},
        "trained": {**FIGURE_8["trained"], "nets": count},
        "measured": {**FIGURE_8["measured"], "nets": measured},
    }


@pytest.mark.parametrize("part", ["nets", "sparsity", "rules"])
def test_figure_8_is_joined_by_nets_sparsities_and_rules(part: str) -> None:
    item, whole = get_item("fig8"), figure_8(NETS, RULES)
    every = whole["asked"]["grid"]

    def of(values: list[Any]) -> dict[str, Any]:
        nets = {
            net: {
                rule: [
                    case
                    for sparsity, case in zip(every["sparsity"], cases, strict=True)
                    if part != "sparsity" or sparsity in values
                ]
                for rule, cases in rules.items()
                if part != "rules" or rule in values
            }
            for net, rules in whole["measured"]["nets"].items()
            if part != "nets" or net in values
        }
        sparsities = values if part == "sparsity" else every["sparsity"]
        asked = {**whole["asked"], "grid": {**every, part: values}}
        return {**whole, "asked": asked, "measured": {"sparsities": sparsities, "nets": nets}}

    values = every[part]
    both = merge(item, of(values[1:2]), of([*values[2:], values[0]]))
    assert json.dumps(both["measured"]) == json.dumps(whole["measured"]) and both["asked"]["seeds"] == [0]
    assert item.claims(both["measured"]) == item.claims(whole["measured"]) != []


@given(order=st.permutations(NETS))
def test_a_further_rule_of_figure_8_is_merged_per_net_and_missing_cells_are_listed(order: list[str]) -> None:
    item, both = get_item("fig8"), figure_8(NETS, RULES[:2])
    for at, net in enumerate(order, start=1):
        part = figure_8([net], RULES[2:])
        both = merge(item, both, part)
        there, rest = sorted(order[:at]), sorted(order[at:])
        gaps = [words for words in missing_parts(item, both) if words.startswith("pruned-sign-slow for")]
        assert gaps == ([f"pruned-sign-slow for {', '.join(rest)}"] if rest else [])
        assert ("asked_beside" in both) == bool(rest) == origin(both).endswith(" --out runs/fig8-2`.")
        assert f"--set nets={','.join(there)} --set sparsity=" in origin(both)
        assert item.claims(both["measured"])  # drawn from what is there
        with pytest.raises(ValueError, match=r"cannot be merged that both hold"):
            merge(item, both, part)
    every = figure_8(NETS, RULES)
    for name in ("asked", "measured"):
        assert json.dumps(both[name], sort_keys=True) == json.dumps(every[name], sort_keys=True)
    assert both["trained"]["nets"] == every["trained"]["nets"] and covers(item, every, both)


def test_parts_with_other_sparsities_or_shared_cells_are_refused_and_a_complete_part_replaces_them() -> None:
    item = get_item("fig8")
    one = figure_8(["Conv2", "Conv4"], ["pruned-bihalf"])
    other = figure_8(["Conv4", "Conv6"], ["pruned-sign"])
    both = merge(item, one, other)
    assert [each["grid"]["nets"] for each in all_asked(both)] == [["Conv2", "Conv4"], ["Conv4", "Conv6"]]
    assert "pruned-sign for Conv2" in missing_parts(item, both) and "pruned-bihalf for Conv6" in missing_parts(
        item, both
    )
    sparsities = {**other, "asked": {**other["asked"], "grid": {**other["asked"]["grid"], "sparsity": [0.1]}}}
    overlap = figure_8(["Conv2", "Conv6"], ["pruned-bihalf", "pruned-sign"])
    for wrong, words in (
        (sparsities, "differ in nets and sparsity and rules"),
        (overlap, r"both hold Conv2, 0\.0, pruned-bihalf, 0 \(the last is a seed\):"),
    ):
        with pytest.raises(ValueError, match=words):
            merge(item, one, wrong)
    more = figure_8(["Conv2", "Conv4", "Conv6"], ["pruned-bihalf", "pruned-sign"])
    assert covers(item, more, both) and not covers(item, both, more) and not covers(item, one, both)


def test_seeds_of_figure_8_are_merged_per_net_and_missing_ones_are_listed() -> None:
    item, one = get_item("fig8"), figure_8(["Conv2", "Conv4"], ["pruned-bihalf", "pruned-sign"])
    other = figure_8(["Conv4"], ["pruned-bihalf"])
    both = merge(item, one, {**other, "asked": {**other["asked"], "seeds": [1]}, "seeds": [1], "measured": {}})
    assert [each["seeds"] for each in all_asked(both)] == [[0], [1]] and both["seeds"] == [0, 1]
    assert "seed 1, pruned-bihalf for Conv2" in missing_parts(item, both)
    assert "seed 1, pruned-sign for Conv2, Conv4" in missing_parts(item, both)
    assert not [words for words in missing_parts(item, both) if words.startswith("seed 0,")]


def test_parts_of_figure_1_merge_although_earlier_epochs_are_not_stored() -> None:
    item, one = get_item("fig1"), json.loads((RESULTS / "fig1.json").read_text())
    weights = one["measured"]["weights"]
    measured = {"weights": {}, "activations": {"sign": {"layers": [[0.5]]}}}
    other = {**one, "asked": {**one["asked"], "grid": {"parts": ["activations"]}}, "measured": measured, "left_out": []}
    for first, second in ((one, other), (other, one)):
        both = merge(item, first, second)
        assert both["asked"]["grid"] == {} and both["left_out"] == one["left_out"]
        assert json.dumps(both["measured"]) == json.dumps({**measured, "weights": weights})


def test_a_curve_that_both_parts_hold_is_unchanged() -> None:
    parts = [only("nets", [net]) for net in ("conv2", "conv4")]
    one, other = ({**part, "measured": {**part["measured"], "curve": [3, 1, 1]}} for part in parts)
    assert merge(ITEM, one, other)["measured"]["curve"] == [3, 1, 1]


def test_two_of_three_parts_are_incomplete() -> None:
    both = merge(ITEM, only("nets", ["conv8"]), only("nets", ["conv2"]))
    assert both["asked"]["grid"] == {"nets": ["conv2", "conv8"]} and list(both["measured"]["nets"]) == [
        "conv2",
        "conv8",
    ]
    both = merge(ITEM, only("seeds", [4]), only("seeds", [0, 2]))
    assert both["asked"]["seeds"] == both["seeds"] == [0, 2, 4]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (only("nets", ["conv2"]), only("seeds", [0]), "both hold conv2, bihalf, 0"),
        (only("nets", ["conv2", "conv4"]), only("nets", ["conv4", "conv6"]), "both hold conv4, bihalf, 0"),
        (only("nets", ["conv2"]), {**only("nets", ["conv4"]), "left_out": ["curves"]}, "curves of every step"),
        (
            only("nets", ["conv2"]),
            {**only("nets", ["conv4"]), "measured": {"nets": [{"net": "conv4"}]}},
            "measured.nets is {.*} in one and .* in the other",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(one: dict[str, Any], other: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^results of tab2 cannot be merged.*{words}.*[:;] measure the whole in one"):
        merge(ITEM, one, other)


def with_settings(settings: dict[str, Any], *nets: str) -> dict[str, Any]:
    return {**WHOLE, "asked": {**WHOLE["asked"], "settings": settings, "grid": {"nets": list(nets)}}}


def test_parts_with_other_settings_are_not_merged_unless_results_are_unaffected() -> None:
    words = r"different settings, \{\} and \{'epochs': 2\}, so they cannot be merged: measure with the same, or"
    with pytest.raises(ValueError, match=words):
        merge(ITEM, only("nets", ["conv2"]), with_settings({"epochs": 2}, "conv4"))
    check_same_settings(ITEM, WHOLE, with_settings({"data.workers": 2}, "conv4"))


def test_a_kept_result_is_replaced_only_by_one_with_the_same_settings(tmp_path: Path, cifar10: Path) -> None:
    results, lines = tmp_path / "results", []
    results.mkdir()
    for name, epochs in {"first": 2, "again": 2, "other": 1}.items():
        grid = {"nets": ["conv2"], "model.weight_quantizer": ["sign"]}
        settings = {**SMALL, "epochs": epochs}
        options = Options(root=cifar10, device="cpu", settings=settings, grid=grid, seeds=(0,))
        reproduce("tab2", tmp_path / name, options=options)
    path = keep_item(tmp_path / "first", results, results, log=lines.append)
    assert lines == []
    kept, picture = path.read_bytes(), (results / "tab2.png").read_bytes()
    with pytest.raises(ValueError, match=r"'epochs': 2.* and .*'epochs': 1.*so they cannot be merged"):
        keep_item(tmp_path / "other", results, results, log=lines.append)
    assert (path.read_bytes(), (results / "tab2.png").read_bytes(), lines) == (kept, picture, [])
    keep_item(tmp_path / "again", results, results, log=lines.append)
    assert len(lines) == 1 and lines[0].startswith(f"{path} is replaced, all of it was measured again: 1 net in ")


def test_shares_of_figure_5_measured_separately_are_merged(tmp_path: Path, cifar10: Path) -> None:
    measured = {}
    for name, shares in {"few": [0.5, 0.9], "others": [0.45, 0.1], "all": [0.1, 0.45, 0.5, 0.9]}.items():
        grid = {"data": ["CIFAR-10"], "p_pos": shares}
        options = Options(root=cifar10, device="cpu", settings=SMALL, grid=grid, seeds=(0,))
        reproduce("fig5", tmp_path / name, options=options)
    for kept, folders in {"apart": ["few", "others"], "at-once": ["all"]}.items():
        (tmp_path / kept).mkdir()
        for folder in folders:
            path = keep_item(tmp_path / folder, tmp_path / kept, tmp_path / kept)
        measured[kept] = json.loads(path.read_text())
    apart, at_once = (_less_times(measured[kept]) for kept in ("apart", "at-once"))
    assert apart == at_once
    assert measured["apart"]["trained"]["nets"] == 8
    assert (tmp_path / "apart" / "fig5.png").read_bytes().startswith(b"\x89PNG")


def _less_times(kept: dict[str, Any]) -> dict[str, Any]:
    shown = {name: kept[name] for name in ("asked", "seeds", "measured", "notes")}
    for forms in shown["measured"]["data"].values():
        for cases in forms.values():
            for run in (run for case in cases for run in case["runs"]):
                del run["seconds"]
    return shown


def best_of(nets: list[str], seeds: list[int], *, recipe: dict[str, Any] | None = None) -> dict[str, Any]:
    """Content of results/ if these best nets had been trained with these seeds."""
    whole = json.loads((RESULTS / "best.json").read_text())
    (case,) = whole["measured"]["nets"].values()
    runs = [{**case["runs"][0], "seed": seed} for seed in seeds]
    return {
        **whole,
        "asked": {**whole["asked"], "seeds": seeds, "grid": {"nets": nets}},
        "seeds": seeds,
        "measured": {"nets": {net: {**case, "recipe": recipe or case["recipe"], "runs": runs} for net in nets}},
    }


def test_best_nets_are_merged_by_net_and_seed_and_missing_parts_are_listed() -> None:
    item = get_item("best")
    both = merge(item, best_of(["ResNet-18"], [0]), best_of(["ResNet-20", "VGG-small"], [0, 1, 2]))
    assert {net: len(case["runs"]) for net, case in both["measured"]["nets"].items()} == {
        "ResNet-18": 1,
        "ResNet-20": 3,
        "VGG-small": 3,
    }
    assert missing_parts(item, both) == ["nets CIFAR-100 ResNet-18", "ResNet-18 for seeds 1–2"]
    both = merge(item, both, best_of(["ResNet-18"], [1, 2]))
    assert missing_parts(item, both) == ["nets CIFAR-100 ResNet-18"] and "asked_beside" not in both
    assert [row.n for row in kept_claims(item, both)] == [3, 3, 3]


def test_seeds_of_an_older_recipe_are_replaced_instead_of_merged() -> None:
    item, old = get_item("best"), best_of(["ResNet-18"], [0])
    newer = {**old["measured"]["nets"]["ResNet-18"]["recipe"], "epochs": 600}
    with pytest.raises(ValueError, match=r"epochs is 300 in one and 600 in the other"):
        merge(item, old, best_of(["ResNet-18"], [1, 2], recipe=newer))
    assert covers(item, best_of(["ResNet-18"], [0, 1, 2], recipe=newer), old)


@pytest.mark.parametrize(
    ("name", "one", "other", "lacking"),
    [
        (
            "fig5",
            ({"data": ["CIFAR-10"]}, [0, 1, 2]),
            ({"data": ["CIFAR-100"]}, [0, 1]),
            "literal, CIFAR-100 for seeds 2",
        ),
        (
            "fig7",
            ({"nets": ["ResNet-18 1/1"]}, [0, 1]),
            ({"nets": ["ResNet-34 1/1"], "model.weight_quantizer": ["sign", "bihalf"]}, [0]),
            "ResNet-34 1/1, irnet for seeds 0–1",
        ),
        (
            "tab2-tuned",
            ({"nets": ["conv2"], "model.weight_quantizer": ["sign", "irnet-stable"]}, [0, 1, 2, 3, 4]),
            ({"model.weight_quantizer": ["bihalf"]}, [0, 1, 2, 3, 4]),
            "conv4, conv6, conv8 for sign, irnet-stable",
        ),
    ],
)
def test_parts_that_differ_in_seeds_and_nets_can_be_merged(name: str, one: Any, other: Any, lacking: str) -> None:
    item = get_item(name)

    def of(part: Any) -> dict[str, Any]:
        grid, seeds = part
        return {**WHOLE, "item": name, "asked": {**WHOLE["asked"], "settings": {}, "seeds": seeds, "grid": grid},
                "seeds": seeds, "measured": {}, "notes": []}  # fmt: skip

    for first, second in ((of(one), of(other)), (of(other), of(one))):
        both = merge(item, first, second)
        assert lacking in missing_parts(item, both), missing_parts(item, both)
