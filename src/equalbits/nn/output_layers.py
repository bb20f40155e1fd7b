"""Layers that some methods place after a binary layer: learned scales, gates and activations for its output."""

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.nn.input_quantizers.rsign import per_channel
from equalbits.nn.quantizer import check_choice

#: Shape of the factors of each form of :class:`LearnedScale`, by axis.
_FACTORS = {"channel": ("c11",), "dense": ("chw",), "channel-map": ("c11", "1hw"), "rank-1": ("c11", "1h1", "11w")}


class LearnedScale(nn.Module):
    """XNOR-Net++'s learned output scale (Bulat and Tzimiropoulos 2019); all factors start at 1.

    ``form`` is one of the paper's four cases:

    * ``"channel"``: a factor for each channel;
    * ``"dense"``: one for each channel and position;
    * ``"channel-map"``: channel × position map;
    * ``"rank-1"``: channel × row × column, the paper's best, and the scale of Real-to-Binary's strong baseline.

    All but the first need outputs of one fixed ``size``, (height, width).

    >>> LearnedScale(8, (5, 5))(torch.ones(2, 8, 5, 5)).shape
    torch.Size([2, 8, 5, 5])
    """

    def __init__(self, channels: int, size: tuple[int, int] | None = None, *, form: str | None = None) -> None:
        super().__init__()
        form = form or ("channel" if size is None else "rank-1")
        check_choice("form", form, _FACTORS)
        if (size is None) != (form == "channel"):
            raise ValueError(f"form={form!r} with size={size}: all forms but 'channel' need size=(height, width)")
        self.channels, self.size, self.form = channels, size, form
        lengths = {"1": 1, "c": channels, "h": size[0] if size else 1, "w": size[1] if size else 1}
        shapes = [tuple(lengths[axis] for axis in axes) for axes in _FACTORS[form]]
        self.factors = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes])

    def reset_parameters(self) -> None:
        """Set all factors to 1."""
        for factor in self.factors:
            nn.init.ones_(factor)

    def forward(self, outputs: Tensor) -> Tensor:
        """Return the outputs times the product of all factors."""
        if self.form == "channel":
            return outputs * per_channel(self.factors[0], outputs)
        if tuple(outputs.shape[-2:]) != self.size:
            raise ValueError(f"outputs have size {tuple(outputs.shape[-2:])}, the scale was built for {self.size}")
        for factor in self.factors:
            outputs = outputs * factor
        return outputs

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return f"{self.channels}, {self.size}, form={self.form!r}"


class GatedScale(nn.Module):
    """Real-to-Binary's data-driven scale (Martinez et al. 2020): ``y · σ(W2 relu(W1 mean(x)))``.

    ``x`` is the layer's real input, before its sign, averaged over positions. The gate has one value per output
    channel. It has no biases and Kaiming-normal weights, as in the published re-implementation.

    >>> GatedScale(16, 32)(torch.ones(2, 32, 4, 4), torch.zeros(2, 16, 4, 4)).unique().tolist()
    [0.5]
    """

    def __init__(self, in_channels: int, out_channels: int, *, reduction: int = 8) -> None:
        super().__init__()
        if not reduction >= 1:
            raise ValueError(f"reduction={reduction}: the divisor of the channels must be at least 1; 8 is usual")
        hidden = max(1, in_channels // reduction)
        self.reduce = nn.Linear(in_channels, hidden, bias=False)
        self.expand = nn.Linear(hidden, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weights as Kaiming normal."""
        for layer in (self.reduce, self.expand):
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs of a layer, scaled by the gate of its real inputs."""
        pooled = inputs.flatten(2).mean(dim=2) if inputs.dim() > 2 else inputs
        gate: Tensor = self.expand(self.reduce(pooled).relu()).sigmoid()
        return outputs * gate.view(*gate.shape, *(1,) * (outputs.dim() - 2))


class RPReLU(nn.Module):
    """ReActNet's activation (Liu et al. 2020): a PReLU shifted along both axes, ``PReLU(x + b1) + b2``, per channel.

    The shifts start at 0 and the slopes at 0.25. The paper subtracts ``b1``; the published code adds it.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before, self.after, self.slope = (nn.Parameter(torch.empty(channels)) for _ in range(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the shifts to 0 and the slopes to 0.25."""
        nn.init.zeros_(self.before)
        nn.init.zeros_(self.after)
        nn.init.constant_(self.slope, 0.25)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the shifted PReLU elementwise; the channel is the second axis. Outputs have the dtype of the inputs."""
        outputs = nnf.prelu(inputs + per_channel(self.before, inputs), self.slope) + per_channel(self.after, inputs)
        return outputs if outputs.dtype == inputs.dtype else outputs.to(inputs.dtype)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return f"{len(self.slope)}"


class Maxout(nn.Module):
    """AdaBin's activation (Tu et al. 2022): ``p · relu(x) − n · relu(−x)``, both slopes learned per channel.

    ``p`` starts at 1, ``n`` at 0.25.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.positive, self.negative = (nn.Parameter(torch.empty(channels)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the slopes to 1 and 0.25."""
        nn.init.ones_(self.positive)
        nn.init.constant_(self.negative, 0.25)

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply each input by the slope of its sign; the channel is the second axis."""
        above, below = per_channel(self.positive, inputs), per_channel(self.negative, inputs)
        return above * inputs.relu() - below * (-inputs).relu()

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return f"{len(self.positive)}"
