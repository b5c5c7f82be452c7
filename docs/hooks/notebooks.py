"""Shows the notebooks of tutorials/ as pages, with the outputs that they were saved with.

``python docs/tutorials/execute.py`` executes the notebooks and saves them. The page of ``tutorials/NAME.ipynb`` is
``tutorials/NAME.md``; the notebook itself can be downloaded from it.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

__all__ = ["on_files", "to_markdown"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, config: Any, **_: Any) -> None:
    """Called by mkdocs with the files of the site: a page and its pictures for every notebook."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = Path(file.src_uri)
        text, pictures = to_markdown(json.loads(Path(config["docs_dir"], path).read_text(encoding="utf-8")), path.stem)
        files.append(File.generated(config, path.with_suffix(".md").as_posix(), content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, path.with_name(name).as_posix(), content=content))


def to_markdown(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(f"```python\n{source}\n```")
            parts += [_output(output, name, pictures) for output in _joined(cell["outputs"])]
    title, *rest = parts
    note = f"[Download this notebook]({name}.ipynb){{ .md-button download }}"
    return "\n\n".join([title, *rest, note]) + "\n", pictures


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outputs of a cell, in which what was printed bit by bit is one text."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "stream" and joined and joined[-1].get("name") == output["name"]:
            joined[-1] = {**output, "text": [*joined[-1]["text"], *output["text"]]}
        else:
            joined.append(output)
    return joined


def _output(output: dict[str, Any], name: str, pictures: dict[str, bytes]) -> str:
    if output["output_type"] == "stream":
        return _text("".join(output["text"]))
    if output["output_type"] == "error":
        raise SystemExit(f"{name}.ipynb was saved with an error: {output['ename']}: {output['evalue']}")
    data = output["data"]
    if "image/png" in data:
        picture = f"{name}-{len(pictures) + 1}.png"
        pictures[picture] = base64.b64decode("".join(data["image/png"]))
        return f"![Output of the cell above]({picture})"
    html = "".join(data.get("text/html", ""))
    # tables of pandas; what rich draws with letters is text
    if "<table" in html:
        # on one line, so that Markdown does not look into it
        return f'<div class="notebook-html">{"".join(html.splitlines())}</div>'
    return _text(_ANSI.sub("", "".join(data["text/plain"])))


def _text(text: str) -> str:
    shown = "\n".join(line.rstrip() for line in text.splitlines()).rstrip()
    return f"```{{ .text .output }}\n{shown}\n```" if shown else ""
