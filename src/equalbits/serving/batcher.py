"""Run the images of all waiting requests in one call of the engine."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

import numpy as np

from equalbits.runtime import Array, Floats


class Batcher:
    """Queue of batches. While the engine runs, requests collect; the next call takes them all, up to ``most`` images.

    A request waits for no other where the engine is idle, so batching adds no latency. Batches of another dtype are
    run apart. Only one call runs at a time: the engine has threads of its own. Its caller is a daemon thread, so that a
    call of minutes does not keep a server from ending.
    """

    def __init__(self, run: Callable[[Array], Floats], most: int, observe: Callable[[int], None]) -> None:
        self._run, self._most, self._observe = run, most, observe
        self._waiting: deque[tuple[Array, asyncio.Future[Floats]]] = deque()
        self._calls: SimpleQueue[tuple[Array, Future[Floats]] | None] = SimpleQueue()
        Thread(target=self._run_calls, name="equalbits-engine", daemon=True).start()
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, batch: Array) -> Floats:
        """Return the logits of a batch once its turn has come."""
        future: asyncio.Future[Floats] = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await future

    def close(self) -> None:
        """End the thread of the engine, after its current call."""
        self._calls.put(None)

    def _run_calls(self) -> None:
        while call := self._calls.get():
            images, future = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._run(images))
                except Exception as error:
                    future.set_exception(error)

    async def _work(self) -> None:
        while group := self._take():
            images = np.concatenate([batch for batch, _ in group]) if len(group) > 1 else group[0][0]
            self._observe(len(images))
            try:
                ended: Future[Floats] = Future()
                self._calls.put((images, ended))
                logits = await asyncio.wrap_future(ended)
            except Exception as error:
                for _, future in group:
                    if not future.done():
                        future.set_exception(error)
                continue
            parts = np.split(logits, np.cumsum([len(batch) for batch, _ in group[:-1]]))
            for (_, future), part in zip(group, parts, strict=True):
                if not future.done():  # its request has timed out
                    future.set_result(part)
        self._worker = None

    def _take(self) -> list[tuple[Array, "asyncio.Future[Floats]"]]:
        """Remove the first batches of one dtype from the queue, at least one; skip requests that gave up."""
        group: list[tuple[Array, asyncio.Future[Floats]]] = []
        total = 0
        while self._waiting:
            batch, future = self._waiting[0]
            if not future.done():
                if group and (total + len(batch) > self._most or batch.dtype != group[0][0].dtype):
                    break
                group.append((batch, future))
                total += len(batch)
            self._waiting.popleft()
        return group
