"""Generate tokens from a packed decoder, one by one."""

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from equalbits.runtime.decoder import Decoder
from equalbits.runtime.engine import PackedModel
from equalbits.runtime.op_specs import Floats


def generate(
    model: PackedModel, prompt: Sequence[int], count: int, *, temperature: float = 0.0, seed: int = 0
) -> Iterator[int]:
    """Yield ``count`` tokens that continue ``prompt``: the most likely each time, or drawn at a ``temperature``.

    The decoder must be causal and return logits of shape (length, vocabulary). It was packed for one length: a shorter
    text is padded behind, where a causal decoder does not look, and of a longer one it reads the last tokens. In the
    native engine a token costs one pass over that token, as long as the text fits: keys and values are kept. Otherwise,
    and where tokens meet outside causal attention, it costs a pass over the whole length, or, of a model of several
    lengths, over the next power of two.
    """
    ports, shape = model.network.inputs, model.network.shapes[-1]
    if len(ports) != 1 or len(ports[0].shape) != 1 or len(shape) != 2 or shape[0] != ports[0].shape[0]:
        raise ValueError(f"the model takes {ports} and returns {shape}: generate needs tokens, and logits for each")
    if not len(prompt) or temperature < 0:
        raise ValueError(f"prompt={prompt!r} at temperature={temperature}: give a token, and a temperature from 0")
    length, random = shape[0], np.random.default_rng(seed)
    tokens, decoder = list(prompt), _decoder(model)
    for _ in range(count):
        if decoder is not None and len(tokens) <= length:
            logits = decoder.extend(tokens[decoder.read :]).astype(np.float64)
        else:
            logits = _run_window(model, tokens[-length:], length).astype(np.float64)
        if temperature:
            shares = np.exp((logits - logits.max()) / temperature)
            tokens.append(int(random.choice(len(logits), p=shares / shares.sum())))
        else:
            tokens.append(int(logits.argmax()))
        yield tokens[-1]


def _decoder(model: PackedModel) -> Decoder | None:
    """Return a decoder with a cache, or none where the model cannot have one."""
    try:
        return Decoder(model)
    except ValueError as error:
        logging.getLogger("equalbits").debug("%s", error)
        return None


def _run_window(model: PackedModel, tokens: Sequence[int], length: int) -> Floats:
    """Return the logits of the last token by a pass over the whole length, or, if allowed, the next power of two."""
    if (lengths := model.network.lengths) is not None:
        length = min(length, max(lengths.least, 1 << (len(tokens) - 1).bit_length()))
    padded = np.zeros(length, np.int64)
    padded[: len(tokens)] = tokens
    logits: Floats = model(padded)[len(tokens) - 1]
    return logits
