"""Pack any torch module into a file of bits: trace, pack, verify."""

from equalbits.deploy.compare import other_class as other_class
from equalbits.deploy.graph import PackError as PackError
from equalbits.deploy.pack import Preprocessing as Preprocessing
from equalbits.deploy.pack import pack as pack
from equalbits.runtime import export_onnx as export_onnx
from equalbits.runtime import export_openvino as export_openvino
