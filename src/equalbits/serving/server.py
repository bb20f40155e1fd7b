"""Listen on a socket and serve until a signal; requests in flight are finished first."""

import asyncio
import errno
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

_STOP = (signal.SIGINT, signal.SIGTERM)
_REASONS = {errno.EADDRINUSE: "is in use", errno.EACCES: "needs the rights of root"}


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"--port {port} must be from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, "is not an address of this machine")
        raise ValueError(f"{host}:{port} {reason}: give another --port or --host") from None
    # Its connections inherit this. Else the body of an answer waits for the client to acknowledge the head: 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def make_server(app: Any, *, seconds: float = 10.0) -> uvicorn.Server:
    """Return a server that, when it stops, gives requests in flight ``seconds`` for the body and for the answer."""
    grace = round(2 * seconds) + 1
    return uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=grace, ws="none")
    )


def serve(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, then stop accepting and finish the requests in flight."""
    with _returning_after_signals():
        asyncio.run(server.serve(sockets=[listener]))


@contextmanager
def _returning_after_signals() -> Iterator[None]:
    """Ignore the signal that stopped the server, which uvicorn raises again once it has finished."""
    handlers = {number: signal.signal(number, lambda *_: None) for number in _STOP}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
