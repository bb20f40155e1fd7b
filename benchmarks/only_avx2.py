"""Copy installed engines with their cpuid instructions patched, so that they find a processor without AVX-512.

    python benchmarks/only_avx2.py DIR [onnxruntime openvino ...]
    gcc -O2 -shared -fPIC -o only_avx2.so benchmarks/only_avx2.c
    PYTHONPATH=DIR LD_PRELOAD=./only_avx2.so python benchmarks/low_bit_activations.py RESULT --sets avx2

In the copies, each instruction that asks the processor what it can do is replaced by an undefined one of the same
length, which ``only_avx2.c`` traps and answers. Linux on x86-64; objdump of GNU binutils finds the instructions.
"""

import argparse
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

CPUID, UNDEFINED = b"\x0f\xa2", b"\x0f\x04"


def cpuid_places(library: Path) -> list[int]:
    """Return the offsets of cpuid instructions in the file."""
    headers = subprocess.run(["objdump", "-hw", library], capture_output=True, text=True, check=True).stdout
    sections = [[int(number, 16) for number in found] for found in
                re.findall(r"^ *\d+ \S+ +(\w+)  (\w+)  \w+  (\w+) .*CODE", headers, re.MULTILINE)]  # fmt: skip
    command = ["objdump", "-dw", "--no-show-raw-insn", str(library)]
    places = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        for line in listing.stdout:
            if line.endswith("\tcpuid\n"):
                address = int(line.split(":")[0], 16)
                places += [address - start + offset for size, start, offset in sections if 0 <= address - start < size]
    return places


def limit(library: Path) -> int:
    """Replace the instructions in a file; return how many there were."""
    places, code = cpuid_places(library), bytearray(library.read_bytes())
    for place in places:
        assert code[place : place + 2] == CPUID
        code[place : place + 2] = UNDEFINED
    if places:
        library.write_bytes(code)
    return len(places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("packages", nargs="*", default=["onnxruntime", "openvino"])
    options = parser.parse_args()
    for name in options.packages:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"{name} is not installed")
        copy = options.folder / name
        shutil.copytree(Path(spec.origin).parent, copy, ignore=shutil.ignore_patterns("*gpu_plugin*", "*npu_plugin*"))
        for library in sorted(copy.rglob("*.so*")):
            code = b"" if library.is_symlink() else library.read_bytes()
            if code.startswith(b"\x7fELF") and CPUID in code:
                print(f"{library}: {limit(library)} instructions", flush=True)


if __name__ == "__main__":
    main()
