"""Train groups of runs on a Ray cluster.

A group is one Ray task, whose result is its files, so no disk need be shared: each node needs the same equalbits, and
the data set in ``root``. Ray starts a task over on another node if its node or worker dies. Records that have come back
are never run again.
"""

import json
import platform
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import equalbits
from equalbits._extras import install_hint
from equalbits._files import write_atomically
from equalbits._text import one_line
from equalbits.recipes.experiments.run_store import PlannedRun, RunStore, describe
from equalbits.recipes.experiments.train_runs import Execution, Trainer
from equalbits.recipes.run_record import command_line
from equalbits.training import InterruptedTraining, stop_requests

_ATTEMPTS = 3  # before a group is given up


def import_ray() -> Any:
    """Import Ray, or raise with the way to install it."""
    if find_spec("ray") is None:
        raise ValueError(f"--ray needs the package ray: {install_hint('ray')}")
    import ray
    import ray.exceptions

    return ray


def train_on_ray(groups: Sequence[Sequence[PlannedRun]], store: RunStore, execution: Execution) -> None:
    """Train every group on the cluster at ``execution.ray`` ('auto', 'local' or 'host:port') into a store.

    A group that fails does not stop the others; the first failure is raised when all have ended.
    """
    ray = import_ray()
    connect = not ray.is_initialized()
    if connect:
        _connect(ray, execution.ray)
    failures: list[Exception] = []
    try:
        task = _make_task(ray, execution)
        here = {"root": execution.root, "device": execution.device, "version": equalbits.__version__}
        pending = {task.remote(group, **here): group for group in groups}
        with stop_requests(listen=True) as request:
            while pending:
                for ended in ray.wait(list(pending), timeout=0.5)[0]:
                    name = describe(pending.pop(ended))
                    try:
                        _collect(name, ray.get(ended), store, execution)
                    except ray.exceptions.RayTaskError as error:  # a bug: raise it with its traceback
                        failures.append(error)
                    except ray.exceptions.RayError as error:
                        lost = f"lost {_ATTEMPTS} times with its node or worker ({type(error).__name__})"
                        failures.append(ValueError(f"{name}: {lost}: check the memory and the logs of the nodes"))
                    except ValueError as error:
                        failures.append(error)
                if request.signal_number is not None:
                    for unfinished in pending:
                        ray.cancel(unfinished, force=True)
                    kept = "runs that ended are in {}, unfinished ones on the cluster start over"
                    raise InterruptedTraining(request.signal_number, store.out, kept)
    finally:
        if connect:
            ray.shutdown()
    if failures:
        raise failures[0]


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself takes minutes to notice that no cluster is there
            socket.create_connection((host, int(port)), timeout=5).close()
        more = {"include_dashboard": False} if address == "local" else {}
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **more)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"no Ray cluster answers at {address!r} ({reason}): start one with ray start --head, or use --ray local"
        ) from None


def _make_task(ray: Any, execution: Execution) -> Any:
    """Return the remote function: it takes one GPU where the cluster has some, else one core."""
    has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
    wants_gpu = execution.device.startswith("cuda") or (execution.device == "auto" and has_gpu)
    if wants_gpu and not has_gpu:
        execution.log("no node of the cluster has a GPU now: waiting for one; --device cpu does without")
    resources = {"num_cpus": 1, "num_gpus": int(wants_gpu), "scheduling_strategy": "SPREAD"}
    return ray.remote(max_retries=_ATTEMPTS - 1, **resources)(train_on_node)


def train_on_node(runs: Sequence[PlannedRun], *, root: Path | None, device: str, version: str) -> dict[str, Any]:
    """Train a group of runs; return their files, or the reason of a failure."""
    result, began = {"node": platform.node()}, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="equalbits-node-", ignore_cleanup_errors=True) as folder:
        try:
            if version != equalbits.__version__:
                versions = f"this node has equalbits {equalbits.__version__}, the sweep has {version}"
                raise ValueError(f"{versions}: install the same")
            trainer = Trainer(RunStore(Path(folder)), Execution(root=root, device=device))
            train = partial(trainer.train_stack, runs) if len(runs) > 1 else partial(trainer.train_alone, runs[0])
            with ThreadPoolExecutor(1) as thread:  # in a thread, signals are left to Ray
                thread.submit(train, []).result()
        except (ValueError, OSError, ImportError) as error:
            return {**result, "failed": one_line(error)}
        paths = (path for path in Path(folder).rglob("*") if path.is_file() and not path.name.startswith("."))
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {**result, "files": files, "seconds": time.perf_counter() - began}


def _collect(name: str, result: Mapping[str, Any], store: RunStore, execution: Execution) -> None:
    """Write the files of a group, each run.json last, since it marks a run as ended."""
    node = result["node"]
    if "failed" in result:
        execution.log(f"{name} failed; the others continue")
        raise ValueError(f"{name} on {node}: {result['failed']}")
    files: Mapping[str, bytes] = result["files"]
    for inside in sorted(map(PurePosixPath, files), key=lambda inside: (inside.name == "run.json", inside)):
        content = files[str(inside)]
        if inside.is_absolute() or ".." in inside.parts:
            raise ValueError(f"node {node} sent {inside}, a file outside of the output folder: it was not written")
        if inside.name == "run.json":
            table = {**json.loads(content), "command": command_line(), "node": node}
            content = (json.dumps(table, indent=1) + "\n").encode()
        path = store.out / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    execution.log(f"{name} done in {result['seconds']:.1f} s on {node}")
