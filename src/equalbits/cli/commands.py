"""The command: words in, one call, words out. No logic of its own."""

import argparse
import difflib
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from equalbits._extras import install_hint
from equalbits.cli.hints import check_none_empty, meant
from equalbits.cli.terminal import terminal_may_go, to_nowhere

# name: (module that holds add_arguments and run, one line of help). No module is called `list`: it would hide Python's.
COMMANDS = {
    "demo": ("demo", "train sign, IR-Net and bi-half side by side on the embedded data, and draw them (2 minutes)"),
    "train": ("train", "train a recipe, or a TOML file of your own; go on where it stopped"),
    "sweep": ("sweep", "train every combination of some settings with several seeds, side by side on one GPU"),
    "compare": ("compare", "train methods alike on one net and data set, and set them side by side: table and picture"),
    "reproduce": (
        "reproduce",
        "measure a figure or table of the paper, draw it, and hold it against what the paper says",
    ),
    "report": ("report", "put whatever a folder holds on one page: pictures, tables, curves, and what made them"),
    "evaluate": ("evaluate", "score a trained run on every test image"),
    "list": ("names", "show recipes, models, methods and data sets by name; --show NAME prints a recipe"),
    "inspect": ("inspect", "look into a run or a packed file: layers, bits, bytes, and whether each ratio holds"),
    "pack": ("pack", "write a trained run as one file of bits, checked against the model"),
    "run": ("run_file", "name the likeliest classes of pictures by a packed file; needs no torch"),
    "bench": ("bench", "measure how fast a packed file runs here: milliseconds an image, by layer, beside torch"),
    "export": ("export", "write a packed file or a run for ONNX or OpenVINO runtimes, checked to answer the same"),
    "download": ("download", "fetch a data set from its publisher; what is there already is kept"),
}

# package that is not everyone's: the extra that brings it
_EXTRAS = {
    "torch": "train",
    "safetensors": "train",
    "PIL": "images",
    "matplotlib": "plot",
    "tensorboard": "tensorboard",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "openvino": "openvino",
    "ray": "ray",
    "wandb": "wandb",
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def print_help(self, file: object = None) -> None:
        if code := _told(self.prog, lambda: print(self.format_help(), end="")):
            self.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 done, 1 refused, 2 misread, 128 + n stopped by signal n."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal or pipe that knows no × shows a question mark for it
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _Parser(
        prog="equalbits",
        description="Binary neural networks whose share of +1 and -1 weights is exact.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="start with:  equalbits demo   ·   equalbits train fashion-conv2 --out runs/a   ·   equalbits list",
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    wanted = next((word for word in words if not word.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        close = difflib.get_close_matches(wanted.lower(), COMMANDS, n=1)
        instead = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
        parser.error(f"no command {wanted!r}; {instead}")
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name == wanted:  # only the command that runs pays for its imports
            import_module(f"equalbits.cli.{module}").add_arguments(command)
    options, unread = parser.parse_known_args(words)
    reader = commands.choices.get(wanted or "", parser)
    if unread:
        reader.error(f"unrecognized arguments: {' '.join(unread)}{meant(words, unread, reader)}")
    check_none_empty(options, reader)
    if options.version:
        from equalbits import __version__

        return _told(parser.prog, lambda: print(f"equalbits {__version__}"))
    if options.command is None:
        parser.print_help()
        return 0
    with terminal_may_go():
        return _told(f"{parser.prog} {options.command}", lambda: _run(options))


def _run(options: argparse.Namespace) -> int | None:
    _check_data(options)
    code: int | None = import_module(f"equalbits.cli.{COMMANDS[options.command][0]}").run(options)
    return code


def _told(who: str, work: Callable[[], int | None]) -> int:
    """Do the work; return the exit code, and say in one line why not where it could not be done."""
    try:
        code = work() or 0
        _flush()
        return code
    except KeyboardInterrupt:  # training says itself what it saved, and ends without one
        print(f"{who}: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read our output, `head` perhaps, has heard enough
        _flush(give_up=True)
        return 0
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        if os.environ.get("EQUALBITS_TRACEBACK") or _is_ours(error):
            raise
        several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
        process = f" (process {os.environ['RANK']})" if several else ""
        print(f"{who}{process}: {_one_line(error)}", file=sys.stderr)
        _flush(give_up=True)
        return 1


def _flush(*, give_up: bool = False) -> None:
    """Write out what was printed while a reader that has gone, or a full disk, can still be told of.

    With ``give_up`` what cannot be written goes nowhere: it would be tried again, and failed of, when Python ends.
    """
    try:
        print(end="", flush=True)  # does nothing where there is no stdout
    except OSError:
        if not give_up:
            raise
        to_nowhere(sys.stdout)


def _check_data(options: argparse.Namespace) -> None:
    """Refuse a file in place of the folder of data sets, to which all other advice would point."""
    if not hasattr(options, "data"):
        return
    name, data = ("--data", options.data) if options.data else ("EQUALBITS_DATA", os.environ.get("EQUALBITS_DATA"))
    if data and Path(data).is_file():
        raise ValueError(f"{name} {data} is a file: name the folder where data sets lie")


def _is_ours(error: BaseException) -> bool:
    """Whether it is a mistake in this package, whose whole story helps whoever mends it."""
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").startswith("equalbits")
    return isinstance(error, RuntimeError) and not _is_out_of_memory(error)


def _is_out_of_memory(error: BaseException) -> bool:
    torchs = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)  # a GPU's, a CPU's
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and torchs)


def _one_line(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        package = {"PIL": "pillow"}.get(error.name, error.name)
        return f"this needs {package}: {install_hint(_EXTRAS[error.name])}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"this needs the package {error.name}: pip install {error.name}"
    if _is_out_of_memory(error):
        return "there is not enough memory: lower data.batch_size, set accumulate=2, or take a smaller net"
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return _about_file(Path(os.fsdecode(error.filename2 or error.filename)), error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # of no file by name: what is printed, say
        return "the disk is full: make room and call again"
    words = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(words.split()) or type(error).__name__


def _about_file(path: Path, error: OSError) -> str:
    """What the system says of a file, in plain words."""
    if error.errno == errno.ENOENT and not path.parent.is_dir():
        return f"the folder {path.parent} is not there: make it first, or name another"
    words = {
        errno.ENOENT: "is not there: check how it is written, or name another",
        errno.EACCES: "may not be read or written by you: change its rights, or name another",
        errno.EPERM: "may not be changed by you: change its rights, or name another",
        errno.EISDIR: "is a folder: name a file",
        errno.ENOTDIR: "lies below a file: name a folder",
        errno.EEXIST: "is there already, and is no folder: name another",
        errno.ENOSPC: "does not fit: the disk is full, so make room and call again",
        errno.EDQUOT: "does not fit: your share of the disk is used up, so make room and call again",
        errno.EFBIG: "is larger than this disk or `ulimit -f` allows: raise that, or name another disk",
        errno.EROFS: "is on a disk that can only be read: name a place elsewhere",
    }.get(error.errno or 0)
    return f"{path} {words}" if words else f"{path}: {error.strerror}"
