"""Reports of odd folders: names that are no text, foreign runs, links, other speeds."""

import json
import os
import shutil
from base64 import b64encode
from pathlib import Path

import pytest

from equalbits.cli import main
from equalbits.paper import reproduce
from equalbits.recipes import Recipe, run_recipe
from equalbits.report import report_page, write_report
from equalbits.report.find_outputs import scan
from equalbits.report.html_page import _accuracy_range

ROOT = Path(__file__).parents[2]
RECIPE = Recipe.from_dict(
    {
        "name": "own",
        "epochs": 2,
        "model": {"name": "conv2", "options": {"width": 0.05}},
        "data": {"name": "synthetic:1x8x8:4:24", "batch_size": 8},
    }
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "one"
    run_recipe(RECIPE, out, device="cpu")
    return out


def test_a_folder_name_that_is_not_utf8_is_shown(run: Path, tmp_path: Path) -> None:
    try:
        shutil.copytree(run, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    except OSError:
        pytest.skip("this disk takes no such name")
    shutil.copytree(run, tmp_path / "名前 é")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<code>?</code>" in page and "<code>名前 é</code>" in page


@pytest.mark.parametrize("kind", ["sweep", "a sweep under way", "compare", "item", "run"])
def test_a_run_that_does_not_belong_to_the_entry_around_it_is_its_own_entry(kind: str, run: Path, tmp_path) -> None:
    mark = {"sweep": "sweep.json", "compare": "compare.json", "item": "result.json"}.get(kind)
    own = {"item": ["runs/sign", "weights/sign"], "run": []}.get(kind, ["sign/seed0", "sign/seed1"])
    if kind == "run":
        shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    elif mark:
        (tmp_path / mark).write_text("{}")
    for place in [*own, "other", "deep/er"]:
        shutil.copytree(run, tmp_path / place)
    found = scan(tmp_path)
    assert [each.path.relative_to(tmp_path).as_posix() for each in found] == [".", "deep/er", "other"]
    assert found[0].kind == {"a sweep under way": "sweep"}.get(kind, kind)
    of_it = [each.path.relative_to(tmp_path).as_posix() for each in found[0].runs]
    assert of_it == (own or ["."])


def test_seconds_at_another_speed_are_marked_and_missing_methods_are_named(tmp_path: Path, capsys) -> None:
    shutil.copy(ROOT / "results" / "fashion-compare.json", tmp_path / "compare.json")
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    for line in ("the seconds of abc-net are not comparable.", "not among them: irnet-identity, zero-mean."):
        assert line in page and line in (ROOT / "docs" / "comparison.md").read_text()
    assert "8.6†</td>" in page


def test_the_origin_of_a_run_is_omitted_until_it_is_recorded(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "one")
    assert "How it was made" in report_page(tmp_path / "one")
    (tmp_path / "one" / "run.json").unlink()
    page = report_page(tmp_path / "one")
    assert "How it was made" not in page and "<dl" not in page and ">Recipe<" in page


def test_a_run_that_diverged_is_not_shown_as_unfinished(run: Path, tmp_path: Path) -> None:
    data = {"data.name": "synthetic:1x16x16:10:96", "data.limit": 0, "data.batch_size": 32}
    settings = {**data, "epochs": 1, "model.options.width": 0.05, "optimizer.lr": 1e30}
    reproduce("fig4", tmp_path / "fig4", quick=True, device="cpu", settings=settings, seeds=(0,))
    shutil.copytree(run, tmp_path / "fig4" / "runs" / "late")
    late = tmp_path / "fig4" / "runs" / "late" / "run.json"
    ended = {"status": "diverged", "error": "the loss is nan at step 7", "last": None, "best": None}
    late.write_text(json.dumps({**json.loads(late.read_text()), **ended}))
    page = report_page(tmp_path / "fig4")
    assert "All 3 runs" in page and page.count(">diverged: ") == 3 and "not finished" not in page
    one = report_page(tmp_path / "fig4" / "runs" / "late")
    assert "<strong>Diverged: </strong>the loss is nan at step 7" in one and "Not finished" not in one


def test_the_accuracy_of_a_comparison_ignores_its_tuning_runs(run: Path, tmp_path: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    for name, right in (("sign/seed0", 1), ("tuning/lr0.1/sign/seed9", 2), ("tuning/lr0.2/sign/seed9", 3)):
        shutil.copytree(run, tmp_path / "held" / name)
        facts["last"]["test"] |= {"correct": right, "correct_top5": 4, "total": 4}
        (tmp_path / "held" / name / "run.json").write_text(json.dumps(facts))
    (tmp_path / "held" / "compare.json").write_text("{}")
    (found,) = scan(tmp_path)
    assert (found.kind, len(found.runs)) == ("compare", 3)
    assert _accuracy_range(found) == "25.00"


@pytest.mark.parametrize("command", ["sweep", "compare --methods sign"])
def test_every_command_that_resumed_a_folder_is_shown(command: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own.toml").write_text(RECIPE.to_toml(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    made = [f"{command} own.toml --seeds {seeds} --out it --device cpu" for seeds in ("0", "0-1", "0-1")]
    for words in made:
        monkeypatch.setattr("sys.argv", ["equalbits", *words.split()])
        assert main() == 0
    assert f">equalbits {made[0]}\nequalbits {made[1]}</code>" in report_page(tmp_path / "it")


def test_link_targets_outside_are_not_embedded_and_a_pipe_does_not_hang(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("name = 'a secret'")
    shutil.copytree(run, tmp_path / "held")
    (tmp_path / "held" / "recipe.toml").unlink()
    (tmp_path / "held" / "recipe.toml").symlink_to(secret)
    assert "secret" not in report_page(tmp_path / "held")
    picture = tmp_path / "held" / "own.png"
    for make in (lambda: picture.symlink_to(secret), lambda: os.mkfifo(picture)):
        make()
        page = report_page(tmp_path / "held")
        assert "own.png is a link or no file" in page and b64encode(secret.read_bytes()).decode() not in page
        picture.unlink()


@pytest.mark.parametrize("change", [{"correct": 10**400}, {"loss_sum": 10**400}])
def test_a_number_too_large_for_a_float_is_reported(run: Path, tmp_path: Path, change: dict) -> None:
    shutil.copytree(run, tmp_path / "a")
    shutil.copytree(run, tmp_path / "b")
    lines = [json.loads(line) for line in (tmp_path / "a" / "history.jsonl").read_text().splitlines()]
    lines[0]["test"].update(change)
    (tmp_path / "a" / "history.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    facts = json.loads((tmp_path / "b" / "run.json").read_text())
    facts["last"]["test"].update(change)
    (tmp_path / "b" / "run.json").write_text(json.dumps(facts))
    shutil.copytree(run, tmp_path / "c")
    page = report_page(tmp_path)
    assert page.count("Could not be read: ") == 2 and page.count("How it was made") == 1


def test_deeply_nested_json_is_reported_and_the_rest_is_shown(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "a")
    shutil.copytree(run, tmp_path / "b")
    (tmp_path / "a" / "run.json").write_text("[" * 100_000)
    (tmp_path / "b" / "history.jsonl").write_text("[" * 100_000 + "\n{}\n")
    page = report_page(tmp_path)
    assert "run.json is nested too deeply" in page and "history.jsonl, line 1 is not the record of an epoch" in page


def test_a_folder_without_read_permission_is_reported(run: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(run, tmp_path / "one")
    (tmp_path / "two").mkdir(mode=0)
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: path != tmp_path / "two" and allowed(path, mode)
    )  # as root, too
    page = write_report(tmp_path).read_text()
    assert f"no permission to read {tmp_path / 'two'}: change its access rights" in page and "own, bihalf" in page
