"""Checkpoints: one safetensors file with the facts as JSON in its header, written whole or not at all.

Loading never runs code: a checkpoint holds tensors and JSON, nothing pickled.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from equalbits._files import write_atomically

LAST, BEST = "last.safetensors", "best.safetensors"
#: A net alone, with nothing to go on from: what is left of one that was trained side by side with others.
WEIGHTS = "weights.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and what to do about it."""


def save_checkpoint(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts so that whoever reads ``path`` finds the old file or the new one, never a part.

    The bytes are on the disk before the name points to them: neither a kill nor a power cut leaves a torn file.
    """
    write_atomically(path, checkpoint_bytes(tensors, facts))


def checkpoint_bytes(tensors: dict[str, Tensor], facts: dict[str, Any]) -> bytes:
    """The content of a checkpoint."""
    # Copies, since safetensors refuses tensors that share memory, as tied layers do.
    held = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    words = json.dumps(facts)
    return save(held, metadata={"equalbits": words, "crc32": str(_checksum(held, words))})


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a checkpoint, on the CPU; a file that is not whole and unchanged is refused."""
    try:
        content = path.read_bytes()  # in one go: a path opened twice may be two files, when a run is saving meanwhile
        length = int.from_bytes(content[:8], "little")
        noted = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        tensors = load(content)
        facts = json.loads(noted["equalbits"])
        if not isinstance(facts, dict):
            raise ValueError("its facts are no table")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not there: name the folder of a run, or train one first") from None
    except KeyError:
        raise CheckpointError(f"{path} is a safetensors file, but no checkpoint of ours: name another") from None
    except OSError as error:  # the file itself may be whole
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): change that, or name another") from None
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint that can be read ({error}): delete it to train again, or name another"
        ) from None
    if noted.get("crc32", "") not in ("", str(_checksum(tensors, noted["equalbits"]))):
        raise CheckpointError(f"{path} is damaged (its checksum does not fit): delete it to train again")
    return tensors, facts


def _checksum(tensors: dict[str, Tensor], words: str) -> int:
    found = zlib.crc32(words.encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, found)
    return found


def load_weights(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Put weights into a model, or say in one line that they are another's."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if len(reason) > 200:
            reason = reason[:200] + " …"
        raise CheckpointError(
            f"{path} holds the weights of another model ({reason}): use the model it was made with, or another folder"
        ) from None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and plain facts."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{number}.{name}"] = value
            else:
                facts[f"{number}.{name}"] = value
    return tensors, facts


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Put back what :func:`optimizer_tensors` gave; groups and settings stay the optimizer's own."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **facts}.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            value = _laid_out_like(parameter, value)
        elif isinstance(value, Tensor) and value.dim():
            raise ValueError(f"{key} has {tuple(value.shape)} values, its parameter {tuple(parameter.shape)}")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """The value in its parameter's memory layout: a fused optimizer refuses any other."""
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
