"""Download a data set from its publisher: resumable, verified by checksum, unpacked atomically."""

import shutil
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from equalbits._extras import install_hint
from equalbits.data.cifar import EDITIONS
from equalbits.data.datasets import data_root
from equalbits.data.records import DataError

_CHUNK = 1 << 16  # bytes; a connection that breaks loses less than this
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Source:
    """Address of a data set's archive, and its checksum.

    ``checksum`` is ``md5:...`` or ``sha256:...``; ``folder`` and ``files`` are the archive's content.
    """

    url: str
    checksum: str
    folder: str
    files: tuple[str, ...]

    def __post_init__(self) -> None:
        kind, _, digits = self.checksum.partition(":")
        if kind not in ("md5", "sha256") or not digits:
            raise DataError(f"checksum={self.checksum!r} must be 'md5:...' or 'sha256:...'")

    @property
    def archive(self) -> str:
        """The archive's file name."""
        return PurePosixPath(urlsplit(self.url).path).name


SOURCES = {
    name: Source(
        url=f"https://www.cs.toronto.edu/~kriz/{EDITIONS[name].archive}",
        checksum=checksum,
        folder=EDITIONS[name].folder,
        files=EDITIONS[name].files,
    )
    for name, checksum in (
        ("cifar10", "md5:c32a1d4ab5d03f1284b67883e8d87530"),
        ("cifar100", "md5:03b5dce01913d631647c71ecec9e9cb8"),
    )
}


def download_dataset(
    name: str, root: str | Path | None = None, *, source: Source | None = None, progress: bool = True
) -> Path:
    """Download a data set to ``root/<name>`` and return the directory of its files.

    Existing files are kept, and so is a complete unpacked archive elsewhere in ``root``. An archive placed in ``root``
    or ``root/<name>`` by hand is used if its checksum is right. An interrupted download is resumed. ``progress`` shows
    a bar on a terminal. Call it in one process, before others start.
    """
    source = source or SOURCES.get(name)
    if source is None:
        raise DataError(f"cannot download {name!r}; there are {', '.join(SOURCES)}: put other data into root by hand")
    home = data_root(root) / name
    target = home / source.folder
    for folder in EDITIONS[name].folders(name, home.parent) if name in EDITIONS else [target]:
        if all((folder / file).is_file() for file in source.files):
            return folder
    if find_spec("pooch") is None:
        raise DataError(f"downloads need pooch: {install_hint('train')}")
    try:
        home.mkdir(parents=True, exist_ok=True)
        given = next((path for path in (home, home.parent) if (path / source.archive).is_file()), None)
        archive = _fetch(source, given or home, progress=progress)
        _unpack(archive, source, target)
        if given is None:
            archive.unlink()
    except OSError as error:
        raise DataError(
            f"{home}: {error.strerror or error}; free some space, or choose another directory (--data)"
        ) from None
    return target


def _fetch(source: Source, home: Path, *, progress: bool) -> Path:
    """Return the archive in ``home``, downloaded if it is not there; it gets its name only if the checksum is right."""
    import pooch
    import requests

    part = home / f"{source.archive}.part"
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # errors and progress are reported here
    try:
        resume = partial(_resume_download, part=part, progress=progress)
        return Path(pooch.retrieve(source.url, source.checksum, fname=source.archive, path=home, downloader=resume))
    except requests.RequestException as error:
        done = part.stat().st_size if part.is_file() else 0
        raise DataError(
            f"cannot download {source.url} ({_reason(error)}); try again to resume after {done} bytes, "
            f"or put {source.archive} into {home} by hand"
        ) from None
    except ValueError as error:  # pooch's word on a wrong checksum; it has deleted the file
        raise DataError(f"cannot download {source.url} ({error}); try again") from None
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
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
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
    return " ".join(str(getattr(error, "reason", None) or error).split())


def _unpack(archive: Path, source: Source, target: Path) -> None:
    """Unpack next to the target and rename, so that a partly unpacked directory is never seen."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as work:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(work, filter="data")  # rejects links and paths that lead outside
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise DataError(f"{archive}: cannot be unpacked ({error}); delete it and try again") from None
        missing = [file for file in source.files if not (Path(work) / source.folder / file).is_file()]
        if missing:
            raise DataError(f"{archive}: holds no {source.folder}/{missing[0]}; it is another archive: delete it")
        if target.exists():
            shutil.rmtree(target)
        (Path(work) / source.folder).replace(target)
