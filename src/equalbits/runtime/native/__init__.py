"""The engine in C. Where it is not built, :data:`BUILT` is None and numpy runs instead."""

from hashlib import sha256
from pathlib import Path
from types import ModuleType

#: The compiled module, or None.
BUILT: ModuleType | None
#: Reason why there is no native engine, in one line.
REASON: str


def digest_of(folder: Path) -> str:
    """Return the digest of the C sources in a folder, as compiled into an engine; "" where there are none."""
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
    if sources in ("", getattr(_native, "SOURCES", "unknown")):
        BUILT, REASON = _native, ""
    else:
        BUILT = None
        REASON = "the native engine is older than its sources, so numpy runs, slowly: install again, as make does"
