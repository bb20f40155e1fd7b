"""Every item measures, draws and compares with the paper, end to end at a tiny size."""

import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from equalbits._claim import signed
from equalbits.data import DataError
from equalbits.paper import Options, get_item, reproduce
from equalbits.paper.claims import accuracies
from equalbits.paper.items.fig4_repetitions import values
from equalbits.paper.items.tab2_convnets import READINGS, pick, settings_to_try
from equalbits.paper.published_numbers import TABLE_2, TABLE_3
from equalbits.recipes import get_recipe

NARROW = {"model.options.width": 0.05}


def finished(name, out, options):
    claims = reproduce(name, out, options=options)
    return claims, json.loads((out / "result.json").read_text())


def test_tab2_scores_every_net_method_and_seed_and_trains_nothing_twice(tmp_path, tiny, drawn):
    options = tiny(NARROW, seeds=(3, 4), grid={"nets": ["conv2"], "model.weight_quantizer": ["sign", "bihalf"]})
    claims, result = finished("tab2", tmp_path, options)
    drawn(tmp_path, "tab2")
    assert result["seeds"] == [3, 4]
    runs = sorted(tmp_path.glob("runs/*/*/seed*/run.json"))
    assert len(runs) == 2 * 2
    cases = {case["settings"]["model.weight_quantizer"]: case for case in result["nets"]["conv2"]}
    gap = statistics.fmean(accuracies(cases["bihalf"])) - statistics.fmean(accuracies(cases["sign"]))
    assert claims[0].claim == "Conv2: bi-half above Sign"
    assert claims[0].ours.startswith(f"{signed(gap)} points") and claims[0].n == 2
    before = {path: path.stat().st_mtime_ns for path in runs}
    (tmp_path / "result.json").unlink()
    runs[0].unlink()  # as if cut off there: only this one is trained again
    for name in ("last.safetensors", "best.safetensors"):
        (runs[0].parent / name).unlink(missing_ok=True)
    assert reproduce("tab2", tmp_path, options=options) == claims
    changed = [path for path in runs if path.stat().st_mtime_ns != before[path]]
    assert changed == [runs[0]]


def test_tab2_in_the_papers_setting_compares_each_cell(tmp_path, cifar10):
    settings = {**NARROW, "epochs": 1, "data.batch_size": 10, "speed": "plain"}
    grid = {"nets": ["conv2"]}
    options = Options(root=cifar10, device="cpu", settings=settings, seeds=(0,), grid=grid)
    claims, result = finished("tab2", tmp_path, options)
    cells = [claim for claim in claims if claim.claim.startswith("Conv2, ")]
    assert [cell.paper for cell in cells] == ["77.86 ± 0.69 %", "78.32 ± 0.25 %", "79.25 ± 0.28 %"]
    for cell, case in zip(cells, result["nets"]["conv2"], strict=True):
        (ours,) = accuracies(case)
        assert cell.ours == f"{ours:.2f} %"
        published = TABLE_2["conv2", case["settings"]["model.weight_quantizer"]]
        assert cell.difference == pytest.approx(ours - published.mean)


def test_tab2_kaiming_initializes_as_the_text_and_refuses_another_initialization(tmp_path, cifar10, drawn):
    settings = {**NARROW, "epochs": 1, "data.batch_size": 10, "speed": "plain"}
    grid = {"nets": ["conv2"], "model.weight_quantizer": ["bihalf"]}
    shared = {"root": cifar10, "device": "cpu", "seeds": (0,), "grid": grid}
    for name, start in (("tab2", "torch"), ("tab2-kaiming", "kaiming")):
        finished(name, tmp_path / name, Options(settings=settings, **shared))
        drawn(tmp_path / name, name)
        (run,) = (tmp_path / name).glob("runs/conv2/bihalf/seed0/run.json")
        assert json.loads(run.read_text())["recipe"]["model"]["init"] == start
    with pytest.raises(ValueError, match=r"model\.init is set by tab2-kaiming itself"):
        reproduce("tab2-kaiming", tmp_path / "no", settings={"model.init": "torch"}, **shared)


def test_both_readings_of_irnet_are_shown_beside_the_papers(tmp_path, cifar10, drawn):
    methods = ["sign", "irnet-stable", "irnet-identity", "bihalf"]
    settings = {**NARROW, "epochs": 1, "data.batch_size": 10, "speed": "plain", "nets": "conv2",
                "model.weight_quantizer": ",".join(methods)}  # fmt: skip
    claims, result = finished("tab2", tmp_path, Options(root=cifar10, device="cpu", settings=settings, seeds=(0,)))
    drawn(tmp_path, "tab2")
    assert result["asked"]["grid"] == {"nets": ["conv2"], "model.weight_quantizer": methods}
    rows = {claim.claim: claim for claim in claims}
    papers = [
        rows[f"Conv2, IR-Net ({name}): within 0.3 points of the paper's"].paper for name in ("stable", "identity")
    ]
    assert papers == ["78.32 ± 0.25 %"] * 2
    assert rows["Conv2: bi-half above IR-Net (identity)"].paper == "+0.93 points"
    assert len(claims) == 4 + 3


def test_the_other_readings_of_irnet_train_at_their_own_rates(tmp_path, cifar10, drawn):
    settings = {**NARROW, "epochs": 1, "data.batch_size": 10, "speed": "plain"}
    shared = {"root": cifar10, "device": "cpu", "seeds": (0,)}
    claims, result = finished("tab2-irnet", tmp_path, Options(settings=settings, grid={"nets": ["conv2"]}, **shared))
    drawn(tmp_path, "tab2-irnet")
    assert [claim.paper for claim in claims] == ["78.32 ± 0.25 %"] * 2
    assert [case["settings"]["model.weight_quantizer"] for case in result["nets"]["conv2"]] == list(READINGS)
    for reading, rate in READINGS.items():
        (run,) = tmp_path.glob(f"runs/conv2/{reading}/**/seed0/run.json")
        recipe = json.loads(run.read_text())["recipe"]
        assert recipe["optimizer"]["lr"] == rate and recipe["model"]["weight_quantizer"] == reading


def test_tab2_tuned_picks_on_held_out_images_and_scores_on_test_images(tmp_path, tiny, drawn):
    grid = {"nets": ["conv2"], "model.weight_quantizer": ["bihalf"], "optimizer.lr": [0.05, 0.1],
            "optimizer.weight_decay": [1e-4], "label_smoothing": [0.1]}  # fmt: skip
    options = tiny({**NARROW, "data.name": "synthetic:1x16x16:10:1040"}, seeds=(0,), grid=grid)
    _, result = finished("tab2-tuned", tmp_path, options)
    drawn(tmp_path, "tab2-tuned")
    tuning = result["tuning"]["conv2"]["bihalf"]
    assert [run["last"]["test"]["total"] for case in tuning["tried"] for run in case["runs"]] == [1000, 1000]
    assert tuning["picked"] == pick(tuning["tried"])
    assert set(tuning["picked"]) == {"epochs", "optimizer.lr", "optimizer.weight_decay", "label_smoothing"}
    (case,) = result["nets"]["conv2"]
    assert case["settings"]["optimizer.lr"] == tuning["picked"]["optimizer.lr"]
    assert [run["last"]["test"]["total"] for run in case["runs"]] == [260]
    assert [run["last"]["train"]["total"] for run in case["runs"]] == [1040]


def test_tab2_tuned_lets_the_smallest_net_train_longer_unless_epochs_are_asked_for():
    assert settings_to_try("conv2", Options())["epochs"] == [100, 200]
    assert settings_to_try("conv8", Options())["epochs"] == [100]
    assert settings_to_try("conv2", Options(grid={"epochs": [7], "nets": ["conv2"]})) == {
        **settings_to_try("conv2", Options()), "epochs": [7]
    }  # fmt: skip


def test_fig5_measures_every_share_in_both_forms(tmp_path, tiny, drawn):
    claims, result = finished("fig5", tmp_path, tiny(NARROW, seeds=(0,), grid={"p_pos": [0.4, 0.5]}))
    drawn(tmp_path, "fig5")
    assert set(result["data"]["Fashion-MNIST"]) == {"literal", "with batch norm"}
    for form, cases in result["data"]["Fashion-MNIST"].items():
        scores = dict(zip(result["shares"], (accuracies(case)[0] for case in cases), strict=True))
        (row,) = (row for row in claims if f", {form}:" in row.claim)
        best = max(scores, key=scores.get)
        assert row.ours.startswith(f"{best:g} with {scores[best]:.2f} %")
        assert row.difference == pytest.approx(best - 0.5)


def test_fig5_measures_and_plots_one_form_alone(tmp_path, tiny, drawn):
    _, result = finished(
        "fig5", tmp_path, tiny(NARROW, seeds=(0,), grid={"p_pos": [0.5], "forms": ["with batch norm"]})
    )
    drawn(tmp_path, "fig5")
    assert list(result["data"]["Fashion-MNIST"]) == ["with batch norm"]


def test_fig5_agrees_only_if_one_half_is_significantly_best():
    def verdict(**scores):
        cases = [
            {"runs": [{"last": {"test": {"correct": c, "total": 1000}}} for c in some]} for some in scores.values()
        ]
        result = {"shares": [0.4, 0.5], "seeds": [0, 1], "data": {"X": {"literal": cases}}}
        return get_item("fig5").compare(result)[0].agrees

    assert verdict(other=(500, 502), half=(800, 802)) is True
    assert verdict(other=(798, 802), half=(800, 804)) is None
    assert verdict(other=(900, 902), half=(800, 802)) is False


def test_fig5_reads_cifar_100_in_its_own_format(tmp_path, cifar100, drawn):
    settings = {**NARROW, "epochs": 1, "data.batch_size": 10, "speed": "plain"}
    grid = {"data": ["CIFAR-100"], "p_pos": [0.5]}
    options = Options(root=cifar100, device="cpu", settings=settings, seeds=(0,), grid=grid)
    claims, result = finished("fig5", tmp_path, options)
    drawn(tmp_path, "fig5")
    assert list(result["data"]) == ["CIFAR-100"] and len(claims) == 2
    for cases in result["data"]["CIFAR-100"].values():
        assert cases[0]["runs"][0]["last"]["test"]["total"] == 12


def test_fig4_counts_every_seed_of_both_methods(tmp_path, tiny, drawn):
    claims, result = finished("fig4", tmp_path, tiny(NARROW, seeds=(0, 1, 2), stack=3))
    drawn(tmp_path, "fig4")
    sign, half = (values(result["methods"][method], "train", "loss") for method in ("sign", "bihalf"))
    assert len(sign) == len(half) == 3
    assert claims[0].ours.startswith(signed(statistics.fmean(half) - statistics.fmean(sign), 3))
    below = sum(a < b for a, b in zip(sorted(half), sorted(sign), strict=True))
    assert claims[-1].ours == f"{below} of 3"


def test_fig8_prunes_by_every_rule(tmp_path, tiny, drawn):
    from equalbits.paper.items.fig8_pruning import RULES
    from equalbits.recipes import stored_recipe

    claims, result = finished("fig8", tmp_path, tiny(NARROW, grid={"sparsity": [0.0, 0.5]}))
    drawn(tmp_path, "fig8")
    assert list(result["nets"]["Conv2"]) == list(RULES)
    for name, cases in result["nets"]["Conv2"].items():
        quantizers = [case["settings"]["model.weight_quantizer"] for case in cases]
        assert quantizers == [RULES[name].quantizer.format(sparsity) for sparsity in (0.0, 0.5)]
    runs = {path.parts[-4]: stored_recipe(path) for path in tmp_path.glob("runs/conv2/*/*/seed*/run.json")}
    started = {folder: (recipe.model.init, recipe.train.optimizer.lr) for folder, recipe in runs.items()}
    rate = started["torch-start"][1]
    assert started == {
        "torch-start": ("torch", rate),
        "torch-start-rate-0.1": ("torch", pytest.approx(rate / 10)),
        "kaiming-start": ("kaiming", rate),
    }
    assert "Conv2: best pruned bi-half (50%) above the full binary net" in [claim.claim for claim in claims]


def test_fig7_trains_real_and_binary_inputs(tmp_path, tiny, drawn):
    claims, result = finished("fig7", tmp_path, tiny(seeds=(0,)))
    drawn(tmp_path, "fig7")
    assert list(result["nets"]) == ["ResNet-18 1/32", "ResNet-18 1/1"]
    assert len(claims) == 4 and result["seeds"] == [0]


def test_fig7_names_recipes_that_exist():
    from equalbits.paper.items.fig7_architectures import NETS

    assert all(get_recipe(name).data.name == "cifar100" for name in NETS.values())


def test_tab3_reads_a_tree_of_images(tmp_path, image_tree, drawn):
    settings = {"epochs": 1, "data.resize": 32, "data.crop": 32, "data.batch_size": 4, "data.workers": 0,
                "model.options.width": 0.05}  # fmt: skip
    options = Options(root=image_tree, device="cpu", settings=settings, grid={"nets": ["ResNet-18"]})
    claims, result = finished("tab3", tmp_path, options)
    drawn(tmp_path, "tab3")
    by_claim = {claim.claim: claim for claim in claims}
    row = next(row for row in TABLE_3 if (row.net, row.method) == ("ResNet-18", "Bi-half"))
    test = result["nets"]["ResNet-18"]["bihalf"]["runs"][0]["last"]["test"]
    assert test["total"] == 6
    ours = by_claim["ResNet-18, Bi-half, top-5: within 0.5 points of the paper's"]
    assert ours.paper == f"{row.top5:.2f} %"
    assert ours.ours == f"{100 * test['correct_top5'] / 6:.2f} %"
    gap = by_claim["ResNet-18: bi-half above Sign, top-1"]
    sign = result["nets"]["ResNet-18"]["sign"]["runs"][0]["last"]["test"]
    assert gap.ours.startswith(f"{signed(100 * (test['correct'] - sign['correct']) / 6)} points")


def test_tab1_proves_the_flip_form_and_the_ranking_one_rule(tmp_path, tiny, drawn):
    claims, result = finished("tab1", tmp_path, tiny({"model.options.width": 0.1, "data.batch_size": 16}))
    drawn(tmp_path, "tab1")
    form = result["rules"]["bihalf"]["flip_form"]
    assert form["bits_that_differ"] == 0 and form["flips"] > 0 and form["steps"] == 6
    assert claims[0].agrees
    half = result["rules"]["bihalf"]
    assert half["filters_exactly_half"] == half["filters"]
    assert half["to_positive"] == half["to_negative"] and half["flips"] == [sum(half["to_positive"])] * 2
    assert [row.agrees for row in claims if "accuracy" in row.claim] == [None, None, None]  # one seed
    assert sum(result["rules"]["bits"]["to_positive"]) > 0


@pytest.mark.parametrize(("name", "data"), [("tab2", "cifar10"), ("fig7", "cifar100"), ("tab3", "imagenet")])
def test_an_item_whose_data_is_missing_is_refused_in_one_line(tmp_path, name, data):
    assert data in get_item(name).needs
    with pytest.raises(DataError) as caught:
        reproduce(name, tmp_path / "out", root=tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def cifar100(tmp_path_factory):
    root = tmp_path_factory.mktemp("cifar100")
    folder = root / "cifar-100-binary"
    folder.mkdir()
    for seed, (split, count) in enumerate((("train", 30), ("test", 12))):
        random = np.random.default_rng(seed)
        fine = random.integers(0, 100, (count, 1), dtype=np.uint8)
        pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
        (folder / f"{split}.bin").write_bytes(np.concatenate([fine // 5, fine, pixels], axis=1).tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"kind{number}" for number in range(100)) + "\n")
    return root


@pytest.fixture(scope="module")
def image_tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("imagenet")
    for split, count in (("train", 4), ("val", 2)):
        for kind, name in enumerate(("cat", "dog", "owl")):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                shade = (40 * number, 80 * kind, 120)
                Image.new("RGB", (40, 36), shade).save(root / split / name / f"{number}.png")
    return root


def test_best_trains_every_seed_with_one_teacher_and_compares_with_published_numbers(tmp_path, tiny, drawn):
    claims, result = finished("best", tmp_path, tiny({"model.options.width": 0.1}, seeds=(0, 1)))
    drawn(tmp_path, "best")
    assert not claims and [run["seed"] for run in result["nets"]["ResNet-20"]["runs"]] == [0, 1]
    (teacher,) = tmp_path.glob("runs/teachers/*/run.json")
    assert teacher.parent.name.startswith("fashion-conv2-")
    (row,) = get_item("best").compare({**result, "quick": False})
    assert (row.claim, row.paper, row.n) == ("ResNet-20: above IE-Net", "88.50 %", 2)
    assert row.difference < 0 and not row.agrees and row.decided_by.startswith("one-sample t, ")


def test_best_nets_in_a_stack_are_those_trained_in_turn_and_keep_their_weights(tmp_path, tiny):
    found = {}
    for stack in (1, 2):
        out = tmp_path / str(stack)
        options = replace(tiny({"model.options.width": 0.1}, seeds=(0, 1)), stack=stack)
        _, result = finished("best", out, options)
        lasts = [run["last"] for run in result["nets"]["ResNet-20"]["runs"]]
        found[stack] = [(last["train"], last["test"]) for last in lasts]
        assert len(list(out.glob("runs/teachers/*/run.json"))) == 1
    assert found[1] == found[2]
    assert len(list((tmp_path / "2").glob("runs/resnet-20/*/seed*/weights.safetensors"))) == 2


def test_entropy_compares_shares_with_and_without_zero_mean(tmp_path, tiny, drawn):
    claims, result = finished("entropy", tmp_path, tiny(NARROW, seeds=(0, 1)))
    drawn(tmp_path, "entropy")
    assert list(result["nets"]["conv2"]) == ["no batch norm", "batch norm"]
    for cases in result["nets"]["conv2"].values():
        assert [case["settings"]["model.weight_quantizer"] for case in cases] == [
            "sign",
            "bihalf",
            "zero-mean:p_pos=0.45",
        ]
        assert all(len(case["runs"]) == 2 for case in cases)
    assert [claim.claim for claim in claims] == [
        f"Conv2, {form}: {question}"
        for form in ("no batch norm", "batch norm")
        for question in ("bi-half above sign", "one half above 0.45 with zero mean")
    ]


def test_flip_rate_counts_the_flips_at_every_learning_rate(tmp_path, tiny, drawn):
    options = tiny(NARROW, seeds=(0, 1), grid={"optimizer.lr": (0.05, 0.1)})
    claims, result = finished("flip-rate", tmp_path, options)
    drawn(tmp_path, "flip-rate")
    assert [tuple(case["settings"].values()) for case in result["cases"]] == [
        ("sign", 0.05),
        ("sign", 0.1),
        ("bihalf", 0.05),
        ("bihalf", 0.1),
    ]
    runs = [run for case in result["cases"] for run in case["runs"]]
    assert all(0 < run["flips"] < run["symbols"] * run["steps"] for run in runs)
    assert [claim.n for claim in claims] == [2, 2]
    assert claims[1].claim.startswith("bi-half above Sign at its nearest flip rate")
