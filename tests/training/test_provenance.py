"""A run resumes with its data, quantizers and teacher, or names the change in one line."""

import logging
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from equalbits.data import Loader, load_dataset
from equalbits.nn import BiHalf, Sign
from equalbits.training import (
    CheckpointError,
    DistillConfig,
    InterruptedTraining,
    Resume,
    load_checkpoint,
    read_metadata,
    save_checkpoint,
    train,
)

LAST = "last.safetensors"


def stop(model: nn.Module, step: int) -> None:
    if step == 2:
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def stopped(tmp_path: Path, make_net, make_loader, make_config) -> Path:
    """A run interrupted after two steps."""
    with pytest.raises(InterruptedTraining):
        train(make_net(), make_loader(), make_config(), test=make_loader("test"), watchers=[stop], out=tmp_path)
    return tmp_path


def other_pixels(loader: Loader) -> Loader:
    loader.dataset.images.bitwise_xor_(1)
    return loader


def other_labels(loader: Loader) -> Loader:
    loader.dataset.labels.copy_((loader.dataset.labels + 1) % 4)
    return loader


def without_augmentation(loader: Loader) -> Loader:
    loader.augment = None
    return loader


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (other_pixels, r"data\.images=\w{16}, this run has data\.images=\w{16}: use the same data to resume"),
        (other_labels, r"data\.labels=\w{16}, this run has"),
        (without_augmentation, r"data\.augment=Augmentation\(erase=0\), this run has data\.augment=none"),
    ],
)
def test_other_training_data_are_refused_in_one_line(
    change, named, stopped: Path, make_net, make_loader, make_config
) -> None:
    before = (stopped / LAST).read_bytes()
    with pytest.raises(CheckpointError, match=named) as refused:
        train(make_net(), change(make_loader()), make_config(), test=make_loader("test"), out=stopped)
    assert "\n" not in str(refused.value)
    assert (stopped / LAST).read_bytes() == before


def test_other_test_data_are_refused_too(stopped: Path, make_net, make_loader, make_config) -> None:
    with pytest.raises(CheckpointError, match=r"test\.labels="):
        train(make_net(), make_loader(), make_config(), test=other_labels(make_loader("test")), out=stopped)


def test_another_quantizer_with_the_same_weights_is_refused(stopped: Path, make_net, make_loader, make_config) -> None:
    net = make_net()
    net[3].weight_quantizer = Sign()
    with pytest.raises(CheckpointError, match=r"quantizers\.BiHalf\(p_pos=0\.5\)=2, this run has .*=1: use the same"):
        train(net, make_loader(), make_config(), test=make_loader("test"), out=stopped)
    assert isinstance(make_net()[3].weight_quantizer, BiHalf)


def test_a_change_that_is_allowed_is_logged_and_stored_for_good(
    stopped: Path, make_net, make_loader, make_config, caplog
) -> None:
    loader, test = other_pixels(make_loader()), make_loader("test")
    history = train(make_net(), loader, make_config(), test=test, out=stopped, resume=Resume(allow_changes=True))
    assert len(history.epochs) == 3
    (change,) = read_metadata(stopped / LAST)["changes"]
    assert change.startswith("data.images=")
    assert "resuming with that change" in caplog.text
    train(
        make_net(), other_pixels(make_loader()), make_config(), test=test, out=stopped
    )  # the new data are now its own
    assert read_metadata(stopped / LAST)["changes"] == [change]


def test_another_teacher_is_noticed(tmp_path: Path, make_net, make_loader, make_config) -> None:
    config = make_config(distill=DistillConfig(weight=0.5))
    with pytest.raises(InterruptedTraining):
        train(make_net(), make_loader(), config, teacher=make_net(seed=1), watchers=[stop], out=tmp_path)
    with pytest.raises(CheckpointError, match=r"teacher=\w{8}, this run has teacher=\w{8}: use the same teacher"):
        train(make_net(), make_loader(), config, teacher=make_net(seed=2), out=tmp_path)
    train(make_net(), make_loader(), config, teacher=make_net(seed=1), out=tmp_path)


def rewrite(path: Path, **facts: str) -> None:
    tensors, metadata = load_checkpoint(path)
    metadata["facts"] |= facts
    save_checkpoint(path, tensors, metadata)


def test_another_torch_or_machine_resumes_with_a_warning(
    stopped: Path, make_net, make_loader, make_config, caplog
) -> None:
    assert read_metadata(stopped / LAST)["facts"]["torch"] == torch.__version__
    rewrite(stopped / LAST, torch="1.0.0", machine="an abacus")
    with caplog.at_level(logging.WARNING, "equalbits"):
        train(make_net(), make_loader(), make_config(), test=make_loader("test"), out=stopped)
    assert "made with torch=1.0.0, this run has" in caplog.text
    assert "made with machine=an abacus" in caplog.text
    assert read_metadata(stopped / LAST)["changes"] == []


def test_a_checkpoint_of_an_older_version_without_these_facts_still_resumes(
    stopped: Path, make_net, make_loader, make_config
) -> None:
    tensors, metadata = load_checkpoint(stopped / LAST)
    older = {
        name: metadata[name] for name in ("config", "epoch", "batch", "batches", "seconds", "history", "optimizer")
    }
    save_checkpoint(stopped / LAST, tensors, older)
    parts, whole = make_net(seed=5), make_net()
    train(parts, other_pixels(make_loader()), make_config(), test=make_loader("test"), out=stopped)
    save_checkpoint(stopped / LAST, tensors, older)
    train(parts, make_loader(), make_config(), test=make_loader("test"), out=stopped)
    train(whole, make_loader(), make_config())
    assert all(torch.equal(a, b) for a, b in zip(parts.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize("facts", [5, [], {"data": 5}, {"teacher": [1]}])
def test_invalid_facts_are_refused_in_one_line(facts, stopped: Path, make_net, make_loader, make_config) -> None:
    tensors, metadata = load_checkpoint(stopped / LAST)
    save_checkpoint(stopped / LAST, tensors, {**metadata, "facts": facts})
    with pytest.raises(CheckpointError):
        train(make_net(), make_loader(), make_config(), test=make_loader("test"), out=stopped)


def test_a_moved_tree_is_the_same_data_but_a_renamed_resized_or_edited_file_is_not(tmp_path: Path) -> None:
    from PIL import Image

    def tree(name: str) -> Path:
        for label, shade in (("a", 0), ("b", 200)):
            (tmp_path / name / "train" / label).mkdir(parents=True)
            Image.new("RGB", (4, 4), (shade, 0, 0)).save(tmp_path / name / "train" / label / "0.bmp")
        return tmp_path / name

    def fingerprint(root: Path) -> dict[str, str]:
        return load_dataset("imagefolder", root, split="train").fingerprint()

    first, second = tree("one"), tree("two")
    before, moved = fingerprint(first), fingerprint(second)
    assert {name for name in before if before[name] != moved[name]} <= {"times"}
    picture = second / "train" / "a" / "0.bmp"
    picture.write_bytes(picture.read_bytes()[:-1] + b"\x01")  # the same size
    assert fingerprint(second)["images"] != before["images"]
    picture.write_bytes(picture.read_bytes() + b"1")
    assert fingerprint(second)["sizes"] != before["sizes"]
    picture.rename(picture.with_name("1.bmp"))
    assert fingerprint(second)["names"] != before["names"]
