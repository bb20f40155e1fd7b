"""Facts that decide the bits of a run besides its settings: data, quantizers, teacher, torch and machine.

Every checkpoint stores them. A run that resumes with others is refused, or warned where only bit-exactness is lost.
"""

import logging
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from equalbits._text import bounded, escape_control_chars
from equalbits._toml import flatten
from equalbits.training.checkpoint_file import CheckpointError, Metadata, checksum

#: Facts that may differ in a resumed run: its results are then right, but not bit-identical.
_INEXACT = ("torch", "machine", "data.times", "test.times")


@dataclass(frozen=True)
class Resume:
    """Terms of a resume.

    ``notes`` are stored in every checkpoint. With ``allow_changes`` a change is logged and stored instead of refused;
    ``changes`` are those that the caller has found.
    """

    notes: Mapping[str, object] = field(default_factory=dict)
    allow_changes: bool = False
    changes: Sequence[str] = ()


def run_facts(model: nn.Module, batches: object, test: object, teacher: nn.Module | None) -> Metadata:
    """Return what a checkpoint stores of the objects that a run is made of."""
    names = ("weight_quantizer", "input_quantizer")
    used = (getattr(module, name, None) for module in model.modules() for name in names)
    weights = {name: tensor.detach().cpu() for name, tensor in teacher.state_dict().items()} if teacher else None
    return {
        "torch": torch.__version__,
        "machine": device_name(next((str(each.device) for each in model.parameters()), "cpu")),
        "data": _fingerprint(batches),
        "test": _fingerprint(test),
        "quantizers": Counter(" ".join(repr(each).split()) for each in used if isinstance(each, nn.Module)),
        "teacher": f"{checksum(weights, ''):08x}" if weights else "",
    }


def check_facts(saved: Metadata, now: Metadata, path: Path, *, allow: bool) -> list[str]:
    """Raise for the first fact that differs, or return and log all with ``allow``; facts of older versions are fewer.

    Other versions of torch, machines and file times are only logged: results stay right, but not bit-identical.
    """
    changes: list[tuple[str, object, object]] = []
    for name in sorted(saved.keys() & now.keys()):
        before, after = ({"": fact} if isinstance(fact, str) else flatten(fact) for fact in (saved[name], now[name]))
        for part in sorted(before.keys() | after.keys()):
            whole, old, new = f"{name}.{part}".rstrip("."), before.get(part, "none"), after.get(part, "none")
            if old == new or not (before and after):
                continue
            if whole in _INEXACT:
                logging.getLogger("equalbits").warning(
                    "%s was made with %s=%s, this run has %s: results may differ in the last bits from an "
                    "uninterrupted run", path, whole, old, new
                )  # fmt: skip
                continue
            changes.append((whole, old, new))
    return refuse_changes("{} was made with {}, this run has {}", path, changes, allow=allow)


def refuse_changes(text: str, path: Path, changes: Iterable[tuple[str, object, object]], *, allow: bool) -> list[str]:
    """Raise for the first change, of (name, old value, new value); with ``allow`` log and return all."""
    allowed = []
    for name, old, new in changes:
        old, new = (bounded(escape_control_chars(str(value)), 200) for value in (old, new))
        found = text.format(path, f"{name}={old}", f"{name}={new}")
        if not allow:
            noun = {"data": "data", "test": "data", "teacher": "teacher"}.get(name.partition(".")[0], "settings")
            noun = "settings" if text.startswith("{} holds") else noun
            raise CheckpointError(
                f"{found}: use the same {noun} to resume, or another --out to start over"
                "; equalbits train resumes with --allow-changes"
            )
        logging.getLogger("equalbits").warning("%s: resuming with that change", found)
        allowed.append(f"{name}={old} → {new}")
    return allowed


def _fingerprint(loader: object) -> dict[str, str]:
    """Return the digests of a loader that has them, as those of :mod:`equalbits.data`."""
    digests = getattr(loader, "fingerprint", None)
    return dict(digests()) if callable(digests) else {}


def device_name(device: str) -> str:
    """Return the name of a GPU, or of the processor where the system gives it, else its architecture."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
