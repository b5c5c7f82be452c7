"""One self-contained HTML page from any runs, to look at and to pass on.

It shows curves with bands that can be switched on and off and read off, a table with intervals, paired differences, and
the configs side by side. The page needs no network: it contains its data and its script.
"""

import html
import json
import re
from importlib.resources import files
from typing import Any

from nl_lightning.reporting.palette import COLOURS

__all__ = ["render"]


def render(data: dict[str, Any]) -> str:
    """The page for ``data``. No text in the data can end the script or become a tag."""
    template = (files("nl_lightning.reporting") / "page.html").read_text(encoding="utf-8")
    # JSON allows \u003c for every <, so that it contains neither </script> nor <!--.
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    palette = " ".join(f"--c{number}: {colour.lower()};" for number, colour in enumerate(COLOURS))
    parts = {"title": html.escape(data["title"]), "data": embedded, "palette": palette}
    return re.sub(r"\{\{(title|data|palette)\}\}", lambda match: parts[match[1]], template)
