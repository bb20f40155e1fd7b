"""Reports of an interrupted comparison show the finished runs."""

import shutil
from pathlib import Path

import pytest

from equalbits.recipes import Execution, Recipe, compare
from equalbits.report import report_page, write_report
from equalbits.report.find_outputs import scan

RECIPE = Recipe.from_dict(
    {
        "name": "own",
        "epochs": 1,
        "model": {"name": "conv2", "options": {"width": 0.05}},
        "data": {"name": "synthetic:1x8x8:4:24", "batch_size": 8},
    }
)


def stopped(out: Path, recipe: Recipe = RECIPE) -> Path:
    """A comparison that was killed before it wrote its table."""
    compare(recipe, out, methods=["sign", "bihalf"], seeds=[0], tune=[0.1, 1e30], execution=Execution(device="cpu"))
    (out / "compare.json").unlink()
    return out


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("stopped") / "held")


def test_an_interrupted_comparison_is_shown_without_its_tuning_runs(tuned: Path) -> None:
    (found,) = scan(tuned)
    assert found.kind == "compare"
    page = report_page(tuned)
    assert ">Comparison held</h2>" in page and "<strong>Not finished: </strong>the runs that ended are shown." in page
    assert (
        ">All 2 runs</summary>" in page
        and "sign/seed0" in page
        and "tuning" not in page.partition("How it was made")[0]
    )


def test_held_out_scores_of_tuning_runs_are_not_shown_as_test_scores(tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned / "tuning", tmp_path / "held" / "tuning")
    (found,) = scan(tmp_path / "held")
    assert (found.kind, len(found.runs), found.scored_runs) == ("compare", 4, [])
    page = report_page(tmp_path / "held")
    assert "its learning rates are being tuned." in page and "Test accuracy" not in page


def test_a_diverged_seed_is_shown_with_its_reason(tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned, tmp_path / "held")
    failed = tmp_path / "held" / "tuning" / "lr1e+30" / "sign"  # which no net outlives
    shutil.rmtree(tmp_path / "held" / "sign")
    shutil.copytree(failed, tmp_path / "held" / "sign")
    lines: list[str] = []
    page = write_report(tmp_path / "held", log=lines.append).read_text()
    assert not lines and "Could not be read" not in page
    assert "All 2 runs" in page and page.count("lower optimizer.lr or set clip_norm=1</td>") == 1
    (seed,) = (tmp_path / "held" / "sign").iterdir()
    assert "<strong>Diverged: </strong>" in report_page(seed)
