"""Put the native engine named by ``EQUALBITS_SANITIZED`` in place of the installed one: ``pytest -p sanitized``.

``make sanitize`` builds that one with the address and undefined-behaviour sanitizers, and with the thread sanitizer.
"""

import importlib.util
import os
import sys

NAME = "equalbits.runtime.native._native"


def put_in_place(path: str) -> None:
    """Load the module from ``path`` under the installed one's name."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


if os.environ.get("EQUALBITS_SANITIZED"):
    put_in_place(os.environ["EQUALBITS_SANITIZED"])
    sys.modules["openvino"] = None  # type: ignore[assignment]  # its libraries end a process under a sanitizer
