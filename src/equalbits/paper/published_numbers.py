"""The paper's numbers: test accuracy in per cent (tables 2 and 3) and the counts of its toy net (figure 6)."""

from types import MappingProxyType
from typing import NamedTuple


class Published(NamedTuple):
    """A published mean with its ±; the paper does not say whether that is the sample or population deviation."""

    mean: float
    spread: float


# Table 2, CIFAR-10, mean and ± over five trials, as printed.
_TABLE_2 = {
    ("conv2", "sign"): Published(77.86, 0.69),
    ("conv4", "sign"): Published(86.49, 0.24),
    ("conv6", "sign"): Published(88.51, 0.35),
    ("conv8", "sign"): Published(89.17, 0.26),
    ("conv2", "irnet"): Published(78.32, 0.25),
    ("conv4", "irnet"): Published(87.20, 0.26),
    ("conv6", "irnet"): Published(89.61, 0.11),
    ("conv8", "irnet"): Published(90.06, 0.06),
    ("conv2", "bihalf"): Published(79.25, 0.28),
    ("conv4", "bihalf"): Published(87.68, 0.32),
    ("conv6", "bihalf"): Published(89.92, 0.19),
    ("conv8", "bihalf"): Published(90.40, 0.17),
}

#: Number of seeds behind each mean of table 2.
TABLE_2_SEEDS = 5
#: Number of test images behind each table.
TEST_IMAGES = MappingProxyType({"tab2": 10_000, "tab3": 50_000})

#: Table 2 by net and by our method. The paper does not give IR-Net's rule for nets without batch norm: each of three
#: methods is a reading of it.
TABLE_2 = MappingProxyType(
    {
        (net, method): score
        for (net, row), score in _TABLE_2.items()
        for method in (("irnet-stable", "irnet-identity", "irnet-through") if row == "irnet" else (row,))
    }
)

#: Figure 6: the toy net with 12 parameters of ±1, and with exactly half of them −1.
TOY = MappingProxyType({"full": {"combinations": 4096, "unique": 76}, "bihalf": {"combinations": 924, "unique": 66}})
#: Its unique boundaries with 2, 3, … 10 negatives, read from the published vector graphic.
TOY_BOUNDARIES = (2, 14, 35, 55, 66, 59, 37, 15, 3)


class ImageNetRow(NamedTuple):
    """A row of table 3: top-1 and top-5 accuracy of a single run in per cent."""

    net: str
    method: str
    top1: float
    top5: float


#: Binary weights and activations except for FP. There is no Sign row for ResNet-34.
TABLE_3 = (
    ImageNetRow("ResNet-18", "FP", 69.3, 89.2),
    ImageNetRow("ResNet-18", "ABC-Net", 42.7, 67.6),
    ImageNetRow("ResNet-18", "XNOR", 51.2, 73.2),
    ImageNetRow("ResNet-18", "BNN+", 53.0, 72.6),
    ImageNetRow("ResNet-18", "Least-squares", 58.9, 81.4),
    ImageNetRow("ResNet-18", "XNOR++", 57.1, 79.9),
    ImageNetRow("ResNet-18", "IR-Net", 58.1, 80.0),
    ImageNetRow("ResNet-18", "RBNN", 59.9, 81.9),
    ImageNetRow("ResNet-18", "Sign", 59.98, 82.47),
    ImageNetRow("ResNet-18", "Bi-half", 60.40, 82.86),
    ImageNetRow("ResNet-34", "FP", 73.3, 91.3),
    ImageNetRow("ResNet-34", "ABC-Net", 52.4, 76.5),
    ImageNetRow("ResNet-34", "Bi-Real", 62.2, 83.9),
    ImageNetRow("ResNet-34", "IR-Net", 62.9, 84.1),
    ImageNetRow("ResNet-34", "RBNN", 63.1, 84.4),
    ImageNetRow("ResNet-34", "Bi-half", 64.17, 85.36),
)
