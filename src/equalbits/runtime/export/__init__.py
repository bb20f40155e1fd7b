"""Export a packed network to other runtimes: ONNX and OpenVINO."""

from equalbits.runtime.export.onnx import export_onnx
from equalbits.runtime.export.openvino import build_openvino, export_openvino

__all__ = ["build_openvino", "export_onnx", "export_openvino"]
