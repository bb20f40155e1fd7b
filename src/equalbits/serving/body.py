"""Read the body of a request within limits, and decode it to a batch of images."""

import asyncio
import json
from dataclasses import dataclass, fields

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from equalbits._text import bounded, escape_control_chars
from equalbits.runtime import Array, PackedModel

_NO_NUMBERS = "the lists hold no numbers or other values: send (channel, row, column) of numbers"
#: How many times the limit is read and discarded of a body that is too large. A client that does not wait for leave to
#: send reads no answer before it has sent all; closing the connection earlier would look like a fault of the network.
_DISCARDED = 10


@dataclass(frozen=True)
class RequestLimits:
    """Most bytes, pixels and images of a request, seconds until its answer, and requests at a time."""

    bytes: int = 10_000_000
    pixels: int = 1 << 24
    images: int = 256
    seconds: float = 10.0
    requests: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"--max-{field.name} {getattr(self, field.name)} must be above 0")


def refusal(status: int, line: str) -> HTTPException:
    """Return an error that is answered with one line."""
    return HTTPException(status, bounded(escape_control_chars(" ".join(line.split())), 500))


async def read_body(request: Request, limits: RequestLimits) -> bytes:
    """Return the body; refuse one that is empty, too large or too slow."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise refusal(415, "the body is a form: send the picture itself, as curl --data-binary @cat.jpg does")
    too_large = refusal(413, f"the body is over {limits.bytes} bytes: send a smaller picture")
    size, most = request.headers.get("content-length", ""), _DISCARDED * limits.bytes
    announced = int(size[:20]) if size.isdecimal() else 0
    if announced > most or (announced > limits.bytes and "expect" in request.headers):
        raise too_large
    parts, total = [], 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in request.stream():
                total += len(part)
                if total <= limits.bytes:
                    parts.append(part)
                elif total > most:
                    break
    except TimeoutError:
        raise refusal(
            408, f"the body did not arrive within {limits.seconds:g} seconds: send a smaller picture"
        ) from None
    except ClientDisconnect:
        raise refusal(400, "the connection closed before the body was complete") from None
    if total > limits.bytes:
        raise too_large
    if not total:
        raise refusal(400, "the body is empty: send a picture, a .npy file or a JSON list")
    return b"".join(parts)


def decode(model: PackedModel, body: bytes, limits: RequestLimits) -> Array:
    """Return the images of a body with a batch axis: a picture, a .npy file or a JSON list."""
    try:
        picture = _from_json(body) if body.lstrip(b" \t\r\n")[:1] in (b"[", b"{") else body
        batch = model.as_batch(model.prepare(picture, max_pixels=limits.pixels))
    except ValueError as error:
        raise refusal(422, str(error)) from None
    except MemoryError:
        raise refusal(413, "the body takes more memory than there is: send fewer or smaller images") from None
    if not 1 <= len(batch) <= limits.images:
        raise refusal(413, f"the body holds {len(batch)} images: send 1 to {limits.images} at a time")
    return batch


def _from_json(body: bytes) -> Array:
    """Return a JSON list as uint8, where all its numbers are integers, or float32."""
    try:
        numbers = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not valid JSON: send a list of lists of numbers") from None
    if not isinstance(numbers, list):
        raise ValueError("the body is a JSON object: send a list of lists of numbers")
    if b'"' in body:  # a string: numpy would allocate the longest for every entry
        raise ValueError(_NO_NUMBERS)
    try:
        array = np.asarray(numbers)
    except ValueError:
        raise ValueError("the lists have unequal lengths or hold no numbers: send (channel, row, column)") from None
    if array.dtype.kind == "i" and array.size:
        if array.min() < 0 or array.max() > 255:
            raise ValueError("integers are pixels from 0 to 255: send floats for normalized images, as 1.0")
        return array.astype(np.uint8)
    if array.dtype.kind != "f":
        raise ValueError(_NO_NUMBERS)
    return array
