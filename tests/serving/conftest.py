"""A server in a thread of this process, on a free port, and a client."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from threading import Thread
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from equalbits.runtime import NetworkBuilder, PackedModel
from equalbits.serving import RequestLimits, listen, make_app, make_server

Post = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def model() -> PackedModel:
    """A net whose logits compare the sums of red, green and blue in a picture of 4×6."""
    build = NetworkBuilder((3, 4, 6))
    signs = np.kron(np.eye(3, dtype=np.int8) * 2 - 1, np.ones((1, 24), np.int8))
    build.add_binary("linear", build.add("flatten", build.image), signs, name="fc")
    return PackedModel(build.finish(mean=(0.5,) * 3, std=(0.25,) * 3, classes=("red", "green", "blue")))


@contextmanager
def serving(model: PackedModel, **limits: float) -> Iterator[int]:
    """Serve a model in a thread; yield its port."""
    with listen("127.0.0.1", 0) as listener:
        server = make_server(make_app(model, name="colors", limits=RequestLimits(**limits)), seconds=1)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def request(port: int, method: str, path: str, body: Any = None, kind: str = "") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="session")
def port(model: PackedModel) -> Iterator[int]:
    """The port of a server with limits that a test can reach."""
    with serving(model, bytes=100_000, pixels=10_000, images=8) as port:
        yield port


@pytest.fixture(scope="session")
def get(port: int) -> Callable[[str], tuple[int, str]]:
    return lambda path: request(port, "GET", path)


@pytest.fixture(scope="session")
def post(port: int) -> Post:
    """Post a body to the server: the status and the JSON of the answer."""

    def send(body: Any, path: str = "/predict", kind: str = "") -> tuple[int, dict[str, Any]]:
        status, text = request(port, "POST", path, body, kind)
        return status, json.loads(text)

    return send


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    """Start servers with limits of a test's own."""
    with ExitStack() as stack:
        yield lambda *given, **limits: stack.enter_context(serving(*given, **limits))
