"""Turns the TeX of a page into MathML, which browsers show without a script.

``pymdownx.arithmatex`` finds the mathematics: ``$f$`` within a line, ``$$f$$`` on lines of its own. The site carries a
font for it, STIX Two Math of the ziamath package, because many machines have none.
"""

import html
import re
from importlib.resources import files as package_files
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_content", "to_mathml"]

FONT = "STIXTwoMath-Regular.ttf"

_LOW_ROOT = re.compile(r"<msqrt>((?:(?!<msqrt|<mfrac|<msup|<msubsup).)*?)</msqrt>", re.DOTALL)
_MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: Any, **_: Any) -> None:
    """Called by mkdocs with the files of the site."""
    content = package_files("ziamath").joinpath("fonts", FONT).read_bytes()
    files.append(File.generated(config, f"assets/{FONT}", content=content))


def on_page_content(content: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of a page."""
    return to_mathml(content)


def to_mathml(content: str) -> str:
    """HTML in which every marked formula is MathML. A formula that cannot be converted is an error."""
    return _MARKED.sub(_formula, content)


def _formula(found: re.Match[str]) -> str:
    tag, bracket, tex = found.groups()
    display = "block" if bracket == "[" else "inline"
    formula = convert(html.unescape(tex).strip(), display=display)
    # a prime is an operator, and the bars of a norm do not grow
    formula = formula.replace("<mi>&#x02032;</mi>", "<mo>&#x02032;</mo>")
    formula = formula.replace("<mo>&#x02016;</mo>", '<mo stretchy="false" lspace="0" rspace="0">&#x02016;</mo>')
    # a strut: without it the sign of a root hangs below the line where what is under it is low, such as a kappa
    formula = _LOW_ROOT.sub(r'<msqrt class="low">\1</msqrt>', formula)
    formula = re.sub("<msqrt[^>]*>", r'\g<0><mspace width="0" height="0.7em" depth="0.15em" />', formula)
    return f'<{tag} class="math">{formula}</{tag}>'
