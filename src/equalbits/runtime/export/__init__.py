"""Export a packed network to other runtimes: C, ONNX and OpenVINO."""

from equalbits.runtime.export.c import CSizes as CSizes
from equalbits.runtime.export.c import export_c as export_c
from equalbits.runtime.export.onnx import export_onnx as export_onnx
from equalbits.runtime.export.openvino import build_openvino as build_openvino
from equalbits.runtime.export.openvino import export_openvino as export_openvino
from equalbits.runtime.export.web import web_page as web_page
