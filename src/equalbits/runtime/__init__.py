"""Torch-free inference: the packed file, the meaning of a bit, and the engines that run it. Numpy is all it needs."""

from equalbits.runtime.audit import Audit, LayerAudit, audit, summarize
from equalbits.runtime.container import FormatError
from equalbits.runtime.decoder import Decoder
from equalbits.runtime.engine import MAX_THREADS, NativeEngine, PackedModel, load_packed, run_numpy
from equalbits.runtime.export import CSizes, build_openvino, export_c, export_onnx, export_openvino, web_page
from equalbits.runtime.format import read_network, write_network
from equalbits.runtime.generate import generate
from equalbits.runtime.limits import LimitError, Limits
from equalbits.runtime.network import Network, Operation
from equalbits.runtime.network_builder import NetworkBuilder
from equalbits.runtime.normalization import unnormalized_hint
from equalbits.runtime.op_specs import Array, Floats, Settings, Shape
from equalbits.runtime.ops import OPS
from equalbits.runtime.ops.activation import FUNCTIONS
from equalbits.runtime.ops.pool import adaptive_windows
from equalbits.runtime.ops.quantize import exact_products
from equalbits.runtime.ports import Port
from equalbits.runtime.predict import Prediction, top_classes
from equalbits.runtime.resize_pictures import (
    FITS,
    FORMATS,
    MAX_PIXELS,
    SUFFIXES,
    NoRangeError,
    TooLargeError,
    centre,
    check_pixels,
    in_bytes,
    scaled_square,
)
from equalbits.runtime.zoo import find_checkpoint, find_packed, has_weights, list_zoo, stored_images, zoo_card

__all__ = [
    "FITS",
    "FORMATS",
    "FUNCTIONS",
    "MAX_PIXELS",
    "MAX_THREADS",
    "OPS",
    "SUFFIXES",
    "Array",
    "Audit",
    "CSizes",
    "Decoder",
    "Floats",
    "FormatError",
    "LayerAudit",
    "LimitError",
    "Limits",
    "NativeEngine",
    "Network",
    "NetworkBuilder",
    "NoRangeError",
    "Operation",
    "PackedModel",
    "Port",
    "Prediction",
    "Settings",
    "Shape",
    "TooLargeError",
    "adaptive_windows",
    "audit",
    "build_openvino",
    "centre",
    "check_pixels",
    "exact_products",
    "export_c",
    "export_onnx",
    "export_openvino",
    "find_checkpoint",
    "find_packed",
    "generate",
    "has_weights",
    "in_bytes",
    "list_zoo",
    "load_packed",
    "read_network",
    "run_numpy",
    "scaled_square",
    "stored_images",
    "summarize",
    "top_classes",
    "unnormalized_hint",
    "web_page",
    "write_network",
    "zoo_card",
]
