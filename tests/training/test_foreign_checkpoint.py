"""A valid checkpoint with impossible content is refused in one line, and nothing is trained on it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from equalbits.training import CheckpointError, Resume, load_checkpoint, save_checkpoint, train, train_stack

LAST = "last.safetensors"


class StopError(Exception):
    """Ends a training at a given step."""


def stop(model: nn.Module, step: int) -> None:
    if step == 8:
        raise StopError


@pytest.fixture
def stopped(tmp_path: Path, make_net, make_loader, make_config) -> Path:
    """A run of six steps per epoch, interrupted one step into its second."""
    with pytest.raises(StopError):
        train(make_net(), make_loader(), make_config(checkpoint_seconds=0.0), watchers=[stop], out=tmp_path)
    _, facts = load_checkpoint(tmp_path / LAST)
    assert (facts["epoch"], facts["batch"]) == (1, 1)
    return tmp_path


SCORE = {"correct": 3, "total": 8, "correct_top5": 8, "loss_sum": 9.5}
EPOCH = {"epoch": 1, "lr": 0.1, "train": SCORE, "test": None, "seconds": 0.5}
FACTS: dict[str, list[Any]] = {
    "epoch": ["1", -1, 0, 2, 10**9, 1.5, None],
    "batch": ["1", -1, 7, 1.5, None],
    "seconds": ["long", None, [1], 10**400],
    "history": [
        5,
        None,
        [5],
        [{}],
        [],
        *([{**EPOCH, "train": {**SCORE, **change}}] for change in ({"total": 0}, {"correct": 9}, {"loss_sum": "1"})),
        [{**EPOCH, "seconds": [1]}],
        [{**EPOCH, "lr": None}],
        [{**EPOCH, "test": {**SCORE, "total": 0, "correct": 0, "correct_top5": 0}}],
    ],
    "config": [5, None, []],
    "optimizer": [5, None, {"a": 1}, {"a.b": 1}, {"99.step": 1}],
}
TENSORS = {
    "meter": [torch.zeros(3), torch.full((4,), float("nan"))],
    "optimizer.0.momentum_buffer": [torch.zeros(3), torch.zeros(0)],
    "optimizer.99.momentum_buffer": [torch.zeros(1)],
    "optimizer.first.momentum_buffer": [torch.zeros(1)],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in {**FACTS, **TENSORS}.items() for value in values],
    ids=lambda each: str(list(each.shape)) if isinstance(each, torch.Tensor) else str(each)[:80],
)
def test_a_checkpoint_with_unexpected_content_raises(
    name: str, value: Any, stopped: Path, make_net, make_loader, make_config
) -> None:
    tensors, facts = load_checkpoint(stopped / LAST)
    (facts if name in FACTS else tensors)[name] = value
    save_checkpoint(stopped / LAST, tensors, facts)
    before = (stopped / LAST).read_bytes()
    with pytest.raises(CheckpointError, match=r"cannot resume from .*: delete it to train again") as caught:
        train(make_net(), make_loader(), make_config(), out=stopped)
    assert "\n" not in str(caught.value)
    assert (stopped / LAST).read_bytes() == before


@pytest.mark.parametrize("change", [{"diverged": 5}, {"diverged": {"x": "y"}}, {"stack": 5}, {"stack": {"0": 5}}])
def test_a_stack_checkpoint_with_unexpected_content_raises(
    change: dict, tmp_path: Path, make_net, make_loader, make_config
) -> None:
    path = tmp_path / "stack.safetensors"

    def go(config) -> None:
        train_stack([make_net()], [make_loader()], [config], checkpoint=path)

    go(make_config(checkpoint_seconds=0.0))
    tensors, facts = load_checkpoint(path)
    save_checkpoint(path, tensors, {**facts, **change})
    with pytest.raises(CheckpointError, match=r"cannot resume from|is of another stack") as caught:
        go(make_config())
    assert "\n" not in str(caught.value)


def test_an_error_of_a_module_while_loading_is_reported(stopped, make_net, make_loader, make_config) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("a fault of the part's own")

    net = make_net()
    net[0].register_load_state_dict_pre_hook(fail)
    with pytest.raises(CheckpointError, match=r"cannot resume from .* \(a fault of the part's own\)") as caught:
        train(net, make_loader(), make_config(), out=stopped)
    assert caught.value.__cause__.__traceback__.tb_next is not None, "where it was raised is shown"


def test_a_change_that_is_allowed_is_logged_in_a_short_line(
    stopped, make_net, make_loader, make_config, caplog
) -> None:
    tensors, facts = load_checkpoint(stopped / LAST)
    save_checkpoint(stopped / LAST, tensors, {**facts, "batches": "\x1b[2J" + "é" * 5000})
    train(make_net(), make_loader(), make_config(), out=stopped, resume=Resume(allow_changes=True))
    [line] = [each for each in caplog.messages if "batches" in each]
    assert len(line) < 600 and line.isprintable()
