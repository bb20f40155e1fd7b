"""ImageNet ResNet-18 with binary weights and activations, packed without torch, with random weights.

It has the operations that ``equalbits pack`` writes for the paper's network ``imagenet_resnet18``, in the same order:
real stem, downsampling and classifier, a shortcut around every binary convolution, and the average pooling of a
downsampling before its 1×1 convolution, which gives the same numbers at a quarter of the work.
"""

import numpy as np

from equalbits.runtime import Network, NetworkBuilder

STAGES = ((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2))


def resnet18(
    *, size: int = 224, classes: int = 1000, stored: str = "float32", seed: int = 0, input_bits: int = 1
) -> Network:
    """Return the network; ``stored`` is the dtype of the real weights: float32, float16 or int8.

    With ``input_bits`` of 32, 8 or 4 it is torchvision's ResNet-18 with binary 3×3 weights, whose inputs are outputs of
    ReLU, not signs; 8 and 4 round them. As ``equalbits pack --rest int8 --activations int8`` does, int8 weights read
    rounded inputs: the image and the downsampled shortcuts too.
    """
    make = Maker(NetworkBuilder((3, size, size)), np.random.default_rng(seed), stored, input_bits)
    if input_bits > 1:
        return make.relu_resnet18(classes)
    x = make.conv(make.image(), 3, 64, kernel=7, stride=2, padding=3, name="conv1")
    x = make.batch_norm(make.prelu(x, 64, name="prelu"), 64, name="bn1")
    x = make.build.add("max_pool", x, kernel=3, stride=2, padding=1)
    channels = 64
    for stage, (width, blocks, stride) in enumerate(STAGES, start=1):
        for block in range(blocks):
            x = make.block(x, channels, width, stride if block == 0 else 1, name=f"layer{stage}.{block}")
            channels = width
    x = make.build.add("flatten", make.build.add("adaptive_avg_pool", x))
    make.linear(x, channels, classes, name="fc")
    return make.build.finish(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class Maker:
    """Add layers with random weights of a realistic scale."""

    def __init__(self, build: NetworkBuilder, random: np.random.Generator, stored: str, input_bits: int = 1) -> None:
        self.build, self.random, self.stored, self.input_bits = build, random, stored, input_bits

    def weight(self, *shape: int) -> dict[str, np.ndarray]:
        """Return real weights in the stored dtype, with a scale for int8."""
        real = self.random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        if self.stored != "int8":
            return {"weight": real.astype(self.stored)}
        scale = np.abs(real).reshape(len(real), -1).max(axis=1) / 127
        whole = np.rint(real / scale.reshape(-1, *[1] * (real.ndim - 1))).astype(np.int8)
        return {"weight": whole, "scale": scale.astype(np.float16)}

    def vector(self, array: np.ndarray) -> np.ndarray:
        """Return one number per channel in the stored dtype."""
        return array.astype(np.float32 if self.stored == "float32" else np.float16)

    def conv(self, x: int, inputs: int, filters: int, *, kernel: int, name: str, **window: int) -> int:
        """Add a real convolution."""
        weight = self.weight(filters, inputs, kernel, kernel)
        return self.build.add("conv", x, **weight, kernel=kernel, **window, name=name)

    def linear(self, x: int, inputs: int, outputs: int, *, name: str) -> int:
        """Add a real linear layer with a bias."""
        bias = self.vector(0.1 * self.random.standard_normal(outputs))
        return self.build.add("linear", x, **self.weight(outputs, inputs), bias=bias, name=name)

    def binary(self, x: int, inputs: int, filters: int, *, stride: int, name: str) -> int:
        """Add a 3×3 convolution of signs with exactly half of each filter +1; the next batch norm holds its scale."""
        return self.binary_conv(self.build.add("sign", x), inputs, filters, stride=stride, name=name)

    def binary_conv(self, x: int, inputs: int, filters: int, *, stride: int, name: str) -> int:
        """Add the convolution alone."""
        halves = np.repeat([[-1, 1]], filters, axis=0).repeat(inputs * 9 // 2, axis=1)
        symbols = self.random.permuted(halves, axis=1).reshape(filters, inputs, 3, 3)
        return self.build.add_binary("conv", x, symbols, stride=stride, padding=1, p_pos=0.5, name=name)

    def prelu(self, x: int, channels: int, *, name: str) -> int:
        """Add a PReLU with a slope per channel."""
        return self.build.add("prelu", x, slope=self.vector(np.full(channels, 0.25)), name=name)

    def batch_norm(self, x: int, channels: int, *, name: str, spread: float = 1.0) -> int:
        """Add a batch norm for inputs of this standard deviation."""
        gain = (0.5 + self.random.random(channels)) / spread
        shift = 0.2 * self.random.standard_normal(channels)
        return self.build.add("affine", x, gain_shift=self.vector(np.stack([gain, shift])), name=name)

    def block(self, x: int, inputs: int, width: int, stride: int, *, name: str) -> int:
        """Add twice: sign, binary convolution, PReLU (shared), batch norm, and a shortcut around them."""
        shortcut = x
        for number, (channels, step) in enumerate(((inputs, stride), (width, 1)), start=1):
            y = self.binary(x, channels, width, stride=step, name=f"{name}.conv{number}")
            y = self.prelu(y, width, name=f"{name}.prelu")
            y = self.batch_norm(y, width, name=f"{name}.bn{number}", spread=np.sqrt(9 * channels))
            if step > 1:
                shortcut = self.build.add("avg_pool", x, kernel=step, stride=step)
                if self.stored == "int8":
                    shortcut = self.build.add("quantize", shortcut, gain=32.0, min=-96, max=159)
                shortcut = self.conv(shortcut, inputs, width, kernel=1, name=f"{name}.downsample")
            x = shortcut = self.build.add("add", y, shortcut)
        return x

    def rounded(self, x: int, *, most: float, low: int = 0) -> int:
        """Round numbers up to ``most`` to the input bits; return the value as it is where these are 32."""
        if self.input_bits == 32:
            return x
        levels = (1 << self.input_bits) - 1
        return self.build.add("quantize", x, gain=(levels + low) / most, min=low, max=levels + low)

    def image(self) -> int:
        """Return the image; with an int8 stem, rounded to 8 bits."""
        if self.stored != "int8":
            return self.build.image
        return self.build.add("quantize", self.build.image, gain=48.0, min=-128, max=127)

    def relu_resnet18(self, classes: int) -> Network:
        """Add all layers of the network with real inputs; return it."""
        x = self.conv(self.image(), 3, 64, kernel=7, stride=2, padding=3, name="conv1")
        x = self.build.add("relu", self.batch_norm(x, 64, name="bn1"))
        x = self.build.add("max_pool", x, kernel=3, stride=2, padding=1)
        channels = 64
        for stage, (width, blocks, stride) in enumerate(STAGES, start=1):
            for block in range(blocks):
                x = self.relu_block(x, channels, width, stride if block == 0 else 1, name=f"layer{stage}.{block}")
                channels = width
        self.linear(self.build.add("flatten", self.build.add("adaptive_avg_pool", x)), channels, classes, name="fc")
        return self.build.finish(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

    def relu_block(self, x: int, inputs: int, width: int, stride: int, *, name: str) -> int:
        """Add two binary convolutions with batch norms, ReLU between them, and behind the sum with the shortcut."""
        y, whole = x, self.rounded(x, most=6.0)
        y = self.binary_conv(whole, inputs, width, stride=stride, name=f"{name}.conv1")
        y = self.batch_norm(y, width, name=f"{name}.bn1", spread=self.spread(inputs, 6.0))
        y = self.rounded(self.build.add("relu", y), most=4.0)
        y = self.binary_conv(y, width, width, stride=1, name=f"{name}.conv2")
        y = self.batch_norm(y, width, name=f"{name}.bn2", spread=self.spread(width, 4.0))
        if inputs != width:
            x = whole if self.stored == "int8" else x
            x = self.conv(x, inputs, width, kernel=1, stride=stride, name=f"{name}.downsample.0")
            x = self.batch_norm(x, width, name=f"{name}.downsample.1")
        return self.build.add("relu", self.build.add("add", y, x))

    def spread(self, inputs: int, most: float) -> float:
        """Return the standard deviation of the sums of a binary convolution, in steps of its rounded input."""
        steps = 1.0 if self.input_bits == 32 else ((1 << self.input_bits) - 1) / most
        return float(np.sqrt(9 * inputs) * steps)
