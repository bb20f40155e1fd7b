"""An HTTP server for packed networks: pictures or arrays in, classes out. Needs starlette and uvicorn, not torch."""

from equalbits.serving.app import make_app
from equalbits.serving.body import RequestLimits
from equalbits.serving.server import listen, make_server, serve

__all__ = ["RequestLimits", "listen", "make_app", "make_server", "serve"]
