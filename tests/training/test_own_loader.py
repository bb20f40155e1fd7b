"""Loaders of torch: an interrupted run resumes with the same images."""

import json
import os
import random
import signal

import numpy as np
import pytest
import torch
from forked import start_ranks
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, WeightedRandomSampler

from equalbits.training import InterruptedTraining, evaluate, load_checkpoint, train


class Noisy(Dataset):
    """Twenty images, each changed by a random number at every access."""

    def __init__(self, draw=lambda: 0.0) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int):
        return torch.full((1, 8, 8), index / 20 + float(self.draw())), index % 4


def stop_after(step: int):
    def watch(model: nn.Module, done: int) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return watch


def seeded() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()  # with a number that no other start has
    return generator


def in_batches(sampler: RandomSampler) -> DataLoader:
    return DataLoader(Noisy(), batch_sampler=BatchSampler(sampler, 4, drop_last=False))


LOADERS = {
    "python": lambda: DataLoader(Noisy(random.random), batch_size=4, shuffle=True),
    "numpy": lambda: DataLoader(Noisy(np.random.rand), batch_size=4, shuffle=True),
    "generator": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True, generator=seeded()),
    "sampler": lambda: DataLoader(Noisy(), 4, sampler=WeightedRandomSampler([1.0] * 20, 20, generator=seeded())),
    "batches": lambda: in_batches(RandomSampler(range(20), generator=seeded())),
    "workers": lambda: DataLoader(
        Noisy(random.random), 4, shuffle=True, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_resumed_run_sees_the_images_of_an_uninterrupted_one(name: str, tmp_path, make_net, make_config) -> None:
    def trained(**settings) -> list[torch.Tensor]:
        model = make_net()
        train(model, LOADERS[name](), make_config(lr=0.01), **settings)
        return list(model.parameters())

    expected = trained()
    for step in (2, 8):  # in the first epoch of five steps and in the second
        random.seed(step)
        np.random.seed(step)  # the caller's own state has no say
        with pytest.raises(InterruptedTraining):
            trained(watchers=[stop_after(step)], out=tmp_path)
    assert all(torch.equal(mine, other) for mine, other in zip(trained(out=tmp_path), expected, strict=True))


def test_the_epochs_of_a_loader_with_a_generator_differ(make_net, make_config) -> None:
    seen: list[list[float]] = []

    class Seen(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(images[:, 0, 0, 0].tolist())
            return images

    train(nn.Sequential(Seen(), make_net()), LOADERS["generator"](), make_config(lr=0.01))
    epochs = [[value for batch in seen[start : start + 5] for value in batch] for start in (0, 5, 10)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_test_images_in_random_order_are_scored_the_same_by_a_run_that_stopped_before_them(
    tmp_path, make_net, make_config
) -> None:
    def test() -> DataLoader:
        return DataLoader(Noisy(lambda: torch.rand(())), batch_size=3, shuffle=True)

    batches = [(torch.ones(4, 1, 8, 8), torch.arange(4))] * 2

    def scores(out, **settings) -> list[dict]:
        train(make_net(dropout=0.5), batches, make_config(), test=test(), out=out, **settings)
        return [record["test"] for record in load_checkpoint(out / "last.safetensors")[1]["history"]]

    expected = scores(tmp_path / "whole")
    with pytest.raises(InterruptedTraining):
        scores(tmp_path / "parts", watchers=[stop_after(2)])  # the last step of an epoch
    assert scores(tmp_path / "parts") == expected


def test_training_does_not_change_the_callers_random_state(make_net, make_config) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = drawn()
    model, batches = make_net(), [(torch.ones(4, 1, 8, 8), torch.arange(4))]
    seed()
    train(model, batches, make_config(epochs=1))
    assert drawn() == expected


SHARED_OUT = """
import json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from equalbits.training import TrainConfig, train

dist.init_process_group("gloo")
rank, seen = dist.get_rank(), []

class Sharded:  # the same order in every process, of which each takes its part
    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)
    def __len__(self):
        return 4
    def __iter__(self):
        yield from torch.randperm(8, generator=self.generator)[rank::2].tolist()

class Noting(nn.Linear):
    def forward(self, batch):
        seen.extend(batch[:, 0].int().tolist())
        return super().forward(batch)

images = torch.arange(8.0)[:, None]
data = TensorDataset(images, torch.arange(8) % 2)
train(Noting(1, 2), DataLoader(data, batch_size=2, sampler=Sharded()), TrainConfig(epochs=3))
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(seen))
dist.barrier()
os._exit(0)  # torch's threads outlive its group, and now and then one aborts at the end of Python
"""


@pytest.mark.ddp
def test_a_distributed_sampler_gives_each_image_to_one_process(tmp_path) -> None:
    script = tmp_path / "shared_out.py"
    script.write_text(SHARED_OUT)
    ranks = start_ranks(script, tmp_path)
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0], [rank.communicate() for rank in ranks]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    for epoch in range(3):
        part = slice(4 * epoch, 4 * epoch + 4)
        assert sorted(first[part] + second[part]) == list(range(8))


@pytest.mark.parametrize("label", [-100, -1])
def test_a_label_that_torchs_loss_would_leave_out_is_refused(label: int, make_net, make_config) -> None:
    batch = (torch.zeros(2, 1, 8, 8), torch.tensor([0, label]))
    for work in (lambda: train(make_net(), [batch], make_config()), lambda: evaluate(make_net(), [batch])):
        with pytest.raises(ValueError, match=f"label {label} of batch 1.* is not a class: number classes from 0"):
            work()
