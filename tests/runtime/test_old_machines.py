"""Old machines: instruction sets are checked before use, and kernels are built for their machine only."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "src" / "equalbits" / "runtime" / "native"
FLAGS = {
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx2", "-mfma", *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vpopcntdq", "vnni"))],
}


ON_X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these are x86's instructions")
WITH_32_BITS = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64" or not shutil.which("gcc"),
    reason="there is no compiler for x86 of 64 and 32 bits to ask",
)


@ON_X86
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


def compiled_for_32_bits(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    """Whether gcc takes a file for a 32-bit x86, which it does without that system's own headers."""
    return subprocess.run(["gcc", "-m32", "-ffreestanding", "-O1", *words], capture_output=True, text=True, timeout=300)


@WITH_32_BITS
@pytest.mark.skipif(not shutil.which("nm"), reason="there is nothing to look into a file with")
def test_kernels_that_need_64_bit_registers_are_not_built_for_32_bit(tmp_path: Path) -> None:
    """The system may be one of 32 bits and its kernel say x86_64: one file that is refused would cost the engine."""
    compiled = tmp_path / "kernels.o"
    done = compiled_for_32_bits("-c", NATIVE / "kernels_avx512.c", "-o", compiled, *FLAGS["avx512"], "-mfpmath=sse")
    assert done.returncode == 0, done.stderr
    assert "eb_kernels" not in subprocess.run(["nm", compiled], capture_output=True, text=True, check=True).stdout
    core = ["-DEB_HAVE_AVX2", "-DEB_HAVE_AVX512", "-dM", "-E", "-msse2", "-mfpmath=sse", NATIVE / "core.h"]
    known = compiled_for_32_bits(*core).stdout
    assert "EB_HAVE_AVX2" in known and "EB_HAVE_AVX512" not in known


@WITH_32_BITS
def test_no_engine_is_built_whose_floats_are_wider_than_others() -> None:
    """x87 registers have 80 bits and round sums differently: numpy runs instead."""
    words = ["-fsyntax-only", "-xc", NATIVE / "core.h"]
    assert "floats are computed as wider numbers" in compiled_for_32_bits("-mfpmath=387", *words).stderr
    assert compiled_for_32_bits("-msse2", "-mfpmath=sse", *words).returncode == 0
