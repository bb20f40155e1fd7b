"""The same ResNet-18 with real weights, for the engines that the packed one is compared with: torch, ONNX, int8.

All have the same weights, so that their outputs can be compared. The weights are random but have few distinct values,
so that a model file compresses to a few megabytes and can be copied to a machine without the packages to make it.
"""

from collections.abc import Iterator
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


def layers() -> Iterator[tuple[int, int, int, int]]:
    """Yield inputs, filters, kernel and stride of every layer with weights, then the classifier."""
    yield 3, 64, 7, 2
    for inputs, filters, stride in BLOCKS:
        yield inputs, filters, 3, stride
        yield filters, filters, 3, 1
        if stride > 1:
            yield inputs, filters, 1, stride
    yield 512, 1000, 0, 0


def weights() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield weight and bias of every layer, in steps of a third of the std that preserves the variance."""
    random = np.random.default_rng(0)
    for inputs, filters, kernel, _ in layers():
        shape = (filters, inputs, kernel, kernel) if kernel else (filters, inputs)
        step = np.sqrt(1 / np.prod(shape[1:])) / 3
        steps = np.clip(np.rint(random.standard_normal(shape, np.float32) * 3), -7, 7)
        yield (steps * step).astype(np.float32), (random.integers(-4, 5, filters) / 64).astype(np.float32)


def torch_resnet18() -> Any:
    """Return the network as a torch module with batch norms, in eval mode."""
    import torch
    from torch import Tensor, nn

    def conv(inputs: int, filters: int, kernel: int, stride: int) -> nn.Sequential:
        layer = nn.Conv2d(inputs, filters, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(filters, eps=1e-30))

    class Block(nn.Module):
        """Two convolutions with a shortcut around them."""

        def __init__(self, inputs: int, filters: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = conv(inputs, filters, 3, stride), conv(filters, filters, 3, 1)
            self.shortcut = conv(inputs, filters, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            """Return the output of the block."""
            return nn.functional.relu(self.second(nn.functional.relu(self.first(x))) + self.shortcut(x))

    stem = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    model = nn.Sequential(*stem, *(Block(*shape) for shape in BLOCKS), *head).eval()
    with torch.no_grad():
        weighted = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
        biased = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d | nn.Linear)]
        for layer, shift, (weight, bias) in zip(weighted, biased, weights(), strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            shift.bias.copy_(torch.from_numpy(bias))
    return model


class OnnxMaker:
    """Write the network as ONNX with folded batch norms. Needs ``onnx``."""

    def __init__(self) -> None:
        self.layers = zip(layers(), weights(), strict=True)
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def add(self, kind: str, *inputs: str, **settings: Any) -> str:
        """Add an operation; return the name of its output."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [f"value{len(self.nodes)}"], **settings))
        return f"value{len(self.nodes) - 1}"

    def tensor(self, array: np.ndarray) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        self.tensors.append(numpy_helper.from_array(array, f"tensor{len(self.tensors)}"))
        return f"tensor{len(self.tensors) - 1}"

    def conv(self, x: str) -> str:
        """Add the next layer, a convolution with a bias."""
        (_, _, kernel, stride), (weight, bias) = next(self.layers)
        window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.add("Conv", x, self.tensor(weight), self.tensor(bias), **window)

    def save(self, path: Path) -> None:
        """Write the network to a file."""
        import onnx
        from onnx import TensorProto, helper

        x = self.add("Relu", self.conv("image"))
        x = self.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        for _, _, stride in BLOCKS:
            y = self.conv(self.add("Relu", self.conv(x)))
            x = self.add("Relu", self.add("Add", y, self.conv(x) if stride > 1 else x))
        x = self.add("Flatten", self.add("GlobalAveragePool", x))
        _, (weight, bias) = next(self.layers)
        x = self.add("Gemm", x, self.tensor(weight), self.tensor(bias), transB=1)
        ends = [("image", [1, 3, 224, 224]), (x, [1, 1000])]
        image, logits = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
        graph = helper.make_graph(self.nodes, "resnet18", [image], [logits], self.tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        onnx.save(model, str(path))


def images(count: int = 16) -> Iterator[np.ndarray]:
    """Return calibration images: smooth, with the standard deviation of normalized images."""
    random = np.random.default_rng(1)
    for _ in range(count):
        coarse = random.standard_normal((1, 3, 28, 28)).repeat(8, axis=2).repeat(8, axis=3)
        yield (coarse + 0.2 * random.standard_normal((1, 3, 224, 224))).astype(np.float32)


def quantize_onnx(path: Path, to: Path) -> None:
    """Quantize the ONNX network to int8 with ONNX Runtime: static, per channel, calibrated. Needs ``onnx``."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        """Calibration images by input name."""

        def __init__(self) -> None:
            self.images = images()

        def get_next(self) -> dict[str, np.ndarray] | None:
            """Return the next image."""
            image = next(self.images, None)
            return None if image is None else {"image": image}

    quantization.quantize_static(
        str(path),
        str(to),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )


def quantize_openvino(path: Path, to: Path) -> None:
    """Quantize the ONNX network to int8 with NNCF, calibrated. Needs ``openvino`` and ``nncf``."""
    import nncf
    import openvino

    data = nncf.Dataset(list(images()), lambda image: {"image": image})
    model = nncf.quantize(openvino.Core().read_model(str(path)), data, subset_size=16)
    openvino.save_model(model, str(to), compress_to_fp16=False)
