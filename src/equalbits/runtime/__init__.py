"""Torch-free inference: the packed file, the meaning of a bit, and the engines that run it. Numpy is all it needs.

* The file: ``format`` (header, checksum) over ``container`` (tensors) and ``op_text`` (operations as lines); ``bits``
  says what a bit means, padding and ties included; ``limits`` bounds what a file may cost.
* A ``network`` is operations and tensors. ``op_specs`` says what an operation is, ``ops`` holds all of them; ``ports``
  are inputs other than one image, ``lengths`` networks of several lengths.
* ``engine`` runs a network in numpy, or natively: ``lower`` makes ``plan_tables``, ``input_forms`` says what is read as
  bits, and ``native`` is the C.
* ``decoder`` keeps keys and values (``shorten_decoder``), ``generate`` makes tokens; ``predict`` and
  ``resize_pictures`` prepare pictures; ``audit`` and ``packed_summary`` count; ``export`` writes C, web pages, and by
  way of ``export_graph`` ONNX and OpenVINO.
"""

from equalbits.runtime.audit import Audit as Audit
from equalbits.runtime.audit import LayerAudit as LayerAudit
from equalbits.runtime.audit import audit as audit
from equalbits.runtime.container import FormatError as FormatError
from equalbits.runtime.decoder import Decoder as Decoder
from equalbits.runtime.engine import MAX_THREADS as MAX_THREADS
from equalbits.runtime.engine import NativeEngine as NativeEngine
from equalbits.runtime.engine import PackedModel as PackedModel
from equalbits.runtime.engine import each_value as each_value
from equalbits.runtime.engine import load_packed as load_packed
from equalbits.runtime.engine import run_numpy as run_numpy
from equalbits.runtime.export import CSizes as CSizes
from equalbits.runtime.export import build_openvino as build_openvino
from equalbits.runtime.export import export_c as export_c
from equalbits.runtime.export import export_onnx as export_onnx
from equalbits.runtime.export import export_openvino as export_openvino
from equalbits.runtime.export import web_page as web_page
from equalbits.runtime.format import read_network as read_network
from equalbits.runtime.format import write_network as write_network
from equalbits.runtime.generate import generate as generate
from equalbits.runtime.input_forms import exact_products as exact_products
from equalbits.runtime.input_forms import many_filters as many_filters
from equalbits.runtime.lengths import Lengths as Lengths
from equalbits.runtime.lengths import Sizes as Sizes
from equalbits.runtime.lengths import at_length as at_length
from equalbits.runtime.limits import LimitError as LimitError
from equalbits.runtime.limits import Limits as Limits
from equalbits.runtime.network import Network as Network
from equalbits.runtime.network_builder import NetworkBuilder as NetworkBuilder
from equalbits.runtime.op_specs import Array as Array
from equalbits.runtime.op_specs import ElementwiseOp as ElementwiseOp
from equalbits.runtime.op_specs import Floats as Floats
from equalbits.runtime.op_specs import Operation as Operation
from equalbits.runtime.op_specs import Settings as Settings
from equalbits.runtime.op_specs import Shape as Shape
from equalbits.runtime.ops import OPS as OPS
from equalbits.runtime.ops import make_operation as make_operation
from equalbits.runtime.ops.activation import FUNCTIONS as FUNCTIONS
from equalbits.runtime.ops.pool import adaptive_windows as adaptive_windows
from equalbits.runtime.packed_summary import summarize as summarize
from equalbits.runtime.ports import Port as Port
from equalbits.runtime.predict import Prediction as Prediction
from equalbits.runtime.predict import top_classes as top_classes
from equalbits.runtime.resize_pictures import FITS as FITS
from equalbits.runtime.resize_pictures import FORMATS as FORMATS
from equalbits.runtime.resize_pictures import MAX_PIXELS as MAX_PIXELS
from equalbits.runtime.resize_pictures import SUFFIXES as SUFFIXES
from equalbits.runtime.resize_pictures import TooLargeError as TooLargeError
from equalbits.runtime.resize_pictures import check_pixels as check_pixels
from equalbits.runtime.resize_pictures import scaled_square as scaled_square
from equalbits.runtime.zoo import find_checkpoint as find_checkpoint
from equalbits.runtime.zoo import find_packed as find_packed
from equalbits.runtime.zoo import has_weights as has_weights
from equalbits.runtime.zoo import list_zoo as list_zoo
from equalbits.runtime.zoo import stored_images as stored_images
from equalbits.runtime.zoo import zoo_card as zoo_card
