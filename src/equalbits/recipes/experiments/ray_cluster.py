"""A sweep's batches spread over a Ray cluster.

A batch goes out as JSON; its progress and, at last, its files come back through Ray, so no disk need be shared. Nothing
of ours is pickled but the name of one function: each node has the same equalbits installed, and the data set where
``root`` says. A batch whose node or worker dies begins anew elsewhere, a few times; what has come back is never run
again.
"""

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import equalbits
from equalbits._extras import install_hint
from equalbits._files import write_atomically
from equalbits.data import DataError
from equalbits.recipes.experiments.engine import Batch
from equalbits.recipes.experiments.ray_node import train_here
from equalbits.recipes.run_dir import command_line
from equalbits.training import (
    EpochRecord,
    InterruptedTraining,
    NonFiniteError,
    Reporter,
    Score,
    StepRecord,
    stop_requests,
)

#: How often a batch is given out before it is given up.
TRIES = 3
_KINDS: Mapping[str, type[ValueError]] = {
    "NonFiniteError": NonFiniteError,
    "DivergedError": NonFiniteError,
    "DataError": DataError,
}


class RunsFailed(ValueError):  # noqa: N818 (it says what is the case)
    """Some batches failed while the others went on to their end; ``failures`` holds each with its error."""

    def __init__(self, failures: Sequence[tuple[Batch, Exception]]) -> None:
        others = f" (and {len(failures) - 1} more failed)" if len(failures) > 1 else ""
        super().__init__(f"{failures[0][1]}{others}")
        self.failures = tuple(failures)


class InterruptedSweep(InterruptedTraining):
    """The sweep was told to stop."""

    def __init__(self, signal_number: int, out: Path) -> None:
        super().__init__(signal_number, out)
        stopped = str(self).partition(";")[0]
        self.args = (f"{stopped}; runs that ended are in {out}, those under way on the cluster begin anew",)


@dataclass
class _Attempt:
    """A batch that was given out, how often it was, and who listens since it spoke first."""

    batch: Batch
    number: int = 1
    reporters: Sequence[Reporter] = ()
    has_spoken: bool = False


@dataclass
class _Cluster:
    """What is under way, and what became of the rest."""

    ray: Any
    send: Callable[[Batch], Any]
    out: Path
    log: Callable[[str], None]
    reporters_for: Callable[[str], Sequence[Reporter]]
    streams: dict[Any, _Attempt] = field(default_factory=dict)
    failures: list[tuple[Batch, Exception]] = field(default_factory=list)

    def start(self, attempt: _Attempt) -> None:
        self.streams[self.send(attempt.batch)] = attempt

    def hear(self, stream: Any) -> None:
        """Take the next thing that a batch has to say."""
        attempt = self.streams[stream]
        try:
            said = self.ray.get(next(stream))
        except StopIteration:  # it has said all; the last thing was its files or its failure
            self._forget(stream)
        except self.ray.exceptions.RayTaskError as error:  # our function did not even start
            self._forget(stream)
            why = str(error).strip().splitlines()[-1]
            self._failed(attempt, ValueError(f"{attempt.batch.name}: a node could not begin ({why})"))
        except self.ray.exceptions.RayError as error:
            self._forget(stream)
            self._lost(attempt, type(error).__name__)
        else:
            self._answer(attempt, said)

    def _forget(self, stream: Any) -> None:
        for reporter in self.streams.pop(stream).reporters:
            if hasattr(reporter, "close"):
                reporter.close()

    def _answer(self, attempt: _Attempt, said: dict[str, Any]) -> None:
        if "record" in said:
            if not attempt.has_spoken:
                attempt.reporters, attempt.has_spoken = self.reporters_for(attempt.batch.name), True
            for reporter in attempt.reporters:
                reporter(_record(said))
            return
        _keep(self.out, said["files"], node=said["node"])
        if "failed" in said:
            self._failed(attempt, _failure(attempt.batch, said, self.out))
        else:
            self.log(f"{attempt.batch.name} done in {said['seconds']:.1f} s on {said['node']}")

    def _lost(self, attempt: _Attempt, reason: str) -> None:
        name, number = attempt.batch.name, attempt.number + 1
        if number > TRIES:
            why = f"lost {TRIES} times, at last by {reason}: look at the nodes' memory and logs"
            self._failed(attempt, ValueError(f"{name}: {why}; the same command does what is missing"))
            return
        self.log(f"{name} was lost with its node or worker ({reason}): it begins anew, try {number} of {TRIES}")
        self.start(_Attempt(attempt.batch, number))

    def _failed(self, attempt: _Attempt, error: Exception) -> None:
        self.failures.append((attempt.batch, error))
        self.log(f"{attempt.batch.name} failed{'; the others go on' if self.streams else ''}")


def train_on_ray(
    batches: Sequence[Batch],
    out: Path,
    address: str,
    *,
    root: Path | None,
    device: str,
    log: Callable[[str], None],
    reporters_for: Callable[[str], Sequence[Reporter]],
) -> None:
    """Train every batch on the cluster at ``address`` ('auto', 'local' or 'host:port') into ``out``.

    One that fails does not stop the others; :class:`RunsFailed` is raised when all have ended.
    """
    ray = import_ray()
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)
    try:
        cluster = _Cluster(ray, _sender(ray, root, device, log), out, log, reporters_for)
        _see_through(cluster, batches)
    finally:
        if mine:
            ray.shutdown()
    for _, error in cluster.failures:
        if isinstance(error, RuntimeError):  # a mistake of ours: its whole story
            raise error
    if cluster.failures:
        raise RunsFailed(cluster.failures)


def _see_through(cluster: _Cluster, batches: Sequence[Batch]) -> None:
    with stop_requests(listen=True) as request:
        for batch in batches:
            cluster.start(_Attempt(batch))
        while cluster.streams:
            ready, _ = cluster.ray.wait(list(cluster.streams), num_returns=1, timeout=0.5)
            for stream in ready:
                cluster.hear(stream)
            if request.signal_number is not None:
                for stream in cluster.streams:
                    cluster.ray.cancel(stream)
                raise InterruptedSweep(request.signal_number, cluster.out)


def _sender(ray: Any, root: Path | None, device: str, log: Callable[[str], None]) -> Callable[[Batch], Any]:
    """Gives a batch to the cluster: one GPU each where there are some, else one core."""
    has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
    wants_gpu = device.startswith("cuda") or (device == "auto" and has_gpu)
    if wants_gpu and not has_gpu:
        log("no node of the cluster has a GPU now: waiting for one; --device cpu does without")
    there = ray.remote(
        num_returns="streaming", max_retries=0, num_cpus=1, num_gpus=int(wants_gpu), scheduling_strategy="SPREAD"
    )(train_here)
    shared = {"version": equalbits.__version__, "root": str(root) if root else None, "device": device}
    return lambda batch: there.remote(json.dumps({**batch.as_dict(), **shared}))


def import_ray() -> Any:
    """The package, or one line on how to get it."""
    if find_spec("ray") is None:
        raise ValueError(f"--ray needs the package ray: {install_hint('ray')}")
    import ray
    import ray.exceptions

    return ray


def _connect(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise ValueError(f"--ray {address}: run this on a node of the cluster, with --ray auto or host:port")
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():  # Ray itself takes minutes to notice that nobody is there
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise _nobody(address, error) from None
    more = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **more)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _nobody(address, error) from None


def _nobody(address: str, error: Exception) -> ValueError:
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0].partition(". ")[0]
    return ValueError(
        f"no Ray cluster answers at {address!r} ({reason}): start one with ray start --head, or use --ray local"
    )


def _record(said: Mapping[str, Any]) -> StepRecord | EpochRecord:
    facts = said["facts"]
    if said["record"] == "epoch":
        return EpochRecord.from_dict(facts)
    return StepRecord(**{**facts, "train": Score(**facts["train"])})


def _failure(batch: Batch, said: Mapping[str, Any], out: Path) -> Exception:
    if not said["refused"]:
        return RuntimeError(f"{batch.name} on {said['node']}:\n{said['story']}")
    return _KINDS.get(said["failed"], ValueError)(
        f"{batch.name} on {said['node']}: {said['why']}".replace("<out>", str(out))
    )


def _keep(out: Path, files: Mapping[str, bytes], *, node: str) -> None:
    """Write what a batch made, each run.json last: it says that the run is done."""
    for name in sorted(files, key=lambda name: (name.endswith("run.json"), name)):
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts:
            raise ValueError(f"node {node} sent a file for {name}, outside of the sweep's folder: it was not written")
        path, content = out / inside, files[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if inside.name == "run.json":
            facts = {**json.loads(content), "command": command_line(), "node": node}
            content = (json.dumps(facts, indent=1) + "\n").encode()
        write_atomically(path, content)
