"""Execution settings that sweep, compare, tune and reproduce share: data, device, stacking, cluster, progress."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equalbits.recipes.build import pick_device
from equalbits.training import Reporter, rank_from_env


def no_reporters(name: str) -> Sequence[Reporter]:
    """Return no reporters for any run."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of where and how runs are trained; none changes a result.

    - ``root``: directory of the data sets
    - ``device``: "auto", "cpu", "cuda" or "cuda:1"
    - ``stack``: number of nets trained at once on one device; None leaves it to the command
    - ``ray``: address of a Ray cluster to spread the runs over; empty for none
    - ``log``: is called with each line of progress
    - ``reporters_for``: returns the reporters of a run, by its name
    """

    root: Path | None = None
    device: str = "auto"
    stack: int | None = None
    ray: str = ""
    log: Callable[[str], None] = lambda line: None
    reporters_for: Callable[[str], Sequence[Reporter]] = no_reporters

    @property
    def on_gpu(self) -> bool:
        """True if runs are trained on a GPU of this machine."""
        return not self.ray and pick_device(self.device).startswith("cuda")


def check_one_process(command: str) -> None:
    """Raise where torchrun started several processes."""
    if rank_from_env().world_size > 1:
        raise ValueError(f"{command} runs in one process: start it without torchrun")
