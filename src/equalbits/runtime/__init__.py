"""Torch-free inference: the packed file, the meaning of a bit, and the engines that run it. Numpy is all it needs."""

from equalbits.runtime.build import NetworkBuilder
from equalbits.runtime.container import FormatError
from equalbits.runtime.engine import PackedModel, load_packed
from equalbits.runtime.format import read_network, write_network
from equalbits.runtime.network import Network, Operation
from equalbits.runtime.report import Audit, LayerAudit, LayerSummary, Summary

__all__ = [
    "Audit",
    "FormatError",
    "LayerAudit",
    "LayerSummary",
    "Network",
    "NetworkBuilder",
    "Operation",
    "PackedModel",
    "Summary",
    "load_packed",
    "read_network",
    "write_network",
]
