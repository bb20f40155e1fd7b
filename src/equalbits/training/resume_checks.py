"""Settings and facts that decide the bits of a run; the facts are data, quantizers, teacher, torch and machine.

Every checkpoint stores them. A run that resumes with others is refused, or warned where only bit-exactness is lost.
"""

import dataclasses
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
from equalbits.training.config import TrainConfig

#: Settings that do not change the result, and may differ in a resumed run.
FREE_SETTINGS = frozenset({"checkpoint_seconds", "evaluate_every", "memory", "speed"})
#: Facts that may differ in a resumed run: its results are then right, but not bit-identical.
_INEXACT = ("torch", "machine", "data.times", "test.times")
#: Of facts that are not settings: what to use again.
_NOUNS = {"data": "data", "test": "data", "teacher": "teacher"}


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


def check_settings(saved: Metadata, now: Metadata, path: Path, *, allow: bool) -> list[str]:
    """Raise if a setting differs, or return and log all that do; one that the checkpoint lacks had its default."""
    defaults = flatten(dataclasses.asdict(TrainConfig(epochs=1)))
    before, after = ({**defaults, **flatten(run["config"]), "batches": run["batches"]} for run in (saved, now))
    names = (name for name in after if name not in FREE_SETTINGS and before[name] != after[name])
    return refuse_changes(path, [(name, before[name], after[name]) for name in names], allow=allow)


def check_facts(saved: Metadata, now: Metadata, path: Path, *, allow: bool) -> list[str]:
    """Raise for the first fact that differs, or return and log all with ``allow``; facts of older versions are fewer.

    Other versions of torch, machines and file times are only logged: results stay right, but not bit-identical.
    """
    changes: list[str] = []
    for fact in sorted(saved.keys() & now.keys()):
        before, after = flatten({fact: saved[fact]}), flatten({fact: now[fact]})
        if not (before and after):  # a loader without a fingerprint
            continue
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name, "none"), after.get(name, "none")
            if old != new and name in _INEXACT:
                logging.getLogger("equalbits").warning(
                    "%s was made with %s=%s, this run has %s: results may differ in the last bits from an "
                    "uninterrupted run", path, name, old, new
                )  # fmt: skip
            elif old != new:
                same = _NOUNS.get(fact, "settings")
                changes += refuse_changes(path, [(name, old, new)], allow=allow, same=same)
    return changes


def refuse_changes(
    path: Path,
    changes: Iterable[tuple[str, object, object]],
    *,
    allow: bool,
    same: str = "settings",
    found: str = "{} was made with {}, this run has {}",
) -> list[str]:
    """Raise for the first change, of (name, old value, new value); with ``allow`` log and return all.

    The error advises to use the ``same`` settings, data or teacher.
    """
    allowed = []
    for name, old, new in changes:
        old, new = (bounded(escape_control_chars(str(value)), 200) for value in (old, new))
        message = found.format(path, f"{name}={old}", f"{name}={new}")
        if not allow:
            raise CheckpointError(
                f"{message}: use the same {same} to resume, or another --out to start over"
                "; equalbits train resumes with --allow-changes"
            )
        logging.getLogger("equalbits").warning("%s: resuming with that change", message)
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
