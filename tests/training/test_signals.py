"""Signals: a closed terminal, a signal in the last step, a repeated one."""

import signal

import pytest
from torch import nn

from equalbits.training import InterruptedTraining, load_checkpoint, train
from equalbits.training.stop_signals import stop_requests

LAST = "last.safetensors"


def test_a_closed_terminal_saves_and_stops_unless_sighup_is_ignored(
    tmp_path, make_net, make_loader, make_config
) -> None:
    def hang_up(model: nn.Module, step: int) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(InterruptedTraining, match="stopped by SIGHUP"):
            train(make_net(), make_loader(), make_config(), watchers=[hang_up], out=tmp_path / "a")
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        assert load_checkpoint(tmp_path / "a" / LAST)[1]["batch"] == 2
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        history = train(make_net(), make_loader(), make_config(), watchers=[hang_up], out=tmp_path / "b")
        assert len(history.epochs) == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_the_last_step_stops_before_the_next_run(tmp_path, make_net, make_loader, make_config) -> None:
    last = make_config().epochs * len(make_loader())

    def stop(model, step: int) -> None:
        if step == last:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(InterruptedTraining):
        train(make_net(), make_loader(), make_config(), out=tmp_path, watchers=[stop])
    history = train(make_net(1), make_loader(), make_config(), out=tmp_path)
    assert len(history.epochs) == make_config().epochs


def test_a_late_signal_is_delivered_afterwards() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt), stop_requests(listen=True) as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.signal_number == signal.SIGINT
        with pytest.raises(ValueError, match="its own story"), stop_requests(listen=True):
            signal.raise_signal(signal.SIGINT)
            raise ValueError("its own story")
    finally:
        signal.signal(signal.SIGINT, before)
