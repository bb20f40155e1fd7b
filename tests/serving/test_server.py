"""Waiting requests share one run, limits hold, and a signal stops the server after the requests in flight."""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from threading import Event, Thread

import numpy as np
import pytest

from equalbits.cli.commands import make_parser
from equalbits.runtime import NetworkBuilder, PackedModel
from equalbits.serving import RequestLimits, listen
from equalbits.serving.batcher import Batcher


def test_requests_that_wait_for_the_engine_run_together() -> None:
    sizes: list[int] = []
    free, busy = Event(), Event()

    def engine(images: np.ndarray) -> np.ndarray:
        busy.set()
        assert free.wait(30)
        if images.max() == 255:
            raise ValueError("out of range")
        return images.reshape(len(images), -1).astype(np.float32)

    async def main() -> None:
        batcher = Batcher(engine, 6, sizes.append)
        numbers = [np.full((n, 1, 1, 1), n, np.uint8) for n in (1, 2, 3)]
        first = asyncio.create_task(batcher(numbers[0]))
        await asyncio.to_thread(busy.wait)
        others = [asyncio.create_task(batcher(batch)) for batch in (*numbers, numbers[2], numbers[0].astype(float))]
        given_up = asyncio.create_task(batcher(numbers[1]))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        free.set()
        assert (await first).tolist() == [[1]]
        assert [(await each).ravel().tolist() for each in others] == [[1], [2] * 2, [3] * 3, [3] * 3, [1]]
        assert sizes == [1, 6, 3, 1]
        with pytest.raises(ValueError, match="out of range"):
            await batcher(numbers[0] * 255)
        assert (await batcher(numbers[1])).tolist() == [[2], [2]]
        batcher.close()

    asyncio.run(main())


def connected(port: int) -> HTTPConnection:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.connect()
    return connection


def start_upload(port: int, length: int, body: bytes, **headers: str) -> HTTPConnection:
    """A connection that has sent a part of its body."""
    connection = connected(port)
    connection.putrequest("POST", "/predict")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(length))
    connection.endheaders(body)
    return connection


def finish(connection: HTTPConnection, rest: bytes = b"") -> tuple[int, bytes]:
    try:
        if rest:
            connection.send(rest)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_connections_send_small_parts_at_once() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_body_that_stops_arriving_gets_408(model, start) -> None:
    upload = start_upload(start(model, seconds=0.1), 100, b"some")
    status, text = finish(upload)
    assert status == 408 and b"the body did not arrive within 0.1 seconds" in text


@pytest.mark.parametrize("length", [9_000_000, 11_000_000])
def test_a_large_body_is_refused_after_it_has_arrived_and_a_larger_one_at_once(length: int, model, start) -> None:
    upload = start_upload(start(model, bytes=1_000_000), length, b"", connection="close")
    status, text = finish(upload, b"x" * length * (length < 10_000_000))
    assert status == 413 and b"the body is over 1000000 bytes" in text


def test_too_many_requests_at_a_time_get_503(model, start) -> None:
    port = start(model, requests=1)
    waiting = start_upload(port, 5, b"some")
    while b"in_flight 1" not in finish(_get(port))[1]:
        pass
    status, text = finish(start_upload(port, 5, b"hello"))
    assert status == 503 and b"1 requests are waiting: try again later" in text
    assert finish(waiting, b"x")[0] == 422


def _get(port: int) -> HTTPConnection:
    connection = connected(port)
    connection.request("GET", "/metrics")
    return connection


def test_a_network_that_takes_too_long_gets_503(start) -> None:
    build = NetworkBuilder((64, 96, 96))
    x = build.image
    for place in range(4):
        weight = np.ones((64, 64, 3, 3), np.float32)
        x = build.add("conv", x, weight=weight, name=f"conv{place}", kernel=(3, 3), padding=(1, 1, 1, 1))
    port = start(PackedModel(build.finish(), engine="numpy"), seconds=0.05)
    file = io.BytesIO()
    np.save(file, np.ones((64, 96, 96), np.float32))
    body = file.getvalue()
    status, text = finish(start_upload(port, len(body), body))
    assert status == 503 and b"no answer within 0.05 seconds" in text


def test_connections_at_once_all_get_their_own_answer(model, port) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 6), np.uint8)
    answers: dict[int, bytes] = {}

    def send(place: int) -> None:
        file = io.BytesIO()
        np.save(file, images[place])
        status, text = finish(start_upload(port, len(file.getvalue()), file.getvalue()))
        assert status == 200
        answers[place] = text

    threads = [Thread(target=send, args=(place,)) for place in range(len(images))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for place, best in enumerate(model(images).argmax(axis=1)):
        assert answers[place].startswith(b'{"classes":["' + model.classes[best].encode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_command_after_the_request_in_flight(number: int, model, tmp_path) -> None:
    model.save(tmp_path / "net.ebits")
    words = [sys.executable, "-m", "equalbits", "serve", str(tmp_path / "net.ebits"), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes) as process:
        line = process.stdout.readline()
        assert line.startswith(f"serving {tmp_path / 'net.ebits'} on http://127.0.0.1:"), process.stderr.read()
        port = int(line.split(" with ")[0].rpartition(":")[2])
        body = str(model.prepare(np.zeros((4, 6, 3), np.uint8)).tolist()).encode()
        upload = start_upload(port, len(body), body[:9])
        while b"in_flight 1" not in finish(_get(port))[1]:
            pass
        process.send_signal(number)
        while _accepts(port):
            pass
        status, text = finish(upload, body[9:])
        assert status == 200 and b'"classes"' in text
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (0, "stopped\n", "")


def test_a_run_of_minutes_does_not_keep_the_command_from_ending(tmp_path) -> None:
    build = NetworkBuilder((1, 1200, 1200))
    x = build.add("avg_pool", build.image, kernel=600, stride=1)  # minutes
    build.add("flatten", build.add("slice", x, start=(0, 0, 0), stop=(1, 1, 2), step=(1, 1, 1)))
    PackedModel(build.finish(mean=(0.5,), std=(0.5,))).save(tmp_path / "net.ebits")
    words = ["serve", str(tmp_path / "net.ebits"), "--port", "0", "--max-seconds", "0.5"]
    with subprocess.Popen(
        [sys.executable, "-m", "equalbits", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split(":")[2].split()[0])
        file = io.BytesIO()
        np.save(file, np.zeros((1, 1200, 1200), np.uint8))
        assert finish(start_upload(port, len(file.getvalue()), file.getvalue()))[0] == 503
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (0, "stopped\n", "")


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 30).close()
    except ConnectionError:
        return False
    return True


def test_the_command_has_the_limits_of_the_library(model, port, tmp_path, capsys) -> None:
    from equalbits.cli import main

    options = make_parser(["serve"])[0].parse_args(["serve", "net.ebits"])
    limits = RequestLimits()
    assert all(getattr(options, f"max_{name}") == value for name, value in vars(limits).items())
    model.save(tmp_path / "net.ebits")
    for words, line in (
        (["--max-bytes", "0"], "--max-bytes 0 must be above 0"),
        (["--port", "70000"], "--port 70000 must be from 0 to 65535"),
        (["--port", str(port)], f"127.0.0.1:{port} is in use: give another --port or --host"),
        (["--host", "256.0.0.1"], "256.0.0.1:8000 is not an address of this machine: give another --port or --host"),
    ):
        assert main(["serve", str(tmp_path / "net.ebits"), *words]) == 1
        assert capsys.readouterr().err == f"equalbits serve: {line}\n"
