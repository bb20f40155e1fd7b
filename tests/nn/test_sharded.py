"""Latents sharded among processes by torch's fully_shard."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from equalbits.nn import (
    MPT,
    RBNN,
    BinaryLinear,
    Bits,
    PrunedSign,
    at_epoch_,
    bop_parameters,
    set_global_masks_,
)


@pytest.fixture
def shared_out():
    """Makes a net of which this process, the first of two, has its share; the other is not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def make(quantizer):
        net = nn.Sequential(BinaryLinear(8, 6, weight_quantizer=quantizer))
        fully_shard(net[0], mesh=mesh)
        return net

    yield make
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("quantizer", "look"),
    [
        (RBNN(), at_epoch_),
        (MPT(scope="global"), set_global_masks_),
        (PrunedSign(scope="global"), set_global_masks_),
    ],
)
def test_functions_that_read_all_latents_raise_with_the_way_to_unshard(shared_out, quantizer, look):
    net = shared_out(quantizer)
    with pytest.raises(ValueError, match=r"latents are sharded: call unshard\(\)"):
        look(net)
    if hasattr(torch.cpu.Stream, "record_event"):  # torch 2.6 unshards on GPUs alone
        net[0].unshard()
        look(net)


def test_sharded_bits_raise_with_the_remedy(shared_out):
    with pytest.raises(ValueError, match=r"sharded bits .* DistributedDataParallel"):
        bop_parameters(shared_out(Bits(0.5)))
