"""Torch-free inference: the packed file, the meaning of a bit, and the engines that run it. Numpy is all it needs."""

from equalbits.runtime.audit import PackedAudit, PackedLayerAudit, PackedLayerSummary, PackedSummary
from equalbits.runtime.build import NetworkBuilder
from equalbits.runtime.container import FormatError
from equalbits.runtime.engine import MAX_THREADS, NativeEngine, PackedModel, load_packed, run_numpy
from equalbits.runtime.format import read_network, write_network
from equalbits.runtime.network import Network, Operation
from equalbits.runtime.pictures import FORMATS, NoRangeError, centre, in_bytes, scaled_square

__all__ = [
    "FORMATS",
    "MAX_THREADS",
    "FormatError",
    "NativeEngine",
    "Network",
    "NetworkBuilder",
    "NoRangeError",
    "Operation",
    "PackedAudit",
    "PackedLayerAudit",
    "PackedLayerSummary",
    "PackedModel",
    "PackedSummary",
    "centre",
    "in_bytes",
    "load_packed",
    "read_network",
    "run_numpy",
    "scaled_square",
    "write_network",
]
