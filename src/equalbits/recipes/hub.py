"""Share a trained run in the layout of the Hugging Face Hub: weights, settings and a generated card.

A directory holds ``model.safetensors``, ``config.json`` (recipe, classes, preprocessing) and ``README.md``. Loading
reads JSON and safetensors and builds a network of this package: it never runs code from the directory.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import equalbits
from equalbits._extras import install_hint
from equalbits._files import write_atomically
from equalbits._text import bounded
from equalbits.analysis import audit, binary_layers
from equalbits.recipes.build import DataSpec, make_model
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_dir import TrainedRun, load_run
from equalbits.training import CheckpointError, checkpoint_bytes, load_checkpoint, load_weights

_CONFIG, _WEIGHTS, _CARD = "config.json", "model.safetensors", "README.md"
_PLACE = "OWNER/NAME"  # of a card that is not uploaded


def save_pretrained(run: TrainedRun | Path | str, folder: Path | str, *, which: str = "last") -> Path:
    """Write a run's weights, its settings and a card into ``folder``, and return it.

    ``which`` is the ``last`` or the ``best`` epoch of a run given by its directory. The card states the accuracy with
    counts, the bits per layer and the recipe.
    """
    if not issubclass(type(run), TrainedRun | str | os.PathLike):
        raise ValueError(
            f"run is a {type(run).__name__}: give the result of eb.run_recipe or eb.load_run, or the directory of a run"
        )
    run = run if isinstance(run, TrainedRun) else load_run(run, which=which)
    folder, images = Path(folder), DataSpec.read(run.out / "model.json")
    if folder.is_file():
        raise ValueError(f"{folder} is a file: give a directory, new or of an earlier save_pretrained")
    recipe = replace(run.recipe, model=replace(run.recipe.model, init_from=""))  # a path of this machine
    facts = {
        "library_name": "equalbits",
        "version": equalbits.__version__,
        "recipe": recipe.as_dict(),
        "images": asdict(images),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _WEIGHTS, checkpoint_bytes(run.model.state_dict(), {}))
    write_atomically(folder / _CONFIG, (json.dumps(facts, indent=1) + "\n").encode())
    card = "\n".join(_card(replace(run, recipe=recipe), images, which))
    write_atomically(folder / _CARD, (card + "\n").encode())
    return folder


def from_pretrained(source: Path | str, *, revision: str | None = None) -> nn.Module:
    """Load a model in eval mode from a directory of :func:`save_pretrained`, or from ``OWNER/NAME`` on the Hub."""
    folder = Path(source)
    if not folder.is_dir():
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", os.fspath(source)):
            raise ValueError(f"{source} does not exist: give a directory of save_pretrained, or OWNER/NAME on the Hub")
        with _hub_errors(f"{source} could not be loaded from the Hub") as hub:
            found = hub.snapshot_download(os.fspath(source), revision=revision, allow_patterns=[_CONFIG, _WEIGHTS])
        folder = Path(found)
    path = folder / _CONFIG
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        recipe, images = Recipe.from_dict(facts["recipe"]), DataSpec.from_dict(facts["images"])
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist: give a directory of save_pretrained") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problem = bounded(str(error))
        raise CheckpointError(f"{path} does not describe a model of equalbits ({problem}): save it again") from None
    tensors, _ = load_checkpoint(folder / _WEIGHTS)
    with torch.device("meta"):  # a short config may ask for any size: allocate none that the weights do not have
        expected = make_model(recipe, images).state_dict()
    if wrong := [
        name for name, tensor in expected.items() if name not in tensors or tensors[name].shape != tensor.shape
    ]:
        raise CheckpointError(
            f"{folder / _WEIGHTS} has no {wrong[0]} of the shape that {_CONFIG} describes: save it again"
        )
    model = make_model(recipe, images)
    load_weights(model, tensors, folder / _WEIGHTS)
    return model.eval()


def push_to_hub(
    run: TrainedRun | Path | str, repo_id: str, *, which: str = "last", private: bool = False, token: str | None = None
) -> str:
    """Upload a run as :func:`save_pretrained` writes it to ``OWNER/NAME`` on the Hub; return the address."""
    with TemporaryDirectory() as folder:
        card = save_pretrained(run, folder, which=which) / _CARD
        card.write_text(card.read_text(encoding="utf-8").replace(_PLACE, str(repo_id)), encoding="utf-8")
        with _hub_errors(f"{repo_id} could not be uploaded to the Hub") as hub:
            api = hub.HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message=f"Upload by equalbits {equalbits.__version__}"
            )
    return f"https://huggingface.co/{repo_id}"


@contextmanager
def _hub_errors(failure: str) -> Iterator[Any]:
    """Yield the package ``huggingface_hub``; report its errors and those of the network in one line."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError(f"the Hub needs huggingface_hub ({error}): {install_hint('hub')}") from None
    try:
        yield huggingface_hub
    except Exception as error:  # its client and the library below it have many kinds
        raise ValueError(f"{failure}: {bounded(' '.join(str(error).split()), 300)}") from error


def _card(run: TrainedRun, images: DataSpec, which: str) -> Iterator[str]:
    """Yield the lines of the model card: the Hub's YAML header, then what a reader wants to know."""
    recipe, model = run.recipe, run.model
    epoch = run.history.best if which == "best" else run.history.last
    score = epoch.test if epoch else None
    name, data = json.dumps(recipe.name), json.dumps(recipe.data.name)
    yield from ("---", "library_name: equalbits", "pipeline_tag: image-classification")
    yield from ("tags:", "- equalbits", "- binary-neural-network")
    if score:
        yield from ("model-index:", f"- name: {name}", "  results:")
        yield from ("  - task: {type: image-classification}", f"    dataset: {{name: {data}, type: {data}}}")
        yield f"    metrics: [{{type: accuracy, value: {score.accuracy:.2f}}}]"
    yield from ("---", "", f"# {recipe.name}", "")
    if recipe.about:
        yield from (recipe.about, "")
    method = recipe.model.weight_quantizer or "none (real weights)"
    yield from ("| | |", "|---|---|", f"| network | `{recipe.model.name}` |", f"| weights | `{method}` |")
    yield f"| inputs | `{recipe.model.input_quantizer or 'none (real inputs)'}` |"
    shown = ", ".join(images.classes[:10]) + (", …" if len(images.classes) > 10 else "")
    shape = f"{images.channels}×{images.size}×{images.size}"
    yield f"| data | `{recipe.data.name}`, {shape}, {len(images.classes)} classes |"
    yield f"| classes | {shown} |"
    yield f"| mean and std | {images.mean}, {images.std} |"
    if score and epoch:
        counts = f"{score.accuracy:.2f} % ({score.correct:,} of {score.total:,} test images)"
        yield f"| accuracy | {counts}, {which} epoch ({epoch.epoch}) |"
    yield f"| seed | {recipe.train.seed} |"
    total = sum(parameter.numel() for parameter in model.parameters())
    if method != "none (real weights)":
        report = audit(model, strict=False)
        bits = sum(layer.latents().numel() for layer in binary_layers(model).values())
        yield f"| weights of 1 bit | {bits:,} of {total:,} |"
        yield f"| share of +1 | {str(report).splitlines()[-1]} |"
    yield from ("", "```python", "import equalbits as eb", "", f'model = eb.from_pretrained("{_PLACE}")', "```", "")
    yield from ("Recipe:", "", "```toml", recipe.to_toml().rstrip(), "```")
