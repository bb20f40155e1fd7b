"""Load `equalbits serve` over loopback: python benchmarks/serve_load.py [--seconds 10] > results/serve-load.json

The server runs in a process of its own; so does the client, which keeps N connections busy with one request each.
Before every row the engine alone is timed on one thread, in batches of 64 of the same images.
"""

import argparse
import asyncio
import io
import json
import os
import platform
import re
import subprocess
import sys
import time

import numpy as np
from PIL import Image

from equalbits.runtime import load_packed
from equalbits.runtime.zoo import ZOO


def engine_rate(name: str, seconds: float) -> float:
    """Return images per second of the engine on one thread, in batches of 64."""
    model, images = load_packed(name), stored_images(name, 64)
    start, done = time.perf_counter(), 0
    while (took := time.perf_counter() - start) < seconds:
        model(images)
        done += len(images)
    return done / took


def stored_images(name: str, count: int) -> np.ndarray:
    """Return images of a zoo entry, repeated."""
    return np.resize(images := np.load(ZOO / f"{name[4:]}.npz")["images"], (count, *images.shape[1:]))


async def connection(port: int, body: bytes, end: float, times: list[float], statuses: dict[str, int]) -> None:
    """Send one request after another until ``end``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    while (start := time.perf_counter()) < end:
        try:
            writer.write(head + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
            await reader.readexactly(int(length[1]) if length else 0)
            status = answer.split(b" ", 2)[1].decode()
        except (OSError, asyncio.IncompleteReadError) as error:
            status = type(error).__name__
        times.append(time.perf_counter() - start)
        statuses[status] = statuses.get(status, 0) + 1
        if not status.isdecimal():
            break
    writer.close()


async def load(port: int, body: bytes, connections: int, seconds: float) -> tuple[list[float], dict[str, int], float]:
    """Return the time of every request, the number of each status, and the seconds that all took."""
    times: list[float] = []
    statuses: dict[str, int] = {}
    start = time.perf_counter()
    await asyncio.gather(*(connection(port, body, start + seconds, times, statuses) for _ in range(connections)))
    return times, statuses, time.perf_counter() - start


def bodies(name: str) -> dict[str, tuple[bytes, int, str]]:
    """Return request bodies by kind, with the images of each and the status that is right."""
    png, npy, batch = io.BytesIO(), io.BytesIO(), io.BytesIO()
    images = stored_images(name, 64)
    Image.fromarray(images[0].squeeze()).save(png, "PNG")
    np.save(npy, images[0])
    np.save(batch, images)
    return {
        "a PNG": (png.getvalue(), 1, "200"),
        "an array": (npy.getvalue(), 1, "200"),
        "an array of 64 images": (batch.getvalue(), 64, "200"),
        "a PNG cut in half": (png.getvalue()[: len(png.getvalue()) // 2], 0, "422"),
    }


def row(name: str, port: int, kind: str, connections: int, seconds: float) -> dict[str, object]:
    """Return the figures of one load."""
    body, images, right = bodies(name)[kind]
    engine = engine_rate(name, 1)
    times, statuses, took = asyncio.run(load(port, body, connections, seconds))
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return {
        "body": kind,
        "connections": connections,
        "requests": len(times),
        "errors": len(times) - statuses.get(right, 0),
        "statuses": statuses,
        "requests_per_second": round(len(times) / took, 1),
        "images_per_second": round(images * len(times) / took, 1),
        "engine_images_per_second": round(engine, 1),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
    }


def cpu() -> str:
    with open("/proc/cpuinfo") as file:  # noqa: PTH123
        return next(line.partition(": ")[2].strip() for line in file if line.startswith("model name"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="zoo:fashion-conv4")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    name, rows, load_before = options.model, [], os.getloadavg()[0]
    words = [sys.executable, "-m", "equalbits", "serve", name, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        line = server.stdout.readline() if server.stdout else ""
        port = int(line.split(" with ")[0].rpartition(":")[2])
        for kind in bodies(name):
            for connections in (1, 64, 200):
                rows.append(row(name, port, kind, connections, options.seconds))
                print(rows[-1], file=sys.stderr)
        server.terminate()
    hardware = {"cpu": cpu(), "cores": os.cpu_count(), "load_before": load_before, "python": platform.python_version()}
    print(
        json.dumps(
            {"model": name, "seconds": options.seconds, **hardware, "exit": server.returncode, "rows": rows}, indent=1
        )
    )


if __name__ == "__main__":
    main()
