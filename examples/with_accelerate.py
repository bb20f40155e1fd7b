"""Accelerate: log flips, entropy and exactness of the bits to its trackers (TensorBoard, Weights & Biases, …).

Run it with ``python examples/with_accelerate.py``; it takes seconds and needs no data.
"""

import torch
from accelerate import Accelerator
from torch import nn

import equalbits as eb
from equalbits.analysis import BitMeter

torch.manual_seed(0)
hidden = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64))
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), hidden, nn.ReLU(), nn.Linear(64, 4))
eb.binarize_(model, eb.BiHalf(), input_quantizer=eb.SignActivation())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
loader = torch.utils.data.DataLoader(data, batch_size=32)

accelerator = Accelerator(cpu=True)  # log_with="tensorboard" or "wandb", and project_dir="logs", keep the curves
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accelerator.init_trackers("bits")
meter = BitMeter()
meter(accelerator.unwrap_model(model))
for step, (inputs, labels) in enumerate(loader, start=1):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    accelerator.backward(loss)
    optimizer.step()
    if step % 4 == 0:
        values = meter(accelerator.unwrap_model(model))
        accelerator.log({"loss": loss.item(), **values}, step=step)
        accelerator.print(f"step {step}: loss {loss.item():.3f}, {values}")
accelerator.end_training()
print(eb.audit(accelerator.unwrap_model(model)))
