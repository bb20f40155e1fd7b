"""The mathematics: tensors in, tensors out, no state."""

from equalbits.functional.binarize import bihalf, irnet, irnet_stable, sign, sign_symbols
from equalbits.functional.entropy import (
    Flips,
    attainable_entropy,
    binary_entropy,
    count_flips,
    filter_entropy,
    positive_share,
)
from equalbits.functional.estimators import (
    clipped,
    decaying,
    ede_sharpness,
    ede_slope,
    polynomial,
    straight_through,
    weighted,
)
from equalbits.functional.optimal_transport import (
    as_filters,
    flip_by_rank,
    positive_count,
    transport_by_sorting,
    transport_cost,
    transport_plan,
    transport_symbols,
)
from equalbits.functional.transport_ops import stable_ranks

__all__ = [
    "Flips",
    "as_filters",
    "attainable_entropy",
    "bihalf",
    "binary_entropy",
    "clipped",
    "count_flips",
    "decaying",
    "ede_sharpness",
    "ede_slope",
    "filter_entropy",
    "flip_by_rank",
    "irnet",
    "irnet_stable",
    "polynomial",
    "positive_count",
    "positive_share",
    "sign",
    "sign_symbols",
    "stable_ranks",
    "straight_through",
    "transport_by_sorting",
    "transport_cost",
    "transport_plan",
    "transport_symbols",
    "weighted",
]
