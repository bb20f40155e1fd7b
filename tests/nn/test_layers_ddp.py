"""Two processes with half a batch each take the step that one process takes with the whole batch."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import ForkedPython
from torch import nn

from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear, IRNet, SignActivation, set_progress


def small_net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        BinaryConv2d(3, 6, 3, weight_quantizer=BiHalf(0.4)),
        BinaryConv2d(6, 4, 3, groups=2, weight_quantizer=IRNet(), input_quantizer=SignActivation()),
        nn.Flatten(),
        BinaryLinear(64, 5),
    ).double()


def train(model: nn.Module, net: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two steps; gradients of the second, and the state of the net."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(2):
        set_progress(net, step / 2)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return {**net.state_dict(), **{f"{name}.grad": value.grad for name, value in net.named_parameters()}}


def batch() -> torch.Tensor:
    return torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def work(rank: int, folder: Path) -> None:
    """Program of each process."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    net = small_net(seed=rank)  # each starts otherwise: rank 0's state must reach both
    found = train(nn.parallel.DistributedDataParallel(net), net, batch().chunk(2)[rank])
    torch.save(found, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads now and then abort a process that ends the usual way


@pytest.mark.ddp
def test_two_processes_equal_one_with_twice_the_batch(tmp_path):
    workers = [ForkedPython(__file__, rank, tmp_path) for rank in range(2)]
    assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    net = small_net(seed=0)
    expected = train(net, net, batch())
    for rank in range(2):
        found = torch.load(tmp_path / f"rank{rank}.pt")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


if __name__ == "__main__":
    work(int(sys.argv[1]), Path(sys.argv[2]))
