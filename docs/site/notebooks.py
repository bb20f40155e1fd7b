"""Notebooks: execute them, and turn them into pages of the site.

``python docs/site/notebooks.py`` executes every notebook of ``docs/notebooks`` and stores its outputs; mkdocs imports
this file as a hook, which renders the stored outputs.
"""

import base64
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).parents[1] / "notebooks"


def execute(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a new kernel, in a directory of its own."""
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")  # no TCP ports
        client = NotebookClient(book, km=kernel, timeout=120, record_timing=False)
        client.resources = {"metadata": {"path": folder}}
        client.execute(cleanup_kc=True)
    for data in (output.get("data", {}) for cell in book.cells for output in cell.get("outputs", ())):
        if len(data) > 1:
            data.pop("text/plain", None)  # the table or picture says the same, shorter
    return book


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replace every notebook by a page, and by the pictures that it shows."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        stem = file.src_uri.removesuffix(".ipynb")
        text, pictures = to_page(nbformat.read(file.abs_src_path, as_version=4), Path(stem).name)
        files.append(File.generated(config, f"{stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"{Path(stem).parent.as_posix()}/{name}", content=data))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to notebooks lead to their pages."""
    return re.sub(r"\]\(([\w/.]+)\.ipynb\)", r"](\1.md)", markdown)


def to_page(book: nbformat.NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the pictures that it shows, by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in book.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                picture = f"{name}_{len(pictures)}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![Plot made by the code above]({picture})")
            elif "text/html" in data:
                parts.append(f'<div class="output">{data["text/html"]}</div>')
            else:
                parts.append(f"```text\n{data['text/plain'].rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


if __name__ == "__main__":
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(execute(notebook), notebook)
