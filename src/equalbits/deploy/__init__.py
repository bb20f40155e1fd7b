"""Pack any torch module into a file of bits: trace, pack, verify."""

from equalbits.deploy.graph import PackError
from equalbits.deploy.pack import Preprocessing, pack
from equalbits.deploy.verify import other_class
from equalbits.runtime import export_onnx, export_openvino

__all__ = ["PackError", "Preprocessing", "export_onnx", "export_openvino", "other_class", "pack"]
