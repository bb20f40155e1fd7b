"""The report of a run shows its answers to the test images: confusion matrix, accuracy per class, mistakes, samples."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import equalbits as eb
from equalbits._plotting import new_figure, save_figure
from equalbits.recipes import Execution, Recipe, run_recipe, sweep
from equalbits.report import answers, report_page
from equalbits.report.answers import answers_of


def recipe(data: str, **settings: object) -> Recipe:
    table = {"name": "own", "epochs": 2, "model": {"name": "conv2", "options": {"width": 0.05}}}
    return Recipe.from_dict({**table, "data": {"name": data, "batch_size": 64}}).with_settings(settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("answers") / "run"
    run_recipe(recipe("fashion", **{"data.limit": 512}), out, device="cpu")
    return out


def test_the_matrix_counts_every_test_image_and_agrees_with_the_score(run: Path) -> None:
    found, score = answers_of(run), json.loads((run / "run.json").read_text())["last"]["test"]
    assert found.matrix is not None
    assert sum(map(sum, found.matrix.counts)) == score["total"] == 2000
    assert sum(row[place] for place, row in enumerate(found.matrix.counts)) == score["correct"]
    assert f"all 2,000 test images: {2000 - score['correct']:,} mistakes" in found.note
    for place, (row, share) in enumerate(zip(found.matrix.counts, found.matrix.accuracy, strict=True)):
        assert share == pytest.approx(100 * row[place] / sum(row))


def test_the_pictures_are_test_images_with_the_answers_of_the_net(run: Path) -> None:
    found, dataset, model = answers_of(run), eb.load_dataset("fashion", split="test"), eb.load_run(run).model
    loader = eb.Loader(dataset, batch_size=2000)
    ((images, labels),) = loader
    shares = model(images).softmax(1)
    wrong = shares.max(1).values[shares.argmax(1) != labels].sort(descending=True).values[:12]
    assert [each.share for each in found.mistakes] == pytest.approx(wrong.tolist(), abs=1e-5)
    assert all(each.label != each.answer for each in found.mistakes)
    with Image.open(io.BytesIO(base64.b64decode(found.samples[0].image.partition(",")[2]))) as first:
        assert np.array_equal(np.asarray(first), dataset.images[0, 0].numpy())
    assert found.samples[0].label == dataset.classes[int(labels[0])]
    assert len(found.samples) == 12


def test_the_page_shows_curves_before_images_and_images_before_bits(run: Path) -> None:
    page = report_page(run)
    places = [page.index(words) for words in ("<figcaption>Loss", "Confusion matrix", "Worst mistakes", "Bits of the")]
    assert places == sorted(places)
    assert page.count('class="matrix"') == 1
    assert len(re.findall("<li><img", page)) == 24


def test_many_classes_are_listed_instead_of_a_matrix(tmp_path: Path) -> None:
    run_recipe(recipe("synthetic:1x8x8:30:90"), tmp_path / "run", device="cpu")
    found = answers_of(tmp_path / "run")
    assert found.matrix is None
    often, classes = found.tables
    images = [int(row[2]) for row in often.rows]
    assert images == sorted(images, reverse=True) and min(images) > 0
    total = json.loads((tmp_path / "run" / "run.json").read_text())["last"]["test"]["total"]
    assert sum(int(row[1].split(" of ")[1]) for row in classes.rows) == total
    accuracies = [float(row[2]) for row in classes.rows]
    assert accuracies == sorted(accuracies)
    assert "The most frequent mistakes" in report_page(tmp_path / "run")


def test_a_large_net_answers_fewer_images_and_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_MACS", 1)
    found = answers_of(run)
    assert found.matrix is not None
    assert sum(map(sum, found.matrix.counts)) == 100
    assert "100 of 2,000 test images, evenly spread" in found.note


def test_missing_images_leave_one_line_and_missing_weights_nothing(tmp_path: Path, run: Path) -> None:
    data = tmp_path / "pets"
    for split in ("train", "test"):
        for name in ("a", "b"):
            (data / split / name).mkdir(parents=True)
            Image.new("RGB", (9, 9), "red" if name == "a" else "blue").save(data / split / name / "1.png")
    own = {"data.resize": 8, "data.crop": 8, "data.workers": 0, "data.batch_size": 2}
    run_recipe(recipe("imagefolder", **own), tmp_path / "run", root=data, device="cpu")
    shown = answers_of(tmp_path / "run")
    assert shown.matrix is not None and sum(map(sum, shown.matrix.counts)) == 2
    data.rename(tmp_path / "moved")
    assert answers_of(tmp_path / "run").matrix is None
    assert "No test images are shown: " in report_page(tmp_path / "run")
    (tmp_path / "run" / "last.safetensors").unlink()
    assert answers_of(tmp_path / "run") == answers.AnswerSection()


def test_a_sweep_shows_a_dot_per_run_in_a_row_per_case(tmp_path: Path) -> None:
    cpu = Execution(device="cpu")
    vary = {"model.weight_quantizer": ["sign", "bihalf"]}
    sweep(recipe("synthetic:1x8x8:4:24"), tmp_path / "sweep", vary=vary, seeds=[0, 1], execution=cpu)
    page = report_page(tmp_path / "sweep")
    assert page.index("a dot per seed") < page.index("Training loss")
    alt = re.search('alt="(Test accuracy of the last epoch[^"]+)"', page)
    assert alt and re.search(r"sign [\d.]+ % \(n = 2\); bihalf [\d.]+ % \(n = 2\)|bihalf .*; sign .*", alt[1])


def test_pictures_that_follow_the_color_scheme_get_no_white_background(tmp_path: Path) -> None:
    run_recipe(recipe("synthetic:1x8x8:4:24"), tmp_path / "run", device="cpu")
    figure = new_figure(2, 2, title="own")
    save_figure(figure, tmp_path / "run", "own")
    (tmp_path / "run" / "other.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"></svg>')
    page = report_page(tmp_path / "run")
    assert '<figure class="picture" tabindex="0"><img alt="own"' in page
    assert '<figure class="picture white" tabindex="0"><img alt="other"' in page
