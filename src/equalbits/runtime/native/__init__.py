"""The same engine in C. Where it was not built, :data:`BUILT` is None and numpy runs in its place."""

from hashlib import sha256
from pathlib import Path
from types import ModuleType

#: The engine, if there is one.
BUILT: ModuleType | None
#: Why there is no native engine, in one line.
REASON: str


def digest_of(folder: Path) -> str:
    """What an engine that is built from a folder's sources calls them; nothing where there are none."""
    sources = sorted(path for ending in ("*.c", "*.cpp", "*.h") for path in folder.glob(ending))
    digests = "".join(sha256(path.read_bytes()).hexdigest() for path in sources)
    return sha256(digests.encode()).hexdigest() if sources else ""


try:
    from equalbits.runtime.native import _native
except ImportError:
    BUILT = None
    REASON = "the native engine is not built here, so numpy runs, slowly: install again where there is a C compiler"
else:
    sources = digest_of(Path(__file__).parent)
    if sources in ("", getattr(_native, "SOURCES", "not said")):
        BUILT, REASON = _native, ""
    else:
        BUILT = None
        REASON = "the native engine is older than its sources, so numpy runs, slowly: install again, as make does"
