"""Execute the notebooks of this directory and save them with their outputs: ``make tutorials``."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

__all__ = ["NOTEBOOKS", "execute"]

NOTEBOOKS = sorted(Path(__file__).parent.glob("*.ipynb"))


def execute(path: Path, directory: str | Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run in a directory. An error in a cell is raised.

    What goes to stderr is left out: warnings and progress bars name the paths of the machine.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(directory)}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return notebook


if __name__ == "__main__":
    asked = [Path(name) for name in sys.argv[1:]] or NOTEBOOKS
    for path in asked:
        with tempfile.TemporaryDirectory() as directory:
            nbformat.write(execute(path, directory), path)
        print(path)
