"""Export a packed network to other runtimes: C, ONNX and OpenVINO."""

from equalbits.runtime.export.c import CSizes, export_c
from equalbits.runtime.export.onnx import export_onnx
from equalbits.runtime.export.openvino import build_openvino, export_openvino
from equalbits.runtime.export.web import web_page

__all__ = ["CSizes", "build_openvino", "export_c", "export_onnx", "export_openvino", "web_page"]
