"""Data movement packs to the same numbers, to the last bit, or is refused in one line."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.deploy import PackError, pack
from equalbits.nn import BinaryConv2d, SignActivation


class Written(nn.Module):
    """A model whose forward is the function given."""

    def __init__(self, forward):
        super().__init__()
        self.written = forward

    def forward(self, images):
        return self.written(images)


def overwritten(x):
    """Add to a part of a copy and overwrite another, in place."""
    x = x.clone()
    x[:, 1:, :, 2:] += x[:, :1, :, :6]
    x[:, :, 3:] = x[:, :, :1]
    return x


def filled(x):
    """Overwrite parts of a copy and of a view of it by numbers."""
    x = x.clone()
    x[:, 1:2] = 0.5
    x.view(x.shape[0], -1)[:, 3:20] = -2
    return x


MOVES = {
    "overwrite parts": overwritten,
    "overwrite parts by numbers": filled,
    "swapaxes": lambda x: x.swapaxes(2, 3),
    "swapdims": lambda x: torch.swapdims(x, 1, -1),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(1, -1),
    "movedim of the batch": lambda x: x.movedim(1, 0)[1:].movedim(0, 1),
    "moveaxis of two": lambda x: torch.moveaxis(x, (1, 2), (3, 1)),
    "reshape behind the batch": lambda x: x.movedim(1, 0).flatten(2).movedim(0, 1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "narrow from the end": lambda x: x.narrow(-1, -3, 2),
    "unbind": lambda x: x.unbind(1)[2] - x.unbind(1)[-1],
    "unbind the last axis": lambda x: x.unbind(-1)[0],
    "stack": lambda x: torch.stack([x, -x, x + 1], 1),
    "stack behind": lambda x: torch.stack([x[:, 0], x[:, 1]], -1),
    "concatenate an empty slice": lambda x: torch.cat([x[:, :0], x[:, 1:], x[:, 4:]], 1),
    "concatenate, hstack": lambda x: torch.hstack([torch.concatenate([x, -x], -1), torch.concat([x, x], 3)]),
    "column_stack": lambda x: torch.column_stack([x, -x, x[:, :1]]),
    "stack features": lambda x: torch.stack([x.flatten(1), -x.flatten(1)], 2),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "expand_as": lambda x: x[:, :, :1].expand_as(x),
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "tile": lambda x: x.tile(2, 1),
    "pixel_shuffle": lambda x: nnf.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: nnf.pixel_unshuffle(x, 2),
    "pixel_shuffle of several images": lambda x: nnf.pixel_shuffle(x.unsqueeze(1), 2).flatten(1),
    "both pixel shuffles": lambda x: nnf.pixel_unshuffle(nnf.pixel_shuffle(x, 2), 4),
    "reshape_as": lambda x: x.flatten(1).reshape_as(x.mT),
    "view_as": lambda x: x.relu().flatten(1).view_as(x.reshape(len(x), 8, 4, 4)),
    "as many repeats as there may be": lambda x: x[:, :2].repeat(1, 65, 1, 1),
    "a list of features longer than that": lambda x: torch.cat([x * 2**i for i in range(-33, 33)], 2),
    "expand along a long axis": lambda x: x[:, :, :1].expand(-1, -1, 200, -1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 2).repeat_interleave(2, -1).repeat_interleave(2, 1),
    "flip": lambda x: x.flip(2, 3) + x.flip(-3),
    "roll": lambda x: x.roll((1, -3), (2, 3)) - x.roll(-2, 1),
    "roll tokens": lambda x: x.flatten(2).roll(5, -1),
    "index_select": lambda x: x.index_select(3, torch.tensor([7, 0, 0, 2, 4, 6, 5])),
    "index": lambda x: x[:, [3, 1, -4, 2]][:, :, torch.tensor([3, 0, 0])],
    "pad by reflect": lambda x: nnf.pad(x, (3, 1, 0, 2), "reflect"),
    "pad by replicate": lambda x: nnf.pad(x, (2, 0, 1, 3), "replicate"),
    "pad by circular": lambda x: nnf.pad(x, (3, 2, 1, 4), "circular"),
    "crop and pad by circular": lambda x: nnf.pad(x, (-1, 2, 0, 1), "circular"),
    "crop and pad by reflect": lambda x: nnf.pad(x, (-1, 2, 0, -1), "reflect"),
    "pad a row by reflect": lambda x: nnf.pad(x.flatten(2), (2, 5), "reflect"),
    "pad by less than nothing": lambda x: nnf.pad(x, (-1, 2, 0, -2), value=0.5) - nnf.pad(x, (1, 0, -1, -1)),
    "pad the batch by nothing": lambda x: nnf.pad(x, (1, 1, 0, 0, 1, 0, 0, 0)),
    "clip": lambda x: torch.clip(x, -0.5, 1),
    "hardtanh without an end": lambda x: nnf.hardtanh(x, 0.0, float("inf")) + x.clamp(-float("inf"), 0.5),
    "negative, absolute": lambda x: torch.negative(torch.absolute(x)),
    "multiply, subtract": lambda x: torch.subtract(torch.multiply(x, 2.0), 1),
    "divide": lambda x: torch.divide(torch.true_divide(x, 2), 4.0),
    "not": lambda x: (~(x > 0)).float() + torch.logical_not(x < 0.25).float(),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_pack_to_the_last_bit(name):
    torch.manual_seed(0)
    images = torch.randn(3, 4, 4, 8)
    images[0, 0, 0, :2] = torch.tensor([0.0, 0.25])
    packed = pack(Written(MOVES[name]), images)
    assert packed.network.operations
    for batch in (images, images[:1]):
        np.testing.assert_array_equal(packed(batch.numpy()), MOVES[name](batch).numpy())


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (
            lambda x: x.movedim(1, 0).flatten(0, 1).unflatten(0, (4, -1)).movedim(0, 1),
            "reshapes to .* while the batch is axis 1: keep the batch in front",
        ),
        (lambda x: torch.stack([x, x]).flatten(0, 1)[:3], "layer 'flatten' .* gets values stacked before the batch"),
        (lambda x: torch.stack([x, -x]).mean(0, keepdim=True)[0], "layer 'mean' .* gets values stacked before"),
        (lambda x: torch.stack([x, -x, x]).amax(1), "layer 'amax' .* gets values stacked before the batch"),
        (lambda x: x.unbind()[0].expand(3, -1, -1, -1), "layer 'unbind' slices the batch"),
        (lambda x: x.expand(3, -1, -1, -1, -1).flatten(1), r"layer 'expand' repeats .* add those with unsqueeze"),
        (lambda x: x.flip(0), "layer 'flip' reorders the batch"),
        (lambda x: x.roll(1), "layer 'roll' works along the batch"),
        (lambda x: nnf.pad(x, (0, 0, 0, 0, 0, 0, 1, 1))[1:-1], r"layer 'pad' pads the batch"),
        (lambda x: x[:, torch.tensor([True, False] * 2)] + 0, "layer 'index' .* not a constant list of integers"),
        (lambda x: x[:, [0, 1], [1, 2]], "layer 'index' gathers along several axes at once"),
        (lambda x: torch.sgn(x), r"does aten\.sgn.*: torch\.sgn gives 0 at 0; use equalbits\.SignActivation"),
        (lambda x: nnf.hardtanh(x * 1e39), r"^tensor 'mul\.gain_shift' holds a number that is not finite"),
        (lambda x: torch.logical_not(x).float(), "layer 'logical_not' .* compare them with a constant instead"),
    ],
)
def test_unsupported_permutations_are_refused_in_one_line(forward, words):
    with pytest.raises(PackError, match=words):
        pack(Written(forward), torch.randn(3, 4, 4, 8))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_a_binary_convolution_pads_its_signs_in_every_mode_and_still_reads_signs(mode):
    torch.manual_seed(0)
    images = torch.randn(3, 4, 6, 8)
    layer = BinaryConv2d(4, 5, 3, stride=2, padding=(2, 1), padding_mode=mode, input_quantizer=SignActivation())
    packed = pack(layer, images)
    kinds = [operation.kind for operation in packed.network.operations]
    assert kinds.count("sign") == 1 and kinds.index("sign") == kinds.index("conv") - 1
    answer = layer(images).detach().numpy()
    np.testing.assert_allclose(packed(images.numpy()), answer, atol=1e-6 * np.abs(answer).max())
