"""Report errors in one line, with a remedy, and choose the exit code."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from equalbits._extras import install_hint
from equalbits._text import bounded, escape_control_chars
from equalbits.cli.terminal import discard_output

#: Extra: the packages that it installs.
_EXTRAS = {
    "train": ("torch", "safetensors", "filelock", "pooch"),
    "plot": ("matplotlib", "jinja2", "scipy"),
    "images": ("PIL",),
    "serve": ("starlette", "uvicorn"),
    "onnx": ("onnx", "onnxruntime"),
    **{name: (name,) for name in ("tensorboard", "openvino", "ray", "wandb")},
}

_FILE_ERRORS = {
    errno.ENOENT: "no such file; check the path",
    errno.EACCES: "permission denied; change the permissions or use another path",
    errno.EPERM: "operation not permitted; change the permissions or use another path",
    errno.EISDIR: "is a directory; give a file",
    errno.ENOTDIR: "a parent of this path is a file; use another path",
    errno.EEXIST: "exists and is not a directory; use another path",
    errno.ENOSPC: "no space left on the disk; free some space and retry",
    errno.EDQUOT: "disk quota exceeded; free some space and retry",
    errno.EFBIG: "larger than the disk or `ulimit -f` allows; raise the limit or use another path",
    errno.EROFS: "the file system is read-only; use another path",
}


def run_reporting_errors(prefix: str, work: Callable[[], int | None]) -> int:
    """Call ``work`` and return the exit code; print an error as one line that starts with ``prefix``."""
    try:
        code = work() or 0
        _flush()
        return code
    except KeyboardInterrupt:  # training catches it itself and raises InterruptedTraining
        print(f"{prefix}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        _flush(discard=True)
        return 0
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        if os.environ.get("EQUALBITS_TRACEBACK") or _is_bug(error):
            raise
        distributed = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
        process = f" (process {os.environ['RANK']})" if distributed else ""
        print(f"{prefix}{process}: {error_message(error)}", file=sys.stderr)
        _flush(discard=True)
        return 1
    except Exception as error:
        signal_number = getattr(error, "signal_number", None)  # InterruptedTraining, without importing torch
        if signal_number is None:
            raise
        print(f"{prefix}: {escape_control_chars(str(error))}\nrun the same command to resume", file=sys.stderr)
        return 128 + int(signal_number)


def error_message(error: BaseException) -> str:
    """Return what went wrong and what to do about it; file names may hold control characters, and be long."""
    return bounded(escape_control_chars(_describe(error)), 2000)


def _describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = {"PIL": "pillow"}.get(error.name, error.name)
        extra = next((extra for extra, packages in _EXTRAS.items() if error.name in packages), "")
        return f"this needs {package}: {install_hint(extra) if extra else f'pip install {package}'}"
    if is_out_of_memory(error):
        return "out of memory: lower data.batch_size, set accumulate=2, or use a smaller model"
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        path = Path(os.fsdecode(error.filename2 or error.filename))
        if error.errno == errno.ENOENT and not path.parent.is_dir():
            return f"the directory {path.parent} does not exist; create it or use another path"
        return f"{path}: {_FILE_ERRORS.get(error.errno, error.strerror)}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # no file name: standard output, for example
        return _FILE_ERRORS[errno.ENOSPC]
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(text.split()) or type(error).__name__


def _is_bug(error: BaseException) -> bool:
    """Return True for an error in this package, whose traceback is needed to fix it."""
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").startswith("equalbits")
    return isinstance(error, RuntimeError) and not is_out_of_memory(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the errors of Python and torch where memory, of the CPU or a GPU, does not suffice."""
    if isinstance(error, MemoryError):
        return True
    # On a GPU torch raises OutOfMemoryError; on a CPU a plain RuntimeError. Checked without importing torch.
    gpu, cpu = type(error).__name__ == "OutOfMemoryError", "can't allocate memory" in str(error)
    return isinstance(error, RuntimeError) and (gpu or cpu)


def _flush(*, discard: bool = False) -> None:
    """Flush standard output while an error in doing so can still be reported.

    With ``discard`` output that cannot be written is dropped; Python would otherwise try again at exit, and fail.
    """
    try:
        print(end="", flush=True)  # works even where there is no stdout
    except OSError:
        if not discard:
            raise
        discard_output(sys.stdout)
