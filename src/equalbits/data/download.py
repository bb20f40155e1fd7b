"""Download a data set from its publisher: resumable, verified by checksum, unpacked atomically."""

import shutil
import tarfile
import tempfile
import zlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from equalbits._extras import install_hint
from equalbits._text import one_line
from equalbits.data.cifar import EDITIONS, Edition
from equalbits.data.dataset import DataError
from equalbits.data.named_datasets import data_root

_CHUNK = 1 << 16  # bytes; a connection that breaks loses less than this
_TIMEOUT = 30.0


def download_dataset(name: str, root: str | Path | None = None, *, progress: bool = True) -> Path:
    """Download ``cifar10`` or ``cifar100`` to ``root/<name>`` and return the directory of its files.

    Existing files are kept, and so is a complete unpacked archive elsewhere in ``root``. An archive placed in ``root``
    or ``root/<name>`` by hand is used if its checksum is right. An interrupted download is resumed. ``progress`` shows
    a bar on a terminal. Of several calls at once, one downloads and the others wait.
    """
    if name not in EDITIONS:
        raise DataError(f"cannot download {name!r}; there are {', '.join(EDITIONS)}: put other data into root by hand")
    edition, home = EDITIONS[name], data_root(root) / name
    if folder := _complete(edition, home):
        return folder
    if find_spec("pooch") is None:
        raise DataError(f"downloads need pooch: {install_hint('train')}")
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home.with_name(f".{name}.lock")):
            return _complete(edition, home) or _download(edition, home, progress=progress)
    except OSError as error:
        raise DataError(
            f"{home}: {error.strerror or error}; free some space, or choose another directory (--data)"
        ) from None


def _complete(edition: Edition, home: Path) -> Path | None:
    """Return the directory that holds every file of the edition, if there is one."""
    folders = edition.folders(home.name, home.parent)
    return next((each for each in folders if all((each / file).is_file() for file in edition.files)), None)


def _download(edition: Edition, home: Path, *, progress: bool) -> Path:
    given = next((path for path in (home, home.parent) if (path / edition.archive).is_file()), None)
    archive = _fetch(edition, given or home, progress=progress)
    _unpack(archive, edition, home / edition.folder)
    if given is None:
        archive.unlink()
    return home / edition.folder


def _fetch(edition: Edition, home: Path, *, progress: bool) -> Path:
    """Return the archive in ``home``, downloaded if it is not there; it gets its name only if the checksum is right."""
    import pooch
    import requests

    url, part = edition.site + edition.archive, home / f"{edition.archive}.part"
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # errors and progress are reported here
    try:
        resume = partial(_resume_download, part=part, progress=progress)
        return Path(pooch.retrieve(url, edition.checksum, fname=edition.archive, path=home, downloader=resume))
    except requests.RequestException as error:
        done = part.stat().st_size if part.is_file() else 0
        raise DataError(
            f"cannot download {url} ({_reason(error)}); try again to resume after {done} bytes, "
            f"or put {edition.archive} into {home} by hand"
        ) from None
    except ValueError as error:  # pooch's word on a wrong checksum; it has deleted the file
        raise DataError(f"cannot download {url} ({error}); try again") from None
    finally:
        logger.setLevel(level)


def _resume_download(url: str, output_file: str, _pooch: object, *, part: Path, progress: bool) -> None:
    """Download to ``part``, from where an earlier call stopped, and move it to ``output_file``: a pooch downloader."""
    import requests
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    done = part.stat().st_size if part.is_file() else 0
    headers = {"Range": f"bytes={done}-"} if done else {}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        if response.status_code != requests.codes.requested_range_not_satisfiable:  # else the part is complete
            response.raise_for_status()
            if response.status_code != requests.codes.partial_content:
                done = 0  # the server cannot resume and sends the whole file
            length = response.headers.get("Content-Length", "")
            total = done + int(length) if length.isdecimal() else None  # it may be missing or no number
            columns = (
                "{task.description}",
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            console = Console(stderr=True)
            bar = Progress(*columns, console=console, disable=not (progress and console.is_terminal))
            with part.open("ab" if done else "wb") as file, bar:
                task = bar.add_task(part.stem, completed=done, total=total)
                for chunk in response.iter_content(_CHUNK):
                    file.write(chunk)
                    bar.advance(task, len(chunk))
    part.replace(output_file)


def _reason(error: Exception) -> str:
    """Return the innermost cause of a network error, in one line."""
    while isinstance(error.args[0] if error.args else None, Exception):
        error = error.args[0]
    return one_line(getattr(error, "reason", None) or error)


def _unpack(archive: Path, edition: Edition, target: Path) -> None:
    """Unpack next to the target and rename, so that a partly unpacked directory is never seen."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as work:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(work, filter="data")  # rejects links and paths that lead outside
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise DataError(f"{archive}: cannot be unpacked ({error}); delete it and try again") from None
        missing = [file for file in edition.files if not (Path(work) / edition.folder / file).is_file()]
        if missing:
            raise DataError(f"{archive}: holds no {edition.folder}/{missing[0]}; it is another archive: delete it")
        if target.exists():
            shutil.rmtree(target)
        (Path(work) / edition.folder).replace(target)
