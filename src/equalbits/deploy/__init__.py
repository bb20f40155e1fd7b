"""Pack any torch module into a file of bits: trace, pack, verify.

* ``pack``: the steps in order. ``torch_export``: a copy of the model as a program of ATen operations, with its binary
  weights fixed; ``ports`` and ``lengths`` for inputs other than one image.
* ``translate``: the program as a ``graph`` of packed operations. Each ATen operation has a rule in ``ops``, which adds
  steps to a ``tracer`` and works on ``traced_values``; ``batch_axis`` applies rules where the batch is not in front.
* ``pack_weights``, ``fold_batch_norm`` and ``activations``: planes of bits, dtypes, and rounded inputs.
* ``verify``: the packed network against the model, and the native engine against numpy, by ``compare``.
"""

from equalbits.deploy.compare import other_class as other_class
from equalbits.deploy.graph import PackError as PackError
from equalbits.deploy.pack import Preprocessing as Preprocessing
from equalbits.deploy.pack import pack as pack
from equalbits.runtime import export_onnx as export_onnx
from equalbits.runtime import export_openvino as export_openvino
