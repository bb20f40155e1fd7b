"""Your own model and training loop: make it binary, train it, verify the share of +1, report its size.

Run it with ``python examples/own_model.py``; it takes seconds and needs no data.
"""

import torch
from torch import nn

import equalbits as eb
from equalbits.analysis import FlipWatcher


def block(channels: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.Conv2d(channels, 2 * channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, bias=False),
    )


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    block(16),
    block(32, stride=2),
    nn.BatchNorm2d(64),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
)

# 1. Replace layers in place. The report lists the replaced layers, and those left real with the reason.
report = eb.binarize_(model, eb.BiHalf(), input_quantizer=eb.SignActivation())
print(report, end="\n\n")

# 2. Train as usual. A watcher is called as watcher(model, step), in any loop.
torch.manual_seed(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
watcher = FlipWatcher()
watcher(model, 0)
for step in range(1, 6):
    images, labels = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watcher(model, step)
    flips = sum(series.to_positive[-1] + series.to_negative[-1] for series in watcher.layers.values())
    print(f"step {step}: loss {loss.item():.3f}, {flips} flips")

# 3. Verify that exactly one half of every filter is +1; raise otherwise.
print(f"\n{eb.audit(model)}\n")

# 4. Print the size and cost of each layer.
print(eb.summarize(model, (1, 3, 16, 16)))
