"""Refuses to build a site that loads anything from elsewhere: every script, style, font and picture is its own.

Links that a reader may follow are fine.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["foreign", "on_post_build"]

_ELSEWHERE = r"(?:https?:)?//[^\s\"'>)]+"
_HTML = (
    re.compile(rf"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\ssrc=[\"']?({_ELSEWHERE})", re.IGNORECASE),
    re.compile(rf"<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\shref=[\"']?({_ELSEWHERE})", re.IGNORECASE),
)
_CSS = (
    re.compile(rf"url\(\s*[\"']?({_ELSEWHERE})", re.IGNORECASE),
    re.compile(rf"@import\s+[\"']({_ELSEWHERE})", re.IGNORECASE),
)


def foreign(text: str, suffix: str) -> Iterator[str]:
    """The addresses that an HTML or CSS file would load from elsewhere."""
    for pattern in (*_CSS, *(_HTML if suffix == ".html" else ())):
        yield from (found.group(1) for found in pattern.finditer(text))


def on_post_build(config: Any, **_: Any) -> None:
    """Called by mkdocs when the site is written."""
    site = Path(config["site_dir"])
    found = [
        f"{path.relative_to(site)}: {address}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css")
        for address in foreign(path.read_text(encoding="utf-8"), path.suffix)
    ]
    if found:
        raise SystemExit("The site would load from elsewhere:\n" + "\n".join(found))
