"""On a GPU: captured steps of binary ResNets take less memory than those of the real one."""

import pytest
import torch

from equalbits.data import Loader, load_dataset
from equalbits.models import create_model
from equalbits.training import TrainConfig, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SIGN: dict[str, object] = {"weight_quantizer": "bihalf", "input_quantizer": "sign"}
RSIGN: dict[str, object] = {"weight_quantizer": "bihalf", "input_quantizer": "rsign", "rprelu": True}


def test_captured_steps_of_binary_resnets_take_less_memory_than_those_of_the_real_one() -> None:
    data, peaks = load_dataset("synthetic:3x32x32:4:256", split="train", device="cuda"), []
    for quantizers, memory in (({"weight_quantizer": None}, "normal"), (SIGN, "normal"), (RSIGN, "small")):
        net = create_model("resnet18", num_classes=4, **quantizers).cuda()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        train(net, Loader(data, batch_size=128), TrainConfig(epochs=1, speed="captured", memory=memory))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert max(peaks[1:]) < 0.9 * peaks[0], peaks
