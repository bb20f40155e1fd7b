"""A report is one self-contained page that shows what the files hold and runs no script."""

import json
import re
import shutil
import statistics
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from equalbits._plotting import METHOD_COLORS
from equalbits.cli import main
from equalbits.paper import Claim, reproduce
from equalbits.recipes import Execution, Recipe, get_recipe, run_recipe, sweep
from equalbits.report import report_page, write_report
from equalbits.report.charts import line_styles

HOSTILE = "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"
NAME = HOSTILE.replace("/", "")  # a name, which folders have too, holds no slash
CPU = Execution(device="cpu")
RECIPE = Recipe.from_dict(
    {
        "name": "own",
        "epochs": 3,
        "model": {"name": "conv2", "options": {"width": 0.05}},
        "data": {"name": "synthetic:1x8x8:4:24", "batch_size": 8},
    }
)


class Page(HTMLParser):
    """Strict parser: every element must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run, a sweep, a comparison and an item, nested."""
    out = tmp_path_factory.mktemp("many")
    run_recipe(RECIPE, out / "one", device="cpu")
    sweep(
        RECIPE,
        out / "sweep",
        vary={"model.weight_quantizer": ["sign", "bihalf"]},
        seeds=[0, 1],
        execution=CPU,
    )
    (out / "own.toml").write_text(RECIPE.to_toml())
    words = ["compare", str(out / "own.toml"), "--methods", "sign,bihalf", "--seeds", "0-1", "--device", "cpu"]
    assert main([*words, "--out", str(out / "compare")]) == 0
    reproduce("fig6", out / "all" / "fig6", quick=True, device="cpu")
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(report_page(folder))


def test_the_page_is_self_contained_and_loads_nothing(page: Page, folder: Path) -> None:
    text = report_page(folder)
    assert not re.search(r"https?://|//\w|url\(|@import", re.sub(r"base64,[\w+/=]+", "", text))
    assert page.named("script") == page.named("link") == page.named("iframe") == []
    assert all(image["src"].startswith("data:image/") and image["alt"] for image in page.named("img"))
    assert all(link["href"].startswith("#s") for link in page.named("a"))
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "default-src 'none'" in text
    assert report_page(folder) == text
    assert "Could not be read" not in text


def test_a_screen_reader_finds_headings_captions_and_alternative_texts(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    charts = [image for image in page.named("img") if "ends at" in image["alt"] or "Means: " in image["alt"]]
    assert len(charts) == len([figure for figure in page.named("figure") if figure["class"] == "chart"]) > 3
    assert len(page.named("table")) == len(page.named("caption"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in page.named("a")} <= set(ids)


def loss(score: dict) -> float:
    return score["loss_sum"] / score["total"]


def accuracy(score: dict) -> float:
    return 100 * score["correct"] / score["total"]


def test_a_run_shows_the_scores_and_the_origin_in_its_files(folder: Path) -> None:
    run, words = json.loads((folder / "one" / "run.json").read_text()), Page(report_page(folder / "one")).words()
    for which in ("last", "best"):
        test = run[which]["test"]
        assert f"{100 * test['correct'] / test['total']:.2f} % {test['correct']} of {test['total']}" in words
        assert f"{test['loss_sum'] / test['total']:.4f}" in words
    for line in (folder / "one" / "history.jsonl").read_text().splitlines():
        record = json.loads(line)
        train, test = (f"{loss(record[split]):.4f} {accuracy(record[split]):.2f}" for split in ("train", "test"))
        assert f" {record['epoch']} {train} {test} {record['lr']:.3g} " in words
    assert run["versions"]["torch"] in words
    assert run["device"] in words
    assert 'name = "synthetic:1x8x8:4:24"' in words


def test_the_contents_list_kind_method_accuracy_and_claims(page: Page, folder: Path) -> None:
    words = page.words()
    run = json.loads((folder / "one" / "run.json").read_text())["last"]["test"]
    assert f"own, bihalf, seed 0 one run 1 {100 * run['correct'] / run['total']:.2f} – " in words
    tests = [json.loads(path.read_text())["last"]["test"] for path in (folder / "sweep").rglob("run.json")]
    scores = sorted(100 * test["correct"] / test["total"] for test in tests)
    assert f"Sweep of own, bihalf, sign sweep sweep 4 {scores[0]:.2f} to {scores[-1]:.2f} – " in words
    assert " all/fig6 item 0 – 6 agree, 1 not decided " in words


def test_charts_use_the_colors_of_the_methods(folder: Path) -> None:
    lines = [line for line in Page(report_page(folder / "compare")).named("line") if line.get("stroke-width")]
    assert {line["stroke"] for line in lines} == {METHOD_COLORS["sign"], METHOD_COLORS["bihalf"]}
    styles = line_styles(["sign", "own", "irnet", "irnet-stable", *map(str, range(9))])
    assert len(set(styles.values())) == 13


def test_a_sweep_shows_mean_and_deviation_over_its_runs(folder: Path) -> None:
    words = Page(report_page(folder / "sweep")).words()
    for case in ("sign", "bihalf"):
        runs = sorted((folder / "sweep" / case).glob("seed*/run.json"))
        tests = [json.loads(path.read_text())["last"]["test"] for path in runs]
        last = [100 * test["correct"] / test["total"] for test in tests]
        assert f"{case} {statistics.fmean(last):.2f} ± {statistics.stdev(last):.2f} 2 " in words
        assert f"{case}/seed1 1 {last[1]:.2f} " in words
    assert "0, 1 (n = 2)" in words


def test_an_item_shows_its_claims_and_a_comparison_its_methods(folder: Path, page: Page) -> None:
    words = page.words()
    for row in json.loads((folder / "all" / "fig6" / "claims.json").read_text()):
        assert " ".join(" ".join(Claim(**row).cells()).split()) in words
    for note in json.loads((folder / "all" / "fig6" / "result.json").read_text())["notes"]:
        assert note in words
    assert f"equalbits reproduce fig6 --quick --out {folder}/all/fig6 " in words
    for method in json.loads((folder / "compare" / "compare.json").read_text())["methods"]:
        assert f"{method['method']} {method['mean']:.2f} ± {method['std']:.2f} % 2 " in words
        assert f"{method['packed_bytes']:,}" in words


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    settings = {"model.weight_quantizer": ["sign"], "about": [NAME]}
    sweep(
        RECIPE.with_settings({"name": NAME}),
        tmp_path / "<b>&",
        vary=settings,
        seeds=[0],
        execution=CPU,
    )
    run_recipe(RECIPE.with_settings({"name": NAME, "about": HOSTILE}), tmp_path / "run", device="cpu")
    for folder, shown in (("<b>&", NAME), ("run", HOSTILE)):
        page = Page(report_page(tmp_path / folder))
        assert page.named("script") == page.named("b") == []
        assert all(image.keys() == {"alt", "src"} and image["src"].startswith("data:") for image in page.named("img"))
        assert shown in page.words()


def test_unfinished_and_damaged_runs_are_named_and_the_rest_is_shown(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sweep", tmp_path / "sweep")
    shutil.copytree(folder / "one", tmp_path / "one")
    shutil.copytree(folder / "one", tmp_path / "two")
    (tmp_path / "sweep" / "sweep.json").unlink()
    (tmp_path / "sweep" / "sign" / "seed1" / "run.json").write_text("{")
    (tmp_path / "one" / "run.json").unlink()
    with (tmp_path / "one" / "history.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lr"')
    (tmp_path / "two" / "run.json").write_text('{"recipe": 3}')
    words = Page(report_page(tmp_path)).words()
    assert "Not finished: 3 epochs are done." in words
    assert "Not finished: the runs that ended are shown." in words
    assert "seed1/run.json is not the record of a run" in words
    assert "Could not be read: " in words
    assert "bihalf/seed1" in words


def test_a_run_is_titled_by_the_settings_that_differ_from_its_recipe(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "one")
    facts = json.loads((tmp_path / "one" / "run.json").read_text())
    changed = {"model.weight_quantizer": "sign", "epochs": 5, "model.name": "conv4", "data.limit": 9, "seed": 3}
    facts["recipe"] = get_recipe("fashion-conv2").with_settings(changed).as_dict()
    (tmp_path / "one" / "run.json").write_text(json.dumps(facts))
    named = "fashion-conv2, sign, epochs=5, model.name=conv4, limit=9, seed 0"
    assert f" {named} " in Page(report_page(tmp_path)).words()
    (tmp_path / "one" / "run.json").unlink()
    lines = (tmp_path / "one" / "history.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "one" / "history.jsonl").write_text(lines[0])
    assert "Not finished: 1 epoch is done." in Page(report_page(tmp_path)).words()


def test_a_sweep_is_titled_by_the_settings_that_vary(tmp_path: Path) -> None:
    sweep(RECIPE, tmp_path / "rates", vary={"optimizer.lr": [0.1, 0.01]}, seeds=[0], execution=CPU)
    assert " Sweep of own over lr, bihalf " in Page(report_page(tmp_path)).words()


def test_a_missing_picture_is_reported_on_the_page(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "all")
    drawn = [path for path in (tmp_path / "all").rglob("*") if path.suffix in (".png", ".svg")]
    assert drawn
    for picture in drawn:
        picture.unlink()
        picture.symlink_to(tmp_path / "gone.png")
    assert "Could not be read: " in Page(report_page(tmp_path)).words()


@pytest.mark.parametrize(
    ("inside", "line"), [(None, "does not exist"), ("file", "is a file"), ("dir", "holds nothing")]
)
def test_a_folder_without_runs_is_refused_in_one_line(inside: str | None, line: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "a"
    if inside == "file":
        path.write_text("x")
    elif inside == "dir":
        path.mkdir()
    assert main(["report", str(path)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"equalbits report: {path} {line}")


def test_the_page_is_written_to_the_given_path(folder: Path, tmp_path: Path, capsys) -> None:
    words = ["report", str(folder / "one"), "--out", str(tmp_path / "new" / "page.html")]
    assert main(words) == 1
    assert capsys.readouterr().err.endswith(
        f"the folder {tmp_path / 'new'} does not exist: create it first, or give another\n"
    )
    (tmp_path / "new").mkdir()
    assert main(words) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'new' / 'page.html'}\n"
    assert (tmp_path / "new" / "page.html").read_text() == report_page(folder / "one")
    with pytest.raises(ValueError, match="is a folder: give a file name"):
        write_report(folder / "one", tmp_path)
    assert write_report(folder / "one") == folder / "one" / "report.html"
    assert report_page(folder / "one") == (folder / "one" / "report.html").read_text()


def test_a_page_of_another_command_is_replaced_only_if_named(folder: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(folder / "one", tmp_path / "one")
    page = tmp_path / "one" / "report.html"
    page.write_text("<title>equalbits demo</title>")
    assert main(["report", str(tmp_path / "one")]) == 1
    assert f"{page} was not written by report: give another file with --out" in capsys.readouterr().err
    assert page.read_text() == "<title>equalbits demo</title>"
    assert main(["report", str(tmp_path / "one"), "--out", str(page)]) == 0
    assert main(["report", str(tmp_path / "one")]) == 0  # its own it may replace
    assert capsys.readouterr().err == ""


def test_the_number_of_unreadable_things_is_logged(folder: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(folder / "sweep", tmp_path / "sweep")
    shutil.copytree(folder / "one", tmp_path / "one")
    (tmp_path / "one" / "run.json").write_text("{")
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "equalbits report: 1 thing could not be read: see the page\n"
    (tmp_path / "sweep" / "sign" / "seed1" / "run.json").write_text("{")
    assert main(["report", str(tmp_path)]) == 0
    assert "2 things could not be read" in capsys.readouterr().err


@pytest.mark.browser
def test_a_browser_shows_it_light_and_dark_and_runs_no_script(tmp_path: Path) -> None:
    from PIL import Image

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser is installed")
    run_recipe(RECIPE.with_settings({"name": NAME, "about": HOSTILE}), tmp_path / "run", device="cpu")
    page = write_report(tmp_path / "run")
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shades = {}
    for scheme, number in (("dark", 0), ("light", 1)):
        shot = tmp_path / f"{scheme}.png"
        look = [f"--blink-settings=preferredColorScheme={number}", f"--screenshot={shot}", "--window-size=500,900"]
        subprocess.run([*words, *look, page.as_uri()], check=True, capture_output=True, timeout=60)
        with Image.open(shot) as image:
            shades[scheme] = image.convert("L").getpixel((2, 2))
            assert len(image.convert("L").getcolors()) > 20  # something is drawn
    assert shades["dark"] < 60 < 200 < shades["light"]
    loaded = subprocess.run(
        [*words, "--dump-dom", page.as_uri()], check=True, capture_output=True, text=True, timeout=60
    )
    assert "<title>equalbits report: run</title>" in loaded.stdout
