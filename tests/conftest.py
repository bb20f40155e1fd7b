"""Shared by all tests: GPU tests are skipped without a GPU; a fixture limits the size of files."""

import gc
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import forked  # noqa: F401 (selects what a fork server imports, before one starts)
import pytest
import torch
from hypothesis import settings

# A deadline is a wall-clock limit: a busy machine would fail tests that are right.
settings.register_profile("equalbits", deadline=None)
settings.load_profile("equalbits")

# A shell starts background jobs with Ctrl-C ignored, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

RoomFor = Callable[[int], AbstractContextManager[None]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def pytest_collection_finish() -> None:
    """Exempt the objects of all imports from garbage collection, which would visit them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def room_for() -> RoomFor:
    """Context manager that limits the size of files, as on a disk that is nearly full."""

    @contextmanager
    def limited(count: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited
