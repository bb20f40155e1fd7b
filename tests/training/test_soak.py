"""Long and large trainings (``make soak``): flat memory, and a layer of 268 million weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from equalbits.training import train

MIB = 1 << 20

LARGE = """
import sys, torch, equalbits as eb
from torch import nn
from equalbits.nn import BiHalf, BinaryLinear
from equalbits.training import TrainConfig, train

torch.manual_seed(0)
large = BinaryLinear(65_536, 4_096, weight_quantizer=BiHalf(), bias=False)
net = nn.Sequential(nn.Flatten(), large, nn.ReLU(), nn.Linear(4_096, 2))
images = torch.randn(8, 65_536, 1, 1)
train(net, [(images, torch.tensor([0, 1] * 4))], TrainConfig(epochs=1))
assert bool(large.weight.isfinite().all())
packed = eb.pack(net.eval(), images)
packed.save(sys.argv[1])
assert packed.audit().exact
"""

PACKED = """
import sys, torch, equalbits as eb
from pathlib import Path
from torch import nn
from equalbits.nn import BiHalf, BinaryLinear

def memory(name):
    return int(Path("/proc/self/status").read_text().split(name)[1].split()[0]) // 1024

layers = [nn.Flatten()]
for _ in range(2):
    for sizes in ((2048, 16_384), (16_384, 2048)):
        layers += [BinaryLinear(*sizes, weight_quantizer=BiHalf(), bias=False), nn.ReLU()]
net = nn.Sequential(*layers).eval()
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = memory("VmRSS:")
eb.pack(net, torch.randn(1, 2048, 1, 1)).save(sys.argv[1])
print(memory("VmHWM:") - before)
"""


@pytest.mark.soak
def test_packing_a_torch_model_of_134_million_weights_takes_two_gibibytes_beyond_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PACKED, tmp_path / "net.ebits"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    print(f"peak {done.stdout.strip()} MiB beyond a model of 512 MiB")
    assert int(done.stdout) < 2048
    assert (tmp_path / "net.ebits").stat().st_size < (1 << 24) * 1.01


@pytest.mark.soak
def test_twenty_thousand_steps_take_no_more_memory_than_two_thousand(
    tmp_path: Path, make_net, make_loader, make_config
) -> None:
    resident: dict[int, int] = {}

    def watch(_: nn.Module, step: int) -> None:
        if step % 1000 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident[step] = pages * os.sysconf("SC_PAGE_SIZE")

    config = make_config(epochs=20, checkpoint_seconds=0.5)
    train(
        make_net(norm=True), make_loader(count=8_000), config, test=make_loader("test"), watchers=[watch], out=tmp_path
    )
    print({step: f"{size / MIB:.1f} MiB" for step, size in resident.items()})
    assert max(resident) == 20_000
    assert resident[20_000] - resident[2_000] < 8 * MIB


@pytest.mark.soak
def test_a_linear_layer_of_65536_by_4096_is_trained_a_step_and_packed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE, tmp_path / "net.ebits"], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 65_536 * 4_096 / 8 < (tmp_path / "net.ebits").stat().st_size < 65_536 * 4_096 / 8 * 1.01
