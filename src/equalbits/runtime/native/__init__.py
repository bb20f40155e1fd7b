"""The same engine in C. Where it was not built, :data:`BUILT` is None and numpy runs in its place."""

from types import ModuleType

BUILT: ModuleType | None
try:
    from equalbits.runtime.native import _native
except ImportError:
    BUILT = None
    #: Why there is no native engine, in one line.
    REASON = "the native engine is not built here, so numpy runs, slowly: install again where there is a C compiler"
else:
    BUILT = _native
    REASON = ""
