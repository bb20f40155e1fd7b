"""A history prints as a table, shows itself in notebooks, and plots its curves."""

from pathlib import Path

import torch
from torch import nn

import equalbits as eb
from equalbits.training import EpochRecord, History, Score

EPOCHS = tuple(
    EpochRecord(epoch=n, lr=0.1 / n, train=Score(40 + n, 100, 90, 80.0 / n), test=test, seconds=1.25)
    for n, test in ((1, None), (2, Score(5, 10, 9, 12.0)), (3, Score(6, 10, 9, 11.0)))
)


def test_a_history_prints_a_row_per_epoch() -> None:
    lines = str(History(EPOCHS)).splitlines()
    assert lines[0].split() == ["epoch", "lr", "train", "loss", "train", "%", "test", "loss", "test", "%", "seconds"]
    assert lines[1].split() == ["1", "0.1", "0.8000", "41.00", "–", "–", "1.2"]
    assert lines[3].split() == ["3", "0.0333", "0.2667", "43.00", "1.1000", "60.00", "1.2"]


def test_the_plot_shows_every_epoch_with_a_test_score(tmp_path: Path) -> None:
    figure = History(EPOCHS).plot()
    loss, accuracy = figure.axes
    assert [line.get_xydata().tolist() for line in loss.lines] == [
        [[1, 0.8], [2, 0.4], [3, 0.8 / 3]],
        [[2, 1.2], [3, 1.1]],
    ]
    assert [line.get_ydata().tolist() for line in accuracy.lines] == [[41, 42, 43], [50, 60]]
    figure.savefig(tmp_path / "curves.png")


def test_reports_are_tables_in_notebooks() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    report = eb.binarize_(model, "bihalf")
    packed = eb.load_packed(Path(__file__).parents[1] / "golden" / "plain.ebits")
    shown = (report, eb.audit(model), eb.summarize(model, (1, 4)), History(EPOCHS), packed.summary())
    for each in shown:
        page = each._repr_html_()
        assert page.startswith("<table><tr><th") and page.count("<tr>") == page.count("</tr>") > 1
    assert "1 layer made binary, 2 left real" in report._repr_html_() and "the last layer" in report._repr_html_()


def test_progress_prints_a_line_per_epoch_where_there_is_no_terminal(capsys) -> None:
    batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    seen: list[object] = []
    eb.train(nn.Linear(3, 2), batches, {"epochs": 2}, test=batches, progress="mine", reporters=[seen.append])
    eb.train(nn.Linear(3, 2), batches, {"epochs": 1})
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == "" and len(lines) == len(seen) == 2
    assert lines[1].startswith("mine  epoch   2  train ") and "  test " in lines[1]
