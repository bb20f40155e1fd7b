"""A native engine built from other sources than those beside it is not used."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from equalbits.runtime import native

HERE = Path(native.__file__).parent
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
from equalbits.runtime import native
assert native.__file__.startswith(sys.argv[1]), native.__file__
print(native.BUILT is not None, native.REASON)
"""


def test_an_engine_built_beside_its_sources_is_used():
    if not any(HERE.glob("_native.*")):
        pytest.skip("there was no C compiler")
    assert native.BUILT is not None and native.digest_of(HERE) == native.BUILT.SOURCES


def message(copy: Path) -> str:
    program = [sys.executable, "-c", PROGRAM, str(copy)]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(native.BUILT is None, reason=native.REASON)
def test_an_engine_older_than_its_sources_is_replaced_by_numpy_with_a_message(tmp_path):
    runtime = tmp_path / "equalbits" / "runtime"
    shutil.copytree(HERE.parent, runtime, ignore=shutil.ignore_patterns("__pycache__"))
    for file in HERE.parents[1].glob("_*.py"):
        shutil.copy(file, runtime.parent)
    assert message(tmp_path) == "True"
    with (runtime / "native" / "plan.c").open("a") as source:
        source.write("/* pulled */\n")
    assert message(tmp_path).startswith("False the native engine is older than its sources")
    for ending in ("*.c", "*.cpp", "*.h"):  # as a wheel has it
        for path in (runtime / "native").glob(ending):
            path.unlink()
    assert message(tmp_path) == "True"
