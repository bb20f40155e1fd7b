"""``summarize``: what each layer of a model is, weighs and costs, binary and real side by side."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equalbits._text import format_table
from equalbits.analysis.observe import device_and_dtype, observing, output_shape
from equalbits.analysis.sizes import Seen, Size, layers_with_weights, size_of, taken_in, takes_in
from equalbits.nn import BinaryLayer

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass
class LayerSummary:
    """One layer: what it holds, and what it did. MACs (multiply-accumulates) are for one example of the batch."""

    name: str
    kind: str
    size: Size
    output: tuple[int, ...] | None = None
    calls: int = 0
    binary_macs: int = 0
    mixed_macs: int = 0
    real_macs: int = 0

    def as_dict(self) -> dict[str, Any]:
        """All of it on one level, for JSON."""
        own = asdict(self)
        return {**own, **own.pop("size"), "output": None if self.output is None else list(self.output)}


@dataclass(frozen=True)
class Summary:
    """What :func:`summarize` found. ``print`` it for a table."""

    layers: tuple[LayerSummary, ...]
    example: tuple[int, ...]

    @property
    def total(self) -> dict[str, int]:
        """The sums over all layers."""
        rows = [layer.as_dict() for layer in self.layers]
        return {column: sum(row[column] for row in rows) for column in (*_COLUMNS, "float32_bytes")}

    @property
    def compression(self) -> float:
        """How many times smaller the packed model is than the real one in float32."""
        return self.total["float32_bytes"] / max(1, self.total["packed_bytes"])

    def as_dict(self) -> dict[str, Any]:
        """Every layer and the totals, for JSON."""
        layers = [layer.as_dict() for layer in self.layers]
        return {"example": list(self.example), "compression": self.compression, "total": self.total, "layers": layers}

    def __str__(self) -> str:
        total = self.total
        last = ("total", "", "", *(_figure(total[column]) for column in _COLUMNS), "", "")
        table = format_table(_HEADER, [*map(_row, self.layers), last], left=(0, 1, 2))
        packed, real = f"packed {total['packed_bytes']:,} bytes", f"float32 {total['float32_bytes']:,} bytes"
        batch = self.example[0] if self.example else 1
        per = f"\noutputs are of the batch of {batch}, MACs of one example" if batch > 1 else ""
        return f"{table}\n{packed}, {real}: {self.compression:.1f} times smaller{per}"


_COLUMNS = ("symbols", "real", "packed_bytes", "binary_macs", "mixed_macs", "real_macs")
_HEADER = (
    *("layer", "kind", "output", "symbols", "real", "bytes packed"),
    *("MACs 1×1", "MACs 1×32", "MACs 32×32", "bits", "entropy"),
)


def summarize(model: nn.Module, example: Tensor | tuple[int, ...]) -> Summary:
    """Run one example through ``model`` and say of each layer what it is, holds and costs.

    ``example`` is a batch of inputs, or its shape (then random numbers are drawn, without touching your random state);
    the first axis is the batch. A row stands for every module with weights of its own:

    * symbols and real: how many 1-bit weights, and how many real numbers (parameters, saved floating buffers).
    * bytes packed: ⌈D/8⌉ for the ``D`` symbols of a filter, twice that where some are 0 or −1 and +1 weigh differently,
      once for each base of ABC-Net; 4 for each real number, the scales included; a gain and a shift for each channel
      of a batch norm, or a bias alone where it stands right behind a real convolution or linear layer; gains and shifts
      for what an input quantizer adds to its sign. A packed file holds exactly these numbers, behind a table that names
      them: for every method and input quantizer here that packs, in layers that are called once and share no weights.
      For modules of other kinds, they are what the modules hold.
    * MACs 1×1: binary weights on inputs of two values; 1×32: binary weights on real inputs; 32×32: real weights. A
      weight counts once, however many bits it takes. Convolutions and linear layers count, products between activations
      (attention) do not.
    * entropy: the mean over filters, in bits.

    A layer that the example did not reach is marked "never called": its weights may be read by code that passes it by.
    The model is left as found: mode, gradients, hooks.

    >>> from equalbits.nn import BiHalf, BinaryLinear, SignActivation
    >>> hidden = BinaryLinear(20, 6, weight_quantizer=BiHalf(), input_quantizer=SignActivation())
    >>> summary = summarize(nn.Sequential(nn.Linear(12, 20), hidden), (1, 12))
    >>> print(summary)
    layer  kind          output   symbols  real  bytes packed  MACs 1×1  MACs 1×32  MACs 32×32  bits  entropy
    0      Linear        (1, 20)        –   260         1,040         –          –         240     –        –
    1      BinaryLinear  (1, 6)       120     7            46       120          –           –     1   1.0000
    total                             120   267         1,086       120          –         240
    packed 1,086 bytes, float32 1,544 bytes: 1.4 times smaller
    """
    inputs = _as_inputs(example, model)
    seen: Seen = {}
    layers = dict(layers_with_weights(model))
    rows: dict[str, LayerSummary] = {}
    last: tuple[str, Any] = "", None
    behind: dict[str, str] = {}

    def onlooker(name: str, layer: nn.Module, given: Tensor | None, output: Any) -> None:
        nonlocal last
        if given is not None and given is last[1] and takes_in(layers[last[0]], layer):
            behind[name] = last[0]
        last = name, output
        row, macs = rows[name], _macs(layer, given, output) // len(inputs)
        row.output, row.calls = output_shape(output), row.calls + 1
        if not isinstance(layer, BinaryLayer):
            row.real_macs += macs
        elif given is not None and _is_one_bit(layer, given):
            row.binary_macs += macs
        else:
            row.mixed_macs += macs

    with observing(model, layers, onlooker):
        # Sizes as packed, which is in eval: in training some weights are drawn, and no bits of their own.
        rows |= {n: LayerSummary(n, type(layer).__name__, size_of(layer, seen)) for n, layer in layers.items()}
        model(inputs)
    for name, before in behind.items():
        if rows[name].calls == rows[before].calls == 1:
            rows[name].size = taken_in(rows[name].size, layers[before])
    return Summary(tuple(rows.values()), tuple(inputs.shape))


def _as_inputs(example: Tensor | tuple[int, ...], model: nn.Module) -> Tensor:
    device, dtype = device_and_dtype(model)
    if isinstance(example, Tensor):
        inputs = example.to(device)
    elif isinstance(example, tuple | list) and example and all(isinstance(size, int) for size in example):
        inputs = torch.randn(example, generator=torch.Generator().manual_seed(0), device="cpu").to(device, dtype)
    else:
        raise ValueError(f"example is {example!r}: give a batch of inputs, or its shape as in (1, 3, 32, 32)")
    if inputs.dim() == 0 or len(inputs) == 0:
        raise ValueError(f"example has shape {tuple(inputs.shape)}: the first axis is the batch, of one input at least")
    return inputs


def _macs(layer: nn.Module, given: Tensor | None, output: Any) -> int:
    """The multiply-accumulates of one call: each weight is used once at every position."""
    if isinstance(layer, nn.Linear) and given is not None:
        return given.numel() // layer.in_features * layer.weight.numel()
    if isinstance(layer, _TRANSPOSED) and given is not None:
        return given.numel() // layer.in_channels * layer.weight.numel()
    if isinstance(layer, _CONVOLUTIONS) and isinstance(output, Tensor):
        return output.numel() // layer.out_channels * layer.weight.numel()
    return 0


def _is_one_bit(layer: BinaryLayer, given: Tensor) -> bool:
    """Whether one bit can say each input, as behind a sign.

    Without a quantizer that says so each value must come twice: one real number among zeros is a dying layer's.
    """
    quantizer = layer.input_quantizer
    bits = None if quantizer is None or isinstance(quantizer, nn.Identity) else getattr(quantizer, "bits", 1)
    if bits not in (None, 1):
        return False
    inputs = layer.quantize_input(given)
    low, high = inputs.aminmax()
    lows, highs = inputs == low, inputs == high
    if not (lows | highs).all():
        return False
    signs = low == -high and low != 0
    return bool(bits == 1 or signs or (low != high and lows.sum() > 1 and highs.sum() > 1))


def _row(layer: LayerSummary) -> tuple[str, ...]:
    values, size = layer.as_dict(), layer.size
    output = "never called" if not layer.calls else "–" if layer.output is None else str(layer.output)
    figures = (_figure(values[column]) for column in _COLUMNS)
    entropy = "–" if size.entropy is None else f"{size.entropy:.4f}"
    return (
        layer.name or "(model)",
        layer.kind,
        output,
        *figures,
        "–" if size.bits is None else str(size.bits),
        entropy,
    )


def _figure(count: int) -> str:
    return f"{count:,}" if count else "–"
