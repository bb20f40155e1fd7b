"""The same ResNet-18 with real weights, for the engines that a packed one is measured against: torch, ONNX, int8."""

from pathlib import Path
from typing import Any

import numpy as np

BLOCKS = (
    (64, 64, 1),
    (64, 64, 1),
    (64, 128, 2),
    (128, 128, 1),
    (128, 256, 2),
    (256, 256, 1),
    (256, 512, 2),
    (512, 512, 1),
)


def torch_resnet18() -> Any:
    """Torch's own way to write it, with batch norms, in eval mode."""
    from torch import Tensor, nn

    def conv(inputs: int, filters: int, kernel: int, stride: int) -> nn.Sequential:
        layer = nn.Conv2d(inputs, filters, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(filters))

    class Block(nn.Module):
        """Two convolutions and the shortcut around them."""

        def __init__(self, inputs: int, filters: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = conv(inputs, filters, 3, stride), conv(filters, filters, 3, 1)
            self.shortcut = conv(inputs, filters, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            """The block's value."""
            return nn.functional.relu(self.second(nn.functional.relu(self.first(x))) + self.shortcut(x))

    stem = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*stem, *(Block(*shape) for shape in BLOCKS), *head).eval()


class OnnxMaker:
    """Writes the network as ONNX with the batch norms folded in, as an optimizer would leave it."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def add(self, kind: str, *inputs: str, **settings: Any) -> str:
        """An operation; returns the name of its value."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [f"value{len(self.nodes)}"], **settings))
        return f"value{len(self.nodes) - 1}"

    def weight(self, *shape: int) -> str:
        """Random weights of a sensible size; returns their name."""
        from onnx import numpy_helper

        array = self.random.standard_normal(shape) * np.sqrt(2 / max(1, np.prod(shape[1:])))
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), f"weight{len(self.weights)}"))
        return f"weight{len(self.weights) - 1}"

    def conv(self, x: str, inputs: int, filters: int, kernel: int, stride: int) -> str:
        """A convolution with a bias."""
        window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.add("Conv", x, self.weight(filters, inputs, kernel, kernel), self.weight(filters), **window)

    def save(self, path: Path) -> None:
        """Write the whole network."""
        import onnx
        from onnx import TensorProto, helper

        x = self.add("Relu", self.conv("image", 3, 64, 7, 2))
        x = self.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        for inputs, filters, stride in BLOCKS:
            y = self.add("Relu", self.conv(x, inputs, filters, 3, stride))
            y = self.conv(y, filters, filters, 3, 1)
            x = self.add("Relu", self.add("Add", y, self.conv(x, inputs, filters, 1, stride) if stride > 1 else x))
        x = self.add("Flatten", self.add("GlobalAveragePool", x))
        x = self.add("Gemm", x, self.weight(1000, 512), self.weight(1000), transB=1)
        ends = [("image", [1, 3, 224, 224]), (x, [1, 1000])]
        image, logits = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
        graph = helper.make_graph(self.nodes, "resnet18", [image], [logits], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        onnx.save(model, str(path))


def quantize(path: Path, to: Path) -> None:
    """The ONNX network in int8, per channel, calibrated on a few random images."""
    from onnxruntime import quantization

    class Images(quantization.CalibrationDataReader):
        """Four images."""

        def __init__(self) -> None:
            random = np.random.default_rng(1)
            self.images = iter([random.standard_normal((1, 3, 224, 224)).astype(np.float32) for _ in range(4)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            """The next image by the name of the input."""
            image = next(self.images, None)
            return None if image is None else {"image": image}

    quantization.quantize_static(
        str(path),
        str(to),
        Images(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
