"""The demo trains three methods and shows their counts."""

import json
import re
import zlib
from base64 import b64decode

import numpy as np
import pytest

from equalbits.data import load_dataset
from equalbits.paper import demo_recipe, demo_summary, demo_table, pack_demo, run_demo
from equalbits.paper.demo import METHODS
from equalbits.runtime import load_packed, web_page

SMALL = {"data.limit": 256, "data.batch_size": 32, "model.options.width": 0.1, "epochs": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    return out, run_demo(out, recipe=demo_recipe().with_settings(SMALL))


def test_bihalf_is_exact_in_every_filter_and_flips_evenly(finished):
    half = finished[1][-1]
    assert half.method == "bihalf"
    assert half.exact_filters == half.filters > 0
    assert half.to_positive == half.to_negative > 0
    assert half.filter_difference == [0] * len(half.filter_to_positive)
    assert half.entropies == pytest.approx([half.attainable] * len(half.steps), abs=1e-7)


def test_sign_flips_unevenly_and_loses_entropy(finished):
    sign = finished[1][0]
    assert sign.to_positive != sign.to_negative
    assert max(sign.entropies) < sign.attainable
    assert sign.exact_filters < sign.filters


def test_every_method_gets_the_same_steps_and_images(finished):
    assert {tuple(each.steps) for each in finished[1]} == {tuple(range(9))}
    assert {each.total for each in finished[1]} == {2000}


def test_table_and_summary_show_the_measured_counts(finished):
    measured = finished[1]
    for each, row in zip(measured, demo_table(measured), strict=True):
        assert row["method"] == METHODS[each.method]
        assert row["accuracy"] == f"{100 * each.correct / each.total:.2f} %"
        numbers = {"attainable": "100.0000%", "flips to +1": "100,000", "flips to −1": "100,000"}
        widths = [max(len(name), len(numbers.get(name, cell))) for name, cell in row.items()]
        assert sum(widths) + 2 * (len(widths) - 1) <= 80  # a pipe has no more columns
    words = " ".join(demo_summary(measured))
    assert "balanced" in words and "NOT balanced" not in words
    assert METHODS[max(measured, key=lambda each: each.correct).method] in words.partition("Best here:")[2]


def test_the_plot_is_written_and_the_page_is_self_contained(finished):
    out = finished[0]
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "demo.svg").read_text().count("<svg") == 1
    page = (out / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert not re.search(r'(src|href)="(?!data:|classifier\.html")', page)


def test_the_report_links_a_page_that_runs_the_packed_net(finished):
    out = finished[0]
    pack_demo(out)
    (link,) = re.findall(r'<a href="([^"]+)"', (out / "report.html").read_text())
    page = (out / link).read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    net = load_packed(out / "bihalf.ebits")
    assert data["plan"] == json.loads(re.search(r'id="data">(.*?)</script>', web_page(net), re.DOTALL)[1])["plan"]
    examples = np.frombuffer(zlib.decompress(b64decode(data["examples"])), np.uint8).reshape(10, 28, 28)
    np.testing.assert_array_equal(examples, load_dataset("fashion", split="test").images[:10, 0].numpy())
    assert data["classes"][:2] == ["T-shirt/top", "trouser"]


def test_the_packed_net_is_far_smaller_and_predicts_the_same_classes(finished):
    out = finished[0]
    packed = pack_demo(out)
    assert "for 2,000 of 2,000 test images" in packed
    assert f"{(out / 'bihalf.ebits').stat().st_size:,} bytes" in packed
    assert float(re.search(r"([\d.]+) times fewer", packed)[1]) > 8


def test_a_second_call_draws_without_training(finished):
    out, measured = finished
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*/run.json")}
    (out / "demo.png").unlink()
    again = run_demo(out, recipe=demo_recipe().with_settings(SMALL))
    assert again == measured
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*/run.json")} == before
    assert (out / "demo.png").exists()


def test_counts_of_another_number_of_epochs_are_refused(finished):
    line = r"sign/seed0 holds a run with epochs=1, this one has epochs=2: .*another --out"
    with pytest.raises(ValueError, match=line):
        run_demo(finished[0], recipe=demo_recipe().with_settings({**SMALL, "epochs": 2}))


def test_a_missing_device_is_refused_even_if_everything_is_measured(finished):
    with pytest.raises(ValueError, match=r"device='cuda:99' is not there"):
        run_demo(finished[0], recipe=demo_recipe().with_settings(SMALL), device="cuda:99")


def test_an_interrupted_method_starts_over(finished, tmp_path):
    small = demo_recipe().with_settings({"data.limit": 64, "model.options.width": 0.1, "epochs": 1})
    first = run_demo(tmp_path, recipe=small)
    (tmp_path / "sign" / "seed0" / "run.json").unlink()
    second = run_demo(tmp_path, recipe=small)
    assert second[0].filter_to_negative == first[0].filter_to_negative
    assert json.loads((tmp_path / "sign" / "seed0" / "run.json").read_text())["measured"]["correct"] == first[0].correct
