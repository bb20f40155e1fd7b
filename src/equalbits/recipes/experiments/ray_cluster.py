"""Train groups of runs on a Ray cluster.

A group is sent as JSON; its progress and its files come back through Ray, so no disk need be shared. Only the name of
one function is pickled: each node has the same equalbits installed, and the data set in ``root``. A group whose node
or worker dies starts over on another, a few times; records that have come back are never run again.
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
from equalbits.recipes.experiments.execution import Execution
from equalbits.recipes.experiments.ray_node import train_here
from equalbits.recipes.experiments.store import PlannedRun, RunStore, describe
from equalbits.recipes.run_record import command_line
from equalbits.training import EpochRecord, InterruptedTraining, Reporter, Score, StepRecord, stop_requests

#: Attempts before a group is given up.
ATTEMPTS = 3


class RunsFailed(ValueError):  # noqa: N818 (it says what is the case)
    """Some groups of runs failed while the others ended; ``failures`` holds each with its error."""

    def __init__(self, failures: "Sequence[tuple[Sequence[PlannedRun], Exception]]") -> None:
        others = f" (and {len(failures) - 1} more failed)" if len(failures) > 1 else ""
        super().__init__(f"{failures[0][1]}{others}")
        self.failures = tuple(failures)


class InterruptedSweep(InterruptedTraining):
    """A signal interrupted a sweep on a cluster."""

    def __init__(self, signal_number: int, out: Path) -> None:
        super().__init__(signal_number, out)
        stopped = str(self).partition(";")[0]
        self.args = (f"{stopped}; runs that ended are in {out}, unfinished ones on the cluster start over",)


@dataclass
class _Attempt:
    """A group that was sent, the number of the attempt, and its reporters since its first message."""

    runs: Sequence[PlannedRun]
    number: int = 1
    reporters: Sequence[Reporter] | None = None

    @property
    def name(self) -> str:
        return describe(self.runs)


@dataclass
class _Cluster:
    """The attempts under way, and the failures so far."""

    ray: Any
    send: Callable[[Sequence[PlannedRun]], Any]
    store: RunStore
    execution: Execution
    streams: dict[Any, _Attempt] = field(default_factory=dict)
    failures: list[tuple[Sequence[PlannedRun], Exception]] = field(default_factory=list)

    def start(self, attempt: _Attempt) -> None:
        self.streams[self.send(attempt.runs)] = attempt

    def receive(self, stream: Any) -> None:
        """Handle the next message of an attempt."""
        attempt = self.streams[stream]
        try:
            message = self.ray.get(next(stream))
        except StopIteration:  # the last message was its files or its failure
            self._close(stream)
        except self.ray.exceptions.RayTaskError as error:  # our function did not even start
            self._close(stream)
            reason = str(error).strip().splitlines()[-1]
            self._failed(attempt, ValueError(f"{attempt.name}: a node could not start ({reason})"))
        except self.ray.exceptions.RayError as error:
            self._close(stream)
            self._lost(attempt, type(error).__name__)
        else:
            self._handle(attempt, message)

    def _close(self, stream: Any) -> None:
        for reporter in self.streams.pop(stream).reporters or ():
            if hasattr(reporter, "close"):
                reporter.close()

    def _handle(self, attempt: _Attempt, message: dict[str, Any]) -> None:
        if "record" in message:
            if attempt.reporters is None:
                attempt.reporters = self.execution.reporters_for(attempt.name)
            for reporter in attempt.reporters:
                reporter(_record(message))
            return
        _write(self.store.out, message["files"], node=message["node"])
        if "failed" in message:
            self._failed(attempt, _error(attempt.name, message, self.store.out))
        else:
            self.execution.log(f"{attempt.name} done in {message['seconds']:.1f} s on {message['node']}")

    def _lost(self, attempt: _Attempt, reason: str) -> None:
        name, number = attempt.name, attempt.number + 1
        if number > ATTEMPTS:
            problem = f"lost {ATTEMPTS} times, at last by {reason}: check the memory and the logs of the nodes"
            self._failed(attempt, ValueError(f"{name}: {problem}; the same command runs what is missing"))
            return
        lost = f"{name} was lost with its node or worker ({reason})"
        self.execution.log(f"{lost}: it starts over, attempt {number} of {ATTEMPTS}")
        self.start(_Attempt(attempt.runs, number))

    def _failed(self, attempt: _Attempt, error: Exception) -> None:
        self.failures.append((attempt.runs, error))
        self.execution.log(f"{attempt.name} failed{'; the others go on' if self.streams else ''}")


def train_on_ray(groups: Sequence[Sequence[PlannedRun]], store: RunStore, execution: Execution) -> None:
    """Train every group on the cluster at ``execution.ray`` ('auto', 'local' or 'host:port') into a store.

    A group that fails does not stop the others; :class:`RunsFailed` is raised when all have ended.
    """
    ray = import_ray()
    connect = not ray.is_initialized()
    if connect:
        _connect(ray, execution.ray)
    try:
        cluster = _Cluster(ray, _sender(ray, execution), store, execution)
        _train_all(cluster, groups)
    finally:
        if connect:
            ray.shutdown()
    for _, error in cluster.failures:
        if isinstance(error, RuntimeError):  # a bug: raise it with its traceback
            raise error
    if cluster.failures:
        raise RunsFailed(cluster.failures)


def _train_all(cluster: _Cluster, groups: Sequence[Sequence[PlannedRun]]) -> None:
    with stop_requests(listen=True) as request:
        for group in groups:
            cluster.start(_Attempt(group))
        while cluster.streams:
            ready, _ = cluster.ray.wait(list(cluster.streams), num_returns=1, timeout=0.5)
            for stream in ready:
                cluster.receive(stream)
            if request.signal_number is not None:
                for stream in cluster.streams:
                    cluster.ray.cancel(stream)
                raise InterruptedSweep(request.signal_number, cluster.store.out)


def _sender(ray: Any, execution: Execution) -> Callable[[Sequence[PlannedRun]], Any]:
    """Return a function that sends a group to the cluster: one GPU each where there are some, else one core."""
    has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
    wants_gpu = execution.device.startswith("cuda") or (execution.device == "auto" and has_gpu)
    if wants_gpu and not has_gpu:
        execution.log("no node of the cluster has a GPU now: waiting for one; --device cpu does without")
    remote = ray.remote(
        num_returns="streaming", max_retries=0, num_cpus=1, num_gpus=int(wants_gpu), scheduling_strategy="SPREAD"
    )(train_here)
    return lambda runs: remote.remote(job_of(runs, execution))


def job_of(runs: Sequence[PlannedRun], execution: Execution) -> str:
    """Return a group as JSON, as :func:`~.ray_node.train_here` takes it."""
    root = str(execution.root) if execution.root else None
    job = {"runs": [run.as_dict() for run in runs], "version": equalbits.__version__, "root": root}
    return json.dumps({**job, "device": execution.device})


def import_ray() -> Any:
    """Import Ray, or raise with the way to install it."""
    if find_spec("ray") is None:
        raise ValueError(f"--ray needs the package ray: {install_hint('ray')}")
    import ray
    import ray.exceptions

    return ray


def _connect(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise ValueError(f"--ray {address}: run this on a node of the cluster, with --ray auto or host:port")
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():  # Ray itself takes minutes to notice that no cluster is there
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from None
    more = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **more)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception) -> ValueError:
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0].partition(". ")[0]
    return ValueError(
        f"no Ray cluster answers at {address!r} ({reason}): start one with ray start --head, or use --ray local"
    )


def _record(message: Mapping[str, Any]) -> StepRecord | EpochRecord:
    facts = message["facts"]
    if message["record"] == "epoch":
        return EpochRecord.from_dict(facts)
    return StepRecord(**{**facts, "train": Score(**facts["train"])})


def _error(name: str, message: Mapping[str, Any], out: Path) -> Exception:
    if not message["expected"]:
        return RuntimeError(f"{name} on {message['node']}:\n{message['traceback']}")
    kind = DataError if message["failed"] == "DataError" else ValueError
    return kind(f"{name} on {message['node']}: {message['reason']}".replace("<out>", str(out)))


def _write(out: Path, files: Mapping[str, bytes], *, node: str) -> None:
    """Write the files of a group, each run.json last, since it marks a run as ended."""
    for name in sorted(files, key=lambda name: (name.endswith("run.json"), name)):
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts:
            raise ValueError(f"node {node} sent {name}, a file outside of the output folder: it was not written")
        path, content = out / inside, files[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if inside.name == "run.json":
            table = {**json.loads(content), "command": command_line(), "node": node}
            content = (json.dumps(table, indent=1) + "\n").encode()
        write_atomically(path, content)
