"""``equalbits serve``."""

import argparse
from dataclasses import fields

import equalbits as eb
from equalbits.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE|DIR", help="a packed file, zoo:NAME, or the output directory of a run")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1; 0.0.0.0: all)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (default: 8000)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the native engine (default: 1)")
    for name, kind, default, text in (
        ("bytes", int, 10_000_000, "bytes of a body"),
        ("pixels", int, 1 << 24, "pixels of a picture"),
        ("images", int, 256, "images of a request, and of one call of the engine"),
        ("seconds", float, 10.0, "seconds for a body to arrive, and for its answer"),
        ("requests", int, 1024, "requests at a time"),
    ):
        parser.add_argument(
            f"--max-{name}", type=kind, default=default, metavar="N", help=f"most {text} (default: {default:,})"
        )


def run(options: argparse.Namespace) -> None:
    """Answer requests until SIGTERM or Ctrl-C, then finish those in flight."""
    from equalbits.cli.run import load_model
    from equalbits.serving import RequestLimits, listen, make_app, make_server, serve

    names = [field.name for field in fields(RequestLimits)]
    limits = RequestLimits(**{name: getattr(options, f"max_{name}") for name in names})
    model = load_model(eb.runtime.find_packed(options.file), threads=options.threads)
    with listen(options.host, options.port) as listener:
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        say(f"serving {options.file} on {url} with the {model.engine} engine; Ctrl-C stops")
        app = make_app(model, name=options.file, limits=limits)
        serve(make_server(app, seconds=limits.seconds), listener)
    say("stopped")
