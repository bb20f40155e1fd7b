"""The plan of a network as one block of bytes, which ``native/wasm/module.c`` reads."""

import json
from importlib.resources import files
from math import prod

import numpy as np

from equalbits.runtime.lower import lower
from equalbits.runtime.network import Network

_ALIGNMENT = 16
#: Most bytes of a plan's tensors: in base64 they must fit into one string, which browsers limit to 512 MiB.
_MOST_BYTES = 1 << 28
_TOO_LARGE = f"the network takes more than {_MOST_BYTES >> 20} MiB in the engine, which is too large for a web page"


def plan_block(network: Network) -> bytes:
    """Return the validated plan: a head, the tables of values and steps, the sizes of the tensors, and the tensors."""
    facts = json.loads(files(__package__).joinpath("engine.json").read_text())
    try:
        plan, answer = lower(network, facts["fields"], facts["kinds"], _MOST_BYTES)
    except OverflowError:
        raise ValueError(_TOO_LARGE) from None
    values, steps, tensors = plan.tables()
    if sum(tensor.nbytes for tensor in tensors) > _MOST_BYTES:
        raise ValueError(_TOO_LARGE)
    table = np.empty(0, np.float32) if network.mean is None else network.byte_table()
    sizes = [len(tensor) for tensor in tensors]
    counts = (len(values), len(steps), len(tensors), answer)
    head = (*counts, prod(network.input_shape), prod(network.shapes[-1]), table.nbytes)
    numbers = np.concatenate([head, values.ravel(), steps.ravel(), sizes]).astype("<i8")
    parts = [numbers.tobytes(), *(tensor.tobytes() for tensor in tensors), table.astype("<f4").tobytes()]
    return b"".join(part.ljust(-(-len(part) // _ALIGNMENT) * _ALIGNMENT, b"\0") for part in parts)
