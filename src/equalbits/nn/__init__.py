"""Quantizers, binary layers, and the conversion of any model."""

from equalbits.nn.activations import HWGQ, AdaBinActivation, BiHalfActivation, RSign, SwishSignActivation
from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.convert import Conversion, binarize_
from equalbits.nn.latent_free import Bits, BopParameters, bop_parameters
from equalbits.nn.layer_policies import Candidate, all_layers, inner_layers
from equalbits.nn.layers import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLinear, QuickConv2d
from equalbits.nn.learned import AdaBin, BNNPlus, ReCU, XNORPlusPlus, bnn_plus_penalty
from equalbits.nn.methods import XNOR, ABCNet, BinaryConnect, BiReal, DoReFa, LeastSquares, clip_latents_
from equalbits.nn.output_layers import GatedScale, LearnedScale, Maxout, RPReLU
from equalbits.nn.parametrized import parametrization_in_eval
from equalbits.nn.pruning import MPT, PrunedBiHalf, PrunedSign
from equalbits.nn.pruning_mask import (
    PruningMask,
    empty_filters,
    end_ramps_,
    freeze_latents_,
    set_global_masks_,
    warn_empty_layers,
)
from equalbits.nn.quantizer import BiHalf, IRNet, Sign, SignActivation, WeightQuantizer, set_progress
from equalbits.nn.rank_ahead import ahead_ranker
from equalbits.nn.registry import (
    input_quantizer_by_name,
    input_quantizer_settings,
    list_input_quantizers,
    list_quantizers,
    quantizer_by_name,
    quantizer_settings,
    register_input_quantizer,
    register_quantizer,
    settings_of,
)
from equalbits.nn.rotation import RBNN, RBNNActivation, refit_rotations_
from equalbits.nn.training_hooks import after_step_, at_epoch_, layers_with_hook, penalty

__all__ = [
    "HWGQ",
    "MPT",
    "RBNN",
    "XNOR",
    "ABCNet",
    "AdaBin",
    "AdaBinActivation",
    "BNNPlus",
    "BiHalf",
    "BiHalfActivation",
    "BiReal",
    "BinaryConnect",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryConvTranspose2d",
    "BinaryLayer",
    "BinaryLinear",
    "Bits",
    "BopParameters",
    "Candidate",
    "Conversion",
    "DoReFa",
    "GatedScale",
    "IRNet",
    "LearnedScale",
    "LeastSquares",
    "Maxout",
    "PrunedBiHalf",
    "PrunedSign",
    "PruningMask",
    "QuickConv2d",
    "RBNNActivation",
    "RPReLU",
    "RSign",
    "ReCU",
    "Sign",
    "SignActivation",
    "SwishSignActivation",
    "WeightQuantizer",
    "XNORPlusPlus",
    "after_step_",
    "ahead_ranker",
    "all_layers",
    "at_epoch_",
    "binarize_",
    "bnn_plus_penalty",
    "bop_parameters",
    "clip_latents_",
    "empty_filters",
    "end_ramps_",
    "freeze_latents_",
    "inner_layers",
    "input_quantizer_by_name",
    "input_quantizer_settings",
    "layers_with_hook",
    "list_input_quantizers",
    "list_quantizers",
    "parametrization_in_eval",
    "penalty",
    "quantizer_by_name",
    "quantizer_settings",
    "refit_rotations_",
    "register_input_quantizer",
    "register_quantizer",
    "set_global_masks_",
    "set_progress",
    "settings_of",
    "warn_empty_layers",
]
