"""Quantizers, binary layers, and the conversion of any model."""

from equalbits.nn.adapt_for_binary_inputs import Adaptation, adapt_for_binary_inputs_
from equalbits.nn.binarize_model import Conversion, binarize_
from equalbits.nn.binary_layer import BinaryLayer, check_module, parametrization_in_eval
from equalbits.nn.forward_checks import watch_calls
from equalbits.nn.freeze import copy_model, freeze
from equalbits.nn.fused_norm import (
    BatchStatistics,
    calls_hooks,
    can_fuse,
    can_recompute,
    conv_norm_and_add,
    is_recomputable,
    norm_and_add,
    recompute_convolutions_,
    recomputes,
    starts_with_clipped_sign,
    update_running_statistics,
)
from equalbits.nn.global_pruning import (
    empty_filters,
    end_ramps_,
    freeze_latents_,
    set_global_masks_,
    warn_empty_layers,
)
from equalbits.nn.input_quantizers.adabin import AdaBinActivation
from equalbits.nn.input_quantizers.bihalf import BiHalfActivation
from equalbits.nn.input_quantizers.horq import HORQ
from equalbits.nn.input_quantizers.hwgq import HWGQ, HWGQ_LEVELS
from equalbits.nn.input_quantizers.rbnn import RBNNActivation
from equalbits.nn.input_quantizers.rsign import RSign
from equalbits.nn.input_quantizers.sign import SignActivation
from equalbits.nn.input_quantizers.swish_sign import SwishSignActivation
from equalbits.nn.layer_policies import Candidate, all_layers, inner_layers
from equalbits.nn.layers import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLinear, QuickConv2d
from equalbits.nn.methods.abcnet import ABCNet, abcnet_bases
from equalbits.nn.methods.adabin import AdaBin
from equalbits.nn.methods.bihalf import BiHalf
from equalbits.nn.methods.binaryconnect import BinaryConnect
from equalbits.nn.methods.bireal import BiReal
from equalbits.nn.methods.bits import Bits, bop_parameters
from equalbits.nn.methods.bnn_plus import BNNPlus
from equalbits.nn.methods.dorefa import DoReFa
from equalbits.nn.methods.irnet import IRNet
from equalbits.nn.methods.least_squares import LeastSquares
from equalbits.nn.methods.mpt import MPT
from equalbits.nn.methods.pruned import PrunedBiHalf, PrunedQuantizer, PrunedSign
from equalbits.nn.methods.rbnn import RBNN
from equalbits.nn.methods.recu import ReCU
from equalbits.nn.methods.sign import Sign
from equalbits.nn.methods.xnor import XNOR
from equalbits.nn.methods.xnor_plus_plus import XNORPlusPlus
from equalbits.nn.methods.zero_mean import ZeroMean
from equalbits.nn.output_layers import GatedScale, LearnedScale, Maxout, RPReLU
from equalbits.nn.quantizer import InputQuantizer, WeightQuantizer
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
from equalbits.nn.training_hooks import after_step_, at_epoch_, layers_with_hook, penalty, set_progress

__all__ = [
    "HORQ",
    "HWGQ",
    "HWGQ_LEVELS",
    "MPT",
    "RBNN",
    "XNOR",
    "ABCNet",
    "AdaBin",
    "AdaBinActivation",
    "Adaptation",
    "BNNPlus",
    "BatchStatistics",
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
    "Candidate",
    "Conversion",
    "DoReFa",
    "GatedScale",
    "IRNet",
    "InputQuantizer",
    "LearnedScale",
    "LeastSquares",
    "Maxout",
    "PrunedBiHalf",
    "PrunedQuantizer",
    "PrunedSign",
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
    "ZeroMean",
    "abcnet_bases",
    "adapt_for_binary_inputs_",
    "after_step_",
    "ahead_ranker",
    "all_layers",
    "at_epoch_",
    "binarize_",
    "bop_parameters",
    "calls_hooks",
    "can_fuse",
    "can_recompute",
    "check_module",
    "conv_norm_and_add",
    "copy_model",
    "empty_filters",
    "end_ramps_",
    "freeze",
    "freeze_latents_",
    "inner_layers",
    "input_quantizer_by_name",
    "input_quantizer_settings",
    "is_recomputable",
    "layers_with_hook",
    "list_input_quantizers",
    "list_quantizers",
    "norm_and_add",
    "parametrization_in_eval",
    "penalty",
    "quantizer_by_name",
    "quantizer_settings",
    "recompute_convolutions_",
    "recomputes",
    "register_input_quantizer",
    "register_quantizer",
    "set_global_masks_",
    "set_progress",
    "settings_of",
    "starts_with_clipped_sign",
    "update_running_statistics",
    "warn_empty_layers",
    "watch_calls",
]
