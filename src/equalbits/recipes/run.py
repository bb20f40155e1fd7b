"""Running a recipe: everything it names is made, joined, trained, and left in one folder."""

import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

import equalbits
from equalbits.data import Dataset, Decoding, FolderDataset, FolderLoader, Loader, load_dataset
from equalbits.models import create_model
from equalbits.recipes.recipe import DataConfig, Recipe, read_recipe
from equalbits.training import (
    CheckpointError,
    History,
    JsonLines,
    Score,
    TensorBoard,
    evaluate,
    load_checkpoint,
    train,
)
from equalbits.training.checkpoint import BEST, LAST, write_atomically
from equalbits.training.distributed import Place, process_group
from equalbits.training.history import Reporter
from equalbits.training.loop import Watcher


@dataclass(frozen=True)
class Result:
    """A finished run: its recipe, its model, its history, and where it lies."""

    recipe: Recipe
    model: nn.Module
    history: History
    out: Path


def pick_device(name: str = "auto") -> str:
    """The device to train on: the first GPU where there is one, unless another is named."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={name!r} is not there: torch sees no CUDA device; use --device cpu")
    return name


@dataclass(frozen=True)
class Images:
    """What a model must know of its images; kept as model.json beside its weights."""

    classes: tuple[str, ...]
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, loader: Loader | FolderLoader) -> "Images":
        """The images a loader gives."""
        dataset = loader.dataset
        if isinstance(dataset, Dataset):
            channels, height, width = dataset.images.shape[1:]
            if height != width:
                raise ValueError(f"{dataset.name}: images are {height}×{width}, and the networks here take square ones")
        else:
            channels, height = 3, loader.decoding.crop  # type: ignore[union-attr]
        return cls(dataset.classes, channels, height, dataset.mean, dataset.std)

    @classmethod
    def read(cls, path: Path) -> "Images":
        """What :func:`run_recipe` wrote."""
        facts: dict[str, Any] = json.loads(path.read_text())
        mean, std = tuple(facts["mean"]), tuple(facts["std"])
        return cls(tuple(facts["classes"]), facts["channels"], facts["size"], mean, std)


def make_model(recipe: Recipe, images: Images) -> nn.Module:
    """The recipe's model for such images, with weights that hang on the recipe's seed alone."""
    config = recipe.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        return create_model(
            config.name,
            num_classes=len(images.classes),
            weight_quantizer=config.weight_quantizer or None,
            input_quantizer=config.input_quantizer or None,
            init=config.init,
            **{"in_channels": images.channels, "image_size": images.size, **config.options},
        )


def make_loader(
    data: DataConfig, split: str, *, root: Path | None, device: str, seed: int, place: Place
) -> Loader | FolderLoader:
    """The batches of one split: shuffled and augmented for training, in order and whole for testing."""
    dataset = load_dataset(data.name, root, split=split, device=device, statistics=data.statistics or None)
    training = split == "train"
    if training and data.limit:
        dataset = dataset.take(data.limit)
    size = data.batch_size if training else data.test_batch_size
    shared: dict[str, Any] = {
        "batch_size": max(1, size // place.world_size),
        "shuffle": training,
        "augment": training and data.augment,
        "seed": seed,
        "rank": place.rank,
        "world_size": place.world_size,
    }
    if isinstance(dataset, FolderDataset):
        decoding = Decoding(resize=data.resize, crop=data.crop)
        return FolderLoader(dataset, workers=data.workers, decoding=decoding, **shared)
    return Loader(dataset, **shared)


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    root: Path | None = None,
    device: str = "auto",
    watchers: Sequence[Watcher] = (),
    reporters: Sequence[Reporter] = (),
    teacher: Path | None = None,
) -> Result:
    """Train a recipe into the folder ``out``, going on with what is there already.

    The folder then holds recipe.toml, history.jsonl, TensorBoard events (where that is installed), the last and the
    best checkpoint, and run.json: settings, versions, seed, device and scores. ``teacher`` is the folder of a finished
    run to distil from.
    """
    device = pick_device(device)
    out = Path(out)
    with process_group(device) as place:
        if device == "cuda" and place.world_size > 1:
            device = f"cuda:{place.local_rank}"
        if recipe.data.batch_size % place.world_size:
            raise ValueError(
                f"data.batch_size={recipe.data.batch_size} cannot be shared by {place.world_size} processes"
            )
        seed = recipe.train.seed
        batches = make_loader(recipe.data, "train", root=root, device=device, seed=seed, place=place)
        test = make_loader(recipe.data, "test", root=root, device=device, seed=seed, place=place)
        images = Images.of(batches)
        model = make_model(recipe, images).to(device)
        if place.is_writer:
            _begin(out, recipe, images)
        began = time.time()
        history = train(
            model,
            batches,
            recipe.train,
            test=test,
            watchers=watchers,
            reporters=lambda known: [*reporters, *(_writers(out, known) if place.is_writer else ())],
            teacher=load_run(teacher)[1].to(device) if teacher else None,
            out=out,
        )
        if place.is_writer:
            facts = facts_of(recipe, device, place, history, time.time() - began)
            write_atomically(out / "run.json", (json.dumps(facts, indent=1) + "\n").encode())
        return Result(recipe, model, history, out)


def load_run(out: Path, *, which: str = "last") -> tuple[Recipe, nn.Module]:
    """The recipe and the trained model of a run's folder: its ``last`` or its ``best`` epoch."""
    if not (out / "recipe.toml").exists():
        raise CheckpointError(f"{out} is not the folder of a run: it holds no recipe.toml; name one that train made")
    recipe = read_recipe(out / "recipe.toml")
    tensors, _ = load_checkpoint(out / {"last": LAST, "best": BEST}[which])
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    model = make_model(recipe, Images.read(out / "model.json"))
    model.load_state_dict(weights)
    return recipe, model.eval()


def evaluate_run(out: Path, *, root: Path | None = None, device: str = "auto", which: str = "last") -> Score:
    """Score a run's model on every image of its test data."""
    recipe, model = load_run(out, which=which)
    device = pick_device(device)
    config = recipe.train.settled(torch.device(device).type, can_capture=False)
    test = make_loader(recipe.data, "test", root=root, device=device, seed=0, place=Place())
    return evaluate(model.to(device), test, precision=config.precision)


def _begin(out: Path, recipe: Recipe, images: Images) -> None:
    """Write what the run is, and refuse a folder that holds a run of something else."""
    path = out / "recipe.toml"
    if path.exists():
        other = read_recipe(path)
        if (other.model, other.data.name) != (recipe.model, recipe.data.name):
            raise ValueError(f"{out} holds a run of {other.name} ({other.model.name}): use another --out to start anew")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, recipe.to_toml().encode())
    write_atomically(out / "model.json", (json.dumps(asdict(images), indent=1) + "\n").encode())


def _writers(out: Path, known: History) -> list[Reporter]:
    """Whoever keeps the history of a run: JSON lines always, TensorBoard where it is installed."""
    writers: list[Reporter] = [JsonLines(out / "history.jsonl", known)]
    if find_spec("tensorboard") is not None:
        writers.append(TensorBoard(out / "tensorboard", known))
    return writers


def facts_of(recipe: Recipe, device: str, place: Place, history: History, seconds: float) -> dict[str, Any]:
    """What made a result, and the result."""
    last, best = history.last, history.best
    on_gpu = device.startswith("cuda")
    return {
        "recipe": recipe.as_dict(),
        "seed": recipe.train.seed,
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        "peak_device_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
        "processes": place.world_size,
        "versions": {
            "equalbits": equalbits.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "command": " ".join(sys.argv),
        "seconds": round(seconds, 2),
        "last": last.as_dict() if last else None,
        "best": best.as_dict() if best else None,
    }
