"""Checkpoints are whole or absent, refuse what is damaged in one line, and never run code."""

import errno
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from equalbits._files import remove_partial_files, write_all_atomically, write_atomically
from equalbits.training import CheckpointError, load_checkpoint, save_checkpoint
from equalbits.training.checkpoint_file import load_optimizer, load_weights, optimizer_tensors

TENSORS = {
    "weight": torch.randn(3, 4),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "half": torch.randn(5).bfloat16(),
    "none": torch.zeros(0, 2),
    "flipped": torch.arange(6.0).view(2, 3).t(),
}


def test_a_loaded_checkpoint_has_the_saved_bits(tmp_path: Path) -> None:
    facts = {"epoch": 3, "words": "ä\n", "list": [1, None]}
    save_checkpoint(tmp_path / "a", TENSORS, facts)
    tensors, again = load_checkpoint(tmp_path / "a")
    assert again == facts
    assert sorted(tensors) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor), name


def test_layers_that_share_a_tensor_can_be_saved(tmp_path: Path) -> None:
    shared = torch.ones(2)
    save_checkpoint(tmp_path / "a", {"one": shared, "two": shared}, {})
    assert torch.equal(load_checkpoint(tmp_path / "a")[0]["two"], shared)


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path_factory, where: float, bit: int) -> None:
    path = tmp_path_factory.mktemp("bit") / "a"
    save_checkpoint(path, TENSORS, {"epoch": 3})
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        tensors, facts = load_checkpoint(path)
    except CheckpointError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        return
    # A bit without meaning, as in the name of the checksum: what the file says is what was saved.
    assert facts == {"epoch": 3}
    assert sorted(tensors) == sorted(TENSORS)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=50, deadline=None)
def test_a_file_cut_off_anywhere_is_refused_in_one_line(tmp_path_factory, share: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "a"
    save_checkpoint(path, TENSORS, {"epoch": 3})
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match="is not a readable checkpoint") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


class Bomb:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return os.abort, ()


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (pickle.dumps(Bomb()), pickle.dumps(Bomb(), protocol=0)):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
            load_checkpoint(path)
    torch.save({"bomb": Bomb()}, path)
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        load_checkpoint(path)


def test_a_foreign_safetensors_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1)}, tmp_path / "other")
    with pytest.raises(CheckpointError, match="is a safetensors file, but not an equalbits checkpoint"):
        load_checkpoint(tmp_path / "other")
    with pytest.raises(CheckpointError, match="does not exist: name the directory of a run, or train one first"):
        load_checkpoint(tmp_path / "none")


def test_an_unreadable_checkpoint_is_not_suggested_for_deletion(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "below"):
        with pytest.raises(
            CheckpointError, match=r" cannot be read \((Is|Not) a directory\): fix that, or name"
        ) as caught:
            load_checkpoint(path)
        assert "delete it" not in str(caught.value) and "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"__metadata__": null}',
        b'{"__metadata__": {"equalbits": "' + b"[" * 100_000 + b'"}}',
        b'{"__metadata__": {"equalbits": "5"}}',
        b'{"__metadata__": {"equalbits": "null"}}',
    ],
    ids=["deep", "deep tables", "no facts", "deep facts", "a number", "nothing"],
)
def test_a_header_made_to_confuse_is_refused_in_one_line(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="is not a readable checkpoint") as caught:
        load_checkpoint(tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_weights_of_another_model_are_refused_in_one_line() -> None:
    with pytest.raises(CheckpointError, match=r"^a holds the weights of another model \(.*size mismatch") as caught:
        load_weights(nn.Linear(2, 3), nn.Linear(3, 3).state_dict(), Path("a"))
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new_one(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"new" * 1000)
    assert caught.value.filename == str(path)  # for the message of the command
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_written_together_change_together(tmp_path: Path, room_for) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_all_atomically({first: b"1", second: b"2"})
    with pytest.raises(OSError, match="second") as caught, room_for(100):
        write_all_atomically({first: b"new", second: b"new" * 1000})
    assert caught.value.filename == str(second)
    assert [path.read_bytes() for path in (first, second)] == [b"1", b"2"]
    write_all_atomically({first: b"new", second: b"new" * 1000})
    assert [path.read_bytes() for path in (first, second)] == [b"new", b"new" * 1000]
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_an_error_names_the_file_that_was_asked_for_and_not_the_one_beside_it(tmp_path: Path) -> None:
    for path in (tmp_path / "gone" / "a", tmp_path):  # one that cannot be begun, one that cannot be replaced
        with pytest.raises(OSError, match=r".") as caught:
            write_atomically(path, b"x")
        assert (caught.value.filename, caught.value.filename2) == (str(path), None)
    assert list(tmp_path.iterdir()) == [] and not list(tmp_path.parent.glob(".*.partial"))


def test_partial_files_of_a_killed_run_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = ["last.safetensors", "run.json", ".hidden", "notes.partial", ".film.mkv.partial", ".7.partial"]
    for name in [*kept, ".last.safetensors.123.partial", ".run.json.7.partial"]:
        (tmp_path / name).write_text("x")
    remove_partial_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_file_being_written_while_another_job_starts_is_completed(tmp_path: Path, monkeypatch) -> None:
    sync, begun = os.fsync, []

    def begin(descriptor: int) -> None:
        sync(descriptor)
        if len(begun) < 3:  # jobs begin, one after the other
            begun.append(len(list(tmp_path.glob(".*.partial"))))
            remove_partial_files(tmp_path)

    monkeypatch.setattr(os, "fsync", begin)
    write_all_atomically({tmp_path / "report.html": b"page", tmp_path / "run.json": b"{}"})
    assert begun == [1, 1, 1]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"report.html": b"page", "run.json": b"{}"}


def test_a_partial_file_that_cannot_be_removed_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".a.7.partial").mkdir()
    (tmp_path / ".b.7.partial").write_text("x")
    remove_partial_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".a.7.partial"]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_an_optimizer_state_is_restored_in_the_layout_of_its_parameter(kind: type, tmp_path: Path) -> None:
    def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)
        return model, kind(model.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))

    def move(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.arange(48.0).view(1, 3, 4, 4) / 48).square().sum().backward()
        optimizer.step()

    model, optimizer = made(0)
    move(model, optimizer)
    tensors, facts = optimizer_tensors(optimizer)
    save_checkpoint(tmp_path / "a", tensors, json.loads(json.dumps(facts)))
    other, another = made(1)
    other.load_state_dict(model.state_dict())
    load_optimizer(another, *load_checkpoint(tmp_path / "a"))
    for parameter, state in another.state.items():
        assert all(value.stride() == parameter.stride() for value in state.values() if value.shape == parameter.shape)
    move(model, optimizer)
    move(other, another)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), other.parameters(), strict=True))
