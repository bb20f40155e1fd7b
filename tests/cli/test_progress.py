"""The progress bar shows loss, accuracy, speed and time left in a terminal; elsewhere one line per epoch."""

import io
import re
import sys

import pytest

from equalbits.training import EpochRecord, ProgressBar, Score, StepRecord

STEP = StepRecord(
    epoch=2,
    epochs=3,
    batch=5,
    batches=10,
    train=Score(correct=30, total=40, correct_top5=40, loss_sum=20.0),
    images_per_second=1234.0,
    seconds_left=3675.0,
)
EPOCH = EpochRecord(epoch=2, lr=0.1, train=STEP.train, test=Score(5, 10, 10, 7.0), seconds=1.5)


class Screen(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def shown(monkeypatch, *, terminal: bool, quiet: bool = False, title: str = "net", columns: int = 160) -> str:
    screen = Screen(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with ProgressBar(title=title, quiet=quiet) as bar:
        bar(STEP)
        bar.bar.refresh()
        bar(EPOCH)
    return screen.getvalue()


def test_a_terminal_shows_loss_accuracy_speed_and_time_left(monkeypatch) -> None:
    text = shown(monkeypatch, terminal=True)
    assert "50 %  epoch 2/3  loss 0.500  75.0 %  1,234 images/s  1:01:15 left" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_every_epoch_prints_a_line(monkeypatch, terminal: bool) -> None:
    text = shown(monkeypatch, terminal=terminal)
    assert "net  epoch   2  train 75.00 % (loss 0.5000)  test 50.00 % of 10 (loss 0.7000)  1.5 s\n" in text
    assert ("images/s" in text) is terminal


def test_the_bar_and_the_lines_fit_a_terminal_of_80_columns(monkeypatch) -> None:
    text = shown(monkeypatch, terminal=True, title="cifar10-resnet20-1w32a", columns=80)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    assert "cifar10-resnet20-1w32a  epoch   2  train 75.00 %  test 50.00 %  1.5 s" in lines
    assert any(line.endswith("50 %  epoch 2/3  loss 0.500  1:01:15 left") for line in lines)
    text = shown(monkeypatch, terminal=False, title="cifar10-resnet20-1w32a", columns=80)
    assert "train 75.00 % (loss 0.5000)  test 50.00 % of 10 (loss 0.7000)  1.5 s\n" in text  # a file has no width


def test_a_quiet_bar_prints_nothing(monkeypatch) -> None:
    assert shown(monkeypatch, terminal=True, quiet=True) == ""


def test_every_epoch_of_a_sweep_names_its_run_or_the_first_of_its_stack(call, recipe, tmp_path) -> None:
    words = [recipe, "--vary", "model.weight_quantizer=sign,bihalf", "--device", "cpu", "--out"]
    code, _, errors = call("sweep", *words, tmp_path / "a", "--seeds", "0,1")
    runs = [line.partition("  epoch")[0] for line in errors.splitlines() if "  epoch " in line]
    of_each = [f"{case}: seed {seed}" for case in ("sign", "bihalf") for seed in (0, 1) for _ in range(2)]
    assert (code, runs) == (0, of_each)
    code, _, errors = call("sweep", *words, tmp_path / "b", "--stack", 3, "--seeds", "0,1")
    runs = [line.partition("  epoch")[0] for line in errors.splitlines() if "  epoch " in line]
    assert (code, runs) == (0, ["sign: seed 0, first of 3 at once"] * 2 + ["bihalf: seed 1"] * 2)


def test_markup_and_escape_codes_in_the_name_of_a_run_are_shown_as_they_are(monkeypatch) -> None:
    for terminal in (True, False):
        text = shown(monkeypatch, terminal=terminal, title="[bold]net[/] [/red] \x1b]0;title\x07")
        assert "[bold]net[/] [/red] \\x1b]0;title\\x07" in text
        assert "\x1b]0" not in text and "\x07" not in text
