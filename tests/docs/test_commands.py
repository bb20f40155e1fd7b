"""The commands of a page run one after the other, as a reader types them, on small data and for one epoch."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equalbits.cli import main
from equalbits.data import load_dataset

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Commands of other tests: they need a download, a cluster or another package, run on, or follow on examples.
ELSEWHERE = re.compile(r"^equalbits (download|serve)|--ray|timm:|tiny.ebits")
SHORT = ("--set", "epochs=1", "--device", "cpu")
MORE = {
    "train": SHORT,
    "sweep": (*SHORT, "--set", "data.limit=32"),
    "compare": (*SHORT, "--set", "data.limit=32"),
    "reproduce": ("--quick", "--device", "cpu"),
    "bench": ("--seconds", "0.01"),
    "evaluate": ("--device", "cpu"),
}

#: Files that a page takes from another one, and the commands that make them.
EARLIER = {
    "runs/a": "train fashion-conv2 --out runs/a",
    "net.ebits": "pack runs/a net.ebits",
    "-best": "train cifar10-resnet18-real --data ~/data --out runs/teacher --set schedule.warmup_epochs=0",
}


def commands(page: Path) -> list[str]:
    text = re.sub(r"\\\n +", "", page.read_text())  # joins lines that end in a backslash
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [
        line.partition("  #")[0].strip() for block in blocks if "SBATCH" not in block for line in block.splitlines()
    ]
    lines = [re.sub(r"^torchrun .* -m equalbits ", "equalbits ", line) for line in lines]
    return [line for line in lines if line.startswith("equalbits ") and not ELSEWHERE.search(line)]


def shortened(words: list[str]) -> list[str]:
    """Return a command that trains one epoch of a narrow network on few images."""
    command, *rest = words
    if "--resume" in rest:
        return [command, *("1" if word == "10" else word for word in rest), "--device", "cpu"]
    more = list(MORE.get(command, ()))
    if command in ("train", "sweep", "compare"):
        more += [] if "pictures" in rest else ["--set", "data.limit=32"]
        more += [] if {"mine.toml", "fashion-conv4"} & {*rest} else ["--set", "model.options.width=0.125"]
    if rest and rest[0].endswith("-best"):
        rest = [word for word in rest if word not in ("--teacher", "runs/best/teacher")]
        more += ["--set", "schedule.warmup_epochs=0", "--teacher", "runs/teacher"]
    return [command, *rest, *more]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Fill a directory with what the pages name: pictures, CIFAR-10 of noise, and a home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    random = np.random.default_rng(0)
    shoe = load_dataset("fashion", split="test")
    images, names = shoe.images[:4].numpy(), shoe.classes
    for name in ("PICTURE.png", "cat.png", "shoe.png", "photos/a.png", f"DIR/test/{names[0]}/a.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[0, 0]).save(name)
    for number in range(8):
        for split in ("train", "test"):
            for level, label in ((60, "cat"), (190, "dog")):
                place = Path("pets", split, label, f"{number}.png")
                place.parent.mkdir(parents=True, exist_ok=True)
                noise = random.integers(-50, 50, (40, 48, 3))
                Image.fromarray((level + noise).astype(np.uint8)).save(place)
    cifar = Path("data", "cifar-10-batches-bin")
    cifar.mkdir(parents=True)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        labels, pixels = np.arange(10, dtype=np.uint8)[:, None], random.integers(0, 256, (10, 3072), dtype=np.uint8)
        (cifar / name).write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
    (cifar / "batches.meta.txt").write_text("\n".join(f"kind{number}" for number in range(10)) + "\n")
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_in_order(page, folder, capsys):
    lines = commands(page)
    for name, line in EARLIER.items():
        if any(name in each for each in lines) and f"equalbits {line}" not in lines:
            assert main(shortened(line.replace("~", str(folder)).split())) == 0
    for line in lines:
        typed, _, written = line.partition(" > ")
        words = [word.replace("~", str(folder)) for word in shlex.split(typed)[1:]]
        capsys.readouterr()
        code = main(shortened(words))
        shown = capsys.readouterr()
        assert code == 0, f"{line}: {shown.err}"
        if written:
            place = Path(written).expanduser()
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(shown.out)
