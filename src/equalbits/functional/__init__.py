"""Pure functions on tensors: binarization, optimal transport, estimators, entropy, pruning. No state."""

from equalbits.functional.binarize import bihalf, sign, sign_symbols
from equalbits.functional.bit_planes import Plane, bases_to_bit_planes, to_bit_planes
from equalbits.functional.conv_as_matmul import convolve
from equalbits.functional.entropy import (
    Flips,
    attainable_entropy,
    binary_entropy,
    count_flips,
    filter_entropy,
)
from equalbits.functional.estimators import (
    check_beta,
    check_sharpness,
    clipped,
    decaying,
    ede_sharpness,
    ede_slope,
    polynomial,
    straight_through,
    surrogate,
    swish_sign,
    triangle_slope,
)
from equalbits.functional.execution_mode import in_forward_mode, is_plain_execution
from equalbits.functional.fused_norm import prelu_norm_add_sign, update_running_stats
from equalbits.functional.gradients_from_bits import ConvSettings
from equalbits.functional.inputs_as_bits import convolve_signs, linear_of_signs, saves_signs
from equalbits.functional.int8_convolution import convolve_symbols
from equalbits.functional.optimal_transport import (
    as_filters,
    check_p_pos,
    is_number,
    positive_count,
    transport_by_sorting,
    transport_symbols,
)
from equalbits.functional.packed_bits import keeps_bits
from equalbits.functional.precision import at_least_float32, autocast_disabled
from equalbits.functional.pruning import (
    check_scope,
    check_sparsity,
    edge_popup,
    keep_largest,
    keep_largest_globally,
    keep_outer_ranks,
    prune_middle_ranks,
    ramped_sparsity,
    released_counts,
)
from equalbits.functional.ranking import check_finite, stable_ranks
from equalbits.functional.recomputed_norm import NormSettings, convolve_and_norm
from equalbits.functional.standardize import centred_symbols, standardize

__all__ = [
    "ConvSettings",
    "Flips",
    "NormSettings",
    "Plane",
    "as_filters",
    "at_least_float32",
    "attainable_entropy",
    "autocast_disabled",
    "bases_to_bit_planes",
    "bihalf",
    "binary_entropy",
    "centred_symbols",
    "check_beta",
    "check_finite",
    "check_p_pos",
    "check_scope",
    "check_sharpness",
    "check_sparsity",
    "clipped",
    "convolve",
    "convolve_and_norm",
    "convolve_signs",
    "convolve_symbols",
    "count_flips",
    "decaying",
    "ede_sharpness",
    "ede_slope",
    "edge_popup",
    "filter_entropy",
    "in_forward_mode",
    "is_number",
    "is_plain_execution",
    "keep_largest",
    "keep_largest_globally",
    "keep_outer_ranks",
    "keeps_bits",
    "linear_of_signs",
    "polynomial",
    "positive_count",
    "prelu_norm_add_sign",
    "prune_middle_ranks",
    "ramped_sparsity",
    "released_counts",
    "saves_signs",
    "sign",
    "sign_symbols",
    "stable_ranks",
    "standardize",
    "straight_through",
    "surrogate",
    "swish_sign",
    "to_bit_planes",
    "transport_by_sorting",
    "transport_symbols",
    "triangle_slope",
    "update_running_stats",
]
