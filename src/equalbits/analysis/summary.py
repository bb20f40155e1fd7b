"""Table of a model's layers: kind, output shape, number of weights, packed bytes and multiply-accumulates."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from equalbits._text import format_table, html_table, one_line, size_ratio, used_columns
from equalbits.analysis.layer_hooks import device_and_dtype, first_tensor, observe_calls
from equalbits.analysis.packed_sizes import LayerSummary, Seen, folds_batch_norm, layer_size, layers_with_weights
from equalbits.nn import BinaryLayer, check_module, watch_calls

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Summary:
    """Result of :func:`summarize`; ``print`` it for a table."""

    layers: tuple[LayerSummary, ...]
    example: tuple[int, ...]

    @property
    def total(self) -> dict[str, int]:
        """Sum of each column over all layers."""
        columns = (*_COLUMNS, "float32_bytes")
        return {column: sum(getattr(layer, column) for layer in self.layers) for column in columns}

    @property
    def compression(self) -> float:
        """Bytes in float32 divided by bytes packed."""
        return self.total["float32_bytes"] / max(1, self.total["packed_bytes"])

    def as_dict(self) -> dict[str, object]:
        """Return every layer and the totals, for JSON."""
        return {**asdict(self), "compression": self.compression, "total": self.total}

    def __str__(self) -> str:
        return f"{format_table(*self._table(), left=(0, 1, 2))}\n{self._note()}"

    def _repr_html_(self) -> str:
        return html_table(*self._table(), left=(0, 1, 2), note=self._note())

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return header and rows; there is a column for the bits of a weight where some weight has more than one."""
        figures = (_figure(self.total[column]) for column in _COLUMNS)
        batch = self.example[0] if self.example else 1
        rows = [*(_row(layer, batch) for layer in self.layers), ("total", "", "", *figures, "", "")]
        if all(layer.bits in (None, 1) for layer in self.layers):
            rows = [(*row[:-2], "", row[-1]) for row in rows]
        return used_columns(_HEADER, rows)

    def _note(self) -> str:
        total = self.total
        packed, real = f"packed {total['packed_bytes']:,} bytes", f"float32 {total['float32_bytes']:,} bytes"
        ratio = size_ratio(total["packed_bytes"], total["float32_bytes"]).removesuffix(" than").removesuffix(" as")
        return f"{packed}, {real}: {ratio}{self._problems()}"

    def _problems(self) -> str:
        """Return a line on layers that learn nothing, and one on layers that are binary only in part."""
        constant = ", ".join(layer.name for layer in self.layers if layer.constant_input)
        read = ", ".join(layer.name for layer in self.layers if layer.weight_read)
        lines = f"\nconstant binary input, no learning (see adapt_for_binary_inputs_): {constant}" if constant else ""
        return lines + (f"\nbinary, but a function also reads the latents in .weight: {read}" if read else "")


_COLUMNS = ("symbols", "real", "packed_bytes", "binary_macs", "mixed_macs", "real_macs")
_HEADER = (
    *("layer", "kind", "output", "symbols", "real", "bytes"),
    *("MACs 1×1", "MACs 1×32", "MACs 32×32", "bits", "entropy"),
)


def summarize(model: nn.Module, example: Tensor | tuple[int, ...]) -> Summary:
    """Run one example through ``model`` and return the size and the cost of each layer.

    ``example`` is a batch of inputs, or its shape; for a shape, random inputs are drawn without changing the global
    random state. The first axis is the batch axis; a model with 2-D convolutions also takes one image or its shape,
    such as ``(3, 32, 32)``. There is a row for every module with weights of its own, with the shape of its output and
    its MACs for one example:

    * symbols, real: number of 1-bit weights, and of real numbers (parameters and saved floating-point buffers).
    * bytes: those in a packed file. ⌈D/8⌉ for the ``D`` symbols of a filter; twice that if some are 0 or if −1
      and +1 differ in magnitude; once per base of ABC-Net. 4 for each real number, scales included. A batch norm takes
      a gain and a shift per channel, or only a bias directly after a real convolution or linear layer. An input
      quantizer takes gains and shifts beyond its sign. A packed file holds exactly these bytes and a table of names,
      for every method and input quantizer of this package that packs, in layers called once that share no weights.
      Modules of other kinds count as they are.
    * MACs 1×1: binary weights and binary inputs; 1×32: binary weights and real inputs; 32×32: real weights. A weight
      counts once, however many bits it takes. Convolutions and linear layers are counted; products of two activations
      (attention) are not.
    * bits: of a weight, where some weight has more than one. entropy: mean over filters, in bits.

    A layer that the example does not reach is marked "never called": the model may access its ``.weight`` directly. Two
    more mistakes are named below the table: layers whose binary input is constant, as the sign of a ReLU's output is,
    and binary layers whose latents a function reads. The model is left unchanged: mode, gradients, hooks.

    >>> from equalbits.nn import BiHalf, BinaryLinear, SignActivation
    >>> hidden = BinaryLinear(20, 6, weight_quantizer=BiHalf(), input_quantizer=SignActivation())
    >>> summary = summarize(nn.Sequential(nn.Linear(12, 20), hidden), (1, 12))
    >>> print(summary)
    layer  kind          output  symbols  real  bytes  MACs 1×1  MACs 32×32  entropy
    0      Linear        20            –   260  1,040         –         240        –
    1      BinaryLinear  6           120     7     46       120           –   1.0000
    total                            120   267  1,086       120         240
    packed 1,086 bytes, float32 1,544 bytes: 1.4 times smaller
    """
    inputs = _as_inputs(example, model)
    seen: Seen = {}
    layers = dict(layers_with_weights(model))
    rows: dict[str, LayerSummary] = {}
    previous: tuple[str, object] = "", None  # name and output of the layer called before
    folded_into: dict[str, str] = {}  # batch norm: the layer that it is folded into

    def observer(name: str, layer: nn.Module, given: Tensor | None, output: object) -> None:
        nonlocal previous
        if given is not None and given is previous[1] and folds_batch_norm(layers[previous[0]], layer):
            folded_into[name] = previous[0]
        previous = name, output
        row, macs = rows[name], _macs(layer, given, output) // len(inputs)
        tensor = first_tensor(output)
        row.output, row.calls = None if tensor is None else tuple(tensor.shape), row.calls + 1
        if not isinstance(layer, BinaryLayer):
            row.real_macs += macs
        elif given is not None and _is_one_bit(layer, given):
            row.binary_macs += macs
        else:
            row.mixed_macs += macs

    with observe_calls(model, layers, observer):
        # Measured in eval mode, as packing does: in training mode some methods draw their weights at random.
        rows |= {name: layer_size(name, layer, seen) for name, layer in layers.items()}
        try:
            with watch_calls(model) as observed:
                model(inputs)
        except RuntimeError as error:
            shape = tuple(inputs.shape)
            raise ValueError(
                f"the model cannot run on inputs of shape {shape}: {one_line(error)}; give another example"
            ) from error
    for name, layer in layers.items():
        rows[name].constant_input = layer in observed.constant
        rows[name].weight_read = isinstance(layer, BinaryLayer) and layer in observed.read
    for name, before in folded_into.items():
        if rows[name].calls == rows[before].calls == 1:
            # A bias per channel is left of the norm, unless the layer has one already.
            rows[name].packed_bytes = rows[name].packed_bytes // 2 if layers[before].bias is None else 0
    return Summary(tuple(rows.values()), tuple(inputs.shape))


def _as_inputs(example: Tensor | tuple[int, ...], model: nn.Module) -> Tensor:
    check_module(model)
    device, dtype = device_and_dtype(model)
    if isinstance(example, Tensor):
        inputs = example.to(device)
    elif isinstance(example, tuple | list) and example and all(isinstance(size, int) for size in example):
        inputs = torch.randn(example, generator=torch.Generator().manual_seed(0), device="cpu").to(device, dtype)
    else:
        raise ValueError(f"example={example!r} must be a batch of inputs or its shape, such as (1, 3, 32, 32)")
    if inputs.dim() == 3 and any(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in model.modules()):
        inputs = inputs[None]
    if inputs.dim() == 0 or len(inputs) == 0:
        raise ValueError(f"example has shape {tuple(inputs.shape)}: its batch axis must have at least one input")
    return inputs


def _macs(layer: nn.Module, given: Tensor | None, output: object) -> int:
    """Return the multiply-accumulates of one call: each weight is used once at every position."""
    if isinstance(layer, nn.Linear) and given is not None:
        return given.numel() // layer.in_features * layer.weight.numel()
    if isinstance(layer, _TRANSPOSED) and given is not None:
        return given.numel() // layer.in_channels * layer.weight.numel()
    if isinstance(layer, _CONVOLUTIONS) and isinstance(output, Tensor):
        return output.numel() // layer.out_channels * layer.weight.numel()
    return 0


def _is_one_bit(layer: BinaryLayer, given: Tensor) -> bool:
    """Return True if one bit can represent each input, as after a sign.

    Without a quantizer that guarantees it, each of the two values must occur twice: a single nonzero activation among
    zeros comes from a dying layer, not from a sign.
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


def _row(layer: LayerSummary, batch: int) -> tuple[str, ...]:
    output = "never called" if not layer.calls else "–" if layer.output is None else _shape(layer.output, batch)
    figures = (_figure(getattr(layer, column)) for column in _COLUMNS)
    bits, entropy = str(layer.bits or "–"), "–" if layer.entropy is None else f"{layer.entropy:.4f}"
    return (layer.name or "(model)", layer.kind, output, *figures, bits, entropy)


def _figure(count: int) -> str:
    return f"{count:,}" if count else "–"


def _shape(output: tuple[int, ...], batch: int) -> str:
    """Return the shape of one example's output, or the whole shape where the first axis is not the batch axis."""
    return "×".join(map(str, output[1:])) if output[0:1] == (batch,) and output[1:] else str(output)
