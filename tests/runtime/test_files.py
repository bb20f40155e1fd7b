"""Files in use, overwritten, truncated or unwritable: no partial file is seen, and no model changes."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from equalbits.runtime import FormatError, Network, NetworkBuilder, PackedModel, load_packed, native
from equalbits.runtime.container import decode, encode
from equalbits.runtime.format import _HEADER, _digest, from_bytes, read_network, to_chunks, to_json, write_network

GOLDEN = Path(__file__).parents[1] / "golden"
ENGINES = ["numpy"] if native.BUILT is None else ["numpy", "native"]

WRITTEN_OVER = """
import sys
import numpy as np
from equalbits.runtime import load_packed
path, engine, other = sys.argv[1:]
model = load_packed(path, engine=engine)
images = np.ones((2, 3, 8, 8), np.float32)
truth = model(images)
open(path, "wb").write(open(other, "rb").read())  # not replaced: the same file, cut and filled anew
assert (model(images) == truth).all()
assert model.audit().layers[1].zero.tolist() == [18] * 16
model.save(path)
assert (load_packed(path)(images) == truth).all()
"""
TOO_LARGE = """
import resource, sys
from equalbits.runtime import load_packed
model = load_packed(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try: model.save(sys.argv[2])
except OSError as error: print(error.filename)
"""


@pytest.fixture
def model() -> PackedModel:
    return load_packed(GOLDEN / "residual.ebits")


def flat(classes: tuple[str, ...] = (), **facts: object) -> Network:
    build = NetworkBuilder((1, 2, 2))
    build.add("flatten", build.image)
    return build.finish(classes=classes, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("other", ["/dev/null", str(GOLDEN / "plain.ebits")])
def test_a_file_that_is_written_over_while_in_use_changes_nothing(engine: str, other: str, tmp_path: Path) -> None:
    path = shutil.copy(GOLDEN / "residual.ebits", tmp_path / "net.ebits")
    done = subprocess.run([sys.executable, "-c", WRITTEN_OVER, path, engine, other], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_is_held_once_while_it_is_read(tmp_path: Path) -> None:
    build = NetworkBuilder((1, 64, 64))
    build.add("linear", build.add("flatten", build.image), weight=np.zeros((200, 4096), np.float32))
    write_network(build.finish(), tmp_path / "large.ebits")
    tracemalloc.start()
    try:
        network = read_network(tmp_path / "large.ebits")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1.5 * (tmp_path / "large.ebits").stat().st_size
    assert not any(tensor.flags.writeable for tensor in network.tensors.values())


def test_threads_that_save_to_one_file_never_leave_a_partial_file(model: PackedModel, tmp_path: Path) -> None:
    path, faults = tmp_path / "net.ebits", []

    def save_and_load() -> None:
        try:
            for _ in range(50):
                model.save(path)
                load_packed(path, engine="numpy")
        except (OSError, ValueError) as error:
            faults.append(error)

    threads = [threading.Thread(target=save_and_load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert [found.name for found in tmp_path.iterdir()] == ["net.ebits"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits here")
def test_a_file_that_does_not_fit_leaves_the_old_one_alone(tmp_path: Path) -> None:
    (tmp_path / "net.ebits").write_bytes(b"old")
    words = [sys.executable, "-c", TOO_LARGE, GOLDEN / "residual.ebits", tmp_path / "net.ebits"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == f"{tmp_path / 'net.ebits'}\n", done.stderr
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("net.ebits", b"old")]


def test_a_name_may_be_as_long_as_the_system_allows(model: PackedModel, tmp_path: Path) -> None:
    model.save(tmp_path / f"{'n' * 249}.ebits")
    assert load_packed(tmp_path / f"{'n' * 249}.ebits").network.shapes == model.network.shapes


@pytest.mark.parametrize("name", ["file/net.ebits", f"{'n' * 300}.ebits", ""])
def test_an_invalid_output_path_is_named_as_requested(name: str, model: PackedModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as refused:
        model.save(tmp_path / name)
    assert refused.value.filename == str(tmp_path / name)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_a_link_and_its_target_is_written(model: PackedModel, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "net.ebits").symlink_to("store/net-1.ebits")
    model.save(tmp_path / "net.ebits")
    assert (tmp_path / "net.ebits").is_symlink()
    assert (tmp_path / "store" / "net-1.ebits").read_bytes() == (GOLDEN / "residual.ebits").read_bytes()
    assert len(list(tmp_path.rglob("*"))) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_device_is_written_to_and_not_replaced(model: PackedModel, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        model.save(tmp_path / "full")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"classes": (0, 1, 2, 3)}, "a class is called 0: names must be str"),
        ({"classes": ("a", "b", "c", "\udcff")}, r"a class is called '\\udcff', which is not valid Unicode"),
        ({"notes": {"made": 2026}}, "a note is called 2026: names must be str"),
        ({"notes": {1: "a"}}, "a note is called 1: names must be str"),
        ({"mean": [1e10], "std": [1]}, "mean"),
        ({"mean": [0.5], "std": [1e-50]}, "each must be above 0"),
        ({"mean": [1e8], "std": [1e-38]}, "beyond float32"),
    ],
)
def test_a_network_that_could_not_be_read_back_is_refused_at_construction(facts: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule) as refused:
        flat(**facts)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_sizes_that_are_not_integers_are_refused() -> None:
    for size in (2.0, np.int64(2), True):
        with pytest.raises(ValueError, match="channels, rows and columns"):
            Network((1, size, 2), flat().operations, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "weight", "rule"),
    [
        ("linear a:b", "a:b.weight", "calls its weight 'a:b.weight'"),
        ("linear a\tb", "a\tb.weight", r"calls its weight 'a\\tb.weight'"),
        ("linear weight=a=b", "a=b", "calls its weight 'a=b'"),
        ("linear weight=2", "2", "calls its weight '2'"),
        ("linear weight=", "", "calls its weight ''"),
        ("linear 0 bias=2:x:y", "0.weight", "calls its bias 'x:y'"),
        ("linear 0 bias=2:x\u2003y", "0.weight", r"calls its bias 'x\\u2003y'"),
    ],
)
def test_an_operation_name_that_is_never_written_is_refused(line: str, weight: str, rule: str) -> None:
    """A file that can be read can be saved, copied and inspected, which write the names."""

    def build(line: str, weight: str) -> bytes:
        tensors = {weight: np.ones((2, 2), np.float32)} | (
            {"vectors": np.ones(2, np.float32)} if "bias" in line else {}
        )
        texts = {"equalbits": to_json({**_HEADER, "input": [2, 1, 1]}), "operations": f"flatten\n{line}"}
        digest = _digest(texts, tensors, encode(tensors, {})[1])
        head, data = encode(tensors, {**texts, "sha256": digest})
        return head + b"".join(data)

    with pytest.raises(FormatError, match=rule):
        from_bytes(build(line, weight))
    good = from_bytes(build("linear 0 bias=2", "0.weight"))
    assert from_bytes(b"".join(to_chunks(good))).operations == good.operations


def lengthened(change: Callable[[dict[str, np.ndarray], dict[str, str]], None]) -> bytes:
    found = decode(memoryview(b"".join(to_chunks(load_packed(GOLDEN / "plain.ebits").network))))
    tensors, texts = dict(found.tensors), dict(found.texts)
    change(tensors, texts)
    head, data = encode(tensors, texts)
    return head + b"".join(data)


def test_a_refusal_is_a_short_line_however_long_a_name_in_the_file_is() -> None:
    long, plane = "n" * 100_000, np.zeros((2, 2), np.uint8)
    named = lengthened(lambda tensors, texts: tensors.update({long: plane}))
    for whole in (
        named.replace(b'"U8"', b'"U9"'),
        named.replace(b"[2,2]", b"[2,9]"),
        named.replace(b"[2,2]", b"[2,-2]"),
        named[:-1],
        named + b"x",
        lengthened(lambda tensors, texts: texts.update({long: ""})),
    ):
        with pytest.raises(FormatError) as refused:
            from_bytes(whole)
        assert len(str(refused.value)) < 400 and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["input", "mean", "std", "classes"])
def test_a_refusal_is_a_short_line_however_many_numbers_the_header_holds(name: str) -> None:
    many: list = ["a"] * 200_000 if name == "classes" else [1] * 200_000
    texts = decode(memoryview(b"".join(to_chunks(load_packed(GOLDEN / "plain.ebits").network)))).texts

    def change(tensors: dict[str, np.ndarray], found: dict[str, str]) -> None:
        header = json.loads(texts["equalbits"])
        header |= {"mean": many, "std": many} if name in ("mean", "std") else {name: many}
        found["equalbits"] = to_json(header)
        kept = {key: text for key, text in found.items() if key != "sha256"}
        found["sha256"] = _digest(kept, tensors, encode(tensors, {})[1])

    with pytest.raises(FormatError) as refused:
        from_bytes(lengthened(change))
    assert len(str(refused.value)) < 1100


def test_a_pipe_named_as_a_packed_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.ebits")
    with pytest.raises(FormatError, match=r"net.ebits: it is a pipe: give a file"):
        load_packed(tmp_path / "net.ebits")


def test_leftovers_of_a_killed_save_are_removed_by_the_next_but_not_a_file_being_written(tmp_path) -> None:
    dead, young, held, others = (tmp_path / name for name in (f".{d * 16}.partial" for d in "abc0"))
    others = tmp_path / ".notes.partial"
    for path in (dead, young, held, others):
        path.write_bytes(b"half")
        if path != young:
            os.utime(path, (1, 1))
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a process that still writes holds it
        load_packed(GOLDEN / "plain.ebits").save(tmp_path / "net.ebits")
    assert [path.exists() for path in (dead, young, held, others)] == [False, True, True, True]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_masked_array_is_refused_since_its_mask_would_be_lost(engine: str) -> None:
    model = load_packed(GOLDEN / "plain.ebits", engine=engine)
    images = np.ma.masked_array(np.ones((1, *model.network.input_shape), np.float32), mask=True)
    with pytest.raises(ValueError, match=r"images are a masked array, whose mask would be lost: fill it first"):
        model(images)
    model(images.filled(0))
