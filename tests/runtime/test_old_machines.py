"""A machine without a vector instruction is asked for it first, and no kernel is built for a machine it is not of."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "src" / "equalbits" / "runtime" / "native"
FLAGS = {
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx2", "-mfma", *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vpopcntdq"))],
}


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these are x86's instructions")
@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("objdump")), reason="there is no compiler to ask")
@pytest.mark.parametrize("name", FLAGS)
def test_asking_for_an_instruction_set_does_not_use_it(name: str, tmp_path: Path) -> None:
    compiled = tmp_path / "kernels.o"
    words = ["gcc", "-O3", "-c", NATIVE / f"kernels_{name}.c", "-o", compiled, *FLAGS[name]]
    subprocess.run(words, check=True, timeout=300)
    shown = subprocess.run(["objdump", "-d", compiled], capture_output=True, text=True, check=True).stdout
    (asking,) = re.findall(r"<supported>:\n(.*?)\n\n", shown, re.DOTALL)
    assert "ret" in asking
    assert not re.findall(r"%[xyz]mm\d+|popcnt", asking)


@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("nm")), reason="there is no compiler to ask")
def test_kernels_of_64_bit_arm_are_built_where_the_compiler_makes_code_for_it_and_nowhere_else(tmp_path: Path) -> None:
    """The processor may be one and the compiler make code for another, as on a 64-bit Arm with a 32-bit system."""
    compiled = tmp_path / "kernels.o"
    subprocess.run(["gcc", "-O1", "-c", NATIVE / "kernels_neon.c", "-o", compiled], check=True, timeout=300)
    symbols = subprocess.run(["nm", compiled], capture_output=True, text=True, check=True).stdout
    known = subprocess.run(["gcc", "-dM", "-E", "-xc", "/dev/null"], capture_output=True, text=True, check=True).stdout
    assert ("eb_kernels_neon" in symbols) == ("__aarch64__" in known)
