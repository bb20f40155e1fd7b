"""Checkpoints: one safetensors file with the facts as JSON in its header, written whole or not at all.

Loading never runs code: a checkpoint holds tensors and JSON, nothing pickled.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

LAST, BEST = "last.safetensors", "best.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and what to do about it."""


def save_checkpoint(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts so that whoever reads ``path`` finds the old file or the new one, never a part.

    The bytes are on the disk before the name points to them: neither a kill nor a power cut leaves a torn file.
    """
    # Copies, since safetensors refuses tensors that share memory, as tied layers do.
    held = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    write_atomically(path, save(held, metadata={"equalbits": json.dumps(facts)}))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a checkpoint, on the CPU."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["equalbits"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not there: name the folder of a run, or train one first") from None
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint that can be read ({error}): train again, or name another"
        ) from None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content in one move."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


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
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **facts}.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def sweep_leftovers(folder: Path) -> None:
    """Remove the half-written files that a kill left beside the checkpoints."""
    for path in [*folder.glob(f".{LAST}.*"), *folder.glob(f".{BEST}.*")]:
        path.unlink(missing_ok=True)
