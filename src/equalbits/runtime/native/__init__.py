"""The same engine in C. Where it was not built, :data:`BUILT` is None and numpy runs in its place."""

from types import ModuleType

BUILT: ModuleType | None
try:
    from equalbits.runtime.native import _native
except ImportError as error:
    BUILT = None
    #: Why there is no native engine, in one line.
    REASON = (
        f"the native engine is not built, so numpy runs in its place, slowly ({error}); reinstall with a C compiler"
    )
else:
    BUILT = _native
    REASON = ""
