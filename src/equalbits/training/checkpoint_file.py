"""Checkpoint files: safetensors with JSON metadata in the header, written atomically.

Loading never runs code: a checkpoint holds tensors and JSON, nothing pickled.
"""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from equalbits._files import write_atomically
from equalbits._text import one_line

LAST, BEST = "last.safetensors", "best.safetensors"
#: Weights without training state, as a net of a stack leaves them.
WEIGHTS = "weights.safetensors"
#: A JSON object in the header of a checkpoint.
Metadata = dict[str, Any]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the way out."""


def save_checkpoint(path: Path, tensors: dict[str, Tensor], metadata: Metadata) -> None:
    """Write tensors and metadata atomically: a reader of ``path`` finds the old file or the new one, never a part.

    The bytes are synced to disk before the rename, so neither a kill nor a power cut leaves a partial file.
    """
    write_atomically(path, checkpoint_bytes(tensors, metadata))


def checkpoint_bytes(tensors: dict[str, Tensor], metadata: Metadata) -> bytes:
    """Return the content of a checkpoint file."""
    # Copies, since safetensors rejects tensors that share memory, as tied layers do.
    tensors_on_cpu = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    text = json.dumps(metadata)
    return save(tensors_on_cpu, metadata={"equalbits": text, "crc32": str(checksum(tensors_on_cpu, text))})


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], Metadata]:
    """Return the tensors, on the CPU, and the metadata of a checkpoint; raise if the file is incomplete or damaged."""
    with _readable(path):
        content = path.read_bytes()  # at once: a run that saves meanwhile replaces the file
        length = int.from_bytes(content[:8], "little")
        header, metadata = _parse_header(content[8 : 8 + length])
        tensors = load(content)
    if header.get("crc32", "") not in ("", str(checksum(tensors, header["equalbits"]))):
        raise CheckpointError(f"{path} is damaged (checksum mismatch): delete it to train again")
    return tensors, metadata


def read_metadata(path: Path) -> Metadata:
    """Return the metadata of a checkpoint alone, without reading its tensors or checking them."""
    with _readable(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return _parse_header(file.read(min(length, path.stat().st_size)))[1]


def _parse_header(text: bytes) -> tuple[Metadata, Metadata]:
    """Return the texts of a header, and our metadata among them."""
    header = json.loads(text).get("__metadata__", {})
    metadata = json.loads(header["equalbits"])
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is not an object")
    return header, metadata


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise CheckpointError, in one line, for a file that cannot be read as a checkpoint."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist: name the directory of a run, or train one first") from None
    except KeyError:
        raise CheckpointError(f"{path} is a safetensors file, but not an equalbits checkpoint: name another") from None
    except OSError as error:  # the file itself may be intact
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): fix that, or name another") from None
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = one_line(error)
        raise CheckpointError(f"{path} is not a readable checkpoint ({reason}): delete it, or name another") from None


def checksum(tensors: dict[str, Tensor], text: str) -> int:
    """Return the CRC-32 of a text and of tensors on the CPU: it detects accidents, not intent."""
    found = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, found)
    return found


def load_weights(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load weights into a model; raise in one line if they are those of another."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} holds the weights of another model ({one_line(error)}): use that model"
        ) from None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], Metadata]:
    """Return an optimizer's state as named tensors and named scalars."""
    tensors: dict[str, Tensor] = {}
    metadata: Metadata = {}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{number}.{name}"] = value
            else:
                metadata[f"{number}.{name}"] = value
    return tensors, metadata


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], metadata: Metadata) -> None:
    """Load what :func:`optimizer_tensors` returned; groups and settings stay those of the optimizer."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, Metadata] = {}
    for key, value in {**tensors, **metadata}.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        if isinstance(value, Tensor) and value.shape == parameter.shape:  # in its layout, as a fused optimizer needs
            value = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
        elif isinstance(value, Tensor) and value.dim():
            raise ValueError(f"{key} has shape {tuple(value.shape)}, its parameter {tuple(parameter.shape)}")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
