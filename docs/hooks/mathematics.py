"""Turns the TeX of a page into MathML, which browsers show without a script or a font.

``pymdownx.arithmatex`` finds the mathematics: ``$f$`` within a line, ``$$f$$`` on lines of its own.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["on_page_content", "to_mathml"]

_MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of a page."""
    return to_mathml(content)


def to_mathml(content: str) -> str:
    """HTML in which every marked formula is MathML. A formula that cannot be converted is an error."""
    return _MARKED.sub(_formula, content)


def _formula(found: re.Match[str]) -> str:
    tag, bracket, tex = found.groups()
    return f'<{tag} class="math">{convert(html.unescape(tex).strip(), "block" if bracket == "[" else "inline")}</{tag}>'
