"""Build ``engine.wasm`` from the C sources with clang and lld: ``python -m equalbits.runtime.export.web.build``."""

import json
import subprocess
from hashlib import sha256
from pathlib import Path

from equalbits.runtime import native

_HERE = Path(__file__).parent
_SOURCES = Path(native.__file__).parent
_COMMAND = (
    "clang --target=wasm32 -std=c11 -O3 -msimd128 -mbulk-memory -nostdlib -nostdlibinc -isystem wasm/include"
    " -Wall -Wextra -Werror -ffp-contract=off -fno-trapping-math -fno-math-errno -fvisibility=hidden"
    " -Wl,--no-entry,--strip-all,--stack-first,-zstack-size=1048576"
)
#: C files of the native engine that the module leaves out: the kernels of other machines.
_OTHERS = (
    *("kernels_avx2.c", "kernels_avx512.c", "kernels_neon.c", "kernels_portable.c"),
    *("kernels_bytes_avx2.c", "kernels_bytes_avx512.c"),
)


def engine_digest() -> str:
    """Return the digest of the compile command and of every file it reads."""
    headers = (path for path in _SOURCES.rglob("*.h") if not path.name.startswith("avx"))
    files = sorted([*_c_files(), *headers], key=lambda path: path.relative_to(_SOURCES).as_posix())
    parts = [_COMMAND, *(f"{path.name} {sha256(path.read_bytes()).hexdigest()}" for path in files)]
    return sha256("\n".join(parts).encode()).hexdigest()


def compile_engine(path: Path) -> None:
    """Compile the sources to a WebAssembly module."""
    files = [str(source.relative_to(_SOURCES)) for source in _c_files()]
    subprocess.run([*_COMMAND.split(), "-o", str(path.absolute()), *files], cwd=_SOURCES, check=True)


def compiler_version() -> str:
    """Return the first line of ``clang --version``."""
    done = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def engine_facts() -> dict[str, object]:
    """Return facts stored beside the module: the digest of its sources, and the names in the tables of a plan."""
    if native.BUILT is None:
        raise ValueError(native.REASON)
    return {"sources": engine_digest(), "fields": native.BUILT.FIELDS, "kinds": native.BUILT.KINDS}


def _c_files() -> list[Path]:
    return sorted(path for path in [*_SOURCES.glob("*.c"), *_SOURCES.glob("wasm/*.c")] if path.name not in _OTHERS)


if __name__ == "__main__":
    compile_engine(_HERE / "engine.wasm")
    (_HERE / "engine.json").write_text(json.dumps({"compiler": compiler_version(), **engine_facts()}, indent=1) + "\n")
