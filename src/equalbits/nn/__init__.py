"""Quantizers, binary layers, and the conversion of any model."""

from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.convert import Conversion, binarize_
from equalbits.nn.latent_free import Bits, BopParameters, bop_parameters
from equalbits.nn.layers import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLinear
from equalbits.nn.names import (
    input_quantizer_by_name,
    list_input_quantizers,
    list_quantizers,
    quantizer_by_name,
    register_input_quantizer,
    register_quantizer,
)
from equalbits.nn.policies import Candidate, all_layers, inner_layers
from equalbits.nn.pruning import MPT, PrunedBiHalf, PrunedSign
from equalbits.nn.quantizers import BiHalf, IRNet, Sign, SignActivation, WeightQuantizer, set_progress
from equalbits.nn.sieve import empty_filters, freeze_latents_, set_global_masks_

__all__ = [
    "MPT",
    "BiHalf",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryConvTranspose2d",
    "BinaryLayer",
    "BinaryLinear",
    "Bits",
    "BopParameters",
    "Candidate",
    "Conversion",
    "IRNet",
    "PrunedBiHalf",
    "PrunedSign",
    "Sign",
    "SignActivation",
    "WeightQuantizer",
    "all_layers",
    "binarize_",
    "bop_parameters",
    "empty_filters",
    "freeze_latents_",
    "inner_layers",
    "input_quantizer_by_name",
    "list_input_quantizers",
    "list_quantizers",
    "quantizer_by_name",
    "register_input_quantizer",
    "register_quantizer",
    "set_global_masks_",
    "set_progress",
]
