"""Train on a GPU what results/ lacks, the most valuable first, in a given time; bring it back; keep it.

    python benchmarks/measure_missing.py train SECONDS DATA RUNS
    python benchmarks/measure_missing.py save RUNS OUT
    python benchmarks/measure_missing.py lease SECONDS DATA RUNS OUT
    python benchmarks/measure_missing.py keep RUNS

- ``train`` skips a part that results/ holds, that lacks its data set in DATA, or that takes longer than the time left.
  The same call resumes an interrupted part.
- ``save`` writes records, small checkpoints, and the weights of teachers and of the first seed of each best net that it
  has not saved before, in files of 16 MiB. ``cat OUT/saved.* | tar x -C RUNS`` unpacks them; ``train`` can go on there.
- ``lease`` is for a rented GPU that ends a command after ten minutes: it trains in the background, SECONDS from its
  first call on, and saves after nine minutes or at the end. Repeat the call until it says so.
- ``keep`` merges the finished parts into results/ and generates the pages. Run it at the root of the repository.
"""

import argparse
import inspect
import io
import json
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import equalbits as eb
from equalbits.paper.grid_parameters import command
from equalbits.paper.keep_measurements import blocks, cells
from equalbits.training import LAST, WEIGHTS, checkpoint_bytes, prefixed

RESULTS = Path(__file__).resolve().parents[1] / "results"
PIECE, MOST = 16 << 20, 63 << 20  # bytes of a file, and of all files of a call of save
RECORDS = {".json", ".jsonl", ".toml", ".md", ".log"}
SPARE = 25  # seconds in which an interrupted part writes its checkpoint
TEACHER_MINUTES = 4.5
WAIT = 520  # seconds that a call of lease takes
Values = Sequence[object]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an item that is measured and kept as one; ``minutes`` are those on one H200, without a teacher's.

    ``is_small``: its checkpoint is saved, so that it may be started in less time than it takes.
    """

    item: str
    minutes: float
    seeds: tuple[int, ...] = ()
    data: str = "cifar10"
    grid: dict[str, Values] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    more: str = ""
    is_small: bool = False

    @property
    def name(self) -> str:
        """Its directory in RUNS."""
        words = [self.item, *(str(each) for values in self.grid.values() for each in values), *map(str, self.seeds)]
        return "-".join(words).lower().translate(str.maketrans(" /:=,", "-----"))

    @property
    def asked(self) -> dict[str, object]:
        """Its options as results/ stores them."""
        return {"quick": False, "seeds": list(self.seeds), "settings": self.settings, "grid": self.grid}

    def is_kept(self) -> bool:
        """Return True if results/ holds all of it."""
        item, path = eb.paper.get_item(self.item), RESULTS / f"{self.item}.json"
        if not path.exists():
            return False
        return cells(blocks(item, {"asked": self.asked})) <= cells(blocks(item, json.loads(path.read_text())))

    def command(self, data: Path, runs: Path) -> list[str]:
        """Return the command that measures it."""
        words = shlex.split(command(self.item, self.asked, data=str(data), out=str(runs / self.name)))
        return [sys.executable, "-m", *words, *shlex.split(self.more)]


def best(net: str, minutes: float, *seeds: int, data: str = "cifar10") -> Part:
    return Part(item="best", minutes=minutes, seeds=seeds, data=data, grid={"nets": [net]})


def queue() -> Iterator[Part]:
    """Yield every part that is wanted, the most valuable first."""
    at_end, rarely = {"evaluate_every": 100}, {"evaluate_every": 50}
    yield best("VGG-small", 6, 0)
    yield replace(best("ResNet-20", 8, 0, 1, 2), more="--stack 3", is_small=True)
    yield best("CIFAR-100 ResNet-18", 9, 0, data="cifar100")
    yield best("VGG-small", 6, 1)
    yield best("VGG-small", 6, 2)
    methods = ["sign", "bihalf:p_pos=0.45"]
    conv4 = {"nets": ["conv4"], "forms": ["batch norm"], "model.weight_quantizer": methods}
    yield Part(item="entropy", minutes=5, seeds=(0, 1, 2, 3, 4), grid=conv4, settings=at_end)
    for net in ("ResNet-18 1/1", "ResNet-18 1/32"):
        for seed in (0, 1):
            for method in ("bihalf", "sign", "irnet"):
                grid = {"nets": [net], "model.weight_quantizer": [method]}
                yield Part(item="fig7", minutes=6.5, seeds=(seed,), data="cifar100", grid=grid, settings=rarely)
    for seed in range(5):
        yield Part(
            item="fig5", minutes=7.5, seeds=(seed,), data="cifar100", grid={"data": ["CIFAR-100"]}, settings=at_end
        )
    with_norm = {"data": ["CIFAR-10"], "forms": ["with batch norm"]}
    yield Part(item="fig5", minutes=7.5, seeds=(3, 4), grid=with_norm, settings=at_end)
    for seed in (1, 2):
        yield best("ResNet-18", 9, seed)
    for seed in (1, 2):
        yield best("CIFAR-100 ResNet-18", 9, seed, data="cifar100")
    for method in ("sign", "irnet-stable"):
        for net, minutes in {"conv2": 6, "conv4": 5, "conv6": 6, "conv8": 8}.items():
            grid = {"nets": [net], "model.weight_quantizer": [method]}
            yield Part(item="tab2-tuned", minutes=minutes, grid=grid, settings={"evaluate_every": 25})
    for seed in (1, 2):
        for net in ("Conv2", "Conv4"):
            grid = {"nets": [net], "sparsity": [0.0, 0.5, 0.9]}
            yield Part(item="fig8", minutes=7.5, seeds=(seed,), grid=grid, settings=at_end)
    yield Part(item="flip-rate", minutes=16, settings={"speed": "recorded"})


def train(seconds: float, data: Path, runs: Path) -> None:
    end = time.monotonic() + seconds
    runs.mkdir(parents=True, exist_ok=True)
    for part in queue():
        out = runs / part.name
        if part.is_kept() or (out / "result.json").exists() or not (data / part.data).is_dir():
            continue
        can_resume = part.is_small or any((*out.rglob(LAST), *out.rglob("stack-*.safetensors")))
        left, minutes = end - time.monotonic(), part.minutes + teacher_minutes(part, runs)
        if left < (2 * SPARE if can_resume else 60 * minutes):
            print(f"{part.name}: takes {minutes:g} minutes, {left / 60:.1f} are left", flush=True)
            continue
        share_teachers(runs, out)
        print(f"{part.name}: started with {left / 60:.1f} minutes left", flush=True)
        for each in (part, replace(part, more="")) if part.more else (part,):  # one by one where a stack fails
            status = run(each.command(data, runs), end - time.monotonic(), runs / f"{part.name}.log")
            print(f"{part.name}: status {status}", flush=True)
            if status != 1:
                break


def teacher_minutes(part: Part, runs: Path) -> float:
    """Return the minutes that the teacher of a part takes; 0 where it is trained, or none is needed."""
    is_trained = any(runs.glob(f"*/runs/teachers/{part.data}-*/run.json"))
    return 0 if is_trained or part.item != "best" else TEACHER_MINUTES


def run(words: Sequence[str], seconds: float, log: Path) -> int:
    """Run a command; interrupt it before the time is over, so that it writes a checkpoint."""
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file)
        for wait, signal_number in ((seconds - SPARE, signal.SIGTERM), (SPARE, signal.SIGKILL)):
            try:
                return process.wait(wait)
            except subprocess.TimeoutExpired:
                process.send_signal(signal_number)
        return process.wait()


def share_teachers(runs: Path, out: Path) -> None:
    """Link the trained teachers of other parts into a part."""
    for record in runs.glob("*/runs/teachers/*/run.json"):
        link = out / "runs" / "teachers" / record.parent.name
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(record.parent.resolve())


def save(runs: Path, out: Path) -> None:
    """Write records, and weights not saved before as far as they fit, as one tar in pieces."""
    stream = io.BytesIO()
    listed, left = runs / "saved.txt", list[str]()
    saved = listed.read_text().split("\n") if listed.exists() else []
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path in sorted(runs.rglob("*")):
            is_checkpoint = path.match("runs/stack-*.safetensors") and path.stat().st_size < PIECE
            if path.is_file() and (path.suffix in RECORDS or is_checkpoint):
                tar.add(path, path.relative_to(runs))
        for name in [name for name in with_weights(runs) if name not in saved]:
            content = checkpoint_bytes(prefixed("model.", eb.recipes.load_run(runs / name).model.state_dict()), {})
            if stream.tell() + len(content) > MOST:
                left.append(name)
                continue
            entry = tarfile.TarInfo(f"{name}/{WEIGHTS}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
            saved.append(name)
            print(f"{name}: {len(content) / 2**20:.1f} MiB")
    listed.write_text("\n".join(saved))
    content = stream.getvalue()
    for number, start in enumerate(range(0, len(content), PIECE)):
        (out / f"saved.{number}").write_bytes(content[start : start + PIECE])
    print(f"{len(content) / 2**20:.1f} MiB in {number + 1} files", *(f"{name}: call again" for name in left), sep="\n")


def with_weights(runs: Path) -> Iterator[str]:
    """Yield the directories of teachers that were trained here and of the first seeds of the best nets."""
    for record in sorted(runs.glob("best-*/runs/*/*/seed0/run.json")):
        if any((record.parent / name).exists() for name in (LAST, WEIGHTS)):  # it did not diverge
            yield str(record.parent.relative_to(runs))
    for record in sorted(runs.glob("*/runs/teachers/*/run.json")):
        if (record.parent / LAST).exists() and not record.parent.is_symlink():
            yield str(record.parent.relative_to(runs))


def lease(seconds: float, data: Path, runs: Path, out: Path) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    end, number, log = (runs / name for name in ("end.txt", "pid.txt", "train.log"))
    if not end.exists():
        end.write_text(str(time.time() + seconds))
    left, own = float(end.read_text()) - time.time(), None
    if left > 0 and not is_running(number):
        words = [sys.executable, __file__, "train", str(left), str(data), str(runs)]
        with log.open("ab") as file:
            own = subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)
        number.write_text(str(own.pid))
    stop = time.monotonic() + WAIT
    while time.monotonic() < stop and is_running(number) and (own is None or own.poll() is None):
        time.sleep(1)
    save(runs, out)
    print(log.read_text()[-2000:], "still training: call again" if is_running(number) else "the end", sep="\n")


def is_running(number: Path) -> bool:
    """Return True if the process runs whose number a file holds."""
    return number.exists() and Path("/proc", number.read_text()).exists()


def keep(runs: Path) -> int:
    """Keep the finished parts that are not yet in results/."""
    measured = [part for part in queue() if (runs / part.name / "result.json").exists() and not part.is_kept()]
    refused = eb.paper.keep_items([runs / part.name for part in measured], Path(), log=print)
    print(*refused, "now run pytest tests/paper tests/docs, and mend the sentences whose numbers changed", sep="\n")
    return int(bool(refused))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    for action in (train, save, lease, keep):
        arguments = actions.add_parser(action.__name__)
        for name in inspect.signature(action).parameters:
            arguments.add_argument(name, type=float if name == "seconds" else Path)
    options = vars(parser.parse_args())
    return globals()[options.pop("action")](**options) or 0


if __name__ == "__main__":
    sys.exit(main())
