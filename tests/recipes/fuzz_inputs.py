"""Mutated checkpoints, recipes, settings, CIFAR files and picture trees: ``python fuzz_inputs.py KIND FIRST COUNT``.

Prints one JSON object with the outcomes. Ends with an error, and names the seed, where an input is neither refused in
one short line nor used as a valid one.
"""

import json
import logging
import random
import resource
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from mutated_data import Cifar, Pictures, damaged
from torch import nn

from equalbits.data import Loader, load_dataset
from equalbits.nn import BiHalf, BinaryLinear
from equalbits.recipes import Recipe, get_recipe, list_recipes, parse_settings, read_recipe
from equalbits.training import Resume, TrainConfig, load_checkpoint, save_checkpoint, train

#: Values that no setting, count or header field should break on.
SILLY: list[Any] = [None, True, 0, -1, 1, 2, 3, 8, 10**9, 2**63, 10**400, -0.0, 0.5, 1e-320, 1e308, float("inf"),
                    float("nan"), "", "x", "1", "../../x", "\x1b[2J", "[red]", "é" * 5000, [], [1], [[]], [0.1, "a"],
                    {}, {"a": 1}, {"": {}}]  # fmt: skip
#: The same as texts, with what TOML alone can be confused by.
TEXTS = [*(json.dumps(value) for value in SILLY), "-" * 5000, "[" * 5000, "{a=" * 3000, "1979-05-27", "0x1f", "1e999",
         "'", '"""', "a\nb=1", "\x00", "[1, 2", "= =", "inf", "-nan", "1_000", "9" * 5000, "zoo:../x", "timm:",
         "{}"]  # fmt: skip
#: An error line of a command: longer ones are cut there.
LONGEST = 2000


def mutate_json(r: random.Random, value: Any) -> Any:
    """Change a value inside nested tables and lists, remove a name, or add one."""
    if isinstance(value, dict) and value and r.random() < 0.9:
        name, changed = r.choice(sorted(value)), dict(value)
        way = r.random()
        if way < 0.1:
            del changed[name]
        elif way < 0.2:
            changed[r.choice(["x", "", "a.b", *value])] = r.choice(SILLY)
        else:
            changed[name] = mutate_json(r, value[name])
        return changed
    if isinstance(value, list) and value and r.random() < 0.8:
        place = r.randrange(len(value))
        return [*value[:place], mutate_json(r, value[place]), *value[place + 1 :]]
    return r.choice(SILLY)


class Checkpoints:
    """A run of three epochs, stopped in its second; its file is mutated, mostly with a checksum that matches."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "last.safetensors"

        def stop(_: nn.Module, step: int) -> None:
            if step == 5:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            self.train(watchers=[stop])
        self.whole = self.path.read_bytes()
        self.tensors, self.metadata = load_checkpoint(self.path)

    def train(self, **how: Any) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), BinaryLinear(16, 8, weight_quantizer=BiHalf()), nn.ReLU(), nn.Linear(8, 2))
        loader = Loader(load_dataset("synthetic:1x4x4:2:24", split="train"), batch_size=8, shuffle=True)
        config = TrainConfig(epochs=3, checkpoint_seconds=0.0)
        with warnings.catch_warnings(action="ignore"):  # of another machine, or of a scale that is not the initial one
            train(net, loader, config, out=self.path.parent, **how)
        assert all(bool(tensor.isfinite().all()) for tensor in net.state_dict().values())

    def case(self, r: random.Random) -> str:
        if r.random() < 0.2:
            self.path.write_bytes(damaged(r, self.whole))
        else:
            tensors, metadata = dict(self.tensors), self.metadata
            for _ in range(r.choice([1, 1, 2])):
                if r.random() < 0.6:
                    metadata = mutate_json(r, metadata)
                else:
                    self._mutate_tensor(r, tensors)
            save_checkpoint(self.path, tensors, metadata)
        self.train(resume=Resume(allow_changes=r.random() < 0.5))
        return "resumed"

    @staticmethod
    def _mutate_tensor(r: random.Random, tensors: dict[str, torch.Tensor]) -> None:
        if not tensors:
            return
        name = r.choice(sorted(tensors))
        tensor = tensors[name]
        tensors[name] = r.choice([
            lambda: tensor.flatten(), lambda: tensor[..., :0] if tensor.dim() else tensor[None],
            lambda: tensor.double(), lambda: tensor.bool(), lambda: tensor.long(), lambda: tensor.to(torch.complex64),
            lambda: tensor[None],
            lambda: torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor.long() - 10**9,
            lambda: torch.full_like(tensor, 3e38) if tensor.is_floating_point() else tensor.long() + 2**62,
        ])()  # fmt: skip
        way = r.randrange(6)
        if way == 0:
            del tensors[name]
        elif way == 1:
            tensors[r.choice(["optimizer.0.x", "optimizer.-1.exp_avg", "model.x", "x", "average.0"])] = tensor


class Recipes:
    """Recipes as TOML, mutated by lines, values and bytes. A valid one survives a round trip."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "recipe.toml"
        self.texts = [get_recipe(name).to_toml() for name in list_recipes()]

    def case(self, r: random.Random) -> str:
        text = r.choice(self.texts)
        lines = text.split("\n")
        for _ in range(r.randrange(1, 4)):
            place, way = r.randrange(len(lines)), r.randrange(5)
            if way == 0:
                lines[place] = ""
            elif way == 1:
                lines.insert(place, r.choice(r.choice(self.texts).split("\n")))
            elif way == 2:
                lines.insert(place, f"{r.choice(['x', 'name', 'a.b', '[model]', '[[data]]', '.'])} = {r.choice(TEXTS)}")
            elif "=" in lines[place]:
                lines[place] = f"{lines[place].partition('=')[0]}= {r.choice(TEXTS)}"
        content = "\n".join(lines).encode(errors="replace")
        self.path.write_bytes(damaged(r, content) if r.random() < 0.1 else content)
        recipe = read_recipe(self.path)
        self.path.write_text(recipe.to_toml(), encoding="utf-8")
        assert read_recipe(self.path) == recipe, "a recipe that is written and read again differs"
        return "read, and the same when written and read again"


class Assignments:
    """Words of ``--set``: names and values of all kinds, alone or several."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "recipe.toml"
        self.base = get_recipe("fashion-conv2")
        self.names = [*Recipe.declarations(), "model.options.width", "model.options.x"]

    def case(self, r: random.Random) -> str:
        words = []
        for _ in range(r.choice([1, 1, 2, 5])):
            name, value = r.choice(self.names), r.choice([*TEXTS, *map(str, range(-2, 4))])
            if r.random() < 0.2:
                name = r.choice([name[:-1], name.upper(), name + ".x", "", ".", "model", name.replace(".", "=")])
            words.append(f"{name}={value}" if r.random() < 0.95 else name)
        recipe = self.base.with_settings(parse_settings(words))
        self.path.write_text(recipe.to_toml(), encoding="utf-8")
        assert read_recipe(self.path) == recipe, "a recipe that is written and read again differs"
        return "set, and the same when written and read again"


KINDS: dict[str, Callable[[Path], Any]] = {
    "checkpoints": Checkpoints,
    "recipes": Recipes,
    "settings": Assignments,
    "cifar": Cifar,
    "pictures": Pictures,
}


def outcomes(kind: str, first: int, count: int, folder: Path) -> Counter[str]:
    """Count the outcomes of ``count`` cases of a kind, in an empty directory."""
    found: Counter[str] = Counter()
    cases = KINDS[kind](folder)
    for seed in range(first, first + count):
        try:
            found[cases.case(random.Random(seed))] += 1
        except ValueError as error:
            message = str(error)
            if "\n" in message or not 0 < len(message) < LONGEST:
                raise AssertionError(f"{kind} {seed}: not a short line: {message[:300]!r}") from error
            found["refused in one line"] += 1
        except BaseException as error:
            error.add_note(f"{kind} {seed}")
            raise
    return found


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    logging.disable()
    name, number = sys.argv[1], int(sys.argv[3])
    with tempfile.TemporaryDirectory() as home:
        print(json.dumps({"kind": name, "cases": number, **outcomes(name, int(sys.argv[2]), number, Path(home) / "x")}))
