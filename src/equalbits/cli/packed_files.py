"""Pack runs, and write packed, ONNX and OpenVINO files, for ``pack`` and ``export``."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from equalbits.runtime import PackedModel

_PREFIX = ".unfinished-"


def check_source(path: Path, which: str) -> None:
    """Raise if there is no such run or packed file, or if ``--which`` is given for a packed file."""
    if not path.exists():
        raise ValueError(f"{path} does not exist: give a packed file or the directory of a run")
    if path.is_file() and which != "last":
        raise ValueError(f"--which {which}: {path} is a packed file and has no epochs; omit --which")


def pack_run(
    out: Path, *, which: str, rest: str = "float32", linear_inputs: str = "float32"
) -> tuple["PackedModel", "nn.Module", "Tensor"]:
    """Pack a run's model; return the packed model, the model, and the random images that verified it."""
    import torch

    from equalbits.deploy import Preprocessing, pack
    from equalbits.recipes import DataSpec, load_run, unfinished_epoch

    _, model = load_run(out, which=which)
    if unfinished := unfinished_epoch(out):
        print(f"{out} is not finished: epoch {unfinished[0]} of {unfinished[1]}", file=sys.stderr)
    images = DataSpec.read(out / "model.json")
    example = torch.randn(8, images.channels, images.size, images.size, generator=torch.Generator().manual_seed(0))
    packed = pack(
        model,
        example,
        rest=rest,
        linear_inputs=linear_inputs,
        class_names=images.classes,
        preprocessing=Preprocessing(images.mean, images.std, images.resize),
    )
    return packed, model, example


def export_packed(packed: "PackedModel", path: Path) -> int:
    """Write an ONNX file, or an OpenVINO IR for the suffix ``.xml``; return the bytes of all files beside it."""
    from equalbits.runtime import export_onnx, export_openvino

    (export_onnx if path.suffix == ".onnx" else export_openvino)(packed, path)
    return sum(file.stat().st_size for file in path.parent.iterdir())


def written_files(path: Path) -> str:
    """Return the names of the written files: OpenVINO keeps its weights in a second one."""
    return f"{path} and {path.with_suffix('.bin').name}" if path.suffix == ".xml" else str(path)


@contextmanager
def replace_when_done(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a temporary directory; move the files written there beside ``path`` at the end.

    If an exception is raised, existing files stay as they are.
    """
    try:
        with TemporaryDirectory(dir=path.parent, prefix=_PREFIX) as folder:
            yield Path(folder, path.name)
            for file in sorted(Path(folder).iterdir(), key=lambda file: file.name != path.name):
                _move(file, os.path.realpath(path.with_name(file.name)))
    except OSError as error:
        from_system = error.errno is not None and error.filename2 is None
        if from_system and _PREFIX in str(error.filename or _PREFIX):
            error.filename = str(path)  # name the requested file, not the temporary one
        raise
    except RuntimeError as error:
        if "iostream" not in str(error):  # OpenVINO's only message for a file that it cannot write
            raise
        raise ValueError(f"{path} cannot be written: free some space on its disk or use another path") from None


def _move(file: Path, target: str) -> None:
    try:
        file.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # the target is a symbolic link to another disk
            raise
        shutil.copyfile(file, target)
