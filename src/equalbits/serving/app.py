"""The application: predict, health, metrics and a page to try it."""

import asyncio
import html
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from equalbits.runtime import PackedModel, top_classes
from equalbits.serving.batcher import Batcher
from equalbits.serving.body import RequestLimits, decode, read_body, refusal
from equalbits.serving.metrics import Metrics

_PAGE = Path(__file__).with_name("page.html")


class _Service:
    """One model with its queue, its decoding threads and its counters."""

    def __init__(self, model: PackedModel, name: str, limits: RequestLimits) -> None:
        self.model, self.name, self.limits, self.metrics = model, name, limits, Metrics()
        self._batcher = Batcher(model.run_batch, limits.images, self.metrics.batches.observe)
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, "equalbits-decode")

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Give the threads back when the server stops."""
        yield
        self._decoders.shutdown()
        self._batcher.close()

    async def predict(self, request: Request) -> Response:
        """Answer with the most likely classes, and count the request."""
        start, status = perf_counter(), 500
        self.metrics.in_flight += 1
        try:
            answer = await self._answer(request)
            status = 200
            return JSONResponse(answer | {"ms": round(1e3 * (perf_counter() - start), 3)})
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            self.metrics.in_flight -= 1
            self.metrics.statuses[status] += 1
            self.metrics.latency.observe(perf_counter() - start)

    async def _answer(self, request: Request) -> dict[str, Any]:
        limits = self.limits
        if self.metrics.in_flight > limits.requests:
            raise refusal(503, f"{limits.requests} requests are waiting: try again later")
        top = request.query_params.get("top", "5")
        if not (top.isdecimal() and top.isascii() and 1 <= int(top[:9]) <= 1000):
            raise refusal(400, f"top={top!r} must be an integer from 1 to 1000")
        body = await read_body(request, limits)
        try:
            async with asyncio.timeout(limits.seconds):
                loop = asyncio.get_running_loop()
                batch = await loop.run_in_executor(self._decoders, decode, self.model, body, limits)
                logits = (await self._batcher(batch)).reshape(len(batch), -1)
        except TimeoutError:
            raise refusal(503, f"no answer within {limits.seconds:g} seconds: try again later") from None
        if not np.isfinite(logits).all():
            raise refusal(422, "the logits overflow float32: send normalized images")
        rows = [top_classes(row, self.model.classes, int(top)) for row in logits]
        columns: dict[str, list[list[Any]]] = {
            "classes": [[each.label for each in row] for row in rows],
            "scores": [[round(each.probability, 6) for each in row] for row in rows],
            "logits": [[each.logit for each in row] for row in rows],
        }
        hint = self.model.network.unnormalized_hint(batch)
        return {name: column[0] if len(rows) == 1 else column for name, column in columns.items()} | (
            {"warning": hint} if hint else {}
        )

    async def health(self, request: Request) -> Response:
        """Describe the model."""
        model = self.model
        facts = {"model": self.name, "engine": model.engine, "input_shape": model.input_shape, "classes": model.classes}
        return JSONResponse({"status": "ok", **facts})

    async def show_metrics(self, request: Request) -> Response:
        """Return the counters for Prometheus."""
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def page(self, request: Request) -> Response:
        """Return a form that sends a picture and shows the answer."""
        shape = " × ".join(map(str, self.model.input_shape))
        if len(self.model.input_shape) == 3:
            channels, height, width = self.model.input_shape
            shape = f"{width} × {height} pixels{' of gray' if channels == 1 else ''}"
        page = _PAGE.read_text(encoding="utf-8")
        return HTMLResponse(page.replace("{name}", html.escape(self.name)).replace("{shape}", shape))


def make_app(model: PackedModel, *, name: str = "net", limits: RequestLimits | None = None) -> Starlette:
    """Return an ASGI application that serves a model: ``/predict``, ``/health``, ``/metrics`` and a page at ``/``."""
    if model.network.inputs or model.network.outputs:
        raise ValueError("the network has named inputs or outputs: only networks from one image to logits are served")
    service = _Service(model, name, limits or RequestLimits())
    routes = [
        Route("/predict", service.predict, methods=["POST"]),
        Route("/health", service.health),
        Route("/metrics", service.show_metrics),
        Route("/", service.page),
    ]
    return Starlette(routes=routes, lifespan=service.lifespan, exception_handlers={HTTPException: _one_line})


async def _one_line(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
