"""Train timm's networks with binary weights and inputs on the embedded images, as they are and with adapted ReLUs.

    python benchmarks/adapt_timm.py [--steps 150] [NETWORK …]

Prints for each network the number of layers whose binary input is constant, and the accuracy on the 2,000 test images:
as it is, adapted, adapted with shortcuts, and real.
"""

import argparse
import warnings
from itertools import count, islice

import timm
import torch
from torch.nn import functional as nnf

import equalbits as eb


def accuracy(name: str, steps: int, how: str) -> tuple[int, float]:
    torch.manual_seed(0)
    train, test = (eb.load_dataset("fashion", split=split) for split in ("train", "test"))
    model = timm.create_model(name, num_classes=10, in_chans=1)
    example = next(iter(eb.Loader(train, batch_size=8)))[0]
    constant: tuple[str, ...] = ()
    if how != "real":
        constant = eb.binarize_(model, eb.BiHalf(), input_quantizer=eb.SignActivation(), example=example).constant
    if how in ("adapted", "shortcuts"):
        eb.adapt_for_binary_inputs_(model, example, shortcuts=how == "shortcuts")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = eb.Loader(train, batch_size=64, shuffle=True)
    batches = (batch for epoch in count() for batch in loader.epoch(epoch))
    for images, labels in islice(batches, steps):
        optimizer.zero_grad()
        nnf.cross_entropy(model(images), labels).backward()
        optimizer.step()
    score = eb.evaluate(model, eb.Loader(test, batch_size=200))
    return len(constant), score.correct / score.total


def main() -> None:
    parser = argparse.ArgumentParser(description="train timm's networks with binary inputs, adapted or not")
    parser.add_argument("networks", nargs="*", default=["resnet18", "mobilenetv2_100"])
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "a binary layer's input is constant")
    for name in options.networks:
        for how in ("as it is", "adapted", "shortcuts", "real"):
            try:
                constant, share = accuracy(name, options.steps, how)
                result = f"{constant} constant inputs before, accuracy {share:.1%}"
            except ValueError as error:  # the weights are NaN
                result = str(error)
            print(f"{name:<16} {how:<9}  {result}", flush=True)


if __name__ == "__main__":
    main()
