"""An HTTP server for packed networks: pictures or arrays in, classes out. Needs starlette and uvicorn, not torch."""

from equalbits.serving.app import make_app as make_app
from equalbits.serving.body import RequestLimits as RequestLimits
from equalbits.serving.server import listen as listen
from equalbits.serving.server import make_server as make_server
from equalbits.serving.server import serve as serve
