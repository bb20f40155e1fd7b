"""The mathematics: tensors in, tensors out, no state."""

from equalbits.functional.activations import batch_symbols, bihalf_inputs, halfwave
from equalbits.functional.binarize import bihalf, irnet, irnet_stable, sign, sign_symbols
from equalbits.functional.convolution import convolve
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
from equalbits.functional.latent_free import balanced_flips, bop_flips
from equalbits.functional.normed_sum import normed_sum
from equalbits.functional.optimal_transport import (
    as_filters,
    flip_by_rank,
    positive_count,
    transport_by_sorting,
    transport_cost,
    transport_plan,
    transport_symbols,
)
from equalbits.functional.pruning import halfmask_symbols, keep_largest, keep_largest_of_all, ramped_sparsity
from equalbits.functional.rotation import fit_rotation, rbnn
from equalbits.functional.scaled import abcnet, binaryconnect, bireal, dorefa, least_squares, xnor
from equalbits.functional.standardised import adabin, distance_to_scale, recu, swish_sign
from equalbits.functional.transport_ops import stable_ranks

__all__ = [
    "Flips",
    "abcnet",
    "adabin",
    "as_filters",
    "attainable_entropy",
    "balanced_flips",
    "batch_symbols",
    "bihalf",
    "bihalf_inputs",
    "binary_entropy",
    "binaryconnect",
    "bireal",
    "bop_flips",
    "clipped",
    "convolve",
    "count_flips",
    "decaying",
    "distance_to_scale",
    "dorefa",
    "ede_sharpness",
    "ede_slope",
    "filter_entropy",
    "fit_rotation",
    "flip_by_rank",
    "halfmask_symbols",
    "halfwave",
    "irnet",
    "irnet_stable",
    "keep_largest",
    "keep_largest_of_all",
    "least_squares",
    "normed_sum",
    "polynomial",
    "positive_count",
    "positive_share",
    "ramped_sparsity",
    "rbnn",
    "recu",
    "sign",
    "sign_symbols",
    "stable_ranks",
    "straight_through",
    "swish_sign",
    "transport_by_sorting",
    "transport_cost",
    "transport_plan",
    "transport_symbols",
    "weighted",
    "xnor",
]
