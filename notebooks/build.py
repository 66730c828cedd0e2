"""Executes the notebooks: each .py in this folder that is paired with an .ipynb gives that .ipynb.

    python notebooks/build.py [SOURCE...]

The result holds nothing that depends on the machine or the time: no versions, no timings, no random ids;
pictures without metadata, in few colours.
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parent
PAIRED = sorted(
    path for path in FOLDER.glob("*.py") if path.read_text("utf-8").startswith("# ---\n# jupyter:")
)
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def build(source: Path) -> Path:
    """Executes a notebook from top to bottom and writes it beside its source."""
    target = source.with_suffix(".ipynb")
    nbformat.write(executed(source), target)
    return target


def executed(source: Path) -> Any:
    """A notebook with its outputs, from top to bottom."""
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
        if cell.cell_type == "code":
            cell.outputs = _joined([_plain(output) for output in cell.outputs if not _is_empty(output)])
    notebook.metadata = METADATA
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """Text that the kernel sent in pieces, as one."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if "name" in output and output.name == last.get("name"):
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _is_empty(output: Any) -> bool:
    """What a bar of progress leaves behind."""
    return output.get("data", {}).get("text/html") == ""


def _plain(output: Any) -> Any:
    picture = output.get("data", {}).get("image/png")
    if picture is not None:
        output.data = {"image/png": _small(picture), "text/plain": "<Figure>"}
    if "metadata" in output:
        output.metadata = {}
    return output


def _small(picture: str) -> str:
    """The picture in 64 colours and without the name and version of the program that drew it."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(64)
    packed = io.BytesIO()
    image.save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


if __name__ == "__main__":
    for each in [Path(name).resolve() for name in sys.argv[1:]] or PAIRED:
        print(build(each), file=sys.stderr)
