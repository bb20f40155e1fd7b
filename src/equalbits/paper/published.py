"""The paper's own numbers: test accuracy in per cent, mean and ± over five trials (its table 2, CIFAR-10)."""

from types import MappingProxyType
from typing import NamedTuple


class Published(NamedTuple):
    """A number of the paper's, with its ±; whether that is a sample's or a population's deviation it does not say."""

    mean: float
    spread: float


#: (net, method) to the published score. IR-Net's rule on nets without batch norm is not said; ours is `irnet-stable`.
TABLE_2 = MappingProxyType(
    {
        ("conv2", "sign"): Published(77.86, 0.69),
        ("conv4", "sign"): Published(86.49, 0.24),
        ("conv6", "sign"): Published(88.51, 0.35),
        ("conv8", "sign"): Published(89.17, 0.26),
        ("conv2", "irnet-stable"): Published(78.32, 0.25),
        ("conv4", "irnet-stable"): Published(87.20, 0.26),
        ("conv6", "irnet-stable"): Published(89.61, 0.11),
        ("conv8", "irnet-stable"): Published(90.06, 0.06),
        ("conv2", "bihalf"): Published(79.25, 0.28),
        ("conv4", "bihalf"): Published(87.68, 0.32),
        ("conv6", "bihalf"): Published(89.92, 0.19),
        ("conv8", "bihalf"): Published(90.40, 0.17),
    }
)
