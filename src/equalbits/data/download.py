"""Fetch a data set from its publisher: resumed where it broke off, checked, unpacked in one step."""

import hashlib
import http.client
import shutil
import ssl
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from equalbits.data.cifar import EDITIONS, whole_copy
from equalbits.data.datasets import data_root
from equalbits.data.records import DataError

Progress = Callable[[int, int | None], None]
"""Told the bytes so far and, where known, how many there will be."""

_CHUNK = 1 << 18
_TIMEOUT = 30.0
_NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and how to know that it came whole.

    ``checksum`` is ``md5:...`` or ``sha256:...`` of the archive; ``folder`` and ``files`` are what it holds.
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
        return PurePosixPath(urllib.parse.urlsplit(self.url).path).name


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
    name: str,
    root: str | Path | None = None,
    *,
    source: Source | None = None,
    progress: Progress | bool = True,
) -> Path:
    """Put a data set under ``root/<name>`` and return the folder its files are in.

    What is there already is kept, and so is a whole copy of CIFAR that lies elsewhere in ``root`` where it is read. An
    archive that was put into ``root`` or ``root/<name>`` by hand is used instead of the network. A download that broke
    off goes on where it stopped. ``progress`` is True for a bar on a terminal, or a function of (bytes so far, bytes
    in all). Call it in one process, before the others start.
    """
    source = source or SOURCES.get(name)
    if source is None:
        raise DataError(f"cannot download {name!r}; there are {', '.join(SOURCES)}: put other data into root by hand")
    home = data_root(root) / name
    target = home / source.folder
    if all((target / file).is_file() for file in source.files):
        return target
    if name in EDITIONS and (copy := whole_copy(name, home.parent)):
        return copy
    try:
        home.mkdir(parents=True, exist_ok=True)
        given = [path for path in (home / source.archive, home.parent / source.archive) if path.is_file()]
        if given:
            _check(given[0], source, "delete it and try again")
            _unpack(given[0], source, target)
        else:
            archive = home / source.archive
            with _reporting(source.archive, progress) as report:
                _fetch(source, archive, report)
            _unpack(archive, source, target)
            archive.unlink()
    except OSError as error:
        raise DataError(
            f"{home}: {error.strerror or error}; make room there, or choose another folder (--data)"
        ) from None
    return target


def _fetch(source: Source, archive: Path, report: Progress) -> None:
    """Download into a file beside the archive, and give it its name only when it is whole and right."""
    part = archive.with_name(archive.name + ".part")
    try:
        _transfer(source.url, part, report)
    except _NETWORK as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"cannot download {source.url} ({reason}); try again to go on from {_size(part)} bytes, "
            f"or put {source.archive} into {archive.parent} by hand and call again"
        ) from None
    try:
        _check(part, source, "try again")
    except DataError:
        part.unlink()
        raise
    part.replace(archive)


def _transfer(url: str, part: Path, report: Progress) -> None:
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return  # all of it is here already; the checksum decides
    with answer:
        if answer.status != http.client.PARTIAL_CONTENT:
            have = 0  # the server sends all of it, from the start
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file:
            report(have, total)
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                report(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection broke off after {have} of {total} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _check(path: Path, source: Source, way_out: str) -> None:
    kind, _, wanted = source.checksum.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if found != wanted.lower():
        raise DataError(f"{path}: {kind} is {found}, not {wanted}, so the archive is damaged; {way_out}")


def _unpack(archive: Path, source: Source, target: Path) -> None:
    """Unpack beside the target and move it there in one step, so that a half-unpacked folder is never seen."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as work:
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    _extract(tar, member, Path(work), archive)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise DataError(f"{archive}: not a whole tar archive ({error}); delete it and try again") from None
        missing = [file for file in source.files if not (Path(work) / source.folder / file).is_file()]
        if missing:
            raise DataError(f"{archive}: holds no {source.folder}/{missing[0]}; it is another archive: delete it")
        if target.exists():
            shutil.rmtree(target)
        (Path(work) / source.folder).replace(target)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, work: Path, archive: Path) -> None:
    """Write one plain file of the archive below ``work``; anything that could land elsewhere is refused."""
    place = PurePosixPath(member.name)
    if member.isdir():
        return  # folders are made as files need them
    data = tar.extractfile(member) if member.isreg() else None
    if data is None or place.is_absolute() or ".." in place.parts or "\\" in member.name or ":" in member.name:
        raise DataError(f"{archive}: refuses to unpack {member.name!r}, which is no plain file inside it; delete it")
    path = work.joinpath(*place.parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with data, path.open("wb") as file:
        shutil.copyfileobj(data, file, _CHUNK)


@contextmanager
def _reporting(title: str, progress: Progress | bool) -> Iterator[Progress]:
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
