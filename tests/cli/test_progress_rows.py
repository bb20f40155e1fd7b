"""Concurrent runs each have a row of the progress display until they end."""

from equalbits.cli.progress import ProgressBar
from equalbits.training import EpochRecord, Score, StepRecord

SCORE = Score(correct=30, total=40, correct_top5=40, loss_sum=20.0)


def test_each_run_has_a_row_until_it_ends(capsys) -> None:
    with ProgressBar(title="sweep") as bar:
        (first,), (second,) = bar.add_row("sign: seed 0"), bar.add_row("bihalf: seed 0")
        first(StepRecord(1, 2, 5, 10, SCORE, 400.0, 61.0))
        shown = {task.description: task for task in bar.bar.tasks if task.visible}
        assert list(shown) == ["sign: seed 0", "bihalf: seed 0"]
        assert (shown["sign: seed 0"].completed, shown["sign: seed 0"].total) == (5, 20)
        assert shown["sign: seed 0"].fields["status"].endswith("400 images/s  1:01 left")
        second(EpochRecord(1, 0.1, SCORE, SCORE, 2.5))
        first.close()
        assert [task.description for task in bar.bar.tasks if task.visible] == ["bihalf: seed 0"]
    errors = capsys.readouterr().err
    assert errors == "bihalf: seed 0  epoch   1  train 75.00 % (loss 0.5000)  test 75.00 % of 40 (loss 0.5000)  2.5 s\n"


def test_a_quiet_row_prints_nothing(capsys) -> None:
    with ProgressBar(title="sweep", quiet=True) as bar:
        (row,) = bar.add_row("sign: seed 0")
        row(EpochRecord(1, 0.1, SCORE, None, 2.5))
    assert capsys.readouterr() == ("", "")


def test_every_epoch_of_a_sweep_names_its_run_or_the_first_of_its_stack(call, recipe, tmp_path) -> None:
    words = [recipe, "--vary", "model.weight_quantizer=sign,bihalf", "--device", "cpu", "--out"]
    code, _, errors = call("sweep", *words, tmp_path / "a", "--seeds", "0,1")
    runs = [line.partition("  epoch")[0] for line in errors.splitlines() if "  epoch " in line]
    of_each = [f"{case}: seed {seed}" for case in ("sign", "bihalf") for seed in (0, 1) for _ in range(2)]
    assert (code, runs) == (0, of_each)
    code, _, errors = call("sweep", *words, tmp_path / "b", "--stack", 3, "--seeds", "0,1")
    runs = [line.partition("  epoch")[0] for line in errors.splitlines() if "  epoch " in line]
    assert (code, runs) == (0, ["sign: seed 0, first of 3 at once"] * 2 + ["bihalf: seed 1"] * 2)
