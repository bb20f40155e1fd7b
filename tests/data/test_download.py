"""Downloads of a small archive from a local server."""

import hashlib
import io
import random
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from equalbits.data import EDITIONS, DataError, download_dataset, load_dataset
from equalbits.data.cifar import Edition


class Server(ThreadingHTTPServer):
    """Serves ``content`` at every address, records requests, and can misbehave."""

    content = b""
    ranges = True
    break_after: int | None = None
    length = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        if wanted and self.server.ranges and start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if wanted and self.server.ranges else 200)
        self.send_header("Content-Length", self.server.length or str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.server.break_after is None else body[: self.server.break_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def archive(folder="made", **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


MADE = Edition(
    archive="made.tar.gz", checksum="", folder="made", pickled="", train=("one",), test=(), class_names="two",
    label_classes=(10,),
)  # fmt: skip


def source(server: Server, content: bytes, *, kind="sha256", known: Edition = MADE, **changes) -> Edition:
    server.content = content
    fields = {
        "site": f"http://127.0.0.1:{server.server_port}/",
        "checksum": f"{kind}:{hashlib.new(kind, content).hexdigest()}",
    }
    return replace(known, **{**fields, **changes})


def fetch(where: Edition, root: Path, *, name: str = "made", progress: bool = False) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EDITIONS, name, where)
        return download_dataset(name, root, progress=progress)


CONTENT = archive(one=b"1" * 1000, two=b"2" * 500, three=bytes(range(256)) * 4000)


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_download_is_checked_unpacked_and_kept(tmp_path, server, kind):
    where = source(server, CONTENT, kind=kind)
    folder = fetch(where, tmp_path, progress=True)
    assert folder == tmp_path / "made/made"
    assert (folder / "one").read_bytes() == b"1" * 1000 and (folder / "three").stat().st_size == 1024_000
    assert sorted(path.name for path in folder.parent.iterdir()) == ["made"]  # no archive, no part, no work folder
    assert fetch(where, tmp_path) == folder
    assert len(server.asked) == 1  # the second call found all in place


def test_an_interrupted_download_is_resumed(tmp_path, server):
    where = source(server, archive(one=b"1", two=b"2" * 500, three=random.Random(0).randbytes(300_000)))
    server.break_after = 200_000
    with pytest.raises(DataError) as error:
        fetch(where, tmp_path)
    text = str(error.value)
    assert "200000 bytes read" in text and "try again to resume after 196608 bytes" in text and "\n" not in text
    assert not (tmp_path / "made/made").exists()
    server.break_after = None
    folder = fetch(where, tmp_path)
    assert server.asked == [None, "bytes=196608-"] and (folder / "two").read_bytes() == b"2" * 500


def test_a_server_that_cannot_resume_sends_all_of_it_again(tmp_path, server):
    where = source(server, CONTENT)
    server.ranges = False
    (tmp_path / "made").mkdir()
    (tmp_path / "made/made.tar.gz.part").write_bytes(CONTENT[:777])
    folder = fetch(where, tmp_path)
    assert (folder / "one").read_bytes() == b"1" * 1000


@pytest.mark.parametrize("more", [b"", b"too much"])
def test_a_complete_partial_download_is_checked_by_its_checksum(tmp_path, server, more):
    where = source(server, CONTENT)
    (tmp_path / "made").mkdir()
    part = tmp_path / "made/made.tar.gz.part"
    part.write_bytes(CONTENT + more)
    if more:
        with pytest.raises(DataError, match=r"hash of downloaded file .* does not match the known hash.*; try again"):
            fetch(where, tmp_path)
        assert not part.exists()
    assert (fetch(where, tmp_path) / "two").is_file()


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path, server):
    where = source(server, CONTENT, checksum="md5:" + "0" * 32)
    with pytest.raises(DataError, match=r"does not match the known hash: expected md5:0{32} .*; try again"):
        fetch(where, tmp_path)
    assert list((tmp_path / "made").iterdir()) == []


def test_without_a_network_one_line_names_the_files_to_place(tmp_path, server):
    where = source(server, CONTENT)
    server.shutdown()
    server.server_close()  # nobody listens there any more
    with pytest.raises(DataError) as error:
        fetch(where, tmp_path)
    text = str(error.value)
    assert f"put made.tar.gz into {tmp_path / 'made'} by hand" in text
    assert where.site + where.archive in text and "\n" not in text


def test_a_missing_page_is_reported(tmp_path, server):
    site = f"http://127.0.0.1:{server.server_port}/missing/"
    with pytest.raises(DataError, match=r"cannot download http.*made.tar.gz \(404 .*Not Found"):
        fetch(source(server, CONTENT, site=site), tmp_path)


@pytest.mark.parametrize("place", ["made.tar.gz", "made/made.tar.gz"])
def test_an_archive_put_there_by_hand_needs_no_network(tmp_path, server, place):
    where = source(server, CONTENT)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(CONTENT)
    folder = fetch(where, tmp_path)
    assert (folder / "one").is_file() and path.is_file() and server.asked == []


def test_a_damaged_archive_put_there_by_hand_is_downloaded_again(tmp_path, server):
    (tmp_path / "made.tar.gz").write_bytes(CONTENT[:-5])
    folder = fetch(source(server, CONTENT), tmp_path)
    assert (folder / "one").is_file() and (tmp_path / "made.tar.gz").read_bytes() == CONTENT and len(server.asked) == 1


def test_a_folder_that_lacks_a_file_is_replaced(tmp_path, server):
    where = source(server, CONTENT)
    folder = fetch(where, tmp_path)
    (folder / "two").unlink()
    (folder / "stray").touch()
    assert fetch(where, tmp_path) == folder
    assert (folder / "two").is_file() and not (folder / "stray").exists()


@pytest.mark.parametrize("place", ["", "cifar10"])
def test_a_copy_made_by_the_user_is_kept_unless_a_file_is_missing(tmp_path, server, cifar10_binary, place):
    folder = tmp_path / "root" / place
    cifar10_binary(folder)
    known = EDITIONS["cifar10"]
    where = source(server, CONTENT, known=known)
    assert fetch(where, tmp_path / "root", name="cifar10") == folder
    assert server.asked == [] and not (folder / known.folder).exists()
    (folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"holds no cifar-10-batches-bin/data_batch_1.bin"):
        fetch(where, tmp_path / "root", name="cifar10")
    assert server.asked == [None]


def with_member(info: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(info, io.BytesIO(b"x" * info.size))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../escaped", tarfile.REGTYPE, ""),
        ("made/../../escaped", tarfile.REGTYPE, ""),
        ("/tmp/escaped", tarfile.REGTYPE, ""),
        ("made\\..\\escaped", tarfile.REGTYPE, ""),
        ("made/link", tarfile.SYMTYPE, "../../escaped"),
        ("made/link", tarfile.LNKTYPE, "../../escaped"),
        ("made/pipe", tarfile.FIFOTYPE, ""),
    ],
)
def test_an_archive_that_reaches_outside_is_refused(tmp_path, server, name, kind, link):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 3 if kind == tarfile.REGTYPE else 0
    root = tmp_path / "root"
    where = source(server, with_member(info))
    with pytest.raises(DataError, match=r"cannot be unpacked|holds no made/one"):
        fetch(where, root)
    assert not list(tmp_path.rglob("escaped")) and not (root / "made/made").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"not an archive", "cannot be unpacked"), (archive(other=b"1"), "holds no made/one; it is another archive")],
    ids=["no archive", "another archive"],
)
def test_an_archive_with_the_right_sum_and_wrong_content_is_refused(tmp_path, server, content, says):
    with pytest.raises(DataError, match=says):
        fetch(source(server, content), tmp_path)
    assert not (tmp_path / "made/made").exists()


def test_a_data_root_that_is_a_file_is_reported_in_one_line(tmp_path, server):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="choose another directory"):
        fetch(source(server, CONTENT), tmp_path / "file")


def test_a_data_set_without_an_archive_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot download 'imagenet'; there are cifar10, cifar100"):
        download_dataset("imagenet", tmp_path)


def test_a_bar_is_drawn_only_on_a_terminal(tmp_path, server, capfd, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # either would make anything a terminal
        monkeypatch.delenv(name, raising=False)
    fetch(source(server, CONTENT), tmp_path, progress=True)
    out, err = capfd.readouterr()
    assert (out, err.strip()) == ("", "")


def test_a_download_can_be_loaded(tmp_path, server, cifar10_binary):
    folder = tmp_path / "made-up/cifar-10-batches-bin"
    parts = cifar10_binary(folder)
    content = archive("cifar-10-batches-bin", **{path.name: path.read_bytes() for path in folder.iterdir()})
    known = EDITIONS["cifar10"]
    where = source(server, content, known=known)
    root = tmp_path / "root"
    assert fetch(where, root, name="cifar10") == root / "cifar10/cifar-10-batches-bin"
    assert load_dataset("cifar10", root, split="train").labels.tolist() == parts["train"][1].tolist()


def test_the_listed_sources_are_the_publishers():
    assert {name: (known.archive, known.folder) for name, known in EDITIONS.items()} == {
        "cifar10": ("cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
        "cifar100": ("cifar-100-binary.tar.gz", "cifar-100-binary"),
    }


def test_a_content_length_that_is_no_number_is_ignored(tmp_path, server):
    where = source(server, CONTENT)
    server.length = "abc"
    assert (fetch(where, tmp_path) / "one").read_bytes() == b"1" * 1000


def test_four_downloads_at_once_download_once_and_all_get_the_files(tmp_path, server):
    where = source(server, archive(one=b"1", two=b"2" * 500, three=random.Random(1).randbytes(300_000)))
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setitem(EDITIONS, "made", where)
        found = list(pool.map(lambda _: download_dataset("made", tmp_path, progress=False), range(4)))
    assert found == [tmp_path / "made/made"] * 4
    assert len(server.asked) == 1
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["made"]
