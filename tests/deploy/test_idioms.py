"""What people write in a forward packs to the model's answers, or is refused in words: never a wrong answer."""

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.deploy import PackError, pack
from equalbits.nn import BinaryConv2d, SignActivation


class Written(nn.Module):
    """A model whose forward is the function given."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.written = forward
        self.edges = nn.Parameter(torch.linspace(-1, 1, 4).reshape(4, 1, 1))
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, images):
        return self.written(self, images)


def packs(model, images):
    """The packed model; its answers are the model's, whatever number of images there are."""
    packed = pack(model, images)
    for batch in (images, images[:1], images.repeat(3, 1, 1, 1)):
        with torch.no_grad():
            answer = model.eval()(batch).numpy()
        np.testing.assert_allclose(packed(batch.numpy()), answer, atol=1e-5 * np.abs(answer).max())
    return packed


REFUSED = [
    (lambda _, x: x.flatten(1) / len(x), "answers an image by itself otherwise than among 3"),
    (lambda _, x: x.flatten(1) if len(x) > 1 else x.flatten(1) + 1, "answers an image by itself otherwise"),
]


@pytest.mark.parametrize(("forward", "words"), REFUSED)
def test_what_a_packed_network_cannot_do_is_refused_in_words(forward, words):
    with pytest.raises(PackError, match=words):
        pack(Written(forward), torch.randn(3, 4, 5, 6))


def test_a_model_whose_sums_rounding_decides_is_not_taken_for_one_that_counts_images():
    class Rounded(nn.Module):
        """The same operations by itself and among others, and other numbers: a rounding that hangs on the batch."""

        def forward(self, images):
            values = images.flatten(1) * 1.0
            if not torch.compiler.is_exporting() and len(images) == 1:
                values = values + 1
            return values

    pack(Rounded(), torch.randn(3, 4, 5, 6))


def test_a_model_that_cannot_answer_one_image_packs():
    conv = BinaryConv2d(4, 3, 3, input_quantizer=SignActivation())
    model = Written(lambda model, x: model.head(model.conv(x).mean((2, 3)).squeeze()), conv=conv, head=nn.Linear(3, 2))
    images = torch.randn(3, 4, 5, 6)
    assert pack(model, images)(images[0].numpy()).shape == (2,)
