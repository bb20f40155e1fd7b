"""Generate tokens from a packed decoder, one by one."""

from collections.abc import Iterator, Sequence

import numpy as np

from equalbits.runtime.engine import PackedModel


def generate(
    model: PackedModel, prompt: Sequence[int], count: int, *, temperature: float = 0.0, seed: int = 0
) -> Iterator[int]:
    """Yield ``count`` tokens that continue ``prompt``: the most likely each time, or drawn at a ``temperature``.

    The decoder must be causal and return logits of shape (length, vocabulary). It was packed for one length: a shorter
    text is padded behind, where a causal decoder does not look, and of a longer one it reads the last tokens. Every
    token costs a pass over the whole length.
    """
    ports, shape = model.network.inputs, model.network.shapes[-1]
    if len(ports) != 1 or len(ports[0].shape) != 1 or len(shape) != 2 or shape[0] != ports[0].shape[0]:
        raise ValueError(f"the model takes {ports} and returns {shape}: generate needs tokens, and logits for each")
    if not len(prompt) or temperature < 0:
        raise ValueError(f"prompt={prompt!r} at temperature={temperature}: give a token, and a temperature from 0")
    length, random = shape[0], np.random.default_rng(seed)
    tokens = list(prompt)
    for _ in range(count):
        window = tokens[-length:]
        padded = np.zeros(length, np.int64)
        padded[: len(window)] = window
        logits = model(padded)[len(window) - 1].astype(np.float64)
        if temperature:
            shares = np.exp((logits - logits.max()) / temperature)
            tokens.append(int(random.choice(len(logits), p=shares / shares.sum())))
        else:
            tokens.append(int(logits.argmax()))
        yield tokens[-1]
