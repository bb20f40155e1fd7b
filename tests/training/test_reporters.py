"""Reporters of a run: JSON lines, TensorBoard, Weights & Biases."""

import json
import sys
import types
from pathlib import Path

import pytest

from equalbits.training import EpochRecord, History, JsonLines, Score, StepRecord, TensorBoard, WeightsAndBiases, train

RECORDS = [
    EpochRecord(1, 0.1, Score(30, 100, 60, 150.0), None, 1.5),
    EpochRecord(2, 0.05, Score(60, 100, 90, 90.0), Score(5, 20, 15, 30.0), 1.4),
]
STEP = StepRecord(1, 2, 3, 10, Score(1, 2, 2, 1.0), 100.0, 9.0)


def test_json_lines_contain_every_count_of_every_epoch_only(tmp_path: Path) -> None:
    report = JsonLines(tmp_path / "history.jsonl", History(()))
    for record in (RECORDS[0], STEP, RECORDS[1]):
        report(record)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == [
        {
            "epoch": 1, "lr": 0.1, "test": None, "seconds": 1.5,
            "train": {"correct": 30, "total": 100, "correct_top5": 60, "loss_sum": 150.0},
        },
        {
            "epoch": 2, "lr": 0.05, "seconds": 1.4,
            "train": {"correct": 60, "total": 100, "correct_top5": 90, "loss_sum": 90.0},
            "test": {"correct": 5, "total": 20, "correct_top5": 15, "loss_sum": 30.0},
        },
    ]  # fmt: skip
    assert [EpochRecord.from_dict(line) for line in lines] == RECORDS


def test_json_lines_start_from_the_history_and_drop_lines_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"epoch": 1}\n{"epo')
    JsonLines(path, History((RECORDS[0],)))(RECORDS[1])
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [1, 2]
    assert json.loads(path.read_text().splitlines()[0])["lr"] == 0.1


def test_json_lines_that_do_not_fit_on_the_disk_keep_the_old_ones_and_name_the_file(tmp_path: Path, room_for) -> None:
    path = tmp_path / "history.jsonl"
    keep, known = JsonLines(path, History(())), History(tuple(RECORDS))
    for record in RECORDS:
        keep(record)
    before = path.read_text()
    with room_for(150), pytest.raises(OSError, match=r"history\.jsonl"):
        JsonLines(path, known)
    assert path.read_text() == before
    with room_for(len(before)), pytest.raises(OSError, match=r"history\.jsonl"):
        keep(RECORDS[0])
    assert path.read_text() == before


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_reads_the_curves_back(tmp_path: Path) -> None:
    report = TensorBoard(tmp_path, History(()))
    for record in (RECORDS[0], STEP, RECORDS[1]):
        report(record)
    found = curves(tmp_path)
    assert sorted(found) == ["lr", "test/accuracy", "test/loss", "train/accuracy", "train/loss"]
    assert found["lr"] == [(1, pytest.approx(0.1)), (2, pytest.approx(0.05))]
    assert found["train/accuracy"] == [(1, 30.0), (2, 60.0)]
    assert found["test/loss"] == [(2, 1.5)]


def test_tensorboard_hides_repeated_epochs(tmp_path: Path) -> None:
    cut_off = TensorBoard(tmp_path, History(()))
    for record in RECORDS:
        cut_off(record)
    again = TensorBoard(tmp_path, History((RECORDS[0],)))
    again(RECORDS[1])
    assert [step for step, _ in curves(tmp_path)["lr"]] == [1, 2]


def test_tensorboard_hides_repeated_epochs_after_the_clock_went_back(tmp_path: Path) -> None:
    cut_off = TensorBoard(tmp_path, History(()))
    for record in RECORDS:
        cut_off(record)
    cut_off.path.rename(tmp_path / "events.out.tfevents.9000000000.elsewhere.7.0")
    TensorBoard(tmp_path, History((RECORDS[0],)))(RECORDS[1])
    assert [step for step, _ in curves(tmp_path)["lr"]] == [1, 2]


def test_a_full_disk_is_reported_once_with_the_event_file(tmp_path: Path, room_for, capfd) -> None:
    report = TensorBoard(tmp_path / "events", History(()))
    report(RECORDS[0])
    with room_for(report.path.stat().st_size), pytest.raises(OSError, match=r"events/events\.out\.tfevents"):
        report(RECORDS[1])
    with room_for(0), pytest.raises(OSError, match=r"events/events\.out\.tfevents"):
        TensorBoard(tmp_path / "events", History(()))
    assert capfd.readouterr() == ("", "")
    assert [step for step, _ in curves(tmp_path / "events")["lr"]] == [1]


def test_weights_and_biases_raises_import_error_if_not_installed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError):
        WeightsAndBiases(tmp_path, project="p")


def test_weights_and_biases_gets_the_curves_and_the_same_run_again(tmp_path: Path, monkeypatch) -> None:
    started: list[dict] = []
    logged: list[tuple[dict, int]] = []

    def init(**settings):
        started.append(settings)
        return types.SimpleNamespace(log=lambda values, step: logged.append((values, step)))

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(login=lambda: True, init=init))
    first = WeightsAndBiases(tmp_path, project="p", config={"epochs": 2})
    assert started == []  # nothing is begun before there is something to tell
    first(STEP)
    first(RECORDS[0])
    WeightsAndBiases(tmp_path, project="p")(RECORDS[1])
    assert [settings["project"] for settings in started] == ["p", "p"]
    assert started[0]["config"] == {"epochs": 2}
    assert started[0]["id"] == started[1]["id"]
    assert started[1]["resume"] == "allow"
    assert [step for _, step in logged] == [1, 2]
    assert logged[1][0]["test/accuracy"] == 25.0


def test_a_missing_login_is_reported_before_training(tmp_path: Path, monkeypatch) -> None:
    def login() -> None:
        raise OSError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(login=login, Error=OSError))
    with pytest.raises(ValueError, match=r"Use `wandb login` to log in. To log into files, set WANDB_MODE=offline."):
        WeightsAndBiases(tmp_path, project="p")
    assert WeightsAndBiases(tmp_path, project="p", mode="offline").run is None
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert WeightsAndBiases(tmp_path, project="p").run is None
    with pytest.raises(ValueError, match="wandb login"):  # as in wandb.init, the argument comes before the variable
        WeightsAndBiases(tmp_path, project="p", mode="online")


def test_weights_and_biases_keeps_no_partial_name_file(tmp_path: Path, monkeypatch, room_for) -> None:
    started: list[dict] = []
    wandb = types.SimpleNamespace(login=lambda: True, init=lambda **settings: started.append(settings))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with room_for(0), pytest.raises(OSError, match="wandb-id"):
        WeightsAndBiases(tmp_path)(RECORDS[0])
    assert started == [] and list(tmp_path.iterdir()) == []


def test_reporters_may_be_made_from_the_history_so_far(make_net, make_loader, make_config) -> None:
    known: list[History] = []
    records: list = []

    def make(history: History):
        known.append(history)
        return [records.append]

    train(make_net(), make_loader(), make_config(), reporters=make)
    assert known == [History(())]
    ends = [record for record in records if isinstance(record, EpochRecord)]  # a slow machine reports steps, too
    assert [record.epoch for record in ends] == [1, 2, 3]
