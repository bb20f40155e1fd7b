"""A machine without a vector instruction is asked for it first: no kernel's own code runs before that."""

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
